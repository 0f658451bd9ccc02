//! `--requirements` through the program, with an index and a registry on loopback, and packages that mean no good.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/index.rs"]
mod index;
#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use index::{Index, kept};
use serde_json::{Value, json};
use support::Place;

/// Looks at the box from inside.
const LOOK: &str = r#"
import greeting, os, socket
def refused(act):
    try:
        act()
        return None
    except OSError as error:
        return type(error).__name__
result = {
    "hello": greeting.hello(),
    "file": greeting.__file__,
    "write": refused(lambda: open("/site-packages/x", "w")),
    "change": refused(lambda: os.chmod(greeting.__file__, 0o777)),
    "network": refused(lambda: socket.create_connection(("127.0.0.1", inputs["port"]), 2)),
    "pth": os.environ.get("PWNED"),
    "home": os.path.exists(inputs["home"]),
    "nosuid": [line.split()[3] for line in open("/proc/mounts") if line.split()[1] == "/site-packages"][0],
}
"#;

#[test]
fn packages_are_installed_once_and_seen_read_only() {
    for engine in support::engines() {
        let (place, mut index) = (Place::new(), Index::new());
        place.write("project/look.py", LOOK);
        place.write("project/requirements.txt", "# pinned\ngreeting==1.0\n");
        let address = index.python();
        let input = json!({ "port": index.port, "home": place.home }).to_string();
        let args = [
            "code",
            "python",
            "look.py",
            "--engine",
            engine,
            "--requirements",
            "requirements.txt",
            "--index",
            &address,
            "--input",
            &input,
            "--json",
        ];
        // Two at once: one of them installs.
        let first = place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let second = place.ringfence(&args);
        let first = support::Done::new(first.wait_with_output().unwrap());
        assert_eq!((first.code, second.code), (0, 0), "{engine}: {first:?} {second:?}");
        assert_eq!(index.fetched("greeting-1.0-py3-none-any.whl"), 1, "{engine}");
        for done in [&first, &second] {
            let value = done.json()["value"].clone();
            assert_eq!(value["hello"], "hello 1", "{value}");
            assert_eq!(value["file"], "/site-packages/greeting.py");
            for (act, refused) in [("write", "OSError"), ("change", "OSError"), ("network", "ConnectionRefusedError")] {
                let answer = value[act].as_str().unwrap_or("allowed");
                assert!(answer == refused || answer == "PermissionError", "{engine} {act}: {value}");
            }
            assert_eq!((&value["pth"], &value["home"]), (&Value::Null, &json!(false)));
            let options = value["nosuid"].as_str().unwrap();
            assert!(options.contains("nosuid") && options.contains("nodev") && options.starts_with("ro"), "{options}");
        }
        // No index is asked any more.
        index.close();
        assert_eq!(place.ringfence(&args).code, 0);
        let listed = place.ringfence(&["requirements", "list", "--json"]).json();
        assert_eq!(listed["requirements"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed["requirements"][0]["requirements"], "greeting==1.0");
        // Recorded, as every execution is.
        let history = place.ringfence(&["history", "--json"]).out;
        assert!(history.contains("--only-binary"), "{history}");
        let id = listed["requirements"][0]["id"].as_str().unwrap();
        assert_eq!(place.ringfence(&["requirements", "rm", id]).code, 0);
        assert_eq!(place.ringfence(&["requirements", "rm", id]).code, 125);
        assert!(kept(&place).is_empty(), "{:?}", kept(&place));
    }
}

#[test]
fn what_cannot_be_installed_leaves_nothing() {
    let (place, index) = (Place::new(), Index::new());
    place.write("project/x.py", "1");
    let address = index.python();
    let run = |text: &str, more: &[&str]| {
        place.write("project/requirements.txt", text);
        let mut args = vec!["code", "python", "x.py", "--requirements", "requirements.txt", "--index", &address];
        args.extend(more);
        place.ringfence(&args)
    };
    for (text, says) in [
        // Nothing of that name.
        ("nothing-like-it", "nothing-like-it"),
        // A package that runs code when it is installed.
        ("source", "source"),
        // One that unpacks to elsewhere.
        ("escape", "escape"),
    ] {
        let done = run(text, &[]);
        assert_eq!(done.code, 125, "{text}: {done:?}");
        assert!(done.err.contains("pip could not install") && done.err.contains(says), "{text}: {}", done.err);
        assert!(!done.err.contains("setup.py ran"), "{}", done.err);
        // There are only wheels: what that means for whoever has none is said.
        assert!(text == "escape" || done.err.contains("hint: only wheels are installed"), "{}", done.err);
        assert!(kept(&place).is_empty(), "{text}: {:?}", kept(&place));
    }
    // A package that needs an address: pip would fetch it, and run its build.
    for text in ["astray", "detour"] {
        let done = run(text, &[]);
        assert!(done.code == 125 && done.err.contains("by their names"), "{text}: {done:?}");
        assert!(kept(&place).is_empty(), "{text}: {:?}", kept(&place));
    }
    assert_eq!((index.fetched("leads-1.0.tar.gz"), index.fetched("leads-1.0-py3-none-any.whl")), (0, 0));
    // The same index has some that can be, one with a need that has a name.
    for text in ["greeting", "needy"] {
        assert_eq!(run(text, &[]).code, 0, "{text}");
    }
    for (text, more, says) in [
        ("-r other.txt", &[][..], "line 1"),
        ("x @ http://127.0.0.1/x.whl", &[], "line 1"),
        ("greeting", &["--session", "s"], "ringfence session create --requirements"),
        ("greeting", &["--profile", "agent"], "no place for them"),
    ] {
        let done = run(text, more);
        assert!(done.code == 125 && done.err.contains(says), "{text} {more:?}: {done:?}");
    }
    let done = place.ringfence(&[
        "code",
        "python",
        "x.py",
        "--requirements",
        "requirements.txt",
        "--index",
        "http://me:secret@h/",
    ]);
    assert!(done.code == 125 && !done.err.contains("secret"), "{done:?}");
    let there = kept(&place).len();
    // An index that never answers: cancelled, and killed.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/simple", silent.local_addr().unwrap());
    place.write("project/requirements.txt", "never");
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let args = ["code", "python", "x.py", "--requirements", "requirements.txt", "--index", &address, "--json"];
        let child = place.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // Held: an installer that is hung up on tries again, and the next round would take that for its own.
        let _connection = silent.accept().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let ended = child.wait_with_output().unwrap();
        if signal != rustix::process::Signal::KILL {
            let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
            assert_eq!((ended.status.code(), &result["status"]), (Some(130), &"cancelled".into()), "{result}");
        }
        if signal == rustix::process::Signal::KILL {
            let until = Instant::now() + Duration::from_secs(10);
            // The lock goes with its last holder.
            while kept(&place).len() > there && Instant::now() < until {
                place.ringfence(&["gc"]);
            }
        }
        assert_eq!(kept(&place).len(), there, "{signal:?}: {:?}", kept(&place));
    }
}

