//! What git executes or follows in a repository, found by looking and never by running git.
//!
//! Inside a writable `.git` the names that make git run something or look elsewhere are read-only, also when they are
//! missing: `config`, `config.worktree`, `hooks`, `commondir`, `info/attributes`, `objects/info/alternates`, the same in
//! submodules' directories, the pointers of linked worktrees, `core.hooksPath` and included files that lie in the
//! project. Commits, branches, fetches, stashes and rebases need none of these.
//!
//! A `.git` *file* says where the repository is, so it could name any repository of the user's. What it names is made
//! writable only when that directory points back at it; anything else is a planted pointer, and nothing is granted.
//!
//! Not promised: repositories that are planted deeper in the project. They run nothing until somebody goes there, and
//! git's own `safe.bareRepository` and a look at what was made are what helps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use std::rc::Rc;

use crate::rules::{Access, Kind, Missing, normalise};

/// A rule to be, without its origin.
pub type Found = (Access, PathBuf, Missing);

/// A repository that is not what it seems; nothing was granted for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Suspicion {
    #[error("`{}` points at `{}`, which does not point back: it is read-only, and nothing was made writable for it", .file.display(), .target.display())]
    PlantedPointer { file: PathBuf, target: PathBuf },
    #[error("`{}` is a symbolic link: the repository behind it is read-only", .0.display())]
    Link(PathBuf),
    #[error("`{}` cannot be understood as a pointer to a repository: it is read-only", .0.display())]
    BadPointer(PathBuf),
    #[error("`{}` keeps its branches in a reftable: they cannot be protected one by one, so that all are read-only", .0.display())]
    Reftable(PathBuf),
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

/// Files that Ringfence reads of a repository are small; what is larger is not one of them.
const LARGEST: u64 = 1 << 20;
/// Bounds for repositories made to be slow.
const MOST_SUBMODULES: usize = 256;
const MOST_INCLUDES: usize = 32;

/// An empty `commondir` stops git. This one says where git looks anyway.
const COMMONDIR: Missing = Missing::ProtectText(".\n");

enum Look {
    Nothing,
    Repository(Repository),
    Refused(PathBuf, Suspicion),
}

/// The rules of `@git` for this working directory.
pub fn protect(workdir: &Path, home: &Path) -> (Vec<Found>, Vec<Suspicion>) {
    let mut rules = Rules { workdir, out: Vec::new(), seen: BTreeSet::new(), configs: BTreeMap::new() };
    let mut suspicions = Vec::new();
    if is_bare(workdir) {
        rules.git_dir(workdir);
        rules.protect(&workdir.join(".git"), Kind::Dir);
        return (rules.out, suspicions);
    }
    match look(workdir) {
        Look::Repository(repository) => rules.repository(&repository, home),
        Look::Refused(path, suspicion) => {
            rules.add(Access::Ro, &path, Missing::Protect(Kind::File));
            suspicions.push(suspicion);
        }
        Look::Nothing => {
            // No repository can be planted here: not by `git init`, not by making the directory a bare one.
            rules.protect(&workdir.join(".git"), Kind::Dir);
            rules.protect(&workdir.join("HEAD"), Kind::Dir);
            // In a directory of a repository, commits work as they do at its top.
            match repository_above(workdir, home) {
                Some(Look::Repository(repository)) => rules.repository(&repository, home),
                Some(Look::Refused(_, suspicion)) => suspicions.push(suspicion),
                Some(Look::Nothing) | None => {}
            }
        }
    }
    (rules.out, suspicions)
}

/// The rules that `@git-strict` adds: tags and branches other than the current one read-only.
pub fn protect_refs(workdir: &Path, home: &Path) -> (Vec<Found>, Vec<Suspicion>) {
    let mut rules = Rules { workdir, out: Vec::new(), seen: BTreeSet::new(), configs: BTreeMap::new() };
    let found = match look(workdir) {
        Look::Nothing => repository_above(workdir, home),
        found => Some(found),
    };
    let Some(Look::Repository(Repository { git_dir, common_dir, .. })) = found else {
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
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                _ => {
                    branches.insert(entry.path());
                }
            }
        }
    }
    for line in read(&packed).unwrap_or_default().lines() {
        if let Some((_, name)) = line.split_once(" refs/heads/") {
            branches.insert(normalise(&heads.join(name)));
        }
    }
    for branch in branches {
        if Some(&branch) != current_path.as_ref() && branch.starts_with(&heads) && branch != heads {
            // Where a packed branch has no file of its own, an empty directory keeps one from being made: git reads
            // on in `packed-refs` then, where an empty file would be a broken branch.
            rules.add(Access::Ro, &branch, Missing::Protect(Kind::Dir));
        }
    }
    (rules.out, Vec::new())
}

