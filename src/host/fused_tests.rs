//! Fused steps: their values, and the number of times that an element is computed.

use super::*;
use crate::backend::Results;
use crate::concurrent::counted::Link;
use crate::dtype::Scalar;
use crate::engine::fused;
use crate::graph::fuse::Group;
use crate::graph::node::{Home, Inputs, Reduction};
use crate::host::kernels::elementwise::COMPUTED;
use crate::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::view::Serial;
use std::any::Any;
use std::borrow::Cow;
use std::panic::Location;

/// Nodes that no engine knows.
struct Nowhere;

impl Home for Nowhere {
    fn unobserved(&'static self, _: Link<Node>) {}
    fn skipped(&'static self, _: &Node) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn node(op: Op, shape: &[usize], dtype: DType) -> Node {
    Node::new(op, Inputs::new(), shape.into(), dtype, &Nowhere, Location::caller())
}

/// Threads that take the parts in turn: all are on this one, where the positions are counted.
struct Cut;

impl Parallel for Cut {
    fn threads(&self) -> usize {
        3
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (0..parts).rev().for_each(part);
    }
}

fn bits(value: &Value, bytes: usize) -> Vec<u8> {
    // SAFETY: a contiguous value of so many bytes.
    unsafe { std::slice::from_raw_parts(value.host().expect("host memory"), bytes) }.to_vec()
}

fn run_fused(
    group: &Group<&Node>,
    program: Program,
    written: &[u8],
    end: Option<(&Node, u8)>,
    x: &Value,
    mut host: Host<'_>,
) -> Results {
    let Ok(results) =
        fused::group(group, Cow::Owned(program), written, end, |_| Ok(x), |_| None, &mut host);
    results
}

/// `a = gelu(x)`, `b = a * 1.5 - 0.25`, and a reduction of `b`: whichever of `a` and `b` somebody
/// holds, each element is computed once, and all are as they are apart.
#[test]
fn a_fused_reduction_computes_each_element_once_whatever_is_written_beside_it() {
    let memory = Memory::new(usize::MAX);
    // Small; cut among threads; written around the cache.
    for shape in [&[7usize, 5][..], &[300, 70], &[70, 1, 600], &[3, 40_000], &[0, 4], &[4, 0]] {
        let n: usize = shape.iter().product();
        let x = memory.alloc(4 * n.max(1)).expect("no limit");
        for i in 0..n {
            let v = ((i * 2_654_435_761) % 1000) as f32 / 250.0 - 2.0;
            // SAFETY: the block has room for n elements, and nobody else looks.
            unsafe { x.host().expect("host memory").cast::<f32>().add(i).write(v) };
        }
        let x_value = Value::contiguous(Storage::Shared(x));
        let given = node(Op::Given, shape, DType::F32);
        let scalar = |op, s: f64| Op::WithScalar { op, scalar: Scalar::Float(s), left: false };
        let a = node(Op::Unary(UnaryOp::Gelu), shape, DType::F32);
        let half = node(scalar(BinaryOp::Mul, 1.5), shape, DType::F32);
        let b = node(scalar(BinaryOp::Sub, 0.25), shape, DType::F32);
        let mut group: Group<&Node> = Group::new();
        group.add(&&a, &[&given]);
        group.add(&&half, &[&a]);
        group.add(&&b, &[&half]);
        let run = |written: &[u8], end: Option<(&Node, u8)>, parallel: &dyn Parallel| {
            let host = Host { memory: &memory, parallel, inline_values: true };
            let mut program = group.program.clone();
            program.outputs = written.iter().map(|&k| group.members[k as usize].1).collect();
            COMPUTED.set(0);
            let results = run_fused(&group, program, written, end, &x_value, host);
            (results.into_iter().map(|r| r.expect("it runs")).collect::<Vec<_>>(), COMPUTED.get())
        };
        let (apart, _) = run(&[0, 2], None, &Serial);
        let apart: Vec<Vec<u8>> = apart.iter().map(|v| bits(v, 4 * n)).collect();
        for rank in 0..3 {
            let dims: SmallVec<[bool; 8]> =
                (0..shape.len()).map(|d| rank == 2 || d == rank * (shape.len() - 1)).collect();
            let kept: Vec<usize> =
                (0..shape.len()).filter(|&d| !dims[d]).map(|d| shape[d]).collect();
            let count: usize = kept.iter().product();
            for op in
                [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMax, ReduceOp::Any, ReduceOp::Mean]
            {
                if n == 0 && matches!(op, ReduceOp::Max | ReduceOp::ArgMax) {
                    continue;
                }
                let dtype = match op {
                    ReduceOp::ArgMax => DType::I64,
                    ReduceOp::Any => DType::Bool,
                    _ => DType::F32,
                };
                let end =
                    node(Op::Reduce(Box::new(Reduction { op, dims: dims.clone() })), &kept, dtype);
                let (alone, _) = run(&[], Some((&end, 2)), &Serial);
                let alone = bits(&alone[0], count * dtype.size());
                for written in [&[][..], &[0], &[2], &[0, 2]] {
                    for parallel in [&Serial as &dyn Parallel, &Cut] {
                        let (results, computed) = run(written, Some((&end, 2)), parallel);
                        let what =
                            format!("{op:?} of {shape:?} over {dims:?}, {written:?} written");
                        for (value, &member) in results.iter().zip(written) {
                            assert_eq!(bits(value, 4 * n), apart[member as usize / 2], "{what}");
                        }
                        assert_eq!(bits(&results[written.len()], alone.len()), alone, "{what}");
                        match op {
                            // The block of each result in which the best one is, once more.
                            ReduceOp::ArgMax => {
                                assert!((n..=2 * n).contains(&computed), "{what}: {computed}")
                            }
                            _ => assert_eq!(computed, n, "{what}"),
                        }
                    }
                }
            }
        }
    }
}

/// No memory for the reduction's result: what is written beside it is there all the same.
#[test]
fn a_reduction_without_memory_leaves_the_rest_of_its_step_alone() {
    let memory = Memory::new(usize::MAX);
    let host = Host { memory: &memory, parallel: &Serial, inline_values: false };
    let given = node(Op::Given, &[40], DType::F32);
    let one = given.constant(Scalar::Float(1.0));
    let y = node(Op::Unary(UnaryOp::Neg), &[40], DType::F32);
    let reduction = Reduction { op: ReduceOp::Sum, dims: SmallVec::from_slice(&[true]) };
    let end = node(Op::Reduce(Box::new(reduction)), &[], DType::F32);
    let mut group: Group<&Node> = Group::new();
    let reg = group.add(&&y, &[&given]);
    let run = |refuse: usize| {
        let mut program = group.program.clone();
        program.outputs = [reg].into_iter().collect();
        memory.refuse(refuse);
        run_fused(&group, program, &[0], Some((&end, 0)), &one, host)
    };
    let results = run(2);
    assert_eq!(bits(results[0].as_ref().expect("it was written"), 4), (-1f32).to_ne_bytes());
    assert!(results[1].as_ref().unwrap_err().is_out_of_memory());
    let results = run(1);
    assert!(results.iter().all(|r| r.as_ref().is_err_and(|e| e.is_out_of_memory())));
    let results = run(0);
    assert_eq!(bits(results[1].as_ref().expect("it was summed"), 4), (-40f32).to_ne_bytes());
}
