//! What is hidden stays hidden, whatever it is called.

use std::os::unix::fs::{PermissionsExt, symlink};

use containment::scene::{SECRET, SECRETS};
use containment::{Place, Refusal};
use ringfence::policy::Guarantee::FsSecretsHidden;
use ringfence::policy::facts::Account;
use ringfence::policy::plan::PlanError;
use ringfence::policy::tree::TreeError;

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

const HIDDEN: &[&str] = &["EACCES"];

const fn hidden(id: &'static str, fails: &'static str) -> Case {
    act(FsSecretsHidden, id, "read {home}/notes", fails, HIDDEN)
}

pub const CASES: &[Case] = &[
    hidden("ssh key", "read {home}/.ssh/id_rsa"),
    hidden("ssh directory", "list {home}/.ssh"),
    hidden("gpg key", "read {home}/.gnupg/private-keys-v1.d/key"),
    hidden("aws", "read {home}/.aws/credentials"),
    hidden("gcloud", "read {home}/.config/gcloud/credentials.db"),
    hidden("kube", "read {home}/.kube/config"),
    hidden("docker", "read {home}/.docker/config.json"),
    hidden("netrc", "read {home}/.netrc"),
    hidden("npm token", "read {home}/.npmrc"),
    hidden("pypi token", "read {home}/.pypirc"),
    hidden("firefox", "read {home}/.mozilla/firefox/profile/logins.json"),
    hidden("chrome", "read {home}/.config/google-chrome/Default/Cookies"),
    hidden("by symlink in the project", "read {project}/link-to-secret"),
    hidden("by new symlink", "symlink {home}/.netrc {project}/l + read {project}/l").at(Place::Apart).untidy(),
    hidden("by symlink to a symlink", "read {project}/second").given(|s| {
        symlink("link-to-secret", s.project.join("second")).unwrap();
    }),
    hidden("by /proc/self/root", "read /proc/self/root{home}/.netrc"),
    hidden("by the root of process 1", "read /proc/1/root{home}/.netrc").outside(Outside::Untried),
    hidden("by the directory of process 1", "read /proc/1/cwd/../.netrc").outside(Outside::Untried),
    hidden("by dot dot", "read {project}/../../home/.netrc"),
    hidden("project is home itself", "read {home}/.ssh/id_rsa").given(|s| s.project = s.home.clone()),
    hidden("project beside", "read {home}/.ssh/id_rsa").at(Place::Apart),
    hidden("project in /tmp", "read {home}/.netrc").at(Place::Temp),
    act(FsSecretsHidden, "by handle", "read {home}/notes", "handle {home}/.netrc", &["EPERM", "EOPNOTSUPP"])
        .outside(Outside::WorksForRoot),
    // A stand-in takes no new contents and cannot be moved out of the way.
    act(
        FsSecretsHidden,
        "make it readable",
        "read {home}/notes",
        "chmod {home}/.netrc 644",
        &["EROFS", "EPERM", "EACCES"],
    ),
    act(
        FsSecretsHidden,
        "move it away",
        "read {home}/notes",
        "rename {home}/.ssh {home}/x",
        &["EBUSY", "EROFS", "EACCES"],
    ),
    act(FsSecretsHidden, "unmount it", "read {home}/notes", "unmount {home}/.ssh", &["EPERM"])
        .outside(Outside::Untried),
    act(
        FsSecretsHidden,
        "copy of the whole home",
        "read {home}/notes",
        "find {home} hunter2-the-secret",
        &["ok nothing"],
    ),
    act(
        FsSecretsHidden,
        "anywhere in the scene",
        "read {home}/notes",
        "find {home}/.. hunter2-the-secret",
        &["ok nothing"],
    ),
    // What a link in a hidden directory leads to.
    hidden("behind a link of a hidden directory", "read {home}/dotfiles/awscred").given(|s| {
        s.file(&s.home.join("dotfiles/awscred"), SECRET, 0o600);
        symlink("../dotfiles/awscred", s.home.join(".aws/linked")).unwrap();
    }),
    // Another mount of the same files.
    hidden("by an alias of home", "read {elsewhere}/alias/.netrc")
        .needs(Needs::Root)
        .or_reported()
        .alone()
        .given(|s| s.alias(&s.home.clone(), &s.elsewhere.join("alias"))),
    hidden("by an alias of the secret", "read {elsewhere}/alias/id_rsa")
        .needs(Needs::Root)
        .or_reported()
        .alone()
        .given(|s| s.alias(&s.home.join(".ssh"), &s.elsewhere.join("alias"))),
    hidden("by an alias in the project", "read {project}/alias/.netrc")
        .at(Place::Apart)
        .needs(Needs::Root)
        .alone()
        .given(|s| s.alias(&s.home.clone(), &s.project.join("alias"))),
    hidden("by an alias below the secret", "read {elsewhere}/alias/logins.json")
        .needs(Needs::Root)
        .or_reported()
        .alone()
        .given(|s| s.alias(&s.home.join(".mozilla/firefox/profile"), &s.elsewhere.join("alias"))),
    hidden("by an overlay of home", "read {elsewhere}/over/.netrc")
        .needs(Needs::RootOverlay)
        .or_reported()
        .alone()
        .given(|s| s.overlay(&s.home.clone(), &s.elsewhere.join("over"))),
    // Elsewhere root gets no sandbox: an overlay in home has no id-mapped mounts.
    hidden("in the directory that a part of home is an overlay of", "read {elsewhere}/lower/gcloud/credentials.db")
        .only(ringfence::engines::docker::ENGINE)
        .needs(Needs::RootOverlay)
        .or_reported()
        .alone()
        .given(|s| {
            s.file(&s.elsewhere.join("lower/gcloud/credentials.db"), SECRET, 0o644);
            s.overlay(&s.elsewhere.join("lower"), &s.home.join(".config"));
        }),
    // Rules of one's own, and what would expose it again.
    hidden("a rule", "read {project}/dir/inner").given(|s| s.policy.exclude("dir")),
    hidden("a glob", "read {project}/dir/a.key").given(|s| {
        s.file(&s.project.join("dir/a.key"), SECRET, 0o644);
        s.policy.exclude("**/*.key");
    }),
    hidden("a read rule above", "read {home}/.ssh/id_rsa").given(|s| s.policy.ro("~")),
    hidden("a write rule above", "read {home}/.ssh/id_rsa").given(|s| s.policy.rw("~")).outside(Outside::Works),
    act(
        FsSecretsHidden,
        "environment files",
        "read {project}/file + read {project}/.envrc",
        "read {project}/.env",
        HIDDEN,
    )
    .given(env_files),
    act(FsSecretsHidden, "other environment files", "read {project}/file", "read {project}/.env.local", HIDDEN)
        .given(env_files),
    act(FsSecretsHidden, "environment files deeper", "read {project}/dir/inner", "read {project}/dir/.env", HIDDEN)
        .given(env_files),
    act(
        FsSecretsHidden,
        "planted environment file",
        "create {project}/x",
        "create {project}/.env",
        &["EEXIST", "EACCES", "EROFS"],
    )
    .given(|s| s.policy.preset("@env-files").unwrap()),
];

