//! The `@git` guard: refuses what loses work, and says what to do instead.
//!
//! Work is what exists nowhere else: changes that are not committed, files that are not tracked, stashes, commits that no
//! branch holds any more, other people's commits on a remote. Passing over the checks that a project put into its hooks
//! counts as well. What git itself undoes or refuses (`reset --keep`, `branch -d`, `push --force-with-lease`,
//! `commit --amend`, `rebase`) is allowed.
//!
//! [`RULES`] is the guard. The rest finds the subcommand behind git's own flags, and splits its arguments into flags and
//! words. It does not interpret git's command line: `docs/guards.md` lists what it does not recognise.
//!
//! Repositories in the sandbox's own temp directory are exempt, for nothing in there was meant to last. A push from one is exempt
//! only if it also arrives there.
//!
//! Like every guard it is a courtesy and not a wall. The walls are the file rules.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::Verdict;

mod facts;
#[cfg(test)]
mod tests;

pub use facts::{AskGit, GitFacts};

/// What the guard says about `git ARGS…`.
pub fn git(args: &[OsString], facts: &dyn GitFacts) -> Verdict {
    let Some(call) = Call::read(args, facts) else { return Verdict::Allow };
    match RULES.iter().find(|rule| rule.refuses(&call)) {
        Some(rule) if !call.is_exempt() => Verdict::Refuse { what: rule.what, why: rule.why, instead: rule.instead },
        _ => Verdict::Allow,
    }
}

/// One thing that is refused.
struct Rule {
    /// `NAME`, or `NAME SUBCOMMAND`.
    commands: &'static [&'static str],
    when: When,
    /// Flags that make it harmless.
    unless: &'static [&'static str],
    what: &'static str,
    why: &'static str,
    instead: &'static str,
}

