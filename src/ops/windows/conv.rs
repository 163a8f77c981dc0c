//! Convolution over one, two or three dimensions, and the two products that its gradients need. The
//! three form one family: the gradient of each consists of the other two.
//!
//! With `y = conv(x, w)`: [`Role::Input`] takes `(dy, w)` to the shape of `x` (it is the transposed
//! convolution), [`Role::Weight`] takes `(dy, x)` to the shape of `w`.

use crate::error::number_of;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::conv::{self, Geometry};
use crate::shape::Shape;
use crate::window::{Window, padding_shown, places, triple};
use crate::{Backward, TensorFuture, own};

/// How a kernel moves over its input. Triples are depth, height and width, as for a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Walk {
    /// The number of spatial dimensions: one, two or three.
    pub spatial: usize,
    pub stride: [usize; 3],
    /// The padding before and after the input.
    pub padding: [[usize; 2]; 3],
    pub dilation: [usize; 3],
    pub groups: usize,
}

/// Which of the three values is computed from the other two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// `(x, w)` or `(x, w, bias)` to the output.
    Output,
    /// `(dy, w)` or `(dy, w, bias)` to the gradient of an input of this depth, height and width.
    Input([usize; 3]),
    /// `(dy, x)` to the gradient of a weight of this depth, height and width.
    Weight([usize; 3]),
}

/// A convolution of `[n, c, ..]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conv {
    pub walk: Walk,
    pub role: Role,
}

impl Walk {
    /// The number of positions of a window along an axis, if it fits.
    pub fn places(&self, axis: usize, input: usize, kernel: usize) -> Option<usize> {
        places(input, kernel, self.stride[axis], self.padding[axis], self.dilation[axis], false)
    }

    /// The part of a triple that belongs to existing dimensions.
    pub fn own<'a, T>(&self, all: &'a [T; 3]) -> &'a [T] {
        &all[3 - self.spatial..]
    }

    /// `[first, second, ..]`, with the sizes of the existing dimensions.
    fn shape(&self, lead: [usize; 2], size: &[usize; 3]) -> Shape {
        lead.into_iter().chain(self.own(size).iter().copied()).collect()
    }

    /// All sizes, computed from the shapes of the input and the weight.
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry, Refusal> {
        let (batch, channels, input) = (x[0], x[1], triple(&x[2..], 1));
        let (outs, depth, kernel) = (w[0], w[1], triple(&w[2..], 1));
        let groups = self.groups;
        if groups == 0 || Some(channels) != depth.checked_mul(groups) || outs % groups != 0 {
            let groups = number_of(groups, "group", "groups");
            let text = format!("a weight of {w:?} in {groups} does not fit an input of {x:?}");
            return Err(Refusal::shape(text));
        }
        // Without channels a kernel may have any size, and loops still run over it.
        if kernel.iter().any(|&n| n == 0 || n > i32::MAX as usize) {
            return Err(Refusal::shape(format!(
                "a kernel of {:?} has no elements, or too many",
                &w[2..]
            )));
        }
        let mut output = [1; 3];
        for a in 0..3 {
            output[a] = self.places(a, input[a], kernel[a]).ok_or_else(|| {
                Refusal::shape(format!(
                    "a kernel of {:?}, dilated by {:?}, is larger than the input {:?} with its \
                     padding {}",
                    &w[2..],
                    self.own(&self.dilation),
                    &x[2..],
                    padding_shown(self.own(&self.padding))
                ))
            })?;
        }
        let Walk { spatial, stride, padding, dilation, .. } = *self;
        let window = Window { spatial, input, kernel, output, stride, padding, dilation };
        Ok(Geometry { batch, groups, channels: [depth, outs / groups], window })
    }
}

impl Conv {
    /// All sizes, and the shapes of input, weight and output.
    pub fn sizes(&self, a: &[usize], b: &[usize]) -> Result<(Geometry, [Shape; 3]), Refusal> {
        let (walk, rank) = (&self.walk, self.walk.spatial + 2);
        if let Some(other) = [a, b].into_iter().find(|s| s.len() != rank) {
            return Err(Refusal::shape(format!(
                "a shape of {rank} dimensions is needed, not {other:?}"
            )));
        }
        let groups = walk.groups;
        let channels = || {
            b[1].checked_mul(groups)
                .ok_or_else(|| Refusal::shape(format!("too many groups: {groups}")))
        };
        let (x, w) = match &self.role {
            Role::Output => (Shape::from(a), Shape::from(b)),
            Role::Input(size) => (walk.shape([a[0], channels()?], size), Shape::from(b)),
            Role::Weight(size) => {
                (Shape::from(b), walk.shape([a[1], b[1].checked_div(groups).unwrap_or(0)], size))
            }
        };
        let geometry = walk.geometry(&x, &w)?;
        let y = walk.shape([x[0], w[0]], &geometry.window.output);
        if self.role != Role::Output && a[..] != y[..] {
            let text = format!("{a:?} is no output of {x:?} under {w:?}, which is {y:?}");
            return Err(Refusal::shape(text));
        }
        Ok((geometry, [x, w, y]))
    }
}

