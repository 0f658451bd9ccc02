const pattern = /(\d{4})-(\d{2})/g;
const text = "2024-01 and 2025-02";
let match;
while ((match = pattern.exec(text)) !== null) console.log(match[1], match[2]);
