//! Reduces many gradients in a few calls, each call as soon as its gradients are complete.
//!
//! Values are gathered into buckets of a few MiB from the last to the first, since that is the
//! order in which a backward pass computes the gradients of parameters. A bucket's call waits for
//! its own members alone: the first are reduced while the others are still computed.

use super::group::Group;
use crate::engine::exchange::Combine;
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::shaping::join::cat;

/// A call costs network round trips whatever its size; beyond a few MiB, overlap gains more than
/// larger calls.
const BUCKET_BYTES: usize = 4 << 20;

/// These values summed over the ranks; a missing value is missing on all ranks.
#[track_caller]
pub(crate) fn summed(values: &[Option<TensorFuture>], group: &Group) -> Vec<Option<TensorFuture>> {
    let mut out = values.to_vec();
    if group.size() > 1 {
        buckets(values).iter().for_each(|bucket| reduce(bucket, &mut out, group));
    }
    out
}

/// The buckets, as indices of values, in the order of their calls.
pub(crate) fn buckets(values: &[Option<TensorFuture>]) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut bucket: Vec<usize> = Vec::new();
    let bytes = |i: usize| values[i].as_ref().map_or(0, |x| x.node.meta.bytes());
    let alike = |i: usize, j: usize| match (&values[i], &values[j]) {
        (Some(a), Some(b)) => a.dtype() == b.dtype() && a.device() == b.device(),
        _ => false,
    };
    for i in (0..values.len()).rev().filter(|&i| values[i].is_some()) {
        let full =
            bucket.iter().map(|&j| bytes(j)).fold(bytes(i), usize::saturating_add) > BUCKET_BYTES;
        if bucket.first().is_some_and(|&first| full || !alike(first, i)) {
            all.push(std::mem::take(&mut bucket));
        }
        bucket.push(i);
    }
    all.extend((!bucket.is_empty()).then_some(bucket));
    all
}

/// Reduces a bucket in one call, and stores each value.
#[track_caller]
fn reduce(bucket: &[usize], out: &mut [Option<TensorFuture>], group: &Group) {
    let values: Vec<TensorFuture> = bucket.iter().filter_map(|&i| out[i].clone()).collect();
    let sum = match &values[..] {
        [one] => return out[bucket[0]] = Some(one.all_reduce(group, Combine::Sum)),
        several => {
            let flat: Vec<TensorFuture> = several.iter().map(|x| x.reshape([x.numel()])).collect();
            let flat: Vec<&TensorFuture> = flat.iter().collect();
            cat(&flat, 0).all_reduce(group, Combine::Sum)
        }
    };
    let mut start = 0usize;
    for (&i, x) in bucket.iter().zip(&values) {
        out[i] = Some(sum.narrow(0, start, x.numel()).reshape(x.dims()));
        start = start.saturating_add(x.numel());
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use crate::{DType, Device};

    /// The types, devices and bytes that may share a bucket.
    #[test]
    fn a_bucket_has_values_of_one_type_on_one_device_and_no_more_than_its_bytes() {
        let (one, other) =
            (Device::cpu(), Device::cpu_with(crate::CpuOptions::default().threads(1)));
        let of = |device: &Device, dtype, n: usize| Some(device.zeros_dtype([n], dtype));
        let mib = 1 << 20;
        let values = [
            of(&one, DType::F32, 10),
            of(&one, DType::F16, 10),
            of(&one, DType::F16, 10),
            None,
            of(&one, DType::BF16, 10),
            of(&other, DType::BF16, 10),
            of(&one, DType::F32, mib / 2),
            of(&one, DType::F32, mib / 2),
            of(&one, DType::F32, 1),
            of(&one, DType::F32, 2 * mib),
            of(&one, DType::F64, 1),
        ];
        let found = buckets(&values);
        // From the last value to the first: a value larger than a bucket has its own, and the
        // values of a call have one type and device.
        assert_eq!(
            found,
            [vec![10], vec![9], vec![8, 7], vec![6], vec![5], vec![4], vec![2, 1], vec![0]]
        );
        for bucket in found {
            let all: Vec<_> =
                bucket.iter().map(|&i| values[i].as_ref().expect("a value")).collect();
            assert!(
                all.iter().all(|x| x.dtype() == all[0].dtype() && x.device() == all[0].device())
            );
            let bytes: usize = all.iter().map(|x| x.node.meta.bytes()).sum();
            assert!(bytes <= BUCKET_BYTES || all.len() == 1);
        }
    }
}
