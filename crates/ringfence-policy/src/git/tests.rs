//! Repositories of every kind, and the rules that they get.

mod differential;

use super::*;

struct Project {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Project {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let project = Project { _dir: dir, root };
        for (name, text) in files {
            project.write(name, text);
        }
        project
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        if let Some(dir) = name.strip_suffix('/') {
            fs::create_dir_all(self.root.join(dir)).unwrap();
            return;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("ROOT", self.root.to_str().unwrap())).unwrap();
    }

    fn git(&self, at: &str) {
        for (name, text) in [("HEAD", "ref: refs/heads/main\n"), ("config", "[core]\n\tbare = false\n")] {
            self.write(&format!("{at}/{name}"), text);
        }
        for dir in ["objects/info/", "refs/heads/", "refs/tags/", "hooks/", "info/"] {
            self.write(&format!("{at}/{dir}"), "");
        }
    }

    fn rules(&self, workdir: &str) -> (Vec<String>, Vec<Suspicion>) {
        let (found, suspicions) = {
            let home = self.root.join("home");
            protect(&self.root.join(workdir), &home, &Outer::new(&home, &BTreeMap::new()))
        };
        (self.text(&found), suspicions)
    }

    fn text(&self, found: &[Found]) -> Vec<String> {
        let line = |(access, path, missing): &Found| {
            let mark = match missing {
                Missing::Ignore | Missing::Make => "?",
                Missing::Protect(Kind::Dir) => "/",
                Missing::Protect(Kind::File) | Missing::ProtectText(_) => "",
                Missing::Fail => "!",
            };
            let path = path.strip_prefix(&self.root).unwrap().as_os_str().to_str().unwrap();
            // As text: `Path` does not tell a slash at the end.
            assert!(!path.ends_with('/') && !path.contains("/./") && !path.contains(".."), "{path}");
            format!("{access} {path}{mark}")
        };
        found.iter().map(line).collect()
    }
}

