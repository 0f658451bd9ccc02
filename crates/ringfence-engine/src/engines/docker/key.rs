//! The key that says which objects at a daemon are ours.
//!
//! Labels alone prove nothing: a container inherits those of its image, and anyone can compute or copy them. So what may
//! be removed also carries a keyed hash of its own name, owner, purpose and session. Copied to another object, or inherited
//! from an image, the hash does not fit the name.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::FlockOperation;
use sha2::Sha256;

use super::error::DockerError;
use super::labels::{Owner, Purpose};

/// The file's name. No home is kept by a name with capitals, so it can lie in the directory of homes.
const FILE: &str = "KEY";
const LENGTH: usize = 32;

/// The key of one owner.
#[derive(Clone)]
pub struct Key {
    owner: Owner,
    bytes: [u8; LENGTH],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("owner", &self.owner).finish_non_exhaustive()
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DockerError {
    let path = path.to_path_buf();
    move |source| DockerError::Files { what, path, source }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())? {
        count if count == N => Ok(bytes),
        _ => Err(io::Error::other("the kernel gave too few random bytes")),
    }
}

/// A new file with a random key in it. It has a name of its own until it is complete.
fn write(dir: &Path) -> io::Result<PathBuf> {
    let path = dir.join(format!("{FILE}.{:016x}", u64::from_ne_bytes(random()?)));
    let mut options = fs::OpenOptions::new();
    // `create_new` follows no link and opens nothing that is there.
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    match file.write_all(&random::<LENGTH>()?).and_then(|()| file.sync_all()) {
        Ok(()) => Ok(path),
        Err(error) => {
            let _ = fs::remove_file(&path);
            Err(error)
        }
    }
}

