//! A client's connection to a supervisor: streams by number, each with its own window.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringfence_guest::frame::{
    Agreed, Channel, Decoder, Frame, FrameError, Greeting, Kind, MAX_DATA, MAX_REQUEST, NoCommonVersion, WINDOW,
};
use ringfence_linux::sys::locked;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Serialize;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::SessionError;
use super::pipes::Outbox;
use super::protocol::{ClientHello, ClientRequest, GREETING, Refusal, SupervisorHello, SupervisorReply};
use super::supervisor::address;
use crate::host::Host;
use crate::records::redact::{SHORTEST_VALUE, is_secret_variable};

/// What comes on a stream. Its end without a last answer: the supervisor is gone.
#[derive(Debug)]
pub enum Incoming {
    Reply(SupervisorReply),
    Data(Channel, Bytes),
    /// No more data.
    Eof,
}

/// A connection, shared by everything that uses it; closed with the last of them.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Shared {
    /// Whose environment must not be in records.
    host: Option<Host>,
    id: String,
    /// What this side says first.
    greeting: Greeting,
    /// Watched for what comes, and not for room: that would wake us each time the other side has read.
    socket: pipe::Receiver,
    /// What the socket did not take yet.
    out: Mutex<Outbox>,
    /// There is something in `out`.
    waiting: Notify,
    streams: Mutex<Streams>,
    next: AtomicU32,
    /// Bytes of each output that are kept.
    keeps: AtomicU64,
    /// Has a permit once the supervisor has said who it is.
    greeted: Semaphore,
    /// Closed when nothing comes any more.
    end: Semaphore,
}

#[derive(Debug, Default)]
struct Streams {
    open: HashMap<u32, Entry>,
    /// Nothing comes any more.
    closed: bool,
    /// It speaks no version that this release does.
    foreign: Option<NoCommonVersion>,
    /// What both sides can do, once it has said who it is.
    agreed: Option<Agreed>,
    /// It was greeted.
    spoke: bool,
    /// It knows what of this process must not be in records.
    introduced: bool,
}

/// Answers that wait for whoever asked, and take so much, end their stream: unlike data they come without a grant.
const MOST_WAITING: usize = 16 << 20;
/// Between two looks at a socket that cannot be waited for.
const LOOK: Duration = Duration::from_millis(10);
/// Of the environment of this process, what is told without a second look.
const MOST_VARIABLES: usize = 256 << 10;
/// Above this the reader of a stream gets its turn before more is read.
const SOME_WAITING: usize = 1 << 20;

#[derive(Debug)]
struct Entry {
    /// With what each takes of `MOST_WAITING`.
    incoming: mpsc::UnboundedSender<(Incoming, usize)>,
    waiting: Arc<AtomicUsize>,
    /// What may be sent on `In`.
    window: Arc<Semaphore>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Whoever waits to write learns that nobody reads any more.
        self.window.close();
    }
}

