//! Who needs which placeholder, and when it goes.

use super::placeholders::Making;
use super::*;
use ringfence_policy::rules::Kind;
use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::FlockOperation;

fn stub(path: &Path, kind: Kind, text: &str) -> Stub {
    Stub { path: path.to_path_buf(), kind, text: text.to_owned(), present: false }
}

fn directory(path: &Path) -> Stub {
    stub(path, Kind::Dir, "")
}

/// Directories of one test.
struct Scene {
    _dir: tempfile::TempDir,
    base: PathBuf,
    project: PathBuf,
    registry: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (project, registry) = (base.join("project"), base.join("registry"));
        fs::create_dir(&project).unwrap();
        Scene { _dir: dir, base, project, registry }
    }

    fn start(&self, stubs: &[Stub]) -> Janitor {
        self.start_in(&self.project, stubs)
    }

    fn start_in(&self, project: &Path, stubs: &[Stub]) -> Janitor {
        Janitor::start_for((project, &self.home()), stubs, &[], &self.registry).unwrap().unwrap()
    }

    /// A sandbox whose owner and janitor were killed.
    fn killed(&self, stubs: &[Stub]) {
        let lists = Lists::of_sandbox(&self.registry, (&self.project, &self.home()), stubs, &[]).unwrap();
        lists.make(stubs).unwrap();
    }

    fn home(&self) -> PathBuf {
        self.base.clone()
    }

    fn lists(&self) -> usize {
        fs::read_dir(&self.registry).unwrap().count()
    }

    /// Nothing is left, and nothing is known of.
    fn is_clean(&self) -> bool {
        self.lists() == 0 && fs::read_dir(&self.project).unwrap().count() == 0
    }
}

#[test]
fn names_are_there_while_a_sandbox_lives() {
    let scene = Scene::new();
    let (made, text, own) = (scene.project.join("made"), scene.project.join("text"), scene.project.join("own"));
    fs::create_dir(&own).unwrap();
    let stubs = [directory(&made), stub(&text, Kind::File, ".\n"), directory(&own)];
    let first = scene.start(&stubs);
    assert!(made.is_dir() && fs::read_to_string(&text).unwrap() == ".\n");
    let second = scene.start(&stubs[..1]);
    drop(first);
    assert!(made.is_dir());
    drop(second);
    // What the user had stays.
    assert!(!made.exists() && !text.exists() && own.is_dir() && scene.lists() == 0);
}

/// What planning finds is there when it is mounted, whoever ends in between.
#[test]
fn what_was_found_while_planning_stays_until_the_start() {
    let scene = Scene::new();
    let made = scene.project.join("made");
    let first = scene.start(&[directory(&made)]);
    let planning = hold(&scene.registry, &scene.project, &scene.home()).unwrap();
    drop(first);
    assert!(made.is_dir());
    let second = scene.start(&[directory(&made)]);
    drop(planning);
    assert!(made.is_dir());
    drop(second);
    assert!(scene.is_clean());
    // A plan that is never started removes what was left to it.
    let first = scene.start(&[directory(&made)]);
    let planning = hold(&scene.registry, &scene.project, &scene.home()).unwrap();
    drop(first);
    drop(planning);
    assert!(scene.is_clean());
}

/// Anybody may lock what stands in a project. It keeps no placeholder, and no start waits for it.
#[test]
fn locks_in_a_project_change_nothing() {
    for lock in [FlockOperation::LockExclusive, FlockOperation::LockShared] {
        let scene = Scene::new();
        let (made, text) = (scene.project.join("made"), scene.project.join("text"));
        let stubs = [directory(&made), stub(&text, Kind::File, "")];
        let begun = Instant::now();
        let first = scene.start(&stubs);
        let locked = [&scene.project, &made, &text].map(|path| fs::File::open(path).unwrap());
        locked.iter().for_each(|file| rustix::fs::flock(file, lock).unwrap());
        let second = scene.start(&stubs);
        drop(first);
        assert!(made.is_dir() && text.is_file());
        drop(second);
        assert!(scene.is_clean() && begun.elapsed() < Duration::from_secs(2));
    }
}

