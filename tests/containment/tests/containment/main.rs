//! Every guarantee on every engine that is present, as root and as an ordinary user.
//!
//! Started by root, the suite runs as root and then starts itself again as `ringfence-test`. What is missing is a printed
//! SKIP, and a failure where `RINGFENCE_REQUIRE_ALL=1`.

mod case;
mod files;
mod kernel;
mod life;
mod limits;
mod network;
mod processes;
mod protected;
mod records;
mod secrets;
mod sessions;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use case::{Case, Stage, Story};
use containment::sandbox::How;
use containment::{USER, bare_kernel, everything_required, host, program};
use libtest_mimic::{Arguments, Trial};
use ringfence::EngineRef;

/// Tells the suite, started anew, whom to become.
const BECOME: &str = "RINGFENCE_TEST_BECOME";

fn main() -> ExitCode {
    if let Some(ids) = std::env::var_os(BECOME) {
        return become_user(&ids.to_string_lossy());
    }
    // In a login as in a terminal. Once at the beginning, while this process is alone in its group, and before anybody looks
    // which groups there are.
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        ringfence_linux::scope::allow(runtime.into());
    }
    ringfence_linux::limits::Home::take();
    let arguments = Arguments::from_args();
    let programs = Programs::install();
    let trials = trials(&programs);
    say(&format!("containment, as {}:", who()));
    let mut failed = libtest_mimic::run(&arguments, trials).has_failed();
    // A bare kernel's own start-up gives the user a control group first.
    if host::is_root() && !bare_kernel() {
        failed |= !again_as_user();
    }
    drop(programs);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A line beside those of the test runner.
fn say(text: &str) {
    // Output that nobody reads is no failure of a test.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn who() -> &'static str {
    if host::is_root() { "root" } else { "user" }
}

/// Copies of the probe and the launcher that everybody, and every box, can see.
struct Programs {
    dir: tempfile::TempDir,
}

