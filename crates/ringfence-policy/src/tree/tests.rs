//! Rules on a host that the test makes, and what holds there.

use super::*;
use crate::layer::Layer;
use crate::layers::{Inputs, resolve};
use crate::policy::Workspace;
use std::os::unix::fs::symlink;

/// A home with a project in it; entries ending in `/` are directories, `a -> b` are links.
fn place(entries: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().canonicalize().unwrap().join("p");
    fs::create_dir(&project).unwrap();
    for entry in entries {
        match entry.split_once(" -> ") {
            Some((link, to)) => symlink(to, project.join(link)).unwrap(),
            None if entry.ends_with('/') => fs::create_dir_all(project.join(entry)).unwrap(),
            None => fs::write(project.join(entry), entry).unwrap(),
        }
    }
    (dir, project)
}

/// The decisions below the project that do not come from a preset, as `access state path`.
fn decisions(project: &Path, flags: impl FnOnce(&mut Layer)) -> Result<Vec<String>, TreeError> {
    let mut layer = Layer::flags();
    flags(&mut layer);
    let home = project.parent().unwrap().to_path_buf();
    let policy = resolve(Inputs::new(project.to_path_buf(), home.clone(), layer)).unwrap().policy;
    let tree = Tree::new(&policy, &Facts { home, uid: 1, ..Facts::default() })?;
    let own = tree.nodes().filter(|(_, n)| n.origin.layer == LayerKind::Flags);
    let text = |(path, node): (&Path, &Node)| {
        let state = match node.state {
            State::Present => "present",
            State::Absent(_) => "absent",
            State::Link => "link",
        };
        format!("{} {state} {}", node.access, path.strip_prefix(project).unwrap_or(path).display())
    };
    Ok(own.map(text).collect())
}

#[test]
fn symlinks_on_the_way_and_at_the_end_are_protected() {
    let (_dir, project) = place(&["real/sub/", "a -> real", "b -> a/sub"]);
    let found = decisions(&project, |f| f.ro("b")).unwrap();
    assert_eq!(found, ["ro link a", "ro link b", "ro present real/sub"]);
    let (_dir, project) = place(&["a -> nothing"]);
    assert_eq!(decisions(&project, |f| f.exclude("a")).unwrap(), ["exclude link a", "exclude absent nothing"]);
}

#[test]
fn a_link_neither_shows_what_is_hidden_nor_opens_what_is_not_writable() {
    let (dir, project) = place(&["vault", ".vscode -> vault", ".idea -> ../key", "out -> ../key"]);
    let home = dir.path().canonicalize().unwrap();
    fs::write(home.join("key"), "").unwrap();
    let access = |flags: &dyn Fn(&mut Layer), path: &Path| {
        let mut layer = Layer::flags();
        flags(&mut layer);
        let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
        let tree = Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() })?;
        Ok::<_, TreeError>(tree.decide(path).map(|(_, node)| node.access))
    };
    let hide = |f: &mut Layer| {
        f.exclude("vault");
        f.exclude("~/key");
    };
    assert_eq!(access(&hide, &project.join("vault")).unwrap(), Some(Access::Exclude));
    assert_eq!(access(&hide, &home.join("key")).unwrap(), Some(Access::Exclude));
    // What it leads to can be named itself.
    assert_eq!(access(&|f| f.rw("~/key"), &home.join("key")).unwrap(), Some(Access::Rw));
    assert_eq!(access(&|f| f.rw("ou*"), &home.join("key")).unwrap(), Some(Access::Ro));
    assert!(matches!(access(&|f| f.rw("out"), &home.join("key")), Err(TreeError::LinkInWritable { .. })));
}

