//! The network that boxes share. One at a time: there is one of its name.

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard};

use ringfence_engine::engines::docker::DockerError;
use ringfence_engine::policy::policy::Network;

use crate::dockerd::{Between, Meddle, Private};
use crate::support::{Live, Scene, as_docker, docker, skip};

const NAME: &str = "ringfence-bridge";

/// Only one test has the network.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    docker(&["network", "rm", NAME]);
    guard
}

fn scene() -> Scene {
    let mut scene = Scene::new("shell");
    scene.layer.network_kind(Network::Bridge);
    scene
}

fn address(live: &mut Live) -> String {
    live.sh("ip -4 -o addr show eth0 | sed 's/.*inet //;s,/.*,,'").stdout.trim().to_owned()
}

#[test]
fn boxes_reach_neither_each_other_nor_this_host() {
    if skip() || !rustix::process::geteuid().is_root() {
        return;
    }
    let _alone = alone();
    let (one, two) = (scene(), scene());
    let (mut a, mut b) = (one.start().unwrap(), two.start().unwrap());
    let (at, gateway) = (address(&mut a), a.sh("ip route | sed -n 's/default via //p' | cut -d' ' -f1").stdout);
    assert!(!at.is_empty() && !gateway.trim().is_empty(), "{at} {gateway}");
    // A service of this host, at every address of it.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"served\n");
        }
    });
    // It is there for whoever is on the host.
    assert!(std::net::TcpStream::connect((gateway.trim(), port)).is_ok());
    let ran = a.sh(&format!("timeout 3 nc {} {port} </dev/null", gateway.trim()));
    assert!(ran.code() != 0 && !ran.stdout.contains("served"), "{ran:?}");
    // A service of a box: its own, and nobody else's.
    let ran = a.sh(
        "(echo served | timeout 10 nc -l -p 7777 >/dev/null) & sleep 0.3; timeout 2 nc 127.0.0.1 7777 </dev/null; true",
    );
    assert!(ran.stdout.contains("served"), "{ran:?}");
    a.sh("(while :; do echo served | timeout 20 nc -l -p 7778; done) >/dev/null 2>&1 &");
    let ran = b.sh(&format!("timeout 3 nc {at} 7778 </dev/null"));
    assert!(ran.code() != 0 && !ran.stdout.contains("served"), "{ran:?}");
    let ran = b.sh("timeout 3 nc 169.254.169.254 80 </dev/null; ip -6 -o addr | grep -v ' lo '");
    assert_eq!(ran.stdout, "", "{ran:?}");
    a.finish();
    b.finish();
    docker(&["network", "rm", NAME]);
}

#[test]
fn made_once_kept_and_made_again() {
    if skip() || !rustix::process::geteuid().is_root() {
        return;
    }
    let _alone = alone();
    let scene = scene();
    scene.start().unwrap().finish();
    let id = || docker(&["network", "inspect", "-f", "{{.Id}}", NAME]).1;
    let first = id();
    scene.start().unwrap().finish();
    assert_eq!(id(), first);
    // Removed behind our back: noticed, and made again.
    assert!(docker(&["network", "rm", NAME]).0);
    scene.start().unwrap().finish();
    assert_ne!(id(), first);
    docker(&["network", "rm", NAME]);
}

#[test]
fn a_stranger_has_the_name() {
    if skip() || !rustix::process::geteuid().is_root() {
        return;
    }
    let _alone = alone();
    assert!(docker(&["network", "create", NAME]).0);
    let refused = scene().start().err().unwrap();
    let Some(DockerError::ForeignNetwork { difference, .. }) = as_docker(&refused) else { panic!("{refused:?}") };
    assert_eq!(difference, "its labels are not ours");
    docker(&["network", "rm", NAME]);
    // With our labels, but open between boxes.
    let label = |key: &str, value: &str| format!("ringfence.{key}={value}");
    let (owner, purpose) = (label("owner", "shared"), label("purpose", "network"));
    assert!(docker(&["network", "create", "--label", &owner, "--label", &purpose, NAME]).0);
    let refused = scene().start().err().unwrap();
    assert!(matches!(as_docker(&refused), Some(DockerError::ForeignNetwork { .. })), "{refused:?}");
    assert!(docker(&["network", "rm", NAME]).0, "it is left as it was");
}

#[test]
fn many_at_once_make_one() {
    if skip() || !rustix::process::geteuid().is_root() {
        return;
    }
    let _alone = alone();
    let mut scene = scene();
    let between = Between::start(|_| Meddle::PassOn);
    scene.at(&between.host());
    let all_there = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let live = scene.start().unwrap();
                all_there.wait();
                let found = docker(&["network", "ls", "-q", "--filter", &format!("name={NAME}")]).1;
                live.finish();
                assert_eq!(found.lines().count(), 1);
            });
        }
    });
    // One looked, and made it; nobody asked again, and neither does who comes later.
    scene.start().unwrap().finish();
    assert_eq!(between.count("/networks/create"), 1);
    assert_eq!(between.count("/networks/ringfence-bridge"), 1);
    docker(&["network", "rm", NAME]);
}

#[test]
fn no_addresses_are_left() {
    if skip() || !rustix::process::geteuid().is_root() {
        return;
    }
    let _alone = alone();
    let private = Private::start(&["--default-address-pool", "base=10.203.77.0/28,size=28"]);
    let mut scene = Scene::at_private("shell", &private);
    scene.layer.network_kind(Network::Bridge);
    assert!(private.docker(&["network", "create", "taken"]).0);
    let refused = scene.start().err().unwrap();
    let Some(error @ DockerError::NoAddresses { .. }) = as_docker(&refused) else { panic!("{refused:?}") };
    assert!(format!("{:?}", error.cures()).contains("docker network prune"));
    // And when there are some again, it works.
    assert!(private.docker(&["network", "rm", "taken"]).0);
    scene.start().unwrap().finish();
    assert!(private.docker(&["network", "rm", NAME]).0);
}
