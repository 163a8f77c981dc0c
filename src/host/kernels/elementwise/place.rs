//! Where the operands of a step lie: in memory, in a slot or in a cell. See `plan`.

#![allow(unsafe_code)]

/// Where an operand lies: `ptr` at position 0, and `scale` bytes further at each next one. Slots
/// and cells do not move.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub ptr: *mut u8,
    pub scale: u8,
    /// `ptr` is where the address lies: that of position 0, as if the whole input lay like this
    /// segment.
    pub moves: bool,
    /// The same at every position, and there already; or, if it `varies`, the same along each
    /// stretch, and there from its beginning on. Only meant while the plan is made.
    pub uniform: bool,
    pub varies: bool,
    /// The slot that it occupies, or [`NO_SLOT`]. Only meant while the plan is made.
    pub slot: u8,
    /// The output that it is, or [`NO_OUTPUT`].
    pub output: u8,
}

pub(super) const NO_SLOT: u8 = u8::MAX;
/// "Not computed in an output."
pub(super) const NO_OUTPUT: u8 = u8::MAX;
pub(super) const NOWHERE: Place = Place {
    ptr: std::ptr::null_mut(),
    scale: 0,
    moves: false,
    uniform: true,
    varies: false,
    slot: NO_SLOT,
    output: NO_OUTPUT,
};

impl Place {
    /// Memory of the caller's: one element after the other.
    pub fn memory(ptr: *mut u8, size: usize) -> Place {
        Place { ptr, scale: size as u8, uniform: false, ..NOWHERE }
    }

    /// Memory of an output's.
    pub fn output(k: usize, ptr: *mut u8, size: usize) -> Place {
        Place { output: k as u8, ..Place::memory(ptr, size) }
    }

    /// One element that is there already.
    pub fn one(ptr: *mut u8) -> Place {
        Place { ptr, ..NOWHERE }
    }

    /// The address for a tile that begins at `position`.
    #[inline(always)]
    pub fn at(self, position: usize) -> *mut u8 {
        let ptr = match self.moves {
            // SAFETY: a cell of the plan that `begin_segment` has filled.
            true => unsafe { *self.ptr.cast::<*mut u8>() },
            false => self.ptr,
        };
        ptr.wrapping_add((self.scale as usize).wrapping_mul(position))
    }
}
