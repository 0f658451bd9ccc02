//! Lists of stand-ins: who needs what, and what goes when.

use super::*;

fn stub(path: &Path, kind: Kind, text: &str) -> Stub {
    Stub { path: path.to_path_buf(), kind, text: text.to_owned(), present: false }
}

#[test]
fn a_list_is_searched_by_whole_names() {
    let list = b"d/a/b\x002/a/c\0g/group\0";
    assert!(lists(list, b"/a/b") && lists(list, b"/a/c") && lists(list, b"/group"));
    assert!(!lists(list, b"/a") && !lists(list, b"/a/b/c") && !lists(list, b""));
    assert!(lists_below(list, b"/a") && !lists_below(list, b"/a/b") && !lists_below(list, b"/g"));
}

#[test]
fn names_are_there_while_a_box_lives() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let registry = base.join("registry");
    let (made, own) = (base.join("made"), base.join("own"));
    fs::create_dir(&own).unwrap();
    let stubs = [stub(&made, Kind::Dir, ""), stub(&base.join("text"), Kind::File, ".\n"), stub(&own, Kind::Dir, "")];
    let first = Keeper::start(&stubs, &[], &registry).unwrap();
    assert!(made.is_dir() && base.join("text").is_file());
    let second = Keeper::start(&stubs[..1], &[], &registry).unwrap();
    drop(first);
    // The second needs one of them, and what the user had is nobody's to remove.
    assert!(made.is_dir() && own.is_dir() && !base.join("text").exists());
    drop(second);
    assert!(!made.exists() && own.is_dir() && !registry.exists());
}

/// Boxes of two users have lists that neither can read of the other; as two registries here.
#[test]
fn a_name_stays_while_a_box_of_another_user_needs_it() {
    for first_ends_first in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let registries = [base.join("one"), base.join("two")];
        let (name, above) = (base.join("above/text"), base.join("above"));
        let own = base.join("own");
        fs::create_dir(&own).unwrap();
        let missing = [stub(&above, Kind::Dir, ""), stub(&name, Kind::File, ".\n"), stub(&own, Kind::Dir, "")];
        let first = Keeper::start(&missing, &[], &registries[0]).unwrap();
        // Planned when the first lived: what it made is there, and the directory above is no stub any more.
        let second = Keeper::start(&missing[1..], &[], &registries[1]).unwrap();
        let (ends, stays) = if first_ends_first { (first, second) } else { (second, first) };
        drop(ends);
        assert!(name.is_file() && own.is_dir());
        drop(stays);
        assert!(!name.exists() && !above.exists() && own.is_dir());
        registries.iter().for_each(|registry| sweep(registry));
        assert!(registries.iter().all(|registry| !registry.exists()));
    }
}

/// Whoever plans a box while another user's ends must not take a stand-in for the user's own: it would go under that box.
#[test]
fn a_name_is_held_until_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let registry = base.join("registry");
    let names = [base.join("directory"), base.join("file")];
    let stubs = [stub(&names[0], Kind::Dir, ""), stub(&names[1], Kind::File, "")];
    let mut keeper = Keeper::start(&stubs, &[], &registry).unwrap().unwrap();
    assert!(names.iter().all(|name| is_needed(name)));
    // Its keeper cannot begin to clear up.
    let lock = fs::File::options().read(true).write(true).open(registry.join("lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    keeper.tell();
    assert!(names.iter().all(|name| name.exists() && is_needed(name)));
    drop(lock);
    drop(keeper);
    assert!(names.iter().all(|name| !name.exists()));
}

/// Anybody may lock anything: it is no stand-in for that, and nobody waits for it.
#[test]
fn locks_of_strangers_change_nothing() {
    for lock in [FlockOperation::LockExclusive, FlockOperation::LockShared] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (project, registry) = (base.join("project"), base.join("registry"));
        fs::create_dir(&project).unwrap();
        fs::write(project.join("file"), "").unwrap();
        let stranger = fs::File::open(&project).unwrap();
        rustix::fs::flock(&stranger, lock).unwrap();
        let started = std::time::Instant::now();
        let keeper = Keeper::start(&[stub(&project.join("made"), Kind::Dir, "")], &[], &registry).unwrap();
        assert!(project.join("made").is_dir() && started.elapsed() < std::time::Duration::from_millis(900));
        drop(stranger);
        drop(keeper);
        assert!(project.join("file").exists() && !project.join("made").exists() && !registry.exists());
    }
}

