//! `--requirements` on Docker: packages are installed by an image's own pip or npm, and seen by its own interpreter. On a real
//! daemon, from an index next door: a container reaches nothing of this host.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence-engine/tests/docker/dockerd.rs"]
mod dockerd;
#[path = "support/image.rs"]
mod image;
#[path = "support/index.rs"]
mod index;
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dockerd::{IMAGE, Private, containers, docker_at as docker};
use image::Image;
use index::{Index, kept};
use serde_json::{Value, json};
use support::{Done, Place};

/// Root alone makes networks, for a server and for containers.
fn absent(what: &str) -> bool {
    let reason = match (support::is_root(), docker(None, &["version"]).0) {
        (true, true) => return false,
        (true, false) => "no daemon answers",
        (false, _) => "only root can make a network for the index",
    };
    support::skip(what, reason);
    true
}

/// Looks at the box from inside.
const LOOK: &str = r#"
import greeting, os, socket
def refused(act):
    try:
        act()
        return None
    except OSError as error:
        return error.errno
result = {
    "hello": greeting.hello(),
    "file": greeting.__file__,
    "write": refused(lambda: open("/site-packages/x", "w")),
    "change": refused(lambda: os.chmod(greeting.__file__, 0o777)),
    "temporary": refused(lambda: open("/tmp/x", "w")),
    "network": refused(lambda: socket.create_connection((inputs["address"], inputs["port"]), 2)),
    "pth": os.environ.get("PWNED"),
    "home": os.path.exists(inputs["home"]),
    "uid": os.getuid(),
}
"#;

