const where = process.argv[2];
const tool = await import(where);
await tool.default();
