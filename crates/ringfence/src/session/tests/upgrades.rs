//! What releases of another kind have stored: nothing of it is misread, and nothing is removed.

use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::document::{self, Document, DocumentError, Packed};
use super::super::homes::{HomeFile, Homes};
use super::super::info::{End, ExecutionInfo, ExecutionState, Info, State};
use super::super::place::{Place, StateFile};
use super::super::supervisor::SessionStart;
use super::super::supervisor::tests::{kept, start};
use super::super::{SessionError, Sessions};
use crate::report::State as Kept;

/// A document as a value, changed.
fn changed<T: Document>(body: &T, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(&document::write(body).unwrap()).unwrap();
    change(&mut value["body"]);
    serde_json::to_vec(&value).unwrap()
}

/// A session that has ended, and left this.
fn left(dir: &std::path::Path, state: impl FnOnce(&StateFile) -> Option<Vec<u8>>) -> (Place, String) {
    let place = Place::new(&dir.join("sessions"));
    let fresh = place.make(Some("notes")).unwrap();
    let mut kept = kept(dir);
    kept.info = Info { id: fresh.id.clone(), name: Some("notes".to_owned()), ..kept.info };
    if let Some(bytes) = state(&kept) {
        fs::write(place.session(&fresh.id).join("state"), bytes).unwrap();
    }
    (place, fresh.id)
}

#[tokio::test]
async fn an_end_that_is_not_known_is_shown_and_nothing_is_removed() {
    for state in [json!({"ended": "out-of-luck"}), json!({"moved": {"to": "another-host"}}), json!("asleep"), json!(7)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (place, id) = left(dir.path(), |kept| {
            Some(changed(kept, |body| {
                body["info"]["state"] = state.clone();
                body["report"]["guarantees"] = json!([
                    {"id": "fs.invented-since", "state": "enforced", "by": "magic"},
                    {"id": "limit.time", "state": "enforced", "by": "the supervisor"},
                    {"id": "limit.memory", "state": "sworn", "by": "an oath"},
                ]);
            }))
        });
        let sessions = Sessions::new(place.dir(), "/nonexistent");
        let all = sessions.list().await.unwrap();
        let expected = if state["ended"].is_null() { State::Unknown } else { State::Ended(End::Unknown) };
        assert_eq!((all.len(), all[0].state), (1, expected), "{state}");
        assert!(matches!(sessions.open("notes").await, Err(SessionError::Ended { end: End::Unknown, .. })));
        let report = sessions.report(&id).await.unwrap();
        let answers: Vec<_> = report.guarantees.iter().map(|answer| (answer.id.id(), answer.state)).collect();
        // What it does not know, it does not take for kept.
        assert_eq!(answers, [("limit.time", Kept::Enforced), ("limit.memory", Kept::Missing)]);
        // The file is as it was but for what is settled.
        assert_eq!(place.ids(), [id]);
    }
}