enum When {
    Always,
    /// With one of these flags.
    Flag(&'static [&'static str]),
    If(fn(&Call<'_>) -> bool),
}

use When::{Always, Flag, If};

impl Rule {
    fn refuses(&self, call: &Call<'_>) -> bool {
        let word = call.words.first().map_or_else(Default::default, |word| word.to_string_lossy());
        let subcommand = format!("{} {word}", call.name);
        self.commands.iter().any(|command| *command == call.name || *command == subcommand)
            && !call.has(self.unless)
            && match self.when {
                Always => true,
                Flag(flags) => call.has(flags),
                If(condition) => condition(call),
            }
    }
}

const FORCE: &[&str] = &["--force", "-f"];
const DRY_RUN: &[&str] = &["--dry-run", "-n"];
const HOOKED: &[&str] = &["commit", "merge", "pull", "push", "rebase", "am", "cherry-pick", "revert"];

const SET_ASIDE: &str = "set the changes aside with `git stash push --include-untracked`, and move the branch with \
     `git reset --keep COMMIT`";
const OVERWRITES_FILES: &str = "it overwrites uncommitted changes in those files";
const READ_THE_OTHER: &str = "set the changes aside with `git stash push -- FILE`, or read the other version with \
     `git show REV:FILE` (`:2:FILE` and `:3:FILE` in a conflict) and edit the file";
const LOSES_WORK: &str = "it throws away uncommitted work";
const SWITCH_WITHOUT: &str =
    "commit the changes, or set them aside with `git stash push --include-untracked`, and switch without force";
const OVERWRITES_REMOTE: &str = "it overwrites commits on the remote that nobody may have elsewhere";
const LEASE: &str = "fetch, look at what is there, and use `git push --force-with-lease` if the user wants it replaced";
const MOVES_BRANCH: &str = "it moves an existing branch away from commits that the new place does not contain";
const MOVE_INSTEAD: &str =
    "give the new branch another name, or keep the old one first with `git branch NAME-old NAME`";
const SKIPS_HOOKS: &str = "it skips the checks in the project's hooks";
const CORRECT: &str =
    "run it without that and correct what the hook reports, or tell the user if the hook itself is broken";
const PRUNES: &str = "it deletes lost commits and dropped stashes that could still be found again";
const GC: &str = "use `git gc`, which keeps what is younger than two weeks";

/// The first that fits decides.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { commands: HOOKED, when: If(|call| {
            call.has(&["--no-verify"]) || (["commit", "am"].contains(&call.name) && call.has(&["-n"]))
        }), unless: &[],
        what: "--no-verify (git commit -n)", why: SKIPS_HOOKS, instead: CORRECT },
    Rule { commands: HOOKED, when: If(|call| call.overrides_hooks), unless: &[],
        what: "overriding core.hooksPath", why: SKIPS_HOOKS, instead: CORRECT },
    // A project's own directory of hooks is a usual thing to set, this one is not.
    Rule { commands: &["config"], when: If(|call| {
            call.words.iter().any(|word| word.eq_ignore_ascii_case("core.hooksPath"))
                && call.words.iter().any(|word| *word == "/dev/null" || word.is_empty())
        }), unless: &[],
        what: "setting core.hooksPath to nothing", why: "it switches the project's hooks off", instead: CORRECT },
    Rule { commands: &["reset"], when: Flag(&["--hard"]), unless: &[],
        what: "git reset --hard", why: LOSES_WORK, instead: SET_ASIDE },
    Rule { commands: &["reset"], when: Flag(&["--merge"]), unless: &[],
        what: "git reset --merge", why: "it throws away staged work", instead: SET_ASIDE },
    Rule { commands: &["clean"], when: Always, unless: DRY_RUN,
        what: "git clean without --dry-run", why: "it deletes untracked files, which nothing can bring back",
        instead: "list them with `git clean -n` and delete by name those that you made, or set all aside with \
            `git stash push --include-untracked`" },
    // It switches a lease off.
    Rule { commands: &["push"], when: Flag(FORCE), unless: DRY_RUN,
        what: "git push --force", why: OVERWRITES_REMOTE, instead: LEASE },
    Rule { commands: &["push"], when: Flag(&["--mirror"]), unless: DRY_RUN,
        what: "git push --mirror", why: OVERWRITES_REMOTE, instead: "push the branches that you mean by name" },
    Rule { commands: &["push"], when: If(|call| call.all_words().any(|word| word.as_bytes().starts_with(b"+"))),
        unless: DRY_RUN,
        what: "a forced git push (+REFSPEC)", why: OVERWRITES_REMOTE, instead: LEASE },
    Rule { commands: &["push"], when: If(|call| {
            call.has(&["--delete", "-d", "--prune"])
                || call.all_words().any(|word| matches!(word.as_bytes(), [b':', _, ..]))
        }), unless: DRY_RUN,
        what: "deleting with git push", why: "it deletes branches or tags on the remote",
        instead: "leave them, and name to the user what could be deleted" },
    Rule { commands: &["branch"], when: If(|call| {
            call.has(&["-D"]) || (call.has(&["-d", "--delete"]) && call.has(FORCE))
        }), unless: &[],
        what: "git branch -D", why: "it deletes a branch with its reflog even if its commits are nowhere else",
        instead: "use `git branch -d NAME`, which deletes what is merged, or leave the branch and name it to the user" },
    Rule { commands: &["branch"], when: If(|call| call.renames() && match call.words[..] {
            [new] => call.moves_branch(Some(new), None),
            [old, new, ..] => call.moves_branch(Some(new), Some(&old)),
            [] => false,
        }), unless: &[],
        what: "git branch -M or -C onto an existing branch", why: MOVES_BRANCH, instead: MOVE_INSTEAD },
    Rule { commands: &["branch"], when: If(|call| {
            let (branch, to) = (call.words.first().copied(), call.words.get(1));
            !call.renames() && call.has(FORCE) && call.moves_branch(branch, to)
        }), unless: &[],
        what: "git branch --force on an existing branch", why: MOVES_BRANCH, instead: MOVE_INSTEAD },
    Rule { commands: &["checkout"], when: Flag(FORCE), unless: &[],
        what: "git checkout --force", why: LOSES_WORK, instead: SWITCH_WITHOUT },
    Rule { commands: &["checkout"], unless: &[],
        when: If(|call| call.moves_branch(call.value(&["-B"]), call.words.first())),
        what: "git checkout -B on an existing branch", why: MOVES_BRANCH, instead: MOVE_INSTEAD },
    // With these it is a checkout of a branch.
    Rule { commands: &["checkout"], when: If(|call| call.checks_files_out()),
        unless: &["-b", "-B", "--orphan", "--detach", "-d", "--track", "-t"],
        what: "git checkout of files", why: OVERWRITES_FILES, instead: READ_THE_OTHER },
    Rule { commands: &["restore"], when: If(|call| {
            let files = call.all_words().next().is_some() || call.has(&["--patch", "-p", "--pathspec-from-file"]);
            files && (call.has(&["--worktree", "-W"]) || !call.has(&["--staged", "-S"]))
        }), unless: &[],
        what: "git restore of files", why: OVERWRITES_FILES, instead: READ_THE_OTHER },
    Rule { commands: &["switch"], when: Flag(&["--discard-changes", "--force", "-f"]), unless: &[],
        what: "git switch --discard-changes (-f)", why: LOSES_WORK, instead: SWITCH_WITHOUT },
    Rule { commands: &["switch"], when: If(|call| {
            call.moves_branch(call.value(&["-C", "--force-create"]), call.words.first())
        }), unless: &[],
        what: "git switch -C on an existing branch", why: MOVES_BRANCH, instead: MOVE_INSTEAD },
    Rule { commands: &["worktree remove"], when: Flag(FORCE), unless: &[],
        what: "git worktree remove --force", why: "it deletes the uncommitted work in that worktree",
        instead: "commit or stash in that worktree, then remove it without --force" },
    Rule { commands: &["stash pop"], when: Always, unless: &[],
        what: "git stash pop",
        why: "it drops the stash as soon as it is applied, also over changes that belong to something else",
        instead: "use `git stash apply`, which keeps the stash" },
    Rule { commands: &["stash drop", "stash clear"], when: Always, unless: &[],
        what: "git stash drop or clear", why: "it deletes stashed work",
        instead: "leave the stash where it is, it costs nothing; the user can drop it" },
    Rule { commands: &["rm"], when: Flag(FORCE), unless: &["--cached", "--dry-run", "-n"],
        what: "git rm --force", why: "it deletes files with changes that are not committed",
        instead: "use `git rm` without force, or `git rm --cached` to keep the file" },
    Rule { commands: &["mv"], when: Flag(FORCE), unless: DRY_RUN,
        what: "git mv --force", why: "it overwrites the file that is there",
        instead: "use `git mv` without force, after moving the other file away" },
    Rule { commands: &["submodule update", "submodule deinit"], when: Flag(FORCE), unless: &[],
        what: "git submodule update or deinit with --force", why: "it throws away uncommitted work in the submodules",
        instead: "commit or stash inside the submodule, then run it without --force" },
    Rule { commands: &["update-ref"], when: Flag(&["-d"]), unless: &[],
        what: "git update-ref -d", why: "it deletes a ref even if its commits are nowhere else",
        instead: "use `git branch -d NAME`, which deletes what is merged" },
    Rule { commands: &["reflog expire", "reflog delete", "reflog drop"], when: Always, unless: DRY_RUN,
        what: "git reflog expire, delete or drop", why: "the reflog is the way back to lost commits",
        instead: "leave the reflog alone, git tidies it up by itself" },
    Rule { commands: &["gc"], when: If(|call| call.value(&["--prune"]).is_some_and(is_soon)), unless: &[],
        what: "git gc --prune=now", why: PRUNES, instead: GC },
    Rule { commands: &["prune"], when: If(|call| call.value(&["--expire"]).is_none_or(is_soon)), unless: DRY_RUN,
        what: "git prune", why: PRUNES, instead: GC },
    Rule { commands: &["filter-branch", "filter-repo"], when: Always, unless: &[],
        what: "rewriting the history with git filter-branch or filter-repo",
        why: "it replaces every commit of the branches",
        instead: "do it in a clone under the temp directory, and let the user look at the result" },
    Rule { commands: &["read-tree"], when: If(|call| call.has(&["--reset"]) && call.has(&["-u"])), unless: DRY_RUN,
        what: "git read-tree --reset -u", why: LOSES_WORK,
        instead: "use `git read-tree -m -u`, which stops when changes would be lost" },
    Rule { commands: &["checkout-index"], when: Flag(FORCE), unless: &["--prefix", "--temp"],
        what: "git checkout-index --force", why: OVERWRITES_FILES, instead: READ_THE_OTHER },
];

