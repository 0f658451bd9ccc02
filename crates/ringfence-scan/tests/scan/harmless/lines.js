import { readFile, writeFile } from "node:fs/promises";

const text = await readFile("input.txt", "utf8");
const lines = text.split("\n").filter((line) => line.trim() !== "");
await writeFile("output.txt", [...new Set(lines)].sort().join("\n"));
