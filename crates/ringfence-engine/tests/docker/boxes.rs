//! A box from its making to its end.

use crate::support::{Scene, docker, skip};

#[test]
fn a_command_in_a_container() {
    if skip() {
        return;
    }
    let scene = Scene::new("shell");
    std::fs::write(scene.project.join("hello"), "from outside\n").unwrap();
    let mut live = scene.start().unwrap();
    let ran = live.sh(
        "cat hello; echo from inside >made; id -u; id -g; pwd; echo $PATH; cat /proc/1/comm; echo oops >&2; exit 7",
    );
    assert_eq!(ran.code(), 7, "{ran:?}");
    assert_eq!(ran.stderr, "oops\n");
    println!("{}", ran.stdout);
    assert!(ran.stdout.starts_with("from outside\n1000\n1000\n/workspace\n"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(scene.project.join("made")).unwrap(), "from inside\n");
    let id = live.id().to_owned();
    assert_eq!(scene.containers(), std::slice::from_ref(&id));
    // What it is called, and what it says of itself.
    let (_, name) = docker(&["inspect", "-f", "{{.Name}}", &id]);
    let digits = name.strip_prefix("/ringfence-shell-").unwrap_or_default();
    assert!(digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
    for label in ["owner", "proof", "purpose", "session", "profile", "policy", "created", "version"] {
        let (_, value) =
            docker(&["inspect", "-f", &format!("{{{{index .Config.Labels \"ringfence.{label}\"}}}}"), &id]);
        assert!(!value.is_empty() && value != "<no value>", "{label}");
    }
    live.finish();
    assert_eq!(scene.containers(), [""; 0]);
    assert!(!docker(&["inspect", &id]).0);
}

#[test]
fn fifty_at_once() {
    if skip() {
        return;
    }
    let scene = Scene::new("skill");
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..50)
            .map(|n| {
                let scene = &scene;
                scope.spawn(move || {
                    let mut live = scene.start().unwrap();
                    let ran = live.sh(&format!("echo {n}"));
                    live.finish();
                    assert_eq!(ran.stdout, format!("{n}\n"));
                })
            })
            .collect();
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
    println!("50 boxes in {:?}", started.elapsed());
    assert_eq!(scene.containers(), [""; 0]);
    assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
}

#[test]
fn a_container_that_ends_at_once() {
    if skip() {
        return;
    }
    // The guest cannot be executed from where it lies: an error, at once, and nothing is left.
    let scene = Scene::new("skill");
    let mut plan = scene.plan();
    let (state, keys) = (&scene.state, &scene.keys);
    let about = ringfence_engine::engines::About { session: "s-0", name: None, profile: "skill", state, keys };
    let start = ringfence_engine::engines::docker::container::start_guest;
    let made = start(&mut plan, &scene.facts, b"not a program", about);
    let error = made.err().unwrap().to_string();
    println!("{error}");
    assert_eq!(scene.containers(), [""; 0]);
    assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
}
