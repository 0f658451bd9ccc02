"""For ./bench: how long `run_command` of `true` takes through the official client, beside the client's own ping."""

import asyncio
import json
import sys
import time

from mcp import Client, StdioServerParameters


async def main(program, rounds):
    server = StdioServerParameters(command=program, args=["mcp"])
    async with Client(server, mode="legacy") as client:
        # The session is made, and the client has read the schemas that it checks answers against.
        await client.list_tools()
        await client.call_tool("run_command", {"argv": ["true"]})
        times = {"ping": [], "run": []}
        for _ in range(rounds):
            for name, act in [
                ("ping", client.send_ping),
                ("run", lambda: client.call_tool("run_command", {"argv": ["true"]})),
            ]:
                begun = time.perf_counter()
                await act()
                times[name].append((time.perf_counter() - begun) * 1000)
        print(json.dumps(times))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
