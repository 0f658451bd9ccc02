use ringfence_linux::launch::Stage;
use rustix::io::Errno;

use super::super::super::Standing;
use super::*;

fn of(switch: Option<&str>, profile: Option<&str>) -> AppArmor {
    AppArmor { switch: switch.map(str::to_owned), profile: profile.map(str::to_owned) }
}

#[test]
fn what_apparmor_restricts() {
    let table = [
        (None, Some("unconfined"), 1000, false),
        (Some("0"), Some("unconfined"), 1000, false),
        (Some("1"), Some("unconfined"), 1000, true),
        (Some("1"), None, 1000, true),
        (Some("1"), Some(""), 1000, true),
        (Some("1"), Some("unconfined"), 0, false),
        // A profile with `flags=(unconfined)` that has a name, as the one that doctor prints.
        (Some("1"), Some("ringfence (unconfined)"), 1000, false),
        (Some("1"), Some("firefox (enforce)"), 1000, false),
    ];
    for (switch, profile, uid, restricts) in table {
        let (found, facts) = (of(switch, profile), Facts { uid, ..Facts::default() });
        assert_eq!(found.restricts(uid), restricts, "{found:?} {uid}");
        let finding = apparmor(&found, &facts);
        assert_eq!(finding.state, if restricts { Standing::Missing } else { Standing::Ok }, "{found:?} {uid}");
        assert_eq!(finding.cures.is_empty(), !restricts);
    }
}

#[test]
fn the_profile_is_printed_that_lets_this_program_work() {
    let facts = Facts { uid: 1000, program: "/opt/my tools/ringfence".into(), ..Facts::default() };
    let finding = apparmor(&of(Some("1"), Some("unconfined")), &facts);
    assert!(finding.detail.contains("kernel.apparmor_restrict_unprivileged_userns = 1"), "{finding:?}");
    let [Cure::Host(text)] = finding.cures.as_slice() else { panic!("{finding:?}") };
    let profile = "profile ringfence \"/opt/my tools/ringfence\" flags=(unconfined) {";
    for part in ["/etc/apparmor.d/ringfence", "apparmor_parser -r", profile, "userns,"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_step_that_failed_says_what_is_missing() {
    let setup = |step| EngineError::Setup { stage: Stage::Step(3), step: Some(Box::new(step)), errno: Errno::PERM };
    let bind = |ids| {
        setup(Step::Bind {
            source: c"/x".into(),
            target: c"x".into(),
            writable: false,
            is: ringfence_linux::setup::Is::Directory,
            ids,
        })
    };
    let (proc, mapped, plain) =
        (setup(Step::Proc { target: c"proc".into() }), bind(Ids::Callers), bind(Ids::AsTheyAre));
    let root = Facts::default();
    let state = |tried| (id_mapped_mounts(&root, tried).state, procfs(tried).state);
    if !stacked_only() {
        assert_eq!(state(Tried::Ran), (Standing::Ok, Standing::Ok));
        assert_eq!(state(Tried::Failed(Some(&proc))), (Standing::Degraded, Standing::Missing));
        assert_eq!(state(Tried::Failed(Some(&mapped))), (Standing::Missing, Standing::Degraded));
        assert_eq!(state(Tried::Failed(Some(&plain))), (Standing::Degraded, Standing::Degraded));
        assert_eq!(state(Tried::Failed(None)), (Standing::Degraded, Standing::Degraded));
    }
}