/// Sandboxes of two projects share what stands in home, and nothing else.
#[test]
fn projects_do_not_wait_for_each_other() {
    let scene = Scene::new();
    let (other, shared) = (scene.base.join("other"), scene.base.join("home"));
    fs::create_dir(&other).unwrap();
    let names = |project: &Path| [directory(&project.join("made")), directory(&shared)];
    let first = scene.start(&names(&scene.project));
    let second = scene.start_in(&other, &names(&other));
    drop(first);
    assert!(!scene.project.join("made").exists() && other.join("made").is_dir() && shared.is_dir());
    drop(second);
    assert!(!shared.exists() && !other.join("made").exists() && scene.is_clean());
}

/// One working directory may lie in another, and both sandboxes need a name.
#[test]
fn a_name_of_two_projects_stays_until_both_have_ended() {
    for inner_first in [true, false] {
        let scene = Scene::new();
        let inner = scene.project.join("inner");
        fs::create_dir(&inner).unwrap();
        let (dir, name) = (inner.join("dir"), inner.join("dir/name"));
        // The second finds the directory, and needs what is in it.
        let projects = if inner_first { [&inner, &scene.project] } else { [&scene.project, &inner] };
        let first = scene.start_in(projects[0], &[directory(&dir), directory(&name)]);
        let second = scene.start_in(projects[1], &[directory(&name)]);
        drop(first);
        assert!(name.is_dir(), "{inner_first}");
        drop(second);
        assert!(!dir.exists() && scene.lists() == 0, "{inner_first}");
    }
}

/// Another sandbox's directory was there when this one was planned, and has gone since.
#[test]
fn a_directory_that_went_since_planning_is_made_again() {
    let scene = Scene::new();
    let names = [scene.project.join("a/b/c"), scene.project.join("a/b/d")];
    let janitor = scene.start(&[directory(&names[0]), stub(&names[1], Kind::File, "")]);
    assert!(names[0].is_dir() && names[1].is_file());
    drop(janitor);
    assert!(scene.is_clean());
}

/// The watch of a sandbox makes a name again that was removed on the host.
#[test]
fn a_name_can_be_made_again_while_a_sandbox_lives() {
    let scene = Scene::new();
    let stubs = [directory(&scene.project.join("made"))];
    let janitor = scene.start(&stubs);
    fs::remove_dir(&stubs[0].path).unwrap();
    janitor.make(&stubs).unwrap();
    assert!(stubs[0].path.is_dir());
    drop(janitor);
    assert!(scene.is_clean());
}

#[test]
fn what_a_crash_left_is_known_and_removed() {
    let scene = Scene::new();
    let names = [scene.project.join("left"), scene.project.join("left/text")];
    scene.killed(&[directory(&names[0]), stub(&names[1], Kind::File, "{}\n")]);
    assert!(names[1].is_file());
    sweep(&scene.registry);
    assert!(scene.is_clean());
    // By the next start in the project too.
    scene.killed(&[directory(&names[0])]);
    drop(hold(&scene.registry, &scene.project, &scene.home()).unwrap());
    assert!(scene.is_clean());
}

/// After a crash somebody removed a placeholder and made something of the same name, empty as it is.
#[test]
fn what_the_user_made_in_its_place_stays() {
    let scene = Scene::new();
    let names = [scene.project.join("dir"), scene.project.join("file"), scene.project.join("used")];
    scene.killed(&[directory(&names[0]), stub(&names[1], Kind::File, ""), directory(&names[2])]);
    std::thread::sleep(Duration::from_millis(50));
    fs::remove_dir(&names[0]).unwrap();
    fs::remove_file(&names[1]).unwrap();
    fs::create_dir(&names[0]).unwrap();
    fs::write(&names[1], "").unwrap();
    fs::set_permissions(&names[1], fs::Permissions::from_mode(0o444)).unwrap();
    fs::write(names[2].join("own"), "").unwrap();
    sweep(&scene.registry);
    assert!(names[0].is_dir() && names[1].is_file() && names[2].join("own").is_file() && scene.lists() == 0);
}

