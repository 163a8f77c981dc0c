//! Ops that crates for hosts compute: they run on the threads of a host device, whatever the device
//! of their operands is.

use crate::dtype::Element;
use crate::graph::operation::{Meta, Operation, Refusal};
use crate::room;
use crate::sync::{lock_plain, plain::Mutex};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::view::{Parallel, View};
use std::borrow::Cow;
use std::ops::Range;

/// Below this cost, in nanoseconds, one thread does all of the work.
const SHARED_NS: u64 = 50_000;

/// What is made of operands by an op, or by others after it. The operands of a GPU are copied to
/// the host, and the results are copied back; the copies are values of their own, so nothing waits
/// for them.
pub(crate) fn hosted<const N: usize>(
    op: &impl Operation,
    operands: &[&TensorFuture],
    make: impl FnOnce(&[&TensorFuture]) -> [TensorFuture; N],
) -> [TensorFuture; N] {
    let port = operands[0].port();
    let metas: Vec<&Meta> = operands.iter().map(|x| &x.node.meta).collect();
    let is_wrong = |x: &&TensorFuture| !std::ptr::eq(x.port(), port) || x.node.error().is_some();
    // What is refused at once is a failed value of the operands' device.
    if port.profile.in_memory || operands.iter().any(is_wrong) || op.infer(&metas).is_err() {
        return make(operands);
    }
    let host = Device::cpu();
    let moved: Vec<TensorFuture> = operands.iter().map(|x| x.to_device(&host)).collect();
    let own = operands[0].device();
    make(&moved.iter().collect::<Vec<_>>()).map(|result| result.to_device(&own))
}

/// The elements of an operand in row-major order.
pub(crate) fn elements<T: Element>(of: View<'_>) -> Result<Cow<'_, [T]>, Refusal> {
    match of.as_slice() {
        Some(all) => Ok(Cow::Borrowed(all)),
        None => of.to_vec().map(Cow::Owned).ok_or_else(|| not_of(T::DTYPE.name())),
    }
}

pub(crate) fn not_of(name: &str) -> Refusal {
    Refusal::dtype(format!("a kernel of {name} was given another type"))
}

/// Writes a result that is made of `items` equal pieces, on several threads where the work is worth
/// it: `work` is given the numbers of some pieces, and their elements. Of several refusals that of
/// the first piece counts.
pub(crate) fn shared<T: Element>(
    parallel: &dyn Parallel,
    out: &mut [T],
    items: usize,
    cost_ns: u64,
    work: impl Fn(Range<usize>, &mut [T]) -> Result<(), Refusal> + Sync,
) -> Result<(), Refusal> {
    if out.is_empty() || items == 0 {
        return Ok(());
    }
    let size = out.len() / items;
    let threads = if cost_ns < SHARED_NS { 1 } else { parallel.threads().max(1) };
    let each = items.div_ceil(threads);
    let mut parts = room::with_capacity(threads);
    parts.extend(out.chunks_mut(each * size).map(|part| Mutex::new((part, Ok(())))));
    parallel.run(parts.len(), &|k| {
        let mut part = lock_plain(&parts[k]);
        let (out, done) = &mut *part;
        let first = k * each;
        *done = work(first..first + out.len() / size, out);
    });
    parts.iter().try_for_each(|part| std::mem::replace(&mut lock_plain(part).1, Ok(())))
}
