//! Convolutions and pooling on CUDA: columns and matrix products, a slice of the batch at a time so that scratch
//! memory stays bounded.
//!
//! Halves are multiplied as they are where the product is the result (the bias is one more row of the product, so
//! that they are rounded once), and in float32 where products are added up afterwards.

use super::{cast, contiguous, converted, fill, operand, reread, run};
use crate::dtype::{DType, Scalar};
use crate::graph::launch::{CudaRun, CudaView, CudaViewMut};
use crate::graph::operation::Refusal;
use crate::graph::program::{Arg, Code, Program};
use crate::kernels::cpu::conv::Geometry;
use crate::kernels::cuda::matmul::Product;
use crate::kernels::cuda::window::{Columns, Key, fold, pool};
use crate::kernels::cuda::{Operand, copy};
use crate::kernels::window::{Divisor, Window};
use crate::op::BinaryOp;
use crate::shape::{Shape, Strides, contiguous_strides};

/// Most bytes of columns at a time, unless one image has more.
const COLUMNS_BYTES: usize = 256 << 20;

/// The type in which products that are added up are computed.
fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Images of a batch in lots whose columns fit: their starts and sizes.
fn lots(batch: usize, bytes_each: usize) -> impl Iterator<Item = (usize, usize)> {
    let most = (COLUMNS_BYTES / bytes_each.max(1)).clamp(1, batch.max(1));
    (0..batch).step_by(most).map(move |start| (start, most.min(batch - start)))
}

/// Largest lot.
fn largest(batch: usize, bytes_each: usize) -> usize {
    lots(batch, bytes_each).map(|(_, n)| n).max().unwrap_or(0)
}

/// Images from `start` on, `n` of them, with a shape that the caller lends.
fn images<'a>(view: &CudaView<'a>, start: usize, shape: &'a [usize]) -> CudaView<'a> {
    let bytes = start as isize * view.strides[0] * view.dtype.size() as isize;
    CudaView { ptr: view.ptr.wrapping_add_signed(bytes as i64), shape, ..*view }
}

fn steps(view: &CudaView<'_>) -> [isize; 4] {
    [view.strides[0], view.strides[1], view.strides[2], view.strides[3]]
}

fn isizes<const N: usize>(of: [usize; N]) -> Strides {
    of.into_iter().map(|n| n as isize).collect()
}

/// The weight, and a column more for the bias and to make the rows a multiple of eight.
fn with_bias(cuda: &mut CudaRun<'_>, w: CudaView<'_>, bias: CudaView<'_>, rows: usize) -> Result<u64, Refusal> {
    let size = w.dtype.size();
    let (outs, depth) = (w.shape[0], w.shape[1..].iter().product::<usize>());
    let ptr = cuda.scratch(outs * rows * size)?;
    let all = [outs, rows];
    fill(cuda, Scalar::Int(0), CudaViewMut { ptr, dtype: w.dtype, shape: &all })?;
    let mut strides = contiguous_strides(w.shape);
    strides[0] = rows as isize;
    let to = |ptr: u64, shape| CudaViewMut { ptr, dtype: w.dtype, shape };
    let place = Operand { strides: &strides, align: size };
    run(cuda, copy::plan(size, w.shape, operand(&w), place, 0), &[w], &[to(ptr, w.shape)])?;
    let place = Operand { strides: &strides[..1], align: size };
    let plan = copy::plan(size, bias.shape, operand(&bias), place, 0);
    run(cuda, plan, &[bias], &[to(ptr + (depth * size) as u64, bias.shape)])?;
    Ok(ptr)
}

