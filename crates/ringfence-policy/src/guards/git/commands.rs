//! Commands of git whose arguments alone say whether work would be lost.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::options::Options;
use super::{Judgement, Place, refuse, refuse_discarding_files};

/// `--hard` and `--merge` (which drops what is staged). `--keep` stops when changes would be lost, and the others leave
/// files alone.
pub(super) fn reset(options: &Options) -> Judgement {
    const INSTEAD: &str = "set the changes aside with `git stash push --include-untracked`, and move the branch with \
                           `git reset --keep COMMIT`";
    if options.has("hard") {
        return refuse("git reset --hard", "it throws away uncommitted work", INSTEAD);
    }
    if options.has("merge") {
        return refuse("git reset --merge", "it throws away staged work", INSTEAD);
    }
    Ok(())
}

/// Only `--staged` alone leaves the files as they are.
pub(super) fn restore(options: &Options) -> Judgement {
    let names_files = options.all_words().next().is_some() || options.has_any(&["patch", "pathspec-from-file"]);
    if names_files && (options.has("worktree") || !options.has("staged")) {
        return refuse_discarding_files("git restore of files");
    }
    Ok(())
}

/// What takes a stash away. `stash branch` does too, but only once it is in a branch's files.
pub(super) fn stash(args: &[OsString]) -> Judgement {
    match args.first().and_then(|command| command.to_str()) {
        Some("pop") => refuse(
            "git stash pop",
            "it drops the stash as soon as it is applied, also over changes that belong to something else",
            "use `git stash apply`, which keeps the stash",
        ),
        Some("drop" | "clear") => refuse(
            "git stash drop or clear",
            "it deletes stashed work",
            "leave the stash where it is, it costs nothing; the user can drop it",
        ),
        _ => Ok(()),
    }
}

/// Git refuses to remove changed files; `--force` makes it. With `--cached` the file stays.
pub(super) fn rm(options: &Options) -> Judgement {
    if options.has("force") && !options.has_any(&["cached", "dry-run"]) {
        return refuse(
            "git rm --force",
            "it deletes files with changes that are not committed",
            "use `git rm` without force, or `git rm --cached` to keep the file",
        );
    }
    Ok(())
}

pub(super) fn mv(options: &Options) -> Judgement {
    if options.has("force") && !options.has("dry-run") {
        return refuse(
            "git mv --force",
            "it overwrites the file that is there",
            "use `git mv` without force, after moving the other file away",
        );
    }
    Ok(())
}

/// Forced pushes without a lease and deletions. `--force` beside `--force-with-lease` switches the lease off, and so does
/// `+` before a refspec.
pub(super) fn push(options: &Options) -> Judgement {
    const LEASE: &str =
        "fetch, look at what is there, and use `git push --force-with-lease` if the user wants it replaced";
    if options.has("dry-run") {
        return Ok(());
    }
    let why = "it overwrites commits on the remote that nobody may have elsewhere";
    if options.has("force") {
        return refuse("git push --force", why, LEASE);
    }
    if options.has("mirror") {
        return refuse("git push --mirror", why, "push the branches that you mean by name");
    }
    if options.has_any(&["delete", "prune"]) {
        return refuse_remote_deletion();
    }
    // The first word is the remote, unless `--repo` names it; a remote does not look like either of these.
    for refspec in options.all_words().map(OsStr::as_bytes) {
        match refspec {
            [b'+', ..] => return refuse("a forced git push (+REFSPEC)", why, LEASE),
            [b':', _, ..] => return refuse_remote_deletion(),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn refuse_remote_deletion() -> Judgement {
    refuse(
        "deleting with git push",
        "it deletes branches or tags on the remote",
        "leave them, and name to the user what could be deleted",
    )
}

pub(super) fn submodule(args: &[OsString]) -> Judgement {
    let Some((command, args)) = after_flags(args).split_first() else { return Ok(()) };
    if (command == "update" || command == "deinit") && Options::read("submodule", args).has("force") {
        return refuse(
            "git submodule update or deinit with --force",
            "it throws away uncommitted work in the submodules",
            "commit or stash inside the submodule, then run it without --force",
        );
    }
    Ok(())
}

/// What follows the flags before a subcommand.
pub(super) fn after_flags(args: &[OsString]) -> &[OsString] {
    let start = args.iter().position(|arg| !arg.as_bytes().starts_with(b"-")).unwrap_or(args.len());
    &args[start..]
}

/// The reflog is how lost commits are found again.
pub(super) fn reflog(args: &[OsString]) -> Judgement {
    let Some((command, args)) = args.split_first() else { return Ok(()) };
    if matches!(command.to_str(), Some("expire" | "delete" | "drop"))
        && !Options::read("reflog expire", args).has("dry-run")
    {
        return refuse(
            "git reflog expire, delete or drop",
            "the reflog is the way back to lost commits",
            "leave the reflog alone, git tidies it up by itself",
        );
    }
    Ok(())
}

/// Pruning of what may be younger than the weeks that git waits by itself.
pub(super) fn gc(options: &Options, place: &Place) -> Judgement {
    let soon = options.values("prune").chain(place.inline("gc.pruneexpire")).any(is_soon);
    if soon { refuse_pruning("git gc --prune=now") } else { Ok(()) }
}

/// Prunes everything at once unless told otherwise.
pub(super) fn prune(options: &Options) -> Judgement {
    let waits = options.values("expire").last().is_some_and(|when| !is_soon(when));
    if options.has("dry-run") || waits { Ok(()) } else { refuse_pruning("git prune") }
}

pub(super) fn refuse_pruning(what: &'static str) -> Judgement {
    refuse(
        what,
        "it deletes lost commits and dropped stashes that could still be found again",
        "use `git gc`, which keeps what is younger than two weeks",
    )
}

/// Whether a date of git's leaves less than weeks.
pub(super) fn is_soon(date: &OsStr) -> bool {
    let date = date.to_string_lossy().to_lowercase();
    !["never", "false", "week", "month", "year"].iter().any(|word| date.contains(word))
}

/// Plumbing behind `reset --hard`.
pub(super) fn read_tree(options: &Options) -> Judgement {
    if options.has("reset") && options.has("u") && !options.has("dry-run") {
        return refuse(
            "git read-tree --reset -u",
            "it throws away uncommitted work",
            "use `git read-tree -m -u`, which stops when changes would be lost",
        );
    }
    Ok(())
}

/// Plumbing behind checkout of files; with a prefix or as temporary files it writes elsewhere.
pub(super) fn checkout_index(options: &Options) -> Judgement {
    if options.has("force") && !options.has_any(&["prefix", "temp"]) {
        return refuse_discarding_files("git checkout-index --force");
    }
    Ok(())
}

// --- settings --------------------------------------------------------------------------------------------------------
