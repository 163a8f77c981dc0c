//! Laws 6, 8 and 10, as wakers and sources bring them: whatever a waker does, nobody waits for ever
//! because of it, and however long a source takes, it is the only one that is late.

use crate::support::{ALL, Counter, Gate, Kind, PARALLEL, block_on, copy_input, same_meta, until};
use crate::{Laws, promises};
use futensor::cuda::CudaOptions;
use futensor::custom::{CpuRun, custom_fn};
use futensor::{CpuOptions, Device, Error, TensorFuture};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, RawWaker, RawWakerVTable, Wake, Waker};

pub fn add(laws: &mut Laws) {
    promises!(laws, 6, ALL;
        a_waker_that_panics_keeps_nobody_waiting_and_the_device_lives);
    promises!(laws, 6, &[Kind::Cpu];
        a_waker_that_panics_keeps_nobody_waiting_for_room);
    promises!(laws, 8, ALL;
        a_source_that_takes_long_keeps_nothing_else_waiting
        a_source_that_takes_long_to_drop_keeps_nothing_waiting
        giving_up_many_awaits_of_one_value_costs_each_its_own);
    promises!(laws, 8, PARALLEL;
        giving_up_many_ops_of_one_value_costs_each_its_own);
    promises!(laws, 8, &[Kind::Cpu];
        what_goes_with_an_op_may_wait_for_what_the_last_step_to_read_it_lets_go_on);
    promises!(laws, 8, &[Kind::Cpu, Kind::Cuda];
        a_waker_may_wait_for_what_is_made_from_its_value
        a_waker_of_a_read_may_wait_for_another_read
        a_waker_of_who_waits_for_room_may_wait_for_what_it_asks_of_the_device);
    promises!(laws, 8, &[Kind::CpuWithoutInline, Kind::Cuda];
        a_waker_may_wait_for_what_was_asked_beside_its_value);
    promises!(laws, 8, &[Kind::CpuWithoutInline];
        a_waker_that_takes_long_keeps_no_step_waiting);
    promises!(laws, 8, ALL;
        a_waker_may_wait_for_what_it_asks_of_the_device);
    promises!(laws, 10, ALL;
        a_waker_may_own_an_await_of_the_value_that_it_waits_for
        a_waker_may_drop_an_await_of_its_value_as_it_is_cloned);
    promises!(laws, 10, &[Kind::Cpu];
        a_waker_may_own_a_wait_for_room_and_a_permit);
}

/// Does something when it is woken.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn does(f: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(f)))
}

/// Owns something, and does nothing.
fn owns<T: Send + 'static>(what: T) -> Waker {
    let what = Mutex::new(Some(what));
    does(move || drop(what.lock().unwrap().take()))
}

fn polled(future: &mut (impl Future + Unpin), waker: &Waker) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(waker)).is_ready()
}

/// An await of a value that somebody waits with.
fn pending(x: &TensorFuture, waker: &Waker) -> TensorFuture {
    let mut x = x.clone();
    assert!(!polled(&mut x, waker));
    x
}

struct Loud;
impl Drop for Loud {
    fn drop(&mut self) {
        panic!("what a waker of a test threw panics");
    }
}

fn a_waker_that_panics_keeps_nobody_waiting_and_the_device_lives(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let panics = does(|| panic!("a waker of a test panics"));
    let throws = does(|| std::panic::panic_any(Loud));
    let woken = Arc::new(AtomicUsize::new(0));
    let well = {
        let woken = woken.clone();
        does(move || {
            woken.fetch_add(1, SeqCst);
        })
    };
    let mut all = device.waitall();
    assert!(!polled(&mut all, &panics));
    let awaits = [&panics, &well, &throws, &well, &panics].map(|waker| pending(&x, waker));
    gate.open();
    until(|| woken.load(SeqCst) == 2);
    block_on(&x).unwrap();
    block_on(all).unwrap();
    drop(awaits);
    let y = device.rand([5000]) + 1.0;
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap().len(), 5000);
    block_on(device.waitall()).unwrap();
}

/// Room for nothing: whoever asks waits until all is done.
fn narrow(kind: Kind) -> (Device, Gate, TensorFuture) {
    let device = match kind {
        Kind::Cuda => Device::cuda_with(0, CudaOptions::default().queue_ops(0).permits(1))
            .expect("a simulated GPU"),
        _ => kind.device_with(|o: CpuOptions| o.queue_ops(0).permits(1)),
    };
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    (device, gate, x)
}

