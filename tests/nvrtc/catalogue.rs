//! Every kernel there is: each op with each element type that its class takes, each walk, each
//! family.

use crate::cuda::kernels::elementwise::{self, Key, Walk};
use crate::cuda::kernels::generate::Form;
use crate::cuda::kernels::index::{self, Indexed};
use crate::cuda::kernels::softmax::{self, RowOp};
use crate::cuda::kernels::{
    Kernel, Operand, Plan, attention, copy, halves, matmul, paged, quantized, reduce, rope, scan,
    sort, top_p, window,
};
use crate::dtype::{DType, Scalar};
use crate::graph::program::{Arg, Code, Program};
use crate::op::{BinaryOp, Class, ReduceOp, Scan, ScatterMode, UnaryOp};
use crate::shape::contiguous_strides;

use DType::*;

/// The types in which ops of a class are computed.
pub fn types(class: Class) -> &'static [DType] {
    match class {
        Class::float => &[F32, F64, F16, BF16],
        Class::number | Class::real => &[F32, F64, F16, BF16, I32, I64, U8],
        Class::bits => &[I32, I64, U8, Bool],
        Class::any | Class::compare | Class::logic | Class::test => &DType::ARITHMETIC,
        Class::sum | Class::same | Class::index => &DType::ARITHMETIC,
    }
}

/// A program of one op over inputs alone.
pub fn unary(op: UnaryOp, on: DType) -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), on, on);
    let y = p.push(Code::Unary(op, Arg::Reg(x)), on, op.class().result(on));
    p.outputs.push(y);
    p
}

/// A program of one op over inputs alone.
pub fn binary(op: BinaryOp, on: DType) -> Program {
    let mut p = Program::default();
    let a = p.push(Code::Input(0), on, on);
    let b = p.push(Code::Input(1), on, on);
    let y = p.push(Code::Binary(op, Arg::Reg(a), Arg::Reg(b)), on, op.class().result(on));
    p.outputs.push(y);
    p
}

/// One input converted.
pub fn cast(from: DType, to: DType) -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), from, from);
    let y = p.push(Code::Cast(Arg::Reg(x)), from, to);
    p.outputs.push(y);
    p
}

/// A program without inputs.
pub fn source(code: Code, dtype: DType) -> Program {
    let mut p = Program::default();
    let y = p.push(code, dtype, dtype);
    p.outputs.push(y);
    p
}

/// Three types, a condition, immediates, two outputs: what a fused step may hold.
pub fn mixed() -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), F16, F16);
    let y = p.push(Code::Input(1), F32, F32);
    let c = p.push(Code::Input(2), Bool, Bool);
    let wide = p.push(Code::Cast(Arg::Reg(x)), F16, F32);
    let sum = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(wide), Arg::Reg(y)), F32, F32);
    let scaled = p.push(
        Code::Binary(BinaryOp::Mul, Arg::Reg(sum), Arg::Scalar(Scalar::Float(0.1))),
        F32,
        F32,
    );
    let picked =
        p.push(Code::Where(Arg::Reg(c), Arg::Reg(scaled), Arg::Scalar(Scalar::Int(7))), F32, F32);
    let doubled = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(x), Arg::Reg(x)), F16, F16);
    p.outputs.extend([picked, doubled]);
    p
}

/// Random numbers beside an input.
pub fn dropout() -> Program {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), F32, F32);
    let u = p.push(Code::Uniform { seed: 5, offset: 8 }, F32, F32);
    let c = p.push(
        Code::Binary(BinaryOp::Lt, Arg::Reg(u), Arg::Scalar(Scalar::Float(0.25))),
        F32,
        Bool,
    );
    let y = p.push(Code::Where(Arg::Reg(c), Arg::Scalar(Scalar::Int(0)), Arg::Reg(x)), F32, F32);
    p.outputs.push(y);
    p
}

/// Key of a program's flat kernel.
pub fn flat(program: &Program) -> Kernel {
    let strides = [1isize];
    let operands = [Operand { strides: &strides, align: 16 }; 16];
    elementwise::plan(program, &[1 << 20], &operands, 16).launches[0].kernel.clone()
}

