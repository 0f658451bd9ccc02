//! Plans for hosts that the test makes: what is mounted where, in which order, and what is promised.

use super::*;
use crate::layer::Layer;
use crate::layers::{Inputs, resolve};
use crate::policy::{CommandRule, Guard, Narrowed, NetworkRules, Workspace};

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

/// Seen when the rules were applied, and gone when the plan is made: it was the placeholder of a sandbox that ended in between.
#[test]
fn what_is_gone_at_the_second_look_is_planned_as_missing() {
    let host = Host::new();
    let (protected, hidden) = (host.workdir.join(".mcp.json"), host.workdir.join("key"));
    let (shown, written) = (host.home.join("shown"), host.workdir.join("out"));
    let mut layer = Layer::flags();
    layer.exclude("key");
    layer.ro(&shown.display().to_string());
    layer.rw(&written.display().to_string());
    let all = [&protected, &hidden, &shown, &written];
    all.iter().for_each(|path| fs::create_dir(path).unwrap());
    let policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), layer)).unwrap().policy;
    let lookup = Tree::lookup(&policy, &host.facts);
    assert!(all.iter().all(|path| lookup.exists(path)));
    let planned = || plan_with(&lookup, &policy, &host.facts, &["sh".into()]).unwrap();
    let stub = |plan: &Plan, path: &Path| plan.stubs.iter().find(|stub| stub.path == path).cloned();
    let is_mounted = |plan: &Plan, path: &Path, which: fn(&Mount) -> bool| position(plan, path, which).is_some();

    // There: it may be another sandbox's placeholder, which must stay until this one ends.
    let there = planned();
    assert!(stub(&there, &protected).unwrap().present && stub(&there, &hidden).unwrap().present);
    assert!(is_mounted(&there, &protected, |m| matches!(m, Mount::Bind { writable: false, .. })));

    all.iter().for_each(|path| fs::remove_dir(path).unwrap());
    let gone = planned();
    for path in [&protected, &hidden, &written] {
        assert_eq!(stub(&gone, path), Some(Stub::missing(path, Kind::Dir, "")));
    }
    assert!(is_mounted(&gone, &protected, |m| matches!(m, Mount::Empty { .. })));
    assert!(is_mounted(&gone, &hidden, |m| matches!(m, Mount::Hide { fleeting: false, .. })));
    assert!(is_mounted(&gone, &written, |m| matches!(m, Mount::Bind { writable: true, .. })));
    // Nothing can be planted where the sandbox cannot write.
    assert!(stub(&gone, &shown).is_none() && position(&gone, &shown, |_| true).is_none());
}

/// The placeholder is the one that the rule asks for, also where the user's own was of another kind.
#[test]
fn what_is_gone_gets_the_placeholder_of_its_rule() {
    let host = Host::new();
    let (text, directory) = (host.home.join(".claude/settings.json"), host.workdir.join(".mcp.json"));
    fs::create_dir(host.home.join(".claude")).unwrap();
    for path in [&text, &directory] {
        fs::write(path, "{ \"own\": true }").unwrap();
    }
    let policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), Layer::flags())).unwrap().policy;
    let lookup = Tree::lookup(&policy, &host.facts);
    assert!(lookup.exists(&text) && lookup.exists(&directory));
    for path in [&text, &directory] {
        fs::remove_file(path).unwrap();
    }
    let plan = plan_with(&lookup, &policy, &host.facts, &["sh".into()]).unwrap();
    assert!(plan.stubs.contains(&Stub::missing(&text, Kind::File, "{}\n")), "{:?}", plan.stubs);
    assert!(plan.stubs.contains(&Stub::missing(&directory, Kind::Dir, "")), "{:?}", plan.stubs);
}