/// `conv2d`: operands `x`, `w` and perhaps a bias.
pub(crate) fn conv(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (inputs, out) = (cuda.inputs(), cuda.output());
    let (x, w, bias) = (inputs[0], inputs[1], inputs.get(2).copied());
    if out.numel() == 0 {
        return Ok(());
    }
    let (window, groups, [channels, outs]) = (&geo.window, geo.groups, geo.channels);
    let (size, places, depth) = (x.dtype.size(), window.places(), channels * window.taps());
    let rows = if bias.is_some() { (depth + 1).next_multiple_of(8) } else { depth };
    let mut lent = Strides::new();
    let w_ptr = match bias {
        Some(bias) => with_bias(cuda, w, bias, rows)?,
        None => contiguous(cuda, w, &mut lent)?.ptr,
    };
    let flat_w = [groups * outs, rows];
    let w_strides = isizes([rows, 1]);
    let w = CudaView { ptr: w_ptr, dtype: x.dtype, shape: &flat_w, strides: &w_strides };
    let product = |n: usize, b: Strides| Product {
        dtype: x.dtype,
        batch: Shape::from([n, groups]),
        m: outs,
        k: rows,
        n: places,
        a: isizes([0, outs * rows, rows, 1]),
        b,
    };
    // One tap and no padding: the input is its own columns.
    let plain = bias.is_none()
        && window.taps() == 1
        && (window.stride, window.padding) == ([1, 1], [0, 0])
        && x.strides[3] == 1
        && x.strides[2] == window.input[1] as isize;
    if plain {
        let s = x.strides;
        let b = Strides::from_slice(&[s[0], s[1] * channels as isize, s[1], 1]);
        return cuda.work(&product(geo.batch, b), &[w, x], &[out]);
    }
    let each = groups * rows * places;
    let scratch = cuda.scratch(largest(geo.batch, each * size) * each * size)?;
    for (start, n) in lots(geo.batch, each * size) {
        let shape = [n, groups * channels, window.input[0], window.input[1]];
        let from = images(&x, start, &shape);
        let shape = [n, groups, rows, places];
        let cols = CudaViewMut { ptr: scratch, dtype: x.dtype, shape: &shape };
        let columns = Columns {
            from: x.dtype,
            to: x.dtype,
            images: n,
            groups,
            channels,
            rows,
            steps: steps(&x),
            to_steps: [each, rows * places, places],
        };
        run(cuda, columns.plan(window), &[from], &[cols])?;
        let strides = isizes([each, rows * places, places, 1]);
        let shape = [n, groups * outs, places];
        let bytes = start * groups * outs * places * size;
        let to = CudaViewMut { ptr: out.ptr + bytes as u64, shape: &shape, ..out };
        cuda.work(&product(n, strides.clone()), &[w, reread(cols, &strides)], &[to])?;
    }
    Ok(())
}

/// `conv_transpose2d`, what flows back to an input: operands `dy`, `w` and perhaps a bias.
pub(crate) fn to_input(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (inputs, out) = (cuda.inputs(), cuda.output());
    let (dy, w, bias) = (inputs[0], inputs[1], inputs.get(2).copied());
    if out.numel() == 0 {
        return Ok(());
    }
    let (window, groups, [channels, outs]) = (&geo.window, geo.groups, geo.channels);
    let (places, depth, on) = (window.places(), channels * window.taps(), wide(dy.dtype));
    let mut lent = [Strides::new(), Strides::new(), Strides::new()];
    let [lent_w, lent_wide, lent_bias] = &mut lent;
    let w = converted(cuda, w, on, lent_w)?;
    let w = contiguous(cuda, w, lent_wide)?;
    let bias = match bias {
        Some(bias) => Some(contiguous(cuda, bias, lent_bias)?),
        None => None,
    };
    let each = groups * depth * places;
    let most = largest(geo.batch, each * on.size());
    let scratch = cuda.scratch(most * each * on.size())?;
    let upstream = cuda.scratch(most * groups * outs * places * on.size())?;
    for (start, n) in lots(geo.batch, each * on.size()) {
        let shape = [n, groups * outs, window.output[0], window.output[1]];
        let from = images(&dy, start, &shape);
        let up = CudaViewMut { ptr: upstream, dtype: on, shape: &shape };
        cast(cuda, from, up)?;
        let up_strides = contiguous_strides(&shape);
        let shape = [n, groups, depth, places];
        let cols = CudaViewMut { ptr: scratch, dtype: on, shape: &shape };
        let product = Product {
            dtype: on,
            batch: Shape::from([n, groups]),
            m: depth,
            k: outs,
            n: places,
            // The weight seen from the side: a row an input element.
            a: isizes([0, outs * depth, 1, depth]),
            b: isizes([groups * outs * places, outs * places, places, 1]),
        };
        cuda.work(&product, &[w, reread(up, &up_strides)], &[cols])?;
        let plan = fold(window, [on, out.dtype], [n, groups, channels], bias.is_some());
        let strides = contiguous_strides(&shape);
        let plane = groups * channels * window.input[0] * window.input[1];
        let shape = [n, groups * channels, window.input[0], window.input[1]];
        let bytes = start * plane * out.dtype.size();
        let to = CudaViewMut { ptr: out.ptr + bytes as u64, shape: &shape, ..out };
        let cols = reread(cols, &strides);
        match bias {
            Some(bias) => run(cuda, plan, &[cols, bias], &[to])?,
            None => run(cuda, plan, &[cols], &[to])?,
        }
    }
    Ok(())
}

