//! Policies as JSON: what is written can be read back, and nothing is guessed.

pub(crate) mod dice;

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::canonical;
use crate::layer::Layer;
use crate::layers::{Inputs, resolve};
use crate::profiles;
use crate::service::ServiceSettings;
use dice::Dice;

/// A built-in profile, for directories that are on no host.
pub(crate) fn of_profile(name: &str) -> Policy {
    let mut layer = Layer::flags();
    layer.profile(name);
    resolve(Inputs::new("/no-home/project".into(), "/no-home".into(), layer)).unwrap().policy
}

proptest! {
    #[test]
    fn any_policy_can_be_read_back(bytes: Vec<u8>, more: [u8; 32]) {
        let policy = Dice::new([&more[..], &bytes].concat()).policy();
        let text = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Policy>(&text).unwrap(), &policy, "{}", text);
        // In any order of keys, and the text is canonical: the same for the same policy.
        let sorted = canonical::text(&policy).unwrap();
        let again: Policy = serde_json::from_str(&sorted).unwrap();
        prop_assert_eq!(&again, &policy, "{}", sorted);
        prop_assert_eq!(canonical::text(&again).unwrap(), sorted);
    }

    #[test]
    fn any_settings_can_be_read_back(bytes: Vec<u8>, more: [u8; 32]) {
        let service = Dice::new([&more[..], &bytes].concat()).service();
        let text = serde_json::to_string(&service).unwrap();
        prop_assert_eq!(serde_json::from_str::<ServiceSettings>(&text).unwrap(), service, "{}", text);
    }
}

