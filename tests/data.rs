//! Batches made ahead: in order, every example once an epoch, never too far ahead, and no thread
//! stays behind. The orders of a shuffle are beside those of `tests/reference/steps.py`.

use futensor::data::{Examples, Loader};
use futensor::{Device, Error};
use futures::executor::block_on;
use futures::{FutureExt, StreamExt};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

/// The system's memory, and how much of it each thread asked for and gave back.
struct Counting;
thread_local!(static BYTES: Cell<usize> = const { Cell::new(0) });

fn count(bytes: usize) {
    // A thread that ends has no count any more.
    let _ = BYTES.try_with(|all| all.set(all.get() + bytes));
}

// Safety: the system's own, called with what it was called with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        count(layout.size());
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn every_example_comes_once_an_epoch_in_the_order_of_the_seed() {
    for workers in [1, 3] {
        let loader =
            Loader::new(103, |at, _| Ok(at.to_vec())).batch_size(10).shuffle(9).prefetch(4);
        let loader = loader.workers(workers);
        let epoch = |n: u64| -> Vec<usize> {
            let batches: Vec<_> = block_on(loader.epoch(n, &Device::cpu()).collect());
            assert_eq!(batches.len(), loader.batches());
            batches.into_iter().flat_map(|b| b.unwrap()).collect()
        };
        let (first, second) = (epoch(0), epoch(1));
        assert_eq!(first, loader.order(0));
        assert_eq!(first, epoch(0));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort();
            assert_eq!(order, (0..103).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_seed_gives_the_references_order() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/steps.safetensors");
    let all = block_on(futensor::safetensors::load(path, &Device::cpu()).all()).unwrap();
    let mut seen = 0;
    for (name, want) in &all {
        let Some(key) = name.strip_prefix("order/") else { continue };
        let key: Vec<u64> = key.split('/').map(|n| n.parse().unwrap()).collect();
        let loader =
            Loader::new(key[0] as usize, |at, _| Ok(at.to_vec())).shuffle(key[1]).batch_size(4);
        let want: Vec<usize> =
            block_on(want.to_vec::<i64>()).unwrap().into_iter().map(|i| i as usize).collect();
        assert_eq!(loader.order(key[2]), want, "{name}");
        let batches: Vec<_> = block_on(loader.epoch(key[2], &Device::cpu()).collect());
        let got: Vec<usize> = batches.into_iter().flat_map(|batch| batch.unwrap()).collect();
        assert_eq!(got, want, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 4);
}

/// What the caller of `epoch` does is the same for any number of examples and of threads: the order
/// of two million takes 16 MB, of which it never sees anything, neither at the beginning nor at the
/// end.
#[test]
fn whoever_begins_an_epoch_neither_shuffles_nor_frees_the_order() {
    for (n, workers) in [(1000, 1), (2_000_000, 1), (2_000_000, 40)] {
        let loader =
            Loader::new(n, |at, _| Ok(at[0])).shuffle(3).workers(workers).prefetch(workers);
        let before = BYTES.get();
        let mut batches = loader.epoch(0, &Device::cpu());
        assert!(BYTES.get() - before < 16 << 10, "{n} examples: {} bytes", BYTES.get() - before);
        let first = block_on(batches.next()).unwrap().unwrap();
        assert_eq!(first, loader.order(0)[0]);
        let before = BYTES.get();
        drop(batches);
        assert!(BYTES.get() - before < 16 << 10, "{n} examples: {} bytes", BYTES.get() - before);
    }
}

#[test]
fn a_stream_that_is_dropped_while_it_shuffles_ends_its_threads() {
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let loader = Loader::new(1_000_000, move |at, _| {
        let _ = &ends;
        Ok(at[0])
    });
    drop(loader.shuffle(1).workers(3).prefetch(3).epoch(0, &Device::cpu()));
    assert!(ended.recv().is_err());
}

/// Every option together, beside what they say: the examples in order, cut into batches, each into
/// parts.
#[test]
fn batches_are_what_the_options_say() {
    for (n, size, of) in
        [(0, 3, 1), (1, 3, 1), (9, 3, 3), (10, 3, 3), (11, 4, 2), (12, 5, 3), (7, 9, 2), (7, 9, 8)]
    {
        for (part, last, seed) in
            (0..of).flat_map(|p| [(p, true, None), (p, false, None), (p, false, Some(4))])
        {
            let loader = Loader::new(n, |at, _| Ok(at.to_vec())).batch_size(size).part(part, of);
            let loader = loader.drop_last(last).workers(2).prefetch(3);
            let loader = if let Some(seed) = seed { loader.shuffle(seed) } else { loader };
            let mut want = Vec::new();
            for batch in loader.order(5).chunks(size) {
                if batch.len() < of || last && batch.len() < size {
                    continue;
                }
                // As equal as can be, and all of it: each part ends where the next one begins.
                let cut = |part: usize| batch.len() * part / of;
                want.push(batch[cut(part)..cut(part + 1)].to_vec());
            }
            let what = format!("{n} examples by {size}, part {part} of {of}, {last}, {seed:?}");
            assert_eq!(loader.batches(), want.len(), "{what}");
            let got: Vec<_> = block_on(loader.epoch(5, &Device::cpu()).collect());
            assert_eq!(
                got.into_iter().map(|batch| batch.unwrap()).collect::<Vec<_>>(),
                want,
                "{what}"
            );
            assert!(want.iter().all(|part| !part.is_empty()), "{what}");
        }
    }
}

#[test]
fn batches_that_have_nothing_for_each_part_are_an_error() {
    for part in 0..4 {
        let loader = Loader::new(8, |at, _| Ok(at.to_vec())).batch_size(2).part(part, 4);
        let mut batches = loader.epoch(0, &Device::cpu());
        let error = block_on(batches.next()).unwrap().unwrap_err();
        assert!(error.is_argument() && error.location().file().ends_with("data.rs"), "{error}");
        assert_eq!(error.message(), "a batch of 2 examples cannot be split into 4 parts");
        assert!(block_on(batches.next()).is_none());
    }
}

#[test]
fn as_many_batches_are_made_at_once_as_there_are_threads() {
    for workers in [1, 2, 5] {
        // Each waits for all the others: fewer threads would wait for ever.
        let all = Arc::new(Barrier::new(workers));
        let loader = Loader::new(workers * 3, move |at, _| {
            all.wait();
            Ok((at[0], std::thread::current().id()))
        });
        let made: Vec<_> =
            block_on(loader.workers(workers).prefetch(workers).epoch(0, &Device::cpu()).collect());
        let made: Vec<_> = made.into_iter().map(|batch| batch.unwrap()).collect();
        assert!(made.iter().enumerate().all(|(k, (i, _))| k == *i));
        let threads: std::collections::HashSet<_> =
            made.iter().map(|(_, thread)| *thread).collect();
        assert_eq!(threads.len(), workers);
    }
}

#[test]
fn a_shuffle_is_fair() {
    let loader = Loader::new(6, |at, _| Ok(at.to_vec())).shuffle(1);
    // Where example 0 goes, over many epochs.
    let mut counts = [0; 6];
    for epoch in 0..6000 {
        counts[loader.order(epoch).iter().position(|&i| i == 0).unwrap()] += 1;
    }
    assert!(counts.iter().all(|&n| (850..1150).contains(&n)), "{counts:?}");
}

#[tokio::test]
async fn rows_become_batches_on_the_device() {
    let device = Device::cpu();
    let pairs = Examples::new((0..20).map(|i| i as f32).collect(), [2]).unwrap();
    let labels = Examples::new((0..10i64).collect(), ()).unwrap();
    let (r, l) = (pairs.clone(), labels.clone());
    let loader =
        Loader::new(pairs.len(), move |at, device| Ok((r.pick(at, device), l.pick(at, device))));
    let loader = loader.batch_size(4);
    let mut batches = loader.epoch(0, &device);
    let mut sizes = Vec::new();
    while let Some(batch) = batches.next().await {
        let (x, y) = batch.unwrap();
        let doubled = y.to_dtype(x.dtype()).unsqueeze(1) * 2.0;
        assert!((x.narrow(1, 0, 1) - doubled).eq(0.0).all_all().item::<bool>().await.unwrap());
        sizes.push((x.dims().to_vec(), y.dims().to_vec()));
    }
    assert_eq!(sizes, [(vec![4, 2], vec![4]), (vec![4, 2], vec![4]), (vec![2, 2], vec![2])]);
    assert_eq!(loader.drop_last(true).epoch(0, &device).len(), 2);
    assert!(Examples::new(vec![1.0f32; 3], [2]).unwrap_err().is_shape());
}

/// Where its first element would be is a number that overflows, to 0.
#[test]
#[should_panic(expected = "there is no example 9223372036854775808 among 10")]
fn an_example_beyond_all_is_not_the_first_one() {
    Examples::new(vec![0i64; 20], [2]).unwrap().example(1 << 63);
}

/// How many batches have been asked for, and a way to wait for that.
#[derive(Default)]
struct Made(Mutex<usize>, Condvar);

#[test]
fn batches_are_made_ahead_but_never_too_far() {
    let made = Arc::new(Made::default());
    let own = made.clone();
    let loader = Loader::new(100, move |at, _| {
        *own.0.lock().unwrap() += 1;
        own.1.notify_all();
        Ok(at[0])
    });
    let mut batches = loader.prefetch(3).epoch(0, &Device::cpu());
    // Nobody has asked, and three are there.
    drop(made.1.wait_while(made.0.lock().unwrap(), |n| *n < 3).unwrap());
    for i in 0..20 {
        assert_eq!(block_on(batches.next()).unwrap().unwrap(), i);
        assert!(*made.0.lock().unwrap() <= i + 1 + 3);
    }
}

#[test]
fn a_dropped_stream_ends_its_threads_and_drops_its_batches() {
    let alive = Arc::new(AtomicUsize::new(0));
    struct Batch(Arc<AtomicUsize>);
    impl Drop for Batch {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    // The closure goes when the last thread and the loader are gone: then the channel ends.
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let own = alive.clone();
    let loader = Loader::new(1000, move |_, _| {
        let _ = &ends;
        own.fetch_add(1, Ordering::SeqCst);
        Ok(Batch(own.clone()))
    });
    let mut batches = loader.prefetch(5).workers(2).epoch(0, &Device::cpu());
    drop(block_on(batches.next()));
    drop(batches);
    assert!(ended.recv().is_err());
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn an_error_or_a_panic_in_a_batch_is_the_streams_last_item() {
    for panics in [false, true] {
        let loader = Loader::new(10, move |at, _| match at[0] {
            4 if panics => panic!("no example {}", at[0]),
            4 => Err(Error::custom("decode", "no example 4")),
            i => Ok(i),
        });
        let items: Vec<_> =
            block_on(loader.workers(2).prefetch(3).epoch(0, &Device::cpu()).collect());
        assert_eq!(items.len(), 5);
        assert!(items[..4].iter().enumerate().all(|(i, item)| *item.as_ref().unwrap() == i));
        assert!(items[4].as_ref().unwrap_err().to_string().contains("no example 4"));
    }
}

thread_local!(static LAST: Cell<Option<Tells>> = const { Cell::new(None) });

/// Tells that its thread has ended.
struct Tells(std::sync::mpsc::Sender<()>);
impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn no_batch_is_begun_after_one_that_failed() {
    let (tell, told) = std::sync::mpsc::channel();
    let (tell, told, begun) =
        (Mutex::new(tell), Mutex::new(told), Arc::new(Mutex::new(Vec::new())));
    let own = begun.clone();
    let loader = Loader::new(9, move |at, _| {
        own.lock().unwrap().push(at[0]);
        match at[0] {
            // Ends when the thread of the second batch has.
            0 => told.lock().unwrap().recv().map_err(|_| Error::custom("told", "nobody tells")),
            _ => {
                LAST.set(Some(Tells(tell.lock().unwrap().clone())));
                Err(Error::custom("decode", "no example"))
            }
        }
    });
    let items: Vec<_> = block_on(loader.workers(2).prefetch(4).epoch(0, &Device::cpu()).collect());
    assert!(items.len() == 2 && items[0].is_ok() && items[1].is_err());
    let mut begun = begun.lock().unwrap().clone();
    begun.sort();
    assert_eq!(begun, [0, 1]);
}

#[test]
fn an_await_that_is_dropped_loses_no_batch() {
    let gate = Arc::new(Made::default());
    let own = gate.clone();
    let loader = Loader::new(3, move |at, _| {
        drop(own.1.wait_while(own.0.lock().unwrap(), |n| *n <= at[0]).unwrap());
        Ok(at[0])
    });
    let mut batches = loader.epoch(0, &Device::cpu());
    for i in 0..3 {
        assert!(batches.next().now_or_never().is_none());
        *gate.0.lock().unwrap() = i + 1;
        gate.1.notify_all();
        assert_eq!(block_on(batches.next()).unwrap().unwrap(), i);
    }
    assert!(block_on(batches.next()).is_none() && batches.is_empty());
}

#[test]
fn an_empty_data_set_has_no_batches() {
    let mut batches = Loader::new(0, |at, _| Ok(at.len())).epoch(0, &Device::cpu());
    assert!(block_on(batches.next()).is_none());
}

#[test]
fn a_number_without_end_is_no_limit() {
    let loader = Loader::new(10, |at, _| Ok(at[0])).prefetch(usize::MAX);
    let all: Vec<_> = block_on(loader.epoch(0, &Device::cpu()).collect());
    assert_eq!(
        all.into_iter().map(|batch| batch.unwrap()).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
    // A part beyond the last is the last.
    let loader = Loader::new(6, |at, _| Ok(at.to_vec())).batch_size(usize::MAX).part(usize::MAX, 6);
    let all: Vec<_> = block_on(loader.epoch(0, &Device::cpu()).collect());
    assert_eq!(all.into_iter().map(|batch| batch.unwrap()).collect::<Vec<_>>(), [[5]]);
    // Examples in order are counted as they come.
    let mut batches =
        Loader::new(usize::MAX, |at, _| Ok(at.to_vec())).batch_size(3).epoch(0, &Device::cpu());
    assert_eq!(block_on(batches.next()).unwrap().unwrap(), [0, 1, 2]);
}

#[test]
fn a_data_set_whose_numbers_no_memory_holds_is_an_error_of_the_stream() {
    // Of all examples, where they are shuffled; else of those of a batch.
    let loader = Loader::new(usize::MAX, |at, _| Ok(at[0])).workers(2);
    for loader in [loader.clone().shuffle(1), loader.batch_size(usize::MAX)] {
        let mut batches = loader.epoch(0, &Device::cpu());
        let error = block_on(batches.next()).unwrap().unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("tests/data.rs"), "{error}");
        assert!(block_on(batches.next()).is_none());
    }
}
