//! Interactive use: a terminal around the program, and a person (this test) in front of it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/person.rs"]
mod person;
mod support;

use std::io::Write;
use std::time::Duration;

use person::Terminal;
use rustix::termios::Winsize;
use support::Place;

#[test]
fn a_terminal_of_its_own() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    let shown = terminal.line("$R run sh -c 'tty; stty size; exit 5'");
    assert!(shown.contains("/dev/pts/0") && shown.contains("30 100"), "{shown}");
    assert!(terminal.line("echo code $?").contains("code 5"));
    assert!(terminal.is_cooked());
    // stderr goes where it was sent.
    terminal.line("$R run sh -c 'echo wrong >&2' 2>err");
    assert_eq!(std::fs::read_to_string(place.project.join("err")).unwrap(), "wrong\n");
}

#[test]
fn much_output_arrives_whole() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.typed("$R run sh -c 'seq 1 50000; echo the-end-$((1+1))'\n");
    let shown = terminal.until("the-end-2");
    let numbers: Vec<&str> = shown.lines().filter(|l| l.trim().parse::<u32>().is_ok()).collect();
    assert_eq!(numbers.len(), 50_000);
    // Typed ahead, more than a terminal holds.
    terminal.until("outer> ");
    terminal.typed("$R run sh -c 'stty raw -echo; echo go-$((1+1)); head -c 100000 | wc -c'\n");
    terminal.until("go-2");
    let master = terminal.master.try_clone().unwrap();
    let writer = std::thread::spawn(move || std::fs::File::from(master).write_all(&[b'x'; 100_000]));
    terminal.until("100000");
    writer.join().unwrap().unwrap();
    terminal.until("outer> ");
}

#[test]
fn the_window_is_resized() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.typed("$R run bash --norc --noediting -i\n");
    terminal.until("outer> ");
    terminal.typed("trap 'stty size' WINCH; echo set\n");
    terminal.until("\nset");
    let size = Winsize { ws_row: 44, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal.master, size).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    terminal.typed("true\n");
    terminal.until("44 111");
    terminal.typed("exit\n");
}

#[test]
fn job_control_inside_and_outside() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    // Inside: an inner shell stops and continues its own jobs.
    terminal.typed("$R run bash --norc --noediting -i\n");
    terminal.until("outer> ");
    terminal.typed("PS1='inner> '\n");
    terminal.until("inner> ");
    terminal.until("inner> ");
    terminal.typed("sleep 100\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.typed("\x1a");
    terminal.until("Stopped");
    terminal.until("inner> ");
    terminal.typed("fg\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.typed("\x03");
    terminal.until("inner> ");
    // Outside: a stopped box is a stopped job of the outer shell.
    terminal.typed("kill -STOP $$\n");
    terminal.until("Stopped");
    terminal.until("outer> ");
    assert!(terminal.is_cooked());
    assert!(terminal.line("jobs").contains("Stopped"));
    terminal.typed("fg\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.typed("echo still-$((1+1))\n");
    terminal.until("still-2");
    terminal.typed("exit 3\n");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 3"));
}

#[test]
fn without_job_control_a_stop_is_not_for_ever() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    // No shell is left that could continue what stops.
    terminal.typed("exec $R run sh -c 'echo re''ady; read word; echo got-$word'\n");
    terminal.until("ready");
    terminal.typed("\x1a");
    std::thread::sleep(Duration::from_millis(500));
    terminal.typed("this\n");
    terminal.until("got-this");
}

#[test]
fn a_job_in_the_background_leaves_the_keyboard_alone() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.typed("$R run sleep 100\n");
    std::thread::sleep(Duration::from_millis(500));
    terminal.typed("\x1a");
    terminal.until("Stopped");
    terminal.until("outer> ");
    terminal.line("bg");
    assert!(terminal.line("echo mine").contains("mine"));
    assert!(terminal.is_cooked());
    terminal.typed("fg\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.typed("\x03");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 130"));
}

#[test]
fn the_time_limit_holds_for_a_stopped_command() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.typed("$R run --timeout 2s sh -c 'kill -STOP $$; echo gone on'\n");
    terminal.until("Stopped");
    terminal.until("outer> ");
    terminal.until("ended after 2s (limit.time)");
    // The shell tells of it before its next prompt, once the child of its own is gone too.
    assert!(terminal.line("sleep 1").contains("Exit 124"));
}

