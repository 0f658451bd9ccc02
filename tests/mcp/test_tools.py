"""Every tool, driven by the official Python client, which checks each answer against the tool's schema."""

import os
import subprocess
import unittest

from support import REVISIONS, Place, said


class Tools(Place):
    async def test_list(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
                self.assertTrue({"run_command", "command_output", "read_file", "write_file", "edit_file"} <= set(tools))
                self.assertTrue({"list_files", "search_files", "session_info"} <= set(tools))
                for tool in tools.values():
                    self.assertTrue(tool.description and tool.output_schema and tool.input_schema, tool.name)
                hints = tools["read_file"].annotations
                self.assertEqual((hints.read_only_hint, hints.destructive_hint), (True, False))
                hints = tools["run_command"].annotations
                self.assertEqual((hints.read_only_hint, hints.destructive_hint), (False, True))
                self.assertFalse(hints.open_world_hint, "profile shell has no network")
            self.assertEqual(self.live(), [], "nothing is made before it is used")

    async def test_open_world_is_told(self):
        async with self.client("--network") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            self.assertTrue(tools["run_command"].annotations.open_world_hint)

    async def test_run_command(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                await client.list_tools()
                result = await client.call_tool("run_command", {"command": "echo out; echo err >&2; exit 3"})
                self.assertFalse(result.is_error, "a non-zero exit is a result")
                data = result.structured_content
                self.assertEqual((data["stdout"], data["stderr"], data["exit_code"]), ("out\n", "err\n", 3))
                self.assertIn("exit code 3", said(result))
                result = await client.call_tool("run_command", {"argv": ["printf", "%s", "a b;c"]})
                self.assertEqual(result.structured_content["stdout"], "a b;c")
                (self.project / "sub").mkdir(exist_ok=True)
                result = await client.call_tool(
                    "run_command", {"command": "pwd; echo $WORD", "cwd": "sub", "env": {"WORD": "x y"}}
                )
                self.assertEqual(result.structured_content["stdout"], "/workspace/sub\nx y\n")
                # The session stays: files, and what runs in the background of a shell.
                await client.call_tool("run_command", {"command": "echo kept > /tmp/kept"})
                result = await client.call_tool("run_command", {"command": "cat /tmp/kept"})
                self.assertEqual(result.structured_content["stdout"], "kept\n")

    async def test_time_limit(self):
        async with self.client() as client:
            result = await client.call_tool(
                "run_command", {"command": "echo before; sleep 60", "timeout_seconds": 1}
            )
            data = result.structured_content
            self.assertEqual((data["reason"], data["stdout"]), ("time", "before\n"))
            self.assertIn("time limit", data["note"])
            result = await client.call_tool("run_command", {"command": "touch ran", "timeout_seconds": 100000})
            self.assertTrue(result.is_error and "600 at most" in said(result), said(result))
            self.assertFalse((self.project / "ran").exists(), "nothing runs when an argument is wrong")

    async def test_wrong_arguments_run_nothing(self):
        wrong = [
            ({}, "Give a `command`"),
            ({"command": "touch ran", "argv": ["touch", "ran"]}, "not both"),
            ({"command": "touch ran", "network": True}, "unknown field `network`"),
            ({"command": "touch ran", "profile": "agent"}, "unknown field `profile`"),
            ({"command": "touch ran", "timeout_seconds": -1}, "invalid value"),
            ({"command": "touch ran", "timeout_seconds": 0}, "at least 1"),
            ({"command": "touch ran", "env": {"A=B": "c"}}, "name of a variable"),
            ({"command": "touch ran\0"}, "NUL"),
            ({"command": ["touch", "ran"]}, "invalid type"),
            ({"argv": []}, "Give a `command`"),
        ]
        async with self.client() as client:
            for arguments, why in wrong:
                result = await client.call_tool("run_command", arguments)
                self.assertTrue(result.is_error, arguments)
                self.assertIn(why, said(result))
            with self.assertRaisesRegex(Exception, "unknown tool"):
                await client.call_tool("loosen", {})
        self.assertFalse((self.project / "ran").exists())

    async def test_denials_point_to_the_owner(self):
        async with self.client() as client:
            result = await client.call_tool("run_command", {"command": "touch /usr/x"})
            self.assertIn("ask them", result.structured_content["note"])
            result = await client.call_tool("write_file", {"path": "/usr/x", "content": ""})
            self.assertTrue(result.is_error and "ask them" in said(result), said(result))
            result = await client.call_tool("run_command", {"argv": ["no-such-program"]})
            self.assertTrue(result.is_error and "No such program" in said(result), said(result))
            # The path as the host has it.
            (self.project / "a").write_text("a")
            result = await client.call_tool("read_file", {"path": str(self.project / "a")})
            self.assertTrue(result.is_error and "/workspace/a" in said(result), said(result))

    async def test_long_output_comes_in_pages(self):
        async with self.client() as client:
            result = await client.call_tool("run_command", {"command": "seq 100000; seq 5 >&2"})
            data = result.structured_content
            whole = "".join(f"{n}\n" for n in range(1, 100001))
            self.assertEqual(data["stdout_bytes"], len(whole))
            self.assertLess(len(data["stdout"]), 30000)
            self.assertIn("bytes left out", data["stdout"])
            self.assertTrue(data["stdout"].endswith("99999\n100000\n"))
            self.assertEqual((data["stderr"], data["stderr_next"]), ("1\n2\n3\n4\n5\n", None))
            text, at = whole[: data["stdout_next"]], data["stdout_next"]
            while at is not None:
                page = await client.call_tool("command_output", {"id": data["id"], "stdout_from": at})
                text, at = text + page.structured_content["stdout"], page.structured_content["stdout_next"]
            self.assertEqual(text, whole)

    async def test_background(self):
        async with self.client() as client:
            line = "while read line; do echo got $line; done; echo end"
            result = await client.call_tool("run_command", {"command": line, "background": True})
            data = result.structured_content
            self.assertEqual((data["state"], data["exit_code"]), ("running", None))
            job = {"id": data["id"]}
            result = await client.call_tool("command_output", {**job, "input": "one\n", "wait_seconds": 1})
            self.assertEqual(result.structured_content["stdout"], "got one\n")
            result = await client.call_tool("command_output", job)
            self.assertEqual(result.structured_content["stdout"], "", "only what is new")
            end = {**job, "input": "two\n", "close_input": True, "wait_seconds": 20}
            data = (await client.call_tool("command_output", end)).structured_content
            self.assertEqual((data["state"], data["exit_code"], data["stdout"]), ("exited", 0, "got two\nend\n"))
            result = await client.call_tool("command_output", {**job, "input": "x"})
            self.assertTrue(result.is_error and "has ended" in said(result))
            result = await client.call_tool("command_output", {"id": "999"})
            self.assertTrue(result.is_error and "No command `999`" in said(result))
            # A tree that does not want to go.
            line = "trap '' TERM; setsid sh -c \"trap '' TERM; echo on; sleep 81357\" & sleep 81357"
            data = (await client.call_tool("run_command", {"command": line, "background": True})).structured_content
            self.wait_for(lambda: len(self.box("81357")) >= 2, what="the tree runs")
            data = (await client.call_tool("command_output", {"id": data["id"], "stop": True})).structured_content
            self.assertEqual(data["state"], "signaled")
            self.wait_for(lambda: self.box("81357") == [], what="the tree is gone")

    def box(self, mark):
        from support import processes

        return processes(mark)

    async def test_files(self):
        async with self.client() as client:
            written = await client.call_tool("write_file", {"path": "a/b.txt", "content": "one\ntwo\nthree\n"})
            self.assertEqual(written.structured_content, {"path": "a/b.txt", "bytes": 14, "created": True})
            path = self.project / "a/b.txt"
            self.assertEqual(path.read_text(), "one\ntwo\nthree\n")
            self.assertEqual(path.stat().st_uid, os.getuid())
            read = await client.call_tool("read_file", {"path": "/workspace/a/b.txt", "from_line": 2, "lines": 1})
            self.assertEqual((read.structured_content["text"], read.structured_content["next_line"]), ("two\n", 3))
            edit = {"path": "a/b.txt", "old_text": "two", "new_text": "2"}
            edited = await client.call_tool("edit_file", edit)
            self.assertEqual((edited.structured_content["replacements"], edited.structured_content["line"]), (1, 2))
            self.assertEqual(path.read_text(), "one\n2\nthree\n")
            again = await client.call_tool("edit_file", edit)
            self.assertTrue(again.is_error and "Nothing was changed" in said(again))
            twice = await client.call_tool("edit_file", {"path": "a/b.txt", "old_text": "e", "new_text": "E"})
            self.assertTrue(twice.is_error and "3 times" in said(twice), said(twice))
            every = {"path": "a/b.txt", "old_text": "e", "new_text": "E", "replace_all": True}
            self.assertEqual((await client.call_tool("edit_file", every)).structured_content["replacements"], 3)
            self.assertEqual(path.read_text(), "onE\n2\nthrEE\n")
            path.chmod(0o755)
            await client.call_tool("write_file", {"path": "a/b.txt", "content": "x"})
            self.assertEqual(path.stat().st_mode & 0o777, 0o755, "the mode stays")
            listed = (await client.call_tool("list_files", {"depth": 2})).structured_content
            found = [(entry["path"], entry["kind"]) for entry in listed["entries"]]
            self.assertIn(("a", "directory"), found)
            self.assertIn(("a/b.txt", "file"), found)
            missing = await client.call_tool("read_file", {"path": "none"})
            self.assertTrue(missing.is_error and "list_files" in said(missing), said(missing))
            (self.project / "binary").write_bytes(b"\xff\x00\xfe")
            binary = await client.call_tool("read_file", {"path": "binary"})
            self.assertTrue(binary.is_error and "not text" in said(binary))

    async def test_files_come_in_pages(self):
        for n in range(2300):
            (self.project / f"f{n:04}").touch()
        (self.project / "long.txt").write_text("".join(f"line {n}\n" for n in range(1, 20001)))
        async with self.client() as client:
            names, skip = [], 0
            while skip is not None:
                page = (await client.call_tool("list_files", {"skip": skip})).structured_content
                self.assertLessEqual(len(page["entries"]), 1000)
                self.assertEqual(page["total"], 2301)
                names, skip = names + [entry["path"] for entry in page["entries"]], page["next"]
            self.assertEqual(names, [f"f{n:04}" for n in range(2300)] + ["long.txt"])
            text, line = "", 1
            while line is not None:
                page = (await client.call_tool("read_file", {"path": "long.txt", "from_line": line})).structured_content
                text, line = text + page["text"], page["next_line"]
            self.assertEqual(text, (self.project / "long.txt").read_text())
            wrong = await client.call_tool("read_file", {"path": "long.txt", "from_line": 20002})
            self.assertTrue(wrong.is_error and "20000 lines" in said(wrong), said(wrong))

    async def test_every_engine(self):
        engines = ["native", "bubblewrap"]
        if self.docker():
            engines.append("docker")
        for engine in engines:
            async with self.client("--engine", engine) as client:
                info = (await client.call_tool("session_info", {})).structured_content
                self.assertEqual(info["engine"], engine)
                done = await client.call_tool("run_command", {"command": "echo out > made; cat made; touch /usr/x"})
                self.assertEqual((done.structured_content["stdout"], (self.project / "made").read_text()), ("out\n", "out\n"))
                self.assertIn("ask them", said(done))
                self.assertEqual((await client.call_tool("read_file", {"path": "made"})).structured_content["text"], "out\n")
                done = await client.call_tool("run_code", {"language": "bash", "code": "result=$(cat made)"})
                self.assertEqual(done.structured_content["value"], "out", said(done))
                if engine != "docker":
                    call = {"language": "python", "code": "open('made').read()", "context": "main"}
                    done = await client.call_tool("run_code", call)
                    self.assertEqual(done.structured_content["value"], "out\n", said(done))
            self.wait_for(lambda: self.live() == [], what="nothing is left")

    def docker(self):
        image = ["docker", "image", "inspect", "ringfence/standard"]
        try:
            return os.getuid() == 0 and subprocess.run(image, capture_output=True, timeout=30).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    async def test_no_path_leads_out(self):
        secret = self.home / "secret"
        secret.write_text("do not tell")
        (self.project / "link").symlink_to(secret)
        (self.project / "up").symlink_to("..")
        async with self.client() as client:
            for path in ["link", "up/secret", "../secret", str(secret), "/proc/1/environ", "/proc/self/environ"]:
                result = await client.call_tool("read_file", {"path": path})
                self.assertTrue(result.is_error, path)
                self.assertNotIn("do not tell", said(result))
            result = await client.call_tool("search_files", {"pattern": "do not tell", "hidden": True})
            self.assertEqual(result.structured_content["matches"], [])
            for path in ["up/planted", "../planted", str(self.home / "planted")]:
                await client.call_tool("write_file", {"path": path, "content": "x"})
            await client.call_tool("write_file", {"path": "link", "content": "x"})
            self.assertFalse((self.home / "planted").exists())
            self.assertEqual(secret.read_text(), "do not tell")
            # And the allowed act works.
            (self.project / "inner").symlink_to("target")
            (self.project / "target").write_text("fine")
            result = await client.call_tool("read_file", {"path": "inner"})
            self.assertEqual(result.structured_content["text"], "fine")

    async def test_links_are_not_written_over(self):
        target, link = self.project / "target", self.project / "link"
        target.write_text("old")
        link.symlink_to("target")
        async with self.client() as client:
            edit = {"path": "link", "old_text": "old", "new_text": "new"}
            for tool, arguments in [("edit_file", edit), ("write_file", {"path": "link", "content": "new"})]:
                result = await client.call_tool(tool, arguments)
                self.assertTrue(result.is_error and "link to `target`" in said(result), said(result))
                self.assertTrue(link.is_symlink() and target.read_text() == "old", tool)
            await client.call_tool("edit_file", {**edit, "path": "target"})
            self.assertEqual(target.read_text(), "new")
            for line in [0, 2**63, 2**64 - 1]:
                result = await client.call_tool("read_file", {"path": "target", "from_line": line})
                self.assertTrue(result.is_error and "from_line" in said(result), said(result))

    async def test_search(self):
        for path, text in {
            "src/a.rs": "fn main() {\n    needle();\n}\n",
            "src/b.txt": "needle in text\n",
            "target/c.rs": "needle\n",
            ".hidden/d.rs": "needle\n",
            ".gitignore": "target/\n",
            "big.bin": "needle\0\n",
        }.items():
            (self.project / path).parent.mkdir(exist_ok=True)
            (self.project / path).write_text(text)

        async def find(client, **arguments):
            result = await client.call_tool("search_files", arguments)
            self.assertFalse(result.is_error, said(result))
            return [(m["path"], m["line"]) for m in result.structured_content["matches"]]

        async with self.client() as client:
            self.assertEqual(await find(client, pattern="needle"), [("src/a.rs", 2), ("src/b.txt", 1)])
            self.assertEqual(await find(client, pattern=r"needle\(", glob="*.rs"), [("src/a.rs", 2)])
            self.assertEqual(await find(client, pattern="NEEDLE", ignore_case=True, path="src"), [
                ("src/a.rs", 2), ("src/b.txt", 1)])
            self.assertEqual(len(await find(client, pattern="needle", hidden=True)), 4)
            self.assertEqual(await find(client, pattern="needle", path="src/b.txt"), [("src/b.txt", 1)])
            wrong = await client.call_tool("search_files", {"pattern": "("})
            self.assertTrue(wrong.is_error and "`pattern` cannot be used" in said(wrong))

    async def test_session_info_and_resources(self):
        for mode in REVISIONS:
            async with self.client("--memory", "300m", mode=mode) as client:
                uris = [str(r.uri) for r in (await client.list_resources()).resources]
                self.assertEqual(uris, ["ringfence://policy", "ringfence://report", "ringfence://executions"])
                policy = (await client.read_resource("ringfence://policy")).contents[0].text
                self.assertIn("300MiB of memory", policy)
                self.assertEqual(self.live(), [], "reading makes no session")
                info = (await client.call_tool("session_info", {})).structured_content
                self.assertEqual(info["working_directory"], "/workspace")
                self.assertEqual(info["working_directory_outside"], str(self.project))
                self.assertIn("none", info["allowed"]["network"])
                ran = await client.call_tool("run_command", {"command": "echo here"})
                report = (await client.read_resource("ringfence://report")).contents[0].text
                self.assertIn("net.isolated", report)
                executions = (await client.read_resource("ringfence://executions")).contents[0].text
                self.assertIn("echo here", executions)
                code = {"language": "python", "code": "1 + 1"}
                await client.call_tool("run_code", code)
                executions = (await client.read_resource("ringfence://executions")).contents[0].text
                self.assertIn("python code", executions)
                uri = f"ringfence://executions/{ran.structured_content['id']}"
                self.assertIn("here", (await client.read_resource(uri)).contents[0].text)
                with self.assertRaisesRegex(Exception, "no resource"):
                    await client.read_resource("ringfence://none")


if __name__ == "__main__":
    unittest.main()
