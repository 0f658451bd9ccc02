const port = Number(process.env.PORT ?? 3000);
const debug = process.env.NODE_ENV !== "production";
console.log({ port, debug });
