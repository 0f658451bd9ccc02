const Module = require("module");
const load = Module._load;
Module._load = function (name) {
  if (name === "https") return require("./fake-https");
  return load.apply(this, arguments);
};
