#!/usr/bin/env node
const { program } = require("commander");
const path = require("path");

program.option("-o, --output <dir>", "where to write", "dist").parse();
console.log(path.resolve(program.opts().output));
