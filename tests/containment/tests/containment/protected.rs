//! Protected paths in a writable project: cannot be changed, replaced, planted or moved away; and leave no litter.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

use containment::{Launcher, Place, Scene, host};
use ringfence::policy::Guarantee::FsProtectedPaths;
use ringfence::policy::layer::CommandSetting;

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

const REFUSED: &[&str] = &["EROFS", "EACCES"];
const PINNED: &[&str] = &["EBUSY", "EROFS", "EACCES", "EXDEV"];
const TAKEN: &[&str] = &["EEXIST", "EROFS", "EACCES"];

const fn git(id: &'static str, works: &'static str, fails: &'static str, answers: &'static [&'static str]) -> Case {
    act(FsProtectedPaths, id, works, fails, answers).given(|s| {
        s.repository();
    })
}

const fn plain(id: &'static str, fails: &'static str) -> Case {
    act(FsProtectedPaths, id, "create {project}/x + create {project}/dir/x", fails, TAKEN)
}

const COMMIT: &str = "create {project}/.git/index.lock + create {project}/.git/objects/x + write {project}/.git/HEAD + \
                      create {project}/.git/refs/heads/x + create {project}/.git/info/x";

pub const CASES: &[Case] = &[
    git("hook", COMMIT, "write {project}/.git/hooks/pre-commit", REFUSED),
    git("new hook", COMMIT, "create {project}/.git/hooks/post-checkout", REFUSED),
    git("mode of a hook", COMMIT, "chmod {project}/.git/hooks/pre-commit 777", REFUSED),
    git("remove a hook", COMMIT, "unlink {project}/.git/hooks/pre-commit", REFUSED),
    git("config", COMMIT, "write {project}/.git/config", REFUSED),
    git("replace config", COMMIT, "rename {project}/file {project}/.git/config", PINNED),
    git("remove config", COMMIT, "unlink {project}/.git/config", PINNED),
    git("link config away", COMMIT, "link {project}/.git/config {project}/c", PINNED),
    git("move hooks", COMMIT, "rename {project}/.git/hooks {project}/.git/h", PINNED),
    git("move hooks out", COMMIT, "rename {project}/.git/hooks {project}/h", PINNED),
    git("move .git", COMMIT, "rename {project}/.git {project}/x", PINNED),
    git("move .git into a directory", COMMIT, "rename {project}/.git {project}/dir/x", PINNED),
    git("exchange .git", COMMIT, "exchange {project}/.git {project}/dir", PINNED),
    git("exchange hooks", COMMIT, "exchange {project}/.git/hooks {project}/.git/refs", PINNED),
    git("move info", COMMIT, "rename {project}/.git/info {project}/.git/i", PINNED),
    git("move objects", COMMIT, "rename {project}/.git/objects {project}/.git/o", PINNED),
    git("symlink in place of hooks", COMMIT, "symlink {project}/dir {project}/.git/hooks", TAKEN)
        .outside(Outside::Untried),
    git("plant commondir", COMMIT, "create {project}/.git/commondir", TAKEN),
    git("write commondir", COMMIT, "write {project}/.git/commondir", REFUSED).outside(Outside::Untried),
    git("move commondir", COMMIT, "rename {project}/file {project}/.git/commondir", PINNED),
    git("plant attributes", COMMIT, "create {project}/.git/info/attributes", TAKEN),
    git("write attributes", COMMIT, "write {project}/.git/info/attributes", REFUSED).outside(Outside::Untried),
    git("plant alternates", COMMIT, "create {project}/.git/objects/info/alternates", TAKEN),
    git("write alternates", COMMIT, "write {project}/.git/objects/info/alternates", REFUSED).outside(Outside::Untried),
    git("plant worktree configuration", COMMIT, "create {project}/.git/config.worktree", TAKEN),
    git("in /tmp", COMMIT, "write {project}/.git/hooks/pre-commit", REFUSED).at(Place::Temp),
    git("apart", COMMIT, "rename {project}/.git {project}/x", PINNED).at(Place::Apart),
    git("a write rule above", COMMIT, "write {project}/.git/hooks/pre-commit", REFUSED).given(|s| {
        s.repository();
        s.policy.rw("~");
    }),
    act(FsProtectedPaths, "missing hooks", COMMIT, "mkdir {project}/.git/hooks", TAKEN).given(|s| {
        let git = s.repository();
        fs::remove_dir_all(git.join("hooks")).unwrap();
    }),
    act(FsProtectedPaths, "missing hooks, file in it", COMMIT, "create {project}/.git/hooks/pre-commit", REFUSED)
        .outside(Outside::Untried)
        .given(|s| {
            let git = s.repository();
            fs::remove_dir_all(git.join("hooks")).unwrap();
        }),
    act(FsProtectedPaths, "missing info", COMMIT_WITHOUT_INFO, "mkdir {project}/.git/info", TAKEN).given(|s| {
        let git = s.repository();
        fs::remove_dir_all(git.join("info")).unwrap();
    }),
    act(FsProtectedPaths, "symlinked hooks: the link", COMMIT, "unlink {project}/.git/hooks", PINNED)
        .given(linked_hooks)
        .or_reported(),
    act(FsProtectedPaths, "symlinked hooks: the hook", COMMIT, "write {project}/.git/hooks/pre-commit", REFUSED)
        .given(linked_hooks)
        .or_reported(),
    act(FsProtectedPaths, "symlinked hooks: what they lead to", COMMIT, "write {project}/my-hooks/pre-commit", REFUSED)
        .given(linked_hooks)
        .or_reported(),
    act(FsProtectedPaths, "symlinked hooks: move it away", COMMIT, "rename {project}/my-hooks {project}/x", PINNED)
        .given(linked_hooks)
        .or_reported(),
    act(FsProtectedPaths, "core.hooksPath", COMMIT, "write {project}/tools/hooks/pre-commit", REFUSED)
        .given(hooks_path),
    act(FsProtectedPaths, "core.hooksPath: move it away", COMMIT, "rename {project}/tools {project}/x", PINNED)
        .given(hooks_path),
    // `.git` as a file that points at a repository: the pointer, and what it names.
    act(FsProtectedPaths, "worktree pointer", WORKTREE, "write {project}/.git", REFUSED).given(worktree),
    act(FsProtectedPaths, "replace worktree pointer", WORKTREE, "rename {project}/file {project}/.git", PINNED)
        .given(worktree),
    act(FsProtectedPaths, "hooks of the main repository", WORKTREE, "write {home}/main/.git/hooks/pre-commit", REFUSED)
        .given(worktree),
    act(FsProtectedPaths, "files of the main worktree", WORKTREE, "create {home}/main/x", REFUSED).given(worktree),
    act(FsProtectedPaths, "planted pointer", "create {project}/x", "write {elsewhere}/repo/HEAD", REFUSED).given(|s| {
        let repo = s.elsewhere.join("repo");
        s.repository_at(&repo);
        s.file(&s.project.join(".git"), &format!("gitdir: {}\n", repo.display()), 0o644);
    }),
    act(FsProtectedPaths, "planted repository around the project", "create {project}/x", "create {home}/x", REFUSED)
        .given(|s| planted(s, &s.home)),
    act(FsProtectedPaths, "planted repository beside", "create {project}/x", "write {elsewhere}/tools/HEAD", REFUSED)
        .given(|s| planted(s, &s.elsewhere.join("tools"))),
    act(FsProtectedPaths, "planted worktree of home", "create {project}/x", "create {home}/x", REFUSED).given(|s| {
        s.repository_at(&s.home);
        let own = s.home.join("worktrees/project");
        s.file(&own.join("commondir"), "../..\n", 0o644);
        s.file(&own.join("gitdir"), &format!("{}/.git\n", s.project.display()), 0o644);
        s.file(&s.project.join(".git"), &format!("gitdir: {}\n", own.display()), 0o644);
    }),
    // What git takes for the repository when `.git` is broken, and what it begins to read later.
    git("make the project a bare repository", COMMIT, "mkdir {project}/refs", TAKEN),
    git("make the project a part of a repository", COMMIT, "create {project}/commondir", TAKEN),
    git("plant a submodule's directory", COMMIT, "mkdir {project}/.git/modules", TAKEN),
    git("plant the directory of one that is not there", COMMIT, "mkdir {project}/.git/modules/lib", TAKEN).given(|s| {
        let git = s.repository();
        s.repository_at(&git.join("modules/other"));
        s.file(&s.project.join(".gitmodules"), "[submodule \"lib\"]\n\tpath = lib\n", 0o644);
    }),
    act(FsProtectedPaths, "core.fsmonitor", COMMIT, "write {project}/tools/monitor", REFUSED).given(|s| {
        let git = s.repository();
        s.file(&git.join("config"), "[core]\n\tbare = false\n\tfsmonitor = tools/monitor\n", 0o644);
        s.file(&s.project.join("tools/monitor"), "#!/bin/sh\n", 0o755);
    }),
    act(FsProtectedPaths, "chain of links: the hook", COMMIT, "write {project}/scripts/pc", REFUSED)
        .given(linked_chain)
        .or_reported(),
    act(FsProtectedPaths, "chain of links: a link", COMMIT, "unlink {project}/two", PINNED)
        .given(linked_chain)
        .or_reported(),
    act(FsProtectedPaths, "chain of links: a directory", COMMIT, "rename {project}/one {project}/x", PINNED)
        .given(linked_chain)
        .or_reported(),
    act(FsProtectedPaths, "pointer of a worktree in it", COMMIT, "write {project}/tree/.git", REFUSED).given(|s| {
        let git = s.repository();
        let own = git.join("worktrees/tree");
        s.file(&own.join("HEAD"), "ref: refs/heads/other\n", 0o644);
        s.file(&own.join("commondir"), "../..\n", 0o644);
        s.file(&own.join("gitdir"), &format!("{}/tree/.git\n", s.project.display()), 0o644);
        s.file(&s.project.join("tree/.git"), &format!("gitdir: {}\n", own.display()), 0o644);
    }),
    act(FsProtectedPaths, "configuration with a byte order mark", COMMIT, "write {project}/gh/pre-commit", REFUSED)
        .given(|s| {
            configuration(s, "\u{feff}[core]\n\tbare = false\n\thooksPath = gh\n");
        }),
    act(FsProtectedPaths, "comment that ends in a backslash", COMMIT, "write {project}/gh/pre-commit", REFUSED).given(
        |s| {
            configuration(s, "[core]\n\tbare = false\n# note \\\n\thooksPath = gh\n");
        },
    ),
    act(FsProtectedPaths, "name with a NUL byte", COMMIT, "write {project}/gh/pre-commit", REFUSED).given(|s| {
        configuration(s, "[core]\n\tbare = false\n[core \"hookspath\0\"] x = gh\n");
    }),
    // No repository can be planted where there is none.
    plain("plant .git", "mkdir {project}/.git"),
    plain("plant .git as a file", "create {project}/.git"),
    plain("plant .git as a symlink", "symlink dir {project}/.git"),
    plain("plant .git by a rename", "rename {project}/dir {project}/.git").given(|_| {}).answers(PINNED_OR_TAKEN),
    plain("plant a bare repository", "create {project}/HEAD"),
    plain("plant the rest of a bare repository", "mkdir {project}/refs").given(|s| {
        s.file(&s.project.join("HEAD"), "ref: refs/heads/x\n", 0o644);
    }),
    // What is started with the session or found in `PATH`, wherever in home the working directory is.
    home_part("autostart in ~/.config", "create {project}/x", "mkdir {project}/autostart", TAKEN)
        .given(|s| part_of_home(s, ".config")),
    home_part("units in ~/.config", "create {project}/x", "create {project}/systemd/user/x.service", REFUSED).given(
        |s| {
            fs::create_dir_all(s.home.join(".config/systemd/user")).unwrap();
            part_of_home(s, ".config");
        },
    ),
    home_part("units in ~/.config/systemd", "read {project}/file", "create {project}/user/x.service", REFUSED).given(
        |s| {
            fs::create_dir_all(s.home.join(".config/systemd/user")).unwrap();
            part_of_home(s, ".config/systemd");
        },
    ),
    home_part("units in their directory", "read {project}/file", "create {project}/x.service", REFUSED)
        .given(|s| part_of_home(s, ".config/systemd/user")),
    home_part("programs in ~/.local", "create {project}/x", "create {project}/bin/tool", REFUSED).given(|s| {
        fs::create_dir_all(s.home.join(".local/bin")).unwrap();
        part_of_home(s, ".local");
    }),
    home_part("services in ~/.local/share", "create {project}/x", "mkdir {project}/dbus-1", TAKEN)
        .given(|s| part_of_home(s, ".local/share")),
    home_part("programs in ~/.local/bin", "read {project}/file", "create {project}/tool", REFUSED)
        .given(|s| part_of_home(s, ".local/bin")),
    // What editors, agents and Ringfence read.
    plain("plant .mcp.json", "create {project}/.mcp.json"),
    plain("plant .mcp.json by a rename", "rename {project}/file {project}/.mcp.json").answers(PINNED_OR_TAKEN),
    plain("plant .mcp.json by a link", "link {project}/file {project}/.mcp.json").answers(PINNED_OR_TAKEN),
    plain("plant .vscode", "mkdir {project}/.vscode"),
    plain("plant .vscode/tasks.json", "create {project}/.vscode/tasks.json").outside(Outside::Untried),
    plain("plant .idea", "mkdir {project}/.idea"),
    plain("plant .claude", "mkdir {project}/.claude"),
    plain("plant .ringfence.toml", "create {project}/.ringfence.toml"),
    plain("plant .envrc", "create {project}/.envrc"),
    plain("change .vscode", "write {project}/.vscode/settings.json").given(configured).answers(REFUSED),
    plain("add to .vscode", "create {project}/.vscode/tasks.json").given(configured).answers(REFUSED),
    plain("change .mcp.json", "write {project}/.mcp.json").given(configured).answers(REFUSED),
    plain("remove .mcp.json", "unlink {project}/.mcp.json").given(configured).answers(PINNED),
    plain("change .ringfence.toml", "write {project}/.ringfence.toml").given(configured).answers(REFUSED),
    plain("change a linter's configuration", "write {project}/clippy.toml").given(configured).answers(REFUSED),
    plain("rule: change", "write {project}/dir/inner")
        .given(|s| s.policy.ro("dir/inner"))
        .answers(REFUSED)
        .works("create {project}/dir/x"),
    plain("rule: move the directory above", "rename {project}/dir {project}/x")
        .given(|s| s.policy.ro("dir/inner"))
        .answers(PINNED)
        .works("create {project}/dir/x"),
];

const fn home_part(
    id: &'static str,
    works: &'static str,
    fails: &'static str,
    answers: &'static [&'static str],
) -> Case {
    act(FsProtectedPaths, id, works, fails, answers)
}

