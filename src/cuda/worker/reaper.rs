//! A lane's reaper: it waits for the lane's events, one after the other, and publishes finished
//! submissions. Wakers are a user's, and may wait for later work on this lane: while the reaper
//! calls them another reaper has its post, if there is something to wait for.
//!
//! A reaper spins for a moment where somebody waits and there is a core to spare, then sleeps in
//! the driver on an event made for that. Every answer but "reached" and "not yet" ends the device,
//! and so does a panic of the reaper. It never launches anything.

use super::Shared;
use crate::cuda::device::describe;
use crate::guard::{DeferredDrops, DeferredWakes, caught};
use crate::process_end::inside;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::thread::JoinHandle;
use std::time::Instant;

/// Sees to it that somebody waits for a lane's events.
pub(super) fn call(shared: &Arc<Shared>, lane: usize) {
    if shared.lanes[lane].call_reaper(|| start(shared, lane)).is_err() {
        shared.lose("a thread that waits for it could not be started");
    }
}

fn start(shared: &Arc<Shared>, lane: usize) -> std::io::Result<JoinHandle<()>> {
    let name = format!("futensor-{}-reaper-{lane}", shared.port.profile.name);
    let shared = shared.clone();
    let life = move || {
        // Nobody else would wake the tasks that await a value on this lane.
        if let Err(words) = caught(|| live(&shared, lane)) {
            shared.lose(format_args!("a thread that waits for it panicked: {words}"));
        }
    };
    std::thread::Builder::new().name(name).spawn(life)
}

fn live(shared: &Arc<Shared>, number: usize) {
    let lane = &shared.lanes[number];
    if let Some(open) = shared.heap.context() {
        let _inside = inside();
        open.make_current();
    }
    let mut has_post = false;
    while let Some((at, event)) = lane.next_event(has_post, || shared.over.load(SeqCst)) {
        has_post = true;
        let spins = !shared.settings.spin.is_zero() && lane.is_awaited(at);
        let from = Instant::now();
        let reached = loop {
            let asked = {
                let _inside = inside();
                event.is_reached()
            };
            match asked {
                Ok(true) => break Ok(()),
                Err(fault) => break Err(fault),
                Ok(false) if spins && from.elapsed() < shared.settings.spin => {
                    std::hint::spin_loop()
                }
                Ok(false) => break event.sleep(),
            }
        };
        if shared.over.load(SeqCst) {
            break;
        }
        if let Err(fault) = reached {
            shared.lose(describe(fault));
            break;
        }
        shared.reached[number].store(at, Release);
        shared.events.give_back(event);
        let mut through = Vec::new();
        {
            let mut in_flight = lane.in_flight();
            while in_flight.submissions.front().is_some_and(|f| f.at <= at) {
                through.extend(in_flight.submissions.pop_front());
            }
            in_flight.moved = Some(Instant::now());
        }
        // In this order: a drop may wait for a task that is woken.
        let (later, woken) = (DeferredDrops::begin(), DeferredWakes::begin());
        for submission in through {
            shared.publish(number, submission);
        }
        shared.look_again();
        if later.has_some() || woken.has_some() {
            lane.leave_post();
            has_post = false;
            call(shared, number);
        }
        drop((woken, later));
    }
}
