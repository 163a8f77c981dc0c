//! On whose behalf ops are called: the line, and the name, that the user sees in errors. The parts
//! of a function that is composed of ops are passed to the engine together.

use crate::engine::port::{Port, Queued};
use crate::sync::threads::thread_local;
use crate::tensor::future::At;
use std::cell::Cell;

/// The caller on whose behalf ops are called now.
#[derive(Clone, Copy)]
struct Caller {
    at: At,
    /// The function that the user called, if all ops are parts of it: see [`within`].
    name: Option<&'static str>,
}

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
    /// Parts of the function that are made and not passed to the engine yet.
    static HELD: Cell<Vec<(&'static Port, Queued)>> = const { Cell::new(Vec::new()) };
    /// What is made is a part of something larger, whatever its caller is.
    static TOGETHER: Cell<bool> = const { Cell::new(false) };
}

/// The most parts that are held back: a function of very many starts before it has made them all.
const HELD_MAX: usize = 64;

/// While it lives, errors of calls are reported as errors of the caller's function, and the engine
/// does not see its parts.
pub(crate) struct Within(Option<Caller>);

impl Drop for Within {
    fn drop(&mut self) {
        let was_part = is_held();
        CALLER.set(self.0);
        if was_part && !is_held() {
            release();
        }
    }
}

/// While it lives, what is made is passed to the engine together, or piece by piece: see
/// [`together`] and [`at_once`].
#[must_use]
pub(crate) struct Together(bool);

/// For a function of this crate that asks for ops on behalf of several callers, as the walk of a
/// gradient does: the engine sees them together. No user code may be called meanwhile but
/// [`at_once`], and nothing may be awaited.
pub(crate) fn together() -> Together {
    Together(TOGETHER.replace(true))
}

/// For user code, which may wait for what it is given and what it makes.
pub(crate) fn at_once<R>(f: impl FnOnce() -> R) -> R {
    let _together = Together(TOGETHER.replace(false));
    release();
    f()
}

impl Drop for Together {
    fn drop(&mut self) {
        TOGETHER.set(self.0);
        if !is_held() {
            release();
        }
    }
}

/// True where new nodes are held back.
#[inline]
fn is_held() -> bool {
    TOGETHER.get() || is_part()
}

/// Passes a new node to the engine; a part of a composed function when the function is done. A
/// worker that is awake would take up the first parts before the others are there, write what is
/// between them to memory, and read it again.
#[inline]
pub(super) fn push(port: &'static Port, queued: Queued) {
    match is_held() {
        true => hold(port, queued),
        false => port.push(queued),
    }
}

fn hold(port: &'static Port, queued: Queued) {
    let Ok(mut held) = HELD.try_with(Cell::take) else {
        return port.push(queued); // the thread ends
    };
    held.push((port, queued));
    let is_full = held.len() >= HELD_MAX;
    HELD.set(held);
    if is_full {
        release();
    }
}

/// Passes the parts that are held back to the engine, in their order. A push may end in a waker,
/// which may call ops: what these leave here is passed on as well.
fn release() {
    while let Ok(mut held) = HELD.try_with(Cell::take) {
        if held.is_empty() {
            return HELD.set(held); // its room serves the next function
        }
        held.drain(..).for_each(|(port, queued)| port.push(queued));
    }
}

/// For a function that is composed of ops: errors of these ops, also in closures, get the
/// function's name and its caller's line. Of nested functions the outermost is the one that the
/// user called. No user code may be called meanwhile, and nothing may be awaited.
#[must_use]
pub(crate) fn within(name: &'static str, at: At) -> Within {
    let before = CALLER.get();
    if before.is_none_or(|caller| caller.name.is_none()) {
        CALLER.set(Some(Caller { at: seen(at), name: Some(name) }));
    }
    Within(before)
}

/// True while the ops that are called are parts of a function that the user called.
#[inline]
pub(super) fn is_part() -> bool {
    CALLER.get().is_some_and(|caller| caller.name.is_some())
}

