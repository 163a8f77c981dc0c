//! Laws 6 and 8 where users bring values: whatever they captured, and whatever they panic with, may
//! panic or wait as it goes, and the engine asks nothing of an op but to run.

use crate::foreign::{failure, is_well};
use crate::support::{ALL, Gate, Kind, Rng, block_on, copy_input, copy_on_gpu, same_meta, until};
use crate::{Laws, promises};
use futensor::cuda::CudaRun;
use futensor::custom::{CpuRun, Meta, Needs, Operation, Refusal, custom, custom_fn};
use futensor::{Device, Error, TensorFuture};
use std::panic::panic_any;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, mpsc};

/// Devices that go on while one of their threads waits.
const BUSY: &[Kind] = &[Kind::Cpu, Kind::CpuWithoutInline, Kind::CpuImpatient, Kind::Cuda];

pub fn add(laws: &mut Laws) {
    promises!(laws, 6, ALL;
        what_an_op_captured_may_panic_as_it_goes
        what_a_source_captured_may_panic_as_it_goes
        a_payload_may_panic_as_it_goes
        the_engine_asks_a_users_op_nothing_but_to_run);
    promises!(laws, 8, BUSY;
        what_was_captured_may_wait_for_the_device_as_it_goes);
}

/// Panics as it is dropped, with a payload that does as well, and says so.
struct Sore(Arc<AtomicUsize>, u32);

impl Sore {
    fn new(gone: &Arc<AtomicUsize>) -> Sore {
        Sore(gone.clone(), 2)
    }
}

impl Drop for Sore {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        if self.1 > 0 {
            panic_any(Sore(self.0.clone(), self.1 - 1));
        }
    }
}

#[track_caller]
fn sore_op(x: &TensorFuture, sore: Sore) -> TensorFuture {
    crate::support::identity("sore", x, move || {
        let _here = &sore;
        Ok(())
    })
}

fn what_an_op_captured_may_panic_as_it_goes(kind: Kind) {
    let device = kind.device();
    let gone = Arc::new(AtomicUsize::new(0));
    let sore = || Sore::new(&gone);
    let all = |n: usize| until(|| gone.load(SeqCst) >= 2 * n);
    for n in [2, 5000] {
        let x = device.ones([n]) + 1.0;
        gone.store(0, SeqCst);
        // It ran, and goes with its handle; or it ran for nobody; or it never ran.
        let y = sore_op(&x, sore());
        assert_eq!(block_on((&y + 1.0).sum_all().item::<f32>()).unwrap(), 3.0 * n as f32);
        drop(y);
        all(1);
        sore_op(&x, sore()).detach();
        block_on(device.waitall()).unwrap();
        all(2);
        let busy = kind.occupy(&device);
        let chain = sore_op(&(sore_op(&x, sore()) + 1.0), sore());
        drop(chain);
        busy.release();
        all(4);
        // One that was refused was never queued.
        drop(custom_fn(
            "sore",
            &[&x],
            {
                let sore = sore();
                move |_| {
                    let _here = &sore;
                    Err(Refusal::shape("no"))
                }
            },
            |_| Ok(()),
        ));
        all(5);
        // Refused with an operand that failed, or with none.
        let failed = device.ones([2]) + device.ones([3]);
        drop(sore_op(&failed, sore()));
        all(6);
        is_well(&device);
    }
    // A million links are freed in a loop, which goes on.
    let x = device.ones([2]);
    gone.store(0, SeqCst);
    let busy = kind.occupy(&device);
    let mut y = x.clone();
    for _ in 0..200 {
        y = sore_op(&y, sore()) + 1.0;
    }
    drop(y);
    busy.release();
    all(200);
    is_well(&device);
}

