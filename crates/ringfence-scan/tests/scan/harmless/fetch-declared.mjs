const BASE = "https://api.example.org";
const response = await fetch(`${BASE}/v1/rates?base=EUR`);
if (!response.ok) throw new Error(`status ${response.status}`);
const { rates } = await response.json();
console.log(Object.entries(rates).slice(0, 5));
