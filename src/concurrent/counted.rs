//! A counted box with two kinds of owner: handles, which observe, and links, which only keep alive.
//!
//! A user that holds a [`Handle`] on a node observes it; the intake, the engine's task table and
//! the values made from the node hold [`Link`]s. Both counts live in one word, so that "no handle
//! is left, and so many links" is one read. Handles come only from handles, so once they are gone
//! they are gone for good. The drop of the last handle turns it into a link and hands that to
//! [`Observed::unobserved`], which decides where the memory is freed. Knows nothing of tensors.

#![allow(unsafe_code)]

use super::free_lists;
use crate::sync::{AtomicU64, Ordering, fence, in_total_order};
use std::alloc::Layout;
use std::{fmt, marker::PhantomData, ops::Deref, ptr::NonNull};

/// A value that hears of the end of its last handle.
pub(crate) trait Observed: Sized {
    /// Called by the thread that dropped the last handle, with a link in its place.
    fn unobserved(this: Link<Self>);
}

/// The low half counts handles, the high half links.
const LINK: u64 = 1 << 32;
const HANDLES: u64 = LINK - 1;

/// The counts come first. A caller that makes ops of a value counts it up, and readers look at the
/// value on another core: a value that is worth it keeps the fields that they read out of the first
/// line.
#[repr(C)]
pub(crate) struct Inner<T> {
    counts: AtomicU64,
    value: T,
}

impl<T> Inner<T> {
    /// Loom follows what a `Box` allocates; blocks would outlive a schedule of shuttle's.
    const IN_BLOCK: bool = cfg!(not(any(futensor_loom, futensor_shuttle)))
        && free_lists::fits(Layout::new::<Inner<T>>());

    /// The value is made once there is room for it, so that it is written where it stays: made
    /// before, it was written on the stack word by word and copied from there by lines, which waits
    /// for all that was stored before.
    #[inline(always)]
    fn allocate(counts: u64, value: impl FnOnce() -> T) -> NonNull<Inner<T>> {
        if !Self::IN_BLOCK {
            let inner = Inner { counts: AtomicU64::new(counts), value: value() };
            return NonNull::from(Box::leak(Box::new(inner)));
        }
        let block = free_lists::take().cast::<Inner<T>>();
        // SAFETY: a block has room for it, and is ours.
        unsafe { block.write(Inner { counts: AtomicU64::new(counts), value: value() }) };
        block
    }

    /// # Safety
    /// It came from `allocate`, and no owner is left.
    #[inline]
    unsafe fn free(this: NonNull<Inner<T>>) {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::IN_BLOCK {
                this.drop_in_place();
                free_lists::give(this.cast());
            } else {
                drop(Box::from_raw(this.as_ptr()));
            }
        }
    }
}

/// An owner that observes.
pub(crate) struct Handle<T: Observed>(NonNull<Inner<T>>, PhantomData<Inner<T>>);

/// An owner that keeps the memory and observes nothing.
pub(crate) struct Link<T>(NonNull<Inner<T>>, PhantomData<Inner<T>>);

// SAFETY: owners share `T` and may drop it on any thread.
unsafe impl<T: Observed + Send + Sync> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Observed + Send + Sync> Sync for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Link<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Link<T> {}

/// A handle that is lent to one thread alone: nobody else uses it meanwhile.
pub(crate) struct Lent<'a, T: Observed>(&'a Handle<T>);

impl<T: Observed> Clone for Lent<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Observed> Copy for Lent<'_, T> {}

impl<'a, T: Observed> From<&'a mut Handle<T>> for Lent<'a, T> {
    fn from(handle: &'a mut Handle<T>) -> Self {
        Lent(handle)
    }
}

impl<'a, T: Observed> Lent<'a, T> {
    pub fn handle(self) -> &'a Handle<T> {
        self.0
    }
}

/// How many of each there are, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub handles: u32,
    pub links: u32,
}

fn counts_of<T>(inner: &Inner<T>) -> Counts {
    // Acquire: a thread that sees a count fall sees everything that the dropper did before.
    counts_from(inner.counts.load(Ordering::Acquire))
}

fn counts_from(word: u64) -> Counts {
    Counts { handles: (word & HANDLES) as u32, links: (word >> 32) as u32 }
}

