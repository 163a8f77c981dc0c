//! Laws 5 and 6 where users bring code: an op from outside sees no memory of others, and whatever
//! panics in it fails one value.

use crate::support::{ALL, Kind, block_on, copy_input, copy_on_gpu, same_meta};
use crate::{Laws, promises};
use futensor::cuda::CudaRun;
use futensor::custom::{
    Backward, CpuRun, Meta, Needs, Operation, Refusal, custom, custom_fn, custom_owned,
};
use futensor::{DType, Device, Element, Error, TensorFuture, grad};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

pub fn add(laws: &mut Laws) {
    promises!(laws, 5, ALL;
        an_op_that_leaves_elements_unwritten_fails
        a_slice_of_the_output_is_zeros_where_nothing_was_written
        an_op_in_place_has_one_view_with_the_old_elements
        a_key_value_cache_of_a_users_own_copies_nothing
        an_input_that_is_read_twice_is_not_changed_in_place);
    promises!(laws, 6, ALL;
        a_panicking_method_of_an_op_fails_its_value_and_nothing_else
        an_op_that_reuses_what_it_cannot_fails
        a_panicking_gradient_rule_fails_the_gradient);
}

/// Nothing of what was tried harmed the device.
pub fn is_well(device: &Device) {
    assert_eq!(block_on((device.ones([5000]) + 1.0).sum_all().item::<f32>()).unwrap(), 10_000.0);
    assert_eq!(block_on((device.ones([2]) + 1.0).to_vec::<f32>()).unwrap(), [2.0; 2]);
    block_on(device.waitall()).unwrap();
}

pub fn failure(x: TensorFuture) -> Error {
    block_on(x).expect_err("this value fails")
}

/// Leaves memory of these sizes behind that holds no zero, and no bool.
fn leave_dirt(device: &Device, bytes: usize) {
    for _ in 0..4 {
        let x = device.full([bytes], 199).to_dtype(DType::U8);
        block_on((x + 0).to_vec::<u8>()).unwrap();
    }
}

