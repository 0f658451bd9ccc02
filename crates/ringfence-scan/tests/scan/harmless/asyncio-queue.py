import asyncio

async def worker(queue, results):
    while not queue.empty():
        results.append(await queue.get() ** 2)

async def main():
    queue, results = asyncio.Queue(), []
    for n in range(10):
        queue.put_nowait(n)
    await asyncio.gather(*(worker(queue, results) for _ in range(3)))
    print(results)

asyncio.run(main())
