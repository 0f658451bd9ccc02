//! The reader of git's configuration against git itself, on generated files. What git takes for a setting must be one for
//! Ringfence, or be reported as not read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Output};

use super::*;

/// A small generator with a seed, so that a file that fails can be made again.
struct Seed(u64);

impl Seed {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    fn pick<'a>(&mut self, all: &[&'a [u8]]) -> &'a [u8] {
        all[self.next(all.len())]
    }

    /// One of the first, and rarely one of the second, at most of which git stops.
    fn mostly<'a>(&mut self, good: &[&'a [u8]], odd: &[&'a [u8]]) -> &'a [u8] {
        if self.next(60) == 0 { self.pick(odd) } else { self.pick(good) }
    }

    fn value(&mut self) -> Vec<u8> {
        let good: [&[u8]; 24] = [
            b"a",
            b"bc",
            b"dir/x",
            b" ",
            b"  ",
            b"\t",
            b"\"q q\"",
            b"\"#\"",
            b"\"\"",
            b"\\\"",
            b"\\\\",
            b"\\n",
            b"\\t",
            b"\\b",
            b"\\\n",
            b"\\\r\n",
            b"=",
            b"[",
            b"]",
            "é".as_bytes(),
            b"\xff",
            b"\r",
            b"\x0b",
            b"~",
        ];
        let mut value: Vec<u8> =
            (0..self.next(7)).flat_map(|_| self.mostly(&good, &[b"\\x", b"\"", b"\0"])).copied().collect();
        if self.next(50) == 0 {
            value.extend(vec![b'x'; 20_000]);
        }
        value.extend(self.pick(&[b"", b"", b"", b" ; note", b"# note \\", b"#\"", b" "]));
        value
    }

    fn line(&mut self) -> Vec<u8> {
        match self.next(10) {
            0..3 => {
                let good: [&[u8]; 12] = [
                    b"[core]",
                    b"[CORE]",
                    b"[core \"sub\"]",
                    b"[core \"Su\\\"b\\\\\\x\"]",
                    b"[core\t \"a.b]\"]",
                    b"[a.B.c]",
                    b"[x-1]",
                    b"[include]",
                    b"[init]",
                    b"[core][init]",
                    b"[core \"\"]",
                    b"[core \"\xff\"]",
                ];
                let odd: [&[u8]; 9] = [
                    b"[]",
                    b"[core",
                    b"[core ]",
                    b"[core \"x\" ]",
                    b"[x_1]",
                    b"[core \"hookspath\0\"]",
                    b"[core \"x]",
                    b"[\0]",
                    b"[core \"a\\",
                ];
                self.mostly(&good, &odd).to_vec()
            }
            3..8 => {
                let good: [&[u8]; 7] = [b"hooksPath", b"HOOKSPATH", b"key", b"k-1", b"templateDir", b"fsmonitor", b"a"];
                let mut line = self.pick(&[b"", b"\t", b"  ", b"[core] "]).to_vec();
                line.extend(self.mostly(&good, &[b"1k", b"k_", "é".as_bytes(), b"-k", b"k\0"]));
                match self.next(8) {
                    0 => line.extend(self.mostly(&[b"", b" ", b"\t"], &[b" # no comment here", b" x"])),
                    _ => {
                        line.extend(self.mostly(&[b"=", b" = ", b"\t=", b"= "], &[b"\r=", b"\x0b="]));
                        line.extend(self.value());
                    }
                }
                line
            }
            8 => self.pick(&[b"# note", b"; note \\", b"  #\"", b"#\0", b"#[core]", b";\xff"]).to_vec(),
            _ => self.mostly(&[b"", b" ", b"\t\t", b"\r"], &[b"\x0c", b"\0", b"="]).to_vec(),
        }
    }

    fn file(&mut self) -> Vec<u8> {
        let mut file =
            self.mostly(&[b"", b"", b"", b"\xef\xbb\xbf"], &[b"\xef\xbb", b"\xef\xbb\xbf\xef\xbb\xbf"]).to_vec();
        for _ in 0..self.next(12) {
            file.extend(self.line());
            file.extend(self.pick(&[b"\n", b"\n", b"\n", b"\r\n"]));
        }
        if self.next(4) == 0 {
            // The end in the middle of a line.
            file.extend(self.line());
        }
        file
    }
}

fn git(project: &Project, args: &[&str]) -> Option<Output> {
    let mut command = Command::new("git");
    command.args(args).current_dir(project.root.join("w")).env_clear().env("PATH", std::env::var_os("PATH")?);
    command.env("HOME", project.root.join("home")).env("GIT_CONFIG_NOSYSTEM", "1").output().ok()
}

