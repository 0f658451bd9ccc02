//! Acts that use something up, or do not want to end.

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Act, Found, arg, done, number, sys};

pub const ACTS: &[(&str, Act)] = &[
    ("hold", |a| hold(number(a, 0)?)),
    ("spin", |a| spin(number(a, 0)?)),
    ("memory", |a| memory(number(a, 0)? as usize)),
    ("memory-tree", |a| memory_tree(number(a, 0)? as usize, number(a, 1)? as usize)),
    ("fork-bomb", |a| fork_bomb(number(a, 0)?)),
    ("threads", |a| threads(number(a, 0)?)),
    ("fill", |a| fill(arg(a, 0)?, number(a, 1)? as u64)),
    ("inodes", |a| inodes(arg(a, 0)?, number(a, 1)?)),
    ("open-many", |a| open_many(number(a, 0)?)),
    ("flood", |a| flood(number(a, 0)? as u64)),
    ("sleepers", |a| sleepers(number(a, 0)?, arg(a, 1)?)),
    ("daemon", |a| daemon(arg(a, 0)?)),
    ("stopped-children", |a| stopped_children(number(a, 0)?, arg(a, 1)?)),
    ("sessions", |a| stubborn(arg(a, 0)?, Stubborn::NewSession)),
    ("ignore-term", |a| stubborn(arg(a, 0)?, Stubborn::IgnoresTerm)),
    ("stopped", |a| stubborn(arg(a, 0)?, Stubborn::Stopped)),
    ("close-output-and-hold", |a| close_and_hold(number(a, 0)?)),
];

/// Waits so many seconds. A second argument is only there to be found in the list of processes.
fn hold(seconds: i64) -> Found {
    std::thread::sleep(Duration::from_secs(seconds as u64));
    Ok(String::new())
}

fn spin(seconds: i64) -> Found {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds as u64) {
        std::hint::spin_loop();
    }
    Ok(String::new())
}

/// Takes memory page by page and touches it.
fn memory(bytes: usize) -> Found {
    const PART: usize = 1 << 20;
    let mut parts: Vec<Vec<u8>> = Vec::new();
    while parts.len() * PART < bytes {
        let mut part = Vec::new();
        if part.try_reserve_exact(PART).is_err() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        part.resize(PART, 1);
        parts.push(part);
    }
    std::hint::black_box(&parts);
    Ok(String::new())
}

/// So many processes that each take so much and keep it until all have it.
fn memory_tree(processes: usize, bytes: usize) -> Found {
    let mut children = Vec::new();
    for _ in 0..processes {
        children.push(sys::fork(|| match memory_kept(bytes) {
            Ok(()) => 0,
            Err(_) => 1,
        })?);
    }
    let mut failed = 0;
    for child in children {
        failed += i32::from(sys::wait(child)? != 0);
    }
    if failed > 0 { Err(io::Error::from_raw_os_error(libc::ENOMEM)) } else { Ok(String::new()) }
}