/// Another box's directory was there when this box was planned, and has gone with it since.
#[test]
fn a_directory_that_went_since_planning_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let stubs = [stub(&base.join("a/b/c"), Kind::Dir, ""), stub(&base.join("a/b/d"), Kind::File, "")];
    let keeper = Keeper::start(&stubs, &[], &base.join("registry")).unwrap();
    assert!(base.join("a/b/c").is_dir() && base.join("a/b/d").is_file());
    drop(keeper);
    assert!(!base.join("a").exists());
}

#[test]
fn what_a_crash_left_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let registry = base.join("registry");
    own_directory(&registry).unwrap();
    let left = base.join("left");
    fs::create_dir(&left).unwrap();
    // Listed by a box of which nobody holds the lock any more.
    let mut entry = b"d".to_vec();
    entry.extend_from_slice(left.as_os_str().as_bytes());
    entry.push(0);
    fs::write(registry.join("box-1-0"), entry).unwrap();
    sweep(&registry);
    assert!(!left.exists() && !registry.exists());
}

/// A box that lives when a sweep begins and ends in the middle of it: its names and its list stay for its own keeper.
#[test]
fn a_box_that_ends_during_a_sweep_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (place, left) = (base.join("registry"), base.join("left"));
    own_directory(&place).unwrap();
    fs::create_dir(&left).unwrap();
    let list = place.join("box-1-0");
    fs::write(&list, [b"d", left.as_os_str().as_bytes(), b"\0"].concat()).unwrap();
    let lives = fs::File::open(&list).unwrap();
    rustix::fs::flock(&lives, FlockOperation::LockExclusive).unwrap();

    let (path, mut memory) = (c_path(&place).unwrap(), Memory::new().unwrap());
    let mut registry = Registry::open(&path, &mut memory).unwrap();
    registry.look_at(c"box-1-0", None, Round::Living, &mut Patience::default());
    drop(lives);
    registry.look_at(c"box-1-0", None, Round::Remove, &mut Patience::default());
    registry.look_at(c"box-1-0", None, Round::Forget, &mut Patience::default());
    registry.close();
    assert!(left.is_dir() && list.is_file());
    sweep(&place);
    assert!(!left.exists() && !place.exists());
}

/// Boxes of one project need the same names: a thousand of them are no more to search than one.
#[test]
fn equal_lists_are_remembered_once() {
    let mut memory = Memory::new().unwrap();
    for (name, list) in [
        (c"box-1-0", b"d/a\x002/b\0g/group/one\0".as_slice()),
        (c"box-1-1", b"d/a\x002/b\0g/group/two\0"),
        (c"box-1-2", b"d/a\0"),
        (c"box-1-3", b"d/a\0"),
    ] {
        memory.list[..list.len()].copy_from_slice(list);
        memory.add(name, list.len());
    }
    assert_eq!(memory.names.bytes(), b"d/a\x002/b\0d/a\0");
    assert!(lists(memory.boxes.bytes(), b"/group/one") && lists(memory.boxes.bytes(), b"box-1-3") && !memory.full);
    memory.boxes.length = LIVING_LIMIT - 5;
    memory.add(c"box-1-4", 0);
    assert!(memory.full);
}

#[test]
fn a_list_elsewhere_when_the_name_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let uid = rustix::process::getuid().as_raw();
    let place = dir.path().join("boxes");
    assert_eq!(shared(place.clone(), uid), place);
    fs::create_dir(&place).unwrap();
    assert_eq!(shared(place.clone(), uid), place);
    fs::remove_dir(&place).unwrap();
    std::os::unix::fs::symlink("/elsewhere", &place).unwrap();
    let other = shared(place.clone(), uid);
    let home = crate::facts::account_home(uid);
    assert_eq!(other, home.map_or(place, |home| home.join(".ringfence-boxes")));
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("boxes");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(own_directory(&place), Err(KeeperError::NotOurs(_))));
}
