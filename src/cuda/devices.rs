//! GPUs as a user asks for them: by number, or any that is there.
//!
//! A build without the feature `cuda` has this file too, and no GPU. [`gpu`](super::gpu) opens one.

use super::gpu;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::device::Device;
use std::panic::Location;

impl Device {
    /// The GPU with this number. Only looks whether it is there: its context is made on the
    /// device's own thread, and the first value waits for that. All calls with one number give the
    /// same device.
    ///
    /// A GPU that meets a fault (an illegal address, a device that falls off the bus) is lost for
    /// the life of the process, since the driver offers no other way: every value on it fails,
    /// while the CPU and other GPUs go on. A service can go on with [`Device::cpu`], or exit and be
    /// started again.
    ///
    /// A process may end with work queued. Its exit waits until no device's thread is inside one of
    /// NVIDIA's libraries, microseconds as a rule, while a kernel is compiled for two seconds at
    /// most: those libraries destroy what they keep, and a call under way would fault.
    ///
    /// # Errors
    /// A device error where it is not there, that says which library or device is missing and where
    /// it was looked for.
    #[track_caller]
    pub fn cuda(index: usize) -> Result<Device> {
        let at = Location::caller();
        gpu::shared(index).map_err(|why| {
            let text = format!("cuda:{index} is not there: {why}");
            Error::new(ErrorKind::Device, "cuda", text, at)
        })
    }

    /// The GPU with this number where there is one, else the CPU.
    ///
    /// ```
    /// let device = futensor::Device::try_gpu(1000);
    /// assert_eq!(device, futensor::Device::cpu());
    /// ```
    pub fn try_gpu(index: usize) -> Device {
        Device::cuda(index).unwrap_or_else(|_| Device::cpu())
    }

    /// Every GPU; empty where there is none.
    pub fn try_all_gpus() -> Vec<Device> {
        (0..Device::gpu_count()).filter_map(|i| Device::cuda(i).ok()).collect()
    }

    /// How many GPUs there are: 0 where there is no driver either.
    pub fn gpu_count() -> usize {
        gpu::count()
    }
}