impl<T: Observed> Handle<T> {
    /// A new value with one handle and, beside it, one link (for the queue).
    #[inline(always)]
    pub fn with_link(value: impl FnOnce() -> T) -> (Handle<T>, Link<T>) {
        let ptr = Inner::allocate(LINK + 1, value);
        (Handle(ptr, PhantomData), Link(ptr, PhantomData))
    }

    /// A new value with one handle.
    pub fn new(value: T) -> Handle<T> {
        Handle(Inner::allocate(1, || value), PhantomData)
    }

    /// Both counts, at one moment.
    pub fn counts(&self) -> Counts {
        counts_of(self.inner())
    }

    /// The address, as an identity.
    pub fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// A link beside this handle.
    pub fn link(&self) -> Link<T> {
        // Relaxed: the new owner is made from one that exists.
        self.inner().counts.fetch_add(LINK, Ordering::Relaxed);
        Link(self.0, PhantomData)
    }

    /// A clone by somebody who lends this handle to nobody: where it is the only owner, without a
    /// locked access.
    #[inline]
    pub fn clone_mut(&mut self) -> Handle<T> {
        let counts = &self.inner().counts;
        // Acquire: as in `counts`. An only owner stays it.
        if counts.load(Ordering::Acquire) != 1 {
            return self.clone();
        }
        counts.store(2, Ordering::Relaxed);
        Handle(self.0, PhantomData)
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: this handle is counted, so the box is alive.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Observed> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        self.inner().counts.fetch_add(1, Ordering::Relaxed);
        Handle(self.0, PhantomData)
    }
}

impl<T: Observed> Drop for Handle<T> {
    fn drop(&mut self) {
        let counts = &self.inner().counts;
        let mut now = counts.load(Ordering::Acquire);
        if now == 1 {
            // The only owner stays the only one: no locked access, of which an op has a dozen.
            counts.store(LINK, Ordering::Relaxed);
            return T::unobserved(Link(self.0, PhantomData));
        }
        loop {
            let last = now & HANDLES == 1;
            let next = if last { now - 1 + LINK } else { now - 1 };
            // Release: what this owner did comes before the drop; Acquire where it was the last
            // handle, since `unobserved` reads what others did. SeqCst: see
            // `Link::counts_in_order`.
            match counts.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) if last => return T::unobserved(Link(self.0, PhantomData)),
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }
}

impl<T> Link<T> {
    /// The counts now. Handles that are 0 stay 0, and links can then only grow through links.
    pub fn counts(&self) -> Counts {
        counts_of(self.inner())
    }

    /// The counts, in one order with all accesses that are SeqCst; the drop of the last handle is
    /// one of them.
    pub fn counts_in_order(&self) -> Counts {
        in_total_order();
        counts_from(self.inner().counts.load(Ordering::SeqCst))
    }

    /// True where this link is the only owner: nobody else can look at the value or come to.
    pub fn is_only_owner(&self) -> bool {
        self.counts() == Counts { handles: 0, links: 1 }
    }

    /// Drops a link of the same value, without a locked access.
    ///
    /// # Safety
    /// The caller has every owner of the value, of which `owners` are left, and lends none of them.
    pub unsafe fn drop_alone(self, owners: Counts) {
        let counts = owners.links as u64 * LINK + owners.handles as u64;
        self.inner().counts.store(counts, Ordering::Relaxed);
        std::mem::forget(self);
    }

    /// Forgets this link, to be dropped with another one: see [`Link::drop_deferred`].
    pub fn defer(self) {
        std::mem::forget(self);
    }

    /// Drops links to the same value that were deferred. The caller has deferred exactly so many.
    pub fn drop_deferred(&self, count: u32) {
        if count > 0 {
            // This link is left, so the value stays.
            self.inner().counts.fetch_sub(LINK * count as u64, Ordering::Release);
        }
    }

    /// The address, as an identity.
    pub fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Gives the count to the caller of [`Link::from_raw`] with this pointer.
    pub fn into_raw(self) -> *mut Inner<T> {
        let ptr = self.0.as_ptr();
        std::mem::forget(self);
        ptr
    }