#[tokio::test]
async fn only_what_has_no_state_is_forgotten_by_itself() {
    let states: [(&str, Option<&[u8]>); 5] = [
        ("a newer version", Some(br#"{"format":"ringfence.session-state","version":2,"body":7}"#)),
        ("another format", Some(br#"{"format":"ringfence.other","version":1,"body":7}"#)),
        ("another body", Some(br#"{"format":"ringfence.session-state","version":1,"body":7}"#)),
        ("no document", Some(b"\0\x01\x02")),
        ("nothing", Some(b"")),
    ];
    for (what, state) in states {
        let dir = tempfile::tempdir().unwrap();
        let (place, id) = left(dir.path(), |_| state.map(<[u8]>::to_vec));
        let sessions = Sessions::new(place.dir(), "/nonexistent");
        let all = sessions.list().await.unwrap();
        assert_eq!((all.len(), all[0].state), (1, State::Unknown), "{what}");
        assert!(all[0].unreachable.is_some(), "{what}");
        assert!(matches!(sessions.open(&id).await, Err(SessionError::Stored { .. })), "{what}");
        // Its name is free, and it is still there.
        drop(place.make(Some("notes")).unwrap());
        assert!(place.ids().contains(&id), "{what}");
        sessions.remove(&id).await.unwrap();
        assert!(!place.ids().contains(&id), "{what}");
    }
    // One that never stood.
    let dir = tempfile::tempdir().unwrap();
    let (place, _) = left(dir.path(), |_| None);
    assert!(Sessions::new(place.dir(), "/nonexistent").list().await.unwrap().is_empty());
    assert!(place.ids().is_empty());
}

#[test]
fn an_execution_in_a_state_that_is_not_known() {
    let of = |state: Value| {
        let one = json!({
            "id": "1", "command": ["make"], "background": false, "terminal": false, "context": null,
            "started": {"secs_since_epoch": 1, "nanos_since_epoch": 0}, "state": state, "stdout": 5, "stderr": 0,
        });
        let text = json!({"format": "ringfence.executions", "version": 1, "body": [one]}).to_string();
        document::read::<Vec<ExecutionInfo>>(text.as_bytes()).unwrap()[0].state
    };
    assert_eq!(of(json!({"exited": {"code": 0, "reason": null}})), ExecutionState::Exited { code: 0, reason: None });
    for state in [json!("waits"), json!({"exited": {"code": 0, "reason": "out-of-luck"}}), json!({"moved": [1, 2]})] {
        assert_eq!(of(state), ExecutionState::Unknown);
    }
}

#[test]
fn a_format_that_is_read_in_several_versions() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Grown {
        #[serde(default)]
        added: u32,
    }
    impl Document for Grown {
        const FORMAT: &'static str = "ringfence.grown";
        const VERSION: u32 = 3;
        const OLDEST: u32 = 2;
    }
    let read = |version: u32| {
        let text = json!({"format": "ringfence.grown", "version": version, "body": {}}).to_string();
        document::read::<Grown>(text.as_bytes())
    };
    for version in [2, 3] {
        assert_eq!(read(version).unwrap(), Grown { added: 0 });
    }
    for (version, cure) in [(1, "make it again"), (4, "use the newer release")] {
        let error = read(version).unwrap_err().to_string();
        assert!(error.contains("reads versions 2 to 3") && error.contains(cure), "{error}");
    }
}

/// Two builds of one release, of which the second has another order of what is alike.
#[test]
fn a_layout_that_differs_is_not_misread() {
    #[derive(Debug, Serialize, Deserialize)]
    struct One {
        hidden: Vec<String>,
        shown: Vec<String>,
        /// Of this process alone.
        #[serde(skip)]
        own: Option<u32>,
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Other {
        shown: Vec<String>,
        hidden: Vec<String>,
    }
    impl Packed for One {
        const FORMAT: &'static str = "ringfence.plan";
    }
    impl Packed for Other {
        const FORMAT: &'static str = "ringfence.plan";
    }
    let written = document::pack(&One { hidden: vec!["/secret".to_owned()], shown: Vec::new(), own: Some(7) }).unwrap();
    let again: One = document::unpack(&written).unwrap();
    assert_eq!((again.hidden.len(), again.shown.len(), again.own), (1, 0, None));
    let error = document::unpack::<Other>(&written).map(|other| (other.hidden, other.shown)).unwrap_err();
    assert!(matches!(error, DocumentError::Build { .. }), "{error}");
}

/// Its hash is over a form in JSON, which has no place for such names as they are.
#[test]
fn variables_that_are_no_text_are_packed() {
    use std::os::unix::ffi::OsStringExt;
    let dir = tempfile::tempdir().unwrap();
    let mut start = start(dir.path(), &Place::new(&dir.path().join("sessions")));
    let [name, value] = [b"N\xff", b"\xfe="].map(|bytes| std::ffi::OsString::from_vec(bytes.to_vec()));
    start.facts.env.insert(name, value);
    let packed = document::pack(&start).unwrap();
    assert_eq!(document::unpack::<SessionStart>(&packed).unwrap().facts.env, start.facts.env);
    let json = serde_json::to_value(&start.facts).unwrap();
    assert_eq!(serde_json::from_value::<ringfence_policy::facts::Facts>(json).unwrap().env, start.facts.env);
    // Another one is another hash.
    start.facts.env.insert("N".into(), "other".into());
    let line = |bytes: &[u8]| bytes.split(|byte| *byte == b'\n').next().unwrap().to_vec();
    assert_ne!(line(&packed), line(&document::pack(&start).unwrap()));
}

#[tokio::test]
async fn a_home_that_another_build_wrote_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("sessions"));
    let mut start = start(dir.path(), &place);
    start.engine = "docker".to_owned();
    let daemon = format!("unix://{}/none", dir.path().display());
    start.facts.env.insert("DOCKER_HOST".into(), daemon.clone().into());
    let homes = Homes::new(&dir.path().join("homes"));
    homes.keep("mine", &HomeFile::new("sha256:1".to_owned(), &start)).unwrap();
    let file = homes.dir().join("mine");
    let written = fs::read(&file).unwrap();
    let line = written.iter().position(|byte| *byte == b'\n').unwrap();
    let newer = [&written[..=line], &b"{\"format\":\"ringfence.session-start\",\"version\":2}\n..."[..]].concat();
    fs::write(&file, &newer).unwrap();

    let home = homes.find_any("mine").unwrap().unwrap();
    assert_eq!((home.hash.as_str(), home.engine().unwrap().name()), ("sha256:1", "docker"));
    let today = crate::facts::gather().unwrap();
    assert_eq!(home.facts(today.clone()).env.get(std::ffi::OsStr::new("DOCKER_HOST")), Some(&daemon.into()));
    // Only the build that wrote it can start it, and a start of another that fails leaves it as it was.
    assert!(home.start_now(today).is_none());
    let before = homes.replace("mine", &HomeFile::new("sha256:2".to_owned(), &start)).unwrap();
    homes.put_back("mine", before).unwrap();
    assert_eq!(fs::read(&file).unwrap(), newer);
    // Removing gets as far as the daemon, which is not there.
    let sessions = Sessions::new(place.dir(), "/nonexistent").homes(homes.dir()).on(crate::Host::here().unwrap());
    assert!(matches!(sessions.open("mine").await, Err(SessionError::NotFound(_))));
    let error = sessions.remove_home("mine").await.unwrap_err();
    assert!(matches!(error, SessionError::Engine(_)), "{error}");
    assert!(file.exists());
}
