//! On whose behalf ops are called: the line, and the name, that the user sees in errors.

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
}

/// While it lives, errors of calls are reported as errors of the caller's function.
pub(crate) struct Within(Option<Caller>);

impl Drop for Within {
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// For a function that is composed of ops: errors of these ops, also in closures, get the
/// function's name and its caller's line. Of nested functions the outermost is the one that the
/// user called. No user code may be called meanwhile.
#[must_use]
pub(crate) fn within(name: &'static str, at: At) -> Within {
    let before = CALLER.get();
    if before.is_none_or(|caller| caller.name.is_none()) {
        CALLER.set(Some(Caller { at: seen(at), name: Some(name) }));
    }
    Within(before)
}

/// True while the ops that are called are parts of a function that the user called.
pub(super) fn is_part() -> bool {
    CALLER.get().is_some_and(|caller| caller.name.is_some())
}

/// The name of the op for the user: its own, unless it is part of another function.
pub(crate) fn named(op: &str) -> &str {
    CALLER.get().and_then(|caller| caller.name).unwrap_or(op)
}

/// True for a location in the files of layers, optimizers, the trainer, transforms, and gradient
/// rules.
fn in_layers(at: At) -> bool {
    let here = file!();
    let root = here.len() - "tensor/build/caller.rs".len();
    let file = at.file();
    let own = file.as_bytes().get(..root) == Some(&here.as_bytes()[..root]);
    own && ["nn", "optim", "train.rs", "ops", "fft", "linalg", "hosted.rs", "tensor/gradient"]
        .iter()
        .any(|part| file[root..].starts_with(part))
}

/// Calls modules and gradient rules through a trait object, which does not know its caller: ops
/// called in a file of this crate get the location `at`; ops called in user code keep their own
/// line.
pub(crate) fn called_from<R>(at: At, f: impl FnOnce() -> R) -> R {
    let before = CALLER.get();
    let _back = Within(before);
    let outer = before.map_or(at, |caller| caller.at);
    CALLER.set(Some(Caller { at: if in_layers(at) { outer } else { at }, name: None }));
    f()
}

/// The location of an op's call, as the user sees it.
#[inline]
pub(crate) fn seen(at: At) -> At {
    match CALLER.get() {
        Some(caller) if caller.name.is_some() || in_layers(at) => caller.at,
        _ => at,
    }
}