fn memory_kept(bytes: usize) -> io::Result<()> {
    let mut all = Vec::new();
    all.try_reserve_exact(bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
    all.resize(bytes, 1u8);
    std::hint::black_box(&all);
    std::thread::sleep(Duration::from_secs(3));
    Ok(())
}

/// Forks until it is refused, or has reached a number that no limit stopped: EAGAIN or the count.
fn fork_bomb(limit: i64) -> Found {
    let mut made = Vec::new();
    let refused = loop {
        if made.len() as i64 >= limit {
            break None;
        }
        match sys::fork(|| {
            std::thread::sleep(Duration::from_secs(20));
            0
        }) {
            Ok(pid) => made.push(pid),
            Err(e) => break Some(e),
        }
    };
    for pid in &made {
        sys::call(libc::SYS_kill, &[*pid as u64, libc::SIGKILL as u64])?;
        sys::wait(*pid)?;
    }
    match refused {
        Some(e) => Err(e),
        None => Ok(made.len().to_string()),
    }
}

fn threads(limit: i64) -> Found {
    let mut made = Vec::new();
    for _ in 0..limit {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        made.push(small.spawn(|| std::thread::sleep(Duration::from_secs(2)))?);
    }
    Ok(made.len().to_string())
}

fn fill(path: &str, bytes: u64) -> Found {
    let part = vec![1u8; 1 << 20];
    let mut file = fs::File::create(path)?;
    let mut written = 0;
    let result = loop {
        if written >= bytes {
            break Ok(String::new());
        }
        match file.write_all(&part) {
            Ok(()) => written += part.len() as u64,
            Err(e) => break Err(e),
        }
    };
    fs::remove_file(path)?;
    result
}

fn inodes(dir: &str, count: i64) -> Found {
    let name = |i: i64| format!("{dir}/inode-{i}");
    let mut made = 0;
    let result = loop {
        if made >= count {
            break Ok(String::new());
        }
        match fs::File::create_new(name(made)) {
            Ok(_) => made += 1,
            Err(e) => break Err(e),
        }
    };
    for i in 0..made {
        fs::remove_file(name(i))?;
    }
    result
}

fn open_many(count: i64) -> Found {
    let files: Result<Vec<_>, _> = (0..count).map(|_| fs::File::open("/dev/null")).collect();
    files.map(|f| f.len().to_string())
}

fn flood(bytes: u64) -> Found {
    let part = vec![b'x'; 1 << 16];
    let mut written = 0;
    let mut out = io::stdout().lock();
    while written < bytes {
        out.write_all(&part)?;
        written += part.len() as u64;
    }
    out.write_all(b"\n")?;
    Ok(String::new())
}

fn own(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(args);
    command
}

/// So many children that outlive this process.
fn sleepers(count: i64, tag: &str) -> Found {
    for _ in 0..count {
        own(&["hold", "1000", tag]).stdout(std::process::Stdio::null()).spawn()?;
    }
    Ok(String::new())
}

/// A child of a child in a session of its own, with no descriptor of ours.
fn daemon(tag: &str) -> Found {
    let child = sys::fork(|| {
        let _ = sys::call(libc::SYS_setsid, &[]);
        let null = std::process::Stdio::null;
        i32::from(own(&["hold", "1000", tag]).stdin(null()).stdout(null()).stderr(null()).spawn().is_err())
    })?;
    sys::wait(child).map(done)
}

/// So many children that outlive this process, stopped.
fn stopped_children(count: i64, tag: &str) -> Found {
    for _ in 0..count {
        let child = own(&["hold", "1000", tag]).stdout(std::process::Stdio::null()).spawn()?;
        sys::call(libc::SYS_kill, &[u64::from(child.id()), libc::SIGSTOP as u64])?;
    }
    Ok(String::new())
}

enum Stubborn {
    NewSession,
    IgnoresTerm,
    Stopped,
}

/// Children that a plain TERM to the group does not end, and then waits as one of them.
fn stubborn(tag: &str, how: Stubborn) -> Found {
    sys::fork(|| {
        match how {
            Stubborn::NewSession => {
                let _ = sys::call(libc::SYS_setsid, &[]);
            }
            Stubborn::IgnoresTerm => ignore_term(),
            Stubborn::Stopped => {}
        }
        // The tag must be in the command line; an ignored signal stays ignored over an exec.
        let Ok(mut child) = own(&["hold", "1000", tag]).spawn() else { return 1 };
        if matches!(how, Stubborn::Stopped) {
            let _ = sys::call(libc::SYS_kill, &[u64::from(child.id()), libc::SIGSTOP as u64]);
        }
        i32::from(child.wait().is_err())
    })?;
    if matches!(how, Stubborn::IgnoresTerm) {
        ignore_term();
    }
    hold(1000)
}

fn ignore_term() {
    // SAFETY: sets a disposition that runs no code.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
    }
}

/// Standard output ends, the process does not.
fn close_and_hold(seconds: i64) -> Found {
    for fd in 0..3u64 {
        sys::call(libc::SYS_close, &[fd])?;
    }
    hold(seconds)
}
