//! Types for storage: what moves elements gives values, and everything else says one sentence.

use super::calls::calls;
use super::everything::try_all;
use futensor::rows::{self, OperandRef};
use futensor::*;
use std::collections::BTreeSet;

/// Calls that draw.
const RANDOM: &[&str] = &["likes", "chance", "lazy layer"];

/// Calls that make a value of a type, or a gradient: what there is to convert is not an operand.
const MADE: &[&str] = &["likes", "ranges of a type", "grad nonscalar"];

/// Calls whose results of other types are conversions, are made of no operand, or of no element.
const OTHER: &[&str] =
    &["a kernel that fails", "cast", "clip empty", "from_future", "interpolate", "searchsorted"];

/// Numbers that every type has.
fn some(device: &Device, dtype: DType, shape: &[usize]) -> TensorFuture {
    let n: usize = shape.iter().product();
    device.arange(0, n as i64, 1).to_dtype(dtype).reshape(shape)
}

fn sentence(dtype: DType) -> String {
    format!("{dtype} is for storage and has no arithmetic: convert with to_dtype")
}

/// Beside its like, a number, and values of other types, which may count for less or more.
pub fn every_row_refuses_a_type_for_storage(device: &Device) {
    let numbers = [Scalar::Int(2), Scalar::Float(0.5), Scalar::Bool(true)];
    for &dtype in types(device) {
        let x = &some(device, dtype, &[2, 3]);
        let others: Vec<TensorFuture> =
            [DType::F32, DType::I64, DType::Bool, DType::F16, DType::F64]
                .into_iter()
                .flat_map(|other| [some(device, other, &[2, 3]), some(device, other, &[])])
                .chain([x.clone(), some(device, dtype, &[])])
                .collect();
        for row in rows::all() {
            let mut values: Vec<TensorFuture> = Vec::new();
            let mut call = |operands: &[OperandRef<'_>]| values.extend(row.call(operands));
            let of = OperandRef::Tensor;
            call(&[of(x)]);
            for number in numbers {
                call(&[of(x), OperandRef::Scalar(number)]);
            }
            for other in &others {
                call(&[of(x), of(other)]);
                call(&[of(other), of(x)]);
            }
            for dims in [None, Some(&[0][..])] {
                values.extend(row.reduce(x, dims, true));
            }
            assert!(!values.is_empty(), "{} is not called", row.name);
            values.iter().for_each(|y| refused(row.name, dtype, y));
        }
        refused("nan_to_num", dtype, &x.nan_to_num(None, None, None));
        for (name, scan) in rows::scans() {
            scan(x, 0).iter().for_each(|y| refused(name, dtype, y));
        }
    }
}

fn refused(what: &str, dtype: DType, y: &TensorFuture) {
    let error = y.error().unwrap_or_else(|| panic!("{what} takes {dtype}"));
    assert!(error.is_dtype(), "{error}");
    assert_eq!(error.message(), sentence(dtype), "{what}");
}

/// The types that are tried. Each kernel of a GPU is compiled: a float, and an integer.
fn types(device: &Device) -> &'static [DType] {
    match device.name().starts_with("cpu") {
        true => &DType::STORAGE,
        false => &[DType::F8E4M3, DType::U64],
    }
}

/// Of the same numbers in a type with arithmetic that has them all, and what float8 has beside.
fn like(x: &TensorFuture) -> TensorFuture {
    x.to_dtype(match x.dtype() {
        DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        DType::U64 => DType::F64,
        _ => DType::I64,
    })
}

