//! The guard over tables of command lines; `real` holds it against the real git.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use super::{GitFacts, git, words};

mod real;

/// A repository in words: branches `main` (current), `old` (inside `main`) and `side` (not), tracked files `f`, `src/a.rs`.
#[derive(Default)]
struct Told {
    env: HashMap<String, String>,
    config: HashMap<String, String>,
    throwaway: bool,
    throwaway_remote: bool,
}

impl GitFacts for Told {
    fn env(&self, name: &str) -> Option<OsString> {
        self.env.get(name).map(OsString::from)
    }

    fn config(&self, _: &[OsString], key: &str) -> Option<OsString> {
        self.config.get(key).map(OsString::from)
    }

    fn is_revision(&self, _: &[OsString], word: &OsStr) -> bool {
        let word = word.to_str().unwrap();
        let branch = word.strip_prefix("refs/heads/").unwrap_or(word);
        ["main", "old", "side"].contains(&branch) || ["HEAD", "HEAD~1", "v1", "origin/main"].contains(&word)
    }

    fn is_ancestor(&self, _: &[OsString], commit: &OsStr, of: &OsStr) -> bool {
        let commit = commit.to_str().unwrap().strip_prefix("refs/heads/").unwrap();
        let of = of.to_str().unwrap();
        commit == of || commit == "old" || (commit == "main" && of == "HEAD")
    }

    fn is_tracked(&self, _: &[OsString], pathspec: &OsStr) -> bool {
        ["f", "src/a.rs", "src", ".", "*.rs", ":/", "main"].contains(&pathspec.to_str().unwrap())
    }

    fn is_throwaway(&self, at: &[OsString]) -> bool {
        self.throwaway || at.windows(2).any(|pair| pair[0] == "-C" && pair[1] == "/tmp/x")
    }

    fn is_throwaway_remote(&self, _: &[OsString], remote: Option<&OsStr>) -> bool {
        self.throwaway_remote || remote.is_some_and(|remote| remote == "/tmp/r.git")
    }
}

/// The words of `line`, which begins with `git`.
fn line(line: &str) -> Vec<OsString> {
    let mut words = words::split(OsStr::new(line)).expect(line);
    assert_eq!(words.remove(0), "git", "{line}");
    words
}

fn check(table: &str, facts: &Told, allowed: bool) -> usize {
    let rows: Vec<&str> = table.lines().map(str::trim).filter(|row| !row.is_empty()).collect();
    for row in &rows {
        let verdict = git(&line(row), facts);
        assert_eq!(verdict.is_allowed(), allowed, "{row}: {verdict:?}");
    }
    rows.len()
}

