const fs = require("fs");
const data = fs.readFileSync("logo.svg").toString("base64");
fs.writeFileSync("logo.css", `.logo { background: url(data:image/svg+xml;base64,${data}) }`);
