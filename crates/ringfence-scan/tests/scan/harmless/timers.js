const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function retry(action, times = 3) {
  for (let i = 0; i < times; i++) {
    try {
      return await action();
    } catch (error) {
      await sleep(100 * 2 ** i);
    }
  }
  throw new Error("gave up");
}
retry(async () => 42).then(console.log);
