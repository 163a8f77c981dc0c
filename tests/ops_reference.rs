//! Runs every reference case through the public API, one trial an op and device.
//!
//!     cargo test -p futensor-tests --test ops_reference            # all
//!     cargo test -p futensor-tests --test ops_reference exp        # those whose name has `exp`
//!
//! The `cuda` trials run where there is a GPU; `ops_simulated_cuda` runs them on the simulated
//! driver.
//!
//! On the simulated device the order of events follows `FUTENSOR_SEED`. A device that is not here
//! is reported as ignored. A case that cannot be called fails its trial, and so does one that is
//! missing from its file (`counts.txt`).
//!
//! The program starts itself again for each level of vector instructions that this machine has
//! (`FUTENSOR_SIMD`).
//!
//! The values were made by PyTorch: see `tests/reference/README.md`.

mod reference;

use futensor::cuda::CudaOptions;
use futensor::rows;
use futensor::sim::{SimOptions, Simulation};
use futensor::{CpuOptions, DType, Device};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use reference::{
    apply::{self, Made},
    case::{self, Case, Gradient, Host, Item, Operand},
    checked, compare,
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// All files of cases.
const FILES: [&str; 23] = [
    TYPES,
    "storage",
    "elementwise",
    "mixed",
    "reduce",
    "order",
    "index",
    "views",
    "matmul",
    "attention",
    "nn",
    "windows",
    "grad_elementwise",
    "grad_reduce",
    "grad_order",
    "grad_index",
    "grad_views",
    "grad_matmul",
    "grad_attention",
    "grad_nn",
    "grad_windows",
    "halves",
    "grad_halves",
];

/// A case's tolerance; one ulp where futensor is exact and PyTorch takes another way: a number
/// divided by a tensor (PyTorch multiplies with the reciprocal), and a sum of halves and a number,
/// which may be off by what the number loses in halves (futensor takes it in float32, as PyTorch
/// does for products but not for sums).
fn allowed(case: &Case) -> Cow<'_, str> {
    // Half a unit in the last place of 1.
    let half = |x: &Operand| match x {
        Operand::Tensor(host, _) if host.dtype == DType::F16 => Some(2f64.powi(-11)),
        Operand::Tensor(host, _) if host.dtype == DType::BF16 => Some(2f64.powi(-8)),
        _ => None,
    };
    let number = |x: &Operand| matches!(x, Operand::Scalar(_));
    match (&case.op[..], &case.ins[..]) {
        ("div", [a, _]) if number(a) => "ulp:1".into(),
        ("add_0d", [a, Operand::Tensor(b, _)] | [Operand::Tensor(b, _), a])
            if half(a).is_some() && b.shape.is_empty() && b.dtype.is_float() =>
        {
            let Item::Float(s) = b.item(0) else { return case.tolerance[..].into() };
            format!("near:1:{:e}", s.abs() * half(a).unwrap_or(0.0)).into()
        }
        ("add" | "sub", [a, Operand::Scalar(s)] | [Operand::Scalar(s), a]) if half(a).is_some() => {
            format!("near:1:{:e}", s.as_f64().abs() * half(a).unwrap_or(0.0)).into()
        }
        // Up to half a unit in the last place a factor, and each device has an order of its own.
        ("prod", _) => case.tolerance.replace("near:8:", "near:32:").into(),
        _ => case.tolerance[..].into(),
    }
}

/// A gradient's tolerance. The terms of a softmax's gradient cancel (they sum to zero along the
/// dimension), so what is left of them is as exact as the terms, not as their difference.
fn allowed_gradient<'a>(case: &Case, gradient: &'a Gradient) -> Cow<'a, str> {
    let given = &gradient.tolerance;
    if given == "own" || !matches!(&case.op[..], "softmax" | "log_softmax") {
        return given.into();
    }
    let upstream = &gradient.upstream;
    let largest = (0..upstream.numel())
        .map(|i| if let case::Item::Float(x) = upstream.item(i) { x.abs() } else { 0.0 })
        .fold(0.0, f64::max);
    let epsilon = if upstream.dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 };
    let slack: f64 = given.rsplit(':').next().and_then(|x| x.parse().ok()).unwrap_or(0.0);
    format!("near:8:{:e}", slack.max(8.0 * epsilon * largest)).into()
}