fn elementwise_programs() -> Vec<(&'static str, Vec<Program>)> {
    let unaries =
        UnaryOp::ALL.iter().flat_map(|&op| types(op.class()).iter().map(move |&t| unary(op, t)));
    let binaries =
        BinaryOp::ALL.iter().flat_map(|&op| types(op.class()).iter().map(move |&t| binary(op, t)));
    let casts = DType::ALL.iter().flat_map(|&a| DType::ALL.iter().map(move |&b| cast(a, b)));
    let none = Scalar::Int(0);
    let ranges = DType::ARITHMETIC.map(|t| source(Code::Arange { start: none, step: none }, t));
    let fills = DType::ALL.into_iter().map(|t| source(Code::Fill(none), t)).chain(ranges);
    let random = [F32, F64, F16, BF16].into_iter().flat_map(|t| {
        [Code::Uniform { seed: 0, offset: 0 }, Code::Normal { seed: 0, offset: 0 }]
            .map(|code| source(code, t))
    });
    vec![
        ("random_kernels", random.collect()),
        ("unary_kernels", unaries.collect()),
        ("binary_kernels", binaries.collect()),
        ("casts", casts.collect()),
        ("fills", fills.collect()),
    ]
}

/// Every family with its kernels.
pub fn all() -> Vec<(&'static str, Vec<Kernel>)> {
    let mut out: Vec<(&'static str, Vec<Kernel>)> = elementwise_programs()
        .into_iter()
        .map(|(name, p)| (name, p.iter().map(flat).collect()))
        .collect();
    let mut walks = Vec::new();
    let add = binary(BinaryOp::Add, F32);
    let arange = source(Code::Arange { start: Scalar::Int(0), step: Scalar::Int(1) }, F16);
    let dropout = dropout();
    for (program, most) in
        [(mixed(), 4), (add, 4), (cast(U8, F64), 2), (cast(U8, Bool), 8), (arange, 8), (dropout, 4)]
    {
        for walk in [Walk::Flat, Walk::Strided] {
            for lanes in [1, most] {
                for wide in [false, true] {
                    let form = Form::of(&program);
                    if form.inputs().is_empty() && walk == Walk::Strided {
                        continue;
                    }
                    walks.push(Kernel::Elementwise(Key { form, walk, lanes, wide }));
                }
            }
        }
    }
    out.push(("walks", walks));
    out.push(("reductions", reductions()));
    out.push(("row_kernels", rows()));
    out.push(("copies", copies()));
    out.push(("index_kernels", indices()));
    out.push(("scans", scans()));
    out.push(("sorts", sorts()));
    out.push(("products", products()));
    out.push(("windows", windows()));
    out.push(("attention_kernels", attentions()));
    out.push(("quantised_kernels", quantised()));
    out.push(("products_of_halves", products_of_halves()));
    out
}

fn kernels(plan: Option<Plan>) -> impl Iterator<Item = Kernel> {
    plan.expect("a plan").launches.into_iter().map(|l| l.kernel)
}

/// Types that a reduction takes.
pub fn reduced(op: ReduceOp) -> Vec<DType> {
    let floats = op.class() == Class::float;
    DType::ARITHMETIC.into_iter().filter(|d| !floats || d.is_float()).collect()
}

fn reductions() -> Vec<Kernel> {
    let mut out = Vec::new();
    let mut add = |op, program: &Program, shape: &[usize], over: &[bool]| {
        let strides = contiguous_strides(shape);
        let operands = [Operand { strides: &strides, align: 16 }; 4];
        out.extend(kernels(reduce::plan(op, program, shape, over, &operands)));
    };
    for &op in ReduceOp::ALL {
        for dtype in reduced(op) {
            add(op, &reduce::identity(dtype), &[100, 80], &[false, true]);
        }
        // Blocks, splits, columns, short columns, 64-bit indices.
        let x = reduce::identity(F32);
        add(op, &x, &[4096, 4096], &[false, true]);
        add(op, &x, &[1 << 24], &[true]);
        add(op, &x, &[4096, 100], &[true, false]);
        add(op, &x, &[10, 4096], &[true, false]);
        add(op, &x, &[3, 1 << 30], &[false, true]);
    }
    let mut fused = mixed();
    fused.outputs.truncate(1);
    add(ReduceOp::Sum, &fused, &[64, 64, 64], &[false, true, false]);
    let uniform = source(Code::Arange { start: Scalar::Int(0), step: Scalar::Int(2) }, F32);
    add(ReduceOp::Mean, &uniform, &[64, 64], &[true, true]);
    add(ReduceOp::Sum, &source(Code::Fill(Scalar::Int(1)), Bool), &[64, 64], &[true, false]);
    out
}

fn rows() -> Vec<Kernel> {
    let mut out = Vec::new();
    let norms = [
        RowOp::LayerNorm { weight: true, bias: true },
        RowOp::LayerNorm { weight: false, bias: false },
        RowOp::RmsNorm { weight: true },
    ];
    for op in [RowOp::Softmax, RowOp::SafeSoftmax, RowOp::LogSoftmax, RowOp::LogSumExp]
        .into_iter()
        .chain(norms)
    {
        for dtype in [F32, F64, F16, BF16] {
            for n in [10, 64, 1000, 4096, 16_384, 100_000, 100_001] {
                let strides = contiguous_strides(&[100, n]);
                let x = Operand { strides: &strides, align: 16 };
                out.extend(kernels(softmax::plan(
                    op,
                    dtype,
                    &[100, n],
                    &[false, true],
                    x,
                    16,
                    1e-5,
                )));
            }
            for n in [10, 100].into_iter().filter(|_| !norms.contains(&op)) {
                let strides = contiguous_strides(&[n, 50]);
                let x = Operand { strides: &strides, align: 16 };
                out.extend(kernels(softmax::plan(op, dtype, &[n, 50], &[true, false], x, 16, 0.0)));
            }
        }
    }
    out
}

fn copies() -> Vec<Kernel> {
    let mut out: Vec<Kernel> = [1, 2, 4, 8, 16]
        .into_iter()
        .flat_map(|size| {
            let wide = [false, true].map(|wide| copy::Key::Strided { size, wide });
            wide.into_iter().chain([copy::Key::Transpose { size }])
        })
        .map(Kernel::Copy)
        .collect();
    for size in [1, 2, 4, 8] {
        out.extend([false, true].map(|wide| Kernel::Copy(copy::Key::Triangle { size, wide })));
    }
    out
}

/// Types for storage only take a place.
fn scattered(mode: ScatterMode) -> std::slice::Iter<'static, DType> {
    let all: &[DType] = if mode == ScatterMode::Assign { &DType::ALL } else { &DType::ARITHMETIC };
    all.iter()
}

