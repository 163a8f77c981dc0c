//! Zip archives that hold tensors, as NumPy and PyTorch write them.

use super::{Loaded, Reading};
use crate::error::{Result, bytes_of};
use std::io::{Read, Seek};
use zip::ZipArchive;
use zip::read::{ZipFile, ZipFileSeek};
use zip::result::ZipError;

/// An archive, with the words for what is wrong with it.
pub(crate) struct Archive<'a, F, T> {
    zip: ZipArchive<F>,
    reading: &'a Reading<T>,
}

/// How many bytes a byte of deflated data stands for, at most.
const DEFLATED_MAX: u64 = 1032;

impl<'a, F: Read + Seek, T: Loaded> Archive<'a, F, T> {
    /// Reads the directory.
    pub fn open(reading: &'a Reading<T>, file: F) -> Result<Archive<'a, F, T>> {
        let zip = ZipArchive::new(file).map_err(|e| reading.error(words(&e)))?;
        Ok(Archive { zip, reading })
    }

    /// The names of the entries, in the order of the directory.
    pub fn names(&self) -> Result<Vec<String>> {
        let names = self.zip.file_names().map(|name| Ok(name?.into_owned()));
        names.collect::<Result<_, ZipError>>().map_err(|e| self.reading.error(words(&e)))
    }

    /// An entry, from its beginning; at its end the reader checks the archive's checksum.
    pub fn entry(&mut self, name: &str) -> Result<ZipFile<'_, F>> {
        let reading = self.reading;
        let entry =
            self.zip.by_name(name).map_err(|e| reading.error(format!("{name}: {}", words(&e))))?;
        let (size, stored) = (entry.size(), entry.compressed_size());
        if size > stored.saturating_mul(DEFLATED_MAX) {
            let text = format!("{name} says that it has {}, which it cannot", bytes(size));
            return Err(reading.error(text));
        }
        Ok(entry)
    }

    /// An entry that is stored as it is, to read parts of.
    pub fn stored(&mut self, name: &str) -> Result<ZipFileSeek<'_, F>> {
        let reading = self.reading;
        self.zip.by_name_seek(name).map_err(|e| reading.error(format!("{name}: {}", words(&e))))
    }
}

fn bytes(n: u64) -> String {
    bytes_of(usize::try_from(n).unwrap_or(usize::MAX))
}

fn words(error: &ZipError) -> String {
    match error {
        ZipError::FileNotFound => "the archive has no such entry".into(),
        other => format!("not an archive that can be read: {other}"),
    }
}