fn a_waker_that_panics_keeps_nobody_waiting_for_room(kind: Kind) {
    let (device, gate, x) = narrow(kind);
    let panics = does(|| panic!("a waker of a test panics"));
    let (mut first, mut second) = (device.ready(), device.admit());
    assert!(!polled(&mut first, &panics) && !polled(&mut second, &panics));
    let (ready, admit) = (device.ready(), device.admit());
    gate.open();
    block_on(ready);
    drop(block_on(second));
    drop(block_on(admit));
    block_on(first);
    block_on(&x).unwrap();
    assert_eq!(block_on((x + 1.0).to_vec::<f32>()).unwrap(), [2.0; 2]);
}

fn a_waker_may_own_an_await_of_the_value_that_it_waits_for(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let owner = || owns(pending(&x, Waker::noop()));
    // Another waker takes its place; the await goes; the value comes.
    let mut replaced = pending(&x, &owner());
    assert!(!polled(&mut replaced, Waker::noop()));
    let given_up = pending(&x, &owner());
    drop(given_up);
    let woken = pending(&x, &owner());
    gate.open();
    for x in [replaced, woken, x.clone()] {
        block_on(x).unwrap();
    }
}

/// A waker whose clone drops what it was lent.
#[allow(unsafe_code)]
fn drops_as_it_is_cloned(what: TensorFuture) -> Waker {
    type Lent = Mutex<Option<TensorFuture>>;
    // SAFETY: the data is a `Lent` that lives as long as the process, and nothing else is done with
    // it.
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            let lent = unsafe { &*data.cast::<Lent>() };
            let what = lent.lock().unwrap().take();
            drop(what);
            RawWaker::new(data, &TABLE)
        },
        |_| {},
        |_| {},
        |_| {},
    );
    let lent: &'static Lent = Box::leak(Box::new(Mutex::new(Some(what))));
    // SAFETY: as above.
    unsafe { Waker::from_raw(RawWaker::new((lent as *const Lent).cast(), &TABLE)) }
}

fn a_waker_may_drop_an_await_of_its_value_as_it_is_cloned(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let mut waiting = pending(&x, &drops_as_it_is_cloned(pending(&x, Waker::noop())));
    assert!(!polled(&mut waiting, &drops_as_it_is_cloned(pending(&x, Waker::noop()))));
    gate.open();
    block_on(waiting).unwrap();
}

fn a_waker_may_own_a_wait_for_room_and_a_permit(kind: Kind) {
    let (device, gate, x) = narrow(kind);
    // Waits for room, which wakers of such waits own.
    let waiting = || {
        let mut ready = device.ready();
        assert!(!polled(&mut ready, Waker::noop()));
        ready
    };
    let mut ready = device.ready();
    assert!(!polled(&mut ready, &owns(waiting())) && !polled(&mut ready, &owns(waiting())));
    let mut given_up = device.ready();
    assert!(!polled(&mut given_up, &owns(waiting())));
    drop(given_up);
    gate.open();
    block_on(ready);
    block_on(x).unwrap();
    // And a permit, which a waker of those that wait for one owns.
    for round in 0..3 {
        let permit = block_on(device.admit());
        let (mut next, last) = (device.admit(), device.admit());
        assert!(!polled(&mut next, &owns(permit)));
        match round {
            0 => drop(next),
            1 => {
                // The permit goes with the waker whose place this one takes, and comes to the one
                // that asks.
                assert!(polled(&mut next, Waker::noop()) || polled(&mut next, Waker::noop()));
            }
            _ => {
                let mut third = device.admit();
                assert!(!polled(&mut third, Waker::noop()));
                drop(next);
            }
        }
        drop(block_on(last));
    }
}

/// A source that stays inside its first poll, or its drop, until it may go on.
struct Slow {
    tell: Option<mpsc::Sender<()>>,
    wait: mpsc::Receiver<()>,
    in_drop: bool,
}

impl Slow {
    fn stay(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell.send(()).unwrap();
            let _ = self.wait.recv();
        }
    }
}

impl Future for Slow {
    type Output = Result<Vec<f32>, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> std::task::Poll<Self::Output> {
        if self.in_drop {
            return std::task::Poll::Pending;
        }
        // It may be asked again meanwhile: nobody waits for it.
        cx.waker().wake_by_ref();
        self.stay();
        std::task::Poll::Ready(Ok(vec![1.0]))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if self.in_drop {
            self.stay();
        }
    }
}