/// An op on the CPU whose result is `n` elements of a type.
fn making(
    x: &TensorFuture,
    meta: Meta,
    run: impl Fn(&mut CpuRun<'_>) + Send + Sync + 'static,
) -> TensorFuture {
    custom_fn(
        "making",
        &[x],
        move |_| Ok(meta.clone()),
        move |r| {
            run(r);
            Ok(())
        },
    )
}

fn an_op_that_leaves_elements_unwritten_fails(kind: Kind) {
    fn of<T: Element>(device: &Device, n: usize, one: T) {
        let x = device.ones([1]);
        let meta = Meta::new([n], T::DTYPE);
        let says = |y: TensorFuture, written: usize| {
            let error = failure(y);
            assert!(error.is_kernel(), "{error}");
            let text = format!("it wrote {written} of {n} elements of its result");
            assert_eq!((error.op(), error.message()), ("making", &*text));
        };
        says(making(&x, meta.clone(), |_| ()), 0);
        // Asking for it is not writing it.
        says(making(&x, meta.clone(), |run| assert!(run.output().numel() > 0)), 0);
        says(
            making(&x, meta.clone(), move |run| {
                assert!(!run.output().fill_from(std::iter::repeat_n(one, n - 1)));
                // A second attempt that is shorter takes nothing back.
                assert!(!run.output().fill_from([one; 0]));
            }),
            n - 1,
        );
        says(
            making(&x, meta.clone(), |run| {
                assert!(!run.output().fill_from([0.5f64; 2]));
                assert!(run.output().into_slice::<f64>().is_none());
            }),
            0,
        );
        says(
            making(&x, meta.clone(), move |run| {
                let values = (0..n).map(|i| if i == n / 2 { panic!("half way") } else { one });
                let filled = catch_unwind(AssertUnwindSafe(|| run.output().fill_from(values)));
                assert!(filled.is_err());
            }),
            n / 2,
        );
        let whole = making(&x, meta, move |run| {
            assert!(!run.output().fill_from([one]));
            assert!(run.output().fill_from(std::iter::repeat(one)));
        });
        assert_eq!(block_on(whole.to_vec::<T>()).unwrap(), vec![one; n]);
    }
    let device = kind.device();
    for n in [2, 40, 5000, 300_000] {
        leave_dirt(&device, n);
        of::<bool>(&device, n, true);
        leave_dirt(&device, 4 * n);
        of::<f32>(&device, n, 1.5);
        leave_dirt(&device, 8 * n);
        of::<i64>(&device, n, 7);
    }
    // Where there are no elements, nothing is left unwritten.
    let none = making(&device.ones([1]), Meta::new([0], DType::F32), |_| ());
    assert_eq!(block_on(none.to_vec::<f32>()).unwrap(), [0.0; 0]);
    is_well(&device);
}

fn a_slice_of_the_output_is_zeros_where_nothing_was_written(kind: Kind) {
    let device = kind.device();
    for n in [3, 40, 5000, 300_000] {
        let x = device.ones([1]);
        leave_dirt(&device, n);
        let bools = making(&x, Meta::new([n], DType::Bool), |run| {
            let out = run.output().into_slice::<bool>().unwrap();
            assert!(out.iter().all(|&b| !b));
            out[1] = true;
        });
        let want: Vec<bool> = (0..n).map(|i| i == 1).collect();
        assert_eq!(block_on(bools.to_vec::<bool>()).unwrap(), want);
        leave_dirt(&device, 4 * n);
        let numbers = making(&x, Meta::new([n], DType::F32), |run| {
            assert!(!run.output().fill_from([1.0f32, 2.0]));
            let out = run.output().into_slice::<f32>().unwrap();
            assert!(out[..2] == [1.0, 2.0] && out[2..].iter().all(|&v| v == 0.0));
            out[2] = 3.0;
            // What was written stays.
            assert_eq!(run.output().into_slice::<f32>().unwrap()[..3], [1.0, 2.0, 3.0]);
        });
        let want: Vec<f32> = (0..n).map(|i| if i < 3 { i as f32 + 1.0 } else { 0.0 }).collect();
        assert_eq!(block_on(numbers.to_vec::<f32>()).unwrap(), want);
    }
}

/// Adds one to each element where it lies, and tells whether that was the input's memory.
struct AddOne(mpsc::Sender<bool>);

impl Operation for AddOne {
    fn name(&self) -> &str {
        "add_one"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn reuses(&self) -> Option<usize> {
        Some(0)
    }
    fn takes_epilogue(&self) -> bool {
        true
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs()[0];
        // The input is known, and its elements are not here.
        assert_eq!((x.shape(), x.dtype()), (run.output().shape(), DType::F32));
        let hidden = x.as_slice::<f32>().is_none() && x.to_vec::<f32>().is_none();
        assert!(hidden || x.numel() == 0);
        // What else is read lies elsewhere.
        for other in &run.inputs()[1..] {
            other.to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        }
        run.output().into_slice::<f32>().unwrap().iter_mut().for_each(|v| *v += 1.0);
        let _ = self.0.send(run.in_place());
        Ok(())
    }
}

fn an_op_in_place_has_one_view_with_the_old_elements(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    for n in [0usize, 2, 5000, 300_000] {
        let x = device.arange(0.0, n as f32, 1.0) + 0.0;
        block_on(&x).unwrap();
        // Somebody else holds it: a copy, and the holder sees no change.
        let y = custom(AddOne(tell.clone()), &[&x]);
        assert!(
            block_on(y.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32 + 1.0))
        );
        assert!(block_on(x.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32)));
        assert!(!told.recv().unwrap());
        // A view, a constant, and what lies backwards are elements like others.
        for z in [x.flip(0), device.zeros([n]), x.stop_gradient()] {
            let before = block_on(z.to_vec::<f32>()).unwrap();
            let after = block_on(custom(AddOne(tell.clone()), &[&z]).to_vec::<f32>()).unwrap();
            assert!(after.into_iter().eq(before.into_iter().map(|v| v + 1.0)));
            assert!(!told.recv().unwrap());
        }
        drop(y);
        // Its last reader: no copy.
        let busy = kind.occupy(&device);
        let last = custom(AddOne(tell.clone()), &[&x]);
        drop(x);
        busy.release();
        assert!(
            block_on(last.to_vec::<f32>()).unwrap().into_iter().eq((0..n).map(|i| i as f32 + 1.0))
        );
        assert_eq!(told.recv().unwrap(), n >= 5000);
    }
}

