//! Elements of images at places between them: `grid_sample` once points are counted in elements.
//! Only host devices are asked for it, or for what flows back; elsewhere, and where the gradient
//! has a gradient, both are made of elements that are picked, weighed and added.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::sample::{self, Taken};
use crate::{Backward, TensorFuture, own};

/// What is computed, of places `[batch, points]` along each dimension and some values more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Of images `[batch, channels, ..]` samples `[batch, channels, points]`.
    Samples,
    /// Of the samples' gradient the images'.
    Images,
    /// Of images and the samples' gradient that of the places, `[dimensions, batch, points]`.
    Places,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub taken: Taken,
    pub flow: Flow,
}

/// The elements around all points that are at one corner.
struct Corner {
    /// Which, of an image row by row; the first for those beyond the ends.
    at: TensorFuture,
    is_there: TensorFuture,
    /// Of each dimension, if elements are weighed.
    shares: Vec<TensorFuture>,
}

impl Corner {
    /// The weight without one dimension's share.
    #[track_caller]
    fn weight_but(&self, but: Option<usize>) -> Option<TensorFuture> {
        let shares = self.shares.iter().enumerate().filter(|(a, _)| Some(*a) != but);
        shares.map(|(_, share)| share.clone()).reduce(|w, share| w * share)
    }

    /// The elements, weighed or not. What is beyond the ends is 0 before it is weighed, so that a
    /// point that is no number makes NaN of its own result alone.
    #[track_caller]
    fn taken(&self, flat: &TensorFuture) -> TensorFuture {
        let taken = flat.gather(2, self.index(flat.dims()[1]));
        self.is_there.unsqueeze(1).where_cond(taken, 0.0)
    }

    #[track_caller]
    fn index(&self, channels: usize) -> TensorFuture {
        let (batch, points) = (self.at.dims()[0], self.at.dims()[1]);
        self.at.unsqueeze(1).expand([batch, channels, points])
    }
}

impl Sample {
    #[track_caller]
    fn corner(&self, places: &[&TensorFuture], corner: usize) -> Corner {
        let mut at = places[0].device().zeros_dtype(places[0].dims(), DType::I64);
        let (mut shares, mut is_there) = (Vec::new(), None);
        for (a, (&p, &size)) in places.iter().zip(self.taken.sizes()).enumerate() {
            let low = p.stop_gradient();
            let low = if self.taken.nearest { low.round() } else { low.floor() };
            let upper = corner >> a & 1 == 1;
            let there = if upper { &low + 1.0 } else { low.clone() };
            if !self.taken.nearest {
                shares.push(if upper { p - &low } else { &there + 1.0 - p });
            }
            let is_on = there.ge(0).logical_and(there.le(size as i64 - 1));
            let index = is_on.where_cond(there, 0.0).to_dtype(DType::I64);
            at = at * size + index;
            is_there = Some(match is_there {
                Some(all) => is_on.logical_and(&all),
                None => is_on,
            });
        }
        let is_there = is_there.unwrap_or_else(|| at.ge(0));
        Corner { at, is_there, shares }
    }

    #[track_caller]
    fn corners(&self, places: &[&TensorFuture]) -> Vec<Corner> {
        (0..self.taken.corners()).map(|corner| self.corner(places, corner)).collect()
    }

    /// Samples by ops that every device has.
    #[track_caller]
    pub fn composed(&self, places: &[&TensorFuture], x: &TensorFuture) -> TensorFuture {
        let flat = x.flatten(2, -1);
        let terms = self.corners(places).into_iter().map(|corner| {
            let taken = corner.taken(&flat);
            match corner.weight_but(None) {
                Some(weight) => taken * weight.unsqueeze(1),
                None => taken,
            }
        });
        terms.reduce(|sum, term| sum + term).unwrap_or(flat)
    }

