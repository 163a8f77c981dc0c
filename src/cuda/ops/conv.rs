//! Convolutions on CUDA: by cuDNN where it takes them, else as products of matrices over columns.
//!
//! For such a product the elements under each output are laid below each other (`im2col`), so that
//! cuBLAS does the work; convolutions in groups have a direct kernel. The batch is cut so that
//! columns stay within bounds. Halves are added in float32, and where sums are cut, they are
//! rounded to halves once at the end.

use super::OnCuda;
use super::{cast, contiguous, copy_to, fill, operand, reread, run};
use crate::cuda::convolution::{Convolution, Side};
use crate::cuda::kernels::matmul::Product;
use crate::cuda::kernels::window::{self, Way};
use crate::cuda::kernels::{Plan, reduce};
use crate::dtype::{DType, Scalar};
use crate::graph::device_run::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::host::kernels::windows::conv::Geometry;
use crate::op::ReduceOp;
use crate::ops::windows::conv::Conv;
use crate::ops::windows::conv::Role;
use crate::shape::{Shape, Strides, contiguous_strides};

/// Most bytes of columns at a time; in this crate's tests small batches are cut, too.
const COLUMNS_MAX: usize = if cfg!(test) { 1 << 10 } else { 256 << 20 };

fn planned(plan: Option<Plan>) -> Result<Plan, Refusal> {
    plan.ok_or_else(|| Refusal::kernel("a convolution of these sizes has no CUDA kernel"))
}

/// So many images at a time have columns that fit.
fn images(batch: usize, bytes_each: usize) -> usize {
    (COLUMNS_MAX / bytes_each.max(1)).clamp(1, batch.max(1))
}

/// A part of a value along its first dimension.
fn part<'a>(view: &CudaView<'a>, start: usize, shape: &'a [usize]) -> CudaView<'a> {
    let bytes = start as isize * view.strides[0] * view.dtype.size() as isize;
    CudaView { ptr: view.ptr.wrapping_add_signed(bytes as i64), shape, ..*view }
}

fn numbers(strides: &[isize]) -> Strides {
    Strides::from_slice(strides)
}

fn multiply(
    cuda: &mut CudaRun<'_>,
    product: &Product,
    [a, b]: [u64; 2],
    out: u64,
) -> Result<(), Refusal> {
    let view = |ptr| CudaView { ptr, dtype: product.dtype, shape: &[], strides: &[] };
    let to = CudaViewMut { ptr: out, dtype: product.dtype, shape: &[] };
    cuda.work(product, &[view(a), view(b)], &[to])
}

/// The type that sums over several kernels are kept in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Puts the bias into the result, where there is one: sums begin with it, so that the whole is
/// rounded once. True where it did.
fn begin(cuda: &mut CudaRun<'_>) -> Result<bool, Refusal> {
    let (out, bias) = (cuda.output(), cuda.inputs().get(2).copied());
    let Some(bias) = bias else { return Ok(false) };
    let each = [0, bias.strides[0], 0, 0, 0];
    copy_to(cuda, CudaView { shape: out.shape, strides: &each[..out.shape.len()], ..bias }, out)?;
    Ok(true)
}

