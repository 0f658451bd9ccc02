//! A box on Docker, and a host that talks to its guest without a session around it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ringfence_engine::engines::docker::DockerError;
use ringfence_engine::engines::{self, About, EngineError, GuestSandbox, Left};
use ringfence_engine::policy::facts::Facts;
use ringfence_engine::policy::plan::{Plan, plan_guest};
use ringfence_engine::policy::policy::Policy;
use ringfence_engine::policy::{Inputs, Layer, resolve};
use ringfence_engine::report::Report;
use ringfence_guest::frame::{Channel, Decoder, Kind, MAX_REPLY, put, put_message};
use ringfence_guest::message::{Exec, Reply, Request};

use crate::dockerd::{IMAGE, Private, docker_at};

/// Why Docker cannot be used here. Under `./test` that is a failure.
pub fn skip() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let there = Command::new("docker").arg("info").output().is_ok_and(|output| output.status.success());
        assert!(
            there || std::env::var_os("RINGFENCE_REQUIRE_ALL").is_none(),
            "Docker is required, and does not answer"
        );
        if !there {
            eprintln!("SKIP docker: no daemon answers");
        }
        !there
    })
}

/// Builds the image of the tests unless it is there.
fn image() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if docker(&["image", "inspect", IMAGE]).0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/busybox/Dockerfile");
        std::fs::copy(recipe, dir.path().join("Dockerfile")).unwrap();
        std::fs::copy("/usr/bin/busybox", dir.path().join("busybox")).expect("busybox-static");
        let (built, text) = docker(&["build", "-q", "--network=none", "-t", IMAGE, dir.path().to_str().unwrap()]);
        assert!(built, "{text}");
    });
}

/// The `docker` program, at the daemon of this host.
pub fn docker(args: &[&str]) -> (bool, String) {
    docker_at(None, args)
}

pub fn as_docker(error: &EngineError) -> Option<&DockerError> {
    match error {
        EngineError::Own { source, .. } => source.downcast_ref(),
        _ => None,
    }
}

/// What the daemon was the reason of.
pub fn docker_error(error: EngineError) -> DockerError {
    match error {
        EngineError::Own { source, .. } => *source.downcast().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A project, a state directory, and a policy over them.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub project: PathBuf,
    pub state: PathBuf,
    pub keys: PathBuf,
    pub facts: Facts,
    pub layer: Layer,
}

impl Scene {
    pub fn new(profile: &str) -> Scene {
        image();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (project, state, keys) = (base.join("project"), base.join("state"), base.join("keys"));
        for dir in [&project, &state] {
            std::fs::create_dir(dir).unwrap();
        }
        let mut facts = ringfence_engine::facts::gather().unwrap();
        facts.home = base.clone();
        let mut layer = Layer::flags();
        layer.profile(profile);
        layer.image(IMAGE).unwrap();
        let scene = Scene { dir, project, state, keys, facts, layer };
        // Docker maps no ids: what the box may write is the box's.
        if scene.facts.uid == 0 {
            let _ = std::fs::set_permissions(scene.dir.path(), std::fs::Permissions::from_mode(0o755));
            std::os::unix::fs::chown(&scene.project, Some(1000), Some(1000)).unwrap();
        }
        scene
    }

    /// At another daemon.
    pub fn at(&mut self, host: &str) {
        self.facts.env.insert("DOCKER_HOST".into(), host.into());
    }

    pub fn at_private(profile: &str, private: &Private) -> Scene {
        let mut scene = Scene::new(profile);
        scene.at(&private.host());
        scene
    }

    pub fn policy(&self) -> Policy {
        resolve(Inputs::new(self.project.clone(), self.facts.home.clone(), self.layer.clone())).unwrap().policy
    }

    pub fn plan(&self) -> Plan {
        plan_guest(&self.policy(), &self.facts).unwrap()
    }

    pub fn start(&self) -> Result<Live, EngineError> {
        self.start_named(None)
    }

    pub fn start_named(&self, name: Option<&str>) -> Result<Live, EngineError> {
        let mut plan = self.plan();
        let profile = self.policy().profile;
        let about = About { session: "s-0123456789ab", name, profile: &profile, state: &self.state, keys: &self.keys };
        let engine = ringfence_engine::engines::docker::ENGINE;
        let report = Report { engine: engine.name().into(), guarantees: Vec::new(), devices: Vec::new() };
        let (sandbox, channel) = engines::start_guest(engine, &mut plan, &report, &self.facts, about)?;
        Ok(Live::new(sandbox, channel, plan))
    }

    /// Removes what is left of sessions that are not living. The sessions.
    pub fn clear(&self, living: bool) -> Vec<String> {
        let left = Left { state: &self.state, keys: &self.keys, facts: &self.facts, lives: &|_| living };
        engines::docker::container::clear(&left).unwrap()
    }

    /// Our containers, by the label of this scene's owner.
    pub fn containers(&self) -> Vec<String> {
        let owner = ringfence_engine::engines::docker::labels::Owner::new(self.facts.uid, &self.state);
        let filter = format!("label=ringfence.owner={}", owner.as_str());
        let (_, text) = docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]);
        text.lines().map(str::to_owned).collect()
    }
}

