//! The daemon is absent, closed, slow, restarted, out of disk, or kills behind our back. A private one plays these parts.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use ringfence_engine::engines::docker::{DockerError, Step};
use ringfence_engine::policy::Guarantee;

use crate::dockerd::{Between, IMAGE, Meddle, Private, short};
use crate::support::{Scene, as_docker, docker, docker_error, skip};

fn root() -> bool {
    !skip() && rustix::process::geteuid().is_root()
}

#[test]
fn nobody_is_there_or_may_be_asked() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    let mut at = |host: &str| {
        scene.facts.env.insert("DOCKER_HOST".into(), host.into());
        docker_error(scene.start().err().unwrap())
    };
    assert!(matches!(at("unix:///nonexistent/docker.sock"), DockerError::Absent(_)));
    assert!(matches!(at("tcp://127.0.0.1:2375"), DockerError::Address(_)));
    // A socket without a listener, as a daemon that was killed leaves.
    let dir = short();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(at(&format!("unix://{}", path.display())), DockerError::Absent(_)));
}

#[test]
fn a_socket_that_is_closed_to_us() {
    if !root() {
        return;
    }
    // As another user, whom the socket is closed to.
    let dir = short();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let answer = std::thread::spawn(move || {
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(
            rustix::process::Uid::ROOT,
            rustix::process::Uid::from_raw(65534),
            rustix::process::Uid::ROOT,
        )
        .unwrap();
        ringfence_engine::engines::docker::Daemon::at(&path).err()
    });
    let error = answer.join().unwrap().unwrap();
    assert!(matches!(error, DockerError::Permission(_)), "{error:?}");
    assert!(format!("{:?}", error.cures()).contains("group"));
}

#[test]
fn a_daemon_that_does_not_answer() {
    if skip() {
        return;
    }
    // Not at all: known in seconds, and so for everybody who asks.
    let mut scene = Scene::new("shell");
    let between = Between::start(|_| Meddle::Stall);
    scene.at(&between.host());
    let begun = Instant::now();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::Slow(Step::Ask)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    // In the middle: a minute for one call, and what was made is removed.
    let between = Between::start(|line| if line.contains("/start") { Meddle::Stall } else { Meddle::PassOn });
    scene.at(&between.host());
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::Slow(Step::StartContainer)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(150), "{:?}", begun.elapsed());
    assert_eq!(scene.containers(), [""; 0]);
    assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
    // The next call works when the daemon does.
    scene.facts.env.remove(std::ffi::OsStr::new("DOCKER_HOST"));
    scene.start().unwrap().finish();
}

#[test]
fn a_daemon_that_maps_ids() {
    if !root() {
        return;
    }
    let Ok(subordinate) = std::fs::read_to_string("/etc/subuid") else { return };
    let of = |line: &str| Some(line.strip_prefix("ringfence-test:")?.split(':').next()?.parse::<u32>().unwrap());
    let Some(first) = subordinate.lines().find_map(of) else {
        eprintln!("SKIP a daemon that maps ids: ringfence-test has no ids to map to");
        return;
    };
    let private = Private::start(&["--userns-remap=ringfence-test"]);
    let scene = Scene::at_private("shell", &private);
    // The box's 1000 is another one outside: the working directory must be that one's.
    std::os::unix::fs::chown(&scene.project, Some(first + 1000), Some(first + 1000)).unwrap();
    let (_, report) =
        ringfence_engine::select(&ringfence_engine::engines::docker::ENGINE.into(), &scene.plan(), &scene.facts)
            .unwrap();
    let answer = report.guarantees.iter().find(|answer| answer.id == Guarantee::ProcUnprivileged).unwrap();
    assert!(answer.by.contains("maps ids"), "{answer:?}");
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("id -u; echo inside >made; cat made").stdout, "1000\ninside\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", live.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{0}\t{0}", first + 1000)), "{status}");
    assert_eq!(std::fs::metadata(scene.project.join("made")).unwrap().uid(), first + 1000);
    live.finish();
}

#[test]
fn a_daemon_that_stops_and_comes_back() {
    if !root() {
        return;
    }
    let mut private = Private::start(&[]);
    let scene = Scene::at_private("shell", &private);
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("echo here").stdout, "here\n");
    // It takes its containers with it: the guest's socket closes, and the end of the box is an error, not a hang.
    private.stop();
    let started = Instant::now();
    let gone = docker_error(scene.start().err().unwrap());
    assert!(matches!(gone, DockerError::Absent(_)), "{gone:?}");
    let ended = live.sandbox.take().unwrap().finish();
    assert!(matches!(ended.as_ref().err().and_then(as_docker), Some(DockerError::Absent(_))), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // When it is back, the next call works, and nothing of the old one is left.
    private.run();
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("echo again").stdout, "again\n");
    let id = live.id().to_owned();
    let cleared = scene.clear(true);
    assert_eq!(cleared, [""; 0]);
    assert!(private.docker(&["inspect", &id]).0);
    live.finish();
    assert_eq!(private.docker(&["ps", "-aq"]).1, "");
}

