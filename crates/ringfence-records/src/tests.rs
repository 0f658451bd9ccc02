use std::os::unix::fs::PermissionsExt;

use super::*;

fn begin<'a>(command: &'a [OsString]) -> Begin<'a> {
    Begin {
        profile: Some("agent"),
        engine: Some("native"),
        sandbox: None,
        command,
        workdir: None,
        report: None,
        caller: None,
        skill: None,
    }
}

fn lines(dir: &Path) -> Vec<Line> {
    let journal = Journal::new(dir);
    journal.seal().unwrap();
    let mut lines = Vec::new();
    for segment in journal.segments().unwrap() {
        let broken = journal::read::<JournalError>(&segment, |line| {
            lines.push(line);
            Ok(())
        });
        assert_eq!(broken.unwrap(), 0);
    }
    lines
}

#[test]
fn a_beginning_and_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("state/records");
    let recorder = Recorder::new(&own, Redactor::default(), None);
    let command = ["echo".into(), "--token".into(), "abc".into(), "a\nb".into()];
    let ticket = recorder.begin(&begin(&command));
    assert!(ticket.trouble().is_none());
    let id = ticket.id().to_owned();
    ticket.end(&End::failed("password=hunter2")).unwrap();
    drop(recorder.begin(&begin(&command)));
    let lines = lines(&own);
    assert_eq!(lines.len(), 4);
    assert_eq!((lines[0].id.as_str(), lines[1].id.as_str()), (id.as_str(), id.as_str()));
    assert_eq!(lines[0].begin.as_ref().unwrap().command, ["echo", "--token", "[redacted]", "a\\nb"]);
    assert_eq!(lines[1].end.as_ref().unwrap().error.as_deref(), Some("password=[redacted]"));
    assert_eq!(lines[3].end.as_ref().unwrap().status, Status::Interrupted);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&own), 0o700);
}

#[test]
fn what_cannot_be_written_is_said_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("records");
    std::fs::create_dir(&own).unwrap();
    let recorder = Recorder::new(&own, Redactor::default(), None);
    let journal = own.join("journal");
    // A directory, a pipe that nobody reads, a link: none holds us up.
    std::fs::create_dir(&journal).unwrap();
    assert!(recorder.begin(&begin(&[])).trouble().is_some());
    std::fs::remove_dir(&journal).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &journal, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert!(recorder.begin(&begin(&[])).trouble().is_some());
    std::fs::remove_file(&journal).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &journal).unwrap();
    let ticket = recorder.begin(&begin(&["x".into()]));
    assert!(ticket.trouble().is_some());
    std::fs::remove_file(&journal).unwrap();
    ticket.end(&End::failed("no")).unwrap();
    let lines = lines(&own);
    // The first two tried, when they were dropped, and had no better luck.
    assert_eq!(lines.len(), 1);
    assert!(lines[0].begin.is_some() && lines[0].end.is_some());
}

#[test]
fn a_cut_line_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(dir.path(), Redactor::default(), None);
    recorder.failed(&begin(&["one".into()]), "x").unwrap();
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).open(dir.path().join("journal")).unwrap();
    file.write_all(b"\n{\"id\":\"01").unwrap();
    recorder.failed(&begin(&["two".into()]), "x").unwrap();
    file.write_all(&vec![b'x'; 3 << 20]).unwrap();
    recorder.failed(&begin(&["three".into()]), "x").unwrap();
    let mut store = Store::open(&Place::File(dir.path().join("records.db"))).unwrap();
    let folded = store.refresh(&Journal::new(dir.path())).unwrap();
    assert_eq!((folded.lines, folded.broken), (6, 2));
    assert_eq!(store.list(&Filter::default()).unwrap().len(), 3);
}

/// Writers and folders at once, from many threads: no line is lost.
#[test]
fn nothing_is_lost_while_it_is_folded() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::File(dir.path().join("records.db"));
    let writers: Vec<_> = (0..8)
        .map(|n| {
            let recorder = Recorder::new(dir.path(), Redactor::default(), None);
            std::thread::spawn(move || {
                for i in 0..100 {
                    let command = [format!("{n}-{i}").into()];
                    let ticket = recorder.begin(&begin(&command));
                    assert!(ticket.trouble().is_none(), "{:?}", ticket.trouble());
                    ticket.end(&End::failed("x")).unwrap();
                }
            })
        })
        .collect();
    let folders: Vec<_> = (0..2)
        .map(|_| {
            let (place, journal) = (place.clone(), Journal::new(dir.path()));
            std::thread::spawn(move || {
                let mut store = Store::open(&place).unwrap();
                for _ in 0..10 {
                    assert_eq!(store.refresh(&journal).unwrap().broken, 0);
                }
            })
        })
        .collect();
    writers.into_iter().chain(folders).for_each(|thread| thread.join().unwrap());
    let mut store = Store::open(&place).unwrap();
    store.refresh(&Journal::new(dir.path())).unwrap();
    let records = store.list(&Filter::default()).unwrap();
    assert_eq!(records.len(), 800);
    assert!(records.iter().all(|record| record.status == Status::Failed && !record.command.is_empty()));
    assert!(Journal::new(dir.path()).segments().unwrap().is_empty());
}

/// What nobody looks at is bounded.
#[test]
fn the_journal_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(dir.path(), Redactor::default(), Some(1 << 20));
    let command = [OsString::from("x".repeat(4000))];
    for _ in 0..2600 {
        assert!(recorder.begin(&begin(&command)).end(&End::failed("x")).is_ok());
    }
    let sizes = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(sizes.sum::<u64>() <= 10 << 20);
}

#[test]
fn head_and_tail_of_an_output() {
    let of = |text: &str| {
        let mut capture = capture();
        capture.push(text.as_bytes());
        stream(Seen::Output(&capture), &Redactor::default())
    };
    assert_eq!(of("a\nb"), Stream { bytes: Some(3), head: Some("a\nb".into()), tail: None });
    for size in [9000, 16384, 16385, 100_000, 3_000_000] {
        let found = of(&format!("first password=hunter2 {} token=abc last", "y".repeat(size)));
        let (head, tail) = (found.head.unwrap(), found.tail.unwrap());
        assert!(
            head.starts_with("first password=[redacted] yy") && tail.ends_with("yy token=[redacted] last"),
            "{size}"
        );
        assert!(head.len() <= KEPT + 20 && tail.len() <= KEPT + 20);
        assert!(head.len() > 4000 && tail.len() > 4000, "{size}");
    }
    // Kept by a caller who keeps less: nothing of the edge.
    let mut small = Capture::new(64);
    small.push(format!("{}ghp_{}", "x".repeat(28), "a1B2".repeat(30)).as_bytes());
    let found = stream(Seen::Output(&small), &Redactor::default());
    assert_eq!((found.head.as_deref(), found.tail.as_deref()), (Some(""), Some("")));
    assert_eq!(found.bytes, Some(152));
}

#[test]
fn ids_sort_by_time() {
    let ids: Vec<String> = (0..1000).map(|_| new_id()).collect();
    assert!(ids.is_sorted() && ids.iter().all(|id| id.len() == 26));
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
}
