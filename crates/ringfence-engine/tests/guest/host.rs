//! A small host for the tests: sends requests, grants credit, and collects what comes back for each stream.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_engine::EngineRef;
use ringfence_engine::engines::{self, About, GuestSandbox};
use ringfence_engine::policy::Policy;
use ringfence_engine::policy::facts::Facts;
use ringfence_engine::policy::plan::plan_guest;
use ringfence_engine::policy::policy::User;
use ringfence_guest::frame::{self, Channel, Decoder, Kind, MAX_DATA, MAX_REPLY, WINDOW};
use ringfence_guest::message::{Exec, Exited, GREETING, HostHello, Input, Reply, Request, Settings, Step};

/// Where the guest of a test runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// An ordinary process of this test, with nothing around it.
    Bare,
    Box(EngineRef),
}

/// What keeps a guest.
#[allow(clippy::large_enum_variant, reason = "there is one in a test")]
enum Keeper {
    Bare(Child),
    Box(Option<Box<dyn GuestSandbox>>),
}

pub struct Host {
    pub socket: UnixStream,
    pub workdir: PathBuf,
    decoder: Decoder,
    streams: BTreeMap<u32, Stream>,
    next: u32,
    keeper: Keeper,
    _dir: tempfile::TempDir,
}

/// What came on a stream.
#[derive(Default, Debug)]
pub struct Stream {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub replies: VecDeque<Reply>,
    pub eof: BTreeSet<u8>,
    /// What may be sent.
    pub credit: i64,
    /// Not granted back to the guest.
    pub stingy: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// As a shell tells it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn policy(facts: &mut Facts, workdir: &std::path::Path) -> Policy {
    facts.env = BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    let mut policy = ringfence_testing::policy(workdir);
    policy.user = User::Ids { uid: 1000, gid: 1000 };
    policy.limits.files = Some(77);
    policy.limits.tmp_size = 64 << 20;
    policy.limits.tmp_inodes = 10_240;
    policy
}

