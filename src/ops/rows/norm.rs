//! The norms of layers.

use crate::error::number_of;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::rows;
use crate::ops::check::{float, row_cost};
use crate::ops::rows::norm_back::{FlowsTo, NormBack};
use crate::shape::Shape;
use crate::{Backward, TensorFuture};
use smallvec::SmallVec;

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
        let needs = match (0..wanted.len()).all(|i| !wanted[i] || self.bias && i == bias) {
            true => Needs::NOTHING,
            false if self.weight && wanted[0] => Needs::inputs(&[0, 1]),
            false => Needs::inputs(&[0]),
        };
        needs.as_they_are()
    }
    /// With `n = (x - mean) / deviation`, `dn = g * weight`: `dx = (dn - mean(dn) - n mean(dn n)) /
    /// deviation` over each row; without the means of `x` and `dn` where it is not centred.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let (eps, trailing) = (self.eps, self.trailing);
        let one = NormBack { trailing, eps, centred: self.centred, flows: FlowsTo::Value };
        let at_once = !call.keeps_graph() && call.upstream().port().runner.has_kernel(&one);
        // The kernel computes in float32 and gives what it was given. A parameter in float32 beside
        // halves has a gradient in float32.
        let parameters = self.weight as usize + self.bias as usize;
        let alike = (1..=parameters).all(|i| call.meta(i).dtype == call.meta(0).dtype);
        let seen = |x: &TensorFuture| if at_once && alike { x.clone() } else { x.wide() };
        let reads = call.wants(0) || self.weight && call.wants(1);
        let read = Read {
            g: seen(call.upstream()),
            x: reads.then(|| seen(call.input(0))),
            weight: (self.weight && call.wants(0)).then(|| seen(call.input(1))),
        };
        if at_once { self.at_once(call, one, &read) } else { self.by_ops(call, &read) }
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

/// What the rule reads, as far as it is needed.
struct Read {
    g: TensorFuture,
    x: Option<TensorFuture>,
    weight: Option<TensorFuture>,
}

impl Norm {
    /// The rule by ops that every device has, and that have gradients themselves.
    fn by_ops(&self, call: &mut Backward<'_>, read: &Read) -> Result<(), Refusal> {
        let rows: Vec<isize> = (1..=self.trailing as isize).map(|d| -d).collect();
        let (eps, trailing) = (self.eps, self.trailing);
        let g = &read.g;
        let both = read.x.as_ref().map(|x| match self.centred {
            true => (x, x.layer_norm_plain(trailing, eps)),
            false => (x, x.rms_norm_plain(trailing, eps)),
        });
        call.give(0, |_| {
            let Some((x, n)) = &both else { return g.clone() };
            let dn = read.weight.as_ref().map_or_else(|| g.clone(), |weight| g.mul(weight));
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
            call.give(1, |call| both.as_ref().map_or_else(|| call.zeros(1), |(_, n)| n.mul(g)));
        }
        if self.bias {
            call.give(1 + self.weight as usize, |_| g.clone());
        }
        Ok(())
    }

    /// The rule by one op for the value and one for the parameters, or, where there are many rows,
    /// one for both.
    fn at_once(&self, call: &mut Backward<'_>, one: NormBack, read: &Read) -> Result<(), Refusal> {
        let Read { g, x, weight } = read;
        let of = |flows: FlowsTo, weight: &Option<TensorFuture>| {
            let inputs: SmallVec<[&TensorFuture; 3]> =
                [Some(g), x.as_ref(), weight.as_ref()].into_iter().flatten().collect();
            crate::own(NormBack { flows, ..one }, &inputs)
        };
        let bias = 1 + self.weight as usize;
        let wants_sums = self.weight && call.wants(1);
        let shape = call.meta(0).shape.clone();
        let row: Shape = shape[shape.rank() - self.trailing..].iter().copied().collect();
        let (value, sums) = if wants_sums
            && call.wants(0)
            && shape.numel() >= rows::ALL_FROM.saturating_mul(row.numel().max(1))
        {
            let all = of(FlowsTo::All, weight);
            let value = all.narrow(0, 0, shape.numel()).reshape(&shape[..]);
            let mut both = vec![2];
            both.extend(&row[..]);
            // In memory of their own: a weight's gradient lives longer than that of a value.
            let sums = all.narrow(0, shape.numel(), 2 * row.numel()).mul(1).reshape(&both[..]);
            (Some(value), Some(sums))
        } else {
            (None, wants_sums.then(|| of(FlowsTo::Parameters, &None)))
        };
        call.give(0, |_| value.unwrap_or_else(|| of(FlowsTo::Value, weight)));
        if let Some(sums) = &sums {
            call.give(1, |_| sums.narrow(0, 0, 1).squeeze(0));
        }
        if self.bias {
            call.give(bias, |_| match &sums {
                Some(sums) => sums.narrow(0, 1, 1).squeeze(0),
                None => g.clone(),
            });
        }
        Ok(())
    }
}