/// The watch is not part of the job: it goes on when that is stopped, and then continues it.
#[test]
fn watched_limits_hold_for_a_stopped_command() {
    for engine in support::engines() {
        let place = Place::new();
        let mut terminal = Terminal::open(&place);
        // In a session of its own it is not stopped.
        let spin = "setsid sh -c \"while :; do :; done\" & sleep 0.1; kill -STOP 0";
        terminal.typed(&format!("$R run --engine {engine} --cpu-time 1s sh -c '{spin}'\n"));
        terminal.until("Stopped");
        terminal.until("ended after 1s of processor time (limit.cpu)");
        assert!(terminal.line("sleep 1").contains("Exit 124"), "{engine}");

        let report = place.ringfence(&["run", "--engine", engine, "--memory", "100m", "--report", "--", "true"]);
        // A cgroup is no affair of the job's.
        if !report.err.contains("watch over the tree") {
            continue;
        }
        let fill = "{ sleep 0.5; head -c 60000000 /dev/zero; sleep 1000; } | tail -c 50000000";
        let fill = format!("for i in 1 2 3 4; do setsid sh -c \"{fill}\" & done; sleep 0.1; kill -STOP 0");
        terminal.typed(&format!("$R run --engine {engine} --memory 100m sh -c '{fill}'\n"));
        terminal.until("Stopped");
        terminal.until("of memory (limit.memory)");
        assert!(terminal.line("sleep 1").contains("Exit 137"), "{engine}");
    }
}

#[test]
fn interrupt_twice_ends_what_hangs() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.typed("$R run sh -c 'trap \"\" INT; echo re''ady; while :; do sleep 1; done'\n");
    terminal.until("ready");
    terminal.typed("\x03");
    std::thread::sleep(Duration::from_millis(400));
    terminal.typed("\x03");
    terminal.until("ended by force");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 137"));
    assert!(terminal.is_cooked());
}

#[test]
fn interrupts_belong_to_what_answers_them() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    // One that answers each.
    terminal.typed("$R run sh -c 'trap \"echo an''swer\" INT; echo re''ady; while :; do sleep 0.05; done'\n");
    terminal.until("ready");
    for _ in 0..3 {
        terminal.typed("\x03");
        terminal.until("answer");
        std::thread::sleep(Duration::from_millis(300));
    }
    terminal.typed("\x1c");
    terminal.until("outer> ");
    // A full-screen program takes the key as any other.
    terminal.typed("$R run sh -c 'stty -isig -echo -icanon; echo re''ady; head -c 3 | od -An -c'\n");
    terminal.until("ready");
    for _ in 0..3 {
        terminal.typed("\x03");
        std::thread::sleep(Duration::from_millis(250));
    }
    terminal.until("003 003 003");
    terminal.until("outer> ");
}

#[test]
fn nothing_types_into_the_outer_terminal() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    // stdout alone is ours to write: what is typed cannot be read through it.
    let shown = terminal.line("echo piped | $R run sh -c 'cat; cat <&1; echo code $?'");
    assert!(shown.contains("piped") && shown.contains("code 1"), "{shown}");
}

/// Only standard error is handed in then. Where it is a directory, no message can be shown.
#[test]
fn a_directory_as_standard_error_is_refused() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    let shown = terminal.line("$R run sh -c 'echo ran; echo wrong >&2' 2<.; echo code $?");
    assert!(shown.contains("code 125") && !shown.contains("ran"), "{shown}");
    let shown = terminal.line("$R run sh -c 'echo ran; echo wrong >&2' 2>err; echo code $?");
    assert!(shown.contains("code 0") && shown.contains("ran"), "{shown}");
}

#[test]
fn what_is_shown_is_recorded_where_asked_for() {
    let place = Place::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$R run sh -c 'echo shown'");
    place.write(".config/ringfence/config.toml", "[records]\noutput = true\n");
    terminal.line("$R run sh -c 'test -t 1 && echo shown'");
    let json = place.ringfence(&["history", "--json"]).json();
    let stream = |index: usize| &json["records"][index]["stdout"];
    // The terminal makes two characters of a line break; one of them moves the cursor.
    assert_eq!((&stream(0)["head"], &stream(0)["bytes"]), (&"shown\\r\n".into(), &7.into()));
    assert_eq!((&stream(1)["head"], &stream(1)["bytes"]), (&serde_json::Value::Null, &7.into()));
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