#[test]
fn ordinary_repository() {
    let project = Project::new(&[]);
    project.git("w/.git");
    insta::assert_debug_snapshot!(project.rules("w"), @r#"
    (
        [
            "ro w/.git/config",
            "ro w/.git/config.worktree",
            "ro w/.git/hooks/",
            "ro w/.git/remotes/",
            "ro w/.git/branches/",
            "ro w/.git/commondir",
            "ro w/.git/info/attributes",
            "ro w/.git/objects/info/alternates",
            "ro w/.git/modules/",
            "ro w/refs/",
            "ro w/commondir/",
        ],
        [],
    )
    "#);
}

#[test]
fn no_repository_cannot_become_one() {
    let project = Project::new(&[("w/", "")]);
    assert_eq!(project.rules("w").0, ["ro w/.git/", "ro w/HEAD/"]);
}

#[test]
fn directory_of_a_repository() {
    let project = Project::new(&[("p/src/", "")]);
    project.git("p/.git");
    let (rules, _) = project.rules("p/src");
    assert_eq!(rules[..2], ["ro p/src/.git/", "rw p/.git?"]);
    assert!(rules.contains(&"ro p/.git/hooks/".to_owned()));
    // Home's own repository is not a project's.
    let project = Project::new(&[("home/p/", "")]);
    project.git("home/.git");
    assert_eq!(project.rules("home/p").0, ["ro home/p/.git/", "ro home/p/HEAD/"]);
}

#[test]
fn linked_worktree() {
    let project = Project::new(&[
        ("main/.git/worktrees/w/gitdir", "ROOT/w/.git\n"),
        ("main/.git/worktrees/w/commondir", "../..\n"),
        ("main/.git/worktrees/other/gitdir", "ROOT/other/.git\n"),
        ("w/.git", "gitdir: ROOT/main/.git/worktrees/w\n"),
    ]);
    project.git("main/.git");
    insta::assert_debug_snapshot!(project.rules("w"), @r#"
    (
        [
            "ro w/.git",
            "rw main/.git?",
            "ro main/.git/HEAD?",
            "ro main/.git/index?",
            "ro main/.git/ORIG_HEAD?",
            "ro main/.git/MERGE_HEAD?",
            "ro main/.git/config",
            "ro main/.git/config.worktree",
            "ro main/.git/hooks/",
            "ro main/.git/remotes/",
            "ro main/.git/branches/",
            "ro main/.git/commondir",
            "ro main/.git/info/attributes",
            "ro main/.git/objects/info/alternates",
            "ro main/.git/worktrees/w/commondir?",
            "ro main/.git/worktrees/w/gitdir?",
            "ro main/.git/worktrees/w/config.worktree",
            "ro main/.git/worktrees/other?",
            "ro main/.git/modules/",
            "ro w/refs/",
            "ro w/commondir/",
        ],
        [],
    )
    "#);
    // From the main worktree both are linked ones, whose pointers are kept.
    let (rules, _) = project.rules("main");
    assert!(rules.contains(&"ro main/.git/worktrees/other/gitdir?".to_owned()));
}

/// A box can make as many as it likes, to make the next start slow or to have some forgotten.
#[test]
fn very_many_worktrees() {
    let project = Project::new(&[
        ("w/.git/worktrees/zz/gitdir", "ROOT/w/in/.git\n"),
        ("w/.git/worktrees/own/gitdir", "ROOT/linked/.git\n"),
        ("w/.git/worktrees/own/commondir", "../..\n"),
        ("linked/.git", "gitdir: ROOT/w/.git/worktrees/own\n"),
    ]);
    project.git("w/.git");
    let more = |numbers: std::ops::Range<usize>| {
        numbers.for_each(|n| fs::create_dir(project.root.join(format!("w/.git/worktrees/{n}"))).unwrap());
    };
    more(0..MOST_WORKTREES);
    let (rules, suspicions) = project.rules("w");
    let of_worktrees = |rules: &[String]| {
        rules.iter().filter(|rule| rule.contains("worktrees") || rule.contains("w/in")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_worktrees(&rules), ["ro w/.git/worktrees?", "ro w/in/.git?"]);
    assert_eq!(suspicions, []);
    let own = ["ro w/.git/worktrees?", "rw w/.git/worktrees/own?"];
    let pointers = ["commondir?", "gitdir?", "config.worktree"].map(|name| format!("ro w/.git/worktrees/own/{name}"));
    let linked = || of_worktrees(&project.rules("linked").0);
    assert_eq!(linked()[..2], own);
    assert_eq!(linked()[2..], pointers);
    more(MOST_WORKTREES..MOST_DIRECTORIES);
    assert_eq!(linked()[2..], pointers);
    let (rules, suspicions) = project.rules("w");
    assert!(rules.contains(&"ro w/.git/worktrees?".to_owned()) && rules.len() < 20, "{rules:?}");
    assert_eq!(suspicions, [Suspicion::Worktrees(project.root.join("w/.git/worktrees"))]);
}

#[test]
fn planted_pointers_grant_nothing() {
    let victim = |project: &Project| project.git("victim/.git");
    let table: &[&[(&str, &str)]] = &[
        &[("w/.git", "gitdir: ROOT/victim/.git\n")],
        &[("w/.git", "gitdir: ../victim/.git")],
        &[("w/.git", "gitdir: /nonexistent\n")],
        // Points into the project, which names the victim as its common directory.
        &[("w/.git", "gitdir: own\n"), ("w/own/gitdir", "ROOT/w/.git\n"), ("w/own/commondir", "ROOT/victim/.git\n")],
        // A worktree of the victim, but not this one.
        &[
            ("w/.git", "gitdir: ROOT/victim/.git/worktrees/x\n"),
            ("victim/.git/worktrees/x/gitdir", "ROOT/x/.git\n"),
            ("victim/.git/worktrees/x/commondir", "../..\n"),
            ("x/.git", "gitdir: ROOT/victim/.git/worktrees/x\n"),
        ],
    ];
    for files in table {
        let project = Project::new(files);
        victim(&project);
        let (rules, suspicions) = project.rules("w");
        assert!(rules[0] == "ro w/.git" && rules.iter().all(|rule| rule.starts_with("ro w/")), "{files:?} {rules:?}");
        assert!(matches!(suspicions[..], [Suspicion::PlantedPointer { .. }]), "{suspicions:?}");
    }
    let project = Project::new(&[("w/.git", "nonsense")]);
    assert!(matches!(project.rules("w").1[..], [Suspicion::BadPointer(_)]));
    let project = Project::new(&[("w/", "")]);
    victim(&project);
    std::os::unix::fs::symlink(project.root.join("victim/.git"), project.root.join("w/.git")).unwrap();
    assert!(matches!(project.rules("w").1[..], [Suspicion::Link(_)]));
}

#[test]
fn submodules_both_ways() {
    let project = Project::new(&[
        ("w/sub/.git", "gitdir: ../.git/modules/sub\n"),
        ("w/.gitmodules", "[submodule \"old\"]\n\tpath = old\n[submodule \"up\"]\n\tpath = ../../x\n"),
    ]);
    project.git("w/.git");
    project.git("w/.git/modules/sub");
    project.git("w/.git/modules/sub/modules/deep");
    project.git("w/old/.git");
    project.write("w/.git/modules/sub/config", "[core]\n\tworktree = ../../../sub\n");
    let (rules, _) = project.rules("w");
    for expected in [
        "ro w/.git/modules/sub/config",
        "ro w/.git/modules/sub/hooks/",
        "ro w/.git/modules/sub/modules/deep/hooks/",
        "ro w/sub/.git?",
        "ro w/old/.git/config",
    ] {
        assert!(rules.contains(&expected.to_owned()), "{expected} in {rules:#?}");
    }
    let (rules, suspicions) = project.rules("w/sub");
    assert_eq!(rules[..2], ["ro w/sub/.git", "rw w/.git/modules/sub?"]);
    assert!(suspicions.is_empty());
}

#[test]
fn configured_hooks_and_includes() {
    let project = Project::new(&[
        ("home/.gitconfig", "[core]\n hooksPath = .githooks\n"),
        ("w/shared.cfg", "[core]\n\thookspath = \"deep/hooks\" ; note\n"),
        ("w/deep/", ""),
    ]);
    project.git("w/.git");
    project.write("w/.git/config", "[include]\n\tpath = ../shared.cfg\n[includeIf \"x]\"] path = ~/none\n");
    let (rules, _) = project.rules("w");
    for expected in ["ro w/shared.cfg", "ro w/deep/hooks/", "ro w/.githooks/"] {
        assert!(rules.contains(&expected.to_owned()), "{expected} in {rules:#?}");
    }
    // A hooks path that is elsewhere is not exposed.
    project.write("w/.git/config", "[core]\n\thooksPath = /etc/hooks\n");
    assert!(!project.rules("w").0.iter().any(|r| r.contains("etc")));
}

#[test]
fn hooks_of_the_outer_configuration() {
    let project = Project::new(&[
        ("global", "[core]\n hooksPath = hooks-global\n"),
        ("system", "[core]\n hooksPath = hooks-system\n"),
        ("xdg/git/config", "[core]\n hooksPath = hooks-xdg\n"),
        ("home/.gitconfig", "[core]\n hooksPath = hooks-home\n"),
        ("w/mine", "[core]\n hooksPath = hooks-link\n"),
    ]);
    project.git("w/.git");
    let home = project.root.join("home");
    let value = |name: &str| OsString::from(project.root.join(name));
    let env = BTreeMap::from([
        ("GIT_CONFIG_GLOBAL".into(), value("global")),
        ("GIT_CONFIG_SYSTEM".into(), value("system")),
        ("XDG_CONFIG_HOME".into(), value("xdg")),
    ]);
    let rules = |env: &BTreeMap<OsString, OsString>| {
        project.text(&protect(&project.root.join("w"), &home, &Outer::new(&home, env)).0)
    };
    for name in ["global", "system", "xdg", "home"] {
        let expected = format!("ro w/hooks-{name}/");
        assert!(rules(&env).contains(&expected), "{expected} in {:#?}", rules(&env));
    }
    assert!(outer_files(&home, &BTreeMap::new()).contains(&PathBuf::from("/etc/gitconfig")));
    // Dotfiles that are the project: the file itself, and what it says.
    fs::remove_file(home.join(".gitconfig")).unwrap();
    std::os::unix::fs::symlink("../w/mine", home.join(".gitconfig")).unwrap();
    for expected in ["ro w/mine", "ro w/hooks-link/"] {
        assert!(rules(&BTreeMap::new()).contains(&expected.to_owned()), "{expected}");
    }
}

#[test]
fn hooks_and_includes_of_variables() {
    let project = Project::new(&[("w/mine", "[core]\n hooksPath = hooks-included\n")]);
    project.git("w/.git");
    let home = project.root.join("home");
    let mine = project.root.join("w/mine").display().to_string();
    let env = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.into(), v.into())).collect::<BTreeMap<_, _>>();
    let pairs = [
        ("GIT_CONFIG_COUNT", "2"),
        ("GIT_CONFIG_KEY_0", "Core.hooksPath"),
        ("GIT_CONFIG_VALUE_0", "hooks-pair"),
        ("GIT_CONFIG_KEY_1", "includeIf.onbranch:x.y.path"),
        ("GIT_CONFIG_VALUE_1", &mine),
        ("GIT_CONFIG_KEY_2", "core.hooksPath"),
        ("GIT_CONFIG_VALUE_2", "hooks-beyond"),
    ];
    let old = format!("'core.hooksPath=hooks it'\\''s' 'include.path={mine}'");
    let new = "'a.b'='c' 'core.hookspath'='hooks new'";
    let table: [(_, &[&str]); 3] = [
        (env(&pairs), &["ro w/hooks-pair/", "ro w/mine", "ro w/hooks-included/"]),
        (env(&[("GIT_CONFIG_PARAMETERS", &old)]), &["ro w/hooks it's/", "ro w/mine", "ro w/hooks-included/"]),
        (env(&[("GIT_CONFIG_PARAMETERS", new)]), &["ro w/hooks new/"]),
    ];
    for (env, expected) in table {
        let rules = project.text(&protect(&project.root.join("w"), &home, &Outer::new(&home, &env)).0);
        for expected in expected {
            assert!(rules.contains(&(*expected).to_owned()), "{expected} in {rules:#?}");
        }
        assert!(!rules.iter().any(|rule| rule.contains("beyond")), "{rules:#?}");
    }
}

#[test]
fn repositories_that_the_index_names_and_that_were_changed() {
    let project = Project::new(&[("w/sub/x", ""), ("w/old/x", ""), ("w/plain/x", "")]);
    let run = |text: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", text]).current_dir(project.root.join("w")).env("HOME", &project.root);
        command.status().is_ok_and(|status| status.success())
    };
    let link = "update-index --add --cacheinfo 160000,4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    if !run(&format!("git init -q .; git init -q old; git {link},old; git {link},sub; git {link},none")) {
        return;
    }
    std::thread::sleep(Duration::from_millis(50));
    let since = SystemTime::now();
    std::thread::sleep(Duration::from_millis(50));
    let changed = || changed_since(&project.root.join("w"), &project.root, since);
    let these = |names: &[&str]| Changed {
        repositories: names.iter().map(|name| project.root.join(name).join(".git")).collect(),
        ..Changed::default()
    };
    assert_eq!(changed(), these(&[]));
    // One that the index does not name, one that it does, one whose hooks were changed, one moved to its place.
    assert!(run("git init -q plain; git init -q sub"));
    assert_eq!(changed(), these(&["w/plain", "w/sub"]));
    assert!(run("echo x > old/.git/hooks/post-checkout; mkdir none; mv plain/.git none/.git"));
    assert_eq!(changed(), these(&["w/none", "w/old", "w/sub"]));
}

