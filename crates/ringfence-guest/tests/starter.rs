//! The starter, run the way a builder does, with the descriptors that it expects.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use ringfence_linux::sys::starter::{COMMAND, GUEST, PATH};

fn start(limits: &[(u32, u64)], args: &str) -> (String, Option<i32>, Vec<u8>) {
    start_as(COMMAND, limits, args)
}

fn start_as(how: &str, limits: &[(u32, u64)], args: &str) -> (String, Option<i32>, Vec<u8>) {
    let (report, table) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let bytes =
        limits.iter().flat_map(|(resource, value)| [&resource.to_ne_bytes()[..], &value.to_ne_bytes()].concat());
    std::fs::write(table.path(), bytes.collect::<Vec<u8>>()).unwrap();
    let script = format!(
        "exec 7<{program} 8<{table} 3>{report} 4</dev/null 5>&1 6>&2 9</dev/null 10</dev/null >/dev/null 2>&1; exec {PATH} {how} {args}",
        program = env!("CARGO_BIN_EXE_ringfence-guest"),
        table = table.path().display(),
        report = report.path().display()
    );
    let out = std::process::Command::new("/bin/bash").args(["-c", &script]).output().unwrap();
    (String::from_utf8(out.stdout).unwrap(), out.status.code(), std::fs::read(report.path()).unwrap())
}

#[test]
fn becomes_the_command() {
    let (out, code, report) = start(&[], "/bin/sh name -c 'echo $0 $1; ls /proc/self/fd; exit 7' a b");
    assert_eq!(out, "a b\n0\n1\n2\n3\n", "3 is the directory that ls reads");
    assert_eq!(code, Some(7));
    assert_eq!(report, 0u32.to_ne_bytes());
}

#[test]
fn stays_as_the_parent_of_a_command_and_becomes_a_guest() {
    let (out, ..) = start(&[], "/bin/sh sh -c 'cat /proc/$PPID/comm'");
    assert_eq!(out, "ringfence\n");
    let (out, code, _) = start_as(GUEST, &[], "/bin/sh sh -c 'cat /proc/$PPID/comm; exit 3'");
    assert_ne!(out, "ringfence\n");
    assert_eq!(code, Some(3));
}

#[test]
fn a_signal_is_a_status_as_of_a_shell() {
    let (_, code, _) = start(&[], "/bin/sh sh -c 'kill -USR1 $$'");
    assert_eq!(code, Some(128 + libc::SIGUSR1));
}

#[test]
fn sets_limits() {
    let (out, ..) =
        start(&[(libc::RLIMIT_NOFILE as _, 33), (libc::RLIMIT_CORE as _, 0)], "/bin/sh sh -c 'ulimit -n; ulimit -c'");
    assert_eq!(out, "33\n0\n");
}

#[test]
fn says_why_it_cannot() {
    let (_, code, report) = start(&[], "/no/such/program x");
    assert_eq!(code, Some(125));
    assert_eq!(report, [0u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat());
}

#[test]
fn gives_plain_scripts_to_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "echo plain $0 $1\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (out, code, _) = start(&[], &format!("{} name one", script.display()));
    assert_eq!((out, code), (format!("plain {} one\n", script.display()), Some(0)));
}
