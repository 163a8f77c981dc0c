//! Page-locked memory of users: the GPU reads what they have filled, and fills it, where it lies.
//!
//! To lock and unlock pages may wait for all running work, so memory that is let go stays in a list
//! for the next of its size class, a power of two; only a trim, or the end of a device, gives it
//! back to the driver. Each block keeps its GPU's primary context. `pinned` has the device's own
//! staging.

#![allow(unsafe_code)]

use crate::cuda::device::Trouble;
use crate::cuda::device::driver_context::{keep, let_go, within};
use crate::cuda::device::libraries::nvidia::{lock_pages, unlock_pages};
use crate::graph::value::{Buffer, Value};
use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The least: a page.
const SMALLEST: usize = 4 << 10;

/// A block of the driver's.
#[derive(Debug)]
struct Pages {
    at: usize,
    bytes: usize,
    ordinal: usize,
}

/// Blocks that nobody uses.
static FREE: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

fn free() -> MutexGuard<'static, Vec<Pages>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block in use; its drop waits for nothing.
#[derive(Debug)]
pub(crate) struct PageLocked(Pages);

impl Drop for PageLocked {
    fn drop(&mut self) {
        let Pages { at, bytes, ordinal } = self.0;
        free().push(Pages { at, bytes, ordinal });
    }
}

impl Buffer for PageLocked {
    fn host(&self) -> Option<*mut u8> {
        Some(self.0.at as *mut u8)
    }
    fn bytes(&self) -> usize {
        self.0.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The address of a value that lies in page-locked memory from its start on, in row-major order.
pub(crate) fn address(value: &Value) -> Option<*const u8> {
    let buffer = value.buffer().filter(|_| value.placed.is_none())?;
    address_of(buffer).map(|at| at as *const u8)
}

/// The address of a buffer of page-locked memory.
pub(crate) fn address_of(buffer: &dyn Buffer) -> Option<*mut u8> {
    buffer.as_any().is::<PageLocked>().then(|| buffer.host()).flatten()
}

/// A block of at least so many bytes, and whether it is new.
///
/// # Errors
/// Why the GPU cannot be used, or the driver's.
pub(crate) fn take(ordinal: usize, bytes: usize) -> Result<(PageLocked, bool), Trouble> {
    let bytes = bytes.max(SMALLEST);
    let bytes = bytes.checked_next_power_of_two().ok_or(Trouble::OutOfMemory { bytes })?;
    let mut list = free();
    if let Some(k) = list.iter().position(|pages| (pages.ordinal, pages.bytes) == (ordinal, bytes))
    {
        return Ok((PageLocked(list.swap_remove(k)), false));
    }
    drop(list);
    let at = within(ordinal, || lock_pages(bytes).inspect(|_| keep(ordinal)))??;
    Ok((PageLocked(Pages { at: at as usize, bytes, ordinal }), true))
}

/// Gives the driver back what nobody uses of a GPU's. It may take long.
pub(crate) fn trim(ordinal: usize) {
    let all: Vec<Pages> = free().extract_if(.., |pages| pages.ordinal == ordinal).collect();
    for Pages { at, .. } in all {
        // SAFETY: the driver gave it, and nobody has it: the last owner of a block that is copied
        // from is the submission of that copy.
        let unlock = || unsafe { unlock_pages(at as *mut u8) };
        // Where the GPU cannot be used any more, its memory stays as it is.
        let _ = within(ordinal, || {
            unlock();
            let_go(ordinal);
        });
    }
}
