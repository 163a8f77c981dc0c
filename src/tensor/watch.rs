//! The watchers of awaits: the scopes of [`deny_barriers`](crate::barrier::deny_barriers), the
//! tables of [`Barriers`](crate::barrier::Barriers), recordings, and `tracing`.
//!
//! If there is a watcher, every await of a value reports here at its first poll and at its end;
//! without one, an await costs one relaxed load more. The site of an await is the caller's line: of
//! the `.await` itself for a value, of the call that made the future for a read or a `waitall`. A
//! value that is polled by another library's code (`join!`, a stream) has the line of its op. The
//! engine's own waits (copies between devices, loading) take another path and do not count. This
//! file knows nothing of executors: it identifies tasks by their wakers.

use super::future::{At, TensorFuture};
use crate::concurrent::completion::AWAITED;
use crate::engine::events;
use crate::engine::port::Port;
use crate::engine::record::Awaited;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::node::Node;
use crate::guard::Kernel;
use crate::sync::clock::Instant;
use crate::sync::plain::{AtomicUsize, Mutex, Ordering::Relaxed};
use crate::sync::threads::thread_local;
use crate::sync::{lock_plain as lock, statics};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

statics! {
    /// The number of watchers: live scopes, tables and recordings.
    static WATCHERS: AtomicUsize = AtomicUsize::new(0);
}

/// True while there is a watcher.
#[inline]
pub(crate) fn is_on() -> bool {
    WATCHERS.load(Relaxed) != 0 || events::barriers_are_seen()
}

/// A watcher; counted while it lives.
#[derive(Debug)]
pub(crate) struct Watcher(());

impl Watcher {
    pub fn new() -> Watcher {
        WATCHERS.fetch_add(1, Relaxed);
        Watcher(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Relaxed);
    }
}

// ---- scopes
// -------------------------------------------------------------------------------------------

/// An await, as [`tell_barriers`](crate::barrier::tell_barriers) reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Barrier {
    /// The kind of await: `await`, `wait_to_read`, `to_vec`, `item`, `waitall`...
    pub what: &'static str,
    /// The source location of the await.
    pub site: &'static Location<'static>,
}

/// How a scope treats awaits.
#[derive(Clone)]
pub(crate) enum Manner {
    Deny,
    Allow,
    Tell(Arc<dyn Fn(Barrier) + Send + Sync>),
}

/// The settings of a task's scope; `None` inherits the setting from outside.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    pub manner: Option<Manner>,
    pub name: Option<Arc<str>>,
}

thread_local! {
    /// The scope of the task that this thread is polling. Set and reset at each poll.
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope { manner: None, name: None }) };
}

/// A scope while its task is polled.
pub(crate) struct Inside(Scope);

