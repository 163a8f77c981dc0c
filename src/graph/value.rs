//! A value that is there: its elements and their layout.
//!
//! A small value lies in the node itself, a larger one in a counted buffer that views share. Only
//! the device knows the kind of a buffer's memory.

use crate::concurrent::counted::seen_after;
use crate::dtype::DType;
use crate::shape::{Layout, Shape, Strides, contiguous_strides};
use crate::sync::lock_plain;
use crate::sync::plain::{AtomicU32, Mutex, MutexGuard, OnceLock, Ordering::Relaxed};
use std::sync::Arc;
use std::{any::Any, fmt};

/// Memory that holds elements. Backends implement it; dropping it gives it back without waiting.
pub(crate) trait Buffer: Send + Sync + fmt::Debug + 'static {
    /// Address in host memory, where the host can read it.
    fn host(&self) -> Option<*mut u8>;
    /// Bytes that the device keeps for it.
    #[allow(dead_code)] // Read by backends that account for memory of another's making.
    fn bytes(&self) -> usize;
    /// True where the last reader of a value may write its result over it.
    fn is_reusable(&self) -> bool {
        false
    }
    /// The data that kernels keep beside these elements, if the buffer has a place for that.
    fn keep(&self) -> Option<&Keep> {
        None
    }
    /// Memory of the same device for what is kept beside these elements; `None` where there is none
    /// to spare.
    fn beside(&self, _bytes: usize) -> Option<Arc<dyn Buffer>> {
        None
    }
    /// Something is kept beside these elements that the device may let go when it needs memory.
    fn remember(&self, _kept: &Arc<Kept>) {}
    /// For the device that made it.
    #[allow(dead_code)]
    fn as_any(&self) -> &dyn Any;
}

/// Data that a kernel made of a buffer's elements.
pub(crate) type Made = Arc<dyn Any + Send + Sync>;

/// The place for what a kernel made of a buffer's elements, kept for the next time: a weight in
/// packed form, say. It lives and dies with the buffer; a buffer that has one is not written over.
#[derive(Default)]
pub(crate) struct Keep {
    /// How often a kernel has thought of making it of one view, and a mark of that view: see
    /// [`Keep::count`].
    uses: AtomicU32,
    kept: OnceLock<Arc<Kept>>,
}

impl Keep {
    /// Counts a use of a view (by the mark that it has), up to 3, and returns how many there have
    /// been in a row: a weight in training is seen from two sides in turn, and written over then,
    /// and stays at 1.
    pub fn count(&self, view: u32) -> u32 {
        let mark = view.wrapping_mul(0x9e37_79b9) & !3;
        let old = self.uses.load(Relaxed);
        let count = if old & !3 == mark { 3.min((old & 3) + 1) } else { 1 };
        // Racing counts may lose one of them.
        self.uses.store(mark | count, Relaxed);
        count
    }

    /// Whether something is kept, or just being made.
    pub fn has_something(&self) -> bool {
        self.kept.get().is_some_and(|kept| matches!(*kept.lock(), State::Making | State::Kept(_)))
    }

    /// The kept data. Its user holds it meanwhile.
    pub fn get(&self) -> Option<Made> {
        match &*self.kept.get()?.lock() {
            State::Kept(made) => Some(made.clone()),
            _ => None,
        }
    }

    /// The kept data; if there is none, the result of `make` is kept from now on. Nobody waits for
    /// another thread's making, a poll least of all: there is nothing meanwhile.
    pub fn get_or_make(
        &self,
        buffer: &dyn Buffer,
        make: impl FnOnce() -> Option<Made>,
    ) -> Option<Made> {
        let kept = self.kept.get_or_init(|| {
            let kept = Arc::new(Kept { state: Mutex::new(State::Nothing) });
            buffer.remember(&kept);
            kept
        });
        match &mut *kept.lock() {
            State::Kept(made) => return Some(made.clone()),
            State::Making | State::Denied => return None,
            nothing => *nothing = State::Making,
        }
        let made = make();
        *kept.lock() = made.clone().map_or(State::Nothing, State::Kept);
        made
    }
}

/// The data that is kept beside a buffer's elements, for the device that lent the memory.
pub(crate) struct Kept {
    /// Held for a look or a change, never while something is made.
    state: Mutex<State>,
}