fn indices() -> Vec<Kernel> {
    let mut out = Vec::new();
    for mode in ScatterMode::ALL {
        out.extend(scattered(mode).map(|&dtype| index::Key::ScatterRuns { mode, dtype }));
    }
    for index in [I32, I64, U8] {
        out.push(index::Key::ScatterKeys { index });
        for wide in [false, true] {
            out.extend([1, 2, 4, 8, 16].map(|size| index::Key::Gather { size, index, wide }));
            for mode in ScatterMode::ALL {
                out.extend(scattered(mode).map(|&dtype| index::Key::Scatter {
                    mode,
                    dtype,
                    index,
                    wide,
                }));
            }
            out.push(index::Key::OneHot { index, wide });
        }
    }
    out.into_iter().map(Kernel::Index).collect()
}

fn scans() -> Vec<Kernel> {
    use scan::Key::*;
    let each = |f, d| [ChunkSums(f, d), Sums(f, d), Chunks(f, d), Rows(f, d), Columns(f, d)];
    Scan::ALL
        .iter()
        .flat_map(|&f| DType::ARITHMETIC.map(|d| each(f, d)))
        .flatten()
        .map(Kernel::Scan)
        .collect()
}

fn sorts() -> Vec<Kernel> {
    let mut out = Vec::new();
    for dtype in DType::ARITHMETIC {
        for n in [64, 2048, 5000] {
            let strides = contiguous_strides(&[3, n]);
            let x = Operand { strides: &strides, align: 16 };
            out.extend(kernels(sort::plan(dtype, &[3, n], 1, x, n, false)));
            out.extend(kernels(sort::plan(dtype, &[3, n], 1, x, 5, false)));
        }
    }
    let tiles = [64, 128, 256, 512, 1024, 2048];
    out.extend(tiles.map(|tile| Kernel::Sort(sort::Key::Row { dtype: F32, tile })));
    for wide in [false, true] {
        out.extend(tiles.map(|tile| Kernel::Sort(sort::Key::Tile { wide, tile })));
    }
    out
}

