//! What is asked of a host, setting by setting.

use std::ffi::OsStr;
use std::path::PathBuf;

use ringfence_policy::Guarantee;
use ringfence_policy::layer::{Layer, SettingError};
use ringfence_policy::profiles::EngineChoice;

use super::{Host, HostError, Request};
use crate::sandbox::{Sandbox, SandboxError};
use crate::session::Session;

/// A setting whose value cannot be understood, by its name.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {source}")]
pub struct BadSetting {
    setting: &'static str,
    source: SettingError,
}

/// The settings of a sandbox or of a session that is to be made. There is a method for each flag of the command line, with
/// the same name and the same values.
#[derive(Debug, Clone)]
pub struct Builder<Made> {
    host: Host,
    request: Request,
    made: Made,
}

/// Of a [`Sandbox`], for commands that each have a box of their own. See [`Host::sandbox`].
pub type SandboxBuilder = Builder<OneShot>;
/// Of a [`Session`], for commands in one box that stays. See [`Host::session`].
pub type SessionBuilder = Builder<Staying>;

/// What a [`SandboxBuilder`] makes.
#[derive(Debug, Clone, Copy)]
pub struct OneShot(());

/// What a [`SessionBuilder`] makes.
#[derive(Debug, Clone)]
pub struct Staying {
    name: Option<String>,
    reuse: bool,
}

impl Host {
    /// A sandbox for commands, under a profile: `agent`, `shell`, `skill`, `home` or one of the user's own.
    pub fn sandbox(&self, profile: &str) -> SandboxBuilder {
        Builder { host: self.clone(), request: Request::new(profile), made: OneShot(()) }
    }

    /// A session under a profile.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let host = ringfence::Host::here()?;
    /// let session = host.session("shell").named("notes").reuse().create().await?;
    /// let output = session.exec(["ls", "-la"]).await?.output().await?;
    /// println!("{}", String::from_utf8_lossy(&output.stdout));
    /// # Ok(())
    /// # }
    /// ```
    pub fn session(&self, profile: &str) -> SessionBuilder {
        Builder { host: self.clone(), request: Request::new(profile), made: Staying { name: None, reuse: false } }
    }
}

/// Settings whose values are texts, as on the command line.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(self, text: &str) -> Result<Self, BadSetting> {
                self.text(stringify!($name), text, Layer::$name)
            }
        )*
    };
}

/// Settings that cannot be wrong.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, value: $kind) -> Self {
                self.request.layer.$name(value);
                self
            }
        )*
    };
}

impl<Made> Builder<Made> {
    /// Work in this directory, instead of where this process works.
    pub fn workdir(mut self, workdir: impl Into<PathBuf>) -> Self {
        self.request.workdir = Some(workdir.into());
        self
    }

    /// Use this configuration file instead of the project's.
    pub fn config(mut self, path: impl Into<PathBuf>) -> Self {
        self.request.config = Some(path.into());
        self
    }

    plain! {
        /// What enforces the policy.
        engine: EngineChoice;
        /// Let the network in, or keep it out.
        network: bool;
        /// Let the Docker socket in: whoever reaches it is root on this machine.
        docker: bool;
        /// Leave user namespaces open inside, for a sandbox in the sandbox.
        nesting: bool;
        /// Refuse what stands in for a guarantee, such as a watchdog for a control group.
        strict: bool;
        /// Start also without this guarantee.
        optional: Guarantee;
        /// Watch for what the policy denies.
        trace_denials: bool;
        /// Make a path readable; globs are allowed.
        ro: &str;
        /// Make a path writable; globs are allowed.
        rw: &str;
        /// Hide what is in a path; globs are allowed.
        exclude: &str;
    }

    texts! {
        /// Make the box of this container image.
        image;
        /// Run as these ids inside (`UID:GID`), or as the caller (`caller`).
        user;
        /// Share a package cache with other boxes.
        cache;
        /// Add a preset of rules (`@name`), or take it away (`!@name`).
        preset;
        /// Memory of all processes together, such as `2g`.
        memory;
        /// CPUs, such as `0.5`.
        cpus;
        /// Processes and threads.
        pids;
        /// Open files of each process.
        files;
        /// Time until a command is ended, such as `30s`.
        timeout;
        /// CPU time of all processes together.
        cpu_time;
        /// Size of the private `/tmp`.
        tmp_size;
        /// Files and directories that the private `/tmp` can hold.
        tmp_inodes;
        /// Output that is kept where it is captured.
        output_limit;
        /// Let a system call through that the filter refuses.
        allow_syscall;
    }

    /// Pass a variable of the environment (`NAME`), or set it (`NAME=VALUE`).
    pub fn env(self, text: impl AsRef<OsStr>) -> Result<Self, BadSetting> {
        self.text("env", text.as_ref(), Layer::env)
    }

    fn text<T: ?Sized>(
        mut self,
        setting: &'static str,
        text: &T,
        set: impl FnOnce(&mut Layer, &T) -> Result<(), SettingError>,
    ) -> Result<Self, BadSetting> {
        set(&mut self.request.layer, text).map_err(|source| BadSetting { setting, source })?;
        Ok(self)
    }
}

impl SandboxBuilder {
    /// The sandbox. Nothing is started before its first command.
    pub fn build(self) -> Result<Sandbox, HostError> {
        self.host.prepare()?;
        self.host.resolve(&self.request)
    }
}

impl SessionBuilder {
    /// A name for it, which no other live session has.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.made.name = Some(name.into());
        self
    }

    /// Take the live session of its name if there is one. It must have been made with the same policy.
    pub fn reuse(mut self) -> Self {
        self.made.reuse = true;
        self
    }

    /// Makes the session.
    pub async fn create(self) -> Result<Session, SandboxError> {
        let Builder { host, request, made: Staying { name, reuse } } = self;
        let sessions = host.sessions()?;
        sessions.prepare()?;
        host.prepare()?;
        let create = host.resolve(&request)?.create()?;
        Ok(match name {
            Some(name) if reuse => sessions.open_or_create(&name, create).await?,
            Some(name) => sessions.create(create.name(name)).await?,
            None => sessions.create(create).await?,
        })
    }
}
