//! `ringfence code` through the program. What each status and language does is the library's test.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::Place;

#[test]
fn results_and_exit_codes() {
    let place = Place::new();
    place.write("project/double.py", "print('hello')\nx * 2");
    place.write("project/fail.py", "\nraise ValueError('no')");
    place.write("project/data.csv", "a,b\n");
    place.write("project/copy.sh", "cp data.csv out.txt");
    let done = place.ringfence(&["code", "python", "double.py", "--input", "{\"x\": 21}"]);
    assert_eq!((done.code, done.out.as_str()), (0, "hello\n42\n"), "{}", done.err);
    let done = place.ringfence(&["code", "py", "fail.py"]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("fail.py:2") && done.err.contains("ValueError: no"), "{}", done.err);
    let done = place.ringfence(&["code", "python", "fail.py", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &result["status"]), (1, &"error".into()));
    place.write("project/inputs.py", "print(inputs)");
    assert_eq!(place.ringfence(&["code", "python", "inputs.py", "--input", "null"]).out, "None\n");
    assert_eq!(place.ringfence(&["code", "python", "inputs.py"]).out, "{}\n");
    // The record says the same, whatever the interpreter exited with.
    let recorded = |id: &serde_json::Value| {
        let shown = place.ringfence(&["history", "show", id.as_str().unwrap(), "--json"]);
        serde_json::from_str::<serde_json::Value>(&shown.out).unwrap()["exit_code"].clone()
    };
    assert_eq!(recorded(&result["id"]), 1);
    let fine = place.ringfence(&["code", "python", "double.py", "--input", "{\"x\": 1}", "--json"]);
    assert_eq!(recorded(&serde_json::from_str::<serde_json::Value>(&fine.out).unwrap()["id"]), 0);
    let done =
        place.ringfence(&["code", "bash", "copy.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(std::fs::read_to_string(place.project.join("new/out.txt")).unwrap(), "a,b\n");
    // Nothing is replaced.
    let done =
        place.ringfence(&["code", "bash", "copy.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!(done.code, 125, "{}", done.err);
    // The status says the same, and the rest of the result is there.
    let done = place.ringfence(&[
        "code",
        "bash",
        "copy.sh",
        "--file",
        "data.csv",
        "--out",
        "*.txt",
        "--out-dir",
        "new",
        "--json",
    ]);
    let (code, result) = (done.code, done.json());
    assert_eq!((code, &result["status"]), (125, &"sandbox_error".into()), "{result}");
    assert!(result["error"].as_str().unwrap().contains("new/out.txt") && result["files"][0]["path"] == "out.txt");
    // What the code said is not lost for that.
    place.write("project/say.sh", "echo said; cp data.csv out.txt; result=7");
    let done = place.ringfence(&["code", "bash", "say.sh", "--file", "data.csv", "--out", "*.txt", "--out-dir", "new"]);
    assert_eq!((done.code, done.out.as_str()), (125, "said\n7\n"), "{}", done.err);
    // Into a pipe goes what was written, as it is.
    place.write("project/raw.py", "import sys\nsys.stderr.write('a\\x1b[1mb\\u202ec')");
    let done = place.ringfence(&["code", "python", "raw.py"]);
    assert_eq!((done.code, done.err.as_str()), (0, "a\x1b[1mb\u{202e}c\n"));
    // A variable of bash is no input: its value would be executed. Nothing runs, and the input is named.
    place.write("project/random.sh", "echo ran; ls made");
    let with = |input: &str| place.ringfence(&["code", "bash", "random.sh", "--input", input]);
    let done = with(r#"{"RANDOM":"a[$(touch made)]"}"#);
    assert_eq!((done.code, done.out.as_str()), (125, ""), "{}", done.err);
    assert!(done.err.contains("input `RANDOM` cannot be a variable"), "{}", done.err);
    assert!(done.err.contains("hint: give the input another name"), "{}", done.err);
    let done = with(r#"{"random":"a[$(touch made)]"}"#);
    assert_eq!(done.out, "ran\n", "{}", done.err);
    // The sandbox's failures have a code of their own.
    for args in [
        &["code", "pyton", "double.py"][..],
        &["code", "python", "missing.py"],
        &["code", "python", "double.py", "--input", "{"],
    ] {
        assert_eq!(place.ringfence(args).code, 125, "{args:?}");
    }
}

/// Each call that does not get all it wants says why, and names no flag that would not help.
#[test]
fn what_would_help() {
    let place = Place::new();
    let write = |name: &str, text: &str| place.write(&format!("project/{name}"), text);
    write("loop.py", "while True: pass");
    write("sleep.py", "import time; time.sleep(60)");
    write("eat.py", "x = []\nwhile True: x.append(bytearray(1 << 20))");
    write("many.py", "for n in range(70): open(f'{n}.txt', 'w').close()");
    write("large.js", "'x'.repeat(10_000_000)");
    write("refused.sh", "/etc/passwd");
    write("fetch.py", "import urllib.request\nurllib.request.urlopen('http://nowhere.test/')");
    write("read.py", "open('/usr/x', 'w')");
    write("config.toml", "[limits]\ntimeout = \"2s\"\ntimeout_ceiling = \"2s\"\n");
    for (args, says, not) in [
        (&["python", "sleep.py", "--timeout", "1s"][..], "its time was up; --timeout allows more", "--json"),
        (
            &["python", "sleep.py", "--config", "config.toml"],
            "its time was up; `timeout_ceiling` in `[limits]`",
            "--timeout",
        ),
        (&["python", "loop.py", "--cpu-time", "1s"], "CPU time was used up; --cpu-time allows more", "--timeout"),
        (&["python", "eat.py", "--memory", "64m"], "--memory allows more", "--json"),
        (&["python", "many.py", "--out", "*.txt", "--out-dir", "many"], "6 files are left away", "--json"),
        (&["node", "large.js"], "too large", "--json"),
        (&["bash", "refused.sh"], "the sandbox refused something\n", "--json"),
        (&["python", "fetch.py"], "refused a connection to `nowhere.test`", "--json"),
        (&["python", "read.py"], "the sandbox refused something: E", "--json"),
        (&["node", "large.js", "--memory", "20m"], "hint: --memory 64MiB", "--json"),
    ] {
        let done = place.ringfence(&[&["code"], args].concat());
        assert!(done.err.contains(says) && !done.err.contains(not), "{args:?}: {}", done.err);
    }
    assert_eq!(support::names(&place.project.join("many")).len(), 64);
    // A session has the limits that it was made with.
    let created = place.ringfence(&["session", "create", "work", "--memory", "96m"]);
    assert_eq!(created.code, 0, "{}", created.err);
    let done = place.ringfence(&["code", "python", "eat.py", "--session", "work"]);
    assert!(done.code == 137 && !done.err.contains("--memory"), "{done:?}");
    assert_eq!(place.ringfence(&["session", "rm", "work"]).code, 0);
}

/// Files that come out go where they were asked for: no link leads elsewhere, and what is hidden is asked for by its dot.
#[test]
fn files_come_out_where_they_were_asked_for() {
    let place = Place::new();
    let write = |name: &str, text: &str| place.write(&format!("project/{name}"), text);
    write(
        "make.py",
        "import os\nfor name in ('seen', '.kept', '.envrc', 'a/.hidden/x', 'a/b'):\n os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n open(name, 'w').close()",
    );
    write(
        "make.js",
        "const fs = require('fs'); for (const name of ['seen', '.kept', '.envrc']) fs.writeFileSync(name, '')",
    );
    let run = |args: &[&str]| place.ringfence(&[&["code"], args].concat());
    std::fs::create_dir(place.home.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place.home.join("elsewhere"), place.project.join("link")).unwrap();
    for dir in ["link", "link/below"] {
        let done = run(&["python", "make.py", "--out", "seen", "--out-dir", dir]);
        assert!(done.code == 125 && done.err.contains("Not a directory"), "{dir}: {}", done.err);
    }
    assert_eq!(support::names(&place.home.join("elsewhere")), [""; 0]);
    for (language, code) in [("python", "make.py"), ("node", "make.js")] {
        let dir = format!("new/{language}");
        let done = run(&[language, code, "--out", "*", "--out", "**", "--out-dir", &dir]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(!place.project.join(&dir).join(".kept").exists());
        assert!(place.project.join(&dir).join("seen").exists());
        let done = run(&[language, code, "--out", ".kept", "--out-dir", &dir]);
        assert!(done.code == 0 && place.project.join(&dir).join(".kept").exists(), "{}", done.err);
        // What something outside executes never comes.
        let done = run(&[language, code, "--out", ".envrc", "--out-dir", &dir]);
        assert!(done.code == 125 && done.err.contains("@dotfiles"), "{}", done.err);
        assert!(!place.project.join(&dir).join(".envrc").exists());
    }
    assert!(!place.project.join("new/python/a/.hidden").exists() && place.project.join("new/python/a/b").exists());
    write(
        "plant.py",
        "import os\nfor name in ('r/HEAD', 'r/objects/x', 'r/refs/x', 'r/README', 's/.git/config', 'x\\u202ecod.exe'):\n os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n open(name, 'w').close()",
    );
    let out = ["--out", "r/**", "--out", "s/.git/config", "--out", "x*", "--out-dir", "planted"];
    let done = run(&[&["python", "plant.py"], &out[..]].concat());
    assert!(done.code == 125 && done.err.contains("git would use it") && done.err.contains("3 more"), "{}", done.err);
    assert_eq!(support::names(&place.project.join("planted")), ["r"]);
    assert_eq!(support::names(&place.project.join("planted/r")), ["README"]);
    // One by one they come whole, or not at all.
    write("large.py", "for name, mib in (('a', 20), ('b', 40)): open(name, 'wb').truncate(mib << 20)");
    let done = run(&["python", "large.py", "--tmp-size", "100m", "--out", "?", "--out-dir", "large"]);
    assert!(done.code == 0 && done.err.contains("1 file is left away"), "{}", done.err);
    assert_eq!(std::fs::metadata(place.project.join("large/a")).unwrap().len(), 20 << 20);
    assert_eq!(support::names(&place.project.join("large")), ["a"]);
}

/// What cannot be read of a result does not make a failure well.
#[test]
fn a_result_that_cannot_be_read_is_no_success() {
    let place = Place::new();
    let write = |name: &str, text: &str| place.write(&format!("project/{name}"), text);
    write("half.js", "throw new Error('bad \\ud800')");
    write("value.js", "'\\\\ud800 \\ud800 \u{1f600}'");
    write("garbage.py", "import os\nos.write(3, b'r 3\\n{{{')\nos._exit(0)");
    write("euro.py", "'\u{20ac}' * (3 << 20)");
    write("large.sh", "result=$(head -c 6000000 /dev/zero | tr '\\0' a)\nfalse");
    write("fine.sh", "result=$(head -c 6000000 /dev/zero | tr '\\0' a)");
    for (language, name, code) in [
        ("node", "half.js", 1),
        ("node", "value.js", 0),
        ("python", "garbage.py", 1),
        ("python", "euro.py", 0),
        ("bash", "large.sh", 1),
        ("bash", "fine.sh", 0),
    ] {
        let done = place.ringfence(&["code", language, name]);
        assert_eq!(done.code, code, "{name}: {}", done.err);
        if name == "value.js" {
            assert_eq!(done.out, "\"\\\\ud800 \u{fffd} \u{1f600}\"\n");
        }
    }
    let fine = place.ringfence(&["code", "bash", "fine.sh", "--json"]).json();
    assert_eq!((&fine["status"], &fine["cut"], &fine["value"]), (&"ok".into(), &true.into(), &serde_json::Value::Null));
    assert_eq!(fine["text"].as_str().map(str::len), Some(65536));
}

/// A link inside leads nowhere, in no language; names that look like something else are names; each comes once.
#[test]
fn what_out_takes() {
    let place = Place::new();
    let write = |name: &str, text: &str| place.write(&format!("project/{name}"), text);
    write(
        "make.py",
        "import os\nos.makedirs('d/e')\nfor n in ('d/x', 'd/e/y', '-x.txt', '~x.txt', 'a\\tb.txt'): open(n, 'w').write(n)\n\
         for to, n in (('/etc', 'l'), ('/usr', 'u'), ('.', 'loop'), ('x', 'd/f')): os.symlink(to, n)",
    );
    write(
        "make.js",
        "const fs = require('fs'); fs.mkdirSync('d/e', { recursive: true });\n\
         for (const n of ['d/x', 'd/e/y', '-x.txt', '~x.txt', 'a\\tb.txt']) fs.writeFileSync(n, n);\n\
         for (const [to, n] of [['/etc', 'l'], ['/usr', 'u'], ['.', 'loop'], ['x', 'd/f']]) fs.symlinkSync(to, n);",
    );
    write(
        "make.sh",
        "mkdir -p d/e; for n in d/x d/e/y ./-x.txt '~x.txt' $'a\\tb.txt'; do printf %s \"${n#./}\" > \"$n\"; done\n\
         ln -s /etc l; ln -s /usr u; ln -s . loop; ln -s x d/f; shopt -s dotglob; set -efu",
    );
    for (language, code) in [("python", "make.py"), ("node", "make.js"), ("bash", "make.sh")] {
        let run = |dir: &str, patterns: &[&str]| {
            let dir = format!("{language}/{dir}");
            let patterns: Vec<String> = patterns.iter().map(|pattern| format!("--out={pattern}")).collect();
            let args = ["code", language, code, "--out-dir", &dir, "--json"].into_iter();
            let args: Vec<&str> = args.chain(patterns.iter().map(String::as_str)).collect();
            let result = place.ringfence(&args).json();
            assert_eq!(result["status"], "ok", "{language}: {result}");
            let files = result["files"].as_array().unwrap().iter();
            let mut names: Vec<_> = files.map(|file| file["path"].as_str().unwrap().to_owned()).collect();
            names.sort();
            (names, result["files_dropped"].clone())
        };
        assert_eq!(run("a", &["l/host*", "loop/d/x", "*/e/y"]).0, ["d/e/y"], "{language}");
        assert_eq!(
            run("b", &["**", "*.txt", "**/*"]),
            (["-x.txt", "d/e/y", "d/x", "~x.txt"].map(str::to_owned).to_vec(), 1.into()),
            "{language}"
        );
        assert_eq!(run("c", &["d/**"]).0, ["d/e/y", "d/x"], "{language}");
        assert_eq!(run("d", &["-x*", "~?.txt"]).0, ["-x.txt", "~x.txt"], "{language}");
        let said = place.ringfence(&["code", language, code, "--out", "a*", "--out-dir", "none"]);
        assert!(said.code == 0 && said.err.contains("without control characters"), "{language}: {}", said.err);
    }
    write("-d.csv", "1");
    write("~d.csv", "22");
    write("size.sh", "wc -c < ./-d.csv; wc -c < './~d.csv'");
    let done = place.ringfence(&["code", "bash", "size.sh", "--file=-d.csv", "--file", "~d.csv"]);
    assert_eq!((done.code, done.out.as_str()), (0, "1\n2\n"), "{}", done.err);
    // What the code sends twice is no failure of ours; what cannot be written here leaves a failure of the code one.
    write("twice.py", "import os\nfor _ in range(2): os.write(3, b'f 8\\n5\\nx.txt1')\nopen('x.txt', 'w').close()");
    let twice = place.ringfence(&["code", "python", "twice.py", "--out", "*.txt", "--out-dir", "twice", "--json"]);
    assert_eq!(
        (twice.code, &twice.json()["status"], &twice.json()["cut"]),
        (0, &"ok".into(), &true.into()),
        "{twice:?}"
    );
    write("raise.py", "open('x.txt', 'w').close()\nraise ValueError('no')");
    let raised = place.ringfence(&["code", "python", "raise.py", "--out", "*.txt", "--out-dir", "twice", "--json"]);
    assert_eq!((raised.code, &raised.json()["status"]), (1, &"error".into()), "{raised:?}");
    assert!(raised.json()["error"].as_str().unwrap().contains("twice/x.txt"), "{raised:?}");
}

/// What is no text goes through a pipe as it is, and `--json` has a text.
#[test]
fn bytes_through_a_pipe() {
    let place = Place::new();
    place.write(
        "project/raw.py",
        "import sys\nfor s in (sys.stdout, sys.stderr):\n    n = s.buffer.write(b'\\xff\\x1b[1m\\0\\n')\n    s.flush()",
    );
    let out = place.command(["code", "python", "raw.py"]).output().unwrap();
    assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"\xff\x1b[1m\0\n"[..], &b"\xff\x1b[1m\0\n"[..]));
    assert_eq!(place.ringfence(&["code", "python", "raw.py", "--json"]).json()["stdout"], "\u{fffd}\u{1b}[1m\0\n");
}

/// A directory of the host's in the place of `/tmp` has the room that the host has.
#[test]
fn room_in_a_mounted_directory() {
    let place = Place::new();
    place.write("project/size.py", "import os\n[os.getcwd(), os.path.getsize('large.bin')]");
    place.write("other/large.bin", &"x".repeat(12 << 20));
    let args = ["code", "python", "size.py", "--file", "../other/large.bin"];
    let done = place.ringfence(&args);
    assert!(done.code == 125 && done.err.contains("there is room for"), "{done:?}");
    let done = place.ringfence(&[&args[..], &["--rw", "."]].concat());
    assert_eq!((done.code, done.out.as_str()), (0, "[\"/tmp\",12582912]\n"), "{}", done.err);
    assert!(place.project.join("large.bin").exists());
}

/// What a session may have put in the place of a file is not waited for, and where a link leads is said.
#[test]
fn files_that_are_none() {
    let place = Place::new();
    place.write("project/len.py", "len(open(name).read())");
    place.write("elsewhere/secret", "12345");
    let fifo = std::process::Command::new("mkfifo").arg(place.project.join("pipe")).status().unwrap();
    assert!(fifo.success());
    std::os::unix::fs::symlink(place.home.join("elsewhere/secret"), place.project.join("link")).unwrap();
    let run = |name: &str| {
        let input = format!("{{\"name\":\"{}\"}}", name.rsplit('/').next().unwrap());
        place.ringfence(&["code", "python", "len.py", "--input", &input, "--file", name])
    };
    for name in ["pipe", "/dev/zero", "."] {
        let refused = run(name);
        assert_eq!(refused.code, 125, "{name}: {}", refused.err);
    }
    assert!(run("pipe").err.contains("no regular file"));
    let linked = run("link");
    assert_eq!((linked.code, linked.out.as_str()), (0, "5\n"), "{}", linked.err);
    assert!(linked.err.contains("`link` is a link") && linked.err.contains("elsewhere/secret"), "{}", linked.err);
    let plain = run("len.py");
    assert_eq!((plain.code, plain.err.as_str()), (0, ""));
}

#[test]
fn what_is_left_away_is_said() {
    let place = Place::new();
    place.write("project/much.py", "for _ in range(40): print('x' * 99_999)");
    place.write("project/little.py", "print('x' * 99_999)");
    let much = place.ringfence(&["code", "python", "much.py"]);
    let missing = much.err.split(' ').find_map(|word| word.parse::<usize>().ok()).unwrap();
    assert!(much.err.contains("left away in the middle of stdout") && missing > 2 << 20, "{}", much.err);
    assert_eq!(place.ringfence(&["code", "python", "little.py"]).err, "");
}

#[test]
fn inputs_that_are_no_text() {
    let place = Place::new();
    place.write("project/inputs.py", "print(inputs)");
    std::fs::write(place.project.join("bad.json"), b"{\"a\": \"\xff\"}").unwrap();
    let refused = place.ringfence(&["code", "python", "inputs.py", "--input-file", "bad.json"]);
    assert!(refused.code == 125 && refused.err.contains("is not UTF-8 text"), "{}", refused.err);
    let half = place.ringfence(&["code", "python", "inputs.py", "--input", r#"{"a": "\ud800"}"#]);
    assert!(half.code == 125 && half.err.contains("is not JSON"), "{}", half.err);
    // What other programs put before UTF-8 is no matter, and what is too deep is called that.
    place.write("project/mark.json", "\u{feff}{\"a\": 1}");
    let marked = place.ringfence(&["code", "python", "inputs.py", "--input-file", "mark.json"]);
    assert_eq!((marked.code, marked.out.as_str()), (0, "{'a': 1}\n"), "{}", marked.err);
    let nested = |depth: usize| {
        let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        place.ringfence(&["code", "python", "inputs.py", "--input", &lists])
    };
    assert_eq!(nested(127).code, 0);
    assert!(
        nested(128).code == 125 && nested(128).err.contains("--input is nested deeper than 127"),
        "{}",
        nested(128).err
    );
    // Whole numbers are as they were, in Python.
    let given = r#"{"a": [18446744073709551615, -9223372036854775808], "z": 9007199254740993}"#;
    let shown = place.ringfence(&["code", "python", "inputs.py", "--input", given]);
    assert_eq!(shown.out, "{'a': [18446744073709551615, -9223372036854775808], 'z': 9007199254740993}\n");
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
