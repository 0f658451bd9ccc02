//! Hosts that are laid out otherwise than this one: a mount namespace that the test makes, on every engine, as root and as
//! an ordinary user. To make one takes root; for anybody else these tests have nothing to do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use support::{Done, Place, engines, is_root, skip, user};

/// Runs `ringfence` as root and as a user, after this text for the shell has laid the host out. `$T` is a directory for it.
fn on_host(layout: &str, args: &[&str], mut check: impl FnMut(&str, Done)) {
    if !is_root() {
        return;
    }
    let mut people = vec![(0, 0)];
    match user() {
        Some((uid, gid, _)) => people.push((uid, gid)),
        None => skip("hosts as an ordinary user", "there is no user `ringfence-test` (`./test` makes it)"),
    }
    for (uid, gid) in people {
        for engine in engines() {
            let place = Place::new();
            let top = place.home.parent().unwrap();
            std::fs::copy(support::program(), top.join("ringfence")).unwrap();
            std::fs::create_dir(top.join("layout")).unwrap();
            for path in [top, &place.home, &place.project] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
                std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
            }
            let text = format!(
                "set -e; T={0}/layout; {layout}
                 cd {0}/home/project
                 exec setpriv --reuid={uid} --regid={gid} --clear-groups {0}/ringfence run --engine {engine} \"$@\"",
                top.display()
            );
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &text, "sh"]);
            place.environment(&mut command);
            let output = command.args(args).stdin(Stdio::null()).output().unwrap();
            check(&format!("{engine}, {uid}"), Done::new(output));
        }
    }
}

/// `/run` of its own, and an `/etc` whose `resolv.conf` is a link.
fn resolver(link: &str) -> String {
    format!(
        "cp -a /etc $T/etc; rm -f $T/etc/resolv.conf; ln -s {link} $T/etc/resolv.conf; mount --bind $T/etc /etc
         mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p /run/systemd/resolve
         echo 'nameserver 192.0.2.53' > /run/systemd/resolve/real.conf
         ln -s real.conf /run/systemd/resolve/stub-resolv.conf; chmod -R a+rX /run"
    )
}

#[test]
fn the_resolver_file_may_be_a_link_into_run() {
    for link in ["../run/systemd/resolve/real.conf", "/run/systemd/resolve/stub-resolv.conf"] {
        for profile in ["agent", "shell"] {
            let text = "cat /etc/resolv.conf && ! echo x 2>/dev/null >> /etc/resolv.conf";
            let args = ["--network", "--profile", profile, "sh", "-c", text];
            on_host(&resolver(link), &args, |who, done| {
                assert_eq!(
                    (done.code, done.out.as_str()),
                    (0, "nameserver 192.0.2.53\n"),
                    "{who}, {link}, {profile}: {}",
                    done.err
                );
            });
        }
    }
}

/// A daemon that answers everybody, at `/var/run/docker.sock`, where `/var/run` is no link.
const DAEMON: &str = "mount -t tmpfs -o mode=755 tmpfs /var; mkdir -p /var/run /var/tmp; chmod 1777 /var/tmp
    /usr/bin/python3 -c \"
import socket, os
s = socket.socket(socket.AF_UNIX); s.bind('/var/run/docker.sock'); os.chmod('/var/run/docker.sock', 0o666); s.listen(9)
if os.fork() == 0:
    for n in range(0, 1 + 2): os.close(n)
    s.settimeout(20); c, _ = s.accept(); c.sendall(b'daemon')
\"";

const CLIENT: &str = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/var/run/docker.sock'); \
                      print(s.recv(9).decode())";

#[test]
fn docker_is_at_its_place_also_where_that_is_no_link() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skip("a daemon", "there is no /usr/bin/python3");
    }
    on_host(DAEMON, &["--docker", "/usr/bin/python3", "-c", CLIENT], |who, done| {
        assert_eq!((done.code, done.out.as_str()), (0, "daemon\n"), "{who}: {}", done.err);
    });
    on_host(DAEMON, &["/usr/bin/python3", "-c", CLIENT], |who, done| {
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{who}: {}", done.err);
        assert!(done.err.contains("Error"), "{who}: {}", done.err);
    });
}