const REFUSED: &str = r#"
    git reset --hard
    git reset --hard HEAD~1
    git reset HEAD~1 --hard
    git reset -q --hard
    git reset --har
    git reset --h
    git reset --merge
    git reset --mer HEAD~1
    git -C dir reset --hard
    git --no-pager -C a -C b reset --hard
    git --git-dir=.git --work-tree=. reset --hard
    git --git-dir .git --work-tree . reset --hard
    git -p --bare --literal-pathspecs --namespace x --attr-source=HEAD reset --hard
    git -c a.b=c -P --exec-path=/x reset --hard
    git --some-future-flag reset --hard

    git clean -f
    git clean -fd
    git clean -dfx
    git clean -xdf
    git clean -d -f
    git clean --force
    git clean --forc -d
    git clean --f
    git clean -f -- src
    git clean -e -n -f
    git clean -fe -n
    git clean -i
    git clean -n --no-dry-run -f
    git -c clean.requireForce=false clean -d

    git push -f
    git push --force
    git push --forc
    git push origin main --force
    git push origin main -f
    git push -fu origin main
    git push -uf origin main
    git push --force --force-with-lease origin main
    git push --force-with-lease --force origin main
    git push --force-with-lease origin +main
    git push origin +main
    git push origin +main:main
    git push origin -- +main
    git push --repo=origin +HEAD
    git push --mirror
    git push --mir origin
    git push --delete origin side
    git push -d origin side
    git push origin --del side
    git push origin :side
    git push origin main :refs/heads/side
    git push --prune origin
    git push --no-verify
    git push --no-force --force
    git push -o --dry-run -f

    git branch -D side
    git branch -qD side
    git branch -Dr origin/side
    git branch -d -f side
    git branch -df side
    git branch -fd side
    git branch --delete --force side
    git branch side --delete --forc
    git branch -f side
    git branch -f side main
    git branch --force main v1
    git branch -M side
    git branch -M main side
    git branch -m --force main side
    git branch -C main side
    git branch -c -f main side

    git stash pop
    git stash pop --index stash@{1}
    git stash drop
    git stash drop stash@{0}
    git stash clear
    git -C x stash clear

    git checkout -- f
    git checkout -- .
    git checkout f
    git checkout .
    git checkout src
    git checkout '*.rs'
    git checkout :/
    git checkout nothing f
    git checkout HEAD f
    git checkout HEAD -- f
    git checkout main src/a.rs
    git checkout -q HEAD~1 -- src
    git checkout --ours f
    git checkout --theirs -- f
    git checkout -2 f
    git checkout -f
    git checkout -f main
    git checkout main -f
    git checkout --force main
    git checkout --fo main
    git checkout -qf main
    git checkout -p
    git checkout --patch HEAD
    git checkout --pathspec-from-file=list
    git checkout --pathspec-from-file list
    git checkout -B side
    git checkout -B side main

    git restore f
    git restore .
    git restore -- f
    git restore --worktree f
    git restore --source=HEAD~1 f
    git restore -s HEAD~1 f
    git restore --staged --worktree f
    git restore -SW f
    git restore -S --work f
    git restore --staged --no-staged f
    git restore -p
    git restore --pathspec-from-file=list

    git switch -f main
    git switch --force main
    git switch --discard-changes main
    git switch --disc main
    git switch main --discard
    git switch -qf main
    git switch -C side
    git switch -C side main
    git switch --force-create side
    git switch --force-create=side main

    git commit -n -m x
    git commit -nm x
    git commit -anm x
    git commit -am x -n
    git commit -m x --no-verify
    git commit -m x --no-veri
    git commit --verify --no-verify
    git commit -m -n -n
    git merge --no-verify side
    git pull --no-verify
    git rebase --no-verify main
    git am -n patch
    git am --no-verify patch
    git -c core.hooksPath=/dev/null commit -m x
    git -c core.hookspath= commit -m x
    git -c CORE.HOOKSPATH=/x push
    git -c core.hooksPath=/dev/null cherry-pick v1
    git config core.hooksPath /dev/null
    git config set --local core.hookspath ''

    git rm -f f
    git rm -rf src
    git rm --force f
    git mv -f f g
    git worktree remove --force ../w
    git worktree remove -f ../w
    git worktree remove ../w --fo
    git worktree add -B side ../w main
    git update-ref -d refs/heads/side
    git update-ref refs/heads/side main
    git fetch origin +main:side
    git fetch -f origin main:refs/heads/side
    git pull --force origin main:side
    git reflog expire --expire=now --all
    git reflog delete main@{1}
    git gc --prune=now
    git gc --aggressive --prune=all
    git gc --pru=1.second.ago
    git -c gc.pruneExpire=now gc
    git prune
    git prune --expire=now
    git filter-branch --tree-filter true
    git filter-repo --path x
    git read-tree --reset -u HEAD
    git read-tree -u --reset HEAD
    git checkout-index -fa
    git checkout-index -f f
    git submodule update --force
    git submodule --quiet deinit -f sub
    git submodule foreach 'git reset --hard'
    git submodule foreach --recursive git clean -fdx
    git rebase -x 'git stash pop' main
    git rebase --exec='make && git checkout -- .' main
    git bisect run git reset --hard
    git bisect run sh -c 'git reset --hard && make'

    git -c alias.x='reset --hard' x
    git -c alias.x=reset x --hard
    git -c ALIAS.X='reset --hard' x
    git -c alias.x='reset --hard' X
    git -c alias.x='reset "--hard"' x
    git -c alias.x='status' -c alias.x='reset --hard' x
    git -c alias.a=b -c alias.b='reset --hard' a
    git -c alias.x='-C dir reset --hard' x
    git -c alias.x='!git reset --hard' x
    git -c alias.x='!git reset' x --hard
    git -c alias.x='!f() { git reset "$@"; }; f' x --hard
    git -c alias.x='!f() { git "$1" "$2"; }; f' x reset --hard
    git -c alias.x='!cd .. && /usr/bin/git clean -fd' x
    git -c alias.x='!sh -c "git stash drop"' x
    git -c alias.x='!git fetch; git reset --hard origin/main' x
    git -c alias.x.command='reset --hard' x
    git -c core.hooksPath=/x -c alias.x=commit x
    git --config-env=alias.x=WIPE x
    git --config-env alias.x=WIPE x
    git --config-env=core.hooksPath=WIPE commit
    git wipe
    git wipe2 HEAD~1
    git counted
    git passed-on
"#;

