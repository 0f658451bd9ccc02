//! Policies at random: every field of every value is drawn from bytes, of which there may be too few.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::Guarantee;
use crate::glob::Glob;
use crate::limits::Limits;
use crate::policy::{
    Caches, CommandRule, Device, EnvPolicy, Guard, Narrowed, Network, NetworkRules, Policy, Root, Shown, User,
    Workspace,
};
use crate::records::Records;
use crate::rules::{Access, FileRule, Kind, LayerKind, Missing, Origin, Pattern, PlaceholderText};
use crate::service::{ServiceSettings, Verdict};
use crate::syscalls::SyscallGroup;

pub struct Dice(std::vec::IntoIter<u8>);

impl Dice {
    pub fn new(bytes: Vec<u8>) -> Dice {
        Dice(bytes.into_iter())
    }

    pub fn byte(&mut self) -> u8 {
        self.0.next().unwrap_or(0)
    }

    fn coin(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.byte() as usize % all.len()].clone()
    }

    fn maybe<T>(&mut self, some: impl FnOnce(&mut Dice) -> T) -> Option<T> {
        self.coin().then(|| some(self))
    }

    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Dice) -> T) -> Vec<T> {
        (0..self.byte() % 3).map(|_| item(self)).collect()
    }

    fn text(&mut self) -> String {
        let characters = ['a', 'b', '"', '\\', '\n', '\u{1}', ' ', '*', 'é', '\u{10ffff}', '/', '{'];
        (0..self.byte() % 5).map(|_| self.pick(&characters)).collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.byte() % 5).map(|_| self.byte()).collect()
    }

    /// Absolute and normalised; often not text.
    fn path(&mut self) -> PathBuf {
        let mut path = PathBuf::from("/");
        for mut name in self.list(Dice::bytes) {
            name.retain(|byte| ![0, b'/'].contains(byte));
            if ![&b""[..], b".", b".."].contains(&name.as_slice()) {
                path.push(OsString::from_vec(name));
            }
        }
        path
    }

    fn time(&mut self) -> Duration {
        Duration::new(self.number(), (self.number() % 1_000_000_000) as u32)
    }

    fn cpus(&mut self) -> f64 {
        let cpus = f64::from_bits(self.number());
        if cpus.is_finite() && cpus > 0.0 { cpus } else { 0.1 }
    }

    fn pattern(&mut self) -> Pattern {
        if self.coin() {
            return Pattern::Exact(self.path());
        }
        let pattern = self.pick(&["*", "**/.env", "./a/../b*", "a//[!x-z]?/c", "x*/**", "/**/é*"]);
        Pattern::Glob(Glob::parse_under(&self.path(), pattern).unwrap())
    }

    fn rule(&mut self) -> FileRule {
        FileRule {
            access: self.pick(&[Access::Rw, Access::Ro, Access::Exclude]),
            pattern: self.pattern(),
            missing: self.pick(&[
                Missing::Ignore,
                Missing::Protect(Kind::File),
                Missing::Protect(Kind::Dir),
                Missing::ProtectText(PlaceholderText::SameDirectory),
                Missing::ProtectText(PlaceholderText::EmptyObject),
                Missing::Make,
                Missing::Fail,
            ]),
            origin: Origin {
                layer: self.pick(&[LayerKind::Profile, LayerKind::Global, LayerKind::Project, LayerKind::Flags]),
                place: self.text().into(),
            },
        }
    }

    fn command(&mut self) -> CommandRule {
        match self.byte() % 3 {
            0 => CommandRule::Block,
            1 => CommandRule::Guard(Guard::Git),
            _ => CommandRule::Wrapper(self.path()),
        }
    }

    fn network(&mut self) -> Network {
        match self.byte() % 4 {
            0 => Network::None,
            1 => Network::Bridge,
            2 => Network::Open,
            _ => Network::Allowlist(NetworkRules {
                allow: BTreeSet::from_iter(self.list(Dice::text)),
                also: BTreeSet::from_iter(self.list(|dice| BTreeSet::from_iter(dice.list(Dice::text)))),
                deny: BTreeSet::from_iter(self.list(Dice::text)),
                local: BTreeSet::from_iter(self.list(|dice| dice.number() as u16)),
                publish: BTreeSet::from_iter(self.list(|dice| dice.number() as u16)),
            }),
        }
    }

    fn limits(&mut self) -> Limits {
        Limits {
            memory: self.maybe(Dice::number),
            cpus: self.maybe(Dice::cpus),
            pids: self.maybe(Dice::number),
            files: self.maybe(Dice::number),
            timeout: self.maybe(Dice::time),
            timeout_ceiling: self.maybe(Dice::time),
            cpu_time: self.maybe(Dice::time),
            tmp_size: self.number(),
            tmp_inodes: self.number(),
            output: self.number(),
        }
    }

    pub fn policy(&mut self) -> Policy {
        Policy {
            profile: self.text(),
            workspace: Workspace::HostDirectory(self.path()),
            workdir_at: self.maybe(Dice::path),
            narrowed: self.list(|dice| Narrowed { whole: dice.path(), parts: dice.list(Dice::path) }),
            root: match self.byte() % 3 {
                0 => Root::Host,
                1 => Root::Programs,
                _ => Root::Image(self.text()),
            },
            rules: self.list(Dice::rule),
            shown: self.list(|dice| Shown { source: dice.path(), target: dice.path() }),
            network: self.network(),
            devices: self.list(|dice| Device { path: dice.path() }),
            caches: Caches {
                names: self.list(Dice::text),
                group: self.maybe(Dice::text),
                required: self.coin(),
                read_only: self.coin(),
            },
            keep_home: self.coin(),
            tmp_exec: self.coin(),
            docker: self.coin(),
            nesting: self.coin(),
            env: EnvPolicy {
                inherit: self.coin(),
                pass: self.list(Dice::text),
                drop: self.list(Dice::text),
                set: BTreeMap::from_iter(self.list(|dice| (dice.text(), OsString::from_vec(dice.bytes())))),
            },
            user: match self.byte() % 2 {
                0 => User::Caller,
                _ => User::Ids { uid: 1 + self.byte() as u32, gid: u32::MAX - 1 },
            },
            limits: self.limits(),
            commands: BTreeMap::from_iter(self.list(|dice| (dice.text(), dice.command()))),
            allow_syscalls: self.list(Dice::text),
            refuse_syscalls: BTreeSet::from_iter(self.list(|dice| dice.pick(&SyscallGroup::ALL))),
            optional: BTreeSet::from_iter(self.list(|dice| dice.pick(Guarantee::ALL))),
            strict: self.coin(),
            trace_denials: self.coin(),
            weakened: Vec::new(),
        }
    }

    pub fn service(&mut self) -> ServiceSettings {
        ServiceSettings {
            records: Records {
                output: self.coin(),
                secrets: self.list(Dice::text),
                keep: self.maybe(Dice::time),
                max_size: self.maybe(Dice::number),
                database: self.maybe(Dice::text),
            },
            skill_verdict: self.pick(&Verdict::ALL),
            warm: self.number(),
            idle: self.maybe(Dice::time),
            life: self.maybe(Dice::time),
        }
    }
}