/// What holds pip when a package gets as far as its build.
#[test]
fn the_installer_starts_no_program() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("setup.py"), "open('ran', 'w')").unwrap();
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../ringfence/src/code/requirements/pip.py");
    let install = |program: &[&str]| {
        let mut pip = std::process::Command::new("/usr/bin/python3");
        pip.arg("-I").args(program).args(["--isolated", "install", "--no-index", "--no-build-isolation"]);
        pip.args(["--target", "made", "."]).current_dir(&dir).output().unwrap()
    };
    let done = install(&[rules]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("starts no other program"), "{said}");
    assert!(!dir.path().join("ran").exists());
    install(&["-m", "pip"]);
    assert!(dir.path().join("ran").exists());
}

#[test]
fn npm_runs_no_scripts() {
    let (place, index) = (Place::new(), Index::new());
    let tarball = format!("{}/greeting/-/greeting-1.0.0.tgz", index.node());
    let lock = |resolved: &str| {
        json!({ "name": "mine", "lockfileVersion": 3, "requires": true, "packages": {
            "": { "name": "mine", "dependencies": { "greeting": "^1.0.0" } },
            "node_modules/greeting": { "version": "1.0.0", "resolved": resolved, "hasInstallScript": true },
        }})
        .to_string()
    };
    place.write("project/package-lock.json", &lock(&tarball));
    let look =
        "({ hello: require('greeting').hello(), ran: require('fs').existsSync('/node_modules/greeting/pwned') })";
    place.write("project/look.js", look);
    place.write("project/module.js", "import { hello } from 'greeting';\nexport default hello();");
    let registry = index.node();
    let run = |file: &str| {
        let wanted = ["--requirements", "package-lock.json", "--index", &registry];
        place.ringfence(&[&["code", "node", file, "--timeout", "30s", "--json"][..], &wanted].concat())
    };
    let done = run("look.js");
    assert_eq!(done.json()["value"], json!({ "hello": "hello node", "ran": false }), "{done:?}");
    assert_eq!(run("module.js").json()["value"], "hello node");
    // As `overrides` leave it: another version than the one that is asked for.
    let outer = format!("{}/outer/-/outer-1.0.0.tgz", index.node());
    let overridden = json!({ "name": "mine", "lockfileVersion": 3, "requires": true, "packages": {
        "": { "name": "mine", "dependencies": { "outer": "1.0.0" } },
        "node_modules/outer": { "version": "1.0.0", "resolved": outer, "dependencies": { "greeting": "^9.0.0" } },
        "node_modules/greeting": { "version": "1.0.0", "resolved": tarball, "hasInstallScript": true },
    }});
    place.write("project/package-lock.json", &overridden.to_string());
    place.write("project/outer.js", "require('outer').hello()");
    let done = run("outer.js");
    assert_eq!(done.json()["value"], "hello node from outer", "{done:?}");
    place.write("project/package-lock.json", &lock("http://127.0.0.1:1/greeting.tgz"));
    let done = run("look.js");
    assert!(done.code == 125 && done.err.contains("elsewhere"), "{done:?}");
    // In a session, for every piece of code.
    place.write("project/package-lock.json", &lock(&tarball));
    let made = ["session", "create", "s", "--requirements", "package-lock.json", "--index", &registry];
    assert_eq!(place.ringfence(&made).code, 0);
    for (file, more) in [("module.js", &[][..]), ("module.js", &["--context", "c"])] {
        let done = place.ringfence(&[&["code", "node", file, "--session", "s", "--json"], more].concat());
        assert_eq!(done.json()["value"], "hello node", "{done:?}");
    }
    assert_eq!(place.ringfence(&["session", "rm", "s"]).code, 0);
}