/// The promotion tables, which need no device.
fn promotion(cases: &[Case]) -> Result<(), Failed> {
    let named =
        |case: &Case, key: &str| case::dtype_named(case.attrs[key].as_str().expect("a name"));
    for case in cases {
        let a = named(case, "a");
        let got = match (&case.op[..], &case.ins[..]) {
            ("promote_types", _) => a.promote(named(case, "b")),
            (_, [Operand::Scalar(s)]) => a.promote_scalar(*s),
            _ => return Err("a case of promotion without operands".into()),
        };
        if got != named(case, "want") {
            return Err(format!(
                "{}: {} gives {got}, expected {}",
                case.op,
                case.attrs,
                named(case, "want")
            )
            .into());
        }
    }
    Ok(())
}

fn f32s(values: &[f32]) -> Host {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Host { dtype: DType::F32, shape: vec![values.len()], bytes }
}

/// The comparison sees what it must see: a harness that cannot fail proves nothing.
fn comparison() -> Result<(), Failed> {
    let next = |x: f32| f32::from_bits(x.to_bits() + 1);
    let same = |a: f32, b: f32, tol: &str| {
        compare::difference(&f32s(&[a]), &f32s(&[b]), tol, None).is_none()
    };
    let table = [
        (same(1.0, 1.0, "bits"), true),
        (same(0.0, -0.0, "bits"), false),
        (same(0.0, -0.0, "value"), true),
        (same(f32::NAN, -f32::NAN, "bits"), true),
        (same(f32::NAN, 1.0, "near:9:inf"), false),
        (same(next(1.0), 1.0, "value"), false),
        (same(next(1.0), 1.0, "ulp:1"), true),
        (same(next(next(1.0)), 1.0, "ulp:1"), false),
        (same(f32::from_bits(1), -f32::from_bits(1), "ulp:2"), true),
        (same(f32::MAX, f32::INFINITY, "ulp:1"), true),
        (same(-f32::MAX, f32::INFINITY, "ulp:1000"), false),
        (same(f32::INFINITY, -f32::INFINITY, "near:4:1e-3"), false),
        (same(1.0, 1.001, "near:4:0.01"), true),
        (same(1.0, 1.1, "near:4:0.01"), false),
    ];
    match table.iter().position(|(got, want)| got != want) {
        None => Ok(()),
        Some(row) => Err(format!("row {row} of the table").into()),
    }
}

/// Every line can be read, and every input can be seen through its views.
fn readable(cases: &[Case]) -> Result<(), Failed> {
    for case in cases {
        for operand in &case.ins {
            if let Operand::Tensor(host, steps) = operand {
                let seen = host.seen_through(steps);
                if seen.bytes.len() != seen.numel() * seen.dtype.size() {
                    return Err(format!("{}: {operand} is not whole", case.place).into());
                }
            }
        }
        let agrees =
            |x: &Host, rule: &str| rule == "own" || compare::difference(x, x, rule, None).is_none();
        let mut right = case.out.iter().flatten().all(|x| agrees(x, &case.tolerance));
        if let Some(gradient) = &case.gradient {
            let first = &case.out.as_ref().expect("what has a gradient is no error")[0];
            let of_inputs =
                gradient.wanted.iter().zip(&case.ins).all(|(grad, input)| match (grad, input) {
                    (Some(grad), Operand::Tensor(host, _)) => {
                        // A truth that halves are held against is wider.
                        let typed = grad.dtype == host.dtype || gradient.tolerance == "own";
                        grad.shape == host.shape && typed && agrees(grad, &gradient.tolerance)
                    }
                    (grad, _) => grad.is_none(),
                });
            right &= of_inputs && gradient.wanted.len() == case.ins.len();
            right &= gradient.upstream.shape == first.shape;
        }
        if !right {
            return Err(
                format!("{}: what is expected does not fit the operands", case.place).into()
            );
        }
    }
    Ok(())
}