/// A row of a cache, replaced.
struct PutRow(usize);

impl Operation for PutRow {
    fn name(&self) -> &str {
        "put_row"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn reuses(&self) -> Option<usize> {
        Some(0)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let row = run.inputs()[1].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        let cache =
            run.output().into_slice::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        cache[self.0 * row.len()..][..row.len()].copy_from_slice(&row);
        Ok(())
    }
}

fn a_key_value_cache_of_a_users_own_copies_nothing(kind: Kind) {
    let device = kind.device();
    let one = 4 << 20;
    let mut cache = device.zeros([256, 4096]) + 0.0;
    block_on(&cache).unwrap();
    let row = block_on(device.arange(0.0, 4096.0, 1.0)).unwrap();
    for i in 0..256 {
        cache = custom_owned(PutRow(i), [cache, TensorFuture::clone(&row)]);
    }
    block_on(&cache).unwrap();
    let peak = device.stats().bytes_peak;
    assert!(peak < one + one / 2, "{peak} bytes at the peak, of which the cache is {one}");
    assert_eq!(block_on(cache.i(255).to_vec::<f32>()).unwrap()[4095], 4095.0);
    assert_eq!(block_on(cache.i((.., 7)).sum_all().item::<f32>()).unwrap(), 7.0 * 256.0);
    // In a region too, and by steps that are awaited.
    let region = device.region(|(cache, row): (TensorFuture, TensorFuture)| {
        custom(PutRow(3), &[&cache, &(row * 2.0)])
    });
    for _ in 0..4 {
        cache = region.call((cache, TensorFuture::clone(&row)));
        block_on(&cache).unwrap();
    }
    assert_eq!(block_on(cache.i(3).to_vec::<f32>()).unwrap()[4095], 8190.0);
    let peak = device.stats().bytes_peak;
    assert!(peak < one + one / 2, "{peak} bytes at the peak, of which the cache is {one}");
}

fn an_input_that_is_read_twice_is_not_changed_in_place(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    let busy = kind.occupy(&device);
    let x = device.ones([5000]) * 2.0;
    let twice = custom(AddOne(tell.clone()), &[&x, &x]);
    drop(x);
    busy.release();
    assert_eq!(block_on(twice.to_vec::<f32>()).unwrap(), [3.0; 5000]);
    assert!(!told.recv().unwrap());
    let tell = std::sync::Mutex::new(tell);
    let region = device.region(move |x: TensorFuture| {
        let y = x.sin().cumsum(0);
        custom(AddOne(tell.lock().unwrap().clone()), &[&y, &y])
    });
    for _ in 0..3 {
        let z = region.call(device.zeros([5000]) + 0.0);
        assert_eq!(block_on(z.to_vec::<f32>()).unwrap(), [1.0; 5000]);
        assert!(!told.recv().unwrap(), "the same memory was read and written");
    }
    // Once by the op, and once by what is fused behind it.
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let region = device.region(move |x: TensorFuture| {
        let y = x.sin().cumsum(0);
        custom(AddOne(tell.lock().unwrap().clone()), &[&y]) + y
    });
    for _ in 0..3 {
        let z = region.call(device.zeros([5000]) + 0.0);
        assert_eq!(block_on(z.to_vec::<f32>()).unwrap(), [1.0; 5000]);
        assert!(!told.recv().unwrap(), "what is fused behind it reads what was there");
    }
}

/// An identity of which one method does something odd.
#[derive(Default)]
struct Odd {
    name: bool,
    infer: bool,
    estimate: bool,
    epilogue: bool,
    reuses: bool,
    input: Option<usize>,
    needs: bool,
    gradient: bool,
}

impl Operation for Odd {
    fn name(&self) -> &str {
        assert!(!self.name, "a name of a test panics");
        "odd"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        assert!(!self.infer, "a shape rule of a test panics");
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        copy_input(run)
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        copy_on_gpu(run)
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        assert!(!self.estimate, "an estimate of a test panics");
        u64::MAX
    }
    fn takes_epilogue(&self) -> bool {
        assert!(!self.epilogue, "takes_epilogue of a test panics");
        true
    }
    fn reuses(&self) -> Option<usize> {
        assert!(!self.reuses, "reuses of a test panics");
        self.input
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        assert!(!self.needs, "gradient_needs of a test panics");
        Needs::NOTHING
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        assert!(!self.gradient, "a gradient of a test panics");
        call.give(0, |call| call.upstream().clone());
        Ok(())
    }
}

fn a_panicking_method_of_an_op_fails_its_value_and_nothing_else(kind: Kind) {
    let device = kind.device();
    let x = device.ones([3000]) + 1.0;
    let of = |words: &str, odd: Odd| {
        let y = custom(odd, &[&x]);
        // It is known at once, and what is made of it has the same root.
        let error = y.error().expect("known at once");
        assert!(error.is_kernel() && error.message().contains(words), "{error}");
        assert!(error.to_string().contains("foreign.rs"), "{error}");
        assert!(failure((&y * 2.0).sum_all()).same_root(&error));
        is_well(&device);
    };
    of("name panicked", Odd { name: true, ..Odd::default() });
    of("the shape rule panicked", Odd { infer: true, ..Odd::default() });
    of(
        "estimate_ns panicked: an estimate of a test panics",
        Odd { estimate: true, ..Odd::default() },
    );
    of("takes_epilogue panicked", Odd { epilogue: true, ..Odd::default() });
    of("reuses panicked", Odd { reuses: true, ..Odd::default() });
    let fine = custom(Odd::default(), &[&x]) * 2.0;
    assert_eq!(block_on(fine.sum_all().item::<f32>()).unwrap(), 12_000.0);
    // One without operands is refused before it is asked.
    assert!(custom(Odd { infer: true, ..Odd::default() }, &[]).error().unwrap().is_argument());
}

fn an_op_that_reuses_what_it_cannot_fails(kind: Kind) {
    let device = kind.device();
    let (x, y) = (device.ones([3]) + 0.0, device.ones([3, 1]));
    for (i, inputs) in [(2, vec![&x, &y]), (usize::MAX, vec![&x]), (1, vec![&x, &y])] {
        let error = custom(Odd { input: Some(i), ..Odd::default() }, &inputs)
            .error()
            .expect("known at once");
        assert!(error.is_argument() && error.message().contains("reuse"), "{error}");
    }
    let z = device.ones([3]).to_dtype(DType::I32);
    let error = custom(Odd { input: Some(1), ..Odd::default() }, &[&x, &z]).error().unwrap();
    assert!(error.is_argument() && error.message().contains("int32"), "{error}");
    is_well(&device);
}

fn a_panicking_gradient_rule_fails_the_gradient(kind: Kind) {
    let device = kind.device();
    for (words, odd) in [
        ("gradient_needs panicked", Odd { needs: true, ..Odd::default() }),
        ("the gradient rule panicked", Odd { gradient: true, ..Odd::default() }),
    ] {
        let (w, b) = (device.ones([2]).requires_grad(), device.ones([2]).requires_grad());
        let y = custom(odd, &[&w]);
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [1.0; 2]);
        let gradients = grad((y + &b).sum_all(), &[&w, &b]);
        let error = failure(gradients[0].clone());
        assert!(error.is_kernel() && error.message().contains(words), "{error}");
        assert_eq!(block_on(gradients[1].to_vec::<f32>()).unwrap(), [1.0; 2]);
        is_well(&device);
    }
}
