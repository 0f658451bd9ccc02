//! Every execution has a record, no secret is in it, and no box gets at it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use containment::Place;
use ringfence::policy::Guarantee::RecordComplete;
use ringfence::records::{self, Begin, End, Filter, Journal, Recorder, Redactor, Seen, Status, Store};
use ringfence::{Capture, State};

use crate::case::{Case, Stage, Story, act, ensure, same, story};

const JOURNAL: &str = ".local/state/ringfence/records/journal";

pub const CASES: &[Case] = &[
    act(
        RecordComplete,
        "read by a box",
        "read {home}/notes",
        "read {home}/.local/state/ringfence/records/journal",
        &["EACCES"],
    )
    .given(|s| s.file(&s.home.join(JOURNAL), "what other boxes did", 0o600)),
    act(
        RecordComplete,
        "written by a box whose home is writable",
        "create {home}/other",
        "write {home}/.local/state/ringfence/records/journal",
        &["EACCES", "EROFS"],
    )
    .given(|s| {
        s.file(&s.home.join(JOURNAL), "what other boxes did", 0o600);
        s.project = s.home.clone();
    })
    .untidy(),
];

pub const STORIES: &[Story] = &[story(RecordComplete, "every end, and no secret", every_end)];

fn every_end(stage: &Stage) -> Result<(), String> {
    const VALUE: &str = "tr0ub4dor-and-3";
    let mut scene = stage.scene(Place::Home);
    scene.env.insert("DEPLOY_TOKEN".into(), VALUE.into());
    let token = format!("ghp_{}", "a1B2c3D4".repeat(5));
    scene.file(&scene.home.join("printed"), &format!("{VALUE} {token} password=hunter2 \u{1b}[2J"), 0o644);
    let dir = scene.home.join(".local/state/ringfence/records");
    let env = scene.env.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
    let recorder = Recorder::new(&dir, Redactor::new(env, &[]), None);
    let command = |more: &str| -> Vec<OsString> {
        let probe = scene.probe.display().to_string();
        std::iter::once(probe).chain(scene.act(more)).map(OsString::from).collect()
    };
    let begin = |command| recorder.begin(&begin(command, stage));

    // One that ends by itself, and prints secrets: it gets them, the record does not.
    let printing = command(&format!("read {{home}}/printed + read {VALUE} + read {token}"));
    let ticket = begin(&printing);
    ensure(ticket.trouble().is_none(), || format!("{:?}", ticket.trouble()))?;
    let mut ran = stage.inside(&scene, "read {home}/printed")?;
    ensure(ran.stdout.contains(VALUE) && ran.stdout.contains(&token), || ran.stdout.clone())?;
    let mut capture: Capture = records::capture();
    capture.push(ran.stdout.as_bytes());
    ran.report.recorded(ticket.trouble());
    let answer = ran.report.guarantees.iter().find(|a| a.id == RecordComplete).map(|a| a.state);
    same("record.complete", answer, Some(State::Enforced))?;
    ticket.end(&End::of(&ran.outcome, [Seen::Output(&capture), Seen::Nothing])).map_err(|e| e.to_string())?;

    // One that does not start, and one that is let go of.
    let refused = stage.sandbox(&scene).run(&["/does/not/exist".into()]);
    let error = refused.err().map(|e| e.to_string()).ok_or("it was executed")?;
    recorder.failed(&self::begin(&command("x"), stage), &error).map_err(|e| e.to_string())?;
    drop(begin(&command("y")));

    let before = contents(&dir);
    ensure(!before.chars().any(|c| c.is_control() && c != '\n'), || format!("a control character in {before:?}"))?;
    let mut store = Store::open(&records::Place::File(dir.join("records.db"))).map_err(|e| e.to_string())?;
    store.refresh(&Journal::new(&dir)).map_err(|e| e.to_string())?;
    let found = store.list(&Filter::default()).map_err(|e| e.to_string())?;
    let statuses: Vec<Status> = found.iter().map(|record| record.status).collect();
    same("what was recorded", statuses, [Status::Interrupted, Status::Failed, Status::Exited])?;
    ensure(found[2].stdout.head.as_deref().is_some_and(|head| head.contains("[redacted]")), || format!("{found:?}"))?;
    let all = before + &contents(&dir) + &format!("{found:?}");
    for secret in [VALUE, "a1B2c3D4", "hunter2"] {
        ensure(!all.contains(secret), || format!("{secret:?} is in the records"))?;
    }
    Ok(())
}

fn begin<'a>(command: &'a [OsString], stage: &Stage) -> Begin<'a> {
    let engine = Some(stage.engine.name());
    Begin {
        profile: Some("agent"),
        engine,
        sandbox: None,
        command,
        workdir: None,
        report: None,
        caller: None,
        skill: None,
    }
}

/// Everything in the files of a directory.
fn contents(dir: &Path) -> String {
    let files: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()).collect()
}