/// `RINGFENCE_BLESS=1` writes the files anew.
#[test]
fn built_in_profiles_as_json() {
    for name in profiles::NAMES {
        let policy = of_profile(name);
        let path = format!("{}/src/policy/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let now = lines(&policy);
        if std::env::var_os("RINGFENCE_BLESS").is_some() {
            std::fs::write(&path, &now).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        for (golden, now) in golden.lines().zip(now.lines()) {
            assert_eq!(golden, now, "{path} differs; RINGFENCE_BLESS=1 writes it anew");
        }
        assert_eq!(golden.len(), now.len(), "{path}");
        assert_eq!(serde_json::from_str::<Policy>(&golden).unwrap(), policy, "{path}");
    }
}

/// JSON with a line for each member and each rule.
fn lines(policy: &Policy) -> String {
    let Value::Object(members) = serde_json::to_value(policy).unwrap() else { panic!("a policy is an object") };
    let line = |(key, value): (String, Value)| match value {
        Value::Array(items) if !items.is_empty() => {
            let items: Vec<String> =
                items.iter().map(|item| format!("    {}", canonical::text(item).unwrap())).collect();
            format!("  \"{key}\": [\n{}\n  ]", items.join(",\n"))
        }
        value => format!("  \"{key}\": {}", canonical::text(&value).unwrap()),
    };
    let members: BTreeMap<String, Value> = members.into_iter().collect();
    format!("{{\n{}\n}}\n", members.into_iter().map(line).collect::<Vec<_>>().join(",\n"))
}

/// Every object of a policy, by its place; not those whose keys are names that users choose.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(_) if ["/commands", "/env/set"].contains(&at) => {}
        Value::Object(members) => {
            found.push(at.to_owned());
            members.iter().for_each(|(key, member)| objects(member, &format!("{at}/{key}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| objects(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

#[test]
fn nothing_may_be_left_out_or_added() {
    let mut policy = of_profile("skill");
    policy.shown.push(Shown { source: "/a".into(), target: "/b".into() });
    policy.rules.extend(of_profile("agent").rules.into_iter().take(2));
    let whole = serde_json::to_value(&policy).unwrap();
    let read = |value: &Value| serde_json::from_value::<Policy>(value.clone());
    assert_eq!(read(&whole).unwrap(), policy);
    let mut places = Vec::new();
    objects(&whole, "", &mut places);
    assert!(places.iter().any(|place| place == "/limits") && places.len() > 8, "{places:?}");
    for place in places {
        let members = |value: &Value| value.pointer(&place).unwrap().as_object().unwrap().clone();
        for key in members(&whole).keys() {
            let mut less = whole.clone();
            less.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(key);
            assert!(read(&less).is_err(), "without {place}/{key}");
        }
        let mut more = whole.clone();
        more.pointer_mut(&place).unwrap().as_object_mut().unwrap().insert("other".into(), Value::Null);
        assert!(read(&more).is_err(), "more in {place}");
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    let mut policy = of_profile("shell");
    policy.commands.insert("x".into(), CommandRule::Wrapper("/x".into()));
    let whole = serde_json::to_value(&policy).unwrap();
    let read = |place: &str, value: Value| {
        let mut changed = whole.clone();
        *changed.pointer_mut(place).unwrap() = value;
        serde_json::from_value::<Policy>(changed)
    };
    let table = [
        (
            "/workspace/host-directory",
            "\"/a\"",
            vec!["\"a\"", "\"/a/../b\"", "\"/a/\"", "\"\"", "{\"hex\": \"2f6\"}", "{\"hex\": \"zz\"}"],
        ),
        ("/workspace/host-directory", "{\"hex\": \"2fff\"}", vec!["{}", "null", "{\"hex\": \"2fff\", \"more\": 1}"]),
        ("/user", "\"1:1\"", vec!["\"0:0\"", "\"0:1\"", "\"me\"", "1"]),
        ("/limits/cpus", "0.1", vec!["0", "-1", "\"1\""]),
        ("/limits/memory", "1", vec!["-1", "1.5", "\"1g\""]),
        ("/limits/timeout", "\"0.5s\"", vec!["\"1m\"", "\"-1s\"", "\"s\"", "\"1.s\"", "\"0.0000000001s\"", "1"]),
        ("/network", "\"open\"", vec!["\"Open\"", "\"all\"", "null"]),
        ("/optional", "[\"net.isolated\"]", vec!["[\"net.isolate\"]"]),
        ("/commands/git", "\"block\"", vec!["{\"guard\": \"hg\"}", "{\"wrapper\": \"x\"}", "false"]),
        ("/rules/0/pattern", "{\"exact\": \"/a\"}", vec!["{\"exact\": \"a\"}", "\"/a\"", "{}"]),
        (
            "/rules/0/pattern",
            "{\"glob\": {\"base\": \"/w\", \"pattern\": \"*\"}}",
            vec![
                "{\"glob\": {\"base\": \"w\", \"pattern\": \"*\"}}",
                "{\"glob\": {\"base\": \"/w\", \"pattern\": \"[\"}}",
            ],
        ),
        (
            "/rules/0/missing",
            "{\"protect-text\": \"empty-object\"}",
            vec!["{\"protect-text\": \"{}\"}", "\"protect\"", "{\"protect\": \"socket\"}"],
        ),
    ];
    for (place, good, bad) in table {
        let value = |text: &str| serde_json::from_str(text).unwrap();
        assert!(read(place, value(good)).is_ok(), "{place} {good} {:?}", read(place, value(good)));
        for text in bad {
            assert!(read(place, value(text)).is_err(), "{place} {text}");
        }
    }
}

#[test]
fn networks_are_narrowed() {
    use Network::{Allowlist, Bridge, None, Open};
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let rules = |allow: &[&str], deny: &[&str], ports: [u16; 2]| NetworkRules {
        allow: set(allow),
        deny: set(deny),
        local: ports.into(),
        publish: ports.into(),
        also: BTreeSet::new(),
    };
    let (one, other) = (rules(&["a", "b"], &["x"], [1, 2]), rules(&["b"], &["y"], [2, 3]));
    let both = NetworkRules {
        allow: set(&["a", "b"]),
        also: [set(&["b"])].into(),
        deny: set(&["x", "y"]),
        local: [2].into(),
        publish: [2].into(),
    };
    let table = [
        (None, Open, None),
        (Bridge, None, None),
        (Bridge, Bridge, Bridge),
        (Open, Bridge, Bridge),
        (Open, Open, Open),
        (Open, Allowlist(one.clone()), Allowlist(one.clone())),
        (Allowlist(one.clone()), Bridge, None),
        (None, Allowlist(one.clone()), None),
        (Allowlist(one.clone()), Allowlist(other.clone()), Allowlist(both.clone())),
        (Allowlist(both.clone()), Allowlist(other), Allowlist(both)),
        // Without a pattern nothing is reached, and a list of another policy changes nothing about that.
        (
            Allowlist(NetworkRules::default()),
            Allowlist(one.clone()),
            Allowlist(NetworkRules { also: [set(&["a", "b"])].into(), deny: set(&["x"]), ..NetworkRules::default() }),
        ),
    ];
    for (network, by, expected) in table {
        assert_eq!(network.narrowed_by(&by), expected, "{network:?} {by:?}");
        assert!(network.is_within(&network), "{network:?}");
        if !matches!((&network, &by), (Allowlist(_), Allowlist(_))) {
            assert_eq!(by.narrowed_by(&network), expected, "{by:?} {network:?}");
        }
    }
    assert!(None.is_within(&Bridge) && Bridge.is_within(&Open) && !Open.is_within(&Bridge) && !Bridge.is_within(&None));
}

#[test]
fn a_path_that_is_not_text_survives() {
    use std::os::unix::ffi::OsStrExt;
    let mut policy = of_profile("agent");
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"/\xff [*]"));
    policy.workspace = Workspace::HostDirectory(odd.to_path_buf());
    policy.env.set.insert("X".into(), odd.into());
    let glob = crate::glob::Glob::parse_under(odd, "*.rs").unwrap();
    policy.rules[0].pattern = crate::rules::Pattern::Glob(glob);
    let text = serde_json::to_string(&policy).unwrap();
    assert!(text.contains(r#""workspace":{"host-directory":{"hex":"2fff205b2a5d"}}"#), "{text:.200}");
    assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
}