#[test]
fn what_a_stranger_cannot_enter_is_hidden_and_passable_where_something_is_shown() {
    use std::os::unix::fs::PermissionsExt;
    let dir = ringfence_testing::project_dir(env!("CARGO_MANIFEST_DIR"));
    let top = dir.path().canonicalize().unwrap();
    let (home, workdir, barred) = (top.join("home"), top.join("p"), top.join("barred"));
    for dir in [&home, &workdir, &barred, &barred.join("shown")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&barred, fs::Permissions::from_mode(0o700)).unwrap();
    let mut layer = Layer::flags();
    layer.ro(barred.join("shown").to_str().unwrap());
    let mut inputs = Inputs::new(workdir, home.clone(), layer);
    // Protected always, which shows nothing.
    inputs.own_dirs = vec![barred.join("state")];
    fs::create_dir(&inputs.own_dirs[0]).unwrap();
    let policy = resolve(inputs).unwrap().policy;
    let access = |stranger, path: &Path| {
        let facts = Facts { home: home.clone(), uid: 0, stranger, ..Facts::default() };
        Tree::new(&policy, &facts).unwrap().decide(path).map(|(at, node)| (at.to_path_buf(), node.access))
    };
    // Not even what is shown, where it is neither the caller's nor the owner's.
    let (theirs, hidden) = (home.join("theirs"), home.join("theirs/.ssh"));
    if rustix::process::getuid().is_root() {
        fs::create_dir_all(&hidden).unwrap();
        let mut layer = Layer::flags();
        layer.exclude(hidden.to_str().unwrap());
        let policy = resolve(Inputs::new(top.join("p"), home.clone(), layer)).unwrap().policy;
        let facts = Facts { home: home.clone(), uid: 0, stranger: true, ..Facts::default() };
        for (owner, at) in [(0, &hidden), (7, &theirs)] {
            std::os::unix::fs::chown(&theirs, Some(owner), None).unwrap();
            fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
            assert_eq!(Tree::new(&policy, &facts).unwrap().decide(&hidden).unwrap().0, at, "{owner}");
        }
    }
    assert_eq!(access(true, &barred.join("state/x")), Some((barred.clone(), Access::Exclude)));
    assert_eq!(access(false, &barred.join("state/x")), Some((barred.join("state"), Access::Ro)));
    let shown = barred.join("shown");
    assert_eq!(access(true, &barred.join("other")), Some((barred.clone(), Access::Exclude)));
    assert_eq!(access(true, &shown.join("x")), Some((shown.clone(), Access::Ro)));
    assert_eq!(access(false, &shown.join("x")), Some((shown, Access::Ro)));
    assert!(access(false, &barred.join("other")).is_none_or(|(at, _)| at != barred));
}

#[test]
fn the_list_of_living_boxes_is_no_boxs() {
    let (_dir, project) = place(&["boxes/"]);
    let home = project.parent().unwrap().to_path_buf();
    for (registry, state) in [("boxes", State::Present), ("later", State::Absent(""))] {
        let registry = project.join(registry);
        let mut layer = Layer::flags();
        if state == State::Present {
            layer.rw("boxes");
        }
        let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
        let facts = Facts { home: home.clone(), uid: 1, registries: vec![registry.clone()], ..Facts::default() };
        let tree = Tree::new(&policy, &facts).unwrap();
        let (at, node) = tree.decide(&registry.join("lock")).unwrap();
        assert_eq!((at, node.access, &node.state), (registry.as_path(), Access::Exclude, &state));
    }
    // Not there yet, in a place that is shown: it will be, and the box must not see it then.
    let (later, mut layer) = (home.join("shown/later"), Layer::flags());
    fs::create_dir(home.join("shown")).unwrap();
    layer.ro(home.join("shown").to_str().unwrap());
    let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
    for (registry, hidden) in [(later.clone(), true), (PathBuf::new(), false)] {
        let registries = vec![later.clone()];
        let facts = Facts { home: home.clone(), uid: 1, registries, registry, ..Facts::default() };
        let tree = Tree::new(&policy, &facts).unwrap();
        assert_eq!(tree.decide(&later).is_some_and(|(_, node)| node.access == Access::Exclude), hidden);
    }
    // Where it cannot be seen nothing is done.
    let policy = resolve(Inputs::new(project.clone(), home.clone(), Layer::flags())).unwrap().policy;
    let facts = Facts { home, uid: 1, registries: vec!["/run/boxes".into()], ..Facts::default() };
    assert!(Tree::new(&policy, &facts).unwrap().nodes().all(|(path, _)| path != Path::new("/run/boxes")));
}

