const code = Buffer.from("Y29uc29sZS5sb2coMSk=", "base64").toString("utf8");
new Function("require", code)(require);
