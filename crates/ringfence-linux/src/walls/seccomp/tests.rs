//! The programs, run by an interpreter and compared with the list, with a golden table and with tables of arguments.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::compile::{
    Arch, Call, Decision, Options, SockFilter, Sockets, calls, compile, decision, fits, op, return_value,
};
use ringfence_policy::syscalls::SyscallGroup;

use super::list::{Answer, Check, OPENS, REFUSABLE, Refused, RefusedGroup, Rule, Word};
use super::{Error, Notify, prebuilt, program, to_bytes};

const ALLOW: Answer = Answer::Allow;
const EPERM: Answer = Answer::Errno(libc::EPERM as u16);
const EINVAL: Answer = Answer::Errno(libc::EINVAL as u16);
const ENOSYS: Answer = Answer::Errno(libc::ENOSYS as u16);
const ENOTTY: Answer = Answer::Errno(libc::ENOTTY as u16);
const EPROTONOSUPPORT: Answer = Answer::Errno(libc::EPROTONOSUPPORT as u16);
const EAFNOSUPPORT: Answer = Answer::Errno(libc::EAFNOSUPPORT as u16);

const X32: u32 = 0x4000_0000;
const I386: u32 = 0x4000_0003;
const ARM: u32 = 0x4000_0028;

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

fn variants() -> impl Iterator<Item = Options<'static>> {
    [false, true].into_iter().flat_map(|nesting| {
        [Sockets::All, Sockets::UnixOnly, Sockets::PairsOnly, Sockets::Handed].into_iter().flat_map(move |sockets| {
            [(Notify::Nothing, Refused::NONE), (Notify::Opens, Refused::NONE), (Notify::Nothing, Refused::ALL)]
                .map(|(notify, refuse)| Options { nesting, sockets, notify, refuse, ..Options::default() })
        })
    })
}

/// What the kernel's machine does with a call: the value returned.
fn interpret(program: &[SockFilter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = vec![number, arch, 0, 0];
    data.extend(args.iter().flat_map(|a| [*a as u32, (a >> 32) as u32]));
    let (mut at, mut word) = (0, 0);
    loop {
        let i = program[at];
        at += 1;
        let branch = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
        match i.code {
            op::LOAD => word = data[i.k as usize / 4],
            op::AND => word &= i.k,
            op::JUMP => at += i.k as usize,
            op::IF_EQUAL => at += branch(word == i.k),
            op::IF_AT_LEAST => at += branch(word >= i.k),
            op::RETURN => return i.k,
            other => panic!("instruction {other:#x} at {}", at - 1),
        }
    }
}

fn ask(arch: Arch, options: &Options, name: &str, args: &[u64]) -> Answer {
    let number = calls(arch).find(|call| call.name == name).and_then(|call| call.number).unwrap();
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    answer(interpret(&compile(arch, options).unwrap(), arch.audit(), number, all))
}

fn answer(value: u32) -> Answer {
    match value {
        0x7fff_0000 => Answer::Allow,
        0x7fc0_0000 => Answer::Notify,
        errno if errno & 0xffff_0000 == 0x0005_0000 => Answer::Errno(errno as u16),
        other => panic!("return value {other:#x}"),
    }
}

/// The list read directly, without a program.
fn evaluate(check: &Check, args: [u64; 6]) -> Answer {
    match check {
        Check::Then(answer) => *answer,
        Check::Match { word, mask, cases, otherwise } => {
            let value = mask
                & match word {
                    Word::Low(n) => args[usize::from(*n)] as u32,
                    Word::High(n) => (args[usize::from(*n)] >> 32) as u32,
                };
            use super::list::Case::{Is, UpTo};
            let case = cases.iter().find(|case| fits(case, value));
            let next = case.map_or(otherwise, |case| match case {
                Is(_, check) | UpTo(_, check) => check,
            });
            evaluate(next, args)
        }
    }
}

/// Repeatable noise, with the values that conditions look for well represented.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn argument(&mut self) -> u64 {
        let edges =
            [0, 1, 2, 3, 5, 10, 16, 17, 35, 58, 62, 78, 79, 262, 0x5412, 0x541c, 0x5423, 0x5961_6d61, 0xffff_ffff];
        let low = match self.next() % 4 {
            0 => self.next() & 0xffff_ffff,
            1 => 1 << (self.next() % 32),
            _ => edges[self.next() as usize % edges.len()],
        };
        if self.next().is_multiple_of(3) { low | self.next() << 32 } else { low }
    }
}

