//! The mean (or sum) of what each row of logarithms has at its class number, and the way back: one
//! op each where the general form takes twenty small ones. Each is the other's gradient, since both
//! are linear.

use crate::Backward;
use crate::dtype::{DType, Element};
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::index::{put_among_zeros, sum_of_places};

/// `(logs [n, classes], target [n])` to minus the mean or sum of `logs[i][target[i]]`, or, as
/// `back`, `(g, target)` to what flows to `logs`. Rows whose target is `ignore` do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nll {
    pub ignore: i64,
    pub mean: bool,
    /// The loss that it is, or is a part of, as errors have it.
    pub name: &'static str,
    /// The way back, to so many classes.
    pub back: Option<usize>,
}

/// Refuses a class number that names no class, unless it is ignored.
pub(super) fn checked(target: &[i64], ignore: i64, classes: usize) -> Result<(), Refusal> {
    let wrong = |&(_, &t): &(usize, &i64)| t != ignore && !(0..classes as i64).contains(&t);
    match target.iter().enumerate().find(wrong) {
        None => Ok(()),
        Some((at, t)) => {
            let text = format!("index {t} at position {at} is out of range for size {classes}");
            Err(Refusal::index(text))
        }
    }
}

impl Nll {
    /// The class of each row that counts, and what each of them is multiplied by.
    fn rows<'a>(
        &self,
        target: &'a [i64],
        classes: usize,
    ) -> Result<(impl Iterator<Item = (usize, usize)> + 'a, f64), Refusal> {
        let ignore = self.ignore;
        checked(target, ignore, classes)?;
        let count = target.iter().filter(|&&t| t != ignore).count();
        let scale = if self.mean { -1.0 / count as f64 } else { -1.0 };
        let rows = target.iter().enumerate().filter(move |(_, t)| **t != ignore);
        Ok((rows.map(|(i, &t)| (i, t as usize)), scale))
    }

    fn run<T: Element>(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let typed = || Refusal::dtype("types changed after they were checked");
        let target = run.inputs[1].to_vec::<i64>().ok_or_else(typed)?;
        if let Some(classes) = self.back {
            let g = run.inputs[0].to_vec::<T>().ok_or_else(typed)?[0].to_f64();
            let (rows, scale) = self.rows(&target, classes)?;
            put_among_zeros(rows, T::from_f64(g * scale), &run.output, run.parallel);
            return Ok(());
        }
        let (rows, scale) = self.rows(&target, run.inputs[0].shape[1])?;
        let sum = sum_of_places::<T>(run.inputs[0], rows);
        // Of nothing the sum is 0, and the mean 0 / 0.
        let result = if target.iter().all(|&t| t == self.ignore) && self.mean {
            f64::NAN
        } else {
            sum * scale
        };
        run.output.fill_from([T::from_f64(result)]);
        Ok(())
    }
}

impl Operation for Nll {
    fn name(&self) -> &str {
        if self.back.is_some() { "nll_loss_back" } else { self.name }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (x, target) = (inputs[0], inputs[1]);
        let fits = matches!(x.dtype, DType::F32 | DType::F64)
            && target.dtype == DType::I64
            && target.shape.rank() == 1
            && match self.back {
                None => x.shape.rank() == 2 && x.shape[0] == target.shape[0],
                Some(_) => x.shape.rank() == 0,
            };
        if !fits {
            return Err(Refusal::shape(format!(
                "class numbers of {} for {}",
                target.shape, x.shape
            )));
        }
        Ok(match self.back {
            None => Meta::new((), x.dtype),
            Some(classes) => Meta::new([target.shape[0], classes], x.dtype),
        })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let targets = (inputs[1].shape.numel() as u64).saturating_mul(8);
        targets.saturating_add(output.shape.numel() as u64 / 4).saturating_add(100)
    }

    fn picks(&self) -> bool {
        self.back.is_none()
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[1])
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| {
            let back = if self.back.is_some() { None } else { Some(call.meta(0).shape[1]) };
            crate::own(Nll { back, ..*self }, &[call.upstream(), call.input(1)])
        });
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        match run.inputs[0].dtype {
            DType::F64 => self.run::<f64>(run),
            _ => self.run::<f32>(run),
        }
    }
}
