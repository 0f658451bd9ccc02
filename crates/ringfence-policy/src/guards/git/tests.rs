//! The guard over tables of command lines; `real` holds it against the real git.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use super::{GitFacts, git};
use crate::guards::Verdict;

mod real;

/// A repository in words: branches `main` (current), `old` (inside `main`) and `side` (not), tracked files `f`, `src/a.rs`.
#[derive(Default)]
struct Told {
    throwaway: bool,
    throwaway_remote: bool,
}

impl GitFacts for Told {
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

/// The words of `line`, which begins with `git`. What stands between two `'` is one word, or a part of one.
fn line(line: &str) -> Vec<OsString> {
    let mut words: Vec<Option<String>> = vec![None];
    for (index, part) in line.split('\'').enumerate() {
        for (at, piece) in part.split(if index % 2 == 0 { ' ' } else { '\'' }).enumerate() {
            if at > 0 {
                words.push(None);
            }
            if index % 2 == 1 || !piece.is_empty() {
                words.last_mut().unwrap().get_or_insert_default().push_str(piece);
            }
        }
    }
    let mut words: Vec<OsString> = words.into_iter().flatten().map(OsString::from).collect();
    assert_eq!(words.remove(0), "git", "{line}");
    words
}

fn check(table: &str, facts: &Told, allowed: bool) -> usize {
    let rows: Vec<&str> = table.lines().map(str::trim).filter(|row| !row.is_empty()).collect();
    for row in &rows {
        let verdict = git(&line(row), facts);
        assert_eq!(verdict == Verdict::Allow, allowed, "{row}: {verdict:?}");
    }
    rows.len()
}

const REFUSED: &str = r#"
    git reset --hard
    git reset --hard HEAD~1
    git reset HEAD~1 --hard
    git reset -q --hard
    git reset --merge
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
    git -c clean.requireForce=false clean -d

    git push -f
    git push --force
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
    git push --delete origin side
    git push -d origin side
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
    git restore -p
    git restore --pathspec-from-file=list

    git switch -f main
    git switch --force main
    git switch --discard-changes main
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
    git update-ref -d refs/heads/side
    git reflog expire --expire=now --all
    git reflog delete main@{1}
    git gc --prune=now
    git gc --aggressive --prune=all
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

    git clean -n
    git clean -nfd
    git clean -dfn
    git clean --dry-run --force
    git clean -n -e -f

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
    git push -o -f origin main
    git push -of origin main
    git push --push-option --force origin main

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

    git restore --staged f
    git restore -S f
    git restore --staged .
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
"#;

/// What the guard does not see: `docs/guards.md` has the list.
const NOT_SEEN: &str = r#"
    git reset --har
    git push --forc
    git clean -n --no-dry-run -f
    git restore --staged --no-staged f
    git -c alias.x='reset --hard' x
    git wipe
    git rebase -x 'git stash pop' main
    git bisect run git reset --hard
    git submodule foreach 'git reset --hard'
    git fetch origin +main:side
    git update-ref refs/heads/side main
    git worktree add -B side ../w main
    git -c gc.pruneExpire=now gc
"#;

/// What the guard refuses although git loses nothing: a flag that is taken back counts, and an abbreviated one does not.
const TAKEN_BACK: &str = r#"
    git clean
    git clean --force --no-force
    git push --force --no-force
    git checkout --force --no-force main
    git restore --stag f
    git commit --no-verify --verify -m x
"#;

#[test]
fn what_loses_work_is_refused_and_the_rest_is_not() {
    let facts = Told::default();
    let rows = check(REFUSED, &facts, false) + check(ALLOWED, &facts, true);
    assert!(rows >= 120, "{rows}");
    check(NOT_SEEN, &facts, true);
    check(TAKEN_BACK, &facts, false);
}

#[test]
fn throwaway_repositories_are_exempt() {
    let facts = Told { throwaway: true, ..Told::default() };
    check(
        "git reset --hard
         git clean -fdx
         git branch -D side
         git commit -n -m x
         git push --force /tmp/r.git main",
        &facts,
        true,
    );
    // What acts on another repository is not.
    check(
        "git push --force
         git push --force origin main",
        &facts,
        false,
    );
    check("git push --force origin main", &Told { throwaway: true, throwaway_remote: true }, true);
    check("git -C /tmp/x reset --hard", &Told::default(), true);
    check("git -C /tmp/y reset --hard", &Told::default(), false);
}

#[test]
fn every_refusal_is_one_line_that_names_git_and_an_alternative() {
    let facts = Told::default();
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