/// Installers believe whom this host believes, such as a company's own authority.
#[test]
fn authorities_of_the_host() {
    let (place, index) = (Place::new(), Index::encrypted());
    place.write("project/x.py", "import greeting\ngreeting.hello()");
    place.write("project/x.js", "require('greeting').hello()");
    place.write("project/requirements.txt", "greeting==1.0");
    let lock = json!({ "name": "mine", "lockfileVersion": 3, "requires": true, "packages": {
        "": { "name": "mine", "dependencies": { "greeting": "^1.0.0" } },
        "node_modules/greeting": { "version": "1.0.0", "resolved": format!("{}/greeting/-/greeting-1.0.0.tgz", index.node()) },
    }});
    place.write("project/package-lock.json", &lock.to_string());
    for (language, code, file, address, hello) in [
        ("python", "x.py", "requirements.txt", index.python(), "\"hello 1\"\n"),
        ("node", "x.js", "package-lock.json", index.node(), "\"hello node\"\n"),
    ] {
        let args = ["code", language, code, "--timeout", "30s", "--requirements", file, "--index", &address];
        let run = |authorities: Option<&std::path::Path>| {
            let mut command = place.command(args);
            authorities.map(|path| command.env("SSL_CERT_FILE", path));
            support::Done::new(command.output().unwrap())
        };
        // npm tries for more than a minute.
        if language == "python" {
            let refused = run(None);
            assert!(refused.code == 125 && refused.err.contains("hint: the index shows a certificate"), "{refused:?}");
        }
        let missing = run(Some(std::path::Path::new("/nowhere.pem")));
        assert!(missing.code == 125 && missing.err.contains("cannot read `/nowhere.pem`"), "{missing:?}");
        let done = run(Some(&index.authority()));
        assert_eq!((done.code, done.out.as_str()), (0, hello), "{done:?}");
    }
}

