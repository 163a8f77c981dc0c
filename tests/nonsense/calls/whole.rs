//! Assignment, casts, gradients, ops from outside, clipping.

use super::{Call, none};
use futensor::custom::*;
use futensor::*;

pub fn all() -> Vec<Call> {
    calls![
        ("slice_assign", |x| vec![
            x.clone().slice_assign(0, x),
            x.clone().slice_assign(99, x),
            x.clone().slice_assign((0, 0, 0, 0, 0), x),
            x.clone().slice_assign(.., x),
            x.clone().slice_assign(Index::ALL.step(0), x),
            x.clone().slice_assign(0, x.device().ones([9]))
        ]),
        ("likes", |x| vec![
            x.zeros_like(),
            x.ones_like(),
            x.full_like(f64::NAN),
            x.rand_like(),
            x.randn_like()
        ]),
        ("chance", |x| {
            let (device, generator) = (x.device(), Generator::new(3));
            vec![
                device.randint(5, 5, [2]),
                device.randint(i64::MIN, i64::MAX, x.shape()),
                device.randint(-3, 4, x.shape()),
                device.randperm(7),
                device.uniform(f64::NAN, 1.0, x.shape()),
                device.normal(0.0, f64::INFINITY, x.shape()),
                device.exponential(-1.0, x.shape()),
                device.exponential(1e-300, x.shape()),
                generator.gamma(x),
                generator.bernoulli(x),
                generator.multinomial(x, 2, true),
                generator.multinomial(x.abs(), 2, false),
                generator.multinomial(x, usize::MAX, false),
            ]
        }),
        ("ranges of a type", |x| {
            let device = x.device();
            vec![
                device.arange_dtype(0, 5, 0, DType::F64),
                device.arange_dtype(0.0, 1e300, 1.0, DType::U8),
                device.arange_dtype(-3, 3, 1, x.dtype()),
                device.linspace_dtype(0.0, f64::NAN, 3, x.dtype()),
                device.linspace_dtype(0.0, 1.0, usize::MAX, DType::F64),
            ]
        }),
        ("where", |x| vec![
            x.where_cond(1, 2),
            x.gt(0).where_cond(x, f64::NAN),
            x.where_cond(x, x)
        ]),
        ("cast", |x| [
            DType::F32,
            DType::F64,
            DType::F16,
            DType::BF16,
            DType::I32,
            DType::I64,
            DType::U8,
            DType::Bool
        ]
        .iter()
        .map(|&t| x.to_dtype(t))
        .collect()),
        ("grad", |x| {
            let x = x.requires_grad();
            grad((&x * &x).sum_all(), &[&x])
        }),
        ("grad empty", |x| grad(x.sum_all(), &none())),
        ("grad nonscalar", |x| grad(x, &[x])),
        ("grad up", |x| {
            let x = x.requires_grad();
            grad_with(&x * 2.0, &[&x], GradOptions::default().upstream(&x.device().ones([77])))
        }),
        ("from_future", |x| vec![
            x.device().from_future(x.shape(), async { Ok::<_, &str>(vec![1.0f32]) }),
            x.device().from_future(x.shape(), async { Err::<Vec<bool>, _>("nothing came") })
        ]),
        ("checkpoint", |x| vec![checkpoint(|x| x[0].exp(), &[x])]),
        ("custom0", |x| {
            let _ = x;
            vec![custom_fn("none", &[], |_| Ok(Meta::new([2], DType::F32)), |_| Ok(()))]
        }),
        ("a kernel that fails", |x| vec![
            custom_fn("pan", &[x], |_| Ok(Meta::new([2], DType::F32)), |_| panic!("in run")),
            custom_fn(
                "ref",
                &[x],
                |_| Ok(Meta::new([2], DType::F32)),
                |_| Err(Refusal::argument("no"))
            )
        ]),
        ("a rule that panics", |x| vec![custom_fn(
            "pan",
            &[x],
            |_| panic!("in infer"),
            |_| Ok(())
        )]),
        ("custom huge", |x| vec![custom_fn(
            "pan",
            &[x],
            |_| Ok(Meta::new([usize::MAX, usize::MAX], DType::F32)),
            |_| Ok(())
        )]),
        ("todev", |x| vec![
            x.to_device(&Device::cpu()),
            x + Device::cpu().ones([1]),
            x.matmul(Device::cpu().ones([3, 3]))
        ]),
        ("clip", |x| optim::clip_grad_norm(std::slice::from_ref(x), 1.0).0),
        ("clip empty", |x| {
            let _ = x;
            let (v, n) = optim::clip_grad_norm(&[], 1.0);
            let mut v = v;
            v.push(n);
            v
        }),
        ("clip nan", |x| optim::clip_grad_value(std::slice::from_ref(x), f64::NAN)),
        ("clip neg", |x| optim::clip_grad_value(std::slice::from_ref(x), -1.0)),
    ]
}
