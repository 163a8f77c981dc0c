//! Compiled kernels on disk, so that a machine compiles each of them once.
//!
//! A hash of all that decides an entry names it: source, options, compiler version, architecture.
//! Entries are written beside and moved into place, so a reader sees all of one or nothing; a
//! damaged entry is as good as none. Nothing here can fail: without a folder that can be written
//! there is no cache, and that is all.
//!
//! The folder is `FUTENSOR_CACHE` where that is set (empty: no cache), else `futensor` in
//! `XDG_CACHE_HOME` or in `~/.cache`; there the cache keeps and takes only a GPU's code, since a
//! stand-in for NVIDIA's libraries may claim their version. The folder is made for its owner alone,
//! and is not used where others may write into it: a GPU will run the code in it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Name of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(u128);

impl Key {
    /// The key of something that all the parts decide, in their order (Fowler, Noll and Vo's FNV-1a
    /// in 128 bits: the same from run to run, and nobody else writes into the folder).
    pub fn of(parts: &[&[u8]]) -> Key {
        Key(parts.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, part| {
            // The length first, so that no two lists of parts read alike.
            fnv(fnv(hash, &(part.len() as u64).to_le_bytes()), part)
        }))
    }

    /// The key of the entry that has this name in the folder, without its ending.
    #[allow(dead_code, reason = "tests/nvrtc alone, which has this file too, goes by names")]
    pub fn of_name(name: &str) -> Option<Key> {
        u128::from_str_radix(name, 16).ok().map(Key)
    }
}

fn fnv(hash: u128, bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(hash, |h, &b| (h ^ b as u128).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b))
}

const MAGIC: &[u8; 16] = b"futensor kernel1";
/// Magic, length, checksum.
const HEAD: usize = 16 + 8 + 16;
/// More entries than this are thinned out, the oldest first, once a process.
const ENTRIES_MAX: usize = 4096;

/// A folder of entries, or none.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: Option<PathBuf>,
    /// The folder was named for this program: it keeps all output of the compiler.
    named: bool,
    /// The folder was made or looked at, and may be written.
    ready: AtomicBool,
}

impl Disk {
    /// The folder that the environment names.
    pub fn from_environment() -> Disk {
        let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
        match var("FUTENSOR_CACHE") {
            Some(folder) => Disk::at(Some(folder).filter(|f| !f.as_os_str().is_empty())),
            None => {
                let home = || var("HOME").filter(|f| f.is_absolute()).map(|f| f.join(".cache"));
                let folder = var("XDG_CACHE_HOME").filter(|f| f.is_absolute()).or_else(home);
                Disk { named: false, ..Disk::at(folder.map(|f| f.join("futensor"))) }
            }
        }
    }

    /// This folder.
    pub fn at(folder: Option<PathBuf>) -> Disk {
        Disk { folder, named: true, ready: AtomicBool::new(false) }
    }

