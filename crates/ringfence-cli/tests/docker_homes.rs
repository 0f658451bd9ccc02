//! Sessions with a home that survives them, on a real Docker daemon, through the program: stopped when idle, started by the
//! next use, one at a time, rebuilt without losing anything, found again after restarts of everything.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../ringfence-engine/tests/docker/dockerd.rs"]
mod dockerd;
#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use dockerd::{Between, IMAGE, Meddle, Private, containers, docker_at as docker, volumes};
use support::{Done, Place};

/// A place whose sessions, containers and homes go with the test.
struct Here {
    place: Place,
    /// Where the daemon listens, when it is not the host's.
    host: Option<String>,
    slug: String,
}

impl Here {
    fn new(host: Option<String>) -> Option<Here> {
        if !docker(None, &["version"]).0 {
            support::skip("homes on Docker", "no daemon answers");
            return None;
        }
        let place = Place::new();
        let slug = format!(
            "t{}",
            place.home.ancestors().nth(1)?.file_name()?.to_str()?.trim_start_matches('.').to_lowercase()
        );
        Some(Here { place, host, slug })
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.place.command(args);
        if let Some(host) = &self.host {
            command.env("DOCKER_HOST", host);
        }
        command
    }

    fn ringfence(&self, args: &[&str]) -> Done {
        Done::new(self.command(args).output().unwrap())
    }

