//! Laws 6 and 8 where somebody waits on a thread that others count on: in a kernel, in a waker, in
//! a source, in a thread of a region's closure; and limits that count what has ended no more.

use crate::support::{ALL, Gate, Kind, PARALLEL, block_on, identity, until};
use crate::{Laws, promises};
use futensor::cuda::CudaOptions;
use futensor::custom::{CpuRun, Meta, Refusal, custom_fn};
use futensor::{CpuOptions, Device, TensorFuture};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub fn add(laws: &mut Laws) {
    promises!(laws, 6, ALL;
        a_device_that_was_idle_for_longer_than_its_watchdog_allows_lives);
    promises!(laws, 8, ALL;
        a_kernel_that_blocks_on_its_device_fails_and_the_device_lives
        an_await_in_a_kernel_ends_with_an_error
        a_waker_that_takes_long_while_all_others_are_in_steps_keeps_nothing_waiting
        a_source_that_takes_long_keeps_no_other_source_waiting
        a_source_that_has_come_counts_no_more);
    promises!(laws, 8, PARALLEL;
        a_part_of_a_kernel_may_not_block_either);
    promises!(laws, 6, &[Kind::Cpu];
        a_forked_process_is_told_that_the_device_is_its_parents);
}

fn never(device: &Device) -> TensorFuture {
    device.from_future([2], std::future::pending::<Result<Vec<f32>, String>>())
}

fn a_kernel_that_blocks_on_its_device_fails_and_the_device_lives(kind: Kind) {
    let device = kind.device();
    let x = block_on(device.ones([2]) + 1.0).unwrap();
    let awaited = never(&device);
    let waits = [awaited.wait_to_read(), x.wait_to_read()].map(|wait| Mutex::new(Some(wait)));
    for wait in waits {
        let blocks = identity("blocks", &x, move || {
            let wait = wait.lock().unwrap().take().expect("it runs once");
            futensor::block_on(wait).map_err(|error| Refusal::kernel(error.to_string()))
        });
        let error = block_on(&blocks).unwrap_err();
        assert!(error.is_kernel() && error.op() == "blocks", "{error}");
        assert!(error.message().contains("futensor::block_on inside a kernel"), "{error}");
    }
    assert_eq!(block_on((&x * 2.0).to_vec::<f32>()).unwrap(), [4.0; 2]);
    drop(awaited);
    block_on(device.waitall()).unwrap();
}

/// As another executor's `block_on` would have it.
fn an_await_in_a_kernel_ends_with_an_error(kind: Kind) {
    let device = kind.device();
    let x = block_on(device.ones([2]) + 1.0).unwrap();
    let awaited = never(&device);
    type Given = Box<dyn Fn(&Device, &TensorFuture) -> futensor::Result<()> + Send + Sync>;
    let waits: [(&str, Given); 3] = [
        ("wait_to_read", Box::new(|_, y| block_on(y.wait_to_read()))),
        ("to_vec", Box::new(|_, y| block_on(y.to_vec::<f32>()).map(drop))),
        ("waitall", Box::new(|device, _| block_on(device.waitall()))),
    ];
    for (name, wait) in waits {
        let (told, own, y) = (Arc::new(Mutex::new(None)), device.clone(), awaited.clone());
        let tell = told.clone();
        let fine = identity("awaits", &x, move || {
            tell.lock().unwrap().get_or_insert_with(|| wait(&own, &y).unwrap_err());
            Ok(())
        });
        assert_eq!(block_on(fine.to_vec::<f32>()).unwrap(), [2.0; 2]);
        let error = told.lock().unwrap().take().expect("it ran");
        assert!(error.is_barrier() && error.op() == name, "{error}");
        assert!(error.message().contains("inside a kernel"), "{error}");
    }
    drop(awaited);
    block_on(device.waitall()).unwrap();
}

fn a_part_of_a_kernel_may_not_block_either(kind: Kind) {
    let device = kind.device();
    let x = block_on(device.rand([1 << 16])).unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let same = |inputs: &[&Meta]| Ok(Meta::clone(inputs[0]));
    let y = custom_fn("in_parts", &[&x], same, move |run: &mut CpuRun<'_>| {
        run.parallel().run(64, &|_| {
            // Long enough for another thread to come and take some.
            until(|| true);
            let blocks = catch_unwind(AssertUnwindSafe(|| futensor::block_on(async {})));
            count.fetch_add(usize::from(blocks.is_err()), SeqCst);
        });
        let values = run.inputs()[0].to_vec::<f32>().expect("float32");
        run.output().fill_from(values);
        Ok(())
    });
    block_on(y.wait_to_read()).unwrap();
    assert_eq!(refused.load(SeqCst), 64);
    // The thread of a test's own may.
    futensor::block_on(async {});
}

/// Waits as it is woken, until it is told to go on.
struct Slow(Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>);

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        let both = self.0.lock().unwrap();
        both.0.send(()).expect("the trial is there");
        both.1.recv().expect("the trial is there");
    }
}

fn a_waker_that_takes_long_while_all_others_are_in_steps_keeps_nothing_waiting(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let held: Vec<_> = (1..kind.threads()).map(|_| gate.op(&device.ones([2]))).collect();
    gate.wait_entered(held.len());
    for _ in 0..3 {
        let ((tell, told), (go, wait)) = (mpsc::channel(), mpsc::channel());
        let door = Gate::new();
        let mut first = door.op(&device.ones([2]));
        door.wait_entered(1);
        let slow = Waker::from(Arc::new(Slow(Mutex::new((tell, wait)))));
        assert!(std::pin::Pin::new(&mut first).poll(&mut Context::from_waker(&slow)).is_pending());
        door.open();
        told.recv().expect("it is woken");
        // Nobody polls for it, and it is queued only now.
        let after = device.rand([5000]).exp().sum_all();
        until(|| after.is_ready());
        go.send(()).unwrap();
        block_on(first).unwrap();
    }
    drop(gate);
    held.into_iter().for_each(|x| drop(block_on(x).unwrap()));
}