/// Root in a project of somebody else's, in a home that only they may enter: what the box makes there is theirs.
#[test]
fn root_works_in_somebody_elses_project() {
    use std::os::unix::fs::MetadataExt;
    let Some((uid, gid, _)) = user().filter(|_| is_root()) else { return };
    for engine in engines() {
        let place = Place::new();
        // Not below `/tmp`, of which every box has its own.
        let top = tempfile::tempdir_in("/var/lib").unwrap();
        let project = top.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("theirs"), "private\n").unwrap();
        std::fs::write(project.join("roots"), "open\n").unwrap();
        for (path, mode) in
            [(top.path().to_path_buf(), 0o700), (project.clone(), 0o755), (project.join("theirs"), 0o600)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
        let text = "cat theirs roots && echo more >> theirs && mkdir -p made/deep && echo x > made/deep/file
                    ! echo x 2>/dev/null > roots && ! echo x 2>/dev/null > .mcp.json && git init -q made/deep && rm -r made/deep/.git";
        let at = project.to_str().unwrap();
        let done = place.run(&["--engine", engine, "-C", at], text);
        assert_eq!((done.code, done.out.as_str()), (0, "private\nopen\n"), "{engine}: {}", done.err);
        for name in ["theirs", "made", "made/deep", "made/deep/file"] {
            let data = std::fs::metadata(project.join(name)).unwrap();
            assert_eq!((data.uid(), data.gid()), (uid, gid), "{engine}: {name}");
        }
        assert_eq!(std::fs::metadata(project.join("roots")).unwrap().uid(), 0);
        assert_eq!(support::names(&project), ["made", "roots", "theirs"], "{engine}");
        // Root's own home is root's all the same.
        let done = place.run(&["--engine", engine, "-C", at], "echo x > ~/.cache/made && cat ~/.cache/made");
        assert_eq!((done.code, done.out.as_str()), (0, "x\n"), "{engine}: {}", done.err);
    }
}

/// Their own state is behind a directory that nobody else may enter: it is neither shown to root's box nor in its way.
#[test]
fn root_works_in_the_home_of_somebody_with_private_directories() {
    let Some((uid, gid, home)) = user().filter(|_| is_root()) else { return };
    for engine in engines() {
        let top = tempfile::tempdir_in("/var/lib").unwrap();
        let place = Place::new();
        let text = format!(
            "set -e; T={0}; mkdir -p $T/home/project $T/home/.local/state/ringfence/records $T/home/.local/state/ringfence/sessions
             cp -a /etc $T/etc; sed -i 's|:{home}:|:{0}/home:|' $T/etc/passwd; mount --bind $T/etc /etc
             chmod 755 $T $T/home; chmod 700 $T/home/.local; chown -R {uid}:{gid} $T/home; cd $T/home/project
             exec {1} run --engine {engine} -- sh -c '
                 echo x > made && ! ls ../.local 2>/dev/null && ! ls ../.local/state/ringfence 2>/dev/null'",
            top.path().display(),
            support::program(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &text]).stdin(Stdio::null());
        place.environment(&mut command);
        let done = Done::new(command.output().unwrap());
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{engine}: {}", done.err);
        assert_eq!(support::names(&top.path().join("home/project")), ["made"], "{engine}");
    }
}

/// A box that waits for a line, and then tries to plant what is protected.
struct Waiting(std::process::Child);

impl Waiting {
    fn start(mut command: Command, engine: &str) -> Waiting {
        let text = "echo up; read line; mkdir .vscode/x 2>/dev/null || mkdir .mcp.json/x 2>/dev/null || echo held";
        command.args(["run", "--engine", engine, "--", "sh", "-c", text]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
        Waiting(child)
    }

    /// What it says, and nothing else is left of it.
    fn end(mut self) -> String {
        std::io::Write::write_all(self.0.stdin.as_mut().unwrap(), b"\n").unwrap();
        String::from_utf8(self.0.wait_with_output().unwrap().stdout).unwrap()
    }
}

/// The lists of the two cannot be read by each other; what is protected stays so until the last of both has ended.
#[test]
fn boxes_of_two_users_in_one_project_keep_each_others_stand_ins() {
    let Some((uid, gid, _)) = user().filter(|_| is_root()) else { return };
    for (engine, root_ends_first) in engines().into_iter().flat_map(|engine| [(engine, true), (engine, false)]) {
        let top = tempfile::tempdir_in("/var/lib").unwrap();
        let (home, project) = (top.path().join("home"), top.path().join("project"));
        std::fs::copy(support::program(), top.path().join("ringfence")).unwrap();
        for path in [&home, &project] {
            std::fs::create_dir(path).unwrap();
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
        }
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // Of the user's own, and like a stand-in.
        std::fs::create_dir(project.join(".idea")).unwrap();
        let place = Place::new();
        let mut root = Command::new("sh");
        root.args(["-c", "umask 077; exec \"$@\"", "sh", support::program()]).current_dir(&project);
        place.environment(&mut root);
        let mut theirs = Command::new("setpriv");
        theirs.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
        theirs.arg(top.path().join("ringfence")).current_dir(&project);
        place.environment(&mut theirs);
        theirs.env("HOME", &home);
        let (root, theirs) = (Waiting::start(root, engine), Waiting::start(theirs, engine));
        let (first, last) = if root_ends_first { (root, theirs) } else { (theirs, root) };
        assert_eq!((first.end(), last.end()), ("held\n".to_owned(), "held\n".to_owned()), "{engine} {root_ends_first}");
        assert_eq!(support::names(&project), [".idea"], "{engine} {root_ends_first}");
    }
}
