//! What is measured once for each account: a cold run, alone and eight at once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::args::{Args, Section};
use crate::library::{LIBRARY, Ready};
use crate::line::Line;
use crate::measure::{self, Contender, Extent, Failure, Rate, Skip, Times};
use crate::peers::{Peers, TRUE};

pub const BARE: &str = "bare fork+exec";
pub const CLI: &str = "ringfence run";
/// Boxes at once.
pub const AT_ONCE: usize = 8;

/// The figures of one account.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pass {
    pub user: String,
    pub cold: Vec<Times>,
    pub crowd: Vec<Rate>,
    pub skips: Vec<Skip>,
    pub commands: BTreeMap<String, String>,
    pub versions: BTreeMap<String, String>,
}

/// Where an account works, and the program that it measures.
#[derive(Debug, Clone)]
pub struct Scene {
    pub place: PathBuf,
    pub project: PathBuf,
    pub ringfence: PathBuf,
}

impl Scene {
    /// Makes a small git project in `place`, and enters it: nobody is started with a directory of its own to enter.
    pub fn set(place: &Path, ringfence: &Path) -> Result<Scene, Failure> {
        let wrong = |e: std::io::Error| format!("cannot make a project in `{}`: {e}", place.display());
        let project = place.join("project");
        fs::create_dir_all(project.join("src")).map_err(wrong)?;
        fs::write(project.join("README.md"), "# A project\n").map_err(wrong)?;
        fs::write(project.join("src/main.py"), "print('hello')\n").map_err(wrong)?;
        Line::new("git", ["init", "--quiet", "."]).at(&project).trial()?;
        std::env::set_current_dir(&project).map_err(wrong)?;
        Ok(Scene { place: place.to_path_buf(), project, ringfence: ringfence.to_path_buf() })
    }

    /// `ringfence run --network=false`, with more flags, around a command.
    pub fn ringfence(&self, flags: &[&str], command: &[&str]) -> Line {
        let args = ["run", "--network=false"].iter().chain(flags).chain(&["--"]).chain(command);
        Line::new(&self.ringfence, args.copied())
    }
}

/// Measures as whoever we are.
pub fn measure(args: &Args, scene: &Scene, peers: &Peers, user: String) -> Pass {
    let mut pass = Pass { user, commands: peers.commands(), versions: peers.versions(), ..Pass::default() };
    pass.skips.extend(peers.skips.iter().cloned());
    let bare = Line::new(TRUE, [""; 0]);
    let native = scene.ringfence(&[], &[TRUE]);
    let bubblewrap = scene.ringfence(&["--engine", "bubblewrap"], &[TRUE]);
    let library = Ready::new(&scene.project, &scene.ringfence, &[TRUE]).and_then(|ready| ready.run().map(|()| ready));
    let mut ours = Vec::new();
    for (name, line) in [(CLI.to_owned(), &native), (format!("{CLI} --engine bubblewrap"), &bubblewrap)] {
        match line.trial() {
            Ok(()) => {
                pass.commands.insert(name.clone(), line.text());
                ours.push(Contender::new(name, || line.run()));
            }
            Err(reason) => pass.skips.push(Skip { name, reason }),
        }
    }
    match &library {
        Ok(library) => ours.push(Contender::new(LIBRARY, || library.run())),
        Err(reason) => pass.skips.push(Skip { name: LIBRARY.to_owned(), reason: reason.clone() }),
    }
    let bare = || Contender::new(BARE, || bare.run());
    if args.wants(Section::Cold) {
        say(&format!("cold run of {TRUE}, as {}", pass.user));
        let extent = match args.quick {
            true => Extent { rounds: 60, budget: Duration::from_secs(8) },
            false => Extent { rounds: 400, budget: Duration::from_secs(40) },
        };
        let everybody: Vec<_> = std::iter::once(bare()).chain(peers.contenders()).collect();
        let everybody = everybody.into_iter().chain(ours.iter().map(again)).collect::<Vec<_>>();
        let (times, skips) = measure::interleave(&everybody, extent);
        pass.cold = times;
        pass.skips.extend(skips);
    }
    if args.wants(Section::Crowd) {
        say(&format!("{AT_ONCE} at once, as {}", pass.user));
        let (rounds, slice) = if args.quick { (2, 400) } else { (5, 1000) };
        let ours = ours.iter().filter(|c| !c.name.contains("bubblewrap")).map(again);
        let everybody: Vec<_> = std::iter::once(bare()).chain(peers.crowd()).chain(ours).collect();
        let pause = Duration::from_millis(slice / 4);
        let (rates, skips) = measure::crowd(&everybody, AT_ONCE, rounds, Duration::from_millis(slice), pause);
        pass.crowd = rates;
        pass.skips.extend(skips);
    }
    pass
}