/// What a command did.
#[derive(Debug, Default)]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    pub failed: Option<(String, i32)>,
}

impl Ran {
    pub fn code(&self) -> i32 {
        if libc::WIFEXITED(self.status) { libc::WEXITSTATUS(self.status) } else { 128 + libc::WTERMSIG(self.status) }
    }
}

/// A box that runs.
pub struct Live {
    pub sandbox: Option<Box<dyn GuestSandbox>>,
    pub plan: Plan,
    socket: UnixStream,
    decoder: Decoder,
    next: u32,
}

impl Live {
    fn new(sandbox: Box<dyn GuestSandbox>, channel: OwnedFd, plan: Plan) -> Live {
        let socket = UnixStream::from(channel);
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        Live { sandbox: Some(sandbox), plan, socket, decoder: Decoder::new(MAX_REPLY), next: 1 }
    }

    pub fn id(&self) -> &str {
        self.sandbox.as_ref().unwrap().id().unwrap()
    }

    /// Of the guest, as the host sees it.
    pub fn pid(&self) -> i32 {
        self.sandbox.as_ref().unwrap().process_id().unwrap()
    }

    pub fn sh(&mut self, script: &str) -> Ran {
        self.exec(&["/bin/sh", "-c", script])
    }

    /// Runs a command to its end.
    pub fn exec(&mut self, argv: &[&str]) -> Ran {
        let stream = self.next;
        self.next += 1;
        let env = self.plan.env.iter().map(|(name, value)| {
            use std::os::unix::ffi::OsStrExt;
            [name.as_bytes(), b"=", value.as_bytes()].concat()
        });
        let request = Request::Exec(Exec {
            argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
            env: env.collect(),
            cwd: self.plan.workdir.to_str().unwrap().as_bytes().to_vec(),
            terminal: None,
            stdin: false,
            piped: false,
        });
        let mut bytes = Vec::new();
        put_message(&mut bytes, stream, Kind::Open, &request).unwrap();
        self.socket.write_all(&bytes).unwrap();
        let mut ran = Ran::default();
        let mut kept: HashMap<bool, Vec<u8>> = HashMap::new();
        let mut buffer = vec![0; 1 << 16];
        'ended: loop {
            let mut out = Vec::new();
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                match frame.kind {
                    Kind::Data(channel) if frame.stream == stream => {
                        kept.entry(channel == Channel::Err).or_default().extend_from_slice(frame.payload);
                        put(&mut out, stream, Kind::Credit(channel), &(frame.payload.len() as u32).to_le_bytes());
                    }
                    Kind::Reply if frame.stream == stream => match frame.message::<Reply>().unwrap() {
                        Reply::Exited(exited) => {
                            ran.status = exited.status;
                            break 'ended;
                        }
                        Reply::Failed { step, errno } => {
                            ran.failed = Some((format!("{step:?}"), errno));
                            break 'ended;
                        }
                        _ => {}
                    },
                    _ => {}
                }
            }
            self.socket.write_all(&out).unwrap();
            let count = self.socket.read(&mut buffer).expect("the guest goes on");
            assert!(count > 0, "the guest has gone");
            self.decoder.feed(&buffer[..count]);
        }
        let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
        (ran.stdout, ran.stderr) = (text(kept.remove(&false)), text(kept.remove(&true)));
        ran
    }

    pub fn finish(mut self) {
        self.sandbox.take().unwrap().finish().unwrap();
    }
}
