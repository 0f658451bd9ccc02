const fs = require("fs");
const base = JSON.parse(fs.readFileSync("base.json", "utf8"));
const extra = JSON.parse(fs.readFileSync("extra.json", "utf8"));
fs.writeFileSync("merged.json", JSON.stringify({ ...base, ...extra }, null, 2));
