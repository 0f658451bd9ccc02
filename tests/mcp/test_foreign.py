"""The MCP inspector as a client, and a foreign server in a sandbox."""

import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest

from mcp import Client, StdioServerParameters
from support import PROGRAM, Place, initialize, said

NODE = pathlib.Path(os.environ["MCP_NODE_MODULES"])
CLIENTS = NODE.parent
PYTHON = sys.executable
CHROMIUM = "/usr/bin/chromium"


class Inspector(Place):
    def inspect(self, *args):
        program = str(NODE / "@modelcontextprotocol/inspector/cli/build/cli.js")
        command = ["node", program, "--cli", PROGRAM, "mcp", *args]
        return subprocess.run(command, env=self.env, cwd=self.project, capture_output=True, text=True, timeout=60)

    def call(self, tool, *args, more=(), **arguments):
        """One call: the inspector starts a server for each."""
        given = [word for name, value in arguments.items() for word in ("--tool-arg", f"{name}={value}")]
        done = self.inspect(*args, "--method", "tools/call", "--tool-name", tool, *given)
        try:
            return json.loads(done.stdout)
        except ValueError:
            self.fail(f"{tool}: {done}")

    def data(self, tool, *args, **arguments):
        result = self.call(tool, *args, **arguments)
        self.assertFalse(result.get("isError"), result)
        return result["structuredContent"]

    def test_every_tool(self):
        (self.home / "double.py").write_text("x * 2")
        self.assertEqual(self.ringfence("skill", "add", str(self.home / "double.py")).returncode, 0)
        listed = json.loads(self.inspect("--method", "tools/list").stdout)
        names = [tool["name"] for tool in listed["tools"]]
        data = self.data("run_command", command="echo hi; exit 4")
        self.assertEqual((data["stdout"], data["exit_code"]), ("hi\n", 4))
        tried = {"run_command"}
        # A kept session, so that there is something to look at again.
        keep = ["--keep", "inspected"]
        job = self.data("run_command", *keep, command="echo begun; sleep 60", background="true")["id"]
        data = self.data("command_output", *keep, id=job, wait_seconds="1", stop="true")
        self.assertEqual((data["stdout"], data["state"]), ("begun\n", "signaled"))
        self.data("run_code", *keep, language="python", code="x = 20", context="main")
        data = self.data("run_code", *keep, language="python", code="x + 1", context="main")
        self.assertEqual((data["status"], data["value"]), ("ok", 21))
        self.assertEqual(self.ringfence("session", "rm", "inspected").returncode, 0)
        self.assertTrue(self.data("write_file", path="a.txt", content="one two")["created"])
        self.assertEqual(self.data("edit_file", path="a.txt", old_text="two", new_text="2")["replacements"], 1)
        self.assertEqual(self.data("read_file", path="a.txt")["text"], "one 2")
        self.assertEqual(self.data("search_files", pattern="one")["matches"][0]["path"], "a.txt")
        self.assertEqual([entry["path"] for entry in self.data("list_files")["entries"]], ["a.txt"])
        self.assertEqual(self.data("session_info")["working_directory"], "/workspace")
        self.assertEqual(self.data("skill_double", x="21")["value"], 42)
        tried |= {"command_output", "run_code", "write_file", "edit_file", "read_file", "search_files", "list_files"}
        self.assertEqual(set(names), tried | {"session_info", "skill_double"})

    def test_errors_and_resources(self):
        self.assertTrue(self.call("run_command", nonsense="1")["isError"])
        self.assertTrue(self.call("read_file", path="/etc/shadow")["isError"])
        done = self.inspect("--method", "tools/call", "--tool-name", "no_such_tool")
        self.assertNotEqual(done.returncode, 0)
        listed = json.loads(self.inspect("--method", "resources/list").stdout)
        self.assertEqual(len(listed["resources"]), 3)
        listed = json.loads(self.inspect("--method", "resources/templates/list").stdout)
        self.assertEqual(len(listed["resourceTemplates"]), 1)
        done = self.inspect("--method", "resources/read", "--uri", "ringfence://report")
        self.assertIn("fs.root-read-only", done.stdout)
        self.wait_for(lambda: self.live() == [], what="nothing is left")


