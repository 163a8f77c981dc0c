//! Memory smaller than a few huge pages, as pieces of chunks.
//!
//! The system gives a huge page where a whole one fits. Memory of less would have pages of 4 KiB,
//! and 2.5 MiB for its end: too many for what a core keeps of their addresses. (A model of such
//! weights decoded 63 and 70 tokens/s in small and in huge pages: `measure MODEL.gguf one`, in
//! benches/RESULTS.md.) So such memory lies side by side in chunks. A piece that is released gives
//! its pages back at once, and the chunk its addresses once no piece is left; until then a released
//! piece is not used again.

use crate::sync::plain::{AtomicUsize, Mutex, Ordering::AcqRel, Ordering::Relaxed};
use crate::sync::statics;
use std::alloc::{Layout, alloc, dealloc};

/// Sizes of what is a piece: multiples of 4 KiB. Above, sizes are multiples of a huge page; below,
/// the system's allocator has its own ways.
const PIECES: std::ops::Range<usize> = 64 << 10..8 << 20;
/// Bytes of a chunk.
const SIZE: usize = 32 << 20;
/// Where the first piece begins.
const PAGE: usize = 4 << 10;

/// Whether memory of this size is a piece.
pub(super) fn is_piece(size: usize) -> bool {
    cfg!(all(target_os = "linux", not(miri), not(futensor_loom), not(futensor_shuttle)))
        && PIECES.contains(&size)
}

statics! {
    /// The one from which the next piece comes.
    static CHUNK: Mutex<Option<Chunk>> = Mutex::new(None);
}

struct Chunk {
    base: *mut u8,
    used: usize,
}

// SAFETY: plain memory; pieces that are handed out do not overlap.
unsafe impl Send for Chunk {}

/// What begins a chunk: its pieces, and one as long as more of them may come.
struct Users(AtomicUsize);

fn layout() -> Layout {
    Layout::from_size_align(SIZE, SIZE).expect("a power of two")
}

