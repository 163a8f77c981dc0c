//! The first program: `cargo run --example quick`.
use futensor::{Device, Result, Tensor};

#[tokio::main]
async fn main() -> Result<()> {
    let device = Device::try_gpu(0); // a GPU where there is one, else the CPU
    let x = device.ones([1, 2]); // TensorFuture: nothing has waited
    let y = device.ones([1, 2]);
    let z = &x * &y + 2.0; // queued, fused into one kernel
    println!("{}", z.display().await?); // tensor([[3., 3.]])

    let a = device.randn([1000, 1000]);
    let b = a.matmul(&a);
    b.wait_to_read().await?; // this value, nothing else
    let ready: Tensor = b.await?; // the same barrier, by value
    let host: Vec<f32> = ready.to_vec().await?; // a copy back, awaited, never blocking
    let norm: f32 = (&ready * &ready).sum_all().sqrt().item().await?;
    (&ready + 1.0).detach(); // fire and forget
    device.waitall().await?; // join the whole device
    println!("{} {norm} {:?}", host.len(), device.stats());
    Ok(())
}