    /// `session create SLUG` with the profile, the image and without a network: that takes root once.
    fn create(&self, args: &[&str]) -> String {
        let common = ["session", "create", &self.slug, "--profile", "home", "--image", IMAGE, "--network=false"];
        let done = self.ringfence(&[&common, args].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        done.out.trim().to_owned()
    }

    fn sh(&self, text: &str) -> Done {
        self.ringfence(&["session", "exec", &self.slug, "--", "/bin/sh", "-c", text])
    }

    /// At a terminal, at which this is typed. Its exit code.
    fn at_terminal(&self, args: &[&str], typed: &str) -> i32 {
        let mut script = std::process::Command::new("script");
        self.place.environment(&mut script);
        let line = [&[support::program()], args].concat().join(" ");
        script.args(["-qec", &line, "/dev/null"]).current_dir(&self.place.project);
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("script, of bsdutils");
        // The end of what is typed would be taken for the end of the terminal.
        let mut keyboard = child.stdin.take().unwrap();
        keyboard.write_all(typed.as_bytes()).unwrap();
        let status = child.wait().unwrap();
        drop(keyboard);
        status.code().unwrap_or(-1)
    }

    fn containers(&self) -> Vec<String> {
        containers(self.host.as_deref(), &self.place.home)
    }

    fn volumes(&self) -> Vec<String> {
        volumes(self.host.as_deref(), &self.slug)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for pid in sessions::supervisors(&self.place.home) {
            sessions::kill(pid, libc::SIGKILL);
        }
        for id in self.containers() {
            docker(self.host.as_deref(), &["rm", "-f", &id]);
        }
        // The daemon may still be at removing a container itself.
        for _ in 0..50 {
            let left = self.volumes();
            if left.iter().all(|name| docker(self.host.as_deref(), &["volume", "rm", "-f", name]).0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(40), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn stopped_when_idle_and_started_by_the_next_use() {
    let Some(here) = Here::new(None) else { return };
    let first = here.create(&["--idle", "2s"]);
    here.sh("echo kept >~/notes; touch /tmp/gone; pwd").expect(0, "/home/sandbox\n");
    assert_eq!(here.containers().len(), 1);
    until("it ends when it is idle", || here.containers().is_empty());
    assert_eq!(here.volumes().len(), 1);
    here.sh("cat ~/notes; ls /tmp").expect(0, "kept\n");
    let listed = here.ringfence(&["session", "list", "--json"]).json();
    let live: Vec<&str> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["state"] == "live")
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    assert_eq!(live.len(), 1);
    assert_ne!(live, [first.as_str()]);
}

#[test]
fn many_uses_at_once_make_one_container() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    here.ringfence(&["session", "stop", &here.slug]).expect(0, "");
    assert_eq!(here.containers().len(), 0);
    std::thread::scope(|scope| {
        let uses: Vec<_> = (0..6).map(|n| {
            let here = &here;
            scope.spawn(move || here.sh(&format!("echo {n} >>~/all; hostname >/dev/null; cat /proc/sys/kernel/random/boot_id >/dev/null; echo {n}")).expect(0, &format!("{n}\n")))
        }).collect();
        for one in uses {
            one.join().unwrap();
        }
    });
    assert_eq!(here.containers().len(), 1);
    here.sh("sort ~/all | tr -d '\\n'").expect(0, "012345");
}

#[test]
fn another_configuration_keeps_the_home() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    here.sh("echo kept >~/notes").expect(0, "");
    let container = here.containers();
    // The same again changes nothing.
    here.create(&["--reuse"]);
    assert_eq!(here.containers(), container);
    here.create(&["--reuse", "--memory", "300m"]);
    let rebuilt = here.containers();
    assert_eq!(rebuilt.len(), 1);
    assert_ne!(rebuilt, container);
    assert_eq!(docker(None, &["inspect", "-f", "{{.HostConfig.Memory}}", &rebuilt[0]]).1, (300 << 20).to_string());
    here.sh("cat ~/notes").expect(0, "kept\n");
    // It stays so when it is started by itself.
    here.ringfence(&["session", "stop", &here.slug]).expect(0, "");
    here.sh("cat ~/notes").expect(0, "kept\n");
    assert_eq!(
        docker(None, &["inspect", "-f", "{{.HostConfig.Memory}}", &here.containers()[0]]).1,
        (300 << 20).to_string()
    );
}

#[test]
fn removed_with_or_without_its_home() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    here.sh("echo kept >~/notes").expect(0, "");
    here.ringfence(&["session", "rm", &here.slug]).expect(0, "");
    assert_eq!((here.containers().len(), here.volumes().len()), (0, 1));
    // Forgotten: it is not started by itself any more.
    let gone = here.sh("true");
    assert_eq!(gone.code, 125);
    assert!(gone.err.contains("no session"), "{}", gone.err);
    // The next one of its name has the home.
    here.create(&[]);
    here.sh("cat ~/notes").expect(0, "kept\n");
    // Asked first: nobody can be asked at a pipe, and at a terminal only a yes will do.
    let asked = here.ringfence(&["session", "rm", "--home", &here.slug]);
    assert_ne!(asked.code, 0, "{asked:?}");
    assert_eq!((here.containers().len(), here.volumes().len()), (1, 1));
    assert_ne!(here.at_terminal(&["session", "rm", "--home", &here.slug], "n\n"), 0);
    assert_eq!((here.containers().len(), here.volumes().len()), (1, 1));
    assert_eq!(here.at_terminal(&["session", "rm", "--home", &here.slug], "y\n"), 0);
    assert_eq!((here.containers().len(), here.volumes().len()), (0, 0));
    // And of one that was removed before.
    here.create(&[]);
    here.ringfence(&["session", "rm", &here.slug]).expect(0, "");
    here.ringfence(&["session", "rm", "--home", "--yes", &here.slug]).expect(0, "");
    assert_eq!(here.volumes().len(), 0);
}

#[test]
fn found_again_when_everything_was_killed() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    here.sh("echo kept >~/notes").expect(0, "");
    // Ringfence: the next use starts it, and there are never two.
    for pid in sessions::supervisors(&here.place.home) {
        sessions::kill(pid, libc::SIGKILL);
    }
    here.sh("cat ~/notes").expect(0, "kept\n");
    until("one container is left", || here.containers().len() == 1);
    // The container, behind our back: the session ends, and the next use starts it.
    let killed = here.containers();
    assert!(docker(None, &["kill", &killed[0]]).0);
    until("the session has ended", || sessions::supervisors(&here.place.home).is_empty());
    here.sh("cat ~/notes").expect(0, "kept\n");
    assert_ne!(here.containers(), killed);
    // The machine: what lies in /run is gone, with all processes and containers.
    for pid in sessions::supervisors(&here.place.home) {
        sessions::kill(pid, libc::SIGKILL);
    }
    until("the containers are gone", || here.containers().is_empty());
    let run = here.ringfence(&["session", "list", "--json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    here.ringfence(&["gc"]);
    here.sh("cat ~/notes").expect(0, "kept\n");
    assert_eq!(here.containers().len(), 1);
}

#[test]
fn a_daemon_restarted_in_the_middle_of_an_exec() {
    // Its image comes from the daemon that is there.
    if !support::is_root() || Here::new(None).is_none() {
        return;
    }
    let mut private = Private::start(&[]);
    let Some(here) = Here::new(Some(private.host())) else { return };
    here.create(&[]);
    here.sh("echo kept >~/notes").expect(0, "");
    let long = ["session", "exec", &here.slug, "--", "/bin/sh", "-c", "echo begun; sleep 1000"];
    let exec = here.command(&long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    private.stop();
    let done = Done::new(exec.wait_with_output().unwrap());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_ne!(done.code, 0);
    assert_eq!(done.out, "begun\n", "nothing that was written is lost");
    // While it is down, an error that says so, at once, and what to do.
    let begun = Instant::now();
    let down = here.sh("true");
    assert_eq!(down.code, 125, "{down:?}");
    assert!(down.err.contains("no container daemon listens"), "{}", down.err);
    assert!(begun.elapsed() < Duration::from_secs(10));
    private.run();
    here.sh("cat ~/notes").expect(0, "kept\n");
    assert_eq!(here.containers().len(), 1);
    here.ringfence(&["session", "rm", "--home", "--yes", &here.slug]).expect(0, "");
}

#[test]
fn another_environment_is_another_configuration() {
    let Some(here) = Here::new(None) else { return };
    here.create(&["--env", "MODE=one"]);
    let container = here.containers();
    here.create(&["--reuse", "--env", "MODE=one"]);
    assert_eq!(here.containers(), container);
    here.create(&["--reuse", "--env", "MODE=two"]);
    assert_ne!(here.containers(), container);
    here.sh("echo $MODE").expect(0, "two\n");
}

/// An image with labels, and containers of it. They go with the test.
struct Foreign {
    tag: String,
    containers: Vec<String>,
}

impl Foreign {
    fn new(tag: &str, labels: &[(String, String)]) -> Foreign {
        let dir = tempfile::tempdir().unwrap();
        let line = |(key, value): &(String, String)| format!("LABEL {key}=\"{value}\"\n");
        let start = r#"ENTRYPOINT ["/dev/ringfence/guest", "/dev/ringfence/channel"]"#;
        let recipe = format!("FROM {IMAGE}\nVOLUME /data\n{start}\n{}", labels.iter().map(line).collect::<String>());
        std::fs::write(dir.path().join("Dockerfile"), recipe).unwrap();
        let tag = format!("ringfence-test/{tag}");
        let (built, text) = docker(None, &["build", "-q", "--network=none", "-t", &tag, dir.path().to_str().unwrap()]);
        assert!(built, "{text}");
        Foreign { tag, containers: Vec::new() }
    }

    fn container(&mut self, args: &[&str], command: &[&str]) {
        let (made, id) = docker(None, &[args, &[&self.tag], command].concat());
        assert!(made, "{id}");
        self.containers.push(id);
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for id in &self.containers {
            docker(None, &["rm", "-f", "-v", id]);
        }
        docker(None, &["rmi", "-f", &self.tag]);
    }
}

#[test]
fn gc_removes_what_we_left_and_nothing_that_only_looks_like_it() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    let left = here.containers();
    assert_eq!(left.len(), 1);
    let labels = docker(None, &["inspect", "-f", "{{json .Config.Labels}}", &left[0]]).1;
    let labels: std::collections::BTreeMap<String, String> = serde_json::from_str(&labels).unwrap();
    assert!(labels["ringfence.proof"].len() == 43, "{labels:?}");
    let copied: Vec<_> = labels.clone().into_iter().collect();
    // As they were before there was a proof: the owner's can be computed by anyone.
    let computed: Vec<_> = labels.into_iter().filter(|(key, _)| key != "ringfence.proof").collect();
    let unproven = [Foreign::new(&format!("{}-copied", here.slug), &copied), Foreign::new(&here.slug, &computed)];
    let foreign = unproven.map(|mut foreign| {
        foreign.container(&["run", "-d", "--entrypoint", "/bin/sleep"], &["1000"]);
        // With a name like ours, and the entry point that the image has from us.
        let id = format!("{:012x}", std::process::id());
        let name = format!("ringfence-home-{id}{}", if foreign.tag.ends_with("copied") { "a" } else { "b" });
        foreign.container(&["create", "--name", &name], &[]);
        foreign
    });
    // Labels that were given to the container itself count no more than those of its image.
    let mut given = Foreign::new(&format!("{}-given", here.slug), &[]);
    let words: Vec<String> = copied.iter().map(|(key, value)| format!("--label={key}={value}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    given.container(&[&["run", "-d", "--entrypoint", "/bin/sleep"][..], &words].concat(), &["1000"]);

    // Ours is left over: paused, it does not notice that its supervisor is gone.
    assert!(docker(None, &["pause", &left[0]]).0);
    for pid in sessions::supervisors(&here.place.home) {
        sessions::kill(pid, libc::SIGKILL);
    }
    until("the supervisor is gone", || sessions::supervisors(&here.place.home).is_empty());
    assert_eq!(here.containers(), left);
    let done = here.ringfence(&["gc"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(here.containers(), [""; 0]);
    assert!(!docker(None, &["inspect", &left[0]]).0);
    for foreign in foreign.iter().chain([&given]) {
        let state =
            |id: &String| docker(None, &["inspect", "-f", "{{.State.Status}} {{range .Mounts}}{{.Name}}{{end}}", id]);
        for (id, wanted) in foreign.containers.iter().zip(["running", "created"]) {
            let (there, text) = state(id);
            let (status, volume) = text.split_once(' ').unwrap_or_default();
            assert!(there && status == wanted, "{}: {text}", foreign.tag);
            assert!(docker(None, &["volume", "inspect", volume]).0, "{}: {text}", foreign.tag);
        }
        assert!(docker(None, &["image", "inspect", &foreign.tag]).0);
    }
}

#[test]
fn no_sandbox_sees_the_key() {
    let Some(here) = Here::new(None) else { return };
    let state = ".local/state/ringfence";
    here.place.write("readable", "seen\n");
    here.create(&[]);
    here.sh("echo kept >~/notes").expect(0, "");
    here.ringfence(&["session", "rm", &here.slug]).expect(0, "");
    let key = here.place.home.join(state).join("homes/KEY");
    let data = std::fs::metadata(&key).unwrap();
    assert_eq!((data.permissions().mode() & 0o7777, data.len()), (0o600, 32));
    let cat = |path: &std::path::Path| here.ringfence(&["run", "--", "cat", path.to_str().unwrap()]);
    cat(&here.place.home.join("readable")).expect(0, "seen\n");
    let done = cat(&key);
    assert!(done.code == 1 && done.out.is_empty(), "{done:?}");
    // It is neither a home nor in the way of one.
    assert_eq!(here.volumes().len(), 1);
    here.ringfence(&["session", "rm", "--home", "--yes", &here.slug]).expect(0, "");
    assert_eq!(here.volumes(), [""; 0]);
    assert!(key.exists());
}

#[test]
fn names_that_are_none() {
    let Some(here) = Here::new(None) else { return };
    for name in ["../x", "a/b", "a b", "-x", "--privileged", "a\nb", "a;b", "$(id)", "a?force=true", "%2e%2e", "Ä", ""]
    {
        let args = ["session", "create", "--profile", "home", "--image", IMAGE, "--network=false", "--", name];
        let done = here.ringfence(&args);
        assert_ne!(done.code, 0, "{name:?}: {done:?}");
        assert_eq!(here.containers(), [""; 0], "{name:?}");
    }
    for image in ["--privileged", "a b", "a/../../containers/json", "a?x=1", "a//b", "a\r\nHost: x", "$(id)", "./a"] {
        let done = here.ringfence(&["run", "--profile", "shell", &format!("--image={image}"), "--", "/bin/true"]);
        assert!(done.code != 0 && done.err.contains("is not the name of an image"), "{image:?}: {done:?}");
    }
}

#[test]
fn caches_are_named_when_they_are_ready_and_when_they_are_not() {
    let Some(here) = Here::new(None) else { return };
    let group = format!("g-{}", here.slug.trim_start_matches("ttmp"));
    here.place.write(".config/ringfence/config.toml", &format!("cache_group = \"{group}\"\n"));
    let of = |cache: &str| format!("ringfence-cache-{cache}-of-{group}");
    // Somebody else's.
    assert!(docker(None, &["volume", "create", &of("npm")]).0);
    let create = ["session", "create", &here.slug, "--profile", "home", "--image", IMAGE, "--network=false"];
    let done = here.ringfence(&[&create[..], &["--cache", "pip", "--cache", "npm"]].concat());
    let shown = here.ringfence(&["session", "show", &here.slug]);
    let json = here.ringfence(&["session", "show", "--json", &here.slug]).json();
    here.ringfence(&["session", "rm", "--home", "--yes", &here.slug]);
    for cache in ["pip", "npm"] {
        assert!(docker(None, &["volume", "rm", &of(cache)]).0);
    }
    assert_eq!(done.code, 0, "{}", done.err);
    let failed = format!("without cache `npm`: volume `{}` is there, and not ours: its labels are not ours", of("npm"));
    for text in [&done.err, &shown.out] {
        assert!(text.contains("caches ready: pip\n") && text.contains(&failed), "{text}");
    }
    assert_eq!(json["caches"][0], serde_json::json!({ "name": "pip", "failed": null }));
    assert_eq!(json["caches"][1]["name"], "npm");
}

#[test]
fn a_container_that_cannot_be_removed() {
    const NO: &[u8] = b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"message\":\"no\"}";
    static STUCK: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
    let stuck = |is| STUCK.store(is, std::sync::atomic::Ordering::SeqCst);
    let between = Between::start(|line| {
        let refused = line.starts_with("DELETE ") && STUCK.load(std::sync::atomic::Ordering::SeqCst);
        if refused { Meddle::Answer(NO) } else { Meddle::PassOn }
    });
    stuck(false);
    let Some(mut here) = Here::new(Some(between.host())) else { return };
    here.create(&[]);
    // Forced, then reported; the session is not forgotten while its container is there.
    stuck(true);
    let done = here.ringfence(&["session", "stop", &here.slug]);
    assert!(done.code == 125 && done.err.contains("cannot be removed"), "{done:?}");
    let listed = here.ringfence(&["session", "list", "--json"]).json();
    let (id, left) = (&listed["sessions"][0]["id"], &listed["sessions"][0]["left"]);
    assert!(left.as_str().is_some_and(|left| left.contains("cannot be removed")), "{listed}");
    stuck(false);
    here.ringfence(&["session", "rm", id.as_str().unwrap()]).expect(0, "");
    assert_eq!(here.containers().len(), 0);
    here.host = None;
}

#[test]
fn a_container_that_is_paused_under_a_command() {
    let Some(here) = Here::new(None) else { return };
    here.create(&[]);
    let long = ["session", "exec", "--timeout", "3s", &here.slug, "--", "/bin/sh", "-c", "echo begun; sleep 1000"];
    let exec = here.command(&long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(docker(None, &["pause", &here.containers()[0]]).0);
    // Time is kept from outside: the command ends, and the next use finds a box that works.
    let begun = Instant::now();
    let done = Done::new(exec.wait_with_output().unwrap());
    assert_ne!(done.code, 0, "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    until("its container is gone", || here.containers().is_empty());
    here.sh("echo again").expect(0, "again\n");
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

#[test]
fn a_daemon_that_stalls_holds_no_session_up() {
    static STALLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let stalled = |is| STALLED.store(is, std::sync::atomic::Ordering::SeqCst);
    let between =
        Between::start(
            |_| {
                if STALLED.load(std::sync::atomic::Ordering::SeqCst) { Meddle::Stall } else { Meddle::PassOn }
            },
        );
    let Some(mut here) = Here::new(Some(between.host())) else { return };
    here.create(&[]);
    let container = here.containers()[0].clone();
    stalled(true);
    // Time limits hold, and others are answered meanwhile.
    let begun = Instant::now();
    let long = ["session", "exec", "--timeout", "2s", &here.slug, "--", "/bin/sh", "-c", "echo begun; sleep 1000"];
    let exec = here.command(&long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    here.sh("echo usable").expect(0, "usable\n");
    assert_eq!(here.ringfence(&["session", "list", "--json"]).json()["sessions"][0]["state"], "live");
    let done = Done::new(exec.wait_with_output().unwrap());
    assert!((done.code, &done.out[..]) == (124, "begun\n") && begun.elapsed().as_secs() < 10, "{done:?}");
    // It ends in bounded time, with everything in it; the container is left to the daemon.
    let begun = Instant::now();
    let done = here.ringfence(&["session", "stop", &here.slug]);
    assert!(done.code == 125 && done.err.contains("did not end in time"), "{done:?}");
    assert!(begun.elapsed().as_secs() < 40, "{:?}", begun.elapsed());
    let until = Instant::now() + Duration::from_secs(20);
    while docker(None, &["inspect", "-f", "{{.State.Running}}", &container]).1.trim() == "true" {
        assert!(Instant::now() < until, "its guest outlives its supervisor");
        std::thread::sleep(Duration::from_millis(100));
    }
    stalled(false);
    let listed = here.ringfence(&["session", "list", "--json"]).json();
    here.ringfence(&["session", "rm", listed["sessions"][0]["id"].as_str().unwrap()]).expect(0, "");
    assert_eq!(here.containers().len(), 0);
    here.host = None;
}
