//! Acts on files.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::{Act, Found, arg, done, number, sys};

pub const ACTS: &[(&str, Act)] = &[
    ("read", |a| read(arg(a, 0)?)),
    ("write", |a| append(arg(a, 0)?)),
    ("truncate", |a| OpenOptions::new().write(true).truncate(true).open(arg(a, 0)?).map(done)),
    ("create", |a| OpenOptions::new().write(true).create_new(true).open(arg(a, 0)?).map(done)),
    ("mkdir", |a| fs::create_dir(arg(a, 0)?).map(done)),
    ("rmdir", |a| fs::remove_dir(arg(a, 0)?).map(done)),
    ("unlink", |a| fs::remove_file(arg(a, 0)?).map(done)),
    ("rename", |a| fs::rename(arg(a, 0)?, arg(a, 1)?).map(done)),
    ("exchange", |a| exchange(arg(a, 0)?, arg(a, 1)?)),
    ("link", |a| fs::hard_link(arg(a, 0)?, arg(a, 1)?).map(done)),
    ("symlink", |a| symlink(arg(a, 0)?, arg(a, 1)?).map(done)),
    ("chmod", |a| {
        let mode = u32::from_str_radix(arg(a, 1)?, 8).map_err(io::Error::other)?;
        fs::set_permissions(arg(a, 0)?, fs::Permissions::from_mode(mode)).map(done)
    }),
    ("chown", |a| std::os::unix::fs::chown(arg(a, 0)?, Some(number(a, 1)? as u32), None).map(done)),
    ("utime", |a| utime(arg(a, 0)?)),
    ("touch", |a| {
        let path = sys::c(arg(a, 0)?)?;
        sys::call(libc::SYS_utimensat, &[libc::AT_FDCWD as u64, sys::at(&path), 0, 0]).map(done)
    }),
    ("setxattr", |a| setxattr(arg(a, 0)?)),
    ("mknod", |a| mknod(arg(a, 0)?)),
    ("fifo", |a| {
        let path = sys::c(arg(a, 0)?)?;
        sys::call(libc::SYS_mknodat, &[libc::AT_FDCWD as u64, sys::at(&path), u64::from(libc::S_IFIFO | 0o644), 0])
            .map(done)
    }),
    ("tmpfile", |a| OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(arg(a, 0)?).map(done)),
    ("list", |a| list(arg(a, 0)?)),
    ("stat", |a| fs::symlink_metadata(arg(a, 0)?).map(|m| format!("{:o} {}", m.mode(), m.size()))),
    ("owner", |a| fs::symlink_metadata(arg(a, 0)?).map(|m| m.uid().to_string())),
    ("exists", |a| fs::symlink_metadata(arg(a, 0)?).map(done)),
    ("exec", |a| exec(a)),
    ("reopen", |a| reopen(arg(a, 0)?)),
    ("handle", |a| handle(arg(a, 0)?)),
    ("write-fd", |a| write_fd(number(a, 0)? as i32)),
    ("bind", |a| mount(Some(arg(a, 0)?), arg(a, 1)?, None, libc::MS_BIND | libc::MS_REC)),
    ("mount-tmpfs", |a| mount(Some("x"), arg(a, 0)?, Some("tmpfs"), 0)),
    ("remount-writable", |a| mount(None, arg(a, 0)?, None, libc::MS_REMOUNT | libc::MS_BIND)),
    ("unmount", |a| {
        let path = sys::c(arg(a, 0)?)?;
        sys::call(libc::SYS_umount2, &[sys::at(&path), libc::MNT_DETACH as u64]).map(done)
    }),
    ("open-tree", |a| {
        let path = sys::c(arg(a, 0)?)?;
        sys::call(libc::SYS_open_tree, &[libc::AT_FDCWD as u64, sys::at(&path), 1]).map(done)
    }),
    ("chroot", |a| std::os::unix::fs::chroot(arg(a, 0)?).map(done)),
    ("find", |a| find(Path::new(arg(a, 0)?), arg(a, 1)?)),
];

