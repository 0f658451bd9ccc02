//! What git executes or follows in a repository, found by looking and never by running git.
//!
//! Inside a writable `.git` the names that make git run something or look elsewhere are read-only, also when they are
//! missing: `config`, `config.worktree`, `hooks`, `commondir`, `info/attributes`, `objects/info/alternates`, the same in
//! submodules' directories, the pointers of linked worktrees, `core.hooksPath` and included files that lie in the
//! project. Commits, branches, fetches, stashes and rebases need none of these.
//!
//! A `.git` *file* says where the repository is, so it could name any repository of the user's. What it names is made
//! writable only when that directory points back at it, and is a `.git` of the same owner that does not hold the working
//! directory: pointing back shows only who wrote the files. Anything else is a planted pointer, and nothing is granted.
//!
//! Not promised: repositories that are planted deeper in the project. They run nothing until git is used there. A gitlink in
//! the index makes git go there by itself; [`changed_since`] finds those.

mod config;
mod index;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use config::{Config, path_of, read, shell_words};
use rustix::fs::{AtFlags, FileType, StatxFlags, StatxTimestamp};

use crate::look::{Lookup, is_missing};
use crate::rules::{Access, Kind, Missing, PlaceholderText, normalise};

/// A rule to be, without its origin.
pub type Found = (Access, PathBuf, Missing);

/// A repository that is not what it seems; nothing was granted for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Suspicion {
    #[error("`{}` points at `{}`, which does not point back: nothing was made writable for it, and the pointer is read-only", .file.display(), .target.display())]
    PlantedPointer { file: PathBuf, target: PathBuf },
    #[error("`{}` points at `{}`, which is not a `.git` of its own, of the same owner: nothing was made writable for it, so that commits fail; they work in a sandbox whose working directory holds both", .file.display(), .target.display())]
    NotOwn { file: PathBuf, target: PathBuf },
    #[error("`{}` is a symbolic link: the repository behind it is read-only", .0.display())]
    Link(PathBuf),
    #[error("`{}` cannot be understood as a pointer to a repository: it is read-only", .0.display())]
    BadPointer(PathBuf),
    #[error("`{}` has too many entries: all are read-only, and not every pointer to them in the project; `git worktree prune` removes those that are gone", .0.display())]
    Worktrees(PathBuf),
    #[error("`{}` keeps its branches in a reftable: they cannot be protected one by one, so that all are read-only", .0.display())]
    Reftable(PathBuf),
    #[error("`{}` names too many branches that have no file of their own: some can be changed", .0.display())]
    Branches(PathBuf),
    #[error("`{}` cannot be looked into: it is read-only, and what it points at in the project may not be", .0.display())]
    Closed(PathBuf),
    #[error("`{}` cannot be read ({reason}): hooks and files that it names may be unprotected", .file.display())]
    Unread { file: PathBuf, reason: String },
    #[error("`{}` names `{value}`, a place that is not known: it may be unprotected", .file.display())]
    UnknownPlace { file: PathBuf, value: String },
    #[error("`{}` comes after more names than are looked at: what it leads git to may be unprotected", .0.display())]
    TooMany(PathBuf),
}

impl Suspicion {
    /// Whether something may be unprotected because of it.
    pub fn weakens(&self) -> bool {
        match self {
            Suspicion::Worktrees(_)
            | Suspicion::Branches(_)
            | Suspicion::Closed(_)
            | Suspicion::Unread { .. }
            | Suspicion::UnknownPlace { .. }
            | Suspicion::TooMany(_) => true,
            Suspicion::PlantedPointer { .. }
            | Suspicion::NotOwn { .. }
            | Suspicion::Link(_)
            | Suspicion::BadPointer(_)
            | Suspicion::Reftable(_) => false,
        }
    }
}

/// How a repository is laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Repository {
    /// The directory that has `.git` in it.
    top: PathBuf,
    /// `HEAD` and index of this worktree.
    git_dir: PathBuf,
    /// Objects, refs and configuration.
    common_dir: PathBuf,
}

impl Repository {
    fn at(top: &Path, git_dir: &Path) -> Repository {
        Repository { top: top.to_path_buf(), git_dir: git_dir.to_path_buf(), common_dir: git_dir.to_path_buf() }
    }
}

/// Bounds for repositories made to be slow.
const MOST_SUBMODULES: usize = 256;
const MOST_WORKTREES: usize = 256;
const MOST_INCLUDES: usize = 64;
const MOST_DIRECTORIES: usize = 4096;
const MOST_HOOKS: usize = 256;
const MOST_CHANGED: usize = 1024;
const MOST_OPEN: usize = 1 << 17;
/// The names that are held for submodules and worktrees, in bytes: the janitor keeps a list of 64 KiB.
const MOST_HELD: usize = 48 << 10;
/// The same for the branches that `@git-strict` holds.
const MOST_HELD_BRANCHES: usize = 12 << 10;

/// The hooks that git itself runs.
const HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

/// Programs that execute the file which their first argument names.
const INTERPRETERS: &[&str] =
    &["sh", "bash", "dash", "zsh", "env", "exec", "python", "python3", "node", "ruby", "perl"];

/// An empty `commondir` stops git. This one says where git looks anyway.
const COMMONDIR: Missing = Missing::ProtectText(PlaceholderText::SameDirectory);

enum Look {
    Nothing,
    Repository(Repository),
    Refused(PathBuf, Suspicion),
}

/// Configuration of git besides the repository's own.
#[derive(Debug, Clone, Default)]
pub struct Outer {
    files: Vec<PathBuf>,
    /// What the environment itself says.
    variables: Config,
    /// Reads `/etc/passwd`, for `~user` in a path. Without, no other user is known.
    pub passwd: Option<fn() -> Vec<u8>>,
}

impl Outer {
    /// As this environment has it: system, user, and what says otherwise.
    pub fn new(home: &Path, env: &BTreeMap<OsString, OsString>) -> Outer {
        Outer { files: outer_files(home, env), variables: Config::of_environment(env), passwd: None }
    }

