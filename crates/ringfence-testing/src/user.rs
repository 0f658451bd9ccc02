//! Who runs the tests: root, and after it an ordinary user. What is missing is said or, where all is required, a failure.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who runs the tests that are not run as root.
const USER: &str = "ringfence-test";
/// Where that user finds the Rust toolchain, which may lie in root's home.
pub const TOOLCHAIN: &str = "/mnt";

/// What is missing is a failure here (`./test`, CI), and not a printed SKIP.
pub fn everything_required() -> bool {
    std::env::var_os("RINGFENCE_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// Says why something is left out.
///
/// # Panics
/// When everything is required.
#[track_caller]
pub fn skip(what: &str, reason: &str) {
    assert!(!everything_required(), "{what}: {reason}");
    eprintln!("SKIP {what}: {reason}");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Ids and home of the ordinary user.
///
/// # Panics
/// When the accounts of this machine cannot be read.
pub fn user() -> Option<(u32, u32, String)> {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap();
    let account = accounts.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == USER)?;
    Some((account[2].parse().unwrap(), account[3].parse().unwrap(), account[5].to_owned()))
}

/// Runs every other test of this binary once more, as an ordinary user; to be called by a test named
/// `as_an_ordinary_user`. The tests need these programs as well, and find a copy of each by its variable.
///
/// # Panics
/// When one of the tests fails.
pub fn as_an_ordinary_user(programs: &[(&str, &Path)]) {
    if !is_root() {
        return;
    }
    let Some((uid, gid, home)) = user() else {
        return skip("everything as an ordinary user", "there is no user `ringfence-test` (`./test` makes it)");
    };
    let own = tempfile::Builder::new().prefix("ringfence-suite-").tempdir().unwrap();
    std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Where the user cannot reach the build directory (a checkout in root's home), it still reaches a copy.
    let copied = |from: &Path| {
        let copy = own.path().join(from.file_name().unwrap());
        std::fs::copy(from, &copy).unwrap();
        copy
    };
    // The mount is seen by these tests alone.
    let become_user = format!(
        "[ -z \"$SYSROOT\" ] || mount --bind \"$SYSROOT\" {TOOLCHAIN}
         exec setpriv --reuid={uid} --regid={gid} --init-groups \"$@\""
    );
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", &become_user, "sh"])
        .arg(copied(&std::env::current_exe().unwrap()))
        .args(["--skip", "as_an_ordinary_user", "--test-threads", "2"])
        .env("SYSROOT", sysroot().unwrap_or_default())
        .envs(programs.iter().map(|(variable, program)| (variable, copied(program))))
        .env("HOME", home)
        .env("USER", USER)
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = text(&output.stdout).contains("passed") && !text(&output.stdout).contains(" 0 passed");
    assert!(output.status.success() && ran, "as {USER}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

/// Where the compiler is that builds these tests.
pub fn sysroot() -> Option<PathBuf> {
    let own = Path::new(TOOLCHAIN);
    if own.join("bin/cargo").exists() {
        return Some(own.to_path_buf());
    }
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.join("bin/cargo").exists().then_some(path)
}
