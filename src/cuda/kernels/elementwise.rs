//! A fused elementwise program as one kernel.
//!
//! There are two walks. *Flat*: every input is row-major like the result, or is a single number.
//! *Strided*: anything else; a thread computes its position by division, and takes several
//! neighbours of the innermost dimension if its size allows. Each walk exists with 32- and 64-bit
//! index arithmetic, and with 16-byte moves or element by element. An input may share its memory
//! with an output of the same layout: a thread reads all its elements before it writes, and no
//! pointer is `__restrict__`.

use super::generate::{Form, Names, immediates, inputs, statements, storage};
use super::geometry::Geometry;
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Operand, Plan, Words, grid};
use crate::dtype::DType;
use crate::graph::program::Program;
use std::fmt::Write;

/// The number of threads of a block.
const THREADS: usize = 256;

/// How a kernel walks its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Walk {
    Flat,
    Strided,
}

/// The identity of a compiled elementwise kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub form: Form,
    pub walk: Walk,
    /// Elements per thread: 1, or as many of the widest type as fit in 16 bytes.
    pub lanes: u8,
    /// Whether index arithmetic is in 64 bits.
    pub wide: bool,
}

/// The number of elements of the widest type in memory that fit in 16 bytes; at most 8, to limit a
/// thread's registers.
pub(super) fn lanes(program: &Program, inputs: &[DType]) -> usize {
    let outputs = program.outputs.iter().map(|&r| program.dtype(r));
    let widest = inputs.iter().copied().chain(outputs).map(DType::size).max().unwrap_or(4);
    (16 / widest).min(8)
}