impl Chunk {
    fn new() -> Option<Chunk> {
        // SAFETY: the layout has a size above zero.
        let base = unsafe { alloc(layout()) };
        if base.is_null() {
            return None;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just allocated, and advice changes no contents. A refusal only
        // means small pages.
        unsafe {
            libc::madvise(base.cast(), SIZE, libc::MADV_HUGEPAGE);
        }
        // SAFETY: the chunk's first bytes, which no piece has.
        unsafe { base.cast::<Users>().write(Users(AtomicUsize::new(1))) };
        Some(Chunk { base, used: PAGE })
    }

    fn piece(&mut self, size: usize) -> Option<*mut u8> {
        if self.used + size > SIZE {
            return None;
        }
        // SAFETY: the chunk lives while this value does, and has so many bytes left.
        let piece = unsafe {
            (*self.base.cast::<Users>()).0.fetch_add(1, Relaxed);
            self.base.add(self.used)
        };
        self.used += size;
        Some(piece)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: no more pieces will come of it.
        unsafe { leave(self.base) };
    }
}

/// One user less of a chunk.
///
/// # Safety
/// It was one.
unsafe fn leave(base: *mut u8) {
    // SAFETY: by the caller's promise the chunk is there; after the last one nobody uses it.
    unsafe {
        if (*base.cast::<Users>()).0.fetch_sub(1, AcqRel) == 1 {
            dealloc(base, layout());
        }
    }
}

/// A piece of this size; `None` where the system has no memory. Never waits: while another thread
/// takes one, it is the first of a chunk of its own. (So a process that was forked meanwhile does
/// not wait for ever.)
pub(super) fn take(size: usize) -> Option<*mut u8> {
    debug_assert!(is_piece(size) && size.is_multiple_of(PAGE));
    let Ok(mut chunk) = CHUNK.try_lock() else { return Chunk::new()?.piece(size) };
    if let Some(piece) = chunk.as_mut().and_then(|chunk| chunk.piece(size)) {
        return Some(piece);
    }
    chunk.insert(Chunk::new()?).piece(size)
}

/// Gives a piece back.
///
/// # Safety
/// It came from [`take`] with this size, and nobody uses it.
pub(super) unsafe fn release(piece: *mut u8, size: usize) {
    #[cfg(target_os = "linux")]
    {
        // The system's own pages may be larger: those that are this piece's alone.
        let page = page();
        let from = piece.addr().next_multiple_of(page) - piece.addr();
        let to = ((piece.addr() + size) / page * page).saturating_sub(piece.addr());
        // SAFETY: by the caller's promise nobody reads them, and they lie within the piece.
        unsafe {
            libc::madvise(piece.add(from).cast(), to.saturating_sub(from), libc::MADV_DONTNEED)
        };
    }
    // SAFETY: by the caller's promise; a chunk begins at a multiple of its size.
    unsafe { leave(piece.wrapping_sub(piece.addr() % SIZE)) };
}

/// Bytes of a page of the system.
#[cfg(target_os = "linux")]
fn page() -> usize {
    // SAFETY: it asks for a constant.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(SIZE)
}

#[cfg(all(test, target_os = "linux", not(miri), not(futensor_loom), not(futensor_shuttle)))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn users(chunk: &Chunk) -> usize {
        // SAFETY: the chunk is there.
        unsafe { (*chunk.base.cast::<Users>()).0.load(Relaxed) }
    }

    /// How many of its pages are in memory; an error if its addresses are nobody's.
    fn resident(piece: *mut u8, size: usize) -> std::io::Result<usize> {
        let mut pages = vec![0u8; size.div_ceil(page())];
        // SAFETY: it looks at page tables alone, and `pages` has a byte for each page.
        match unsafe { libc::mincore(piece.cast(), size, pages.as_mut_ptr()) } {
            0 => Ok(pages.iter().filter(|&page| page % 2 == 1).count()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    #[test]
    fn pieces_lie_side_by_side_and_give_their_pages_back_when_they_are_released() {
        let mut chunk = Chunk::new().unwrap();
        let [a, b] = [5 * MIB, 64 << 10].map(|size| chunk.piece(size).unwrap());
        assert_eq!((b.addr() - a.addr(), a.addr() % PAGE, users(&chunk)), (5 * MIB, 0, 3));
        // SAFETY: the pieces are this test's.
        unsafe {
            a.write_bytes(1, 5 * MIB);
            b.write_bytes(2, 64 << 10);
            assert_eq!(resident(a, 5 * MIB).unwrap(), 5 * MIB / page());
            release(a, 5 * MIB);
            assert_eq!(resident(a, 5 * MIB).unwrap(), 0);
            let own = std::slice::from_raw_parts(b, 64 << 10);
            assert!(own.iter().all(|&byte| byte == 2), "the neighbour keeps what it has");
            assert_eq!(users(&chunk), 2);
            release(b, 64 << 10);
        }
        assert_eq!(users(&chunk), 1);
    }

    #[test]
    fn a_chunk_lives_while_it_has_pieces_and_no_longer() {
        let mut chunk = Chunk::new().unwrap();
        let base = chunk.base;
        let all: Vec<_> = std::iter::from_fn(|| chunk.piece(7 * MIB)).collect();
        assert_eq!((all.len(), users(&chunk)), (4, 5), "as many as fit");
        drop(chunk);
        for (left, piece) in all.into_iter().enumerate().rev() {
            // SAFETY: the chunk has this piece; it is released once.
            unsafe {
                assert_eq!((*base.cast::<Users>()).0.load(Relaxed), left + 1);
                piece.write_bytes(3, 7 * MIB);
                release(piece, 7 * MIB);
            }
        }
    }

    #[test]
    fn threads_that_take_pieces_at_once_have_memory_of_their_own() {
        let turns = |of: usize| {
            for turn in 0..64 {
                let byte = (of * 64 + turn) as u8;
                let size = (1 + turn % 5) * (64 << 10);
                let piece = take(size).unwrap();
                // SAFETY: the piece is this turn's.
                unsafe {
                    piece.write_bytes(byte, size);
                    std::thread::yield_now();
                    assert!(std::slice::from_raw_parts(piece, size).iter().all(|&b| b == byte));
                    release(piece, size);
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|of| drop(scope.spawn(move || turns(of)))));
    }
}