#[test]
fn a_loop_of_links_is_an_error() {
    let (_dir, project) = place(&["a -> b", "b -> a"]);
    assert!(matches!(decisions(&project, |f| f.ro("a")), Err(TreeError::Lookup { .. })));
}

#[test]
fn what_is_missing_outside_writable_places_needs_nothing() {
    let (dir, project) = place(&[]);
    let outside = dir.path().canonicalize().unwrap().join("q");
    fs::create_dir(&outside).unwrap();
    let path = outside.join("x").display().to_string();
    assert_eq!(decisions(&project, |f| f.exclude(&path)).unwrap(), [""; 0]);
    assert_eq!(decisions(&project, |f| f.exclude("x")).unwrap(), ["exclude absent x"]);
    assert!(matches!(decisions(&project, |f| f.rw("x")), Err(TreeError::Missing { .. })));
}

#[test]
fn a_second_name_of_a_hidden_file_is_an_error() {
    let (_dir, project) = place(&["secret"]);
    assert_eq!(decisions(&project, |f| f.exclude("secret")).unwrap(), ["exclude present secret"]);
    fs::hard_link(project.join("secret"), project.join("other")).unwrap();
    assert!(matches!(decisions(&project, |f| f.exclude("secret")), Err(TreeError::HardLinked { links: 2, .. })));
}

#[test]
fn what_links_in_a_hidden_directory_lead_to_is_hidden() {
    let (dir, project) = place(&[
        "dir/",
        "dir/own",
        "keys/",
        "keys/id",
        "keys/shown",
        "chain -> keys",
        "free",
        "more/",
        "dir/a -> ../chain/id",
        "dir/b -> own",
        "dir/c -> nothing",
        "dir/d -> ../keys/shown",
        "dir/e -> ../more",
        "more/on -> ../../beside",
    ]);
    let home = dir.path().canonicalize().unwrap();
    fs::write(home.join("beside"), "").unwrap();
    let found = decisions(&project, |flags| {
        flags.exclude("dir");
        flags.ro("keys/shown");
    });
    let beside = format!("exclude present {}", home.join("beside").display());
    let expected = [
        &beside,
        "exclude link chain",
        "exclude present dir",
        "exclude present keys/id",
        "ro present keys/shown",
        "exclude present more",
    ];
    assert_eq!(BTreeSet::from_iter(found.unwrap().iter().map(String::as_str)), BTreeSet::from(expected));
}

#[test]
fn a_link_from_a_hidden_directory_to_half_the_machine_is_reported() {
    let (dir, project) = place(&["dir/", "dir/a -> /etc/hostname", "dir/b -> ../..", "dir/c -> .."]);
    let home = dir.path().canonicalize().unwrap();
    let mut layer = Layer::flags();
    layer.exclude("dir");
    let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
    let tree = Tree::new(&policy, &Facts { home, uid: 1, ..Facts::default() }).unwrap();
    assert_eq!(tree.decide(&project.join("x")).map(|(_, node)| node.access), Some(Access::Rw));
    let mut weakened: Vec<String> = tree.weakened().map(|(_, why)| why).collect();
    weakened.sort();
    assert_eq!(weakened.len(), 3);
    assert!(weakened[0].ends_with("p/dir/a` leads to `/etc/hostname`, which is not hidden"), "{weakened:?}");
}