#[test]
fn programs_do_what_the_list_says() {
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    for arch in ARCHES {
        for options in variants() {
            let program = compile(arch, &options).unwrap();
            let by_number: BTreeMap<u32, Decision> =
                calls(arch).filter_map(|call| Some((call.number?, decision(&call, &options)))).collect();
            for number in 0..600 {
                let rounds = if matches!(by_number.get(&number), Some(Decision::Check(..))) { 3000 } else { 3 };
                for _ in 0..rounds {
                    let args = std::array::from_fn(|_| noise.argument());
                    let expected = match by_number.get(&number) {
                        None => ENOSYS,
                        Some(Decision::Answer(answer)) => *answer,
                        Some(Decision::Check(check, allow)) => match evaluate(check, args) {
                            Answer::Allow => *allow,
                            answer => answer,
                        },
                    };
                    let actual = interpret(&program, arch.audit(), number, args);
                    assert_eq!(actual, return_value(expected), "{arch:?} {options:?} {number} {args:x?}");
                }
            }
        }
    }
}

#[test]
fn other_abis_are_refused() {
    for arch in ARCHES {
        for options in variants() {
            let program = compile(arch, &options).unwrap();
            for number in 0..600 {
                let refused = return_value(ENOSYS);
                assert_eq!(interpret(&program, arch.audit(), number | X32, [0; 6]), refused, "x32 {number}");
                for foreign in [I386, ARM, 0, !arch.audit()] {
                    assert_eq!(interpret(&program, foreign, number, [0; 6]), refused, "{foreign:#x} {number}");
                }
            }
            for number in [0x7fff_ffff, 0x8000_0000, u32::MAX] {
                assert_eq!(interpret(&program, arch.audit(), number, [0; 6]), return_value(ENOSYS));
            }
        }
    }
}