/// Flags of these commands whose value is the next word. A short one takes the rest of its own word, if there is one;
/// with `?` it never takes the next.
#[rustfmt::skip]
const VALUES: &[(&str, &str)] = &[
    ("commit", "-m --message -F --file -c -C -t --template --author --date --fixup --squash --trailer -S? -u?"),
    ("merge", "-m --message -F --file -s --strategy -X --strategy-option -S?"),
    ("pull", "-s --strategy -X --strategy-option -o --server-option -r? -j? -S?"),
    ("rebase", "--onto -x --exec -s --strategy -X --strategy-option -C -r? -S?"),
    ("push", "-o --push-option --repo --receive-pack --exec --recurse-submodules"),
    ("branch", "-u --set-upstream-to --contains --no-contains --merged --no-merged --points-at --format --sort -t?"),
    ("checkout", "-b -B --orphan --conflict --pathspec-from-file -t?"),
    ("switch", "-c --create -C --force-create --orphan --conflict -t?"),
    ("restore", "-s --source --conflict --pathspec-from-file"),
    ("clean", "-e --exclude"),
    ("stash", "-m --message --pathspec-from-file"),
    ("prune", "--expire"),
];

/// Flags of git itself whose value is the next word, unless a `=` follows.
const GLOBAL_VALUES: &[&str] = &["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"];

