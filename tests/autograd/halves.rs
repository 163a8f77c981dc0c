//! Halves: one rule computes in float32 and rounds once. What each op and method gives is held
//! against float64 and PyTorch in `tests/ops_reference.rs`; here is what spans several.

use super::{block_on, read};
use futensor::custom::{Backward, CpuRun, Meta, Needs, Operation, Refusal, custom};
use futensor::recording::RecordedStep;
use futensor::{
    CpuOptions, DType, Device, Generator, GradOptions, PadMode, TensorFuture, grad, grad_with,
};
use std::sync::{Arc, Mutex};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The distance of neighbours beside 1.
fn unit(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-10) } else { 2f64.powi(-7) }
}

/// Fails where an element is more than a unit in the last place off.
#[track_caller]
fn assert_near(got: &TensorFuture, want: &[f64]) {
    let (unit, values) = (unit(got.dtype()), read(got));
    assert_eq!(values.len(), want.len());
    for (g, w) in values.iter().zip(want) {
        // Float16 has no digits below 2^-24.
        assert!(
            (g - w).abs() <= (unit * w.abs()).max(2f64.powi(-25)),
            "{g} for {w} in {}",
            got.dtype()
        );
    }
}

fn halves(dtype: DType, values: &[f64]) -> TensorFuture {
    Device::cpu().from_vec(values.to_vec(), [values.len()]).to_dtype(dtype)
}

#[test]
fn means_and_shares_of_more_than_halves_can_count() {
    for dtype in HALVES {
        let x = Device::cpu().full_dtype([70_000], 0.5, dtype).requires_grad();
        let share = 1.0 / 70_000.0;
        let rows = x.reshape([1, 70_000]);
        for (name, y) in
            [("mean_all", x.mean_all()), ("mean", rows.mean(1)), ("max_all", x.max_all())]
        {
            let slope = grad(y.sum_all(), &[&x]).remove(0);
            println!("{name} of {dtype}");
            assert_near(&slope.narrow(0, 69_998, 2), &[share, share]);
        }
        assert_near(&grad(x.std_all(1.0), &[&x])[0].isfinite().all_all().to_dtype(dtype), &[1.0]);
    }
}

#[test]
fn a_value_that_is_used_3000_times_has_the_sum_of_all() {
    for dtype in HALVES {
        let x = halves(dtype, &[0.0]).requires_grad();
        let all: Vec<TensorFuture> = (0..3000).map(|_| x.neg()).collect();
        assert_near(&grad(futensor::cat(&all, 0).sum_all(), &[&x])[0], &[-3000.0]);
    }
}

/// One element, read by so many places: 3,000 is no number that a half comes to one by one.
#[test]
fn an_element_that_is_read_by_3000_places_has_the_sum_of_all() {
    type Reads = fn(&TensorFuture) -> TensorFuture;
    let device = Device::cpu();
    let zeros = device.zeros_dtype([3000], DType::I64);
    let reads: [(&str, Reads); 9] = [
        ("index", |x| x.index(&[Some(&Device::cpu().zeros_dtype([3000], DType::I64))])),
        ("index by two", |x| {
            let zeros = Device::cpu().zeros_dtype([50, 60], DType::I64);
            x.reshape([1, 1]).index(&[Some(&zeros), Some(&zeros)])
        }),
        ("pad", |x| x.pad_mode([1000, 1999], PadMode::Replicate)),
        ("pad of a plane", |x| x.reshape([1, 1]).pad_mode([20, 29, 30, 29], PadMode::Replicate)),
        ("interpolate a line", |x| x.reshape([1, 1, 1]).interpolate(3000)),
        ("interpolate a plane", |x| x.reshape([1, 1, 1, 1]).interpolate([50, 60])),
        ("interpolate a room", |x| x.reshape([1, 1, 1, 1, 1]).interpolate([10, 15, 20])),
        ("repeat", |x| x.repeat([3000])),
        ("expand", |x| x.expand([3000])),
    ];
    for dtype in HALVES {
        for (name, read) in reads {
            let x = halves(dtype, &[2.0]).requires_grad();
            let y = read(&x);
            println!("{name} in {dtype}");
            assert_eq!((y.numel(), y.dtype()), (3000, dtype));
            assert_near(&grad(y.sum_all(), &[&x])[0], &[3000.0]);
            // As many halves of a unit beside a one: each is lost where they are added in halves.
            let u = unit(dtype) / 4.0;
            let up = zeros.narrow(0, 1, 2999).add(1).to_dtype(DType::F32).mul(u);
            let up = futensor::cat(&[&device.ones([1]), &up], 0).to_dtype(dtype);
            let sum = (read(&x).reshape([3000]) * up).sum_all();
            assert_near(&grad(sum, &[&x])[0], &[1.0 + 2999.0 * u]);
        }
    }
}

