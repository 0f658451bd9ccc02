//! What the guard must know of the repository, and how the real git is asked for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the guard looks up, and only when a verdict depends on it: most calls cost nothing.
///
/// `at` are the global flags of the call (`-C dir`, `--git-dir=…`, `-c key=value`), to be put before the question.
pub trait GitFacts {
    /// Whether `word` names an object.
    fn is_revision(&self, at: &[OsString], word: &OsStr) -> bool;
    /// Whether every commit of `commit` is also in `of`.
    fn is_ancestor(&self, at: &[OsString], commit: &OsStr, of: &OsStr) -> bool;
    /// Whether `pathspec` matches a tracked file, deleted ones included.
    fn is_tracked(&self, at: &[OsString], pathspec: &OsStr) -> bool;
    /// Whether the repository and its working tree both lie under the temp directory. A worktree in the temp directory
    /// of a repository elsewhere is none: its branches and stashes are the repository's.
    fn is_throwaway(&self, at: &[OsString]) -> bool;
    /// Whether a push to `remote` (none: wherever a push goes by itself) stays under the temp directory.
    fn is_throwaway_remote(&self, at: &[OsString], remote: Option<&OsStr>) -> bool;
}

/// Facts by asking the real git.
#[derive(Debug)]
pub struct AskGit<R> {
    /// Runs the real git with these arguments, in the directory and environment of the call, stdin and stderr closed;
    /// its output if it succeeded.
    pub run: R,
    /// The temp directories. Fixed by the caller, not read from a `TMPDIR` that the agent can set.
    pub temp: Vec<PathBuf>,
}

impl<R: Fn(&[OsString]) -> Option<Vec<u8>>> AskGit<R> {
    /// The lines of the answer.
    fn ask(&self, at: &[OsString], question: &[&OsStr]) -> Option<Vec<OsString>> {
        let args: Vec<OsString> = at.iter().cloned().chain(question.iter().map(OsString::from)).collect();
        let answer = (self.run)(&args)?;
        let lines = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Some(lines.map(|line| OsString::from_vec(line.to_vec())).collect())
    }

    fn ask_path(&self, at: &[OsString], what: &str) -> Option<PathBuf> {
        let question = ["rev-parse", "--path-format=absolute", what].map(OsStr::new);
        self.ask(at, &question)?.first().map(PathBuf::from)
    }

    /// Below a temp directory and on its file system, links resolved; a path that is not there is not. Another file system
    /// there is a directory of the host that a rule shows.
    fn in_temp(&self, path: &Path) -> bool {
        let Ok(path) = path.canonicalize() else { return false };
        let device = |path: &Path| path.metadata().ok().map(|data| data.dev());
        let holds = |temp: PathBuf| path != temp && path.starts_with(&temp) && device(&path) == device(&temp);
        self.temp.iter().filter_map(|temp| temp.canonicalize().ok()).any(holds)
    }
}

impl<R: Fn(&[OsString]) -> Option<Vec<u8>>> GitFacts for AskGit<R> {
    fn is_revision(&self, at: &[OsString], word: &OsStr) -> bool {
        let question = [OsStr::new("rev-parse"), OsStr::new("--verify"), OsStr::new("--quiet"), word];
        self.ask(at, &question).is_some_and(|answer| !answer.is_empty())
    }

    fn is_ancestor(&self, at: &[OsString], commit: &OsStr, of: &OsStr) -> bool {
        self.ask(at, &[OsStr::new("merge-base"), OsStr::new("--is-ancestor"), commit, of]).is_some()
    }

    fn is_tracked(&self, at: &[OsString], pathspec: &OsStr) -> bool {
        let question = [OsStr::new("ls-files"), OsStr::new("--error-unmatch"), OsStr::new("--"), pathspec];
        self.ask(at, &question).is_some()
    }

    fn is_throwaway(&self, at: &[OsString]) -> bool {
        let Some(repository) = self.ask_path(at, "--git-common-dir") else { return false };
        // Bare repositories have no working tree.
        let tree = self.ask_path(at, "--show-toplevel");
        self.in_temp(&repository) && tree.is_none_or(|tree| self.in_temp(&tree))
    }

    fn is_throwaway_remote(&self, at: &[OsString], remote: Option<&OsStr>) -> bool {
        let remotes = match remote {
            Some(remote) => vec![remote.to_os_string()],
            // Which one a push takes depends on much configuration; so all of them must be throwaway.
            None => self.ask(at, &[OsStr::new("remote")]).unwrap_or_default(),
        };
        // A relative remote is relative to this.
        let base = self.ask_path(at, "--show-toplevel").or_else(|| self.ask_path(at, "--git-common-dir"));
        let Some(base) = base else { return false };
        remotes.iter().all(|remote| {
            let question = ["remote", "get-url", "--push", "--all"].map(OsStr::new);
            let urls = self.ask(at, &[&question[..], &[remote.as_os_str()]].concat());
            urls.unwrap_or_else(|| vec![remote.clone()]).iter().all(|url| {
                let path = url.as_bytes().strip_prefix(b"file://").unwrap_or(url.as_bytes());
                self.in_temp(&base.join(OsStr::from_bytes(path)))
            })
        })
    }
}