fn again<'a>(contender: &'a Contender<'_>) -> Contender<'a> {
    let again = Contender::new(contender.name.clone(), || (contender.run)());
    match &contender.prepare {
        Some(prepare) => again.prepared(prepare),
        None => again,
    }
}

pub fn say(what: &str) {
    eprintln!("bench: {what}");
}

/// An account of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    pub fn find(name: &str) -> Option<Account> {
        Account::in_text(&fs::read_to_string("/etc/passwd").ok()?, |account| account.name == name)
    }

    pub fn own() -> String {
        let uid = rustix::process::getuid().as_raw();
        let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Account::in_text(&text, |account| account.uid == uid).map_or_else(|| uid.to_string(), |account| account.name)
    }

    fn in_text(passwd: &str, wanted: impl Fn(&Account) -> bool) -> Option<Account> {
        let parse = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let (name, uid, gid) = (fields.first()?, fields.get(2)?, fields.get(3)?);
            Some(Account { name: (*name).to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? })
        };
        passwd.lines().filter_map(parse).find(wanted)
    }

    /// The ordinary account for the second pass when root measures.
    pub fn ordinary(asked: Option<&str>) -> Result<Account, Failure> {
        if let Some(name) = asked {
            return Account::find(name).ok_or_else(|| format!("there is no account `{name}`"));
        }
        let sudo = std::env::var("SUDO_USER").ok();
        let names = ["ringfence-test"].into_iter().chain(sudo.as_deref()).chain(["nobody"]);
        let found = names.filter_map(Account::find).find(|account| account.uid != 0);
        found.ok_or_else(|| "no ordinary account here: ringfence-test, the caller of sudo, nobody".to_owned())
    }
}

/// Measures as another account, in a process of its own.
pub fn measure_as(account: &Account, args: &Args) -> Result<Pass, Failure> {
    let wrong = |e: std::io::Error| format!("cannot measure as {}: {e}", account.name);
    let place = args.work_in.join(format!("as-{}", account.name));
    let home = place.join("home");
    for dir in [&place, &home] {
        fs::create_dir_all(dir).map_err(wrong)?;
        chown(dir, Some(account.uid), Some(account.gid)).map_err(wrong)?;
    }
    let sections: Vec<&str> = args.sections.iter().map(|s| s.name()).collect();
    let mut command = Command::new(args.work_in.join("ringfence-bench"));
    command.args(["--pass", "--only", &sections.join(","), "--work-in"]).arg(&args.work_in);
    if args.quick {
        command.arg("--quick");
    }
    let output = command
        .env_clear()
        .env("HOME", &home)
        .env("USER", &account.name)
        .env("LOGNAME", &account.name)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir(&place)
        .uid(account.uid)
        .gid(account.gid)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(wrong)?;
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cannot measure as {}: {e}", account.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts() {
        let text = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:100::/home/me:/bin/sh\n";
        let found = Account::in_text(text, |account| account.name == "me");
        assert_eq!(found, Some(Account { name: "me".to_owned(), uid: 1000, gid: 100 }));
        assert_eq!(Account::in_text(text, |account| account.name == "broken"), None);
    }
}