    /// Another user's, whose environment nobody knows.
    pub fn add_home(&mut self, home: &Path) {
        self.files.extend(outer_files(home, &BTreeMap::new()));
    }
}

fn outer_files(home: &Path, env: &BTreeMap<OsString, OsString>) -> Vec<PathBuf> {
    let variable = |name: &str| env.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from);
    let system = variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| PathBuf::from("/etc/gitconfig"));
    let xdg = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("git/config");
    // Both of the user's, also where one takes their place: a box may be started without the variable tomorrow.
    let mut files = vec![system, PathBuf::from("/usr/local/etc/gitconfig"), xdg, home.join(".gitconfig")];
    files.extend(variable("GIT_CONFIG_GLOBAL"));
    files
}

/// What a sandbox left that git outside may go into by itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Git directories, bare repositories and `.git` files.
    pub repositories: Vec<PathBuf>,
    /// Indexes that cannot be read whole: they may name more.
    pub unread: Vec<PathBuf>,
    /// A `.git` that is no repository any more: git looks for another one, in its directory and above.
    pub broken: Option<PathBuf>,
    /// There was not enough time to look through the working directory for repositories.
    pub cut: bool,
}

impl Changed {
    /// A line for each. Names may be chosen in a sandbox: nothing in them ends the line.
    pub fn warnings(&self) -> Vec<String> {
        let line = |path: &Path, what: &str| format!("`{}` {what}", path.display().to_string().escape_debug());
        let made = "was made or changed, and git goes into it by itself, or when it is used there: read its configuration \
                    and hooks before you use git outside";
        let hidden = "cannot be read whole: it may lead git into repositories that the command made, so look for \
                      unexpected ones (`find . -name .git`) before you use git outside";
        let broken = "is no repository any more: git outside takes another one, in its directory or above; restore it \
                      before you use git there";
        let mut lines: Vec<String> = self.broken.iter().map(|path| line(path, broken)).collect();
        lines.extend(self.repositories.iter().take(MOST_NAMED).map(|path| line(path, made)));
        if let Some(more @ 1..) = self.repositories.len().checked_sub(MOST_NAMED) {
            lines.push(format!("{more} more repositories were made or changed"));
        }
        lines.extend(self.unread.iter().take(MOST_NAMED).map(|path| line(path, hidden)));
        lines
    }
}

/// So many are named one by one.
const MOST_NAMED: usize = 8;
/// The longest that a working directory is looked through for repositories, which takes about 3 microseconds a directory.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const SHORTEST_LOOK: Duration = Duration::from_micros(300);

/// When files were changed, by the time of the last change that no process can set.
#[derive(Clone, Copy)]
struct Since(Duration);

impl Since {
    fn is_later(self, path: &Path) -> bool {
        let later = |data: fs::Metadata| {
            let (seconds, nanos) = (data.ctime().max(0) as u64, data.ctime_nsec().max(0) as u32);
            Duration::new(seconds, nanos) >= self.0
        };
        is_closed(path) || fs::symlink_metadata(path).is_ok_and(later)
    }

    /// As [`Since::is_later`], but for what another sandbox holds a name with.
    fn is_changed(self, path: &Path) -> bool {
        self.is_later(path) && !is_placeholder(path)
    }

    /// Whether what a git directory executes or follows was changed. Commits change nothing of it.
    fn is_new(self, dir: &Path) -> bool {
        ["config", "config.worktree", "hooks", "commondir"].iter().any(|name| self.is_changed(&dir.join(name)))
            || crate::look::entries(&dir.join("hooks"), MOST_HOOKS).iter().any(|(hook, _)| self.is_later(hook))
    }

    /// Whether a name was made, or moved to its place, which changes when its file was changed and not what is in it.
    fn came(self, path: &Path) -> bool {
        let (flags, wanted) = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        let Ok(data) = rustix::fs::statx(rustix::fs::CWD, path, flags, wanted) else { return is_closed(path) };
        let later = |at: StatxTimestamp| Duration::new(at.tv_sec.max(0) as u64, at.tv_nsec) >= self.0;
        if !later(data.stx_ctime) || is_placeholder(path) {
            return false;
        }
        let is_dir = FileType::from_raw_mode(data.stx_mode.into()).is_dir();
        match StatxFlags::from_bits_retain(data.stx_mask).contains(StatxFlags::BTIME) {
            _ if !is_dir => true,
            true => later(data.stx_btime) || !later(data.stx_mtime),
            // This file system does not know.
            false => path.parent().is_some_and(|dir| self.is_later(dir)),
        }
    }
}

fn is_placeholder(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => crate::look::is_empty(path).unwrap_or(false),
        Ok(data) => data.is_file() && (data.len() == 0 || read(path).is_some_and(|text| text == ".\n")),
        Err(_) => false,
    }
}

