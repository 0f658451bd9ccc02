//! What the filter lets through, as data: every system call by name, with its number on each architecture and its rule.
//!
//! Groups carry the reason. A call that stands nowhere here does not exist for the sandbox (ENOSYS, and libraries fall
//! back); one that is known and refused answers EPERM. Conditions look at the low 32 bits of an argument unless they say
//! otherwise: the kernel itself takes these arguments as 32 bits or fewer, so high bits change nothing.
//!
//! The build script shares this file, so it uses nothing but the core language.

/// What a system call is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel carries it out.
    Allow,
    /// It fails with this error number.
    Errno(u16),
    /// The holder of the listener decides, see `install_with_listener`.
    Notify,
}

// The same numbers on both architectures.
const EPERM: u16 = 1;
const EINVAL: u16 = 22;
const ENOTTY: u16 = 25;
const ENOSYS: u16 = 38;
const EPROTONOSUPPORT: u16 = 93;
const EAFNOSUPPORT: u16 = 97;

/// A decision over the arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Check {
    /// Whatever is left.
    Then(Answer),
    /// Looks at `word & mask`; the first case that fits decides.
    Match { word: Word, mask: u32, cases: &'static [Case], otherwise: &'static Check },
}

/// Half of an argument, which the kernel hands to the filter as 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Low(u8),
    High(u8),
}

/// One branch of [`Check::Match`].
#[derive(Debug, PartialEq, Eq)]
pub enum Case {
    /// The word is one of these.
    Is(&'static [u32], &'static Check),
    /// The word is at most this.
    UpTo(u32, &'static Check),
}

impl Case {
    /// What follows when it fits.
    pub const fn then(&self) -> &'static Check {
        match self {
            Self::Is(_, check) | Self::UpTo(_, check) => check,
        }
    }
}

/// When a call is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Allow,
    /// Known and refused.
    Deny,
    /// Answered like a number that the kernel does not know.
    Absent,
    /// By its arguments.
    When(&'static Check),
    /// Allowed for nested sandboxes, otherwise by its arguments.
    Nesting(&'static Check),
    /// By what the sandbox may do with sockets: all, Unix only, pairs only, all with one that it was handed.
    Sockets([&'static Check; 4]),
}

/// Calls with one rule and one reason. Name, number on x86_64, number on aarch64.
#[derive(Debug)]
pub struct Group {
    pub rule: Rule,
    pub calls: &'static [(&'static str, i16, i16)],
}

/// Calls that a policy can refuse, and what is answered for them then.
#[derive(Debug)]
pub struct Refusable {
    pub group: RefusedGroup,
    pub calls: &'static [(&'static str, Rule)],
}

/// Which of them; each stands for one bit of [`Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedGroup {
    Debugging,
    NestedFilters,
    Personality,
    Vmsplice,
}

/// A set of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused(u8);

impl Refused {
    pub const NONE: Refused = Refused(0);
    pub const ALL: Refused = Refused(0b1111);

    pub const fn with(self, group: RefusedGroup) -> Refused {
        Refused(self.0 | 1 << group as u8)
    }

    pub const fn has(self, group: RefusedGroup) -> bool {
        self.0 & 1 << group as u8 != 0
    }
}

/// No such call on this architecture.
pub const NO: i16 = -1;

static ALLOW: Check = Check::Then(Answer::Allow);
static REFUSED: Check = Check::Then(Answer::Errno(EPERM));
static NOT_THERE: Check = Check::Then(Answer::Errno(ENOSYS));
static NO_SUCH_REQUEST: Check = Check::Then(Answer::Errno(ENOTTY));
static NO_SUCH_OPTION: Check = Check::Then(Answer::Errno(EINVAL));
static NO_SUCH_PROTOCOL: Check = Check::Then(Answer::Errno(EPROTONOSUPPORT));
static NO_SUCH_FAMILY: Check = Check::Then(Answer::Errno(EAFNOSUPPORT));

const ANY: u32 = u32::MAX;

/// `word & mask` must be zero, otherwise EPERM.
const fn none_of(word: Word, mask: u32) -> Check {
    Check::Match { word, mask, cases: &ZERO, otherwise: &REFUSED }
}
static ZERO: [Case; 1] = [Case::Is(&[0], &ALLOW)];

// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (NEWTIME is a signal number to clone, and unshare below
// lists what it takes.)
static CLONE: Check = none_of(Word::Low(0), 0x7e02_0000);

// CLONE_FS, CLONE_FILES, CLONE_SYSVSEM. unshare takes a long, so its high half counts.
static UNSHARE: Check = Check::Match {
    word: Word::Low(0),
    mask: !0x0004_0600,
    cases: &[Case::Is(&[0], &UNSHARE_HIGH)],
    otherwise: &REFUSED,
};
static UNSHARE_HIGH: Check = none_of(Word::High(0), ANY);

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const SOL_SOCKET: u32 = 1;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const SOCK_SEQPACKET: u32 = 5;
const SOCK_TYPE_MASK: u32 = 0xf;

