//! Each limit, read back from the daemon and felt by a program inside.

use crate::support::{Scene, docker, skip};

#[test]
fn limits_are_set_and_felt() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    scene.layer.memory("64m").unwrap();
    scene.layer.cpus("0.5").unwrap();
    scene.layer.pids("20").unwrap();
    scene.layer.files("40").unwrap();
    scene.layer.tmp_size("1m").unwrap();
    scene.layer.tmp_inodes("64").unwrap();
    let mut live = scene.start().unwrap();

    let id = live.id().to_owned();
    let ask = |what: &str| docker(&["inspect", "-f", &format!("{{{{json .HostConfig.{what}}}}}"), &id]).1;
    assert_eq!(ask("Memory"), "67108864");
    assert_eq!(ask("MemorySwap"), "67108864");
    assert_eq!(ask("NanoCpus"), "500000000");
    assert_eq!(ask("PidsLimit"), "25");
    assert_eq!(ask("CapDrop"), r#"["ALL"]"#);
    assert_eq!(ask("NetworkMode"), r#""none""#);
    assert_eq!(ask("ReadonlyRootfs"), "true");
    assert_eq!(ask("Privileged"), "false");
    assert_eq!(ask("AutoRemove"), "true");
    assert_eq!(ask("LogConfig.Type"), r#""none""#);
    assert!(ask("SecurityOpt").contains("no-new-privileges"));
    assert!(ask("SecurityOpt").contains("SCMP_ACT_ERRNO"));

    // Memory: the one that is over it ends, and the guest stays.
    let ran = live.sh("head -c 200000000 /dev/zero | tail");
    assert_ne!(ran.code(), 0, "{ran:?}");
    assert!(live.sandbox.as_ref().unwrap().usage().killed_for_memory > 0);
    assert_eq!(live.sh("echo alive").stdout, "alive\n");

    // Processes.
    let ran = live.sh("i=0; while [ $i -lt 40 ]; do sleep 1 & i=$((i+1)); done; wait");
    assert!(ran.stderr.contains("can't fork"), "{ran:?}");
    // What it left behind ends by itself.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(live.sh("i=0; while [ $i -lt 10 ]; do sleep 0.1 & i=$((i+1)); done; wait; echo ok").stdout, "ok\n");

    // Open files, of a command; the guest has more.
    assert_eq!(live.sh("ulimit -n; ulimit -Hn; ulimit -c").stdout, "40\n40\n0\n");

    // Space: bytes and names.
    let ran = live.sh("head -c 500000 /dev/zero >/tmp/a && echo fits; head -c 2000000 /dev/zero >/tmp/b; rm /tmp/*");
    assert!(ran.stdout.contains("fits") && ran.stderr.contains("I/O error"), "{ran:?}");
    let ran = live.sh(
        "i=0; while [ $i -lt 100 ]; do touch /tmp/$i 2>/dev/null || break; i=$((i+1)); done; echo $i; rm -f /tmp/*",
    );
    let made: u32 = ran.stdout.trim().parse().unwrap();
    assert!((40..65).contains(&made), "{ran:?}");

    // Processors: in two seconds two busy loops have one second of processor time, where alone they would have more.
    let ran = live.sh("b() { while :; do :; done; }; b & b & sleep 2; kill %1 %2; wait; times >/tmp/t; tail -1 /tmp/t");
    let seconds = |text: &str| text.split('m').nth(1).and_then(|s| s.trim_end_matches('s').parse::<f64>().ok());
    let used: f64 = ran.stdout.split_whitespace().filter_map(seconds).sum();
    assert!((0.2..1.6).contains(&used), "{used} {ran:?}");
    live.finish();
}

#[test]
fn walls_of_a_container() {
    if skip() {
        return;
    }
    let scene = Scene::new("skill");
    let mut live = scene.start().unwrap();
    let status = live.sh("grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Groups)' /proc/self/status").stdout;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    // The root and what was mounted for us cannot be changed, and /tmp of a skill executes nothing.
    for script in ["touch /x", "touch /dev/ringfence/x", "rm /dev/ringfence/guest", "touch /etc/x", "mkdir /proc/x"] {
        assert_ne!(live.sh(script).code(), 0, "{script}");
    }
    let ran = live.sh("cp /bin/busybox /tmp/x && chmod +x /tmp/x && /tmp/x true");
    assert!(ran.stderr.contains("Permission denied"), "{ran:?}");
    assert_ne!(live.sh("mount -t tmpfs x /tmp").code(), 0);
    assert!(live.sh("unshare -U true; echo $?").stdout.contains('1'));
    // Nothing of the daemon or of the host is there.
    assert_eq!(live.sh("ls /var/run/docker.sock /run/docker.sock /workspace 2>/dev/null | wc -l").stdout.trim(), "0");
    let ran = live.sh("ls -A /run; ls /dev; hostname; ls /proc | grep -c '^[0-9]'");
    println!("{}", ran.stdout);
    // The guest cannot be read or ended by what runs beside it.
    let ran = live.sh("kill -9 1; cat /proc/1/environ; ls /proc/1/fd; ls -l /dev/ringfence");
    println!("{ran:?}");
    assert!(ran.stderr.contains("'/proc/1/environ': Permission denied"), "{ran:?}");
    assert_eq!(live.sh("ls /dev/ringfence/channel").code(), 1);
    assert_eq!(live.sh("echo still there").stdout, "still there\n");
    live.finish();
}