#[test]
fn meddled_with_behind_our_back() {
    if skip() {
        return;
    }
    for act in [&["kill"][..], &["pause"], &["stop", "-t", "0"], &["rm", "-f"], &["rename"]] {
        let scene = Scene::new("shell");
        let live = scene.start().unwrap();
        let other = format!("rf-renamed-{}", &live.id()[..12]);
        let mut args = [act, &[live.id()]].concat();
        args.extend((act[0] == "rename").then_some(other.as_str()));
        assert!(docker(&args).0, "{act:?}");
        // Gone already is what is wanted.
        live.finish();
        assert_eq!(scene.containers(), [""; 0], "{act:?}");
    }
}

#[test]
fn one_that_cannot_be_removed_is_reported() {
    if skip() {
        return;
    }
    // As a daemon answers whose disk has failed under a container.
    const NO: &[u8] = b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"message\":\"no\"}";
    let between = Between::start(|line| if line.starts_with("DELETE ") { Meddle::Answer(NO) } else { Meddle::PassOn });
    let mut scene = Scene::new("shell");
    scene.at(&between.host());
    let mut live = scene.start().unwrap();
    let begun = Instant::now();
    let stuck = docker_error(live.sandbox.take().unwrap().finish().err().unwrap());
    assert!(matches!(stuck, DockerError::Stuck(_)), "{stuck:?}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    // Forced more than once.
    assert!(between.count("force=true") > 1);
    // And found by its labels when the daemon is well, even where nothing is noted of it any more.
    scene.facts.env.remove(std::ffi::OsStr::new("DOCKER_HOST"));
    std::fs::remove_dir_all(&scene.state).unwrap();
    assert_eq!(scene.containers().len(), 1);
    assert_eq!(scene.clear(true), [""; 0]);
    assert_eq!(scene.clear(false), ["s-0123456789ab"]);
    assert_eq!(scene.containers(), [""; 0]);
    assert!(!scene.state.exists(), "looking makes nothing");
    drop(live);
}

#[test]
fn asked_once_and_not_for_each_box() {
    if skip() {
        return;
    }
    let between = Between::start(|_| Meddle::PassOn);
    let mut scene = Scene::new("skill");
    scene.at(&between.host());
    let begun = Instant::now();
    for _ in 0..3 {
        scene.start().unwrap().finish();
    }
    // Good for five seconds.
    let most = 1 + usize::try_from(begun.elapsed().as_secs()).unwrap() / 5;
    assert!((1..=most).contains(&between.count("/info ")), "{}", between.count("/info "));
}

#[test]
fn a_daemon_that_talks_nonsense() {
    if skip() {
        return;
    }
    const HUGE: usize = 32 << 20;
    let page: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<p/>";
    let list: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
    let cut: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\nConnection: close\r\n\r\n{";
    let huge = [b"HTTP/1.1 200 OK\r\nContent-Length: 33554432\r\n\r\n".to_vec(), vec![b'['; HUGE]].concat();
    let line = vec![b'x'; HUGE];
    for answer in [&b""[..], b"\0\xff\r\n\r\n", page, list, cut, &huge, &line] {
        let dir = short();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answer = answer.to_vec();
        let told = answer.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // Some ask, and some only look whether anybody is there.
                let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
                let _ = std::io::Write::write_all(&mut stream, &told);
            }
        });
        let mut scene = Scene::new("shell");
        scene.at(&format!("unix://{}", path.display()));
        let begun = Instant::now();
        let error = docker_error(scene.start().err().unwrap());
        let shown = error.to_string();
        assert!(begun.elapsed() < Duration::from_secs(30) && shown.len() < 4096, "{shown:.200}");
        assert!(
            matches!(error, DockerError::Gone { .. } | DockerError::Answer { .. } | DockerError::Slow(_)),
            "{:?}: {shown:.200}",
            String::from_utf8_lossy(&answer[..answer.len().min(40)])
        );
        // What it is was not learnt from this one: the next call works.
        scene.facts.env.remove(std::ffi::OsStr::new("DOCKER_HOST"));
        scene.start().unwrap().finish();
    }
}

