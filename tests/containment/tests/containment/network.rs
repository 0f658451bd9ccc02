//! The network, host sockets, and the way to a container daemon.

use std::os::unix::fs::symlink;
use std::path::Path;

use containment::{Place, Scene, host};
use ringfence::State;
use ringfence::policy::Guarantee::{NetHostSocketsClosed, NetIsolated};

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

/// Nobody there, or no way there.
const UNREACHABLE: &[&str] = &["ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL"];
/// A stand-in, or nothing at all, in the socket's place.
const CLOSED: &[&str] = &["EACCES", "ENOENT", "ECONNREFUSED"];

const fn isolated(id: &'static str, fails: &'static str, answers: &'static [&'static str]) -> Case {
    act(NetIsolated, id, "loopback", fails, answers).given(listeners)
}

const fn closed(id: &'static str, fails: &'static str) -> Case {
    // A box looks at all sockets of the host, also at those of other cases, which go while it is made.
    act(NetHostSocketsClosed, id, "unix-listen {project}/own", fails, CLOSED).alone()
}

fn listeners(s: &mut Scene) {
    s.listen_tcp("tcp4", "127.0.0.1:0");
    s.listen_tcp("any", "0.0.0.0:0");
    let port = s.words["any"].rsplit(':').next().unwrap_or_default().to_owned();
    s.word("any-port", port);
    s.answer_udp("udp4");
    s.listen_abstract("abstract");
}

fn open(s: &mut Scene) {
    s.policy.network(true);
}