/// The working directory is a part of home.
fn part_of_home(s: &mut Scene, name: &str) {
    s.project = s.home.join(name);
    s.file(&s.project.join("file"), "", 0o644);
    let project = s.project.display().to_string();
    s.word("project", project);
}

fn configuration(s: &mut Scene, text: &str) {
    let git = s.repository();
    s.file(&git.join("config"), text, 0o644);
    s.file(&s.project.join("gh/pre-commit"), "#!/bin/sh\n", 0o755);
}

/// A hook that is a link, by way of a link in another directory and a directory that is one, among very many.
fn linked_chain(s: &mut Scene) {
    let git = s.repository();
    for n in 0..600 {
        s.file(&git.join(format!("hooks/{n}")), "", 0o644);
    }
    s.file(&s.project.join("scripts/pc"), "#!/bin/sh\n", 0o755);
    fs::create_dir(s.project.join("one")).unwrap();
    fs::remove_file(git.join("hooks/pre-commit")).unwrap();
    for (to, at) in
        [("../../one/pre-commit", ".git/hooks/pre-commit"), ("../two", "one/pre-commit"), ("link/pc", "two")]
    {
        symlink(to, s.project.join(at)).unwrap();
    }
    symlink("scripts", s.project.join("link")).unwrap();
}

const PINNED_OR_TAKEN: &[&str] = &["EBUSY", "EROFS", "EACCES", "EXDEV", "EEXIST", "ENOTEMPTY", "EISDIR", "ENOTDIR"];
const COMMIT_WITHOUT_INFO: &str = "create {project}/.git/index.lock + create {project}/.git/objects/x";
const WORKTREE: &str = "create {project}/x";

