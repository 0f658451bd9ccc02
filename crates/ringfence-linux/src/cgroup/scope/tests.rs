//! What is said, byte by byte, and what strangers may answer: real answers are tested with a real manager (`tests/systemd`).

use super::bus::*;
use super::*;

/// A message with these fields and this body.
fn message(kind: u8, fields: &[(u8, &str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = Out(vec![b'l', kind, 0, 1]);
    out.number(body.len() as u32);
    out.number(7);
    out.array(8, |out| fields.iter().for_each(|(code, signature, value)| out.field(*code, signature, value)));
    out.align(8);
    out.0.extend(body);
    out.0
}

fn removed(unit: &str, result: &str) -> Vec<u8> {
    let mut body = Out::default();
    body.number(5);
    [("/org/freedesktop/systemd1/job/5"), unit, result].iter().for_each(|text| body.text(text));
    message(SIGNAL, &[(PATH, "o", "/x"), (MEMBER, "s", "JobRemoved"), (SIGNATURE, "g", "uoss")], &body.0)
}

fn failed(why: &str) -> Option<News> {
    Some(News::Failed(why.to_owned()))
}

#[test]
fn the_call_is_what_the_specification_says() {
    let call = call("u.scope");
    let (start, length) = body(&call).unwrap();
    assert_eq!((call.len(), start % 8), (start + length, 0));
    let mut values = In { bytes: &call[start..], at: 0 };
    assert_eq!((values.text(), values.text()), (Some("u.scope"), Some("fail")));
    let properties = values.number().unwrap() as usize;
    values.align(8);
    let end = values.at + properties;
    let mut names = Vec::new();
    while values.at < end {
        values.align(8);
        let (name, signature) = (values.text().unwrap(), values.signature().unwrap());
        match signature {
            "s" => drop(values.text().unwrap()),
            "b" => assert_eq!(values.number(), Some(1)),
            "au" => assert_eq!((values.number(), values.number()), (Some(4), Some(0))),
            "t" => {
                values.align(8);
                assert_eq!(values.take(8), Some([0xff; 8].as_slice()));
            }
            other => panic!("{other}"),
        }
        names.push(name);
    }
    assert_eq!(names, ["Description", "PIDs", "Delegate", "TasksMax", "CollectMode"]);
    assert_eq!((values.at, values.number()), (end, Some(0)));
    values.align(8);
    assert_eq!(values.at, length);
}

#[test]
fn news_are_of_the_unit_alone() {
    let unit = "ringfence-1-2.scope";
    assert_eq!(news(&removed(unit, "done"), unit), Some(News::Done));
    assert_eq!(news(&removed(unit, "failed"), unit), failed("failed"));
    assert_eq!(news(&removed("other.scope", "done"), unit), Some(News::Other));
    let name = "org.freedesktop.DBus.Error.AccessDenied";
    assert_eq!(news(&message(ERROR, &[(ERROR_NAME, "s", name)], &[]), unit), failed(name));
    assert_eq!(news(&message(2, &[(SIGNATURE, "g", "o")], b"anything"), unit), Some(News::Other));
    assert_eq!(news(&message(SIGNAL, &[(MEMBER, "s", "JobNew")], b"anything"), unit), Some(News::Other));
    assert_eq!(news(&message(ERROR, &[(ERROR_NAME, "s", "\u{1b}[2J")], &[]), unit), None);
    assert_eq!(news(&message(SIGNAL, &[(MEMBER, "s", "JobRemoved")], &[1]), unit), None);
}

/// Cut off anywhere, with any byte changed, or all random: nothing panics, and what is cut off is no news.
#[test]
fn strangers_bytes_are_refused() {
    let unit = "ringfence-1-2.scope";
    let whole = removed(unit, "done");
    for length in 0..whole.len() {
        assert_ne!(news(&whole[..length], unit), Some(News::Done), "{length}");
    }
    for at in 0..whole.len() {
        for byte in [0, 1, 7, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] = byte;
            let _ = news(&changed, unit);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for length in (0..200).cycle().take(20_000) {
        let mut bytes: Vec<u8> = (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8 & if state & 0x100 == 0 { 0x0f } else { 0xff }
            })
            .collect();
        if let Some(first) = bytes.first_mut() {
            *first = b'l';
        }
        assert_ne!(news(&bytes, unit), Some(News::Done));
    }
}

/// What comes of a manager that says this, and then nothing more.
fn told(said: &[u8], stays: bool) -> ScopeError {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(said).unwrap();
    let kept = stays.then_some(theirs);
    let mut talk = Talk { stream: ours, until: Instant::now() + Duration::from_millis(50) };
    let error = talk.start("1000", "u.scope").unwrap_err();
    drop(kept);
    error
}

#[test]
fn nobody_is_waited_for_without_end() {
    assert!(matches!(told(b"", true), ScopeError::Slow));
    assert!(matches!(told(b"OK 1234\r\n", true), ScopeError::Slow));
    assert!(matches!(told(b"REJECTED EXTERNAL\r\n", true), ScopeError::Refused(_)));
    assert!(matches!(told(&[b'x'; 1000], true), ScopeError::Garbled));
    let after = |message: &[u8]| [b"OK 1234\r\n", message].concat();
    let mut long = removed("other.scope", "done");
    assert!(matches!(told(&after(&long), true), ScopeError::Slow));
    assert!(matches!(told(&after(&long[..40]), true), ScopeError::Slow));
    long[4..8].copy_from_slice(&(LONGEST as u32).to_le_bytes());
    assert!(matches!(told(&after(&long), true), ScopeError::Garbled));
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(told(&after(&long), true), ScopeError::Garbled));
    assert!(matches!(told(&after(&removed("u.scope", "timeout")), true), ScopeError::Refused(why) if why == "timeout"));
}

#[test]
fn a_manager_that_leaves_is_an_error() {
    assert!(matches!(told(b"", false), ScopeError::Talk(_)));
}

#[test]
fn only_a_socket_of_this_user_alone_is_asked() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let mode = |mode| fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
    assert!(matches!(ask(place.path()), Err(ScopeError::NoManager)));
    fs::create_dir(place.path().join("systemd")).unwrap();
    let socket = place.path().join("systemd/private");
    fs::write(&socket, "").unwrap();
    assert!(matches!(ask(place.path()), Err(ScopeError::Foreign(_))));
    fs::remove_file(&socket).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    mode(0o755);
    assert!(matches!(ask(place.path()), Err(ScopeError::Foreign(_))));
    fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink("/dev/null", &socket).unwrap();
    mode(0o700);
    assert!(matches!(ask(place.path()), Err(ScopeError::Foreign(_))));
}