fn what_a_source_captured_may_panic_as_it_goes(kind: Kind) {
    let device = kind.device();
    let gone = Arc::new(AtomicUsize::new(0));
    let sore = || Sore::new(&gone);
    /// A future that is there at once, and keeps what it has until it is dropped.
    struct Brings(#[allow(dead_code)] Sore, bool);
    impl std::future::Future for Brings {
        type Output = Result<Vec<f32>, Error>;
        fn poll(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Self::Output> {
            if self.1 { std::task::Poll::Ready(Ok(vec![1.0; 3])) } else { std::task::Poll::Pending }
        }
    }
    // What is there may come, or fail with words; the device goes on.
    let there = device.from_future([3], Brings(sore(), true));
    match block_on(there.to_vec::<f32>()) {
        Ok(values) => assert_eq!(values, [1.0; 3]),
        Err(error) => assert!(error.is_source(), "{error}"),
    }
    drop(there);
    // Given up before it came, in the task table or not yet.
    let pending = device.from_future([3], Brings(sore(), false));
    let after = &pending + 1.0;
    block_on(device.ones([2]) + 1.0).unwrap();
    drop((pending, after));
    let busy = kind.occupy(&device);
    drop(device.from_future([3], Brings(sore(), false)));
    busy.release();
    until(|| gone.load(SeqCst) >= 6);
    is_well(&device);
}

fn a_payload_may_panic_as_it_goes(kind: Kind) {
    let device = kind.device();
    let gone = Arc::new(AtomicUsize::new(0));
    for n in [2, 5000] {
        let x = device.ones([n]) + 1.0;
        let payload = gone.clone();
        let y = crate::support::identity("explode", &x, move || panic_any(Sore::new(&payload)));
        let error = failure(y);
        assert!(error.is_kernel() && error.message().contains("panicked"), "{error}");
        let payload = gone.clone();
        let source = device.from_future([1], async move {
            panic_any(Sore::new(&payload)) as Result<Vec<f32>, Error>
        });
        assert!(failure(source).is_source());
        let payload = gone.clone();
        let ruled = custom_fn("odd", &[&x], move |_| panic_any(Sore::new(&payload)), |_| Ok(()));
        assert!(ruled.error().unwrap().is_kernel());
        is_well(&device);
    }
    if kind != Kind::Cuda {
        // On whatever thread a part runs: of two panics one is not told, and goes as well.
        let x = device.ones([5000]) + 1.0;
        for _ in 0..50 {
            let payload = gone.clone();
            let y = custom_fn("parts", &[&x], same_meta, move |run| {
                run.parallel().run(8, &|_| {
                    std::thread::yield_now();
                    panic_any(Sore::new(&payload))
                });
                Ok(())
            });
            assert!(failure(y).is_kernel());
        }
        is_well(&device);
    }
}

/// Its methods may be called until `frozen`; after that, only to run.
struct Asked(Arc<AtomicBool>);

impl Asked {
    fn say(&self) {
        assert!(!self.0.load(SeqCst), "the engine asks a user's op");
    }
}

impl Operation for Asked {
    fn name(&self) -> &str {
        self.say();
        "asked"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        self.say();
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        copy_input(run)
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        copy_on_gpu(run)
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        self.say();
        50_000
    }
    fn takes_epilogue(&self) -> bool {
        self.say();
        true
    }
    fn reuses(&self) -> Option<usize> {
        self.say();
        None
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        self.say();
        Needs::ALL
    }
}

fn the_engine_asks_a_users_op_nothing_but_to_run(kind: Kind) {
    let device = kind.device();
    let frozen = Arc::new(AtomicBool::new(false));
    let region = device.region({
        let frozen = frozen.clone();
        move |x: TensorFuture| custom(Asked(frozen.clone()), &[&(x * 2.0)]) + 1.0
    });
    let x = device.ones([3000]) + 1.0;
    assert_eq!(block_on(region.call(x.clone()).sum_all().item::<f32>()).unwrap(), 15_000.0);
    let mut rng = Rng(3);
    for round in 0..20 {
        frozen.store(false, SeqCst);
        let recording = (round % 2 == 0).then(|| device.record());
        let gate = Gate::new();
        let first = gate.op(&x);
        let mut values: Vec<TensorFuture> = vec![first];
        for _ in 0..10 {
            let y = custom(Asked(frozen.clone()), &[&values[rng.below(values.len())]]);
            values.push(if rng.below(2) == 0 { y + 1.0 } else { y });
        }
        frozen.store(true, SeqCst);
        gate.open();
        let sums: Vec<TensorFuture> = values.iter().map(|v| v.sum_all()).collect();
        for sum in &sums {
            block_on(sum.item::<f32>()).unwrap();
        }
        block_on(region.call(x.clone())).unwrap();
        drop(recording);
        drop((values, sums));
        block_on(device.waitall()).unwrap();
    }
}

/// Waits for a value of the device, computed by another thread of it, as it is dropped.
struct Waits(Device, mpsc::Sender<f32>);

impl Drop for Waits {
    fn drop(&mut self) {
        let x = (self.0.rand([5000]) * 0.0 + 1.0).cumsum(0).i(4999);
        let _ = self.1.send(block_on(x.item::<f32>()).unwrap());
    }
}

fn what_was_captured_may_wait_for_the_device_as_it_goes(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    let waits = || Waits(device.clone(), tell.clone());
    let x = device.ones([5000]) + 1.0;
    block_on(&x).unwrap();
    let op = |x: &TensorFuture, it: Waits| {
        crate::support::identity("waits", x, move || {
            let _here = (&it.0, it.1.clone());
            Ok(())
        })
    };
    for _ in 0..20 {
        // Skipped as it comes in; taken out of the task table; after it ran.
        let busy = kind.occupy(&device);
        drop(op(&x, waits()) + 1.0);
        busy.release();
        assert_eq!(told.recv().unwrap(), 5000.0);
        // A gate keeps a GPU's thread itself, so nothing is in its task table meanwhile.
        if kind != Kind::Cuda {
            let gate = Gate::new();
            let held = gate.op(&x);
            let booked = op(&held, waits());
            gate.wait_entered(1);
            block_on(&x + 2.0).unwrap();
            drop((booked, held));
            gate.open();
            assert_eq!(told.recv().unwrap(), 5000.0);
        }
        op(&x, waits()).detach();
        assert_eq!(told.recv().unwrap(), 5000.0);
        let pending = waits();
        let source = device.from_future([1], async move {
            let _here = pending;
            std::future::pending::<Result<Vec<f32>, Error>>().await
        });
        block_on(&x + 3.0).unwrap();
        drop(source);
        assert_eq!(told.recv().unwrap(), 5000.0);
    }
}