/// Summed up along one dimension and rounded, then along the other, these were 2048 in float16.
#[test]
fn what_flows_back_through_padding_is_rounded_once_with_a_graph_and_without() {
    let up = halves(DType::F16, &[2048.0, 1.0, 1.0, 0.0]).reshape([2, 2]);
    for graph in [false, true] {
        let x = halves(DType::F16, &[2.0]).requires_grad();
        let y = x.reshape([1, 1]).pad_mode([0, 1, 0, 1], PadMode::Replicate);
        let options = GradOptions::default().upstream(&up).graph(graph);
        assert_eq!(read(&grad_with(&y, &[&x], options)[0]), [2050.0], "graph: {graph}");
    }
}

/// One number has no dimension to pad: it stays as it is, and what flows back to it too.
#[test]
fn a_padded_number_is_the_number() {
    let x = halves(DType::F16, &[2.0]).reshape(()).requires_grad();
    let y = x.pad_mode((), PadMode::Reflect);
    assert_eq!((read(&y), read(&grad(y.mul(3), &[&x])[0])), (vec![2.0], vec![3.0]));
}

/// Where a cube of it is no half: the slope is that of a straight line.
#[test]
fn a_gelu_far_from_zero_is_a_line() {
    for dtype in HALVES {
        let x = halves(dtype, &[1000.0, -1000.0, 300.0, -300.0, 60_000.0, -60_000.0]);
        let x = x.requires_grad();
        let there = read(&x);
        for (name, y) in [("gelu_tanh", x.gelu_tanh()), ("gelu", x.gelu()), ("silu", x.silu())] {
            println!("{name} in {dtype}");
            let line: Vec<f64> = there.iter().map(|x| x.max(0.0)).collect();
            assert_near(&y, &line);
            assert_near(&grad(y.sum_all(), &[&x])[0], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        }
    }
}

/// What is kept is divided by the share that is kept, and that is no half.
#[test]
fn what_dropout_keeps_is_divided_in_float32() {
    let device = Device::cpu();
    for dtype in HALVES {
        for p in [0.1, 0.3, 0.5, 0.7] {
            let x = (device.randn([4096]) * 300.0).to_dtype(dtype).requires_grad();
            let up = device.randn([4096]).to_dtype(dtype);
            let y = x.dropout_with(p, &Generator::new(7));
            assert_eq!(y.dtype(), dtype);
            let slope = grad((&y * &up).sum_all(), &[&x]).remove(0);
            let drawn = read(&Generator::new(7).rand(&device, [4096]));
            let kept: Vec<bool> = drawn.iter().map(|&draw| draw >= p).collect();
            let share = kept.iter().filter(|k| **k).count() as f64 / 4096.0;
            assert!((share - (1.0 - p)).abs() < 0.05, "{share} are kept of p = {p}");
            let wanted = |of: &TensorFuture| -> Vec<f64> {
                let each = read(of).into_iter().zip(&kept);
                each.map(|(x, kept)| if *kept { x / (1.0 - p) } else { 0.0 }).collect()
            };
            assert_near(&y, &wanted(&x));
            assert_near(&slope, &wanted(&up));
        }
    }
}

#[test]
fn a_repeated_operand_has_a_sum_whose_terms_were_not_rounded() {
    for dtype in HALVES {
        let n = 3000;
        let rows = Device::cpu().full_dtype([n, 2], 1.0, dtype);
        let third = halves(dtype, &[3.0, 7.0]).requires_grad();
        let exact = [-(n as f64) / 9.0, -(n as f64) / 49.0];
        assert_near(&grad((&rows / &third).sum_all(), &[&third])[0], &exact);
        // A matrix that a batch of others meets: each product is 2^-12 beside 1 of the first.
        let small = Device::cpu().full_dtype([256, 1, 1], 2f64.powi(-12), dtype);
        let batch = futensor::cat(&[Device::cpu().ones([1, 1, 1]).to_dtype(dtype), small], 0);
        let w = Device::cpu().ones([1, 1, 1]).to_dtype(dtype).requires_grad();
        assert_near(&grad(batch.matmul(&w).sum_all(), &[&w])[0], &[1.0 + 256.0 * 2f64.powi(-12)]);
    }
}

#[test]
fn a_product_and_its_bias_are_rounded_once() {
    for dtype in HALVES {
        // 1 + u / 2 is no half, but what is left of it behind the bias is one.
        let u = unit(dtype);
        let x = halves(dtype, &[1.0, u / 2.0]).reshape([1, 2]);
        let (ones, bias) = (Device::cpu().ones([1, 2]).to_dtype(dtype), halves(dtype, &[-1.0]));
        assert_near(&x.linear(&ones, Some(&bias)), &[u / 2.0]);
        assert_near(&bias.addmm(&x, ones.t(), 1.0, 1.0), &[u / 2.0]);
        assert_near(&bias.addmm(&x, ones.t(), 3.0, 3.0), &[u * 1.5]);
        let three = futensor::einsum("ij,kj,k->ik", &[&x, &ones, &halves(dtype, &[2.0])]);
        assert_eq!(three.dtype(), dtype);
        // Packed, it is the same: a weight that is used again and again.
        let (x, w) = (
            Device::cpu().randn([4, 96]).to_dtype(dtype),
            Device::cpu().randn([64, 96]).to_dtype(dtype),
        );
        let bias = Device::cpu().randn([64]).to_dtype(dtype);
        let first = read(&x.linear(&w, Some(&bias)));
        let wide =
            x.to_dtype(DType::F64).matmul(w.to_dtype(DType::F64).t()) + bias.to_dtype(DType::F64);
        for (g, w) in first.iter().zip(read(&wide)) {
            assert!((g - w).abs() <= u * w.abs() + 1e-5, "{g} for {w}");
        }
        for _ in 0..6 {
            assert_eq!(read(&x.linear(&w, Some(&bias))), first);
        }
    }
}

/// By the ops for few rows, for many, and by those that have gradients themselves.
#[test]
fn what_flows_back_through_norms_of_halves_is_rounded_once_to_the_type_of_each() {
    let device = Device::cpu();
    for (dtype, rows) in HALVES.into_iter().flat_map(|dtype| [(dtype, 40), (dtype, 400)]) {
        for (parameters, graph) in [(dtype, false), (dtype, true), (DType::F32, false)] {
            let draw = |shape: &[usize], dtype| device.randn(shape).to_dtype(dtype);
            let given =
                [draw(&[rows, 48], dtype), draw(&[48], parameters), draw(&[48], parameters)];
            let up = draw(&[rows, 48], dtype);
            for centred in [true, false] {
                let slopes = |seen: &dyn Fn(&TensorFuture) -> TensorFuture| {
                    let [x, w, b] = given.each_ref().map(|x| seen(x).requires_grad());
                    let options = GradOptions::default().upstream(&seen(&up)).graph(graph);
                    match centred {
                        true => grad_with(x.layer_norm(&w, &b, 1e-5), &[&x, &w, &b], options),
                        false => grad_with(x.rms_norm(&w, 1e-5), &[&x, &w], options),
                    }
                };
                let got = slopes(&|x| x.clone());
                let exact = slopes(&|x| x.to_dtype(DType::F64));
                for ((got, exact), given) in got.iter().zip(&exact).zip(&given) {
                    assert_eq!(got.dtype(), given.dtype());
                    let unit = if given.dtype() == DType::F32 { 1e-5 } else { unit(dtype) };
                    for (g, w) in read(got).iter().zip(read(exact)) {
                        let most = unit * w.abs() + 2e-5;
                        assert!((g - w).abs() <= most, "{g} for {w} in {parameters} of {dtype}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_number_beside_halves_is_taken_in_float32_by_arithmetic_alone() {
    let x = halves(DType::F16, &[1000.0, 0.5, 60000.0]);
    let [a, b, c] = [0, 1, 2].map(|i| x.narrow(0, i, 1));
    assert_near(&(&a / 1e5), &[0.01]);
    assert_near(&(&b * 1e5), &[49984.0]);
    assert_near(&(&c * 1e-8), &[6e-4]);
    assert_near(&(1e8 / &c), &[1e8 / 60000.0]);
    assert_near(&(&c - 1e5), &[-40000.0]);
    // A 0-d value is a number.
    assert_near(&(&b * Device::cpu().full((), 1e5)), &[49984.0]);
    assert_near(&(&b * Device::cpu().full((), 1e5).to_dtype(DType::F64)), &[49984.0]);
    for dtype in HALVES {
        let tenth = halves(dtype, &[0.1]);
        // As PyTorch: what is as near to it as can be is it.
        assert_eq!(read(&tenth.eq(0.1)), [1.0]);
        assert_eq!(read(&tenth.lt(0.1)), [0.0]);
        let limited = halves(dtype, &[0.0]).clamp(0.1, 1.0);
        assert_eq!(read(&limited), read(&tenth));
        assert_eq!(read(&halves(dtype, &[0.0]).maximum(0.1).eq(&tenth)), [1.0]);
        // Fused or apart, the bits are the same.
        let x = Device::cpu().randn([5000]).to_dtype(dtype);
        let apart = block_on(&x * 0.1).unwrap();
        let apart = block_on(&apart + 0.3).unwrap();
        assert_eq!(read(&(&x * 0.1 + 0.3)), read(&apart));
    }
}

/// Doubles, and notes which types its rule sees.
struct Noted(Arc<Mutex<Vec<DType>>>);

impl Operation for Noted {
    fn name(&self) -> &str {
        "noted"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x =
            run.inputs()[0].to_vec::<half::f16>().ok_or_else(|| Refusal::dtype("float16 only"))?;
        run.output().fill_from(x.into_iter().map(|x| x + x));
        Ok(())
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::ALL
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let seen = [call.upstream(), call.input(0), call.output()].map(|x| x.dtype());
        self.0.lock().unwrap().extend(seen);
        call.give(0, |call| call.upstream() * 2.0);
        Ok(())
    }
}

#[test]
fn the_rule_of_a_users_op_sees_values_in_their_own_types() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let x = halves(DType::F16, &[1.0, 2.0]).requires_grad();
    let slope = grad(custom(Noted(seen.clone()), &[&x]).sum_all(), &[&x]).remove(0);
    assert_eq!((slope.dtype(), read(&slope)), (DType::F16, vec![2.0, 2.0]));
    assert_eq!(*seen.lock().unwrap(), [DType::F16; 3]);
}

#[test]
fn gradients_of_halves_have_gradients() {
    for dtype in HALVES {
        let x = halves(dtype, &[0.5, 1.5]).requires_grad();
        let y = (x.tanh() * &x).sum_all();
        let first = grad_with(&y, &[&x], GradOptions::default().graph(true)).remove(0);
        let second = grad(first.sum_all(), &[&x]).remove(0);
        let exact = |x: f64| {
            let slope = 1.0 - x.tanh().powi(2);
            2.0 * slope - 2.0 * x * x.tanh() * slope
        };
        assert_eq!((first.dtype(), second.dtype()), (dtype, dtype));
        for (g, w) in read(&second).iter().zip([0.5, 1.5].map(exact)) {
            assert!((g - w).abs() <= 4.0 * unit(dtype), "{g} for {w}");
        }
    }
}

/// The steps of `exp` and its gradient, as the names of their ops; the result is held meanwhile.
fn steps_of_exp(dtype: DType) -> Vec<String> {
    let device = Device::cpu_with(CpuOptions::default());
    let x = device.rand([1 << 20]).to_dtype(dtype).requires_grad();
    let upstream = device.rand([1 << 20]).to_dtype(dtype);
    block_on(&x).unwrap();
    block_on(&upstream).unwrap();
    let recording = device.record();
    let y = x.exp();
    let dx = grad_with(&y, &[&x], GradOptions::default().upstream(&upstream));
    block_on(&y).unwrap();
    block_on(&dx[0]).unwrap();
    let steps = recording.finish().steps;
    let names = |step: &RecordedStep| {
        step.ops.iter().map(|op| op.name.clone()).collect::<Vec<String>>().join(" ")
    };
    steps.iter().map(names).collect()
}

#[test]
fn a_gradient_is_one_step_and_computes_nothing_that_somebody_holds() {
    for dtype in HALVES {
        let steps = steps_of_exp(dtype);
        assert_eq!(steps.len(), 2, "{steps:?}");
    }
    assert_eq!(steps_of_exp(DType::F32).join(" "), "exp mul");
}