/// What git is led to after a sandbox broke `.git`, and repositories that no index names.
#[test]
fn repositories_that_appear() {
    let init = "git init -q --template=";
    let table: &[(&str, &str, &[&str])] = &[
        ("mkdir -p a/b", "git init -q a/b", &["w/a/b/.git"]),
        ("mkdir -p a", "git init -q --bare a/bare", &["w/a/bare"]),
        // Its objects are in another one.
        (
            "git init -q --bare c; touch c/x",
            "mkdir a; echo ref: refs/heads/x >a/HEAD; echo ../c >a/commondir",
            &["w/a"],
        ),
        // In its place without a new file: the parts in one run, the name in the next.
        ("mkdir a; git init -q x; mv x/.git a/dotgit; rm -r x", "mv a/dotgit a/.git", &["w/a/.git"]),
        ("mkdir -p a; git init -q a", "echo x >>a/.git/hooks/pre-commit", &["w/a/.git"]),
        ("mkdir -p a; git init -q a; echo x >a/.git/hooks/h", "echo y >>a/.git/hooks/h", &["w/a/.git"]),
        ("mkdir -p a; git init -q a", "git -C a config x.y z", &["w/a/.git"]),
        ("mkdir -p a", "echo gitdir: /somewhere >a/.git", &["w/a/.git"]),
        // What an ordinary commit does.
        ("git init -q a; touch a/f; mkdir a/src", "touch a/g a/src/f; git -C a add .", &[]),
        ("mkdir a", "echo x >a/HEAD; mkdir a/objects", &[]),
    ];
    for (before, after, expected) in table {
        let project = Project::new(&[("w/", "")]);
        let run = |text: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-ec", text]).current_dir(project.root.join("w")).env("HOME", &project.root);
            command.status().is_ok_and(|status| status.success())
        };
        if !run(&format!("{init} .")) {
            return;
        }
        assert!(run(before), "{before}");
        std::thread::sleep(Duration::from_millis(50));
        let since = SystemTime::now();
        std::thread::sleep(Duration::from_millis(50));
        let changed = || changed_since(&project.root.join("w"), &project.root, since);
        assert_eq!(changed(), Changed::default(), "{before}");
        assert!(run(after), "{after}");
        let repositories = expected.iter().map(|name| project.root.join(name)).collect();
        assert_eq!(changed(), Changed { repositories, ..Changed::default() }, "{after}");
    }
}

