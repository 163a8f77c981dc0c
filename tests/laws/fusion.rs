//! Fusion, as recordings show it: one step of several ops, decided by the queued ops, the same to
//! the bit as apart.

use crate::support::{Kind, PARALLEL, block_on};
use crate::{Laws, promises};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::recording::RecordedStep;
use futensor::{DType, Device, TensorFuture};

/// Devices whose memory is the host's.
const HOSTS: &[Kind] = &[Kind::Cpu, Kind::CpuWithoutInline, Kind::CpuOneThread, Kind::CpuImpatient];

pub fn add(laws: &mut Laws) {
    promises!(laws, 2, HOSTS;
        what_follows_a_product_runs_in_its_step
        a_reduction_may_end_what_follows_a_product
        a_product_that_somebody_holds_is_a_step_of_its_own
        what_follows_an_op_that_fails_fails_with_it_alone
        a_product_and_what_follows_it_take_the_memory_of_one
        a_group_is_of_one_shape
        the_groups_of_a_loop_are_the_same_each_time_round
        the_groups_of_a_loop_that_awaits_its_loss_are_the_same_each_time_round
        generators_and_casts_and_choices_are_in_the_step_of_what_follows);
    promises!(laws, 9, HOSTS; a_value_that_is_held_and_reduced_is_the_same_as_apart);
    promises!(laws, 9, PARALLEL; products_with_what_follows_are_the_same_in_a_region);
}

fn bits(x: &TensorFuture) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

/// The names of a step's ops, those in brackets that were not written out.
fn names(step: &RecordedStep) -> Vec<String> {
    let name = |op: &futensor::recording::RecordedOp| match op.written {
        true => op.name.clone(),
        false => format!("({})", op.name),
    };
    step.ops.iter().map(name).collect()
}

/// Queues what `ask` asks for while nothing can run, and says what ran.
fn recorded<T>(kind: Kind, device: &Device, ask: impl FnOnce() -> T) -> (T, Vec<Vec<String>>) {
    let busy = kind.occupy(device);
    let recording = device.record();
    let asked = ask();
    busy.release();
    block_on(device.waitall()).unwrap();
    let steps = recording.finish().steps;
    let gates = |step: &Vec<String>| step.iter().any(|name| name == "gated");
    (asked, steps.iter().map(names).filter(|step| !gates(step)).collect())
}

struct Layer {
    x: TensorFuture,
    w: TensorFuture,
    b: TensorFuture,
}

fn layer(device: &Device) -> Layer {
    device.seed(17);
    let layer =
        Layer { x: device.randn([48, 160]), w: device.randn([160, 96]), b: device.randn([96]) };
    block_on(device.waitall()).unwrap();
    layer
}

fn what_follows_a_product_runs_in_its_step(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, b } = layer(&device);
    let (h, steps) = recorded(kind, &device, || (x.matmul(&w) + &b).relu());
    assert_eq!(steps, [["(matmul)", "(add)", "relu"]]);
    let product = x.matmul(&w);
    block_on(&product).unwrap();
    let sum = &product + &b;
    block_on(&sum).unwrap();
    assert_eq!(bits(&h), bits(&sum.relu()));
}

fn a_group_is_of_one_shape(kind: Kind) {
    let device = kind.device();
    device.seed(17);
    let (x, w) = (device.randn([256, 1024]), device.randn([2, 256, 1024]));
    block_on(device.waitall()).unwrap();
    let (z, steps) = recorded(kind, &device, || (&x + 1.0) * &w);
    assert_eq!(steps, [["add"], ["mul"]]);
    let sum = &x + 1.0;
    block_on(&sum).unwrap();
    assert_eq!(bits(&z), bits(&(&sum * &w)));
}

fn a_reduction_may_end_what_follows_a_product(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, .. } = layer(&device);
    let (sums, steps) = recorded(kind, &device, || (x.matmul(&w) * 0.125).exp().sum(1));
    assert_eq!(steps, [["(matmul)", "(mul)", "(exp)", "sum"]]);
    let product = x.matmul(&w);
    block_on(&product).unwrap();
    let powers = (&product * 0.125).exp();
    block_on(&powers).unwrap();
    assert_eq!(bits(&sums), bits(&powers.sum(1)));
    // A reduction with nothing between has the product before it written out.
    let (_, steps) = recorded(kind, &device, || x.matmul(&w).sum(1));
    assert_eq!(steps, [["matmul"], ["sum"]]);
}

fn a_product_that_somebody_holds_is_a_step_of_its_own(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, b } = layer(&device);
    let ((product, h), steps) = recorded(kind, &device, || {
        let product = x.matmul(&w);
        let h = (&product + &b).relu();
        (product, h)
    });
    assert_eq!(steps, [vec!["matmul"], vec!["(add)", "relu"]]);
    assert_eq!(bits(&h), bits(&(&product + &b).relu()));
    // Read by what cannot be in its step.
    let (both, steps) = recorded(kind, &device, || {
        let product = x.matmul(&w);
        [&product + &b, product.matmul(w.t())]
    });
    assert!(steps.iter().all(|step| step.len() == 1), "{steps:?}");
    assert_eq!(bits(&both[0]), bits(&(&product + &b)));
}

