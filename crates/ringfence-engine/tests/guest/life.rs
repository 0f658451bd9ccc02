//! Terminals, signals, trees of processes, and what the code beside the guest can do to it.

use std::io::Write;
use std::time::{Duration, Instant};

use ringfence_guest::frame::{Channel, Kind};
use ringfence_guest::message::{Input, Reply, Request, Size, Step};

use crate::host::{Ended, spawn};
use crate::{Host, Place, everywhere};

everywhere! {
    terminal_and_its_size
    job_control
    signals_reach_the_group
    a_tree_ends_whatever_it_did
    background_stays_without_a_tree_signal
    a_closed_stream_ends_its_command
    what_a_background_process_holds_is_not_waited_for
    a_killed_reaper_is_survived
    a_killed_reaper_takes_its_orphans_along
    a_stopped_reaper_changes_no_report
    reapers_that_are_hunted_change_no_report
    a_reaper_is_used_again
    limits_of_a_reaper_are_not_handed_on
    a_tracer_that_was_left_holds_nobody
    alone_in_the_box_a_command_is_the_guests_own_child
    garbage_ends_the_guest
    the_end_of_the_host_ends_everything
}

fn terminal(host: &mut Host, argv: &[&str]) -> u32 {
    let mut exec = host.command(argv);
    exec.terminal = Some(Size { rows: 33, columns: 77 });
    exec.stdin = true;
    host.open(&Request::Exec(exec))
}

fn terminal_and_its_size(place: Place) {
    let mut host = Host::new(place);
    let script = "stty size; tty >/dev/null && [ -t 2 ] && : >/dev/tty && echo own; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.02; done";
    let stream = terminal(&mut host, &["sh", "-c", script]);
    host.until(stream, "33 77\r\nown\r\nready\r\n");
    host.input(stream, &Input::Resize(Size { rows: 10, columns: 20 }));
    host.until(stream, "10 20\r\n");
    assert_eq!(host.end(stream).code, 5);
    // The end of input is what somebody would type.
    let stream = terminal(&mut host, &["cat"]);
    host.send(stream, b"hello\n");
    host.end_input(stream);
    assert_eq!(host.end(stream), Ended { code: 0, stdout: "hello\r\nhello\r\n".to_owned(), stderr: String::new() });
    // What was printed last is there, also when something in the background keeps the terminal.
    let stream = terminal(&mut host, &["sh", "-c", "trap '' HUP; sleep 1000 & seq 5000; echo last"]);
    assert!(host.end(stream).stdout.ends_with("5000\r\nlast\r\n"));
}

fn job_control(place: Place) {
    let mut host = Host::new(place);
    let stream = terminal(&mut host, &["env", "PS1=ask> ", "bash", "--norc", "--noprofile", "-i"]);
    host.until(stream, "ask> ");
    host.send(stream, b"sleep 4321\n");
    wait_until("the child starts", || alive("4321"));
    std::thread::sleep(Duration::from_millis(50));
    host.send(stream, b"\x1a");
    host.until(stream, "Stopped");
    host.send(stream, b"fg\n");
    host.until(stream, "fg\r\nsleep 4321");
    std::thread::sleep(Duration::from_millis(100));
    host.send(stream, b"\x03");
    host.send(stream, b"echo status $?\n");
    host.until(stream, "status 130");
    host.send(stream, b"exit 9\n");
    assert_eq!(host.end(stream).code, 9);
}

fn signals_reach_the_group(place: Place) {
    let mut host = Host::new(place);
    let stream = host.start(&["sh", "-c", "trap 'echo got; exit 6' TERM; echo ready; while :; do sleep 0.02; done"]);
    host.until(stream, "ready");
    host.signal(stream, libc::SIGTERM, false);
    assert_eq!(host.end(stream).code, 6);
    // One that comes before the command does is not lost.
    let stream = host.start(&["sleep", "1000"]);
    host.signal(stream, libc::SIGTERM, false);
    assert_eq!(host.end(stream).code, 128 + libc::SIGTERM);
    for signal in [0, -1, 65, i32::MAX, i32::MIN] {
        let stream = host.start(&["sleep", "0.05"]);
        host.signal(stream, signal, false);
        host.signal(stream, signal, true);
        assert_eq!(host.end(stream).code, 0);
    }
}

