//! `ringfence session shell` at a real terminal, with a person (this test) in front of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/person.rs"]
mod person;
#[path = "support/sessions.rs"]
mod sessions;
mod support;

use std::time::Duration;

use person::Terminal;
use rustix::termios::Winsize;
use support::Place;

/// A place with a session in it, which ends with it.
struct Here {
    place: Place,
}

impl Here {
    fn new() -> Here {
        let here = Here { place: Place::new() };
        let made = here.place.ringfence(&["session", "create", "one", "--life", "10m"]);
        assert_eq!(made.code, 0, "{}", made.err);
        here
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for pid in sessions::supervisors(&self.place.home) {
            sessions::kill(pid, libc::SIGKILL);
        }
    }
}

/// A shell inside with a prompt of its own.
fn shell(terminal: &mut Terminal) {
    terminal.typed("$R session shell one -- bash --norc --noediting -i\n");
    terminal.until("$ ");
    terminal.typed("PS1='in''ner> '\n");
    terminal.until("inner> ");
}

fn resize(terminal: &Terminal, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal.master, size).unwrap();
}

#[test]
fn a_terminal_with_its_size_and_its_exit_code() {
    let here = Here::new();
    let mut terminal = Terminal::open(&here.place);
    shell(&mut terminal);
    terminal.typed("tty; stty size; pwd\n");
    let shown = terminal.until("inner> ");
    assert!(shown.contains("/dev/pts/") && shown.contains("30 100") && shown.contains("/workspace"), "{shown}");
    // It follows ours, down to one that nothing fits into.
    for (rows, columns) in [(44, 111), (1, 1), (0, 0), (30, 100)] {
        resize(&terminal, rows, columns);
        std::thread::sleep(Duration::from_millis(300));
        terminal.typed("stty size; echo there-$((1+1))\n");
        let shown = terminal.until("there-2");
        assert!(shown.contains(&format!("{rows} {columns}")), "{shown}");
        terminal.until("inner> ");
    }
    terminal.typed("exit 7\n");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 7"));
    assert!(terminal.is_cooked());
    // What it did is the session's: the next one finds it.
    terminal.typed("$R session shell one -- sh -c 'kill -TERM $$'\n");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 143"));
    assert!(terminal.is_cooked());
}

#[test]
fn a_tiny_terminal_from_the_start() {
    let here = Here::new();
    let mut terminal = Terminal::open(&here.place);
    resize(&terminal, 1, 2);
    terminal.typed("$R session shell one -- sh -c 'stty size; seq 1 3000; echo the-''end'\n");
    let shown = terminal.until("the-end");
    assert!(shown.contains("1 2") && shown.contains("3000"), "{shown}");
    terminal.until("outer> ");
}

#[test]
fn keys_belong_to_what_runs_inside() {
    let here = Here::new();
    let mut terminal = Terminal::open(&here.place);
    shell(&mut terminal);
    terminal.typed("sleep 1000\n");
    std::thread::sleep(Duration::from_millis(400));
    terminal.typed("\x1a");
    terminal.until("Stopped");
    terminal.until("inner> ");
    terminal.typed("jobs\n");
    terminal.until("Stopped");
    terminal.until("inner> ");
    terminal.typed("fg\n");
    std::thread::sleep(Duration::from_millis(400));
    terminal.typed("\x03");
    terminal.until("inner> ");
    terminal.typed("echo code $?\n");
    terminal.until("code 130");
    // The end of input ends the shell, and nothing else.
    terminal.typed("\x04");
    terminal.until("outer> ");
    assert!(terminal.is_cooked());
    assert_eq!(here.place.ringfence(&["session", "exec", "one", "--", "echo", "there"]).out, "there\n");
}

#[test]
fn a_stopped_client_leaves_the_terminal_and_comes_back() {
    let here = Here::new();
    let mut terminal = Terminal::open(&here.place);
    shell(&mut terminal);
    // By its home: other tests have clients, too.
    let home = here.place.home.to_str().unwrap();
    let ours = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| String::from_utf8_lossy(&env).contains(home))
    };
    let client = sessions::running("session\0shell\0one").into_iter().find(ours).unwrap();
    sessions::kill(client, libc::SIGTSTP);
    terminal.until("Stopped");
    terminal.until("outer> ");
    assert!(terminal.is_cooked());
    assert!(terminal.line("echo mine").contains("mine"));
    terminal.typed("fg\n");
    std::thread::sleep(Duration::from_millis(400));
    terminal.typed("echo still-$((1+1))\n");
    terminal.until("still-2");
    terminal.typed("exit 3\n");
    terminal.until("outer> ");
    assert!(terminal.line("echo code $?").contains("code 3"));
}

#[test]
fn who_waits_for_a_session_that_does_not_answer_can_be_ended() {
    let here = Here::new();
    let mut terminal = Terminal::open(&here.place);
    let supervisor = sessions::supervisors(&here.place.home)[0];
    sessions::kill(supervisor, libc::SIGSTOP);
    terminal.typed("$R session shell one & sleep 0.5; kill -TERM $!; wait $!; echo code $?\n");
    terminal.until("code 143");
    sessions::kill(supervisor, libc::SIGCONT);
    terminal.until("outer> ");
    assert!(terminal.is_cooked());
}

#[test]
fn without_a_terminal_it_says_so() {
    let here = Here::new();
    let refused = here.place.ringfence(&["session", "shell", "one"]);
    assert_eq!(refused.code, 125);
    assert!(refused.err.contains("needs a terminal"), "{}", refused.err);
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
