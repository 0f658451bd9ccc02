//! Files: what is read-only, where writes go, what is private, what is bounded.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use containment::{Place, host};

use ringfence::policy::Guarantee::{FsDiskBounded, FsRootReadOnly, FsTempPrivate, FsWritesConfined, ProcUnprivileged};

use crate::case::{Case, Needs, Outside, Stage, Story, act, ensure, same, story};

/// Read-only, or not even this user's: which of the two is said first depends on the call and on whom root's box is.
const READ_ONLY: &[&str] = &["EROFS", "EACCES"];
/// Another file system, which is as good as read-only.
const APART: &[&str] = &["EROFS", "EACCES", "EXDEV"];

const fn ro(id: &'static str, works: &'static str, fails: &'static str) -> Case {
    act(FsRootReadOnly, id, works, fails, READ_ONLY)
}

const fn confined(id: &'static str, works: &'static str, fails: &'static str) -> Case {
    act(FsWritesConfined, id, works, fails, READ_ONLY)
}

pub const CASES: &[Case] = &[
    ro("create", "create {project}/new", "create {home}/new"),
    ro("create elsewhere", "create {project}/dir/new", "create {elsewhere}/new"),
    ro("create in the root", "mkdir {project}/new", "mkdir /ringfence-probe").outside(Outside::Untried),
    ro("create in /etc", "create {project}/new", "create /etc/ringfence-probe").outside(Outside::Untried),
    ro("write", "write {project}/file", "write {home}/notes"),
    ro("write elsewhere", "write {project}/file", "write {elsewhere}/file"),
    ro("truncate", "truncate {project}/file", "truncate {home}/notes"),
    ro("make a directory", "mkdir {project}/new", "mkdir {home}/new"),
    ro("remove", "unlink {project}/file", "unlink {home}/notes"),
    ro("remove a directory", "mkdir {project}/a + rmdir {project}/a", "rmdir {elsewhere}/empty")
        .given(|s| std::fs::create_dir(s.elsewhere.join("empty")).unwrap()),
    ro("rename", "rename {project}/file {project}/other", "rename {home}/notes {home}/other"),
    ro("rename elsewhere", "rename {project}/dir {project}/other", "rename {elsewhere}/dir {elsewhere}/other"),
    ro("exchange", "exchange {project}/file {project}/dir", "exchange {home}/notes {home}/dir"),
    act(FsRootReadOnly, "move in", "read {home}/notes", "rename {home}/notes {project}/stolen", APART),
    act(FsRootReadOnly, "move out", "read {home}/notes", "rename {project}/file {home}/planted", APART),
    ro("hard link", "link {project}/file {project}/other", "link {home}/notes {home}/other"),
    ro("symlink", "symlink x {project}/link", "symlink x {home}/link"),
    ro("chmod", "chmod {project}/file 600", "chmod {home}/notes 600"),
    ro("chmod elsewhere", "chmod {project}/file 600", "chmod {elsewhere}/file 600"),
    ro("times", "utime {project}/file", "utime {home}/notes"),
    ro("times elsewhere", "utime {project}/file", "utime {elsewhere}/file"),
    ro("extended attribute", "setxattr {project}/file", "setxattr {home}/notes"),
    ro("extended attribute elsewhere", "setxattr {project}/file", "setxattr {elsewhere}/file"),
    ro("owner", "read {home}/notes", "chown {elsewhere}/file {uid}").given(|s| {
        let uid = rustix::process::getuid().as_raw();
        s.word("uid", uid);
    }),
    ro("named pipe", "fifo {project}/pipe", "fifo {home}/pipe"),
    ro("unnamed file", "tmpfile {project}", "tmpfile {home}"),
    ro("socket", "unix-listen {project}/s", "unix-listen {home}/s"),
    ro("project elsewhere", "create {project}/new", "create {elsewhere}/new").at(Place::Apart),
    ro("project beside home", "create {project}/new", "create {home}/new").at(Place::Apart),
    ro("project in /tmp", "create {project}/new + write {project}/file", "create {home}/new").at(Place::Temp),
    ro("a rule", "create {project}/new", "create {project}/dir/new").given(|s| s.policy.ro("dir")),
    ro("a rule below a rule", "create {project}/dir/w/x", "create {project}/dir/new").given(|s| {
        std::fs::create_dir_all(s.project.join("dir/w")).unwrap();
        s.policy.ro("dir");
        s.policy.rw("dir/w");
    }),
    // A second way to the same file, past the name that is read-only.
    confined("symlink out", "write {project}/file", "write {project}/link-out"),
    confined("symlinked directory out", "create {project}/dir/x", "create {project}/link-out-dir/x"),
    confined(
        "new symlink out",
        "symlink {project}/file {project}/l + write {project}/l",
        "symlink {home}/notes {project}/l + write {project}/l",
    )
    .at(Place::Apart)
    .untidy(),
    act(
        FsWritesConfined,
        "hard link in",
        "link {project}/file {project}/other",
        "link {home}/notes {project}/l",
        APART,
    ),
    confined("reopen by /proc/self/fd", "reopen {project}/file", "reopen {home}/notes"),
    confined("through /proc/self/root", "write /proc/self/root{project}/file", "write /proc/self/root{home}/notes"),
    confined("through /proc/self/cwd", "write /proc/self/cwd/file", "write /proc/self/cwd/../notes"),
    act(FsWritesConfined, "through process 1", "read {home}/notes", "write /proc/1/root{home}/notes", READ_ONLY)
        .outside(Outside::Untried),
    act(
        FsWritesConfined,
        "working directory of process 1",
        "read {home}/notes",
        "create /proc/1/cwd/../new",
        READ_ONLY,
    )
    .outside(Outside::Untried),
    act(FsWritesConfined, "by handle", "read {project}/file", "handle {home}/notes", &["EPERM"])
        .outside(Outside::WorksForRoot),
    act(FsWritesConfined, "bind over", "read {project}/file", "bind {project} {home}/dir", &["EPERM"])
        .outside(Outside::Untried),
    act(FsWritesConfined, "remount writable", "read {project}/file", "remount-writable /", &["EPERM"])
        .outside(Outside::Untried),
    act(FsWritesConfined, "unmount", "read {project}/file", "unmount {project}", &["EPERM"]).outside(Outside::Untried),
    act(FsWritesConfined, "clone a mount", "read {project}/file", "open-tree {home}", &["EPERM"])
        .outside(Outside::WorksForRoot),
    act(FsWritesConfined, "another root", "read {project}/file", "chroot {project}", &["EPERM"])
        .outside(Outside::WorksForRoot),
    // /sys and /proc are the kernel's, and most of them the host's.
    act(
        FsWritesConfined,
        "kernel settings",
        "write /proc/self/comm",
        "write /proc/sys/kernel/core_pattern",
        &["EACCES", "EROFS", "EPERM"],
    )
    .outside(Outside::Untried),
    act(
        FsWritesConfined,
        "sysrq",
        "read {project}/file",
        "write /proc/sysrq-trigger",
        &["EACCES", "EROFS", "EPERM", "ENOENT"],
    )
    .outside(Outside::Untried),
    act(
        FsWritesConfined,
        "control groups",
        "read {project}/file",
        "mkdir /sys/fs/cgroup/ringfence-probe",
        &["EACCES", "EROFS", "EPERM", "ENOENT"],
    )
    .outside(Outside::Untried),
    act(FsWritesConfined, "devices", "write /dev/null", "create /dev/probe", &["EACCES", "EROFS"])
        .outside(Outside::WorksForRoot)
        .given(|s| s.keep(RemovedAtEnd("/dev/probe"))),
    // The node is the host's, and its times could tell another box something.
    act(FsWritesConfined, "times of a device", "write /dev/null", "touch /dev/null", &["EROFS"])
        .only(ringfence::engines::native::ENGINE),
    // Private places: neither are the host's files there, nor the box's on the host.
    private("/tmp", "fill /tmp/{tag}-fill 1", "read /tmp/{tag}"),
    private("/var/tmp", "fill /var/tmp/{tag}-fill 1", "read /var/tmp/{tag}"),
    private("/dev/shm", "fill /dev/shm/{tag}-fill 1", "read /dev/shm/{tag}"),
    act(FsTempPrivate, "/run", "mkdir /run/{tag}-fill", "read /run/{tag}", &["ENOENT"]).needs(Needs::Root).given(|s| {
        let path = format!("/run/{}", s.words["tag"]);
        std::fs::write(&path, "x").unwrap();
        s.keep(RemovedLater(path));
    }),
    act(FsTempPrivate, "processes of /run", "list /run", "exists /run/docker.pid", &["ENOENT"])
        .needs(Needs::Docker)
        .outside(Outside::Untried),
    bounded("size of /tmp", "fill /tmp/{tag}-fill 4000000", "fill /tmp/{tag}-fill 60000000"),
    bounded("size of /var/tmp", "fill /var/tmp/{tag}-fill 4000000", "fill /var/tmp/{tag}-fill 60000000"),
    bounded("size of /dev/shm", "fill /dev/shm/{tag}-fill 4000000", "fill /dev/shm/{tag}-fill 60000000"),
    bounded("inodes of /tmp", "inodes /tmp 50", "inodes /tmp 1000").or_reported(),
    bounded("inodes of /var/tmp", "inodes /var/tmp 50", "inodes /var/tmp 1000").or_reported(),
    bounded("inodes of /dev/shm", "inodes /dev/shm 50", "inodes /dev/shm 1000").or_reported(),
    bounded("size of /run", "fill /run/{tag}-fill 4000000", "fill /run/{tag}-fill 60000000")
        .outside(Outside::WorksForRoot),
    bounded("inodes of /run", "inodes /run 50", "inodes /run 1000").or_reported().outside(Outside::WorksForRoot),
];