/// Whether a process with this argument is there, and not dead.
fn alive(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        cmdline.split(|b| *b == 0).any(|word| word == argument.as_bytes())
    })
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A number of seconds that no other process sleeps.
fn sleep_of_our_own() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{}.{next}", 100_000 + std::process::id())
}

/// Descendants that hide in every way: a double fork, a new session, one that ignores TERM, one that is stopped.
const HIDING: &str = "
setsid sh -c 'trap \"\" TERM HUP; sleep @; sleep @' &
(sh -c 'sleep @ & sleep @ &' &)
setsid setsid sh -c '(sleep @ & kill -STOP $!; sleep @) & exit' &
sh -c 'kill -STOP $$; sleep @' &
sleep 0.3; echo ready";

fn a_tree_ends_whatever_it_did(place: Place) {
    let mut host = Host::new(place);
    let seconds = sleep_of_our_own();
    let neighbour = sleep_of_our_own();
    let beside = host.start(&["sleep", &neighbour]);
    let script = format!("trap 'exit 3' TERM; {}; while :; do sleep 0.02; done", HIDING.replace('@', &seconds));
    let stream = host.start(&["sh", "-c", &script]);
    host.until(stream, "ready");
    assert!(alive(&seconds));
    // The command itself obeys, a descendant does not: the end is told when that is gone, too.
    host.signal(stream, libc::SIGTERM, true);
    std::thread::sleep(Duration::from_millis(300));
    host.ping();
    assert!(host.stream(stream).replies.iter().all(|r| matches!(r, Reply::Started { .. })), "something is left");
    assert!(alive(&seconds), "what ignores TERM is there");
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 3);
    assert!(!alive(&seconds), "nothing is left");
    assert!(alive(&neighbour), "and a neighbour is not touched");
    // At once, while it forks as fast as it can.
    let seconds = sleep_of_our_own();
    let bomb = format!(
        "i=0; while [ $i -lt 60 ]; do (setsid sleep {seconds} &); [ $i -eq 20 ] && echo ready; i=$((i+1)); done; while :; do (sleep {seconds} &) ; sleep 0.005; done"
    );
    let stream = host.start(&["sh", "-c", &bomb]);
    host.until(stream, "ready");
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 128 + libc::SIGKILL);
    assert!(!alive(&seconds));
    host.signal(beside, libc::SIGKILL, true);
    assert_eq!(host.end(beside).code, 128 + libc::SIGKILL);
    // The same without a signal to the tree: what is hidden stays. (The denial test's other half.)
    let seconds = sleep_of_our_own();
    let stream = host.start(&["sh", "-c", &HIDING.replace('@', &seconds)]);
    assert_eq!(host.end(stream).code, 0);
    assert!(alive(&seconds));
}

fn background_stays_without_a_tree_signal(place: Place) {
    let mut host = Host::new(place);
    let seconds = sleep_of_our_own();
    let ended = host.sh(&format!("sleep {seconds} >/dev/null 2>&1 & echo $!"));
    assert_eq!(ended.code, 0);
    wait_until("it runs", || alive(&seconds));
    assert_eq!(host.sh(&format!("kill {}", ended.stdout.trim())).code, 0, "another command finds it by its number");
    wait_until("it is gone, and was reaped", || !alive(&seconds));
}

fn a_closed_stream_ends_its_command(place: Place) {
    let mut host = Host::new(place);
    let seconds = sleep_of_our_own();
    let stream = host.start(&["sh", "-c", &format!("setsid sleep {seconds} & echo ready; sleep {seconds}")]);
    host.until(stream, "ready");
    host.put(stream, Kind::Close, &[]);
    wait_until("it is gone", || !alive(&seconds));
    host.ping();
    // Closed before it began.
    for _ in 0..20 {
        let stream = host.start(&["sleep", &seconds]);
        host.put(stream, Kind::Close, &[]);
    }
    host.ping();
    wait_until("all are gone", || !alive(&seconds));
    assert_eq!(host.sh("echo there").stdout, "there\n");
}

fn what_a_background_process_holds_is_not_waited_for(place: Place) {
    let mut host = Host::new(place);
    let started = Instant::now();
    // It has the pipes open, and goes on writing.
    let ended = host.sh("(while :; do echo more; sleep 0.01; done) & seq 20000; echo last >&2");
    assert!(started.elapsed() < Duration::from_secs(10));
    let all: String = (1..=20000).map(|n| format!("{n}\n")).collect();
    assert!(ended.stdout.replace("more\n", "") == all);
    assert_eq!(ended.stderr, "last\n");
    let stream = host.start(&["sh", "-c", "exec >&- 2>&-; sleep 0.2"]);
    while host.stream(stream).eof.len() < 2 {
        host.step();
    }
    assert_eq!(host.end(stream).code, 0);
}

