//! The options of git's commands, and a reading of command lines that follows git's own (`parse-options.c`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The options of the commands that have rules: `short,long`, `=` after those that take a value, `?` after those whose
/// value must be attached. They are all here, also the harmless ones, since what an abbreviation means and whether the
/// next word is a value depend on them. As of git 2.47, from its `-h` and `--git-completion-helper-all`.
#[rustfmt::skip]
const OPTIONS: &[(&str, &str)] = &[
    ("reset", "\
        q,quiet no-refresh mixed soft hard merge keep recurse-submodules? p,patch N,intent-to-add \
        pathspec-from-file= pathspec-file-nul"),
    ("clean", "\
        q,quiet n,dry-run f,force i,interactive d e,exclude= x X"),
    ("push", "\
        v,verbose q,quiet repo= all branches mirror d,delete tags n,dry-run porcelain f,force \
        force-with-lease? force-if-includes recurse-submodules= thin receive-pack= exec= u,set-upstream \
        progress prune no-verify follow-tags signed? atomic o,push-option= 4,ipv4 6,ipv6"),
    ("branch", "\
        v,verbose q,quiet t,track? u,set-upstream-to= unset-upstream color? r,remotes contains= no-contains= \
        abbrev? a,all d,delete D m,move M omit-empty c,copy C l,list show-current create-reflog \
        edit-description f,force merged= no-merged= column? sort= points-at= i,ignore-case \
        recurse-submodules format= set-upstream with= without="),
    ("checkout", "\
        b= B= l guess overlay q,quiet recurse-submodules? progress m,merge conflict= d,detach t,track? \
        f,force orphan= overwrite-ignore ignore-other-worktrees 2,ours 3,theirs p,patch \
        ignore-skip-worktree-bits pathspec-from-file= pathspec-file-nul"),
    ("restore", "\
        s,source= S,staged W,worktree ignore-unmerged overlay q,quiet recurse-submodules? progress m,merge \
        conflict= 2,ours 3,theirs p,patch ignore-skip-worktree-bits pathspec-from-file= pathspec-file-nul"),
    ("switch", "\
        c,create= C,force-create= guess discard-changes q,quiet recurse-submodules? progress m,merge \
        conflict= d,detach t,track? f,force orphan= overwrite-ignore ignore-other-worktrees"),
    ("commit", "\
        q,quiet v,verbose F,file= author= date= m,message= c,reedit-message= C,reuse-message= fixup= squash= \
        reset-author trailer= s,signoff t,template= e,edit cleanup= status S,gpg-sign? a,all i,include \
        interactive p,patch o,only n,no-verify dry-run short branch ahead-behind porcelain long z,null amend \
        no-post-rewrite u,untracked-files? pathspec-from-file= pathspec-file-nul allow-empty \
        allow-empty-message"),
    ("merge", "\
        n stat summary log? squash commit e,edit cleanup= ff ff-only rerere-autoupdate verify-signatures \
        s,strategy= X,strategy-option= m,message= F,file= into-name= v,verbose q,quiet abort quit continue \
        allow-unrelated-histories progress S,gpg-sign? autostash overwrite-ignore signoff no-verify"),
    ("pull", "\
        v,verbose q,quiet progress recurse-submodules? r,rebase? n stat log? signoff? squash commit edit \
        cleanup= ff ff-only no-verify verify-signatures autostash s,strategy= X,strategy-option= S,gpg-sign? \
        allow-unrelated-histories all a,append upload-pack= f,force t,tags p,prune j,jobs? dry-run k,keep \
        depth= shallow-since= shallow-exclude= deepen= unshallow update-shallow refmap= o,server-option= \
        4,ipv4 6,ipv6 negotiation-tip= show-forced-updates set-upstream summary"),
    ("rebase", "\
        onto= keep-base no-verify q,quiet v,verbose n,no-stat signoff committer-date-is-author-date \
        reset-author-date C= ignore-whitespace whitespace= f,force-rebase no-ff continue skip abort quit \
        edit-todo show-current-patch apply m,merge i,interactive rerere-autoupdate empty= autosquash \
        update-refs S,gpg-sign? autostash x,exec= r,rebase-merges? fork-point s,strategy= X,strategy-option= \
        root reschedule-failed-exec reapply-cherry-picks ignore-date preserve-merges \
        keep-empty allow-empty-message"),
    ("am", "\
        i,interactive n,no-verify 3,3way q,quiet s,signoff u,utf8 k,keep keep-non-patch m,message-id keep-cr \
        c,scissors quoted-cr= whitespace= ignore-space-change ignore-whitespace directory= exclude= include= \
        C= p= patch-format= reject resolvemsg= continue r,resolved skip abort quit show-current-patch? retry \
        allow-empty committer-date-is-author-date ignore-date rerere-autoupdate S,gpg-sign? empty= \
        binary rebasing"),
    ("rm", "\
        n,dry-run q,quiet cached f,force r ignore-unmatch sparse pathspec-from-file= pathspec-file-nul"),
    ("mv", "\
        v,verbose n,dry-run f,force k sparse"),
    ("worktree add", "\
        f,force b= B= orphan d,detach checkout lock reason= q,quiet track guess-remote"),
    ("worktree remove", "\
        f,force"),
    ("update-ref", "\
        m= d no-deref z stdin create-reflog"),
    ("reflog expire", "\
        n,dry-run rewrite updateref verbose expire= expire-unreachable= stale-fix all single-worktree"),
    ("gc", "\
        q,quiet prune? cruft max-cruft-size= aggressive auto detach force keep-largest-pack"),
    ("prune", "\
        n,dry-run v,verbose progress expire= exclude-promisor-objects"),
    ("fetch", "\
        v,verbose q,quiet all set-upstream a,append atomic upload-pack= f,force m,multiple t,tags n j,jobs= \
        prefetch p,prune P,prune-tags recurse-submodules? dry-run porcelain write-fetch-head k,keep \
        u,update-head-ok progress depth= shallow-since= shallow-exclude= deepen= unshallow refetch \
        update-shallow refmap= o,server-option= 4,ipv4 6,ipv6 negotiation-tip= negotiate-only filter= \
        auto-maintenance auto-gc show-forced-updates write-commit-graph stdin submodule-prefix= \
        recurse-submodules-default="),
    ("read-tree", "\
        index-output= empty v,verbose m trivial aggressive reset prefix= u exclude-per-directory= i \
        n,dry-run no-sparse-checkout debug-unpack recurse-submodules? q,quiet super-prefix="),
    ("checkout-index", "\
        a,all ignore-skip-worktree-bits f,force q,quiet n,no-create u,index z stdin temp prefix= stage="),
    // Read by a shell script, which takes neither abbreviations nor combined flags; it does no harm to.
    ("submodule", "\
        q,quiet f,force init remote N,no-fetch recursive reference= single-branch jobs= depth= filter= all cached \
        checkout merge rebase"),
];