/// Every op on every type, on nothing and on single numbers. That is looked at before a device is
/// asked, so one is enough.
const TYPES: &str = "dtypes";

/// The device that has convolutions without cuDNN.
pub const COLUMNS: &str = "cuda_columns";

/// The CPU, where each op is checked for what is not finite.
const CHECKED: &str = "cpu_checked";

/// Where cases are run.
enum Place {
    /// A device with threads of its own, and any executor.
    Real(Device),
    /// One event at a time, in an order that the seed decides.
    Simulated(Device, Simulation),
}

/// A place for a trial, by the trial's number; `None` where this machine has no such device.
type Maker = fn(usize) -> Option<Place>;

impl Place {
    /// The devices by name.
    fn all() -> [(&'static str, Maker); 5] {
        fn simulated(_: usize) -> Option<Place> {
            let (device, simulation) = Device::simulated(SimOptions::new(seed()));
            Some(Place::Simulated(device, simulation))
        }
        [
            ("cpu", |_| Some(Place::Real(Device::cpu()))),
            (CHECKED, |_| {
                let options = CpuOptions::default().threads(2).check_finite(true);
                Some(Place::Real(Device::cpu_with(options)))
            }),
            ("simulated", simulated),
            // Each GPU has its part: each compiles its kernels on a thread of its own.
            ("cuda", |trial| {
                Device::cuda(trial % Device::gpu_count().max(1)).ok().map(Place::Real)
            }),
            // Of convolutions: as they are where there is no cuDNN.
            (COLUMNS, |trial| {
                let options = CudaOptions::default().cudnn(false);
                Device::cuda_with(trial % Device::gpu_count().max(1), options).ok().map(Place::Real)
            }),
        ]
    }

    fn device(&self) -> &Device {
        match self {
            Place::Real(device) | Place::Simulated(device, _) => device,
        }
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        match self {
            Place::Real(_) => futures::executor::block_on(future),
            Place::Simulated(_, simulation) => {
                simulation.block_on(future).expect("every await ends")
            }
        }
    }
}

/// Decides the order of events on the simulated device: `FUTENSOR_SEED`, or always the same.
fn seed() -> u64 {
    std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11)
}

/// How many cases were called.
static CALLED: AtomicUsize = AtomicUsize::new(0);

/// True of a call that no types let anybody write: a length below zero.
fn cannot_be_written(case: &Case) -> bool {
    case.op == "narrow" && case.attrs["length"].as_i64().is_some_and(|n| n < 0)
}

/// How many cases each file has of how many ops: as it is, and as it was when somebody last looked.
/// A case that goes missing is a trial that nobody misses.
fn counts() -> Result<(), Failed> {
    let mut found: Vec<String> = std::fs::read_dir(case::folder())?
        .filter_map(|entry| {
            entry.ok()?.file_name().into_string().ok()?.strip_suffix(".jsonl").map(str::to_owned)
        })
        // Read by the unit tests of `tensor/display`, and by `tests/autograd`.
        .filter(|name| name != "display" && name != "edges")
        .collect();
    found.sort();
    let mut files = FILES.map(str::to_owned);
    files.sort();
    if found != files {
        return Err(format!("the folder has {found:?}, and these are run: {files:?}").into());
    }
    let line = |file: &String| {
        let cases = case::read(file);
        let ops: BTreeSet<&str> = cases.iter().map(|c| &c.op[..]).collect();
        format!("{file}: {} cases of {} ops\n", cases.len(), ops.len())
    };
    let now: String = files.iter().map(line).collect();
    let then = std::fs::read_to_string(case::folder().join("counts.txt")).unwrap_or_default();
    match now == then {
        true => Ok(()),
        false => Err(format!("counts.txt says\n{then}\nand there are\n{now}").into()),
    }
}

/// Ops that are not tried on every type, beside what is made of no tensor: they draw, have no
/// counterpart in PyTorch, or copy.
const UNTRIED: &str = "dropout dropout_with categorical top_p paged_attention to_device";

