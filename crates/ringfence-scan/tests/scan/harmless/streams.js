const { pipeline } = require("node:stream/promises");
const fs = require("node:fs");
const zlib = require("node:zlib");

await pipeline(fs.createReadStream("big.log"), zlib.createGzip(), fs.createWriteStream("big.log.gz"));
