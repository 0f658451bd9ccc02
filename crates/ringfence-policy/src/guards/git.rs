//! The `@git` guard: refuses what loses work, and says what to do instead.
//!
//! Work is what exists nowhere else: changes that are not committed, files that are not tracked, stashes, commits that no
//! branch holds any more, other people's commits on a remote. Passing over the checks that a project put into its hooks
//! counts as well. What git itself undoes or refuses (`reset --keep`, `branch -d`, `push --force-with-lease`,
//! `commit --amend`, `rebase`) is allowed.
//!
//! A call is read as git reads it: global flags in any order, aliases from `-c`, `--config-env`, the environment and the
//! configuration files, nested and with `!`, abbreviated long options, combined short ones, values, `--`. Shell text in
//! aliases, `rebase --exec`, `bisect run` and `submodule foreach` is cut into words without being understood.
//!
//! Repositories under the temp directory are exempt, for nothing in there was meant to last. A push from one is exempt
//! only if it also arrives there.
//!
//! Like every guard it is a courtesy and not a wall: `/usr/lib/git-core/git`, a script with another name or `rm -r .git`
//! do the same, and nobody is kept from them.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::Verdict;
use commands::*;
use options::Options;

mod commands;
mod facts;
mod options;
#[cfg(test)]
mod tests;
mod words;

pub use facts::{AskGit, GitFacts};

/// What the guard says about `git ARGS…`.
pub fn git(args: &[OsString], facts: &dyn GitFacts) -> Verdict {
    let judge = Judge { facts, calls_left: Cell::new(MOST_CALLS) };
    let start = Place { config: environment_config(facts), ..Place::default() };
    judge.call(args, &start).err().unwrap_or(Verdict::Allow)
}

/// How many calls of git one command line may turn out to be: aliases can name each other without end.
const MOST_CALLS: u32 = 64;

/// `Err` is a refusal, so that `?` passes it on.
type Judgement = Result<(), Verdict>;

/// Where a call takes place, and with which settings.
#[derive(Debug, Clone, Default)]
struct Place {
    /// Global flags, as they are given to the real git when it is asked something.
    at: Vec<OsString>,
    /// Settings from the environment and the command line, keys in lower case, the later ones win.
    config: Vec<(String, OsString)>,
    /// Shell text went elsewhere (`cd`, `GIT_DIR=`) or there is no telling: no exemption.
    lost: bool,
}

impl Place {
    /// A setting that was made for this call alone.
    fn inline(&self, key: &str) -> Option<&OsStr> {
        self.config.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_os_str())
    }
}

struct Judge<'a> {
    facts: &'a dyn GitFacts,
    calls_left: Cell<u32>,
}

const MOVES_BRANCH: &str = "it moves an existing branch away from commits that the new place does not contain";
const MOVE_INSTEAD: &str =
    "give the new branch another name, or keep the old one first with `git branch NAME-old NAME`";