/// The process that made a name was killed before it could say which file it is.
/// A sandbox that lives keeps the names in its own home, and none in another.
#[test]
fn homes_have_lists_of_their_own() {
    let scene = Scene::new();
    let homes = ["one", "two"].map(|name| scene.base.join(name));
    homes.iter().for_each(|home| fs::create_dir(home).unwrap());
    let [one, two] = homes.each_ref().map(|home| home.join("made"));
    let start = |home: &Path, name: &Path| {
        Janitor::start_for((&scene.project, home), &[directory(name)], &[], &scene.registry).unwrap().unwrap()
    };
    let first = start(&homes[0], &one);
    let second = start(&homes[1], &two);
    // A name that a sandbox with another home made.
    let third = start(&homes[1], &one);
    drop(first);
    assert!(one.is_dir() && two.is_dir());
    drop(third);
    assert!(!one.exists() && two.is_dir());
    drop(second);
    assert!(!two.exists() && scene.lists() == 0);
}

#[test]
fn a_crash_while_names_are_made_leaves_none() {
    let scene = Scene::new();
    let (own, made) = (scene.project.join("own"), scene.project.join("made"));
    fs::create_dir(&own).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(hold(&scene.registry, &scene.project, &scene.home()).unwrap());
    let list = scene.registry.join("home");
    let stubs = [Cow::Owned(directory(&own)), Cow::Owned(directory(&made))];
    fs::write(&list, Making::new(stubs.iter()).entries).unwrap();
    fs::create_dir(&made).unwrap();
    sweep(&scene.registry);
    assert!(own.is_dir() && !made.exists() && scene.lists() == 0);
}

/// What cannot be removed stays on the list, with nothing else, and is removed when it can be.
#[test]
fn what_could_not_be_removed_is_tried_again() {
    let scene = Scene::new();
    let (busy, made) = (scene.base.join("busy"), scene.project.join("made"));
    fs::create_dir_all(busy.join("process")).unwrap();
    let groups = [busy.clone(), scene.base.join("gone")];
    drop(Lists::of_sandbox(&scene.registry, (&scene.project, &scene.home()), &[directory(&made)], &groups).unwrap());
    let length = || fs::read_dir(&scene.registry).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    let before = length();
    for _ in 0..2 {
        sweep(&scene.registry);
        assert!(busy.is_dir() && scene.lists() == 1 && length() > 0 && length() < before);
    }
    fs::remove_dir(busy.join("process")).unwrap();
    sweep(&scene.registry);
    assert!(!busy.exists() && scene.is_clean());
}

/// Many start and end at once, and each finds its name from its plan to its end.
#[test]
fn no_name_goes_under_a_sandbox_that_needs_it() {
    let scene = Scene::new();
    let names = ["a", "b", "b/c"].map(|name| scene.project.join(name));
    let runs = || {
        for n in 0..50 {
            let planning = hold(&scene.registry, &scene.project, &scene.home()).unwrap();
            let found = names[n % 3].exists();
            let janitor = scene.start(&names.each_ref().map(|name| directory(name)));
            drop(planning);
            assert!(names.iter().all(|name| name.is_dir()), "{n} {found}");
            drop(janitor);
        }
    };
    std::thread::scope(|scope| (0..8).map(|_| scope.spawn(runs)).for_each(drop));
    assert!(scene.is_clean());
}

/// The owner is killed. The sandbox ends a moment later, and must not find a name free until then.
#[test]
fn nothing_is_removed_before_the_sandbox_has_ended() {
    let scene = Scene::new();
    let made = scene.project.join("made");
    let mut sandbox = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut janitor = scene.start(&[directory(&made)]);
    janitor.wait_for(sandbox.id() as i32);
    drop(janitor.lifeline.take());
    std::thread::sleep(SETTLING + Duration::from_millis(300));
    assert!(made.is_dir());
    // Nor by another start.
    sweep(&scene.registry);
    assert!(made.is_dir());
    drop(sandbox.stdin.take());
    sandbox.wait().unwrap();
    drop(janitor);
    assert!(scene.is_clean());
}

#[test]
fn a_registry_elsewhere_when_the_name_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let uid = rustix::process::getuid().as_raw();
    let place = dir.path().join(format!("ringfence-{uid}"));
    let found = || registry::in_shared(dir.path(), uid);
    assert_eq!(found(), place);
    fs::create_dir(&place).unwrap();
    assert_eq!(found(), place);
    fs::remove_dir(&place).unwrap();
    std::os::unix::fs::symlink("/elsewhere", &place).unwrap();
    let home = crate::facts::account_home(uid);
    assert_eq!(found(), home.map_or(place, |home| home.join(".ringfence-placeholders")));
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("boxes");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(own_directory(&place), Err(JanitorError::NotOurs(_))));
}
