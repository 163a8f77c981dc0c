//! Law 4 where threads race: what nobody observes any more is let go, at whatever moment the last
//! handle goes.
//!
//! The moments are drawn from a seed, which is printed where a trial fails; what the threads make
//! of them is theirs.

use crate::support::{ALL, Kind, Rng, block_on, until};
use crate::{Laws, promises};
use futensor::{Device, TensorFuture};
use std::io::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

pub fn add(laws: &mut Laws) {
    promises!(laws, 4, ALL;
        a_chain_that_is_dropped_while_the_engine_looks_at_it_is_skipped_whole
        a_wide_graph_that_is_dropped_while_the_engine_looks_at_it_is_skipped_whole);
}

/// A source that never has anything, and says by its token that it is there.
struct Never(#[allow(dead_code)] Arc<()>);

impl Future for Never {
    type Output = Result<Vec<f32>, Error>;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

fn seed() -> u64 {
    let given = std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64))
}

/// Requests that are built on a source and dropped, one after the other on fresh devices;
/// afterwards nothing is left.
fn requests(kind: Kind, rounds: u32, request: impl Fn(&Device, TensorFuture, &mut Rng)) {
    let seed = seed();
    let mut rng = Rng(seed);
    let mut device = kind.device();
    for round in 0..rounds {
        if round % 8 == 0 {
            device = kind.device();
        }
        let token = Arc::new(());
        let source = device.from_future([2], Never(token.clone()));
        request(&device, source, &mut rng);
        // A request that stays keeps the source, and every op that is made from it.
        let begun = std::time::Instant::now();
        until(|| {
            let left = (device.stats().queued, Arc::strong_count(&token));
            assert!(
                begun.elapsed().as_secs() < 20,
                "{left:?} stay: round {round} of FUTENSOR_SEED={seed}"
            );
            left == (0, 1)
        });
        block_on(device.waitall()).unwrap();
    }
}

fn spin(rng: &mut Rng) {
    for _ in 0..rng.below(2000) {
        std::hint::spin_loop();
    }
}

fn a_chain_that_is_dropped_while_the_engine_looks_at_it_is_skipped_whole(kind: Kind) {
    requests(kind, 60, |_, x, rng| {
        let mut y = x.clone();
        for _ in 0..[10, 50, 1000][rng.below(3)] {
            y = &y + 1.0;
        }
        drop(x);
        spin(rng);
        drop(y);
    });
}

fn a_wide_graph_that_is_dropped_while_the_engine_looks_at_it_is_skipped_whole(kind: Kind) {
    requests(kind, 120, |device, x, rng| {
        let other = device.ones([2]);
        let mut row = vec![x];
        for _ in 0..300 {
            let (a, b) = (&row[rng.below(row.len())], &row[rng.below(row.len())]);
            let next = if rng.below(4) == 0 { a * &other } else { a + b };
            match rng.below(3) {
                0 if row.len() > 1 => {
                    let at = rng.below(row.len());
                    row[at] = next;
                }
                _ => row.push(next),
            }
        }
        spin(rng);
        while !row.is_empty() {
            drop(row.swap_remove(rng.below(row.len())));
        }
    });
}
