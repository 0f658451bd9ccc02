"""A place of its own for each test: home, project, and the program as a client starts it."""

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

from mcp import Client, StdioServerParameters

PROGRAM = os.environ["RINGFENCE"]
REVISIONS = ["legacy", "2026-07-28"]


class Place(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="ringfence-mcp-")
        self.addCleanup(holder.cleanup)
        self.home = pathlib.Path(holder.name).resolve() / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        runtime = self.home / "run"
        runtime.mkdir(mode=0o700)
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(runtime)}

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)

    def server(self, *args, cwd=None):
        where = str(cwd or self.project)
        return StdioServerParameters(command=PROGRAM, args=["mcp", *args], env=self.env, cwd=where)

    def client(self, *args, cwd=None, mode="legacy", **options):
        return Client(self.server(*args, cwd=cwd), mode=mode, **options)

    def ringfence(self, *args):
        return subprocess.run(
            [PROGRAM, *args], env=self.env, cwd=self.project, capture_output=True, text=True, timeout=60
        )

    def raw(self, *args):
        """The server without a client: lines in, lines out."""
        return subprocess.Popen(
            [PROGRAM, "mcp", *args],
            env=self.env,
            cwd=self.project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def live(self):
        listed = json.loads(self.ringfence("session", "list", "--json").stdout)["sessions"]
        return [session for session in listed if session["state"] == "live"]

    def wait_for(self, true, seconds=10, what=""):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if true():
                return
            time.sleep(0.05)
        self.fail(f"not within {seconds} s: {what}")


def processes(mark):
    """Processes of this machine, boxes included, that have this word in their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def said(result):
    return "\n".join(block.text for block in result.content)


def initialize(version, capabilities=None):
    params = {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "raw", "version": "0"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def call(number, name, arguments):
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
