"""Clients that come, wait, cancel, vanish and misbehave."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import mcp.types as types
from support import PROGRAM, REVISIONS, Place, call, initialize, processes, said


class Life(Place):
    async def test_progress_carries_live_output(self):
        for mode in REVISIONS:
            seen = []

            async def on_progress(progress, total, message):
                seen.append((time.monotonic(), progress, message))

            async with self.client(mode=mode) as client:
                line = "for i in 1 2 3; do echo step $i; sleep 0.4; done"
                await client.call_tool("run_command", {"command": line}, progress_callback=on_progress)
                ended = time.monotonic()
            self.assertEqual("".join(message for _, _, message in seen), "step 1\nstep 2\nstep 3\n")
            self.assertLess(seen[0][0], ended - 0.7, "as it comes, not at the end")
            amounts = [progress for _, progress, _ in seen]
            self.assertEqual(amounts, sorted(set(amounts)))

    async def test_cancellation_ends_the_tree(self):
        for mode in REVISIONS:
            async with self.client(mode=mode) as client:
                line = "setsid sleep 71234 & sleep 71234"
                task = asyncio.create_task(client.call_tool("run_command", {"command": line}))
                await asyncio.to_thread(self.wait_for, lambda: len(processes("71234")) >= 2, what="it runs")
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(self.wait_for, lambda: processes("71234") == [], what="it is gone")
                result = await client.call_tool("run_command", {"command": "echo on"})
                self.assertEqual(result.structured_content["stdout"], "on\n")

    async def test_many_at_once(self):
        async with self.client() as client:
            async def one(n):
                result = await client.call_tool("run_command", {"command": f"seq {n} {n + 500}"})
                wanted = "".join(f"{i}\n" for i in range(n, n + 501))
                self.assertEqual(result.structured_content["stdout"], wanted)

            await asyncio.gather(*(one(n) for n in range(40)))

    async def test_two_clients_do_not_meet(self):
        async with self.client() as one, self.client() as two:
            await one.call_tool("run_command", {"command": "echo mine > /tmp/x; sleep 61111 & echo $! > pid"})
            result = await two.call_tool("run_command", {"command": "ls /tmp/x; kill $(cat pid); ps ax | grep -c 6111[1]"})
            self.assertIn("No such file", result.structured_content["stderr"])
            self.assertEqual(len(processes("61111")), 1)
            self.assertEqual(len(self.live()), 2)
        self.assertEqual((self.live(), processes("61111")), ([], []))

    def vanish(self, victim):
        """A client with a command in front and one behind; `victim` of the two processes is killed."""
        code = f"""
import asyncio, sys
from mcp import Client, StdioServerParameters
async def main():
    server = StdioServerParameters(command={PROGRAM!r}, args=["mcp"], env={self.env!r}, cwd={str(self.project)!r})
    async with Client(server, mode="legacy") as client:
        await client.call_tool("run_command", {{"command": "sleep 51234", "background": True}})
        await client.call_tool("run_command", {{"command": "setsid sleep 51234 & sleep 51234"}})