/// The name of the op for the user: its own, unless it is part of another function.
pub(crate) fn named(op: &str) -> &str {
    CALLER.get().and_then(|caller| caller.name).unwrap_or(op)
}

/// True for a location in a file of this crate: in a layer, an optimizer or a gradient rule, which
/// are called on behalf of a user.
fn is_own(at: At) -> bool {
    let here = file!();
    let root = &here[..here.len() - "tensor/build/caller.rs".len()];
    at.file().starts_with(root)
}

/// Calls modules and gradient rules through a trait object, which does not know its caller: ops
/// called in a file of this crate get the location `at`; ops called in user code keep their own
/// line.
pub(crate) fn called_from<R>(at: At, f: impl FnOnce() -> R) -> R {
    let before = CALLER.get();
    if is_part() && !TOGETHER.get() {
        release();
    }
    let _back = Within(before);
    let outer = before.map_or(at, |caller| caller.at);
    CALLER.set(Some(Caller { at: if is_own(at) { outer } else { at }, name: None }));
    f()
}

/// The location of an op's call, as the user sees it.
#[inline]
pub(crate) fn seen(at: At) -> At {
    match CALLER.get() {
        Some(caller) if caller.name.is_some() || is_own(at) => caller.at,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, TensorFuture};
    use std::panic::Location;

    fn held() -> usize {
        let parts = HELD.take();
        let count = parts.len();
        HELD.set(parts);
        count
    }

    #[tokio::test]
    async fn parts_of_a_function_reach_the_engine_together() {
        let x = Device::cpu().ones([64]).await.unwrap();
        let within_both = within("composed", Location::caller());
        let parts: Vec<TensorFuture> = (0..3).map(|_| &x + 1.0).collect();
        drop(within("a part that is composed as well", Location::caller()));
        assert_eq!(held(), 3);
        drop(within_both);
        assert_eq!(held(), 0);
        for part in parts {
            assert_eq!(part.to_vec::<f32>().await.unwrap(), [2.0; 64]);
        }
    }

    #[tokio::test]
    async fn a_gradient_reaches_the_engine_together_and_user_code_finds_nothing_held() {
        let x = Device::cpu().ones([64]).await.unwrap();
        let walk = together();
        let rule = called_from(Location::caller(), || {
            let _within = within("composed", Location::caller());
            &x + 1.0
        });
        let sum = &rule + 1.0;
        assert_eq!(held(), 2);
        let own = at_once(|| {
            assert_eq!(held(), 0);
            let own = called_from(Location::caller(), || &sum + 1.0);
            assert_eq!(held(), 0);
            own
        });
        let last = &own + 1.0;
        assert_eq!(held(), 1);
        drop(walk);
        assert_eq!(held(), 0);
        assert_eq!(last.to_vec::<f32>().await.unwrap(), [5.0; 64]);
    }

    #[tokio::test]
    async fn a_function_of_very_many_parts_starts_before_its_end() {
        let x = Device::cpu().ones([64]).await.unwrap();
        let _within = within("composed", Location::caller());
        let parts: Vec<TensorFuture> = (0..HELD_MAX).map(|_| &x + 1.0).collect();
        assert_eq!(held(), 0);
        assert_eq!((&parts[0]).await.unwrap().dims(), [64]);
    }

    #[tokio::test]
    async fn a_closure_of_the_users_leaves_nothing_behind_that_it_may_wait_for() {
        let x = Device::cpu().ones([64]).await.unwrap();
        let _within = within("composed", Location::caller());
        let part = &x + 1.0;
        let own = called_from(Location::caller(), || {
            assert_eq!(held(), 0);
            &part + 1.0
        });
        assert_eq!((held(), own.dims()), (0, &[64][..]));
        assert_eq!(own.to_vec::<f32>().await.unwrap(), [3.0; 64]);
    }
}