/// Takes long over its first poll.
struct Stuck(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Future for Stuck {
    type Output = Result<Vec<f32>, String>;
    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let _ = self.0.send(());
        let _ = self.1.recv();
        Poll::Ready(Ok(vec![1.0, 2.0]))
    }
}

/// Three may take long at once.
fn a_source_that_takes_long_keeps_no_other_source_waiting(kind: Kind) {
    let device = kind.device();
    let mut stuck = Vec::new();
    for _ in 0..3 {
        let ((tell, told), (go, wait)) = (mpsc::channel(), mpsc::channel());
        stuck.push((device.from_future([2], Stuck(tell, wait)), go));
        told.recv().expect("it is polled");
        let other = device.from_future([2], async { Ok::<_, String>(vec![3.0f32, 4.0]) });
        until(|| other.is_ready());
    }
    for (x, go) in stuck {
        assert!(!x.is_ready());
        go.send(()).unwrap();
        assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [1.0, 2.0]);
    }
}

/// Neither its op nor its bytes: who waits for room comes through once the last of them is there.
fn a_source_that_has_come_counts_no_more(kind: Kind) {
    let device = match kind {
        Kind::Cuda => {
            Device::cuda_with(0, CudaOptions::default().queue_bytes(100_000).queue_ops(2))
        }
        _ => Ok(kind.device_with(|o: CpuOptions| o.queue_bytes(100_000).queue_ops(2))),
    };
    let device = device.expect("a device");
    for _ in 0..3 {
        let (send, come): (Vec<_>, Vec<_>) =
            (0..4).map(|_| futures::channel::oneshot::channel()).unzip();
        let sources: Vec<_> =
            come.into_iter().map(|come| device.from_future([1 << 14], come)).collect();
        let mut ready = device.ready();
        block_on(async { assert!(futures::poll!(&mut ready).is_pending()) });
        assert!(device.try_admit().is_none());
        for send in send {
            send.send(vec![1.0f32; 1 << 14]).expect("it is waited for");
        }
        block_on(ready);
        drop(block_on(device.admit()));
        until(|| device.stats().queued == 0);
        drop(device.try_admit().expect("nothing is queued"));
        for source in sources {
            assert_eq!(block_on(source.i(7).item::<f32>()).unwrap(), 1.0);
        }
    }
}

fn a_device_that_was_idle_for_longer_than_its_watchdog_allows_lives(kind: Kind) {
    let limit = Duration::from_millis(400);
    let device = match kind {
        // One stream, so that what rests is what goes on.
        Kind::Cuda => {
            let options = CudaOptions::default().streams(1).watchdog(Some(limit));
            Device::cuda_with(0, options).expect("a simulated GPU")
        }
        _ => kind.device_with(|o: CpuOptions| o.watchdog(Some(limit))),
    };
    let gate = Gate::new();
    let x = gate.op(&device.rand([3000]));
    gate.open();
    let y = block_on(x.exp()).unwrap();
    block_on(device.waitall()).unwrap();
    let idle = Instant::now();
    until(|| {
        std::thread::sleep(Duration::from_millis(20));
        idle.elapsed() > 3 * limit
    });
    // Long enough for the watchdog to look at the first step: it began after the rest.
    let long = device.rand([if let Kind::Cuda = kind { 1 << 21 } else { 1 << 22 }]);
    block_on(&long).expect("the device lives");
    let sum = block_on(long.narrow(0, 0, 4096).sum_all().item::<f32>()).expect("numbers");
    assert!((1024.0..3072.0).contains(&sum), "{sum}");
    let after = block_on((&y + 1.0).sum_all().item::<f32>());
    assert!(after.is_ok_and(|sum| sum > 6000.0));
}

/// Nothing in it waits for what will never come; a device that it opens itself is as any.
#[allow(unsafe_code)]
fn a_forked_process_is_told_that_the_device_is_its_parents(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = block_on(device.ones([2]) + 1.0).unwrap();
    let pending = gate.op(&x);
    gate.wait_entered(1);
    // SAFETY: the child touches no lock of a thread that is not there: those of this trial are idle
    // or in a gate.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: should it wait for ever, this ends it.
        unsafe { libc::alarm(20) };
        let held = catch_unwind(AssertUnwindSafe(|| {
            let asked = block_on(&x + 1.0).unwrap_err();
            let waited = block_on(pending.wait_to_read()).unwrap_err();
            block_on(device.ready());
            drop(block_on(device.admit()));
            let told = [asked, waited]
                .iter()
                .all(|e| e.is_device_lost() && e.message().contains("after the fork"));
            let own = kind.device();
            let sum = block_on((own.ones([100]) + 1.0).sum_all().item::<f32>());
            told && sum.is_ok_and(|sum| sum == 200.0)
        }));
        // SAFETY: without what a process does at its end, which is the parent's.
        unsafe { libc::_exit(if matches!(held, Ok(true)) { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a plain system call, with a place that it can write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's status");
    // And the parent goes on.
    gate.open();
    assert_eq!(block_on(pending.to_vec::<f32>()).unwrap(), [2.0; 2]);
}