fn bits(x: &TensorFuture) -> Result<Vec<u64>> {
    let values = block_on(x.to_dtype(DType::F64).to_vec::<f64>())?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

/// Each call of `calls` is made with each type. What it gives is what it gives of the same numbers
/// in a type with arithmetic.
pub fn a_type_for_storage_is_moved_as_numbers_are_or_refused(device: &Device) {
    let mut values = Vec::new();
    for &dtype in types(device) {
        for shape in [&[2, 3][..], &[3], &[], &[0, 2]] {
            values.push((format!("{dtype} {shape:?}"), some(device, dtype, shape)));
        }
    }
    try_all(&calls(), &values);
    let (mut found, mut moved) = (String::new(), BTreeSet::new());
    for (name, call) in calls() {
        for (of, x) in &values {
            let given = call(x);
            for y in &given {
                if let Some(error) = y.error()
                    && error.is_dtype()
                    && error.message().contains(x.dtype().name())
                    && !MADE.contains(&name)
                    && !error.message().contains("to_dtype")
                {
                    found += &format!("{name} of {of}: {error}\n");
                }
            }
            if RANDOM.contains(&name) || given.iter().all(|y| y.error().is_some()) {
                continue;
            }
            let wanted = call(&like(x));
            // Futures that fail give none.
            if given.len() != wanted.len() {
                continue;
            }
            for (i, (y, want)) in given.iter().zip(&wanted).enumerate() {
                if y.numel() > 10_000 {
                    continue;
                }
                if y.dtype() != x.dtype() && y.error().is_none() && !OTHER.contains(&name) {
                    found += &format!("{name} of {of}: {i} is of {}\n", y.dtype());
                }
                let (Ok(got), same) = (bits(y), bits(&want.to_dtype(y.dtype()))) else { continue };
                match same {
                    Ok(same) if same == got => _ = moved.insert(name),
                    other => found += &format!("{name} of {of}: {i} is {got:?}, not {other:?}\n"),
                }
            }
        }
    }
    assert!(found.is_empty(), "{found}");
    assert!(moved.len() > 30, "{moved:?}");
}

/// What is held on the way, and what is fused, is the same in a region.
pub fn a_region_moves_and_converts_types_for_storage(device: &Device) {
    for &dtype in types(device) {
        let x = some(device, dtype, &[4, 3]);
        let moves = |x: TensorFuture| {
            let turned = futensor::cat(&[x.t(), x.t().flip(0)], 0);
            let picked = turned.index_select(0, x.device().full([2], 1));
            let back = picked.to_dtype(DType::F32) * 0.5 + 1.0;
            (turned, back.to_dtype(dtype), back, x + 1)
        };
        let (a, b, c, refused) = device.region(moves).call(x.clone());
        let (a2, b2, c2, _) = moves(x);
        for (one, other) in [(a, a2), (b, b2), (c, c2)] {
            assert_eq!(one.dtype(), other.dtype());
            assert_eq!(bits(&one).unwrap(), bits(&other).unwrap(), "{dtype}");
        }
        assert_eq!(block_on(refused).unwrap_err().message(), sentence(dtype));
    }
}

/// Where gradients of a float8 would be added up, PyTorch has none either.
pub fn gradients_go_through_float8_and_are_not_added_up_in_it(device: &Device) {
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let w = device.ones([3]).requires_grad();
        let stored = w.to_dtype(dtype);
        let loss = (stored.i(1..).to_dtype(DType::F32) * 0.3).sum_all();
        let gradient = block_on(grad(&loss, &[&w])[0].to_vec::<f32>()).unwrap();
        assert_eq!(gradient, [0.0, 0.3125, 0.3125], "{dtype}");
        let stored = w.to_dtype(dtype);
        let twice = stored.to_dtype(DType::F32) + stored.to_dtype(DType::F64);
        let error = block_on(&grad(twice.sum_all(), &[&w])[0]).expect_err("a sum of float8");
        assert_eq!((error.is_dtype(), error.message()), (true, &sentence(dtype)[..]));
        let leaf = device.ones([3]).to_dtype(dtype).requires_grad();
        let gradient = &grad((leaf.to_dtype(DType::F32) * 0.3).sum_all(), &[&leaf])[0];
        assert_eq!(
            (gradient.dtype(), bits(gradient).unwrap()),
            (dtype, vec![0.3125f64.to_bits(); 3])
        );
    }
    let w = device.ones([3]).requires_grad();
    let loss = (w.to_dtype(DType::I8).to_dtype(DType::F32) * &w).sum_all();
    assert_eq!(block_on(grad(&loss, &[&w])[0].to_vec::<f32>()).unwrap(), [1.0; 3]);
}

pub fn a_parameter_of_float8_is_converted_with_its_model(device: &Device) {
    let stored = nn::Parameter::new(some(device, DType::F8E4M3, &[3]));
    let count = nn::Parameter::buffer(some(device, DType::U64, &[3]));
    for parameter in [&stored, &count] {
        parameter.to_dtype(DType::F32);
    }
    assert_eq!((stored.value().dtype(), count.value().dtype()), (DType::F32, DType::U64));
    assert_eq!(block_on(stored.value().to_vec::<f32>()).unwrap(), [0.0, 1.0, 2.0]);
}