fn a_reaper_is_used_again(place: Place) {
    let mut host = Host::new(place);
    let beside = host.start(&["sleep", "1000"]);
    assert!(matches!(host.reply(beside), Reply::Started { .. }));
    let mut parent = || host.run(&["sh", "-c", "echo $PPID"]).stdout;
    let first = parent();
    assert_eq!([parent(), parent()], [first.clone(), first]);
}

fn limits_of_a_reaper_are_not_handed_on(place: Place) {
    let mut host = Host::new(place);
    let beside = host.start(&["sleep", "1000"]);
    assert!(matches!(host.reply(beside), Reply::Started { .. }));
    let lower = "import os, resource as r; p = os.getppid(); r.prlimit(p, r.RLIMIT_NOFILE, (0, 0)); \
                 print(open(f'/proc/{p}/comm').read().strip(), *r.prlimit(p, r.RLIMIT_NOFILE))";
    // It can be done; but who comes next has another one.
    assert_eq!(host.run(&["python3", "-c", lower]).stdout, "guest 0 0\n");
    for _ in 0..3 {
        let next = host.run(&["sh", "-c", "exec 9</dev/null && echo opened"]);
        assert_eq!((next.code, next.stdout.as_str()), (0, "opened\n"), "{}", next.stderr);
    }
    let scheduled =
        "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0))";
    let before = host.run(&["python3", "-c", scheduled]).stdout;
    for change in [
        "os.setpriority(os.PRIO_PROCESS, p, 19)",
        "os.sched_setscheduler(p, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(p, [min(os.sched_getaffinity(p))])",
    ] {
        let done = host.run(&["python3", "-c", &format!("import os; p = os.getppid(); {change}; print('done')")]);
        assert_eq!(done.stdout, "done\n", "{change}: {}", done.stderr);
        for _ in 0..3 {
            assert_eq!(host.run(&["python3", "-c", scheduled]).stdout, before, "after {change}");
        }
    }
    host.ping();
}

fn a_killed_reaper_is_survived(place: Place) {
    let mut host = Host::new(place);
    // Beside others each command has a reaper.
    let [beside_seconds, orphan] = [sleep_of_our_own(), sleep_of_our_own()];
    let beside = host.start(&["sh", "-c", &format!("(sleep {orphan} &); echo ready; sleep {beside_seconds}")]);
    host.until(beside, "ready");
    // It is the parent of its command. Beside it one can see it and kill it, and it changes nothing.
    assert_eq!(
        host.sh("kill -KILL $PPID; sleep 0.1; echo still; exit 4"),
        Ended { code: 4, stdout: "still\n".to_owned(), stderr: String::new() }
    );
    let seconds = sleep_of_our_own();
    let script = format!("setsid sleep {seconds} & kill -KILL $PPID; echo ready; sleep {seconds}");
    let stream = host.start(&["sh", "-c", &script]);
    host.until(stream, "ready");
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 128 + libc::SIGKILL);
    wait_until("nothing is left", || !alive(&seconds));
    // A stopped one says nothing, and ends all the same.
    let stream = host.start(&["sh", "-c", &format!("kill -STOP $PPID; echo ready; sleep {seconds}")]);
    wait_until("it runs", || alive(&seconds));
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 128 + libc::SIGKILL);
    assert!(alive(&beside_seconds) && alive(&orphan), "a neighbour does not notice");
    // Nor does one without a reaper notice the end of a neighbour.
    let stream = host.start(&["sh", "-c", &format!("kill -KILL $PPID; echo ready; sleep {seconds}")]);
    host.until(stream, "ready");
    wait_until("it runs", || alive(&seconds));
    host.signal(beside, libc::SIGKILL, true);
    assert_eq!(host.end(beside).code, 128 + libc::SIGKILL);
    wait_until("all of it ends", || !alive(&beside_seconds) && !alive(&orphan));
    host.ping();
    assert!(alive(&seconds) && !host.stream(stream).replies.iter().any(|reply| matches!(reply, Reply::Exited(_))));
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 128 + libc::SIGKILL);
    if place != Place::Bare {
        // All at once, as far as it may.
        let others: Vec<u32> = (0..5).map(|_| host.start(&["sleep", &seconds])).collect();
        for stream in &others {
            assert!(matches!(host.reply(*stream), Reply::Started { .. }));
        }
        // Its own reaper included. That may see its end and be killed before it tells: then it counts as killed, too.
        let code = host.sh("trap '' TERM; kill -TERM -1; kill -KILL -1; exit 0").code;
        assert!([0, 128 + libc::SIGKILL].contains(&code), "{code}");
        for stream in others {
            assert!([128 + libc::SIGTERM, 128 + libc::SIGKILL].contains(&host.end(stream).code));
        }
    }
    assert_eq!(host.sh("echo there").stdout, "there\n");
}

