//! Caches that boxes share, and homes that outlive their containers.

use ringfence_engine::engines::docker::DockerError;
use ringfence_engine::engines::docker::key::Key;
use ringfence_engine::engines::docker::labels::Owner;
use ringfence_engine::engines::docker::{Daemon, volumes};
use ringfence_engine::policy::layer::At;

use crate::support::{Scene, as_docker, docker, skip};

fn group(scene: &mut Scene, name: &str) {
    scene.layer.settings.cache_group = Some(At::new(name.to_owned(), "test"));
}

#[test]
fn caches_are_shared_by_a_group_and_read_only_to_skills() {
    if skip() {
        return;
    }
    let volume = "ringfence-cache-pip-of-rftest-a";
    docker(&["volume", "rm", volume]);
    let mut scene = Scene::new("shell");
    scene.layer.cache("pip").unwrap();
    group(&mut scene, "rftest-a");
    let mut live = scene.start().unwrap();
    let ran = live.sh("echo $PIP_CACHE_DIR && echo wheel >$PIP_CACHE_DIR/wheel");
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "/var/cache/ringfence/pip\n"), "{ran:?}");
    live.finish();
    // The next one finds it.
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("cat $PIP_CACHE_DIR/wheel").stdout, "wheel\n");
    live.finish();
    // A skill can use it, and not change it.
    let mut skill = Scene::new("skill");
    skill.layer.cache("pip").unwrap();
    group(&mut skill, "rftest-a");
    let mut live = skill.start().unwrap();
    assert_eq!(live.sh("cat $PIP_CACHE_DIR/wheel").stdout, "wheel\n");
    assert_ne!(live.sh("echo bad >$PIP_CACHE_DIR/wheel").code(), 0);
    live.finish();
    // Another group has its own.
    let other = "ringfence-cache-pip-of-rftest-b";
    group(&mut scene, "rftest-b");
    let mut live = scene.start().unwrap();
    assert_ne!(live.sh("cat $PIP_CACHE_DIR/wheel").code(), 0);
    live.finish();
    for volume in [volume, other] {
        assert!(docker(&["volume", "rm", volume]).0, "{volume}");
    }
}

#[test]
fn a_cache_that_cannot_be_had() {
    if skip() {
        return;
    }
    let volume = "ringfence-cache-npm-of-rftest-c";
    docker(&["volume", "rm", volume]);
    assert!(docker(&["volume", "create", volume]).0);
    let mut scene = Scene::new("shell");
    scene.layer.cache("npm").unwrap();
    scene.layer.cache("pip").unwrap();
    group(&mut scene, "rftest-c");
    // Somebody else's: the box runs without it, and not on a nameless one.
    let mut live = scene.start().unwrap();
    assert_eq!(live.sh("ls -d /var/cache/ringfence/npm").code(), 1);
    let mounts = docker(&["inspect", "-f", "{{json .Mounts}}", live.id()]).1;
    assert_eq!(mounts.matches("\"Type\":\"volume\"").count(), 1, "{mounts}");
    // It is said by name, with the reason; and no tool is sent there.
    let caches = live.sandbox.as_ref().unwrap().caches();
    assert_eq!(caches.len(), 2);
    assert_eq!((caches[0].name.as_str(), &caches[0].failed), ("pip", &None));
    assert_eq!(caches[1].name, "npm");
    assert!(caches[1].failed.as_ref().unwrap().contains("its labels are not ours"), "{caches:?}");
    assert_eq!(live.sh("echo $npm_config_cache $PIP_CACHE_DIR").stdout, "/var/cache/ringfence/pip\n");
    live.finish();
    assert!(docker(&["volume", "rm", "ringfence-cache-pip-of-rftest-c"]).0);
    // Or it does not run at all.
    scene.layer.settings.caches_required = Some(At::new(true, "test"));
    let refused = scene.start().err().unwrap();
    let Some(DockerError::Cache { cache, source }) = as_docker(&refused) else { panic!("{refused:?}") };
    assert_eq!(cache, "npm");
    assert!(matches!(**source, DockerError::ForeignVolume { .. }), "{source:?}");
    assert_eq!(scene.containers(), [""; 0]);
    assert!(docker(&["volume", "rm", volume]).0);
}