impl Programs {
    fn install() -> Arc<Programs> {
        let dir = tempfile::Builder::new().prefix("ringfence-programs-").tempdir_in(containment::base());
        let dir = dir.expect("a directory for the probe");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
        for (name, built) in [("probe", env!("CARGO_BIN_EXE_probe")), ("launcher", env!("CARGO_BIN_EXE_launcher"))] {
            let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
            let built = beside.filter(|b| b.is_file()).unwrap_or_else(|| PathBuf::from(built));
            std::fs::copy(&built, dir.path().join(name)).expect("a copy of the program");
        }
        Arc::new(Programs { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn trials(programs: &Arc<Programs>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for engine in ringfence::engines::all() {
        if engine == ringfence::engines::docker::ENGINE
            && std::env::var_os("RINGFENCE_DOCKER_CASES").is_some_and(|cases| cases == "0")
        {
            say("SKIP engine docker: RINGFENCE_DOCKER_CASES=0 leaves its cases out");
            continue;
        }
        if let Err(reason) = present(engine) {
            if everything_required() && !bare_kernel() {
                let missing = move || Err(reason.into());
                trials.push(Trial::test(format!("{engine}/{}/is there", who()), missing));
            } else {
                say(&format!("SKIP engine {engine}: {reason}"));
            }
            continue;
        }
        let (probe, launcher) = (programs.path("probe"), programs.path("launcher"));
        // Its commands go through a guest.
        if engine == ringfence::engines::docker::ENGINE {
            let stage = Stage { engine, how: How::Session, probe, launcher };
            for case in cases().filter(|c| c.only.is_none_or(|only| only == engine)) {
                add(&mut trials, &stage, case.name(), case.needs, move |stage| case.prove(stage));
            }
            for story in sessions::STORIES {
                add(&mut trials, &stage, story.name(), story.needs, move |stage| story.prove(stage));
            }
            continue;
        }
        let stage = Stage { engine, how: How::Once, probe, launcher };
        for case in cases().filter(|c| c.only.is_none_or(|only| only == engine)) {
            add(&mut trials, &stage, case.name(), case.needs, move |stage| case.prove(stage));
        }
        for story in stories().filter(|s| s.only.is_none_or(|only| only == engine)) {
            add(&mut trials, &stage, story.name(), story.needs, move |stage| story.prove(stage));
        }
        // The same walls around a box that stays.
        let stage = Stage { how: How::Session, ..stage };
        if engine == ringfence::engines::native::ENGINE {
            for case in cases().filter(|c| c.only.is_none_or(|only| only == engine)) {
                add(&mut trials, &stage, case.name(), case.needs, move |stage| case.prove(stage));
            }
        }
        for story in sessions::STORIES {
            add(&mut trials, &stage, story.name(), story.needs, move |stage| story.prove(stage));
        }
    }
    trials
}

/// Adds a trial unless what it needs is not there.
fn add(
    trials: &mut Vec<Trial>,
    stage: &Stage,
    name: String,
    needs: case::Needs,
    prove: impl Fn(&Stage) -> Result<(), String> + Send + 'static,
) {
    let how = match stage.how {
        How::Once => "",
        How::Session => "-session",
    };
    let name = format!("{}{how}/{}/{name}", stage.engine, who());
    match needs.met() {
        case::Met::Yes => {
            let stage = stage.clone();
            trials.push(Trial::test(name, move || prove(&stage).map_err(Into::into)));
        }
        case::Met::NotHere => {}
        case::Met::No(reason) if everything_required() && !bare_kernel() => {
            trials.push(Trial::test(name, move || Err(reason.into())));
        }
        case::Met::No(reason) | case::Met::Cannot(reason) => say(&format!("SKIP {name}: {reason}")),
    }
}

fn cases() -> impl Iterator<Item = &'static Case> {
    [
        files::CASES,
        secrets::CASES,
        protected::CASES,
        network::CASES,
        processes::CASES,
        kernel::CASES,
        limits::CASES,
        records::CASES,
    ]
    .into_iter()
    .flatten()
}

fn stories() -> impl Iterator<Item = &'static Story> {
    [
        files::STORIES,
        secrets::STORIES,
        protected::STORIES,
        network::STORIES,
        processes::STORIES,
        kernel::STORIES,
        limits::STORIES,
        life::STORIES,
        records::STORIES,
    ]
    .into_iter()
    .flatten()
}

fn present(engine: EngineRef) -> Result<(), String> {
    match engine.name() {
        "native" => Ok(()),
        "bubblewrap" if program("bwrap").is_some() => Ok(()),
        "bubblewrap" => Err("bwrap is not installed".to_owned()),
        "docker" => match case::Needs::Docker.met() {
            case::Met::Yes => {
                let looked = Command::new("docker").args(["image", "inspect", containment::scene::IMAGE]).output();
                let there = looked.is_ok_and(|output| output.status.success());
                there.then_some(()).ok_or_else(|| "the image of the tests is not there (`./test` builds it)".to_owned())
            }
            case::Met::No(reason) | case::Met::Cannot(reason) => Err(reason),
            case::Met::NotHere => Err("not here".to_owned()),
        },
        _ => Err("no case is for it".to_owned()),
    }
}

/// Runs the suite as an ordinary user; whether it passed.
fn again_as_user() -> bool {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let account = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&USER)).then(|| (fields[2].to_owned(), fields[3].to_owned(), fields[5].to_owned()))
    });
    let Some((uid, gid, home)) = account else {
        say(&format!("SKIP everything as an ordinary user: there is no user `{USER}` (`./test` makes it)"));
        return !everything_required();
    };
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let mut gids = vec![gid];
    for line in groups.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if fields.get(3).is_some_and(|members| members.split(',').any(|m| m == USER)) {
            gids.push(fields[2].to_owned());
        }
    }
    let own = tempfile::Builder::new().prefix("ringfence-suite-").tempdir().expect("a directory for the suite");
    std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    // Where the user cannot reach the build directory (a checkout in root's home), it still reaches a copy.
    let copy = |from: &Path, name: &str| std::fs::copy(from, own.path().join(name)).expect("a copy");
    copy(&std::env::current_exe().expect("this program"), "containment");
    copy(Path::new(env!("CARGO_BIN_EXE_probe")), "probe");
    copy(Path::new(env!("CARGO_BIN_EXE_launcher")), "launcher");
    let status = Command::new(own.path().join("containment"))
        .args(std::env::args_os().skip(1))
        .env(BECOME, format!("{uid}:{}", gids.join(",")))
        .env("HOME", &home)
        .env("USER", USER)
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("RINGFENCE_TEST_BASE")
        .current_dir("/")
        .status();
    status.expect("the suite, as a user").success()
}

/// Becomes `uid:gid,more…` and starts the suite anew.
fn become_user(ids: &str) -> ExitCode {
    use rustix::process::{Gid, Uid};
    use std::os::unix::process::CommandExt;
    let (uid, gids) = ids.split_once(':').expect("uid:gids");
    let gids: Vec<Gid> = gids.split(',').map(|g| Gid::from_raw(g.parse().expect("a group id"))).collect();
    let uid = Uid::from_raw(uid.parse().expect("a user id"));
    // Nothing else runs in this process yet.
    rustix::thread::set_thread_groups(&gids).expect("groups");
    rustix::thread::set_thread_res_gid(gids[0], gids[0], gids[0]).expect("a group");
    rustix::thread::set_thread_res_uid(uid, uid, uid).expect("a user");
    let own = std::env::current_exe().expect("this program");
    let error = Command::new(own).args(std::env::args_os().skip(1)).env_remove(BECOME).exec();
    say(&format!("cannot start the suite as a user: {error}"));
    ExitCode::FAILURE
}