/// One call of git: which subcommand, and its arguments.
struct Call<'a> {
    facts: &'a dyn GitFacts,
    /// Git's own flags, as they are given to the real git when it is asked something.
    at: &'a [OsString],
    overrides_hooks: bool,
    name: &'a str,
    flags: Vec<(String, Option<&'a OsStr>)>,
    /// Words that are no flags, up to `--`.
    words: Vec<&'a OsStr>,
    /// Words after `--`; `None` without one.
    after: Option<&'a [OsString]>,
}

impl<'a> Call<'a> {
    /// `None` when there is no subcommand.
    fn read(args: &'a [OsString], facts: &'a dyn GitFacts) -> Option<Call<'a>> {
        let (mut at, mut overrides_hooks) = (0, false);
        while args.get(at)?.as_bytes().starts_with(b"-") {
            let flag = args[at].to_str()?;
            if matches!(flag, "-h" | "--help" | "-v" | "--version" | "--exec-path") {
                return None;
            }
            let setting = args.get(at + 1).filter(|_| flag == "-c").map(|setting| setting.to_ascii_lowercase());
            overrides_hooks |= setting.is_some_and(|setting| setting.as_bytes().starts_with(b"core.hookspath"));
            at += 1 + usize::from(GLOBAL_VALUES.contains(&flag));
        }
        let name = args[at].to_str()?;
        let (flags, words, at, rest) = (Vec::new(), Vec::new(), &args[..at], &args[at + 1..]);
        let mut call = Call { facts, at, overrides_hooks, name, flags, words, after: None };
        call.arguments(rest);
        Some(call)
    }

    fn arguments(&mut self, rest: &'a [OsString]) {
        let values = VALUES.iter().find(|(name, _)| *name == self.name).map_or("", |(_, values)| values);
        let takes = |flag: &str| values.split(' ').any(|value| value.trim_end_matches('?') == flag);
        let takes_next = |flag: &str| values.split(' ').any(|value| value == flag);
        let mut rest = rest.iter();
        while let Some(arg) = rest.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" || bytes == b"--end-of-options" {
                self.after = Some(rest.as_slice());
                return;
            } else if bytes.starts_with(b"--") {
                let (flag, value) = match bytes.iter().position(|byte| *byte == b'=') {
                    Some(end) => (&bytes[..end], Some(OsStr::from_bytes(&bytes[end + 1..]))),
                    None => (bytes, None),
                };
                let flag = String::from_utf8_lossy(flag).into_owned();
                let value =
                    value.or_else(|| if takes_next(&flag) { rest.next().map(OsString::as_os_str) } else { None });
                self.flags.push((flag, value));
            } else if bytes.len() > 1 && bytes[0] == b'-' {
                for (index, letter) in bytes.iter().enumerate().skip(1) {
                    let flag = format!("-{}", char::from(*letter));
                    let attached = Some(&bytes[index + 1..]).filter(|_| takes(&flag));
                    let value = match attached {
                        Some([]) if takes_next(&flag) => rest.next().map(OsString::as_os_str),
                        Some(value) => Some(OsStr::from_bytes(value)),
                        None => None,
                    };
                    self.flags.push((flag, value));
                    if attached.is_some() {
                        break;
                    }
                }
            } else {
                self.words.push(arg);
            }
        }
    }

    fn has(&self, flags: &[&str]) -> bool {
        self.flags.iter().any(|(flag, _)| flags.contains(&flag.as_str()))
    }

    fn value(&self, flags: &[&str]) -> Option<&'a OsStr> {
        self.flags.iter().rev().find(|(flag, _)| flags.contains(&flag.as_str())).and_then(|(_, value)| *value)
    }

    fn all_words(&self) -> impl Iterator<Item = &'a OsStr> {
        self.words.iter().copied().chain(self.after.into_iter().flatten().map(OsString::as_os_str))
    }

    /// A push acts on another repository, too.
    fn is_exempt(&self) -> bool {
        let remote = || self.all_words().next().or_else(|| self.value(&["--repo"]));
        self.facts.is_throwaway(self.at) && (self.name != "push" || self.facts.is_throwaway_remote(self.at, remote()))
    }

    fn renames(&self) -> bool {
        self.has(&["-M", "-C"]) || (self.has(&["-m", "--move", "-c", "--copy"]) && self.has(FORCE))
    }

    /// Whether `branch` exists and has commits that are not in `to` (`HEAD`). Moving it forward loses nothing.
    fn moves_branch(&self, branch: Option<&OsStr>, to: Option<&&OsStr>) -> bool {
        let Some(branch) = branch else { return false };
        let branch = OsString::from_vec([b"refs/heads/", branch.as_bytes()].concat());
        let to = to.copied().unwrap_or("HEAD".as_ref());
        self.facts.is_revision(self.at, &branch) && !self.facts.is_ancestor(self.at, &branch, to)
    }

    /// Checkout of files, not of branches.
    fn checks_files_out(&self) -> bool {
        // `--patch` asks, but `yes |` answers.
        if self.has(&["--patch", "-p", "--pathspec-from-file"]) {
            return true;
        }
        if let Some(after) = self.after {
            return !after.is_empty();
        }
        let Some((first, more)) = self.words.split_first() else { return false };
        // `:/` and `:(…)` are taken for paths here, although `:/text` may also name a commit.
        if *first == "-" || (!first.as_bytes().starts_with(b":") && self.facts.is_revision(self.at, first)) {
            return !more.is_empty();
        }
        // A word that is neither a revision nor a tracked file is a remote's branch, or a mistake that git reports.
        self.words.iter().any(|path| self.facts.is_tracked(self.at, path))
    }
}

/// Whether a date of git's leaves less than weeks.
fn is_soon(date: &OsStr) -> bool {
    let date = date.to_string_lossy().to_lowercase();
    !["never", "false", "week", "month", "year"].iter().any(|word| date.contains(word))
}