/// A name can also go in the middle of the second look. It is never taken for the user's own then.
#[test]
fn a_placeholder_that_comes_and_goes_is_never_the_users_own() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, file) = (dir.path().join("directory"), dir.path().join("file"));
    // Shown under its name when it is complete, as the janitor's own is.
    let made = dir.path().join("made");
    fs::write(&made, ".\n").unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(STUB_FILE_MODE)).unwrap();
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                fs::create_dir(&directory).unwrap();
                fs::hard_link(&made, &file).unwrap();
                fs::remove_dir(&directory).unwrap();
                fs::remove_file(&file).unwrap();
            }
        });
        let looks = (0..50_000).flat_map(|_| [Look::at(&directory, Kind::Dir), Look::at(&file, Kind::File)]);
        let own = looks.filter(|look| *look == Look::Own).count();
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(own, 0);
    });
    // What is the user's own is.
    fs::create_dir_all(directory.join("own")).unwrap();
    fs::write(&file, "own").unwrap();
    assert_eq!((Look::at(&directory, Kind::Dir), Look::at(&file, Kind::File)), (Look::Own, Look::Own));
    assert_eq!((Look::at(&file, Kind::Dir), Look::at(&directory, Kind::File)), (Look::Own, Look::Own));
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
    let listed = |flags: &mut Layer| flags.network_kind(Network::Allowlist(NetworkRules::default()));
    assert!(!promised(&|_| {}, Guarantee::NetByName) && promised(&listed, Guarantee::NetByName));
    assert!(!promised(&listed, Guarantee::NetIsolated));
    assert!(!promised(&|_| {}, Guarantee::LimitMemory));
    assert!(promised(&|f| f.memory("1g").unwrap(), Guarantee::LimitMemory));
    assert!(promised(&|_| {}, Guarantee::FsSecretsHidden) && !promised(&|_| {}, Guarantee::NetByName));
}

#[test]
fn programs_are_found_as_the_box_sees_them() {
    let host = Host::new();
    let find = |command: &str| {
        let policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), Layer::flags())).unwrap().policy;
        plan(&policy, &host.facts, &[command.into()]).map(|plan| plan.runs.command().unwrap().program.clone())
    };
    assert!(find("sh").unwrap().ends_with("bin/sh"));
    assert_eq!(find("./x").unwrap(), host.workdir.join("./x"));
    assert!(matches!(find("no-such-program"), Err(PlanError::ProgramNotFound(_))));
    assert!(matches!(find(""), Err(PlanError::NoCommand)));
}

#[test]
fn a_command_with_a_directory_and_variables_is_found_with_them() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new();
    let programs = host.workdir.join("sub/programs");
    fs::create_dir_all(&programs).unwrap();
    fs::write(programs.join("own"), "").unwrap();
    fs::set_permissions(programs.join("own"), fs::Permissions::from_mode(0o755)).unwrap();
    let policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), Layer::flags())).unwrap().policy;
    let lookup = Tree::lookup(&policy, &host.facts);
    let find = |command: &str, cwd: Option<&str>, path: Option<&str>| {
        let env: Vec<_> = path.into_iter().map(|path| ("PATH".into(), path.into())).collect();
        let changes = Changes { env: &env, cwd: cwd.map(Path::new) };
        let plan = plan_changed(&lookup, &policy, &host.facts, &[command.into()], changes)?;
        assert_eq!(plan.workdir, cwd.map_or_else(|| host.workdir.clone(), |cwd| host.workdir.join(cwd)));
        Ok(plan.runs.command().unwrap().program.clone())
    };
    assert_eq!(find("./x", Some("sub"), None).unwrap(), host.workdir.join("sub/./x"));
    assert_eq!(find("own", None, programs.to_str()).unwrap(), programs.join("own"));
    assert_eq!(find("own", Some("sub"), Some("/nowhere:programs")).unwrap(), programs.join("own"));
    assert!(find("sh", Some("sub"), None).unwrap().ends_with("bin/sh"));
    for (name, path) in [("own", None), ("own", Some("programs")), ("sh", programs.to_str())] {
        assert!(matches!(find(name, None, path), Err(PlanError::ProgramNotFound(_))), "{name} {path:?}");
    }
}

#[test]
fn without_the_program_nothing_stands_in_front() {
    let mut host = Host::new();
    let guarded = |host: &Host, rule: Option<CommandRule>| {
        let mut policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), Layer::flags())).unwrap().policy;
        policy.commands.clear();
        policy.commands.extend(rule.map(|rule| ("sh".to_owned(), rule)));
        let plan = plan(&policy, &host.facts, &["sh".into()])?;
        Ok(plan.mounts.iter().any(|m| matches!(m, Mount::Bind { source, .. } if *source == host.facts.program)))
    };
    let guard = || Some(CommandRule::Guard(Guard::Git));
    assert!(guarded(&host, guard()).unwrap() && guarded(&host, Some(CommandRule::Block)).unwrap());
    host.facts.program = PathBuf::new();
    assert!(!guarded(&host, guard()).unwrap() && !guarded(&host, None).unwrap());
    let refused = guarded(&host, Some(CommandRule::Block));
    assert!(matches!(&refused, Err(PlanError::NoGuard(name)) if name == "sh"), "{refused:?}");
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

