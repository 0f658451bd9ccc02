//! Images of this host's programs, which go with the test. Nothing is pulled.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An image of this host's programs, which goes with the test. Nothing is pulled.
pub struct Image(pub String);

impl Image {
    /// This host's Python and shell.
    pub fn python() -> Image {
        let script = r#"set -eu
            python=$(readlink -f /usr/bin/python3)
            library=$("$python" -I -S -c 'import sys; print(sys.path[1])')
            files=$( (ldd "$python"; ldd /bin/sh) | grep -o '/[^ ]*' | sort -u)
            tar -c -h --exclude=dist-packages --exclude=test --exclude=__pycache__ "$python" /usr/bin/python3 /bin/sh "$library" $files |
                docker import - "$1" >&2"#;
        Image::made("python", script, "")
    }

    /// These programs of this host, and a shell.
    pub fn of(name: &str, programs: &str) -> Image {
        let script = r#"set -eu
            programs=$(for name in sh $2; do command -v "$name"; done)
            files=$(for program in $programs; do ldd "$program" || :; done | grep -o '/[^ ]*' | sort -u)
            tar -c -h --transform 's,.*/node$,usr/bin/node,' $programs $files /usr/lib/locale/C.utf8 | docker import - "$1" >&2"#;
        Image::made(name, script, programs)
    }

    /// This host's Python with pip, and a shell. Its pip trusts this host, whose index is not encrypted.
    pub fn pip(host: &str) -> Image {
        let script = r#"set -eu
            python=$(readlink -f /usr/bin/python3)
            library=$("$python" -I -S -c 'import sys; print(sys.path[1])')
            pip=$("$python" -I -c 'import os, pip; print(os.path.dirname(pip.__file__))')
            files=$(ldd "$python" /bin/sh "$library"/lib-dynload/*.so | grep -v ':$' | grep -o '/[^ ]*' | sort -u)
            tape=$(mktemp) conf=$(mktemp)
            tar -c -h -f "$tape" --exclude=test --exclude=__pycache__ "$python" /usr/bin/python3 /bin/sh "$library" "$pip" $files
            printf '[global]\ntrusted-host = %s\n' "$2" >"$conf"
            tar -r -f "$tape" --mode 644 --transform 's,.*,etc/pip.conf,' "$conf"
            docker import "$tape" "$1" >&2
            rm "$tape" "$conf""#;
        Image::made("pip", script, host)
    }

    /// This host's Node with npm, and a shell.
    pub fn npm() -> Image {
        let script = r#"set -eu
            npm=$(readlink -f "$(command -v npm)")
            modules=${npm%/npm/bin/npm-cli.js}
            tape=$(mktemp)
            programs="/bin/sh /usr/bin/env $(command -v node)"
            tar -c -h -f "$tape" $programs $(ldd $programs | grep -v ':$' | grep -o '/[^ ]*' | sort -u)
            tar -r -f "$tape" "$modules" "$(command -v npm)"
            docker import "$tape" "$1" >&2
            rm "$tape""#;
        Image::made("npm", script, "")
    }

    /// Another image with the same files.
    pub fn like(other: &Image) -> Image {
        Image::made("like", r#"printf 'FROM %s\nENV OTHER=1\n' "$2" | docker build -q -t "$1" - >&2"#, &other.0)
    }

    fn made(name: &str, script: &str, argument: &str) -> Image {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringfence-test-{name}:{}-{number}", std::process::id());
        let made = Command::new("sh").args(["-c", script, "sh", &name, argument]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Image(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // What is left is found by its name.
        let _ = Command::new("docker").args(["image", "rm", "--force", &self.0]).output();
    }
}