#[test]
fn other_mounts_of_a_hidden_file_are_hidden() {
    let (dir, project) = place(&["secret"]);
    let base = dir.path().canonicalize().unwrap();
    fs::create_dir_all(base.join("alias/p")).unwrap();
    fs::write(base.join("alias/p/secret"), "").unwrap();
    let mount = |at: &Path, root: &str| crate::facts::MountPoint {
        device: "8:1".into(),
        root: root.into(),
        at: at.to_path_buf(),
        read_only: false,
        fs_type: "ext4".into(),
        layers: Vec::new(),
    };
    let facts = Facts {
        home: base.clone(),
        uid: 1,
        mounts: vec![mount(Path::new("/"), "/"), mount(&base.join("alias"), base.to_str().unwrap())],
        ..Facts::default()
    };
    let mut layer = Layer::flags();
    layer.exclude("secret");
    let mut policy = resolve(Inputs::new(project, base.clone(), layer)).unwrap().policy;
    let alias = base.join("alias/p/secret");
    let access = |policy: &Policy| Tree::new(policy, &facts).unwrap().decide(&alias).unwrap().1.access;
    assert_eq!(access(&policy), Access::Exclude);
    // Who names the other name shows it, but not a project.
    for (layer, expected) in [(LayerKind::Project, Access::Exclude), (LayerKind::Flags, Access::Ro)] {
        policy.rules.push(FileRule {
            access: Access::Ro,
            pattern: Pattern::Exact(alias.clone()),
            missing: Missing::Ignore,
            origin: Origin { layer, place: "test".into() },
        });
        assert_eq!(access(&policy), expected, "{layer:?}");
    }
}

/// An overlay of home shows its secrets, and so do the directories that home is an overlay of.
#[test]
fn overlays_are_aliases() {
    let (dir, project) = place(&["secret"]);
    let base = dir.path().canonicalize().unwrap();
    let root = base.display();
    for name in ["over", "lower,1", "up:per", "part"] {
        fs::create_dir_all(base.join(name).join("p")).unwrap();
        for file in ["secret", "p/secret"] {
            fs::write(base.join(name).join(file), "").unwrap();
        }
    }
    let text = format!(
        "1 0 8:1 / / rw - ext4 /dev/x rw\n\
         2 1 0:50 / {root}/over ro - overlay overlay ro,lowerdir={root}/empty:{root}\n\
         3 1 0:51 / {root}/p rw - overlay overlay rw,lowerdir={root}/lower\\0541/p:{root}/up\\134:per/p,upperdir={root}/none\n\
         4 1 0:52 /sub {root}/unrelated rw - overlay overlay rw,lowerdir={root}/x\n"
    );
    let mut facts = Facts { home: base.clone(), uid: 1, ..Facts::default() };
    facts.mounts = crate::facts::MountPoint::parse(text.as_bytes());
    let mut layer = Layer::flags();
    layer.exclude("secret");
    let policy = resolve(Inputs::new(project.clone(), base.clone(), layer)).unwrap().policy;
    let tree = Tree::new(&policy, &facts).unwrap();
    for name in ["p/secret", "over/p/secret", "lower,1/p/secret", "up:per/p/secret"] {
        assert_eq!(tree.decide(&base.join(name)).unwrap().1.access, Access::Exclude, "{name}");
    }
    assert_ne!(tree.decide(&base.join("part/p/secret")).unwrap().1.access, Access::Exclude);
    assert_eq!(tree.weakened().count(), 0);
    // Where the directories are not known, nobody can tell where else it can be read.
    let text = text.replace(&format!("lowerdir={root}/lower"), "lowerdir=lower");
    facts.mounts = crate::facts::MountPoint::parse(text.as_bytes());
    let tree = Tree::new(&policy, &facts).unwrap();
    assert!(tree.weakened().any(|(_, text)| text.contains("directories that are not known")));
}