#[test]
fn a_repository_that_was_broken_is_named() {
    for (break_it, fix) in [
        ("mv .git/HEAD .git/h", "mv .git/h .git/HEAD"),
        ("echo nonsense >.git/HEAD", "echo ref: refs/heads/main >.git/HEAD"),
        ("mv .git/refs .git/r", "mv .git/r .git/refs"),
        ("chmod 0 .git/objects; test -x .git/objects && mv .git/objects .git/o", "mv .git/o .git/objects"),
    ] {
        let project = Project::new(&[("w/", "")]);
        project.git("w/.git");
        std::thread::sleep(Duration::from_millis(50));
        let since = SystemTime::now();
        std::thread::sleep(Duration::from_millis(50));
        let run = |text: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", text]).current_dir(project.root.join("w")).status().unwrap();
        };
        let broken = || changed_since(&project.root.join("w"), &project.root, since).broken;
        assert_eq!(broken(), None);
        run(break_it);
        if break_it.starts_with("chmod") && !project.root.join("w/.git/o").exists() {
            continue;
        }
        assert_eq!(broken(), Some(project.root.join("w/.git")), "{break_it}");
        let warnings = changed_since(&project.root.join("w"), &project.root, since).warnings();
        assert!(warnings[0].contains("no repository any more"), "{warnings:?}");
        run(fix);
        assert_eq!(broken(), None, "{fix}");
    }
}

/// What a box did so that the end of the run would not name a repository that `git status` goes into.
#[test]
fn indexes_made_to_be_misread() {
    let link = "git update-index --add --cacheinfo 160000,4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    let decoys = "for n in $(seq 5000); do printf '160000 4b825dc642cb6eb9a060e54bf8d69288fbee4904\\ta%04d\\n' $n; done \
                  | git update-index --index-info";
    let (evil, module, index) = (&["w/evil/.git"][..], &["w/.git/modules/evil"][..], &["w/.git/index"][..]);
    let table: [(&str, &str, &[&str], &[&str]); 8] = [
        // The repository in one run, the gitlink in the next.
        ("git init -q evil", &format!("{link},evil"), evil, &[]),
        ("", "echo x >file; git add file; git init -q other", &["w/other/.git"], &[]),
        ("", &format!("{link},evil; git init -q evil; mv .git/index .git/i; ln -s i .git/index"), evil, index),
        ("", &format!("{link},evil; git init -q evil; truncate -s -4 .git/index"), evil, index),
        (
            "",
            &format!(
                "for n in $(seq 40); do echo x >.git/sharedindex.$n; done; git init -q evil; {link},evil; \
                 git update-index --split-index; rm .git/sharedindex.?; test $(ls .git | grep -c shared) -gt 30"
            ),
            evil,
            &[],
        ),
        ("", &format!("{decoys}; {link},evil; git init -q evil"), evil, index),
        // In a repository that the index names, another.
        (
            &format!("git init -q mid; {link},mid"),
            &format!("cd mid; {link},evil; git init -q evil"),
            &["w/mid/evil/.git"],
            &[],
        ),
        // What `git submodule update` takes for the submodule that it was to fetch.
        ("mkdir .git/modules", "git init -q new; mv new/.git .git/modules/evil", module, &[]),
    ];
    for (before, after, repositories, unread) in table {
        let project = Project::new(&[("w/", "")]);
        let run = |text: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-ec", text]).current_dir(project.root.join("w")).env("HOME", &project.root);
            command.status().is_ok_and(|status| status.success())
        };
        if !run("git init -q .") {
            return;
        }
        assert!(run(before), "{before}");
        std::thread::sleep(Duration::from_millis(50));
        let since = SystemTime::now();
        std::thread::sleep(Duration::from_millis(50));
        let changed = || changed_since(&project.root.join("w"), &project.root, since);
        assert_eq!(changed(), Changed::default(), "{before}");
        assert!(run(after), "{after}");
        let paths = |names: &[&str]| names.iter().map(|name| project.root.join(name)).collect::<Vec<_>>();
        let (repositories, unread) = (paths(repositories), paths(unread));
        assert_eq!(changed(), Changed { repositories, unread, ..Changed::default() }, "{after}");
    }
}

