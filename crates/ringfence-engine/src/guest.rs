//! The guest's program, which the library carries.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The program, static: it needs nothing of the root file system that it runs in.
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ringfence-guest"));

/// The program as an open file that nobody can change, to be executed from.
pub fn open() -> Result<OwnedFd, Errno> {
    let program = ringfence_linux::starter::sealed_program(c"guest", PROGRAM)?;
    // To be executed and never read: a process whose program cannot be read belongs, in `/proc`, to the user namespace that
    // the program comes from, and root of the box does not see what it has open.
    rustix::fs::fchmod(&program, rustix::fs::Mode::from_raw_mode(0o111))?;
    Ok(program)
}

/// The same program for what builds boxes: there it is the starter.
pub(crate) fn open_starter() -> Result<OwnedFd, Errno> {
    ringfence_linux::starter::sealed_program(c"starter", PROGRAM)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_small() {
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        let length = super::PROGRAM.len();
        assert!(length < 5 << 18, "{length} bytes; `rustup target add {target}` makes it half as large");
    }
}
