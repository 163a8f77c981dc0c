//! The monitor's thread: it takes the values from the loop, reads those that are complete, and
//! writes the page. This thread alone may block.

use super::options::MonitorOptions;
use super::page::{Pages, Status};
use super::seen::Seen;
use super::shared::{End, Shared, Told};
use crate::guard::caught;
use crate::tensor::device::Device;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub(super) fn start(
    shared: Arc<Shared>,
    device: &Device,
    options: MonitorOptions,
) -> std::io::Result<()> {
    let seen = Seen::new(device, options);
    let thread = std::thread::Builder::new().name("futensor-monitor".into());
    thread.spawn(move || {
        // After a panic too nobody waits for ever.
        if let Err(words) = caught(|| run(&shared, seen)) {
            let ended = Err(format!("the writing thread panicked: {words}"));
            shared.answer(|state| {
                state.opened.get_or_insert(ended.clone());
                state.finished.get_or_insert(ended);
            });
        }
    })?;
    Ok(())
}

fn run(shared: &Shared, mut seen: Seen) {
    let pages = Pages::new(&shared.path);
    let opened = pages.open(&seen);
    let failed = opened.is_err();
    shared.answer(|state| state.opened = Some(opened));
    if failed {
        return;
    }
    let (mut waiting, mut written) = (Vec::new(), Instant::now());
    let (mut end, mut is_news) = (End::NotYet, false);
    while end == End::NotYet {
        let told;
        (end, told) = take(shared, seen.every, waiting.len(), &mut seen);
        is_news |= !told.is_empty();
        waiting.extend(told);
        waiting.retain(|told| !seen.take(told));
        seen.note_dry();
        if end == End::NotYet && is_news && written.elapsed() >= seen.every {
            // A full disk may have room later. The last write reports an error.
            let _ = pages.refresh(&seen);
            (written, is_news) = (Instant::now(), !waiting.is_empty());
        }
    }
    while end == End::Finish && !waiting.is_empty() {
        waiting.retain(|told| !seen.take(told));
        (end, _) = take(shared, Duration::from_millis(1), waiting.len(), &mut seen);
    }
    seen.note_dry();
    let status = if end == End::Finish { Status::Ended } else { Status::GivenUp };
    let finished = pages.close(&seen, status);
    shared.answer(|state| state.finished = Some(finished));
}

/// Waits for a while, or for the end, or for many values; takes what the loop has told.
fn take(shared: &Shared, wait: Duration, waiting: usize, seen: &mut Seen) -> (End, Vec<Told>) {
    let mut state = shared.lock();
    state.waiting = waiting;
    if state.end == End::NotYet || waiting > 0 {
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && Shared::is_little(state.told.len())
            && (state.end == End::NotYet || waiting > 0 && state.end == End::Finish)
            && !left.is_zero()
        {
            let waited = shared.bell.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    (seen.left_out, seen.steps) = (state.left_out, state.steps);
    let told = std::mem::take(&mut state.told);
    state.waiting += told.len();
    (state.end, told)
}