pub const CASES: &[Case] = &[
    isolated("host's loopback", "tcp {tcp4}", UNREACHABLE),
    isolated("host's loopback, wildcard listener", "tcp 127.0.0.1:{any-port}", UNREACHABLE),
    isolated("host's loopback, another address", "tcp 127.0.0.2:{any-port}", UNREACHABLE),
    isolated("host's loopback, UDP", "udp {udp4}", UNREACHABLE),
    isolated("interfaces", "interfaces", &["ok lo"]).outside(Outside::Untried),
    isolated("the internet", "tcp 192.0.2.1:80", UNREACHABLE).outside(Outside::Untried),
    isolated("name servers", "udp 1.1.1.1:53", UNREACHABLE).outside(Outside::Untried),
    isolated("the metadata address", "tcp 169.254.169.254:80", UNREACHABLE).outside(Outside::Untried),
    isolated(
        "the internet, IPv6",
        "tcp [2001:db8::1]:80",
        &["ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"],
    )
    .outside(Outside::Untried),
    isolated("abstract socket", "abstract {abstract}", &["ECONNREFUSED", "EPERM"]),
    isolated("abstract socket, datagrams", "abstract-datagram {abstract-datagram}", &["ECONNREFUSED", "EPERM"]),
    act(NetIsolated, "own abstract socket", "abstract-own", "abstract {abstract}", &["ECONNREFUSED", "EPERM"])
        .given(listeners),
    // The twin: with the network on (on Docker, a private one that leads outside) the host's loopback is there, and what belongs to other users of it is not.
    act(
        NetHostSocketsClosed,
        "abstract socket, network on",
        "tcp {tcp4} + abstract-own",
        "abstract {abstract}",
        &["EPERM"],
    )
    .needs(Needs::Landlock(6))
    .on_docker("loopback + abstract-own", &["ECONNREFUSED"])
    .or_reported()
    .given(|s| {
        listeners(s);
        open(s);
    }),
    act(
        NetHostSocketsClosed,
        "abstract datagrams, network on",
        "udp {udp4}",
        "abstract-datagram {abstract-datagram}",
        &["EPERM"],
    )
    .needs(Needs::Landlock(6))
    .on_docker("loopback", &["ECONNREFUSED"])
    .or_reported()
    .given(|s| {
        listeners(s);
        open(s);
    }),
    closed("socket in home", "unix {s}").given(|s| s.listen("s", &s.home.join("agent.sock"))),
    closed("socket in home, datagrams", "unix-datagram {s-datagram}")
        .given(|s| s.listen("s", &s.home.join("agent.sock"))),
    closed("socket in home, network on", "unix {s}").given(|s| {
        s.listen("s", &s.home.join("agent.sock"));
        open(s);
    }),
    closed("socket in a directory of home", "unix {s}").given(|s| s.listen("s", &s.home.join(".cache/x/y.sock"))),
    closed("socket in the project", "unix {s}").given(|s| s.listen("s", &s.project.join("agent.sock"))),
    closed("socket in the project, datagrams", "unix-datagram {s-datagram}")
        .given(|s| s.listen("s", &s.project.join("agent.sock"))),
    closed("socket in the project, network on", "unix {s}").given(|s| {
        s.listen("s", &s.project.join("agent.sock"));
        open(s);
    }),
    closed("socket elsewhere", "unix {s}").given(|s| s.listen("s", &s.elsewhere.join("agent.sock"))),
    closed("socket by a symlink", "unix {project}/link").given(|s| {
        s.listen("s", &s.elsewhere.join("agent.sock"));
        symlink(&s.words["s"], s.project.join("link")).unwrap();
    }),
    closed("socket by its file in /proc", "unix /proc/self/root{s}")
        .given(|s| s.listen("s", &s.elsewhere.join("agent.sock"))),
    closed("socket in /tmp", "unix {s}").given(|s| s.listen("s", &Path::new("/tmp").join(&s.words["tag"]))),
    closed("socket in /dev/shm", "unix {s}").given(|s| s.listen("s", &Path::new("/dev/shm").join(&s.words["tag"]))),
    closed("socket in /run", "unix {s}")
        .needs(Needs::Root)
        .given(|s| s.listen("s", &Path::new("/run").join(&s.words["tag"]))),
    closed("socket in /run, by --rw /run", "unix {s}").needs(Needs::Root).given(|s| {
        s.listen("s", &Path::new("/run").join(&s.words["tag"]));
        s.policy.rw("/run");
    }),
    closed("socket with a rule for its directory", "unix {s}").given(|s| {
        s.listen("s", &s.elsewhere.join("agent.sock"));
        s.policy.rw(&s.elsewhere.display().to_string());
    }),
    closed("move the stand-in away", "rename {s} {project}/x")
        .given(|s| s.listen("s", &s.project.join("agent.sock")))
        .answers(&["EBUSY", "EROFS", "EACCES"]),
    // Container daemons.
    closed("Docker socket", "unix /var/run/docker.sock").needs(Needs::Docker),
    closed("Docker socket, network on", "unix /var/run/docker.sock").needs(Needs::Docker).given(open),
    closed("Docker socket, its real path", "unix /run/docker.sock").needs(Needs::Docker).given(open),
    closed("Docker socket, --rw /run", "unix /run/docker.sock").needs(Needs::Docker).given(|s| s.policy.rw("/run")),
    closed("Docker socket, --ro /run", "unix /run/docker.sock").needs(Needs::Docker).given(|s| s.policy.ro("/run")),
    closed("Docker socket, --rw of it", "unix /run/docker.sock")
        .needs(Needs::Docker)
        .given(|s| s.policy.rw("/run/docker.sock")),
    closed("Docker socket, --rw of its other name", "unix /var/run/docker.sock")
        .needs(Needs::Docker)
        .given(|s| s.policy.rw("/var/run/docker.sock")),
    closed("Docker socket by a symlink", "unix {project}/link")
        .needs(Needs::Docker)
        .given(|s| symlink("/var/run/docker.sock", s.project.join("link")).unwrap()),
    closed("containerd", "unix /run/docker/containerd/containerd.sock").needs(Needs::Docker).outside(Outside::Untried),
    closed("DOCKER_HOST", "unix {s}").given(docker_host),
    closed("DOCKER_HOST, a rule for it", "unix {s}").given(|s| {
        docker_host(s);
        s.policy.rw(&s.words["s"].clone());
    }),
    closed("DOCKER_HOST by a symlink", "unix {s}").given(|s| {
        docker_host(s);
        let link = s.elsewhere.join("link");
        symlink(&s.words["s"], &link).unwrap();
        s.env.insert("DOCKER_HOST".into(), format!("unix://{}", link.display()));
        s.policy.rw(&s.words["s"].clone());
    }),
    closed("XDG_RUNTIME_DIR", "unix {s}").given(runtime_dir),
    closed("XDG_RUNTIME_DIR, a rule for it", "unix {s}").given(|s| {
        runtime_dir(s);
        s.policy.rw(&s.elsewhere.join("runtime").display().to_string());
        s.policy.rw(&s.words["s"].clone());
    }),
    closed("Podman in XDG_RUNTIME_DIR", "unix {s}").given(|s| {
        s.listen("s", &s.elsewhere.join("runtime/podman/podman.sock"));
        runtime(s);
        s.policy.rw(&s.words["s"].clone());
    }),
    closed("Docker Desktop in home", "unix {s}").given(|s| {
        s.listen("s", &s.home.join(".docker/run/docker.sock"));
        s.policy.rw(&s.words["s"].clone());
    }),
];

fn docker_host(s: &mut Scene) {
    s.listen("s", &s.elsewhere.join("daemon.sock"));
    // The Docker engine needs a real one there.
    s.pass_on(&s.elsewhere.join("daemon.sock"), "/var/run/docker.sock");
    s.env.insert("DOCKER_HOST".into(), format!("unix://{}", s.words["s"]));
}

fn runtime_dir(s: &mut Scene) {
    s.listen("s", &s.elsewhere.join("runtime/docker.sock"));
    runtime(s);
}

