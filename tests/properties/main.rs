//! Random graphs: whatever is awaited, dropped, detached or cancelled in between, what is read is
//! what a plain sequential evaluator gives; and fused or one by one, floats are the same to the
//! bit.
//!
//! The seed is printed; `FUTENSOR_SEED=1234 cargo test -p futensor-tests --test properties` replays
//! it.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trials.rs"]
mod trials;

mod host;

use futensor::{DType, Device, TensorFuture};
use futures::poll;
use host::Host;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::process::ExitCode;
use support::{Kind, Rng, block_on, until};
use trials::cases;

/// A runner whose seed is known.
fn runner(name: &str, cases: u32) -> TestRunner {
    let seed = match std::env::var("FUTENSOR_SEED") {
        Ok(seed) => seed.parse().expect("FUTENSOR_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64),
    };
    println!("{name}: FUTENSOR_SEED={seed}");
    let mut rng = Rng(seed);
    let bytes: Vec<u8> = (0..4).flat_map(|_| rng.next().to_le_bytes()).collect();
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// One step of a program: what it is, its operands and arguments, and what is done to handles after
/// it.
type Step = [u16; 6];

fn programs(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(any::<Step>(), 1..most)
}

struct Pair {
    x: TensorFuture,
    host: Host,
}

async fn read(x: &TensorFuture) -> Vec<i64> {
    match x.dtype() {
        DType::F32 => x.to_vec::<f32>().await.unwrap().into_iter().map(|v| v as i64).collect(),
        DType::I64 => x.to_vec::<i64>().await.unwrap(),
        DType::Bool => x.to_vec::<bool>().await.unwrap().into_iter().map(i64::from).collect(),
        other => panic!("no step makes {other}"),
    }
}

fn leaf(device: &Device, s: &Step) -> Pair {
    let sizes = [1, 2, 3, 4, 5, 1, 3, 70, 2, 0];
    let dims: Vec<usize> =
        (0..s[1] % 4).map(|d| sizes[(s[2] as usize >> (4 * d)) % sizes.len()]).collect();
    let mut k = s[3] as i64;
    let host = Host::build(&dims, |_| {
        k = (k * 31 + 7) % 1009;
        k % 19 - 9
    });
    let x = if s[4].is_multiple_of(2) {
        device.from_vec(host.data.iter().map(|&v| v as f32).collect(), &dims[..])
    } else {
        device.from_vec(host.data.clone(), &dims[..])
    };
    Pair { x, host }
}

/// Does what a step says, on the device and on the host. `None` where it has no meaning here.
fn apply(device: &Device, values: &mut Vec<Pair>, s: &Step) -> Option<Pair> {
    let pick = |k: u16| k as usize % values.len().max(1);
    if values.len() < 2 || s[0].is_multiple_of(24) {
        return Some(leaf(device, s));
    }
    let (a, b) = (&values[pick(s[1])], &values[pick(s[2])]);
    let (x, h) = (&a.x, &a.host);
    let rank = h.dims.len();
    let dim = s[3] as usize % rank.max(1);
    let c = s[4] as i64 % 7 - 3;
    let made = |x: TensorFuture, host: Host| Some(Pair { x, host });
    let zipped = |x: TensorFuture, f: fn(i64, i64) -> i64| match h.zip(&b.host, f) {
        Some(host) => made(x, host),
        None => {
            assert!(x.error().is_some_and(|e| e.is_shape()), "{:?} and {:?}", h.dims, b.host.dims);
            None
        }
    };
    match s[0] % 24 {
        1 => made(-x, h.map(|v| -v)),
        2 => made(x.abs(), h.map(i64::abs)),
        3 => made(x.relu(), h.map(|v| v.max(0))),
        4 => made(x + c, h.map(|v| v + c)),
        5 => made(c - x, h.map(|v| c - v)),
        6 => made(x * c, h.map(|v| v * c)),
        7 => zipped(x + &b.x, |a, b| a + b),
        8 => zipped(x - &b.x, |a, b| a - b),
        9 => zipped(x * &b.x, |a, b| a * b),
        10 => zipped(x.maximum(&b.x), i64::max),
        11 => zipped(x.lt(&b.x).where_cond(x, &b.x), i64::min),
        12 if rank > 0 => made(x.sum(dim), h.fold(dim, 0, |acc, _, v| acc + v)),
        13 if rank > 0 && h.dims[dim] > 0 => {
            made(x.max(dim), h.fold(dim, i64::MIN, |acc, _, v| acc.max(v)))
        }
        14 if rank > 0 && h.dims[dim] > 0 => made(x.argmax(dim as isize), h.argmax(dim)),
        15 => {
            let all = h.reshape(&[h.data.len()]).fold(0, 0, |acc, _, v| acc + v);
            made(x.sum_all(), all)
        }
        16 if rank > 0 => {
            let mut dims = h.dims.clone();
            dims[dim] = 1;
            made(x.sum_keepdim(dim), h.fold(dim, 0, |acc, _, v| acc + v).reshape(&dims))
        }
        17 if rank > 0 => {
            let order: Vec<usize> = (0..rank).map(|d| (d + 1 + s[4] as usize) % rank).collect();
            made(x.permute(&order[..]), h.permute(&order))
        }
        18 if rank > 0 => {
            let from = s[4] as usize % (h.dims[dim] + 1);
            let len = s[5] as usize % (h.dims[dim] - from + 1);
            let positions: Vec<usize> = (from..from + len).collect();
            made(x.narrow(dim as isize, from, len), h.pick(dim, &positions))
        }
        19 if rank > 0 && rank < 4 => match s[4] % 3 {
            0 => made(x.reshape([-1]), h.reshape(&[h.data.len()])),
            1 => {
                let mut dims = h.dims.clone();
                dims.insert(dim, 1);
                made(x.unsqueeze(dim as isize), h.reshape(&dims))
            }
            _ => {
                let positions: Vec<usize> = (0..h.dims[0]).rev().step_by(2).collect();
                made(x.i(futensor::Index::ALL.step(-2)), h.pick(0, &positions))
            }
        },
        20 if rank > 0 && rank == b.host.dims.len() && x.dtype() == b.x.dtype() => {
            let fits = (0..rank).all(|d| d == dim || h.dims[d] == b.host.dims[d]);
            fits.then(|| Pair {
                x: futensor::cat(&[x, &b.x], dim as isize),
                host: h.cat(&b.host, dim),
            })
        }
        21 if rank == 2
            && b.host.dims.len() == 2
            && x.dtype() == b.x.dtype()
            && x.dtype() != DType::Bool =>
        {
            let fits = h.dims[1] == b.host.dims[0];
            fits.then(|| Pair { x: x.matmul(&b.x), host: h.matmul(&b.host) })
        }
        22 if rank > 0 && h.dims[0] > 0 => {
            // By value: where this was the last handle, in place, from a row of itself.
            let (to, from) = (s[4] as usize % h.dims[0], s[5] as usize % h.dims[0]);
            let host = h.copy_row(to, from);
            let own =
                if s[3].is_multiple_of(2) { values.swap_remove(pick(s[1])).x } else { x.clone() };
            let row = own.i(from);
            made(own.slice_assign(to, row), host)
        }
        23 => {
            let dtype = if x.dtype() == DType::F32 { DType::I64 } else { DType::F32 };
            made(x.to_dtype(dtype), h.clone())
        }
        _ => None,
    }
}

/// What happens to handles between two steps.
async fn disturb(device: &Device, values: &mut Vec<Pair>, s: &Step) -> Result<(), TestCaseError> {
    let k = s[2] as usize % values.len();
    match s[5] % 12 {
        0 => (&values[k].x).await.map(drop).unwrap(),
        1 => {
            // A wait that is given up at once.
            let (mut wait, mut read) = (values[k].x.wait_to_read(), values[k].x.display());
            let _ = (poll!(&mut wait), poll!(&mut read));
        }
        2 | 3 => drop(values.swap_remove(k)),
        4 => values[k].x.detach(),
        5 => {
            let Pair { x, host } = &values[k];
            prop_assert_eq!(&read(x).await, &host.data);
        }
        6 => {
            // A request that goes away.
            let cancelled = (&values[k].x * 3 + 1).sum_all();
            let _ = poll!(cancelled.item::<f32>());
        }
        7 if s[4].is_multiple_of(8) => device.waitall().await.unwrap(),
        _ => {}
    }
    Ok(())
}

async fn runs_as_written(device: &Device, program: &[Step]) -> Result<(), TestCaseError> {
    let mut values: Vec<Pair> = Vec::new();
    for s in program {
        let Some(mut pair) = apply(device, &mut values, s) else { continue };
        prop_assert_eq!(pair.x.dims(), &pair.host.dims[..]);
        if pair.host.data.len() > 4000 {
            continue;
        }
        if pair.host.max_abs() > 100 {
            pair = Pair { x: pair.x.clamp(-50, 50), host: pair.host.map(|v| v.clamp(-50, 50)) };
        }
        values.push(pair);
        disturb(device, &mut values, s).await?;
    }
    // In another order than they were made.
    values.reverse();
    for Pair { x, host } in &values {
        prop_assert_eq!(&read(x).await, &host.data);
    }
    drop(values);
    device.waitall().await.unwrap();
    until(|| device.stats().queued == 0);
    until(|| device.stats().bytes_live == 0);
    Ok(())
}

fn graphs_give_what_a_sequential_evaluator_gives(kind: Kind) {
    let name = format!("graphs_give_what_a_sequential_evaluator_gives[{}]", kind.name());
    let device = kind.device();
    let ran = runner(&name, 150)
        .run(&programs(60), |program| block_on(runs_as_written(&device, &program)));
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn graphs_give_what_a_sequential_evaluator_gives_on_two_threads() {
    graphs_give_what_a_sequential_evaluator_gives(Kind::Cpu);
}

fn graphs_give_what_a_sequential_evaluator_gives_without_inline() {
    graphs_give_what_a_sequential_evaluator_gives(Kind::CpuWithoutInline);
}

fn graphs_give_what_a_sequential_evaluator_gives_on_one_thread() {
    graphs_give_what_a_sequential_evaluator_gives(Kind::CpuOneThread);
}

fn graphs_give_what_a_sequential_evaluator_gives_without_patience() {
    graphs_give_what_a_sequential_evaluator_gives(Kind::CpuImpatient);
}

/// What a program of float ops begins with.
fn float_leaves(device: &Device, program: &[Step], seed: u64) -> [TensorFuture; 3] {
    device.seed(seed);
    let n = [6, 300, 5000, 40_000][program[0][1] as usize % 4];
    [device.randn([4, n]), device.rand([n]) + 0.5, device.randn([4, 1]) * 3.0]
}

/// Queues a program of float ops; `one_by_one` awaits each before the next. Returns what is kept:
/// the same values, whatever was fused.
fn float_ops(program: &[Step], leaves: [TensorFuture; 3], one_by_one: bool) -> Vec<TensorFuture> {
    let n = leaves[0].dims()[1];
    let mut values = leaves.to_vec();
    let mut kept = Vec::new();
    for s in program {
        let (a, b) = (&values[s[1] as usize % values.len()], &values[s[2] as usize % values.len()]);
        let x = match s[0] % 16 {
            0 => a + b,
            1 => a * b,
            2 => a - b * 0.3,
            3 => a / (b.abs() + 1.0),
            4 => a.tanh(),
            5 => a.sin() * 2.0 + 1.0,
            6 => (a.minimum(3.0)).exp(),
            7 => (a.abs() + 0.1).log(),
            8 => a.gelu(),
            9 => a.sigmoid() * b,
            10 if a.rank() == 2 => a.sum_keepdim(1) * (1.0 / n as f32),
            11 => (a * 1.5).mean_all(),
            12 => a.gt(b).where_cond(a, 0.25),
            13 if a.rank() == 2 => a.device().rand(a.dims()) + a,
            14 if a.rank() == 2 => (a.t() * 0.5).softmax(0).t(),
            _ => (a - a.max_all()) * b.tanh(),
        };
        if one_by_one {
            block_on(&x).unwrap();
        }
        if s[3] % 3 == 0 {
            kept.push(x.clone());
        }
        let slot = s[4] as usize % 8;
        if slot < values.len() && values.len() > 3 { values[slot] = x } else { values.push(x) }
    }
    kept.extend(values);
    kept
}

/// The bits of values.
fn bits(values: &[TensorFuture]) -> Vec<Vec<u32>> {
    values
        .iter()
        .map(|x| block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect())
        .collect()
}

fn same_bits(want: &[Vec<u32>], got: &[Vec<u32>], whose: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(want.len(), got.len());
    for (k, (a, b)) in want.iter().zip(got).enumerate() {
        let differs = a.iter().zip(b).position(|(a, b)| a != b);
        prop_assert_eq!((a.len(), differs), (b.len(), None), "{}: value {}", whose, k);
    }
    Ok(())
}

fn a_region_gives_what_its_ops_give_one_by_one_to_the_bit() {
    let name = "a_region_gives_what_its_ops_give_one_by_one_to_the_bit";
    let alone =
        Kind::CpuOneThread.device_with(|o| o.inline(false).fusion_delay(std::time::Duration::ZERO));
    let others =
        [Kind::Cpu, Kind::CpuOneThread, Kind::CpuImpatient].map(|kind| (kind, kind.device()));
    let ran = runner(name, 20).run(&programs(20), |program| {
        for (kind, device) in &others {
            let region = device.region(|leaves| float_ops(&program, leaves, false));
            // The first call plans, the others run the plan; the draws go on where the leaves have
            // ended.
            for seed in 1..4 {
                let want = bits(&float_ops(&program, float_leaves(&alone, &program, seed), true));
                let mut got = region.call(float_leaves(device, &program, seed));
                if seed == 3 {
                    // Some of the outputs go away; the others are what they were.
                    for (k, x) in got.iter_mut().enumerate().filter(|(k, _)| k % 2 == 1) {
                        *x = device.from_vec(
                            want[k].iter().map(|&b| f32::from_bits(b)).collect(),
                            [want[k].len()],
                        );
                    }
                }
                same_bits(&want, &bits(&got), kind.name())?;
            }
            prop_assert_eq!(region.traces(), 1);
        }
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn fused_or_one_by_one_floats_are_the_same_to_the_bit() {
    let name = "fused_or_one_by_one_floats_are_the_same_to_the_bit";
    let alone =
        Kind::CpuOneThread.device_with(|o| o.inline(false).fusion_delay(std::time::Duration::ZERO));
    let others =
        [Kind::Cpu, Kind::CpuOneThread, Kind::CpuImpatient].map(|kind| (kind, kind.device()));
    let ran = runner(name, 40).run(&programs(16), |program| {
        let want = bits(&float_ops(&program, float_leaves(&alone, &program, 1), true));
        for (kind, device) in &others {
            let busy = kind.occupy(device);
            // While the device is blocked all of it is queued, so that it is taken up as a whole.
            let values = float_ops(&program, float_leaves(device, &program, 1), false);
            busy.release();
            let fused = bits(&values);
            same_bits(&want, &fused, kind.name())?;
        }
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
    let fused: u64 = others.iter().map(|(_, d)| d.stats().fused).sum();
    assert!(fused > 0, "nothing was fused, so nothing was compared");
}

fn main() -> ExitCode {
    let cases = cases!["";
        graphs_give_what_a_sequential_evaluator_gives_on_two_threads
        graphs_give_what_a_sequential_evaluator_gives_without_inline
        graphs_give_what_a_sequential_evaluator_gives_on_one_thread
        graphs_give_what_a_sequential_evaluator_gives_without_patience
        a_region_gives_what_its_ops_give_one_by_one_to_the_bit
        fused_or_one_by_one_floats_are_the_same_to_the_bit
    ];
    trials::run(cases, false)
}
