//! Question: what does each op cost at the shapes that models have, alone and with its gradients?
//!
//! Method: the cases of `peers/sweep/cases.jsonl`, one after the other; each call is awaited before
//! the next, and its result dropped. A case is known by the median of its samples; a sample is as
//! many calls as take 20 us. With gradients, a sample is the call, the gradients of all operands
//! that have one, and an await of all of these. `peers/sweep/run` asks other libraries the same in
//! turn, and compares: `--json` writes what it reads. Beside each row stands what a copy of as many
//! bytes takes on all threads. A quick pass asks whether each case runs: the smallest of each op,
//! once.
//!
//! `cargo bench -p futensor-benches --bench sweep [-- --quick] [-- --only OP,...] [--json FILE]`

#[allow(dead_code)]
#[path = "../tests/reference/mod.rs"]
mod reference;

use futensor::{DType, Device, GradOptions, Result, Scalar, TensorFuture, grad_with};
use reference::apply::{Arg, Made, call};
use reference::case::{Case, dtype_named};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Uniform in [0, 1): a hash of the place, so that every program makes the same operands.
fn unit(i: usize, operand: usize) -> f64 {
    let mut z = ((i as u64).wrapping_mul(2_654_435_761) + operand as u64 * 40_503) as u32;
    z = (z ^ (z >> 15)).wrapping_mul(2_246_822_519);
    f64::from(z ^ (z >> 13)) / 4_294_967_296.0
}

/// An operand from its text: a number, or a type, a mark for its values, and a shape:
/// `f32[2,3]` in [-2, 2), `f32+[2]` in [0.5, 1.5), `f32~[2]` in [-0.9, 0.9), `f32>[2]` in
/// [1.1, 2.1), `f32^[2]` ascending in [-2, 2), `i64[4]<9` below 9, `i64[4]!9` below 9 and each
/// another.
fn operand(device: &Device, text: &Value, place: usize) -> Arg {
    if let Some(number) = text.as_f64() {
        return Arg::Scalar(Scalar::Float(number));
    }
    let text = text.as_str().expect("a number or a text");
    let (kind, rest) = text.split_once('[').expect("a shape");
    let (shape, limit) = rest.split_once(']').expect("a shape's end");
    let shape: Vec<usize> = shape.split(',').map(|n| n.parse().expect("a size")).collect();
    let count: usize = shape.iter().product();
    let limit = || limit[1..].parse::<usize>().expect("a limit");
    if let Some(distinct) = kind.strip_prefix("i64").map(|_| text.contains('!')) {
        let n = limit();
        let at = |i: usize| match distinct {
            true => (i * 7919 % n) as i64,
            false => (unit(i, place) * n as f64) as i64,
        };
        return Arg::Tensor(device.from_vec((0..count).map(at).collect::<Vec<i64>>(), shape));
    }
    let (name, mark) =
        kind.split_at(kind.len() - usize::from(kind.ends_with(['+', '~', '>', '^'])));
    let (from, width) = match mark {
        "+" => (0.5, 1.0),
        "~" => (-0.9, 1.8),
        ">" => (1.1, 1.0),
        _ => (-2.0, 4.0),
    };
    let mut values: Vec<f32> = (0..count).map(|i| (from + width * unit(i, place)) as f32).collect();
    if mark == "^" {
        values.sort_by(f32::total_cmp);
    }
    let x = device.from_vec(values, shape);
    Arg::Tensor(match name {
        "f32" => x + 0.0,
        "bool" => x.gt(0.0),
        "bf16" => x.to_dtype(DType::BF16),
        "f16" => x.to_dtype(DType::F16),
        "i32" => (x * 1000.0).to_dtype(dtype_named("int32")),
        other => panic!("no type is called {other}"),
    })
}

/// Views are made whole, as by `contiguous`, so that there is work. PyTorch has no gradient of the
/// running statistics.
fn whole(op: &str, made: Made) -> Vec<TensorFuture> {
    let Made::Futures(mut all) = made else { panic!("{op}: no such call") };
    if op == "batch_norm" {
        all.truncate(1);
    }
    let is_view = ["permute", "transpose", "expand", "narrow", "i", "unfold_dim"].contains(&op);
    if is_view { all.iter().map(|x| x.reshape(x.numel())).collect() } else { all }
}

/// How long a case is measured.
const BUDGET: Duration = Duration::from_millis(200);

struct Sweep {
    device: Device,
    runtime: tokio::runtime::Runtime,
    /// Each case once.
    quick: bool,
}