#[test]
fn by_the_images_own_python() {
    if absent("requirements on Docker") {
        return;
    }
    let (place, mut index) = (Place::new(), Index::next_door());
    let image = Image::pip(&index.address);
    place.write("project/look.py", LOOK);
    place.write("project/requirements.txt", "greeting==1.0\n");
    let address = index.python();
    let input = json!({ "address": index.address, "port": index.port, "home": place.home }).to_string();
    let given = ["--requirements", "requirements.txt", "--index", &address, "--input", &input, "--json"];
    let command = |more: &[&str]| place.command([&["code", "python", "look.py"], &given[..], more].concat());
    let run = |more: &[&str]| Done::new(command(more).output().unwrap());
    let docker_of = |image: &Image| ["--engine", "docker", "--image", &image.0].map(str::to_owned);
    let on = docker_of(&image);
    let on: Vec<&str> = on.iter().map(String::as_str).collect();
    // Two at once: one of them installs.
    let first = command(&on).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let second = run(&on);
    let first = Done::new(first.wait_with_output().unwrap());
    assert_eq!((first.code, second.code), (0, 0), "{first:?} {second:?}");
    assert_eq!(index.fetched("greeting-1.0-py3-none-any.whl"), 1);
    let (read_only, unreachable) = (json!(libc::EROFS), json!(libc::ENETUNREACH));
    for done in [&first, &second] {
        let (ran, value) = (done.json(), done.json()["value"].clone());
        assert_eq!((&ran["engine"], &value["hello"]), (&json!("docker"), &json!("hello 1")), "{ran}");
        assert_eq!((&value["file"], &value["uid"]), (&json!("/site-packages/greeting.py"), &json!(1000)));
        assert_eq!((&value["write"], &value["change"], &value["temporary"]), (&read_only, &read_only, &Value::Null));
        assert_eq!((&value["network"], &value["pth"], &value["home"]), (&unreachable, &Value::Null, &json!(false)));
    }
    // Whoever it runs as.
    let other = run(&[&on[..], &["--user", "2000:2000"]].concat());
    assert_eq!((&other.json()["value"]["hello"], &other.json()["value"]["uid"]), (&json!("hello 1"), &json!(2000)));
    // Another image has another interpreter: packages of its own.
    let like = Image::like(&image);
    let on_like = docker_of(&like);
    let done = run(&on_like.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(done.json()["value"]["hello"], "hello 1", "{done:?}");
    assert_eq!((index.fetched("greeting-1.0-py3-none-any.whl"), kept(&place).len()), (2, 2));
    // No index is asked any more. This host has an interpreter of its own, too, and nothing is installed for that.
    index.close();
    assert_eq!(run(&on).code, 0);
    let done = run(&["--engine", "native"]);
    assert!(done.code == 125 && done.err.contains("pip could not install"), "{done:?}");
    let listed = place.ringfence(&["requirements", "list", "--json"]).json();
    let id = docker(None, &["image", "inspect", "-f", "{{.Id}}", &image.0]).1;
    let ours = listed["requirements"].as_array().unwrap().iter().filter(|kept| kept["image"] == id.as_str());
    assert_eq!(ours.count(), 1, "{listed}");
    let table = place.ringfence(&["requirements", "list"]).out;
    assert!(table.contains(&id["sha256:".len()..][..12]), "{table}");
    assert!(place.ringfence(&["history", "--json"]).out.contains("--only-binary"));
    assert_eq!(place.ringfence(&["requirements", "rm", "--all"]).code, 0);
    assert_eq!((kept(&place), containers(None, &place.home)), (Vec::new(), Vec::<String>::new()));
}

#[test]
fn what_cannot_be_installed_leaves_nothing() {
    if absent("requirements that cannot be had on Docker") {
        return;
    }
    let (place, index, loopback) = (Place::new(), Index::next_door(), Index::new());
    let image = Image::pip(&index.address);
    let bare = Image::of("tools", "true");
    place.write("project/x.py", "1");
    let run = |text: &str, image: &Image, address: &str| {
        place.write("project/requirements.txt", text);
        let given = ["--requirements", "requirements.txt", "--index", address];
        place.ringfence(&[&["code", "python", "x.py", "--engine", "docker", "--image", &image.0], &given[..]].concat())
    };
    for (text, image, address, says) in [
        ("nothing-like-it", &image, index.python(), "nothing-like-it"),
        // A package that runs code when it is installed, and one that unpacks to elsewhere.
        ("source", &image, index.python(), "pip could not install"),
        ("escape", &image, index.python(), "pip could not install"),
        // What listens on this host is not for containers, though it is there.
        ("greeting", &image, loopback.python(), "pip could not install"),
        ("greeting", &Image::python(), index.python(), "has no pip"),
        ("greeting", &bare, index.python(), "has no python3"),
    ] {
        let done = run(text, image, &address);
        let code = if says.starts_with("has no") { 127 } else { 125 };
        assert!(done.code == code && done.err.contains(says), "{text}: {done:?}");
        assert!(!done.err.contains("setup.py ran"), "{}", done.err);
        assert_eq!(kept(&place), Vec::<String>::new(), "{text}");
    }
    place.write("project/x.js", "1");
    place.write("project/package-lock.json", r#"{ "lockfileVersion": 3, "packages": { "": {} } }"#);
    let node = Image::of("node-alone", "node");
    let args = ["code", "node", "x.js", "--image", &node.0, "--requirements", "package-lock.json"];
    let done = place.ringfence(&args);
    assert!(done.code == 127 && done.err.contains("has no npm"), "{done:?}");
    assert_eq!(run("greeting", &image, &index.python()).code, 0);
    assert_eq!(kept(&place).len(), 1);
    // Cancelled, and killed, while the index says nothing.
    place.write("project/requirements.txt", "never");
    let given = ["--requirements", "requirements.txt", "--index", &index.python()];
    for (times, signal) in [(1, rustix::process::Signal::TERM), (2, rustix::process::Signal::KILL)] {
        let args = [&["code", "python", "x.py", "--engine", "docker", "--image", &image.0], &given[..]].concat();
        let mut child = place.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        index.asked("/never/", times);
        assert_eq!(containers(None, &place.home).len(), 1);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while signal == rustix::process::Signal::KILL
            && (kept(&place).len() > 1 || !containers(None, &place.home).is_empty())
            && Instant::now() < until
        {
            place.ringfence(&["gc"]);
        }
        assert_eq!((kept(&place).len(), containers(None, &place.home)), (1, Vec::new()), "{signal:?}");
    }
}

#[test]
fn by_the_images_own_npm() {
    if absent("requirements of Node on Docker") {
        return;
    }
    let (place, index, image) = (Place::new(), Index::next_door(), Image::npm());
    let lock = json!({ "name": "mine", "lockfileVersion": 3, "requires": true, "packages": {
        "": { "name": "mine", "dependencies": { "greeting": "^1.0.0" } },
        "node_modules/greeting": {
            "version": "1.0.0",
            "resolved": format!("{}/greeting/-/greeting-1.0.0.tgz", index.node()),
            "hasInstallScript": true,
        },
    }});
    place.write("project/package-lock.json", &lock.to_string());
    let look =
        "({ hello: require('greeting').hello(), ran: require('fs').existsSync('/node_modules/greeting/pwned') })";
    place.write("project/look.js", look);
    place.write("project/module.js", "import { hello } from 'greeting';\nexport default hello();");
    for (file, value) in
        [("look.js", json!({ "hello": "hello node", "ran": false })), ("module.js", json!("hello node"))]
    {
        let given = ["--requirements", "package-lock.json", "--index", &index.node()];
        let on = ["--engine", "docker", "--image", &image.0, "--json"];
        let done = place.ringfence(&[&["code", "node", file], &given[..], &on[..]].concat());
        assert_eq!(done.json()["value"], value, "{done:?}");
    }
    assert_eq!(index.fetched(".tgz"), 1);
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}

/// Whom this host believes, the image's installers believe too.
#[test]
fn authorities_of_the_host() {
    if absent("authorities for requirements on Docker") {
        return;
    }
    let (place, index) = (Place::new(), Index::next_door_encrypted());
    // One that trusts no address without encryption.
    let image = Image::pip("127.0.0.1");
    place.write("project/x.py", "import greeting\ngreeting.hello()");
    place.write("project/requirements.txt", "greeting==1.0");
    let given = ["--requirements", "requirements.txt", "--index", &index.python()];
    let mut command = place.command([&["code", "python", "x.py", "--image", &image.0], &given[..]].concat());
    let refused = Done::new(command.output().unwrap());
    assert!(refused.code == 125 && refused.err.contains("hint: the index shows a certificate"), "{refused:?}");
    let done = Done::new(command.env("SSL_CERT_FILE", index.authority()).output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (0, "\"hello 1\"\n"), "{}", done.err);
}

#[test]
fn skills_have_what_they_require() {
    if absent("requirements of skills on Docker") {
        return;
    }
    let (place, index) = (Place::new(), Index::next_door());
    let image = Image::pip(&index.address);
    place.write("project/greet.py", "import greeting\ngreeting.hello()");
    place.write("project/requirements.txt", "greeting==2.0");
    let added = ["skill", "add", "greet.py", "--requirements", "requirements.txt", "--index", &index.python()];
    assert_eq!(place.ringfence(&added).code, 0);
    let ran = place.ringfence(&["skill", "run", "greet", "--engine", "docker", "--image", &image.0]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "\"hello 2\"\n"), "{}", ran.err);
}

/// A session of an image has them from its beginning to its end.
#[test]
fn a_session_has_packages_from_its_beginning() {
    if absent("requirements of sessions on Docker") {
        return;
    }
    let (place, index) = (Place::new(), Index::next_door());
    let image = Image::pip(&index.address);
    place.write("project/requirements.txt", "greeting==1.0");
    place.write("project/x.py", "import greeting\ngreeting.hello()");
    // Docker maps no ids: the directory is shared with whoever the box runs as.
    std::os::unix::fs::chown(&place.project, Some(1000), Some(1000)).unwrap();
    let given = ["--requirements", "requirements.txt", "--index", &index.python()];
    let done = place.ringfence(&[&["session", "create", "s", "--image", &image.0], &given[..]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    for more in [&[][..], &["--context", "c"], &["--context", "c"]] {
        let done = place.ringfence(&[&["code", "python", "x.py", "--session", "s", "--json"], more].concat());
        assert_eq!((&done.json()["value"], &done.json()["engine"]), (&json!("hello 1"), &json!("docker")), "{done:?}");
    }
    let id = kept(&place).remove(0);
    assert_eq!(place.ringfence(&["requirements", "rm", &id]).code, 125);
    assert_eq!(place.ringfence(&["session", "rm", "s"]).code, 0);
    assert_eq!(place.ringfence(&["requirements", "rm", &id]).code, 0);
    assert_eq!(containers(None, &place.home), Vec::<String>::new());
}

/// Removes a home, however its test ends.
struct Slug<'a>(&'a Place, &'a str);

impl Drop for Slug<'_> {
    fn drop(&mut self) {
        self.0.ringfence(&["session", "rm", "--home", "--yes", self.1]);
    }
}

/// A session with a home is started again by the next use. One whose packages were removed says so, and how it is made anew.
#[test]
fn a_home_whose_packages_were_removed() {
    if absent("requirements of homes on Docker") {
        return;
    }
    let (place, index) = (Place::new(), Index::next_door());
    let image = Image::pip(&index.address);
    place.write("project/requirements.txt", "greeting==1.0");
    let slug = format!("rf-sets-{}", std::process::id());
    let given = ["--profile", "home", "--image", &image.0, "--requirements", "requirements.txt", "--index"];
    let address = index.python();
    let make = [&["session", "create", &slug], &given[..], &[&address]].concat();
    let _slug = Slug(&place, &slug);
    let hello = ["session", "exec", &slug, "--", "python3", "-c", "import greeting; print(greeting.hello())"];
    let done = place.ringfence(&make);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(place.ringfence(&hello).out, "hello 1\n");
    assert_eq!(place.ringfence(&["session", "exec", &slug, "--", "sh", "-c", "echo mine >~/mine"]).code, 0);
    assert_eq!(place.ringfence(&["session", "stop", &slug]).code, 0);
    // It is started again, as it was made.
    assert_eq!(place.ringfence(&hello).out, "hello 1\n");
    assert_eq!(place.ringfence(&["session", "stop", &slug]).code, 0);
    let id = kept(&place).remove(0);
    assert_eq!(place.ringfence(&["requirements", "rm", &id]).code, 0);
    let gone = place.ringfence(&hello);
    assert!(gone.code == 125 && gone.err.contains(&id) && gone.err.contains("removed since"), "{gone:?}");
    assert!(gone.err.contains("hint: make it anew") && gone.err.contains("--requirements FILE"), "{gone:?}");
    assert_eq!(kept(&place), Vec::<String>::new());
    let done = place.ringfence(&make);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(place.ringfence(&hello).out, "hello 1\n");
    let mine = place.ringfence(&["session", "exec", &slug, "--", "sh", "-c", "read x <~/mine; echo $x"]);
    assert_eq!(mine.out, "mine\n", "{mine:?}");
}

/// Somebody who may use Docker and is not root: what is installed is theirs, to use and to remove.
#[test]
fn for_an_ordinary_user() {
    if absent("requirements on Docker as an ordinary user") {
        return;
    }
    let Some((uid, gid, _)) = support::user() else {
        return support::skip("requirements as an ordinary user", "there is no user `ringfence-test`");
    };
    let (place, index) = (Place::new(), Index::next_door());
    let image = Image::pip(&index.address);
    place.write("project/x.py", "import greeting\ngreeting.hello()");
    place.write("project/requirements.txt", "greeting==1.0");
    let program = place.home.join("ringfence");
    std::fs::copy(support::program(), &program).unwrap();
    let top = place.home.parent().unwrap();
    let owned = Command::new("chown").arg("-R").arg(format!("{uid}:{gid}")).arg(top).status().unwrap();
    assert!(owned.success());
    let run = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--init-groups".to_owned()]);
        command.arg(&program).args(args).current_dir(&place.project).stdin(Stdio::null());
        place.environment(&mut command);
        Done::new(command.output().unwrap())
    };
    // What root does once: the network, and the firewall before this host.
    let given = ["--requirements", "requirements.txt", "--index", &index.python()];
    let args = [&["code", "python", "x.py", "--image", &image.0], &given[..]].concat();
    let roots = Place::new();
    roots.write("project/x.py", "import greeting\ngreeting.hello()");
    roots.write("project/requirements.txt", "greeting==1.0");
    assert_eq!(roots.ringfence(&args).code, 0);
    let done = run(&args);
    assert_eq!((done.code, done.out.as_str()), (0, "\"hello 1\"\n"), "{}", done.err);
    assert_eq!(run(&args).code, 0);
    assert_eq!(kept(&place).len(), 1);
    let removed = run(&["requirements", "rm", "--all"]);
    assert_eq!((removed.code, kept(&place)), (0, Vec::new()), "{}", removed.err);
}

/// What a daemon that maps ids writes belongs to nobody here: it is refused before anything starts.
#[test]
fn not_where_ids_are_mapped() {
    if absent("requirements on a daemon that maps ids") {
        return;
    }
    let (place, daemon) = (Place::new(), Private::start(&["--userns-remap=ringfence-test"]));
    place.write("project/x.py", "1");
    place.write("project/requirements.txt", "greeting");
    let args = ["code", "python", "x.py", "--image", IMAGE, "--requirements", "requirements.txt"];
    let done = Done::new(place.command(args).env("DOCKER_HOST", daemon.host()).output().unwrap());
    assert!(done.code == 125 && done.err.contains("maps ids"), "{done:?}");
    assert_eq!(kept(&place), Vec::<String>::new());
}

/// What packages may have on disk is bounded there too.
#[test]
fn too_much_is_not_kept() {
    use ringfence::code::Language;
    use ringfence::code::requirements::{Bounds, Found, Requirements, RequirementsError, Store};
    use ringfence::policy::layer::Layer;
    use ringfence::policy::layers::{self, Inputs};
    if absent("bounds of requirements on Docker") {
        return;
    }
    let (index, dir) = (Index::next_door(), tempfile::tempdir().unwrap());
    let image = Image::pip(&index.address);
    let facts = ringfence::facts::gather().unwrap();
    let mut flags = Layer::flags();
    flags.profile("skill");
    flags.image(&image.0).unwrap();
    let top = dir.path().canonicalize().unwrap();
    let policy = layers::resolve(Inputs::new(top.clone(), facts.home.clone(), flags)).unwrap().policy;
    let python = Language::named("python").unwrap();
    let sessions = ringfence::session::Sessions::new(top.join("sessions"), support::program());
    let sessions = sessions.on(ringfence::Host::here().unwrap());
    sessions.prepare().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let small = Bounds { bytes: 8 << 20, files: 200 };
    for (package, fits) in [("large", false), ("many", false), ("greeting", true)] {
        let wanted = Requirements::new(python, package.to_owned(), Some(index.python())).unwrap();
        let store = Store::new(top.join("store")).bounded(small);
        let found =
            store.find(python, &wanted, &policy, &facts, ringfence::engines::docker::ENGINE.into(), None).unwrap();
        let Found::Missing(build) = found else { panic!("it was there") };
        let built = runtime.block_on(build.run_in(&sessions, &facts, std::future::pending())).unwrap();
        match fits {
            true => assert!(built.installed.is_ok(), "{built:?}"),
            false => assert!(matches!(built.installed, Err(RequirementsError::TooMuch(b)) if b == small), "{built:?}"),
        }
        assert_eq!(store.list().unwrap().len(), usize::from(fits));
    }
}
