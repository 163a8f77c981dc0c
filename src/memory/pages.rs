//! Bytes for a device, which takes them over without a copy, in memory like that of its values.
//!
//! Called by readers of weights: a vector's elements begin anywhere, and lie in small pages.

use super::system::{HUGE, fresh, release};
use crate::error::number_of;

/// A growing list of bytes that stays where it is.
pub(crate) struct Pages {
    ptr: *mut u8,
    size: usize,
    len: usize,
}

// SAFETY: it owns plain memory.
unsafe impl Send for Pages {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// None yet, with room for so many; `None` where the system has no memory.
    pub fn with_room(bytes: usize) -> Option<Pages> {
        let size = bytes.max(1).checked_next_multiple_of(4 << 10)?;
        if size > isize::MAX as usize - HUGE {
            return None;
        }
        Some(Pages { ptr: fresh(size)?, size, len: 0 })
    }

    /// So many more, which are zero.
    ///
    /// # Panics
    /// If there is no room.
    pub fn more(&mut self, n: usize) -> &mut [u8] {
        assert!(n <= self.size - self.len, "no room for {}", number_of(n, "byte", "bytes"));
        // SAFETY: so many bytes behind those that are there are this value's own, and then zero.
        let more = unsafe {
            let from = self.ptr.add(self.len);
            from.write_bytes(0, n);
            std::slice::from_raw_parts_mut(from, n)
        };
        self.len += n;
        more
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so many have been written.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        release(self.ptr, self.size);
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_until_they_are_written_and_stay_where_they_are() {
        for room in [0, 5, 70_000, 3 << 20, 9 << 20] {
            let mut pages = Pages::with_room(room).unwrap();
            let first = pages.as_ref().as_ptr();
            for n in [room / 3, room - room / 3] {
                let more = pages.more(n);
                assert!(more.iter().all(|&byte| byte == 0));
                more.fill(7);
            }
            assert_eq!((pages.as_ref().len(), pages.as_ref().as_ptr()), (room, first));
            assert!(pages.as_ref().iter().all(|&byte| byte == 7));
            assert_eq!(first.addr() % 64, 0, "as kernels like it");
        }
        assert!(Pages::with_room(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "no room for 4097 bytes")]
    fn more_than_the_room_is_refused() {
        Pages::with_room(10).unwrap().more(4097);
    }
}