// The answers are those of a kernel built without the protocol, which programs expect: audit libraries carry on without
// NETLINK_AUDIT, and Go's listeners fall back from MPTCP to TCP. Raw sockets answer as without the capability.
static SOCKET: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[
        Case::Is(&[AF_UNIX], &ALLOW),
        Case::Is(&[AF_INET, AF_INET6], &SOCKET_INET),
        Case::Is(&[AF_NETLINK], &SOCKET_NETLINK),
    ],
    otherwise: &NO_SUCH_FAMILY,
};
static SOCKET_INET: Check = Check::Match {
    word: Word::Low(1),
    mask: SOCK_TYPE_MASK,
    cases: &[Case::Is(&[SOCK_STREAM, SOCK_DGRAM], &SOCKET_INET_PROTOCOL)],
    otherwise: &REFUSED,
};
// Default, ICMP and ICMPv6 (ping, where the host lets it), TCP, UDP. MPTCP would go round Landlock's rules for TCP; SCTP,
// SMC, L2TP and the rest are kernel surface that nothing here needs.
static SOCKET_INET_PROTOCOL: Check = Check::Match {
    word: Word::Low(2),
    mask: ANY,
    cases: &[Case::Is(&[0, 1, 6, 17, 58], &ALLOW)],
    otherwise: &NO_SUCH_PROTOCOL,
};
// NETLINK_ROUTE only: the C library lists interfaces and addresses through it.
static SOCKET_NETLINK: Check =
    Check::Match { word: Word::Low(2), mask: ANY, cases: &[Case::Is(&[0], &ALLOW)], otherwise: &NO_SUCH_PROTOCOL };

static SOCKET_UNIX_ONLY: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[Case::Is(&[AF_UNIX], &ALLOW), Case::Is(&[AF_NETLINK], &SOCKET_NETLINK)],
    otherwise: &NO_SUCH_FAMILY,
};

static PAIR: Check =
    Check::Match { word: Word::Low(0), mask: ANY, cases: &[Case::Is(&[AF_UNIX], &ALLOW)], otherwise: &NO_SUCH_FAMILY };
// One end of a datagram pair can be connected anew, to any Unix socket in reach (and SOCK_RAW makes a datagram pair too).
static PAIR_CONNECTED: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[Case::Is(&[AF_UNIX], &PAIR_CONNECTED_TYPE)],
    otherwise: &NO_SUCH_FAMILY,
};
static PAIR_CONNECTED_TYPE: Check = Check::Match {
    word: Word::Low(1),
    mask: SOCK_TYPE_MASK,
    cases: &[Case::Is(&[SOCK_STREAM, SOCK_SEQPACKET], &ALLOW)],
    otherwise: &REFUSED,
};

// F_SETLEASE: whoever opens the file outside would wait for the box, 45 s each time. F_SET_RW_HINT leaves a word on whatever can
// be opened for reading, namespaces included (whoever is not its owner may do so before Linux 6.9 or so).
static FCNTL: Check = Check::Match {
    word: Word::Low(1),
    mask: ANY,
    cases: &[Case::Is(&[1024], &REFUSED), Case::Is(&[1036], &NO_SUCH_OPTION)],
    otherwise: &ALLOW,
};

