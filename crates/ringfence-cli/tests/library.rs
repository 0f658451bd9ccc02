//! The library's front door: a host that is made by hand gives the protection that the program gives.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

mod support;

use std::path::Path;

use ringfence::host::{Directories, Host};
use ringfence::policy::facts::Facts;
use ringfence::session::Exec;
use ringfence::{EngineChoice, Event, SandboxError};
use support::Place;

const IMAGE: &str = "ringfence-test/busybox";

/// A host of this place, with the program that was built.
fn host(place: &Place, project: Option<&str>) -> Host {
    let mut facts = Facts { home: place.home.clone(), ..ringfence::facts::gather().unwrap() };
    facts.program = support::program().into();
    for variable in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        facts.env.remove(std::ffi::OsStr::new(variable));
    }
    let directories = Directories::new(&facts);
    let mut host = Host::builder(facts).workdir(&place.project).directories(directories).program(support::program());
    if let Some(text) = project {
        host = host.project(text, &place.project.join(".ringfence.toml")).unwrap();
    }
    host.build()
}

async fn says(sandbox: &ringfence::Sandbox, script: &str) -> String {
    let output = sandbox.exec(["sh", "-c", script]).await.unwrap().output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test]
async fn a_sandbox_hides_what_the_program_hides() {
    let place = Place::new();
    place.write(".config/ringfence/config.toml", "");
    place.write(".ssh/id_ed25519", "secret");
    place.write("project/plain", "plain");
    let host = host(&place, None);
    let sandbox = host.sandbox("agent").network(false).build().unwrap();
    let [home, state] =
        [place.home.clone(), place.home.join(".local/state/ringfence")].map(|p| p.display().to_string());
    // What is allowed works: the project is read and written, and the own configuration read.
    let script = format!("cat plain; echo more > new; cat {home}/.config/ringfence/config.toml && echo read");
    assert_eq!(says(&sandbox, &script).await, "plainread\n");
    assert_eq!(std::fs::read_to_string(place.project.join("new")).unwrap(), "more\n");
    // Secrets, records and sessions are not there, and the configuration cannot be changed.
    for refused in [
        format!("cat {home}/.ssh/id_ed25519 && echo done"),
        format!("ls {state}/records && echo done"),
        format!("ls {state}/sessions && echo done"),
        format!("echo >> {home}/.config/ringfence/config.toml && echo done"),
    ] {
        let said = says(&sandbox, &refused).await;
        assert!(!said.contains("done") && !said.contains("secret") && !said.is_empty(), "{refused}: {said}");
    }
    assert!(Path::new(&state).join("records/journal").exists() || Path::new(&state).join("records").is_dir());
}

#[tokio::test]
async fn what_is_applied_was_judged_also_after_a_command() {
    let place = Place::new();
    place.write("outside/file", "before");
    std::fs::create_dir(place.project.join("data")).unwrap();
    let host = host(&place, Some("[files]\nrw = [\"data\"]"));
    let sandbox = host.sandbox("agent").build().unwrap();
    assert_eq!(says(&sandbox, "echo one > data/one && echo written").await, "written\n");
    // The project's file named a place in the project. By now it is a link to another one.
    let (data, outside) = (place.project.join("data"), place.home.join("outside"));
    std::fs::remove_dir_all(&data).unwrap();
    std::os::unix::fs::symlink(&outside, &data).unwrap();
    let refused = sandbox.exec(["sh", "-c", "echo after > data/file"]).await.unwrap_err();
    let because = match &refused {
        SandboxError::Recorded { error, .. } => error,
        error => error,
    };
    assert!(matches!(because, SandboxError::Layer(_) | SandboxError::Plan(_)), "{refused}");
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "before");
}

#[tokio::test]
async fn settings_are_those_of_the_flags() {
    let place = Place::new();
    let host = host(&place, None);
    let built = |builder: ringfence::host::SandboxBuilder| builder.build().unwrap().policy().clone();
    let policy = built(
        host.sandbox("shell")
            .network(false)
            .memory("64m")
            .and_then(|b| b.pids("32"))
            .and_then(|b| b.timeout("10s"))
            .and_then(|b| b.env("A=b"))
            .unwrap(),
    );
    assert_eq!((policy.limits.memory, policy.limits.pids), (Some(64 << 20), Some(32)));
    assert_eq!(policy.env.set.get("A").unwrap(), "b");
    let wrong = host.sandbox("shell").memory("much").unwrap_err().to_string();
    assert!(wrong.starts_with("memory: "), "{wrong}");
    // A host that was made by hand has what it was given.
    let bare = Host::builder(Facts { home: place.home.clone(), ..Facts::default() }).build();
    assert!(bare.sandbox("shell").build().is_err() && bare.sessions().is_err());
    assert!(bare.sandbox("shell").workdir(&place.project).build().is_ok());
}

#[tokio::test]
async fn a_terminal_runs_through_a_guest_and_leaves_nothing() {
    let place = Place::new();
    let host = host(&place, None);
    let sandbox = host.sandbox("agent").build().unwrap();
    let size = ringfence::session::Size { rows: 24, columns: 80 };
    let output = sandbox.exec(Exec::new(["sh", "-c", "test -t 0 && stty size"]).terminal(size)).await.unwrap();
    let output = output.output().await.unwrap();
    assert_eq!((output.exit_code(), output.stdout.as_slice()), (Some(0), &b"24 80\r\n"[..]));
    assert!(host.sessions().unwrap().list().await.unwrap().is_empty());
}

#[tokio::test]
async fn docker_runs_one_command_through_a_guest() {
    let place = Place::new();
    // The container runs as 1000:1000, no matter who asks for it.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&place.project, std::fs::Permissions::from_mode(0o777)).unwrap();
    let host = host(&place, None);
    let sandbox =
        host.sandbox("shell").engine(EngineChoice::from_name("docker")).image(IMAGE).unwrap().build().unwrap();
    let started = sandbox.exec(Exec::new(["sh", "-c", "echo out; cat; exit 3"]).stdin(true)).await;
    let mut execution = match started {
        Ok(execution) => execution,
        Err(error) => return support::skip("Docker", &error.to_string()),
    };
    assert_eq!(execution.report().engine, "docker");
    assert!(execution.record().is_some());
    assert_eq!(execution.next().await.unwrap(), Some(Event::Stdout(b"out\n".as_slice().into())));
    execution.write(b"in").await.unwrap();
    execution.close_stdin().await.unwrap();
    let output = execution.output().await.unwrap();
    assert_eq!((output.exit_code(), output.stdout.as_slice()), (Some(3), &b"in"[..]));
    assert!(host.sessions().unwrap().list().await.unwrap().is_empty());
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
