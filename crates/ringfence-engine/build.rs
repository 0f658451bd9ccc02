//! Builds the guest, whose bytes the library carries, so that one file is all that is installed.
//!
//! It is a program of its own, in a profile of its own, and static: linked with musl where Rust's musl target is installed
//! (it is less than half as large, and starts in a tenth of the time), else as this target links.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let var = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let here = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let workspace = here.join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    for source in [
        "Cargo.lock",
        "Cargo.toml",
        "crates/ringfence-guest/Cargo.toml",
        "crates/ringfence-guest/src",
        "crates/ringfence-linux/Cargo.toml",
        "crates/ringfence-linux/src/lib.rs",
        "crates/ringfence-linux/src/sys",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }

    let out = PathBuf::from(var("OUT_DIR"));
    let (built, target) = (out.join("guest"), target(&var("TARGET")));
    // Cargo says whether this is a debug build, and not which profile it is. Only `dist` optimises that much.
    let profile = match (var("PROFILE").as_str(), var("OPT_LEVEL").as_str()) {
        ("debug", _) => "guest-dev",
        (_, "3") => "guest-dist",
        _ => "guest",
    };
    let mut cargo = Command::new(var("CARGO"));
    cargo.args(["build", "--locked", "--package", "ringfence-guest", "--bin", "ringfence-guest", "--profile", profile]);
    cargo.args(["--target", &target, "--target-dir"]).arg(&built).current_dir(&here);
    // What was set for the program that is being built is not meant for this one: flags, wrappers (clippy), profiles.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let keep = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_", "CARGO_REGISTRIES_", "CARGO_MAKEFLAGS"];
        let meant = text.starts_with("CARGO") || text.starts_with("RUSTC") || text.starts_with("RUSTFLAGS");
        if meant && !keep.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    // At a fixed address: no relocations to carry out at every start.
    let flags = ["-C", "target-feature=+crt-static", "-C", "relocation-model=static"];
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let status = cargo.status().unwrap_or_else(|e| panic!("cannot start {cargo:?}: {e}"));
    assert!(status.success(), "cannot build the guest: {cargo:?} ended with {status}");

    let program = built.join(target).join(profile).join("ringfence-guest");
    fs::copy(&program, out.join("ringfence-guest"))
        .unwrap_or_else(|e| panic!("cannot take `{}`: {e}", program.display()));
}

/// The musl one of the same machine, when Rust's libraries for it are installed. Without them the guest is linked with
/// glibc, works the same, and is twice as large.
fn target(ours: &str) -> String {
    let musl = ours.replace("-gnu", "-musl");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", &musl]).output();
    let installed = output.is_ok_and(|output| {
        let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&dir).is_dir()
    });
    if installed { musl } else { ours.to_owned() }
}
