//! Images: made from a tape, the same every time, and what a box is of them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_engine::engines::docker::recipe;

use crate::dockerd::IMAGE;
use crate::support::{Scene, docker, skip};

/// An image built from the one of the tests, which goes with the test.
struct Built(String);

impl Built {
    fn new(name: &str, recipe: &str) -> Built {
        let _scene = Scene::new("shell");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Dockerfile"), format!("FROM {IMAGE}\n{recipe}")).unwrap();
        let name = format!("ringfence-test/{name}-{}", std::process::id());
        let (built, text) = docker(&["build", "-q", "--network=none", "-t", &name, dir.path().to_str().unwrap()]);
        assert!(built, "{text}");
        Built(name)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        docker(&["image", "rm", "-f", &self.0]);
    }
}

/// A registry on this host, of its own makers.
struct Registry {
    dir: tempfile::TempDir,
    child: std::process::Child,
    port: u16,
}

impl Registry {
    fn start() -> Option<Registry> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n",
            dir.path().join("data").display()
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(dir.path().join("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            let required = std::env::var_os("RINGFENCE_REQUIRE_ALL").is_some();
            assert!(!required, "docker-registry is required, and is not installed");
            eprintln!("SKIP images of a registry: docker-registry is not installed");
            return None;
        };
        let registry = Registry { dir, child, port };
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the registry in {} does not listen", registry.dir.path().display());
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(registry)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_image_of_a_registry_is_pulled_and_pinned_by_its_digest() {
    if skip() {
        return;
    }
    let Some(registry) = Registry::start() else { return };
    let scene = Scene::new("shell");
    let name = format!("127.0.0.1:{}/ringfence-test/pulled", registry.port);
    // A layer of its own: what is here already is not fetched.
    let built = Built::new("pulled", &format!("LABEL port={}\nCOPY Dockerfile /origin\n", registry.port));
    assert!(docker(&["tag", &built.0, &name]).0);
    let (pushed, text) = docker(&["push", "-q", &name]);
    assert!(pushed, "{text}");
    let pinned = docker(&["image", "inspect", "-f", "{{index .RepoDigests 0}}", &name]).1;
    assert!(pinned.starts_with(&format!("{name}@sha256:")), "{pinned}");
    docker(&["image", "rm", "-f", &name, &pinned, &built.0]);
    drop(built);

    let said = std::sync::Mutex::new(Vec::new());
    let progress = |progress| said.lock().unwrap().push(progress);
    let found = ringfence_engine::engines::docker::find_image(&scene.facts, &pinned, &progress).unwrap();
    let said = said.into_inner().unwrap();
    assert!(said.iter().any(|p| p.layer.is_some() && p.bytes.is_some()), "{said:?}");
    // It is here now, and nobody is asked again.
    drop(registry);
    let again = ringfence_engine::engines::docker::find_image(&scene.facts, &pinned, &|p| panic!("{p:?}")).unwrap();
    assert_eq!(found, again);
    let mut scene = scene;
    scene.layer.image(&pinned).unwrap();
    let mut live = scene.start().unwrap();
    assert!(live.sh("cat /origin").stdout.contains("COPY"));
    live.finish();
    // Another digest is another image, whatever its name.
    let other = format!("{name}@sha256:{}", "0".repeat(64));
    let refused = ringfence_engine::engines::docker::find_image(&scene.facts, &other, &|_| {}).unwrap_err();
    let refused = crate::support::docker_error(refused);
    assert!(matches!(refused, ringfence_engine::engines::docker::DockerError::NoImage { .. }), "{refused:?}");
    docker(&["image", "rm", "-f", &pinned]);
}

#[test]
fn a_hostile_image() {
    if skip() {
        return;
    }
    // What it starts, whom as, where things lead to, and what it says about itself.
    let image = Built::new(
        "hostile",
        "RUN [\"/bin/sh\", \"-c\", \"cp /bin/busybox /bin/busybox-suid; chmod 6755 /bin/busybox-suid; mkdir -p /srv/w /srv/t /srv/h /home; \
           ln -s /srv/w /workspace; rm -rf /tmp; ln -s /srv/t /tmp; ln -s /srv/h /home/sandbox; \
           mkdir -p /dev/ringfence; echo x >/dev/ringfence/guest\"]\n\
         ENV LD_PRELOAD=/evil.so PATH=/evil:/bin RINGFENCE_PROFILE=agent HOME=/evil\n\
         LABEL ringfence.owner=evil ringfence.session=evil ringfence.purpose=cache\n\
         VOLUME [\"/data\", \"/dev/ringfence\", \"/workspace\"]\n\
         HEALTHCHECK --interval=1s CMD touch /workspace/checked\n\
         STOPSIGNAL SIGWINCH\n\
         WORKDIR /nowhere\n\
         USER 0:0\n\
         ENTRYPOINT [\"/bin/sh\", \"-c\", \"touch /workspace/entered; sleep 1000\"]\n",
    );
    let mut scene = Scene::new("shell");
    scene.layer.image(&image.0).unwrap();
    std::fs::write(scene.project.join("hello"), "hello\n").unwrap();
    let mut live = scene.start().unwrap();
    assert_eq!(scene.containers(), [live.id().to_owned()], "its labels are ours");
    // Ours is process 1, and nobody is root by the image's programs.
    let ran = live.sh("cat hello; id -u; busybox-suid id -u; busybox-suid id -g; echo $RINGFENCE_PROFILE $HOME; cat /proc/1/cmdline | tr '\\0' ' '");
    let expected = "hello\n1000\n1000\n1000\nshell /home/sandbox\n/dev/ringfence/guest /dev/ringfence/channel ";
    assert_eq!(ran.stdout, expected, "{ran:?}");
    // Its root is read-only, its volumes are bounded space, its links lead to what stands for them.
    for script in ["touch /bin/x", "touch /x", "echo >/dev/ringfence/guest", "chmod 777 /bin/busybox-suid"] {
        assert_ne!(live.sh(script).code(), 0, "{script}");
    }
    let ran = live.sh("touch /data/a /tmp/a /workspace/a ~/a && stat -f -c %T /data /tmp && ls /workspace/a");
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "tmpfs\ntmpfs\n/workspace/a\n"), "{ran:?}");
    let mounts = docker(&["inspect", "-f", "{{range .Mounts}}{{.Type}} {{end}}", live.id()]).1;
    assert!(!mounts.contains("volume"), "{mounts}");
    // Nothing of its own runs beside the guest.
    std::thread::sleep(Duration::from_millis(1500));
    live.finish();
    assert_eq!(scene.containers(), [""; 0]);
    let names: Vec<_> = std::fs::read_dir(&scene.project).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn an_image_that_asks_for_space_elsewhere() {
    if skip() {
        return;
    }
    // In the project the daemon would make the place, as root; above ours it would hide what is there.
    for at in ["/workspace/planted", "/workspace/.git/hooks", "/dev/ringfence/bin"] {
        let image = Built::new("volume", &format!("VOLUME {at}\n"));
        let mut scene = Scene::new("shell");
        scene.layer.image(&image.0).unwrap();
        let refused = scene.start().err().unwrap();
        assert!(matches!(refused, ringfence_engine::EngineError::Unmet { .. }), "{at}: {refused:?}");
        assert_eq!(scene.containers(), [""; 0]);
        assert_eq!(std::fs::read_dir(&scene.project).unwrap().count(), 0, "{at}");
        assert_eq!(std::fs::read_dir(scene.state.join("docker/boxes")).unwrap().count(), 0);
    }
    // What only the daemon can refuse is refused, or harmless; nothing is left of it.
    for at in ["/", "/proc", "/dev", "/sys", "/dev/../workspace/x", "relative"] {
        let image = Built::new("volume", &format!("VOLUME [\"{at}\"]\n"));
        let mut scene = Scene::new("shell");
        scene.layer.image(&image.0).unwrap();
        match scene.start() {
            Err(error) => println!("{at}: {error}"),
            Ok(mut live) => {
                assert_ne!(live.sh("touch /bin/x").code(), 0, "{at}");
                assert_eq!(live.sh("touch /workspace/fine && id -u").stdout, "1000\n", "{at}");
                live.finish();
                std::fs::remove_file(scene.project.join("fine")).unwrap();
            }
        }
        assert_eq!(scene.containers(), [""; 0], "{at}");
        assert_eq!(std::fs::read_dir(&scene.project).unwrap().count(), 0, "{at}");
    }
}

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
