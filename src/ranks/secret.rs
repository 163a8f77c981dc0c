//! The secret that members share, what is proved with it, and where a run on one machine keeps one.

use hmac_sha256::{HMAC, Hash};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Bytes of a challenge and of a proof.
pub(crate) const BYTES: usize = 32;

/// A key made of what the user said. It is never sent and never shown.
#[derive(Clone)]
pub(crate) struct Secret([u8; BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub fn of(words: &[u8]) -> Secret {
        Secret(Hash::hash(words))
    }

    fn mac(&self, parts: &[&[u8]]) -> HMAC {
        let mut mac = HMAC::new(self.0);
        for part in parts {
            // With its length, so that nothing can be moved from one part into the next.
            mac.update((part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// That whoever says these knows the secret.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        self.mac(parts).finalize()
    }

    /// Whether a proof is right, in a time that does not tell where it is wrong.
    pub fn check(&self, parts: &[&[u8]], proof: &[u8; BYTES]) -> bool {
        self.mac(parts).finalize_verify(proof)
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The user who runs this process.
#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The file of a run on this machine. Rank 0 writes it, and removes it once all have joined.
pub(crate) struct Note(PathBuf);

impl Note {
    fn path(job: &str) -> PathBuf {
        let name: String = Hash::hash(job.as_bytes())[..8].iter().map(|b| format!("{b:02x}")).collect();
        std::env::temp_dir().join(format!("futensor-ranks-{}-{name}", user()))
    }

    /// Says where rank 0 listens, with a fresh secret, to this user's processes alone.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(job: &str, address: &str) -> io::Result<(Note, Secret)> {
        let path = Note::path(job);
        // One that an earlier run left behind; another user's cannot be removed, and the next line fails.
        let _ = fs::remove_file(&path);
        let words: String = random()?.iter().map(|b| format!("{b:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let note = Note(path);
        file.write_all(format!("{address} {words}\n").as_bytes())?;
        Ok((note, Secret::of(words.as_bytes())))
    }

    /// What rank 0 has said, once it has.
    pub fn read(job: &str) -> Option<(String, Secret)> {
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(Note::path(job)).ok()?;
        let about = file.metadata().ok()?;
        if about.uid() != user() || about.mode() & 0o077 != 0 || about.len() > 1024 {
            return None;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let (address, words) = text.strip_suffix('\n')?.split_once(' ')?;
        Some((address.into(), Secret::of(words.as_bytes())))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_its_parts_and_its_secret() {
        let secret = Secret::of(b"one");
        let proof = secret.prove(&[b"ab", b"c"]);
        assert!(secret.check(&[b"ab", b"c"], &proof));
        assert!(!secret.check(&[b"a", b"bc"], &proof));
        assert!(!Secret::of(b"two").check(&[b"ab", b"c"], &proof));
        assert_ne!(random().unwrap(), random().unwrap());
    }

    #[test]
    fn a_note_is_read_by_its_job_alone_and_goes_with_its_writer() {
        let job = format!("a test of {}", std::process::id());
        assert!(Note::read(&job).is_none());
        let (note, secret) = Note::write(&job, "127.0.0.1:9").unwrap();
        let (address, read) = Note::read(&job).unwrap();
        assert_eq!((&address[..], read.0), ("127.0.0.1:9", secret.0));
        assert!(Note::read("another").is_none());
        let mut open = fs::metadata(&note.0).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o644);
        fs::set_permissions(&note.0, open).unwrap();
        assert!(Note::read(&job).is_none(), "anybody could have written it");
        drop(note);
        assert!(Note::read(&job).is_none());
    }
}