fn configured(s: &mut Scene) {
    for name in [".vscode/settings.json", ".mcp.json", ".ringfence.toml", "clippy.toml"] {
        s.file(&s.project.join(name), "", 0o644);
    }
}

fn linked_hooks(s: &mut Scene) {
    let git = s.repository();
    fs::rename(git.join("hooks"), s.project.join("my-hooks")).unwrap();
    symlink("../my-hooks", git.join("hooks")).unwrap();
}

fn hooks_path(s: &mut Scene) {
    let git = s.repository();
    s.file(&git.join("config"), "[core]\n\tbare = false\n\thooksPath = tools/hooks\n", 0o644);
    s.file(&s.project.join("tools/hooks/pre-commit"), "#!/bin/sh\n", 0o755);
}

/// What looks like a repository, and says that the project is its worktree.
fn planted(s: &Scene, at: &std::path::Path) {
    s.repository_at(at);
    let config = format!("[core]\n\tbare = false\n\tworktree = {}\n", s.project.display());
    s.file(&at.join("config"), &config, 0o644);
    s.file(&s.project.join(".git"), &format!("gitdir: {}\n", at.display()), 0o644);
}

/// The project is a linked worktree of a repository elsewhere in home.
fn worktree(s: &mut Scene) {
    let main = s.home.join("main/.git");
    s.repository_at(&main);
    let own = main.join("worktrees/project");
    s.file(&own.join("HEAD"), "ref: refs/heads/other\n", 0o644);
    s.file(&own.join("commondir"), "../..\n", 0o644);
    s.file(&own.join("gitdir"), &format!("{}/.git\n", s.project.display()), 0o644);
    s.file(&s.project.join(".git"), &format!("gitdir: {}\n", own.display()), 0o644);
}

