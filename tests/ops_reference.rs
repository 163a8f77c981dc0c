//! Runs every reference case through the public API, one trial an op and device.
//!
//!     cargo test --test ops_reference            # all
//!     cargo test --test ops_reference exp        # those whose name has `exp`
//!
//! The values were made by PyTorch: see `tests/reference/README.md`.

mod reference;

use futensor::DType;
use libtest_mimic::{Arguments, Failed, Trial};
use reference::{
    case::{self, Case, Host, Operand},
    compare,
};

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

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = vec![Trial::test("reference::a_comparison_sees_one_ulp_too_many", comparison)];
    for file in FILES {
        let (tables, cases): (Vec<Case>, Vec<Case>) =
            case::read(file).into_iter().partition(|c| c.op.starts_with("promote_"));
        if !tables.is_empty() {
            trials.push(Trial::test("reference::promotion_is_pytorchs", move || promotion(&tables)));
        }
        trials.push(Trial::test(format!("reference::{file}_is_readable"), move || readable(&cases)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
