//! The arguments of a launch: words, and the word at which each argument begins.

use smallvec::SmallVec;
use std::ffi::c_void;

/// The values of a launch's arguments, each from an eight-byte word on.
#[derive(Default)]
pub(crate) struct Words {
    pub words: SmallVec<[u64; 128]>,
    pub starts: SmallVec<[usize; 24]>,
    /// Words that are device addresses.
    pub addresses: SmallVec<[usize; 8]>,
}

impl Words {
    pub fn push(&mut self, words: &[u64]) {
        self.starts.push(self.words.len());
        self.words.extend_from_slice(words);
    }

    pub fn address(&mut self, ptr: u64) {
        self.addresses.push(self.words.len());
        self.push(&[ptr]);
    }
}

/// A pointer to each argument; they begin at these words.
pub(crate) fn pointers(words: &mut [u64], starts: &[usize]) -> SmallVec<[*mut c_void; 24]> {
    let base = words.as_mut_ptr();
    // Every start lies inside the words, or at their end: a struct without bytes.
    starts.iter().map(|&at| base.wrapping_add(at).cast()).collect()
}
