const axios = require("axios");

const client = axios.create({ baseURL: "https://api.example.org/v1", timeout: 5000 });

async function items(page = 1) {
  const { data } = await client.get("/items", { params: { page } });
  return data;
}

items().then(console.log);