/// Pointing back shows only that a process could write there. Each was planted by a box in the directory above.
#[test]
fn pointers_to_what_is_no_git_directory_grant_nothing() {
    let is_refused = |project: &Project, workdir: &str| {
        let (rules, suspicions) = project.rules(workdir);
        let outside: Vec<_> = rules.iter().filter(|rule| !rule.starts_with(&format!("ro {workdir}/"))).collect();
        assert!(outside.is_empty(), "{outside:?}");
        assert!(matches!(suspicions[..], [Suspicion::NotOwn { .. }]), "{suspicions:?}");
    };
    for (target, at) in [("..", "a"), ("../tools", "a/tools"), ("../../.claude", ".claude"), ("../x.git", "a/x.git")] {
        // As a submodule has it.
        let project = Project::new(&[("a/sub/.git", &format!("gitdir: {target}\n"))]);
        project.git(at);
        project.write(&format!("{at}/config"), "[core]\n\thooksPath = hooks-of-it\n\tworktree = ROOT/a/sub\n");
        is_refused(&project, "a/sub");
        // Git uses its configuration all the same.
        assert!(project.rules("a/sub").0.contains(&"ro a/sub/hooks-of-it/".to_owned()));
        project.write("a/sub/deeper/", "");
        is_refused(&project, "a/sub/deeper");
        // As a worktree has it.
        let project = Project::new(&[
            ("a/sub/.git", &format!("gitdir: {target}/worktrees/w\n")),
            (&format!("{at}/worktrees/w/gitdir"), "ROOT/a/sub/.git\n"),
            (&format!("{at}/worktrees/w/commondir"), "../..\n"),
        ]);
        project.git(at);
        project.write(&format!("{at}/config"), "[core]\n\thooksPath = hooks-of-it\n");
        is_refused(&project, "a/sub");
        assert!(project.rules("a/sub").0.contains(&"ro a/sub/hooks-of-it/".to_owned()));
    }
    // The working directory lies in the repository's own directory.
    let project = Project::new(&[("a/.git/modules/x/.git", "gitdir: ..\n")]);
    project.git("a/.git/modules");
    project.write("a/.git/modules/config", "[core]\n\tworktree = x\n");
    is_refused(&project, "a/.git/modules/x");

    // Those that git itself makes.
    let project = Project::new(&[("a/sub/.git", "gitdir: ../.git/modules/deep/sub\n")]);
    project.git("a/.git");
    project.git("a/.git/modules/deep/sub");
    project.write("a/.git/modules/deep/sub/config", "[core]\n\tworktree = ROOT/a/sub\n");
    let (rules, suspicions) = project.rules("a/sub");
    assert!(rules.contains(&"rw a/.git/modules/deep/sub?".to_owned()) && suspicions.is_empty(), "{rules:?}");
}

/// As a user can plant it in a directory that all may write to.
#[test]
fn repositories_of_another_user_grant_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let project = Project::new(&[("shared/w/.git", "gitdir: ../.git/modules/w\n")]);
    project.git("shared/.git/modules/w");
    project.write("shared/.git/modules/w/config", "[core]\n\tworktree = ROOT/shared/w\n");
    let grants = || project.rules("shared/w").0.contains(&"rw shared/.git/modules/w?".to_owned());
    let give = |name: &str, user| std::os::unix::fs::chown(project.root.join(name), Some(user), None).unwrap();
    assert!(grants());
    for name in ["HEAD", "config"].map(|name| format!("shared/.git/modules/w/{name}")) {
        give(&name, 4321);
        assert!(!grants(), "{name}");
        // To the same user the working directory belongs.
        give("shared/w", 4321);
        assert!(grants());
        give("shared/w", 0);
        give(&name, 0);
    }
}

/// With `.git` broken, git takes the directory itself for the repository, with a configuration that a box wrote.
#[test]
fn a_broken_repository_leaves_no_bare_one() {
    for name in ["refs", "objects"] {
        let project = Project::new(&[("w/deep/", "")]);
        project.git("w/.git");
        let place = match name {
            "refs" => "w",
            _ => "w/deep",
        };
        if name == "objects" {
            project.write(&format!("{place}/refs/x"), "");
        }
        let (rules, _) = project.rules(place);
        for held in [name, "commondir"] {
            assert!(rules.contains(&format!("ro {place}/{held}/")), "{rules:?}");
        }
        // With it, `git diff HEAD` would mean two things.
        assert!(!rules.iter().any(|rule| rule.starts_with(&format!("ro {place}/HEAD"))), "{rules:?}");
    }
    // Another box's placeholder.
    let project = Project::new(&[("w/refs/", ""), ("w/commondir/", "")]);
    project.git("w/.git");
    assert!(project.rules("w").0.contains(&"ro w/refs/".to_owned()));
    // What a bare one needs is elsewhere.
    project.write("v/commondir", "deep\n");
    project.git("v/.git");
    assert!(project.rules("v").0.contains(&"ro v/HEAD/".to_owned()));
    // A project without a repository has a `HEAD` already, and only lacks the rest.
    let project = Project::new(&[("w/HEAD", "ref: refs/heads/x\n")]);
    let (rules, _) = project.rules("w");
    assert_eq!(rules, ["ro w/.git/", "ro w/refs/", "ro w/commondir/"]);
    // One whose objects and configuration are elsewhere in it.
    let project = Project::new(&[("w/HEAD", "ref: refs/heads/x\n"), ("w/commondir", "deep\n")]);
    project.git("w/deep");
    let (rules, _) = project.rules("w");
    for held in ["ro w/.git/", "ro w/commondir", "ro w/hooks/", "ro w/deep/config", "ro w/deep/hooks/"] {
        assert!(rules.contains(&held.to_owned()), "{held}: {rules:?}");
    }
    // Both are taken: what would make it execute something.
    let project = Project::new(&[("w/refs/x", ""), ("w/objects/x", "")]);
    project.git("w/.git");
    let (rules, _) = project.rules("w");
    for held in ["ro w/config", "ro w/config.worktree", "ro w/hooks/", "ro w/commondir"] {
        assert!(rules.contains(&held.to_owned()), "{rules:?}");
    }
}

