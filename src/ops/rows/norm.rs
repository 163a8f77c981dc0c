//! The norms of layers.

use crate::Backward;
use crate::error::number_of;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows;
use crate::ops::check::{float, row_cost};
use crate::ops::rows::norm_back::{FlowsTo, NormBack};
use crate::shape::Shape;

/// `layer_norm` and `rms_norm` over the trailing dimensions. The inputs are the value, then the
/// weight and the bias, as far as there are any.
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
                "cannot take the last {} of {shape}",
                number_of(self.trailing, "dimension", "dimensions")
            )));
        }
        let row = &shape[shape.rank() - self.trailing..];
        for parameter in &inputs[1..] {
            float(parameter)?;
            if parameter.shape[..] != *row {
                let text =
                    format!("weight or bias of shape {} for rows of {row:?}", parameter.shape);
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
    /// With `n = (x - mean) / deviation`, `dn = g * weight`: `dx = (dn - mean(dn) - n mean(dn n)) /
    /// deviation` over each row; without the means of `x` and `dn` where it is not centred.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let rows: Vec<isize> = (1..=self.trailing as isize).map(|d| -d).collect();
        let (eps, trailing) = (self.eps, self.trailing);
        let normal = |call: &Backward<'_>| match self.centred {
            true => call.input(0).layer_norm_plain(trailing, eps),
            false => call.input(0).rms_norm_plain(trailing, eps),
        };
        let one = NormBack { trailing, eps, centred: self.centred, flows: FlowsTo::Value };
        if !call.keeps_graph() && call.upstream().port().runner.has_kernel(&one) {
            return self.at_once(call, one);
        }
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
            call.give(1, |call| {
                n.as_ref().map_or_else(|| call.zeros(1), |n| n.mul(call.upstream()))
            });
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
            rows::layer_norm(x, self.trailing, weight, bias, self.eps, out, par);
        } else {
            rows::rms_norm(x, self.trailing, weight, self.eps, out, par);
        }
        Ok(())
    }
}

impl Norm {
    /// The rule by one op for the value and one for the parameters, or, where there are many rows,
    /// one for both.
    fn at_once(&self, call: &mut Backward<'_>, one: NormBack) -> Result<(), Refusal> {
        let of = |flows: FlowsTo, inputs: &[&_]| crate::own(NormBack { flows, ..one }, inputs);
        let bias = 1 + self.weight as usize;
        let wants_sums = self.weight && call.wants(1);
        let x = call.meta(0).shape.clone();
        let row: Shape = x[x.rank() - self.trailing..].iter().copied().collect();
        let (value, sums) = if wants_sums
            && call.wants(0)
            && x.numel() >= rows::ALL_FROM.saturating_mul(row.numel().max(1))
        {
            let all = of(FlowsTo::All, &[call.upstream(), call.input(0), call.input(1)]);
            let value = all.narrow(0, 0, x.numel()).reshape(&x[..]);
            let mut shape = vec![2];
            shape.extend(&row[..]);
            // In memory of their own: a weight's gradient lives longer than that of a value.
            let sums = all.narrow(0, x.numel(), 2 * row.numel()).mul(1).reshape(&shape[..]);
            (Some(value), Some(sums))
        } else {
            let sums =
                wants_sums.then(|| of(FlowsTo::Parameters, &[call.upstream(), call.input(0)]));
            (None, sums)
        };
        call.give(0, |call| {
            let (g, x) = (call.upstream(), call.input(0));
            match value {
                Some(value) => value,
                None if self.weight => of(FlowsTo::Value, &[g, x, call.input(1)]),
                None => of(FlowsTo::Value, &[g, x]),
            }
        });
        if let Some(sums) = &sums {
            call.give(1, |_| sums.narrow(0, 0, 1).squeeze(0));
        }
        if self.bias {
            call.give(bias, |call| match &sums {
                Some(sums) => sums.narrow(0, 1, 1).squeeze(0),
                None => call.upstream().clone(),
            });
        }
        Ok(())
    }
}