    /// # Safety
    /// `raw` comes from [`Link::into_raw`], and this is its one return.
    pub unsafe fn from_raw(raw: *mut Inner<T>) -> Link<T> {
        // SAFETY: `into_raw` gave a pointer that is not null.
        Link(unsafe { NonNull::new_unchecked(raw) }, PhantomData)
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: this link is counted, so the box is alive.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Link<T> {
    fn clone(&self) -> Link<T> {
        self.inner().counts.fetch_add(LINK, Ordering::Relaxed);
        Link(self.0, PhantomData)
    }
}

impl<T> Drop for Link<T> {
    fn drop(&mut self) {
        // As above. Else what every other owner did comes before the value goes.
        let last = self.is_only_owner() || {
            let last = self.inner().counts.fetch_sub(LINK, Ordering::Release) == LINK;
            last.then(|| fence(Ordering::Acquire));
            last
        };
        if last {
            // SAFETY: no owner is left.
            unsafe { Inner::free(self.0) };
        }
    }
}

/// A count that others have given theirs back to by a `Release`, with what they did before that.
/// (`Arc` counts down so, and is read `Relaxed`.)
pub(crate) fn seen_after(count: impl FnOnce() -> usize) -> usize {
    let count = count();
    fence(Ordering::Acquire);
    count
}

/// Asks the processor to bring a value near, before it is looked at.
#[inline]
pub(crate) fn prefetch<T>(raw: *mut Inner<T>) {
    #[cfg(target_arch = "x86_64")]
    for line in (64..size_of::<Inner<T>>()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch(raw.cast::<i8>().wrapping_add(line), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = raw;
}

/// # Safety
/// `raw` is alive: an owner's count stands behind it.
pub(crate) unsafe fn peek<'a, T>(raw: *mut Inner<T>) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &(*raw).value }
}

impl<T: Observed> Deref for Handle<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}
impl<T> Deref for Link<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}
impl<T: Observed> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:?})", self.0)
    }
}
impl<T> fmt::Debug for Link<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?})", self.0)
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Watched(Arc<Mutex<Vec<&'static str>>>);
    impl Observed for Watched {
        fn unobserved(this: Link<Self>) {
            let log = this.deref().0.clone();
            log.lock().unwrap().push("unobserved");
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("freed");
        }
    }

    #[test]
    fn last_handle_reports_once_and_a_link_keeps_the_memory() {
        let log = Arc::new(Mutex::new(vec![]));
        let (handle, link) = Handle::with_link(|| Watched(log.clone()));
        let second = handle.clone();
        drop(handle);
        assert!(log.lock().unwrap().is_empty());
        drop(second);
        assert_eq!(*log.lock().unwrap(), ["unobserved"]);
        assert!(link.is_only_owner());
        drop(link);
        assert_eq!(*log.lock().unwrap(), ["unobserved", "freed"]);
    }
}