fn slow(device: &Device, in_drop: bool) -> (TensorFuture, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((tell, told), (go, wait)) = (mpsc::channel(), mpsc::channel());
    (device.from_future([1], Slow { tell: Some(tell), wait, in_drop }), told, go)
}

/// The device runs what it is given. Nobody polls for it.
fn goes_on(device: &Device) {
    let y = device.rand([5000]) + 1.0;
    until(|| y.is_ready());
    let (brought, told, go) = slow(device, false);
    told.recv().unwrap();
    go.send(()).unwrap();
    until(|| brought.is_ready());
}

/// The waker of a small op that the engine runs as it takes it up: meanwhile a step ends on another
/// thread, and what waits for that runs.
fn a_waker_that_takes_long_keeps_no_step_waiting(kind: Kind) {
    let device = kind.device_with(|options| options.threads(2));
    let (gate, other) = (Gate::new(), Gate::new());
    let first = gate.op(&device.rand([5000]));
    let last = &first + 1.0;
    gate.wait_entered(1);
    let busy = other.op(&device.rand([5000]));
    other.wait_entered(1);
    let (tell, seen) = mpsc::channel();
    let waits = does(move || {
        gate.open();
        until(|| last.is_ready());
        tell.send(()).unwrap();
    });
    let small = pending(&(device.from_vec(vec![1.0f32], [1]) + 1.0), &waits);
    drop(waits);
    other.open();
    seen.recv().expect("the waker saw the end of the chain");
    assert_eq!(block_on(small).unwrap().dims(), [1]);
    block_on(busy).unwrap();
}

/// Whoever copies what was read: a few elements, and as many as come in pieces.
fn a_waker_of_a_read_may_wait_for_another_read(kind: Kind) {
    let device = kind.device();
    for elements in [4, 1 << 19] {
        let x = device.rand([elements]);
        block_on(x.wait_to_read()).unwrap();
        for _ in 0..20 {
            let (tell, seen) = mpsc::channel();
            let mut read = x.to_vec::<f32>();
            let reads = does({
                let x = x.clone();
                move || tell.send(block_on((&x + 1.0).to_vec::<f32>())).unwrap()
            });
            if polled(&mut read, &reads) {
                continue;
            }
            assert_eq!(seen.recv().expect("another read's end").unwrap().len(), elements);
        }
    }
}

/// The engine finds room as a step ends, wherever it looks at that.
fn a_waker_of_who_waits_for_room_may_wait_for_what_it_asks_of_the_device(kind: Kind) {
    let (device, gate, x) = narrow(kind);
    let (tell, seen) = mpsc::channel();
    let asks = does({
        let after = &x + 1.0;
        move || {
            let y = &after + 1.0;
            until(|| y.is_ready());
            tell.send(()).unwrap();
        }
    });
    let mut ready = device.ready();
    assert!(!polled(&mut ready, &asks));
    gate.open();
    seen.recv().expect("the waker saw the end of what it asked for");
    block_on(ready);
}

/// What a step's end lets go on begins before its waiters are woken, or beside that.
fn a_waker_may_wait_for_what_is_made_from_its_value(kind: Kind) {
    let device = kind.device();
    let x = device.rand([1 << 16]);
    block_on(x.wait_to_read()).unwrap();
    let gate = Gate::new();
    gate.open();
    for _ in 0..300 {
        let mut step = x.exp();
        let after = gate.op(&step);
        let (tell, seen) = mpsc::channel();
        let waits = does(move || {
            until(|| after.is_ready());
            tell.send(()).unwrap();
        });
        if !polled(&mut step, &waits) {
            seen.recv().expect("the waker saw the end of what follows");
        }
    }
}

/// What an op has captured is dropped when the step has run that read it last, and does as it
/// likes.
fn what_goes_with_an_op_may_wait_for_what_the_last_step_to_read_it_lets_go_on(kind: Kind) {
    struct Waits(Arc<Mutex<Option<TensorFuture>>>, mpsc::Sender<()>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let after = self.0.lock().unwrap().take().expect("what follows");
            until(|| after.is_ready());
            self.1.send(()).unwrap();
        }
    }
    let device = kind.device_with(|options| options.threads(2));
    let x = device.rand([100]);
    for _ in 0..50 {
        let ((tell, seen), slot) = (mpsc::channel(), Arc::new(Mutex::new(None)));
        let (closed, open) = (Gate::new(), Gate::new());
        open.open();
        let waits = Waits(slot.clone(), tell);
        let first = custom_fn("captures", &[&x], same_meta, move |run: &mut CpuRun<'_>| {
            let _ = &waits;
            copy_input(run)
        });
        let step = closed.op(&first);
        *slot.lock().unwrap() = Some(open.op(&step));
        drop(first);
        closed.open();
        seen.recv().expect("what was captured saw the end of what follows");
    }
}

