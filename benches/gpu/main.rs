//! The questions that `tests/gpu/run` puts to a GPU, the same as to its peers; one line of JSON
//! each.
//!
//!     cargo bench -p futensor-benches --bench gpu                # says so where there is no GPU
//!     cargo bench -p futensor-benches --bench gpu -- --only gelu # one family alone, to profile
//!
//! Each row is the median of several samples after a warm-up; values are awaited or detached as its
//! name says, every op has operands of its own, and what was computed is checked. With
//! `FUTENSOR_FUSION=now` no fused kernel is missing as it is timed.

mod families;
mod training;

use futensor::cuda::CudaOptions;
use futensor::{DType, Device, TensorFuture};
use futures::executor::block_on;
use std::time::Instant;

fn row(name: &str, value: f64, unit: &str) {
    row_of("futensor", name, value, unit);
}

fn row_of(who: &str, name: &str, value: f64, unit: &str) {
    println!(
        "{{\"name\": \"{name}\", \"who\": \"{who}\", \"value\": {value}, \"unit\": \"{unit}\"}}"
    );
}

/// Median seconds of a sample.
fn median(samples: usize, mut sample: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..samples + 2).map(|_| sample()).skip(2).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn wait(device: &Device) {
    block_on(device.waitall()).expect("the device is well");
}

fn increments(device: &Device) {
    let n = 10_000;
    let x: TensorFuture =
        block_on(device.from_vec(vec![1.0f32, 2.0], [1, 2]) + 0.0).expect("a value").into();
    let mut enqueued = Vec::new();
    let detached = median(5, || {
        let from = Instant::now();
        let held: Vec<TensorFuture> = (0..n).map(|i| &x + i as f32).collect();
        held.iter().for_each(TensorFuture::detach);
        enqueued.push(from.elapsed().as_secs_f64());
        wait(device);
        let time = from.elapsed().as_secs_f64();
        assert_eq!(
            block_on(held[n - 1].to_vec::<f32>()).expect("a value"),
            [n as f32, n as f32 + 1.0]
        );
        time
    });
    enqueued.sort_by(f64::total_cmp);
    row("enqueue a small op", enqueued[enqueued.len() / 2] / n as f64 * 1e6, "us");
    row("10,000 small ops, one wait, an op", detached / n as f64 * 1e6, "us");
    let awaited = median(5, || {
        let from = Instant::now();
        for i in 0..1000 {
            block_on(&x + i as f32).expect("a value");
        }
        from.elapsed().as_secs_f64() / 1000.0
    });
    row("a small op, awaited", awaited * 1e6, "us");
}

fn chain(device: &Device, n: usize) {
    let x: TensorFuture = block_on(device.arange(0.0, n as f64, 1.0)).expect("a value").into();
    let time = median(10, || {
        let from = Instant::now();
        let y = ((&x * 2.0 + 1.0) * 0.5).relu() - 3.0;
        block_on(y.wait_to_read()).expect("a value");
        from.elapsed().as_secs_f64()
    });
    row("fused chain, read and write", 2.0 * 4.0 * n as f64 / time / 1e9, "GB/s");
    let sum = median(10, || {
        let from = Instant::now();
        // The factor's handle goes before the wait: held, it would be a value of its own.
        let y = (&x * 0.5).sum_all();
        block_on(y).expect("a value");
        from.elapsed().as_secs_f64()
    });
    row("fused into a sum, read", 4.0 * n as f64 / sum / 1e9, "GB/s");
}

fn products(device: &Device, n: usize) {
    for (dtype, name) in [(DType::F32, "float32"), (DType::BF16, "bfloat16")] {
        let a: TensorFuture =
            block_on(device.randn([n, n]).to_dtype(dtype)).expect("a value").into();
        let time = median(10, || {
            let from = Instant::now();
            let mut y = a.clone();
            for _ in 0..8 {
                y = a.matmul(&y);
            }
            block_on(y.wait_to_read()).expect("a value");
            from.elapsed().as_secs_f64() / 8.0
        });
        row(&format!("matmul {name}"), 2.0 * (n as f64).powi(3) / time / 1e12, "TFLOP/s");
    }
}