impl Sweep {
    /// Seconds a call, and the mean size of its first result.
    fn measure(&self, row: &Value, operands: &[Value], gradient: bool) -> Result<(f64, f64)> {
        let op = row["op"].as_str().expect("an op");
        let args: Vec<Arg> = operands
            .iter()
            .enumerate()
            .map(|(k, text)| match operand(&self.device, text, k) {
                Arg::Tensor(x) if gradient && x.dtype().is_float() => {
                    Arg::Tensor(x.requires_grad())
                }
                other => other,
            })
            .collect();
        let case = Case {
            row: String::new(),
            op: op.to_owned(),
            attrs: row["attrs"].clone(),
            ins: Vec::new(),
            out: None,
            tolerance: String::new(),
            own: Vec::new(),
            gradient: None,
            place: String::new(),
        };
        let floats: Vec<&TensorFuture> = args
            .iter()
            .filter_map(|arg| match arg {
                Arg::Tensor(x) if gradient && x.dtype().is_float() => Some(x),
                _ => None,
            })
            .collect();
        let run = async || whole(op, call(&self.device, &case, &args).shaped().await);
        let upstreams: Vec<TensorFuture> = match gradient {
            true => self
                .runtime
                .block_on(run())
                .iter()
                .filter(|y| y.dtype().is_float())
                .map(like)
                .collect(),
            false => Vec::new(),
        };
        let once = async || {
            let results = run().await;
            if !gradient {
                for y in &results {
                    y.await?;
                }
                return Ok(());
            }
            let outputs: Vec<&TensorFuture> =
                results.iter().filter(|y| y.dtype().is_float()).collect();
            let gradients = match &outputs[..] {
                [y] => grad_with(
                    y,
                    &floats,
                    GradOptions::default().upstream(&upstreams[0]).zeros(true),
                ),
                all => {
                    let parts = all.iter().zip(&upstreams).map(|(y, u)| (*y * u).sum_all());
                    let sum = parts.reduce(|a, b| a + b).expect("a float result");
                    grad_with(&sum, &floats, GradOptions::default().zeros(true))
                }
            };
            for y in results.iter().chain(&gradients) {
                y.await?;
            }
            Ok::<(), futensor::Error>(())
        };
        self.runtime.block_on(async {
            if self.quick {
                let from = Instant::now();
                once().await?;
                return Ok((from.elapsed().as_secs_f64(), 0.0));
            }
            for _ in 0..2 {
                once().await?;
            }
            let from = Instant::now();
            once().await?;
            let calls = (20e-6 / from.elapsed().as_secs_f64()).clamp(1.0, 1000.0) as usize;
            let (mut samples, begin) = (Vec::new(), Instant::now());
            while samples.len() < 3 || begin.elapsed() < BUDGET && samples.len() < 1000 {
                let from = Instant::now();
                for _ in 0..calls {
                    once().await?;
                }
                samples.push(from.elapsed().as_secs_f64() / calls as f64);
            }
            samples.sort_by(f64::total_cmp);
            let first = &run().await[0];
            let mean = first.to_dtype(DType::F64).abs().mean_all().item::<f64>().await?;
            Ok((samples[samples.len() / 2], mean))
        })
    }

    /// Bytes a second that a copy reads and writes, on all threads.
    fn copy(&self) -> Result<f64> {
        let x = self.device.randn([16 << 20]);
        self.runtime.block_on(async {
            let mut best = f64::INFINITY;
            for _ in 0..10 {
                let from = Instant::now();
                (&x + 1.0).await?;
                best = best.min(from.elapsed().as_secs_f64());
            }
            Ok((128 << 20) as f64 / best)
        })
    }
}

/// How many elements a case's operands have.
fn elements(case: &Value) -> usize {
    let of = |operand: &Value| -> usize {
        let shape = operand.as_str().and_then(|text| text.split(['[', ']']).nth(1));
        shape.map_or(0, |sizes| sizes.split(',').filter_map(|n| n.parse::<usize>().ok()).product())
    };
    case.as_array().map_or(0, |operands| operands.iter().map(of).sum())
}

/// Values of the same shape and type.
fn like(x: &TensorFuture) -> TensorFuture {
    x.device().rand(x.dims()).to_dtype(x.dtype())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|w| w == flag).and_then(|k| words.get(k + 1));
    let only: Option<Vec<&str>> = after("--only").map(|list| list.split(',').collect());
    let sweep = Sweep {
        device: Device::cpu(),
        runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime"),
        quick: words.iter().any(|w| w == "--quick"),
    };
    let copy = sweep.copy()?;
    let mut lines = vec![json!({ "copy": copy })];
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/sweep/cases.jsonl");
    let cases = std::fs::read_to_string(cases).expect("the cases");
    for (k, line) in cases.lines().enumerate() {
        let row: Value = serde_json::from_str(line).expect("a case a line");
        let op = row["op"].as_str().expect("an op");
        if only.as_ref().is_some_and(|only| !only.contains(&op)) {
            continue;
        }
        let cases = row["cases"].as_array().expect("cases");
        let smallest = (0..cases.len()).min_by_key(|&i| elements(&cases[i])).unwrap_or(0);
        for (i, operands) in cases.iter().enumerate() {
            let operands = operands.as_array().expect("operands");
            if sweep.quick && i != smallest {
                continue;
            }
            for gradient in [false, true] {
                if gradient && row["gradient"] != true {
                    continue;
                }
                let (seconds, mean) = sweep.measure(&row, operands, gradient)?;
                let name = if gradient { "with gradients" } else { "" };
                println!("{op} {} {name}: {:.4} ms", row["cases"][i], seconds * 1e3);
                lines.push(json!({
                    "row": k, "case": i, "gradient": gradient, "seconds": seconds, "mean": mean
                }));
            }
        }
    }
    println!("a copy: {:.1} GB/s", copy * 1e-9);
    if let Some(file) = after("--json") {
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(file, text.join("\n") + "\n").expect("a file to write");
    }
    Ok(())
}
