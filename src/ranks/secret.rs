//! The shared secret of the members, proofs of it, and the file that holds it for a run on one
//! machine.

use hmac_sha256::{HMAC, Hash};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// The size of a challenge and of a proof.
pub(crate) const BYTES: usize = 32;

/// A key derived from the user's secret. It is never sent and never shown.
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
            // With its length, so that bytes cannot move from one part to the next.
            mac.update((part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// A proof that the sender of these parts knows the secret.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        self.mac(parts).finalize()
    }

    /// Checks a proof in constant time.
    pub fn check(&self, parts: &[&[u8]], proof: &[u8; BYTES]) -> bool {
        self.mac(parts).finalize_verify(proof)
    }
}

/// Random bytes that cannot be guessed.
pub(crate) fn random() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The user id of this process.
#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// The file of a run on this machine. Rank 0 writes it, and removes it once all ranks have joined.
pub(crate) struct Note {
    path: PathBuf,
    /// The contents: a later file of the same run has the same name.
    text: String,
}

impl Note {
    fn path(job: &str) -> PathBuf {
        let name: String =
            Hash::hash(job.as_bytes())[..8].iter().map(|b| format!("{b:02x}")).collect();
        std::env::temp_dir().join(format!("futensor-ranks-{}-{name}", user()))
    }

    /// Writes rank 0's address and a fresh secret, readable by this user's processes only.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(job: &str, address: &str) -> io::Result<(Note, Secret)> {
        let path = Note::path(job);
        // A file that an earlier run left behind. Another user's file cannot be removed, and then
        // the next line fails.
        let _ = fs::remove_file(&path);
        let words: String = random()?.iter().map(|b| format!("{b:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let note = Note { path, text: format!("{address} {words}\n") };
        file.write_all(note.text.as_bytes())?;
        Ok((note, Secret::of(words.as_bytes())))
    }

    /// The contents, once rank 0 has written them.
    pub fn read(job: &str) -> Option<(String, Secret)> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(Note::path(job))
            .ok()?;
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
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

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
        let mut open = fs::metadata(&note.path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o644);
        fs::set_permissions(&note.path, open).unwrap();
        assert!(Note::read(&job).is_none(), "anybody could have written it");
        // A second file of the same run: dropping the first does not remove it.
        let (later, secret) = Note::write(&job, "127.0.0.1:10").unwrap();
        drop(note);
        let (address, read) = Note::read(&job).unwrap();
        assert_eq!((&address[..], read.0), ("127.0.0.1:10", secret.0));
        drop(later);
        assert!(Note::read(&job).is_none());
    }

    #[test]
    fn nobody_can_guess_a_secret_byte_by_byte() {
        let job = format!("guesses of {}", std::process::id());
        let words: Vec<String> = (0..64)
            .map(|_| {
                let (note, _) = Note::write(&job, "127.0.0.1:9").unwrap();
                let text = fs::read_to_string(&note.path).unwrap();
                text.trim_end().split_once(' ').unwrap().1.to_owned()
            })
            .collect();
        let challenges: Vec<String> = (0..64)
            .map(|_| random().unwrap().iter().map(|b| format!("{b:02x}")).collect())
            .collect();
        for drawn in [words, challenges] {
            assert!(drawn.iter().all(|word| word.len() == 2 * BYTES), "{drawn:?}");
            for at in 0..2 * BYTES {
                // 64 draws of 16 digits show 15.7 of them on average.
                let seen: HashSet<u8> = drawn.iter().map(|word| word.as_bytes()[at]).collect();
                assert!(seen.len() > 8, "digit {at} of {drawn:?}");
            }
        }
    }
}