fn env_files(s: &mut containment::Scene) {
    for name in [".env", ".env.local", "dir/.env"] {
        s.file(&s.project.join(name), SECRET, 0o644);
    }
    s.file(&s.project.join(".envrc"), "plain", 0o644);
    s.policy.preset("@env-files").unwrap();
}

pub const STORIES: &[Story] = &[
    story(FsSecretsHidden, "every secret, every way", every_secret),
    story(FsSecretsHidden, "hard link to a hidden file is refused", hard_link),
    story(FsSecretsHidden, "hard link to a file in a hidden directory is refused", hard_link_below),
    story(FsSecretsHidden, "a directory that an earlier box closed", closed_directory),
    story(FsSecretsHidden, "environment files are open by default", env_files_by_default),
    story(FsSecretsHidden, "a working directory in a hidden place is refused", workdir_hidden),
    story(FsSecretsHidden, "other profiles see nothing of the user's", other_profiles),
    story(FsSecretsHidden, "open descriptors of others", descriptors_of_others),
    story(FsSecretsHidden, "one rule opens one secret", one_rule_opens_one),
    story(FsSecretsHidden, "root in another user's home", root_in_anothers_home),
];

fn every_secret(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    for (path, _) in SECRETS {
        let acts = format!(
            "read {{home}}/{path} + list {{home}}/{path} + reopen {{home}}/{path} + write {{home}}/{path} + exec {{home}}/{path}"
        );
        let lines = stage.answers(&scene, &acts)?;
        ensure(lines.iter().all(|l| !l.starts_with("ok")), || format!("{path}: {lines:?}"))?;
        ensure(!lines.iter().any(|l| l.contains(SECRET)), || format!("{path}: {lines:?}"))?;
    }
    Ok(())
}

fn hard_link(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    std::fs::hard_link(scene.home.join(".netrc"), scene.project.join("innocent")).map_err(|e| e.to_string())?;
    match stage.sandbox(&scene).probe("read {project}/innocent") {
        Err(Refusal::Plan(PlanError::Tree(TreeError::HardLinked { links: 2, .. }))) => Ok(()),
        other => Err(format!("a box with a second name of a hidden file: {other:?}")),
    }
}

fn hard_link_below(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    std::fs::hard_link(scene.home.join(".ssh/id_rsa"), scene.project.join("innocent")).map_err(|e| e.to_string())?;
    match stage.sandbox(&scene).probe("read {project}/innocent") {
        Err(Refusal::Plan(PlanError::Tree(TreeError::HardLinked { .. }))) => Ok(()),
        Ok(ran) if !ran.stdout.starts_with("ok") => Ok(()),
        other => Err(format!("a box with a second name of a hidden file: {:?}", other.map(|r| r.stdout))),
    }
}