/// The settings in what `git config --list --show-origin -z` prints.
fn settings(listed: &[u8]) -> Vec<(Vec<u8>, Option<OsString>)> {
    let mut fields = listed.split(|byte| *byte == 0);
    let mut found = Vec::new();
    while let (Some(_origin), Some(setting)) = (fields.next(), fields.next()) {
        let mut parts = setting.splitn(2, |byte| *byte == b'\n');
        let name = parts.next().unwrap().to_vec();
        found.push((name, parts.next().map(|value| OsString::from_vec(value.to_vec()))));
    }
    found
}

#[test]
fn files_mean_what_they_mean_to_git() {
    let project = Project::new(&[("w/", ""), ("home/", "")]);
    let mut seed = Seed(0x5eed_0001);
    let (mut whole, mut stopped, mut older) = (0, 0, 0);
    for number in 0..600 {
        let text = seed.file();
        fs::write(project.root.join("w/config"), &text).unwrap();
        let Some(output) = git(&project, &["config", "--list", "--show-origin", "-z", "--file", "config"]) else {
            return;
        };
        let (config, shown) = (Config::parse(&text), String::from_utf8_lossy(&text).into_owned());
        let says = String::from_utf8_lossy(&output.stderr);
        assert_eq!(config.broken.is_none(), output.status.success(), "{number}: {shown:?} {says}");
        let listed = settings(&output.stdout);
        // An older git lists its own reading.
        let same = |(ours, gits): (&(Vec<u8>, _), &_)| ours == gits || config.older.contains(gits);
        let all = config.entries.len() == listed.len() && config.entries.iter().zip(&listed).all(same);
        assert!(all || !output.status.success(), "{number}: {shown:?}\n{:?}\n{listed:?}", config.entries);
        whole += usize::from(output.status.success());
        stopped += usize::from(!output.status.success());
        older += usize::from(!config.older.is_empty());
    }
    // The generator makes all of them.
    assert!(whole > 300 && stopped > 40 && older > 20, "{whole} {stopped} {older}");
}

/// From the configuration to the rules, through includes: each directory of hooks that git would use is protected, or the
/// sandbox is reported to be weakened.
#[test]
fn hooks_that_git_would_run_are_protected() {
    let project = Project::new(&[("home/", "")]);
    project.git("w/.git");
    let mut seed = Seed(0x5eed_0002);
    let (mut found, mut weakened) = (0, 0);
    for number in 0..300 {
        for file in ["w/.git/config", "w/a.cfg", "w/sub/b.cfg", "home/.gitconfig"] {
            let mut text = seed.file();
            for _ in 0..seed.next(3) {
                let condition = seed.pick(&[
                    b"[include]",
                    b"[Include]",
                    b"[includeIf \"gitdir:**\"]",
                    b"[includeIf \"gitdir/i:/**/.GIT\"]",
                    b"[INCLUDEIF \"onbranch:ma*\"]",
                    b"[includeIf \"hasconfig:remote.*.url:x\"]",
                ]);
                let path = seed.pick(&[
                    b"path = ../a.cfg",
                    b"PATH=\"sub/b.cfg\" ; x",
                    b"path = sub/../sub/\\\nb.cfg",
                    b"path = ~/../w/a.cfg",
                    b"path = a.cfg",
                    b"path=../sub/b.cfg\r",
                    b"path = missing",
                ]);
                text.extend([b"\n", condition, b"\n\t", path, b"\n"].concat());
            }
            project.write(file, "");
            fs::write(project.root.join(file), text).unwrap();
        }
        let Some(output) = git(&project, &["config", "--list", "--show-origin", "-z"]) else { return };
        let home = project.root.join("home");
        let top = project.root.join("w");
        let (rules, suspicions) = protect(&top, &home, &Outer::new(&home, &BTreeMap::new()));
        if suspicions.iter().any(Suspicion::weakens) {
            weakened += 1;
            continue;
        }
        let says = String::from_utf8_lossy(&output.stderr);
        // Files that include each other stop git.
        assert!(output.status.success() || says.contains("maximum include depth"), "{number}: {says}");
        for (name, value) in settings(&output.stdout) {
            let (b"core.hookspath" | b"init.templatedir", Some(value)) = (name.as_slice(), value) else { continue };
            if value.is_empty() || value.as_bytes().starts_with(b"~") {
                continue;
            }
            let path = normalise(&top.join(value));
            let held = |(_, rule, _): &Found| path.starts_with(rule);
            assert!(path == top || rules.iter().any(held), "{number}: {}: {rules:?}", path.display());
            found += 1;
        }
    }
    assert!(found > 60 && weakened > 20, "{found} {weakened}");
}