/// Repositories that an index names and that were changed since then, or named since then: `git status` outside goes into
/// each of them, and does what its configuration says. New git directories of submodules, which `git submodule update`
/// takes as they are. Repositories that appeared in the working directory, as far as it can be looked through in a small
/// part of the time since then. And a `.git` that git takes for none any more.
pub fn changed_since(workdir: &Path, home: &Path, since: SystemTime) -> Changed {
    let time = (since.elapsed().unwrap_or_default() / 20).clamp(SHORTEST_LOOK, LONGEST_LOOK);
    let since = Since(since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let mut changed = Changed::default();
    let mut own = BTreeSet::from([workdir.to_path_buf()]);
    let found = match find(workdir, home) {
        Look::Nothing => None,
        Look::Repository(Repository { top, git_dir, common_dir }) => Some((top, git_dir, common_dir)),
        // Git may go there all the same, or will when it is repaired.
        Look::Refused(dot_git, _) => {
            let git_dir = pointed(&dot_git);
            Some((dot_git.parent().unwrap_or(workdir).to_path_buf(), git_dir.clone(), common_of(&git_dir)))
        }
    };
    if let Some((top, git_dir, common_dir)) = found {
        let dot_git = top.join(".git");
        let is_broken = || !is_bare(&dot_git) || !has_head(&dot_git);
        // Git goes on from a directory, and stops at a file.
        if fs::symlink_metadata(&dot_git).is_ok_and(|data| data.is_dir())
            && is_broken()
            && (since.is_later(&dot_git) || since.is_later(&dot_git.join("HEAD")))
        {
            changed.broken = Some(dot_git);
        }
        own.extend([git_dir.clone(), common_dir.clone()]);
        named(top, git_dir, &common_dir, since, &mut changed);
        let (modules, whole) = modules(&common_dir);
        changed.repositories.extend(modules.into_iter().filter(|dir| since.is_new(dir) || since.came(dir)));
        if !whole {
            changed.unread.push(common_dir.join("modules"));
        }
    }
    appeared(workdir, &own, since, time, &mut changed);
    changed.repositories.sort();
    changed.repositories.dedup();
    changed
}

/// Repositories that indexes name.
fn named(top: PathBuf, git_dir: PathBuf, common_dir: &Path, since: Since, changed: &mut Changed) {
    let modules = real(&common_dir.join("modules"));
    let mut open = vec![(top, git_dir)];
    let mut seen = BTreeSet::new();
    while let Some((top, git_dir)) = open.pop() {
        let file = git_dir.join("index");
        if seen.len() > MOST_CHANGED {
            changed.unread.push(file);
            break;
        }
        if !seen.insert(real(&git_dir)) {
            continue;
        }
        let format = Config::read(&real(&common_of(&git_dir).join("config")));
        let id_length = if format.last("extensions.objectformat").is_some_and(|id| id == "sha256") { 32 } else { 20 };
        let index::Gitlinks { paths, whole } = index::gitlinks(&git_dir, id_length);
        if !whole {
            changed.unread.push(file.clone());
        }
        let named_since = since.is_later(&file);
        // Submodules of old that an unchanged `.gitmodules` lists are protected, as the directories of others are.
        let listed = top.join(".gitmodules");
        let known = if since.is_later(&listed) { Config::default() } else { Config::read(&listed) };
        let known: BTreeSet<PathBuf> = known.submodule_paths().map(|path| normalise(&top.join(path))).collect();
        for link in paths.iter().map(|path| normalise(&top.join(path))).filter(|link| link.starts_with(&top)) {
            let dot_git = link.join(".git");
            if !may_exist(&dot_git) {
                continue;
            }
            let git_dir = pointed(&dot_git);
            let protected = git_dir.starts_with(&modules) && git_dir != modules || known.contains(&link);
            if named_since && !protected || since.came(&dot_git) || since.is_new(&git_dir) {
                changed.repositories.push(dot_git);
            }
            open.push((link, git_dir));
        }
    }
}

/// Repositories in a working directory, those near its top first, but for those that are known.
fn appeared(workdir: &Path, own: &BTreeSet<PathBuf>, since: Since, time: Duration, changed: &mut Changed) {
    let end = std::time::Instant::now() + time;
    let mut open = std::collections::VecDeque::from([workdir.to_path_buf()]);
    while let Some(dir) = open.pop_front() {
        if std::time::Instant::now() > end {
            changed.cut = true;
            return;
        }
        let (mut dot_git, mut parts, first) = (false, 0, open.len());
        crate::look::each(&dir, |name, kind| {
            match name {
                b".git" => dot_git = true,
                b"HEAD" | b"objects" | b"refs" | b"commondir" => parts += 1,
                _ => {}
            }
            if kind == FileType::Directory && name != b".git" && open.len() < MOST_OPEN {
                open.push_back(dir.join(OsStr::from_bytes(name)));
            }
            true
        });
        if own.contains(&dir) {
            continue;
        }
        if dot_git && (since.came(&dir.join(".git")) || since.is_new(&pointed(&dir.join(".git")))) {
            changed.repositories.push(dir.join(".git"));
        }
        // `HEAD`, and where the rest is.
        if parts > 1 && (is_bare(&dir) || is_bare_elsewhere(&dir)) {
            open.truncate(first);
            if since.is_new(&dir) || since.came(&dir) {
                changed.repositories.push(dir);
            }
        }
    }
}

/// Git directories of submodules (`modules/a/b`, `modules/a/modules/b`) and what cannot be looked into, and whether these
/// are all.
fn modules(common_dir: &Path) -> (Vec<PathBuf>, bool) {
    let (mut open, mut found, mut visited) = (vec![common_dir.join("modules")], Vec::new(), 0);
    while let Some(dir) = open.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => continue,
            Err(_) => {
                found.push(dir);
                continue;
            }
        };
        for dir in entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()) {
            visited += 1;
            if visited > MOST_DIRECTORIES {
                return (found, false);
            }
            open.push(if is_bare(&dir) { dir.join("modules") } else { dir.clone() });
            if was_repository(&dir) {
                found.push(dir);
            }
        }
    }
    (found, true)
}

/// The rules of `@git` for this working directory. `outer`: configuration besides the repository's.
pub fn protect(workdir: &Path, home: &Path, outer: &Outer) -> (Vec<Found>, Vec<Suspicion>) {
    let mut rules = Rules::new(workdir, outer);
    let mut suspicions = Vec::new();
    // A name that a bare repository needs: `HEAD` would do, but in a repository `git diff HEAD` means two things then.
    let mut free: &[&str] = &["refs", "objects"];
    // As git does: what `.git` says comes first, whatever else lies in the directory.
    match look(workdir, workdir) {
        Look::Repository(repository) => rules.repository(&repository, home),
        Look::Refused(path, suspicion) => {
            rules.add(Access::Ro, &path, Missing::Protect(Kind::File));
            rules.refused(&path, home);
            suspicions.push(suspicion);
        }
        Look::Nothing if is_bare(workdir) || is_bare_elsewhere(workdir) => {
            rules.protect(&workdir.join(".git"), Kind::Dir);
            rules.inside(workdir, home);
            free = &[];
        }
        Look::Nothing => {
            // No repository can be planted here: not by `git init`, not by making the directory a bare one.
            rules.protect(&workdir.join(".git"), Kind::Dir);
            // In a directory of a repository, commits work as they do at its top.
            match find(workdir, home) {
                Look::Repository(repository) => rules.repository(&repository, home),
                Look::Refused(path, suspicion) => {
                    rules.refused(&path, home);
                    suspicions.push(suspicion);
                }
                Look::Nothing => {
                    free = &["HEAD", "refs", "objects"];
                    // The user's configuration may lie here.
                    rules.configured(&Repository::at(workdir, &workdir.join(".git")), home);
                }
            }
        }
    }
    if !free.is_empty() {
        rules.never_bare(free);
    }
    suspicions.append(&mut rules.suspicions);
    (rules.out, suspicions)
}