impl Scope {
    /// Sets the scope on this thread until the result is dropped.
    pub fn enter(&self) -> Inside {
        SCOPE.with_borrow_mut(|scope| {
            let outer = scope.clone();
            if self.manner.is_some() {
                scope.manner.clone_from(&self.manner);
            }
            if self.name.is_some() {
                scope.name.clone_from(&self.name);
            }
            Inside(outer)
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        SCOPE.with_borrow_mut(|scope| *scope = std::mem::take(&mut self.0));
    }
}

/// The error of an await that its scope denies. A scope that only observes is told at
/// the `first` poll.
fn refusal(what: &'static str, site: At, first: bool) -> Option<Error> {
    match SCOPE.with_borrow(|scope| scope.manner.clone())? {
        Manner::Allow => None,
        Manner::Deny => Some(Error::new(
            ErrorKind::Barrier,
            what,
            "a barrier inside deny_barriers: it would wait here",
            site,
        )),
        Manner::Tell(tell) => {
            if first {
                tell(Barrier { what, site });
            }
            None
        }
    }
}

// ---- tables
// -------------------------------------------------------------------------------------------

/// The awaits at one line of the program. Awaits that were dropped before their end are not
/// counted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BarrierSite {
    /// The kind of await: `await`, `wait_to_read`, `to_vec`, `item`, `waitall`...
    pub what: &'static str,
    /// File, line and column.
    pub site: &'static Location<'static>,
    /// The device.
    pub device: &'static str,
    /// The number of awaits that have completed.
    pub count: u64,
    /// The number of awaits that had to wait: the value was not complete at the first poll, and the
    /// poll did not compute it.
    pub waited: u64,
    /// The total time from first poll to end.
    pub total: Duration,
    /// The longest time of one await.
    pub worst: Duration,
    /// The mean number of ops that were queued or running at the first poll, the awaited one
    /// included.
    pub queued_mean: f64,
    /// The largest number of ops that were queued or running at the first poll.
    pub queued_max: usize,
    /// How often the device had no work left when the wait ended, so that it idles until a task
    /// queues more.
    pub ran_dry: u64,
}

/// The counts of one site.
#[derive(Clone, Debug, Default)]
struct Tally {
    count: u64,
    waited: u64,
    total: Duration,
    worst: Duration,
    queued_sum: u64,
    queued_max: usize,
    ran_dry: u64,
}

/// The sites of one report, by location, kind and device.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The only device to collect, by the address of its port.
    only: Option<usize>,
    sites: Mutex<HashMap<(Location<'static>, &'static str, usize), (At, &'static str, Tally)>>,
}

statics! { static TABLES: Mutex<Vec<Weak<Table>>> = Mutex::new(Vec::new()); }

fn address(port: &Port) -> usize {
    port as *const Port as usize
}

impl Table {
    pub fn open(only: Option<&'static Port>) -> Arc<Table> {
        let table = Arc::new(Table { only: only.map(address), sites: Mutex::default() });
        let mut tables = lock(&TABLES);
        tables.retain(|t| t.strong_count() > 0);
        tables.push(Arc::downgrade(&table));
        table
    }

    fn note(&self, ended: &Ended<'_>, ran_dry: bool) {
        let device = address(ended.port);
        if self.only.is_some_and(|only| only != device) {
            return;
        }
        let mut sites = lock(&self.sites);
        let key = (*ended.site, ended.what, device);
        let (_, _, tally) = sites
            .entry(key)
            .or_insert_with(|| (ended.site, &ended.port.profile.name, Tally::default()));
        tally.count += 1;
        tally.queued_sum += ended.queued as u64;
        tally.queued_max = tally.queued_max.max(ended.queued);
        if let Some((_, waited)) = ended.waited {
            tally.waited += 1;
            tally.total += waited;
            tally.worst = tally.worst.max(waited);
            tally.ran_dry += ran_dry as u64;
        }
    }

    /// The collected sites, the longest waits first.
    pub fn sites(&self) -> Vec<BarrierSite> {
        let mut sites: Vec<_> = lock(&self.sites)
            .iter()
            .map(|((_, what, _), (site, device, t))| BarrierSite {
                what,
                site,
                device,
                count: t.count,
                waited: t.waited,
                total: t.total,
                worst: t.worst,
                queued_mean: t.queued_sum as f64 / t.count as f64,
                queued_max: t.queued_max,
                ran_dry: t.ran_dry,
            })
            .collect();
        sites.sort_by_key(|s| {
            (std::cmp::Reverse(s.total), s.site.file(), s.site.line(), s.what, s.device)
        });
        sites
    }
}

/// An await that has completed.
struct Ended<'a> {
    port: &'static Port,
    node: Option<&'a Node>,
    what: &'static str,
    site: At,
    queued: usize,
    /// Start and length of the wait, if it had to wait.
    waited: Option<(Instant, Duration)>,
    task: usize,
}

