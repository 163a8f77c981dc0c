//! Runs every reference case through the public API, one trial an op and device.
//!
//!     cargo test --test ops_reference            # all
//!     cargo test --test ops_reference exp        # those whose name has `exp`
//!
//! The values were made by PyTorch: see `tests/reference/README.md`.

mod reference;

use futensor::{DType, Device};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use reference::{
    apply::{self, Made},
    case::{self, Case, Host, Operand},
    compare,
};
use std::{collections::BTreeMap, sync::Arc};

/// All files of cases, by what they need: `later` ones may name ops that are not there.
const FILES: [&str; 16] = [
    "elementwise",
    "mixed",
    "reduce",
    "matmul",
    "views",
    "later_matmul",
    "later_nn",
    "later_index",
    "later_conv",
    "grad_elementwise",
    "grad_reduce",
    "grad_matmul",
    "grad_views",
    "grad_nn",
    "grad_index",
    "grad_conv",
];

/// A case's tolerance; one ulp where futensor is exact and PyTorch takes another way: a number divided by
/// a tensor (PyTorch multiplies with the reciprocal), and a product of halves and a number (futensor
/// rounds the number to the tensor's type first, as PyTorch does for sums but not for products).
fn allowed(case: &Case) -> &str {
    let half =
        |x: &Operand| matches!(x, Operand::Tensor(host, _) if matches!(host.dtype, DType::F16 | DType::BF16));
    let number = |x: &Operand| matches!(x, Operand::Scalar(_));
    match (&case.op[..], &case.ins[..]) {
        ("div", [a, _]) if number(a) => "ulp:1",
        ("mul" | "div", [a, b]) if half(a) && number(b) || number(a) && half(b) => "ulp:1",
        _ => &case.tolerance,
    }
}

/// The promotion tables, which need no device.
fn promotion(cases: &[Case]) -> Result<(), Failed> {
    let named = |case: &Case, key: &str| case::dtype_named(case.attrs[key].as_str().expect("a name"));
    for case in cases {
        let a = named(case, "a");
        let got = match (&case.op[..], &case.ins[..]) {
            ("promote_types", _) => a.promote(named(case, "b")),
            (_, [Operand::Scalar(s)]) => a.promote_scalar(*s),
            _ => return Err("a case of promotion without operands".into()),
        };
        if got != named(case, "want") {
            return Err(
                format!("{}: {} gives {got}, expected {}", case.op, case.attrs, named(case, "want")).into()
            );
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
    let same = |a: f32, b: f32, tol: &str| compare::difference(&f32s(&[a]), &f32s(&[b]), tol, None).is_none();
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
        if let Some((_, grads, _)) = &case.gradient
            && grads.len() != case.ins.len()
        {
            return Err(format!("{}: a gradient is missing", case.place).into());
        }
    }
    Ok(())
}

/// A device to run on, by name.
type Factory = fn() -> Device;
const DEVICES: [(&str, Factory); 1] = [("cpu", Device::cpu)];

/// Something of a case that did not come out as it should.
fn fault(case: &Case, got: futensor::Result<Vec<Host>>) -> Option<String> {
    let seen: Vec<Option<Host>> = case
        .ins
        .iter()
        .map(|x| if let Operand::Tensor(host, steps) = x { Some(host.seen_through(steps)) } else { None })
        .collect();
    let what = match (&case.out, got) {
        (None, Err(_)) => return None,
        (None, Ok(got)) => {
            let got: Vec<String> = got.iter().map(Host::to_string).collect();
            format!("expected an error, got {}", got.join(" and "))
        }
        (Some(want), Err(error)) => format!("expected {}, got the error `{error}`", want[0]),
        (Some(want), Ok(got)) if want.len() != got.len() => {
            format!("{} results, expected {}", got.len(), want.len())
        }
        (Some(want), Ok(got)) => {
            let first = seen.first().and_then(Option::as_ref);
            let rule = allowed(case);
            let (got, want) =
                got.iter().zip(want).find(|(g, w)| compare::difference(g, w, rule, first).is_some())?;
            let mut text = compare::difference(got, want, rule, first)?;
            // For elementwise ops, what went in there.
            if let Some(i) = compare::first_difference(got, want, rule, first) {
                let index = compare::position(i, &want.shape);
                let there: Option<Vec<String>> = seen
                    .iter()
                    .flatten()
                    .map(|x| compare::broadcast_item(x, &index).map(|item| item.to_string()))
                    .collect();
                if let Some(there) = there.filter(|_| FILES[..2].iter().any(|f| case.place.contains(f))) {
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
fn trial(factory: Factory, cases: &[Case]) -> Result<Completion, Failed> {
    let device = factory();
    let made: Vec<(&Case, Made)> = cases
        .iter()
        .map(|case| {
            let (args, _) = apply::operands(&device, case);
            (case, apply::call(&device, case, &args))
        })
        .collect();
    let (missing, made): (Vec<_>, Vec<_>) = made.into_iter().partition(|(_, m)| matches!(m, Made::Missing));
    if made.is_empty() {
        let later = cases.iter().all(|c| c.place.contains("/later_"));
        return if later { Ok(Completion::ignored_with("no such op yet")) } else { Err("no such op".into()) };
    }
    let count = made.len();
    let faults: Vec<String> = futures::executor::block_on(async {
        let mut faults = Vec::new();
        for (case, made) in made {
            faults.extend(fault(case, apply::read(made).await));
        }
        faults
    });
    match faults.first() {
        None => Ok(Completion::Completed),
        Some(_) => {
            // The first of each kind says more than the first alone; a few are enough.
            let shown: Vec<&str> =
                faults.iter().step_by(faults.len().div_ceil(4)).map(String::as_str).collect();
            let head = format!("{} of {count} cases ({} more cannot be called)", faults.len(), missing.len());
            Err(format!("{head}\n{}", shown.join("\n")).into())
        }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = vec![Trial::test("reference::a_comparison_sees_one_ulp_too_many", comparison)];
    for file in FILES {
        let (tables, cases): (Vec<Case>, Vec<Case>) =
            case::read(file).into_iter().partition(|c| c.op.starts_with("promote_"));
        if !tables.is_empty() {
            trials.push(Trial::test("reference::promotion_is_pytorchs", move || promotion(&tables)));
        }
        let mut ops: BTreeMap<String, Vec<Case>> = BTreeMap::new();
        for case in cases {
            ops.entry(case.op.clone()).or_default().push(case);
        }
        for (op, cases) in ops {
            let cases = Arc::new(cases);
            let shared = cases.clone();
            trials.push(Trial::test(format!("reference::{file}::{op}"), move || readable(&shared)));
            for (name, factory) in DEVICES {
                let cases = cases.clone();
                let name = format!("{name}::{file}::{op}");
                trials.push(Trial::ignorable_test(name, move || match file.starts_with("grad_") {
                    true => Ok(Completion::ignored_with("no gradients yet")),
                    false => trial(factory, &cases),
                }));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