    /// True where entries are kept, as far as is known.
    pub fn is_there(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| self.ready.load(Relaxed) || is_ours(folder))
    }

    /// The entry, where it is there and whole.
    pub fn get(&self, key: Key) -> Option<Vec<u8>> {
        let folder = self.folder.as_ref()?;
        if !is_ours(folder) {
            return None;
        }
        let path = entry(folder, key);
        let mut bytes = fs::read(&path).ok()?;
        if unpack(&bytes).is_some_and(|image| self.takes(image)) {
            bytes.drain(..HEAD);
            return Some(bytes);
        }
        let _ = fs::remove_file(path);
        None
    }

    /// Keeps an entry, if that can be done.
    pub fn put(&self, key: Key, image: &[u8]) {
        let Some(folder) = self.folder.as_ref().filter(|_| self.takes(image)) else { return };
        if !self.ready.load(Relaxed) {
            if !make(folder) {
                return;
            }
            self.ready.store(true, Relaxed);
            thin_out(folder, ENTRIES_MAX);
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let part =
            folder.join(format!("{}.{}.part", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        if write(&part, image).and_then(|()| fs::rename(&part, entry(folder, key))).is_err() {
            let _ = fs::remove_file(part);
        }
    }

    /// True for a binary that may lie there. A cubin is an ELF file.
    fn takes(&self, image: &[u8]) -> bool {
        self.named || image.starts_with(b"\x7fELF")
    }

    /// Takes an entry out that the driver did not take; true where there was one.
    pub fn forget(&self, key: Key) -> bool {
        self.folder.as_ref().is_some_and(|folder| fs::remove_file(entry(folder, key)).is_ok())
    }
}

fn entry(folder: &Path, key: Key) -> PathBuf {
    folder.join(format!("{:032x}.cubin", key.0))
}

fn checksum(image: &[u8]) -> [u8; 16] {
    Key::of(&[image]).0.to_le_bytes()
}

/// The image of an entry that is whole.
fn unpack(bytes: &[u8]) -> Option<&[u8]> {
    let (head, image) = bytes.split_at_checked(HEAD)?;
    let whole = head[..16] == *MAGIC
        && head[16..24] == (image.len() as u64).to_le_bytes()
        && head[24..] == checksum(image);
    whole.then_some(image)
}

fn write(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&(image.len() as u64).to_le_bytes())?;
    file.write_all(&checksum(image))?;
    file.write_all(image)
}

#[cfg(unix)]
fn make(folder: &Path) -> bool {
    use std::os::unix::fs::DirBuilderExt;
    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    is_ours(folder)
}

#[cfg(not(unix))]
fn make(folder: &Path) -> bool {
    fs::create_dir_all(folder).is_ok()
}

/// True where nobody else may put files there. A folder of another's, or one that all may write, is
/// not used.
#[cfg(unix)]
fn is_ours(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(about) = fs::metadata(folder) else { return false };
    // This user, as the system shows it: the owner of our own entry in /proc, where there is one.
    let owner = fs::metadata("/proc/self").map_or(about.uid(), |me| me.uid());
    about.is_dir() && about.mode() & 0o022 == 0 && about.uid() == owner
}

#[cfg(not(unix))]
fn is_ours(folder: &Path) -> bool {
    folder.is_dir()
}

/// Removes the oldest quarter where there are more than `most`, and files that killed processes
/// left half written.
fn thin_out(folder: &Path, most: usize) {
    let Ok(list) = fs::read_dir(folder) else { return };
    let mut entries: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
    for file in list.flatten() {
        let (path, Ok(at)) = (file.path(), file.metadata().and_then(|m| m.modified())) else {
            continue;
        };
        match path.extension().and_then(|e| e.to_str()) {
            Some("cubin") => entries.push((at, path)),
            Some("part") if at.elapsed().is_ok_and(|age| age.as_secs() > 3600) => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
    }
    if entries.len() > most {
        entries.sort();
        let surplus = entries.len() - most * 3 / 4;
        entries.into_iter().take(surplus).for_each(|(_, path)| drop(fs::remove_file(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("futensor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }
        fn disk(&self) -> Disk {
            Disk::at(Some(self.0.clone()))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_put_is_got_by_another_process_and_every_part_of_the_key_counts() {
        let folder = Folder::new("cache-key");
        let key = |parts: &[&str]| Key::of(&parts.iter().map(|p| p.as_bytes()).collect::<Vec<_>>());
        folder.disk().put(key(&["source", "13.0", "sm_90"]), b"image");
        assert_eq!(
            folder.disk().get(key(&["source", "13.0", "sm_90"])).as_deref(),
            Some(&b"image"[..])
        );
        let others = [
            ["sour", "ce13.0", "sm_90"],
            ["source", "13.1", "sm_90"],
            ["source", "13.0", "sm_80"],
            ["source2", "13.0", "sm_90"],
        ];
        for other in others {
            assert_eq!(folder.disk().get(key(&other)), None, "{other:?}");
        }
    }

    #[test]
    fn a_damaged_entry_is_as_good_as_none_and_is_taken_away() {
        let folder = Folder::new("cache-damage");
        let key = Key::of(&[b"k"]);
        let disk = folder.disk();
        for damage in 0..4 {
            disk.put(key, b"an image of some length");
            let path = entry(&folder.0, key);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                0 => bytes.truncate(HEAD + 3),
                1 => bytes.clear(),
                2 => *bytes.last_mut().unwrap() ^= 1,
                _ => bytes[3] ^= 1,
            }
            fs::write(&path, bytes).unwrap();
            assert_eq!(disk.get(key), None, "damage {damage}");
            assert!(!path.exists());
        }
        disk.put(key, b"again");
        assert_eq!(disk.get(key).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn the_users_own_folder_has_nothing_but_a_gpus_code() {
        let folder = Folder::new("cache-elf");
        let key = Key::of(&[b"k"]);
        let users = || Disk { named: false, ..folder.disk() };
        users().put(key, b"a stand-in's image");
        assert!(!folder.0.exists());
        // Entries of another version go.
        folder.disk().put(key, b"a stand-in's image");
        assert_eq!(users().get(key), None);
        assert!(!entry(&folder.0, key).exists());
        users().put(key, b"\x7fELF and more");
        assert_eq!(users().get(key).as_deref(), Some(&b"\x7fELF and more"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_cache_and_no_error() {
        let file = Folder::new("cache-file");
        fs::write(&file.0, b"not a folder").unwrap();
        let disk = Disk::at(Some(file.0.join("below")));
        disk.put(Key::of(&[b"k"]), b"image");
        assert_eq!(disk.get(Key::of(&[b"k"])), None);
        let _ = fs::remove_file(&file.0);
        let none = Disk::at(None);
        none.put(Key::of(&[b"k"]), b"image");
        assert_eq!(none.get(Key::of(&[b"k"])), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_folder_is_its_owners_alone_and_one_that_others_may_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("cache-mode");
        let (disk, key) = (folder.disk(), Key::of(&[b"k"]));
        let set =
            |mode: u32| fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
        disk.put(key, b"image");
        assert_eq!(fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
        for mode in [0o777, 0o770, 0o720, 0o702, 0o707] {
            set(mode);
            // One that looks for the first time, and one that has been writing there.
            for disk in [&folder.disk(), &disk] {
                assert_eq!(disk.get(key), None, "{mode:o}");
            }
            let other = Key::of(&[&mode.to_le_bytes()]);
            folder.disk().put(other, b"image");
            assert!(!entry(&folder.0, other).exists(), "{mode:o}");
        }
        for mode in [0o700, 0o750, 0o755] {
            set(mode);
            assert_eq!(folder.disk().get(key).as_deref(), Some(&b"image"[..]), "{mode:o}");
        }
        // Another's, where this process may give it away.
        if std::os::unix::fs::chown(&folder.0, Some(12_345), None).is_ok() {
            assert_eq!(folder.disk().get(key), None);
        }
    }

    #[test]
    fn a_full_folder_loses_its_oldest_entries() {
        let folder = Folder::new("cache-full");
        let disk = folder.disk();
        let keys: Vec<Key> = (0..20u8).map(|k| Key::of(&[&[k]])).collect();
        for (age, &key) in keys.iter().enumerate() {
            disk.put(key, b"image");
            let file = fs::File::open(entry(&folder.0, key)).unwrap();
            let at =
                std::time::SystemTime::now() - std::time::Duration::from_secs(100 * age as u64);
            file.set_modified(at).unwrap();
        }
        thin_out(&folder.0, 16);
        let left: Vec<bool> = keys.iter().map(|&k| disk.get(k).is_some()).collect();
        assert_eq!(left.iter().filter(|&&l| l).count(), 12);
        assert!(left[..12].iter().all(|&l| l), "the newest stay");
    }
}
