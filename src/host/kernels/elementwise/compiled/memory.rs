//! Memory that a processor may execute, never while it may be written.

#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", unix, not(miri)))]
pub(super) use here::Executable;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", unix, not(miri))))]
pub(super) use nowhere::Executable;

/// Whether there can be such memory.
pub(super) const CAN_EXECUTE: bool =
    cfg!(all(target_arch = "x86_64", target_pointer_width = "64", unix, not(miri)));

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", unix, not(miri)))]
mod here {
    use std::ffi::c_void;

    /// A compiled loop. It is unmapped when its last owner is dropped.
    #[derive(Debug)]
    pub(in super::super) struct Executable {
        at: *mut c_void,
        bytes: usize,
    }

    // SAFETY: nobody writes there once it has been made.
    unsafe impl Send for Executable {}
    // SAFETY: as above.
    unsafe impl Sync for Executable {}

    impl Executable {
        /// Maps these instructions; `None` where the system refuses.
        pub fn new(instructions: &[u8]) -> Option<Executable> {
            let bytes = instructions.len();
            let (write, execute) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
            // SAFETY: a new mapping, which nobody else has.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, write, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                return None;
            }
            let made = Executable { at, bytes };
            // SAFETY: the mapping has room for all, and is not executed yet.
            let is_denied = unsafe {
                std::ptr::copy_nonoverlapping(instructions.as_ptr(), at.cast(), bytes);
                libc::mprotect(at, bytes, execute) != 0
            };
            (!is_denied).then_some(made)
        }

        /// Calls it with addresses and a count.
        ///
        /// # Safety
        /// The instructions are a function of this kind, and their own promise is kept.
        pub unsafe fn call(&self, addresses: *const *mut u8, count: usize) {
            // SAFETY: the caller's promise.
            unsafe {
                let function: unsafe extern "sysv64" fn(*const *mut u8, usize) =
                    std::mem::transmute(self.at);
                function(addresses, count);
            }
        }
    }

    impl Drop for Executable {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, and nobody executes it any more.
            unsafe { libc::munmap(self.at, self.bytes) };
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", unix, not(miri))))]
mod nowhere {
    /// There is none here.
    #[derive(Debug)]
    pub(in super::super) enum Executable {}

    impl Executable {
        pub fn new(_: &[u8]) -> Option<Executable> {
            None
        }

        /// # Safety
        /// None: there is no value to call it on.
        pub unsafe fn call(&self, _: *const *mut u8, _: usize) {
            match *self {}
        }
    }
}
