//! What a plan becomes, pinned.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use ringfence_policy::facts::{Facts, MountPoint};
use ringfence_policy::plan::{Plan, plan_guest};
use ringfence_policy::policy::{Device, Network};
use ringfence_policy::{Inputs, Layer, resolve};

use super::compile::compile;
use super::daemon::Abilities;
use super::names::Name;
use super::request::{Image, Parts, Places, request};
use crate::engines::EngineError;

fn abilities(api: (usize, usize)) -> Abilities {
    Abilities {
        api,
        server: "test".to_owned(),
        seccomp: true,
        rootless: false,
        userns: false,
        memory: true,
        swap: true,
        cpus: true,
        pids: true,
        root: PathBuf::from("/var/lib/docker"),
        podman: false,
    }
}

/// A host with a project, whose path is replaced in what is pinned.
struct Host {
    _dir: tempfile::TempDir,
    base: PathBuf,
    facts: Facts,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in ["project", "project/vault", "project/vault/open", "project/sub"] {
            fs::create_dir(base.join(name)).unwrap();
        }
        fs::write(base.join("project/secret"), "x").unwrap();
        fs::write(base.join("project/sub/fixed"), "x").unwrap();
        let facts = Facts {
            uid: 1000,
            gid: 1000,
            home: base.clone(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin".into())]),
            program: PathBuf::from("/usr/bin/ringfence"),
            ..Facts::default()
        };
        Host { _dir: dir, base, facts }
    }

    fn plan(&self, profile: &str, flags: impl FnOnce(&mut Layer)) -> Plan {
        let mut layer = Layer::flags();
        layer.profile(profile);
        layer.image("test").unwrap();
        flags(&mut layer);
        let policy = resolve(Inputs::new(self.base.join("project"), self.base.clone(), layer)).unwrap().policy;
        plan_guest(&policy, &self.facts).unwrap()
    }

    fn body(&self, profile: &str, flags: impl FnOnce(&mut Layer)) -> Result<String, EngineError> {
        let plan = self.plan(profile, flags);
        let can = abilities((1, 44));
        let compiled = compile(&plan, &self.facts.mounts, &can)?;
        let files = Places::described(compiled.skeletons.len());
        let image = Image { id: "sha256:1".into(), env: vec![], volumes: vec!["/data".into(), "/tmp".into()] };
        let parts = Parts {
            name: Name::container(profile, "0123456789ab").unwrap(),
            image: &image,
            labels: HashMap::from([("ringfence.owner".to_owned(), "test".to_owned())]),
            files: &files,
            volumes: &super::volumes_of(&plan, "slug")?,
        };
        let mut value = serde_json::to_value(request(&plan, &compiled, &can, parts)?.body(Some("network-id"))).unwrap();
        // Pinned where it is made, and long.
        let options = value["HostConfig"]["SecurityOpt"].as_array_mut().unwrap();
        for option in options {
            if option.as_str().is_some_and(|text| text.starts_with("seccomp={\"defaultAction\":\"SCMP_ACT_ERRNO\"")) {
                *option = "seccomp=OURS".into();
            }
        }
        // What is not asked for is not there.
        prune(&mut value);
        let text = serde_json::to_string_pretty(&value).unwrap();
        Ok(text.replace(self.base.to_str().unwrap(), "/BASE"))
    }
}

fn prune(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(prune);
        }
        serde_json::Value::Array(all) => all.iter_mut().for_each(prune),
        _ => {}
    }
}

/// A container is kept while nothing changes that it is made from, whatever changes besides.
#[test]
fn hashes() {
    let host = Host::new();
    let image = |id: &str| Image { id: id.to_owned(), ..Image::default() };
    let plan = || host.plan("home", |_| {});
    let hash = |plan: &Plan| super::container::hash(plan, &image("1")).unwrap();
    let first = hash(&plan());
    assert!(first.len() == 16 && first == hash(&plan()));
    assert_ne!(super::container::hash(&plan(), &image("2")).unwrap(), first);
    let changed = |change: fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        hash(&plan)
    };
    let others: [fn(&mut Plan); 8] = [
        |plan| plan.mounts.truncate(1),
        |plan| plan.network = Network::None,
        |plan| plan.devices = vec![Device { path: "/dev/kfd".into() }],
        |plan| plan.limits.memory = None,
        |plan| plan.uid = 7,
        |plan| plan.gid = 7,
        |plan| plan.tmp_exec = !plan.tmp_exec,
        |plan| plan.allow_syscalls = vec!["ptrace".into()],
    ];
    for (index, change) in others.into_iter().enumerate() {
        assert_ne!(changed(change), first, "{index}");
    }
    let same: [fn(&mut Plan); 3] =
        [|plan| plan.strict = !plan.strict, |plan| plan.env.clear(), |plan| plan.promises.clear()];
    for (index, change) in same.into_iter().enumerate() {
        assert_eq!(changed(change), first, "{index}");
    }
}

