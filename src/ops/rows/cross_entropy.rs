//! Cross entropy with class numbers, and its way back, as one op each: neither writes a row's
//! logarithms. Only host devices are asked for them; elsewhere it is `log_softmax`, then `nll`.

use super::nll::checked;
use crate::Backward;
use crate::dtype::{DType, Element, with_dtype};
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows::{losses, losses_back};
use crate::ops::check::row_cost;

/// `(logits [n, classes], target [n])` to the mean or sum of the rows' losses, or, as `back`,
/// `(logits, target, g)` to what flows to the logits. Rows whose target is `ignore` do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossEntropy {
    pub ignore: i64,
    pub mean: bool,
    /// The loss that it is, or is a part of, as errors have it.
    pub name: &'static str,
    pub back: bool,
}

impl Operation for CrossEntropy {
    fn name(&self) -> &str {
        if self.back { "cross_entropy_back" } else { self.name }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, target) = (inputs[0], inputs[1]);
        let fits = x.dtype.is_float()
            && target.dtype == DType::I64
            && x.shape.rank() == 2
            && target.shape[..] == x.shape[..1]
            && (!self.back || inputs[2].shape.rank() == 0);
        match (fits, self.back) {
            (true, false) => Ok(Meta::new((), x.dtype)),
            (true, true) => Ok(x.clone()),
            (false, _) => {
                let text = format!("class numbers of {} for {}", target.shape, x.shape);
                Err(Refusal::shape(text))
            }
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        row_cost(inputs[0])
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        if self.back { Needs::NOTHING } else { Needs::inputs(&[0, 1]).as_they_are() }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if self.back {
            return Err(Refusal::no_gradient());
        }
        call.give(0, |call| {
            let (x, target, g) = (call.input(0), call.input(1), call.upstream());
            if !call.keeps_graph() {
                return crate::own(CrossEntropy { back: true, ..*self }, &[x, target, g]);
            }
            let counts = target.ne(self.ignore);
            let mut share = counts.to_dtype(x.dtype().wide());
            if self.mean {
                share = &share / share.sum_all();
            }
            let share = (share * g.wide()).unsqueeze(1);
            let soft = counts.unsqueeze(1).where_cond(x.wide().softmax(1) * &share, 0.0);
            soft.scatter_add(1, counts.where_cond(target, 0).unsqueeze(1), -share)
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let typed = || Refusal::dtype("types changed after they were checked");
        let x = run.inputs[0];
        let target = run.inputs[1].to_vec::<i64>().ok_or_else(typed)?;
        checked(&target, self.ignore, x.shape[1])?;
        let class = |&t: &i64| (t != self.ignore).then_some(t as usize);
        let mut classes = crate::room::with_capacity(target.len());
        classes.extend(target.iter().map(class));
        let count = if self.mean { classes.iter().flatten().count() as f64 } else { 1.0 };
        if self.back {
            let g = with_dtype!(run.inputs[2].dtype, T => {
                run.inputs[2].to_vec::<T>().ok_or_else(typed)?[0].to_f64()
            });
            losses_back(x, &classes, g / count, &run.output, run.parallel);
            return Ok(());
        }
        // Of nothing the sum is 0, and the mean 0 / 0.
        let loss = losses(x, &classes, run.parallel).iter().sum::<f64>() / count;
        with_dtype!(x.dtype, T => run.output.fill_from([T::from_f64(loss)]));
        Ok(())
    }
}