/// The launches that compute `program` over `shape`. Inputs are in the order of `Code::Input`;
/// their strides are over `shape`, and 0 in repeated dimensions. Outputs are contiguous, and
/// `out_align` is the smallest of their alignments.
pub(crate) fn plan(
    program: &Program,
    shape: &[usize],
    operands: &[Operand<'_>],
    out_align: usize,
) -> Plan {
    let mut plan = Plan::default();
    let numel = crate::shape::numel(shape);
    if numel == 0 {
        return plan;
    }
    let dtypes = inputs(program);
    let operands = &operands[..dtypes.len()];
    let strides: Vec<&[isize]> = operands.iter().map(|o| o.strides).collect();
    let geometry = Geometry::new(shape, &strides);
    let (low, pieces) = geometry.pieces();
    let wide = !low.fits_32();
    let most = lanes(program, &dtypes);
    let flat = low.rank() <= 1 && (0..dtypes.len()).all(|k| matches!(low.inner(k), 0 | 1));
    let outputs_fit =
        program.outputs.iter().all(|&r| out_align.is_multiple_of(most * program.dtype(r).size()));
    // Whether input k may be moved in units of `most` elements.
    let moves = |k: usize| {
        let size = dtypes[k].size();
        low.inner(k) == 1
            && operands[k].align.is_multiple_of(most * size)
            && low.strides[k].iter().skip(1).all(|s| s.unsigned_abs().is_multiple_of(most))
            && pieces.iter().all(|(_, o)| o[k].unsigned_abs().is_multiple_of(most))
    };
    let vector = outputs_fit
        && if flat {
            (0..dtypes.len()).all(|k| low.inner(k) == 0 || moves(k))
        } else {
            low.dims[0].is_multiple_of(most)
        };
    let lanes = if vector { most } else { 1 };
    let walk = if flat { Walk::Flat } else { Walk::Strided };
    let key = Key { form: Form::of(program), walk, lanes: lanes as u8, wide };
    let piece = low.numel();
    let threads = piece.div_ceil(lanes);

    // In the strided walk, the innermost dimension is counted in steps of `lanes`.
    let mut stepped = low.clone();
    let mut inner = Words::default();
    let count =
        |w: &mut Words, x: isize| if wide { w.u64(x as u64) } else { w.u32(x as i32 as u32) };
    if !flat {
        stepped.dims[0] /= lanes;
        stepped.strides.iter_mut().for_each(|s| s[0] *= lanes as isize);
        for k in 0..dtypes.len() {
            count(&mut inner, low.inner(k));
        }
        count(
            &mut inner,
            (0..dtypes.len()).filter(|&k| lanes > 1 && moves(k)).map(|k| 1 << k).sum(),
        );
    }
    for (base, offsets) in pieces {
        let mut args = smallvec::SmallVec::new();
        for (k, dtype) in dtypes.iter().enumerate() {
            args.push(Arg::In { index: k as u8, bytes: offsets[k] * dtype.size() as isize });
        }
        for (k, &r) in program.outputs.iter().enumerate() {
            args.push(Arg::Out { index: k as u8, bytes: base * program.dtype(r).size() });
        }
        args.push(if wide { Arg::U64(piece as u64) } else { Arg::U32(piece as u32) });
        if key.form.is_positional() {
            args.push(Arg::U64(base as u64));
        }
        if !dtypes.is_empty() {
            if flat {
                let mut w = Words::default();
                (0..dtypes.len()).for_each(|k| w.u32(low.inner(k) as u32));
                args.push(Arg::Struct(w));
            } else {
                args.push(stepped.arg(wide));
                args.push(Arg::Struct(inner.clone()));
            }
        }
        let numbers = immediates(program);
        if !numbers.as_words().is_empty() {
            args.push(Arg::Struct(numbers));
        }
        plan.launches.push(Launch {
            kernel: Kernel::Elementwise(key.clone()),
            grid: grid(threads.div_ceil(THREADS), 1, 1),
            block: [THREADS as u32, 1, 1],
            shared: 0,
            args,
        });
    }
    plan
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let program = &self.form.0;
        let dtypes = self.form.inputs();
        let (lanes, index) = (self.lanes as usize, if self.wide { "u64" } else { "u32" });
        let names = Names {
            input: &|k| format!("x{k}.v[v]"),
            first: "at",
            position: "(at + v)",
            lane: "v",
        };
        let s = statements(&self.form, &names, lanes);

        let mut params = Vec::new();
        for (k, &d) in dtypes.iter().enumerate() {
            params.push(format!("const {}* in{k}", storage(d)));
        }
        for (k, &r) in program.outputs.iter().enumerate() {
            params.push(format!("{}* out{k}", storage(program.dtype(r))));
        }
        params.push(format!("{index} n"));
        if self.form.is_positional() {
            params.push("u64 base".into());
        }
        let n = dtypes.len();
        let geo = if self.wide { "Geo64" } else { "Geo32" };
        if n > 0 {
            match self.walk {
                Walk::Flat => params.push(format!("ft::Steps<{n}> step")),
                Walk::Strided => {
                    params.push(format!("ft::{geo}<{n}> geo"));
                    params.push(format!(
                        "ft::Inner<{}, {n}> inner",
                        if self.wide { "i64" } else { "i32" }
                    ));
                }
            }
        }
        if s.immediates > 0 {
            params.push(format!("ft::Imm<{}> imm", s.immediates));
        }

        let mut c = String::new();
        let mut line = |text: String| writeln!(c, "{text}").expect("writing to a string");
        line(format!(
            "    const {index} i = (({index})blockIdx.x * {THREADS} + threadIdx.x) * {lanes};"
        ));
        line("    if (i >= n) return;".into());
        if self.form.is_positional() {
            line("    const u64 at = base + i;".into());
        }
        if n > 0 && self.walk == Walk::Strided {
            line(format!("    ft::{geo}<{n}>::Stride off[{n}];"));
            line(format!("    ft::offsets<{n}, ft::{geo}>(geo, i / {lanes}, off);"));
        }
        for (k, &d) in dtypes.iter().enumerate() {
            let load = match self.walk {
                Walk::Flat => format!("ft::load_flat<{lanes}>(in{k}, i, n, step.s[{k}])"),
                Walk::Strided => format!(
                    "ft::load_strided<{lanes}>(in{k} + off[{k}], inner.s[{k}], \
                     (inner.vector >> {k}) & 1)"
                ),
            };
            line(format!("    const ft::Vec<{}, {lanes}> x{k} = {load};", storage(d)));
        }
        line(s.draws.trim_end().into());
        for (k, &r) in program.outputs.iter().enumerate() {
            line(format!("    ft::Vec<{}, {lanes}> y{k};", storage(program.dtype(r))));
        }
        line(format!("#pragma unroll\n    for (int v = 0; v < {lanes}; ++v) {{"));
        line(s.body.trim_end().into());
        for (k, &r) in program.outputs.iter().enumerate() {
            line(format!("        y{k}.v[v] = ft::As<{}>::of(r{r});", storage(program.dtype(r))));
        }
        line("    }".into());
        for k in 0..program.outputs.len() {
            line(format!("    ft::store_flat<{lanes}>(out{k}, i, n, y{k});"));
        }
        let parts: &[Part] = if self.form.is_positional() {
            &[Part::Base, Part::Ops, Part::Elementwise, Part::Random]
        } else {
            &[Part::Base, Part::Ops, Part::Elementwise]
        };
        KernelSource::new("elementwise", parts, THREADS as u32, &params, &c)
    }
}