/// Starts the guest's program with this descriptor as its socket.
pub fn spawn(socket: OwnedFd) -> Child {
    let program = ringfence_engine::guest::open().unwrap();
    Command::new(format!("/proc/{}/fd/{}", std::process::id(), program.as_raw_fd()))
        .env_clear()
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

impl Host {
    pub fn new(place: Place) -> Host {
        Host::with(place, |_| ())
    }

    pub fn with(place: Place, change: impl FnOnce(&mut Policy)) -> Host {
        Host::started(place, change, |_| None)
    }

    /// A bare guest that is to confine itself to these places.
    pub fn confined(places: impl FnOnce(&Path) -> Option<Vec<Vec<u8>>>) -> Host {
        Host::started(Place::Bare, |_| (), places)
    }

    fn started(
        place: Place,
        change: impl FnOnce(&mut Policy),
        confined: impl FnOnce(&Path) -> Option<Vec<Vec<u8>>>,
    ) -> Host {
        let mut facts = ringfence_engine::facts::gather().unwrap();
        let dir = ringfence_testing::project_dir(env!("CARGO_TARGET_TMPDIR"));
        let workdir = std::fs::canonicalize(dir.path()).unwrap();
        let (socket, keeper) = match place {
            Place::Bare => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                (ours, Keeper::Bare(spawn(theirs.into())))
            }
            Place::Box(engine) => {
                let mut policy = policy(&mut facts, &workdir);
                change(&mut policy);
                let mut plan = plan_guest(&policy, &facts).unwrap();
                let report = engine.promise(&plan, &facts).unwrap();
                let state = Path::new("/nonexistent");
                let about = About { session: "s", name: None, profile: "test", state, keys: state };
                let (running, channel) = engines::start_guest(engine, &mut plan, &report, &facts, about).unwrap();
                (channel.into(), Keeper::Box(Some(running)))
            }
        };
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let decoder = Decoder::new(MAX_REPLY);
        let mut host = Host { socket, workdir, decoder, streams: BTreeMap::new(), next: 1, keeper, _dir: dir };
        if matches!(place, Place::Bare) {
            let mut settings = Vec::new();
            frame::put_message(
                &mut settings,
                0,
                Kind::Input,
                &HostHello {
                    greeting: GREETING,
                    settings: Settings {
                        limits: vec![(libc::RLIMIT_NOFILE as _, 77)],
                        processes: Some(60_000),
                        confined: confined(&host.workdir),
                    },
                },
            )
            .unwrap();
            host.socket.write_all(&settings).unwrap();
        }
        let (stream, kind, payload) = host.raw_frame().unwrap();
        assert_eq!((stream, kind), (0, Kind::Reply));
        assert_eq!(postcard::from_bytes::<frame::Greeting>(&payload).unwrap(), GREETING);
        host
    }

    /// The id of the guest's process as this host sees it.
    pub fn pid(&self) -> i32 {
        match &self.keeper {
            Keeper::Bare(child) => child.id() as i32,
            Keeper::Box(running) => running.as_ref().unwrap().process_id().unwrap(),
        }
    }

    /// The next frame; `None` when the guest has closed.
    pub fn raw_frame(&mut self) -> Option<(u32, Kind, Vec<u8>)> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.stream, frame.kind, frame.payload.to_vec()));
            }
            let mut bytes = vec![0; 256 * 1024];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                // A socket with a time limit: whatever stopped and continued this process interrupted it.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                result => self.decoder.feed(&bytes[..result.unwrap()]),
            }
        }
    }

    pub fn put(&mut self, stream: u32, kind: Kind, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, stream, kind, payload);
        self.socket.write_all(&bytes).unwrap();
    }

    pub fn open(&mut self, request: &Request) -> u32 {
        let stream = self.next;
        self.next += 1;
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, stream, Kind::Open, request).unwrap();
        self.streams.insert(stream, Stream { credit: WINDOW.into(), ..Stream::default() });
        self.socket.write_all(&bytes).unwrap();
        stream
    }

    pub fn input(&mut self, stream: u32, input: &Input) {
        let mut bytes = Vec::new();
        frame::put_message(&mut bytes, stream, Kind::Input, input).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    pub fn signal(&mut self, stream: u32, signal: i32, tree: bool) {
        self.input(stream, &Input::Signal { signal, tree });
    }

    pub fn grant(&mut self, stream: u32, channel: Channel, bytes: u32) {
        self.put(stream, Kind::Credit(channel), &bytes.to_le_bytes());
    }

    pub fn stream(&mut self, stream: u32) -> &mut Stream {
        self.streams.get_mut(&stream).unwrap()
    }

    /// Takes one frame in.
    pub fn step(&mut self) {
        let (stream, kind, payload) = self.raw_frame().expect("the guest is gone");
        let state = self.streams.get_mut(&stream).unwrap_or_else(|| panic!("{kind:?} on unknown stream {stream}"));
        match kind {
            Kind::Reply => state.replies.push_back(postcard::from_bytes(&payload).unwrap()),
            Kind::Data(channel) => {
                assert!(!payload.is_empty() && payload.len() <= MAX_DATA);
                match channel {
                    Channel::Out => state.out.extend_from_slice(&payload),
                    Channel::Err => state.err.extend_from_slice(&payload),
                    Channel::In => panic!("input from the guest"),
                }
                if !state.stingy {
                    self.grant(stream, channel, payload.len() as u32);
                }
            }
            Kind::Eof(channel) => assert!(state.eof.insert(channel as u8), "two ends"),
            Kind::Credit(Channel::In) => {
                state.credit += i64::from(u32::from_le_bytes(payload.try_into().unwrap()));
            }
            other => panic!("{other:?} from the guest"),
        }
    }

    /// Waits for the next reply on a stream.
    pub fn reply(&mut self, stream: u32) -> Reply {
        loop {
            if let Some(reply) = self.stream(stream).replies.pop_front() {
                return reply;
            }
            self.step();
        }
    }

    /// Waits until a stream has got this.
    pub fn until(&mut self, stream: u32, text: &str) {
        while !self.stream(stream).out.windows(text.len()).any(|w| w == text.as_bytes()) {
            if let Some(reply) = self.stream(stream).replies.iter().find(|r| !matches!(r, Reply::Started { .. })) {
                let reply = reply.clone();
                panic!("{reply:?} before {text:?}: {:?}", String::from_utf8_lossy(&self.stream(stream).out));
            }
            self.step();
        }
    }

    /// Sends data as far as the guest lets.
    pub fn send(&mut self, stream: u32, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(MAX_DATA).min(self.stream(stream).credit.max(0) as usize);
            if n == 0 {
                self.step();
                continue;
            }
            self.put(stream, Kind::Data(Channel::In), &bytes[..n]);
            self.stream(stream).credit -= n as i64;
            bytes = &bytes[n..];
        }
    }

    pub fn end_input(&mut self, stream: u32) {
        self.put(stream, Kind::Eof(Channel::In), &[]);
    }

    pub fn command(&self, argv: &[&str]) -> Exec {
        Exec {
            argv: argv.iter().map(|a| a.as_bytes().to_vec()).collect(),
            env: vec![b"PATH=/usr/bin:/bin".to_vec(), b"HOME=/tmp".to_vec()],
            cwd: self.workdir.as_os_str().as_encoded_bytes().to_vec(),
            terminal: None,
            stdin: false,
            piped: false,
        }
    }

    pub fn start(&mut self, argv: &[&str]) -> u32 {
        let exec = self.command(argv);
        self.open(&Request::Exec(exec))
    }

    /// Waits for the end of a command.
    pub fn exited(&mut self, stream: u32) -> Result<Exited, (Step, i32)> {
        loop {
            match self.reply(stream) {
                Reply::Started { .. } => {}
                Reply::Exited(exited) => return Ok(exited),
                Reply::Failed { step, errno } => return Err((step, errno)),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn end(&mut self, stream: u32) -> Ended {
        self.try_end(stream).unwrap()
    }

    /// The end of a command, or the step that kept it from starting.
    pub fn try_end(&mut self, stream: u32) -> Result<Ended, (Step, i32)> {
        let exited = self.exited(stream)?;
        let state = self.streams.remove(&stream).unwrap();
        let code = match exited.status {
            status if libc::WIFSIGNALED(status) => 128 + libc::WTERMSIG(status),
            status => libc::WEXITSTATUS(status),
        };
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ok(Ended { code, stdout: text(state.out), stderr: text(state.err) })
    }

    pub fn run(&mut self, argv: &[&str]) -> Ended {
        let stream = self.start(argv);
        self.end(stream)
    }

    pub fn sh(&mut self, script: &str) -> Ended {
        self.run(&["sh", "-c", script])
    }

    pub fn ping(&mut self) {
        let stream = self.open(&Request::Ping);
        assert_eq!(self.reply(stream), Reply::Done { bytes: 0 });
    }

    /// Waits until the guest has closed its socket, and is gone.
    pub fn gone(&mut self) {
        while self.raw_frame().is_some() {}
        match &mut self.keeper {
            Keeper::Bare(child) => drop(child.wait().unwrap()),
            Keeper::Box(running) => drop(running.take().unwrap().finish().unwrap()),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Keeper::Bare(child) = &mut self.keeper {
            let _ = child.wait();
        }
    }
}
