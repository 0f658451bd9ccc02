"""`ringfence install`: what is written is what a client starts, and nothing else in the file changes."""

import json
import os
import pty
import subprocess
import tomllib
import unittest

from mcp import Client, StdioServerParameters
from support import PROGRAM, Place

COMMENTED = """{
  // mine
  "theme": "dark", /* and why */
  "LIST": {
    "b": { "command": "x" }, // first
    "a": {}
  },
  "last": 1.50
}
"""
TOML = """# mine
model   =   'x'   # why

[mcp_servers.docs] # d
command = "npx"
args = [ "-y", # because
  "docs" ]

[tui]
x = 1
"""
CLIENTS = {
    "claude": (".claude.json", ".mcp.json", "mcpServers"),
    "codex": (".codex/config.toml", ".codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", ".vscode/mcp.json", "servers"),
    "gemini": (".gemini/settings.json", ".gemini/settings.json", "mcpServers"),
}


class Install(Place):
    async def test_what_is_written_is_what_starts(self):
        """In both scopes of every client: install, start what stands there with a real client, remove."""
        # A project's entry names the program alone.
        programs = self.home / "programs"
        programs.mkdir()
        (programs / "ringfence").symlink_to(PROGRAM)
        path = f"{programs}:{os.environ['PATH']}"
        for client, (user, project, servers) in CLIENTS.items():
            for scope, file in [("user", self.home / user), ("project", self.project / project)]:
                before = TOML if client == "codex" else COMMENTED.replace("LIST", servers)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(before)
                done = self.ringfence("install", client, "--scope", scope, "--yes")
                self.assertEqual(done.returncode, 0, done.stderr)
                after = file.read_text()
                # The change was shown, and all that was there still is, in its order.
                for line in set(after.splitlines()) - set(before.splitlines()):
                    self.assertIn(f"+{line}", done.stderr, (client, scope))
                rest = iter(after)
                self.assertTrue(all(char in rest for char in before), (client, scope))
                entry = self.read(after)[servers]["ringfence"]
                args = [word.replace("${workspaceFolder}", str(self.project)) for word in entry["args"]]
                server = StdioServerParameters(
                    command=entry["command"], args=args, env={**self.env, "PATH": path}, cwd=str(self.project)
                )
                async with Client(server, mode="legacy") as started:
                    info = (await started.call_tool("session_info", {})).structured_content
                    self.assertEqual(info["working_directory_outside"], str(self.project))
                done = self.ringfence("install", client, "--scope", scope, "--remove", "--yes")
                self.assertEqual((done.returncode, file.read_text()), (0, before), (client, scope))
                file.unlink()

    def read(self, text):
        if text.startswith("#"):
            return tomllib.loads(text)
        lines = [line.split("//")[0] for line in text.splitlines()]
        return json.loads("\n".join(lines).replace("/* and why */", ""))

    def test_it_asks(self):
        file = self.home / ".cursor/mcp.json"
        for answer, written in [(b"n\n", False), (b"\n", False), (b"y\n", True)]:
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}\n")
            ours, theirs = pty.openpty()
            process = subprocess.Popen(
                [PROGRAM, "install", "cursor"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self.env, cwd=self.project, start_new_session=True,
            )
            os.close(theirs)
            os.write(ours, answer)
            out, err = process.communicate(timeout=30)
            os.close(ours)
            self.assertEqual(out, b"")
            self.assertIn(b"+", err)
            self.assertEqual("ringfence" in file.read_text(), written, err)
            self.assertEqual(process.returncode, 0 if written else 1)


if __name__ == "__main__":
    unittest.main()
