//! Sessions through the library: lifecycle, commands, time, background, files, ports.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::time::{Duration, Instant};

use ringfence::policy::Guarantee;
use ringfence::records::{Filter, Journal, Store};
use ringfence::session::{End, Event, Exec, ExecutionState, SessionError, Size, State};
use ringfence::{Ended, Reason};
use sessions::{Home, guest_of, kill, processes, running, seconds, sh, sleeping, supervisors, text, until};

#[tokio::test]
async fn made_used_by_both_names_and_ended() {
    let home = Home::new();
    let session = home.sessions.create(home.create().name("notes")).await.unwrap();
    let output = sh(&session, "echo out; echo err >&2; pwd; exit 3").await;
    assert_eq!(
        (text(&output.stdout), text(&output.stderr), output.exit_code()),
        ("out\n/workspace\n", "err\n", Some(3))
    );
    assert!(output.outcome.peak_memory > 0 && output.outcome.reason.is_none());

    // What one writes, another finds; and it is the caller's on the host.
    sh(&session, "echo kept > file").await;
    let by_name = home.sessions.open("notes").await.unwrap();
    let by_id = home.sessions.open(session.id()).await.unwrap();
    assert_eq!(text(&sh(&by_name, "cat file").await.stdout), "kept\n");
    assert_eq!(by_id.id(), by_name.id());
    let data = std::fs::metadata(home.place.project.join("file")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&data), rustix::process::getuid().as_raw());
    assert_eq!(text(&sh(&session, "id -u; id -g").await.stdout), "1000\n1000\n");

    let taken = home.sessions.create(home.create().name("notes")).await.unwrap_err();
    assert!(matches!(taken, SessionError::NameTaken(name) if name == "notes"));
    let info = home.sessions.info("notes").await.unwrap();
    assert_eq!((info.state, info.executions, info.running, info.profile.as_str()), (State::Live, 4, 0, "shell"));
    assert_eq!(home.sessions.list().await.unwrap().len(), 1);

    session.stop().await.unwrap();
    assert_eq!(supervisors(home.dir()), Vec::<i32>::new());
    let ended = home.sessions.open("notes").await.unwrap_err();
    assert!(matches!(ended, SessionError::Ended { end: End::Stopped, .. }), "{ended}");
    assert_eq!(home.sessions.info("notes").await.unwrap().state, State::Ended(End::Stopped));
    // The name is free again, and what is not there is said.
    let again = home.sessions.create(home.create().name("notes")).await.unwrap();
    assert_ne!(again.id(), session.id());
    assert_eq!(home.sessions.list().await.unwrap().len(), 2);
    assert_eq!(home.sessions.gc().await.unwrap().ended, [session.id()]);
    assert_eq!(home.sessions.list().await.unwrap().len(), 1);
    home.sessions.remove("notes").await.unwrap();
    assert!(matches!(home.sessions.open("notes").await, Err(SessionError::NotFound(_))));
    assert!(home.sessions.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn commands_get_what_was_asked_for() {
    let home = Home::new();
    let session = home.session().await;
    let run = async |exec: Exec| session.exec(exec).await.unwrap().output().await.unwrap();
    let output = run(Exec::new(["sh", "-c", "echo $A-$HOME; pwd"]).env("A", "b").env("A", "c").cwd("/tmp")).await;
    assert_eq!(text(&output.stdout), "c-/home/sandbox\n/tmp\n");
    std::fs::create_dir(home.place.project.join("below")).unwrap();
    assert_eq!(text(&run(Exec::new(["pwd"]).cwd("below")).await.stdout), "/workspace/below\n");
    // Without input it is empty.
    assert_eq!(run(Exec::new(["cat"])).await.stdout, b"");

    let mut cat = session.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    cat.write(b"one\n").await.unwrap();
    cat.write(b"two\n").await.unwrap();
    cat.close_stdin().await.unwrap();
    assert_eq!(text(&cat.output().await.unwrap().stdout), "one\ntwo\n");

    let missing = session.exec(Exec::new(["no-such-program"])).await.unwrap_err();
    assert!(matches!(missing, SessionError::Execute { errno: rustix::io::Errno::NOENT, .. }), "{missing}");
    let denied = session.exec(Exec::new(["/etc/passwd"])).await.unwrap_err();
    assert!(matches!(denied, SessionError::Execute { errno: rustix::io::Errno::ACCESS, .. }), "{denied}");
    let nowhere = session.exec(Exec::new(["true"]).cwd("/nowhere")).await.unwrap_err();
    assert!(matches!(nowhere, SessionError::Exec { .. }), "{nowhere}");
    assert!(matches!(session.exec(Exec::new::<&str>([])).await, Err(SessionError::BadRequest)));
    assert!(matches!(session.exec(Exec::new(["a\0b"])).await, Err(SessionError::BadRequest)));

    let mut sleeper = session.exec(Exec::new(["sleep", "60"])).await.unwrap();
    sleeper.signal(libc::SIGINT).await.unwrap();
    let Some(Event::Ended(outcome)) = sleeper.next().await.unwrap() else { panic!() };
    assert_eq!((outcome.ended, outcome.reason), (Ended::Signaled(libc::SIGINT), None));
    assert_eq!(sleeper.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_terminal_of_its_own() {
    let home = Home::new();
    let session = home.session().await;
    let size = Size { rows: 33, columns: 77 };
    let mut shell = session.exec(Exec::new(["sh"]).env("PS1", "> ").terminal(size)).await.unwrap();
    let mut seen = String::new();
    let mut wait_for = async |shell: &mut ringfence::session::Execution, what: &str| {
        while !seen.contains(what) {
            match tokio::time::timeout(Duration::from_secs(20), shell.next()).await.expect(what).unwrap() {
                Some(Event::Stdout(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                other => panic!("{what}: {other:?}: {seen}"),
            }
        }
        seen.clear();
    };
    shell.write(b"stty size\n").await.unwrap();
    wait_for(&mut shell, "33 77").await;
    shell.resize(Size { rows: 11, columns: 22 }).await.unwrap();
    shell.write(b"stty size; tty\n").await.unwrap();
    wait_for(&mut shell, "11 22").await;
    // A job that is interrupted by its key leaves the shell where it was.
    shell.write(b"sleep 60\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    shell.write(b"\x03").await.unwrap();
    shell.write(b"echo still $((40 + 2))\n").await.unwrap();
    wait_for(&mut shell, "still 42").await;
    shell.write(b"exit 7\n").await.unwrap();
    let outcome = loop {
        if let Event::Ended(outcome) = shell.next().await.unwrap().unwrap() {
            break outcome;
        }
    };
    assert_eq!(outcome.ended, Ended::Exited(7));
}

#[tokio::test]
async fn time_is_up_and_the_session_goes_on() {
    let home = Home::new();
    let session = home.session().await;
    // Double forks, new sessions, one that ignores TERM: all end, and what was printed is there.
    let [a, b, c] = [11, 12, 13].map(seconds);
    let script = format!("echo begun; (setsid sh -c 'trap \"\" TERM; sleep {a}' &); (setsid sleep {b} &); sleep {c}");
    let start = Instant::now();
    let exec = Exec::new(["sh", "-c", &script]).timeout(Duration::from_millis(400));
    let output = session.exec(exec).await.unwrap().output().await.unwrap();
    assert_eq!(output.outcome.reason, Some(Reason::Time));
    assert_eq!(text(&output.stdout), "begun\n");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for sleeper in [a, b, c] {
        assert_eq!(sleeping(&sleeper), Vec::<i32>::new(), "{sleeper}");
    }
    assert_eq!(text(&sh(&session, "echo usable").await.stdout), "usable\n");

    let above = session.exec(Exec::new(["true"]).timeout(Duration::from_secs(601))).await.unwrap_err();
    assert!(matches!(above, SessionError::TimeoutAboveCeiling { .. }), "{above}");
    assert!(session.exec(Exec::new(["true"]).timeout(Duration::from_secs(600))).await.is_ok());
}

#[tokio::test]
async fn the_sessions_own_time_limit_holds_for_each_command() {
    let home = Home::new();
    let create = home.create_with(|layer| layer.timeout("300ms").unwrap());
    let session = home.sessions.create(create).await.unwrap();
    for _ in 0..2 {
        let output = sh(&session, "echo one; sleep 60").await;
        assert_eq!((output.outcome.reason, text(&output.stdout)), (Some(Reason::Time), "one\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_at_once_keep_their_output_apart() {
    let home = Home::new();
    // As many processes as the profile allows: those that the guest has for each command do not count.
    let session = home.session().await;
    let mut tasks = Vec::new();
    for number in 0..200u32 {
        let session = session.clone();
        tasks.push(tokio::spawn(async move {
            // A line of its own, many times, on both outputs, and input that comes back.
            let script = format!(
                "i=0; while [ $i -lt 200 ]; do echo {number}-$i; echo e{number}-$i >&2; i=$((i+1)); done; exec cat"
            );
            let mut execution = session.exec(Exec::new(["sh", "-c", &script]).stdin(true)).await.unwrap();
            execution.write(format!("input {number}\n").as_bytes()).await.unwrap();
            execution.close_stdin().await.unwrap();
            let output = execution.output().await.unwrap();
            let mut out: String = (0..200).map(|i| format!("{number}-{i}\n")).collect();
            out.push_str(&format!("input {number}\n"));
            let err: String = (0..200).map(|i| format!("e{number}-{i}\n")).collect();
            assert_eq!(text(&output.stdout), out);
            assert_eq!(text(&output.stderr), err);
            assert_eq!(output.exit_code(), Some(0));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn background_goes_on_without_its_client() {
    let home = Home::new();
    let session = home.session().await;
    let script = "echo begun; read line; echo got $line; echo oops >&2";
    let exec = Exec::new(["sh", "-c", script]).stdin(true).background(true);
    let id = session.exec(exec).await.unwrap().id().to_owned();
    drop(session);
    let session = home.sessions.list().await.unwrap().remove(0).id;
    let session = home.sessions.open(&session).await.unwrap();
    let listed = session.executions().await.unwrap();
    assert_eq!((listed.len(), &listed[0].id, listed[0].state), (1, &id, ExecutionState::Running));

    let mut attached = session.attach(&id).await.unwrap();
    let other = session.attach(&id).await.unwrap();
    attached.write(b"it\n").await.unwrap();
    // Both see all of it, from the start.
    for follower in [attached, other] {
        let output = follower.output().await.unwrap();
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("begun\ngot it\n", "oops\n"));
        assert_eq!(output.exit_code(), Some(0));
    }
    // Also afterwards.
    assert_eq!(text(&session.attach(&id).await.unwrap().output().await.unwrap().stdout), "begun\ngot it\n");

    let id = session.exec(Exec::new(["sleep", &seconds(14)]).background(true)).await.unwrap().id().to_owned();
    let sleeper = session.attach(&id).await.unwrap();
    sleeper.stop().await.unwrap();
    let outcome = sleeper.output().await.unwrap().outcome;
    assert_eq!((outcome.ended, outcome.reason), (Ended::Signaled(libc::SIGTERM), Some(Reason::Cancelled)));
    assert!(matches!(session.attach("999").await, Err(SessionError::NoExecution(_))));
}

#[tokio::test]
async fn a_client_that_goes_ends_what_it_ran_in_the_foreground() {
    let home = Home::new();
    let session = home.session().await;
    let other = home.sessions.open(session.id()).await.unwrap();
    let left = session.exec(Exec::new(["sleep", &seconds(15)])).await.unwrap();
    let kept = other.exec(Exec::new(["sh", "-c", "sleep 1; echo untouched"])).await.unwrap();
    until("it runs", || !sleeping(&seconds(15)).is_empty()).await;
    drop((left, session));
    until("it ends", || sleeping(&seconds(15)).is_empty()).await;
    assert_eq!(text(&kept.output().await.unwrap().stdout), "untouched\n");
    let ended = other.executions().await.unwrap();
    assert!(matches!(ended[0].state, ExecutionState::Signaled { reason: Some(Reason::Cancelled), .. }), "{ended:?}");
}

#[tokio::test]
async fn a_flood_costs_constant_memory_and_stops_no_neighbour() {
    let home = Home::new();
    let create = home.create_with(|layer| layer.cpus("2").unwrap());
    let session = home.sessions.create(create).await.unwrap();
    let supervisor = supervisors(home.dir());
    let memory = || -> u64 {
        let read = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident =
            |text: String| text.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        supervisor.iter().filter_map(|pid| resident(read(pid))).max().unwrap_or(0)
    };
    // Nobody reads from this one: it waits, and others do not.
    let mut ignored = session.exec(Exec::new(["sh", "-c", "yes; true"])).await.unwrap();
    for _ in 0..20 {
        assert_eq!(text(&sh(&session, "echo neighbour").await.stdout), "neighbour\n");
    }
    // In the background, it does not wait: head and tail are kept.
    let exec = Exec::new(["sh", "-c", "head -c 100000000 /dev/zero; echo; echo end"]).background(true);
    let output = session.exec(exec).await.unwrap().output().await.unwrap();
    assert!(output.stdout.ends_with(b"\nend\n"));
    assert!(output.stdout_dropped > 90_000_000, "{}", output.stdout_dropped);
    assert!(output.stdout.len() < 2 << 20);
    // In the foreground every byte comes.
    let mut all = session.exec(Exec::new(["head", "-c", "300000000", "/dev/zero"])).await.unwrap();
    let mut bytes = 0;
    while let Some(event) = all.next().await.unwrap() {
        if let Event::Stdout(more) = event {
            bytes += more.len();
        }
    }
    assert_eq!(bytes, 300_000_000);
    assert!(memory() < 64 << 10, "{} KiB", memory());
    assert!(matches!(ignored.next().await.unwrap(), Some(Event::Stdout(_))));
}

#[tokio::test]
async fn what_comes_through_a_pipe_is_in_the_log() {
    let home = Home::new();
    let session = home.session().await;
    // Less than is kept, and more: then the beginning and the end, and what is missing is counted.
    let small = sh(&session, "echo out; echo err >&2").await;
    let large = sh(&session, "echo begin; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end; echo err >&2").await;
    assert_eq!((small.stdout.len(), large.stdout.len()), (4, 1_000_011));
    let infos = session.executions().await.unwrap();
    assert_eq!((infos[0].stdout, infos[0].stderr), (4, 4));
    assert_eq!((infos[1].stdout, infos[1].stderr), (1_000_011, 4));
    let log = session.attach("2").await.unwrap().output().await.unwrap();
    assert!(log.stdout.starts_with(b"begin\nxxx") && log.stdout.ends_with(b"xxx\nend\n"));
    assert_eq!((log.stdout_dropped, text(&log.stderr)), (1_000_011 - 65_536, "err\n"));
    // Somebody who follows it sees the beginning as it comes, and the rest when it has ended.
    let mut running = session.exec(Exec::new(["sh", "-c", "echo first; sleep 60"])).await.unwrap();
    assert_eq!(running.next().await.unwrap(), Some(Event::Stdout("first\n".into())));
    let mut follower = session.attach(running.id()).await.unwrap();
    assert_eq!(follower.next().await.unwrap(), Some(Event::Stdout("first\n".into())));
    running.stop().await.unwrap();
    while running.next().await.unwrap().is_some() {}
    assert!(matches!(follower.next().await.unwrap(), Some(Event::Ended(_))));
}

#[tokio::test]
async fn idle_and_life_end_it_and_both_can_be_extended() {
    let home = Home::new();
    let short = Some(Duration::from_millis(700));
    let idle = home.sessions.create(home.create().idle(short)).await.unwrap();
    let busy = home.sessions.create(home.create().idle(short)).await.unwrap();
    let _working = busy.exec(Exec::new(["sleep", "60"])).await.unwrap();
    let extended = home.sessions.create(home.create().idle(short)).await.unwrap();
    extended.extend(None, Some(Duration::from_secs(600))).await.unwrap();
    let dying = home.sessions.create(home.create().life(short)).await.unwrap();
    let last = dying.exec(Exec::new(["sleep", "60"])).await.unwrap();
    let living = home.sessions.create(home.create().life(short)).await.unwrap();
    living.extend(Some(Duration::from_secs(600)), None).await.unwrap();

    let lost = last.output().await.unwrap().outcome;
    assert_eq!(lost.reason, Some(Reason::Lost));
    tokio::time::timeout(Duration::from_secs(10), idle.closed()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let state = async |id: &str| home.sessions.info(id).await.unwrap().state;
    assert_eq!(state(idle.id()).await, State::Ended(End::Idle));
    assert_eq!(state(dying.id()).await, State::Ended(End::Expired));
    for alive in [&busy, &extended, &living] {
        assert_eq!(state(alive.id()).await, State::Live);
    }
}

#[tokio::test]
async fn a_session_that_nobody_can_find_ends() {
    let home = Home::new();
    let records = home.place.home.join("records");
    let [gone, kept] = ["gone", "kept"].map(|name| home.create().name(name).records(&records));
    let gone = home.sessions.create(gone).await.unwrap();
    let kept = home.sessions.create(kept).await.unwrap();
    let execution = gone.exec(Exec::new(["sleep", &seconds(17)])).await.unwrap();
    until("it runs", || !sleeping(&seconds(17)).is_empty()).await;
    let pid = gone.info().await.unwrap().pid as i32;
    std::fs::remove_dir_all(home.dir().join(gone.id())).unwrap();
    // Its place is another's by then.
    let again = home.sessions.create(home.create().name("gone")).await.unwrap();
    let lost = execution.output().await.unwrap().outcome;
    assert_eq!(lost.reason, Some(Reason::Lost));
    until("the box is gone", || sleeping(&seconds(17)).is_empty() && !processes().contains(&pid)).await;
    assert_eq!(home.sessions.open("gone").await.unwrap().id(), again.id());
    assert_eq!(text(&sh(&kept, "echo usable").await.stdout), "usable\n");
    let mut store = Store::open(&ringfence::records::Place::File(records.join("test.db"))).unwrap();
    store.refresh(&Journal::new(&records)).unwrap();
    let all = store.list(&Filter::default()).unwrap();
    let ended = all.iter().find(|record| record.sandbox.as_deref() == Some(gone.id())).unwrap();
    assert_eq!(ended.reason.as_deref(), Some("lost"), "{ended:?}");
}

#[tokio::test]
async fn a_killed_supervisor_takes_the_box_along_and_is_reported() {
    let home = Home::new();
    let session = home.sessions.create(home.create().name("fragile")).await.unwrap();
    let execution = session.exec(Exec::new(["sleep", &seconds(16)])).await.unwrap();
    until("it runs", || !sleeping(&seconds(16)).is_empty()).await;
    let (info, dir) = (session.info().await.unwrap(), home.dir().to_path_buf());
    kill(info.pid as i32, libc::SIGKILL);
    let outcome = execution.output().await.unwrap().outcome;
    assert_eq!(outcome.reason, Some(Reason::Lost));
    until("the box is gone", || sleeping(&seconds(16)).is_empty() && supervisors(&dir).is_empty()).await;
    assert!(matches!(session.exec(Exec::new(["true"])).await, Err(SessionError::Lost { .. })));
    let error = home.sessions.open("fragile").await.unwrap_err();
    assert!(matches!(error, SessionError::Ended { end: End::Lost, .. }), "{error}");
    assert_eq!(home.sessions.list().await.unwrap()[0].state, State::Ended(End::Lost));

    // Created on first use, reused afterwards, restarted if its process died.
    let again = home.sessions.open_or_create("fragile", home.create()).await.unwrap();
    assert_ne!(again.id(), info.id);
    let reused = home.sessions.open_or_create("fragile", home.create()).await.unwrap();
    assert_eq!(reused.id(), again.id());
    assert_eq!(text(&sh(&reused, "echo alive").await.stdout), "alive\n");
    assert_eq!(home.sessions.gc().await.unwrap().lost, [info.id]);
}

#[tokio::test]
async fn a_stopped_guest_goes_with_its_supervisor() {
    let home = Home::new();
    let session = home.session().await;
    let supervisor = session.info().await.unwrap().pid as i32;
    let guest = sessions::guest_of(supervisor).unwrap();
    sessions::kill(guest, libc::SIGSTOP);
    sessions::kill(supervisor, libc::SIGKILL);
    until("the guest is gone", || !std::path::Path::new(&format!("/proc/{guest}")).exists()).await;
}

#[tokio::test]
async fn a_killed_guest_ends_its_session_and_no_other() {
    let home = Home::new();
    let (session, other) = (home.session().await, home.session().await);
    let execution = session.exec(Exec::new(["sleep", &seconds(17)])).await.unwrap();
    let pid = session.info().await.unwrap().pid as i32;
    kill(guest_of(pid).expect("a guest"), libc::SIGKILL);
    assert_eq!(execution.output().await.unwrap().outcome.reason, Some(Reason::Lost));
    tokio::time::timeout(Duration::from_secs(10), session.closed()).await.unwrap();
    assert_eq!(home.sessions.info(session.id()).await.unwrap().state, State::Ended(End::Died));
    assert_eq!(text(&sh(&other, "echo other").await.stdout), "other\n");
}

#[tokio::test]
async fn running_out_of_memory_ends_a_command_and_says_so() {
    let home = Home::new();
    let create = home.create_with(|layer| layer.memory("64m").unwrap());
    let session = home.sessions.create(create).await.unwrap();
    let hog = "tail /dev/zero";
    let mut bystander = session.exec(Exec::new(["sh", "-c", "read line; exit 1"]).stdin(true)).await.unwrap();
    let output = sh(&session, hog).await;
    bystander.close_stdin().await.unwrap();
    assert_eq!(bystander.output().await.unwrap().outcome.reason, None);
    assert_ne!(output.exit_code(), Some(0));
    let report = session.report().await.unwrap();
    let kept = report.guarantees.iter().find(|answer| answer.id == Guarantee::LimitMemory).unwrap();
    if kept.state == ringfence::State::Enforced {
        assert_eq!(output.outcome.reason, Some(Reason::Memory), "{output:?}");
    }
    assert_eq!(text(&sh(&session, "echo usable").await.stdout), "usable\n");
    // Somebody else's failure is not taken for it.
    assert_eq!(sh(&session, "exit 1").await.outcome.reason, None);
}

#[tokio::test]
async fn looking_at_it_does_not_keep_it() {
    let home = Home::new();
    let session = home.sessions.create(home.create().idle(Some(Duration::from_secs(1)))).await.unwrap();
    let start = Instant::now();
    while session.info().await.is_ok() && session.executions().await.is_ok() {
        assert!(start.elapsed() < Duration::from_secs(15), "it lives on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(home.sessions.info(session.id()).await.unwrap().state, State::Ended(End::Idle));
}

#[tokio::test]
async fn processor_time_of_a_command_and_all_that_descends_from_it() {
    let home = Home::new();
    let session = home.sessions.create(home.create_with(|layer| layer.cpu_time("1s").unwrap())).await.unwrap();
    // No process of these comes near the limit by itself.
    let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
    let output = sh(&session, &format!("while :; do sh -c '{spin}'; done")).await;
    assert_eq!(output.outcome.reason, Some(Reason::CpuTime), "{output:?}");
    // The next one has its own.
    let output = sh(&session, &format!("{spin}; echo usable")).await;
    assert_eq!((text(&output.stdout), output.outcome.reason), ("usable\n", None));
}

#[tokio::test]
async fn too_many_processes_are_told_where_they_are_counted() {
    let home = Home::new();
    let session = home.sessions.create(home.create_with(|layer| layer.pids("12").unwrap())).await.unwrap();
    let report = session.report().await.unwrap();
    let kept = report.guarantees.iter().find(|answer| answer.id == Guarantee::LimitProcesses).unwrap();
    let output = sh(&session, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do sleep 2 & done; wait").await;
    assert_ne!(output.exit_code(), Some(0), "{output:?}");
    if kept.state == ringfence::State::Enforced {
        assert_eq!(output.outcome.reason, Some(Reason::Processes), "{output:?}");
    }
    // When they are gone.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(sh(&session, "exit 1").await.outcome.reason, None);
}

#[tokio::test]
async fn what_a_command_left_in_the_background_is_counted_too() {
    let home = Home::new();
    let session = home.sessions.create(home.create_with(|layer| layer.memory("64m").unwrap())).await.unwrap();
    // Each is below the limit of a process; all together are not.
    let mark = format!("hog-{}", seconds(31));
    let hog = "sleep 1; x=$(head -c 20000000 /dev/zero | tr '\\0' x); while :; do sleep 1; done";
    let script = format!("for i in 1 2 3 4 5 6; do setsid sh -c \"{hog}\" {mark} </dev/null >/dev/null 2>&1 & done");
    let script = script.replace("$(", "\\$(");
    assert_eq!(sh(&session, &script).await.exit_code(), Some(0));
    until("all run", || running(&mark).len() == 6).await;
    until("some are killed", || running(&mark).len() < 6).await;
    assert_eq!(text(&sh(&session, "echo usable").await.stdout), "usable\n");
}

#[tokio::test]
async fn opened_at_once_by_many_it_is_made_once() {
    let home = Home::new();
    let opened = (0..20).map(|_| home.sessions.open_or_create("shared", home.create()));
    let opened: Vec<_> = opened.collect();
    let mut ids = Vec::new();
    for one in futures(opened).await {
        ids.push(one.unwrap().id().to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

/// Runs futures together.
async fn futures<F: Future>(all: Vec<F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.into_iter().map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in all.iter_mut().filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        if all.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}

#[tokio::test]
async fn processes_that_earlier_commands_left_make_room_for_the_next() {
    let home = Home::new();
    let session = home.sessions.create(home.create_with(|layer| layer.pids("24").unwrap())).await.unwrap();
    let nap = seconds(41);
    let fill = format!("while :; do sleep {nap} & done");
    assert_ne!(sh(&session, &fill).await.exit_code(), Some(0));
    until("it is full", || sleeping(&nap).len() > 8).await;
    // They give way, with input and output as ever.
    let mut cat = session.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    cat.write(b"there is room").await.unwrap();
    cat.close_stdin().await.unwrap();
    let output = cat.output().await.unwrap();
    assert_eq!((text(&output.stdout), output.exit_code()), ("there is room", Some(0)));
    for _ in 0..2 {
        assert_ne!(sh(&session, &fill).await.exit_code(), Some(0));
        let output = sh(&session, "echo again").await;
        assert_eq!((text(&output.stdout), output.exit_code()), ("again\n", Some(0)));
    }
    // What is left behind stays as long as there is room.
    sh(&session, &format!("sleep {nap} &")).await;
    assert_eq!(sh(&session, "true").await.exit_code(), Some(0));
    assert!(!sleeping(&nap).is_empty());
}

#[tokio::test]
async fn one_that_does_not_answer_is_listed_and_ended_with_its_box() {
    let home = Home::new();
    let healthy = home.sessions.create(home.create().name("healthy")).await.unwrap();
    for (name, nap) in [("stopped", seconds(43)), ("nowhere", seconds(44))] {
        let session = home.sessions.create(home.create().name(name)).await.unwrap();
        let _running = session.exec(Exec::new(["sleep", &nap]).background(true)).await.unwrap();
        until("it runs", || !sleeping(&nap).is_empty()).await;
        let pid = session.info().await.unwrap().pid as i32;
        if name == "stopped" {
            kill(pid, libc::SIGSTOP);
        } else {
            std::fs::remove_file(home.dir().join(session.id()).join("socket")).unwrap();
        }
        let all = home.sessions.list().await.unwrap();
        let unreachable: Vec<_> = all.iter().filter(|info| info.unreachable.is_some()).collect();
        assert_eq!((all.len(), unreachable.len()), (2, 1), "{all:?}");
        assert_eq!((unreachable[0].name.as_deref(), unreachable[0].pid), (Some(name), pid as u32));
        home.sessions.remove(name).await.unwrap();
        until("its box is gone", || sleeping(&nap).is_empty()).await;
        assert_eq!(home.sessions.list().await.unwrap().len(), 1);
    }
    assert_eq!(sh(&healthy, "true").await.exit_code(), Some(0));
}

#[tokio::test]
async fn what_it_uses_can_be_asked_for() {
    let home = Home::new();
    let session = home.session().await;
    let idle = session.usage().await.unwrap();
    let hog = Exec::new(["python3", "-c", "x = bytearray(80 << 20); print(1, flush=True); input()"]).stdin(true);
    let mut hog = session.exec(hog).await.unwrap();
    assert!(matches!(hog.next().await.unwrap(), Some(Event::Stdout(_))));
    let busy = session.usage().await.unwrap();
    assert!(busy.memory.unwrap() > idle.memory.unwrap() + (70 << 20), "{idle:?} {busy:?}");
    assert!(busy.processes > idle.processes && busy.cpu >= idle.cpu, "{idle:?} {busy:?}");
    session.stop().await.unwrap();
}

/// A session that can be frozen, on any engine whose trees have cgroups here.
async fn frozen(home: &Home) -> Option<ringfence::session::Session> {
    let session = home.session().await;
    match session.freeze().await {
        Ok(()) => Some(session),
        Err(SessionError::Unsupported { .. }) => {
            assert!(!(support::is_root() && support::everything_required()));
            eprintln!("SKIP frozen sessions: no cgroup here");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn while_it_is_frozen_nothing_runs_and_no_time_passes_for_commands() {
    let home = Home::new();
    let Some(session) = frozen(&home).await else { return };
    assert!(session.info().await.unwrap().frozen);
    assert!(matches!(session.exec(Exec::new(["true"])).await, Err(SessionError::Frozen { .. })));
    assert!(matches!(session.files().stat("x").await, Err(SessionError::Frozen { .. })));
    session.thaw().await.unwrap();
    // Counts up ten times a second, and starts others on the way.
    let script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done";
    let exec = Exec::new(["sh", "-c", script]).timeout(Duration::from_secs(3)).background(true);
    let started = std::time::Instant::now();
    let execution = session.exec(exec).await.unwrap();
    let id = execution.id().to_owned();
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.freeze().await.unwrap();
    let written = async || {
        let all = session.executions().await.unwrap();
        all.iter().find(|one| one.id == id).unwrap().stdout
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = written().await;
    assert!(before > 0);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(written().await, before, "nothing runs");
    // It is there all the same.
    assert_eq!(session.info().await.unwrap().running, 1);
    session.thaw().await.unwrap();
    let outcome = execution.output().await.unwrap().outcome;
    assert_eq!(outcome.reason, Some(Reason::Time));
    assert!(written().await > before, "it went on");
    let took = started.elapsed();
    assert!(took > Duration::from_secs(6) && took < Duration::from_secs(12), "{took:?}");
    session.stop().await.unwrap();
}

#[tokio::test]
async fn a_frozen_session_can_be_stopped_and_ends_with_its_supervisor() {
    for killed in [false, true] {
        let home = Home::new();
        let Some(session) = frozen(&home).await else { return };
        session.thaw().await.unwrap();
        let nap = seconds(71 + u32::from(killed));
        let _execution = session.exec(Exec::new(["sleep", &nap]).background(true)).await.unwrap();
        until("it runs", || sleeping(&nap).len() == 1).await;
        session.freeze().await.unwrap();
        if killed {
            kill(session.info().await.unwrap().pid as i32, libc::SIGKILL);
        } else {
            session.stop().await.unwrap();
        }
        until("it is gone", || sleeping(&nap).is_empty()).await;
    }
}

#[tokio::test]
async fn limits_of_a_live_session_are_tightened_and_raised_again() {
    use ringfence::session::LimitChange;
    let home = Home::new();
    let session = home.sessions.create(home.create_with(|layer| layer.memory("256m").unwrap())).await.unwrap();
    let hog = async || {
        let hog = Exec::new(["python3", "-c", "x = bytearray(150 << 20); print(len(x))"]);
        session.exec(hog).await.unwrap().output().await.unwrap()
    };
    assert_eq!(hog().await.exit_code(), Some(0));
    let memory = |n: u64| LimitChange { memory: Some(n << 20), ..LimitChange::default() };
    match session.change_limits(memory(64)).await {
        Err(SessionError::Unsupported { .. }) if !support::is_root() => return,
        changed => changed.unwrap(),
    }
    assert_eq!(hog().await.outcome.reason, Some(Reason::Memory));
    assert_eq!(session.info().await.unwrap().memory, Some(64 << 20));
    let report = serde_json::to_string(&session.report().await.unwrap()).unwrap();
    assert!(report.contains("changed to 64"), "{report}");
    // Up to what it was made with, and no further.
    let above = session.change_limits(memory(257)).await;
    assert!(matches!(above, Err(SessionError::AboveLimit { .. })), "{above:?}");
    session.change_limits(memory(256)).await.unwrap();
    assert_eq!(hog().await.exit_code(), Some(0));
    // Processes: the guest's own do not count.
    let few = LimitChange { processes: Some(4), ..LimitChange::default() };
    session.change_limits(few).await.unwrap();
    let many = "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait";
    assert_ne!(sh(&session, many).await.exit_code(), Some(0));
    let few = "sleep 0.1 & sleep 0.1 & wait";
    assert_eq!(sh(&session, few).await.exit_code(), Some(0));
    let none = LimitChange { cpus: Some(f64::NAN), ..LimitChange::default() };
    assert!(matches!(session.change_limits(none).await, Err(SessionError::BadRequest)));
    session.stop().await.unwrap();
}

/// Also without a cgroup: the supervisor keeps the clocks.
#[tokio::test]
async fn the_time_limit_of_commands_of_a_live_session_is_changed() {
    use ringfence::session::LimitChange;
    let home = Home::new();
    let made = home.create_with(|layer| layer.timeout("20s").unwrap());
    let session = home.sessions.create(made).await.unwrap();
    let time = |millis: u64| LimitChange { timeout: Some(Duration::from_millis(millis)), ..LimitChange::default() };
    let reason = async |exec: Exec| session.exec(exec).await.unwrap().output().await.unwrap().outcome.reason;
    // One that runs keeps the limit that it was started with.
    let earlier = session.exec(Exec::new(["sleep", "2"])).await.unwrap();
    session.change_limits(time(300)).await.unwrap();
    assert_eq!(reason(Exec::new(["sleep", "10"])).await, Some(Reason::Time));
    let long = session.exec(Exec::new(["true"]).timeout(Duration::from_secs(1))).await;
    assert!(matches!(long, Err(SessionError::TimeoutAboveCeiling { .. })), "{long:?}");
    let info = session.info().await.unwrap();
    assert_eq!((info.timeout, info.timeout_ceiling), (time(300).timeout, time(300).timeout));
    let report = serde_json::to_string(&session.report().await.unwrap()).unwrap();
    assert!(report.contains("changed to 300ms"), "{report}");
    assert_eq!(earlier.output().await.unwrap().exit_code(), Some(0));
    // Up to what it was made with, and no further.
    let above = session.change_limits(time(3_600_000)).await;
    assert!(matches!(above, Err(SessionError::AboveLimit { .. })), "{above:?}");
    assert!(matches!(session.change_limits(time(0)).await, Err(SessionError::BadRequest)));
    session.change_limits(time(5_000)).await.unwrap();
    assert_eq!(reason(Exec::new(["sleep", "0.5"]).timeout(Duration::from_secs(4))).await, None);
    session.stop().await.unwrap();
}

#[tokio::test]
async fn one_whose_disk_stalls_is_stopped_and_removed() {
    let outer = tempfile::tempdir().unwrap();
    let Some(disk) = ringfence_testing::Disk::new(outer.path()) else { return };
    let home = Home::new();
    let session = home.sessions.create(home.create().name("stalled").records(disk.at.join("records"))).await.unwrap();
    let pid = session.info().await.unwrap().pid as i32;
    assert_eq!(sh(&session, "true").await.exit_code(), Some(0));
    disk.freeze();
    let started = Instant::now();
    let exec = Exec::new(["sleep", "1000"]).timeout(Duration::from_millis(500));
    let outcome = session.exec(exec).await.unwrap().output().await.unwrap().outcome;
    assert_eq!(outcome.reason, Some(Reason::Time));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    home.sessions.stop("stalled").await.unwrap();
    // Its process waits for the disk, and holds nothing that others need.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    // Why it ended waits for the disk, too.
    assert!(matches!(home.sessions.list().await.unwrap()[0].state, State::Ended(_)));
    home.sessions.remove("stalled").await.unwrap();
    assert!(home.sessions.list().await.unwrap().is_empty());
    disk.thaw();
    until("its process is gone", || !processes().contains(&pid)).await;
}
