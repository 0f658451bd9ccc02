//! Sessions on an engine that brings nothing but a guest: what the seam promises to every engine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "tests ask how they were started")]

use std::path::PathBuf;
use std::time::Duration;

use ringfence::code::{Code, Contexts, Language, Status};
use ringfence::host::{Directories, Host, SessionBuilder};
use ringfence::policy::Guarantee;
use ringfence::policy::facts::Facts;
use ringfence::records::Filter;
use ringfence::session::{Event, Exec, ExecutionState, Output, Session, SessionError, Size, State, WriteOptions};
use ringfence::{Ended, EngineChoice, Reason};
use ringfence_testing::{engine, project_dir};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Place {
    host: Host,
    project: PathBuf,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        engine::add();
        let dir = project_dir(env!("CARGO_TARGET_TMPDIR"));
        let home = dir.path().canonicalize().unwrap();
        let project = home.join("project");
        std::fs::create_dir(&project).unwrap();
        let mut facts = Facts { home, ..ringfence::facts::gather().unwrap() };
        for variable in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            facts.env.remove(std::ffi::OsStr::new(variable));
        }
        let directories = Directories::new(&facts);
        let program = env!("CARGO_BIN_EXE_test-supervisor");
        let host = Host::builder(facts).workdir(&project).directories(directories).program(program).build();
        Place { host, project, _dir: dir }
    }

    /// A session that asks for nothing that this engine cannot promise.
    fn builder(&self) -> SessionBuilder {
        let any = self.host.session("agent").engine(EngineChoice::from_name(engine::NAME));
        Guarantee::ALL.iter().fold(any, |builder, guarantee| builder.optional(*guarantee))
    }

    async fn session(&self) -> Session {
        self.builder().create().await.unwrap()
    }
}

async fn run(session: &Session, script: &str) -> Output {
    session.exec(["sh", "-c", script]).await.unwrap().output().await.unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn promises_that_nobody_keeps_are_refused() {
    let place = Place::new();
    let refused = place.host.session("agent").engine(EngineChoice::from_name(engine::NAME)).create().await;
    assert!(refused.unwrap_err().to_string().contains("it isolates nothing"));
    let session = place.session().await;
    let report = session.report().await.unwrap();
    assert_eq!(report.engine, engine::NAME);
    // Records are kept by the library, for every engine.
    let others = report.guarantees.iter().filter(|answer| answer.id != Guarantee::RecordComplete);
    assert!(others.map(|answer| answer.state).all(|state| state != ringfence::State::Enforced), "{report:?}");
    session.stop().await.unwrap();
}

#[tokio::test]
async fn commands_with_input_signals_and_terminals() {
    let place = Place::new();
    let session = place.session().await;
    let output = run(&session, "pwd; echo err >&2; exit 3").await;
    assert_eq!(text(&output.stdout).trim_end(), place.project.to_str().unwrap());
    assert_eq!((text(&output.stderr), output.exit_code()), ("err\n", Some(3)));

    let mut cat = session.exec(Exec::new(["cat"]).stdin(true)).await.unwrap();
    cat.write(b"some input").await.unwrap();
    cat.close_stdin().await.unwrap();
    assert_eq!(text(&cat.output().await.unwrap().stdout), "some input");

    let script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.1; done";
    let mut waits = session.exec(["sh", "-c", script]).await.unwrap();
    assert_eq!(waits.next().await.unwrap(), Some(Event::Stdout(b"ready\n".as_slice().into())));
    waits.signal(rustix::process::Signal::TERM.as_raw()).await.unwrap();
    let output = waits.output().await.unwrap();
    assert_eq!((text(&output.stdout), output.exit_code()), ("caught\n", Some(7)));

    let terminal = Exec::new(["sh", "-c", "test -t 0 && stty size; read line; echo got $line"]);
    let mut terminal = session.exec(terminal.terminal(Size { rows: 33, columns: 99 })).await.unwrap();
    terminal.write(b"word\n").await.unwrap();
    let output = terminal.output().await.unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("33 99") && said.contains("got word"), "{said}");
    session.stop().await.unwrap();
}

