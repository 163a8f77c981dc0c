//! Values that lie further apart than 31 bits can count.

use super::Strided;
use crate::catalogue::{cast, source};
use crate::cuda::kernels::index::{self, Indexed};
use crate::cuda::kernels::reduce::{self, identity};
use crate::cuda::kernels::{Kernel, Operand, copy, elementwise};
use crate::dtype::{DType, Scalar};
use crate::graph::program::Code;
use crate::on_host::{Batch, Buffer};
use crate::op::ReduceOp;
use crate::shape::contiguous_strides;

const FAR: isize = i32::MAX as isize + 6;

/// Two rows of four bytes, one at the start of the buffer and one past 2^31.
fn rows() -> Buffer {
    let mut b = Buffer::sparse(FAR as usize + 4);
    for (i, x) in [1u8, 2, 3, 4].into_iter().enumerate() {
        // SAFETY: both rows lie in the buffer.
        unsafe {
            b.address().add(i).write(x);
            b.address().add(FAR as usize + i).write(10 * x);
        }
    }
    b
}

pub fn far_apart() {
    let mut b = Batch::default();
    let x = Operand { strides: &[FAR, 1], align: 16 };
    let all = vec![1u8, 2, 3, 4, 10, 20, 30, 40];

    let plan = elementwise::plan(&cast(DType::U8, DType::I32), &[2, 4], &[x], 16);
    assert!(matches!(&plan.launches[0].kernel, Kernel::Elementwise(key) if key.wide));
    let want: Vec<i32> = all.iter().map(|&x| x as i32).collect();
    b.add(plan, [rows()], [Buffer::new(32)], move |out, _| assert_eq!(out[0].get::<i32>(), want));

    let to = contiguous_strides(&[2, 4]);
    let plan = copy::plan(1, &[2, 4], x, Operand { strides: &to, align: 16 }, 0);
    assert!(matches!(
        &plan.launches[0].kernel,
        Kernel::Copy(copy::Key::Strided { wide: true, .. })
    ));
    let want = all.clone();
    b.add(plan, [rows()], [Buffer::new(8)], move |out, _| assert_eq!(out[0].get::<u8>(), want));

    // Column sums, and the sum of everything.
    for (over, want) in [([true, false], vec![11i64, 22, 33, 44]), ([true, true], vec![110])] {
        let plan = reduce::plan(ReduceOp::Sum, &identity(DType::U8), &[2, 4], &over, &[x]).unwrap();
        assert!(matches!(&plan.launches[0].kernel, Kernel::Reduce(key) if key.wide));
        b.add(plan, [rows()], [Buffer::new(8 * want.len())], move |out, _| {
            assert_eq!(out[0].get::<i64>(), want)
        });
    }

    // Row 1 twice.
    let i = Strided::contiguous(&[2], |_| 1i64);
    let indexed =
        Indexed { dtype: DType::I64, strides: &[1, 0], positions: &[1, 0], from_end: false };
    let plan = index::gather(1, &[2, 4], 0, x, 2, indexed, 16).unwrap();
    assert!(matches!(
        &plan.launches[0].kernel,
        Kernel::Index(index::Key::Gather { wide: true, .. })
    ));
    b.add(plan, [rows(), i.buffer()], [Buffer::new(8)], |out, bad| {
        assert_eq!((out[0].get::<u8>(), bad), (vec![10, 20, 30, 40, 10, 20, 30, 40], None));
    });

    // Positions count from the launch's first element in 64 bits.
    let arange = source(Code::Arange { start: Scalar::Int(0), step: Scalar::Int(1) }, DType::I64);
    let mut plan = elementwise::plan(&arange, &[3], &[], 16);
    let far = 1u64 << 40;
    for arg in &mut plan.launches[0].args {
        if let crate::cuda::kernels::Arg::U64(base) = arg {
            *base = far;
        }
    }
    b.add(plan, [], [Buffer::new(24)], move |out, _| {
        assert_eq!(out[0].get::<i64>(), [0, 1, 2].map(|i| far as i64 + i));
    });
    b.run();
}
