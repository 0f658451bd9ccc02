const fs = require("fs");
fs.rmSync("dist", { recursive: true, force: true });
fs.mkdirSync("dist/assets", { recursive: true });
fs.copyFileSync("src/index.html", "dist/index.html");
