//! Checkpoints: blocks whose values are not kept for the gradient, but recomputed when it is taken.

use super::backward::Backward;
use super::repeat::{self, Draw};
use super::taped::{given, is_taping, with_taping};
use super::walk::{self, Found, Mode};
use crate::dtype::DType;
use crate::graph::node::Op;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::graph::tape::{self, Entry, Given, Made, TapeLink};
use crate::tensor::build::caller::at_once;
use crate::tensor::build::mixed;
use crate::tensor::future::TensorFuture;
use std::collections::HashSet;
use std::sync::Arc;

type Block = dyn Fn(&[TensorFuture]) -> TensorFuture + Send + Sync;

/// A block on the tape: its operands are the inputs, then the captured values.
struct Checkpoint {
    block: Box<Block>,
    inputs: usize,
    /// Values on the tape that the block captures (a module's weights).
    captured: Vec<TapeLink>,
    draws: Vec<Draw>,
    /// The scope of mixed precision that the block ran in.
    mixed: Option<DType>,
}

/// Calls `block` on `inputs` without keeping its intermediate values. When a gradient goes through,
/// the block is called again, and its values live only during that call. This saves memory at the
/// cost of a second forward pass.
///
/// The block has to do the same both times: if the second result has another shape or type, the
/// gradients fail. Random draws are repeated. Captured values on the tape (a layer's weights) get
/// gradients too. Nothing waits.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, checkpoint, grad};
/// let device = Device::cpu();
/// let x = device.from_vec(vec![0.5f32, 1.0], [2]).requires_grad();
/// let w = device.from_vec(vec![2.0f32, 3.0], [2]).requires_grad();
/// let own = w.clone();
/// let y = checkpoint(move |xs| (&xs[0] * &own).dropout(0.0).square(), &[&x]);
/// let gradients = grad(&y.sum_all(), &[&x, &w]);
/// assert_eq!(gradients[0].to_vec::<f32>().await?, [4.0, 18.0]);
/// assert_eq!(gradients[1].to_vec::<f32>().await?, [1.0, 6.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias = "remat")]
pub fn checkpoint<F>(block: F, inputs: &[&TensorFuture]) -> TensorFuture
where
    F: Fn(&[TensorFuture]) -> TensorFuture + Send + Sync + 'static,
{
    let plain = |on_tape: bool| -> Vec<TensorFuture> {
        let leaf = |x: &&TensorFuture| match on_tape && x.is_on_tape() {
            true => x.requires_grad(),
            false => x.stop_gradient(),
        };
        inputs.iter().map(leaf).collect()
    };
    if !is_taping() {
        return block(&plain(false));
    }
    let before = tape::next_serial();
    let leaves = plain(true);
    let (result, draws) = repeat::noting(|| block(&leaves));
    let Some(root) = result.tape.as_ref().map(|tape| tape.link()) else { return result };
    let captured = captured(root, before);
    let operands = inputs.iter().map(|x| given(x)).chain(captured.iter().map(|entry| Given {
        node: None,
        meta: entry.meta.clone(),
        entry: Some(entry.clone()),
    }));
    let op = Arc::new(Checkpoint {
        block: Box::new(block),
        inputs: inputs.len(),
        captured: captured.clone(),
        draws,
        mixed: mixed::scope(),
    });
    let needs = op.gradient_needs(&[]);
    let entry = Entry::record(Made::Op(Op::Custom(op)), operands, &result.node, needs);
    TensorFuture::taped(result.node.clone(), entry)
}

/// The values that were on the tape before the block began, and that it reads.
fn captured(root: TapeLink, before: u64) -> Vec<TapeLink> {
    let (mut found, mut seen, mut stack) = (Vec::new(), HashSet::new(), vec![root]);
    while let Some(entry) = stack.pop() {
        if !seen.insert(entry.address()) {
            continue;
        }
        match entry.serial < before {
            true => found.push(entry),
            false => stack.extend(entry.sources().into_iter().flatten()),
        }
    }
    found
}

impl Operation for Checkpoint {
    fn name(&self) -> &str {
        "checkpoint"
    }

    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Err(Refusal::argument("a checkpoint stands on the tape only"))
    }

    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::argument("a checkpoint stands on the tape only"))
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        (0..self.inputs)
            .fold(Needs::NOTHING.as_they_are(), |needs, i| needs.and(Needs::inputs(&[i])))
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        // If gradients are being recorded, the inputs are on the tape already, and keep their
        // identity.
        let graph = is_taping();
        let inputs: Vec<TensorFuture> = (0..self.inputs)
            .map(|i| match call.wants(i) && !graph {
                true => call.input(i).requires_grad(),
                false => call.input(i).clone(),
            })
            .collect();
        let _as_before = mixed::within(self.mixed);
        let block = || at_once(|| (self.block)(&inputs));
        let result = with_taping(true, || repeat::repeating(&self.draws, block));
        // A value that fails at the call is not on the tape.
        if let (None, Some(error)) = (&result.tape, result.node.error()) {
            return Err(Refusal { kind: error.kind(), message: error.to_string() });
        }
        let (first, again) = (call.output_meta(), &result.node.meta);
        if (&first.shape, first.dtype) != (&again.shape, again.dtype) {
            let [was, is] = [first, again].map(|m| format!("{} of {}", m.shape, m.dtype));
            return Err(Refusal::shape(format!(
                "its block returned {was} first, and {is} the second time"
            )));
        }
        let link = |x: &TensorFuture| x.tape.as_ref().map(|tape| tape.link());
        let mut asked: Vec<Option<TapeLink>> =
            inputs.iter().enumerate().map(|(i, x)| link(x).filter(|_| call.wants(i))).collect();
        asked.extend(
            self.captured
                .iter()
                .enumerate()
                .map(|(k, entry)| call.wants(self.inputs + k).then(|| entry.clone())),
        );
        let mode = Mode { retain: graph, graph, stop: true };
        let found = walk::walk(link(&result), None, call.upstream().clone(), &asked, mode);
        for (i, found) in found.into_iter().enumerate() {
            if let Found::Gradient(gradient) = found {
                call.give(i, |_| gradient);
            }
        }
        Ok(())
    }
}
