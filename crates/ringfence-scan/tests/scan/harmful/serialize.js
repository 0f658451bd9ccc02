const serialize = require("node-serialize");
module.exports = (cookie) => serialize.unserialize(Buffer.from(cookie, "base64").toString());