fn read(path: &str) -> Found {
    let mut text = Vec::new();
    fs::File::open(path)?.take(4096).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).replace('\0', " "))
}

fn append(path: &str) -> Found {
    OpenOptions::new().append(true).open(path)?.write_all(b"x").map(done)
}

fn exchange(from: &str, to: &str) -> Found {
    let (from, to) = (sys::c(from)?, sys::c(to)?);
    let here = libc::AT_FDCWD as u64;
    let flags = u64::from(libc::RENAME_EXCHANGE);
    sys::call(libc::SYS_renameat2, &[here, sys::at(&from), here, sys::at(&to), flags]).map(done)
}

fn utime(path: &str) -> Found {
    let path = sys::c(path)?;
    // A null time is now, which whoever may write may set; a fixed one is the owner's right.
    let times = [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2];
    sys::call(libc::SYS_utimensat, &[libc::AT_FDCWD as u64, sys::at(&path), (&raw const times) as u64, 0]).map(done)
}

fn setxattr(path: &str) -> Found {
    let (path, name, value) = (sys::c(path)?, sys::c("user.probe")?, sys::c("x")?);
    sys::call(libc::SYS_setxattr, &[sys::at(&path), sys::at(&name), sys::at(&value), 1, 0]).map(done)
}

fn mknod(path: &str) -> Found {
    let path = sys::c(path)?;
    let device = libc::makedev(1, 3);
    let mode = u64::from(libc::S_IFCHR | 0o666);
    sys::call(libc::SYS_mknodat, &[libc::AT_FDCWD as u64, sys::at(&path), mode, device]).map(done)
}

fn list(path: &str) -> Found {
    let mut names: Vec<String> = fs::read_dir(path)?
        .map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()?;
    names.sort();
    Ok(names.join(" "))
}

fn exec(args: &[&str]) -> Found {
    let output = Command::new(arg(args, 0)?).args(&args[1..]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Opens for reading, then for writing through `/proc/self/fd`.
fn reopen(path: &str) -> Found {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    append(&format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens by handle, which knows nothing of mounts.
fn handle(path: &str) -> Found {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        data: [u8; 128],
    }
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount = 0i32;
    let name = sys::c(path)?;
    let args = [libc::AT_FDCWD as u64, sys::at(&name), (&raw mut handle) as u64, (&raw mut mount) as u64, 0];
    sys::call(libc::SYS_name_to_handle_at, &args)?;
    // Any descriptor on the file system will do.
    let near = fs::File::open(Path::new(path).parent().unwrap_or(Path::new("/")))?;
    let args = [near.as_raw_fd() as u64, (&raw mut handle) as u64, libc::O_RDONLY as u64];
    let fd = sys::call(libc::SYS_open_by_handle_at, &args)?;
    read(&format!("/proc/self/fd/{fd}"))
}

fn write_fd(fd: i32) -> Found {
    let text = b"x";
    sys::call(libc::SYS_write, &[fd as u64, text.as_ptr() as u64, 1]).map(done)
}

fn mount(source: Option<&str>, target: &str, kind: Option<&str>, flags: u64) -> Found {
    let source = sys::c(source.unwrap_or("none"))?;
    let target = sys::c(target)?;
    let kind = sys::c(kind.unwrap_or("none"))?;
    sys::call(libc::SYS_mount, &[sys::at(&source), sys::at(&target), sys::at(&kind), flags, 0]).map(done)
}

/// Looks for a text in every file below a directory that can be read: `found in …`, or nothing.
fn find(dir: &Path, text: &str) -> Found {
    let mut pending = vec![dir.to_path_buf()];
    let mut hits = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let bytes = fs::read(entry.path()).unwrap_or_default();
                    if bytes.windows(text.len()).any(|w| w == text.as_bytes()) {
                        hits.push(entry.path().display().to_string());
                    }
                }
                _ => {}
            }
        }
    }
    Ok(if hits.is_empty() { "nothing".to_owned() } else { format!("found in {}", hits.join(" ")) })
}
