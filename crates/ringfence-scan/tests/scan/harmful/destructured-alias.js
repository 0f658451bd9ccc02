const { exec: run } = require("node:child_process");
module.exports = (input) => run(`convert ${input} out.png`);