/// The rules that `@git-strict` adds: tags and branches other than the current one read-only.
pub fn protect_refs(workdir: &Path, home: &Path) -> (Vec<Found>, Vec<Suspicion>) {
    let outer = Outer::default();
    let mut rules = Rules::new(workdir, &outer);
    // What the rules of `@git` leave of the janitor's list.
    rules.held = MOST_HELD - MOST_HELD_BRANCHES;
    let Look::Repository(Repository { git_dir, common_dir, .. }) = find(workdir, home) else {
        return (Vec::new(), Vec::new());
    };
    if common_dir.join("reftable").is_dir() {
        rules.add(Access::Ro, &common_dir.join("reftable"), Missing::Protect(Kind::Dir));
        return (rules.out, vec![Suspicion::Reftable(common_dir)]);
    }
    rules.protect(&common_dir.join("refs/tags"), Kind::Dir);
    let packed = common_dir.join("packed-refs");
    rules.protect(&packed, Kind::File);
    let head = read(&git_dir.join("HEAD")).unwrap_or_default();
    let current = head.trim_end().strip_prefix("ref: refs/heads/").map(str::to_owned);
    let heads = common_dir.join("refs/heads");
    let current_path = current.as_ref().map(|name| heads.join(name));

    let mut branches = BTreeSet::new();
    let mut open = vec![heads.clone()];
    while let Some(dir) = open.pop() {
        match fs::read_dir(&dir) {
            Ok(entries) => {
                for entry in entries.flatten() {
                    match entry.file_type() {
                        Ok(kind) if kind.is_dir() => open.push(entry.path()),
                        _ => {
                            branches.insert(entry.path());
                        }
                    }
                }
            }
            Err(error) if is_missing(&error) => {}
            Err(_) => rules.closed(&dir),
        }
    }
    let packed_refs = read(&packed);
    if packed_refs.is_none() && may_exist(&packed) {
        rules.suspicions.push(Suspicion::Unread { file: packed.clone(), reason: "it is too large, or no file".into() });
    }
    for line in packed_refs.unwrap_or_default().lines() {
        if let Some((_, name)) = line.split_once(" refs/heads/") {
            branches.insert(normalise(&heads.join(name)));
        }
    }
    for branch in branches {
        if Some(&branch) != current_path.as_ref() && branch.starts_with(&heads) && branch != heads {
            // Where a packed branch has no file of its own, an empty directory keeps one from being made: git reads
            // on in `packed-refs` then, where an empty file would be a broken branch.
            let held = rules.within(|rules| rules.add(Access::Ro, &branch, Missing::Protect(Kind::Dir)));
            if !held {
                rules.suspicions.push(Suspicion::Branches(packed));
                break;
            }
        }
    }
    (rules.out, rules.suspicions)
}

/// The repository of the working directory, or of the nearest directory above that has one, if the working directory's
/// owner owns it too and it is not home itself (where dotfiles are kept) or above.
fn find(workdir: &Path, home: &Path) -> Look {
    let here = look(workdir, workdir);
    let (Look::Nothing, Ok(data)) = (&here, fs::metadata(workdir)) else { return here };
    for dir in workdir.ancestors().skip(1).take_while(|dir| !home.starts_with(dir)) {
        match look(dir, workdir) {
            Look::Nothing => {}
            found => {
                let owned = fs::symlink_metadata(dir.join(".git")).is_ok_and(|meta| meta.uid() == data.uid());
                return if owned { found } else { Look::Nothing };
            }
        }
    }
    Look::Nothing
}

/// What `.git` in this directory is: the working directory or one above it.
fn look(dir: &Path, workdir: &Path) -> Look {
    let dot_git = dir.join(".git");
    let Ok(meta) = fs::symlink_metadata(&dot_git) else { return Look::Nothing };
    if meta.is_symlink() {
        return Look::Refused(dot_git.clone(), Suspicion::Link(dot_git));
    }
    if meta.is_dir() && !is_bare(&dot_git) {
        // Another box's stand-in. Half a repository, which a box may have made of a whole one, is not left for one above.
        return match fs::read_dir(&dot_git).is_ok_and(|mut entries| entries.next().is_none()) {
            true => Look::Nothing,
            false => Look::Refused(dot_git.clone(), Suspicion::BadPointer(dot_git)),
        };
    }
    let checked = |repository: Repository| match is_own(&repository.common_dir, workdir) {
        true => Look::Repository(repository),
        false => {
            let suspicion = Suspicion::NotOwn { file: dot_git.clone(), target: repository.common_dir };
            Look::Refused(dot_git.clone(), suspicion)
        }
    };
    if meta.is_dir() {
        // A `commondir` in a main repository was planted, or makes it a worktree of another: do not follow it.
        return checked(Repository::at(dir, &dot_git));
    }
    let text = if meta.is_file() { read(&dot_git) } else { None };
    let Some(target) = text.as_deref().and_then(|t| t.strip_prefix("gitdir:")).map(str::trim) else {
        return Look::Refused(dot_git.clone(), Suspicion::BadPointer(dot_git));
    };
    let planted = || {
        let suspicion = Suspicion::PlantedPointer { file: dot_git.clone(), target: PathBuf::from(target) };
        Look::Refused(dot_git.clone(), suspicion)
    };
    let Ok(git_dir) = dir.join(target).canonicalize() else { return planted() };
    match worktree(&dot_git, &git_dir).or_else(|| submodule(dir, &git_dir)) {
        Some(common_dir) => checked(Repository { top: dir.to_path_buf(), git_dir, common_dir }),
        None => planted(),
    }
}

