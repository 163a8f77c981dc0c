//! What the engine takes an op to cost: never less than all its elements, whatever the op says of
//! itself.
use crate::concurrent::counted::{Handle, Link};
use crate::dtype::{DType, Scalar};
use crate::graph::infer;
use crate::graph::node::{Home, Inputs, Node, Op, Reduction, ViewOp};
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::host::kernels::rows::Form;
use crate::host::kernels::windows::pool::Divisor;
use crate::op::{BinaryOp, ReduceOp, Scan, UnaryOp};
use crate::ops::attention::rope::Rope;
use crate::ops::attention::scaled::Attention;
use crate::ops::index::embedding::Embedding;
use crate::ops::index::gather::Gather;
use crate::ops::index::index_select::IndexSelect;
use crate::ops::index::one_hot::OneHot;
use crate::ops::index::scatter_add::ScatterAdd;
use crate::ops::index::top_p::TopP;
use crate::ops::order::scan::Running;
use crate::ops::order::sort::Sort;
use crate::ops::order::topk::TopK;
use crate::ops::products::matmul::MatMul;
use crate::ops::products::turned::Turned;
use crate::ops::rows::logsumexp::LogSumExp;
use crate::ops::rows::nll::Nll;
use crate::ops::rows::norm::Norm;
use crate::ops::rows::softmax::Softmax;
use crate::ops::shaping::cat::Cat;
use crate::ops::shaping::roll::Roll;
use crate::ops::shaping::slice_assign::SliceAssign;
use crate::ops::shaping::triangle::Triangle;
use crate::ops::windows::conv::{Conv, Role, Walk};
use crate::ops::windows::largest::{Largest, Parts};
use crate::ops::windows::pool::{Pool, Pooled};
use crate::window::Window;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

/// Longest step that a poll runs, in nanoseconds.
const SMALL_NS: u64 = 6_000;
/// Far more elements than a poll may look at.
const MANY: usize = 1 << 22;

struct Nowhere;