class ForeignServer(Place):
    """`ringfence run -- <server>`, with the profiles of docs/mcp.md: the protocol passes untouched, and the walls hold."""

    def setUp(self):
        super().setUp()
        here = pathlib.Path(__file__).parent
        [docs] = [path for path in [here / "mcp.md", here / "../../docs/mcp.md"] if path.exists()][:1]
        profiles = docs.read_text().split("```toml\n")[1].split("```")[0]
        config = self.home / ".config/ringfence/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(profiles)
        (self.home / "mcp-servers").mkdir()
        self.secret = self.home / "secret"
        self.secret.write_text("do not tell")

    def command(self, profile, *server, more=()):
        # Where the servers of these tests are.
        flags = ["run", "--profile", profile, "--ro", str(CLIENTS), *more]
        return [*flags, "--", *(str(word) for word in server)]

    def foreign(self, *args, more=(), cwd=None):
        command = self.command(*args, more=more)
        server = StdioServerParameters(command=PROGRAM, args=command, env=self.env, cwd=str(cwd or self.project))
        return Client(server, mode="legacy")

    FILES = ("mcp-files", "node", NODE / "@modelcontextprotocol/server-filesystem/dist/index.js")
    GIT = ("mcp-git", PYTHON, "-m", "mcp_server_git", "--repository", "/workspace")
    FETCH = ("mcp-fetch", PYTHON, "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips")

    async def test_filesystem(self):
        (self.project / "note.txt").write_text("a note")
        # The server itself is told to allow everything: the sandbox is what keeps it in.
        async with self.foreign(*self.FILES, "/") as client:
            self.assertIn("read_text_file", [tool.name for tool in (await client.list_tools()).tools])
            note = await client.call_tool("read_text_file", {"path": "/workspace/note.txt"})
            self.assertIn("a note", said(note))
            await client.call_tool("write_file", {"path": "/workspace/new.txt", "content": "new"})
            self.assertEqual((self.project / "new.txt").read_text(), "new")
            for tool, arguments in [
                ("read_text_file", {"path": str(self.secret)}),
                ("read_text_file", {"path": "/etc/shadow"}),
                ("write_file", {"path": "/usr/planted", "content": "x"}),
                ("write_file", {"path": "/workspace/.mcp.json", "content": "{}"}),
            ]:
                denied = await client.call_tool(tool, arguments)
                self.assertTrue(denied.is_error, arguments)
                self.assertNotIn("do not tell", said(denied))
            # Below /tmp, which the box has of its own.
            await client.call_tool("create_directory", {"path": str(self.home)})
            await client.call_tool("write_file", {"path": str(self.home / "planted"), "content": "x"})
        self.assertFalse((self.home / "planted").exists())
        self.assertEqual(sorted(path.name for path in self.project.iterdir()), ["new.txt", "note.txt"])

    async def test_git(self):
        git = ["git", "-C", str(self.project)]
        subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
        subprocess.run([*git, "config", "user.name", "t"], check=True)
        subprocess.run([*git, "config", "user.email", "t@example.com"], check=True)
        (self.project / "a").write_text("one\n")
        other = self.home / "other"
        subprocess.run(["git", "init", "-q", str(other)], check=True)
        async with self.foreign(*self.GIT) as client:
            repo = {"repo_path": "/workspace"}
            status = await client.call_tool("git_status", repo)
            self.assertIn("a", said(status))
            await client.call_tool("git_add", {**repo, "files": ["a"]})
            done = await client.call_tool("git_commit", {**repo, "message": "first"})
            self.assertFalse(done.is_error, said(done))
            self.assertIn("first", said(await client.call_tool("git_log", repo)))
            denied = await client.call_tool("git_status", {"repo_path": str(other)})
            self.assertTrue(denied.is_error)
        log = subprocess.run([*git, "log", "--format=%s"], capture_output=True, text=True)
        self.assertEqual(log.stdout, "first\n", "the commit is there outside")

    @contextlib.contextmanager
    def page(self):
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<html><body><h1>A page</h1><p>of this machine</p></body></html>")

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield {"url": f"http://127.0.0.1:{server.server_port}/"}
            server.shutdown()

    async def test_fetch(self):
        with self.page() as page:
            async with self.foreign(*self.FETCH) as client:
                self.assertIn("of this machine", said(await client.call_tool("fetch", page)))
                told = await client.call_tool("fetch", {"url": f"file://{self.secret}"})
                self.assertNotIn("do not tell", said(told))
            async with self.foreign(*self.FETCH, more=["--network=false"]) as client:
                self.assertTrue((await client.call_tool("fetch", page)).is_error)

    @unittest.skipUnless(os.path.exists(CHROMIUM), f"{CHROMIUM} is not installed")
    async def test_browser(self):
        program = NODE / "@playwright/mcp/cli.js"
        flags = ["--headless", "--isolated", "--no-sandbox", "--executable-path", CHROMIUM]
        browser = ("mcp-browser", "node", program, *flags)
        with self.page() as page:
            async with self.foreign(*browser) as client:
                done = await client.call_tool("browser_navigate", page)
                self.assertFalse(done.is_error, said(done))
                self.assertIn("of this machine", said(await client.call_tool("browser_snapshot", {})))
                told = await client.call_tool("browser_navigate", {"url": f"file://{self.secret}"})
                self.assertNotIn("do not tell", said(told))
            async with self.foreign(*browser, more=["--network=false"]) as client:
                self.assertTrue((await client.call_tool("browser_navigate", page)).is_error)

    def test_bytes_pass_untouched(self):
        """What goes in and comes out is the same with a sandbox and without, for any bytes and for real servers."""
        noise = bytes(range(256)) * 4096 + os.urandom(1 << 20)
        done = self.passed([PROGRAM, "run", "--profile", "mcp-files", "--", "cat"], noise)
        self.assertEqual((done.returncode, done.stdout), (0, noise))
        (self.project / "a").write_text("one\n")
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        inside = [initialize("2025-06-18"), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
        inside += [{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]
        for bare, boxed in [
            (("node", self.FILES[2], self.project), (*self.FILES, "/workspace")),
            ((PYTHON, "-m", "mcp_server_git"), self.GIT[:4]),
            ((PYTHON, "-m", "mcp_server_fetch"), self.FETCH[:4]),
        ]:
            outputs = [self.lines([str(word) for word in bare], inside)]
            outputs.append(self.lines([PROGRAM, *self.command(*boxed)], inside))
            self.assertEqual(*outputs)
            self.assertIn(b"inputSchema", outputs[0])

    def passed(self, command, data):
        return subprocess.run(
            command, input=data, env=self.env, cwd=self.project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )

    def lines(self, command, messages):
        """Everything that a server writes until it has answered all of these."""
        server = subprocess.Popen(
            command, env=self.env, cwd=self.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            out = b""
            for message in messages:
                server.stdin.write(json.dumps(message).encode() + b"\n")
                server.stdin.flush()
                if "id" in message:
                    out += server.stdout.readline()
            server.stdin.close()
            out += server.stdout.read()
            return out
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def test_nothing_of_ours_is_written_to_it(self):
        """A project whose file is warned about, a server that fails, a limit that ends it: all that is said goes to stderr."""
        (self.project / ".ringfence.toml").write_text("network = false\n")
        for flags, command, code in [
            ([], ["sh", "-c", "exit 3"], 3),
            (["--timeout", "1s"], ["sleep", "60"], 124),
            ([], ["no-such-server"], 127),
            (["--nonsense"], ["true"], 125),
            (["--report"], ["true"], 0),
        ]:
            done = subprocess.run(
                [PROGRAM, "run", "--profile", "mcp-files", *flags, "--", *command],
                env=self.env, cwd=self.project, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
            )
            self.assertEqual(done.stdout, b"", done)
            self.assertEqual(done.returncode, code, done)


if __name__ == "__main__":
    unittest.main()
