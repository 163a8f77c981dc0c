//! Bytes that another process sends, sooner or later or never.

use std::sync::Mutex;

/// Where what a call gets arrives.
#[derive(Default)]
pub struct Arrival(Mutex<Option<Vec<u8>>>);

impl Arrival {
    /// True until it is there.
    pub fn is_missing(&self) -> bool {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_none()
    }

    /// Copies it to an address; of an aborted call, nothing.
    pub fn copy(&self, to: usize) {
        let bytes = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take()
            .unwrap_or_default();
        if bytes.is_empty() {
            return;
        }
        // SAFETY: the call named so many bytes of a live allocation, and the hub answers with no
        // more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    /// It has come.
    pub fn put(&self, bytes: Vec<u8>) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(bytes);
    }
}
