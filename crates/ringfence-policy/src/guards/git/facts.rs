//! What the guard must know of the repository, and how the real git is asked for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the guard looks up, and only when a verdict depends on it: most calls cost nothing.
///
/// `at` are the global flags of the call (`-C dir`, `--git-dir=…`, `-c key=value`), to be put before the question.
pub trait GitFacts {
    /// A variable of the environment that git is called with.
    fn env(&self, name: &str) -> Option<OsString>;
    /// The value that git has for `key`: `git config --get KEY`.
    fn config(&self, at: &[OsString], key: &str) -> Option<OsString>;
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
pub struct AskGit<R, E> {
    /// Runs the real git with these arguments, in the directory and environment of the call, stdin and stderr closed;
    /// its output if it succeeded.
    pub run: R,
    /// Looks up a variable of the environment.
    pub env: E,
    /// The temp directories. Fixed by the caller, not read from a `TMPDIR` that the agent can set.
    pub temp: Vec<PathBuf>,
}

impl<R: Fn(&[OsString]) -> Option<Vec<u8>>, E: Fn(&str) -> Option<OsString>> AskGit<R, E> {
    fn ask(&self, at: &[OsString], question: &[&OsStr]) -> Option<Vec<u8>> {
        let args: Vec<OsString> = at.iter().cloned().chain(question.iter().map(OsString::from)).collect();
        let mut answer = (self.run)(&args)?;
        if answer.last() == Some(&b'\n') {
            answer.pop();
        }
        Some(answer)
    }

    fn ask_path(&self, at: &[OsString], what: &str) -> Option<PathBuf> {
        let question = ["rev-parse", "--path-format=absolute", what].map(OsStr::new);
        self.ask(at, &question).map(|path| PathBuf::from(OsString::from_vec(path)))
    }

    /// Below a temp directory, links resolved; a path that is not there is not.
    fn in_temp(&self, path: &Path) -> bool {
        let Ok(path) = path.canonicalize() else { return false };
        self.temp.iter().filter_map(|temp| temp.canonicalize().ok()).any(|temp| path != temp && path.starts_with(&temp))
    }

    /// The directory that a relative remote is relative to.
    fn base(&self, at: &[OsString]) -> Option<PathBuf> {
        self.ask_path(at, "--show-toplevel").or_else(|| self.ask_path(at, "--git-common-dir"))
    }
}

impl<R: Fn(&[OsString]) -> Option<Vec<u8>>, E: Fn(&str) -> Option<OsString>> GitFacts for AskGit<R, E> {
    fn env(&self, name: &str) -> Option<OsString> {
        (self.env)(name)
    }

    fn config(&self, at: &[OsString], key: &str) -> Option<OsString> {
        self.ask(at, &["config", "--get", key].map(OsStr::new)).map(OsString::from_vec)
    }

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
            None => lines(&self.ask(at, &[OsStr::new("remote")]).unwrap_or_default()),
        };
        let Some(base) = self.base(at) else { return false };
        remotes.iter().all(|remote| {
            let question = ["remote", "get-url", "--push", "--all"].map(OsStr::new);
            let urls = self.ask(at, &[&question[..], &[remote.as_os_str()]].concat());
            let urls = urls.map_or_else(|| vec![remote.clone()], |urls| lines(&urls));
            urls.iter().all(|url| {
                let path = url.as_bytes().strip_prefix(b"file://").unwrap_or(url.as_bytes());
                self.in_temp(&base.join(OsStr::from_bytes(path)))
            })
        })
    }
}

fn lines(text: &[u8]) -> Vec<OsString> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| OsString::from_vec(line.to_vec()))
        .collect()
}