/// Every op of the op table is tried on every type.
fn every_op_is_tried() -> Result<(), Failed> {
    let tried: BTreeSet<String> = case::read(TYPES).into_iter().map(|case| case.row).collect();
    let (ops, made) = (support::op_names::ops(), support::op_names::group("creation"));
    let untried = || UNTRIED.split(' ').map(str::to_string);
    let is_untried = |n: &String| made.contains(n) || untried().any(|u| u == *n);
    let wrong: Vec<&String> =
        ops.iter().filter(|n| !tried.contains(*n) && !is_untried(n)).collect();
    let idle: Vec<String> = untried().filter(|n| tried.contains(n) || !ops.contains(n)).collect();
    match wrong.is_empty() && idle.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "ops without a case in tests/reference/dtypes.py: {wrong:?}; left out for no reason: \
             {idle:?}"
        )
        .into()),
    }
}

/// Each op that has a gradient has it in halves as well: rows of the op tables with a gradient,
/// scans, and ops with files of their own by the names on their list.
fn no_gradient_is_missing_in_halves() -> Result<(), Failed> {
    let rows = rows::all().into_iter().filter(|row| row.has_gradient).map(|row| row.name);
    let listed = rows::operations().into_iter().flat_map(|[_, gradients]| gradients);
    missing("grad_halves", rows.chain(listed.copied()).chain(scans()))
}

/// Each op has reference values: rows of the op tables, scans, and ops with files of their own.
fn no_op_is_without_values() -> Result<(), Failed> {
    let rows = rows::all().into_iter().map(|row| row.name);
    let listed = rows::operations().into_iter().flat_map(|[values, _]| values);
    let names: Vec<&str> = rows.chain(listed.copied()).chain(scans()).collect();
    assert!(names.len() > 100, "the lists of ops: {names:?}");
    let files = FILES.iter().filter(|file| **file != TYPES && !file.starts_with("grad_"));
    let there: BTreeSet<String> = files.flat_map(|f| case::read(f)).map(|case| case.op).collect();
    without(there, names.into_iter())
}

fn scans() -> impl Iterator<Item = &'static str> {
    rows::scans().into_iter().map(|(name, _)| name)
}

fn missing<'a>(file: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Failed> {
    without(case::read(file).into_iter().map(|case| case.op).collect(), names)
}

fn without<'a>(
    there: BTreeSet<String>,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), Failed> {
    let is_there = |op: &str| there.contains(op) || there.contains(&format!("{op}_with_positions"));
    let missing: BTreeSet<&str> = names.filter(|op| !is_there(op)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("no reference case of {missing:?}").into()),
    }
}