/// Whether the directory may be made writable for a sandbox in `workdir`. That a repository points at the working directory
/// shows only that a process could write there: it may be a sandbox's of before, or another user's.
fn is_own(common_dir: &Path, workdir: &Path) -> bool {
    let owner = |path: &Path| fs::symlink_metadata(path).map(|data| data.uid());
    let owners = [owner(workdir).ok(), Some(rustix::process::geteuid().as_raw())];
    let owned = |name: &str| match owner(&common_dir.join(name)) {
        Ok(owner) => owners.contains(&Some(owner)),
        Err(error) => name == "config" && is_missing(&error),
    };
    // What lies in the working directory is writable anyway.
    common_dir.starts_with(workdir)
        || is_dot_git(common_dir) && !workdir.starts_with(common_dir) && owned("HEAD") && owned("config")
}

/// Whether a path is `…/.git`, or in its `modules` or `worktrees`.
fn is_dot_git(dir: &Path) -> bool {
    dir.ancestors().filter(|dir| dir.ends_with(".git")).any(|dot_git| {
        let rest = dir.strip_prefix(dot_git).unwrap_or(dir);
        rest.as_os_str().is_empty() || rest.starts_with("modules") || rest.starts_with("worktrees")
    })
}

/// Where `.git` leads: itself, or what it points at.
fn pointed(dot_git: &Path) -> PathBuf {
    let target = read(dot_git).and_then(|text| Some(dot_git.parent()?.join(text.strip_prefix("gitdir:")?.trim())));
    real(&target.unwrap_or_else(|| dot_git.to_path_buf()))
}

/// The directory with the configuration of a git directory.
fn common_of(git_dir: &Path) -> PathBuf {
    let named = read(&git_dir.join("commondir")).map(|text| real(&git_dir.join(text.trim_end_matches('\n'))));
    named.unwrap_or_else(|| git_dir.to_path_buf())
}

/// The common directory of a linked worktree, if its directory points back at the `.git` file.
fn worktree(dot_git: &Path, git_dir: &Path) -> Option<PathBuf> {
    let back = read(&git_dir.join("gitdir"))?;
    let common = read(&git_dir.join("commondir"))?;
    let common_dir = git_dir.join(common.trim_end_matches('\n')).canonicalize().ok()?;
    let points_back = git_dir.join(back.trim_end_matches('\n')).canonicalize().ok()? == dot_git.canonicalize().ok()?;
    let listed = git_dir.parent()? == common_dir.join("worktrees");
    (points_back && listed && is_bare(&common_dir)).then_some(common_dir)
}

/// The directory of a submodule, if its `core.worktree` is the directory that points at it.
fn submodule(dir: &Path, git_dir: &Path) -> Option<PathBuf> {
    let back = Config::read(&git_dir.join("config")).last("core.worktree")?.to_owned();
    let points_back = git_dir.join(back).canonicalize().ok()? == dir.canonicalize().ok()?;
    (points_back && is_bare(git_dir)).then(|| git_dir.to_path_buf())
}

/// Whether git takes the directory for a repository by itself.
fn is_bare(dir: &Path) -> bool {
    // Git only asks whether it could go there, which it thinks of an executable file too.
    let enters = |name: &str| fs::metadata(dir.join(name)).is_ok_and(|m| m.is_dir() || m.mode() & 0o111 != 0);
    // `HEAD` was a link once, which leads to nothing before the first commit.
    fs::symlink_metadata(dir.join("HEAD")).is_ok_and(|m| !m.is_dir()) && enters("objects") && enters("refs")
}

/// Whether git takes the directory for a repository whose objects are in another one.
fn is_bare_elsewhere(dir: &Path) -> bool {
    let common_dir = common_of(dir);
    common_dir != dir && fs::symlink_metadata(dir.join("HEAD")).is_ok_and(|m| !m.is_dir()) && is_bare(&common_dir)
}

/// Whether `HEAD` says what git accepts: without, a directory is none of its repositories.
fn has_head(git_dir: &Path) -> bool {
    let head = git_dir.join("HEAD");
    if let Ok(target) = fs::read_link(&head) {
        return target.starts_with("refs");
    }
    let text = read(&head).unwrap_or_default();
    let is_id = |text: &str| text.len() >= 40 && text.bytes().take(40).all(|byte| byte.is_ascii_hexdigit());
    text.strip_prefix("ref:").is_some_and(|name| name.trim_start().starts_with("refs/")) || is_id(&text)
}

/// Whether the directory of a submodule is a repository, or was one before a box took something away. One that cannot be
/// entered may be one.
fn was_repository(dir: &Path) -> bool {
    ["config", "HEAD", "objects", "hooks"].iter().any(|name| may_exist(&dir.join(name)))
}

/// Whether something is there, or may be.
fn may_exist(path: &Path) -> bool {
    is_closed(path) || fs::symlink_metadata(path).is_ok()
}

/// Whether nobody can tell what is there: the directory cannot be entered.
fn is_closed(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| !is_missing(&error))
}

