//! A start that is refused, on its way from the supervisor to the creator.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_policy::Failure;
use ringfence_policy::failure::Step;

use super::super::place::Place;
use super::super::supervisor::tests::start;
use super::super::supervisor::{SessionStart, StartReply, supervise};
use super::super::{SessionError, document, start as starting};
use super::golden::failed;
use crate::engines::{self, About};

/// What a supervisor says about this start.
fn said(start: &SessionStart) -> Vec<u8> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    supervise(&document::pack(start).unwrap()[..], write).unwrap_err();
    let mut said = Vec::new();
    File::from(read).read_to_end(&mut said).unwrap();
    said
}

/// What the creator makes of a supervisor that says this.
fn heard(dir: &Path, place: &Place, said: &[u8]) -> Failure {
    let (file, program) = (dir.join("said"), dir.join("supervisor"));
    std::fs::write(&file, said).unwrap();
    std::fs::write(&program, format!("#!/bin/sh\n/bin/cat '{}'\n", file.display())).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    let fresh = place.make(None).unwrap();
    let start = SessionStart { id: fresh.id, ..start_in(dir, place) };
    match starting::start(&program, &start, fresh.lock) {
        Err(SessionError::Start(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

fn start_in(dir: &Path, place: &Place) -> SessionStart {
    let _ = std::fs::remove_dir(dir.join("project"));
    start(dir, place)
}

#[test]
fn nothing_of_a_refused_start_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    // A daemon that is not there.
    let mut start = start_in(dir.path(), &place);
    start.engine = "docker".to_owned();
    start.facts.env.insert("DOCKER_HOST".into(), format!("unix://{}/none", dir.path().display()).into());
    let engine = engines::registry::get("docker").unwrap();
    let about = About { session: &start.id, name: None, profile: &start.profile, state: &start.dir, keys: &start.keys };
    let mut plan = start.plan.clone();
    let Err(error) = engines::start_guest(engine, &mut plan, &start.report, &start.facts, about) else {
        panic!("it was started")
    };
    let refused = error.failure();
    assert_eq!(refused.engine.as_deref(), Some("docker"));
    assert!(!refused.message.is_empty() && !refused.cures.is_empty(), "{refused:?}");
    assert_eq!(heard(dir.path(), &place, &said(&start)), refused);
    // One with everything that a failure can have, by any step.
    let all = failed(Step::Prepare);
    assert!(all.guarantee.is_some() && all.cures.len() == 6);
    assert_eq!(heard(dir.path(), &place, &document::write(&StartReply::Failed(all.clone())).unwrap()), all);
}

#[test]
fn what_the_supervisor_itself_refuses_names_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let start = SessionStart { engine: "no-such-engine".to_owned(), ..start_in(dir.path(), &place) };
    let failure = heard(dir.path(), &place, &said(&start));
    assert!(failure.step == Step::Choose && failure.message.contains("no-such-engine"), "{failure:?}");
}