pub const STORIES: &[Story] = &[
    story(FsProtectedPaths, "no litter", no_litter),
    story(FsProtectedPaths, "no litter in a plain directory", no_litter_in_plain),
    story(FsProtectedPaths, "no litter after kill -9", no_litter_after_kill),
    story(FsProtectedPaths, "no litter with two boxes", no_litter_with_two),
    story(FsProtectedPaths, "the second box of two is protected too", second_box_is_protected),
    story(FsProtectedPaths, "a file of the user's own is never removed", own_files_stay),
    story(FsProtectedPaths, "commits of a worktree", worktree_commits),
    story(FsProtectedPaths, "a directory that an earlier box closed", closed_directory),
    story(FsProtectedPaths, "git commits inside", git_commits).needs(Needs::Program("git")),
];

fn unchanged(scene: &Scene, before: &containment::Snapshot, when: &str) -> Result<(), String> {
    let changes = scene.changed_since(before, None);
    ensure(changes.is_empty(), || format!("{when}: {changes}"))
}

fn no_litter(stage: &Stage) -> Result<(), String> {
    for place in [Place::Home, Place::Apart, Place::Temp] {
        let scene = stage.scene(place);
        scene.repository();
        let before = scene.snapshot();
        stage.answers(&scene, "read {project}/file")?;
        unchanged(&scene, &before, &format!("{place:?}"))?;
    }
    Ok(())
}