/// What flows back to a weight: operands `dy` and `x`.
pub(crate) fn to_weight(cuda: &mut CudaRun<'_>, geo: &Geometry) -> Result<(), Refusal> {
    let (dy, x, out) = (cuda.inputs()[0], cuda.inputs()[1], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    let (window, groups, [channels, outs]) = (&geo.window, geo.groups, geo.channels);
    let (places, depth, on) = (window.places(), channels * window.taps(), wide(dy.dtype));
    if geo.batch == 0 {
        return fill(cuda, Scalar::Int(0), out);
    }
    let each = groups * depth * places;
    let most = largest(geo.batch, each * on.size());
    let several = most < geo.batch;
    let cols_ptr = cuda.scratch(most * each * on.size())?;
    let up_ptr = cuda.scratch(most * groups * outs * places * on.size())?;
    let scratch = |cuda: &mut CudaRun<'_>, needed: bool| match needed {
        true => cuda.scratch(out.numel() * on.size()),
        false => Ok(0),
    };
    let sum = match on == out.dtype {
        true => out,
        false => CudaViewMut { ptr: scratch(cuda, true)?, dtype: on, ..out },
    };
    let part = CudaViewMut { ptr: scratch(cuda, several)?, dtype: on, ..out };
    let out_strides = contiguous_strides(out.shape);
    for (start, n) in lots(geo.batch, each * on.size()) {
        let shape = [n, groups * outs, window.output[0], window.output[1]];
        let from = images(&dy, start, &shape);
        // Channels first, then images and places as one.
        let s = from.strides;
        let (turned, turned_shape) = ([s[1], s[0], s[2], s[3]], [shape[1], n, shape[2], shape[3]]);
        let from = CudaView { shape: &turned_shape, strides: &turned, ..from };
        let up = CudaViewMut { ptr: up_ptr, dtype: on, shape: &turned_shape };
        cast(cuda, from, up)?;
        let up_strides = contiguous_strides(&turned_shape);
        let shape = [n, groups * channels, window.input[0], window.input[1]];
        let columns = Columns {
            from: x.dtype,
            to: on,
            images: n,
            groups,
            channels,
            rows: depth,
            steps: steps(&x),
            to_steps: [places, depth * n * places, n * places],
        };
        let cols_shape = [groups, depth, n * places];
        let cols = CudaViewMut { ptr: cols_ptr, dtype: on, shape: &cols_shape };
        run(cuda, columns.plan(window), &[images(&x, start, &shape)], &[cols])?;
        let cols_strides = contiguous_strides(&cols_shape);
        let all = n * places;
        let product = Product {
            dtype: on,
            batch: Shape::from([groups]),
            m: outs,
            k: all,
            n: depth,
            a: isizes([outs * all, all, 1]),
            b: isizes([depth * all, 1, all]),
        };
        let to = if start == 0 { sum } else { part };
        cuda.work(&product, &[reread(up, &up_strides), reread(cols, &cols_strides)], &[to])?;
        if start > 0 {
            let mut add = Program::default();
            let a = add.push(Code::Input(0), on, on);
            let b = add.push(Code::Input(1), on, on);
            let y = add.push(Code::Binary(BinaryOp::Add, Arg::Reg(a), Arg::Reg(b)), on, on);
            add.outputs.push(y);
            let (a, b) = (reread(sum, &out_strides), reread(part, &out_strides));
            super::program(cuda, &add, &[a, b], sum)?;
        }
    }
    match on == out.dtype {
        true => Ok(()),
        false => cast(cuda, reread(sum, &out_strides), out),
    }
}

/// A pooling of planes, or the way back of the means.
pub(crate) fn pooled(
    cuda: &mut CudaRun<'_>,
    window: &Window,
    key: impl Fn(DType) -> Key,
    divisor: Option<Divisor>,
) -> Result<(), Refusal> {
    let (x, out) = (cuda.inputs()[0], cuda.output());
    if out.numel() == 0 {
        return Ok(());
    }
    let rank = x.shape.len();
    let lead = &x.shape[..rank - 2];
    let (inner, outer_step, inner_step) = match lead.len() {
        0 => (1, 0, 0),
        1 => (lead[0], 0, x.strides[0]),
        _ => (lead[1], x.strides[0], x.strides[1]),
    };
    if lead.len() > 2 {
        return Err(Refusal::kernel(format!("pooling of shape {:?} has no CUDA kernel", x.shape)));
    }
    let steps = [outer_step, inner_step, x.strides[rank - 2], x.strides[rank - 1]];
    let planes = lead.iter().product();
    run(cuda, pool(key(x.dtype), window, [planes, inner], steps, divisor), &[x], &[out])
}