#[test]
fn outer_configuration_that_lies_in_the_project() {
    for repository in [true, false] {
        let project = Project::new(&[("w/conf/gitconfig", "[core]\n\thooksPath = ROOT/w/gh\n"), ("w/xdg/", "")]);
        if repository {
            project.git("w/.git");
        }
        let home = project.root.join("home");
        let in_project = |name: &str| project.root.join("w").join(name).into_os_string();
        let env = BTreeMap::from([
            ("GIT_CONFIG_GLOBAL".into(), in_project("conf/gitconfig")),
            ("GIT_CONFIG_SYSTEM".into(), "system".into()),
            ("XDG_CONFIG_HOME".into(), in_project("xdg")),
        ]);
        let rules = project.text(&protect(&project.root.join("w"), &home, &Outer::new(&home, &env)).0);
        for expected in ["ro w/conf/gitconfig", "ro w/gh/", "ro w/system", "ro w/xdg/git/"] {
            assert!(rules.contains(&expected.to_owned()), "{expected}: {rules:?}");
        }
    }
    // The user's configuration is the project.
    let project = Project::new(&[("home/.config/git/config", "[core]\n\thooksPath = ~/.config/git/hooks\n")]);
    let (rules, _) = project.rules("home/.config");
    for expected in ["ro home/.config/git/config", "ro home/.config/git/hooks/"] {
        assert!(rules.contains(&expected.to_owned()), "{expected}: {rules:?}");
    }
    assert!(!project.rules("home/.cargo").0.iter().any(|rule| rule.contains("config")));
}

#[test]
fn submodules_that_are_not_there_yet() {
    let project = Project::new(&[(
        "w/.gitmodules",
        "[submodule \"lib/a\"]\n\tpath = a\n[submodule \"../../x\"]\n\tpath = x\n[submodule \"b\"]\n\tpath = b\n",
    )]);
    project.git("w/.git");
    // No submodule has a directory: none can be made.
    let held = || -> Vec<String> { project.rules("w").0.into_iter().filter(|rule| rule.contains("modules")).collect() };
    assert_eq!(held(), ["ro w/.git/modules/"]);
    project.git("w/.git/modules/b");
    let rules = held();
    assert!(rules.contains(&"ro w/.git/modules/lib/".to_owned()), "{rules:?}");
    assert!(rules.contains(&"ro w/.git/modules/b/config".to_owned()), "{rules:?}");
    assert!(!rules.iter().any(|rule| rule.contains('x') || rule == "ro w/.git/modules/"), "{rules:?}");
}

/// The janitor's list of held names is bounded.
#[test]
fn very_many_submodules() {
    let project = Project::new(&[]);
    project.git("w/.git");
    let more = |numbers: std::ops::Range<usize>| {
        numbers.for_each(|n| project.write(&format!("w/.git/modules/{}{n:03}/config", "m".repeat(200)), ""));
    };
    more(0..10);
    assert!(project.rules("w").0.iter().any(|rule| rule.contains("m009/config.worktree")));
    more(10..250);
    // Worktrees, and submodules of old.
    let mut listed = String::new();
    for n in 0..250 {
        let long = format!("{}{n:03}", "m".repeat(200));
        project.write(&format!("w/.git/worktrees/{long}/"), "");
        project.write(&format!("w/{long}/.git/config"), "");
        listed += &format!("[submodule \"{n}\"]\n\tpath = {long}\n");
    }
    project.write("w/.gitmodules", &listed);
    let place = project.root.join("w");
    let (found, suspicions) = protect(&place, &project.root, &Outer::default());
    let is_held = |(_, path, missing): &&Found| *missing != Missing::Ignore && !path.exists();
    let held: usize = found.iter().filter(is_held).map(|(_, path, _)| path.as_os_str().len() + 2).sum();
    assert!(held < 60 << 10, "{held}");
    let rules = project.text(&found);
    for all in ["modules/", "worktrees?"] {
        assert!(rules.contains(&format!("ro w/.git/{all}")), "{all}");
    }
    let last = format!("ro w/{}249/.git?", "m".repeat(200));
    assert!(rules.contains(&last) && suspicions.is_empty(), "{suspicions:?}");
}

#[test]
fn programs_that_configuration_names() {
    let project = Project::new(&[
        ("w/tools/monitor", ""),
        ("w/tools/my filter", ""),
        ("w/filter.py", ""),
        ("w/tools/global", ""),
        ("w/ignored", ""),
        ("w/plain", ""),
    ]);
    project.git("w/.git");
    let executable = |name: &str| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(project.root.join(name), mode).unwrap();
    };
    ["w/tools/monitor", "w/tools/my filter", "w/tools/global", "w/plain"].into_iter().for_each(executable);
    project.write(
        "w/.git/config",
        concat!(
            "[core]\n\tfsmonitor = tools/monitor\n\texcludesFile = ./ignored\n",
            "[filter \"a\"]\n\tclean = \"\\\"tools/my filter\\\" %f\"\n\tsmudge = python3 -u filter.py %f\n",
            "[diff \"b\"]\n\tcommand = cat plain\n[alias]\n\tx = !tools/missing\n",
        ),
    );
    project.write("home/.gitconfig", "[gpg]\n\tprogram = ROOT/w/tools/global\n");
    let (rules, _) = project.rules("w");
    for name in ["tools/monitor", "tools/my filter", "filter.py", "tools/global"] {
        assert!(rules.contains(&format!("ro w/{name}?")), "{name}: {rules:?}");
    }
    // Neither data, nor what a program from elsewhere reads.
    for name in ["ignored", "plain", "missing"] {
        assert!(!rules.iter().any(|rule| rule.contains(name)), "{name}: {rules:?}");
    }
}