/// The repository of the nearest directory above that has one, if the working directory's owner owns it too and it is
/// not home itself (where dotfiles are kept) or above.
fn repository_above(workdir: &Path, home: &Path) -> Option<Look> {
    let owner = fs::metadata(workdir).ok()?.uid();
    for dir in workdir.ancestors().skip(1) {
        if home.starts_with(dir) {
            return None;
        }
        match look(dir) {
            Look::Nothing => {}
            found => {
                let owned = fs::symlink_metadata(dir.join(".git")).is_ok_and(|meta| meta.uid() == owner);
                return owned.then_some(found);
            }
        }
    }
    None
}

/// What `.git` in this directory is.
fn look(dir: &Path) -> Look {
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
    if meta.is_dir() {
        // A `commondir` in a main repository was planted, or makes it a worktree of another: do not follow it.
        return Look::Repository(Repository { top: dir.to_path_buf(), git_dir: dot_git.clone(), common_dir: dot_git });
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
        Some(common_dir) => Look::Repository(Repository { top: dir.to_path_buf(), git_dir, common_dir }),
        None => planted(),
    }
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
    let back = Config::read(&git_dir.join("config")).last("core", "worktree")?.to_owned();
    let points_back = git_dir.join(back).canonicalize().ok()? == dir.canonicalize().ok()?;
    (points_back && is_bare(git_dir)).then(|| git_dir.to_path_buf())
}

/// Whether git takes the directory for a repository by itself.
fn is_bare(dir: &Path) -> bool {
    // `HEAD` was a link once, which leads to nothing before the first commit.
    fs::symlink_metadata(dir.join("HEAD")).is_ok_and(|m| !m.is_dir())
        && dir.join("objects").is_dir()
        && dir.join("refs").is_dir()
}

struct Rules<'a> {
    workdir: &'a Path,
    out: Vec<Found>,
    seen: BTreeSet<PathBuf>,
    /// Configuration files that were read.
    configs: BTreeMap<PathBuf, Rc<Config>>,
}

