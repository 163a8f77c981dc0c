//! Convolution over two dimensions and the two products that its gradients need, which are one family:
//! the gradient of each is made of the other two.
//!
//! With `y = conv(x, w)`: [`Role::Input`] takes `(dy, w)` to the shape of `x` (it is the transposed
//! convolution), [`Role::Weight`] takes `(dy, x)` to the shape of `w`.

use crate::graph::launch::CudaRun;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::kernels::cpu::conv::{self, Geometry};
use crate::kernels::cpu::window::Window;
use crate::shape::Shape;
use crate::{Backward, TensorFuture, custom};

/// How a kernel walks over its input. Pairs are height and width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Walk {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

/// Which of the three is wanted of the other two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// `(x, w)` or `(x, w, bias)` to the output.
    Output,
    /// `(dy, w)` or `(dy, w, bias)` to what flows to an input of this height and width.
    Input([usize; 2]),
    /// `(dy, x)` to what flows to a weight of this height and width.
    Weight([usize; 2]),
}

/// A convolution of `[n, c, h, w]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conv {
    pub walk: Walk,
    pub role: Role,
}

impl Walk {
    /// How many places a window takes along an axis, where it fits.
    pub fn places(&self, axis: usize, input: usize, kernel: usize) -> Option<usize> {
        let reach = self.dilation[axis].checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        let room = input.checked_add(self.padding[axis].checked_mul(2)?)?.checked_sub(reach)?;
        Some(room / self.stride[axis] + 1)
    }

    /// All sizes, from the shapes of the input and the weight.
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry, Refusal> {
        let (&[batch, channels, ih, iw], &[outs, depth, kh, kw]) = (x, w) else {
            return Err(Refusal::shape(format!("{x:?} and {w:?}: four dimensions are needed")));
        };
        let groups = self.groups;
        if groups == 0 || depth.checked_mul(groups) != Some(channels) || outs % groups != 0 {
            let text = format!("a weight of {w:?} in {groups} groups does not fit an input of {x:?}");
            return Err(Refusal::shape(text));
        }
        // Without channels a kernel may have any size, and is walked over all the same.
        if kh == 0 || kw == 0 || kh.max(kw) > i32::MAX as usize {
            return Err(Refusal::shape(format!("a kernel of {kh} x {kw} has no elements, or too many")));
        }
        let places = |a: usize, input: usize, kernel: usize| {
            self.places(a, input, kernel).ok_or_else(|| {
                Refusal::shape(format!(
                    "a kernel of {kh} x {kw}, dilated by {:?}, is larger than the input {ih} x {iw} with its \
                     padding {:?}",
                    self.dilation, self.padding
                ))
            })
        };
        let window = Window {
            input: [ih, iw],
            kernel: [kh, kw],
            output: [places(0, ih, kh)?, places(1, iw, kw)?],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        };
        Ok(Geometry { batch, groups, channels: [depth, outs / groups], window })
    }
}

impl Conv {
    /// Sizes of the whole, and the shapes of input, weight and output.
    fn sizes(&self, a: &[usize], b: &[usize]) -> Result<(Geometry, [Shape; 3]), Refusal> {
        let four = |s: &[usize]| match *s {
            [n, c, h, w] => Ok([n, c, h, w]),
            _ => Err(Refusal::shape(format!("a shape of four dimensions is needed, not {s:?}"))),
        };
        let (a, b) = (four(a)?, four(b)?);
        let groups = self.walk.groups;
        let (x, w) = match self.role {
            Role::Output => (a, b),
            Role::Input([h, wide]) => ([a[0], b[1].saturating_mul(groups), h, wide], b),
            Role::Weight([h, wide]) => (b, [a[1], b[1].checked_div(groups).unwrap_or(0), h, wide]),
        };
        let geometry = self.walk.geometry(&x, &w)?;
        let y = [x[0], w[0], geometry.window.output[0], geometry.window.output[1]];
        if self.role != Role::Output && a != y {
            let text = format!("{a:?} is no output of {x:?} under {w:?}, which is {y:?}");
            return Err(Refusal::shape(text));
        }
        Ok((geometry, [x.into(), w.into(), y.into()]))
    }
}

impl Operation for Conv {
    fn name(&self) -> &str {
        match self.role {
            Role::Output => "conv2d",
            Role::Input(_) => "conv_transpose2d",
            Role::Weight(_) => "conv2d_weight",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (a, b) = (inputs[0], inputs[1]);
        if !a.dtype.is_float() {
            return Err(Refusal::dtype(format!("needs a floating point type, not {}", a.dtype)));
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
            return Err(Refusal::shape(format!("a bias of {} for {} channels", bias.shape, shape[1])));
        }
        Ok(Meta { shape, dtype: a.dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // Each element of the input under the weight, and of the weight under the input, meets as many.
        let (weight, places) = match self.role {
            Role::Output => (&inputs[1].shape, &output.shape),
            Role::Input(_) => (&inputs[1].shape, &inputs[0].shape),
            Role::Weight(_) => (&output.shape, &inputs[0].shape),
        };
        let depth = weight[1..].iter().fold(2u64, |depth, &n| depth.saturating_mul(n as u64));
        let time = (places.numel() as u64).saturating_mul(depth) / 30;
        // Where few places are walked to, the rest is zeros, which are written.
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

    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let inputs = run.inputs();
        let (geometry, _) = self.sizes(inputs[0].shape(), inputs[1].shape())?;
        match self.role {
            Role::Output => super::cuda::conv::forward(run, &geometry),
            Role::Input(_) => super::cuda::conv::to_input(run, &geometry),
            Role::Weight(_) => super::cuda::conv::to_weight(run, &geometry),
        }
    }

    /// Each factor's gradient is made of the other.
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let of = |i: usize, other: usize| if wanted[i] { Needs::inputs(&[other]) } else { Needs::NOTHING };
        of(0, 1).and(of(1, 0))
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let walk = self.walk;
        let asked = |role: Role, a: &TensorFuture, b: &TensorFuture| custom(Conv { walk, role }, &[a, b]);
        let plane = |call: &Backward<'_>, i: usize| {
            let shape = &call.meta(i).shape;
            [shape[2], shape[3]]
        };
        match self.role {
            Role::Output => {
                call.give(0, |call| asked(Role::Input(plane(call, 0)), call.upstream(), call.input(1)));
                call.give(1, |call| asked(Role::Weight(plane(call, 1)), call.upstream(), call.input(0)));
            }
            Role::Input(_) => {
                call.give(0, |call| asked(Role::Output, call.upstream(), call.input(1)));
                call.give(1, |call| asked(Role::Weight(plane(call, 1)), call.input(0), call.upstream()));
            }
            Role::Weight(_) => {
                call.give(0, |call| asked(Role::Output, call.input(1), call.upstream()));
                call.give(1, |call| asked(Role::Input(plane(call, 1)), call.input(0), call.upstream()));
            }
        }
        if call.operands() > 2 {
            call.give(2, |call| call.upstream().sum([0, 2, 3]));
        }
        Ok(())
    }
}