fn no_litter_in_plain(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.preset("@env-files").unwrap();
    let before = scene.snapshot();
    stage.answers(&scene, "read {project}/file")?;
    unchanged(&scene, &before, "after a box")?;
    // A box that cannot start leaves as little.
    let refused = stage.sandbox(&scene).run(&["/does/not/exist".into()]);
    ensure(refused.is_err(), || "a program that does not exist was started".to_owned())?;
    unchanged(&scene, &before, "after a box that could not start")
}

fn launch(stage: &Stage, scene: &Scene, acts: &str) -> Launcher {
    let child = Command::new(&stage.launcher)
        .args([stage.engine.name(), &scene.home.display().to_string(), &scene.project.display().to_string(), "--"])
        .arg(&scene.probe)
        .args(scene.act(acts))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    Launcher(child.expect("the launcher"))
}

fn no_litter_after_kill(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = scene.snapshot();
    let tag = scene.words["tag"].clone();
    let launcher = launch(stage, &scene, "hold 1000 {tag}");
    let running = || host::running_in_a_box(&tag);
    ensure(host::eventually(Duration::from_secs(10), running), || "the box did not start".to_owned())?;
    ensure(before != scene.snapshot(), || "nothing stands in for what is missing".to_owned())?;
    launcher.kill();
    let gone = host::eventually(Duration::from_secs(10), || scene.snapshot() == before);
    ensure(gone, || format!("after kill -9: {}", scene.changed_since(&before, None)))?;
    let ended = host::eventually(Duration::from_secs(10), || host::processes_with(&tag).is_empty());
    ensure(ended, || format!("processes {:?} are left", host::processes_with(&tag)))
}