/// The default program and the nesting one, call by call. `RINGFENCE_BLESS=1` writes the table anew.
#[test]
fn golden_table() {
    let mut table =
        String::from("# architecture, number, name, answer, answer with nesting. Numbers not listed: ENOSYS.\n");
    for arch in ARCHES {
        let names: BTreeMap<u32, &str> = calls(arch).filter_map(|call| Some((call.number?, call.name))).collect();
        let programs = [false, true].map(|nesting| compile(arch, &Options { nesting, ..Options::default() }).unwrap());
        for number in 0..600 {
            let [plain, nesting] = programs.each_ref().map(|program| describe(program, arch, number));
            match names.get(&number) {
                Some(name) => writeln!(table, "{arch:?} {number} {name} {plain} {nesting}").unwrap(),
                None => assert_eq!((plain.as_str(), nesting.as_str()), ("ENOSYS", "ENOSYS"), "{arch:?} {number}"),
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/walls/seccomp/golden.txt");
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (golden, now) in golden.lines().zip(table.lines()) {
        assert_eq!(golden, now, "golden.txt differs; RINGFENCE_BLESS=1 writes it anew");
    }
    assert_eq!(golden.len(), table.len());
}

fn describe(program: &[SockFilter], arch: Arch, number: u32) -> String {
    let reads_arguments =
        |call: &Call| call.number == Some(number) && !matches!(call.rule, Rule::Allow | Rule::Deny | Rule::Absent);
    let mut noise = Noise(1);
    let rounds = if calls(arch).any(|call| reads_arguments(&call)) { 1000 } else { 1 };
    let mut seen: Vec<String> = (0..rounds)
        .map(|_| match answer(interpret(program, arch.audit(), number, std::array::from_fn(|_| noise.argument()))) {
            ALLOW => "allow".to_owned(),
            EPERM => "EPERM".to_owned(),
            EINVAL => "EINVAL".to_owned(),
            ENOSYS => "ENOSYS".to_owned(),
            EPROTONOSUPPORT => "EPROTONOSUPPORT".to_owned(),
            EAFNOSUPPORT => "EAFNOSUPPORT".to_owned(),
            other => format!("{other:?}"),
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen.join("|")
}

const HIGH: u64 = 0xdead_beef_0000_0000;

#[test]
fn arguments() {
    const CLOEXEC: u64 = libc::SOCK_CLOEXEC as u64;
    const NEW: [u64; 7] = [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
    let thread = 0x003d_0f00;
    let mut table: Vec<(&str, Vec<u64>, Answer)> = vec![
        ("clone", vec![17], ALLOW),
        ("clone", vec![thread], ALLOW),
        ("clone", vec![thread | HIGH], ALLOW),
        ("clone3", vec![0, 88], ENOSYS),
        ("fchmod", vec![0, 0o1777], ALLOW),
        ("fchmod", vec![0, 0o4755], EPERM),
        ("fchmod", vec![0, 0o2755 | HIGH], EPERM),
        ("openat", vec![0, 0, 0, 0o4755], ALLOW), // no mode without O_CREAT
        ("openat", vec![0, 0, 0o101, 0o644], ALLOW),
        ("fchmodat", vec![0, 0, 0o4755], EPERM),
        ("fchmodat2", vec![0, 0, 0o2755], EPERM),
        ("openat", vec![0, 0, 0o102, 0o2644], EPERM),
        ("openat", vec![0, 0, 0o20_200_002, 0o4600], EPERM), // O_TMPFILE
        ("openat2", vec![0, 0, 0, 24], ENOSYS),
        ("mknodat", vec![0, 0, 0o104_755], EPERM),
        ("unshare", vec![0], ALLOW),
        ("unshare", vec![0x600], ALLOW),
        ("unshare", vec![0x600 | 1 << 37], EPERM),
        ("unshare", vec![0x80], EPERM),      // CLONE_NEWTIME
        ("unshare", vec![0x10_0000], EPERM), // a flag of later kernels
        ("socket", vec![1, 1 | CLOEXEC, 0], ALLOW),
        ("socket", vec![2, 1 | CLOEXEC, 0], ALLOW),
        ("socket", vec![2, 2, 17], ALLOW),
        ("socket", vec![10, 1, 6], ALLOW),
        ("socket", vec![10, 2, 58], ALLOW),
        ("socket", vec![2 | HIGH, 1 | HIGH, HIGH], ALLOW),
        ("socket", vec![2, 3, 1], EPERM),
        ("socket", vec![10 | HIGH, 3 | CLOEXEC | HIGH, 255], EPERM),
        ("socket", vec![2, 10, 0x300], EPERM), // SOCK_PACKET
        ("socket", vec![2, 5, 132], EPERM),    // SCTP
        ("socket", vec![2, 1, 132], EPROTONOSUPPORT),
        ("socket", vec![2, 1, 262], EPROTONOSUPPORT), // MPTCP
        ("socket", vec![10, 1 | CLOEXEC, 262 | HIGH], EPROTONOSUPPORT),
        ("socket", vec![2, 1, 256], EPROTONOSUPPORT), // SMC
        ("socket", vec![16, 3 | CLOEXEC, 0], ALLOW),
        ("socket", vec![16, 3, 4], EPROTONOSUPPORT),
        ("socket", vec![16, 3, 9], EPROTONOSUPPORT),
        ("socketpair", vec![1, 1, 0], ALLOW),
        ("socketpair", vec![1, 2, 0], ALLOW),
        ("socketpair", vec![30, 1, 0], EAFNOSUPPORT), // TIPC
        ("prctl", vec![15], ALLOW),
        ("prctl", vec![22], ALLOW), // PR_SET_SECCOMP
        ("prctl", vec![38], ALLOW), // PR_SET_NO_NEW_PRIVS
        ("prctl", vec![0x5961_6d61], ALLOW),
        ("prctl", vec![35, 15], EPERM),
        ("prctl", vec![35 | HIGH, 15], EPERM),
        ("prctl", vec![62], EPERM),
        ("prctl", vec![79], EINVAL),
        ("prctl", vec![0x5961_6d62], EINVAL),
        ("prlimit64", vec![0, 7, 0x1000], ALLOW),
        ("prlimit64", vec![77, 7, 0x1000], ALLOW),
        ("prlimit64", vec![1, 0, 0x1000], EPERM),
        ("prlimit64", vec![1 | HIGH, 0, 0x1000], EPERM),
        ("sched_setparam", vec![0, 0x1000], ALLOW),
        ("sched_setparam", vec![1, 0x1000], EPERM),
        ("sched_setscheduler", vec![77, 5, 0x1000], ALLOW),
        ("sched_setscheduler", vec![1, 5, 0x1000], EPERM),
        ("sched_setaffinity", vec![0, 8, 0x1000], ALLOW),
        ("sched_setaffinity", vec![1 | HIGH, 8, 0x1000], EPERM),
        ("sched_setattr", vec![0, 0x1000, 0], ALLOW),
        ("sched_setattr", vec![1, 0x1000, 0], EPERM),
        ("setpriority", vec![0, 0, 19], ALLOW),
        ("setpriority", vec![1, 77, 19], ALLOW),
        ("setpriority", vec![0, 1, 19], EPERM),
        ("setpriority", vec![1, 1, 19], EPERM),
        ("setpriority", vec![2, 0, 19], EPERM),
        ("ioprio_set", vec![1, 0, 0x6000], ALLOW),
        ("ioprio_set", vec![1, 1, 0x6000], EPERM),
        ("ioprio_set", vec![2, 1, 0x6000], EPERM),
        ("ioprio_set", vec![3, 0, 0x6000], EPERM),
        ("personality", vec![0], ALLOW),
        ("personality", vec![8], ALLOW),
        ("personality", vec![0x0004_0000], ALLOW),
        ("personality", vec![0x0002_0008], ALLOW),
        ("personality", vec![0xffff_ffff], ALLOW),
        ("personality", vec![u64::MAX], ALLOW),
        ("personality", vec![0x0040_0000], EPERM), // READ_IMPLIES_EXEC
        ("personality", vec![0x0044_0000 | HIGH], EPERM),
        ("personality", vec![1], EPERM),
        ("mknodat", vec![0, 0, 0o010644], ALLOW),
        ("mknodat", vec![0, 0, 0o100644], ALLOW),
        ("mknodat", vec![0, 0, 0o140644], ALLOW),
        ("mknodat", vec![0, 0, 0o644], ALLOW),
        ("mknodat", vec![0, 0, 0o020666], EPERM),
        ("mknodat", vec![0, 0, 0o060666], EPERM),
        ("mknodat", vec![0, 0, 0o020666 | 0xabcd_0000 | HIGH], EPERM),
    ];
    for request in [0x5412, 0x541c, 0x541d, 0x5423, 0x0001_5412] {
        table.push(("ioctl", vec![0, request], EPERM));
        table.push(("ioctl", vec![0, request | 1 << 32], EPERM));
        table.push(("ioctl", vec![0, request | HIGH], EPERM));
        table.push(("ioctl", vec![HIGH, request | 1 << 63], EPERM));
    }
    for request in REQUESTS_LET_THROUGH {
        table.push(("ioctl", vec![0, request], ALLOW));
        table.push(("ioctl", vec![0, request | HIGH], ALLOW));
    }
    for request in REQUESTS_REFUSED {
        table.push(("ioctl", vec![0, request], EPERM));
        table.push(("ioctl", vec![0, request | HIGH], EPERM));
    }
    for request in REQUESTS_OF_DRIVERS {
        table.push(("ioctl", vec![0, request], ENOTTY));
    }
    // F_SETLEASE; F_GETFL and F_SETLK.
    table.push(("fcntl", vec![0, 1024], EPERM));
    table.push(("fcntl", vec![0, 1024 | HIGH], EPERM));
    table.extend([3, 6, 1025].map(|command| ("fcntl", vec![0, command], ALLOW)));
    for flag in NEW {
        table.push(("clone", vec![flag | 17], EPERM));
        table.push(("clone", vec![flag | thread | HIGH], EPERM));
        table.push(("unshare", vec![flag], EPERM));
        table.push(("unshare", vec![flag | 0x600 | HIGH], EPERM));
    }
    // AF_UNSPEC, AX25, APPLETALK, PACKET, RDS, PPPOX, CAN, TIPC, BLUETOOTH, ALG, NFC, VSOCK, KCM, QIPCRTR, SMC, XDP, MCTP
    for family in [0, 3, 5, 17, 21, 24, 29, 30, 31, 38, 39, 40, 41, 42, 43, 44, 45] {
        table.push(("socket", vec![family, 1, 0], EAFNOSUPPORT));
        table.push(("socket", vec![family | HIGH, 3, 0], EAFNOSUPPORT));
    }
    for arch in ARCHES {
        for (name, args, expected) in &table {
            assert_eq!(ask(arch, &Options::default(), name, args), *expected, "{arch:?} {name} {args:x?}");
        }
    }
    assert_eq!(ask(Arch::X86_64, &Options::default(), "mknod", &[0, 0o010644]), ALLOW);
    assert_eq!(ask(Arch::X86_64, &Options::default(), "mknod", &[0, 0o020666]), EPERM);
}

/// What programs ask every day.
const REQUESTS_LET_THROUGH: [u64; 34] = [
    0x5401,      // TCGETS
    0x5402,      // TCSETS
    0x802c_542a, // TCGETS2
    0x540e,      // TIOCSCTTY
    0x5410,      // TIOCSPGRP
    0x5413,      // TIOCGWINSZ
    0x5414,      // TIOCSWINSZ
    0x541b,      // FIONREAD
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x8004_5430, // TIOCGPTN
    0x4004_5431, // TIOCSPTLCK
    0x5441,      // TIOCGPTPEER
    0x0002,      // FIGETBSZ
    0x8011_1500, // FS_IOC_GETFSUUID
    0xc050_2100, // SECCOMP_IOCTL_NOTIF_RECV
    0x8004_5200, // RNDGETENTCNT
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x800c_581e, // XFS_IOC_DIOINFO
    0x8008_6601, // FS_IOC_GETFLAGS
    0xc020_660b, // FIEMAP
    0xc068_6611, // PROCMAP_QUERY
    0x8220_7201, // VFAT_IOCTL_READDIR_BOTH
    0x8008_7601, // FS_IOC_GETVERSION
    0x8912,      // SIOCGIFCONF
    0x8927,      // SIOCGIFHWADDR
    0x4008_8a01, // EPIOCSPARAMS
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0x8100_9431, // FS_IOC_GETFSLABEL
    0xb701,      // NS_GET_USERNS
    0xc040_ff0b, // PIDFD_GET_INFO
];

/// What files and terminals know, and no sandbox may ask.
const REQUESTS_REFUSED: [u64; 19] = [
    0x541d,      // TIOCCONS
    0x401c_5820, // FS_IOC_FSSETXATTR
    0xc004_5877, // FIFREEZE
    0x4038_586b, // XFS_IOC_OPEN_BY_HANDLE
    0xc0c0_586d, // XFS_IOC_SWAPEXT
    0x4008_6602, // FS_IOC_SETFLAGS
    0xc028_660f, // EXT4_IOC_MOVE_EXT
    0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
    0xc050_6617, // FS_IOC_ADD_ENCRYPTION_KEY
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x4004_7211, // FAT_IOCTL_SET_ATTRIBUTES
    0x4008_7602, // FS_IOC_SETVERSION
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
    0xd000_9411, // BTRFS_IOC_TREE_SEARCH
    0xd000_943e, // BTRFS_IOC_INO_LOOKUP_USER
    0x4048_9426, // BTRFS_IOC_SEND
    0x4100_9432, // FS_IOC_SETFSLABEL
];

/// Of block devices, consoles, keyboards, disks, graphics, virtual machines, and of file systems with calls of their own.
const REQUESTS_OF_DRIVERS: [u64; 14] = [
    0x1260,      // BLKGETSIZE
    0x125f,      // BLKRRPART
    0x1277,      // BLKDISCARD
    0x4b47,      // KDSKBENT
    0x4b3a,      // KDSETMODE
    0x5605,      // VT_ACTIVATE
    0x5309,      // CDROMEJECT
    0x2285,      // SG_IO
    0xc010_6400, // DRM_IOCTL_VERSION
    0xae01,      // KVM_CREATE_VM
    0x4018_6f04, // OCFS2_IOC_REFLINK
    0x4004_cf03, // CIFS_IOC_COPYCHUNK_FILE
    0xc018_cf07, // CIFS_QUERY_INFO
    0x4020_bc10, // BCH_IOCTL_SUBVOLUME_CREATE
];

#[test]
fn groups_that_a_policy_refuses() {
    for arch in ARCHES {
        let ask = |refuse, allow: &[&str], name: &str, args: &[u64]| {
            ask(arch, &Options { refuse, allow, ..Options::default() }, name, args)
        };
        let cases: [(RefusedGroup, &str, &[u64]); 10] = [
            (RefusedGroup::Debugging, "ptrace", &[16, 5]),
            (RefusedGroup::Debugging, "process_vm_readv", &[5]),
            (RefusedGroup::Debugging, "process_vm_writev", &[5]),
            (RefusedGroup::Debugging, "pidfd_getfd", &[5, 1]),
            (RefusedGroup::Personality, "personality", &[0xffff_ffff]),
            (RefusedGroup::Personality, "personality", &[0x0004_0000]),
            (RefusedGroup::Vmsplice, "vmsplice", &[1]),
            (RefusedGroup::NestedFilters, "seccomp", &[1, 0]),
            (RefusedGroup::NestedFilters, "prctl", &[22, 2]),
            (RefusedGroup::NestedFilters, "prctl", &[22 | HIGH, 2]),
        ];
        for (group, name, args) in cases {
            assert_eq!(ask(Refused::NONE, &[], name, args), ALLOW, "{name}");
            assert_eq!(ask(Refused::NONE.with(group), &[], name, args), EPERM, "{name}");
            assert_eq!(ask(Refused::ALL, &[], name, args), EPERM, "{name}");
            assert_eq!(ask(Refused::ALL, &[name], name, args), ALLOW, "{name} is allowed by name");
            for refusable in REFUSABLE.iter().filter(|refusable| refusable.group != group) {
                assert_eq!(ask(Refused::NONE.with(refusable.group), &[], name, args), ALLOW, "{name}");
            }
        }
        // Strict mode, what actions there are; the rest of prctl.
        for (name, args, answer) in [
            ("seccomp", [0, 0], ALLOW),
            ("seccomp", [2, 0], ALLOW),
            ("prctl", [15, 0], ALLOW),
            ("prctl", [38, 1], ALLOW),
            ("prctl", [35, 15], EPERM),
            ("prctl", [79, 0], EINVAL),
        ] {
            assert_eq!(ask(Refused::ALL, &[], name, &args), answer, "{name} {args:?}");
        }
        for (name, rule) in REFUSABLE.iter().flat_map(|refusable| refusable.calls) {
            assert!(calls(arch).any(|call| call.name == *name && call.rule != *rule), "{name}");
        }
    }
    let all: Refused = SyscallGroup::ALL.into_iter().collect();
    assert_eq!(all, Refused::ALL);
}

#[test]
fn sockets() {
    let ask = |sockets, name, args: &[u64]| ask(Arch::X86_64, &Options { sockets, ..Options::default() }, name, args);
    for (args, unix_only) in [
        ([1, 1, 0], ALLOW),
        ([1, 2, 0], ALLOW),
        ([16, 3, 0], ALLOW),
        ([16, 3, 9], EPROTONOSUPPORT),
        ([2, 1, 0], EAFNOSUPPORT),
        ([10, 2, 0], EAFNOSUPPORT),
        ([40, 1, 0], EAFNOSUPPORT),
    ] {
        assert_eq!(ask(Sockets::UnixOnly, "socket", &args), unix_only, "{args:?}");
        assert_eq!(ask(Sockets::PairsOnly, "socket", &args), EPERM, "{args:?}");
    }
    for (args, pairs_only) in [
        ([1, 1, 0], ALLOW),
        ([1, 5 | 0o2_000_000, 0], ALLOW),
        ([1, 2, 0], EPERM),
        ([1, 2 | 0o4000 | HIGH, 0], EPERM),
        ([1, 3, 0], EPERM), // SOCK_RAW, which makes a datagram pair
        ([2, 1, 0], EAFNOSUPPORT),
    ] {
        assert_eq!(ask(Sockets::PairsOnly, "socketpair", &args), pairs_only, "{args:?}");
    }
}

#[test]
fn nesting_opens_what_sandboxes_are_made_of_and_no_more() {
    let nesting = Options { nesting: true, ..Options::default() };
    for (name, args) in [
        ("clone", [0x7e02_0011]),
        ("clone3", [0]),
        ("unshare", [0x7e02_0080]),
        ("mount", [0]),
        ("move_mount", [0]),
        ("pivot_root", [0]),
        ("setns", [0]),
        ("sethostname", [0]),
    ] {
        assert_eq!(ask(Arch::X86_64, &nesting, name, &args), ALLOW, "{name}");
    }
    for name in
        ["io_uring_setup", "bpf", "userfaultfd", "keyctl", "open_by_handle_at", "perf_event_open", "init_module"]
    {
        assert_eq!(ask(Arch::X86_64, &nesting, name, &[0]), EPERM, "{name}");
    }
}

#[test]
fn named_calls_are_allowed_alone() {
    for arch in ARCHES {
        let default = compile(arch, &Options::default()).unwrap();
        for call in calls(arch) {
            let Some(number) = call.number else { continue };
            let allowed = compile(arch, &Options { allow: &[call.name], ..Options::default() }).unwrap();
            for other in 0..600 {
                let args = [u64::MAX; 6];
                let expected =
                    if other == number { return_value(ALLOW) } else { interpret(&default, arch.audit(), other, args) };
                assert_eq!(interpret(&allowed, arch.audit(), other, args), expected, "{} {other}", call.name);
            }
        }
    }
}

#[test]
fn unknown_names_are_errors() {
    for (name, nearest) in [("io_uring_setpu", "io_uring_setup"), ("keyctrl", "keyctl"), ("opne", "open")] {
        let error = program(&Options { allow: &["read", name], ..Options::default() }).unwrap_err();
        assert_eq!(error.to_string(), format!("unknown system call `{name}`, did you mean `{nearest}`?"));
        assert_eq!(error, Error::UnknownCall { name: name.into(), nearest });
    }
    for name in ["", "READ", "read ", "\u{e9}"] {
        assert!(program(&Options { allow: &[name], ..Options::default() }).is_err(), "{name}");
    }
    // Known, but only elsewhere: one configuration serves both architectures.
    assert!(compile(Arch::Aarch64, &Options { allow: &["open", "modify_ldt"], ..Options::default() }).is_ok());
}

#[test]
fn set_ids_by_older_calls() {
    let ask = |name, args: &[u64]| ask(Arch::X86_64, &Options::default(), name, args);
    for (name, plain, set_id) in [
        ("chmod", [0, 0o1777, 0], [0, 0o4755, 0]),
        ("creat", [0, 0o644, 0], [0, 0o2755, 0]),
        ("open", [0, 0o101, 0o644], [0, 0o101, 0o4755]),
    ] {
        assert_eq!((ask(name, &plain), ask(name, &set_id)), (ALLOW, EPERM), "{name}");
    }
}

#[test]
fn opens_are_reported_where_asked() {
    let notify = Options { notify: Notify::Opens, ..Options::default() };
    for call in calls(Arch::X86_64).filter(|call| OPENS.contains(&call.name)) {
        assert!(matches!(call.rule, Rule::Allow | Rule::When(_)), "{}", call.name);
        assert_eq!(ask(Arch::X86_64, &notify, call.name, &[]), Answer::Notify);
    }
    for name in OPENS {
        assert!(calls(Arch::X86_64).any(|call| call.name == *name), "{name}");
    }
    assert_eq!(ask(Arch::X86_64, &notify, "read", &[]), ALLOW);
    assert_eq!(ask(Arch::X86_64, &notify, "bpf", &[]), EPERM);
    // Reported is not let through.
    assert_eq!(ask(Arch::X86_64, &notify, "chmod", &[0, 0o4755]), EPERM);
}

/// A mark that whoever opens the same file later could read, a namespace's included.
#[test]
fn no_hint_is_left_on_a_file() {
    const EINVAL: Answer = Answer::Errno(libc::EINVAL as u16);
    for arch in ARCHES {
        let ask = |request| ask(arch, &Options::default(), "fcntl", &[3, request]);
        // F_SET_RW_HINT; F_GET_RW_HINT, F_SETFL, F_OFD_SETLK.
        assert_eq!((ask(1036), ask(HIGH | 1036)), (EINVAL, EINVAL));
        assert_eq!((ask(1035), ask(4), ask(37)), (ALLOW, ALLOW, ALLOW));
    }
}

#[test]
fn a_socket_that_was_handed_over_tells_of_itself_alone() {
    let handed = Options { sockets: Sockets::Handed, ..Options::default() };
    let interfaces =
        [0x890b, 0x8910, 0x8912, 0x8927, 0x8946, 0x894c, 0x8954, 0x8970, 0x89f0, 0x8b01, 0x8b1b, HIGH | 0x8912];
    for arch in ARCHES {
        for request in interfaces {
            assert_eq!(ask(arch, &handed, "ioctl", &[3, request]), EPERM, "{request:#x}");
            assert_eq!(ask(arch, &Options::default(), "ioctl", &[3, request]), ALLOW, "{request:#x}");
        }
        // FIONREAD, FIONBIO, TIOCGWINSZ, owner, urgent data, time stamps of both kinds, SIOCOUTQ and SIOCOUTQNSD.
        for request in [0x541b, 0x5421, 0x5413, 0x8901, 0x8903, 0x8905, 0x8906, 0x8010_8906, 0x5411, 0x894b, 0x8a00] {
            assert_eq!(ask(arch, &handed, "ioctl", &[3, request]), ALLOW, "{request:#x}");
        }
        assert_eq!(ask(arch, &handed, "ioctl", &[0, 0x5412]), EPERM);
        // SIOCSIFFLAGS, for a loopback of one's own.
        assert_eq!(ask(arch, &handed, "ioctl", &[0, 0x8914]), ALLOW);
        for name in ["getsockopt", "setsockopt"] {
            // SO_BINDTODEVICE, SO_BINDTOIFINDEX, SO_NETNS_COOKIE, SO_PEERPIDFD; SO_REUSEADDR, SO_PEERCRED, TCP_USER_TIMEOUT, IP_UNICAST_IF.
            for (level, option, answer) in [
                (1, 25, EPERM),
                (1, 62, EPERM),
                (1, 71, EPERM),
                (1, 77, EPERM),
                (1, 2, ALLOW),
                (1, 17, ALLOW),
                (6, 18, ALLOW),
                (0, 25, ALLOW),
            ] {
                assert_eq!(ask(arch, &handed, name, &[3, level, option]), answer, "{name} {level} {option}");
                assert_eq!(ask(arch, &Options::default(), name, &[3, level, option]), ALLOW);
            }
        }
        assert_eq!(ask(arch, &handed, "socket", &[2, 1]), ALLOW);
    }
}

#[test]
fn list_has_each_name_and_number_once() {
    for arch in ARCHES {
        let mut names = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for call in calls(arch) {
            assert!(names.insert(call.name, ()).is_none(), "{}", call.name);
            if let Some(number) = call.number {
                assert_eq!(numbers.insert(number, call.name), None, "{}", call.name);
            }
        }
    }
}

#[test]
fn numbers_agree_with_libc() {
    let number = |name| calls(super::ARCH).find(|call| call.name == name).and_then(|call| call.number).map(i64::from);
    for (name, expected) in [
        ("read", libc::SYS_read),
        ("clone", libc::SYS_clone),
        ("socket", libc::SYS_socket),
        ("ioctl", libc::SYS_ioctl),
        ("prctl", libc::SYS_prctl),
        ("personality", libc::SYS_personality),
        ("mknodat", libc::SYS_mknodat),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("keyctl", libc::SYS_keyctl),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("mseal", libc::SYS_mseal),
    ] {
        assert_eq!(number(name), Some(expected), "{name}");
    }
}

#[test]
fn prebuilt_programs_are_those_of_the_list() {
    for options in variants().filter(|options| options.notify == Notify::Nothing) {
        let now = compile(super::ARCH, &options).unwrap();
        assert_eq!(prebuilt(options.nesting, options.sockets, options.refuse), Some(&*now));
        assert_eq!(&*program(&options).unwrap(), now);
        let most = if options.sockets == Sockets::Handed { 290 } else { 260 };
        assert!(now.len() < most, "{} instructions: every one costs at each start", now.len());
        assert_eq!(to_bytes(&now).len(), 8 * now.len());
    }
    let first = [0x20, 0, 0, 0, 4, 0, 0, 0];
    assert_eq!(to_bytes(prebuilt(false, Sockets::All, Refused::NONE).unwrap())[..8], first);
    assert_eq!(prebuilt(false, Sockets::All, Refused::NONE.with(RefusedGroup::Vmsplice)), None);
}

/// More leaves than a conditional jump reaches over, as a list with many alternating answers would make them.
#[test]
fn far_targets_are_reached() {
    for count in [2, 100, 250, 260, 600, 3000] {
        let answers = [ALLOW, EPERM, EINVAL, EPERM, ENOSYS, ENOSYS];
        let expected = |number: u32| if number < count { answers[number as usize % 6] } else { ENOSYS };
        let program = super::compile::compile_numbers(
            Arch::X86_64,
            (0..count).map(|number| (number, Decision::Answer(expected(number)))),
        );
        for number in 0..count + 10 {
            let actual = interpret(&program, Arch::X86_64.audit(), number, [0; 6]);
            assert_eq!(actual, return_value(expected(number)), "{number} of {count}");
        }
        assert_eq!(interpret(&program, I386, 0, [0; 6]), return_value(ENOSYS));
    }
}
