//! A disk that stalls.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file system of its own that can be frozen: then whoever writes to it waits.
#[derive(Debug)]
pub struct Disk {
    pub at: PathBuf,
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
    Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Disk {
    /// `None`: no file system can be mounted here.
    ///
    /// # Panics
    /// When root cannot mount one although everything is required (`./test`, CI).
    pub fn new(dir: &Path) -> Option<Disk> {
        let (image, at) = (dir.join("image"), dir.join("disk"));
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let made = run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        if !made {
            // Under `./test` and CI this is root of a machine that has loop devices.
            let required = std::env::var_os("RINGFENCE_REQUIRE_ALL").is_some_and(|value| value == "1");
            assert!(!(required && rustix::process::geteuid().is_root()), "no file system can be mounted");
            eprintln!("SKIP a disk that stalls: no file system can be mounted here");
        }
        made.then_some(Disk { at })
    }

    /// From now on, writers wait.
    ///
    /// # Panics
    /// When it cannot be frozen.
    pub fn freeze(&self) {
        assert!(run("fsfreeze", &["-f".as_ref(), self.at.as_os_str()]));
    }

    pub fn thaw(&self) {
        // It may not be frozen.
        run("fsfreeze", &["-u".as_ref(), self.at.as_os_str()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        run("umount", &["-l".as_ref(), self.at.as_os_str()]);
    }
}