// By the type byte, which says whose request it is, and the number below it. Size and direction change nothing here.
// What no type lists is asked of a driver, and a sandbox has no device: the answer is that of a file which does not know the
// request, ENOTTY, and programs go on.
const TYPE: u32 = 0xff00;
const NUMBER: u32 = 0x00ff;
static IOCTL: Check = Check::Match {
    word: Word::Low(1),
    mask: TYPE,
    cases: &[
        // FIGETBSZ, and FIBMAP, which takes a capability; FS_IOC_GETFSUUID and the like; of the filter's listeners; how much
        // randomness there is (to change it takes a capability); of sockets, of epoll, of wireless networks; of namespaces,
        // which lead to parents of what the process is in and no further; of processes.
        Case::Is(&[0x0000, 0x1500, 0x2100, 0x5200, 0x8900, 0x8a00, 0x8b00, 0xb700, 0xff00], &ALLOW),
        Case::Is(&[0x5400], &IOCTL_TERMINAL),
        Case::Is(&[0x5800], &IOCTL_XFS),
        Case::Is(&[0x6600], &IOCTL_FILE),
        Case::Is(&[0x7200], &IOCTL_FAT),
        Case::Is(&[0x7600], &IOCTL_VERSION),
        Case::Is(&[0x9400], &IOCTL_BTRFS),
    ],
    otherwise: &NO_SUCH_REQUEST,
};
/// These numbers of a type and no others.
const fn requests(allowed: &'static [Case; 1]) -> Check {
    Check::Match { word: Word::Low(1), mask: NUMBER, cases: allowed, otherwise: &REFUSED }
}
/// All numbers of a type but these.
const fn requests_but(refused: &'static [Case; 1]) -> Check {
    Check::Match { word: Word::Low(1), mask: NUMBER, cases: refused, otherwise: &ALLOW }
}
// Terminals, pipes, descriptors: all but TIOCSTI and TIOCLINUX (keystrokes for whoever reads the terminal next), TIOCCONS (the
// console's output) and TIOCSETD (loads a line discipline into the kernel).
static IOCTL_TERMINAL: Check = requests_but(&[Case::Is(&[0x12, 0x1c, 0x1d, 0x23], &REFUSED)]);
// XFS_IOC_DIOINFO and FS_IOC_FSGETXATTR. Refused: FS_IOC_FSSETXATTR (quotas of projects, direct access),
// files by handle, exchange of extents, freezing.
static IOCTL_XFS: Check = requests(&[Case::Is(&[0x1e, 0x1f], &ALLOW)]);
// FS_IOC_GETFLAGS, FIEMAP, PROCMAP_QUERY. Refused: FS_IOC_SETFLAGS, whose flags stay on the host's
// files (a directory that ignores case, in which `.GIT` is `.git`; no backup; no copy-on-write), keys and policies of
// encryption, FS_IOC_ENABLE_VERITY (nobody can write the file any more), exchange of extents and resizing on ext4.
static IOCTL_FILE: Check = requests(&[Case::Is(&[0x01, 0x0b, 0x11], &ALLOW)]);
// Short names, attributes and the volume's number, which Wine reads. FAT_IOCTL_SET_ATTRIBUTES changes the host's file.
static IOCTL_FAT: Check = requests_but(&[Case::Is(&[0x11], &REFUSED)]);
// FS_IOC_GETVERSION, and not FS_IOC_SETVERSION.
static IOCTL_VERSION: Check = requests(&[Case::Is(&[0x01], &ALLOW)]);
// FICLONE and FICLONERANGE (`cp --reflink`), FIDEDUPERANGE, FS_IOC_GETFSLABEL: both files must be open. Refused: everything that
// is of btrfs alone. A snapshot of a subvolume holds all that mounts hide in it, and its owner needs only to see its top.
static IOCTL_BTRFS: Check = requests(&[Case::Is(&[0x09, 0x0d, 0x31, 0x36], &ALLOW)]);

// Also what any socket tells of the network that it was made in: interfaces, addresses, routes, wireless networks (SIOCGIF…,
// SIOCETHTOOL, SIOCGIW…). Not what it tells of itself (owner, urgent data, time stamps, SIOCOUTQNSD), nor SIOCSIFFLAGS, which takes
// a capability there and brings up the loopback of a nested sandbox.
static IOCTL_HANDED: Check = Check::Match {
    word: Word::Low(1),
    mask: TYPE | NUMBER,
    cases: &[Case::Is(&[0x8900, 0x8901, 0x8902, 0x8903, 0x8904, 0x8905, 0x8906, 0x8907, 0x8914, 0x894b], &ALLOW)],
    otherwise: &IOCTL_OF_NETWORK,
};
// 0x89 and 0x8b.
static IOCTL_OF_NETWORK: Check =
    Check::Match { word: Word::Low(1), mask: 0xfd00, cases: &[Case::Is(&[0x8900], &REFUSED)], otherwise: &IOCTL };

// The same by options: SO_BINDTODEVICE and SO_BINDTOIFINDEX tell which interfaces there are, SO_NETNS_COOKIE which network, and
// SO_PEERPIDFD is a descriptor of its owner's process.
static OPTION_HANDED: Check = Check::Match {
    word: Word::Low(1),
    mask: ANY,
    cases: &[Case::Is(&[SOL_SOCKET], &OPTION_OF_NETWORK)],
    otherwise: &ALLOW,
};
static OPTION_OF_NETWORK: Check =
    Check::Match { word: Word::Low(2), mask: ANY, cases: &[Case::Is(&[25, 62, 71, 77], &REFUSED)], otherwise: &ALLOW };

// Refused: PR_SET_MM (a false `/proc/self/exe` and command line) and PR_SCHED_CORE (keeps others off a core).
// The highest option known is 78; three have spelled-out numbers: PR_GET_AUXV, PR_SET_VMA, PR_SET_PTRACER.
static PRCTL: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[
        Case::Is(&[35, 62], &REFUSED),
        Case::UpTo(78, &ALLOW),
        Case::Is(&[0x4155_5856, 0x5356_4d41, 0x5961_6d61], &ALLOW),
    ],
    otherwise: &NO_SUCH_OPTION,
};

// The same without PR_SET_SECCOMP.
static PRCTL_NO_FILTER: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[
        Case::Is(&[22, 35, 62], &REFUSED),
        Case::UpTo(78, &ALLOW),
        Case::Is(&[0x4155_5856, 0x5356_4d41, 0x5961_6d61], &ALLOW),
    ],
    otherwise: &NO_SUCH_OPTION,
};
// SECCOMP_SET_MODE_STRICT leaves four calls, and other operations only ask.
static SECCOMP_NO_FILTER: Check =
    Check::Match { word: Word::Low(0), mask: ANY, cases: &[Case::Is(&[1], &REFUSED)], otherwise: &ALLOW };