/// Ignores every signal that it can, in a session of its own, and is nobody's child.
const ORPHAN: &str = "(trap '' TERM HUP; setsid sleep @ >/dev/null 2>&1 &)";

fn a_killed_reaper_takes_its_orphans_along(place: Place) {
    let mut host = Host::new(place);
    let [older, seconds, orphan] = [sleep_of_our_own(), sleep_of_our_own(), sleep_of_our_own()];
    host.sh(&ORPHAN.replace('@', &older));
    wait_until("it runs", || alive(&older));
    std::thread::sleep(Duration::from_millis(100));
    // Beside others each command has a reaper.
    let neighbour = format!("{}; echo ready; sleep {seconds}", ORPHAN.replace('@', &orphan));
    let beside = host.start(&["sh", "-c", &neighbour]);
    host.until(beside, "ready");
    let on_term = |act: &str| {
        format!("reaper=$PPID; setsid sh -c \"trap '{act}' TERM; while :; do sleep 0.02; done\" >/dev/null 2>&1 & ")
    };
    let [obeys, takes_long] = ["exit 3", "sleep 0.4; exit 3"].map(|act| format!("trap '{act}' TERM"));
    for (when, kill, trap) in [
        ("before the signal", "kill -KILL $PPID".to_owned(), &obeys),
        ("at the signal", on_term("kill -KILL $reaper"), &takes_long),
        ("after the command's end", on_term("sleep 0.3; kill -KILL $reaper"), &obeys),
    ] {
        let seconds = sleep_of_our_own();
        let script = format!(
            "{}\n{kill}\n{trap}\nsleep 0.2; echo ready; while :; do sleep 0.02; done",
            ORPHAN.replace('@', &seconds)
        );
        let stream = host.start(&["sh", "-c", &script]);
        host.until(stream, "ready");
        assert!(alive(&seconds));
        let started = Instant::now();
        host.signal(stream, libc::SIGTERM, true);
        assert_eq!(host.end(stream).code, 3, "{when}");
        assert!(!alive(&seconds), "{when}: told before all was gone");
        assert!(started.elapsed() < Duration::from_millis(1800), "{when}: {:?}", started.elapsed());
    }
    // Without any signal, too. (The other half: what has its reaper may leave something behind.)
    for (kill, stays) in [("kill -KILL $PPID", false), ("", true)] {
        let seconds = sleep_of_our_own();
        let script = format!("{}; sleep 0.2; {kill}\nsleep 0.1; echo out; exit 4", ORPHAN.replace('@', &seconds));
        let ended = host.sh(&script);
        assert_eq!((ended.code, ended.stdout.as_str()), (4, "out\n"));
        assert_eq!(alive(&seconds), stays, "{kill}");
    }
    assert!(alive(&older), "what an earlier command left");
    assert!(alive(&seconds) && alive(&orphan), "a neighbour that has its reaper, and its orphan");
    host.signal(beside, libc::SIGKILL, true);
    assert_eq!(host.end(beside).code, 128 + libc::SIGKILL);
}

