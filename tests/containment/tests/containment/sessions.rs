//! Sessions beside each other, and their supervisors: neither is seen, reached or touched from inside another one. Each
//! forbidden act also works where it may: in the session itself, or on the host.

use std::path::Path;

use containment::sandbox::block_on;
use containment::{Place, Scene};
use ringfence::policy::Guarantee::{
    LifeDiesWithOwner, LifeNoSurvivors, NetHostSocketsClosed, NetIsolated, ProcIsolated,
};
use ringfence::session::{Exec, Session, SessionError};

use crate::case::{Stage, Story, ensure, same, story};

pub const STORIES: &[Story] = &[
    story(ProcIsolated, "two sessions do not see each other", two_sessions),
    story(NetIsolated, "two sessions do not reach each other", two_networks),
    story(LifeNoSurvivors, "a session that is stopped, whatever was attacked inside", attacked_and_stopped),
    story(LifeDiesWithOwner, "kill -9 of a supervisor, whatever was attacked inside", attacked_and_killed),
    story(NetHostSocketsClosed, "nobody reaches a supervisor from inside", supervisors),
];

/// What the probe answers in a session.
async fn answers(session: &Session, scene: &Scene, acts: &str) -> Result<Vec<String>, SessionError> {
    let mut command = vec![scene.probe.display().to_string()];
    command.extend(scene.act(acts));
    let output = session.exec(Exec::new(command)).await?.output().await?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Two sessions of one user and one policy.
async fn two(stage: &Stage, scene: &Scene) -> Result<[Session; 2], String> {
    stage.hand_over(scene);
    let sandbox = stage.sandbox(scene);
    let create = || sandbox.session().map_err(|e| e.to_string());
    let one = sandbox.sessions().create(create()?).await.map_err(|e| e.to_string())?;
    let other = sandbox.sessions().create(create()?).await.map_err(|e| e.to_string())?;
    Ok([one, other])
}

async fn end(sessions: &[Session]) -> Result<(), SessionError> {
    for session in sessions {
        session.stop().await?;
    }
    Ok(())
}

/// In the background of a session until it ends.
async fn hold(session: &Session, scene: &Scene, acts: &str) -> Result<(), SessionError> {
    let mut command = vec![scene.probe.display().to_string()];
    command.extend(scene.act(acts));
    session.exec(Exec::new(command).background(true)).await.map(drop)
}

/// Asks until the answers are as they should be: what was started in the background takes its time.
async fn eventually(session: &Session, scene: &Scene, acts: &str, should: &str) -> Result<(), String> {
    let mut lines = Vec::new();
    for _ in 0..200 {
        lines = answers(session, scene, acts).await.map_err(|e| e.to_string())?;
        if lines.iter().all(|line| line.starts_with(should)) && !lines.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    Err(format!("`{acts}` must work in the session itself: {lines:?}"))
}

fn two_sessions(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.word("mark", format!("held-in-the-one-{}", std::process::id()));
    block_on(async {
        let sessions = two(stage, &scene).await?;
        let [one, other] = &sessions;
        let text = |e: SessionError| e.to_string();
        hold(one, &scene, "hold 1000 {mark}").await.map_err(text)?;
        eventually(one, &scene, "find-held", "ok found").await?;
        same("what the other sees", answers(other, &scene, "find-held").await.map_err(text)?, vec!["ok nothing"])?;

        // By its number on the host, which only means something there.
        let held = containment::host::processes_with(&scene.words["mark"]);
        ensure(!held.is_empty(), || "nothing is held on the host".to_owned())?;
        for pid in held {
            scene.word("pid", pid);
            for acts in ["signal {pid}", "kill {pid}", "trace {pid}", "read /proc/{pid}/environ", "pidfd {pid}"] {
                let lines = answers(other, &scene, acts).await.map_err(text)?;
                let refused = lines.iter().all(|line| ["ESRCH", "ENOENT", "EPERM", "EACCES"].contains(&line.as_str()));
                ensure(refused && !lines.is_empty(), || format!("`{acts}` on another session's process: {lines:?}"))?;
            }
            ensure(Path::new(&format!("/proc/{pid}")).exists(), || "it was killed".to_owned())?;
        }
        // What is private to the one.
        same("own file", answers(one, &scene, "create /tmp/own + read /tmp/own").await.map_err(text)?.len(), 2)?;
        for acts in ["read /tmp/own", "stat /tmp/own", "stat /dev/shm/own"] {
            same(acts, answers(other, &scene, acts).await.map_err(text)?, vec!["ENOENT"])?;
        }
        same("own queue", answers(one, &scene, "shm-own").await.map_err(text)?, vec!["ok"])?;
        same("other's queue", answers(other, &scene, "shm 0x7777").await.map_err(text)?, vec!["ENOENT"])?;
        end(&sessions).await.map_err(text)
    })
}

fn two_networks(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.word("name", format!("in-the-one-{}", std::process::id()));
    block_on(async {
        let sessions = two(stage, &scene).await?;
        let [one, other] = &sessions;
        hold(one, &scene, "serve {name} 127.0.0.1:45671 /tmp/{name}").await.map_err(|e| e.to_string())?;
        eventually(one, &scene, "abstract {name} + tcp 127.0.0.1:45671 + unix /tmp/{name}", "ok").await?;
        for (acts, answer) in [
            ("abstract {name}", "ECONNREFUSED"),
            ("tcp 127.0.0.1:45671", "ECONNREFUSED"),
            ("unix /tmp/{name}", "ENOENT"),
        ] {
            let lines = answers(other, &scene, acts).await.map_err(|e| e.to_string())?;
            // Landlock refuses before the kernel looks for the name.
            ensure(lines == [answer] || lines == ["EPERM"], || format!("`{acts}` in another session: {lines:?}"))?;
        }
        end(&sessions).await.map_err(|e| e.to_string())
    })
}

fn supervisors(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    block_on(async {
        let sessions = two(stage, &scene).await?;
        let text = |e: SessionError| e.to_string();
        let dir = stage.sandbox(&scene).sessions().dir().to_path_buf();
        for (index, session) in sessions.iter().enumerate() {
            scene.word(&format!("socket{index}"), dir.join(session.id()).join("socket").display());
            scene.word(&format!("supervisor{index}"), session.info().await.map_err(text)?.pid);
        }
        let acts = "unix {socket0} + unix {socket1} + signal {supervisor0} + signal {supervisor1}";
        let outside = stage.outside(&scene, acts)?;
        same("on the host", outside, vec!["ok"; 4])?;
        for session in &sessions {
            let lines = answers(session, &scene, acts).await.map_err(text)?;
            let refused =
                |line: &String| ["ENOENT", "EACCES", "EPERM", "ESRCH", "ECONNREFUSED"].contains(&line.as_str());
            ensure(lines.len() == 4 && lines.iter().all(refused), || format!("`{acts}` inside: {lines:?}"))?;
            let lines = answers(session, &scene, "find-supervisor").await.map_err(text)?;
            same("supervisors that are seen", lines, vec!["ok nothing"])?;
        }
        end(&sessions).await.map_err(text)
    })
}

/// A session in which a command attacks every process that it sees, while another one is there to be attacked.
async fn attacked(stage: &Stage, scene: &Scene) -> Result<Session, String> {
    let text = |e: SessionError| e.to_string();
    stage.hand_over(scene);
    let sandbox = stage.sandbox(scene);
    let create = sandbox.session().map_err(|e| e.to_string())?;
    let session = sandbox.sessions().create(create).await.map_err(text)?;
    same("a child", answers(&session, scene, "attack-child").await.map_err(text)?, vec!["ok"])?;
    same("all processes", answers(&session, scene, "attack {tag}").await.map_err(text)?, vec!["ok none"])?;
    hold(&session, scene, "attack {tag} + hold 1000 {tag}").await.map_err(text)?;
    ensure(
        containment::host::eventually(SOON, || containment::host::processes_with(&scene.words["tag"]).len() >= 2),
        || "the command did not start".to_owned(),
    )?;
    Ok(session)
}

const SOON: std::time::Duration = std::time::Duration::from_secs(15);

fn nothing_of(scene: &Scene) -> Result<(), String> {
    let found = || containment::host::processes_with(&scene.words["tag"]);
    ensure(containment::host::eventually(SOON, || found().is_empty()), || format!("processes {:?} are left", found()))
}

fn attacked_and_stopped(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    block_on(async { attacked(stage, &scene).await?.stop().await.map_err(|e| e.to_string()) })?;
    nothing_of(&scene)
}

/// On Docker the container is found again and removed by the next sweep.
fn attacked_and_killed(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    block_on(async {
        let session = attacked(stage, &scene).await?;
        let pid = session.info().await.map_err(|e| e.to_string())?.pid;
        let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        ensure(killed.is_ok_and(|status| status.success()), || "the supervisor could not be killed".to_owned())
    })?;
    nothing_of(&scene)
}