const fn private(id: &'static str, works: &'static str, fails: &'static str) -> Case {
    act(FsTempPrivate, id, works, fails, &["ENOENT"]).given(|s| {
        for dir in ["/tmp", "/var/tmp", "/dev/shm"].into_iter().filter(|d| Path::new(d).is_dir()) {
            let path = format!("{dir}/{}", s.words["tag"]);
            std::fs::write(&path, "x").unwrap();
            s.keep(RemovedLater(path));
        }
    })
}

const fn bounded(id: &'static str, works: &'static str, fails: &'static str) -> Case {
    act(FsDiskBounded, id, works, fails, &["ENOSPC"]).given(|s| {
        s.policy.tmp_size("32m").unwrap();
        s.policy.tmp_inodes("200").unwrap();
    })
}

struct RemovedLater(String);

impl Drop for RemovedLater {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct RemovedAtEnd(&'static str);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

pub const STORIES: &[Story] = &[
    story(FsRootReadOnly, "nothing at all", nothing_is_writable),
    story(FsRootReadOnly, "device directory", device_directory_is_sealed),
    story(FsTempPrivate, "two boxes share nothing", two_boxes_share_nothing),
    story(FsWritesConfined, "files belong to the caller", files_belong_to_the_caller),
    story(ProcUnprivileged, "set-user-id file left behind", set_user_id_left_behind),
    story(FsWritesConfined, "every profile", every_profile),
];

/// Looks for anything writable from the root down, but for what is known to be.
fn nothing_is_writable(stage: &Stage) -> Result<(), String> {
    let mut scene = stage.scene(Place::Home);
    scene.policy.preset("!@caches").unwrap();
    // Directories and files that access(2) calls writable, without descending into what is the box's own.
    let script = format!(
        "find / -xdev \\( -path /proc -o -path /dev -o -path /tmp -o -path /var/tmp -o -path /run -o -path {} \\) \
         -prune -o \\( -type d -o -type f \\) -writable -print 2>/dev/null | head -5",
        scene.project.display()
    );
    if containment::bare_kernel() {
        return Ok(());
    }
    let sandbox = stage.sandbox(&scene);
    let ran = sandbox.run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
    same("what is writable", ran.stdout.as_str(), "")
}

/// A `/dev` that can be added to is space without a bound.
fn device_directory_is_sealed(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let lines = stage.answers(&scene, "mkdir /dev/x + symlink a /dev/x + unlink /dev/null + rename /dev/null /dev/n + create /dev/pts/x + chmod /dev/null 000")?;
    for line in &lines {
        ensure(!line.starts_with("ok"), || format!("/dev can be changed: {lines:?}"))?;
    }
    let lines = stage.answers(&scene, "write /dev/null + read /dev/zero + write /dev/full")?;
    ensure(lines[0] == "ok" && lines[1].starts_with("ok") && lines[2] == "ENOSPC", || {
        format!("devices do not work: {} {}", lines[0], lines[2])
    })
}

fn two_boxes_share_nothing(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Home);
    let acts = "create /tmp/shared + create /var/tmp/shared + create /dev/shm/shared + create /run/shared";
    for round in 0..2 {
        let lines = stage.answers(&scene, acts)?;
        ensure(lines.iter().all(|l| l == "ok"), || format!("round {round}: {lines:?}"))?;
    }
    ensure(!Path::new("/tmp/shared").exists(), || "/tmp/shared is on the host".to_owned())
}

/// Whoever runs the box owns what it wrote; not an id that nobody has.
fn files_belong_to_the_caller(stage: &Stage) -> Result<(), String> {
    for place in [Place::Home, Place::Apart, Place::Temp] {
        let scene = stage.scene(place);
        let lines = stage.answers(
            &scene,
            "create {project}/new + mkdir {project}/d + symlink x {project}/l + owner {project}/new",
        )?;
        ensure(lines.iter().all(|l| l.starts_with("ok")), || format!("{place:?}: {lines:?}"))?;
        let own = rustix::process::getuid().as_raw();
        for name in ["new", "d", "l"] {
            let data = std::fs::symlink_metadata(scene.project.join(name)).map_err(|e| format!("{name}: {e}"))?;
            same(&format!("owner of {name} in {place:?}"), data.uid(), own)?;
        }
    }
    Ok(())
}

/// What root's box writes is root's on the host, so that a set-user-id bit must not come along with it.
fn set_user_id_left_behind(stage: &Stage) -> Result<(), String> {
    let scene = stage.scene(Place::Apart);
    std::fs::copy(&stage.probe, scene.project.join("tool")).map_err(|e| e.to_string())?;
    let lines = stage.answers(&scene, "chmod {project}/tool 4755 + chmod {project}/file 2755")?;
    let mode = std::fs::metadata(scene.project.join("tool")).map_err(|e| e.to_string())?.permissions().mode();
    // A user's own set-user-id file gives nobody more than the user could give.
    if host::is_root() {
        ensure(mode & 0o6000 == 0, || {
            format!("a set-user-id root file is left on the host: {lines:?}, mode {mode:o}")
        })?;
    }
    Ok(())
}

fn every_profile(stage: &Stage) -> Result<(), String> {
    for (profile, at, writable) in [("shell", "/workspace", true), ("skill", "/workspace", false)] {
        let mut scene = stage.scene(Place::Home);
        scene.policy.profile(profile);
        scene.word("at", at);
        std::fs::copy(&stage.probe, scene.project.join("probe")).map_err(|e| e.to_string())?;
        let acts = "list {home} + read {home}/notes + create /usr/x + create /etc/x + create /x + create /tmp/x";
        let mut command = vec![format!("{at}/probe")];
        if !writable {
            // Nothing of the user's is visible there: a program of the host must do.
            if containment::bare_kernel() {
                continue;
            }
            let script = format!(
                "ls {0}; cat {0}/notes; touch /usr/x; touch /etc/x; touch /x; touch /tmp/x && echo fine",
                scene.home.display()
            );
            let ran = stage.sandbox(&scene).run(&["sh".into(), "-c".into(), script]).map_err(|e| e.to_string())?;
            same(&format!("output of {profile}"), (ran.stdout.as_str(), ran.stderr.lines().count()), ("fine\n", 5))?;
            continue;
        }
        command.extend(scene.act(acts));
        let ran = stage.sandbox(&scene).run(&command).map_err(|e| e.to_string())?;
        let expected = ["ENOENT", "ENOENT", "EROFS", "EROFS", "EROFS", "ok"];
        same(&format!("answers of {profile}"), ran.lines(), expected)?;
        let mut command = vec![format!("{at}/probe")];
        command.extend(scene.act("create {at}/new + ids"));
        let ran = stage.sandbox(&scene).run(&command).map_err(|e| e.to_string())?;
        same(&format!("answers of {profile}"), ran.lines(), ["ok", "ok 1000 1000 1000"])?;
        let data = std::fs::metadata(scene.project.join("new")).map_err(|e| e.to_string())?;
        same("owner on the host", data.uid(), rustix::process::getuid().as_raw())?;
    }
    Ok(())
}
