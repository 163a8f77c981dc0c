//! Indices as places along a dimension, a block at a time.
//!
//! A block is checked by vectors, whatever the indices' type, and the loops that move elements are
//! written once for all of these types.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::super::nest::Shared;
use super::{place, with_index};
use crate::view::View;

/// Indices that are read at a time.
pub(super) const BLOCK: usize = 256;

/// Memory for the places of a block.
pub(super) type Block = [isize; BLOCK];

/// The indices of a view.
#[derive(Clone, Copy)]
pub(super) struct Places {
    read: unsafe fn(Shared<u8>, isize, isize, &mut [isize], usize, bool) -> usize,
    from: Shared<u8>,
    size: usize,
    from_end: bool,
}

impl Places {
    /// Of indices into a dimension of a size; a negative one counts `from_end`, or names none.
    pub fn new(index: &View<'_>, size: usize, from_end: bool) -> Places {
        let read = with_index!(index.dtype, I => read::<I>);
        Places { read, from: Shared::new(index.ptr.cast_mut()), size, from_end }
    }

    /// The places that indices name, from one on, a step apart; or how many come before the first
    /// that names none. There are at most [`BLOCK`].
    ///
    /// # Safety
    /// These are indices of the view.
    #[inline(always)]
    pub unsafe fn block<'a>(
        &self,
        at: isize,
        step: isize,
        n: usize,
        room: &'a mut Block,
    ) -> Result<&'a [isize], usize> {
        let places = &mut room[..n];
        // SAFETY: the caller's promise.
        match unsafe { (self.read)(self.from, at, step, places, self.size, self.from_end) } {
            good if good == n => Ok(places),
            good => Err(good),
        }
    }
}

/// # Safety
/// As for [`Places::block`].
unsafe fn read<I: Load<i64>>(
    from: Shared<u8>,
    at: isize,
    step: isize,
    to: &mut [isize],
    size: usize,
    from_end: bool,
) -> usize {
    let from = from.at(0).cast::<I>().wrapping_offset(at);
    let more = if from_end { size as i64 } else { 0 };
    let good = vectorize!(|| {
        let mut good = true;
        let mut put = |to: &mut isize, index: i64| {
            let index = if index < 0 { index.wrapping_add(more) } else { index };
            good &= (index as u64) < size as u64;
            *to = index as isize;
        };
        // SAFETY: the caller's promise.
        unsafe {
            match step {
                1 => (0..to.len()).for_each(|i| put(&mut to[i], (*from.add(i)).load())),
                _ => (0..to.len())
                    .for_each(|i| put(&mut to[i], (*from.offset(i as isize * step)).load())),
            }
        }
        good
    });
    match good {
        true => to.len(),
        false => first_wrong(from, step, to.len(), size, from_end),
    }
}

/// How many indices come before one that names no place.
#[cold]
fn first_wrong<I: Load<i64>>(
    from: *const I,
    step: isize,
    n: usize,
    size: usize,
    from_end: bool,
) -> usize {
    let is_wrong = |&i: &usize| {
        // SAFETY: `read` has read it.
        place(unsafe { *from.offset(i as isize * step) }.load(), size, from_end).is_none()
    };
    (0..n).find(is_wrong).unwrap_or(n)
}
