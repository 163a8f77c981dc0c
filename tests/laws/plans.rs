//! The plans of a region: which calls have one in common, which are kept, and that a large one
//! costs no more an output than a small one.

use crate::support::{ALL, Kind, block_on};
use crate::{Laws, promises};
use futensor::{DType, TensorFuture, grad, no_grad};

pub fn add(laws: &mut Laws) {
    promises!(laws, 1, ALL;
        a_thread_of_a_closure_that_waits_for_what_it_makes_of_an_input_is_refused
        the_plan_that_goes_is_the_one_that_was_made_first
        a_region_of_thousands_of_outputs_gives_each_its_own);
    promises!(laws, 5, ALL;
        an_input_that_is_read_later_is_not_written_over_by_way_of_its_view);
    promises!(laws, 9, ALL;
        a_region_has_a_plan_for_each_type
        a_plan_that_was_made_without_gradients_is_for_calls_without_gradients);
}

fn a_region_has_a_plan_for_each_type(kind: Kind) {
    let device = kind.device();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| (&x / 3, x + y));
    let types = [DType::F32, DType::F64, DType::I64, DType::F16, DType::I32];
    for round in 0..2 {
        for (k, dtype) in types.into_iter().enumerate() {
            for (j, other) in [dtype, DType::F32].into_iter().enumerate() {
                let inputs =
                    || (device.full([3], 7).to_dtype(dtype), device.full([3], 2).to_dtype(other));
                let (third, sum) = region.call(inputs());
                let (x, y) = inputs();
                let (want_third, want_sum) = (&x / 3, x + y);
                assert_eq!(
                    (third.dtype(), sum.dtype()),
                    (want_third.dtype(), want_sum.dtype()),
                    "{dtype} {other}"
                );
                for (got, want) in [(third, want_third), (sum, want_sum)] {
                    let values =
                        |x: TensorFuture| block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap();
                    assert_eq!(values(got), values(want), "{dtype} {other}");
                }
                // That of float32 beside float32 is there already the second time.
                let seen = if round == 0 {
                    2 * k + j + usize::from(k == 0 && j == 0)
                } else {
                    2 * types.len() - 1
                };
                assert_eq!(region.traces(), seen.max(1), "{dtype} {other}");
            }
        }
    }
}

fn a_plan_that_was_made_without_gradients_is_for_calls_without_gradients(kind: Kind) {
    let device = kind.device();
    let w = device.arange(1.0, 4.0, 1.0).requires_grad();
    let x = || device.full([3], 2.0);
    // Whichever comes first, and again.
    for first in [false, true] {
        let region = device.region(|x: TensorFuture| (&w * x).sum_all());
        for taped in [first, !first, first, !first] {
            let sum = if taped { region.call(x()) } else { no_grad(|| region.call(x())) };
            assert_eq!(sum.is_on_tape(), taped, "first {first}");
            assert_eq!(block_on(sum.item::<f32>()).unwrap(), 12.0);
            if taped {
                assert_eq!(block_on(grad(&sum, &[&w])[0].to_vec::<f32>()).unwrap(), [2.0; 3]);
            }
        }
        assert_eq!(region.traces(), 2);
    }
}

fn the_plan_that_goes_is_the_one_that_was_made_first(kind: Kind) {
    let device = kind.device();
    let region = device.region(|x: TensorFuture| x + 1.0).plans_max(3);
    let mut traces = 0;
    // Lengths, and whether a call is to trace.
    let calls = [
        (1, true),
        (2, true),
        (3, true),
        (1, false),
        (4, true),
        (4, false),
        (3, false),
        (2, false),
    ];
    for (n, traced) in
        calls.into_iter().chain([(1, true), (4, false), (3, false), (2, true), (1, false)])
    {
        assert_eq!(block_on(region.call(device.ones([n])).to_vec::<f32>()).unwrap(), vec![2.0; n]);
        traces += usize::from(traced);
        assert_eq!(region.traces(), traces, "at {n}");
    }
}

/// As an await of the input itself would be. The closure joins the thread.
fn a_thread_of_a_closure_that_waits_for_what_it_makes_of_an_input_is_refused(kind: Kind) {
    let device = kind.device();
    type Waits = fn(&TensorFuture) -> futensor::Result<()>;
    let waits: [Waits; 4] = [
        |x| block_on(x.wait_to_read()),
        |x| block_on((x + 1.0).wait_to_read()),
        |x| block_on((x * 2.0).exp().sum_all().item::<f32>()).map(drop),
        |x| block_on(x.to_device(&futensor::Device::cpu_with(Default::default()))).map(drop),
    ];
    for wait in waits {
        let region = device.region(|x: TensorFuture| {
            let error =
                std::thread::scope(|scope| scope.spawn(|| wait(&x)).join().unwrap().unwrap_err());
            assert!(error.message().contains("await the result of a call"), "{error}");
            x * 3.0
        });
        let error = block_on(region.call(device.ones([2]))).unwrap_err();
        assert!(
            error.is_argument() && error.message().contains("await the result of a call"),
            "{error}"
        );
        // What is refused is not kept.
        assert!(block_on(region.call(device.ones([2]))).is_err());
        assert_eq!(region.traces(), 2);
    }
    assert_eq!(block_on((device.ones([2]) + 1.0).to_vec::<f32>()).unwrap(), [2.0; 2]);
}

/// Although the call has its last handle, and the view is read for the last time.
fn an_input_that_is_read_later_is_not_written_over_by_way_of_its_view(kind: Kind) {
    let device = kind.device();
    let region = device.region(|x: TensorFuture| {
        let flat = x.reshape([4096]).sqrt();
        (flat, &x * 2.0)
    });
    for _ in 0..3 {
        let x = block_on(device.arange(0.0, 4096.0, 1.0).reshape([64, 64]) + 0.0).unwrap();
        let (root, double) = region.call(x.into());
        let want: Vec<f32> = (0..4096).map(|i| 2.0 * i as f32).collect();
        assert_eq!(block_on(double.to_vec::<f32>()).unwrap(), want);
        assert_eq!(block_on(root.i(100).item::<f32>()).unwrap(), 10.0);
    }
}

fn a_region_of_thousands_of_outputs_gives_each_its_own(kind: Kind) {
    let device = kind.device();
    let n = if kind == Kind::Cuda { 300 } else { 3000 };
    let region = device.region(|x: TensorFuture| {
        let shared = x.exp();
        (0..n)
            .map(|i| if i % 3 == 0 { x.narrow(0, i % 4, 1) * i as f32 } else { &shared * i as f32 })
            .collect::<Vec<_>>()
    });
    for round in 0..2 {
        let outputs = region.call(device.zeros([4]) + round as f32);
        assert_eq!(outputs.len(), n);
        for i in [0, 1, 63, 64, 65, 66, n - 2, n - 1] {
            let first = block_on(outputs[i].i(0).item::<f32>()).unwrap();
            let want = if i % 3 == 0 { round as f32 } else { (round as f32).exp() } * i as f32;
            assert!((first - want).abs() <= 1e-5 * want, "{i}: {first} for {want}");
        }
    }
    assert_eq!(region.traces(), 1);
}