fn no_litter_with_two(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = scene.snapshot();
    let first = launch(stage, &scene, "hold 1000 {tag}-first");
    let tag = format!("{}-first", scene.words["tag"]);
    let running = || host::running_in_a_box(&tag);
    ensure(host::eventually(Duration::from_secs(10), running), || "the box did not start".to_owned())?;
    // The second comes and goes while the first lives: what the first needs must stay.
    let during = scene.snapshot();
    stage.answers(&scene, "read {project}/file")?;
    unchanged(&scene, &during, "while the first box lives")?;
    first.kill();
    let gone = host::eventually(Duration::from_secs(10), || scene.snapshot() == before);
    ensure(gone, || format!("after both: {}", scene.changed_since(&before, None)))
}

fn second_box_is_protected(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let before = scene.snapshot();
    let first = launch(stage, &scene, "hold 1000 {tag}-first");
    let tag = format!("{}-first", scene.words["tag"]);
    let running = || host::running_in_a_box(&tag);
    ensure(host::eventually(Duration::from_secs(10), running), || "the box did not start".to_owned())?;
    let acts = "write {project}/.mcp.json + create {project}/.vscode/x + unlink {project}/.mcp.json + rmdir {project}/.vscode + create {project}/.git/HEAD";
    let lines = stage.answers(&scene, acts)?;
    first.kill();
    ensure(lines.iter().all(|l| !l.starts_with("ok")), || format!("the second box could: {lines:?}"))?;
    let gone = host::eventually(Duration::from_secs(10), || scene.snapshot() == before);
    ensure(gone, || format!("after both: {}", scene.changed_since(&before, None)))
}

/// An empty file that the user made looks like a stand-in, and is none.
fn own_files_stay(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    scene.file(&scene.project.join(".mcp.json"), "", 0o444);
    fs::create_dir(scene.project.join(".vscode")).map_err(|e| e.to_string())?;
    let before = scene.snapshot();
    for _ in 0..2 {
        stage.answers(&scene, "read {project}/file")?;
        unchanged(&scene, &before, "after a box")?;
    }
    Ok(())
}