impl Ended<'_> {
    fn tell(&self) {
        // A waiter is woken before the engine removes the step from its task table: a step between
        // the two counts as done. The order of the loads matters: a step leaves the queue count
        // first, and the closing count second.
        let counters = &self.port.counters;
        let closing = counters.closing.load(Relaxed) + counters.closing_small.load(Relaxed);
        let ran_dry = self.waited.is_some() && self.port.pressure.queued().0 <= closing;
        for table in lock(&TABLES).iter().filter_map(Weak::upgrade) {
            table.note(self, ran_dry);
        }
        if let (Some(node), Some((began, _))) = (self.node, self.waited)
            && self.port.recordings.is_on()
        {
            self.port.recordings.awaited(Awaited {
                what: self.what,
                site: self.site,
                node,
                task: self.task,
                name: SCOPE.with_borrow(|scope| scope.name.clone()),
                began,
                queued: self.queued,
                ran_dry,
            });
        }
        let waited = self.waited.map(|(_, waited)| waited);
        events::barrier(
            &self.port.profile.name,
            self.what,
            self.site,
            waited,
            self.queued,
            ran_dry,
        );
    }
}

/// An await of an idle device: denied and recorded like any other.
pub(crate) fn at_once(
    port: &'static Port,
    what: &'static str,
    site: At,
    cx: &Context<'_>,
) -> Result<()> {
    if let Some(error) = refusal(what, site, true) {
        return Err(error);
    }
    let task = cx.waker().data() as usize;
    Ended { port, node: None, what, site, queued: port.pressure.queued().0, waited: None, task }
        .tell();
    Ok(())
}

impl TensorFuture {
    /// A user's await of this value: completes once the value is complete or has failed, or with
    /// the error of a scope that denies it. The value's own error is not looked at.
    #[inline]
    pub(crate) fn poll_await(
        &mut self,
        cx: &mut Context<'_>,
        what: &'static str,
        site: At,
    ) -> Poll<Result<()>> {
        if is_on() {
            return self.poll_watched(cx, what, site);
        }
        match self.poll_ended(cx, true) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => self.wait_for_it(what, site),
        }
    }

    /// Pending, unless this thread runs a kernel: the wait could be for work that this very thread
    /// has to run.
    #[cold]
    fn wait_for_it(&self, what: &'static str, site: At) -> Poll<Result<()>> {
        let is_forked = self.port().life.is_forked();
        if !Kernel::is_on() && !is_forked {
            return Poll::Pending;
        }
        let site = if is_foreign(site) { self.node.at } else { site };
        if is_forked {
            return Poll::Ready(Err(self.port().life.forked_error(what, site)));
        }
        let text = "a barrier inside a kernel: the wait may be for the device that runs the kernel";
        Poll::Ready(Err(Error::new(ErrorKind::Barrier, what, text, site)))
    }

    #[cold]
    fn poll_watched(
        &mut self,
        cx: &mut Context<'_>,
        what: &'static str,
        site: At,
    ) -> Poll<Result<()>> {
        let site = if is_foreign(site) { self.node.at } else { site };
        let since = self.waits_since();
        if let Some(error) = refusal(what, site, since.is_none()) {
            return Poll::Ready(Err(error));
        }
        let port = self.port();
        // The depth of the queue when the wait began, even if the await completes immediately.
        let queued = self.queued_then().unwrap_or_else(|| port.pressure.queued().0);
        let ended = self.poll_ended(cx, true);
        if ended.is_pending() {
            debug_assert!(since.is_none() || self.node.completion.state().has(AWAITED));
            self.note_queued(queued);
            return self.wait_for_it(what, site);
        }
        let waited = since.map(|since| (since, since.elapsed()));
        let task = cx.waker().data() as usize;
        Ended { port, node: Some(&self.node), what, site, queued, waited, task }.tell();
        Poll::Ready(Ok(()))
    }
}

/// True for a line of the standard library, of another crate, or of this one: the poll did not come
/// from the user's code.
pub(crate) fn is_foreign(site: At) -> bool {
    let file = site.file();
    file.starts_with("/rustc/")
        || file.contains("/registry/src/")
        || file.contains("\\registry\\src\\")
        || file.contains("/git/checkouts/")
        || file == super::future::FILE
}