/// The levels of vector instructions by their names, and whether this machine has them.
fn levels() -> [(&'static str, bool); 3] {
    #[cfg(target_arch = "x86_64")]
    let (avx2, avx512) = (is_x86_feature_detected!("avx2"), is_x86_feature_detected!("avx512vl"));
    #[cfg(not(target_arch = "x86_64"))]
    let (avx2, avx512) = (false, false);
    [("baseline", true), ("avx2", avx2), ("avx512", avx512)]
}

/// All cases on the CPU at a level, in a process of its own: a level is chosen once.
fn at_level(level: &str) -> Result<Completion, Failed> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["cpu::", "--test-threads=2"])
        .env("FUTENSOR_SIMD", level)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && text.contains(" cases called") {
        true => Ok(Completion::Completed),
        false => Err(format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// How many units in the last place of a result's largest element the terms of its sums may have
/// lost. A GPU's tensor cores multiply halves: attention rounds its weights to them before they
/// meet the values, as FlashAttention does.
fn terms_in_halves(case: &Case, on: &Device) -> f64 {
    let is_attention = matches!(&case.op[..], "scaled_dot_product_attention" | "grouped_attention");
    if is_attention && on.name().starts_with("cuda") { 2.0 } else { 0.0 }
}

/// Something of a case that did not come out as it should.
fn fault(case: &Case, on: &Device, got: futensor::Result<Vec<Host>>) -> Option<String> {
    let seen: Vec<Option<Host>> = case
        .ins
        .iter()
        .map(|x| {
            if let Operand::Tensor(host, steps) = x { Some(host.seen_through(steps)) } else { None }
        })
        .collect();
    let of_inputs: Vec<Arc<Host>>;
    let (wanted, rule) = match &case.gradient {
        Some(gradient) => {
            of_inputs = gradient.wanted.iter().flatten().cloned().collect();
            (Some(&of_inputs), allowed_gradient(case, gradient))
        }
        None => (case.out.as_ref(), allowed(case)),
    };
    let what = match (wanted, got) {
        (None, Err(_)) => return None,
        (None, Ok(got)) => {
            let got: Vec<String> = got.iter().map(Host::to_string).collect();
            format!("expected an error, got {}", got.join(" and "))
        }
        (Some(want), Err(error)) => format!("expected {}, got the error `{error}`", want[0]),
        (Some(want), Ok(got)) if rule == "own" => {
            // Of several results the first is looked at.
            let own = case.own.iter().enumerate().filter(|(i, _)| match &case.gradient {
                Some(gradient) => gradient.wanted[*i].is_some(),
                None => true,
            });
            let mut all = got.iter().zip(want).zip(own.map(|(_, own)| own.as_deref()));
            let terms = terms_in_halves(case, on);
            let found =
                all.find_map(|((g, w), own)| Some((g, w, compare::rougher(g, w, own, terms)?)));
            let (got, want, text) = found?;
            format!("{text}\n  got      {got}\n  expected {want}")
        }
        (Some(want), Ok(got)) if want.len() != got.len() => {
            format!("{} results, expected {}", got.len(), want.len())
        }
        (Some(want), Ok(got)) => {
            let first = seen.first().and_then(Option::as_ref);
            let rule = &rule[..];
            let (got, want) = got
                .iter()
                .zip(want)
                .find(|(g, w)| compare::difference(g, w, rule, first).is_some())?;
            let mut text = compare::difference(got, want, rule, first)?;
            // For elementwise ops, what went in there.
            if let Some(i) = compare::first_difference(got, want, rule, first) {
                let index = compare::position(i, &want.shape);
                let there: Option<Vec<String>> = seen
                    .iter()
                    .flatten()
                    .map(|x| compare::broadcast_item(x, &index).map(|item| item.to_string()))
                    .collect();
                if let Some(there) =
                    there.filter(|_| FILES[..2].iter().any(|f| case.place.contains(f)))
                {
                    text += &format!(", of {}", there.join(" and "));
                }
            }
            format!("{text}\n  got      {got}\n  expected {want}")
        }
    };
    let ins: Vec<String> = case.ins.iter().map(Operand::to_string).collect();
    let attrs = if case.attrs.is_null() { String::new() } else { format!(" {}", case.attrs) };
    Some(format!("{}: {}({}){attrs}\n  {what}", case.place, case.op, ins.join("; ")))
}

/// All cases of one op: queued together, then read one after the other.
fn trial(place: Option<Place>, checks: bool, cases: &[Case]) -> Result<Completion, Failed> {
    let Some(place) = place else {
        // On a machine that was asked for its GPU, to leave all out would look like success.
        return match std::env::var_os("FUTENSOR_DEMAND_GPU") {
            Some(_) => Err("no such device here".into()),
            None => Ok(Completion::ignored_with("no such device here")),
        };
    };
    let made: Vec<(&Case, Made)> = cases
        .iter()
        .map(|case| {
            let (args, bases) = apply::operands(place.device(), case);
            let mut made = place.wait(apply::call(place.device(), case, &args).shaped());
            // A case with gradients is about these: its results are looked at elsewhere.
            if let (Some(gradient), Made::Futures(results)) = (&case.gradient, &made) {
                made = Made::Gradients(apply::gradients(
                    place.device(),
                    gradient,
                    &results[0],
                    &bases,
                ));
            }
            (case, made)
        })
        .collect();
    let (missing, made): (Vec<_>, Vec<_>) =
        made.into_iter().partition(|(_, m)| matches!(m, Made::Missing));
    if let Some((case, _)) = missing.iter().find(|(case, _)| !cannot_be_written(case)) {
        return Err(format!(
            "{}: nobody knows how to call {} with {}",
            case.place, case.op, case.attrs
        )
        .into());
    }
    let count = made.len();
    CALLED.fetch_add(count, Ordering::Relaxed);
    let faults: Vec<String> = place.wait(async {
        let mut faults = Vec::new();
        for (case, made) in made {
            let got = apply::read(made).await;
            let (found, is_compared) = match checks {
                true => checked::fault(case, got.as_ref().err()),
                false => (None, true),
            };
            faults.extend(found);
            faults.extend(is_compared.then(|| fault(case, place.device(), got)).flatten());
        }
        faults
    });
    match faults.first() {
        None => Ok(Completion::Completed),
        Some(_) => {
            // The first of each kind says more than the first alone; a few are enough.
            let shown: Vec<&str> =
                faults.iter().step_by(faults.len().div_ceil(4)).map(String::as_str).collect();
            let head = format!("{} of {count} cases differ; seed {}", faults.len(), seed());
            Err(format!("{head}\n{}", shown.join("\n")).into())
        }
    }
}

fn main() {
    run(&["cpu", CHECKED, "simulated", "cuda", COLUMNS], false);
}

/// Runs all trials on these devices; one at a time where the machine behind them is one.
pub fn run(devices: &[&str], alone: bool) {
    let mut arguments = Arguments::from_args();
    if alone {
        arguments.test_threads = Some(Device::gpu_count().max(1));
    }
    let mut trials = vec![Trial::test("reference::a_comparison_sees_one_ulp_too_many", comparison)];
    trials.push(Trial::test("reference::no_case_is_missing", counts));
    trials.push(Trial::test("reference::every_op_is_tried_on_every_type", every_op_is_tried));
    trials.push(Trial::test("reference::no_op_is_without_values", no_op_is_without_values));
    let halves = no_gradient_is_missing_in_halves;
    trials.push(Trial::test("reference::no_gradient_is_missing_in_halves", halves));
    for (level, is_here) in levels().into_iter().filter(|_| devices.contains(&"cpu")) {
        trials.push(Trial::ignorable_test(format!("levels::{level}"), move || match is_here {
            true => at_level(level),
            false => Ok(Completion::ignored_with("this machine has no such instructions")),
        }));
    }
    for file in FILES {
        let (tables, cases): (Vec<Case>, Vec<Case>) =
            case::read(file).into_iter().partition(|c| c.op.starts_with("promote_"));
        if !tables.is_empty() {
            trials
                .push(Trial::test("reference::promotion_is_pytorchs", move || promotion(&tables)));
        }
        let mut ops: BTreeMap<String, Vec<Case>> = BTreeMap::new();
        for case in cases {
            ops.entry(case.op.clone()).or_default().push(case);
        }
        for (op, cases) in ops {
            let cases = Arc::new(cases);
            let shared = cases.clone();
            trials.push(Trial::test(format!("reference::{file}::{op}"), move || readable(&shared)));
            let runs = |name: &&str| {
                let fits = (*name != COLUMNS || op.contains("conv"))
                    && (file != TYPES || name.starts_with("cpu"));
                devices.contains(name) && fits
            };
            for (name, place) in Place::all().into_iter().filter(|(name, _)| runs(name)) {
                let cases = cases.clone();
                let number = trials.len();
                let run = move || trial(place(number / 2), name == CHECKED, &cases);
                trials.push(Trial::ignorable_test(format!("{name}::{file}::{op}"), run));
            }
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let called = CALLED.load(Ordering::Relaxed);
    println!("{called} cases called");
    // A filter that no trial has is no success either.
    if called == 0 && std::env::var_os("FUTENSOR_DEMAND_GPU").is_some() {
        std::process::exit(1);
    }
    conclusion.exit();
}