/// Has a library compute it, where there is one that takes it: from operands in the order that
/// `side` says. True where it does.
fn by_library(
    cuda: &mut CudaRun<'_>,
    side: Side,
    geo: &Geometry,
    [a, b]: [CudaView<'_>; 2],
) -> Result<bool, Refusal> {
    let (out, adds) = (cuda.output(), cuda.inputs().len() > 2);
    let asked = Convolution { dtype: out.dtype, side, geometry: *geo, adds };
    // cuDNN rounds the gradient of an input to halves, adds, and rounds again.
    let rounds_twice = adds && side == Side::Input && out.dtype != DType::F32;
    // Products of float64 have tensor cores of their own.
    if out.dtype == DType::F64 || rounds_twice || !cuda.queue.takes(&asked)? {
        return Ok(false);
    }
    begin(cuda)?;
    let mut lent: [Strides; 2] = Default::default();
    let [for_a, for_b] = &mut lent;
    let (a, b) = (contiguous(cuda, a, for_a)?, contiguous(cuda, b, for_b)?);
    cuda.work(&asked, &[a, b], &[out])?;
    Ok(true)
}

/// The step between all elements of a plane, where there is one.
fn even(x: &CudaView<'_>) -> Option<isize> {
    let last = *x.strides.last()?;
    let mut next = last;
    for (&size, &step) in x.shape[2..].iter().zip(&x.strides[2..]).rev() {
        if size != 1 && step != next {
            return None;
        }
        next *= size as isize;
    }
    Some(last)
}

/// `y[n, o, p] = bias[o] + sum over c and taps of w[o, c, tap] x[n, c, p under tap]`.
fn forward(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (inputs, out, window) = (cuda.inputs(), cuda.output(), &geo.window);
    let (x, w) = (inputs[0], inputs[1]);
    let [depth, outs] = geo.channels;
    if out.numel() == 0 {
        return Ok(());
    }
    // A kernel of one element on planes without gaps: the value is its own columns.
    let plain = window.taps() == 1 && window.stride == [1; 3] && window.padding == [[0; 2]; 3];
    let columns = even(&x).filter(|_| plain && geo.groups == 1);
    if columns.is_none() && by_library(cuda, Side::Output, geo, [x, w])? {
        return Ok(());
    }
    let adds = begin(cuda)?;
    if geo.groups > 1 {
        let strides = [x.strides, w.strides];
        let way = Way::Forward { adds };
        let plan =
            window::convolve(x.dtype, way, [geo.batch, geo.groups], geo.channels, window, strides);
        run(cuda, planned(plan)?, &[x, w], &[out])?;
    } else {
        let mut lent = Strides::new();
        let w = contiguous(cuda, w, &mut lent)?;
        let (rows, places, size) = (depth * window.taps(), window.places(), x.dtype.size());
        let product = |images: usize, b: Strides| Product {
            dtype: x.dtype,
            to: x.dtype,
            batch: Shape::from(images),
            m: outs,
            k: rows,
            n: places,
            a: numbers(&[0, rows as isize, 1]),
            b,
            adds,
        };
        if let Some(step) = columns {
            let b = numbers(&[x.strides[0], x.strides[1], step]);
            multiply(cuda, &product(geo.batch, b), [w.ptr, x.ptr], out.ptr)?;
        } else {
            let each = rows * places;
            let most = images(geo.batch, each * size);
            let columns = cuda.scratch(most * each * size)?;
            for start in (0..geo.batch).step_by(most) {
                let count = most.min(geo.batch - start);
                let plan =
                    window::columns(x.dtype, [count, depth], window, x.strides, places, each);
                let to = CudaViewMut { ptr: columns, dtype: x.dtype, shape: &[] };
                run(cuda, planned(plan)?, &[part(&x, start, x.shape)], &[to])?;
                let b = numbers(&[each as isize, places as isize, 1]);
                let at = out.ptr + (start * outs * places * size) as u64;
                multiply(cuda, &product(count, b), [w.ptr, columns], at)?;
            }
        }
    }
    Ok(())
}

/// From `(dy, w)`, and perhaps a bias, the gradient of the input: the transposed convolution.
fn to_input(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (inputs, out, window) = (cuda.inputs(), cuda.output(), &geo.window);
    let (dy, w) = (inputs[0], inputs[1]);
    let [depth, outs] = geo.channels;
    if out.numel() == 0 || by_library(cuda, Side::Input, geo, [w, dy])? {
        return Ok(());
    }
    let adds = begin(cuda)?;
    if geo.groups > 1 {
        let (strides, way) = ([dy.strides, w.strides], Way::Back { adds });
        let plan =
            window::convolve(dy.dtype, way, [geo.batch, geo.groups], geo.channels, window, strides);
        return run(cuda, planned(plan)?, &[dy, w], &[out]);
    }
    // Products of halves are added, and then added up, in float32.
    let (dtype, to) = (dy.dtype, wide(dy.dtype));
    let mut lent: [Strides; 2] = Default::default();
    let [for_w, for_dy] = &mut lent;
    let (w, dy) = (contiguous(cuda, w, for_w)?, contiguous(cuda, dy, for_dy)?);
    let (rows, places, size) = (depth * window.taps(), window.places(), to.size());
    let each = rows * places;
    let most = images(geo.batch, each * size);
    let columns = cuda.scratch(most * each * size)?;
    let plane = depth * window.room() * out.dtype.size();
    for start in (0..geo.batch).step_by(most) {
        let count = most.min(geo.batch - start);
        let product = Product {
            dtype,
            to,
            batch: Shape::from(count),
            m: rows,
            k: outs,
            n: places,
            a: numbers(&[0, 1, rows as isize]),
            b: numbers(&[(outs * places) as isize, places as isize, 1]),
            adds: false,
        };
        let from = dy.ptr + (start * outs * places * dtype.size()) as u64;
        multiply(cuda, &product, [w.ptr, from], columns)?;
        let view = CudaView { ptr: columns, dtype: to, shape: &[], strides: &[] };
        let image = CudaViewMut { ptr: out.ptr + (start * plane) as u64, ..out };
        let plan = window::from_columns(to, out.dtype, [count, depth], window, adds);
        run(cuda, planned(plan)?, &[view], &[image])?;
    }
    Ok(())
}

/// From `(dy, x)` the gradient of the weight.
fn to_weight(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (inputs, out, window) = (cuda.inputs(), cuda.output(), &geo.window);
    let [depth, outs] = geo.channels;
    let (channels, all) = (geo.groups * depth, geo.groups * outs);
    if out.numel() == 0 {
        return Ok(());
    }
    let (rows, places) = (depth * window.taps(), window.places());
    if geo.batch * places == 0 {
        return fill(cuda, Scalar::Int(0), out);
    }
    if by_library(cuda, Side::Weight, geo, [inputs[1], inputs[0]])? {
        return Ok(());
    }
    let (dy, x, dtype) = (inputs[0], inputs[1], out.dtype);
    let size = dtype.size();
    let most = images(geo.batch, (geo.groups * rows + all) * places * size);
    let columns = cuda.scratch(geo.groups * rows * most * places * size)?;
    let turned = cuda.scratch(all * most * places * size)?;
    // A sum over the batch for each cut of it, and the sum of those: of halves in float32.
    let (cuts, weight) = (geo.batch.div_ceil(most), out.numel());
    let to = if cuts == 1 { dtype } else { wide(dtype) };
    let sums = if cuts == 1 { out.ptr } else { cuda.scratch(cuts * weight * to.size())? };
    for (cut, start) in (0..geo.batch).step_by(most).enumerate() {
        let count = most.min(geo.batch - start);
        let deep = count * places;
        let plan = window::columns(dtype, [count, channels], window, x.strides, deep, places);
        let below = CudaViewMut { ptr: columns, dtype, shape: &[] };
        run(cuda, planned(plan)?, &[part(&x, start, x.shape)], &[below])?;
        // The same order of places in `dy`: channels first.
        let shape: Shape = [all, count].into_iter().chain(dy.shape[2..].iter().copied()).collect();
        let mut strides = numbers(dy.strides);
        strides.swap(0, 1);
        let view = CudaView { shape: &shape, strides: &strides, ..part(&dy, start, dy.shape) };
        copy_to(cuda, view, CudaViewMut { ptr: turned, dtype, shape: &shape })?;
        let deep = deep as isize;
        let product = Product {
            dtype,
            to,
            batch: Shape::from(geo.groups),
            m: outs,
            k: deep as usize,
            n: rows,
            a: numbers(&[outs as isize * deep, deep, 1]),
            b: numbers(&[rows as isize * deep, 1, deep]),
            adds: false,
        };
        multiply(cuda, &product, [turned, columns], sums + (cut * weight * to.size()) as u64)?;
    }
    if cuts == 1 {
        return Ok(());
    }
    let (shape, strides) = ([cuts, weight], [weight as isize, 1]);
    let view = CudaView { ptr: sums, dtype: to, shape: &shape, strides: &strides };
    let total = match to == dtype {
        true => out,
        false => {
            CudaViewMut { ptr: cuda.scratch(weight * to.size())?, dtype: to, shape: out.shape }
        }
    };
    let plan = reduce::plan(
        ReduceOp::Sum,
        &reduce::identity(to),
        &shape,
        &[true, false],
        &[operand(&view)],
    );
    run(cuda, planned(plan)?, &[view], &[total])?;
    if to != dtype {
        let strides = contiguous_strides(total.shape);
        cast(cuda, reread(total, &strides), out)?;
    }
    Ok(())
}

impl OnCuda for Conv {
    fn queue(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let inputs = run.inputs();
        let (geometry, _) = self.sizes(inputs[0].shape(), inputs[1].shape())?;
        match self.role {
            Role::Output => forward(run, &geometry),
            Role::Input(_) => to_input(run, &geometry),
            Role::Weight(_) => to_weight(run, &geometry),
        }
    }
}