// Not of process 1, which looks after all others as their equal: any of them could set a limit that it dies of, or leave
// it no time to run.
static OTHERS_0: Check =
    Check::Match { word: Word::Low(0), mask: ANY, cases: &[Case::Is(&[1], &REFUSED)], otherwise: &ALLOW };
static OTHERS_1: Check =
    Check::Match { word: Word::Low(1), mask: ANY, cases: &[Case::Is(&[1], &REFUSED)], otherwise: &ALLOW };

// PRIO_USER (2) and IOPRIO_WHO_USER (3) are all processes of a user, with process 1 among them. One check for both calls,
// and of one bit, since container engines compile many rules from it: what else it refuses is nothing, or a group's.
static PRIORITY: Check =
    Check::Match { word: Word::Low(0), mask: 2, cases: &[Case::Is(&[2], &REFUSED)], otherwise: &OTHERS_1 };

// PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE, and 0xffffffff which only asks.
static PERSONALITY: Check = Check::Match {
    word: Word::Low(0),
    mask: ANY,
    cases: &[Case::Is(&[u32::MAX], &ALLOW)],
    otherwise: &PERSONALITY_FLAGS,
};
static PERSONALITY_FLAGS: Check = none_of(Word::Low(0), !0x0006_0008);

// Of the file types only character and block devices have this bit. The kernel takes 16 bits of the mode.
const DEVICE: u32 = 0o020_000;
static MKNOD: Check = none_of(Word::Low(1), DEVICE | SET_ID);
static MKNODAT: Check = none_of(Word::Low(2), DEVICE | SET_ID);

// S_ISUID and S_ISGID.
const SET_ID: u32 = 0o6000;
static MODE_1: Check = none_of(Word::Low(1), SET_ID);
static MODE_2: Check = none_of(Word::Low(2), SET_ID);
static MODE_3: Check = none_of(Word::Low(3), SET_ID);

// Without O_CREAT and O_TMPFILE there is no mode, and its register holds anything.
const MAKES: u32 = 0o20_000_100;
static OPEN: Check =
    Check::Match { word: Word::Low(1), mask: MAKES, cases: &[Case::Is(&[0], &ALLOW)], otherwise: &MODE_2 };
static OPENAT: Check =
    Check::Match { word: Word::Low(2), mask: MAKES, cases: &[Case::Is(&[0], &ALLOW)], otherwise: &MODE_3 };

/// Calls that open or change what a path names, for which a listener can be asked (`Notify::Opens`). Mere look-ups
/// are left out: they are many, and what they are refused an open is refused too. All are allowed, most plainly.
pub const OPENS: &[&str] = &[
    "open",
    "openat",
    "creat",
    "execve",
    "execveat",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "rmdir",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "chmod",
    "fchmodat",
    "fchmodat2",
    "truncate",
    "connect",
];

/// What a policy can take away from [`GROUPS`].
#[rustfmt::skip]
pub static REFUSABLE: [Refusable; 4] = [
    // For debuggers and crash handlers only: to trace others of the same sandbox, read and write their memory, take their
    // descriptors.
    Refusable { group: RefusedGroup::Debugging, calls: &[
        ("ptrace", Rule::Deny), ("process_vm_readv", Rule::Deny), ("process_vm_writev", Rule::Deny),
        ("pidfd_getfd", Rule::Deny),
    ] },
    // For sandboxes in the sandbox. Compiling a program for the kernel is an attack surface, and a filter with a listener
    // answers calls of other processes.
    Refusable { group: RefusedGroup::NestedFilters, calls: &[
        ("seccomp", Rule::When(&SECCOMP_NO_FILTER)), ("prctl", Rule::When(&PRCTL_NO_FILTER)),
    ] },
    // Old behaviour of the kernel, which few programs ask for and exploits build on.
    Refusable { group: RefusedGroup::Personality, calls: &[("personality", Rule::Deny)] },
    // Puts pages of a process into a pipe, where they can be changed after the reader has looked at them; the start of
    // several attacks on the page cache.
    Refusable { group: RefusedGroup::Vmsplice, calls: &[("vmsplice", Rule::Deny)] },
];

