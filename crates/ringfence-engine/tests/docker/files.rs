//! Hidden and protected paths of a working directory, in a container.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use ringfence_engine::EngineError;

use crate::support::{Scene, skip};

fn give(path: &std::path::Path) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(1000), Some(1000)).unwrap();
    }
}

#[test]
fn rules_below_the_working_directory_hold() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    let project = scene.project.clone();
    for dir in ["vault", "vault/open", "sub", "sub/deep", "docs"] {
        fs::create_dir(project.join(dir)).unwrap();
        give(&project.join(dir));
    }
    for file in ["secret", "vault/key", "vault/open/note", "sub/deep/fixed", "docs/page", "free"] {
        fs::write(project.join(file), format!("contents of {file}\n")).unwrap();
        give(&project.join(file));
    }
    scene.layer.exclude("secret");
    scene.layer.exclude("vault");
    scene.layer.ro("vault/open");
    scene.layer.ro("sub/deep/fixed");
    scene.layer.ro("docs");
    scene.layer.exclude("not-there");
    let mut live = scene.start().unwrap();

    let mut fails = |script: &str| {
        let ran = live.sh(script);
        assert_ne!(ran.code(), 0, "{script}: {ran:?}");
    };
    // Hidden.
    fails("cat secret");
    fails("cat vault/key");
    fails("ls vault");
    fails("chmod 644 secret");
    fails("rm secret");
    fails("mv vault vault2");
    fails("ln secret other && cat other");
    // Protected, also by way of what is above.
    fails("echo x >sub/deep/fixed");
    fails("rm sub/deep/fixed");
    fails("mv sub sub2");
    fails("mv sub/deep sub/deep2");
    fails("echo x >docs/page");
    fails("touch docs/new");
    fails("echo x >vault/open/note");
    // Cannot appear.
    fails("touch not-there/x");
    fails("rmdir not-there");
    fails("echo x >.ringfence.toml");
    // What is allowed.
    let ran = live.sh(
        "cat vault/open/note sub/deep/fixed docs/page && echo more >>free && touch sub/new sub/deep/new && cat free",
    );
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stdout.contains("contents of vault/open/note") && ran.stdout.contains("more"), "{ran:?}");
    live.finish();
    // No litter.
    let mut names: Vec<String> =
        fs::read_dir(&project).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["docs", "free", "secret", "sub", "vault"]);
    assert_eq!(fs::read_to_string(project.join("vault/key")).unwrap(), "contents of vault/key\n");
    assert_eq!(fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
}

#[test]
fn what_docker_cannot_express_is_refused() {
    if skip() {
        return;
    }
    // A link that must not be replaced.
    let mut scene = Scene::new("shell");
    fs::write(scene.project.join("real"), "").unwrap();
    symlink("real", scene.project.join("link")).unwrap();
    scene.layer.ro("link");
    let refused = scene.start().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("symlink"), "{refused}");
    assert_eq!(scene.containers(), [""; 0]);

    // Root in a container.
    let scene = Scene::new("shell");
    let mut plan = scene.plan();
    plan.uid = 0;
    let (state, keys) = (&scene.state, &scene.keys);
    let about = ringfence_engine::engines::About { session: "s-0", name: None, profile: "shell", state, keys };
    let engine = ringfence_engine::engines::docker::ENGINE;
    let refused = engine.start_guest(&mut plan, &scene.facts, about);
    assert!(matches!(refused, Err(EngineError::Unmet { .. })), "{refused:?}");

    // A working directory that the user of the container cannot write.
    let scene = Scene::new("shell");
    if scene.facts.uid == 0 {
        std::os::unix::fs::chown(&scene.project, Some(0), Some(0)).unwrap();
    } else {
        fs::set_permissions(&scene.project, fs::Permissions::from_mode(0o500)).unwrap();
    }
    let refused = scene.start().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("cannot be written by 1000:1000"), "{refused}");
    fs::set_permissions(&scene.project, fs::Permissions::from_mode(0o700)).unwrap();
}
