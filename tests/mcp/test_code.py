"""`run_code`, and skills as tools."""

import asyncio
import json
import pathlib
import time
import unittest

import mcp.types as types
from support import REVISIONS, Place, processes, said

# How long ago the interpreter was started, in seconds.
AGE = """
import os
started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
float(open("/proc/uptime").read().split()[0]) - started
"""


class Code(Place):
    async def run_code(self, client, source, language="python", **arguments):
        arguments = {"language": language, "code": source, **arguments}
        result = await client.call_tool("run_code", arguments)
        self.assertFalse(result.is_error, said(result))
        return result.structured_content

    async def test_a_fresh_box_for_each_call(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                await client.list_tools()
                data = await self.run_code(client, "print('out'); x = a + 1; x", inputs={"a": 41})
                self.assertEqual((data["status"], data["stdout"], data["value"]), ("ok", "out\n", 42))
                data = await self.run_code(client, "x")
                self.assertEqual((data["status"], data["exception"]["kind"]), ("error", "NameError"))
                data = await self.run_code(client, "const y = 6; y * 7", "javascript")
                self.assertEqual(data["value"], 42)
                data = await self.run_code(client, "echo here > made; result=7", "bash")
                self.assertEqual((data["value"], (self.project / "made").read_text()), (7, "here\n"))
                data = await self.run_code(client, "open('/usr/x', 'w')")
                self.assertEqual(data["status"], "denied")
                self.assertIn("ask them", data["note"])
                data = await self.run_code(client, "print('before', flush=True)\nwhile True: pass", timeout_seconds=2)
                self.assertEqual((data["status"], data["stdout"]), ("timeout", "before\n"))

    async def is_warm(self, client):
        """An interpreter waits for code, and has done so for a while."""
        for _ in range(30):
            await asyncio.sleep(1)
            if (await self.run_code(client, AGE))["value"] > 0.5:
                return
        self.fail("no interpreter waits")

    async def test_interpreters_wait_for_code(self):
        async with self.client() as client:
            await client.list_tools()
            await self.is_warm(client)
            left = "import os; was = os.path.exists('/tmp/x'); open('/tmp/x', 'w').close(); was or 'x' in globals()"
            for _ in range(4):
                self.assertEqual((await self.run_code(client, left))["value"], False)
            data = await self.run_code(client, "while True: pass", timeout_seconds=1)
            self.assertEqual(data["status"], "timeout")
        self.wait_for(lambda: not processes(str(self.project)), what="interpreters that waited are gone")
        (self.project / ".ringfence.toml").write_text("warm = 0\n")
        async with self.client() as client:
            for _ in range(3):
                self.assertLess((await self.run_code(client, AGE))["value"], 0.5)
                await asyncio.sleep(1)

    async def test_a_waiting_interpreter_reads_no_file_that_came_later(self):
        secret, below = self.project / ".env", self.project / "below"
        secret.write_text("one")
        below.mkdir()
        async with self.client("--preset", "@env-files") as client:
            await client.list_tools()
            await self.is_warm(client)
            for name in [".env", "plain"]:
                (below / name).write_text("later")
            self.assertEqual((await self.run_code(client, "open('below/plain').read()"))["value"], "later")
            data = await self.run_code(client, "open('below/.env').read()")
            self.assertEqual(data["status"], "denied")
            await self.is_warm(client)
            # The kernel drops the mount on a file that is replaced.
            for name in [".env", "plain"]:
                (self.project / "new").write_text("two")
                (self.project / "new").rename(self.project / name)
            self.assertEqual((await self.run_code(client, "open('plain').read()"))["value"], "two")
            data = await self.run_code(client, "open('.env').read()")
            self.assertEqual(data["status"], "denied")

    async def test_contexts_keep_variables(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                await client.list_tools()
                for language, first, second in [
                    ("python", "import math\nx = 20\nprint('one')", "x += 1\nmath.floor(x + 0.5)"),
                    ("javascript", "let x = 20; console.log('one')", "x += 1; x"),
                ]:
                    one = await self.run_code(client, first, language, context=language)
                    self.assertEqual((one["status"], one["stdout"]), ("ok", "one\n"))
                    two = await self.run_code(client, second, language, context=language)
                    self.assertEqual((two["status"], two["value"]), ("ok", 21))
                    other = await self.run_code(client, "x", language, context="other-" + language)
                    self.assertEqual(other["status"], "error", "another one has variables of its own")
                info = (await client.call_tool("session_info", {})).structured_content
                names = [(context["name"], context["language"]) for context in info["contexts"]]
                self.assertIn(("python", "python"), names)
                self.assertIn(("other-javascript", "javascript"), names)
                fresh = await self.run_code(client, "'x' in globals()", context="python", restart=True)
                self.assertEqual(fresh["value"], False)
                # It shares the session's files and its walls.
                await client.call_tool("run_command", {"command": "echo shared > /tmp/x"})
                data = await self.run_code(client, "open('/tmp/x').read()", context="python")
                self.assertEqual(data["value"], "shared\n")
                data = await self.run_code(client, "open('/usr/x', 'w')", context="python")
                self.assertEqual(data["status"], "denied")

    async def test_a_context_that_runs_too_long_keeps_its_variables(self):
        async with self.client() as client:
            await self.run_code(client, "x = 5", context="main")
            line = "print('before', flush=True)\nwhile True: pass"
            data = await self.run_code(client, line, context="main", timeout_seconds=1)
            self.assertEqual((data["status"], data["stdout"]), ("timeout", "before\n"))
            self.assertEqual((await self.run_code(client, "x", context="main"))["value"], 5)
            # One that crashes is reported, and the next call starts another.
            data = await self.run_code(client, "import os; os._exit(3)", context="main")
            self.assertEqual(data["status"], "error")
            self.assertIn("variables are gone", data["exception"]["message"])
            self.assertEqual((await self.run_code(client, "1 + 1", context="main"))["value"], 2)

    async def test_cancellation_interrupts_a_context(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                await self.run_code(client, "x = 5\nimport subprocess", context="main")
                source = "subprocess.run(['sleep', '82345'])"
                arguments = {"language": "python", "code": source, "context": "main"}
                task = asyncio.create_task(client.call_tool("run_code", arguments))
                await asyncio.to_thread(self.wait_for, lambda: processes("82345"), what="it runs")
                # This one waits for its turn; cancelled, it never runs, and the first is not disturbed.
                arguments = {"language": "python", "code": "open('ran', 'w')", "context": "main"}
                waiting = asyncio.create_task(client.call_tool("run_code", arguments))
                await asyncio.sleep(0.3)
                waiting.cancel()
                await asyncio.sleep(0.5)
                self.assertEqual(len(processes("82345")), 1)
                task.cancel()
                await asyncio.to_thread(self.wait_for, lambda: processes("82345") == [], what="it is gone")
                self.assertEqual((await self.run_code(client, "x", context="main"))["value"], 5)
                self.assertFalse((self.project / "ran").exists())

    async def test_cancellation_ends_a_fresh_box(self):
        async with self.client() as client:
            arguments = {"language": "bash", "code": "setsid sleep 92345 & sleep 92345"}
            task = asyncio.create_task(client.call_tool("run_code", arguments))
            await asyncio.to_thread(self.wait_for, lambda: len(processes("92345")) >= 2, what="it runs")
            task.cancel()
            await asyncio.to_thread(self.wait_for, lambda: processes("92345") == [], what="it is gone")
            self.assertEqual((await self.run_code(client, "1"))["value"], 1)

    async def test_progress_says_that_it_runs(self):
        for extra in [{}, {"context": "main"}]:
            seen = []

            async def on_progress(progress, total, message):
                seen.append(message)

            async with self.client() as client:
                arguments = {"language": "python", "code": "import time; time.sleep(2.5)", **extra}
                await client.call_tool("run_code", arguments, progress_callback=on_progress)
            self.assertEqual(seen[:2], ["running for 1 s", "running for 2 s"])

    async def test_wrong_arguments_run_nothing(self):
        touch = "open('ran', 'w')"
        async with self.client() as client:
            await self.run_code(client, "1", context="taken")
            for arguments, why in [
                ({"language": "cobol", "code": touch}, "unknown variant"),
                ({"language": "python", "code": touch, "profile": "agent"}, "unknown field `profile`"),
                ({"language": "python", "code": touch, "context": "../x"}, "cannot be the name"),
                ({"language": "python", "code": touch, "context": "x" * 65}, "cannot be the name"),
                ({"language": "python", "code": touch, "restart": True}, "needs a `context`"),
                ({"language": "bash", "code": "touch ran", "context": "b"}, "no contexts for bash"),
                ({"language": "javascript", "code": "1", "context": "taken"}, "is in python"),
                ({"language": "python", "code": touch, "context": "a", "timeout_seconds": 100000}, "600 at most"),
                ({"language": "python", "code": touch, "inputs": []}, "invalid type"),
            ]:
                result = await client.call_tool("run_code", arguments)
                self.assertTrue(result.is_error, arguments)
                self.assertIn(why, said(result))
        self.assertFalse((self.project / "ran").exists())

    async def test_it_is_recorded(self):
        async with self.client() as client:
            await self.run_code(client, "1")
            await self.run_code(client, "2", context="main")
        records = json.loads(self.ringfence("history", "--json").stdout)["records"]
        commands = [record["command"] for record in records]
        self.assertIn(["code", "python", "-"], commands)
        self.assertIn(["code", "python", "-", "--context", "main"], commands)

    async def test_large_values_and_pictures(self):
        async with self.client() as client:
            data = await self.run_code(client, "print('x' * 10_000_000)\nlist(range(100000))")
            self.assertLess(len(data["stdout"]), 30000)
            self.assertIsNone(data["value"])
            self.assertIn("too large", data["note"])
            source = "class P:\n def _repr_png_(self): return b'\\x89PNG'\nP()"
            for extra in [{}, {"context": "main"}]:
                arguments = {"language": "python", "code": source, **extra}
                result = await client.call_tool("run_code", arguments)
                self.assertEqual(result.structured_content["pictures"], 1)
                self.assertEqual([block.type for block in result.content], ["text", "image"])


class Skills(Place):
    def add(self, name, source, *args, schema=None, language="python"):
        path = self.home / "skill-code"
        path.write_text(source)
        args = [str(path), "--name", name, "--language", language, *args]
        if schema is not None:
            (self.home / "schema.json").write_text(json.dumps(schema))
            args += ["--inputs", str(self.home / "schema.json")]
        done = self.ringfence("skill", "add", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()[1]

    async def tools(self, client):
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    async def test_each_enabled_skill_is_a_tool(self):
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
        hash = self.add("double", "print('hi')\nx * 2", "--source", "community", schema=schema)
        self.add("off", "1")
        self.add("with.dots", "inputs")
        self.add("lines", "len(inputs)", schema={"type": "array", "items": {"type": "string"}})
        self.ringfence("skill", "disable", "off")
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                tools = await self.tools(client)
                skills = sorted(name for name in tools if name.startswith("skill_"))
                self.assertEqual(len(skills), 3, skills)
                for name in skills:
                    self.assertRegex(name, "^[A-Za-z0-9_-]{1,48}$")
                self.assertEqual(tools["skill_double"].input_schema, schema)
                hints = tools["skill_double"].annotations
                self.assertEqual((hints.read_only_hint, hints.destructive_hint), (True, False), "its box changes nothing")
                self.assertFalse(hints.open_world_hint)
                result = await client.call_tool("skill_double", {"x": 21})
                self.assertFalse(result.is_error, said(result))
                data = result.structured_content
                self.assertEqual((data["value"], data["stdout"], data["hash"]), (42, "hi\n", hash))
                self.assertEqual((data["skill"], data["version"]), ("double", "1"))
                dots = next(name for name in skills if name.startswith("skill_with_dots_"))
                self.assertEqual((await client.call_tool(dots, {"a": 1})).structured_content["value"], {"a": 1})
                # Inputs that are no object are one argument.
                self.assertEqual(tools["skill_lines"].input_schema["required"], ["inputs"])
                lines = await client.call_tool("skill_lines", {"inputs": ["a", "b"]})
                self.assertEqual(lines.structured_content["value"], 2)
                for name, arguments, why in [
                    ("skill_double", {"x": "21"}, "/x"),
                    ("skill_double", {}, "x"),
                    ("skill_double", {"x": 1, "network": True}, "network"),
                    ("skill_lines", {"inputs": [1]}, "/0"),
                    ("skill_lines", {"x": []}, "Give `inputs`"),
                    ("skill_off", {}, "disabled"),
                ]:
                    wrong = await client.call_tool(name, arguments)
                    self.assertTrue(wrong.is_error and why in said(wrong), said(wrong))
                with self.assertRaisesRegex(Exception, "unknown tool"):
                    await client.call_tool("skill_nobody", {})
        records = json.loads(self.ringfence("skill", "history", "double", "--json").stdout)["records"]
        statuses = [record["status"] for record in records]
        self.assertEqual((statuses.count("exited"), statuses.count("failed")), (2, 6), "refusals too")
        self.assertEqual({record["skill"]["hash"] for record in records}, {hash})

    async def test_the_policy_holds_for_skills(self):
        self.add("peek", "import os\n[os.path.exists(p) for p in paths]")
        self.add("out", "import socket\ns = socket.socket()\ns.settimeout(2)\ns.connect_ex(('127.0.0.1', port))",
                 "--host", "127.0.0.1")
        self.add("bad", "import subprocess, base64\nexec(base64.b64decode(inputs['x']))\nopen('/workspace/ran', 'w')")
        verdict = json.loads(self.ringfence("skill", "show", "bad", "--json").stdout)["skill"]["scan"]["verdict"]
        self.assertEqual(verdict, "dangerous", "the case needs one")
        # What the owner opens for commands is not opened for skills.
        other = self.home / "data"
        other.mkdir()
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, self.client("--network", "--rw", str(other)) as client:
            line = f"test -d {other} && python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\""
            done = await client.call_tool("run_command", {"command": line})
            self.assertEqual(done.structured_content["exit_code"], 0, said(done))
            paths = {"paths": [str(other), str(self.project), "/workspace/.", "/usr"]}
            data = (await client.call_tool("skill_peek", paths)).structured_content
            self.assertEqual(data["value"], [False, False, False, True])
            data = (await client.call_tool("skill_out", {"port": port})).structured_content
            self.assertNotEqual(data["value"], 0, data)
            denied = await client.call_tool("skill_bad", {"x": "cHJpbnQoMSk="})
            self.assertTrue(denied.is_error, said(denied))
            self.assertIn("dangerous", said(denied))
            self.assertIn("ask them", said(denied))
        self.assertFalse((self.project / "ran").exists())

    async def test_annotations_are_what_the_box_can_do(self):
        self.add("one", "1")
        config = self.home / ".config/ringfence/config.toml"
        config.parent.mkdir(parents=True)
        data = self.home / "data"
        data.mkdir()
        for text, flags, hints in [
            ("", [], (True, False, False)),
            ("", ["--network"], (True, False, False)),
            ("network = true", [], (False, False, True)),
            ("network = true", ["--network=false"], (True, False, False)),
            (f"files.rw = ['{data}']", [], (False, True, False)),
        ]:
            config.write_text(text)
            async with self.client(*flags) as client:
                said = (await self.tools(client))["skill_one"].annotations
                found = (said.read_only_hint, said.destructive_hint, said.open_world_hint)
                self.assertEqual(found, hints, (text, flags))

    async def test_no_more_than_the_session_has(self):
        self.add("spend", "x = bytearray(150 * 2**20)\nlen(x)")
        async with self.client() as client:
            data = (await client.call_tool("skill_spend", {})).structured_content
            self.assertEqual(data["status"], "ok", data)
        async with self.client("--memory", "64m") as client:
            data = (await client.call_tool("skill_spend", {})).structured_content
            self.assertEqual(data["status"], "memory", data)

    async def test_every_roots_file_holds_for_skills(self):
        self.add("read", "[open(path).read() for path in paths if __import__('os').access(path, 4)]")
        data, other = self.home / "data", self.home / "other"
        for path in [data, other]:
            path.mkdir()
        (data / "plain").write_text("plain")
        (data / "secret").write_text("do-not-tell")
        (other / "file").write_text("of another root")
        config = self.home / ".config/ringfence/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f"files.ro = ['{data}']\n")
        paths = {"paths": [str(data / "plain"), str(data / "secret"), str(other / "file")]}
        for text, seen in [("", ["plain", "do-not-tell"]), (f"files.exclude = ['{data}/secret']\n", ["plain"])]:
            (other / ".ringfence.toml").write_text(text)
            for roots in [[self.project, other], [other, self.project]]:
                flags = [word for root in roots for word in ["--root", str(root)]]
                async with self.client(*flags) as client:
                    result = (await client.call_tool("skill_read", paths)).structured_content
                    self.assertEqual(result["value"], seen, (roots, result))

    async def test_cancellation_ends_a_skill(self):
        self.add("sleep", "import subprocess\nsubprocess.run(['sleep', '83456'])")
        async with self.client() as client:
            task = asyncio.create_task(client.call_tool("skill_sleep", {}))
            await asyncio.to_thread(self.wait_for, lambda: processes("83456"), what="it runs")
            task.cancel()
            await asyncio.to_thread(self.wait_for, lambda: processes("83456") == [], what="it is gone")

    async def test_a_change_is_told(self):
        told = []

        async def hear(message):
            if isinstance(message, types.ToolListChangedNotification):
                told.append(time.monotonic())

        self.add("one", "1")
        async with self.client(message_handler=hear) as client:
            self.assertIn("skill_one", await self.tools(client))
            self.add("two", "2")
            await self.until(lambda: len(told) == 1)
            self.assertIn("skill_two", await self.tools(client))
            self.ringfence("skill", "disable", "two")
            await self.until(lambda: len(told) == 2)
            self.assertNotIn("skill_two", await self.tools(client))
            # What changes nothing is not told: records are in the same place.
            self.ringfence("history")
            await asyncio.sleep(3)
            self.assertEqual(len(told), 2)

    async def until(self, true, seconds=15):
        end = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), end, "not in time")
            await asyncio.sleep(0.1)

    async def test_no_registry_is_made_by_looking(self):
        async with self.client() as client:
            await client.list_tools()
        self.assertEqual(list(self.home.rglob("records.db")), [])
        # One that cannot be read takes no other tool away, and is told to the owner.
        self.add("one", "1")
        [database] = self.home.rglob("records.db")
        database.write_bytes(b"this is no database" * 1000)
        async with self.client() as client:
            tools = await self.tools(client)
            self.assertIn("run_command", tools)
            result = await client.call_tool("skill_one", {})
            self.assertTrue(result.is_error and "Tell the owner" in said(result), said(result))


if __name__ == "__main__":
    unittest.main()
