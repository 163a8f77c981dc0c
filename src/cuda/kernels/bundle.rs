//! The bundles of kernels that are compiled together.
//!
//! A compiler's time goes into the shared parts of a translation unit: fifty kernels cost as much
//! as eight alone. So a kernel that a single op needs comes with its relatives: the other ops of
//! the same types and walk, the other reductions of the same walk, the other element sizes of a
//! copy. A fused program has none.
//!
//! Pure: keys in, keys out.

use super::elementwise::{self, lanes};
use super::generate::Form;
use super::quantized::Key;
use super::softmax::RowOp;
use super::{Kernel, attention, copy, halves, index, paged, reduce, scan, softmax, sort, window};
use crate::dtype::DType;
use crate::graph::program::{Code, Instr, Program, number_beside};
use crate::op::{BinaryOp, Class, ReduceOp, UnaryOp};

/// The kernels that are compiled with this one, itself among them.
pub(crate) fn bundle(kernel: &Kernel) -> Vec<Kernel> {
    let mut all = relatives(kernel);
    if !all.contains(kernel) {
        all.insert(0, kernel.clone());
    }
    all
}

fn relatives(kernel: &Kernel) -> Vec<Kernel> {
    match kernel {
        Kernel::Elementwise(key) => forms(&key.form)
            .into_iter()
            .map(|form| {
                let own = lanes(&form.0, &form.inputs()) as u8;
                let lanes = if key.lanes == 1 { 1 } else { own };
                Kernel::Elementwise(elementwise::Key { form, lanes, ..key.clone() })
            })
            .collect(),
        Kernel::Reduce(key) => {
            let plain = match &key.stage {
                reduce::Stage::Whole(form) | reduce::Stage::Part(form) => {
                    form.0 == reduce::identity(key.dtype)
                }
                reduce::Stage::Join => true,
            };
            let takes = |op: ReduceOp| op.class() != Class::float || key.dtype.is_float();
            let ops = ReduceOp::ALL.iter().copied().filter(|&op| plain && takes(op));
            ops.map(|op| Kernel::Reduce(reduce::Key { op, ..key.clone() })).collect()
        }
        Kernel::Softmax(key) => {
            let ops: &[RowOp] = match key.op {
                RowOp::LayerNorm { .. } | RowOp::RmsNorm { .. } => &[
                    RowOp::LayerNorm { weight: true, bias: true },
                    RowOp::LayerNorm { weight: true, bias: false },
                    RowOp::LayerNorm { weight: false, bias: false },
                    RowOp::RmsNorm { weight: true },
                    RowOp::RmsNorm { weight: false },
                ],
                RowOp::Softmax | RowOp::SafeSoftmax | RowOp::LogSoftmax | RowOp::LogSumExp => {
                    &[RowOp::Softmax, RowOp::LogSoftmax, RowOp::LogSumExp]
                }
            };
            ops.iter().map(|&op| Kernel::Softmax(softmax::Key { op, ..key.clone() })).collect()
        }
        Kernel::Copy(key) => {
            let of = |sizes: &[u8], key: &dyn Fn(u8) -> copy::Key| {
                sizes.iter().map(|&size| Kernel::Copy(key(size))).collect()
            };
            match *key {
                copy::Key::Strided { wide, .. } => {
                    of(&[1, 2, 4, 8, 16], &|size| copy::Key::Strided { size, wide })
                }
                copy::Key::Transpose { .. } => {
                    of(&[1, 2, 4, 8], &|size| copy::Key::Transpose { size })
                }
                copy::Key::Triangle { wide, .. } => {
                    of(&[1, 2, 4, 8], &|size| copy::Key::Triangle { size, wide })
                }
            }
        }
        Kernel::Index(index::Key::Gather { index, wide, .. }) => [1, 2, 4, 8, 16]
            .map(|size| Kernel::Index(index::Key::Gather { size, index: *index, wide: *wide }))
            .to_vec(),
        Kernel::Index(
            index::Key::Scatter { dtype, .. } | index::Key::ScatterRuns { dtype, .. },
        ) if dtype.is_storage() => Vec::new(),
        Kernel::Index(index::Key::Scatter { mode, index, wide, .. }) => DType::ARITHMETIC
            .map(|dtype| {
                Kernel::Index(index::Key::Scatter {
                    mode: *mode,
                    dtype,
                    index: *index,
                    wide: *wide,
                })
            })
            .to_vec(),
        Kernel::Scan(key) => {
            use scan::Key::*;
            let (ChunkSums(f, d) | Sums(f, d) | Chunks(f, d) | Rows(f, d) | Columns(f, d)) = *key;
            [ChunkSums(f, d), Sums(f, d), Chunks(f, d), Rows(f, d), Columns(f, d)]
                .map(Kernel::Scan)
                .to_vec()
        }
        Kernel::Sort(sort::Key::Count { wide } | sort::Key::Move { wide }) => {
            [sort::Key::Count { wide: *wide }, sort::Key::Sum, sort::Key::Move { wide: *wide }]
                .map(Kernel::Sort)
                .to_vec()
        }
        Kernel::Sort(sort::Key::Keys(d) | sort::Key::Write(d)) => {
            [sort::Key::Keys(*d), sort::Key::Write(*d)].map(Kernel::Sort).to_vec()
        }
        Kernel::Sort(sort::Key::Select(d) | sort::Key::Take(d)) => {
            [sort::Key::Select(*d), sort::Key::Take(*d), sort::Key::Clear]
                .map(Kernel::Sort)
                .to_vec()
        }
        Kernel::Window(key) => {
            use window::Key::*;
            let both = |key: &dyn Fn(bool) -> window::Key| {
                [false, true].map(|b| Kernel::Window(key(b))).to_vec()
            };
            match *key {
                Convolve { dtype, wide, .. } => both(&|back| Convolve { dtype, back, wide }),
                Mean { dtype, wide, .. } => both(&|back| Mean { dtype, back, wide }),
                Max { dtype, wide, .. } => both(&|position| Max { dtype, position, wide }),
                CellsMax { dtype, wide, .. } => {
                    both(&|position| CellsMax { dtype, position, wide })
                }
                Columns { .. } | FromColumns { .. } => Vec::new(),
            }
        }
        Kernel::Attention(key) => {
            use attention::Result::*;
            let back: &[_] = match key.result {
                Output => &[],
                Spans => return vec![Kernel::Paged(paged::Key::Meet { dtype: key.dtype })],
                Stats | ToQuery | ToKeys => &[Stats, ToQuery, ToKeys],
            };
            back.iter()
                .map(|&result| Kernel::Attention(attention::Key { result, ..*key }))
                .collect()
        }
        Kernel::Index(index::Key::ScatterRuns { mode, .. }) => DType::ARITHMETIC
            .map(|dtype| Kernel::Index(index::Key::ScatterRuns { mode: *mode, dtype }))
            .to_vec(),
        // The calls of a model in this format: one row, a few, many.
        Kernel::Quantized(Key::Few(f, _) | Key::Many(f, _)) => {
            let (first, many): (_, &[u8]) = match f.dtype() {
                Some(dtype) => (Key::Pack(dtype.size() as u8), &[4]),
                None => (Key::Activations, &[2, 8]),
            };
            let many = many.iter().map(|&panels| Key::Many(*f, panels));
            let all = [first, Key::Few(*f, 1), Key::Few(*f, 8)].into_iter().chain(many);
            all.map(Kernel::Quantized).collect()
        }
        Kernel::Halves(key) => {
            use halves::Work::*;
            let of = |work| Kernel::Halves(halves::Key { work, ..*key });
            [Cut, Few, Tiles(2), Tiles(8)].map(of).to_vec()
        }
        Kernel::Paged(paged::Key::Spans { dtype, .. }) => {
            vec![Kernel::Paged(paged::Key::Meet { dtype: *dtype })]
        }
        Kernel::Index(_)
        | Kernel::Sort(_)
        | Kernel::Matmul(_)
        | Kernel::Paged(_)
        | Kernel::Quantized(_)
        | Kernel::Rope(_)
        | Kernel::TopP(_) => Vec::new(),
    }
}

