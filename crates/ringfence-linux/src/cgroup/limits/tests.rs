use super::*;

#[test]
fn only_old_groups_of_nobody_are_swept() {
    let place = tempfile::tempdir().unwrap();
    // Higher than any number that a process can have.
    let (gone, here) = (u32::MAX, std::process::id());
    let old = [format!("ringfence-{gone}-1a2b-1"), format!("ringfence-{here}-1"), "ringfence-owner".to_owned()];
    let full = format!("ringfence-{gone}-3");
    for name in old.iter().chain([&full]) {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    fs::create_dir(place.path().join(&full).join("in it")).unwrap();
    let long_ago = std::time::SystemTime::now() - IN_THE_MAKING;
    for name in old.iter().chain([&full]) {
        fs::File::open(place.path().join(name)).unwrap().set_modified(long_ago).unwrap();
    }
    let young = format!("ringfence-{gone}-2");
    fs::create_dir(place.path().join(&young)).unwrap();
    Home::V2(place.path().to_path_buf()).sweep();
    let stays = |name: &String| place.path().join(name).exists();
    assert!(!stays(&old[0]));
    assert!(old[1..].iter().chain([&full, &young]).all(stays));
}

/// A group of which this process is the only one, in files: looking changes none of them, taking switches controllers on.
#[test]
fn looking_changes_no_group() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let files = |on: &str| {
        let own = std::process::id().to_string();
        for (name, text) in [("controllers", "cpu memory pids"), ("subtree_control", on), ("procs", own.as_str())] {
            fs::write(dir.join(format!("cgroup.{name}")), text).unwrap();
        }
    };
    let on = || fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap();
    files("");
    assert!(delegate(dir, true, false) && on().is_empty() && !dir.join(ASIDE).exists());
    assert!(delegate(dir, true, true) && on() == "+cpu +memory +pids");
    // With other processes in it, there is nothing to be had.
    files("");
    fs::write(dir.join("cgroup.procs"), "1\n2\n").unwrap();
    assert!(!delegate(dir, true, false) && on().is_empty());
}
