//! A PostgreSQL of the tests' own: a cluster in a temporary directory, on a socket in it, gone afterwards.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Postgres {
    dir: tempfile::TempDir,
    server: Child,
}

impl Postgres {
    /// Starts one; `None`, with a printed reason, where it is not installed and need not be.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start() -> Option<Postgres> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os("RINGFENCE_REQUIRE_ALL").is_none(), "PostgreSQL is not installed");
            println!("SKIP PostgreSQL: it is not installed");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("ringfence-pg-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let data = dir.path().join("data");
        let made = as_nobody(&programs.join("initdb"))
            .args(["--auth=trust", "--username=test", "--no-sync", "--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = as_nobody(&programs.join("postgres"))
            .args(["-F", "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-k"])
            .arg(dir.path())
            .arg("-D")
            .arg(&data)
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let postgres = Postgres { dir, server };
        let deadline = Instant::now() + Duration::from_secs(60);
        while postgres::Client::connect(&postgres.url("postgres"), postgres::NoTls).is_err() {
            assert!(Instant::now() < deadline, "PostgreSQL does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(postgres)
    }

    /// The address of a new database.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn database(&self, name: &str) -> String {
        let mut client = postgres::Client::connect(&self.url("postgres"), postgres::NoTls).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        self.url(name)
    }

    fn url(&self, name: &str) -> String {
        format!("postgresql:///{name}?host={}&user=test", self.dir.path().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // QUIT ends it at once, and its children with it.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.server),
            rustix::process::Signal::QUIT,
        );
        let _ = self.server.wait();
    }
}

/// Where `initdb` and `postgres` are: in PATH, or where Debian puts them.
fn programs() -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|e| e.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = debian.chain(std::env::split_paths(&path)).collect();
    places.retain(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file());
    places.into_iter().next()
}

/// PostgreSQL refuses to run as root.
fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).stdout(Stdio::null()).current_dir("/");
    if rustix::process::getuid().is_root() {
        let id = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.split(':').next() == Some(name)).map(str::to_owned);
            line.and_then(|line| line.split(':').nth(2)?.parse().ok())
        };
        // Debian's package makes the account.
        let uid = id("/etc/passwd", "postgres").unwrap_or(65_534);
        let gid = id("/etc/group", "postgres").unwrap_or(65_534);
        command.uid(uid).gid(gid);
    }
    command
}