/// The forms that differ from this one in their one op: those of the same operand and result types.
fn forms(form: &Form) -> Vec<Form> {
    let instrs = &form.0.instrs;
    let is_op = |i: &Instr| matches!(i.code, Code::Unary(..) | Code::Binary(..));
    let mut ops = (0..instrs.len()).filter(|&i| is_op(&instrs[i]));
    let (at, more) = (ops.next(), ops.next().is_some());
    let with = |at: usize, instr: Instr| {
        let mut program: Program = form.0.clone();
        program.instrs[at] = instr;
        Form(program)
    };
    match at {
        Some(at) if !more => {
            let Instr { code, on, dtype } = instrs[at];
            let fits = |class: Class| class.takes(on) && class.result(on) == dtype;
            // Of halves and a number.
            let is_beside = dtype.is_half() && on == dtype.wide();
            let goes = |op: BinaryOp| {
                if is_beside { number_beside(op, dtype) == on } else { fits(op.class()) }
            };
            match code {
                Code::Unary(_, a) => (UnaryOp::ALL.iter().filter(|op| fits(op.class())))
                    .map(|&op| with(at, Instr { code: Code::Unary(op, a), on, dtype }))
                    .collect(),
                Code::Binary(_, a, b) => (BinaryOp::ALL.iter().filter(|op| goes(**op)))
                    .map(|&op| with(at, Instr { code: Code::Binary(op, a, b), on, dtype }))
                    .collect(),
                _ => Vec::new(),
            }
        }
        // One conversion of one input: to every type with arithmetic. One to a type for storage is
        // alone.
        None if instrs.len() == 2 && form.0.outputs[..] == [1] => match instrs[1].code {
            Code::Cast(_) if !instrs[1].dtype.is_storage() => {
                DType::ARITHMETIC.map(|dtype| with(1, Instr { dtype, ..instrs[1] })).to_vec()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::kernels::Operand;
    use crate::graph::program::Arg;

    fn add(on: DType) -> Kernel {
        let mut p = Program::default();
        let a = p.push(Code::Input(0), on, on);
        let b = p.push(Code::Input(1), on, on);
        let y = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(a), Arg::Reg(b)), on, on);
        p.outputs.push(y);
        let operands = [Operand { strides: &[1], align: 16 }; 2];
        elementwise::plan(&p, &[64], &operands, 16).launches[0].kernel.clone()
    }

    #[test]
    fn every_relative_has_the_same_relatives() {
        let min = Kernel::Reduce(reduce::Key {
            op: ReduceOp::Min,
            dtype: DType::I32,
            stage: reduce::Stage::Join,
            walk: reduce::Walk::Warp,
            lanes: 1,
            apart: false,
            wide: false,
        });
        let gather = Kernel::Index(index::Key::Gather { size: 4, index: DType::I64, wide: false });
        for kernel in
            [add(DType::F32), add(DType::Bool), add(DType::I64), twice(DType::F16), min, gather]
        {
            let all = bundle(&kernel);
            assert!(all.len() > 4, "{kernel:?} is nearly alone");
            for other in &all {
                assert_eq!(bundle(other), all, "{other:?} beside {kernel:?}");
            }
        }
    }

    /// Halves and a number: computed in float32, and rounded.
    fn twice(dtype: DType) -> Kernel {
        let mut p = Program::default();
        let x = p.push(Code::Input(0), dtype, dtype);
        let two = Arg::Scalar(crate::dtype::Scalar::Int(2));
        let y = p.push(Code::Binary(BinaryOp::Mul, Arg::Reg(x), two), dtype.wide(), dtype);
        p.outputs.push(y);
        elementwise::plan(&p, &[64], &[Operand { strides: &[1], align: 16 }], 16).launches[0]
            .kernel
            .clone()
    }

    #[test]
    fn an_op_on_floats_comes_with_no_comparison_and_no_bitwise_op() {
        let sources: Vec<String> =
            bundle(&add(DType::F32)).iter().map(|k| k.source().body).collect();
        assert!(
            sources.iter().any(|s| s.contains("op_div"))
                && sources.iter().any(|s| s.contains("op_atan2"))
        );
        assert!(!sources.iter().any(|s| s.contains("op_lt") || s.contains("op_bitwise_and")));
    }
}