fn attentions() -> Vec<Kernel> {
    use attention::{Key, Result::*, Team};
    let mut out = Vec::new();
    for result in [Output, Spans, Stats, ToQuery, ToKeys] {
        for dtype in [F32, F64, F16, BF16] {
            let mut teams = vec![Team::Tiles(1)];
            teams.extend((dtype != F64).then_some(Team::Tiles(2)));
            if dtype.size() == 2 {
                teams.extend([32, 64, 96, 128].map(Team::Tensor));
            }
            for team in teams {
                let masks = [None, Some(Bool), Some(F32)];
                let all = matches!((dtype, team), (F16, Team::Tensor(64)) | (F32, Team::Tiles(1)));
                let masks = &masks[..if all { 3 } else { 1 }];
                let keys = masks.iter().flat_map(|&mask| {
                    let key = move |lengths| Key { result, dtype, mask, lengths, team };
                    [Some(key(false)), (result == Output).then(|| key(true))].into_iter().flatten()
                });
                out.extend(keys.map(Kernel::Attention));
            }
        }
    }
    for (dtype, cache) in [(F32, F32), (F32, F16), (F32, BF16), (F64, F64)] {
        let (table, lengths) = (I64, I32);
        for capped in [false, true] {
            let spans = |heads| paged::Key::Spans { dtype, cache, table, lengths, heads, capped };
            out.extend([1, 2, 4].map(|heads| Kernel::Paged(spans(heads))));
        }
    }
    let floats = [F32, F64, F16, BF16];
    out.extend(floats.map(|dtype| Kernel::Paged(paged::Key::Meet { dtype })));
    out.extend(floats.map(|dtype| Kernel::Rope(rope::Key(dtype))));
    out.extend(floats.map(|dtype| Kernel::TopP(top_p::Key(dtype))));
    out
}

fn quantised() -> Vec<Kernel> {
    use quantized::Key::*;
    let each = |f| {
        [
            Few(f, 1),
            Few(f, 8),
            Many(f, if f.dtype().is_some() { 4 } else { 2 }),
            Many(f, if f.dtype().is_some() { 4 } else { 8 }),
            Grouped(f, I64),
            Tiles(f, 8),
            Tiles(f, 64),
            Dequantize(f),
            Embedding(f, I64),
            Embedding(f, I32),
            Embedding(f, U8),
        ]
    };
    let all = crate::format::Format::ALL.into_iter().flat_map(each);
    let orders = [Order(8, I64), Order(64, I64), Order(8, I32), Order(64, I32), Order(64, U8)];
    all.chain([Activations, Pack(2), Pack(4)]).chain(orders).map(Kernel::Quantized).collect()
}

fn products_of_halves() -> Vec<Kernel> {
    use halves::{Key, Work::*};
    let each = [F16, BF16].into_iter().flat_map(|dtype| [1, 2].map(|pieces| (dtype, pieces)));
    let works = [Cut, Few, Tiles(2), Tiles(8)];
    let all = each.flat_map(|(dtype, pieces)| works.map(|work| Key { dtype, pieces, work }));
    all.map(Kernel::Halves).collect()
}

fn products() -> Vec<Kernel> {
    let same = DType::ARITHMETIC.into_iter().filter(|&d| d != Bool).map(|dtype| (dtype, dtype));
    let all = same.chain([(F16, F32), (BF16, F32)]);
    all.map(|(dtype, to)| Kernel::Matmul(matmul::Key { dtype, to })).collect()
}

fn windows() -> Vec<Kernel> {
    use window::Key::*;
    let mut out = Vec::new();
    for dtype in [F32, F64, F16, BF16] {
        out.extend([false, true].map(|position| CellsMax { dtype, position, wide: position }));
        for wide in [false, true] {
            out.extend([Columns { dtype, wide }, FromColumns { columns: dtype, dtype, wide }]);
            for back in [false, true] {
                out.extend([Convolve { dtype, back, wide }, Mean { dtype, back, wide }]);
            }
        }
    }
    out.extend([F16, BF16].map(|dtype| FromColumns { columns: F32, dtype, wide: false }));
    for dtype in DType::ARITHMETIC.into_iter().filter(|&d| d != Bool) {
        out.extend([false, true].map(|position| Max { dtype, position, wide: position }));
    }
    out.into_iter().map(Kernel::Window).collect()
}