/// The names by which git gets to a path: as it is written, every link on the way, and what they lead to.
fn names(path: &Path) -> BTreeSet<PathBuf> {
    let links = Lookup::default().walk(path).map_or_else(|_| Vec::new(), |walk| walk.links);
    let plain = normalise(path);
    // A link that the path itself names is protected with it. Named alone, all that is behind it would be protected.
    let links = links.into_iter().filter(|link| !plain.starts_with(link));
    links.chain([normalise(&real(path)), plain.clone()]).collect()
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let whole = |dir: &Path| {
        let (real, rest) = (dir.canonicalize().ok()?, path.strip_prefix(dir).ok()?);
        // Joined with nothing, it would end in a slash, as only a directory may.
        Some(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
    };
    path.ancestors().find_map(whole).unwrap_or_else(|| path.to_path_buf())
}

struct Rules<'a> {
    workdir: &'a Path,
    outer: &'a Outer,
    /// A repository elsewhere that is writable too.
    granted: Option<PathBuf>,
    /// How many bytes of names are held for submodules and worktrees.
    held: usize,
    out: Vec<Found>,
    seen: BTreeSet<PathBuf>,
    /// Configuration files that were read.
    configs: BTreeMap<PathBuf, Rc<Config>>,
    suspicions: Vec<Suspicion>,
}