/// As a product, but that it fails.
struct Fails;

impl Operation for Fails {
    fn name(&self) -> &str {
        "fails"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn takes_epilogue(&self) -> bool {
        true
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::kernel("it was asked to"))
    }
}

fn what_follows_an_op_that_fails_fails_with_it_alone(kind: Kind) {
    let device = kind.device();
    let x = device.ones([512, 512]) * 2.0;
    block_on(&x).unwrap();
    let ((other, bad), steps) = recorded(kind, &device, || {
        let fails = custom(Fails, &[&x]);
        let other = &x * 3.0;
        let bad = fails + &other;
        (other, bad)
    });
    // (Where nothing is delayed the factor, which is seen first, has gone its own way.)
    assert!(kind == Kind::CpuImpatient || steps == [["(fails)", "mul", "add"]], "{steps:?}");
    let error = block_on(&bad).unwrap_err();
    assert!(error.is_kernel(), "{error}");
    assert_eq!(error.op(), "fails");
    assert_eq!(block_on(other.to_vec::<f32>()).unwrap(), [6.0; 512 * 512]);
}

fn a_product_and_what_follows_it_take_the_memory_of_one(kind: Kind) {
    let device = kind.device();
    let x = device.rand([512, 512]);
    block_on(&x).unwrap();
    let one = 1 << 20;
    let (h, _) = recorded(kind, &device, || (x.matmul(&x) * 0.5 + 1.0).relu());
    let peak = device.stats().bytes_peak;
    assert!(
        peak < 2 * one + one / 2,
        "{peak} bytes at the peak, of which two values are {}",
        2 * one
    );
    drop(h);
}

/// The queue is longer than what the engine looks at in one go, so its groups are settled bit by
/// bit.
fn the_groups_of_a_loop_are_the_same_each_time_round(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, b } = layer(&device);
    let turned = w.t();
    const ROUNDS: usize = 60;
    let (_, steps) = recorded(kind, &device, || {
        let mut x = x.clone();
        for _ in 0..ROUNDS {
            let h = (x.matmul(&w) + &b).tanh();
            x = (h.matmul(&turned) * 0.25 + &x).sigmoid() - 0.5;
        }
        x.detach();
        x
    });
    let round =
        [vec!["(matmul)", "(add)", "tanh"], vec!["(matmul)", "(mul)", "(add)", "(sigmoid)", "sub"]];
    assert_eq!(steps.len(), 2 * ROUNDS);
    for (i, pair) in steps.chunks(2).enumerate() {
        assert_eq!(pair, round, "round {i}");
    }
}

fn products_with_what_follows_are_the_same_in_a_region(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, b } = layer(&device);
    let block = |x: &TensorFuture| {
        let h = (x.matmul(&w) + &b).relu();
        let held = h.matmul(w.t());
        let y = (&held * 0.1).tanh() + x;
        let sums = (h.matmul(w.t()) - x).abs().sum(0);
        [y, sums, held, x.matmul(&w).sum(1)]
    };
    let region = device.region(|x: TensorFuture| block(&x));
    for _ in 0..2 {
        let planned = region.call(x.clone());
        for (planned, apart) in planned.iter().zip(block(&x)) {
            assert_eq!(bits(planned), bits(&apart));
        }
    }
    let (_, steps) = recorded(kind, &device, || region.call(x.clone()));
    assert!(steps.iter().flatten().all(|name| name == "region"), "{steps:?}");
}

/// Each round is queued while the device works (on something, for as long as it takes: a gate), and
/// its loss is awaited.
fn the_groups_of_a_loop_that_awaits_its_loss_are_the_same_each_time_round(kind: Kind) {
    let device = kind.device();
    let Layer { x, w, b } = layer(&device);
    let turned = w.t();
    let (mut x, mut rounds) = (x, Vec::new());
    for _ in 0..30 {
        let busy = kind.occupy(&device);
        let recording = device.record();
        let h = (x.matmul(&w) + &b).tanh();
        x = (h.matmul(&turned) * 0.25 + &x).sigmoid() - 0.5;
        let loss = (&x * &x).mean_all();
        drop(h);
        busy.release();
        assert!(block_on(loss.item::<f32>()).unwrap().is_finite());
        block_on(device.waitall()).unwrap();
        let steps: Vec<_> = recording.finish().steps.iter().map(names).collect();
        rounds.push(
            steps.into_iter().filter(|s| s.iter().all(|name| name != "gated")).collect::<Vec<_>>(),
        );
    }
    let last = vec!["(matmul)", "(mul)", "(add)", "(sigmoid)", "sub", "(mul)", "mean"];
    assert_eq!(rounds[0], [vec!["(matmul)", "(add)", "tanh"], last]);
    for (i, round) in rounds.iter().enumerate() {
        assert_eq!(*round, rounds[0], "round {i}");
    }
}

