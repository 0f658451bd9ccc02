//! Which names of a plan must stay covered.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_guest::watch::{Cover, List, Name, Placeholder};
use ringfence_policy::look::Lookup;
use ringfence_policy::plan::{Mount, Plan, Stub};
use ringfence_policy::policy::Policy;
use ringfence_policy::rules::{self, Access, FileRule, Kind, Pattern};
use serde::{Deserialize, Serialize};

use super::{Loss, guarantee};

/// So many names of a directory are looked at.
const MOST_NAMES: usize = 10_000;

/// What must stay covered in one sandbox, and the rules for names that appear.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Names {
    pub(super) list: List,
    /// Rules that hide or protect by a pattern have a say on new names. Empty where there are none.
    rules: Vec<FileRule>,
    places: Places,
}

/// What the sandbox sees of the host, by the path inside; `None` where it sees something of its own.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Places(BTreeMap<PathBuf, Option<Shown>>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shown {
    source: PathBuf,
    writable: bool,
}

impl Places {
    fn of(plan: &Plan) -> Places {
        let mut places = BTreeMap::new();
        for mount in &plan.mounts {
            let shown = match mount {
                Mount::Bind { source, writable, .. } => Some(Shown { source: source.clone(), writable: *writable }),
                Mount::Dir { .. } | Mount::File { .. } | Mount::Symlink { .. } | Mount::Seal { .. } => continue,
                _ => None,
            };
            places.insert(mount.target().to_path_buf(), shown);
        }
        Places(places)
    }

    /// Where on the host a name is that something is mounted on, and whether the sandbox can write there. `None`: not on the
    /// host's files.
    fn outside(&self, inside: &Path) -> Option<(PathBuf, bool)> {
        let (at, shown) = inside.ancestors().skip(1).find_map(|above| Some((above, self.0.get(above)?)))?;
        let shown = shown.as_ref()?;
        Some((shown.source.join(inside.strip_prefix(at).ok()?), shown.writable))
    }

    /// Where a name of the host is seen.
    fn inside(&self, outside: &Path) -> Vec<PathBuf> {
        let shown = self.0.iter().filter_map(|(at, shown)| {
            let below = outside.strip_prefix(&shown.as_ref()?.source).ok()?;
            let inside = at.join(below);
            let seen = !below.as_os_str().is_empty() && self.outside(&inside).is_some_and(|(path, _)| path == outside);
            seen.then_some(inside)
        });
        let mut shown: Vec<PathBuf> = shown.collect();
        shown.dedup();
        shown
    }
}

impl Names {
    /// Takes a millisecond: not for the way to a command.
    pub fn of(plan: &Plan, policy: &Policy) -> Names {
        let places = Places::of(plan);
        let placeholders: BTreeMap<&Path, &Stub> = plan.stubs.iter().map(|stub| (stub.path.as_path(), stub)).collect();
        let mut names = Vec::new();
        let mut known = BTreeSet::new();
        for mount in &plan.mounts {
            let inside = mount.target();
            let Some((outside, writable)) = places.outside(inside) else { continue };
            let (cover, kind) = match mount {
                // A socket that comes and goes.
                Mount::Hide { fleeting: true, .. } => continue,
                Mount::Hide { kind, .. } => (Cover::Hidden, *kind),
                Mount::Empty { kind, .. } => (Cover::Protected, *kind),
                Mount::Bind { source, .. } if *source != outside => continue,
                Mount::Bind { writable: false, kind, .. } => (Cover::Protected, *kind),
                Mount::Bind { writable: true, kind: Kind::Dir, .. } if writable => (Cover::Pinned, Kind::Dir),
                _ => continue,
            };
            let held = placeholders.get(outside.as_path()).map(|stub| placeholder(stub.kind, &stub.text, &outside));
            let placeholder = match cover {
                Cover::Hidden => held,
                Cover::Protected => held.or_else(|| writable.then(|| placeholder(kind, "", &outside))),
                Cover::Pinned => held.or(Some(Placeholder::Directory)),
            };
            known.insert(outside.clone());
            names.push(name(inside, &outside, cover, placeholder.filter(|_| writable)));
        }
        let (lookup, mut more) = (Lookup::default(), Vec::new());
        for rule in &policy.rules {
            let Pattern::Exact(path) = &rule.pattern else { continue };
            let decides = || rules::decide(&policy.rules, path).is_some_and(|decides| std::ptr::eq(decides, rule));
            if rule.access == Access::Rw || known.contains(path) || !decides() {
                continue;
            }
            let Ok(walk) = lookup.walk(path) else { continue };
            if known.insert(walk.real.clone()) {
                more.extend(ruled(&places, rule.access, &walk.real));
            }
        }
        more.sort_by(|a, b| a.outside.cmp(&b.outside));
        names.extend(more);
        let hides = |rule: &&FileRule| rule.access != Access::Rw && matches!(rule.pattern, Pattern::Glob(_));
        let asked = policy.rules.iter().any(|rule| hides(&rule));
        let mut asks = BTreeSet::new();
        if asked {
            let dirs = known.iter().filter_map(|path| path.parent()).chain([policy.workdir()]);
            asks = dirs.filter(|dir| dir.is_dir()).map(|dir| dir.as_os_str().as_bytes().to_vec()).collect();
        }
        Names {
            list: List { uid: plan.uid, gid: plan.gid, names, asks: asks.into_iter().collect() },
            rules: if asked { policy.rules.clone() } else { Vec::new() },
            places,
        }
    }

