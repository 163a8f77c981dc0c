//! Copies of elements that lie side by side.
//!
//! Called by kernels for runs whose length or place they do not know when they are compiled. Knows
//! no views.

#![allow(unsafe_code)]

/// Bytes of a run up to which we copy it ourselves. The system's `memcpy` needs a call, and becomes
/// the instruction `rep movsb` from 2 to 8 KiB on, by machine.
const LONG: usize = 4 << 10;

/// Copies `n` elements.
///
/// # Safety
/// `d` is valid for writes and `s` for reads of `n` elements, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_run<T: Copy>(d: *mut T, s: *const T, n: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        match n * size_of::<T>() {
            0..16 => (0..n).for_each(|i| *d.add(i) = *s.add(i)),
            bytes @ 16..32 => by_pieces::<16>(d.cast(), s.cast(), bytes),
            bytes @ 32..64 => by_pieces::<32>(d.cast(), s.cast(), bytes),
            bytes if bytes <= LONG || is_slow(d.cast(), s.cast()) => {
                by_pieces::<64>(d.cast(), s.cast(), bytes);
            }
            _ => std::ptr::copy_nonoverlapping(s, d, n),
        }
    }
}

/// Whether `rep movsb` may be slow: where the destination is less than a line beyond the source,
/// seen from where their pages begin. On a Zen 3 it then copies 2.2 GB/s, not 33.
#[inline(always)]
fn is_slow(d: *const u8, s: *const u8) -> bool {
    cfg!(target_arch = "x86_64") && (1..64).contains(&(d.addr().wrapping_sub(s.addr()) % 4096))
}

/// Copies at least `BYTES`, that many at a time: the last ones once more, rather than some by
/// themselves.
///
/// # Safety
/// `d` is valid for writes and `s` for reads of `bytes`, and they do not overlap.
#[inline(always)]
pub(super) unsafe fn by_pieces<const BYTES: usize>(d: *mut u8, s: *const u8, bytes: usize) {
    let piece = |at: usize| {
        // SAFETY: `at` leaves `BYTES` of them.
        unsafe {
            let piece = s.add(at).cast::<[u8; BYTES]>().read_unaligned();
            d.add(at).cast::<[u8; BYTES]>().write_unaligned(piece);
        }
    };
    let mut at = 0;
    while at + BYTES < bytes {
        piece(at);
        at += BYTES;
    }
    piece(bytes - BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_any_length_comes_to_any_place_and_nothing_around_it_changes() {
        let lengths = (0..200).chain([1023, 1024, 4095, 4096, 4097, 8164, 20_000]);
        let source: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
        for n in lengths {
            // Places of both that `rep movsb` is slow at and not.
            for [from, to] in [[0, 0], [0, 1], [3, 40], [40, 3], [1, 64], [0, 63]] {
                let mut got = vec![255u8; 30_000];
                // SAFETY: both go on for so long, and are different ones.
                unsafe { copy_run(got.as_mut_ptr().add(to), source.as_ptr().add(from), n) };
                let mut wanted = vec![255u8; 30_000];
                wanted[to..to + n].copy_from_slice(&source[from..from + n]);
                assert!(got == wanted, "{n} bytes from {from} to {to}");
            }
        }
    }
}