impl Judge<'_> {
    /// Judges one call of git, `args` without the program's name.
    fn call(&self, args: &[OsString], place: &Place) -> Judgement {
        let Some(left) = self.calls_left.get().checked_sub(1) else {
            return refuse(
                "this git alias",
                "it leads through too many other aliases to be checked",
                "run the git commands that you mean one by one",
            );
        };
        self.calls_left.set(left);

        let mut place = place.clone();
        let Some((command, args)) = self.globals(args, &mut place) else { return Ok(()) };
        let Some(name) = command.to_str() else { return Ok(()) };
        match self.command(name, args, &place) {
            Err(_) if self.is_exempt(name, args, &place) => {}
            judgement => judgement?,
        }
        // Judged by itself, since it may act elsewhere.
        self.nested(name, args, &place)
    }

    fn is_exempt(&self, command: &str, args: &[OsString], place: &Place) -> bool {
        if place.lost || !self.facts.is_throwaway(&place.at) {
            return false;
        }
        // A push acts on another repository.
        command != "push" || {
            let options = Options::read(command, args);
            let remote = options.all_words().next().or_else(|| options.values("repo").last());
            self.facts.is_throwaway_remote(&place.at, remote)
        }
    }

    /// Reads git's own flags (`handle_options` in `git.c`: neither abbreviated nor combined). Returns the command and its
    /// arguments; `None` when git answers by itself.
    fn globals<'b>(&self, args: &'b [OsString], place: &mut Place) -> Option<(&'b OsStr, &'b [OsString])> {
        let mut rest = args;
        while let [flag, tail @ ..] = rest {
            let bytes = flag.as_bytes();
            if !bytes.starts_with(b"-") {
                return Some((flag, tail));
            }
            let (name, attached) = match bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
                None => (bytes, None),
            };
            let name = String::from_utf8_lossy(name);
            let takes_value = match &*name {
                "-C" | "-c" | "--shallow-file" => true,
                "--git-dir" | "--work-tree" | "--namespace" | "--config-env" | "--attr-source" | "--super-prefix" => {
                    attached.is_none()
                }
                "--exec-path" if attached.is_none() => return None,
                "-h" | "--help" | "-v" | "--version" | "--html-path" | "--man-path" | "--info-path" => return None,
                _ => false,
            };
            let taken = if takes_value { 2 } else { 1 };
            let value = if takes_value { tail.first()?.as_os_str() } else { attached.unwrap_or_default() };
            match &*name {
                "-c" => place.config.push(setting(value)),
                "--config-env" => {
                    let (key, variable) = setting_by_variable(value)?;
                    place.config.extend(self.facts.env(&variable).map(|value| (key, value)));
                }
                _ => {}
            }
            if !matches!(&*name, "-p" | "--paginate") {
                place.at.extend_from_slice(&rest[..taken]);
            }
            rest = &rest[taken..];
        }
        None
    }

    fn command(&self, name: &str, args: &[OsString], place: &Place) -> Judgement {
        let options = || Options::read(name, args);
        self.hooks(name, args, place)?;
        match name {
            "reset" => reset(&options()),
            "clean" => self.clean(&options(), place),
            "push" => push(&options()),
            "branch" => self.branch(&options(), place),
            "checkout" => self.checkout(&options(), place),
            "restore" => restore(&options()),
            "switch" => self.switch(&options(), place),
            "stash" => stash(args),
            "rm" => rm(&options()),
            "mv" => mv(&options()),
            "worktree" => self.worktree(args, place),
            "update-ref" => self.update_ref(&options(), place),
            "fetch" | "pull" => self.fetch(&options(), place),
            "reflog" => reflog(args),
            "gc" => gc(&options(), place),
            "prune" => prune(&options()),
            "read-tree" => read_tree(&options()),
            "checkout-index" => checkout_index(&options()),
            "filter-branch" | "filter-repo" => refuse(
                "rewriting the history with git filter-branch or filter-repo",
                "it replaces every commit of the branches",
                "do it in a clone under the temp directory, and let the user look at the result",
            ),
            "submodule" => submodule(args),
            _ => Ok(()),
        }
    }

    /// Calls of git that this one makes because it was told to.
    fn nested(&self, name: &str, args: &[OsString], place: &Place) -> Judgement {
        match name {
            "submodule" => self.submodule_foreach(args, place),
            "bisect" => match args {
                [run, command @ ..] if run == "run" => self.shell_words(command, place),
                _ => Ok(()),
            },
            "rebase" => Options::read(name, args).values("exec").try_for_each(|text| self.shell(text, &[], place)),
            name if HAVE_RULES.contains(&name) || HARMLESS.contains(&name) => Ok(()),
            name => self.alias(name, args, place),
        }
    }

    // --- hooks -------------------------------------------------------------------------------------------------------

    /// The checks that a project put into its hooks are not passed over.
    fn hooks(&self, name: &str, args: &[OsString], place: &Place) -> Judgement {
        const INSTEAD: &str = "run it without that and correct what the hook reports, or tell the user if the hook \
                               itself is broken";
        if name == "config" {
            // A project's own directory of hooks is a usual thing to set, this one is not.
            let sets = args.iter().any(|arg| arg.eq_ignore_ascii_case("core.hooksPath"));
            if sets && args.iter().any(|arg| arg == "/dev/null" || arg.is_empty()) {
                return refuse("setting core.hooksPath to nothing", "it switches the project's hooks off", INSTEAD);
            }
        }
        if !HOOKED.contains(&name) {
            return Ok(());
        }
        // `-n` is this option for `commit` and `am` only; for the others it is in their tables as what it is.
        if Options::read(name, args).has("no-verify") {
            return refuse("--no-verify (git commit -n)", "it skips the checks in the project's hooks", INSTEAD);
        }
        if place.inline("core.hookspath").is_some() {
            return refuse("overriding core.hooksPath", "it skips the checks in the project's hooks", INSTEAD);
        }
        Ok(())
    }

    // --- files -------------------------------------------------------------------------------------------------------

    /// Forced and interactive cleaning; a dry run is the alternative.
    fn clean(&self, options: &Options, place: &Place) -> Judgement {
        if options.has("dry-run") {
            return Ok(());
        }
        let free = || {
            let key = "clean.requireforce";
            let value = place.inline(key).map(OsStr::to_os_string).or_else(|| self.facts.config(&place.at, key));
            value.is_some_and(|value| is_false(&value))
        };
        if options.has_any(&["force", "interactive"]) || free() {
            return refuse(
                "git clean without --dry-run",
                "it deletes untracked files, which nothing can bring back",
                "list them with `git clean -n` and delete by name those that you made, or set all aside with \
                 `git stash push --include-untracked`",
            );
        }
        Ok(())
    }

    /// Checkout of files, not of branches.
    fn checkout(&self, options: &Options, place: &Place) -> Judgement {
        if options.has("force") {
            return refuse_discarding_switch("git checkout --force");
        }
        if let Some(branch) = options.values("B").last() {
            let start = options.words.first().copied().unwrap_or(OsStr::new("HEAD"));
            self.moves_branch("git checkout -B on an existing branch", branch, start, place)?;
        }
        let files = "git checkout of files";
        // `--patch` asks, but `yes |` answers.
        if options.has_any(&["patch", "pathspec-from-file"]) {
            return refuse_discarding_files(files);
        }
        if let Some(after) = &options.after {
            return if after.is_empty() { Ok(()) } else { refuse_discarding_files(files) };
        }
        // These make `git checkout` one of branches; with paths git refuses.
        if options.has_any(&["b", "B", "orphan", "detach", "track"]) {
            return Ok(());
        }
        let Some((first, more)) = options.words.split_first() else { return Ok(()) };
        // `:/` and `:(…)` are taken for paths here, although `:/text` may also name a commit.
        let is_revision =
            *first == "-" || (!first.as_bytes().starts_with(b":") && self.facts.is_revision(&place.at, first));
        // A word that is neither a revision nor a tracked file is a remote's branch, or a mistake that git reports.
        let mut paths = if is_revision { more } else { &options.words[..] }.iter();
        let loses =
            if is_revision { !more.is_empty() } else { paths.any(|path| self.facts.is_tracked(&place.at, path)) };
        if loses { refuse_discarding_files(files) } else { Ok(()) }
    }

    fn switch(&self, options: &Options, place: &Place) -> Judgement {
        if options.has_any(&["force", "discard-changes"]) {
            return refuse_discarding_switch("git switch --discard-changes (-f)");
        }
        match options.values("force-create").last() {
            Some(branch) => {
                let start = options.words.first().copied().unwrap_or(OsStr::new("HEAD"));
                self.moves_branch("git switch -C on an existing branch", branch, start, place)
            }
            None => Ok(()),
        }
    }

    fn worktree(&self, args: &[OsString], place: &Place) -> Judgement {
        let Some((command, args)) = args.split_first() else { return Ok(()) };
        if command == "remove" && Options::read("worktree remove", args).has("force") {
            return refuse(
                "git worktree remove --force",
                "it deletes the uncommitted work in that worktree",
                "commit or stash in that worktree, then remove it without --force",
            );
        }
        if command == "add" {
            let options = Options::read("worktree add", args);
            if let Some(branch) = options.values("B").last() {
                let start = options.all_words().nth(1).unwrap_or(OsStr::new("HEAD"));
                return self.moves_branch("git worktree add -B on an existing branch", branch, start, place);
            }
        }
        Ok(())
    }

    // --- branches ----------------------------------------------------------------------------------------------------

    fn branch(&self, options: &Options, place: &Place) -> Judgement {
        let force = options.has("force");
        if options.has("D") || (options.has("delete") && force) {
            return refuse(
                "git branch -D",
                "it deletes a branch with its reflog even if its commits are nowhere else",
                "use `git branch -d NAME`, which deletes what is merged, or leave the branch and name it to the user",
            );
        }
        let words: Vec<&OsStr> = options.all_words().collect();
        let moves = options.has("M") || (options.has("move") && force);
        let copies = options.has("C") || (options.has("copy") && force);
        let (what, branch, start) = match (&words[..], moves || copies) {
            (&[new], true) => ("git branch -M or -C onto an existing branch", new, OsStr::new("HEAD")),
            (&[old, new, ..], true) => ("git branch -M or -C onto an existing branch", new, old),
            (&[name], false) if force => ("git branch --force on an existing branch", name, OsStr::new("HEAD")),
            (&[name, start, ..], false) if force => ("git branch --force on an existing branch", name, start),
            _ => return Ok(()),
        };
        self.moves_branch(what, branch, start, place)
    }

    /// Plumbing: deleting a ref, or moving a branch. What `--stdin` brings is not known.
    fn update_ref(&self, options: &Options, place: &Place) -> Judgement {
        if options.has("d") {
            return refuse(
                "git update-ref -d",
                "it deletes a ref even if its commits are nowhere else",
                "use `git branch -d NAME`, which deletes what is merged",
            );
        }
        match options.all_words().collect::<Vec<_>>()[..] {
            [name, new, ..] => match name.as_bytes().strip_prefix(b"refs/heads/") {
                Some(branch) => {
                    self.moves_branch("git update-ref on an existing branch", OsStr::from_bytes(branch), new, place)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// A forced refspec that ends in a local branch; the usual ones end in `refs/remotes`.
    fn fetch(&self, options: &Options, place: &Place) -> Judgement {
        if options.has("dry-run") {
            return Ok(());
        }
        for refspec in options.all_words().skip(1) {
            let bytes = refspec.as_bytes();
            let forced = bytes.starts_with(b"+") || options.has("force");
            let Some(colon) = bytes.iter().position(|byte| *byte == b':') else { continue };
            let to = &bytes[colon + 1..];
            let to = OsStr::from_bytes(to.strip_prefix(b"refs/heads/").unwrap_or(to));
            if forced && self.is_branch(to, place) {
                return refuse("a forced git fetch into a local branch", MOVES_BRANCH, MOVE_INSTEAD);
            }
        }
        Ok(())
    }

    fn is_branch(&self, name: &OsStr, place: &Place) -> bool {
        !name.is_empty() && self.facts.is_revision(&place.at, &branch_ref(name))
    }

    /// Refuses when `branch` exists and has commits that are not in `to`. Moving it forward loses nothing.
    fn moves_branch(&self, what: &'static str, branch: &OsStr, to: &OsStr, place: &Place) -> Judgement {
        if self.is_branch(branch, place) && !self.facts.is_ancestor(&place.at, &branch_ref(branch), to) {
            return refuse(what, MOVES_BRANCH, MOVE_INSTEAD);
        }
        Ok(())
    }

    // --- aliases -----------------------------------------------------------------------------------------------------

    fn alias(&self, name: &str, args: &[OsString], place: &Place) -> Judgement {
        // Newer versions of git also have `alias.NAME.command`.
        let keys = [format!("alias.{}", name.to_lowercase()), format!("alias.{}.command", name.to_lowercase())];
        let inline = || keys.iter().find_map(|key| place.inline(key)).map(OsStr::to_os_string);
        let Some(text) = inline().or_else(|| self.facts.config(&place.at, &format!("alias.{name}"))) else {
            return Ok(());
        };
        if let Some(shell) = text.as_bytes().strip_prefix(b"!") {
            return self.shell(OsStr::from_bytes(shell), args, place);
        }
        let Some(mut words) = words::split(&text) else { return Ok(()) };
        words.extend_from_slice(args);
        self.call(&words, place)
    }

    fn submodule_foreach(&self, args: &[OsString], place: &Place) -> Judgement {
        let Some((command, args)) = after_flags(args).split_first() else { return Ok(()) };
        if command != "foreach" {
            return Ok(());
        }
        // Each submodule is a repository in its own place.
        let place = Place { lost: true, ..place.clone() };
        match after_flags(args) {
            [text] => self.shell(text, &[], &place),
            words => self.shell_words(words, &place),
        }
    }

    /// Judges every call of git in shell text that is run with `args`, which git puts at its end.
    fn shell(&self, text: &OsStr, args: &[OsString], place: &Place) -> Judgement {
        let mut place = place.clone();
        let commands = words::commands(text);
        let last = commands.len().saturating_sub(1);
        for (at, words) in commands.into_iter().enumerate() {
            let mut words = words::with_arguments(words, args);
            if at == last {
                words.extend_from_slice(args);
            }
            place.lost |= words.iter().any(|word| {
                word == "cd"
                    || word == "pushd"
                    || (word.as_bytes().starts_with(b"GIT_") && word.as_bytes().contains(&b'='))
            });
            self.shell_words(&words, &place)?;
        }
        Ok(())
    }

    /// Judges one simple command: what follows the word `git`, or the text that a shell is given with `-c`.
    fn shell_words(&self, words: &[OsString], place: &Place) -> Judgement {
        for (at, word) in words.iter().enumerate() {
            let program = word.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            match program {
                b"git" => return self.call(&words[at + 1..], place),
                b"sh" | b"bash" | b"dash" | b"zsh" => {
                    let is_command =
                        |word: &OsString| word.as_bytes().starts_with(b"-") && word.as_bytes().ends_with(b"c");
                    if let Some(flag) = words[at..].iter().position(is_command)
                        && let Some(text) = words.get(at + flag + 1)
                    {
                        return self.shell(text, &[], &Place { lost: true, ..place.clone() });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn branch_ref(name: &OsStr) -> OsString {
    OsString::from_vec([b"refs/heads/", name.as_bytes()].concat())
}

fn refuse(what: &'static str, why: &'static str, instead: &'static str) -> Judgement {
    Err(Verdict::Refuse { what, why, instead })
}

fn refuse_discarding_files(what: &'static str) -> Judgement {
    refuse(
        what,
        "it overwrites uncommitted changes in those files",
        "set the changes aside with `git stash push -- FILE`, or read the other version with `git show REV:FILE` \
         (`:2:FILE` and `:3:FILE` in a conflict) and edit the file",
    )
}

fn refuse_discarding_switch(what: &'static str) -> Judgement {
    refuse(
        what,
        "it throws away uncommitted work",
        "commit the changes, or set them aside with `git stash push --include-untracked`, and switch without force",
    )
}

/// `key=value` of `-c`; without `=` it is true.
fn setting(text: &OsStr) -> (String, OsString) {
    let bytes = text.as_bytes();
    let (key, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"true"[..]),
    };
    (String::from_utf8_lossy(key).to_lowercase(), OsString::from_vec(value.to_vec()))
}

/// `key=VARIABLE` of `--config-env`, split at the last `=`.
fn setting_by_variable(text: &OsStr) -> Option<(String, String)> {
    let (key, variable) = text.to_str()?.rsplit_once('=')?;
    Some((key.to_lowercase(), variable.to_owned()))
}

/// Settings in the environment: `GIT_CONFIG_COUNT` with its keys and values, and what an outer git passes on.
fn environment_config(facts: &dyn GitFacts) -> Vec<(String, OsString)> {
    let count = facts.env("GIT_CONFIG_COUNT").and_then(|count| count.to_str()?.parse().ok()).unwrap_or(0);
    let mut config = Vec::new();
    for n in 0..count {
        let pair = (facts.env(&format!("GIT_CONFIG_KEY_{n}")), facts.env(&format!("GIT_CONFIG_VALUE_{n}")));
        // Git stops with an error when one is missing.
        let (Some(key), Some(value)) = pair else { break };
        config.push((key.to_string_lossy().to_lowercase(), value));
    }
    let passed_on = facts.env("GIT_CONFIG_PARAMETERS").and_then(|text| words::split(&text)).unwrap_or_default();
    config.extend(passed_on.iter().map(|text| setting(text)));
    config
}

fn is_false(value: &OsStr) -> bool {
    ["false", "no", "off", "0", ""].iter().any(|word| value.eq_ignore_ascii_case(word))
}

// --- commands --------------------------------------------------------------------------------------------------------

/// Commands that run hooks which can refuse.
const HOOKED: &[&str] = &["commit", "merge", "pull", "push", "rebase", "am", "cherry-pick", "revert"];

/// Commands that have a rule above. Git takes no alias for its own commands, and so nobody is asked for one.
#[rustfmt::skip]
const HAVE_RULES: &[&str] = &[
    "am", "bisect", "branch", "checkout", "checkout-index", "cherry-pick", "clean", "commit", "fetch", "gc", "merge", "mv",
    "prune", "pull", "push", "read-tree", "rebase", "reflog", "reset", "restore", "revert", "rm", "stash", "switch",
    "update-ref", "worktree",
];

/// Commands of git that have no rule; likewise.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "add", "annotate", "apply", "archive", "blame", "bundle", "cat-file", "check-attr", "check-ignore", "cherry", "clone",
    "commit-tree", "config", "count-objects", "describe", "diff", "diff-files", "diff-index", "diff-tree", "difftool",
    "fast-export", "for-each-ref", "format-patch", "fsck", "grep", "hash-object", "help", "init", "log", "ls-files",
    "ls-remote", "ls-tree", "merge-base", "merge-file", "merge-tree", "name-rev", "notes", "range-diff", "remote",
    "rev-list", "rev-parse", "shortlog", "show", "show-branch", "show-ref", "sparse-checkout", "status", "symbolic-ref",
    "tag", "update-index", "var", "verify-commit", "version", "write-tree",
];