#[test]
fn strict_keeps_the_other_branches() {
    let project = Project::new(&[]);
    project.git("w/.git");
    for branch in ["main", "other", "topic/a"] {
        project.write(&format!("w/.git/refs/heads/{branch}"), "0\n");
    }
    project.write("w/.git/packed-refs", "# pack-refs\n0 refs/heads/packed\n0 refs/heads/main\n0 refs/tags/v1\n");
    let (found, _) = protect_refs(&project.root.join("w"), &project.root.join("home"));
    assert_eq!(
        project.text(&found),
        [
            "ro w/.git/refs/tags/",
            "ro w/.git/packed-refs",
            "ro w/.git/refs/heads/other/",
            "ro w/.git/refs/heads/packed/",
            "ro w/.git/refs/heads/topic/a/",
        ]
    );
}

/// The janitor's list of held names is bounded, and what does not fit is reported.
#[test]
fn strict_with_very_many_packed_branches() {
    let project = Project::new(&[]);
    project.git("w/.git");
    let line = |n: usize| format!("0 refs/heads/{}{n:04}\n", "b".repeat(40));
    for (branches, fits) in [(20, true), (2000, false)] {
        project.write("w/.git/packed-refs", &(0..branches).map(line).collect::<String>());
        let (found, suspicions) = protect_refs(&project.root.join("w"), &project.root.join("home"));
        let held: usize = found.iter().map(|(_, path, _)| path.as_os_str().len() + 2).sum();
        assert!(held < 13 << 10, "{held}");
        assert_eq!(suspicions.iter().any(Suspicion::weakens), !fits, "{suspicions:?}");
    }
}

#[test]
fn bare_repository() {
    let project = Project::new(&[]);
    project.git("w");
    assert!(project.rules("w").0.contains(&"ro w/hooks/".to_owned()));
}

#[test]
fn configuration_text() {
    let text = concat!(
        "[core]\n\thooksPath = a\\\nb\n\tbare\n[Core \"sub]\"] key = \"x # y\" # note\n",
        "; comment\n[section.sub]\nk = \"tail  \"  \n[x] Path=C:\\\\d\r\n"
    );
    let config = Config::parse(text.as_bytes());
    assert_eq!(config.last("core.hookspath"), Some(OsStr::new("ab")));
    assert!(config.entries.contains(&(b"core.bare".to_vec(), None)));
    assert_eq!(config.last("core.sub].key"), Some(OsStr::new("x # y")));
    assert_eq!(config.last("section.sub.k"), Some(OsStr::new("tail  ")));
    assert_eq!(config.last("x.path"), Some(OsStr::new("C:\\d")));
}

/// Each of these was a way to have something executed outside, found by attack.
#[test]
fn what_git_follows_is_protected_however_it_is_reached() {
    let has = |project: &Project, expected: &[&str]| {
        let (rules, _) = project.rules("w");
        for line in expected {
            assert!(rules.contains(&(*line).to_owned()), "{line}: {rules:?}");
        }
    };
    // What looks like a bare repository beside `.git` does not take its place.
    let project = Project::new(&[("w/HEAD", "x"), ("w/objects/", ""), ("w/refs/", "")]);
    project.git("w/.git");
    project.write("w/.git/config", "[core]\n\thooksPath = .githooks\n");
    has(&project, &["ro w/.git/config", "ro w/.git/hooks/", "ro w/.githooks/"]);
    // A bare one has hooks elsewhere too.
    let project = Project::new(&[]);
    project.git("w");
    project.write("w/config", "[core]\n\thooksPath = gh\n");
    has(&project, &["ro w/.git/", "ro w/config", "ro w/gh/"]);
    // A pointer to a repository in the project itself, as people lay out worktrees.
    let project = Project::new(&[("w/.git", "gitdir: ./.bare\n"), ("w/.bare/worktrees/a/gitdir", "ROOT/w/a/.git\n")]);
    project.git("w/.bare");
    project.write("w/a/.git", "gitdir: ROOT/w/.bare/worktrees/a\n");
    has(&project, &["ro w/.git", "ro w/.bare/config", "ro w/.bare/hooks/", "ro w/a/.git?"]);
    // Half a repository is read-only, and its hooks as well.
    let project = Project::new(&[("w/.git/config", "[core]\n\thooksPath = .githooks\n")]);
    has(&project, &["ro w/.git", "ro w/.githooks/"]);
    // Git takes an executable file for a directory that it can enter.
    let project =
        Project::new(&[("w/.git/HEAD", "ref: refs/heads/main\n"), ("w/.git/objects/", ""), ("w/.git/refs", "")]);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(project.root.join("w/.git/refs"), executable).unwrap();
    has(&project, &["ro w/.git/config", "ro w/.git/hooks/"]);
    // Names above the project that are links.
    let project = Project::new(&[("w/gh/", ""), ("w/cfg/git.cfg", "")]);
    std::os::unix::fs::symlink(&project.root, project.root.join("link")).unwrap();
    project.git("w/.git");
    let root = project.root.display();
    project.write(
        "w/.git/config",
        &format!("[core]\n\thooksPath = {root}/link/w/gh\n[include]\n\tpath = {root}/link/w/cfg/git.cfg\n"),
    );
    has(&project, &["ro w/gh/", "ro w/cfg/git.cfg"]);
    // Hooks that are links into the project.
    let project = Project::new(&[("w/scripts/pre-commit", "")]);
    project.git("w/.git");
    std::os::unix::fs::symlink("../../scripts/pre-commit", project.root.join("w/.git/hooks/pre-commit")).unwrap();
    has(&project, &["ro w/scripts/pre-commit?"]);
    // A chain of them, in a directory with very many entries.
    let project = Project::new(&[("w/scripts/pc", ""), ("w/one/", "")]);
    project.git("w/.git");
    for n in 0..1000 {
        project.write(&format!("w/.git/hooks/{n}"), "");
    }
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, project.root.join(at)).unwrap();
    link("../../one/pre-commit", "w/.git/hooks/pre-commit");
    link("../two", "w/one/pre-commit");
    link("dir/pc", "w/two");
    link("scripts", "w/dir");
    has(&project, &["ro w/one/pre-commit?", "ro w/two?", "ro w/dir?", "ro w/scripts/pc?"]);
    // Worktrees by names that are links.
    let project = Project::new(&[("w/real/.git", "gitdir: ROOT/w/.git/worktrees/a\n")]);
    project.git("w/.git");
    project.write("w/.git/worktrees/a/gitdir", "ROOT/w/link/../link/./.git\n");
    std::os::unix::fs::symlink("real", project.root.join("w/link")).unwrap();
    has(&project, &["ro w/link/.git?", "ro w/real/.git?"]);
    // A submodule that a box took something from, and submodules of old.
    let project =
        Project::new(&[("w/.git/modules/lib/config", ""), ("w/.gitmodules", "[submodule \"old\"]\n\tpath = old\n")]);
    project.git("w/.git");
    project.git("w/old/.git");
    let expected =
        ["ro w/.git/modules/lib/config", "ro w/.git/modules/lib/hooks/", "ro w/old/.git/config", "ro w/.gitmodules?"];
    has(&project, &expected);
}