#[test]
fn working_directories_that_are_refused() {
    let (dir, project) = place(&["in/"]);
    let home = dir.path().canonicalize().unwrap();
    let at = |workdir: &Path, flags: &dyn Fn(&mut Layer)| {
        let mut layer = Layer::flags();
        flags(&mut layer);
        let policy = resolve(Inputs::new(workdir.to_path_buf(), home.clone(), layer)).map(|r| r.policy);
        policy.map(|policy| Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() }))
    };
    // Refused by the layers or by the tree, but always refused.
    let inside = at(&project.join("in"), &|f| f.exclude(project.to_str().unwrap()));
    assert!(inside.is_err() || inside.unwrap().is_err());
    assert!(matches!(at(Path::new("/"), &|_| {}).unwrap(), Err(TreeError::WorkdirTooWide(_))));
    assert!(matches!(at(home.parent().unwrap(), &|_| {}).unwrap(), Err(TreeError::WorkdirTooWide(_))));
    assert!(at(&project, &|_| {}).unwrap().is_ok());
    // In `/tmp`, which every box has of its own.
    let base_taken_away = |f: &mut Layer| f.preset("!@base").unwrap();
    let shown = |f: &mut Layer| {
        base_taken_away(f);
        f.ro(".");
    };
    if project.starts_with("/tmp") {
        assert!(matches!(at(&project, &base_taken_away).unwrap(), Err(TreeError::WorkdirNotShown(_))));
    }
    assert!(at(&project, &shown).unwrap().is_ok());
}