    /// A new name of the host, where a rule hides or protects it.
    pub(super) fn ruled(&self, outside: &Path) -> Vec<Name> {
        let decides = rules::decide(&self.rules, outside);
        // What holds for the whole directory holds for the name already.
        let exact = decides.filter(|rule| rule.nearest(outside) == Some(outside.as_os_str().len()));
        exact.map_or_else(Vec::new, |rule| ruled(&self.places, rule.access, outside))
    }

    /// The names in the directories that are asked about, but for those that are covered.
    pub(super) fn unknown(&self) -> Vec<PathBuf> {
        let path = |bytes: &Vec<u8>| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        let known: BTreeSet<PathBuf> = self.list.names.iter().map(|name| path(&name.outside)).collect();
        let entries = self.list.asks.iter().filter_map(|dir| std::fs::read_dir(path(dir)).ok());
        let names = entries.flat_map(|entries| entries.flatten().take(MOST_NAMES)).map(|entry| entry.path());
        names.filter(|path| !known.contains(path)).collect()
    }

    /// What it means that a name was not covered. `why`: it still is not, for this reason.
    pub(super) fn loss(&self, index: u32, why: Option<&str>) -> Option<Loss> {
        let name = self.list.names.get(index as usize)?;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&name.outside));
        let shown = path.display();
        let reason = match why {
            None => format!("`{shown}` was changed by the host while the sandbox ran, and is covered again"),
            Some(why) => format!("`{shown}` was changed by the host while the sandbox ran, and is open: {why}"),
        };
        Some(Loss { guarantee: guarantee(name.cover), reason })
    }
}

/// The names that a rule covers at a path of the host.
fn ruled(places: &Places, access: Access, outside: &Path) -> Vec<Name> {
    let cover = |writable| match access {
        Access::Exclude => Some(Cover::Hidden),
        Access::Ro => Some(Cover::Protected).filter(|_| writable),
        Access::Rw => None,
    };
    let inside = places.inside(outside).into_iter();
    let names = inside.filter_map(|inside| {
        let (_, writable) = places.outside(&inside)?;
        Some(name(&inside, outside, cover(writable)?, None))
    });
    names.collect()
}

fn name(inside: &Path, outside: &Path, cover: Cover, placeholder: Option<Placeholder>) -> Name {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    Name { inside: bytes(inside), outside: bytes(outside), cover, placeholder }
}

/// What takes a name that is gone. Names inside `.git` are files where git expects files: it reads them, and never lists them.
fn placeholder(kind: Kind, text: &str, outside: &Path) -> Placeholder {
    let of_git = || outside.components().any(|part| part.as_os_str() == ".git");
    match kind {
        Kind::File if !text.is_empty() || of_git() => Placeholder::File(text.as_bytes().to_vec()),
        Kind::File | Kind::Dir => Placeholder::Directory,
    }
}
