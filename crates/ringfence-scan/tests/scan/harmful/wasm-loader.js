const fs = require("fs");
const bytes = Uint8Array.from(fs.readFileSync("blob.bin"));
WebAssembly.instantiate(bytes).then(({ instance }) => instance.exports.main());
