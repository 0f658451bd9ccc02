"""The MCP inspector as a client, and a foreign server in a sandbox."""

import json
import os
import pathlib
import subprocess
import unittest

from mcp import Client, StdioServerParameters
from support import PROGRAM, Place, said

NODE = pathlib.Path(os.environ["MCP_NODE_MODULES"])


class Inspector(Place):
    def inspect(self, *args):
        program = str(NODE / "@modelcontextprotocol/inspector/cli/build/cli.js")
        command = ["node", program, "--cli", PROGRAM, "mcp", *args]
        return subprocess.run(command, env=self.env, cwd=self.project, capture_output=True, text=True, timeout=60)

    def test_tools_and_resources(self):
        listed = json.loads(self.inspect("--method", "tools/list").stdout)
        self.assertIn("run_command", [tool["name"] for tool in listed["tools"]])
        done = self.inspect("--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo hi; exit 4")
        data = json.loads(done.stdout)["structuredContent"]
        self.assertEqual((data["stdout"], data["exit_code"]), ("hi\n", 4))
        done = self.inspect("--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "nonsense=1")
        self.assertTrue(json.loads(done.stdout)["isError"], done)
        listed = json.loads(self.inspect("--method", "resources/list").stdout)
        self.assertEqual(len(listed["resources"]), 3)
        done = self.inspect("--method", "resources/read", "--uri", "ringfence://report")
        self.assertIn("fs.root-read-only", done.stdout)
        self.wait_for(lambda: self.live() == [], what="nothing is left")


class ForeignServer(Place):
    """`ringfence run -- <server>`: the protocol passes untouched, and the walls hold."""

    async def test_filesystem_server(self):
        secret = self.home / ".ssh/id"
        secret.parent.mkdir()
        secret.write_text("do not tell")
        (self.project / "note.txt").write_text("a note")
        program = str(NODE / "@modelcontextprotocol/server-filesystem/dist/index.js")
        # The server itself is told to allow all of home: the sandbox is what keeps it out.
        command = ["run", "--network=false", "--preset", "!@agents", "--ro", str(NODE), "--", "node", program, str(self.home)]
        server = StdioServerParameters(command=PROGRAM, args=command, env=self.env, cwd=str(self.project))
        async with Client(server, mode="legacy") as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            self.assertIn("read_text_file", names)
            note = await client.call_tool("read_text_file", {"path": str(self.project / "note.txt")})
            self.assertIn("a note", said(note))
            await client.call_tool("write_file", {"path": str(self.project / "new.txt"), "content": "new"})
            self.assertEqual((self.project / "new.txt").read_text(), "new")
            denied = await client.call_tool("read_text_file", {"path": str(secret)})
            self.assertTrue(denied.is_error)
            self.assertNotIn("do not tell", said(denied))
            denied = await client.call_tool("write_file", {"path": str(self.home / "planted"), "content": "x"})
            self.assertTrue(denied.is_error)
            self.assertFalse((self.home / "planted").exists())


if __name__ == "__main__":
    unittest.main()
