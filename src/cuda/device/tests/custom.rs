//! A custom op with a kernel of its own: the source runs, and a wrong source says why.

#![allow(unsafe_code)]

use crate::cuda::device::modules::store::Fusion;
use crate::cuda::device::testing::{Rig, Value, numbers};
use crate::cuda::device::{DeviceViewMut, Trouble};
use crate::dtype::DType;
use crate::graph::device_run::{CudaArg, CudaGrid, CudaKernel, CudaRun};
use crate::graph::node::Op;
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use std::sync::Arc;

/// `out = a * x + y`, from outside.
struct Axpy(f32, &'static str);

impl Operation for Axpy {
    fn name(&self) -> &str {
        "axpy"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, _: &mut CpuRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::kernel("not on the CPU"))
    }
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, y, out) = (run.inputs()[0], run.inputs()[1], run.output());
        let n = out.numel();
        let args = [
            CudaArg::F32(self.0),
            CudaArg::Address(x.address()),
            CudaArg::Address(y.address()),
            CudaArg::Address(out.address()),
            CudaArg::I32(n as i32),
        ];
        // SAFETY: the arguments are the kernel's parameters; it writes n elements.
        unsafe { run.launch(CudaKernel::new("axpy", self.1), CudaGrid::cover(n, 64), &args) }
    }
}

const AXPY: &str = r#"
extern "C" __global__ void axpy(float a, const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"#;

#[test]
#[ignore = "needs a driver in the loader's path, a GPU's or the simulated one"]
fn an_op_from_outside_brings_its_source_and_a_wrong_one_says_why() {
    let rig = Rig::new();
    let launcher = &mut rig.launcher(Fusion::Background);
    let x = Value::of(&[100], &[3f32; 100]);
    let y = Value::of(&[100], &(0..100).map(|i| i as f32).collect::<Vec<_>>());
    let mut run = |source| {
        let out = DeviceViewMut { ptr: rig.alloc(400), dtype: DType::F32, shape: &[100] };
        let op = Op::Custom(Arc::new(Axpy(2.0, source)));
        let views = [x.on(&rig), y.on(&rig)];
        rig.run(launcher, |l| l.node(&rig, &op, &views, out, false)).map(|()| out.ptr)
    };
    let refusal = |got| match got {
        Err(Trouble::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        let got = numbers(DType::F32, &rig.download(run(AXPY).unwrap(), 400));
        assert_eq!(got, (0..100).map(|i| 6.0 + i as f64).collect::<Vec<_>>());
        let wrong = refusal(run("extern \"C\" __global__ void axpy(float a) { nonsense; }"));
        assert!(wrong.contains("axpy does not compile") && wrong.contains("nonsense"), "{wrong}");
        let missing = refusal(run("extern \"C\" __global__ void other(float* a) { a[0] = 1; }"));
        assert!(missing.contains("no kernel named axpy"), "{missing}");
    }
    let none = launcher.node(
        &rig,
        &Op::Custom(Arc::new(crate::ops::custom::Closures {
            name: "homemade".into(),
            infer: |metas: &[&Meta]| Ok(metas[0].clone()),
            run: |_: &mut CpuRun<'_>| Ok(()),
        })),
        &[x.on(&rig)],
        DeviceViewMut { ptr: rig.alloc(400), dtype: DType::F32, shape: &[100] },
        false,
    );
    assert!(refusal(none.map(|()| 0)).contains("homemade has no CUDA kernel"));
    launcher.clear(&rig.idle());
}