impl Home for Nowhere {
    fn unobserved(&'static self, _: Link<Node>) {}
    fn skipped(&'static self, _: &Node) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An op that says it costs nothing.
struct Free(Meta);

impl Operation for Free {
    fn name(&self) -> &str {
        "free"
    }
    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(self.0.clone())
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        0
    }
}

fn f32s(shape: &[usize]) -> Meta {
    Meta::new(shape, DType::F32)
}

fn i64s(shape: &[usize]) -> Meta {
    Meta::new(shape, DType::I64)
}

/// The cost of a node of this op on such operands, and all their elements and the result's.
fn priced(op: Op, inputs: &[Meta], out: &Meta) -> (u64, u64) {
    let node = |op: Op, inputs: Inputs, meta: &Meta| {
        Node::new(op, inputs, meta.shape.clone(), meta.dtype, &Nowhere, Location::caller())
    };
    let given: Vec<Handle<Node>> =
        inputs.iter().map(|meta| Handle::new(node(Op::Given, Inputs::new(), meta))).collect();
    let made = node(op, given.iter().map(Handle::link).collect(), out);
    let all = inputs.iter().chain([out]).map(|meta| meta.shape.numel() as u64).sum();
    // No engine looks for these.
    for handle in &given {
        handle.completion.claim(crate::concurrent::completion::Phase::Claimed, 0);
    }
    made.completion.claim(crate::concurrent::completion::Phase::Claimed, 0);
    (made.cost_ns() as u64, all)
}

fn assert_covers(name: &str, op: Op, inputs: &[Meta], out: &Meta) {
    let (cost, all) = priced(op, inputs, out);
    assert!(cost >= all / 16, "{name} of {inputs:?} to {out:?}: {cost} ns for {all} elements");
    if all >= MANY as u64 {
        assert!(cost > SMALL_NS, "{name} of {inputs:?} to {out:?} is a small step");
    }
}

fn assert_custom_covers(op: impl Operation, inputs: &[Meta]) {
    let refs: Vec<&Meta> = inputs.iter().collect();
    let out = op.infer(&refs).unwrap_or_else(|why| panic!("{}: {why}", op.name()));
    let name = op.name().to_string();
    // Of the first operand it may read some elements alone.
    if op.picks() {
        let (cost, all) = priced(Op::Custom(Arc::new(op)), inputs, &out);
        let named = all - inputs[0].shape.numel() as u64;
        assert!(cost >= named / 16, "{name} of {inputs:?}: {cost} ns for {named} elements");
        return;
    }
    assert_covers(&name, Op::Custom(Arc::new(op)), inputs, &out);
}

#[test]
fn every_op_of_the_table_costs_at_least_its_elements() {
    for n in [1, 100, 5_000, MANY] {
        let (x, row, none) = (f32s(&[4, n]), f32s(&[1, n]), f32s(&[0, n]));
        for &op in UnaryOp::ALL {
            assert_covers(op.name(), Op::Unary(op), std::slice::from_ref(&x), &x);
        }
        for &op in BinaryOp::ALL {
            assert_covers(op.name(), Op::Binary(op), &[x.clone(), x.clone()], &x);
            assert_covers(op.name(), Op::Binary(op), &[x.clone(), row.clone()], &x);
            // Broadcast to nothing: the other operand is there all the same.
            assert_covers(op.name(), Op::Binary(op), &[f32s(&[0, 1]), row.clone()], &none);
            for left in [false, true] {
                let op = Op::WithScalar { op, scalar: Scalar::Float(2.0), left };
                assert_covers("with a number", op, std::slice::from_ref(&x), &x);
            }
        }
        let condition = Meta::new([4, n], DType::Bool);
        assert_covers("where_cond", Op::Where, &[condition, x.clone(), row.clone()], &x);
        assert_covers("to_dtype", Op::Cast, std::slice::from_ref(&x), &i64s(&[4, n]));
        assert_covers(
            "reshape",
            Op::View(ViewOp::Reshape),
            std::slice::from_ref(&x),
            &f32s(&[n, 4]),
        );
        let (start, step) = (Scalar::Int(0), Scalar::Int(1));
        assert_covers("arange", Op::Arange { start, step }, &[], &i64s(&[n]));
        for normal in [false, true] {
            assert_covers("rand", Op::Random { normal, seed: 1, offset: 0 }, &[], &x);
        }
        for &op in ReduceOp::ALL {
            for (of, dims) in [
                (&[4, n][..], [false, true]),
                (&[4, n], [true, false]),
                (&[4, n], [true, true]),
                (&[1, n], [true, false]),
                (&[0, n], [true, false]),
            ] {
                let of = f32s(of);
                // Of nothing there is no largest.
                let Ok(out) = infer::reduce(op, &of, &dims, false) else { continue };
                let reduction = Reduction { op, dims: dims.into_iter().collect() };
                assert_covers(op.name(), Op::Reduce(Box::new(reduction)), &[of], &out);
            }
        }
    }
}

#[test]
fn every_other_op_costs_at_least_its_elements() {
    for n in [1, 100, 5_000, MANY] {
        let x = f32s(&[4, n]);
        let alone = std::slice::from_ref(&x);
        for dim in [0, 1] {
            for positions in [false, true] {
                assert_custom_covers(Sort { dim, descending: false, positions }, alone);
            }
            for k in [0, 1] {
                assert_custom_covers(TopK { dim, k, largest: true }, alone);
            }
            for &scan in Scan::ALL {
                assert_custom_covers(Running { scan, dim }, alone);
            }
            let name = "gather";
            assert_custom_covers(
                Gather { dim, name, from_end: false },
                &[x.clone(), i64s(&[1, 1])],
            );
            assert_custom_covers(
                Gather { dim, name, from_end: false },
                &[x.clone(), i64s(&[4, n])],
            );
            assert_custom_covers(
                IndexSelect { dim, name, from_end: false },
                &[x.clone(), i64s(&[1])],
            );
            assert_custom_covers(
                ScatterAdd { dim, name, from_end: false },
                &[x.clone(), i64s(&[1, 1]), f32s(&[1, 1])],
            );
            assert_custom_covers(Cat { dim }, &[x.clone(), x.clone()]);
        }
        assert_custom_covers(Triangle { diagonal: 0, upper: true }, alone);
        assert_custom_covers(
            Rope { interleaved: true },
            &[f32s(&[4, 2 * n]), x.clone(), x.clone()],
        );
        assert_custom_covers(TopP, &[x.clone(), Meta::new([4, 1], DType::F64)]);
        assert_custom_covers(Roll { shifts: vec![(0, 1)] }, alone);
        // A histogram: few places for many numbers.
        assert_custom_covers(
            ScatterAdd { dim: 0, name: "scatter_add", from_end: false },
            &[f32s(&[256]), i64s(&[n]), f32s(&[n])],
        );
        assert_custom_covers(Embedding { name: "embedding" }, &[f32s(&[n, 4]), i64s(&[1])]);
        assert_custom_covers(OneHot { classes: 4 }, &[i64s(&[n])]);
        assert_custom_covers(OneHot { classes: n }, &[i64s(&[4])]);

        for (a, b) in [([4, 0], [0, n]), ([4, 3], [3, n]), ([n, 0], [0, 4]), ([1, n], [n, 1])] {
            assert_custom_covers(MatMul::default(), &[f32s(&a), f32s(&b)]);
            assert_custom_covers(
                Turned { a: false, b: true, of: MatMul::default() },
                &[f32s(&a), f32s(&[b[1], b[0]])],
            );
        }
        for (queries, keys) in [(n, 0), (1, n), (n, 1)] {
            let of = |rows: usize| f32s(&[1, rows, 4]);
            let op = Attention { scale: 1.0, causal: false, lengths: true };
            assert_custom_covers(op, &[of(queries), of(keys), of(keys), i64s(&[1])]);
        }

        for form in [Form::Plain, Form::Safe, Form::Log] {
            assert_custom_covers(Softmax { dim: 1, form, from_operand: false }, &[f32s(&[4, n])]);
        }
        for shape in [[4, n], [n, 0], [0, n]] {
            let dim = if shape[0] == 0 { 0 } else { 1 };
            assert_custom_covers(LogSumExp { dim, keepdim: false }, &[f32s(&shape)]);
        }
        let norm = |weight| Norm { trailing: 1, eps: 0.0, weight, bias: false, centred: true };
        assert_custom_covers(norm(false), &[f32s(&[4, n])]);
        assert_custom_covers(norm(true), &[f32s(&[0, n]), f32s(&[n])]);

        let nll = |back| Nll { ignore: -100, mean: true, name: "nll_loss", back };
        assert_custom_covers(nll(None), &[f32s(&[4, n]), i64s(&[4])]);
        assert_custom_covers(nll(None), &[f32s(&[n, 1]), i64s(&[n])]);
        assert_custom_covers(nll(Some(n)), &[f32s(&[]), i64s(&[4])]);

        let part = |start: usize, len: usize| {
            SliceAssign::new(&[4, n], &[(start, len)], |(start, len), _| {
                Some((start, len, 1, true))
            })
        };
        assert_custom_covers(part(0, 1), &[f32s(&[4, n]), f32s(&[])]);
        assert_custom_covers(part(0, 4), &[f32s(&[4, n]), f32s(&[4, n])]);
    }
}

/// Windows that meet little of the larger side, and both ways back.
#[test]
fn windows_cost_at_least_what_they_walk_over() {
    for wide in [4, 300, MANY] {
        let far = wide - 1;
        let stride = [1, 1, far.max(1)];
        let (padding, dilation) = ([[0; 2]; 3], [1; 3]);
        let window = Window {
            spatial: 2,
            input: [1, 1, wide],
            kernel: [1; 3],
            output: [1, 1, far / stride[2] + 1],
            stride,
            padding,
            dilation,
        };
        let (image, few) = (f32s(&[1, 1, 1, wide]), f32s(&[1, 1, 1, window.output[2]]));
        for what in [Pooled::Max, Pooled::MaxPosition, Pooled::Mean(Divisor::Padded)] {
            assert_custom_covers(Pool { window, what }, std::slice::from_ref(&image));
        }
        let parts = Parts::Windows(window);
        let back = Largest { name: "max_pool2d", parts, back: true };
        assert_custom_covers(back, &[image.clone(), few.clone()]);
        let what = Pooled::Spread(Divisor::Padded);
        assert_custom_covers(Pool { window, what }, std::slice::from_ref(&few));

        let walk = Walk { spatial: 2, stride, padding, dilation, groups: 1 };
        let weight = f32s(&[1, 1, 1, 1]);
        assert_custom_covers(Conv { walk, role: Role::Output }, &[image.clone(), weight.clone()]);
        assert_custom_covers(
            Conv { walk, role: Role::Input([1, 1, wide]) },
            &[few.clone(), weight],
        );
        assert_custom_covers(Conv { walk, role: Role::Weight([1; 3]) }, &[few, image]);
    }
}

#[test]
fn an_op_that_says_it_costs_nothing_costs_its_elements() {
    for n in [1, 100, 5_000, MANY] {
        assert_custom_covers(Free(f32s(&[n])), &[]);
        assert_custom_covers(Free(f32s(&[])), &[f32s(&[]), f32s(&[n])]);
        assert_custom_covers(Free(f32s(&[0, n])), &[f32s(&[n]), f32s(&[n]), f32s(&[n])]);
    }
}

#[test]
fn what_only_looks_costs_nothing_whatever_its_size() {
    let x = f32s(&[4, MANY]);
    let looks = [
        (ViewOp::Expand, f32s(&[8, 4, MANY])),
        (ViewOp::Permute([1u8, 0].into_iter().collect()), f32s(&[MANY, 4])),
        (ViewOp::Slice { dim: 0, start: 1, step: 1 }, f32s(&[2, MANY])),
    ];
    for (op, out) in looks {
        let (cost, _) = priced(Op::View(op.clone()), std::slice::from_ref(&x), &out);
        assert!(cost <= 100, "{op:?}: {cost} ns");
    }
    let (cost, _) = priced(Op::Fill(Scalar::Int(1)), &[], &x);
    assert!(cost <= 100, "a constant: {cost} ns");
}

/// Small ops stay small steps: the floor is below what their estimates say.
#[test]
fn the_floor_raises_no_small_ops_cost() {
    let x = f32s(&[1000]);
    let (cost, _) = priced(Op::Binary(BinaryOp::Add), &[x.clone(), x.clone()], &x);
    assert!(cost <= 20 + 1000 / 4, "{cost} ns");
    let cache = f32s(&[128, 128]);
    let part = SliceAssign::new(&[128, 128], &[0], |i, _| Some((i, 1, 1, false)));
    let (cost, _) = priced(Op::Custom(Arc::new(part)), &[cache.clone(), f32s(&[128])], &cache);
    assert!(cost < SMALL_NS, "a row of a small cache: {cost} ns");
}