    /// The rule by ops that have gradients.
    fn composed_gradient(&self, call: &mut Backward<'_>) {
        let n = self.taken.spatial;
        let places: Vec<&TensorFuture> = (0..n).map(|a| call.input(a)).collect();
        let (corners, flat) = (self.corners(&places), call.input(n).flatten(2, -1));
        for a in (0..n).filter(|_| !self.taken.nearest) {
            call.give(a, |call| {
                let terms = corners.iter().enumerate().map(|(k, corner)| {
                    let grown = (corner.taken(&flat) * call.upstream()).sum(1);
                    let grown = if k >> a & 1 == 1 { grown } else { -grown };
                    match corner.weight_but(Some(a)) {
                        Some(weight) => grown * weight,
                        None => grown,
                    }
                });
                terms.reduce(|sum, term| sum + term).unwrap_or_else(|| call.zeros(a))
            });
        }
        call.give(n, |call| {
            let sums = corners.iter().fold(call.zeros(n).flatten(2, -1), |sums, corner| {
                let weighed = match corner.weight_but(None) {
                    Some(weight) => call.upstream() * weight.unsqueeze(1),
                    None => call.upstream().clone(),
                };
                let there = corner.is_there.unsqueeze(1).where_cond(weighed, 0.0);
                sums.scatter_add(2, corner.index(flat.dims()[1]), there)
            });
            sums.reshape(call.meta(n).shape.dims())
        });
    }
}

impl Operation for Sample {
    fn name(&self) -> &str {
        "grid_sample"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (places, values) = inputs.split_at(self.taken.spatial);
        let (at, x, sizes) = (places[0], values[0], self.taken.sizes());
        let lead = [at.shape[0], *x.shape.get(1).unwrap_or(&0)];
        let images = [&lead[..], sizes].concat();
        let samples = [&lead[..], &[at.shape[1]]].concat();
        let (from, to): (&[&[usize]], _) = match self.flow {
            Flow::Samples => (&[&images], samples.clone()),
            Flow::Images => (&[&samples], images.clone()),
            Flow::Places => (&[&images, &samples], vec![sizes.len(), lead[0], at.shape[1]]),
        };
        let fits = matches!(x.dtype, DType::F32 | DType::F64)
            && inputs.iter().all(|meta| meta.dtype == x.dtype)
            && places.iter().all(|meta| meta.shape == at.shape)
            && values.iter().map(|meta| meta.shape.dims()).eq(from.iter().copied());
        match fits {
            true => Ok(Meta::new(&to[..], x.dtype)),
            false => Err(Refusal::shape(format!("{} of {}, {}", x.dtype, x.shape, at.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs.iter().copied().chain([output]).map(|meta| meta.shape.numel() as u64);
        let samples = match self.flow {
            Flow::Samples => output,
            _ => inputs[inputs.len() - 1],
        };
        let met = (samples.shape.numel() as u64).saturating_mul(self.taken.corners() as u64);
        all.fold(met, u64::saturating_add).saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (places, values) = run.inputs.split_at(self.taken.spatial);
        let (taken, out, par) = (&self.taken, &run.output, run.parallel);
        macro_rules! by_type {
            ($W:ident) => {
                match *values {
                    [x, dy] => sample::to_places::<$W>(taken, places, [x, dy], out, par),
                    [dy] if self.flow == Flow::Images => {
                        sample::to_images::<$W>(taken, places, dy, out, par)
                    }
                    _ => sample::sample::<$W>(taken, places, values[0], out, par),
                }
            };
        }
        match out.dtype {
            DType::F64 => by_type!(f64),
            _ => by_type!(f32),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        match (self.flow, self.taken.spatial) {
            (Flow::Samples, 2) => Needs::inputs(&[0, 1, 2]),
            (Flow::Samples, _) => Needs::inputs(&[0, 1, 2, 3]),
            _ => Needs::NOTHING,
        }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if self.flow != Flow::Samples {
            return Err(Refusal::no_gradient());
        }
        let n = self.taken.spatial;
        if call.keeps_graph() {
            self.composed_gradient(call);
            return Ok(());
        }
        let flows = |call: &Backward<'_>, flow: Flow, values: &[&TensorFuture]| {
            let places = (0..n).map(|a| call.input(a));
            let all: Vec<&TensorFuture> = places.chain(values.iter().copied()).collect();
            own(Sample { flow, ..*self }, &all)
        };
        // No place of a nearest element has a slope.
        if !self.taken.nearest && (0..n).any(|a| call.wants(a)) {
            let all = flows(call, Flow::Places, &[call.input(n), call.upstream()]);
            (0..n).for_each(|a| call.give(a, |_| all.index_dim(0, a.into())));
        }
        call.give(n, |call| flows(call, Flow::Images, &[call.upstream()]));
        Ok(())
    }
}