#[tokio::test]
async fn limits_of_time_and_output() {
    let place = Place::new();
    let session = place.session().await;
    // All that the command started ends with it; what others run goes on.
    let mark = "31415926";
    let others = session.exec(["sleep", "31415927"]).await.unwrap();
    let limited = Exec::new(["sh", "-c", &format!("sleep {mark} & setsid sleep {mark} & wait")]);
    let output = session.exec(limited.timeout(Duration::from_secs(1))).await.unwrap().output().await.unwrap();
    assert_eq!(output.outcome.reason, Some(Reason::Time));
    assert_eq!(processes(mark), 0);
    assert_eq!(processes("31415927"), 1);
    others.stop().await.unwrap();
    let output = run(&session, "sleep 0.2; echo in time").await;
    assert_eq!((text(&output.stdout), output.outcome.ended), ("in time\n", Ended::Exited(0)));

    let limit = session.output_limit();
    let output = run(&session, &format!("head -c {} /dev/zero", limit * 3)).await;
    assert_eq!(output.exit_code(), Some(0));
    assert!(output.stdout_dropped >= limit && output.stdout.len() as u64 <= limit + 4096, "{}", output.stdout.len());
    session.stop().await.unwrap();
}

/// Processes of this machine with this word in their command line.
fn processes(word: &str) -> usize {
    let has = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(has).filter(|found| *found).count()
}

#[tokio::test]
async fn files_watches_and_ports() {
    let place = Place::new();
    let session = place.session().await;
    let files = session.files();
    let mut changes = files.watch(".", false).await.unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    files.write("large", &large, WriteOptions::default()).await.unwrap();
    assert_eq!(std::fs::read(place.project.join("large")).unwrap(), large);
    assert_eq!(files.read("large", 1 << 30).await.unwrap(), large);
    let changed = tokio::time::timeout(Duration::from_secs(10), changes.next()).await.unwrap().unwrap();
    assert!(!changed.path.is_empty());
    assert_eq!(files.stat("large").await.unwrap().size, 3_000_000);
    assert!(matches!(files.read("missing", 10).await.unwrap_err(), SessionError::File { .. }));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        std::io::copy(&mut socket.try_clone().unwrap(), &mut socket).unwrap();
    });
    let mut connection = session.connect(port).await.unwrap();
    connection.write_all(b"there and back").await.unwrap();
    connection.shutdown().await.unwrap();
    let mut back = String::new();
    connection.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, "there and back");
    echo.join().unwrap();
    assert!(session.connect(port).await.is_err());
    session.stop().await.unwrap();
}

#[tokio::test]
async fn code_with_inputs_and_contexts() {
    let place = Place::new();
    let session = place.session().await;
    let contexts = Contexts::of(session.clone());
    let run = async |source: &str| {
        let mut code = Code::new(Language::named("python").unwrap(), source);
        code.inputs = json!({ "x": 20 });
        contexts.run("main", &code, Some(Duration::from_secs(30)), std::future::pending()).await.unwrap()
    };
    let first = run("kept = x + 1\nprint('out')\nkept * 2").await;
    assert_eq!((first.status, first.stdout.as_str(), first.value), (Status::Ok, "out\n", Some(json!(42))));
    assert_eq!(run("kept").await.value, Some(json!(21)));
    assert_eq!(contexts.list().await.unwrap().len(), 1);
    contexts.restart("main").await.unwrap();
    assert_eq!(run("kept").await.status, Status::Error);
    session.stop().await.unwrap();
}

#[tokio::test]
async fn records_lists_and_the_end() {
    let place = Place::new();
    let session = place.builder().named("kept").create().await.unwrap();
    let sessions = place.host.sessions().unwrap();
    let background = session.exec(Exec::new(["sleep", "27182818"]).background(true)).await.unwrap();
    let record = run(&session, "true").await;
    assert_eq!(record.exit_code(), Some(0));
    let executions = session.executions().await.unwrap();
    let states: Vec<_> = executions.iter().map(|execution| execution.state).collect();
    assert!(states.len() == 2 && states.contains(&ExecutionState::Running), "{states:?}");

    session.extend(Some(Duration::from_secs(3600)), None).await.unwrap();
    let listed = sessions.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].engine.as_str()), (1, engine::NAME));
    assert!(listed[0].expires.is_some());
    assert!(matches!(session.freeze().await.unwrap_err(), SessionError::Unsupported { .. }));

    // It is found by its name, and ends with all that it runs.
    drop(background);
    assert_eq!(processes("27182818"), 1);
    sessions.stop("kept").await.unwrap();
    assert_eq!(processes("27182818"), 0);
    let ended = sessions.info("kept").await.unwrap();
    assert!(matches!(ended.state, State::Ended(_)), "{:?}", ended.state);
    sessions.remove("kept").await.unwrap();
    assert!(sessions.list().await.unwrap().is_empty());

    let history = place.host.archive().unwrap().open().unwrap().list(&Filter::default()).unwrap();
    let commands: Vec<_> = history.iter().map(|record| record.command.join(" ")).collect();
    assert_eq!(history.len(), 2, "{commands:?}");
    assert!(history.iter().all(|record| record.engine.as_deref() == Some(engine::NAME)), "{history:?}");
}