impl<'a> Rules<'a> {
    fn new(workdir: &'a Path, outer: &'a Outer) -> Rules<'a> {
        let (seen, configs) = (BTreeSet::new(), BTreeMap::new());
        Rules { workdir, outer, granted: None, held: 0, out: Vec::new(), seen, configs, suspicions: Vec::new() }
    }

    /// What a file sets. Git follows links to it.
    fn config(&mut self, file: &Path) -> Rc<Config> {
        let real = real(file);
        if let Some(known) = self.configs.get(&real) {
            return known.clone();
        }
        let read = Config::try_read(&real);
        let reason = match &read {
            Ok(config) => config.broken.map(|line| format!("line {line} is none of git's")),
            Err(error) => Some(error.to_string()),
        };
        // What cannot even be seen outside of the working directory is not there for git either.
        let seen = || read.is_ok() || real.starts_with(self.workdir) || fs::symlink_metadata(&real).is_ok();
        if let Some(reason) = reason.filter(|_| seen()) {
            self.suspicions.push(Suspicion::Unread { file: file.to_path_buf(), reason });
        }
        let config = Rc::new(read.unwrap_or_default());
        self.configs.insert(real, config.clone());
        config
    }

    fn add(&mut self, access: Access, path: &Path, missing: Missing) {
        if self.seen.insert(path.to_path_buf()) {
            self.out.push((access, path.to_path_buf(), missing));
        }
    }

    /// Read-only, also when missing. Where its directory is missing too, that name is taken.
    fn protect(&mut self, path: &Path, kind: Kind) {
        match path.parent() {
            Some(parent) if parent != self.workdir && fs::symlink_metadata(parent).is_err() => {
                self.protect(parent, Kind::Dir);
            }
            _ => self.add(Access::Ro, path, Missing::Protect(kind)),
        }
    }

    /// Adds rules; none when too many names would be held.
    fn within(&mut self, fill: impl FnOnce(&mut Self)) -> bool {
        let (rules, suspicions) = (self.out.len(), self.suspicions.len());
        fill(self);
        let is_held = |(_, path, missing): &&Found| *missing != Missing::Ignore && fs::symlink_metadata(path).is_err();
        let names = self.out[rules..].iter().filter(is_held);
        let held = self.held + names.map(|(_, path, _)| path.as_os_str().len() + 2).sum::<usize>();
        let fits = held <= MOST_HELD;
        if fits {
            self.held = held;
        } else {
            self.out.drain(rules..).for_each(|(_, path, _)| _ = self.seen.remove(&path));
            self.suspicions.truncate(suspicions);
        }
        fits
    }

    fn repository(&mut self, repository: &Repository, home: &Path) {
        let Repository { top, git_dir, common_dir } = repository;
        let linked = git_dir != common_dir;
        if git_dir != &top.join(".git") {
            // The pointer itself.
            self.add(Access::Ro, &top.join(".git"), Missing::Protect(Kind::File));
        }
        if !common_dir.starts_with(self.workdir) {
            // Checked above to be this worktree's own: commits write there.
            self.add(Access::Rw, common_dir, Missing::Ignore);
            self.granted = Some(common_dir.clone());
        }
        if linked {
            // What belongs to the main worktree stays as it is.
            for name in ["HEAD", "index", "ORIG_HEAD", "MERGE_HEAD"] {
                self.add(Access::Ro, &common_dir.join(name), Missing::Ignore);
            }
        }
        self.git_dir(common_dir);
        self.worktrees(common_dir, if linked { Some(git_dir) } else { None });
        self.submodules(common_dir, top);
        self.configured(repository, home);
    }

    /// A repository that lies in the working directory with all that belongs to it, or is the working directory.
    fn inside(&mut self, dir: &Path, home: &Path) {
        self.bare(dir);
        self.worktrees(dir, None);
        self.submodules(dir, self.workdir);
        let (top, git_dir) = (self.workdir.to_path_buf(), dir.to_path_buf());
        self.configured(&Repository { top, git_dir, common_dir: common_of(dir) }, home);
    }

    /// The working directory becomes no bare repository, which git would take for it where there is no `.git`, or a broken
    /// one. An empty directory takes a name that a bare one needs, until the sandbox ends. While it is there, git dies over a
    /// `commondir` that is a directory.
    fn never_bare(&mut self, names: &[&str]) {
        let top = self.workdir;
        let is_free = |name: &&&str| match fs::symlink_metadata(top.join(name)) {
            // Another sandbox's.
            Ok(data) => data.is_dir() && crate::look::entries(&top.join(name), 1).is_empty(),
            Err(error) => is_missing(&error),
        };
        // All but `HEAD` is elsewhere then.
        let has_common = fs::symlink_metadata(top.join("commondir")).is_ok_and(|data| !data.is_dir());
        match if has_common { &["HEAD"] } else { names }.iter().find(is_free) {
            Some(name) => {
                self.protect(&top.join(name), Kind::Dir);
                if *name != "HEAD" {
                    self.protect(&top.join("commondir"), Kind::Dir);
                }
            }
            None => self.bare(top),
        }
    }

    /// A directory that is a repository, or may become one.
    fn bare(&mut self, dir: &Path) {
        self.git_dir(dir);
        let common_dir = common_of(dir);
        if self.is_writable(&common_dir) {
            self.git_dir(&common_dir);
        }
    }

    /// What git uses all the same behind a pointer that nothing is granted for.
    fn refused(&mut self, dot_git: &Path, home: &Path) {
        let dir = pointed(dot_git);
        if dir.starts_with(self.workdir) && dir != self.workdir {
            return self.inside(&dir, home);
        }
        // Nothing outside is named, not even as read-only: a box may not see it at all.
        let top = dot_git.parent().unwrap_or(self.workdir).to_path_buf();
        self.configured(&Repository { top, common_dir: common_of(&dir), git_dir: dir }, home);
    }

    /// Links in a directory of hooks: what they lead to is executed too. Git's own hooks are asked for by name, so that none
    /// is missed in a directory with very many entries.
    fn linked(&mut self, hooks: &Path) {
        let entries = crate::look::entries(hooks, MOST_HOOKS);
        let mut links: Vec<PathBuf> =
            entries.iter().filter(|(_, kind)| kind.is_symlink()).map(|(link, _)| link.clone()).collect();
        if entries.len() == MOST_HOOKS {
            self.suspicions.push(Suspicion::TooMany(hooks.to_path_buf()));
            let named = HOOKS.iter().map(|name| hooks.join(name));
            links.extend(named.filter(|hook| fs::symlink_metadata(hook).is_ok_and(|data| data.is_symlink())));
        }
        for path in links.iter().flat_map(|link| names(link)) {
            // The links as well: what they lead to may lie in a directory that cannot be looked into now.
            if path.starts_with(self.workdir) && path != self.workdir {
                self.add(Access::Ro, &path, Missing::Ignore);
            }
        }
    }

    /// The names in a repository's directory that make git execute something or look elsewhere.
    fn git_dir(&mut self, dir: &Path) {
        self.protect(&dir.join("config"), Kind::File);
        // Read by git when `config` says so, which `git sparse-checkout` makes it do.
        self.protect(&dir.join("config.worktree"), Kind::File);
        self.protect(&dir.join("hooks"), Kind::Dir);
        self.linked(&dir.join("hooks"));
        // Remotes of old, which say where to push to and need no configuration.
        self.protect(&dir.join("remotes"), Kind::Dir);
        self.protect(&dir.join("branches"), Kind::Dir);
        self.add(Access::Ro, &dir.join("commondir"), COMMONDIR);
        self.protect(&dir.join("info/attributes"), Kind::File);
        self.protect(&dir.join("objects/info/alternates"), Kind::File);
    }

    /// The pointers of linked worktrees; another worktree's directory is not this one's to write.
    fn worktrees(&mut self, common_dir: &Path, own: Option<&Path>) {
        let all = common_dir.join("worktrees");
        let dirs = self.directories(&all);
        if dirs.len() > MOST_DIRECTORIES {
            self.suspicions.push(Suspicion::Worktrees(all.clone()));
        }
        // Too many to protect one by one: all as they are.
        let mut too_many = dirs.len() > MOST_WORKTREES;
        if own.is_none() && !too_many {
            let hold = |rules: &mut Self, dir: &PathBuf| rules.protect(&dir.join("config.worktree"), Kind::File);
            too_many = !self.within(|rules| dirs.iter().for_each(|dir| hold(rules, dir)));
        }
        if too_many {
            self.add(Access::Ro, &all, Missing::Ignore);
            if let Some(own) = own {
                self.add(Access::Rw, own, Missing::Ignore);
            }
        }
        for dir in own.map(Path::to_path_buf).into_iter().chain(dirs).take(MOST_DIRECTORIES) {
            let other = own.is_some_and(|own| own != dir);
            if is_closed(&dir.join("gitdir")) {
                self.closed(&dir);
            }
            if other && !too_many {
                self.add(Access::Ro, &dir, Missing::Ignore);
            }
            if other {
                continue;
            }
            if !too_many || own.is_some() {
                self.add(Access::Ro, &dir.join("commondir"), Missing::Ignore);
                self.add(Access::Ro, &dir.join("gitdir"), Missing::Ignore);
                self.protect(&dir.join("config.worktree"), Kind::File);
            }
            if let Some(text) = read(&dir.join("gitdir")) {
                self.pointer(&dir.join(text.trim_end_matches('\n')));
            }
        }
    }

    /// A `.git` file of the working directory, by every name by which git gets there.
    fn pointer(&mut self, dot_git: &Path) {
        for name in names(dot_git) {
            if name.starts_with(self.workdir) && name != self.workdir {
                self.add(Access::Ro, &name, Missing::Ignore);
            }
        }
    }

    /// Directories of submodules, and the `.git` in their worktrees.
    fn submodules(&mut self, common_dir: &Path, top: &Path) {
        let all = common_dir.join("modules");
        let listed = self.config(&top.join(".gitmodules"));
        let (known, whole) = modules(common_dir);
        let few = whole && known.len() <= MOST_SUBMODULES && fs::symlink_metadata(&all).is_ok();
        let fits = few
            && self.within(|rules| {
                for dir in &known {
                    rules.submodule(dir);
                }
                // What is not there yet: `git submodule update` takes a directory as it finds it, with its configuration.
                let names = listed.subsections("submodule.").map(|name| normalise(&all.join(name)));
                let names = names.filter(|dir| dir.starts_with(&all) && *dir != all && !known.contains(dir));
                names.for_each(|dir| rules.protect(&dir, Kind::Dir));
            });
        if !fits {
            // Too many to protect one by one, or none yet: all as they are.
            self.protect(&all, Kind::Dir);
        }
        // Submodules of old, with a repository of their own in the worktree.
        if listed.submodule_paths().count() > MOST_SUBMODULES {
            self.suspicions.push(Suspicion::TooMany(top.join(".gitmodules")));
        }
        for path in listed.submodule_paths().take(MOST_SUBMODULES) {
            let dir = normalise(&top.join(path));
            let inside = dir.starts_with(self.workdir) && dir != top;
            if !inside {
                continue;
            }
            match fs::symlink_metadata(dir.join(".git")) {
                Ok(meta) if meta.is_dir() => {
                    let dot_git = dir.join(".git");
                    if !self.within(|rules| rules.git_dir(&dot_git)) {
                        self.add(Access::Ro, &dot_git, Missing::Ignore);
                    }
                }
                Err(error) if !is_missing(&error) => self.closed(&dir),
                Ok(_) | Err(_) => continue,
            }
            // Without it, the next box would not know of them.
            self.add(Access::Ro, &top.join(".gitmodules"), Missing::Ignore);
        }
    }

    /// The git directory of a submodule.
    fn submodule(&mut self, dir: &Path) {
        if is_closed(&dir.join("config")) || fs::read_dir(dir).is_err() {
            return self.closed(dir);
        }
        self.git_dir(dir);
        let config = self.config(&dir.join("config"));
        if let Some(back) = config.last("core.worktree") {
            self.pointer(&dir.join(back).join(".git"));
        }
    }

    /// The outer configuration itself, and what it and the repository's name: `core.hooksPath`, included files and programs,
    /// where they are in a writable place.
    fn configured(&mut self, repository: &Repository, home: &Path) {
        let Repository { top, git_dir, common_dir } = repository;
        let mut open = vec![common_dir.join("config"), git_dir.join("config"), git_dir.join("config.worktree")];
        for file in &self.outer.files {
            // A variable may name it from where it is used.
            let file = top.join(file);
            // Often a link into a project of dotfiles, which may be this one.
            for name in names(&file) {
                if self.is_writable(&name) {
                    self.protect(&name, Kind::File);
                }
            }
            open.push(file);
        }
        let passwd = || self.outer.passwd.map_or_else(Vec::new, |read| read());
        let mut seen = BTreeSet::new();
        // Git takes no relative include from a variable, so that it does not matter where that would begin.
        let mut next = Some((top.join("environment"), Rc::new(self.outer.variables.clone())));
        while let Some((file, config)) = next.take() {
            let unknown = |value: &OsStr| {
                let value = value.to_string_lossy().into_owned();
                Suspicion::UnknownPlace { file: file.clone(), value }
            };
            // Hooks are copied from a template.
            for value in config.all("core.hookspath").chain(config.all("init.templatedir")) {
                let Some(path) = path_of(value, top, home, passwd) else {
                    self.suspicions.push(unknown(value));
                    continue;
                };
                self.linked(&path);
                for path in names(&path) {
                    if self.is_writable(&path) {
                        self.protect(&path, Kind::Dir);
                    }
                }
            }
            for value in config.values().filter(|value| value.as_bytes().iter().any(|byte| b"/ \t".contains(byte))) {
                self.programs(value, top);
            }
            for value in config.includes() {
                // Relative to the file as it is named, and to be safe also to what that leads to.
                for base in BTreeSet::from([real(&file), file.clone()]) {
                    let Some(path) = path_of(value, base.parent().unwrap_or(top), home, passwd) else {
                        self.suspicions.push(unknown(value));
                        break;
                    };
                    for name in names(&path) {
                        if self.is_writable(&name) {
                            self.protect(&name, Kind::File);
                        }
                    }
                    open.push(path);
                }
            }
            next = std::iter::from_fn(|| open.pop()).find(|file| seen.insert(file.clone())).and_then(|file| {
                if seen.len() > MOST_INCLUDES {
                    self.suspicions.push(Suspicion::TooMany(file));
                    return None;
                }
                let config = self.config(&file);
                Some((file, config))
            });
        }
    }

    /// Files of the project that a value executes.
    fn programs(&mut self, value: &OsStr, top: &Path) {
        let value = value.as_bytes();
        let words = shell_words(OsStr::from_bytes(value.strip_prefix(b"!").unwrap_or(value)));
        let interpreter = words.first().and_then(|word| Path::new(word).file_name()?.to_str());
        let argument = words.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-"));
        let script = argument.filter(|_| interpreter.is_some_and(|name| INTERPRETERS.contains(&name)));
        for (word, is_script) in
            words.first().map(|word| (word, false)).into_iter().chain(script.map(|word| (word, true)))
        {
            let path = top.join(word);
            // A name alone is looked for in `PATH`. What cannot be executed is not a program, but what git reads or writes.
            let executes = |data: fs::Metadata| data.is_file() && (is_script || data.mode() & 0o111 != 0);
            if (is_script || word.as_bytes().contains(&b'/')) && fs::metadata(&path).is_ok_and(executes) {
                for name in names(&path) {
                    if self.is_writable(&name) {
                        self.add(Access::Ro, &name, Missing::Ignore);
                    }
                }
            }
        }
    }

    fn is_writable(&self, path: &Path) -> bool {
        let granted = self.granted.as_ref().is_some_and(|dir| path.starts_with(dir));
        granted || (path.starts_with(self.workdir) && path != self.workdir)
    }

    /// A directory that cannot be looked into stays as it is. A sandbox that could write there would open it again.
    fn closed(&mut self, dir: &Path) {
        if self.seen.insert(dir.to_path_buf()) {
            self.out.push((Access::Ro, dir.to_path_buf(), Missing::Ignore));
            self.suspicions.push(Suspicion::Closed(dir.to_path_buf()));
        }
    }

    /// Directories in a directory, links not followed; of very many one more than are looked at.
    fn directories(&mut self, dir: &Path) -> Vec<PathBuf> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries.flatten(),
            Err(error) => {
                if !is_missing(&error) {
                    self.closed(dir);
                }
                return Vec::new();
            }
        };
        let dirs = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut found: Vec<PathBuf> = dirs.take(MOST_DIRECTORIES + 1).map(|e| e.path()).collect();
        found.sort();
        found
    }
}