#[test]
fn a_home_outlives_its_container() {
    if skip() {
        return;
    }
    let volume = "ringfence-home-rftest";
    docker(&["volume", "rm", volume]);
    let mut scene = Scene::new("home");
    scene.layer.network(false);
    let mut live = scene.start_named(Some("rftest")).unwrap();
    let ran = live.sh("pwd; echo kept >notes; touch /tmp/gone; id -u; ls -ld ~ | cut -c1-10");
    assert_eq!(ran.stdout, "/home/sandbox\n1000\ndrwxr-xr-x\n", "{ran:?}");
    live.finish();
    let mut live = scene.start_named(Some("rftest")).unwrap();
    assert_eq!(live.sh("cat notes; ls /tmp").stdout, "kept\n");
    live.finish();
    // Of another user, it is neither used nor removed.
    let daemon = Daemon::connect(&scene.facts).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = |uid, keys: &std::path::Path| Key::find_or_make(&Owner::new(uid, &scene.state), keys).unwrap();
    let stranger = key(4711, &scene.keys);
    let refused = runtime.block_on(volumes::remove_home(&daemon, "rftest", &stranger));
    assert!(matches!(refused, Err(DockerError::ForeignVolume { .. })), "{refused:?}");
    // Nor by somebody who only knows how to name the owner.
    let other_key = key(scene.facts.uid, &scene.dir.path().join("other"));
    let refused = runtime.block_on(volumes::remove_home(&daemon, "rftest", &other_key));
    assert!(matches!(refused, Err(DockerError::ForeignVolume { .. })), "{refused:?}");
    let owner = key(scene.facts.uid, &scene.keys);
    runtime.block_on(volumes::remove_home(&daemon, "rftest", &owner)).unwrap();
    // Gone already is what is wanted.
    runtime.block_on(volumes::remove_home(&daemon, "rftest", &owner)).unwrap();
    assert!(!docker(&["volume", "inspect", volume]).0);
}

#[test]
fn a_home_with_labels_that_were_computed_or_copied_is_not_removed() {
    if skip() {
        return;
    }
    let (volume, ours) = ("ringfence-home-rfcopied", "ringfence-home-rforiginal");
    docker(&["volume", "rm", volume, ours]);
    let mut scene = Scene::new("home");
    scene.layer.network(false);
    scene.start_named(Some("rforiginal")).unwrap().finish();
    let label = |name: &str| {
        let format = format!("{{{{index .Labels \"ringfence.{name}\"}}}}");
        format!("ringfence.{name}={}", docker(&["volume", "inspect", "-f", &format, ours]).1)
    };
    let labels = ["owner", "purpose", "session", "version", "proof"].map(label);
    let daemon = Daemon::connect(&scene.facts).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = Key::find(&Owner::new(scene.facts.uid, &scene.state), &scene.keys).unwrap().unwrap();
    // All but the proof, as an older release wrote them; and all of another volume's.
    for labels in [&labels[..4], &labels[..]] {
        let args: Vec<&str> = labels.iter().flat_map(|label| ["--label", label]).collect();
        assert!(docker(&[&["volume", "create"][..], &args, &[volume]].concat()).0);
        let refused = runtime.block_on(volumes::remove_home(&daemon, "rfcopied", &key));
        assert!(matches!(refused, Err(DockerError::ForeignVolume { .. })), "{refused:?}");
        assert!(docker(&["volume", "rm", volume]).0, "it is left as it was");
    }
    runtime.block_on(volumes::remove_home(&daemon, "rforiginal", &key)).unwrap();
    assert!(!docker(&["volume", "inspect", ours]).0);
}

#[test]
fn a_home_of_somebody_else() {
    if skip() {
        return;
    }
    let volume = "ringfence-home-rfforeign";
    docker(&["volume", "rm", volume]);
    let mut scene = Scene::new("home");
    scene.layer.network(false);
    // Without labels; with those of another owner; and with ours, but leading to a directory of the host.
    let owner = |name: &str| format!("ringfence.owner={name}");
    let purpose = "ringfence.purpose=home";
    let (other, ours) = (owner("4711-0"), owner(Owner::new(scene.facts.uid, &scene.state).as_str()));
    let leading = ["--opt", "type=none", "--opt", "o=bind", "--opt", "device=/etc"];
    let with_ours = ["--label", &ours, "--label", purpose];
    for args in [&[][..], &["--label", &other, "--label", purpose], &[&with_ours[..], &leading].concat()] {
        assert!(docker(&[&["volume", "create"][..], args, &[volume]].concat()).0);
        let refused = scene.start_named(Some("rfforeign")).err().unwrap();
        assert!(matches!(as_docker(&refused), Some(DockerError::ForeignVolume { .. })), "{args:?}: {refused:?}");
        assert_eq!(scene.containers(), [""; 0]);
        assert!(docker(&["volume", "rm", volume]).0, "it is left as it was");
    }
}