#[test]
fn a_skill_runs_with_what_it_requires() {
    let (place, index) = (Place::new(), Index::new());
    let address = index.python();
    place.write("project/greet.py", "import greeting\ngreeting.hello()");
    let add = |text: &str, more: &[&str]| {
        place.write("project/requirements.txt", text);
        let args = ["skill", "add", "greet.py", "--requirements", "requirements.txt", "--index", &address];
        place.ringfence(&[&args[..], more].concat())
    };
    assert!(add("greeting==1.0", &[]).out.starts_with("greet@1 "));
    assert!(add("greeting==1.0", &[]).out.starts_with("greet@1 "));
    // Other packages are another version.
    assert!(add("greeting==2.0", &[]).out.starts_with("greet@2 "));
    let taken = add("greeting", &["--version", "1"]);
    assert!(taken.code == 125 && taken.err.contains("requirements"), "{taken:?}");
    assert!(add("-e .", &[]).err.contains("line 1"));
    for (skill, hello) in [("greet", "\"hello 2\"\n"), ("greet@1", "\"hello 1\"\n")] {
        let ran = place.ringfence(&["skill", "run", skill]);
        assert_eq!((ran.code, ran.out.as_str()), (0, hello), "{}", ran.err);
    }
    assert!(place.ringfence(&["skill", "show", "greet"]).out.contains("requires  greeting==2.0"));
}

/// A session has them from its beginning to its end, for every piece of code and every command in it.
#[test]
fn a_session_has_packages_from_its_beginning() {
    for engine in support::engines() {
        let (place, mut index) = (Place::new(), Index::new());
        place.write("project/requirements.txt", "greeting==1.0");
        place.write("project/first.py", "import greeting\nx = greeting.hello()");
        let refused = "import sys\ntry:\n    open('/site-packages/x', 'w')\nexcept OSError as e:\n    w = e.errno\n";
        let second = format!("{refused}\n[x, w, sys.path.count('/site-packages'), greeting.__file__]");
        place.write("project/second.py", &second);
        let create = |name: &str, more: &[&str]| {
            place.ringfence(&[&["session", "create", name, "--engine", engine], more].concat())
        };
        let done = create("with", &["--requirements", "requirements.txt", "--index", &index.python()]);
        assert_eq!(done.code, 0, "{engine}: {done:?}");
        assert_eq!(create("without", &[]).code, 0);
        // No index is asked any more.
        index.close();
        let code = |file: &str, session: &str, more: &[&str]| {
            place.ringfence(&[&["code", "python", file, "--session", session, "--json"], more].concat())
        };
        for file in ["first.py", "second.py"] {
            let done = code(file, "with", &["--context", "main"]);
            assert_eq!(done.code, 0, "{engine} {file}: {done:?}");
            let wanted = json!(["hello 1", libc::EROFS, 1, "/site-packages/greeting.py"]);
            assert!(file == "first.py" || done.json()["value"] == wanted, "{engine}: {done:?}");
        }
        assert_eq!(code("first.py", "with", &[]).code, 0);
        let failed = code("first.py", "without", &[]).json();
        assert_eq!(failed["exception"]["type"], "ModuleNotFoundError", "{failed}");
        // Commands have them as well.
        let command = ["session", "exec", "with", "--", "python3", "-c", "import greeting; print(greeting.hello())"];
        let done = place.ringfence(&command);
        assert_eq!((done.code, done.out.as_str()), (0, "hello 1\n"), "{engine}: {done:?}");
        let shown = place.ringfence(&["session", "show", "with", "--json"]).json();
        let id = kept(&place).remove(0);
        assert_eq!(shown["requirements"], json!([{ "id": id, "at": "/site-packages" }]));
        // One that is there is taken as it is, and nothing is installed for it: nobody would answer.
        place.write("project/others.txt", "greeting==2.0");
        let taken = create("with", &["--reuse", "--requirements", "others.txt", "--index", &index.python()]);
        assert!(taken.code == 0 && taken.err.contains("changes nothing"), "{engine}: {taken:?}");
        let missing = create("new", &["--reuse", "--requirements", "others.txt", "--index", &index.python()]);
        assert!(missing.code == 125 && missing.err.contains("pip could not install"), "{engine}: {missing:?}");
        // Not removed while it lives.
        assert_eq!(place.ringfence(&["requirements", "rm", &id]).code, 125);
        assert_eq!(code("first.py", "with", &[]).code, 0);
        assert_eq!(place.ringfence(&["session", "rm", "with", "without"]).code, 0);
        let done = place.ringfence(&["requirements", "rm", &id]);
        assert_eq!((done.code, kept(&place)), (0, Vec::new()), "{engine}: {done:?}");
        // Where there is no place for them.
        let done = create("agent", &["--profile", "agent", "--requirements", "requirements.txt"]);
        assert!(done.code == 125 && done.err.contains("no place for them"), "{done:?}");
    }
}