const ALLOWED: &str = r#"
    git
    git --version
    git --help reset
    git -h
    git --exec-path
    git -C
    git status
    git status --short
    git log --oneline
    git diff --hard
    git help reset --hard
    git show main:f
    git unknown --hard
    git add -f ignored
    git init
    git -C dir --no-pager log

    git reset
    git reset f
    git reset --soft HEAD~1
    git reset --mixed HEAD~1
    git reset --keep HEAD~1
    git reset -p
    git reset -- --hard
    git reset --end-of-options --hard

    git clean
    git clean -n
    git clean -nfd
    git clean -dfn
    git clean --dry-run --force
    git clean --dry -f
    git clean -n -e -f
    git clean -d -- -f
    git clean --force --no-force

    git push
    git push origin main
    git push -u origin HEAD
    git push --force-with-lease
    git push --force-with-lease origin main
    git push --force-with-lease=main:abc origin main
    git push --force-w --force-if-includes
    git push --tags
    git push --follow-tags origin
    git push origin :
    git push origin main:other
    git push -n --force origin main
    git push --dry-run --mirror
    git push --force --no-force
    git push -o -f origin main
    git push -of origin main
    git push --push-option --force origin main
    git push --no-verify --verify

    git branch
    git branch -a
    git branch -vv
    git branch new
    git branch -d side
    git branch --delete side
    git branch -m new
    git branch -M new
    git branch -M main
    git branch -M main new
    git branch -f new main
    git branch -f old main
    git branch -f main HEAD
    git branch -C main new
    git branch --contains -D
    git branch --no-contains -D
    git branch -u origin/main
    git branch --format '-D'

    git stash
    git stash push -u -m pop
    git stash -- drop
    git stash -m clear
    git stash list
    git stash show -p
    git stash apply
    git stash apply --index stash@{1}
    git stash branch new

    git checkout
    git checkout main
    git checkout main --
    git checkout -
    git checkout HEAD~1
    git checkout v1
    git checkout remote-branch
    git checkout -b new
    git checkout -b f
    git checkout -b new origin/main
    git checkout -B new
    git checkout -B old main
    git checkout -B main
    git checkout --orphan new
    git checkout --detach
    git checkout -t origin/main
    git checkout -m main
    git checkout -q main
    git checkout --force --no-force main

    git restore --staged f
    git restore -S f
    git restore --staged .
    git restore --stag f
    git restore --staged --source=HEAD~1 f
    git restore -S -p
    git restore

    git switch main
    git switch -
    git switch -c new
    git switch -C new
    git switch -C old main
    git switch --create=f
    git switch --detach v1
    git switch -m main

    git commit -m x
    git commit -am 'no -n here'
    git commit -m -n
    git commit -m --no-verify
    git commit --message --no-verify
    git commit --message=--no-verify
    git commit -F -n
    git commit -mn
    git commit -un
    git commit -Sn
    git commit -- -n
    git commit --no-verify --verify -m x
    git commit --amend --no-edit
    git commit --no-verbose
    git commit --fixup -n
    git merge side
    git merge -n side
    git merge --abort
    git pull
    git pull -n
    git pull --rebase
    git rebase main
    git rebase -n main
    git rebase --abort
    git rebase --skip
    git rebase -x 'cargo test' main
    git rebase -i --autosquash main
    git cherry-pick -n v1
    git revert -n v1
    git am patch
    git -c user.name=x commit -m x
    git -c core.hooksPath=/dev/null log
    git config core.hooksPath .githooks
    git config --get core.hooksPath

    git rm f
    git rm -r src
    git rm --cached -f f
    git rm -nf f
    git mv f g
    git worktree add ../w
    git worktree add -f ../w main
    git worktree add -B new ../w
    git worktree remove ../w
    git worktree prune
    git tag v2
    git tag -d v2
    git tag -f v1
    git update-ref refs/heads/new main
    git update-ref refs/heads/old main
    git update-ref refs/notes/x main
    git fetch
    git fetch --all --prune
    git fetch -f origin
    git fetch origin main:side
    git fetch origin +refs/heads/*:refs/remotes/origin/*
    git fetch origin +main:new
    git reflog
    git reflog show
    git reflog expire --dry-run --all
    git gc
    git gc --aggressive
    git gc --prune=2.weeks.ago
    git gc --prune=never
    git prune -n
    git prune --expire=2.weeks.ago
    git read-tree -m -u HEAD
    git read-tree --reset HEAD
    git checkout-index -a
    git checkout-index -fa --prefix=out/
    git submodule update --init --recursive
    git submodule foreach 'git status'
    git submodule foreach git fetch
    git bisect start
    git bisect run cargo test
    git bisect reset

    git -c alias.x='log --oneline' x
    git -c alias.x='reset --hard' -c alias.x=status x
    git -c alias.x='reset --hard' status
    git -c alias.status='reset --hard' status
    git -c alias.x='!echo done' x
    git -c alias.x='!git log | head' x
    git -c alias.x='commit -m "reset --hard"' x
    git -c alias.x='reset "--hard' x
    git --config-env=alias.x=MISSING x
    git graph
"#;

fn told() -> Told {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Told {
        env: pairs(&[
            ("WIPE", "reset --hard"),
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "user.name"),
            ("GIT_CONFIG_VALUE_0", "x"),
            ("GIT_CONFIG_KEY_1", "Alias.Counted"),
            ("GIT_CONFIG_VALUE_1", "clean -fd"),
            ("GIT_CONFIG_PARAMETERS", r"'alias.passed-on'='reset --hard' 'a.b'='it'\''s'"),
        ]),
        config: pairs(&[
            ("alias.wipe", "reset --hard"),
            ("alias.wipe2", "!git reset --hard"),
            ("alias.graph", "log --graph"),
        ]),
        ..Told::default()
    }
}

#[test]
fn what_loses_work_is_refused_and_the_rest_is_not() {
    let facts = told();
    let rows = check(REFUSED, &facts, false) + check(ALLOWED, &facts, true);
    assert!(rows >= 120, "{rows}");
}

#[test]
fn cleaning_without_force_is_refused_where_the_configuration_needs_none() {
    let mut facts = told();
    facts.config.insert("clean.requireforce".into(), "false".into());
    check("git clean -d", &facts, false);
    check("git clean -n", &facts, true);
    check("git -c clean.requireForce=true clean", &facts, true);
}

#[test]
fn hooks_switched_off_by_the_environment_count() {
    let mut facts = told();
    facts.env.insert("GIT_CONFIG_KEY_0".into(), "core.hooksPath".into());
    check("git commit -m x", &facts, false);
    check("git log", &facts, true);
}

#[test]
fn throwaway_repositories_are_exempt() {
    let facts = Told { throwaway: true, ..told() };
    check(
        "git reset --hard
         git clean -fdx
         git branch -D side
         git commit -n -m x
         git wipe
         git wipe2
         git push --force /tmp/r.git main",
        &facts,
        true,
    );
    // What acts on another repository is not.
    check(
        "git push --force
         git push --force origin main
         git -c alias.x='!git push -f' x
         git -c alias.x='!cd /home/u/project && git reset --hard' x
         git -c alias.x='!GIT_DIR=/home/u/project/.git git branch -D side' x
         git submodule foreach git reset --hard",
        &facts,
        false,
    );
    check("git push --force origin main", &Told { throwaway: true, throwaway_remote: true, ..told() }, true);
    check("git -C /tmp/x reset --hard", &told(), true);
    check("git -C /tmp/y reset --hard", &told(), false);
}

#[test]
fn aliases_without_end_are_refused_in_the_end() {
    check("git -c alias.a='!git a; git a' a", &told(), false);
    check("git -c alias.a=b -c alias.b=a a", &told(), false);
}

#[test]
fn every_refusal_is_one_line_that_names_git_and_an_alternative() {
    let facts = told();
    for row in REFUSED.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let message = git(&line(row), &facts).message().expect(row);
        assert!(message.starts_with("ringfence: "), "{message}");
        assert!(message.contains(" is blocked here, because "), "{message}");
        assert!(!message.contains('\n') && !message.contains("  ") && !message.ends_with('.'), "{message}");
    }
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let words: Vec<OsString> =
        [&b"-"[..], b"--", b"", b"-c", b"\xff", b"--\xff=", b"=", b"-m", b"checkout", b"-B", b"!"]
            .iter()
            .map(|bytes| OsString::from_vec(bytes.to_vec()))
            .collect();
    struct Nothing;
    impl GitFacts for Nothing {
        fn env(&self, _: &str) -> Option<OsString> {
            None
        }
        fn config(&self, _: &[OsString], _: &str) -> Option<OsString> {
            None
        }
        fn is_revision(&self, _: &[OsString], _: &OsStr) -> bool {
            true
        }
        fn is_ancestor(&self, _: &[OsString], _: &OsStr, _: &OsStr) -> bool {
            false
        }
        fn is_tracked(&self, _: &[OsString], _: &OsStr) -> bool {
            true
        }
        fn is_throwaway(&self, _: &[OsString]) -> bool {
            false
        }
        fn is_throwaway_remote(&self, _: &[OsString], _: Option<&OsStr>) -> bool {
            false
        }
    }
    for a in &words {
        for b in &words {
            for c in &words {
                for command in ["", "commit", "push", "branch", "checkout", "fetch", "stash", "submodule", "update-ref"]
                {
                    git(&[command.into(), a.clone(), b.clone(), c.clone()], &Nothing);
                    git(&[a.clone(), b.clone(), command.into(), c.clone()], &Nothing);
                }
            }
        }
    }
}
