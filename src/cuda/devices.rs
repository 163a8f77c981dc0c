//! GPUs as users ask for them: by number, or any GPU.
//!
//! A build without the feature `cuda` has this file too, and reports no GPU. [`gpu`](super::gpu)
//! opens one.

use super::gpu;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::device::Device;
use std::panic::Location;
use std::str::FromStr;

impl Device {
    /// The GPU with this number. The call only checks that the GPU exists: the device's thread
    /// creates the context, and the first value waits for it. All calls with the same number return
    /// the same device.
    ///
    /// After a fault (an illegal address, a device that falls off the bus) a GPU is lost for the
    /// life of the process, since the driver offers no recovery: every value on it fails, while the
    /// CPU and other GPUs go on. A service can continue on [`Device::cpu`], or exit and be
    /// restarted.
    ///
    /// A process may end with work queued. Its exit waits until no device thread is inside an
    /// NVIDIA library: usually microseconds, and at most two seconds while a kernel is compiled.
    /// These libraries destroy their state at exit, and a call in progress would fault.
    ///
    /// # Errors
    /// A device error if the GPU does not exist. It names the missing library or device, and where
    /// it was searched for.
    #[track_caller]
    pub fn cuda(index: usize) -> Result<Device> {
        let at = Location::caller();
        gpu::shared(index).map_err(|why| {
            let text = format!("cuda:{index} is not available: {why}");
            Error::new(ErrorKind::Device, "cuda", text, at)
        })
    }

    /// The GPU with this number if there is one, otherwise the CPU.
    ///
    /// ```
    /// let device = futensor::Device::try_gpu(1000);
    /// assert_eq!(device, futensor::Device::cpu());
    /// ```
    pub fn try_gpu(index: usize) -> Device {
        Device::cuda(index).unwrap_or_else(|_| Device::cpu())
    }

    /// All GPUs; empty if there are none.
    pub fn try_all_gpus() -> Vec<Device> {
        (0..Device::gpu_count()).filter_map(|i| Device::cuda(i).ok()).collect()
    }

    /// The number of GPUs; 0 without a driver.
    #[doc(alias("device_count", "is_available"))]
    pub fn gpu_count() -> usize {
        gpu::count()
    }
}

impl FromStr for Device {
    type Err = Error;

    /// The device of a name: `cpu`, or `cuda:0` and so on, which [`Device::cuda`] opens. Other CPU
    /// devices belong to the program that made them, and have no name that opens them.
    ///
    /// ```
    /// use futensor::Device;
    /// assert_eq!("cpu".parse::<Device>()?, Device::cpu());
    /// let error = "gpu".parse::<Device>().unwrap_err();
    /// assert_eq!(error.message(), "there is no device \"gpu\": it is cpu or cuda:N");
    /// # Ok::<(), futensor::Error>(())
    /// ```
    #[track_caller]
    fn from_str(name: &str) -> Result<Device> {
        if name == "cpu" {
            return Ok(Device::cpu());
        }
        match name.strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
            Some(number) => Device::cuda(number),
            None => {
                let text = format!("there is no device {name:?}: it is cpu or cuda:N");
                Err(Error::new(ErrorKind::Argument, "device", text, Location::caller()))
            }
        }
    }
}

#[cfg(feature = "serde")]
crate::configuration::by_name! {
    Device,
    |device| match device.name() {
        name if name == "cpu" || name.starts_with("cuda:") => Ok(name),
        name => Err(format!("{name} belongs to this program: its name opens no other device")),
    },
    |name: &str| name.parse::<Device>().map_err(|error| error.message().to_owned()),
    "cpu or cuda:N"
}