impl Rules<'_> {
    fn config(&mut self, file: PathBuf) -> Rc<Config> {
        self.configs.entry(file).or_insert_with_key(|file| Rc::new(Config::read(file))).clone()
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

    /// The names in a repository's directory that make git execute something or look elsewhere.
    fn git_dir(&mut self, dir: &Path) {
        let config = self.config(dir.join("config"));
        self.protect(&dir.join("config"), Kind::File);
        self.protect(&dir.join("hooks"), Kind::Dir);
        self.add(Access::Ro, &dir.join("commondir"), COMMONDIR);
        self.protect(&dir.join("info/attributes"), Kind::File);
        self.protect(&dir.join("objects/info/alternates"), Kind::File);
        self.worktree_config(dir, &config);
    }

    /// Read by git only when `config`, which is protected, says so.
    fn worktree_config(&mut self, dir: &Path, config: &Config) {
        let wanted = config.last("extensions", "worktreeconfig").is_some_and(|v| v != "false" && v != "0");
        let missing = if wanted { Missing::Protect(Kind::File) } else { Missing::Ignore };
        self.add(Access::Ro, &dir.join("config.worktree"), missing);
    }

    /// The pointers of linked worktrees; another worktree's directory is not this one's to write.
    fn worktrees(&mut self, common_dir: &Path, own: Option<&Path>) {
        let config = self.config(common_dir.join("config"));
        for dir in directories(&common_dir.join("worktrees")) {
            if own.is_some_and(|own| own != dir) {
                self.add(Access::Ro, &dir, Missing::Ignore);
                continue;
            }
            self.add(Access::Ro, &dir.join("commondir"), Missing::Ignore);
            self.add(Access::Ro, &dir.join("gitdir"), Missing::Ignore);
            self.worktree_config(&dir, &config);
        }
    }

    /// Directories of submodules (`modules/a/b`, `modules/a/modules/b`), and the `.git` in their worktrees.
    fn submodules(&mut self, common_dir: &Path, top: &Path) {
        let mut open = directories(&common_dir.join("modules"));
        let mut count = 0;
        while let Some(dir) = open.pop() {
            if !is_bare(&dir) {
                open.extend(directories(&dir));
                continue;
            }
            count += 1;
            if count > MOST_SUBMODULES {
                // Too many to protect one by one: all as they are.
                self.add(Access::Ro, &common_dir.join("modules"), Missing::Ignore);
                return;
            }
            self.git_dir(&dir);
            let config = self.config(dir.join("config"));
            if let Some(back) = config.last("core", "worktree") {
                let pointer = normalise(&dir.join(back)).join(".git");
                if pointer.starts_with(self.workdir) {
                    self.add(Access::Ro, &pointer, Missing::Ignore);
                }
            }
            open.extend(directories(&dir.join("modules")));
        }
        // Submodules of old, with a repository of their own in the worktree.
        for path in Config::read(&top.join(".gitmodules")).all("path").take(MOST_SUBMODULES) {
            let dir = normalise(&top.join(path));
            let inside = dir.starts_with(self.workdir) && dir != top;
            if inside && fs::symlink_metadata(dir.join(".git")).is_ok_and(|meta| meta.is_dir()) {
                self.git_dir(&dir.join(".git"));
            }
        }
    }

    /// `core.hooksPath` and included files, of the repository's and of the user's configuration, where they are in a
    /// writable place.
    fn configured(&mut self, repository: &Repository, home: &Path) {
        let Repository { top, git_dir, common_dir } = repository;
        let mut open = vec![
            common_dir.join("config"),
            git_dir.join("config.worktree"),
            home.join(".gitconfig"),
            home.join(".config/git/config"),
        ];
        let mut seen = BTreeSet::new();
        while let Some(file) = open.pop() {
            if !seen.insert(file.clone()) || seen.len() > MOST_INCLUDES {
                continue;
            }
            let config = self.config(file.clone());
            let resolve = |base: &Path, value: &str| {
                normalise(&match value.strip_prefix("~/") {
                    Some(rest) => home.join(rest),
                    None => base.join(value),
                })
            };
            for value in config.all("hookspath") {
                let path = resolve(top, value);
                if self.is_writable(&path, common_dir) && path != self.workdir {
                    self.protect(&path, Kind::Dir);
                }
            }
            for value in config.includes() {
                let path = resolve(file.parent().unwrap_or(top), value);
                if self.is_writable(&path, common_dir) {
                    self.protect(&path, Kind::File);
                }
                open.push(path);
            }
        }
    }

    fn is_writable(&self, path: &Path, common_dir: &Path) -> bool {
        path.starts_with(self.workdir) || path.starts_with(common_dir)
    }
}

/// Directories in a directory, links not followed.
fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()).collect();
    found.sort();
    found
}

/// The text of a small ordinary file. It lies where a box may write: neither a link is followed nor a pipe waited for.
fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?);
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.len() > LARGEST {
        return None;
    }
    // Room for one more byte, so that the end is seen by the first call.
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).ok()? + 64);
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// What Ringfence needs of a git configuration: sections and values, in order.
#[derive(Debug, Default)]
struct Config {
    /// Section (without its subsection, lower case), key (lower case), value.
    entries: Vec<(String, String, String)>,
}

impl Config {
    fn read(path: &Path) -> Config {
        read(path).map(|text| Config::parse(&text)).unwrap_or_default()
    }

