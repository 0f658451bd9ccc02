//! What is left of two policies, field by field, and what their rules say together.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Guarantee;
use crate::glob::Glob;
use crate::policy::tests::dice::Dice;
use crate::policy::tests::of_profile;
use crate::policy::{Device, Guard, Network, Shown, Workspace};
use crate::profiles;
use crate::rules::{Kind, Origin};
use crate::service::Verdict;
use crate::syscalls::SyscallGroup;

fn narrowed(one: &Policy, other: &Policy) -> Policy {
    one.narrowed_by(other, &Lookup::default()).unwrap()
}

type Change = fn(&mut Policy);

/// A field in two policies that are the same otherwise, and what is left of it, in either order.
const FIELDS: &[(&str, [Change; 3])] = &[
    ("root", [|p| p.root = Root::Host, |p| p.root = Root::Programs, |p| p.root = Root::Programs]),
    ("one image", [image, image, image]),
    ("network", [|p| p.network = Network::Open, |p| p.network = Network::Bridge, |p| p.network = Network::Bridge]),
    ("shown", [|p| p.shown = shown(&["/a", "/b"]), |p| p.shown = shown(&["/b"]), |p| p.shown = shown(&["/b"])]),
    ("devices", [|p| p.devices = devices(&["/dev/a"]), |p| p.devices = devices(&["/dev/b"]), |_| {}]),
    (
        "one device",
        [
            |p| p.devices = devices(&["/dev/a", "/dev/b"]),
            |p| p.devices = devices(&["/dev/b"]),
            |p| p.devices = devices(&["/dev/b"]),
        ],
    ),
    (
        "caches",
        [
            |p| p.caches.names = names(&["npm", "pip"]),
            |p| {
                p.caches.names = names(&["pip"]);
                p.caches.required = true;
                p.caches.read_only = true;
            },
            |p| {
                p.caches.names = names(&["pip"]);
                p.caches.required = true;
                p.caches.read_only = true;
            },
        ],
    ),
    ("keep_home", [|p| p.keep_home = true, |_| {}, |_| {}]),
    ("keep_home of both", [|p| p.keep_home = true, |p| p.keep_home = true, |p| p.keep_home = true]),
    ("tmp_exec", [|p| p.tmp_exec = true, |p| p.tmp_exec = false, |p| p.tmp_exec = false]),
    ("docker", [|p| p.docker = true, |_| {}, |_| {}]),
    ("docker of both", [|p| p.docker = true, |p| p.docker = true, |p| p.docker = true]),
    ("nesting", [|p| p.nesting = true, |_| {}, |_| {}]),
    ("nesting of both", [|p| p.nesting = true, |p| p.nesting = true, |p| p.nesting = true]),
    (
        "refuse_syscalls",
        [
            |p| p.refuse_syscalls = [SyscallGroup::Vmsplice].into(),
            |p| p.refuse_syscalls = [SyscallGroup::Debugging].into(),
            |p| p.refuse_syscalls = [SyscallGroup::Vmsplice, SyscallGroup::Debugging].into(),
        ],
    ),
    ("strict", [|p| p.strict = true, |_| {}, |p| p.strict = true]),
    ("env.inherit", [|p| p.env.inherit = true, |_| {}, |_| {}]),
    ("env.inherit of both", [|p| p.env.inherit = true, |p| p.env.inherit = true, |p| p.env.inherit = true]),
    (
        "env.pass",
        [
            |p| p.env.pass = names(&["A", "B", "LD_PRELOAD", "X_1*"]),
            |p| p.env.pass = names(&["B", "LD_*", "X_*"]),
            |p| p.env.pass = names(&["B", "X_1*"]),
        ],
    ),
    ("env.drop", [|p| p.env.drop = names(&["A"]), |_| {}, |p| p.env.drop = names(&["A"])]),
    (
        "env.set",
        [
            |p| p.env.set = values(&[("A", "1")]),
            |p| p.env.set = values(&[("A", "1")]),
            |p| {
                p.env.set = values(&[("A", "1")]);
            },
        ],
    ),
    (
        "env.set of one hides the caller's",
        [
            |p| {
                p.env.set = values(&[("TOKEN", "")]);
                p.env.pass = names(&["T*", "TOKEN", "U"]);
            },
            |p| p.env.pass = names(&["T*", "TOKEN", "U"]),
            |p| {
                p.env.drop = names(&["TOKEN"]);
                p.env.pass = names(&["U"]);
            },
        ],
    ),
    ("user", [|p| p.user = User::Caller, |_| {}, |_| {}]),
    (
        "limits",
        [
            |p| p.limits = limits([Some(1), None, Some(3), None, Some(5), Some(9), None], [7, 8, 9]),
            |p| p.limits = limits([Some(2), Some(2), None, None, Some(6), Some(8), Some(4)], [9, 8, 7]),
            |p| p.limits = limits([Some(1), Some(2), Some(3), None, Some(5), Some(8), Some(4)], [7, 8, 7]),
        ],
    ),
    (
        "limits.timeout",
        [
            |p| p.limits = limits([None, None, None, None, Some(9), None, None], [1; 3]),
            |p| p.limits = limits([None, None, None, None, None, Some(4), None], [1; 3]),
            |p| p.limits = limits([None, None, None, None, Some(4), Some(4), None], [1; 3]),
        ],
    ),
    (
        "commands",
        [
            |p| p.commands = [command("a", guard()), command("b", guard()), command("c", guard())].into(),
            |p| p.commands = [command("b", guard()), command("c", wrapper()), command("d", wrapper())].into(),
            |p| {
                let rules = [("a", guard()), ("b", guard()), ("c", CommandRule::Block), ("d", wrapper())];
                p.commands = rules.map(|(name, rule)| command(name, rule)).into();
            },
        ],
    ),
    (
        "allow_syscalls",
        [
            |p| p.allow_syscalls = names(&["ptrace", "bpf"]),
            |p| p.allow_syscalls = names(&["bpf"]),
            |p| p.allow_syscalls = names(&["bpf"]),
        ],
    ),
    (
        "optional",
        [
            |p| p.optional = [Guarantee::LimitMemory, Guarantee::LimitCpu].into(),
            |p| p.optional = [Guarantee::LimitCpu].into(),
            |p| p.optional = [Guarantee::LimitCpu].into(),
        ],
    ),
];