#[test]
fn a_daemon_that_crashes_together_with_us() {
    if !root() {
        return;
    }
    let mut private = Private::start(&[]);
    let scene = Scene::at_private("shell", &private);
    let mut live = scene.start().unwrap();
    private.crash();
    assert_eq!(live.sh("echo alone").stdout, "alone\n", "a box needs no daemon");
    // Nothing is dropped, and the socket closes.
    std::mem::forget(live.sandbox.take());
    drop(live);
    private.run();
    scene.clear(false);
    assert_eq!(private.docker(&["ps", "-aq"]).1, "");
    assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
    scene.start().unwrap().finish();
}

#[test]
fn a_daemon_that_restarts_under_its_containers() {
    if !root() {
        return;
    }
    let mut private = Private::start(&["--live-restore"]);
    let scene = Scene::at_private("shell", &private);
    let mut live = scene.start().unwrap();
    private.stop();
    assert_eq!(live.sh("echo without").stdout, "without\n");
    // When it is back, Docker 20.10 ends what it is to remove; others leave it. Either way it can be ended, once.
    private.run();
    live.finish();
    assert_eq!(private.docker(&["ps", "-aq"]).1, "");
    scene.start().unwrap().finish();
}

#[test]
fn a_disk_that_is_full() {
    if !root() {
        return;
    }
    let private = Private::on_disk(Some("30m"), &["--storage-driver=vfs"]);
    let scene = Scene::at_private("shell", &private);
    scene.start().unwrap().finish();
    let filler = private.path("data/filler");
    let _ = Command::new("sh").arg("-c").arg(format!("cat /dev/zero >{} 2>/dev/null", filler.display())).status();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::DiskFull { .. }), "{error:?}");
    assert!(format!("{:?}", error.cures()).contains("make space"));
    // And when there is space again, it works.
    std::fs::remove_file(filler).unwrap();
    scene.start().unwrap().finish();
}

#[test]
fn no_image_and_no_registry() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    scene
        .layer
        .image("127.0.0.1:9/ringfence-test/nowhere@sha256:0000000000000000000000000000000000000000000000000000000000000000")
        .unwrap();
    let error = docker_error(scene.start().err().unwrap());
    assert!(matches!(error, DockerError::NoImage { .. }), "{error:?}");
    assert!(format!("{:?}", error.cures()).contains("docker load"), "{:?}", error.cures());
    // The standard image is never asked of a registry. (Where it was built, there is nothing to see.)
    if !docker(&["image", "inspect", "ringfence/standard:none"]).0 {
        scene.layer.image("ringfence/standard:none").unwrap();
        let error = docker_error(scene.start().err().unwrap());
        assert!(matches!(&error, DockerError::NoImage { source, .. } if source.status() == Some(404)), "{error:?}");
    }
    // Pinned by its own id, what was built here is found.
    let id = docker(&["image", "inspect", "-f", "{{.Id}}", IMAGE]).1;
    scene.layer.image(&format!("{IMAGE}@{id}")).unwrap();
    scene.start().unwrap().finish();
}

#[test]
fn what_a_crash_leaves_is_found_by_its_labels() {
    if skip() {
        return;
    }
    let scene = Scene::new("home");
    let mut scene = scene;
    scene.layer.network(false);
    // Of a run that was killed.
    docker(&["volume", "rm", "--force", "ringfence-home-rfcrash"]);
    let mut live = scene.start_named(Some("rfcrash")).unwrap();
    let id = live.id().to_owned();
    // Whoever made it is gone at once: nothing is dropped, and the socket closes.
    std::mem::forget(live.sandbox.take());
    drop(live);
    // The guest ends with its socket, the container with its guest, and the daemon removes it.
    let until = Instant::now() + Duration::from_secs(10);
    while !scene.containers().is_empty() {
        assert!(Instant::now() < until, "{id} is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    // What a daemon left that crashed as well: found by its labels, and by nobody else.
    let mut live = scene.start_named(Some("rfcrash")).unwrap();
    std::mem::forget(live.sandbox.take());
    let left = scene.containers();
    assert_eq!(left.len(), 1);
    let elsewhere = Scene::new("shell");
    elsewhere.start().unwrap().finish();
    elsewhere.clear(false);
    assert_eq!(scene.containers(), left);
    // Nor with another key: it may belong to another user with a directory of the same name.
    let keys = std::mem::replace(&mut scene.keys, elsewhere.keys.clone());
    scene.clear(false);
    assert_eq!(scene.containers(), left);
    scene.keys = keys;
    assert_eq!(scene.clear(false), ["s-0123456789ab"]);
    assert_eq!(scene.containers(), [""; 0]);
    drop(live);
    // Twice is as good as once.
    assert_eq!(scene.clear(false), [""; 0]);
    docker(&["volume", "rm", "ringfence-home-rfcrash"]);
}