/// Code that comes with a set runs in a session that has this very one, and in no other.
#[tokio::test]
async fn a_session_with_another_set_refuses() {
    use ringfence::code::requirements::{Found, Requirements, Store};
    use ringfence::code::{Code, ContextError, Contexts, Language};
    let (index, home) = (Index::new(), sessions::Home::new());
    let python = Language::named("python").unwrap();
    let facts = ringfence::facts::gather().unwrap();
    let store = Store::new(home.place.home.join("sets"));
    let install = |text: &str| {
        let wanted = Requirements::new(python, text.to_owned(), Some(index.python())).unwrap();
        let policy = home.policy(|_| {});
        match store.find(python, &wanted, &policy, &facts, ringfence::engines::native::ENGINE.into(), None).unwrap() {
            Found::Installed(installed) => installed,
            Found::Missing(build) => build.run(&facts, None).unwrap().installed.unwrap(),
        }
    };
    let (one, two) = (install("greeting==1.0"), install("greeting==2.0"));
    let mut create = home.create();
    one.show_all(python, &mut create.policy).unwrap();
    let (with, without) = (home.sessions.create(create).await.unwrap(), home.session().await);
    let code =
        |set: &_| Code { installed: Some(Clone::clone(set)), ..Code::new(python, "import greeting\ngreeting.hello()") };
    let run = async |session: &ringfence::session::Session, code: &Code| {
        Contexts::of(session.clone()).run("a", code, None, std::future::pending()).await
    };
    let ran = run(&with, &code(&one)).await.unwrap();
    assert_eq!(ran.value, Some(json!("hello 1")), "{ran:?}");
    let refused = run(&with, &code(&two)).await;
    let (is, other) = (one.id.clone(), two.id.clone());
    assert!(
        matches!(&refused, Err(ContextError::OtherSet { asked, has: Some(has) }) if (asked, has) == (&other, &is)),
        "{refused:?}"
    );
    let refused = run(&without, &code(&one)).await;
    assert!(matches!(&refused, Err(ContextError::OtherSet { asked, has: None }) if *asked == is), "{refused:?}");
    // Nothing has started, and code that asks for none runs.
    assert_eq!(run(&without, &Code::new(python, "6 * 7")).await.unwrap().value, Some(json!(42)));
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

/// What packages may have on disk is bounded, while they are installed and in the end. Nothing is left of more.
#[test]
fn too_much_is_not_kept() {
    use ringfence::code::Language;
    use ringfence::code::requirements::{Bounds, Found, Requirements, RequirementsError, Store};
    use ringfence::policy::layer::Layer;
    use ringfence::policy::layers::{self, Inputs};
    let (index, dir) = (Index::new(), tempfile::tempdir().unwrap());
    let facts = ringfence::facts::gather().unwrap();
    let mut flags = Layer::flags();
    flags.profile("skill");
    let inputs = Inputs::new(dir.path().canonicalize().unwrap(), facts.home.clone(), flags);
    let policy = layers::resolve(inputs).unwrap().policy;
    let python = Language::named("python").unwrap();
    let place = dir.path().canonicalize().unwrap().join("store");
    let install = |package: &str, bounds: Bounds| {
        let wanted = Requirements::new(python, package.to_owned(), Some(index.python())).unwrap();
        let store = Store::new(place.clone()).bounded(bounds);
        match store.find(python, &wanted, &policy, &facts, ringfence::engines::native::ENGINE.into(), None).unwrap() {
            Found::Installed(_) => panic!("it was there"),
            Found::Missing(build) => build.run(&facts, None).unwrap().installed,
        }
    };
    let small = Bounds { bytes: 8 << 20, files: 200 };
    for package in ["large", "many"] {
        let refused = install(package, small);
        assert!(matches!(&refused, Err(RequirementsError::TooMuch(bounds)) if *bounds == small), "{refused:?}");
        assert!(Store::new(place.clone()).list().unwrap().is_empty());
        assert_eq!(support::names(&place), Vec::<String>::new());
    }
    assert!(install("greeting", small).is_ok());
    assert!(install("large", Bounds::default()).is_ok());
}