#[test]
fn requests() {
    let host = Host::new();
    for profile in ["shell", "skill", "home", "agent"] {
        let body = host.body(profile, |_| {}).unwrap();
        insta::assert_snapshot!(format!("request_{profile}"), body);
    }
    let rules = host.body("shell", |flags| {
        flags.preset("!@git").unwrap();
        flags.preset("!@dotfiles").unwrap();
        flags.preset("!@lint/all").unwrap();
        flags.exclude("secret");
        flags.exclude("vault");
        flags.ro("vault/open");
        flags.ro("sub/fixed");
        flags.cache("pip").unwrap();
        flags.user("501:20").unwrap();
    });
    insta::assert_snapshot!("request_rules", rules.unwrap());
}

#[test]
fn nothing_forbidden_can_be_asked_for() {
    let host = Host::new();
    for profile in ["shell", "skill", "home", "agent"] {
        let body = host.body(profile, |_| {}).unwrap();
        for word in
            ["docker.sock", "\"host\"", "CapAdd", "Devices", "DeviceRequests", "PidMode", "UTSMode", "UsernsMode"]
        {
            assert!(!body.contains(word), "{profile}: {word}");
        }
        assert!(body.contains("\"Privileged\": false"));
    }
}

#[test]
fn older_daemons_and_mounts_below_what_is_read_only() {
    let mut host = Host::new();
    let below = host.base.join("project/sub/fixed");
    host.facts.mounts.push(MountPoint {
        device: "8:1".into(),
        root: "/".into(),
        at: below,
        read_only: false,
        layers: Vec::new(),
        fs_type: "ext4".into(),
    });
    let mut layer = Layer::flags();
    layer.profile("shell");
    layer.image("test").unwrap();
    layer.ro("sub");
    let policy = resolve(Inputs::new(host.base.join("project"), host.base.clone(), layer)).unwrap().policy;
    let plan = plan_guest(&policy, &host.facts).unwrap();
    assert!(compile(&plan, &host.facts.mounts, &abilities((1, 44))).is_ok());
    let refused = compile(&plan, &host.facts.mounts, &abilities((1, 43)));
    assert!(matches!(refused, Err(EngineError::Unmet { .. })), "{refused:?}");
    assert!(compile(&plan, &[], &abilities((1, 43))).is_ok());
    assert!(Path::new("/").exists());
}

#[test]
fn the_image_speaks_first_and_the_policy_last() {
    let host = Host::new();
    let mut layer = Layer::flags();
    layer.profile("shell");
    layer.image("test").unwrap();
    layer.env("MODE=policy".as_ref()).unwrap();
    let policy = resolve(Inputs::new(host.base.join("project"), host.base.clone(), layer)).unwrap().policy;
    let plan = plan_guest(&policy, &host.facts).unwrap();
    let env = vec!["PATH=/opt/bin:/bin".to_owned(), "MODE=image".to_owned(), "LANG=xx".to_owned(), "OWN=1".to_owned()];
    let all = super::environment(&plan, &Image { env, ..Image::default() }, &[]);
    let value = |name: &str| all.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_str().unwrap());
    assert_eq!(value("PATH"), Some("/dev/ringfence/bin:/opt/bin:/bin"));
    assert_eq!(value("MODE"), Some("policy"));
    assert_eq!(value("OWN"), Some("1"));
    assert_eq!(value("LANG"), Some("C.UTF-8"));
    assert_eq!(value("HOME"), Some("/home/sandbox"));
}