/// The options of `command`, as `short,long` with their arity.
pub fn table(command: &str) -> Vec<Spec> {
    let text = OPTIONS.iter().find(|(name, _)| *name == command).map_or("", |(_, text)| text);
    text.split_whitespace().map(Spec::parse).collect()
}

/// The commands that have a table.
#[cfg(test)]
pub fn commands() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    Flag,
    /// The rest of the word, or the next word.
    Value,
    /// The rest of the word, if any.
    Attached,
}

/// One option of a command.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub short: Option<u8>,
    pub long: Option<&'static str>,
    pub arity: Arity,
}

impl Spec {
    fn parse(text: &'static str) -> Spec {
        let (names, arity) = match text.as_bytes().last() {
            Some(b'=') => (&text[..text.len() - 1], Arity::Value),
            Some(b'?') => (&text[..text.len() - 1], Arity::Attached),
            _ => (text, Arity::Flag),
        };
        let (short, long) = match names.split_once(',') {
            Some((short, long)) => (Some(short), Some(long)),
            None if names.len() == 1 => (Some(names), None),
            None => (None, Some(names)),
        };
        Spec { short: short.map(|short| short.as_bytes()[0]), long, arity }
    }
}

/// A command's arguments, read.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Options in effect with their values, in order.
    set: Vec<(Spec, Option<OsString>)>,
    /// Words that are no options, up to `--`.
    pub words: Vec<&'a OsStr>,
    /// Words after `--`; `None` without one.
    pub after: Option<Vec<&'a OsStr>>,
}

