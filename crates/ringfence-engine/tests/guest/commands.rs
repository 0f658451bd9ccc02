//! Commands: outputs, inputs, status, failures.

use ringfence_guest::message::{Reply, Request, Step};

use crate::host::Ended;
use crate::{Host, Place, everywhere};

everywhere! {
    answers
    status_and_outputs
    failures_are_told
    input_reaches_the_command
}

fn answers(place: Place) {
    let mut host = Host::new(place);
    for _ in 0..3 {
        host.ping();
    }
}

fn status_and_outputs(place: Place) {
    let mut host = Host::new(place);
    assert_eq!(
        host.sh("echo out; echo err >&2; exit 7"),
        Ended { code: 7, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() }
    );
    assert_eq!(host.sh("kill -9 $$").code, 137);
    assert_eq!(host.run(&["pwd"]).stdout, format!("{}\n", host.workdir.display()));
    assert_eq!(host.run(&["env"]).stdout, "PATH=/usr/bin:/bin\nHOME=/tmp\n");
    assert_eq!(host.run(&["ls", "/proc/self/fd"]).stdout, "0\n1\n2\n3\n", "3 is the directory that ls reads");
    assert_eq!(host.sh("ulimit -n; readlink /proc/self/fd/0").stdout, "77\n/dev/null\n");
    assert_eq!(host.sh("grep SigBlk /proc/self/status").stdout, "SigBlk:\t0000000000000000\n");
    let stream = host.start(&["sleep", "0.1"]);
    assert!(matches!(host.reply(stream), Reply::Started { pid } if pid > 0));
    assert!(matches!(host.reply(stream), Reply::Exited(_)));
}

fn failures_are_told(place: Place) {
    let mut host = Host::new(place);
    let failure = |host: &mut Host, argv: &[&str]| {
        let stream = host.start(argv);
        host.exited(stream).unwrap_err()
    };
    assert_eq!(failure(&mut host, &["no-such-program"]), (Step::Execute, libc::ENOENT));
    assert_eq!(failure(&mut host, &["/etc/passwd"]), (Step::Execute, libc::EACCES));
    assert_eq!(failure(&mut host, &[""]), (Step::Refuse, libc::EINVAL));
    let mut exec = host.command(&["true"]);
    exec.cwd = b"/no/such/place".to_vec();
    let stream = host.open(&Request::Exec(exec));
    assert_eq!(host.exited(stream).unwrap_err(), (Step::WorkingDirectory, libc::ENOENT));
    // A script without an interpreter line is given to the shell.
    let script = host.workdir.join("script");
    std::fs::write(&script, "echo plain $0 $1\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(host.run(&["./script", "one"]).stdout, "plain ./script one\n");
    assert_eq!(host.sh("true").code, 0);
}

fn input_reaches_the_command(place: Place) {
    let mut host = Host::new(place);
    let mut exec = host.command(&["wc", "-c"]);
    exec.stdin = true;
    let stream = host.open(&Request::Exec(exec));
    host.send(stream, &vec![7; 1_000_000]);
    host.end_input(stream);
    assert_eq!(host.end(stream).stdout, "1000000\n");
    // One that does not read it does not stop the host.
    let mut exec = host.command(&["sh", "-c", "exec <&-; sleep 0.2"]);
    exec.stdin = true;
    let stream = host.open(&Request::Exec(exec));
    host.send(stream, &vec![7; 1_000_000]);
    assert_eq!(host.end(stream).code, 0);
}