asyncio.run(main())
"""
        client = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            self.wait_for(lambda: len(processes("51234")) >= 3, 20, "three commands run")
            os.kill(victim(client), signal.SIGKILL)
            self.wait_for(lambda: processes("51234") == [], 10, "nothing is left running")
            self.wait_for(lambda: self.live() == [], 10, "no session is left")
        finally:
            client.kill()
            client.wait()

    def server_of(self, client):
        with open(f"/proc/{client.pid}/task/{client.pid}/children") as children:
            return next(int(pid) for pid in children.read().split() if os.readlink(f"/proc/{pid}/exe") == PROGRAM)

    def test_a_client_killed_without_goodbye(self):
        self.vanish(lambda client: client.pid)

    def test_the_server_killed(self):
        self.vanish(self.server_of)

    def test_the_server_terminated(self):
        server = self.raw()
        for message in [initialize("2025-11-25"), call(1, "run_command", {"command": "sleep 41234"})]:
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        self.wait_for(lambda: processes("41234"), what="it runs")
        server.terminate()
        self.assertEqual(server.wait(10), 0)
        self.wait_for(lambda: processes("41234") == [] and self.live() == [], what="nothing is left")
        server.communicate()

    def talk(self, *lines, args=(), wait=()):
        """Sends lines; returns the answers by id once all of `wait` came, and the rest of what came."""
        server = self.raw(*args)
        try:
            for line in lines:
                server.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
            server.stdin.flush()
            answers, others = {}, []
            while not set(wait) <= set(answers):
                message = json.loads(server.stdout.readline())
                if message.get("id") is None:
                    others.append(message)
                else:
                    answers[message["id"]] = message
            server.stdin.close()
            self.assertEqual(server.wait(10), 0)
            return answers, others
        finally:
            server.kill()
            server.wait()
            server.stdin.close()
            server.stdout.close()
            server.stderr.close()

    def test_repositories_that_were_made_are_named(self):
        """To the client with the command, and to the owner on stderr, at the latest when the server ends."""
        make = "mkdir -p {0}/.git/objects {0}/.git/refs; echo ref: refs/heads/x >{0}/.git/HEAD; echo >{0}/.git/config"
        server = self.raw()
        lines = [
            initialize("2025-11-25"),
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            call(1, "run_command", {"command": make.format("sub")}),
            call(2, "run_command", {"command": "true"}),
            call(3, "run_command", {"command": make.format("later"), "background": True}),
        ]
        answers = {}
        for line in lines:
            time.sleep(0.05)
            server.stdin.write(json.dumps(line).encode() + b"\n")
            server.stdin.flush()
            while "id" in line and line["id"] not in answers:
                message = json.loads(server.stdout.readline())
                answers[message.get("id")] = message
        self.wait_for(lambda: (self.project / "later/.git/config").exists(), what="it ran")
        _, told = server.communicate(timeout=20)
        note = answers[1]["result"]["structuredContent"]["note"]
        self.assertIn("sub/.git` was made or changed", note)
        self.assertIsNone(answers[2]["result"]["structuredContent"]["note"])
        for name in ["sub", "later"]:
            self.assertEqual(told.decode().count(f"{name}/.git` was made or changed"), 1, told)

    def test_a_client_that_goes_at_once(self):
        for wait in [0, 0.02, 0.05, 0.1]:
            server = self.raw()
            messages = [initialize("2025-11-25")]
            messages += [call(n, "run_command", {"command": "sleep 21234"}) for n in range(1, 5)]
            messages += [call(9, "run_code", {"language": "bash", "code": "sleep 21234"})]
            server.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
            server.stdin.flush()
            time.sleep(wait)
            server.stdin.close()
            self.assertEqual(server.wait(20), 0)
            self.wait_for(lambda: self.live() == [] and processes("21234") == [], what="nothing is left")
            server.stdout.close()
            server.stderr.close()

    def test_a_client_that_says_everything_twice(self):
        hello = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        slow, quick = [call(5, "run_command", {"command": f"{line}; echo done"}) for line in ["sleep 0.5", "true"]]
        ping = {"jsonrpc": "2.0", "id": 6, "method": "ping"}
        first = initialize("2025-11-25")
        answers, _ = self.talk(first, *[hello] * 2000, first, slow, quick, ping, *[hello] * 2000, ping, wait=[0, 5, 6])
        self.assertEqual(answers[5]["result"]["structuredContent"]["stdout"], "done\n")

    def test_revisions(self):
        for asked, agreed in [
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2024-11-05", "2025-11-25"),
            ("2099-01-01", "2025-11-25"),
        ]:
            answers, _ = self.talk(initialize(asked), wait=[0])
            self.assertEqual(answers[0]["result"]["protocolVersion"], agreed)

    def test_malformed_messages(self):
        strange = [
            b"this is not JSON",
            b"{\"jsonrpc\": \"2.0\", \"id\": 5",
            b"[]",
            b"null",
            b"\xff\xfe\x00",
            b"{\"jsonrpc\": \"1.0\", \"id\": 9, \"method\": 7}",
            b"[" * 100000,
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12345}},
            {"jsonrpc": "2.0", "id": 6, "method": "no/such/method"},
            {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 3}},
            {"jsonrpc": "2.0", "id": 77, "result": {"answer": "to nothing"}},
        ]
        last = call(8, "run_command", {"command": "echo fine"})
        answers, _ = self.talk(initialize("2025-11-25"), *strange, last, wait=[0, 6, 8])
        self.assertIn("error", answers[6])
        self.assertEqual(answers[8]["result"]["structuredContent"]["stdout"], "fine\n")

    def test_gigantic_messages(self):
        big = json.dumps(call(1, "run_command", {"command": "true", "cwd": "x" * (200 << 20)})).encode()
        server = self.raw()
        try:
            server.stdin.write(json.dumps(initialize("2025-11-25")).encode() + b"\n" + big + b"\n")
            server.stdin.write(json.dumps(call(2, "run_command", {"command": "echo fine"})).encode() + b"\n")
            server.stdin.flush()
            ids = []
            while 2 not in ids:
                ids.append(json.loads(server.stdout.readline()).get("id"))
            self.assertNotIn(1, ids)
            with open(f"/proc/{server.pid}/status") as status:
                peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
            self.assertLess(peak, 120 << 10, "KiB: what is too long is not kept")
        finally:
            server.stdin.close()
            server.wait(10)
            server.stdout.close()
            server.stderr.close()

    def test_nothing_but_the_protocol_on_stdout(self):
        (self.project / ".ringfence.toml").write_text("network = \"none\"\n")
        server = self.raw()
        for message in [initialize("2025-11-25"), call(1, "run_command", {"command": "echo x; echo y >&2"})]:
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        lines = [server.stdout.readline(), server.stdout.readline()]
        out, _ = server.communicate(timeout=20)
        for line in [*lines, *out.splitlines()]:
            self.assertEqual(json.loads(line)["jsonrpc"], "2.0")

    async def test_roots_choose_and_never_add(self):
        inner, outer = self.project / "inner", self.home / "outer"
        inner.mkdir()
        outer.mkdir()
        (self.project / "link").symlink_to(outer)
        for mode in REVISIONS:
            async def roots(_):
                uris = [outer.as_uri(), (self.project / "link").as_uri(), inner.as_uri()]
                return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in uris])

            async with self.client("--root", str(self.project), mode=mode, list_roots_callback=roots) as client:
                info = (await client.call_tool("session_info", {})).structured_content
                self.assertEqual(info["working_directory_outside"], str(inner))
                self.assertEqual(len(info["directories_left_out"]), 2)
                await client.call_tool("run_command", {"command": "echo x > made"})
                self.assertTrue((inner / "made").exists())
                result = await client.call_tool("run_command", {"command": f"ls {outer} {self.project}"})
                self.assertNotEqual(result.structured_content["exit_code"], 0)
                (inner / "made").unlink()

            async def elsewhere(_):
                return types.ListRootsResult(roots=[types.Root(uri=outer.as_uri())])

            async with self.client("--root", str(inner), mode=mode, list_roots_callback=elsewhere) as client:
                info = (await client.call_tool("session_info", {})).structured_content
                self.assertEqual(info["working_directory_outside"], str(inner), "the owner's stands")

    async def test_several_roots(self):
        other = self.home / "other"
        other.mkdir()
        for root in [self.project, other]:
            subprocess.run(["git", "init", "-q", str(root)], check=True)
        async with self.client("--root", str(self.project), "--root", str(other)) as client:
            await client.call_tool("run_command", {"command": f"echo x > {other}/made; echo y > made"})
            # Protected in each of them: what git, a shell or Ringfence would obey outside.
            for name in [".git/hooks/post-checkout", ".vscode/tasks.json", ".ringfence.toml"]:
                line = f"for d in . {other}; do mkdir -p $d/{os.path.dirname(name) or '.'}; echo x > $d/{name}; done"
                await client.call_tool("run_command", {"command": line})
        self.assertTrue((other / "made").exists() and (self.project / "made").exists())
        for root in [self.project, other]:
            for name in [".git/hooks/post-checkout", ".vscode/tasks.json", ".ringfence.toml"]:
                self.assertFalse((root / name).exists(), root / name)

    async def test_the_order_of_roots_loosens_nothing(self):
        other = self.home / "other"
        other.mkdir()
        (other / ".ringfence.toml").write_text(
            "network = \"none\"\nskill_verdict = \"clean\"\nwarm = 0\n"
            "[limits]\nmemory = \"100m\"\nlife = \"1h\"\n[commands]\nseq = false\n"
            "[records]\nsecrets = [\"COLOUR\"]\n"
        )
        # One that a person should look at.
        skill = self.home / "skill"
        skill.write_text("import subprocess\nsubprocess.run(['true'])\n7")
        self.assertEqual(self.ringfence("skill", "add", str(skill), "--name", "look", "--language", "python").returncode, 0)
        verdict = json.loads(self.ringfence("skill", "show", "look", "--json").stdout)["skill"]["scan"]["verdict"]
        self.assertEqual(verdict, "review", "the case needs one")
        self.env["COLOUR"] = "a-value-of-the-owners"
        line = {"command": "grep -c : /proc/net/dev; seq 3; : a-value-of-the-owners"}

        def answer(*roots):
            async def callback(_):
                return types.ListRootsResult(roots=[types.Root(uri=root.as_uri()) for root in roots])
            return callback

        async def use(client):
            info = (await client.call_tool("session_info", {})).structured_content
            result = (await client.call_tool("run_command", line)).structured_content
            skill = await client.call_tool("skill_look", {})
            return info["seconds_left"], result["stdout"], skill

        def recorded():
            listed = json.loads(self.ringfence("history", "--json").stdout)["records"]
            return sum("a-value-of-the-owners" in json.dumps(record["command"]) for record in listed)

        # Kept: another session ends with its client.
        flags = ["--profile", "agent", "--keep", "desk"]
        orders = [[other, self.project], [self.project, other]]
        for owners in orders:
            for clients in orders:
                roots = [word for root in owners for word in ["--root", str(root)]]
                async with self.client(*roots, *flags, list_roots_callback=answer(*clients)) as client:
                    left, stdout, skill = await use(client)
                    self.assertEqual(stdout, "1\n", (owners, clients))
                    self.assertLessEqual(left, 3600, (owners, clients))
                    self.assertTrue(skill.is_error and "ask them" in said(skill), (owners, clients, said(skill)))
                self.assertEqual(self.ringfence("session", "rm", "desk").returncode, 0)
        self.assertEqual(recorded(), 0)
        # The other half: without that file, the network is open, the command and the skill run, the session has a day,
        # and the value is no secret.
        (other / ".ringfence.toml").unlink()
        roots = [word for root in orders[0] for word in ["--root", str(root)]]
        async with self.client(*roots, *flags, list_roots_callback=answer(*orders[1])) as client:
            left, stdout, skill = await use(client)
            interfaces, *numbers = stdout.split()
            self.assertEqual(numbers, ["1", "2", "3"])
            with open("/proc/net/dev") as devices:
                self.assertEqual(int(interfaces), devices.read().count(":"), "the host's network")
            self.assertGreater(left, 3600)
            self.assertEqual(skill.structured_content["value"], 7, said(skill))
        self.assertEqual(self.ringfence("session", "rm", "desk").returncode, 0)
        self.assertEqual(recorded(), 1)

    async def test_a_client_that_names_very_many_directories(self):
        root = self.home / "many"
        for number in range(5000):
            (root / f"{number:04}").mkdir(parents=True)
        dirs = sorted(root.iterdir())
        for number, looked_at in [(3, 3), (5000, 32)]:
            begun = time.monotonic()
            callback = self.rooted(*dirs[:number])
            async with self.client("--root", str(root), list_roots_callback=callback) as client:
                info = await client.call_tool("session_info", {})
                took = time.monotonic() - begun
                data = info.structured_content
                self.assertEqual(data["working_directory_outside"], str(dirs[0]))
                left_out = data["directories_left_out"], data["directories_not_looked_at"]
                self.assertEqual(left_out, ([], number - looked_at))
                self.assertEqual(f"{number - looked_at} more directories" in said(info), number > looked_at, said(info))
                line = f"for d in . {root}/0002 {root}/0031 {root}/0032; do echo x > $d/made-{number}; done"
                await client.call_tool("run_command", {"command": line})
                found = sorted(path.parent.name for path in root.glob(f"*/made-{number}"))
                self.assertEqual(found, ["0000", "0002"] + ["0031"] * (looked_at == 32))
            print(f"{number} directories: {took:.1f} s", file=sys.stderr)
            self.assertLess(took, 60)

    async def test_each_root_is_checked_before_anything_is_served(self):
        other = self.home / "other"
        other.mkdir()
        # What a user cannot write is read-only for the sandbox as well, and not too wide.
        system = ["/", "/etc", "/usr"] if os.geteuid() == 0 else []
        for wide in [*system, str(self.home.parent), "/proc", "/dev"]:
            for roots in [[wide], [str(self.project), wide], [str(other), str(self.project), wide]]:
                done = self.ringfence("mcp", *(word for root in roots for word in ["--root", root]))
                self.assertEqual((done.returncode, done.stdout), (125, ""), (roots, done.stderr))
                self.assertIn(wide, done.stderr)
                self.assertIn("ringfence mcp --root DIR", done.stderr)
        (other / ".ringfence.toml").write_text("network = true\n")
        done = self.ringfence("mcp", "--root", str(self.project), "--root", str(other))
        self.assertEqual(done.returncode, 125)
        self.assertIn("would loosen the sandbox", done.stderr)
        (other / ".ringfence.toml").unlink()
        async with self.client("--root", str(self.project), "--root", str(other)) as client:
            result = await client.call_tool("run_command", {"command": f"echo x > {other}/made"})
            self.assertEqual(result.structured_content["exit_code"], 0, said(result))

    async def test_kept_sessions(self):
        async with self.client("--keep", "desk") as client:
            await client.call_tool("run_command", {"command": "echo kept > /tmp/x"})
            line = {"command": "echo begun; sleep 31234", "background": True}
            job = (await client.call_tool("run_command", line)).structured_content["id"]
        self.assertEqual(len(self.live()), 1)
        async with self.client("--keep", "desk") as client:
            result = await client.call_tool("run_command", {"command": "cat /tmp/x"})
            self.assertEqual(result.structured_content["stdout"], "kept\n")
            data = (await client.call_tool("command_output", {"id": job, "wait_seconds": 1})).structured_content
            self.assertEqual((data["state"], data["stdout"]), ("running", "begun\n"))
            info = await client.call_tool("session_info", {})
            self.assertFalse(info.is_error, said(info))
        # Under other flags it is not what the owner asks for now: nothing runs in it, and nothing untrue is said of it.
        other = self.home / "other"
        other.mkdir()
        for flags in [["--network"], ["--timeout", "7s"], ["--memory", "64m"], ["--root", str(other)]]:
            async with self.client("--keep", "desk", *flags) as client:
                for call in [("session_info", {}), ("run_command", {"command": "echo ran > /workspace/ran"})]:
                    result = await client.call_tool(*call)
                    self.assertTrue(result.is_error, flags)
                    self.assertIn("The sandbox desk was made with another policy", said(result))
                    self.assertIn("ringfence session stop desk", said(result))
        self.assertFalse((self.project / "ran").exists())
        self.assertEqual(self.ringfence("session", "rm", "desk").returncode, 0)
        self.assertEqual((self.live(), processes("31234")), ([], []))

    async def test_a_kept_session_of_another_policy_is_not_used(self):
        (self.project / "secret").write_text("do-not-tell")
        config = self.home / ".config/ringfence/config.toml"
        config.parent.mkdir(parents=True)
        project = self.project / ".ringfence.toml"
        # There from the beginning: while a session lives, a placeholder has the name.
        project.write_text("")
        read = {"command": "cat secret"}
        async with self.client("--keep", "desk") as client:
            result = await client.call_tool("run_command", read)
            self.assertEqual(result.structured_content["stdout"], "do-not-tell")
        [session] = self.live()
        # Another comment, and what a preset finds by now, are no other policy.
        config.write_text("# nothing\n")
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        async with self.client("--keep", "desk") as client:
            result = await client.call_tool("run_command", read)
            self.assertEqual(result.structured_content["stdout"], "do-not-tell")
        self.assertEqual([other["id"] for other in self.live()], [session["id"]])
        for file, text in [
            (config, "[files]\nexclude = [\"secret\"]\n"),
            (config, "[env]\nset = { MODE = \"strict\" }\n"),
            (project, "[files]\nexclude = [\"secret\"]\n"),
        ]:
            file.write_text(text)
            async with self.client("--keep", "desk") as client:
                calls = [("run_command", read), ("read_file", {"path": "secret"}), ("session_info", {})]
                for call in calls:
                    result = await client.call_tool(*call)
                    self.assertTrue(result.is_error, text)
                    self.assertIn("The sandbox desk was made with another policy", said(result))
                    self.assertNotIn("do-not-tell", said(result))
                # The cure.
                if file == project:
                    self.assertEqual(self.ringfence("session", "stop", "desk").returncode, 0)
                    result = await client.call_tool("run_command", read)
                    self.assertNotEqual(result.structured_content["exit_code"], 0)
                    self.assertNotIn("do-not-tell", said(result))
            config.write_text("")
        self.assertEqual(self.ringfence("session", "rm", "desk").returncode, 0)

    def rooted(self, *dirs):
        async def roots(_):
            return types.ListRootsResult(roots=[types.Root(uri=path.as_uri()) for path in dirs])

        return roots

    async def test_a_client_root_keeps_the_rules_of_the_owners(self):
        conf = self.project / "conf"
        for name in [".vscode", "hooks", "real"]:
            (conf / name).mkdir(parents=True)
        for name in ["secret", "a.pem", "file"]:
            (conf / name).write_text(f"this is {name}\n")
        (self.project / "other").write_text("outside\n")
        (self.project / ".husky").symlink_to("conf/real")
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        subprocess.run(["git", "-C", str(self.project), "config", "core.hooksPath", "conf/hooks"], check=True)
        (self.project / ".ringfence.toml").write_text(
            "[files]\nexclude = [\"conf/secret\", \"**/*.pem\"]\nro = [\"conf/.vscode\"]\n"
        )
        for profile in ["shell", "agent"]:
            for mode in REVISIONS:
                flags = ["--root", str(self.project), "--profile", profile]
                async with self.client(*flags, mode=mode, list_roots_callback=self.rooted(conf)) as client:
                    async def shell(line):
                        result = await client.call_tool("run_command", {"command": line})
                        return result.structured_content

                    info = (await client.call_tool("session_info", {})).structured_content
                    self.assertEqual(info["working_directory_outside"], str(conf))
                    # What is ordinary is used as ever.
                    done = await shell("cat file && echo new > made && echo more >> file && mkdir sub")
                    self.assertEqual((done["exit_code"], done["stdout"]), (0, "this is file\n"), done)
                    self.assertEqual((conf / "file").read_text(), "this is file\nmore\n")
                    for name in ["secret", "a.pem"]:
                        done = await shell(f"cat {name} {conf}/{name}")
                        self.assertTrue(done["exit_code"] != 0 and "this is" not in done["stdout"], done)
                        result = await client.call_tool("read_file", {"path": name})
                        self.assertTrue(result.is_error and "this is" not in said(result), said(result))
                    for name in [".vscode/tasks.json", "hooks/pre-commit", "real/pre-commit"]:
                        done = await shell(f"echo x > {name}")
                        self.assertNotEqual(done["exit_code"], 0, name)
                        result = await client.call_tool("write_file", {"path": name, "content": "x"})
                        self.assertTrue(result.is_error, name)
                    done = await shell(f"mv hooks h; mv real r; echo x > {self.project}/other; echo x > ../new; cat {self.project}/other")
                    self.assertEqual("outside" in done["stdout"], profile == "agent", "the machine is seen by `agent`")
                    # A box of its own has no more.
                    arguments = {"language": "bash", "code": "cat file; cat secret a.pem; echo x > hooks/pre-commit; echo x > code"}
                    await client.call_tool("run_code", arguments)
                    self.assertEqual((conf / "code").read_text(), "x\n")
                self.assertEqual((self.project / "other").read_text(), "outside\n")
                self.assertFalse((self.project / "new").exists())
                for name in [".vscode", "hooks", "real"]:
                    self.assertEqual(list((conf / name).iterdir()), [], name)
                for name in ["made", "code"]:
                    (conf / name).unlink()
                (conf / "sub").rmdir()
                (conf / "file").write_text("this is file\n")

    async def test_a_client_root_is_no_way_around_a_protection(self):
        (self.project / ".vscode").mkdir()
        (self.project / "hidden").mkdir()
        (self.project / "hidden/secret").write_text("do-not-tell")
        (self.home / ".local/bin").mkdir(parents=True)
        (self.home / ".local/share").mkdir()
        inside = self.rooted(self.project / ".vscode")
        async with self.client("--root", str(self.project), list_roots_callback=inside) as client:
            result = await client.call_tool("run_command", {"command": "echo x > tasks.json"})
            self.assertNotEqual(result.structured_content["exit_code"], 0, "it is read-only, and all that is given")
        flags = ["--root", str(self.project), "--exclude", str(self.project / "hidden")]
        async with self.client(*flags, list_roots_callback=self.rooted(self.project / "hidden")) as client:
            result = await client.call_tool("run_command", {"command": "cat secret"})
            self.assertTrue(result.is_error and "do-not-tell" not in said(result), said(result))
        # Of a home, what its owner's shells and agents run.
        async with self.client("--root", str(self.home), list_roots_callback=self.rooted(self.home / ".local")) as client:
            result = await client.call_tool("run_command", {"command": "echo x > share/made && echo x > bin/ls"})
            self.assertNotEqual(result.structured_content["exit_code"], 0)
        self.assertTrue((self.home / ".local/share/made").exists())
        for name in [self.project / ".vscode", self.home / ".local/bin"]:
            self.assertEqual(list(name.iterdir()), [])

    async def test_a_client_root_has_the_protections_of_a_project(self):
        app, lib = self.project / "app", self.project / "lib"
        for root in [app, lib]:
            root.mkdir()
            subprocess.run(["git", "init", "-q", str(root)], check=True)
            (root / "secret").write_text("do-not-tell")
            (root / ".ringfence.toml").write_text("[files]\nexclude = [\"secret\"]\n")
        async with self.client("--root", str(self.project), list_roots_callback=self.rooted(app, lib)) as client:
            line = f"for d in . {lib}; do echo x > $d/made; cat $d/secret; done"
            result = await client.call_tool("run_command", {"command": line})
            self.assertNotIn("do-not-tell", said(result))
            for name in [".git/hooks/post-checkout", ".vscode/tasks.json", ".ringfence.toml"]:
                line = f"for d in . {lib}; do mkdir -p $d/{os.path.dirname(name) or '.'}; echo x > $d/{name}; done"
                await client.call_tool("run_command", {"command": line})
        for root in [app, lib]:
            self.assertTrue((root / "made").exists())
            self.assertFalse((root / ".git/hooks/post-checkout").exists() or (root / ".vscode").exists())
            self.assertIn("secret", (root / ".ringfence.toml").read_text())

    async def test_a_root_that_was_swapped_for_a_link(self):
        other, outside = self.home / "other", self.home / "outside"
        outside.mkdir()
        (outside / "secret").write_text("do-not-tell")
        for swapped in [self.project, other]:
            other.mkdir(exist_ok=True)
            flags = ["--root", str(self.project), "--root", str(other)]
            async with self.client(*flags, cwd=self.home) as client:
                kept = swapped.with_name("kept")
                swapped.rename(kept)
                swapped.symlink_to(outside)
                for call in [("run_command", {"command": f"cat secret {other}/secret; echo x > {other}/made; echo x > made"}),
                             ("read_file", {"path": f"{other}/secret"})]:
                    result = await client.call_tool(*call)
                    self.assertTrue(result.is_error, swapped)
                    self.assertIn("is a link by now", said(result))
                    self.assertNotIn("do-not-tell", said(result))
                # As it was: it is used.
                swapped.unlink()
                kept.rename(swapped)
                result = await client.call_tool("run_command", {"command": f"echo x > {other}/fine && echo x > fine"})
                self.assertEqual(result.structured_content["exit_code"], 0, said(result))
            self.assertTrue((other / "fine").exists() and (self.project / "fine").exists())
        self.assertEqual([path.name for path in outside.iterdir()], ["secret"])

    async def test_a_session_that_died_is_made_anew(self):
        async with self.client() as client:
            await client.call_tool("run_command", {"command": "echo x > /tmp/x"})
            [session] = self.live()
            os.kill(session["supervisor"], signal.SIGKILL)
            result = await client.call_tool("run_command", {"command": "true"})
            for _ in range(3):
                if not result.is_error and result.structured_content["reason"] is None:
                    break
                self.assertIn("next call", said(result))
                result = await client.call_tool("run_command", {"command": "true"})
            self.assertEqual(result.structured_content["exit_code"], 0)

    async def test_a_wrong_configuration_is_told(self):
        done = self.ringfence("mcp", "--root", str(self.home / "none"))
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("cannot work in", done.stderr)
        for name in ["bad name", "", "../x", "a" * 65]:
            done = self.ringfence("mcp", "--keep", name)
            self.assertEqual((done.returncode, done.stdout), (125, ""), name)
            self.assertIn("cannot be the name of a session", done.stderr)
        done = self.ringfence("mcp", "--profile", "no-such")
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("no-such", done.stderr)


if __name__ == "__main__":
    unittest.main()
