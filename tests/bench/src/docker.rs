//! The Docker engine beside Docker itself: a command in a live container, a container made, a container removed, and eight
//! of them at once. The image is the one of `docker run`'s row.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use ringfence::EngineRef;
use ringfence::policy::layer::Layer;
use ringfence::policy::layers::{self, Inputs};
use ringfence::session::{Create, Exec, Session, Sessions};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::line::{Line, answer, which};
use crate::measure::{self, Contender, Extent, Failure, Rate, Skip, Times};
use crate::pass::{AT_ONCE, BARE, Scene, say};
use crate::peers::{SLEEP, TRUE};

pub const NATIVE: &str = "session exec, native";
pub const OURS: &str = "session exec, Docker";
pub const PEER_CREATE: &str = "docker run -d";
pub const PEER_REMOVE: &str = "docker rm -f";

/// Everything about the Docker engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    /// A command in a live sandbox, beside the native engine's.
    pub exec: Vec<Times>,
    pub create: Vec<Times>,
    pub remove: Vec<Times>,
    /// Made, used once and removed.
    pub crowd: Vec<Rate>,
}

struct Stage {
    sessions: Sessions,
    project: PathBuf,
    image: String,
    docker: PathBuf,
    /// What is live, to be ended where nobody takes the time.
    live: Mutex<Vec<Session>>,
    /// The same, of Docker's own.
    plain: Mutex<Vec<String>>,
    runtime: Mutex<Runtime>,
}

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)
}

async fn execute(session: &Session) -> Result<(), Failure> {
    let output = session.exec(Exec::new([TRUE])).await.map_err(text)?.output().await.map_err(text)?;
    if output.exit_code() == Some(0) { Ok(()) } else { Err(format!("{:?}", output.outcome)) }
}

impl Stage {
    fn new(scene: &Scene) -> Result<Stage, Failure> {
        let docker = which("docker").ok_or("not installed")?;
        let image = fs::read_to_string(scene.place.join("docker-image")).map_err(|_| "no image of docker run's")?;
        let place = scene.place.join("docker-runtime");
        fs::create_dir_all(&place).map_err(text)?;
        Ok(Stage {
            sessions: Sessions::new(place.join("sessions"), &scene.ringfence)
                .on(ringfence::Host::here().map_err(text)?),
            project: scene.project.canonicalize().map_err(text)?,
            image,
            docker,
            live: Mutex::default(),
            plain: Mutex::default(),
            runtime: Mutex::new(runtime()?),
        })
    }

    fn create(&self, engine: EngineRef) -> Result<Create, Failure> {
        let facts = ringfence::facts::gather().map_err(text)?;
        let mut flags = Layer::flags();
        flags.profile("skill");
        // A share of one processor would be measured, not the engine.
        flags.cpus("2").map_err(text)?;
        if engine == ringfence::engines::docker::ENGINE {
            flags.image(&self.image).map_err(text)?;
        }
        let inputs = Inputs::new(self.project.clone(), facts.home.clone(), flags);
        let policy = layers::resolve(inputs).map_err(text)?.policy;
        Ok(Create::new(policy, facts).choice(engine.into()))
    }

    fn within<T>(&self, act: impl AsyncFnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.runtime.lock().map_err(text)?.block_on(act())
    }

    fn make(&self) -> Result<(), Failure> {
        let create = self.create(ringfence::engines::docker::ENGINE)?;
        let session = self.within(async || self.sessions.create(create).await.map_err(text))?;
        self.live.lock().map_err(text)?.push(session);
        Ok(())
    }

    fn end(&self) -> Result<(), Failure> {
        let all: Vec<Session> = self.live.lock().map_err(text)?.drain(..).collect();
        self.within(async || {
            for session in all {
                session.stop().await.map_err(text)?;
            }
            Ok(())
        })
    }

    fn make_plain(&self) -> Result<(), Failure> {
        let args = ["run", "-d", "--rm", "--network", "none", "--pull", "never", &self.image, SLEEP, "1000"];
        let id = answer(&Line::new(&self.docker, args)).ok_or("docker run -d failed")?;
        self.plain.lock().map_err(text)?.push(id.trim().to_owned());
        Ok(())
    }

    fn end_plain(&self) -> Result<(), Failure> {
        let all: Vec<String> = self.plain.lock().map_err(text)?.drain(..).collect();
        match all.is_empty() {
            true => Ok(()),
            false => Line::new(&self.docker, ["rm", "-f"].into_iter().chain(all.iter().map(String::as_str))).run(),
        }
    }

