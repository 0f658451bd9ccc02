//! Plans for hosts that the test makes: what is mounted where, in which order, and what is promised.

use super::*;
use crate::layer::Layer;
use crate::layers::{Inputs, resolve};

/// A home with a project in it.
struct Host {
    _dir: tempfile::TempDir,
    home: PathBuf,
    workdir: PathBuf,
    facts: Facts,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("home");
        let workdir = home.join("p");
        fs::create_dir_all(&workdir).unwrap();
        let env = std::collections::BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
        let facts =
            Facts { uid: 1000, gid: 1000, home: home.clone(), env, program: "/ringfence".into(), ..Facts::default() };
        Host { _dir: dir, home, workdir, facts }
    }

    fn plan(&self, flags: impl FnOnce(&mut Layer)) -> Result<Plan, PlanError> {
        let mut layer = Layer::flags();
        flags(&mut layer);
        let policy = resolve(Inputs::new(self.workdir.clone(), self.home.clone(), layer)).unwrap().policy;
        plan(&policy, &self.facts, &["sh".into()])
    }
}

/// Where in the list something is mounted on a path.
fn position(plan: &Plan, path: &Path, which: impl Fn(&Mount) -> bool) -> Option<usize> {
    let at = |mount: &Mount| match mount {
        Mount::Bind { target, .. } | Mount::Hide { target, .. } | Mount::Empty { target, .. } => target == path,
        _ => false,
    };
    plan.mounts.iter().position(|mount| at(mount) && which(mount))
}

#[test]
fn the_root_is_first_and_parents_come_before_children() {
    let host = Host::new();
    fs::create_dir_all(host.workdir.join(".vscode")).unwrap();
    let plan = host.plan(|_| {}).unwrap();
    assert!(matches!(&plan.mounts[0], Mount::Bind { target, writable: false, .. } if target == Path::new("/")));
    let project = position(&plan, &host.workdir, |m| matches!(m, Mount::Bind { writable: true, .. })).unwrap();
    let inside = position(&plan, &host.workdir.join(".vscode"), |m| matches!(m, Mount::Bind { writable: false, .. }));
    assert!(inside.is_some_and(|inside| inside > project));
}

/// What a rule shows from further above does not cover what a box has of its own.
#[test]
fn private_places_stay_below_what_is_shown() {
    let host = Host::new();
    let plan = host.plan(|flags| flags.rw("/var")).unwrap();
    let at = |path: &str| plan.mounts.iter().position(|mount| mount.target() == Path::new(path)).unwrap();
    assert!(matches!(&plan.mounts[at("/var")], Mount::Bind { writable: true, .. }));
    assert!(matches!(&plan.mounts[at("/var/tmp")], Mount::Tmpfs { .. }));
    assert!(at("/var/tmp") > at("/var"), "{:?}", plan.mounts);
}

/// Else it could go with that box between this plan and its start.
#[test]
fn a_stand_in_of_another_box_for_the_list_of_boxes_is_needed_too() {
    let mut host = Host::new();
    let list = host.workdir.join("boxes");
    host.facts.registries = vec![list.clone()];
    let stub = |host: &Host| host.plan(|_| {}).unwrap().stubs.into_iter().find(|stub| stub.path == list);
    assert!(stub(&host).is_some_and(|stub| !stub.present));
    fs::create_dir(&list).unwrap();
    assert!(stub(&host).is_some_and(|stub| stub.present));
    // The list itself is none.
    fs::write(list.join("box-1-0"), "").unwrap();
    assert!(stub(&host).is_none());
}

#[test]
fn what_is_missing_and_protected_gets_a_name_for_as_long_as_the_box_lives() {
    let host = Host::new();
    let plan = host.plan(|_| {}).unwrap();
    let planted = host.workdir.join(".mcp.json");
    let stub = plan.stubs.iter().find(|stub| stub.path == planted).unwrap();
    assert!(!stub.present && stub.kind == Kind::Dir);
    assert!(position(&plan, &planted, |m| matches!(m, Mount::Empty { .. })).is_some());
    // The user's own stays the user's.
    fs::write(&planted, "{\"own\": 1, \"long\": true}").unwrap();
    assert!(host.plan(|_| {}).unwrap().stubs.iter().all(|stub| stub.path != planted));
}