fn copies(device: &Device, n: usize) {
    let data: Vec<f32> = vec![1.0; n];
    let up = median(5, || {
        let x = device.from_vec(data.clone(), [n]);
        let from = Instant::now();
        block_on(x.narrow(0, 0, 1) + 1.0).expect("a value");
        from.elapsed().as_secs_f64()
    });
    row("host to device", 4.0 * n as f64 / up / 1e9, "GB/s");
    let x: TensorFuture =
        block_on(device.arange(0.0, n as f64, 1.0) + 1.0).expect("a value").into();
    let down = median(5, || {
        let from = Instant::now();
        assert_eq!(block_on(x.to_vec::<f32>()).expect("a value")[1], 2.0);
        from.elapsed().as_secs_f64()
    });
    row("device to host, into a vector", 4.0 * n as f64 / down / 1e9, "GB/s");
}

/// A block of 100 steps, each a sum along a dimension and what is made with it, so that no step can
/// be a part of another.
fn steps(x: TensorFuture) -> TensorFuture {
    (0..50).fold(x, |x, _| {
        let mean = x.sum_keepdim([1]) * (1.0 / 64.0);
        (x - mean) * 0.5 + 1.0
    })
}

/// 100 steps as one graph, as launches in a row, and op by op: what the host pays for asking, a
/// call among many that nobody waits for in between (the slower one of host and GPU), one that is
/// awaited, and the GPU's own time for one.
fn region(quick: bool) {
    let rows = if quick { 64 } else { 1024 };
    let calls = if quick { 3 } else { 50 };
    for (name, graphs, planned) in
        [("as a graph", true, true), ("as launches", false, true), ("op by op", false, false)]
    {
        let options = CudaOptions::default().graphs(graphs).timed(1);
        let device = Device::cuda_with(0, options).expect("there was one");
        let x: TensorFuture = block_on(device.rand([rows, 64])).expect("a value").into();
        let region = device.region(steps);
        let call = || if planned { region.call(x.clone()) } else { steps(x.clone()) };
        let want = block_on(steps(x.clone()).to_vec::<f32>()).expect("values");
        // Fused kernels are compiled in the background first.
        let from = Instant::now();
        let least = if quick { 0.3 } else { 3.0 };
        while from.elapsed().as_secs_f64() < least || graphs && device.stats().graphs == 0 {
            assert!(from.elapsed().as_secs() < 60, "no graph after a minute");
            block_on(call()).expect("a value");
        }
        assert_eq!(block_on(call().to_vec::<f32>()).expect("values"), want, "{name}");
        let mut asked = Vec::new();
        let through = median(if quick { 1 } else { 9 }, || {
            wait(&device);
            let from = Instant::now();
            let held: Vec<TensorFuture> = (0..calls).map(|_| call()).collect();
            asked.push(from.elapsed().as_secs_f64() / calls as f64);
            wait(&device);
            drop(held);
            from.elapsed().as_secs_f64() / calls as f64
        });
        asked.sort_by(f64::total_cmp);
        let awaited = median(if quick { 1 } else { 20 }, || {
            let from = Instant::now();
            block_on(call()).expect("a value");
            from.elapsed().as_secs_f64()
        });
        let on_gpu = median(if quick { 1 } else { 20 }, || {
            let recording = device.record();
            block_on(call()).expect("a value");
            wait(&device);
            let steps: Vec<_> =
                recording.finish().steps.into_iter().filter(|s| s.by_device).collect();
            let began = steps.iter().map(|s| s.began).min().unwrap_or_default();
            let ended = steps.iter().map(|s| s.ended).max().unwrap_or_default();
            ended.saturating_sub(began).as_secs_f64()
        });
        row(&format!("100 steps {name}: asked for"), asked[asked.len() / 2] * 1e6, "us");
        row(&format!("100 steps {name}: one of many"), through * 1e6, "us");
        row(&format!("100 steps {name}: awaited"), awaited * 1e6, "us");
        row(&format!("100 steps {name}: on the GPU"), on_gpu * 1e6, "us");
    }
}

fn main() {
    // Cargo's own flags (`--bench`, `--test`) are of no use here.
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("no GPU, nothing measured: {error}");
            std::process::exit(std::env::var_os("FUTENSOR_DEMAND_GPU").is_some() as i32);
        }
    };
    eprintln!("{}", device.libraries());
    let small = std::env::args().any(|a| a == "--quick");
    let side = if small { 128 } else { 8192 };
    if let Some(name) = std::env::args().skip_while(|a| a != "--only").nth(1) {
        return families::all(side, Some(&name));
    }
    increments(&device);
    chain(&device, if small { 1 << 20 } else { 64 << 20 });
    products(&device, side);
    region(small);
    copies(&device, if small { 1 << 20 } else { 64 << 20 });
    training::all(&device, small);
    families::all(side, None);
}