/// Whatever stands between git and a file of its configuration, what the file names is protected, and each name on the way.
#[test]
fn configuration_behind_links() {
    let link = |to: &str, at: &Path| std::os::unix::fs::symlink(to, at).unwrap();
    let project =
        Project::new(&[("w/real.cfg", "[core]\n\thooksPath = gh\n"), ("w/dir/sub/", ""), ("w/dir/up.cfg", "")]);
    project.git("w/.git");
    let without = project.rules("w");
    project.write("w/.git/config", "[include]\n\tpath = ../inc\n\tpath = ../link/../up.cfg\n");
    link("second", &project.root.join("w/inc"));
    link("real.cfg", &project.root.join("w/second"));
    link("dir/sub", &project.root.join("w/link"));
    let (rules, suspicions) = project.rules("w");
    let more: Vec<&str> = rules.iter().filter(|rule| !without.0.contains(rule)).map(String::as_str).collect();
    let expected =
        ["ro w/dir/up.cfg", "ro w/gh/", "ro w/inc", "ro w/link", "ro w/real.cfg", "ro w/second", "ro w/up.cfg"];
    assert_eq!(BTreeSet::from_iter(more), BTreeSet::from(expected));
    assert_eq!((suspicions, without.1), (vec![], vec![]));

    // The repository's own configuration is a link.
    fs::remove_file(project.root.join("w/.git/config")).unwrap();
    link("../real.cfg", &project.root.join("w/.git/config"));
    let (rules, suspicions) = project.rules("w");
    assert!(rules.contains(&"ro w/gh/".to_owned()) && suspicions.is_empty(), "{rules:?} {suspicions:?}");

    // A link of home's that leads through another one in the project.
    fs::create_dir(project.root.join("home")).unwrap();
    link("../w/inc", &project.root.join("home/.gitconfig"));
    let (rules, _) = project.rules("w");
    for name in ["ro w/inc", "ro w/second", "ro w/real.cfg"] {
        assert!(rules.contains(&name.to_owned()), "{name}: {rules:?}");
    }
}

#[test]
fn configuration_that_cannot_be_read_is_reported() {
    let project = Project::new(&[]);
    project.git("w/.git");
    let reported = |config: &str| {
        project.write("w/.git/config", config);
        let (_, suspicions) = project.rules("w");
        assert!(suspicions.iter().all(Suspicion::weakens));
        suspicions.into_iter().map(|suspicion| suspicion.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(reported("[include]\n\tpath = missing\n\tpath = /dev/null\n"), Vec::<String>::new());
    let large = reported(&format!("[core]\n{}hooksPath = gh\n", " ".repeat(1 << 20)));
    assert!(matches!(&large[..], [one] if one.contains("cannot be read (file too large)")), "{large:?}");
    let many = reported(&format!("[include]\n{}", (0..100).map(|n| format!("path = {n}\n")).collect::<String>()));
    assert!(matches!(&many[..], [one] if one.contains("more names than are looked at")), "{many:?}");
    let unknown = reported("[include]\n\tpath = ~nobody-has-this-name/x\n");
    assert!(matches!(&unknown[..], [one] if one.contains("a place that is not known")), "{unknown:?}");
}

#[test]
fn paths_in_the_home_of_a_user() {
    let passwd = || b"root:x:0:0::/root:/bin/sh\nann:x:7:7:Ann,,:/home/ann:/bin/sh\n".to_vec();
    let table = [
        ("a", Some("/base/a")),
        ("/a", Some("/a")),
        ("~", Some("/home/me/")),
        ("~/a", Some("/home/me/a")),
        ("~ann/a", Some("/home/ann/a")),
        (":(optional)~ann//a", Some("/home/ann/a")),
        ("~bob/a", None),
        ("%(prefix)/../home/me/a", None),
    ];
    for (value, expected) in table {
        let found = path_of(OsStr::new(value), Path::new("/base"), Path::new("/home/me"), passwd);
        assert_eq!(found.as_deref(), expected.map(Path::new), "{value}");
    }
}