/// A box closes a directory of its own, so that the next plan cannot look into it, and the next box opens it again.
fn closed_directory(stage: &Stage) -> Result<(), String> {
    let rules: [fn(&mut containment::Scene); 2] =
        [|s| s.policy.preset("@env-files").unwrap(), |s| s.policy.exclude("dir/.env")];
    for mode in ["0", "111", "444", "666"] {
        for hide in rules {
            let mut scene = stage.scene(Place::Home);
            scene.file(&scene.project.join("dir/.env"), SECRET, 0o644);
            hide(&mut scene);
            stage.hand_over(&scene);
            let first = stage.answers(&scene, &format!("read {{project}}/dir/inner + chmod {{project}}/dir {mode}"))?;
            same("what the first may do", first, ["ok plain", "ok"])?;
            let then = stage.answers(&scene, "read {project}/file + chmod {project}/dir 755 + read {project}/dir/.env");
            let opened = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(scene.project.join("dir"), opened).map_err(|e| e.to_string())?;
            let then = then?;
            ensure(then[0] == "ok plain" && !then[2].starts_with("ok"), || format!("{mode}: {then:?}"))?;
        }
    }
    Ok(())
}

fn env_files_by_default(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    scene.file(&scene.project.join(".env"), "A=1", 0o644);
    same("answers", stage.answers(&scene, "read {project}/.env")?, ["ok A=1"])
}

fn workdir_hidden(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.project = scene.home.join(".ssh");
    match stage.sandbox(&scene).probe("read id_rsa") {
        Err(Refusal::Policy(_) | Refusal::Plan(_)) => Ok(()),
        other => Err(format!("a box in a hidden directory: {other:?}")),
    }
}

fn other_profiles(stage: &Stage) -> Result<(), String> {
    for profile in ["shell", "skill"] {
        let mut scene = stage.scene(Place::Apart);
        scene.policy.profile(profile);
        let script = format!(
            "cat {}/notes {}/.ssh/id_rsa; ls /home /root /var/lib 2>&1",
            scene.home.display(),
            scene.home.display()
        );
        let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
        ensure(!ran.stdout.contains(SECRET) && !ran.stdout.contains("plain"), || format!("{profile}: {}", ran.stdout))?;
    }
    Ok(())
}

/// A process of the host that has the secret open does not lend it to the box.
fn descriptors_of_others(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    let file = std::fs::File::open(scene.home.join(".netrc")).map_err(|e| e.to_string())?;
    let own = std::process::id();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    scene.word("held", format!("/proc/{own}/fd/{fd}"));
    let lines = stage.outside(&scene, "read {held}")?;
    same("outside", lines, [format!("ok {SECRET}")])?;
    same("inside", stage.answers(&scene, "read {held}")?, ["ENOENT"])
}

fn one_rule_opens_one(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.ro("~/.netrc");
    let lines = stage.answers(&scene, "read {home}/.netrc + read {home}/.ssh/id_rsa + write {home}/.netrc")?;
    same("answers", lines, [format!("ok {SECRET}"), "EACCES".into(), "EROFS".into()])
}

/// Root works in somebody else's home, and then in a project of theirs: their secrets are hidden, and what runs at their next
/// login is protected, as in a box of their own.
fn root_in_anothers_home(stage: &Stage) -> Result<(), String> {
    if !containment::host::is_root() {
        return Ok(());
    }
    const THEIRS: u32 = 4242;
    let mut scene = stage.scene(Place::Apart);
    let theirs = scene.elsewhere.join("theirs");
    for name in [".ssh/id_rsa", ".npmrc"] {
        scene.file(&theirs.join(name), SECRET, 0o644);
    }
    for name in [".bashrc", "notes", "work/file"] {
        scene.file(&theirs.join(name), "plain", 0o644);
    }
    let all = ["", ".ssh", ".ssh/id_rsa", ".npmrc", ".bashrc", "notes", "work", "work/file"];
    for name in all {
        std::os::unix::fs::chown(theirs.join(name), Some(THEIRS), Some(THEIRS)).map_err(|e| e.to_string())?;
    }
    scene.accounts = vec![Account { uid: THEIRS, home: theirs.clone() }];
    scene.word("theirs", theirs.display());
    let acts = "read {theirs}/.ssh/id_rsa + read {theirs}/.npmrc + write {theirs}/.bashrc";
    same("outside", stage.outside(&scene, acts)?.len(), 3)?;
    for (project, own) in [(theirs.clone(), "{theirs}/notes"), (theirs.join("work"), "{theirs}/work/file")] {
        scene.project = project;
        let lines = stage.answers(&scene, &format!("write {own} + {acts}"))?;
        ensure(lines[0].starts_with("ok"), || format!("their own file: {lines:?}"))?;
        ensure(lines[1..].iter().all(|line| !line.starts_with("ok")), || format!("{lines:?}"))?;
    }
    Ok(())
}