impl<'a> Options<'a> {
    /// Reads `args` as `command` does. Options may stand behind words, the later of `--x` and `--no-x` wins, long options
    /// may be abbreviated and short ones combined.
    ///
    /// An abbreviation that fits several options counts as each of them: this git refuses it, and for one that has fewer
    /// options it may be unique.
    pub fn read(command: &str, args: &'a [OsString]) -> Options<'a> {
        let table = table(command);
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" {
                options.after = Some(args.map(OsString::as_os_str).collect());
                break;
            } else if bytes == b"--end-of-options" {
                options.words.extend(args.map(OsString::as_os_str));
                break;
            } else if let Some(long) = bytes.strip_prefix(b"--") {
                options.long(&table, long, &mut args);
            } else if bytes.len() > 1 && bytes[0] == b'-' {
                options.shorts(&table, &bytes[1..], &mut args);
            } else {
                options.words.push(arg);
            }
        }
        options
    }

    fn long(&mut self, table: &[Spec], text: &[u8], rest: &mut std::slice::Iter<'a, OsString>) {
        let (name, attached) = match text.iter().position(|byte| *byte == b'=') {
            Some(at) => (&text[..at], Some(text[at + 1..].to_vec())),
            None => (text, None),
        };
        let Ok(name) = std::str::from_utf8(name) else { return };
        let fits = fits(table, name);
        let mut value = attached.map(OsString::from_vec);
        if let [(spec, false)] = fits[..]
            && spec.arity == Arity::Value
            && value.is_none()
        {
            value = rest.next().cloned();
        }
        for (spec, negated) in &fits {
            if !negated {
                self.set.push((*spec, value.clone()));
            } else if fits.len() == 1 {
                self.set.retain(|(set, _)| set.long != spec.long);
            }
        }
    }

    fn shorts(&mut self, table: &[Spec], cluster: &[u8], rest: &mut std::slice::Iter<'a, OsString>) {
        for (at, short) in cluster.iter().enumerate() {
            let Some(spec) = table.iter().find(|spec| spec.short == Some(*short)) else { continue };
            let attached = &cluster[at + 1..];
            let value = match spec.arity {
                Arity::Flag => {
                    self.set.push((*spec, None));
                    continue;
                }
                Arity::Value if attached.is_empty() => rest.next().cloned(),
                Arity::Attached if attached.is_empty() => None,
                Arity::Value | Arity::Attached => Some(OsString::from_vec(attached.to_vec())),
            };
            self.set.push((*spec, value));
            break;
        }
    }

    /// Whether the option is in effect, by its long name, or its letter if it has none.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).next().is_some()
    }

    pub fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    /// The values that were given to an option.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        self.find(name).filter_map(|(_, value)| value.as_deref())
    }

    fn find(&self, name: &str) -> impl Iterator<Item = &(Spec, Option<OsString>)> {
        self.set.iter().filter(move |(spec, _)| match spec.long {
            Some(long) => long == name,
            None => spec.short.is_some_and(|short| name.as_bytes() == [short]),
        })
    }

    /// All words, before and after `--`.
    pub fn all_words(&self) -> impl Iterator<Item = &'a OsStr> {
        self.words.iter().chain(self.after.iter().flatten()).copied()
    }
}

/// The options that `name` may mean, and whether it takes them back.
fn fits(table: &[Spec], name: &str) -> Vec<(Spec, bool)> {
    let mut abbreviated = Vec::new();
    let mut opposite = None;
    for spec in table {
        let Some(long) = spec.long else { continue };
        if long == name {
            return vec![(*spec, false)];
        }
        // The opposite of `--no-verify` is `--verify`, that of `--force` is `--no-force`.
        let negation = match long.strip_prefix("no-") {
            Some(positive) => positive.to_owned(),
            None => format!("no-{long}"),
        };
        if negation == name {
            opposite = Some((*spec, true));
        }
        if long.starts_with(name) {
            abbreviated.push((*spec, false));
        }
        if negation.starts_with(name) {
            abbreviated.push((*spec, true));
        }
    }
    opposite.map_or(abbreviated, |opposite| vec![opposite])
}
