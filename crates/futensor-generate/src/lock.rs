//! Locks that a panic under them leaves usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is locked here is whole at each step: a panic of another leaves it so.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