#[test]
fn what_lies_above_private_space_does_not_open_it() {
    let (_dir, project) = place(&[]);
    let home = project.parent().unwrap().to_path_buf();
    let places: Vec<PathBuf> = ["/run/boxes", "/var/tmp/boxes"].map(PathBuf::from).into();
    let paths = |open: &str| {
        let mut layer = Layer::flags();
        layer.rw(open);
        let policy = resolve(Inputs::new(project.clone(), home.clone(), layer)).unwrap().policy;
        let facts = Facts { home: home.clone(), uid: 1, registries: places.clone(), ..Facts::default() };
        let tree = Tree::new(&policy, &facts).unwrap();
        let found: Vec<PathBuf> = tree.nodes().map(|(path, _)| path.to_path_buf()).collect();
        places.iter().filter(|place| found.contains(place)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(paths("/"), [""; 0].map(PathBuf::from));
    assert_eq!(paths("/var/tmp"), [PathBuf::from("/var/tmp/boxes")]);
}

#[test]
fn a_directory_that_holds_anybodys_home_is_too_wide() {
    let (_dir, project) = place(&["homes/eve/", "homes/eve/work/"]);
    let facts = Facts {
        home: project.parent().unwrap().to_path_buf(),
        accounts: vec![crate::facts::Account { uid: 7, home: project.join("homes/eve") }],
        ..Facts::default()
    };
    let at = |name: &str| {
        let policy = resolve(Inputs::new(project.join(name), facts.home.clone(), Layer::flags())).unwrap().policy;
        Tree::new(&policy, &facts).map(drop)
    };
    assert!(matches!(at("homes"), Err(TreeError::WorkdirTooWide(_))));
    assert!(at("homes/eve").is_ok() && at("homes/eve/work").is_ok());
    assert_eq!(facts.other_homes(&project.join("homes/eve/work")), [project.join("homes/eve")]);
    assert_eq!(facts.other_homes(&project), [""; 0].map(PathBuf::from));
}

#[test]
fn a_place_of_the_boxs_own_is_no_working_directory() {
    let (_dir, project) = place(&[]);
    for workdir in ["/proc", "/proc/sys", "/dev", "/dev/shm", "/run"].map(Path::new) {
        let home = project.parent().unwrap().to_path_buf();
        let policy = resolve(Inputs::new(workdir.to_path_buf(), home.clone(), Layer::flags())).unwrap().policy;
        let tree = Tree::new(&policy, &Facts { home, uid: 1, ..Facts::default() });
        assert!(matches!(tree, Err(TreeError::WorkdirPrivate(_))), "{}", workdir.display());
    }
}

/// A further directory to work on, as the owner's request gives it.
fn give(policy: &mut Policy, dir: &Path, access: Access) {
    let origin = Origin { layer: LayerKind::Flags, place: "--root".into() };
    policy.rules.push(FileRule { access, pattern: Pattern::Exact(dir.into()), missing: Missing::Ignore, origin });
    policy.narrowed.push(Narrowed { whole: dir.into(), parts: vec![dir.into()] });
}

#[test]
fn further_directories_are_checked_like_the_working_directory() {
    let (_dir, project) = place(&[]);
    let home = project.parent().unwrap().to_path_buf();
    let (second, homes) = (home.join("second"), home.join("homes"));
    fs::create_dir(&second).unwrap();
    fs::create_dir_all(homes.join("eve")).unwrap();
    let accounts = vec![crate::facts::Account { uid: 7, home: homes.join("eve") }];
    let facts = Facts { home: home.clone(), uid: 1, accounts, ..Facts::default() };
    for profile in ["agent", "shell"] {
        let with = |change: &dyn Fn(&mut Policy)| {
            let mut layer = Layer::flags();
            layer.profile(profile);
            let mut policy = resolve(Inputs::new(second.clone(), home.clone(), layer)).unwrap().policy;
            policy.narrowed = vec![Narrowed { whole: second.clone(), parts: vec![second.clone()] }];
            change(&mut policy);
            Tree::new(&policy, &facts).map(drop)
        };
        assert!(with(&|_| {}).is_ok() && with(&|policy| give(policy, &project, Access::Rw)).is_ok(), "{profile}");
        for wide in [Path::new("/"), Path::new("/etc"), Path::new("/usr"), Path::new("/usr/share"), &homes] {
            let refused = with(&|policy| give(policy, wide, Access::Rw));
            assert!(matches!(refused, Err(TreeError::WorkdirTooWide(dir)) if dir == wide), "{profile} {wide:?}");
            assert!(with(&|policy| give(policy, wide, Access::Ro)).is_ok(), "{profile} {wide:?}, read-only");
            // A client that names a part of it changes nothing.
            let refused = with(&|policy| {
                give(policy, wide, Access::Rw);
                policy.narrowed[1].parts = vec![wide.join("part")];
            });
            assert!(matches!(refused, Err(TreeError::WorkdirTooWide(dir)) if dir == wide), "{profile} {wide:?}");
        }
        for private in ["/proc", "/dev", "/dev/shm"].map(Path::new) {
            let refused = with(&|policy| give(policy, private, Access::Rw));
            assert!(matches!(refused, Err(TreeError::WorkdirPrivate(dir)) if dir == private), "{profile} {private:?}");
        }
        // By a rule, or because nothing shows it.
        match with(&|policy| give(policy, &project, Access::Exclude)) {
            Err(TreeError::WorkdirExcluded { workdir, .. }) => {
                assert_eq!((workdir, profile), (project.clone(), "agent"))
            }
            Err(TreeError::WorkdirNotShown(workdir)) => assert_eq!((workdir, profile), (project.clone(), "shell")),
            other => panic!("{profile}: {other:?}"),
        }
    }
}

/// The tree of a part of the project, under the rules of the whole.
fn of_part(project: &Path, profile: &str, part: &str, flags: impl FnOnce(&mut Layer)) -> Result<Tree, TreeError> {
    let mut layer = Layer::flags();
    layer.profile(profile);
    flags(&mut layer);
    let home = project.parent().unwrap().to_path_buf();
    let mut policy = resolve(Inputs::new(project.to_path_buf(), home.clone(), layer)).unwrap().policy;
    policy.workspace = Workspace::HostDirectory(project.join(part));
    policy.narrowed = vec![Narrowed { whole: project.to_path_buf(), parts: vec![project.join(part)] }];
    Tree::new(&policy, &Facts { home, uid: 1, ..Facts::default() })
}

#[test]
fn the_rules_of_the_whole_hold_in_a_part() {
    let entries = ["conf/hooks/", "conf/husky/", ".husky -> conf/husky", "conf/real", "hidden -> conf/real"];
    let (_dir, project) =
        place(&[&entries[..], &["conf/secret", "conf/a.pem", "conf/file", "other", "shown"]].concat());
    for name in [".git/objects", ".git/refs", ".vscode"] {
        fs::create_dir_all(project.join(name)).unwrap();
    }
    fs::write(project.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(project.join(".git/config"), "[core]\n\thooksPath = conf/hooks\n").unwrap();
    let flags = |f: &mut Layer| {
        f.exclude("conf/secret");
        f.exclude("**/*.pem");
        f.exclude("hidden");
        f.ro("shown");
    };
    for profile in ["agent", "shell"] {
        let access = |part: &str, path: &str| {
            let tree = of_part(&project, profile, part, flags).unwrap();
            tree.decide(&project.join(path)).map(|(_, node)| node.access)
        };
        let table = [
            ("conf/file", Access::Rw),
            ("conf/new", Access::Rw),
            ("conf/secret", Access::Exclude),
            ("conf/a.pem", Access::Exclude),
            ("conf/real", Access::Exclude),
            ("conf/hooks/pre-commit", Access::Ro),
            ("conf/husky/pre-commit", Access::Ro),
        ];
        for (path, expected) in table {
            assert_eq!(access("conf", path), Some(expected), "{profile} {path}");
            assert_eq!(access("", path), Some(expected), "{profile} {path}, all of it");
        }
        // What is protected in the whole is no less so when it is all that is given.
        for part in [".vscode", "conf/hooks"] {
            assert_eq!(access(part, &format!("{part}/x")), Some(Access::Ro), "{profile} {part}");
        }
        // The rest cannot be written, and is not shown where the machine is not.
        for path in ["other", "new", "shown", ".git/objects"] {
            let seen = access("conf", path).filter(|access| *access != Access::Exclude);
            assert_eq!(seen, (profile == "agent").then_some(Access::Ro), "{profile} {path}");
        }
        assert_eq!(access("", "other"), Some(Access::Rw), "{profile}");
    }
}

#[test]
fn what_the_whole_hides_is_hidden_in_a_part() {
    let (_dir, project) = place(&["conf/", "secret"]);
    for profile in ["agent", "shell"] {
        let of_conf = |rule: &str| of_part(&project, profile, "conf", |f| f.exclude(rule));
        assert!(of_conf("secret").is_ok());
        for rule in ["conf", "con?"] {
            assert!(matches!(of_conf(rule), Err(TreeError::WorkdirExcluded { .. })), "{profile} {rule}");
        }
    }
    // By a name in the part, while the hidden one is outside of it.
    fs::hard_link(project.join("secret"), project.join("conf/name")).unwrap();
    for profile in ["agent", "shell"] {
        let found = of_part(&project, profile, "conf", |f| f.exclude("secret"));
        assert!(matches!(found, Err(TreeError::HardLinked { links: 2, .. })), "{profile}");
    }
}

#[test]
fn a_directory_that_was_swapped_for_a_link_is_not_given() {
    let (_dir, project) = place(&["conf/", "elsewhere/"]);
    let home = project.parent().unwrap().to_path_buf();
    let tree = |dirs: [&Path; 2]| {
        let mut policy = resolve(Inputs::new(project.clone(), home.clone(), Layer::flags())).unwrap().policy;
        policy.narrowed = Vec::new();
        dirs.iter().for_each(|dir| give(&mut policy, dir, Access::Rw));
        Tree::new(&policy, &Facts { home: home.clone(), uid: 1, ..Facts::default() })
    };
    let second = home.join("second");
    fs::create_dir(&second).unwrap();
    assert!(tree([&project, &second]).is_ok());
    fs::remove_dir(&second).unwrap();
    symlink(project.join("elsewhere"), &second).unwrap();
    assert!(matches!(tree([&project, &second]), Err(TreeError::Moved { dir, .. }) if dir == second));
    fs::remove_dir(project.join("conf")).unwrap();
    symlink("elsewhere", project.join("conf")).unwrap();
    assert!(matches!(of_part(&project, "shell", "conf", |_| {}), Err(TreeError::Moved { .. })));
}
