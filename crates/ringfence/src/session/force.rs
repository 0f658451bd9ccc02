//! Ends a session that cannot be talked to: by the process of its supervisor, with which the box dies. Never by a number
//! alone, which may be somebody else's by now: only a process that holds the lock of this session is ended.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::SessionError;
use super::place::Place;

/// A process that was killed is gone by then.
const GONE: Duration = Duration::from_secs(15);

/// Ends the supervisor of a session. False when no process is known that holds its lock, and nothing was done.
pub fn end(place: &Place, id: &str) -> Result<bool, SessionError> {
    let Some(pid) = place.supervisor(id) else { return Ok(!place.lives(id)) };
    let failed = |errno: rustix::io::Errno| SessionError::Kill { id: id.to_owned(), pid, source: errno.into() };
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // Opened before it is looked at: what is looked at afterwards is this process, or the signal reaches nobody.
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(!place.lives(id)),
        Err(errno) => return Err(failed(errno)),
    };
    if !holds(pid, &place.lock_of(id)) {
        return Ok(!place.lives(id));
    }
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let until = Instant::now() + GONE;
    while place.lives(id) {
        if Instant::now() >= until {
            return Err(failed(rustix::io::Errno::TIMEDOUT));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

/// Whether a process has this file open, and a lock on it.
fn holds(pid: u32, lock: &Path) -> bool {
    let Ok(wanted) = fs::symlink_metadata(lock) else { return false };
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|fd| {
        let same = fs::metadata(fd.path()).is_ok_and(|file| (file.dev(), file.ino()) == (wanted.dev(), wanted.ino()));
        let info = Path::new(&format!("/proc/{pid}/fdinfo")).join(fd.file_name());
        // The kernel names a lock only where this very descriptor holds it.
        same && fs::read_to_string(info).is_ok_and(|text| text.lines().any(|line| line.starts_with("lock:")))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    use ringfence_guest::frame::{self, Greeting, Kind};

    use super::super::protocol::{GREETING, SupervisorHello};
    use super::super::supervisor::tests::kept;
    use super::super::{End, Sessions, State};
    use super::*;

    /// A process that holds the lock of a session, and says nothing.
    struct Silent {
        _dir: tempfile::TempDir,
        place: Place,
        sessions: Sessions,
        id: String,
        child: Child,
    }

    fn holder(lock: OwnedFd) -> Child {
        Command::new("sleep").arg("1000").stdin(Stdio::from(lock)).spawn().unwrap()
    }

    fn silent() -> Silent {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("sessions"));
        let fresh = place.make(Some("silent")).unwrap();
        let child = holder(fresh.lock);
        let mut kept = kept(dir.path());
        (kept.info.id, kept.info.name, kept.info.pid) = (fresh.id.clone(), Some("silent".into()), child.id());
        place.keep(&kept).unwrap();
        let sessions = Sessions::new(place.dir(), "/nonexistent");
        Silent { _dir: dir, place, sessions, id: fresh.id, child }
    }

    impl Silent {
        /// It is listed with what is known of it, others are listed beside it, and it can be ended.
        async fn see_it_listed_and_ended(mut self, why: &str) {
            // Its number may be in use by somebody else by now, who has nothing to fear.
            let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
            let all = self.sessions.list().await.unwrap();
            assert_eq!(all.len(), 1);
            assert_eq!((&all[0].id, all[0].state), (&self.id, State::Live));
            assert_eq!(all[0].name.as_deref(), Some("silent"));
            assert!(all[0].unreachable.as_ref().is_some_and(|text| text.contains(why)), "{:?}", all[0].unreachable);
            let mut kept = self.place.kept(&self.id).unwrap();
            kept.info.pid = other.id();
            self.place.keep(&kept).unwrap();
            assert!(self.sessions.stop("silent").await.is_err());
            assert!(other.try_wait().unwrap().is_none() && self.child.try_wait().unwrap().is_none());
            other.kill().unwrap();
            other.wait().unwrap();
            kept.info.pid = self.child.id();
            self.place.keep(&kept).unwrap();

            self.sessions.stop("silent").await.unwrap();
            assert!(!self.child.wait().unwrap().success());
            let all = self.sessions.list().await.unwrap();
            assert_eq!(all[0].state, State::Ended(End::Lost));
            self.sessions.remove(&self.id).await.unwrap();
            assert!(self.sessions.list().await.unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn one_without_its_socket_is_listed_and_ended() {
        silent().see_it_listed_and_ended("nobody listens").await;
    }

    #[tokio::test]
    async fn one_that_does_not_answer_is_listed_and_ended() {
        let silent = silent();
        // Connections are taken, and nobody is there.
        let _listener = UnixListener::bind(silent.place.socket(&silent.id)).unwrap();
        silent.see_it_listed_and_ended("does not answer").await;
    }

    #[tokio::test]
    async fn one_with_a_full_queue_holds_no_other_task_up() {
        let silent = silent();
        let listener = UnixListener::bind(silent.place.socket(&silent.id)).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = rustix::net::SocketAddrUnix::new(silent.place.socket(&silent.id)).unwrap();
        let mut queue = Vec::new();
        loop {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            match connect(&socket, &address) {
                Ok(()) => queue.push(socket),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(errno) => panic!("{errno}"),
            }
        }
        let sessions = silent.sessions.clone();
        let list = tokio::spawn(async move { sessions.list().await.unwrap() });
        let mut others = 0;
        while !list.is_finished() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            others += 1;
        }
        assert!(others > 10, "{others}");
        assert!(list.await.unwrap()[0].unreachable.is_some());
        silent.see_it_listed_and_ended("does not answer").await;
    }

    #[tokio::test]
    async fn one_of_another_version_is_listed_and_ended() {
        let silent = silent();
        let listener = UnixListener::bind(silent.place.socket(&silent.id)).unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut bytes = Vec::new();
                let greeting = Greeting { oldest: 98, newest: 99, ..GREETING };
                let hello = SupervisorHello { greeting, output: 1 };
                frame::put_message(&mut bytes, 0, Kind::Reply, &hello).unwrap();
                let mut client = client.unwrap();
                // It may have had enough.
                let _ = std::io::Write::write_all(&mut client, &bytes);
                let _ = std::io::Read::read_to_end(&mut client, &mut Vec::new());
            }
        });
        silent.see_it_listed_and_ended("versions 98 to 99").await;
    }

    #[tokio::test]
    async fn a_state_that_cannot_be_read_hides_no_session() {
        let silent = silent();
        let state = silent.place.session(&silent.id).join("state");
        std::fs::write(
            state,
            format!(
                r#"{{"format":"ringfence.session-state","version":99,"body":{{"info":{{"pid":{}}}}}}}"#,
                silent.child.id()
            ),
        )
        .unwrap();
        let all = silent.sessions.list().await.unwrap();
        assert_eq!((all.len(), all[0].name.as_deref()), (1, Some("silent")));
        assert!(all[0].unreachable.is_some());
        silent.sessions.remove("silent").await.unwrap();
        assert!(silent.place.ids().is_empty());
        let mut child = silent.child;
        assert!(!child.wait().unwrap().success());
    }
}