#[test]
fn directories_above_a_protected_path_are_pinned() {
    let host = Host::new();
    fs::create_dir_all(host.workdir.join("a/b/c")).unwrap();
    let plan = host.plan(|flags| flags.ro("a/b/c")).unwrap();
    let at = |name: &str, writable: bool| {
        position(&plan, &host.workdir.join(name), |m| matches!(m, Mount::Bind { writable: w, .. } if *w == writable))
    };
    let (a, b, c) = (at("a", true).unwrap(), at("a/b", true).unwrap(), at("a/b/c", false).unwrap());
    assert!(a < b && b < c);
}

#[test]
fn container_sockets_come_last() {
    let mut host = Host::new();
    let socket = host.home.join("d.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    host.facts.env.insert("DOCKER_HOST".into(), format!("unix://{}", socket.display()).into());
    let path = socket.display().to_string();
    let plan = host.plan(|flags| flags.rw(&path)).unwrap();
    let hidden = position(&plan, &socket, |m| matches!(m, Mount::Hide { .. })).unwrap();
    let opened = position(&plan, &socket, |m| matches!(m, Mount::Bind { .. })).unwrap();
    assert!(hidden > opened);
    // With it, the real one is where clients look.
    let plan = host.plan(|flags| flags.docker(true)).unwrap();
    let bound = |m: &Mount| matches!(m, Mount::Bind { source, target, .. } if *source == socket && target.ends_with("docker.sock"));
    assert!(plan.docker && plan.mounts.iter().any(bound));
    // And none there is an error that names it.
    fs::remove_file(&socket).unwrap();
    let error = host.plan(|flags| flags.docker(true)).unwrap_err();
    assert!(matches!(&error, PlanError::DockerSocketMissing(at) if *at == socket), "{error}");
}

#[test]
fn only_what_is_asked_for_is_promised() {
    let host = Host::new();
    let promised = |flags: &dyn Fn(&mut Layer), guarantee| {
        host.plan(flags).unwrap().promises.iter().any(|promise| promise.guarantee == guarantee)
    };
    assert!(!promised(&|_| {}, Guarantee::NetIsolated) && promised(&|f| f.network(false), Guarantee::NetIsolated));
    assert!(!promised(&|_| {}, Guarantee::LimitMemory));
    assert!(promised(&|f| f.memory("1g").unwrap(), Guarantee::LimitMemory));
    assert!(promised(&|_| {}, Guarantee::FsSecretsHidden) && !promised(&|_| {}, Guarantee::NetByName));
}

#[test]
fn programs_are_found_as_the_box_sees_them() {
    let host = Host::new();
    let find = |command: &str| {
        let policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), Layer::flags())).unwrap().policy;
        plan(&policy, &host.facts, &[command.into()]).map(|plan| plan.command.program)
    };
    assert!(find("sh").unwrap().ends_with("bin/sh"));
    assert_eq!(find("./x").unwrap(), host.workdir.join("./x"));
    assert!(matches!(find("no-such-program"), Err(PlanError::ProgramNotFound(_))));
    assert!(matches!(find(""), Err(PlanError::NoCommand)));
}

#[test]
fn what_is_gone_needs_no_hiding() {
    let mut host = Host::new();
    let (stays, goes) = (host.home.join("stays"), host.home.join("goes"));
    let sockets = [&stays, &goes].map(|path| std::os::unix::net::UnixListener::bind(path).unwrap());
    host.facts.sockets = vec![stays.clone(), goes.clone()];
    let plan = host.plan(|_| {}).unwrap();
    assert!(plan.is_fleeting() && plan.without_gone().is_none());
    fs::remove_file(&goes).unwrap();
    let rest = plan.without_gone().unwrap();
    let hides = |plan: &Plan, path: &Path| position(plan, path, |m| matches!(m, Mount::Hide { .. })).is_some();
    assert!(hides(&plan, &goes) && !hides(&rest, &goes) && hides(&rest, &stays));
    assert_eq!(rest.mounts.len() + 1, plan.mounts.len());
    drop(sockets);
}