fn a_stopped_reaper_changes_no_report(place: Place) {
    let mut host = Host::new(place);
    let beside = host.start(&["sh", "-c", "echo ready; sleep 600"]);
    host.until(beside, "ready");
    // As often as it can, for as long as that reaper is there. Not before the reaper has told that the command runs: one
    // that is stopped then may be replaced, and what it looked after goes with the command.
    let stop = "(sleep 0.2; while kill -STOP $PPID; do :; done) >/dev/null 2>&1 &";
    for _ in 0..5 {
        let seconds = sleep_of_our_own();
        let script = format!(
            "{stop}\n{}; until grep 'State.*stopped' /proc/$PPID/status; do :; done; exit 7",
            ORPHAN.replace('@', &seconds)
        );
        let started = Instant::now();
        let ended = host.sh(&script);
        assert_eq!((ended.code, ended.stdout.as_str()), (7, "State:\tT (stopped)\n"));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(alive(&seconds), "what it left behind stays, as ever");
    }
    // A stopped reaper is still the root of the tree: its end is told when all of it is gone.
    let seconds = sleep_of_our_own();
    let script = format!(
        "{stop}\n{}; trap 'exit 3' TERM; sleep 0.4; echo ready; while :; do sleep 0.02; done",
        ORPHAN.replace('@', &seconds)
    );
    let stream = host.start(&["sh", "-c", &script]);
    host.until(stream, "ready");
    host.signal(stream, libc::SIGTERM, true);
    std::thread::sleep(Duration::from_millis(300));
    host.ping();
    let replies = format!("{:?}", host.stream(stream).replies);
    assert!(!replies.contains("Exited"), "{replies}, and of what is left alive: {}", alive(&seconds));
    assert!(alive(&seconds));
    host.signal(stream, libc::SIGKILL, true);
    assert_eq!(host.end(stream).code, 3);
    assert!(!alive(&seconds));
    host.signal(beside, libc::SIGKILL, true);
    assert_eq!(host.end(beside).code, 128 + libc::SIGKILL);
}

/// Does something to every process that is called as a reaper is, all the time.
const HUNTER: &str = "while :; do for p in /proc/[0-9]*; do
read -r name <$p/comm && [ \"$name\" = guest ] && kill -@ ${p#/proc/}; done; done 2>/dev/null";

fn reapers_that_are_hunted_change_no_report(place: Place) {
    if place == Place::Bare {
        // It would hunt those of other tests.
        return;
    }
    for signal in ["STOP", "KILL"] {
        let mut host = Host::new(place);
        let hunter = host.start(&["sh", "-c", &HUNTER.replace('@', signal)]);
        std::thread::sleep(Duration::from_millis(200));
        for nap in ["", "", "", "sleep 0.1", "sleep 0.1", "sleep 0.1"] {
            let stream = host.start(&["sh", "-c", &format!("{nap}\necho out; exit 7")]);
            match host.try_end(stream) {
                Ok(ended) if ended.code == 7 => assert_eq!(ended.stdout, "out\n", "{signal}"),
                // A KILL may hit what is about to be the command, or its reaper in the moment before: then nothing is run.
                Ok(ended) => {
                    assert!(
                        signal == "KILL" && [128 + libc::SIGKILL, 127].contains(&ended.code),
                        "{signal}: {ended:?}"
                    );
                }
                // Each reaper was killed before it could start the command. On an idle machine the hunter is that fast.
                Err(failure) => {
                    assert_eq!((signal, failure), ("KILL", (Step::Fork, libc::EOWNERDEAD)));
                }
            }
        }
        host.signal(hunter, libc::SIGKILL, true);
        assert_eq!(host.end(hunter).code, 128 + libc::SIGKILL);
        assert_eq!(host.sh("exit 7").code, 7);
    }
}

/// Traces whoever sleeps so long, and never waits for it.
const TRACER: &str = "
import ctypes, glob, time
def text(path):
    try: return open(path).read()
    except OSError: return ''
while True:
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        if text(path) == 'sleep\\x00@\\x00':
            ctypes.CDLL(None).ptrace(0x4206, int(path.split('/')[2]), None, None)
    time.sleep(0.01)
";

fn a_tracer_that_was_left_holds_nobody(place: Place) {
    let mut host = Host::new(place);
    let is_traced = |seconds: &str| {
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let status = read("status");
            let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
            read("cmdline") == format!("sleep\0{seconds}\0") && tracer.is_some_and(|pid| pid.trim() != "0")
        })
    };
    for beside in [false, true] {
        let seconds = sleep_of_our_own();
        let tracer = TRACER.replace('@', &seconds);
        let left = host.run(&["sh", "-c", "python3 -c \"$1\" >/dev/null 2>&1 &", "sh", &tracer]);
        assert_eq!(left.code, 0, "{left:?}");
        let neighbour = beside.then(|| host.start(&["sleep", "600"]));
        let stream = host.start(&["sleep", &seconds]);
        wait_until("it is traced", || is_traced(&seconds));
        host.signal(stream, libc::SIGKILL, true);
        let started = Instant::now();
        assert_eq!(host.end(stream).code, 128 + libc::SIGKILL);
        // The host ends the box two seconds after it had a command killed.
        assert!(started.elapsed() < Duration::from_millis(1800), "{:?}", started.elapsed());
        if let Some(neighbour) = neighbour {
            host.signal(neighbour, libc::SIGTERM, false);
            assert_eq!(host.end(neighbour).code, 128 + libc::SIGTERM);
        }
    }
}

