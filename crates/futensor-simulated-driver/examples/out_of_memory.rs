//! A test of a program that uses CUDA, without a GPU: what does the program do where memory runs
//! out? Run: `cargo run -p futensor-simulated-driver --example out_of_memory`

use cudarc::driver::{CudaContext, CudaSlice, DriverError};
use futensor_simulated_driver::harness;

/// What is tested: as many buffers as there is memory for, of those that are wanted.
fn buffers(wanted: usize) -> Result<Vec<CudaSlice<f32>>, DriverError> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut all = Vec::new();
    while all.len() < wanted {
        match stream.alloc_zeros(1024) {
            Ok(buffer) => all.push(buffer),
            Err(_) if !all.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn main() -> Result<(), String> {
    let simulator = harness::enter()?;
    simulator.reset(7, 1);
    simulator.fail_allocation(3);
    let got = buffers(5).map_err(|error| error.to_string())?;
    assert_eq!(got.len(), 2, "the third is refused, and the others stay");
    drop(got);
    assert_eq!(simulator.report(), "");
    println!("two of five buffers; {} allocations", simulator.stats().allocations);
    Ok(())
}
