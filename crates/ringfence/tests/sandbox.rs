//! Sandboxes for one command, from async code: what comes, how it ends, what is recorded, and that nothing is left.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

use std::path::Path;
use std::time::{Duration, Instant};

use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::records::{Filter, Journal, Place, Record, Recorder, Redactor, Status, Store};
use ringfence::session::Exec;
use ringfence::supervise::Ended;
use ringfence::{EngineError, Event, Reason, Sandbox, SandboxError};

struct Host {
    dir: tempfile::TempDir,
    sandbox: Sandbox,
}

fn host(change: impl FnOnce(&mut Layer)) -> Host {
    let facts = ringfence::facts::gather().unwrap();
    let dir = tempfile::tempdir_in(&facts.home).unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let mut flags = Layer::flags();
    flags.profile("agent");
    change(&mut flags);
    let inputs = Inputs::new(work.canonicalize().unwrap(), facts.home.clone(), flags);
    let mut policy = layers::resolve(inputs).unwrap().policy;
    policy.optional.insert(ringfence::policy::Guarantee::KernelSecondWall);
    Host { dir, sandbox: Sandbox::new(policy, facts) }
}

fn plain() -> Host {
    host(|_| {})
}

impl Host {
    fn recorded(self) -> (Host, std::path::PathBuf) {
        let records = self.dir.path().join("records");
        let recorder = Recorder::new(&records, Redactor::default(), None);
        (Host { sandbox: self.sandbox.recorder(recorder), dir: self.dir }, records)
    }
}

fn recorded(records: &Path) -> Vec<Record> {
    let mut store = Store::open(&Place::File(records.join("records.db"))).unwrap();
    store.fold(&Journal::new(records)).unwrap();
    store.list(&Filter::default()).unwrap()
}

fn statuses(records: &Path) -> Vec<(Status, Option<u64>)> {
    recorded(records).into_iter().map(|record| (record.status, record.stdout.bytes)).collect()
}

/// Whether a process with this word in its command line is there.
fn runs(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        // A word of its own: a shell has it in its script before it runs that.
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
}

async fn until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn output_and_its_end() {
    let (host, records) = plain().recorded();
    let execution = host.sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"]).await.unwrap();
    assert_eq!(execution.report().engine, "native");
    assert!(execution.record().is_some());
    let output = execution.output().await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.exit_code(), output.outcome.reason), (Some(3), None));
    assert_eq!(statuses(&records), [(Status::Exited, Some(4))]);

    // Its output is in the record where that is asked for, and only there.
    let sandbox = host.sandbox.clone().record_output(true);
    sandbox.exec(["echo", "kept"]).await.unwrap().output().await.unwrap();
    let heads: Vec<_> = recorded(&records).into_iter().map(|record| record.stdout.head).collect();
    assert_eq!(heads, [Some("kept\n".to_owned()), None]);
}

#[tokio::test]
async fn events_come_while_it_runs_and_input_goes_in() {
    let host = plain();
    let mut execution = host.sandbox.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    for word in [&b"one"[..], b"two"] {
        execution.write(word).await.unwrap();
        assert_eq!(execution.next().await.unwrap(), Some(Event::Stdout(bytes::Bytes::copy_from_slice(word))));
    }
    execution.close_stdin().await.unwrap();
    let Some(Event::Ended(outcome)) = execution.next().await.unwrap() else { panic!("no end") };
    assert_eq!(outcome.ended, Ended::Exited(0));
    assert_eq!(execution.next().await.unwrap(), None);
    // Without input, there is none to wait for.
    let output = host.sandbox.exec(["cat"]).await.unwrap().output().await.unwrap();
    assert_eq!((output.exit_code(), output.stdout.len()), (Some(0), 0));
}

#[tokio::test]
async fn a_flood_is_bounded_and_many_run_at_once() {
    let host = plain();
    let one = async |n: usize| {
        let script = format!("head -c {} /dev/zero | tr '\\0' x", 3_000_000 + n);
        host.sandbox.exec(["sh", "-c", &script]).await.unwrap().output().await.unwrap()
    };
    let (a, b, c) = tokio::join!(one(1), one(2), one(3));
    for (n, output) in [(1, a), (2, b), (3, c)] {
        assert_eq!(output.exit_code(), Some(0));
        assert!(output.stdout.len() < 2 << 20, "{}", output.stdout.len());
        let kept = output.stdout.iter().filter(|byte| **byte == b'x').count() as u64;
        assert_eq!(kept + output.stdout_dropped, 3_000_000 + n);
    }
}

#[tokio::test]
async fn limits_end_it_with_what_it_printed() {
    let host = host(|flags| flags.timeout("300ms").unwrap());
    let output = host.sandbox.exec(["sh", "-c", "echo before; sleep 60"]).await.unwrap().output().await.unwrap();
    assert_eq!((output.outcome.reason, &output.stdout[..]), (Some(Reason::Time), &b"before\n"[..]));
}

