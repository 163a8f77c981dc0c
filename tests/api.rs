//! Everybody's preludes beside everything of ours: no method is ambiguous, nothing shadows.

#![allow(unused_imports)] // That they are imported is the test.

use futensor::{
    barrier::*, cuda::*, custom::*, finite::*, read::*, recording::*, region::*, sim::*, train::*,
    *,
};
use futures::future::{FutureExt as _, TryFutureExt as _};
use futures::prelude::*;
use futures::stream::{FuturesUnordered, StreamExt as _, TryStreamExt as _};
use std::io::{Read as _, Write as _};
use std::iter::{FromIterator as _, Sum as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The program that the documentation opens with.
#[tokio::test]
async fn the_first_program_compiles_and_runs_beside_every_prelude() -> futensor::Result<()> {
    let device = Device::try_gpu(0);
    let x = device.ones([1, 2]);
    let y = device.ones([1, 2]);
    let z = &x * &y + 2.0;
    assert!(z.display().await?.starts_with("tensor([[3., 3.]]"));

    let a = device.randn([100, 100]);
    let b = a.matmul(&a);
    b.wait_to_read().await?;
    let ready: Tensor = b.await?;
    let host: Vec<f32> = ready.to_vec().await?;
    let norm: f32 = (&ready * &ready).sum_all().sqrt().item().await?;
    (&ready + 1.0).detach();
    device.waitall().await?;
    let direct = host.iter().map(|&v| v as f64 * v as f64).sum::<f64>().sqrt();
    assert!((norm as f64 - direct).abs() < 1e-3 * direct, "{norm} and {direct}");
    Ok(())
}

#[tokio::test]
async fn every_method_is_called_by_its_name() -> futensor::Result<()> {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    assert!(Device::try_all_gpus().len() == Device::gpu_count());
    assert!(Device::cuda(4096).unwrap_err().is_device());
    let x = device.arange(0.0, 6.0, 1.0).reshape([2, 3]);
    let made = [
        device.zeros([2, 3]),
        device.full([2, 3], 0.5),
        device.rand([2, 3]),
        device.randn([2, 3]),
        device.linspace(0.0, 1.0, 3).expand([2, 3]),
        device.eye(3).narrow(0, 0, 2),
        device.from_vec(vec![1.0f32; 6], [2, 3]),
        device.from_slice(&[1.0f32; 6], [2, 3]),
        device.from_future([2, 3], async { Ok::<_, Error>(vec![1.0f32; 6]) }),
        Generator::new(1).rand(&device, [2, 3]),
        x.transpose(0, 1).t(),
        x.permute([1, 0]).permute([1, 0]),
        x.unsqueeze(0).squeeze(0),
        cat(&[&x, &x], 0).i(0..2),
        stack(&[&x, &x], 0).i(1),
        x.clone().slice_assign((0, ..), device.zeros([3])),
        x.to_dtype(DType::F64).to_dtype(DType::F32),
        x.to_device(&device),
        x.gt(1.0).where_cond(&x, 0.0),
        x.clamp(0.0, 1.0),
    ];
    for value in &made {
        assert_eq!(
            (value.shape(), value.dtype(), value.rank(), value.numel()),
            (x.shape(), DType::F32, 2, 6)
        );
        assert_eq!(value.to_vec::<f32>().await?.len(), 6);
    }
    // Names that iterators, futures, streams or ordering also have.
    assert_eq!(x.sum(0).dims(), [3]);
    assert_eq!(x.max(0).dims(), [3]);
    assert_eq!(x.min(0).dims(), [3]);
    assert_eq!(x.all(0).dims(), [3]);
    assert_eq!(x.any(0).dims(), [3]);
    assert_eq!(x.prod(0).dims(), [3]);
    assert!(x.clone().map(|value| value.is_ok()).await);
    assert_eq!(x.add(1.0).sub(1.0).mul(2.0).div(2.0).abs().to_vec::<f32>().await?[5], 5.0);
    assert!(x.eq(&x).all_all().item::<bool>().await?);
    assert!(!x.lt(&x).any_all().item::<bool>().await?);
    assert_eq!(x.argmax_all().item::<i64>().await?, 5);
    assert_eq!(x.gt(3.5).nonzero().await?.to_vec::<i64>().await?, [1, 1, 1, 2]);
    let tensor = x.await?;
    assert_eq!(tensor.exp().log().round().to_vec::<f32>().await?, tensor.to_vec::<f32>().await?);
    device.ready().await;
    drop((device.admit().await, device.try_admit()));
    waitall().await?;
    device.shutdown().await
}

#[tokio::test]
async fn futures_combinators_take_our_futures() {
    let device = Device::cpu();
    let values: Vec<Tensor> =
        future::try_join_all((0..4).map(|i| device.ones([2]) * i)).await.unwrap();
    let mut reads: FuturesUnordered<_> = values.iter().map(|x| x.to_vec::<f32>()).collect();
    let mut sum = 0.0;
    while let Some(read) = reads.next().await {
        sum += read.unwrap()[0];
    }
    assert_eq!(sum, 6.0);
    let (a, b) = tokio::try_join!(device.ones([2]), device.zeros([2])).unwrap();
    let either = future::select(a.wait_to_read(), b.wait_to_read()).await;
    either.factor_first().0.unwrap();
    let doubled = device.ones([2]).and_then(|x| x * 2.0).await.unwrap();
    assert_eq!(doubled.to_vec::<f32>().await.unwrap(), [2.0; 2]);
    let shared = device.ones([1]).map_ok(|x| x.numel()).map_err(|e| e.to_string()).shared();
    assert_eq!(shared.clone().await.unwrap() + shared.await.unwrap(), 2);
}

/// A server that catches a request's panic goes on with what it holds.
#[test]
fn handles_cross_a_catch_unwind() {
    fn safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    safe::<(
        Device,
        TensorFuture,
        Tensor,
        Error,
        Generator,
        Shape,
        Scalar,
        train::Trainer,
        train::SplitBatch,
        sim::Simulation,
    )>();
    safe::<(
        Wait,
        WaitAll,
        WaitEverything,
        Ready,
        Admit,
        Permit,
        TrimWait,
        Shutdown,
        ToVec<f32>,
        Item<i64>,
        Shown,
        NonZero,
    )>();
    safe::<(nn::Parameter, nn::Linear, nn::LazyLinear, nn::BatchNorm, nn::Conv2d, nn::Dropout)>();
    safe::<(
        optim::Sgd,
        optim::Adam,
        optim::AdamW,
        optim::Step,
        optim::Update,
        recording::Recorder,
        Stats,
        CpuOptions,
    )>();

    let (device, x) = (Device::cpu(), Device::cpu().ones([2]));
    let caught = std::panic::catch_unwind(|| {
        let y = &x + device.ones([2]);
        assert_eq!(y.rank(), 7, "the request panics");
    });
    assert!(caught.is_err());
    assert_eq!(block_on((&x + device.ones([2])).to_vec::<f32>()).unwrap(), [2.0, 2.0]);
}

/// What a user of PyTorch or of Rust's collections would type.
#[tokio::test]
async fn what_people_type_works() -> futensor::Result<()> {
    let device = Device::cpu();
    let x = device.ones((2, 3));
    assert_eq!(x.dims(), [2, 3]);
    assert_eq!(device.zeros((1,)).dims(), [1]);
    assert_eq!(device.rand((1, 2, 3, 4, 5, 6)).dims(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(x.mm(device.ones((3, 4))).to_vec::<f32>().await?, [3.0; 8]);
    assert!(x.mm(device.ones(3)).error().unwrap().is_shape());
    let mut net = nn::Sequential::new();
    net.push(nn::Linear::new(3, 1, &device));
    net.push(nn::Relu);
    use nn::Module as _;
    net.to_device(&device);
    let loss = net.forward(&x).sum_all();
    let gradients = grad(&loss, &net.parameters());
    assert_eq!(gradients.len(), 2);
    let weights: Vec<TensorFuture> = gradients.iter().map(|g| g.stop_gradient()).collect();
    assert_eq!(weights[0].dims(), [1, 3]);
    let told = format!("{}", x.await?);
    assert!(told.contains("[2, 3]") && told.contains("display().await"), "{told}");
    Ok(())
}