impl Key {
    /// The key in a directory. `None`: there is none, and so nothing that it could prove.
    pub fn find(owner: &Owner, dir: &Path) -> Result<Option<Key>, DockerError> {
        let path = dir.join(FILE);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open the key", &path))?,
        };
        let data = file.metadata().map_err(failed("look at the key", &path))?;
        let ours = data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o077 == 0;
        if !data.is_file() || !ours || data.len() != LENGTH as u64 {
            let wanted = "it must be a file of 32 bytes that belongs to this user and is closed to others";
            return Err(failed("use the key", &path)(io::Error::other(wanted)));
        }
        let mut bytes = [0; LENGTH];
        file.read_exact(&mut bytes).map_err(failed("read the key", &path))?;
        Ok(Some(Key { owner: owner.clone(), bytes }))
    }

    /// The key in a directory, made if it is missing. When several processes make one, all use the first.
    pub fn find_or_make(owner: &Owner, dir: &Path) -> Result<Key, DockerError> {
        if let Some(key) = Self::find(owner, dir)? {
            return Ok(key);
        }
        fs::DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(failed("make", dir))?;
        let locked = fs::File::open(dir).map_err(failed("open", dir))?;
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).map_err(|e| failed("lock", dir)(e.into()))?;
        // Another process may have made it meanwhile.
        if let Some(key) = Self::find(owner, dir)? {
            return Ok(key);
        }
        let path = dir.join(FILE);
        // Not by a second name: what is hidden from sandboxes must have one only.
        let made = write(dir).and_then(|partial| fs::rename(partial, &path));
        made.map_err(failed("make the key", &path))?;
        let gone = || failed("read the key", &path)(io::ErrorKind::NotFound.into());
        Self::find(owner, dir)?.ok_or_else(gone)
    }

    /// Whose key it is.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    fn hash(&self, purpose: Purpose, session: &str, name: &str) -> Hmac<Sha256> {
        // A shorter key is filled up with zeros to a block of the hash, as RFC 2104 says.
        let mut block = [0; 64];
        block[..LENGTH].copy_from_slice(&self.bytes);
        let mut hash = Hmac::<Sha256>::new(&block.into());
        for part in [self.owner.as_str(), purpose.name(), session, name] {
            // With its length, so that no two lists of parts give the same bytes.
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash
    }

    /// The proof that an object of this name is ours, as a label can hold it.
    pub fn prove(&self, purpose: Purpose, session: &str, name: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.hash(purpose, session, name).finalize().into_bytes())
    }

    /// Whether a proof is that of this object.
    pub fn accepts(&self, proof: &str, purpose: Purpose, session: &str, name: &str) -> bool {
        let decoded = URL_SAFE_NO_PAD.decode(proof);
        decoded.is_ok_and(|proof| self.hash(purpose, session, name).verify_slice(&proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn owner(state: &str) -> Owner {
        Owner::new(1000, Path::new(state))
    }

    #[test]
    fn many_who_make_a_key_at_once_have_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("homes");
        assert!(Key::find(&owner("/a"), &keys).unwrap().is_none());
        assert!(!keys.exists(), "looking makes nothing");
        let all_there = std::sync::Barrier::new(16);
        let made = std::thread::scope(|scope| {
            let make = || {
                all_there.wait();
                Key::find_or_make(&owner("/a"), &keys).unwrap().bytes
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(made.iter().all(|bytes| *bytes == made[0]) && made[0] != [0; LENGTH]);
        assert_eq!(Key::find(&owner("/a"), &keys).unwrap().unwrap().bytes, made[0]);
        let names: Vec<_> = fs::read_dir(&keys).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
        let data = fs::metadata(keys.join(FILE)).unwrap();
        assert_eq!((data.mode() & 0o7777, data.nlink()), (0o600, 1));
        // Another directory has another key.
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Key::find_or_make(&owner("/a"), other.path()).unwrap().bytes, made[0]);
    }

    #[test]
    fn what_others_could_have_put_there_is_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let find = || Key::find(&owner("/a"), dir.path());
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, [7; LENGTH]).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o600)).unwrap();
        // By way of a link, also one that leads nowhere.
        for target in [&elsewhere, &dir.path().join("nothing")] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            assert!(find().is_err());
            assert!(Key::find_or_make(&owner("/a"), dir.path()).is_err());
            fs::remove_file(&path).unwrap();
        }
        assert!(!dir.path().join("nothing").exists());
        // Too short, too long, open to others.
        for (bytes, mode) in [(&[7; 31][..], 0o600), (&[7; 33], 0o600), (&[7; 32], 0o640), (&[7; 32], 0o602)] {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = find().unwrap_err().to_string();
            assert!(error.contains("closed to others"), "{error}");
            fs::remove_file(&path).unwrap();
        }
        // The same bytes in a file of our own.
        fs::rename(&elsewhere, &path).unwrap();
        assert_eq!(find().unwrap().unwrap().bytes, [7; LENGTH]);
    }

    #[test]
    fn a_proof_fits_one_object() {
        let (name, session) = ("ringfence-shell-0123456789ab", "s-1");
        let key = |bytes, state| Key { owner: owner(state), bytes: [bytes; LENGTH] };
        let ours = key(1, "/a");
        let proof = ours.prove(Purpose::Sandbox, session, name);
        assert!(ours.accepts(&proof, Purpose::Sandbox, session, name));
        assert!(!ours.accepts(&proof, Purpose::Sandbox, session, "ringfence-shell-0123456789ac"));
        assert!(!ours.accepts(&proof, Purpose::Sandbox, "s-2", name));
        assert!(!ours.accepts(&proof, Purpose::Home, session, name));
        // What one part ends with is not what the next one begins with.
        assert!(!ours.accepts(&proof, Purpose::Sandbox, "s-1r", "ingfence-shell-0123456789ab"));
        for other in [key(2, "/a"), key(1, "/b")] {
            assert!(!other.accepts(&proof, Purpose::Sandbox, session, name));
        }
        for bad in ["", "AAAA", "no proof", &proof[..42], &format!("{proof}A")] {
            assert!(!ours.accepts(bad, Purpose::Sandbox, session, name), "{bad}");
        }
    }
}