enum State {
    Nothing,
    /// Somebody is at it.
    Making,
    Kept(Made),
    /// The memory was needed for something else: it is not made again of these elements.
    Denied,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock_plain(&self.state)
    }

    /// Gives up what is kept, unless somebody uses it or makes it just now; the caller drops it. If
    /// it is `denied`, it is not made again.
    pub fn let_go(&self, denied: bool) -> Option<Made> {
        let mut state = self.lock();
        match &*state {
            State::Kept(made) if Arc::strong_count(made) == 1 => {}
            _ => return None,
        }
        let new = if denied { State::Denied } else { State::Nothing };
        match std::mem::replace(&mut *state, new) {
            State::Kept(made) => Some(made),
            _ => None,
        }
    }
}

/// Most bytes that lie in the node itself.
pub(crate) const INLINE_BYTES: usize = 32;

/// Where the elements are.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// In here; only host devices do this.
    Inline([u64; INLINE_BYTES / 8]),
    /// In a buffer.
    Shared(Arc<dyn Buffer>),
}

/// The number of owners of a buffer. A sole owner may write over the buffer: everything that other
/// owners did with it came before.
pub(crate) fn owners(buffer: &Arc<dyn Buffer>) -> usize {
    seen_after(|| Arc::strong_count(buffer))
}

/// Strides and offset (in elements) of a value that is not plainly row-major from the start.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub strides: Strides,
    pub offset: usize,
}

/// Elements and how they lie; the shape is the node's.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub storage: Storage,
    pub placed: Option<Box<Placed>>,
}

impl Value {
    pub fn contiguous(storage: Storage) -> Value {
        Value { storage, placed: None }
    }

    /// A value whose elements nobody reads.
    pub fn nothing() -> Value {
        Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]))
    }

    /// A value in a layout; the shape of the layout becomes the node's.
    pub fn placed(storage: Storage, layout: &Layout) -> Value {
        if layout.offset == 0 && layout.is_contiguous() {
            return Value::contiguous(storage);
        }
        let placed = Placed { strides: layout.strides.clone(), offset: layout.offset };
        Value { storage, placed: Some(Box::new(placed)) }
    }

    pub fn layout(&self, shape: &Shape) -> Layout {
        match &self.placed {
            None => Layout::contiguous(shape.clone()),
            Some(p) => {
                Layout { shape: shape.clone(), strides: p.strides.clone(), offset: p.offset }
            }
        }
    }

    /// Address of the first byte of the storage, where the host can read it. The value must stay
    /// where it is while the address is used: small ones lie inside it.
    pub fn host(&self) -> Option<*const u8> {
        match &self.storage {
            Storage::Inline(words) => Some(words.as_ptr() as *const u8),
            Storage::Shared(buffer) => buffer.host().map(|p| p as *const u8),
        }
    }

    /// Address of the first element, in host memory.
    pub fn first(&self, dtype: DType) -> *const u8 {
        let offset = self.placed.as_ref().map_or(0, |p| p.offset);
        self.host().unwrap_or(std::ptr::null()).wrapping_add(offset * dtype.size())
    }

    pub fn strides(&self, shape: &Shape) -> Strides {
        match &self.placed {
            None => contiguous_strides(shape),
            Some(placed) => placed.strides.clone(),
        }
    }

    /// Strides with which a value of shape `from` is read over a larger one.
    pub fn broadcast(&self, from: &Shape, to: &Shape) -> Strides {
        let strides = self.strides(from);
        if from == to {
            return strides;
        }
        let lead = to.rank() - from.rank();
        (0..to.rank())
            .map(|i| if i < lead || from[i - lead] == 1 { 0 } else { strides[i - lead] })
            .collect()
    }

    /// The buffer that it lies in, where that is more than its node.
    pub fn buffer(&self) -> Option<&dyn Buffer> {
        match &self.storage {
            Storage::Inline(_) => None,
            Storage::Shared(buffer) => Some(&**buffer),
        }
    }

    /// Bytes outside the node that go with this value: none where others have them too.
    pub fn bytes_freed(&self) -> usize {
        match &self.storage {
            Storage::Shared(buffer) if owners(buffer) == 1 => buffer.bytes(),
            _ => 0,
        }
    }
}