#[rustfmt::skip]
pub static GROUPS: &[Group] = &[
    // Files and directories: the mounts and Landlock decide which, not the filter.
    Group { rule: Rule::Allow, calls: &[
        ("read", 0, 63), ("write", 1, 64), ("close", 3, 57), ("stat", 4, NO), ("fstat", 5, 80),
        ("lstat", 6, NO), ("lseek", 8, 62), ("pread64", 17, 67), ("pwrite64", 18, 68), ("readv", 19, 65),
        ("writev", 20, 66), ("access", 21, NO), ("dup", 32, 23), ("dup2", 33, NO), ("dup3", 292, 24),
        ("sendfile", 40, 71), ("flock", 73, 32), ("fsync", 74, 82), ("fdatasync", 75, 83),
        ("truncate", 76, 45), ("ftruncate", 77, 46), ("getdents", 78, NO), ("getdents64", 217, 61),
        ("getcwd", 79, 17), ("chdir", 80, 49), ("fchdir", 81, 50), ("rename", 82, NO), ("mkdir", 83, NO),
        ("rmdir", 84, NO), ("link", 86, NO), ("unlink", 87, NO), ("symlink", 88, NO),
        ("readlink", 89, NO), ("chown", 92, NO), ("fchown", 93, 55),
        ("lchown", 94, NO), ("umask", 95, 166), ("utime", 132, NO), ("utimes", 235, NO), ("futimesat", 261, NO),
        ("utimensat", 280, 88), ("statfs", 137, 43), ("fstatfs", 138, 44), ("sync", 162, 81), ("syncfs", 306, 267),
        ("mkdirat", 258, 34), ("fchownat", 260, 54),
        ("newfstatat", 262, 79), ("unlinkat", 263, 35), ("renameat", 264, 38), ("renameat2", 316, 276),
        ("linkat", 265, 37), ("symlinkat", 266, 36), ("readlinkat", 267, 78),
        ("faccessat", 269, 48), ("faccessat2", 439, 439), ("statx", 332, 291),
        ("splice", 275, 76), ("tee", 276, 77), ("vmsplice", 278, 75), ("sync_file_range", 277, 84),
        ("fallocate", 285, 47), ("fadvise64", 221, 223), ("readahead", 187, 213), ("preadv", 295, 69),
        ("pwritev", 296, 70), ("preadv2", 327, 286), ("pwritev2", 328, 287), ("copy_file_range", 326, 285),
        ("close_range", 436, 436), ("pipe", 22, NO), ("pipe2", 293, 59), ("cachestat", 451, 451),
    ] },
    // Not with set-user-id or set-group-id: such a file in the project would lend the caller's rights, root's at worst, to
    // whoever executes it on the host.
    Group { rule: Rule::When(&OPEN), calls: &[("open", 2, NO)] },
    Group { rule: Rule::When(&OPENAT), calls: &[("openat", 257, 56)] },
    Group { rule: Rule::When(&MODE_1), calls: &[("creat", 85, NO), ("chmod", 90, NO), ("fchmod", 91, 52)] },
    Group { rule: Rule::When(&MODE_2), calls: &[("fchmodat", 268, 53), ("fchmodat2", 452, 452)] },
    // Its mode lies in memory, where the filter cannot see it. Programs fall back to openat.
    Group { rule: Rule::Nesting(&NOT_THERE), calls: &[("openat2", 437, 437)] },
    // Extended attributes; what flags a file has.
    Group { rule: Rule::Allow, calls: &[
        ("setxattr", 188, 5), ("lsetxattr", 189, 6), ("fsetxattr", 190, 7), ("getxattr", 191, 8),
        ("lgetxattr", 192, 9), ("fgetxattr", 193, 10), ("listxattr", 194, 11), ("llistxattr", 195, 12),
        ("flistxattr", 196, 13), ("removexattr", 197, 14), ("lremovexattr", 198, 15), ("fremovexattr", 199, 16),
        ("setxattrat", 463, 463), ("getxattrat", 464, 464), ("listxattrat", 465, 465), ("removexattrat", 466, 466),
        ("file_getattr", 468, 468),
    ] },
    // FS_IOC_FSSETXATTR by a name; see ioctl.
    Group { rule: Rule::Deny, calls: &[("file_setattr", 469, 469)] },
    // What is mounted where, as `/proc/self/mountinfo` tells too. A handle can be had but not opened: see
    // open_by_handle_at.
    Group { rule: Rule::Allow, calls: &[
        ("name_to_handle_at", 303, 264), ("statmount", 457, 457), ("listmount", 458, 458),
    ] },
    // Memory of the process itself. memfd_secret counts against the locked-memory limit.
    Group { rule: Rule::Allow, calls: &[
        ("mmap", 9, 222), ("mprotect", 10, 226), ("munmap", 11, 215), ("brk", 12, 214), ("mremap", 25, 216),
        ("msync", 26, 227), ("mincore", 27, 232), ("madvise", 28, 233), ("mlock", 149, 228), ("munlock", 150, 229),
        ("mlockall", 151, 230), ("munlockall", 152, 231), ("mlock2", 325, 284), ("remap_file_pages", 216, 234),
        ("memfd_create", 319, 279), ("memfd_secret", 447, 447), ("membarrier", 324, 283),
        ("pkey_mprotect", 329, 288), ("pkey_alloc", 330, 289), ("pkey_free", 331, 290), ("mseal", 462, 462),
        ("map_shadow_stack", 453, 453), ("mbind", 237, 235), ("set_mempolicy", 238, 237),
        ("get_mempolicy", 239, 236), ("set_mempolicy_home_node", 450, 450), ("process_madvise", 440, 440),
        ("process_mrelease", 448, 448),
    ] },
    // Processes and threads. clone and clone3 stand below with their conditions.
    Group { rule: Rule::Allow, calls: &[
        ("fork", 57, NO), ("vfork", 58, NO), ("execve", 59, 221), ("execveat", 322, 281), ("exit", 60, 93),
        ("exit_group", 231, 94), ("wait4", 61, 260), ("waitid", 247, 95), ("getpid", 39, 172), ("getppid", 110, 173),
        ("gettid", 186, 178), ("setpgid", 109, 154), ("getpgid", 121, 155), ("getpgrp", 111, NO),
        ("setsid", 112, 157), ("getsid", 124, 156), ("set_tid_address", 218, 96), ("set_robust_list", 273, 99),
        ("get_robust_list", 274, 100), ("futex", 202, 98), ("futex_waitv", 449, 449), ("futex_wake", 454, 454),
        ("futex_wait", 455, 455), ("futex_requeue", 456, 456), ("rseq", 334, 293), ("restart_syscall", 219, 128),
        ("arch_prctl", 158, NO), ("getcpu", 309, 168), ("pidfd_open", 434, 434), ("pidfd_send_signal", 424, 424),
    ] },
    // Debuggers of own children, crash handlers: the PID namespace and the user id bound whom they reach.
    Group { rule: Rule::Allow, calls: &[
        ("ptrace", 101, 117), ("process_vm_readv", 310, 270), ("process_vm_writev", 311, 271),
        ("pidfd_getfd", 438, 438),
    ] },
    // Only the kernel's own probe trampolines call these; refusing them kills a program that an administrator traces.
    Group { rule: Rule::Allow, calls: &[("uretprobe", 335, NO), ("uprobe", 336, NO)] },
    // Signals.
    Group { rule: Rule::Allow, calls: &[
        ("rt_sigaction", 13, 134), ("rt_sigprocmask", 14, 135), ("rt_sigreturn", 15, 139),
        ("rt_sigpending", 127, 136), ("rt_sigtimedwait", 128, 137), ("rt_sigqueueinfo", 129, 138),
        ("rt_tgsigqueueinfo", 297, 240), ("rt_sigsuspend", 130, 133), ("sigaltstack", 131, 132), ("kill", 62, 129),
        ("tkill", 200, 130), ("tgkill", 234, 131), ("pause", 34, NO), ("signalfd", 282, NO), ("signalfd4", 289, 74),
    ] },
    // Scheduling and limits: the kernel lets nobody raise their own share without a capability.
    Group { rule: Rule::Allow, calls: &[
        ("sched_yield", 24, 124), ("sched_getparam", 143, 121), ("sched_getscheduler", 145, 120),
        ("sched_get_priority_max", 146, 125), ("sched_get_priority_min", 147, 126), ("sched_rr_get_interval", 148, 127),
        ("sched_getaffinity", 204, 123), ("sched_getattr", 315, 275), ("getpriority", 140, 141),
        ("ioprio_get", 252, 31), ("getrlimit", 97, 163), ("setrlimit", 160, 164), ("getrusage", 98, 165),
    ] },
    Group { rule: Rule::When(&OTHERS_0), calls: &[
        ("prlimit64", 302, 261), ("sched_setparam", 142, 118), ("sched_setscheduler", 144, 119),
        ("sched_setaffinity", 203, 122), ("sched_setattr", 314, 274),
    ] },
    Group { rule: Rule::When(&PRIORITY), calls: &[("setpriority", 141, 140), ("ioprio_set", 251, 30)] },
    // Time: read, sleep, timers. adjtimex and clock_adjtime read without a capability; setting stands below.
    Group { rule: Rule::Allow, calls: &[
        ("time", 201, NO), ("gettimeofday", 96, 169), ("clock_gettime", 228, 113), ("clock_getres", 229, 114),
        ("clock_nanosleep", 230, 115), ("nanosleep", 35, 101), ("times", 100, 153), ("alarm", 37, NO),
        ("getitimer", 36, 102), ("setitimer", 38, 103), ("timer_create", 222, 107), ("timer_settime", 223, 110),
        ("timer_gettime", 224, 108), ("timer_getoverrun", 225, 109), ("timer_delete", 226, 111),
        ("timerfd_create", 283, 85), ("timerfd_settime", 286, 86), ("timerfd_gettime", 287, 87),
        ("adjtimex", 159, 171), ("clock_adjtime", 305, 266),
    ] },
    // Waiting for events, and the older asynchronous reads and writes that databases use.
    Group { rule: Rule::Allow, calls: &[
        ("poll", 7, NO), ("ppoll", 271, 73), ("select", 23, NO), ("pselect6", 270, 72), ("epoll_create", 213, NO),
        ("epoll_create1", 291, 20), ("epoll_ctl", 233, 21), ("epoll_wait", 232, NO), ("epoll_pwait", 281, 22),
        ("epoll_pwait2", 441, 441), ("eventfd", 284, NO), ("eventfd2", 290, 19), ("inotify_init", 253, NO),
        ("inotify_init1", 294, 26), ("inotify_add_watch", 254, 27), ("inotify_rm_watch", 255, 28),
    ] },
    // Old asynchronous input and output: there is one quota for the whole machine, and a box could take all of it.
    Group { rule: Rule::Absent, calls: &[
        ("io_setup", 206, 0), ("io_destroy", 207, 1), ("io_getevents", 208, 4), ("io_pgetevents", 333, 292),
        ("io_submit", 209, 2), ("io_cancel", 210, 3),
    ] },
    Group { rule: Rule::When(&FCNTL), calls: &[("fcntl", 72, 25)] },
    // Sockets once made; which can be made is decided by socket and socketpair below.
    Group { rule: Rule::Allow, calls: &[
        ("connect", 42, 203), ("accept", 43, 202), ("accept4", 288, 242), ("bind", 49, 200), ("listen", 50, 201),
        ("sendto", 44, 206), ("recvfrom", 45, 207), ("sendmsg", 46, 211), ("recvmsg", 47, 212),
        ("sendmmsg", 307, 269), ("recvmmsg", 299, 243), ("shutdown", 48, 210), ("getsockname", 51, 204),
        ("getpeername", 52, 205),
    ] },
    // All, but about networks where a socket of another one is there.
    Group { rule: Rule::Sockets([&ALLOW, &ALLOW, &ALLOW, &OPTION_HANDED]), calls: &[
        ("setsockopt", 54, 208), ("getsockopt", 55, 209),
    ] },
    // System V and POSIX message queues, semaphores, shared memory: the IPC namespace is the sandbox's own.
    Group { rule: Rule::Allow, calls: &[
        ("shmget", 29, 194), ("shmat", 30, 196), ("shmctl", 31, 195), ("shmdt", 67, 197), ("semget", 64, 190),
        ("semop", 65, 193), ("semctl", 66, 191), ("semtimedop", 220, 192), ("msgget", 68, 186), ("msgsnd", 69, 189),
        ("msgrcv", 70, 188), ("msgctl", 71, 187), ("mq_open", 240, 180), ("mq_unlink", 241, 181),
        ("mq_timedsend", 242, 182), ("mq_timedreceive", 243, 183), ("mq_notify", 244, 184),
        ("mq_getsetattr", 245, 185),
    ] },
    // Identity: there is no capability to gain one with, and set-user-id has no effect.
    Group { rule: Rule::Allow, calls: &[
        ("getuid", 102, 174), ("getgid", 104, 176), ("geteuid", 107, 175), ("getegid", 108, 177),
        ("setuid", 105, 146), ("setgid", 106, 144), ("setreuid", 113, 145), ("setregid", 114, 143),
        ("getgroups", 115, 158), ("setgroups", 116, 159), ("setresuid", 117, 147), ("getresuid", 118, 148),
        ("setresgid", 119, 149), ("getresgid", 120, 150), ("setfsuid", 122, 151), ("setfsgid", 123, 152),
        ("capget", 125, 90), ("capset", 126, 91),
    ] },
    // About the machine, and randomness.
    Group { rule: Rule::Allow, calls: &[("uname", 63, 160), ("sysinfo", 99, 179), ("getrandom", 318, 278)] },
    // Walls that a program, or a nested sandbox, puts up for itself: they stack and only tighten.
    Group { rule: Rule::Allow, calls: &[
        ("seccomp", 317, 277), ("landlock_create_ruleset", 444, 444), ("landlock_add_rule", 445, 445),
        ("landlock_restrict_self", 446, 446), ("lsm_get_self_attr", 459, 459), ("lsm_list_modules", 461, 461),
    ] },
    // A new process, but no new namespace. clone's flags are in a register, clone3's in memory where no filter sees
    // them: told that clone3 does not exist, the C library uses clone.
    Group { rule: Rule::Nesting(&CLONE), calls: &[("clone", 56, 220)] },
    Group { rule: Rule::Nesting(&NOT_THERE), calls: &[("clone3", 435, 435)] },
    // unshare of the descriptor table, the working directory and the semaphore list; no namespace, and no flag yet
    // unheard of.
    Group { rule: Rule::Nesting(&UNSHARE), calls: &[("unshare", 272, 97)] },
    // Families of sockets.
    Group { rule: Rule::Sockets([&SOCKET, &SOCKET_UNIX_ONLY, &REFUSED, &SOCKET]), calls: &[("socket", 41, 198)] },
    Group { rule: Rule::Sockets([&PAIR, &PAIR, &PAIR_CONNECTED, &PAIR]), calls: &[("socketpair", 53, 199)] },
    // Requests to files, terminals and sockets, by the tables above; and not about networks where a socket of another one
    // is there.
    Group { rule: Rule::Sockets([&IOCTL, &IOCTL, &IOCTL, &IOCTL_HANDED]), calls: &[("ioctl", 16, 29)] },
    // All options known today but two; an option yet unheard of does not exist.
    Group { rule: Rule::When(&PRCTL), calls: &[("prctl", 157, 167)] },
    // 32-bit machine name, 2.6 version number and no address randomisation (debuggers); not executable-by-default
    // memory.
    Group { rule: Rule::When(&PERSONALITY), calls: &[("personality", 135, 92)] },
    // Pipes, sockets and plain files; no device.
    Group { rule: Rule::Nesting(&MKNOD), calls: &[("mknod", 133, NO)] },
    Group { rule: Rule::Nesting(&MKNODAT), calls: &[("mknodat", 259, 33)] },
    // The mount interface, other namespaces, another root, a name of one's own: what sandboxes are made of, so for
    // nesting only.
    Group { rule: Rule::Nesting(&REFUSED), calls: &[
        ("mount", 165, 40), ("umount2", 166, 39), ("pivot_root", 155, 41), ("open_tree", 428, 428),
        ("open_tree_attr", 467, 467), ("move_mount", 429, 429), ("fsopen", 430, 430), ("fsconfig", 431, 431),
        ("fsmount", 432, 432), ("fspick", 433, 433), ("mount_setattr", 442, 442), ("setns", 308, 268),
        ("chroot", 161, 51), ("sethostname", 170, 161), ("setdomainname", 171, 162),
    ] },
    // A second way to do nearly everything, past every filter, with a long list of escapes.
    Group { rule: Rule::Deny, calls: &[
        ("io_uring_setup", 425, 425), ("io_uring_enter", 426, 426), ("io_uring_register", 427, 427),
    ] },
    // Tools of kernel exploits: pause the kernel at will, load code into it, watch it.
    Group { rule: Rule::Deny, calls: &[
        ("userfaultfd", 323, 282), ("bpf", 321, 280), ("perf_event_open", 298, 241), ("kcmp", 312, 272),
        ("lookup_dcookie", 212, 18),
    ] },
    // Keyrings belong to the user, not to a namespace.
    Group { rule: Rule::Deny, calls: &[("add_key", 248, 217), ("request_key", 249, 218), ("keyctl", 250, 219)] },
    // A handle names a file past every mount.
    Group { rule: Rule::Deny, calls: &[("open_by_handle_at", 304, 265)] },
    // Watches whole file systems; inotify is there for the rest.
    Group { rule: Rule::Deny, calls: &[("fanotify_init", 300, 262), ("fanotify_mark", 301, 263)] },
    // Moves pages of processes between nodes, which tells where they are.
    Group { rule: Rule::Deny, calls: &[("migrate_pages", 256, 238), ("move_pages", 279, 239)] },
    // Sets the label that the next program runs under.
    Group { rule: Rule::Deny, calls: &[("lsm_set_self_attr", 460, 460)] },
    // The host's clock, kernel, modules, log, accounts, quotas, swap, terminals and ports.
    Group { rule: Rule::Deny, calls: &[
        ("settimeofday", 164, 170), ("clock_settime", 227, 112), ("kexec_load", 246, 104),
        ("kexec_file_load", 320, 294), ("init_module", 175, 105), ("finit_module", 313, 273),
        ("delete_module", 176, 106), ("syslog", 103, 116), ("acct", 163, 89), ("quotactl", 179, 60),
        ("quotactl_fd", 443, 443), ("swapon", 167, 224), ("swapoff", 168, 225), ("reboot", 169, 142),
        ("vhangup", 153, 58), ("iopl", 172, NO), ("ioperm", 173, NO),
    ] },
    // 16-bit segments: much broken, and of use to 16- and 32-bit programs only.
    Group { rule: Rule::Deny, calls: &[("modify_ldt", 154, NO)] },
    // Obsolete, and gone from new kernels.
    Group { rule: Rule::Deny, calls: &[
        ("uselib", 134, NO), ("ustat", 136, NO), ("sysfs", 139, NO), ("_sysctl", 156, NO), ("nfsservctl", 180, 42),
        ("create_module", 174, NO), ("get_kernel_syms", 177, NO), ("query_module", 178, NO),
    ] },
    // Numbers that no 64-bit kernel ever answered.
    Group { rule: Rule::Absent, calls: &[
        ("getpmsg", 181, NO), ("putpmsg", 182, NO), ("afs_syscall", 183, NO), ("tuxcall", 184, NO),
        ("security", 185, NO), ("set_thread_area", 205, NO), ("get_thread_area", 211, NO),
        ("epoll_ctl_old", 214, NO), ("epoll_wait_old", 215, NO), ("vserver", 236, NO),
    ] },
];