fn runtime(s: &mut Scene) {
    let dir = s.elsewhere.join("runtime");
    s.env.insert("XDG_RUNTIME_DIR".into(), dir.display().to_string());
}

pub const STORIES: &[Story] = &[
    story(NetIsolated, "own loopback, IPv6", own_loopback6),
    story(NetIsolated, "network on reaches the host's loopback", network_on),
    story(NetIsolated, "two boxes do not meet", two_boxes),
    story(NetHostSocketsClosed, "a Docker client reaches the daemon when asked", docker_on).needs(Needs::Docker),
    story(NetHostSocketsClosed, "a Docker client reaches nothing otherwise", docker_off).needs(Needs::Docker),
    story(NetHostSocketsClosed, "Docker asked for and not there", docker_missing),
    story(NetHostSocketsClosed, "the report says how far", report),
];

fn own_loopback6(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    if stage.outside(&scene, "loopback6")? != ["ok"] {
        return Ok(());
    }
    same("answers", stage.answers(&scene, "loopback6 + loopback")?, ["ok", "ok"])
}

fn network_on(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    listeners(&mut scene);
    open(&mut scene);
    same("answers", stage.answers(&scene, "tcp {tcp4} + udp {udp4} + loopback")?, ["ok", "ok", "ok"])?;
    let outside = stage.outside(&scene, "interfaces")?;
    same("interfaces", stage.answers(&scene, "interfaces")?, outside)
}

/// One box listens, another asks: on every port that the first has.
fn two_boxes(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let lines = stage.answers(&scene, "loopback + tcp 127.0.0.1:1")?;
    same("answers", lines, ["ok", "ECONNREFUSED"])
}

fn docker(stage: &Stage, scene: &Scene, script: &str) -> Result<containment::Ran, String> {
    stage.sandbox(scene).run(&["sh".into(), "-c".into(), script.into()]).map_err(|e| e.to_string())
}

fn docker_on(stage: &Stage) -> Result<(), String> {
    for network in [true, false] {
        let mut scene = stage.scene(Place::Home);
        scene.policy.docker(true);
        scene.policy.network(network);
        let ran =
            docker(stage, &scene, "docker version --format '{{.Server.Os}}' && docker ps -q >/dev/null && echo fine")?;
        ensure(ran.stdout == "linux\nfine\n", || format!("network {network}: {} {}", ran.stdout, ran.stderr))?;
    }
    // The caller's own DOCKER_HOST, symlinked.
    let mut scene = stage.scene(Place::Home);
    let link = scene.elsewhere.join("link.sock");
    symlink("/var/run/docker.sock", &link).map_err(|e| e.to_string())?;
    scene.env.insert("DOCKER_HOST".into(), format!("unix://{}", link.display()));
    scene.policy.docker(true);
    let ran = docker(stage, &scene, "docker version --format '{{.Server.Os}}'; echo host=$DOCKER_HOST")?;
    ensure(ran.stdout == "linux\nhost=\n", || format!("{} {}", ran.stdout, ran.stderr))
}

fn docker_off(stage: &Stage) -> Result<(), String> {
    for network in [true, false] {
        let mut scene = stage.scene(Place::Home);
        scene.policy.network(network);
        scene.env.insert("DOCKER_HOST".into(), "unix:///var/run/docker.sock".into());
        let script = "docker version --format '{{.Server.Os}}'; DOCKER_HOST=unix:///run/docker.sock docker ps";
        let ran = docker(stage, &scene, script)?;
        ensure(!ran.stdout.contains("linux") && !ran.stdout.contains("CONTAINER"), || ran.stdout.clone())?;
        ensure(!ran.stderr.is_empty(), || "the client did not complain".to_owned())?;
    }
    Ok(())
}

fn docker_missing(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.docker(true);
    let missing = scene.elsewhere.join("no.sock");
    scene.env.insert("DOCKER_HOST".into(), format!("unix://{}", missing.display()));
    match stage.sandbox(&scene).probe("ids") {
        Err(refusal) if refusal.to_string().contains(&missing.display().to_string()) => Ok(()),
        other => Err(format!("Docker without a socket: {other:?}")),
    }
}

fn report(stage: &Stage) -> Result<(), String> {
    for network in [true, false] {
        let mut scene = stage.scene(Place::Home);
        scene.policy.network(network);
        let ran = stage.inside(&scene, "ids")?;
        let state = |id| ran.report.guarantees.iter().find(|a| a.id == id).map(|a| a.state);
        same("isolated", state(NetIsolated), Some(if network { State::NotAsked } else { State::Enforced }))?;
        let scoped = !network || (crate::case::landlock() >= 6 && stage.engine == ringfence::engines::native::ENGINE);
        same("sockets", state(NetHostSocketsClosed), Some(if scoped { State::Enforced } else { State::Weakened }))?;
    }
    host::healthy()
}