#[derive(Debug)]
struct Task(tokio::task::AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The environment of this host, for what must not be in the record. Of one that is very large, what is secret by name.
fn own_variables(host: Option<&Host>) -> Vec<Vec<u8>> {
    let variables = host.map(Host::variables).unwrap_or_default();
    let all = || variables.iter().filter(|(_, value)| value.len() >= SHORTEST_VALUE);
    let size: usize = all().map(|(name, value)| name.len() + value.len()).sum();
    let sent = all().filter(|(name, _)| size <= MOST_VARIABLES || is_secret_variable(name));
    sent.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect()
}

impl Link {
    /// Connects to the supervisor that listens at `path`. Where as many others wait as there is room for, so does this.
    pub async fn connect(id: &str, path: &Path, host: Option<Host>, until: Instant) -> io::Result<Link> {
        Link::connect_as(GREETING, id, path, host, until).await
    }

    /// The same with another greeting than this release's.
    pub(super) async fn connect_as(
        greeting: Greeting,
        id: &str,
        path: &Path,
        host: Option<Host>,
        until: Instant,
    ) -> io::Result<Link> {
        let (_dir, address) = address(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        loop {
            match rustix::net::connect(socket.as_fd(), &address) {
                Err(Errno::AGAIN) if Instant::now() < until => tokio::time::sleep(LOOK).await,
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::INTR) => {}
                result => break result?,
            }
        }
        // Whoever could change the directory could listen there in its place.
        if rustix::net::sockopt::socket_peercred(&socket)?.uid != rustix::process::getuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let shared = Arc::new(Shared {
            id: id.to_owned(),
            greeting,
            host,
            socket: pipe::Receiver::from_owned_fd_unchecked(socket)?,
            out: Mutex::default(),
            waiting: Notify::new(),
            streams: Mutex::default(),
            next: AtomicU32::new(1),
            keeps: AtomicU64::new(ringfence_policy::limits::MIB),
            greeted: Semaphore::new(0),
            end: Semaphore::new(0),
        });
        let task = tokio::spawn(Arc::clone(&shared).carry());
        Ok(Link { shared, _task: Arc::new(Task(task.abort_handle())) })
    }

    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Bytes of each output that the session keeps, once it has said so.
    pub fn keeps(&self) -> u64 {
        self.shared.keeps.load(Ordering::Relaxed)
    }

    /// Whether both sides can do this, as far as the supervisor has spoken.
    pub fn has(&self, feature: u64) -> bool {
        locked(&self.shared.streams).agreed.is_some_and(|agreed| agreed.features & feature != 0)
    }

    /// Whether it is known that one side cannot do this.
    pub fn lacks(&self, feature: u64) -> bool {
        locked(&self.shared.streams).agreed.is_some_and(|agreed| agreed.features & feature == 0)
    }

    pub fn is_closed(&self) -> bool {
        locked(&self.shared.streams).closed
    }

    pub fn lost(&self) -> SessionError {
        let id = self.shared.id.clone();
        match locked(&self.shared.streams).foreign {
            Some(source) => SessionError::Version { id, source },
            None => SessionError::Lost { id },
        }
    }

    /// Opens a stream, with the pipes that go with the request.
    pub fn open(&self, request: &ClientRequest, pipes: Vec<OwnedFd>) -> Result<Stream, SessionError> {
        self.open_with(request, matches!(request, ClientRequest::Exec(_)), pipes)
    }

    /// `runs`: it is a command, before which the supervisor must know what is secret.
    fn open_with(&self, request: &impl Serialize, runs: bool, pipes: Vec<OwnedFd>) -> Result<Stream, SessionError> {
        let (sender, incoming) = mpsc::unbounded_channel();
        let window = Arc::new(Semaphore::new(WINDOW as usize));
        let waiting = Arc::new(AtomicUsize::new(0));
        let number = {
            let mut streams = locked(&self.shared.streams);
            if streams.closed {
                drop(streams);
                return Err(self.lost());
            }
            // Under the lock, so that numbers reach the supervisor in rising order.
            let introduce = runs && !std::mem::replace(&mut streams.introduced, true);
            let first = self.shared.next.fetch_add(1 + u32::from(introduce), Ordering::Relaxed);
            let number = first + u32::from(introduce);
            let entry = Entry { incoming: sender, waiting: Arc::clone(&waiting), window: Arc::clone(&window) };
            streams.open.insert(number, entry);
            // In one go with the first request and the first command, which costs nobody a turn.
            let greet = !std::mem::replace(&mut streams.spoke, true);
            let put = |out: &mut Outbox| {
                if greet {
                    let hello = ClientHello { greeting: self.shared.greeting };
                    out.message(0, Kind::Input, &hello, Vec::new())?;
                }
                if introduce {
                    out.message(
                        first,
                        Kind::Open,
                        &ClientRequest::Environment { variables: own_variables(self.shared.host.as_ref()) },
                        Vec::new(),
                    )?;
                }
                out.message(number, Kind::Open, request, pipes)
            };
            if let Err(error) = self.shared.send(put) {
                streams.open.remove(&number);
                streams.introduced &= !introduce;
                return Err(error.into());
            }
            number
        };
        let sender = Sender { link: self.clone(), number, window };
        Ok(Stream { sender, incoming, waiting, owed: [0; 2], done: false })
    }

    /// Asks for what no release knows yet.
    #[cfg(test)]
    pub async fn ask_unknown(&self) -> Result<SupervisorReply, SessionError> {
        let mut stream = self.open_with(&[200u8, 1, 1, 2], false, Vec::new())?;
        match stream.next().await {
            Some(Incoming::Reply(reply)) => Ok(reply),
            _ => Err(self.lost()),
        }
    }

    /// Asks for one answer.
    pub async fn ask(&self, ask: &ClientRequest) -> Result<SupervisorReply, SessionError> {
        self.answer(self.open(ask, Vec::new())?).await
    }

    /// The one answer on a stream.
    pub async fn answer(&self, mut stream: Stream) -> Result<SupervisorReply, SessionError> {
        loop {
            match stream.next().await {
                Some(Incoming::Reply(answer)) => {
                    stream.done = true;
                    return Ok(answer);
                }
                Some(_) => {}
                None => return Err(self.lost()),
            }
        }
    }

    /// Waits until the supervisor has spoken. One that was killed takes connections as long as the kernel clears it away, and
    /// never speaks: then it is lost, and nothing was asked of it yet.
    pub async fn greeted(&self) -> Result<(), SessionError> {
        match self.shared.greeted.acquire().await {
            // It may have been killed since: what was asked of it may have been heard.
            Err(_) if locked(&self.shared.streams).agreed.is_none() => Err(self.lost()),
            _ => Ok(()),
        }
    }

    /// Waits until the other side has closed the connection.
    pub async fn closed(&self) {
        // Never has a permit; closed with the connection.
        let _ = self.shared.end.acquire().await;
    }
}

impl Shared {
    /// Sends what is put into the outbox, now as far as the socket takes it, and the rest as soon as it does.
    fn send<T>(&self, put: impl FnOnce(&mut Outbox) -> T) -> T {
        let mut out = locked(&self.out);
        let was_empty = out.pending() == 0;
        let result = put(&mut out);
        if was_empty && !self.flush(&mut out) {
            self.waiting.notify_one();
        }
        result
    }

    /// Writes what the socket takes; whether that was all.
    fn flush(&self, out: &mut Outbox) -> bool {
        match out.flush(self.socket.as_fd()) {
            Err(Errno::AGAIN) => false,
            // Whoever reads learns that it is gone, also where the other side still is there.
            Err(_) => {
                out.clear();
                let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
                true
            }
            Ok(()) => true,
        }
    }

    /// Carries bytes until the connection ends.
    async fn carry(self: Arc<Self>) {
        let mut reads = std::pin::pin!(self.read());
        let mut writes = std::pin::pin!(self.write());
        std::future::poll_fn(|context| {
            let (read, write) = (reads.as_mut().poll(context), writes.as_mut().poll(context));
            if read.is_ready() || write.is_ready() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        let mut streams = locked(&self.streams);
        streams.closed = true;
        // Their receivers see the end.
        streams.open.clear();
        self.greeted.close();
        self.end.close();
    }

    async fn write(&self) {
        loop {
            self.waiting.notified().await;
            let own = rustix::io::fcntl_dupfd_cloexec(self.socket.as_fd(), 3).map_err(io::Error::from);
            let room = own.and_then(pipe::Sender::from_owned_fd_unchecked);
            while !self.flush(&mut locked(&self.out)) {
                match &room {
                    Ok(room) => {
                        if room.writable().await.is_err() {
                            return;
                        }
                        // Looked at once more; till then there was none.
                        let _ = room.try_io(|| Err::<(), _>(io::ErrorKind::WouldBlock.into()));
                    }
                    // No descriptor is left to wait with.
                    Err(_) => tokio::time::sleep(LOOK).await,
                }
            }
        }
    }

    async fn read(&self) {
        let mut decoder = Decoder::new(MAX_REQUEST);
        let mut buffer = vec![0; 4 * MAX_DATA];
        loop {
            if self.socket.readable().await.is_err() {
                return;
            }
            let mut read = Err(Errno::AGAIN);
            let looked = self.socket.try_io(|| {
                read = rustix::io::read(self.socket.as_fd(), &mut buffer[..]);
                // Less than there was room for: that was all, and is waited for before the next look.
                if read.is_ok_and(|n| n == buffer.len()) { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
            drop(looked);
            match read {
                Ok(0) => return,
                Ok(n) => {
                    decoder.feed(&buffer[..n]);
                    match self.frames(&mut decoder) {
                        Ok(most) if most > SOME_WAITING => tokio::task::yield_now().await,
                        Ok(_) => {}
                        Err(_) => return,
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Hands frames to their streams; the most that waits in one of them.
    fn frames(&self, decoder: &mut Decoder) -> Result<usize, FrameError> {
        let mut streams = locked(&self.streams);
        let mut most = 0;
        while let Some(frame) = decoder.next_frame()? {
            if frame.stream == 0 && frame.kind == Kind::Reply {
                let hello = frame.message::<SupervisorHello>()?;
                match self.greeting.meet(hello.greeting) {
                    Ok(agreed) => streams.agreed = Some(agreed),
                    Err(foreign) => {
                        streams.foreign = Some(foreign);
                        return Err(FrameError::Malformed { what: "version" });
                    }
                }
                self.keeps.store(hello.output, Ordering::Relaxed);
                self.greeted.add_permits(1);
                continue;
            }
            // Late for a stream that was closed here.
            let Some(entry) = streams.open.get(&frame.stream) else { continue };
            let (last, known) = deliver(entry, &frame)?;
            if !known {
                // It may go on at the other side, where nobody would end it.
                self.send(|out| out.put(frame.stream, Kind::Close, &[]));
            }
            let waits = entry.waiting.load(Ordering::Relaxed);
            most = most.max(waits);
            if !last && waits > MOST_WAITING {
                let _ = entry.incoming.send((Incoming::Reply(SupervisorReply::Refused(Refusal::TooMany)), 0));
                self.send(|out| out.put(frame.stream, Kind::Close, &[]));
            }
            if last || waits > MOST_WAITING {
                streams.open.remove(&frame.stream);
            }
        }
        Ok(most)
    }
}

/// Hands a frame to its stream; whether it was the last, and whether it is known what it says.
fn deliver(entry: &Entry, frame: &Frame<'_>) -> Result<(bool, bool), FrameError> {
    let incoming = match frame.kind {
        Kind::Reply => {
            // A newer supervisor may say what is not known here. That ends this stream alone.
            let said = frame.message();
            let known = said.is_ok();
            let answer = said.unwrap_or(SupervisorReply::Refused(Refusal::UnknownRequest));
            let last = answer.is_last();
            let takes = frame.payload.len() + size_of::<Incoming>();
            entry.waiting.fetch_add(takes, Ordering::Relaxed);
            // A stream that was dropped has nobody to tell.
            let _ = entry.incoming.send((Incoming::Reply(answer), takes));
            return Ok((last, known));
        }
        Kind::Data(channel) => Incoming::Data(channel, Bytes::copy_from_slice(frame.payload)),
        Kind::Eof(_) => Incoming::Eof,
        Kind::Credit(Channel::In) => {
            entry.window.add_permits(frame.credit()? as usize);
            return Ok((false, true));
        }
        _ => return Err(FrameError::Malformed { what: "kind of frame" }),
    };
    let _ = entry.incoming.send((incoming, 0));
    Ok((false, true))
}

/// The sending side of a stream.
#[derive(Debug, Clone)]
pub struct Sender {
    pub link: Link,
    number: u32,
    window: Arc<Semaphore>,
}

impl Sender {
    pub fn put(&self, kind: Kind, payload: &[u8]) {
        self.link.shared.send(|out| out.put(self.number, kind, payload));
    }

    pub fn message<T: Serialize>(&self, kind: Kind, message: &T) -> Result<(), SessionError> {
        Ok(self.link.shared.send(|out| out.message(self.number, kind, message, Vec::new()))?)
    }

    /// Sends data as far as the other side takes it, and waits for it. False when the stream has ended.
    pub async fn write(&self, bytes: &[u8]) -> bool {
        for part in bytes.chunks(MAX_DATA) {
            let Ok(permits) = self.window.acquire_many(part.len() as u32).await else { return false };
            permits.forget();
            self.put(Kind::Data(Channel::In), part);
        }
        true
    }

    /// As much of the bytes as can be sent at once.
    pub fn write_some(&self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(MAX_DATA).min(self.window.available_permits());
        match self.window.try_acquire_many(n as u32) {
            Ok(permits) if n > 0 => {
                permits.forget();
                self.put(Kind::Data(Channel::In), &bytes[..n]);
                n
            }
            _ => 0,
        }
    }

    /// Several messages at once.
    pub fn with(&self, put: impl FnOnce(&mut Outbox, u32)) {
        self.link.shared.send(|out| put(out, self.number));
    }

    pub fn window(&self) -> &Arc<Semaphore> {
        &self.window
    }
}

/// A stream. Dropped before its last answer, it is closed.
#[derive(Debug)]
pub struct Stream {
    pub sender: Sender,
    incoming: mpsc::UnboundedReceiver<(Incoming, usize)>,
    /// What the answers in it take.
    waiting: Arc<AtomicUsize>,
    /// Taken and not granted again yet.
    owed: [u32; 2],
    done: bool,
}

impl Stream {
    /// What comes next; `None` when the connection is lost.
    pub async fn next(&mut self) -> Option<Incoming> {
        let incoming = self.incoming.recv().await;
        self.took(incoming)
    }

    pub fn poll_next(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<Incoming>> {
        self.incoming.poll_recv(context).map(|incoming| self.took(incoming))
    }

    fn took(&mut self, incoming: Option<(Incoming, usize)>) -> Option<Incoming> {
        let incoming = incoming.map(|(incoming, takes)| {
            self.waiting.fetch_sub(takes, Ordering::Relaxed);
            incoming
        });
        match &incoming {
            None => self.done = true,
            Some(Incoming::Reply(answer)) if answer.is_last() => self.done = true,
            Some(Incoming::Data(channel, bytes)) => {
                let owed = &mut self.owed[usize::from(*channel == Channel::Err)];
                *owed += bytes.len() as u32;
                if *owed >= WINDOW / 4 {
                    let grant = std::mem::take(owed);
                    self.sender.put(Kind::Credit(*channel), &grant.to_le_bytes());
                }
            }
            Some(_) => {}
        }
        incoming
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.done {
            locked(&self.sender.link.shared.streams).open.remove(&self.sender.number);
            self.sender.put(Kind::Close, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::Exec;
    use super::*;

    /// Whoever killed a supervisor after its first word must not have a command run twice, nor called never tried.
    #[tokio::test]
    async fn one_that_spoke_may_have_heard() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for speaks in [true, false] {
            let link = Link::connect("s-1", &path, None, Instant::now()).await.unwrap();
            let exec = Exec::new(["true"]);
            let asked = exec.send(&link).unwrap();
            let (mut socket, _) = listener.accept().unwrap();
            if speaks {
                let mut hello = Vec::new();
                let message = SupervisorHello { greeting: GREETING, output: 1 };
                ringfence_guest::frame::put_message(&mut hello, 0, Kind::Reply, &message).unwrap();
                socket.write_all(&hello).unwrap();
            }
            assert!(socket.read(&mut [0; 1 << 16]).unwrap() > 0);
            drop(socket);
            link.closed().await;
            assert_eq!(link.greeted().await.is_ok(), speaks);
            let error = asked.begun(&exec).await.unwrap_err();
            assert!(matches!(error, SessionError::CommandLost { .. }), "{error}");
        }
    }

    /// What goes on at the other side would be read by nobody.
    #[tokio::test]
    async fn what_answers_something_unknown_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let supervisor = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            let mut said = Vec::new();
            let message = SupervisorHello { greeting: GREETING, output: 1 };
            ringfence_guest::frame::put_message(&mut said, 0, Kind::Reply, &message).unwrap();
            socket.write_all(&said).unwrap();
            let (mut decoder, mut buffer) = (Decoder::new(1 << 20), vec![0; 1 << 16]);
            loop {
                while let Some(frame) = decoder.next_frame().unwrap() {
                    match frame.kind {
                        Kind::Open => {
                            let mut said = Vec::new();
                            ringfence_guest::frame::put(&mut said, frame.stream, Kind::Reply, &[100, 1, 2]);
                            socket.write_all(&said).unwrap();
                        }
                        Kind::Close => return frame.stream,
                        _ => {}
                    }
                }
                let n = socket.read(&mut buffer).expect("that it is closed");
                assert!(n > 0, "the client is gone");
                decoder.feed(&buffer[..n]);
            }
        });
        let link = Link::connect("s-1", &path, None, Instant::now()).await.unwrap();
        let answer = link.ask(&ClientRequest::Stat { path: b"/".to_vec() }).await.unwrap();
        assert_eq!(answer, SupervisorReply::Refused(Refusal::UnknownRequest));
        assert_eq!(supervisor.join().unwrap(), 1);
    }
}
