//! Holds the elementary functions of f32 to their bounds, against f64 functions that are not ours.

#![allow(unsafe_code)]

use super::{Lane, Real};
use crate::kernels::cpu::simd::{Body, Level, Simd, instances};

type Row = (&'static str, [crate::kernels::cpu::simd::Loop; 3], fn(f64) -> f64, f64);

macro_rules! rows {
    ($($name:ident $bound:literal $reference:expr;)*) => {{
        $(
            #[allow(non_camel_case_types)]
            struct $name;
            impl Body for $name {
                #[inline(always)]
                unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
                    // SAFETY: the test passes two arrays of n floats.
                                let (dst, a) = unsafe {
                        (std::slice::from_raw_parts_mut(dst as *mut f32, n), std::slice::from_raw_parts(a as *const f32, n))
                    };
                    for (y, &x) in dst.iter_mut().zip(a) {
                        *y = Real::$name(Lane::<S, f32>::new(x)).0;
                    }
                }
            }
        )*
        [$((stringify!($name), instances::<$name>(), $reference as fn(f64) -> f64, $bound)),*]
    }};
}

fn logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// Name, instances, reference, and the bound on the error in units in the last place of the exact value. The
/// promise is 2 from the correctly rounded value, which itself is up to a half from the exact one: so 2.5 here.
/// Where less is reached, less is held.
fn table() -> Vec<Row> {
    rows! {
        exp 1.1 f64::exp;
        exp2 1.1 f64::exp2;
        expm1 0.6 f64::exp_m1;
        log 1.1 f64::ln;
        log2 0.6 f64::log2;
        log10 0.6 f64::log10;
        log1p 0.6 f64::ln_1p;
        sin 0.6 f64::sin;
        cos 0.6 f64::cos;
        tan 0.6 f64::tan;
        tanh 2.0 f64::tanh;
        sigmoid 2.5 logistic;
        softplus 0.6 |x| if x > 20.0 { x } else { x.exp().ln_1p() };
        erf 2.0 libm::erf;
        gelu 0.6 |x| x * (0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2));
        gelu_tanh 0.6 |x| x * logistic(2.0 * 0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x));
    }
    .to_vec()
}

/// Distance of `y` from `exact` in units of the last place that f32 has at `exact`.
fn error(y: f32, exact: f64) -> f64 {
    let near = exact as f32;
    if near.to_bits() == y.to_bits() || (near.is_nan() && y.is_nan()) {
        return 0.0; // rounded as it should be, zeros with their sign
    }
    if near.is_nan() || y.is_nan() {
        return f64::INFINITY;
    }
    let largest = f32::MAX as f64;
    // An infinity counts as the next number after the largest.
    let (y, exact) = (
        (y as f64).clamp(-largest - 2f64.powi(104), largest + 2f64.powi(104)),
        exact.clamp(-largest * 1.5, largest * 1.5),
    );
    let exponent = (exact.abs().max(f32::MIN_POSITIVE as f64).to_bits() >> 52) as i32 - 1023;
    if y == 0.0 && near == 0.0 {
        return f64::INFINITY; // the wrong sign
    }
    (y - exact).abs() / 2f64.powi(exponent.min(127) - 23)
}

/// Checks every `stride`th bit pattern, beginning at `start`, at every level.
fn check(row: &Row, start: u32, stride: u32) {
    let (name, instances, reference, bound) = row;
    let levels: Vec<Level> = Level::available().collect();
    let mut worst = vec![(0f64, 0f32); levels.len()];
    let mut patterns = (start..=u32::MAX).step_by(stride as usize);
    let (mut xs, mut ys) = (vec![0f32; 4096], vec![vec![0f32; 4096]; levels.len()]);
    loop {
        let n = xs.iter_mut().zip(&mut patterns).map(|(x, bits)| *x = f32::from_bits(bits)).count();
        if n == 0 {
            break;
        }
        for (level, ys) in levels.iter().zip(&mut ys) {
            let run = instances[*level as usize];
            // SAFETY: the level is available and both arrays hold n elements.
            unsafe { run(ys.as_mut_ptr().cast(), xs.as_ptr().cast(), std::ptr::null(), std::ptr::null(), n) };
        }
        for (i, &x) in xs[..n].iter().enumerate() {
            let exact = reference(x as f64);
            for (worst, ys) in worst.iter_mut().zip(&ys) {
                let e = error(ys[i], exact);
                if e > worst.0 {
                    *worst = (e, x);
                }
            }
        }
    }
    for (level, (e, x)) in levels.iter().zip(worst) {
        println!("{name:10} {level:?}: {e:.3} ulp at {x:e} ({:#x})", x.to_bits());
        assert!(e <= *bound, "{name} at {level:?}: {e} ulp at {x:e} ({:#x})", x.to_bits());
    }
}

#[test]
fn elementary_functions_keep_their_bound_over_a_prime_stride_of_all_floats() {
    for row in table() {
        check(&row, 0, 10_007);
    }
}

#[test]
fn elementary_functions_are_right_at_the_edges() {
    let edges = [
        0u32, 1, 0x7fffff, 0x800000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x7f7fffff, 0x7f800000, 0x7f800001,
        0x7fc00000, 0x41a00000, 0x41a00001, 0x4dc90fda, 0x4dc90fdb, 0x42b17217, 0x42b17218, 0x42cff1b4,
        0x3f1fffff, 0x3f200000, 0x3f6b851f, 0x40800000,
    ];
    for row in table() {
        for level in Level::available() {
            for bits in edges {
                for bits in [bits, bits | 0x8000_0000] {
                    let x = f32::from_bits(bits);
                    let mut y = 0f32;
                    // SAFETY: one element each.
                    unsafe {
                        row.1[level as usize](
                            (&raw mut y).cast(),
                            (&raw const x).cast(),
                            std::ptr::null(),
                            std::ptr::null(),
                            1,
                        )
                    };
                    let e = error(y, row.2(x as f64));
                    assert!(e <= row.3, "{} of {x:e} at {level:?} is {y:e}, off by {e}", row.0);
                }
            }
        }
    }
}

#[test]
#[ignore = "all 2^32 floats: minutes in a release build"]
fn elementary_functions_keep_their_bound_over_all_floats() {
    let only = std::env::var("FUTENSOR_TEST_FUNCTION").ok();
    for row in table() {
        if only.as_deref().is_some_and(|name| name != row.0) {
            continue;
        }
        check(&row, 0, 1);
    }
}
