//! The build for an image: the image's own installer, in a container of a session of its own.
//!
//! It has the network that boxes share, and so reaches neither this host nor another box. Which interpreter and installer
//! there are is looked up inside; nothing that is found there decides anything but what is installed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_policy::facts::Facts;
use rustix::fs::{Mode, OFlags};
use tokio::time::{MissedTickBehavior, interval};

use super::RequirementsError;
use super::build::{Build, Built, Installer, Ran, Target};
use super::store::{Store, failed};
use crate::capture::Capture;
use crate::engines::EngineError;
use crate::session::{Create, Event, Exec, Session, Sessions};
use crate::supervise::{Ended, Outcome};

/// How often the size is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Becomes the installer of the first interpreter that is there. `$1`: the interpreters, `$2`: the installer.
pub(super) const INSTALL: &str = r#"
for p in $1; do
    command -v "$p" >/dev/null || continue
    if [ "$2" = npm ]; then
        command -v npm >/dev/null || exit 77
        p=npm
    else
        "$p" -I -c 'import pip' 2>/dev/null || exit 77
    fi
    shift 2
    umask 022
    # Whom the image believes, besides.
    for c in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
        [ -w authorities.pem ] && [ -r "$c" ] || continue
        while IFS= read -r l; do printf '%s\n' "$l"; done <"$c" >>authorities.pem
        break
    done
    exec "$p" "$@"
done
exit 76
"#;
/// What it exits with where there is none; neither pip nor npm does.
const NO_INTERPRETER: i32 = 76;
const NO_INSTALLER: i32 = 77;

impl Build {
    /// Installs the packages in a session of its own, which ends with it: the way for an engine of containers. It is
    /// cancelled when `cancel` is ready. Nothing is left of packages that could not be installed.
    pub async fn run_in(
        self,
        sessions: &Sessions,
        facts: &Facts,
        cancel: impl Future<Output = ()>,
    ) -> Result<Built, RequirementsError> {
        let create = Create::new(self.policy.clone(), facts.clone()).choice(self.engine.into());
        // What it wrote is looked at when its session is gone and nobody writes any more.
        let ran = sessions.once(create, async |session| self.install_in(session, cancel).await).await;
        self.settle(ran)
    }

    /// Runs the installer, and watches what it writes.
    async fn install_in(&self, session: &Session, cancel: impl Future<Output = ()>) -> Result<Ran, RequirementsError> {
        let mut execution = session.exec(Exec::new(self.installer.command.iter().cloned())).await?;
        let mut captures = [self.plan.limits.output; 2].map(Capture::new);
        let (mut outcome, mut end) = (None, None);
        let (mut cancel, mut look) = (std::pin::pin!(cancel), interval(LOOK));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let stop = tokio::select! {
                event = execution.next() => match event? {
                    Some(Event::Stdout(bytes)) => { captures[0].push(&bytes); None }
                    Some(Event::Stderr(bytes)) => { captures[1].push(&bytes); None }
                    Some(Event::Ended(ended)) => { outcome = Some(ended); None }
                    None => break,
                },
                () = &mut cancel, if end.is_none() => Some(RequirementsError::Cancelled),
                _ = look.tick(), if end.is_none() => weigh(self.store.clone(), self.work()).await,
            };
            if let Some(why) = stop {
                end = Some(why);
                execution.stop().await?;
            }
        }
        let lost = || EngineError::Lost("its session ended while packages were installed".to_owned());
        Ok((outcome.ok_or_else(lost)?, captures, end))
    }
}

/// Whether there is too much by now. Counting many files takes a while: other tasks of this thread go on meanwhile.
async fn weigh(store: Store, work: PathBuf) -> Option<RequirementsError> {
    // It does nothing that could panic; what cannot be counted now is counted in the end.
    tokio::task::spawn_blocking(move || store.check(&work).err()).await.ok().flatten()
}

/// What an image does not have, by how its installer ended.
pub(super) fn missing(installer: &Installer, outcome: &Outcome) -> Option<RequirementsError> {
    let Target::Image { name, .. } = &installer.target else { return None };
    let wanted = match outcome.ended {
        Ended::Exited(NO_INTERPRETER) => installer.language.interpreters[0],
        Ended::Exited(NO_INSTALLER) => installer.kind.name(),
        _ => return None,
    };
    Some(RequirementsError::NotInImage { image: name.clone(), wanted })
}

/// Lets whoever the code runs as look into what was installed, behind a directory that is the caller's alone. What was left
/// in its place is not followed.
pub(super) fn open_to_all(made: &Path) -> Result<(), RequirementsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(made, flags, Mode::empty());
    let opened = opened.and_then(|dir| rustix::fs::fchmod(dir, Mode::from_raw_mode(0o755)));
    opened.map_err(|errno| failed("open", made)(errno.into()))
}