fn alone_in_the_box_a_command_is_the_guests_own_child(place: Place) {
    let mut host = Host::new(place);
    let parent = |host: &mut Host| host.sh("read -r _ _ _ parent _ </proc/self/stat; echo $parent").stdout;
    let is_own = |stdout: &str| stdout == "1\n";
    let seconds = sleep_of_our_own();
    // Elsewhere the guest is not process 1, and code beside it could kill its parent.
    let first = place != Place::Bare;
    assert_eq!(is_own(&parent(&mut host)), first);
    // Beside another one it is not, nor after one that left something behind.
    let beside = host.start(&["sh", "-c", "echo ready; sleep 600"]);
    host.until(beside, "ready");
    assert!(!is_own(&parent(&mut host)));
    // What a neighbour left behind does not descend from it, and stays when it goes with its whole tree.
    host.sh(&format!("sleep {seconds} >/dev/null 2>&1 &"));
    wait_until("it runs", || alive(&seconds));
    host.signal(beside, libc::SIGKILL, true);
    host.end(beside);
    assert!(alive(&seconds));
    assert!(!is_own(&parent(&mut host)));
    host.sh(&format!("pkill -f 'sleep {seconds}'; while pgrep -f '^sleep {seconds}'; do sleep 0.01; done"));
    wait_until("it is alone again", || is_own(&parent(&mut host)) == first);
}

fn garbage_ends_the_guest(place: Place) {
    let good = {
        let mut bytes = Vec::new();
        ringfence_guest::frame::put_message(&mut bytes, 1, Kind::Open, &Request::Ping).unwrap();
        bytes
    };
    let mut cases: Vec<Vec<u8>> = vec![vec![0xff; 64], vec![0; 64], good[..].repeat(2)];
    // Kinds that only a guest sends, a message that is none, a credit that is none, an end of what was not begun.
    for (kind, payload) in [
        (Kind::Reply, &b""[..]),
        (Kind::Data(Channel::Out), b"x"),
        (Kind::Open, b"\xff\xff\xff"),
        (Kind::Open, b""),
        (Kind::Credit(Channel::Out), b"12"),
    ] {
        let mut bytes = Vec::new();
        ringfence_guest::frame::put(&mut bytes, 7, kind, payload);
        cases.push(bytes);
    }
    // Twice the same stream.
    let mut twice = Vec::new();
    for _ in 0..2 {
        let request = Request::Connect { port: 1 };
        ringfence_guest::frame::put_message(&mut twice, 0, Kind::Open, &request).unwrap();
    }
    cases.push(twice);
    for (index, case) in cases.iter().enumerate() {
        if index == 2 {
            continue; // two good ones after another: not garbage
        }
        let mut host = Host::new(place);
        host.ping();
        host.socket.write_all(case).unwrap();
        host.gone();
    }
    // More than was granted.
    let mut host = Host::new(place);
    let mut exec = host.command(&["sleep", "1000"]);
    exec.stdin = true;
    let stream = host.open(&Request::Exec(exec));
    // Some of it goes into the command's pipe and is granted again.
    let mut much = Vec::new();
    for _ in 0..10 {
        ringfence_guest::frame::put(&mut much, stream, Kind::Data(Channel::In), &[0; 64 * 1024]);
    }
    // It may be gone before it has taken all.
    let _ = host.socket.write_all(&much);
    host.gone();
    // Anything else than settings first.
    if place == Place::Bare {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut child = spawn(theirs.into());
        ours.write_all(&good).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
    }
}

fn the_end_of_the_host_ends_everything(place: Place) {
    let mut host = Host::new(place);
    let seconds = sleep_of_our_own();
    let stream = host.start(&["sh", "-c", &HIDING.replace('@', &seconds)]);
    assert_eq!(host.end(stream).code, 0);
    assert!(alive(&seconds));
    host.socket.shutdown(std::net::Shutdown::Both).unwrap();
    host.gone();
    wait_until("nothing is left", || !alive(&seconds));
}