/// A box closes a directory of its own, so that the next plan cannot look into it, and the next box opens it again.
fn closed_directory(stage: &Stage) -> Result<(), String> {
    // What it closes, and what it then wants to write.
    let attacks = [
        (".git/modules", ".git/modules/lib/config"),
        (".git/modules/lib", ".git/modules/lib/config"),
        (".git/modules/lib", ".git/modules/lib/hooks/pre-commit"),
        (".git/worktrees", ".git/worktrees/side/gitdir"),
        (".git/worktrees/side", ".git/worktrees/side/commondir"),
        ("old", "old/.git/config"),
        ("old/.git", "old/.git/config"),
        ("dir", "dir/lock.json"),
    ];
    for (closed, target) in attacks {
        for mode in ["0", "444"] {
            let mut scene = stage.scene(Place::Home);
            let git = scene.repository();
            scene.repository_at(&git.join("modules/lib"));
            scene.repository_at(&scene.project.join("old/.git"));
            for (path, text) in [
                (".git/worktrees/side/gitdir", "/nowhere/.git\n"),
                (".git/worktrees/side/commondir", "../..\n"),
                (".gitmodules", "[submodule \"old\"]\n\tpath = old\n"),
                ("dir/lock.json", "{}"),
            ] {
                scene.file(&scene.project.join(path), text, 0o644);
            }
            scene.policy.ro("**/lock.json");
            stage.hand_over(&scene);
            let first = format!("write {{project}}/file + chmod {{project}}/{closed} {mode}");
            let first = stage.answers(&scene, &first)?;
            ensure(first[0] == "ok", || format!("what the first may do: {first:?}"))?;
            let acts = format!(
                "write {{project}}/file + create {{project}}/.git/index.lock + chmod {{project}}/{closed} 755 + \
                 write {{project}}/{target}"
            );
            let then = stage.answers(&scene, &acts);
            fs::set_permissions(scene.project.join(closed), fs::Permissions::from_mode(0o755))
                .map_err(|e| e.to_string())?;
            let then = then?;
            ensure(then[..2] == ["ok", "ok"] && !then[3].starts_with("ok"), || {
                format!("{closed} {mode}, first {first:?}, then {then:?}")
            })?;
        }
    }
    Ok(())
}

/// What a commit in a linked worktree writes, and what it does not.
fn worktree_commits(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    worktree(&mut scene);
    let main = "{home}/main/.git";
    let acts = format!(
        "create {main}/objects/x + create {main}/worktrees/project/index.lock + create {main}/refs/heads/x + \
         write {main}/HEAD + write {main}/config + write {main}/worktrees/project/gitdir + rename {main} {{home}}/main/x"
    );
    let lines = stage.answers(&scene, &acts)?;
    let fine: Vec<bool> = lines.iter().map(|l| l == "ok").collect();
    ensure(fine == [true, true, true, false, false, false, false], || format!("{lines:?}"))
}

fn git_commits(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    // The guard in front of git is the command line's program, which this suite is not.
    let open = ringfence::policy::layer::At::new(("git".to_owned(), CommandSetting::Remove), "test");
    scene.policy.settings.commands.push(open);
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.env_clear().envs(&scene.env).current_dir(&scene.project).args(args);
        command.output().map_err(|e| e.to_string())
    };
    let made = git(&["init", "-q", "-b", "main"])?;
    ensure(made.status.success(), || String::from_utf8_lossy(&made.stderr).into_owned())?;
    let script = "set -e; git config --global --get user.name || true; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
                  GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; git add file; git commit -qm first; \
                  git checkout -qb other; git commit -q --allow-empty -m second; git gc -q; git log --oneline | wc -l";
    let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script.into()]).map_err(|e| e.to_string())?;
    same("commits inside", (ran.stdout.trim(), ran.stderr.as_str()), ("2", ""))?;
    let log = git(&["log", "--oneline"])?;
    same("commits outside", String::from_utf8_lossy(&log.stdout).lines().count(), 2)?;
    let status = git(&["fsck"])?;
    ensure(status.status.success(), || String::from_utf8_lossy(&status.stderr).into_owned())
}
