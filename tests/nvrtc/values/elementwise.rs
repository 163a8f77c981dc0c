//! Fused programs: strides, lengths, alignments, random draws.

use super::{Random, Strided, indices};
use crate::catalogue::{cast, mixed, source};
use crate::cuda::kernels::elementwise::plan;
use crate::dtype::{DType, Scalar};
use crate::graph::program::{Arg, Code, Program};
use crate::on_host::{Buffer, run};
use crate::op::{BinaryOp, UnaryOp};
use half::f16;

struct Mixed {
    x: Strided<f16>,
    y: Strided<f32>,
    c: Strided<u8>,
}

impl Mixed {
    fn check(&self, shape: &[usize], what: &str) {
        let n: usize = shape.iter().product();
        let program = mixed();
        let operands = [self.x.operand(), self.y.operand(), self.c.operand()];
        let plan = plan(&program, shape, &operands, 16);
        let mut outputs = [Buffer::new(4 * n), Buffer::new(2 * n)];
        run(&plan, &mut [self.x.buffer(), self.y.buffer(), self.c.buffer()], &mut outputs);
        let (a, b) = (outputs[0].get::<f32>(), outputs[1].get::<f16>());
        for (i, index) in indices(shape).iter().enumerate() {
            let (x, y, c) = (self.x.at(index), self.y.at(index), self.c.at(index));
            let sum = x.to_f32() + y;
            let want = if c != 0 { sum * 0.1 } else { 7.0 };
            assert_eq!(a[i].to_bits(), want.to_bits(), "{what} at {index:?} of {shape:?}");
            assert_eq!(
                b[i].to_bits(),
                f16::from_f32(x.to_f32() + x.to_f32()).to_bits(),
                "{what} at {index:?}"
            );
        }
    }
}

pub fn any_strides() {
    let seed = 11;
    let mut r = Random(seed);
    for case in 0..60 {
        let rank = r.below(5);
        let shape: Vec<usize> = (0..rank).map(|_| *r.pick(&[1, 2, 3, 4, 8, 12, 5])).collect();
        let m = Mixed {
            x: Strided::random(&mut r, &shape, |r| f16::from_f64(8.0 * r.float())),
            y: Strided::random(&mut r, &shape, |r| r.float() as f32),
            c: Strided::random(&mut r, &shape, |r| (r.next() & 1) as u8),
        };
        m.check(&shape, &format!("seed {seed} case {case}"));
    }
}

pub fn odd_lengths() {
    let mut r = Random(5);
    for n in [0, 1, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 2049] {
        for offset in [0, 1, 4] {
            let mut m = Mixed {
                x: Strided::contiguous(&[n + 8], |_| f16::from_f64(r.float())),
                y: Strided::contiguous(&[n + 8], |i| i as f32),
                c: Strided::contiguous(&[n + 8], |i| (i % 3 == 0) as u8),
            };
            (m.x.offset, m.y.offset, m.c.offset) = (offset, offset, offset);
            m.check(&[n], &format!("offset {offset}"));
            // One of them a single number.
            m.y.strides[0] = 0;
            m.check(&[n], &format!("offset {offset}, one number"));
        }
    }
}

pub fn ten_dimensions() {
    let mut r = Random(9);
    let shape = [2; 10];
    for _ in 0..3 {
        let m = Mixed {
            x: Strided::random(&mut r, &shape, |r| f16::from_f64(r.float())),
            y: Strided::random(&mut r, &shape, |r| r.float() as f32),
            c: Strided::random(&mut r, &shape, |r| (r.next() & 1) as u8),
        };
        m.check(&shape, "ten dimensions");
    }
}

pub fn in_place() {
    let mut p = Program::default();
    let x = p.push(Code::Input(0), DType::F32, DType::F32);
    let y = p.push(Code::Unary(UnaryOp::Square, Arg::Reg(x)), DType::F32, DType::F32);
    p.outputs.push(y);
    let values: Vec<f32> = (0..1000).map(|i| i as f32 - 500.0).collect();
    let v = Strided::contiguous(&[1000], |i| values[i]);
    let mut plan = plan(&p, &[1000], &[v.operand()], 16);
    // The output's address is the input's.
    for arg in plan.launches.iter_mut().flat_map(|l| &mut l.args) {
        if let crate::cuda::kernels::Arg::In { index, bytes } = arg {
            *arg = crate::cuda::kernels::Arg::Out { index: *index, bytes: *bytes as usize };
        }
    }
    let mut out = [v.buffer()];
    run(&plan, &mut [], &mut out);
    let want: Vec<f32> = values.iter().map(|x| x * x).collect();
    assert_eq!(out[0].get::<f32>(), want);
}

pub fn arange() {
    for n in [1, 7, 1000] {
        let p = source(
            Code::Arange { start: Scalar::Float(-3.5), step: Scalar::Float(0.1) },
            DType::F32,
        );
        let mut out = [Buffer::new(4 * n)];
        run(&plan(&p, &[n], &[], 16), &mut [], &mut out);
        let want: Vec<f32> = (0..n).map(|i| (-3.5 + i as f64 * 0.1) as f32).collect();
        assert_eq!(out[0].get::<f32>(), want);
        let p = source(Code::Arange { start: Scalar::Int(10), step: Scalar::Int(-3) }, DType::U8);
        let mut out = [Buffer::new(n)];
        run(&plan(&p, &[n], &[], 16), &mut [], &mut out);
        let want: Vec<u8> = (0..n).map(|i| (10 - 3 * i as i64) as u8).collect();
        assert_eq!(out[0].get::<u8>(), want);
    }
}

/// The known answer that Random123 publishes (tests/kat_vectors, `philox 4x32 10`, all zeros),
/// through the 53 bits that a double shows of two words.
pub fn philox() {
    let p = source(Code::Uniform { seed: 0, offset: 0 }, DType::F64);
    let mut out = [Buffer::new(16)];
    run(&plan(&p, &[2], &[], 16), &mut [], &mut out);
    let words = [0x6627_e8d5u64, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    let want = |low: u64, high: u64| ((high << 32 | low) >> 11) as f64 / (1u64 << 53) as f64;
    assert_eq!(out[0].get::<f64>(), [want(words[0], words[1]), want(words[2], words[3])]);
}