/// The engine looks at both at once, and runs the small one on the spot: who wakes for it has no
/// step in hand.
fn a_waker_may_wait_for_what_was_asked_beside_its_value(kind: Kind) {
    let device = kind.device();
    let (x, few) = (device.rand([1 << 16]), device.rand([4]));
    block_on(async { (x.wait_to_read().await, few.wait_to_read().await) }).0.unwrap();
    for _ in 0..300 {
        let (mut small, mut large) = (few.exp(), x.exp());
        let (tell, seen) = mpsc::channel();
        let waits = does({
            let large = large.clone();
            move || {
                until(|| large.is_ready());
                tell.send(()).unwrap();
            }
        });
        // Whoever polls first may find it done.
        if !polled(&mut large, Waker::noop()) && !polled(&mut small, &waits) {
            seen.recv().expect("the waker saw the other's end");
        }
    }
}

/// Whichever thread calls it, at the end of a large step or of a small one that the engine runs as
/// it takes it up: another looks at what comes in meanwhile.
fn a_waker_may_wait_for_what_it_asks_of_the_device(kind: Kind) {
    let device = kind.device();
    let x = device.rand([if kind == Kind::Cpu { 1 << 18 } else { 4 }]);
    block_on(x.wait_to_read()).unwrap();
    for _ in 0..300 {
        let (tell, seen) = mpsc::channel();
        let asks = does({
            let x = x.clone();
            move || {
                let y = &x + 1.0;
                until(|| y.is_ready());
                tell.send(()).unwrap();
            }
        });
        // Two threads compute it, and who of them wakes depends on where this one sleeps.
        let mut step = x.exp();
        if polled(&mut step, &asks) {
            continue;
        }
        seen.recv().expect("the waker saw the end of what it asked for");
        block_on(step).unwrap();
    }
}

fn a_source_that_takes_long_keeps_nothing_else_waiting(kind: Kind) {
    let device = kind.device();
    let (x, told, go) = slow(&device, false);
    let after = &x + 1.0;
    told.recv().unwrap();
    goes_on(&device);
    assert!(!x.is_ready());
    go.send(()).unwrap();
    assert_eq!(block_on(after.to_vec::<f32>()).unwrap(), [2.0]);
    block_on(device.waitall()).unwrap();
}

fn a_source_that_takes_long_to_drop_keeps_nothing_waiting(kind: Kind) {
    let device = kind.device();
    let (x, told, go) = slow(&device, true);
    let after = &x + 1.0;
    block_on(async {
        let mut wait = pin!(after.wait_to_read());
        assert!(futures::poll!(&mut wait).is_pending());
    });
    drop((x, after));
    told.recv().unwrap();
    goes_on(&device);
    drop(go);
    block_on(device.waitall()).unwrap();
}

/// In squares of their number these would take minutes.
const MANY: usize = 200_000;

fn giving_up_many_awaits_of_one_value_costs_each_its_own(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let mut awaits: Vec<TensorFuture> = (0..MANY).map(|_| pending(&x, Waker::noop())).collect();
    // From the front, from the back, and from the middle.
    let back = awaits.split_off(MANY / 2);
    drop(awaits);
    back.into_iter().rev().for_each(drop);
    gate.open();
    block_on(x).unwrap();
}

fn giving_up_many_ops_of_one_value_costs_each_its_own(kind: Kind) {
    let device = kind.device();
    let (gate, counter) = (Gate::new(), Counter::new());
    let x = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let ops: Vec<TensorFuture> = (0..MANY).map(|_| counter.op(&x)).collect();
    // The intake is in order: when this has run, all of them are in the task table.
    let last = device.rand([5000]) + 1.0;
    until(|| last.is_ready());
    drop(ops);
    until(|| device.stats().skipped as usize >= MANY);
    gate.open();
    block_on(x).unwrap();
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 0);
}