fn image(policy: &mut Policy) {
    policy.root = Root::Image("a".into());
}

fn shown(paths: &[&str]) -> Vec<Shown> {
    paths.iter().map(|path| Shown { source: path.into(), target: "/t".into() }).collect()
}

fn devices(paths: &[&str]) -> Vec<Device> {
    paths.iter().map(|path| Device { path: path.into() }).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn values(values: &[(&str, &str)]) -> BTreeMap<String, std::ffi::OsString> {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

fn guard() -> CommandRule {
    CommandRule::Guard(Guard::Git)
}

fn wrapper() -> CommandRule {
    CommandRule::Wrapper("/w".into())
}

fn command(name: &str, rule: CommandRule) -> (String, CommandRule) {
    (name.to_owned(), rule)
}

/// In the order of the fields.
fn limits(optional: [Option<u64>; 7], always: [u64; 3]) -> Limits {
    let [memory, cpus, pids, files, timeout, timeout_ceiling, cpu_time] = optional;
    let [tmp_size, tmp_inodes, output] = always;
    let time = |seconds: Option<u64>| seconds.map(Duration::from_secs);
    Limits {
        memory,
        cpus: cpus.map(|count| count as f64),
        pids,
        files,
        timeout: time(timeout),
        timeout_ceiling: time(timeout_ceiling),
        cpu_time: time(cpu_time),
        tmp_size,
        tmp_inodes,
        output,
    }
}

#[test]
fn every_field() {
    let base = Policy { optional: BTreeSet::new(), commands: BTreeMap::new(), ..of_profile("shell") };
    let with = |change: &Change| {
        let mut policy = base.clone();
        change(&mut policy);
        policy
    };
    for (field, changes) in FIELDS {
        let [one, other, expected] = changes.each_ref().map(with);
        assert_eq!(narrowed(&one, &other), expected, "{field}");
        assert_eq!(narrowed(&other, &one), expected, "{field}, the other way round");
        assert_eq!(narrowed(&one, &one), one, "{field}, by itself");
    }
}

#[test]
fn every_setting_of_a_service() {
    let service = |records, skill_verdict, warm, [idle, life]: [Option<u64>; 2]| ServiceSettings {
        records,
        skill_verdict,
        warm,
        idle: idle.map(Duration::from_secs),
        life: life.map(Duration::from_secs),
    };
    let records = |output, secrets: &[&str]| Records { output, secrets: names(secrets), ..Records::default() };
    let one = service(records(true, &["A", "B"]), Verdict::Clean, 3, [Some(1), None]);
    let other = service(records(false, &["A"]), Verdict::Dangerous, 2, [Some(2), Some(3)]);
    let both = service(records(false, &["A", "B"]), Verdict::Clean, 2, [Some(1), Some(3)]);
    assert_eq!(one.narrowed_by(&other), both);
    assert_eq!(other.narrowed_by(&one), both, "the other way round");
    assert_eq!(one.narrowed_by(&one), one, "by itself");
    // A variable that only one of them calls secret.
    let other = ServiceSettings { records: records(true, &["C"]), ..one.clone() };
    assert_eq!(one.narrowed_by(&other).records, records(true, &["A", "B", "C"]));
}

#[test]
fn what_stays_and_what_cannot_be_both() {
    let base = of_profile("shell");
    let mut other = base.clone();
    other.profile = "other".into();
    other.workspace = Workspace::HostDirectory("/other".into());
    other.workdir_at = None;
    other.trace_denials = true;
    assert_eq!(narrowed(&base, &other), base);
    assert_eq!(narrowed(&other, &base), other);

    let mut other = base.clone();
    other.caches.group = Some("g".into());
    other.caches.names = names(&["npm"]);
    let mut cached = base.clone();
    cached.caches.names = names(&["npm"]);
    assert_eq!(narrowed(&cached, &other), base, "caches of another group");

    let refused = |change: Change| {
        let mut other = base.clone();
        change(&mut other);
        let message =
            |one: &Policy, other: &Policy| one.narrowed_by(other, &Lookup::default()).unwrap_err().to_string();
        (message(&base, &other), message(&other, &base))
    };
    let (root, back) = refused(image);
    assert!(root.contains("the host's programs and of image `a`"), "{root}");
    assert!(back.contains("image `a` and of the host's programs"), "{back}");
    let (user, _) = refused(|policy| policy.user = User::Ids { uid: 7, gid: 7 });
    assert!(user.contains("as 1000:1000 and as 7:7"), "{user}");
}

fn rule(text: &str, base: &Path) -> FileRule {
    let (access, path) = text.split_once(' ').unwrap();
    let (access, missing) = match access {
        "rw" => (Access::Rw, Missing::Ignore),
        "rw!" => (Access::Rw, Missing::Fail),
        "make" => (Access::Rw, Missing::Make),
        "ro" => (Access::Ro, Missing::Ignore),
        "protect" => (Access::Ro, Missing::Protect(Kind::Dir)),
        "exclude" => (Access::Exclude, Missing::Ignore),
        other => panic!("{other}"),
    };
    let pattern = match path.contains('*') {
        true => Pattern::Glob(Glob::parse_under(base, path).unwrap()),
        false => Pattern::Exact(if path.starts_with('/') { path.into() } else { base.join(path) }),
    };
    FileRule { access, pattern, missing, origin: Origin { layer: LayerKind::Flags, place: text.to_owned().into() } }
}

/// A policy with these rules alone.
fn ruled(root: Root, rules: &[&str], base: &Path) -> Policy {
    Policy { root, rules: rules.iter().map(|text| rule(text, base)).collect(), ..of_profile("shell") }
}

#[test]
fn what_the_rules_say_together() {
    // Not in /tmp, which every sandbox has of its own.
    let home = std::env::var("HOME").unwrap_or_default();
    let bases = [home.as_str(), env!("CARGO_MANIFEST_DIR")];
    let dir = bases.iter().find_map(|base| tempfile::tempdir_in(base).ok()).unwrap();
    let base = dir.path().canonicalize().unwrap();
    fs::create_dir_all(base.join("p/sub")).unwrap();
    for name in ["p/.env", "p/a.rs", "p/sub/b.rs"] {
        fs::write(base.join(name), "").unwrap();
    }
    let (host, programs) = (Root::Host, Root::Programs);
    // Rules of both, and what holds at paths: `-` where nothing is shown.
    type Row<'a> = (&'a Root, &'a [&'a str], &'a Root, &'a [&'a str], &'a [(&'a str, &'a str)]);
    let table: &[Row<'_>] = &[
        (&host, &["rw p"], &host, &["ro p"], &[("p/a.rs", "ro"), ("q", "ro")]),
        (&host, &["rw p"], &host, &["rw p", "exclude p/sub"], &[("p/a.rs", "rw"), ("p/sub/b.rs", "exclude")]),
        // What one does not show, the other's rule does not either.
        (&programs, &["rw p"], &host, &["rw q"], &[("p", "ro"), ("q", "-"), ("/usr/bin", "ro"), ("/home", "-")]),
        (&programs, &["rw p"], &programs, &["rw q"], &[("p", "-"), ("q", "-")]),
        (&host, &["rw /"], &host, &["ro /tmp/x"], &[("/tmp/x", "-"), ("/tmp", "-"), ("/srv", "ro")]),
        (&host, &["rw /tmp/x"], &host, &["rw /tmp"], &[("/tmp/x", "rw"), ("/tmp/y", "-")]),
        // The programs lie below what the other one hides.
        (&programs, &[], &host, &["exclude /"], &[("/usr/bin", "exclude")]),
        (&programs, &[], &host, &["exclude /", "rw /usr"], &[("/usr/bin", "ro"), ("/bin", "exclude")]),
        // Deeper rules of one under those of the other.
        (&host, &["rw p", "ro p/sub"], &host, &["exclude p", "rw p/sub"], &[("p", "exclude"), ("p/sub/b.rs", "ro")]),
        // Globs: for what is there, and those that hide also for what will be.
        (&host, &["rw p", "exclude **/.env"], &host, &["rw p/.env", "rw p"], &[("p/.env", "exclude")]),
        (&host, &["rw p", "exclude **/.env"], &host, &["rw p"], &[("p/sub/.env", "exclude"), ("p/a.rs", "rw")]),
        (&host, &["rw p", "ro **/*.rs"], &host, &["rw p"], &[("p/a.rs", "ro"), ("p/sub/b.rs", "ro"), ("p/.env", "rw")]),
        (
            &host,
            &["ro p", "rw **/*.rs"],
            &host,
            &["rw p", "exclude p/sub"],
            &[("p/a.rs", "rw"), ("p/sub/b.rs", "exclude")],
        ),
    ];
    for (root, one, other_root, other, expected) in table {
        let [one, other] = [(root, one), (other_root, other)].map(|(root, rules)| ruled((*root).clone(), rules, &base));
        for (one, other) in [(&one, &other), (&other, &one)] {
            let both = narrowed(one, other);
            for (path, expected) in *expected {
                let seen = view(&both, &base.join(path)).map_or("-".to_owned(), |view| view.access.to_string());
                assert_eq!(seen, *expected, "{path} of {:?} and {:?}: {:?}", one.rules, other.rules, both.rules);
            }
        }
    }
}

#[test]
fn names_that_are_missing_stay_protected_and_only_what_both_make_is_made() {
    let base = Path::new("/no-home");
    let missing = |one: &str, other: &str| {
        let [one, other] = [one, other].map(|text| ruled(Root::Host, &["rw /no-home", text], base));
        let at = |policy: &Policy| decide(&policy.rules, &base.join("x")).unwrap().clone();
        let [there, back] = [narrowed(&one, &other), narrowed(&other, &one)].map(|both| at(&both));
        assert_eq!((there.access, there.missing), (back.access, back.missing));
        (there.access, there.missing)
    };
    assert_eq!(missing("make x", "make x"), (Access::Rw, Missing::Make));
    assert_eq!(missing("make x", "rw x"), (Access::Rw, Missing::Ignore));
    assert_eq!(missing("make x", "rw y"), (Access::Rw, Missing::Ignore));
    assert_eq!(missing("make x", "protect x"), (Access::Ro, Missing::Protect(Kind::Dir)));
    assert_eq!(missing("rw! x", "protect x"), (Access::Ro, Missing::Protect(Kind::Dir)));
    assert_eq!(missing("rw y", "protect x"), (Access::Ro, Missing::Protect(Kind::Dir)));
    assert_eq!(missing("rw! x", "rw x"), (Access::Rw, Missing::Fail));
    assert_eq!(missing("make x", "exclude x"), (Access::Exclude, Missing::Ignore));
}

/// A rule of one policy alone must not open a socket, nor follow a link, because a user once named it.
#[test]
fn rules_of_both_have_no_more_say_than_a_projects() {
    let base = Path::new("/no-home");
    let both = narrowed(&ruled(Root::Host, &["rw x"], base), &ruled(Root::Host, &["rw y", "exclude *.z"], base));
    assert!(both.rules.len() == 3 && both.rules.iter().all(|rule| rule.origin.layer == LayerKind::Project));
}

#[test]
fn a_profile_is_the_same_by_itself() {
    for name in profiles::NAMES {
        let policy = of_profile(name);
        assert_eq!(narrowed(&policy, &policy), policy, "{name}");
    }
}

const PLACES: [&str; 12] =
    ["/", "/a", "/a/b", "/a/b/c", "/b", "/b/a", "/tmp", "/tmp/a", "/usr", "/usr/a", "/home/sandbox", "/home"];

/// Rules with few different paths, so that those of two policies meet.
fn ruled_at_random(dice: &mut Dice) -> Policy {
    let root = dice.pick(&[Root::Host, Root::Programs]);
    let rules = dice.list(|dice| {
        let glob = dice.pick(&["*", "**/a", "b*/**"]);
        match dice.byte() % 5 {
            0 => format!("exclude {glob}"),
            1 => format!("exclude {}", dice.pick(&PLACES)),
            2 => format!("ro {}", dice.pick(&PLACES)),
            _ => format!("rw {}", dice.pick(&PLACES)),
        }
    });
    ruled(root, &rules.iter().map(String::as_str).collect::<Vec<_>>(), Path::new("/a"))
}

proptest! {
    /// At each path the policy of both is the tighter of the two. The globs match nothing that is there.
    #[test]
    fn the_tighter_of_two(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut dice = Dice::new(bytes);
        let (one, other) = (ruled_at_random(&mut dice), ruled_at_random(&mut dice));
        let both = narrowed(&one, &other);
        let open = |policy: &Policy, path: &Path| match view(policy, path).map(|view| view.access) {
            Some(Access::Rw) => 2,
            Some(Access::Ro) => 1,
            Some(Access::Exclude) | None => 0,
        };
        for place in PLACES {
            for path in [Path::new(place).to_path_buf(), Path::new(place).join("new/er")] {
                let least = open(&one, &path).min(open(&other, &path));
                let rules = (&one.rules, &other.rules, &both.rules);
                prop_assert_eq!(open(&both, &path), least, "{:?} {:?}", path, rules);
            }
        }
    }

    /// Of any two policies that can be narrowed.
    #[test]
    fn narrowed_once_is_narrowed(bytes: Vec<u8>, more: [u8; 64]) {
        let mut dice = Dice::new([&more[..], &bytes].concat());
        // Globs at random would search the whole host.
        let [one, other] = [dice.policy(), dice.policy()].map(|policy| Policy { rules: Vec::new(), ..policy });
        if let Ok(both) = one.narrowed_by(&other, &Lookup::default()) {
            prop_assert_eq!(&narrowed(&both, &both), &both);
            prop_assert_eq!(narrowed(&both, &other), both);
        }
    }
}

/// Of a directory that both narrow, only what both give is left; other directories stay as they are.
#[test]
fn parts_of_a_directory() {
    let narrow = |whole: &str, parts: &[&str]| Narrowed {
        whole: whole.into(),
        parts: parts.iter().map(PathBuf::from).collect(),
    };
    for (one, other, left) in [
        (narrow("/p", &["/p/a"]), narrow("/p", &["/p/b"]), narrow("/p", &[])),
        (narrow("/p", &["/p/a"]), narrow("/p", &["/p"]), narrow("/p", &["/p/a"])),
        (narrow("/p", &["/p/a", "/p/b"]), narrow("/p", &["/p/b/c"]), narrow("/p", &["/p/b/c"])),
    ] {
        for (one, other) in [(&one, &other), (&other, &one)] {
            assert_eq!(
                narrowed_parts(std::slice::from_ref(one), std::slice::from_ref(other)),
                std::slice::from_ref(&left)
            );
        }
    }
    let (one, other) = (narrow("/p", &["/p/a"]), narrow("/q", &["/q/b"]));
    assert_eq!(narrowed_parts(std::slice::from_ref(&one), std::slice::from_ref(&other)), [one, other]);
}
