//! Images: made from a tape, the same every time, and what a box is of them.

use std::process::Command;

use ringfence::engines::docker::recipe;

use crate::support::{Scene, docker, skip};

#[test]
fn an_image_of_a_tape_is_the_same_every_time() {
    if skip() {
        return;
    }
    let mut scene = Scene::new("shell");
    let root = scene.dir.path().join("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("busybox-static");
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    let tape = scene.dir.path().join("root.tar");
    let packed = Command::new("tar").arg("-cf").arg(&tape).arg("-C").arg(&root).arg(".").status().unwrap();
    assert!(packed.success());
    let name = format!("ringfence-test/tape-{}", std::process::id());
    let again = format!("{name}:again");
    let id = recipe::load(&scene.facts, &tape, &name).unwrap();
    assert!(id.starts_with("sha256:"));
    assert_eq!(recipe::load(&scene.facts, &tape, &again).unwrap(), id, "the id says what is in it, and not when");
    let (_, shown) = docker(&["image", "inspect", "-f", "{{.Config.User}} {{.Config.WorkingDir}} {{.Created}}", &name]);
    assert_eq!(shown, "1000:1000 /home/sandbox 2025-05-20T00:00:00Z");
    // Pinned by its id, as the policy may say.
    scene.layer.image(&format!("{name}@{id}")).unwrap();
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("echo $LANG; busybox id -u").stdout, "C.UTF-8\n1000\n");
    live.finish();
    docker(&["image", "rm", &name, &again]);
}