    /// From any thread: a session made, used once and ended.
    fn whole(&self) -> Result<(), Failure> {
        let create = self.create(ringfence::engines::docker::ENGINE)?;
        runtime()?.block_on(async {
            let session = self.sessions.create(create).await.map_err(text)?;
            execute(&session).await?;
            session.stop().await.map_err(text)
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is left ends with its idle time.
        let _ = self.end();
        let _ = self.end_plain();
    }
}

pub fn measure(scene: &Scene, quick: bool) -> (Figures, Vec<Skip>) {
    let mut figures = Figures::default();
    let mut skips = Vec::new();
    say("the Docker engine");
    let stage = match Stage::new(scene) {
        Ok(stage) => stage,
        Err(reason) => return (figures, vec![Skip { name: "the Docker engine".to_owned(), reason }]),
    };
    for part in [exec, life, crowd] {
        match part(&stage, quick, &mut figures) {
            Ok(more) => skips.extend(more),
            Err(reason) => skips.push(Skip { name: "the Docker engine".to_owned(), reason }),
        }
    }
    (figures, skips)
}

fn exec(stage: &Stage, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let make = |engine| {
        let create = stage.create(engine)?;
        stage.within(async || stage.sessions.create(create).await.map_err(text))
    };
    let (native, ours) =
        (Mutex::new(make(ringfence::engines::native::ENGINE)?), Mutex::new(make(ringfence::engines::docker::ENGINE)?));
    let run = |session: &Mutex<Session>| {
        let session = session.lock().map_err(text)?;
        stage.within(async || execute(&session).await)
    };
    stage.make_plain()?;
    let plain = stage.plain.lock().map_err(text)?.last().cloned().unwrap_or_default();
    let (bare, peer) = (Line::new(TRUE, [""; 0]), Line::new(&stage.docker, ["exec", &plain, TRUE]));
    peer.trial()?;
    let contenders = [
        Contender::new(BARE, || bare.run()),
        Contender::new(NATIVE, || run(&native)),
        Contender::new(OURS, || run(&ours)),
        Contender::new("docker exec", || peer.run()),
    ];
    let extent = match quick {
        true => Extent { rounds: 40, budget: Duration::from_secs(12) },
        false => Extent { rounds: 300, budget: Duration::from_secs(60) },
    };
    let (times, skips) = measure::interleave(&contenders, extent);
    figures.exec = times;
    drop(contenders);
    for session in [native, ours] {
        stage.live.lock().map_err(text)?.push(session.into_inner().map_err(text)?);
    }
    stage.end()?;
    stage.end_plain()?;
    Ok(skips)
}

fn life(stage: &Stage, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let extent = || match quick {
        true => Extent { rounds: 6, budget: Duration::from_secs(15) },
        false => Extent { rounds: 30, budget: Duration::from_secs(60) },
    };
    let contenders = [
        Contender::new(PEER_CREATE, || stage.make_plain()).prepared(|| stage.end_plain()),
        Contender::new("session create, Docker", || stage.make()).prepared(|| stage.end()),
    ];
    let (times, mut skips) = measure::interleave(&contenders, extent());
    figures.create = times;
    stage.end_plain()?;
    stage.end()?;
    let contenders = [
        Contender::new(PEER_REMOVE, || stage.end_plain()).prepared(|| stage.make_plain()),
        Contender::new("session stop, Docker", || stage.end()).prepared(|| stage.make()),
    ];
    let (times, more) = measure::interleave(&contenders, extent());
    figures.remove = times;
    skips.extend(more);
    Ok(skips)
}

fn crowd(stage: &Stage, quick: bool, figures: &mut Figures) -> Result<Vec<Skip>, Failure> {
    let args = ["run", "--rm", "--network", "none", "--pull", "never", &stage.image, TRUE];
    let peer = Line::new(&stage.docker, args);
    let contenders = [
        Contender::new("docker run --rm", || peer.run()),
        Contender::new("session made, used and ended, Docker", || stage.whole()),
    ];
    let (rounds, slice) = if quick { (1, 2000) } else { (3, 5000) };
    let pause = Duration::from_millis(500);
    let (rates, skips) = measure::crowd(&contenders, AT_ONCE, rounds, Duration::from_millis(slice), pause);
    figures.crowd = rates;
    Ok(skips)
}