#[tokio::test]
async fn stopped_signalled_and_dropped() {
    let (host, records) = plain().recorded();
    // Another user may run the same test at the same time.
    let [left, main, dropped] = [1, 2, 3].map(|n| format!("98{n}{}", std::process::id()));
    let script = format!("trap '' TERM; setsid sleep {left} & sleep {main}");
    let execution = host.sandbox.exec(["sh", "-c", &script]).await.unwrap();
    until(|| runs(&left)).await;
    execution.stop().await.unwrap();
    let output = execution.output().await.unwrap();
    assert_eq!((output.outcome.ended, output.outcome.reason), (Ended::Signaled(9), Some(Reason::Cancelled)));
    assert!(!runs(&left));

    let execution =
        host.sandbox.exec(["sh", "-c", "trap 'echo caught; exit 5' USR1; echo set; while :; do sleep 0.1; done"]);
    let mut execution = execution.await.unwrap();
    assert_eq!(execution.next().await.unwrap(), Some(Event::Stdout(bytes::Bytes::from_static(b"set\n"))));
    execution.signal(libc::SIGUSR1).await.unwrap();
    let output = execution.output().await.unwrap();
    assert_eq!((output.exit_code(), &output.stdout[..]), (Some(5), &b"caught\n"[..]));

    let execution = host.sandbox.exec(["sleep", &dropped]).await.unwrap();
    until(|| runs(&dropped)).await;
    drop(execution);
    until(|| !runs(&dropped)).await;
    let statuses: Vec<_> = statuses(&records).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [Status::Interrupted, Status::Exited, Status::Signaled]);
}

#[tokio::test]
async fn what_cannot_run_says_so_and_is_recorded() {
    let (host, records) = plain().recorded();
    let script = host.dir.path().join("work/script");
    std::fs::write(&script, "#!/nowhere\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let missing = host.sandbox.exec(["no-such-program-here"]).await.unwrap_err();
    let because = |error: &SandboxError, wanted: fn(&SandboxError) -> bool| match error {
        SandboxError::Recorded { error, .. } => assert!(wanted(error), "{error}"),
        error => panic!("not recorded: {error}"),
    };
    because(&missing, |error| matches!(error, SandboxError::Plan(_)));
    let error = host.sandbox.exec([&script]).await.unwrap().output().await.unwrap_err();
    because(&error, |error| matches!(error, SandboxError::Engine(EngineError::Execute { .. })));
    assert_eq!(statuses(&records), [(Status::Failed, None), (Status::Failed, None)]);
}

#[tokio::test]
async fn secrets_of_the_command_are_not_recorded() {
    let (host, records) = plain().recorded();
    let sandbox = host.sandbox.clone().record_output(true);
    let (token, word) = ("tr0ub4dor-and-3", "an-ordinary-word");
    for (name, value) in [("TOKEN", token), ("WORD", word)] {
        let output = sandbox.exec(Exec::new(["echo", value]).env(name, value)).await.unwrap().output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), value);
        // The message of a failure names the program.
        sandbox.exec(Exec::new([format!("no-{value}")]).env(name, value)).await.unwrap_err();
    }
    let found = format!("{:?}", recorded(&records));
    assert!(!found.contains(token) && found.matches(word).count() >= 4, "{found}");
}

#[tokio::test]
async fn a_program_is_looked_up_with_the_variables_and_from_the_directory_of_the_command() {
    let host = plain();
    let work = host.dir.path().join("work");
    std::fs::create_dir(work.join("sub")).unwrap();
    for (path, says) in [("run", "above"), ("sub/run", "below")] {
        std::fs::write(work.join(path), format!("#!/bin/sh\necho {says}\n")).unwrap();
        std::fs::set_permissions(work.join(path), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let with_path = |exec: Exec| exec.env("PATH", format!("{}:/usr/bin:/bin", work.join("sub").display()));
    for (exec, says) in [
        (Exec::new(["./run"]), "above\n"),
        (Exec::new(["./run"]).cwd("sub"), "below\n"),
        (with_path(Exec::new(["run"])), "below\n"),
        (with_path(Exec::new(["./run"])), "above\n"),
    ] {
        let output = host.sandbox.exec(exec).await.unwrap().output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), says);
    }
    host.sandbox.exec(["run"]).await.unwrap_err();
}

#[tokio::test]
async fn what_is_no_signal_is_refused_and_ends_nothing() {
    let host = plain();
    let mut execution = host.sandbox.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    for none in [0, -1, 65] {
        let refused = execution.signal(none).await.unwrap_err();
        assert!(matches!(refused, SandboxError::NoSignal(signal) if signal == none), "{refused}");
    }
    execution.close_stdin().await.unwrap();
    assert_eq!(execution.output().await.unwrap().exit_code(), Some(0));
}

#[tokio::test]
async fn a_time_that_never_ends_is_no_limit_and_one_above_the_ceiling_is_recorded() {
    let host = plain();
    let output = host.sandbox.exec(Exec::new(["true"]).timeout(Duration::MAX)).await.unwrap().output().await.unwrap();
    assert_eq!(output.exit_code(), Some(0));

    let (mut host, records) = host.recorded();
    let minute = Some(Duration::from_secs(60));
    host.sandbox.change(|resolved, _| resolved.policy.limits.timeout_ceiling = minute).unwrap();
    let refused = host.sandbox.exec(Exec::new(["true"]).timeout(Duration::MAX)).await.unwrap_err();
    assert!(matches!(refused, SandboxError::Recorded { .. }), "{refused}");
    assert_eq!(statuses(&records), [(Status::Failed, None)]);
}

#[test]
fn what_stands_in_front_of_programs_is_never_the_program_that_uses_the_library() {
    let program = |name: &str| ringfence::Host::here().unwrap().program(name).facts().unwrap().program;
    let real = |path: &str| std::fs::canonicalize(path).unwrap();
    assert_eq!(program("/bin/sh"), real("/bin/sh"));
    assert_eq!(program("/proc/self/exe"), real("/proc/self/exe"));
    assert_eq!(program("sh").file_name(), real("/bin/sh").file_name());
    assert!(program("no-such-program-here").as_os_str().is_empty());
    // Without a word about it, it is the one of `PATH`, if there is one.
    assert_ne!(ringfence::Host::here().unwrap().facts().unwrap().program, real("/proc/self/exe"));
}

#[test]
fn as_an_ordinary_user() {
    ringfence_testing::as_an_ordinary_user(&[]);
}
