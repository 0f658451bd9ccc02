//! Builds the filters that need no list of extra calls ahead of time, so that a run only has to load one.

use std::{env, fmt::Write, fs, path::Path};

#[allow(dead_code)]
#[path = "src/walls/seccomp/compile.rs"]
mod compile;
#[allow(dead_code)]
#[path = "src/walls/seccomp/list.rs"]
mod list;

use compile::{Arch, Options, Sockets, compile};
use list::Refused;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/walls/seccomp/compile.rs");
    println!("cargo::rerun-if-changed=src/walls/seccomp/list.rs");
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => Arch::X86_64,
        Ok("aarch64") => Arch::Aarch64,
        other => panic!("the system-call list has numbers for x86_64 and aarch64, not for {other:?}"),
    };
    let mut source = String::from(
        "/// By whether all groups are refused or none is, then by nesting, then by sockets.\nstatic PREBUILT: [[[&[SockFilter]; 4]; 2]; 2] = [\n",
    );
    for refuse in [Refused::NONE, Refused::ALL] {
        source.push('[');
        for nesting in [false, true] {
            source.push_str("    [\n");
            for sockets in [Sockets::All, Sockets::UnixOnly, Sockets::PairsOnly, Sockets::Handed] {
                let options = Options { nesting, sockets, refuse, ..Options::default() };
                source.push_str("        &[\n");
                for i in compile(arch, &options).expect("no extra names, so none unknown") {
                    writeln!(
                        source,
                        "            SockFilter {{ code: {}, jt: {}, jf: {}, k: {} }},",
                        i.code, i.jt, i.jf, i.k
                    )
                    .expect("writing to a string");
                }
                source.push_str("        ],\n");
            }
            source.push_str("    ],\n");
        }
        source.push_str("],\n");
    }
    source.push_str("];\n");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("seccomp_programs.rs"), source).expect("OUT_DIR is writable");
}