#[cfg(all(test, futensor_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::UnsafeCell;
    use loom::sync::{Arc, atomic::AtomicUsize};

    /// A value with a cell for each of two owners: loom reports accesses of which none comes before
    /// the other.
    struct Watched {
        cells: [UnsafeCell<u32>; 2],
        gone: Arc<AtomicUsize>,
        freed: Arc<AtomicUsize>,
    }

    // SAFETY: that each cell has one user at a time is what the models find out.
    unsafe impl Sync for Watched {}

    impl Watched {
        fn new() -> (Watched, Arc<AtomicUsize>, Arc<AtomicUsize>) {
            let (gone, freed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let cells = [UnsafeCell::new(0), UnsafeCell::new(0)];
            (Watched { cells, gone: gone.clone(), freed: freed.clone() }, gone, freed)
        }
        fn write(&self, cell: usize) {
            // SAFETY: as above.
            self.cells[cell].with_mut(|cell| unsafe { *cell += 1 });
        }
    }
    impl Observed for Watched {
        fn unobserved(this: Link<Self>) {
            // It looks at what those did that had handles.
            this.write(0);
            this.write(1);
            this.gone.fetch_add(1, Ordering::Relaxed);
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            self.write(0);
            self.write(1);
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn two_droppers_of_handles_and_one_of_a_link_report_once_and_free_once() {
        loom::model(|| {
            let (value, gone, freed) = Watched::new();
            let (a, link) = Handle::with_link(|| value);
            let b = a.clone();
            let t1 = loom::thread::spawn(move || drop(a));
            let t2 = loom::thread::spawn(move || drop(b));
            drop(link);
            t1.join().unwrap();
            t2.join().unwrap();
            assert_eq!((gone.load(Ordering::SeqCst), freed.load(Ordering::SeqCst)), (1, 1));
        });
    }

    #[test]
    fn the_last_handle_goes_after_what_the_others_did() {
        loom::model(|| {
            let (value, gone, _) = Watched::new();
            let a = Handle::new(value);
            let b = a.clone();
            let thread = loom::thread::spawn(move || {
                a.write(0);
                drop(a);
            });
            b.write(1);
            drop(b);
            thread.join().unwrap();
            assert_eq!(gone.load(Ordering::SeqCst), 1);
        });
    }

    /// As a poll looks whether it is alone with a node.
    #[test]
    fn who_sees_that_the_others_are_gone_sees_what_they_have_left() {
        loom::model(|| {
            let a = Handle::new(Watched::new().0);
            let b = a.clone();
            let flag = Arc::new(AtomicUsize::new(0));
            let flags = flag.clone();
            let thread = loom::thread::spawn(move || {
                flags.store(1, Ordering::Relaxed);
                drop(b);
            });
            if a.counts() == (Counts { handles: 1, links: 0 }) {
                assert_eq!(flag.load(Ordering::Relaxed), 1);
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_value_is_freed_after_what_its_owners_did() {
        loom::model(|| {
            let (value, _, freed) = Watched::new();
            let (handle, a) = Handle::with_link(|| value);
            drop(handle);
            let b = a.clone();
            let thread = loom::thread::spawn(move || {
                a.write(0);
                drop(a);
            });
            b.write(1);
            drop(b);
            thread.join().unwrap();
            assert_eq!(freed.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn the_only_owner_writes_after_what_the_others_did() {
        loom::model(|| {
            let (handle, a) = Handle::with_link(|| Watched::new().0);
            drop(handle);
            let (b, c) = (a.clone(), a.clone());
            let thread = loom::thread::spawn(move || {
                b.write(0);
                // Two at once, as runs of links to one value go.
                c.defer();
                b.drop_deferred(1);
                b.write(1);
                drop(b);
            });
            if a.is_only_owner() {
                a.write(0);
                a.write(1);
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn links_that_were_deferred_are_dropped_after_what_was_done_before() {
        loom::model(|| {
            let (handle, a) = Handle::with_link(|| Watched::new().0);
            drop(handle);
            let (b, c) = (a.clone(), a.clone());
            let thread = loom::thread::spawn(move || {
                c.write(0);
                c.defer();
                b.drop_deferred(1);
                b
            });
            if a.counts().links == 2 {
                // This one, and the one that is left over there: the third has done what it did.
                a.write(0);
            }
            drop(thread.join().unwrap());
        });
    }
}

#[cfg(all(test, futensor_loom))]
mod loom_tests_of_counts {
    use super::*;
    use crate::sync::{AtomicUsize, UnsafeCell};
    use loom::sync::Arc;

    struct Buffer {
        owners: AtomicUsize,
        element: UnsafeCell<u32>,
    }
    // SAFETY: the element is read by owners, and written by the only one.
    unsafe impl Sync for Buffer {}

    /// An `Arc` whose other owner goes, beside an owner that would write over the value that the
    /// other has read.
    #[test]
    fn the_only_owner_left_writes_after_the_others_have_read() {
        loom::model(|| {
            let shared =
                Arc::new(Buffer { owners: AtomicUsize::new(2), element: UnsafeCell::new(1) });
            let reader = shared.clone();
            let thread = loom::thread::spawn(move || {
                // SAFETY: the writer waits until this owner is gone.
                let read = reader.element.with(|x| unsafe { *x });
                reader.owners.fetch_sub(1, Ordering::Release);
                read
            });
            if seen_after(|| shared.owners.load(Ordering::Relaxed)) == 1 {
                // SAFETY: the other owner is gone; loom would see a race.
                shared.element.with_mut(|x| unsafe { *x = 2 });
            }
            assert_eq!(thread.join().unwrap(), 1);
        });
    }
}
