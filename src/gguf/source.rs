//! A reader of the header's bytes, limited to the file's length.

use crate::error::{bytes_of, number_of};
use std::io::{BufReader, ErrorKind, Read};

/// A reader, its position, and its limit.
pub(super) struct Source<R> {
    from: BufReader<R>,
    at: u64,
    length: u64,
}

impl<R: Read> Source<R> {
    pub fn new(from: R, length: u64) -> Source<R> {
        Source { from: BufReader::with_capacity(64 << 10, from), at: 0, length }
    }

    /// The position.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes.
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        if self.length - self.at < N as u64 {
            let length = bytes_of(self.length as usize);
            return Err(format!("truncated: the header extends beyond the file's {length}"));
        }
        self.from.read_exact(&mut bytes).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => "truncated within the header".to_owned(),
            _ => e.to_string(),
        })?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// Reads `count` values of at least `least` bytes each: memory is not reserved for more than
    /// the file can hold.
    pub fn several<T>(
        &mut self,
        count: u64,
        least: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let left = self.length - self.at;
        if count > left / least {
            let values = number_of(count as usize, "value", "values");
            return Err(format!("truncated: {values} in {}", bytes_of(left as usize)));
        }
        let mut all = Vec::new();
        all.try_reserve_exact(count as usize).map_err(|e| {
            format!("no memory for {}: {e}", number_of(count as usize, "value", "values"))
        })?;
        for _ in 0..count {
            all.push(read(self)?);
        }
        Ok(all)
    }
}