/// Another user's sandbox takes its placeholder away when it ends, whoever relies on it.
#[test]
fn what_may_be_another_users_placeholder_is_said() {
    let mut host = Host::new();
    let name = host.workdir.join(".mcp.json");
    fs::create_dir(&name).unwrap();
    let said = |host: &Host| {
        let plan = host.plan(|_| {}).unwrap();
        plan.weakened.iter().any(|(guarantee, _)| *guarantee == Guarantee::FsProtectedPaths)
    };
    host.facts.uid = fs::symlink_metadata(&name).unwrap().uid();
    assert!(!said(&host));
    host.facts.uid += 1;
    assert!(said(&host));
    fs::write(name.join("own"), "").unwrap();
    assert!(!said(&host));
}

/// Each hidden socket is a mount. A crowded directory is one; what is not hidden is said.
#[test]
fn crowds_of_sockets_are_hidden_whole_or_said_to_be_open() {
    let mut host = Host::new();
    let crowded = host.home.join("crowded");
    fs::create_dir(&crowded).unwrap();
    let open = |plan: &Plan| plan.weakened.iter().any(|(guarantee, _)| *guarantee == Guarantee::NetHostSocketsClosed);
    host.facts.sockets = vec![crowded.clone()];
    let plan = host.plan(|_| {}).unwrap();
    assert!(position(&plan, &crowded, |m| matches!(m, Mount::Hide { kind: Kind::Dir, .. })).is_some() && !open(&plan));
    host.facts.more_sockets = true;
    assert!(open(&host.plan(|_| {}).unwrap()));
    host.facts.more_sockets = false;
    // What is worked on cannot be hidden.
    host.facts.sockets = vec![host.workdir.clone()];
    let plan = host.plan(|_| {}).unwrap();
    assert!(open(&plan) && position(&plan, &host.workdir, |m| matches!(m, Mount::Hide { .. })).is_none());

    let paths: Vec<PathBuf> = (0..150).map(|n| host.home.join(format!("socket-{n}"))).collect();
    let sockets: Vec<_> = paths.iter().map(|path| std::os::unix::net::UnixListener::bind(path).unwrap()).collect();
    let hidden = |plan: &Plan| {
        let hides = |mount: &&Mount| matches!(mount, Mount::Hide { target, .. } if paths.contains(target));
        plan.mounts.iter().filter(hides).count()
    };
    host.facts.sockets = paths[..100].to_vec();
    let plan = host.plan(|_| {}).unwrap();
    assert!(hidden(&plan) == 100 && !open(&plan));
    host.facts.sockets.clone_from(&paths);
    let plan = host.plan(|_| {}).unwrap();
    assert!(hidden(&plan) == 128 && open(&plan));
    drop(sockets);
}

#[test]
fn a_part_is_mounted_where_the_working_directory_is_and_the_rest_nowhere() {
    let host = Host::new();
    let (conf, secret) = (host.workdir.join("conf"), host.workdir.join("conf/secret"));
    fs::create_dir(&conf).unwrap();
    for file in [&secret, &host.workdir.join("other")] {
        fs::write(file, "").unwrap();
    }
    let above = host.home.display().to_string();
    for shown in [false, true] {
        let mut layer = Layer::flags();
        layer.profile("shell");
        layer.exclude("conf/secret");
        layer.ro("other");
        if shown {
            layer.ro(&above);
        }
        let mut policy = resolve(Inputs::new(host.workdir.clone(), host.home.clone(), layer)).unwrap().policy;
        policy.workspace = Workspace::HostDirectory(conf.clone());
        policy.narrowed = vec![Narrowed { whole: host.workdir.clone(), parts: vec![conf.clone()] }];
        let plan = plan(&policy, &host.facts, &["sh".into()]).unwrap();
        let bound: Vec<(&Path, &Path, bool)> = plan
            .mounts
            .iter()
            .filter_map(|mount| match mount {
                Mount::Bind { source, target, writable, .. } => Some((source.as_path(), target.as_path(), *writable)),
                _ => None,
            })
            .filter(|(source, ..)| source.starts_with(&host.workdir))
            .collect();
        assert!(bound.contains(&(&conf, Path::new("/workspace"), true)), "{bound:?}");
        assert!(bound.iter().all(|(source, ..)| source.starts_with(&conf)), "{bound:?}");
        assert!(position(&plan, Path::new("/workspace/secret"), |m| matches!(m, Mount::Hide { .. })).is_some());
        // Also where a rule shows what lies above it.
        let hidden = position(&plan, &host.workdir, |m| matches!(m, Mount::Hide { .. }));
        let above = position(&plan, &host.home, |m| matches!(m, Mount::Bind { .. }));
        assert_eq!((hidden.is_some(), hidden > above), (shown, shown), "{:?}", plan.mounts);
    }
}