impl Operation for Conv {
    fn name(&self) -> &str {
        let [one, two, three] = match self.role {
            Role::Output => ["conv1d", "conv2d", "conv3d"],
            Role::Input(_) => ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
            Role::Weight(_) => ["conv1d_weight", "conv2d_weight", "conv3d_weight"],
        };
        match self.walk.spatial {
            1 => one,
            2 => two,
            _ => three,
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (a, b) = (inputs[0], inputs[1]);
        if !a.dtype.is_float() {
            return Err(Refusal::not_float(a.dtype));
        }
        if let Some(other) = inputs[1..].iter().find(|m| m.dtype != a.dtype) {
            return Err(Refusal::dtype(format!("types differ: {} and {}", a.dtype, other.dtype)));
        }
        let (_, [x, w, y]) = self.sizes(&a.shape, &b.shape)?;
        let shape = match self.role {
            Role::Output => y,
            Role::Input(_) => x,
            Role::Weight(_) => w,
        };
        if let Some(bias) = inputs.get(2)
            && bias.shape[..] != [shape[1]]
        {
            let channels = number_of(shape[1], "channel", "channels");
            return Err(Refusal::shape(format!("a bias of {} for {channels}", bias.shape)));
        }
        Ok(Meta { shape, dtype: a.dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // The number of products is the same in all roles: `weight[1..]` for each output position.
        let (weight, places) = match self.role {
            Role::Output => (&inputs[1].shape, &output.shape),
            Role::Input(_) => (&inputs[1].shape, &inputs[0].shape),
            Role::Weight(_) => (&output.shape, &inputs[0].shape),
        };
        let depth = weight[1..].iter().fold(2u64, |depth, &n| depth.saturating_mul(n as u64));
        let time = (places.numel() as u64).saturating_mul(depth) / 30;
        // If the window has few positions, the rest of the result is zeros, which still have to be
        // written.
        time.max(output.shape.numel() as u64 / 4).saturating_add(500)
    }

    fn takes_epilogue(&self) -> bool {
        true
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        if run.output.numel() == 0 {
            return Ok(());
        }
        let (a, b) = (run.inputs[0], run.inputs[1]);
        let (geometry, _) = self.sizes(a.shape, b.shape)?;
        let (out, par) = (&run.output, run.parallel);
        let bias = run.inputs.get(2).copied();
        match self.role {
            Role::Output => conv::forward(&geometry, a, b, bias, out, par),
            Role::Input(_) => conv::to_input(&geometry, a, b, bias, out, par),
            Role::Weight(_) => conv::to_weight(&geometry, a, b, out, par),
        }
        Ok(())
    }

    /// The gradient of each factor needs the other factor.
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let of = |i: usize, other: usize| {
            if wanted[i] { Needs::inputs(&[other]) } else { Needs::NOTHING }
        };
        of(0, 1).and(of(1, 0)).as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let walk = self.walk;
        let asked =
            |role: Role, a: &TensorFuture, b: &TensorFuture| own(Conv { walk, role }, &[a, b]);
        let size = |call: &Backward<'_>, i: usize| triple(&call.meta(i).shape[2..], 1);
        match self.role {
            Role::Output => {
                call.give(0, |call| {
                    asked(Role::Input(size(call, 0)), call.upstream(), call.input(1))
                });
                call.give(1, |call| {
                    asked(Role::Weight(size(call, 1)), call.upstream(), call.input(0))
                });
            }
            Role::Input(_) => {
                call.give(0, |call| asked(Role::Output, call.upstream(), call.input(1)));
                call.give(1, |call| {
                    asked(Role::Weight(size(call, 1)), call.input(0), call.upstream())
                });
            }
            Role::Weight(_) => {
                call.give(0, |call| asked(Role::Output, call.input(1), call.upstream()));
                call.give(1, |call| {
                    asked(Role::Input(size(call, 1)), call.input(0), call.upstream())
                });
            }
        }
        if call.operands() > 2 {
            call.give(2, |call| call.upstream().sum(&[0, 2, 3, 4][..walk.spatial + 1]));
        }
        Ok(())
    }
}