fn generators_and_casts_and_choices_are_in_the_step_of_what_follows(kind: Kind) {
    let device = kind.device();
    device.seed(5);
    let x = device.rand([300, 300]);
    block_on(&x).unwrap();
    let (y, steps) = recorded(kind, &device, || (device.randn([300, 300]) * 0.1).relu());
    assert_eq!(steps, [["(randn)", "(mul)", "relu"]]);
    assert!(block_on(y.to_vec::<f32>()).unwrap().iter().all(|&v| (0.0..1.0).contains(&v)));
    let (_, steps) =
        recorded(kind, &device, || device.rand([300, 300]).lt(0.5).to_dtype(DType::F32).mean_all());
    assert_eq!(steps, [["(rand)", "(lt)", "(to_dtype)", "mean"]]);
    let (y, steps) = recorded(kind, &device, || {
        let keep = device.rand([300, 300]).gt(0.25);
        keep.where_cond(&x * 2.0, 0.0).to_dtype(DType::F16)
    });
    // (A number among the choices is a constant, which is one element.)
    let mut sorted: Vec<_> = steps.iter().filter(|step| **step != ["full"]).cloned().collect();
    sorted.iter_mut().for_each(|step| step.sort());
    assert_eq!(sorted, [["(gt)", "(mul)", "(rand)", "(where_cond)", "to_dtype"]], "{steps:?}");
    assert_eq!(y.dtype(), DType::F16);
    // Constants and ramps too.
    let (y, steps) = recorded(kind, &device, || {
        device.arange(0.0, 9e4, 1.0).mul(device.full([90_000], 2.0)) + 1.0
    });
    let both = |step: &Vec<String>| {
        ["(arange)", "(mul)", "add"].iter().all(|op| step.iter().any(|name| name == op))
    };
    assert!(steps.iter().any(both), "{steps:?}");
    let y: Vec<f32> = block_on(y.to_vec()).unwrap();
    assert!(y.iter().enumerate().all(|(i, &v)| v == 2.0 * i as f32 + 1.0));
    // One value as two types: the smallest whole number that float32 has not.
    let odd = block_on(device.from_vec(vec![16_777_217i32; 90_000], [90_000])).unwrap();
    let (single, double) =
        (device.rand([90_000]) * 0.0, device.rand([90_000]).to_dtype(DType::F64) * 0.0);
    block_on(&single).unwrap();
    block_on(&double).unwrap();
    let (y, steps) =
        recorded(kind, &device, || (&odd + &single).to_dtype(DType::F64) - (&odd + &double));
    assert!(kind == Kind::CpuImpatient || steps.len() == 1, "{steps:?}");
    assert_eq!(block_on(y.to_vec::<f64>()).unwrap(), vec![-1.0; 90_000]);
    // A value of a type that is only stored, converted on its way.
    for dtype in [DType::I8, DType::F8E4M3] {
        let stored = block_on((&x * 100.0).to_dtype(dtype)).unwrap();
        let (y, steps) = recorded(kind, &device, || stored.to_dtype(DType::F32) * 0.3);
        assert_eq!(steps, [["(to_dtype)", "mul"]]);
        let plain = block_on(stored.to_dtype(DType::F32)).unwrap();
        assert_eq!(bits(&y), bits(&(&plain * 0.3)));
    }
}

fn a_value_that_is_held_and_reduced_is_the_same_as_apart(kind: Kind) {
    let device = kind.device();
    device.seed(6);
    for shape in [[3, 40], [257, 300], [1200, 900]] {
        let x = device.randn(shape);
        block_on(&x).unwrap();
        let (fused, steps) = recorded(kind, &device, || {
            let y = x.gelu();
            let z = (&y * 3.0).sin();
            [z.sum_all(), y, z.max(0), z.argmax(1).to_dtype(DType::F32), z.mean(1), z]
        });
        assert!(steps.iter().any(|step| step.len() > 1), "{steps:?}");
        let y = x.gelu();
        block_on(&y).unwrap();
        let z = &y * 3.0;
        block_on(&z).unwrap();
        let z = z.sin();
        block_on(&z).unwrap();
        let apart = [z.sum_all(), y, z.max(0), z.argmax(1).to_dtype(DType::F32), z.mean(1), z];
        for (i, (fused, apart)) in fused.iter().zip(&apart).enumerate() {
            block_on(apart).unwrap();
            assert_eq!(bits(fused), bits(apart), "{shape:?}, value {i}");
        }
    }
}
