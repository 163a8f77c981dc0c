//! Address space for allocations: every allocation between pages that fault, and no address used
//! twice.
//!
//! Device memory is host memory. One large range is reserved without access; an allocation opens
//! some pages of it and a free closes them for good, so an overrun and a use after free fault as
//! they should. What is left of the first and the last page holds a pattern that is checked at the
//! free.

use std::ptr::null_mut;

const PAGE: usize = 4096;
/// Allocations are aligned as the driver's are ("at least 256 bytes", CUDA C Programming Guide).
pub const ALIGN: usize = 256;
const CANARY: u8 = 0xA5;
/// New memory holds this: NaN as a float, -1 as an integer. Nobody may rely on zeros.
const POISON: u8 = 0xFF;
/// Larger allocations are poisoned at their ends only: touching every page of a 4 MiB allocation
/// takes longer than all else about it (2,000 of them: 15 s against 1 s).
const POISON_MAX: usize = 1 << 20;
/// How much of each end.
const POISON_END: usize = 256 << 10;

/// The pages of one allocation.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pages: usize,
    pages_len: usize,
    /// Address of the allocation.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The reserved range.
pub struct Arena {
    next: usize,
    end: usize,
}

impl Arena {
    /// Reserves address space; `None` where the system gives none.
    pub fn new() -> Option<Arena> {
        for bits in [44, 40, 36] {
            let size = 1usize << bits;
            // SAFETY: a fresh private mapping without access, at an address that the system
            // chooses, touches no memory that exists.
            let base = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0)
            };
            if base != libc::MAP_FAILED {
                return Some(Arena { next: base as usize, end: base as usize + size });
            }
        }
        None
    }

    /// Takes addresses for `len` bytes. They cannot be accessed before `open`.
    pub fn take(&mut self, len: usize) -> Option<Span> {
        let padded = len.max(1).checked_next_multiple_of(ALIGN)?;
        let pages_len = padded.checked_next_multiple_of(PAGE)?;
        let pages = self.next.checked_add(PAGE)?;
        let next = pages.checked_add(pages_len)?;
        if next + PAGE > self.end {
            return None;
        }
        self.next = next;
        // The end of the allocation lies at the end of the pages, as near as the alignment lets it.
        Some(Span { pages, pages_len, start: pages + pages_len - padded, len })
    }
}

impl Span {
    /// Makes the pages accessible. False where the system has no memory.
    pub fn open(&self) -> bool {
        // SAFETY: the pages are inside the arena and belong to this span alone, which is not open
        // yet.
        unsafe {
            libc::mprotect(self.pages as *mut _, self.pages_len, libc::PROT_READ | libc::PROT_WRITE)
                == 0
        }
    }

    /// Fills the allocation with the poison and the rest of its pages with the canary.
    pub fn poison(&self) {
        let fill = |from: usize, to: usize, byte: u8| {
            // SAFETY: callers pass bounds within this span's pages, which `open` made writable and
            // which nobody else may use before the item that calls this has run.
            unsafe { std::ptr::write_bytes(from as *mut u8, byte, to - from) }
        };
        let end = self.start + self.len;
        fill(self.pages, self.start, CANARY);
        fill(end, self.pages + self.pages_len, CANARY);
        if self.len <= POISON_MAX {
            fill(self.start, end, POISON);
        } else {
            fill(self.start, self.start + POISON_END, POISON);
            fill(end - POISON_END, end, POISON);
        }
    }

    /// The address of a byte beside the allocation that somebody has written, if there is one. Only
    /// while open.
    pub fn damage(&self) -> Option<usize> {
        let end = self.start + self.len;
        (self.pages..self.start).chain(end..self.pages + self.pages_len).find(|&at| {
            // SAFETY: the address lies in this span's pages, which are open.
            unsafe { (at as *const u8).read_volatile() != CANARY }
        })
    }

    /// Closes the pages for good and gives their memory back to the system.
    pub fn close(&self) {
        // SAFETY: the pages belong to this span alone; the allocation has been freed, and a client
        // that still uses it is to fault. Mapping afresh drops the contents.
        unsafe {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            libc::mmap(self.pages as *mut _, self.pages_len, libc::PROT_NONE, flags, -1, 0);
        }
    }
}

impl Span {
    /// The same place for so many bytes, where they begin at the same address.
    pub fn again(&self, len: usize) -> Option<Span> {
        let rooms = [self.len, len].map(|len| len.max(1).checked_next_multiple_of(ALIGN));
        (rooms[0] == rooms[1]).then_some(Span { len, ..*self })
    }

    /// Memory of the client's, which is never opened or closed here.
    pub fn of_client(start: usize, len: usize) -> Span {
        Span { pages: start, pages_len: len, start, len }
    }
}
