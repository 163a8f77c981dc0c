//! Who looks on while somebody awaits: the scopes of
//! [`deny_barriers`](crate::barrier::deny_barriers), the tables of
//! [`Barriers`](crate::barrier::Barriers), recordings, and `tracing`.
//!
//! Every await of a value passes here once it is polled and once it ends, if anybody looks on; else
//! that costs it one relaxed load. Where an await stands is the caller's line: of the `.await`
//! itself where a value is awaited, of the call that made the future where that is a read or a
//! `waitall`. A value that is polled by another library's code (`join!`, a stream) has the line of
//! its op. The engine's own waits (copies between devices, loading) pass elsewhere and do not
//! count. Knows nothing of executors: tasks are told apart by their wakers.

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
    /// How many look on: scopes, tables and recordings that are alive.
    static WATCHERS: AtomicUsize = AtomicUsize::new(0);
}

/// True while anybody looks on.
#[inline]
pub(crate) fn is_on() -> bool {
    WATCHERS.load(Relaxed) != 0 || events::barriers_are_seen()
}

/// One who looks on.
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

/// An await, as [`tell_barriers`](crate::barrier::tell_barriers) tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Barrier {
    /// What was awaited: `await`, `wait_to_read`, `to_vec`, `item`, `waitall`...
    pub what: &'static str,
    /// Where.
    pub site: &'static Location<'static>,
}

/// What a scope does about awaits.
#[derive(Clone)]
pub(crate) enum Manner {
    Deny,
    Allow,
    Tell(Arc<dyn Fn(Barrier) + Send + Sync>),
}

/// What holds inside a task's scope; what is `None` is as it is outside.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    pub manner: Option<Manner>,
    pub name: Option<Arc<str>>,
}

thread_local! {
    /// The scope of the task that this thread polls just now. Set and taken back at each poll.
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope { manner: None, name: None }) };
}

/// A scope while its task is polled.
pub(crate) struct Inside(Scope);

impl Scope {
    /// Puts the scope around what this thread does until the result is dropped.
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

/// The error of an await that its scope denies; where the scope only wants to know, it is told at
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

/// What one line of the program has waited for. Awaits that are given up are not counted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BarrierSite {
    /// What is awaited there: `await`, `wait_to_read`, `to_vec`, `item`, `waitall`...
    pub what: &'static str,
    /// File, line and column.
    pub site: &'static Location<'static>,
    /// The device.
    pub device: &'static str,
    /// Awaits that have ended.
    pub count: u64,
    /// Of those, how many had to wait: the value was not there at the first poll, nor computed by
    /// it.
    pub waited: u64,
    /// Time from their first poll to their end, added up.
    pub total: Duration,
    /// The longest.
    pub worst: Duration,
    /// Ops that were queued or running at the first poll, the awaited one included: on the average.
    pub queued_mean: f64,
    /// The same at most.
    pub queued_max: usize,
    /// How often the device had nothing left to do when the wait ended: it idles until this task,
    /// or another, queues more.
    pub ran_dry: u64,
}

/// What one site has seen.
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

/// Sites of one report, by place, kind and device.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Only this device's, by the address of its port.
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

    /// The sites that were seen, the longest waits first.
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

/// An await that has come to its end.
struct Ended<'a> {
    port: &'static Port,
    node: Option<&'a Node>,
    what: &'static str,
    site: At,
    queued: usize,
    /// Since when, and how long, where it had to wait.
    waited: Option<(Instant, Duration)>,
    task: usize,
}

impl Ended<'_> {
    fn tell(&self) {
        // Who waits is woken before the engine has taken the step out of its task table: what is in
        // between counts as done. In this order: a step is taken off the queue first, and then off
        // what is closing.
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

/// The wait for a device that has nothing to wait for: refused like any other, and noted.
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
    /// An await of this value by a user: ends once the value is there or has failed, or with the
    /// error of a scope that denies it. The value's own error is not looked at.
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

    /// Pending, unless this thread runs a kernel: it would wait for what it may itself be to run.
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
        let text =
            "a barrier inside a kernel: the device that runs it may be the one that is waited for";
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
        // How deep the queue was when the wait began, whether or not its end comes at once.
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

/// True for a line of the standard library, of another crate, or of this one: who polled is not the
/// user.
pub(crate) fn is_foreign(site: At) -> bool {
    let file = site.file();
    file.starts_with("/rustc/")
        || file.contains("/registry/src/")
        || file.contains("\\registry\\src\\")
        || file.contains("/git/checkouts/")
        || file == super::future::FILE
}
