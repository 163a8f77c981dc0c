//! Ops over whole rows: softmax and its relatives, and the norms of layers.

use crate::Backward;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::softmax;
use crate::shape::Shape;

fn float(meta: &Meta) -> Result<(), Refusal> {
    match meta.dtype.is_float() {
        true => Ok(()),
        false => Err(Refusal::dtype(format!("needs a floating point type, not {}", meta.dtype))),
    }
}

fn dim_of(shape: &Shape, dim: isize) -> Result<usize, Refusal> {
    shape.dim(dim).ok_or_else(|| Refusal::index(format!("dimension {dim} is out of range for shape {shape}")))
}

/// Three passes over a row in cache, one of them with an exponential.
fn row_cost(meta: &Meta) -> u64 {
    (meta.shape.numel() as u64).saturating_mul(2).saturating_add(100)
}

/// A dimension of the view that a kernel is given: it was checked when the op was called.
pub(crate) fn checked(dim: isize, rank: usize) -> usize {
    if dim < 0 { (dim + rank as isize) as usize } else { dim as usize }
}

/// `softmax` and `log_softmax`.
pub(crate) struct Softmax {
    pub dim: isize,
    pub log: bool,
}

impl Operation for Softmax {
    fn name(&self) -> &str {
        if self.log { "log_softmax" } else { "softmax" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        float(inputs[0])?;
        if inputs[0].shape.rank() > 0 || !matches!(self.dim, 0 | -1) {
            dim_of(&inputs[0].shape, self.dim)?;
        }
        Ok(inputs[0].clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        row_cost(output)
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::OUTPUT
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (g, y) = (call.upstream(), call.output());
            if g.rank() == 0 {
                // One number is a row of one, and always 1 (or log 1).
                return g.mul(0);
            }
            match self.log {
                true => g.sub(y.exp().mul(g.sum_keepdim(dim))),
                false => y.mul(g.sub(g.mul(y).sum_keepdim(dim))),
            }
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let mut x = run.inputs[0];
        let mut out = run.output_again();
        if x.shape.is_empty() {
            // One number is a row of one.
            (x.shape, x.strides) = (&[1], &[1]);
            out.shape = &[1];
        }
        softmax::softmax(x, checked(self.dim, x.shape.len()), self.log, &out, run.parallel);
        Ok(())
    }
}

/// `logsumexp` over one dimension.
pub(crate) struct LogSumExp {
    pub dim: isize,
    pub keepdim: bool,
}

impl Operation for LogSumExp {
    fn name(&self) -> &str {
        "logsumexp"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        float(inputs[0])?;
        if inputs[0].shape.rank() == 0 && matches!(self.dim, 0 | -1) {
            return Ok(inputs[0].clone());
        }
        let dim = dim_of(&inputs[0].shape, self.dim)?;
        let keep = |(d, &n): (usize, &usize)| if d != dim { Some(n) } else { self.keepdim.then_some(1) };
        let shape = inputs[0].shape.iter().enumerate().filter_map(keep).collect();
        Ok(Meta { shape, dtype: inputs[0].dtype })
    }
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // Rows of nothing have results all the same.
        row_cost(inputs[0]).max(row_cost(output))
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0]).and_output()
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let dim = self.dim;
        call.give(0, |call| {
            let (x, y, g) = (call.input(0), call.output(), call.upstream());
            if x.rank() == 0 {
                return g.clone();
            }
            let kept = |t: &crate::TensorFuture| {
                if self.keepdim { t.clone() } else { t.unsqueeze(checked(dim, x.rank()) as isize) }
            };
            // A row of -inf has no softmax; its gradient is zero.
            let y = kept(y);
            let y = y.eq(f64::NEG_INFINITY).where_cond(0.0, &y);
            x.sub(y).exp().mul(kept(g))
        });
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let mut x = run.inputs[0];
        if x.shape.is_empty() {
            (x.shape, x.strides) = (&[1], &[1]);
        }
        softmax::logsumexp(x, checked(self.dim, x.shape.len()), &run.output, run.parallel);
        Ok(())
    }
}

/// `layer_norm` and `rms_norm` over the trailing dimensions. The inputs are the value, then the weight
/// and the bias, as far as there are any.
pub(crate) struct Norm {
    pub trailing: usize,
    pub eps: f64,
    pub weight: bool,
    pub bias: bool,
    /// Subtract the mean: a layer norm.
    pub centred: bool,
}

impl Operation for Norm {
    fn name(&self) -> &str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        float(inputs[0])?;
        let shape = &inputs[0].shape;
        if self.trailing == 0 || self.trailing > shape.rank() {
            return Err(Refusal::shape(format!(
                "cannot take {} trailing dimensions of {shape}",
                self.trailing
            )));
        }
        let row = &shape[shape.rank() - self.trailing..];
        for parameter in &inputs[1..] {
            float(parameter)?;
            if parameter.shape[..] != *row {
                let text = format!("weight or bias of shape {} for rows of {row:?}", parameter.shape);
                return Err(Refusal::shape(text));
            }
        }
        Ok(inputs[0].clone())
    }
    fn estimate_ns(&self, _: &[&Meta], output: &Meta) -> u64 {
        row_cost(output)
    }
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let bias = 1 + self.weight as usize;
        if (0..wanted.len()).all(|i| !wanted[i] || self.bias && i == bias) {
            return Needs::NOTHING;
        }
        if self.weight && wanted[0] { Needs::inputs(&[0, 1]) } else { Needs::inputs(&[0]) }
    }
    /// With `n = (x - mean) / deviation`, `dn = g * weight`: `dx = (dn - mean(dn) - n mean(dn n)) / deviation`
    /// over each row; without the means of `x` and `dn` where it is not centred.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let rows: Vec<isize> = (1..=self.trailing as isize).map(|d| -d).collect();
        let (eps, trailing) = (self.eps, self.trailing);
        let normal = |call: &Backward<'_>| match self.centred {
            true => call.input(0).layer_norm_plain(trailing, eps),
            false => call.input(0).rms_norm_plain(trailing, eps),
        };
        let needs_normal = call.wants(0) || self.weight && call.wants(1);
        let n = needs_normal.then(|| normal(call));
        call.give(0, |call| {
            let (x, g) = (call.input(0), call.upstream());
            let Some(n) = &n else { return g.clone() };
            let dn = if self.weight { g.mul(call.input(1)) } else { g.clone() };
            let along = n.mul(dn.mul(n).mean_keepdim(&rows[..]));
            match self.centred {
                true => {
                    let centred = x.sub(x.mean_keepdim(&rows[..]));
                    let variance = centred.square().mean_keepdim(&rows[..]);
                    dn.sub(dn.mean_keepdim(&rows[..])).sub(along).mul(variance.add(eps).rsqrt())
                }
                false => dn.sub(along).mul(x.square().mean_keepdim(&rows[..]).add(eps).rsqrt()),
            }
        });
        if self.weight {
            call.give(1, |call| n.as_ref().map_or_else(|| call.zeros(1), |n| n.mul(call.upstream())));
        }
        if self.bias {
            call.give(1 + self.weight as usize, |call| call.upstream().clone());
        }
        Ok(())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let weight = self.weight.then(|| run.inputs[1]);
        let bias = self.bias.then(|| run.inputs[1 + self.weight as usize]);
        let (x, out, par) = (run.inputs[0], &run.output, run.parallel);
        if self.centred {
            softmax::layer_norm(x, self.trailing, weight, bias, self.eps, out, par);
        } else {
            softmax::rms_norm(x, self.trailing, weight, self.eps, out, par);
        }
        Ok(())
    }
}