    /// Forgiving: a line that git would refuse stops git, so that it can be skipped here.
    fn parse(text: &str) -> Config {
        let mut config = Config::default();
        let mut section = String::new();
        let joined = text.replace("\r\n", "\n").replace("\\\n", "");
        for line in joined.lines() {
            let mut line = line.trim_start();
            if let Some(rest) = line.strip_prefix('[') {
                let (header, rest) = split_header(rest);
                let name = header.split(|c: char| c == '"' || c == '.' || c.is_whitespace()).next().unwrap_or_default();
                section = name.to_ascii_lowercase();
                line = rest.trim_start();
            }
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, "true"));
            config.entries.push((section.clone(), key.trim().to_ascii_lowercase(), unquote(value)));
        }
        config
    }

    fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(s, k, _)| s == section && k == key).map(|(_, _, v)| v.as_str())
    }

    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.entries.iter().filter(move |(_, k, _)| k == key).map(|(_, _, v)| v.as_str())
    }

    /// Included files; conditions are taken as met.
    fn includes(&self) -> impl Iterator<Item = &str> {
        let included = |s: &str, k: &str| matches!(s, "include" | "includeif") && k == "path";
        self.entries.iter().filter(move |(s, k, _)| included(s, k)).map(|(_, _, v)| v.as_str())
    }
}

/// A section's header and what follows it on its line; a `]` in quotes does not end it.
fn split_header(rest: &str) -> (&str, &str) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return (&rest[..at], &rest[at + 1..]),
            _ => {}
        }
    }
    (rest, "")
}

/// A value without quotes, escapes and comment.
fn unquote(value: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut chars = value.trim().chars();
    let mut kept = 0;
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '#' | ';' if !quoted => break,
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
        if quoted || !c.is_whitespace() {
            kept = out.len();
        }
    }
    out.truncate(kept);
    out
}

#[cfg(test)]
mod tests {
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
            let (found, suspicions) = protect(&self.root.join(workdir), &self.root.join("home"));
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
                format!("{access} {}{mark}", path.strip_prefix(&self.root).unwrap().display())
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
                "ro w/.git/hooks/",
                "ro w/.git/commondir",
                "ro w/.git/info/attributes",
                "ro w/.git/objects/info/alternates",
                "ro w/.git/config.worktree?",
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
        assert_eq!(rules[..3], ["ro p/src/.git/", "ro p/src/HEAD/", "rw p/.git?"]);
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
                "ro main/.git/hooks/",
                "ro main/.git/commondir",
                "ro main/.git/info/attributes",
                "ro main/.git/objects/info/alternates",
                "ro main/.git/config.worktree?",
                "ro main/.git/worktrees/other?",
                "ro main/.git/worktrees/w/commondir?",
                "ro main/.git/worktrees/w/gitdir?",
                "ro main/.git/worktrees/w/config.worktree?",
            ],
            [],
        )
        "#);
        // From the main worktree both are linked ones, whose pointers are kept.
        let (rules, _) = project.rules("main");
        assert!(rules.contains(&"ro main/.git/worktrees/other/gitdir?".to_owned()));
    }

    #[test]
    fn planted_pointers_grant_nothing() {
        let victim = |project: &Project| project.git("victim/.git");
        let table: &[&[(&str, &str)]] = &[
            &[("w/.git", "gitdir: ROOT/victim/.git\n")],
            &[("w/.git", "gitdir: ../victim/.git")],
            &[("w/.git", "gitdir: /nonexistent\n")],
            // Points into the project, which names the victim as its common directory.
            &[
                ("w/.git", "gitdir: own\n"),
                ("w/own/gitdir", "ROOT/w/.git\n"),
                ("w/own/commondir", "ROOT/victim/.git\n"),
            ],
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
            assert_eq!(rules, ["ro w/.git"], "{files:?}");
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

    #[test]
    fn bare_repository() {
        let project = Project::new(&[]);
        project.git("w");
        assert!(project.rules("w").0.contains(&"ro w/hooks/".to_owned()));
    }

    #[test]
    fn configuration_text() {
        let config = Config::parse(concat!(
            "[core]\n\thooksPath = a\\\nb\n\tbare\n[Core \"sub]\"] key = \"x # y\" # note\n",
            "; comment\n[section.sub]\nk = \"tail  \"  \n[x] Path=C:\\\\d\r\n"
        ));
        assert_eq!(config.last("core", "hookspath"), Some("ab"));
        assert_eq!(config.last("core", "bare"), Some("true"));
        assert_eq!(config.last("core", "key"), Some("x # y"));
        assert_eq!(config.last("section", "k"), Some("tail  "));
        assert_eq!(config.last("x", "path"), Some("C:\\d"));
    }
}
