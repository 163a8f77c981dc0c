//! The common part: the reference by name, and values that are near.

use futensor::{DType, Device, TensorFuture};
use std::collections::BTreeMap;
use std::path::Path;

pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// Tensors named `CASE/WHAT`, as cases of tensors by name.
pub fn cases(file: &str, device: &Device) -> BTreeMap<String, BTreeMap<String, TensorFuture>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference");
    let path = folder.join(format!("{file}.safetensors"));
    let all = block_on(futensor::safetensors::load(path, device).all()).expect("the reference");
    let mut cases = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (name, x) in all {
        let (case, what) = name.rsplit_once('/').expect("a case, and what it is");
        cases.entry(case.to_owned()).or_default().insert(what.to_owned(), x);
    }
    cases
}

pub fn values(x: &TensorFuture) -> Vec<f64> {
    block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap_or_else(|error| panic!("{error}"))
}

/// The largest difference, as a share of the largest value expected (of 1 at least).
#[track_caller]
pub fn near(got: &TensorFuture, want: &TensorFuture, slack: f64, what: &str) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    let (got, want) = (values(got), values(want));
    let scale = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    let apart = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() / scale };
    let worst = got.iter().zip(&want).map(apart).fold(0.0, |most: f64, x| match x.is_nan() {
        true => f64::INFINITY,
        false => most.max(x),
    });
    assert!(worst <= slack, "{what}: {worst} apart\n  got      {got:?}\n  expected {want:?}");
}
