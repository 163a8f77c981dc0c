//! Nonsense for arguments on simulated CUDA: the list of `nonsense`, on another device.
//!
//!     cargo test -p futensor-tests --test nonsense_simulated_cuda   # ignored without g++

#[allow(dead_code)]
mod nonsense;

use futensor::Device;
use futensor::cuda::CudaOptions;
use futensor_simulated_driver::harness;
use std::process::ExitCode;

fn device() -> Device {
    Device::cuda_with(0, CudaOptions::default().bytes_max(1 << 26)).expect("a simulated GPU")
}

fn main() -> ExitCode {
    let ready = harness::enter().and_then(|simulator| simulator.can_compile().map(|()| simulator));
    match &ready {
        Ok(simulator) => simulator.reset(1, 1),
        Err(why) => eprintln!("ignored, as the simulated driver cannot be used: {why}"),
    }
    let code = nonsense::run("simulated_cuda", true, ready.is_err(), device);
    match ready.map(|simulator| simulator.report()) {
        Ok(report) if !report.is_empty() => {
            eprintln!("reports are left:\n{report}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}
