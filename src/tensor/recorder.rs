//! `Recorder`: records the steps of a device until it is finished.

use super::device::Device;
use super::watch::Watcher;
use crate::engine::port::Port;
use crate::engine::record::Recording;

/// Records the steps that a device runs, fuses and skips: the dependency graph as the engine saw
/// it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{CpuOptions, Device};
/// let device = Device::cpu_with(CpuOptions::default());
/// let (x, y) = (device.ones([1, 2]), device.ones([1, 2]));
/// device.waitall().await?;
/// let recorder = device.record();
/// let z = &x * &y + 2.0;
/// z.wait_to_read().await?;
/// let recording = recorder.finish();
/// let ops = recording.steps.iter().flat_map(|step| &step.ops);
/// let ops: Vec<&str> = ops.map(|op| op.name.as_str()).collect();
/// assert_eq!(ops, ["mul", "add"]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// Recording never waits: a step is recorded when it ends, so await the work that you want to see.
/// A recorder keeps no values alive, and at most the first 65,536 steps. Dropping it stops the
/// recording. NVTX ranges (`CudaOptions::nvtx`, or `FUTENSOR_NVTX=1`) show a GPU's steps in Nsight
/// Systems.
#[derive(Debug)]
#[must_use = "a recorder that is dropped immediately has recorded nothing"]
pub struct Recorder {
    port: &'static Port,
    id: usize,
    _watcher: Watcher,
}

impl Device {
    /// Starts a recording: which steps this device runs, fuses and skips, on which stream, and for
    /// which line of the program. Without a recording, a step costs one relaxed load more.
    #[doc(alias("profile", "profiler"))]
    pub fn record(&self) -> Recorder {
        Recorder { port: self.port, id: self.port.recordings.start(), _watcher: Watcher::new() }
    }
}

impl Recorder {
    /// Ends the recording and returns it: the steps, and the awaits that had to wait.
    pub fn finish(self) -> Recording {
        let (steps, awaits) = self.port.recordings.stop(self.id);
        Recording { device: self.port.profile.name.clone(), steps, awaits }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.port.recordings.stop(self.id);
    }
}

#[cfg(test)]
mod tests {
    use crate::recording::Ran;
    use crate::{CpuOptions, Device};

    #[tokio::test]
    async fn recording_names_what_was_fused_and_what_was_skipped() {
        let device = Device::cpu_with(CpuOptions::default().threads(1).inline(false));
        let (release, released) = futures::channel::oneshot::channel::<Vec<f32>>();
        let x = device.from_future([1 << 16], released);
        let large = device.ones([256, 256]);
        let recording = device.record();
        let line = line!() + 1;
        let y = (&x * 2.0 + 1.0).relu();
        // The whole chain is queued before any op can run.
        release.send(vec![1.0; 1 << 16]).unwrap();
        let m = large.matmul(&large).sum_all();
        drop(large.matmul(&large).matmul(&large));
        y.await.unwrap();
        m.await.unwrap();
        device.waitall().await.unwrap();
        let steps = recording.finish().steps;

        let names = |i: usize| steps[i].ops.iter().map(|op| op.name.as_str()).collect::<Vec<_>>();
        let fused = (0..steps.len()).find(|&i| names(i).contains(&"relu")).unwrap();
        assert_eq!(names(fused), ["mul", "add", "relu"]);
        let ops = &steps[fused].ops;
        assert_eq!(ops.iter().map(|op| op.written).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(ops[0].inputs, [None]);
        assert_eq!(ops[1].inputs, [Some(ops[0].number)]);
        assert!(ops.iter()
            .all(|op| op.location.line() == line && op.location.file().ends_with("recorder.rs")));
        assert!(matches!(steps[fused].ran, Ran::Stream { point: 1.., .. }));

        let ops: Vec<_> =
            steps.iter().flat_map(|s| s.ops.iter().map(move |op| (op, s.ran))).collect();
        let sum = ops.iter().find(|(op, _)| op.name == "sum").unwrap().0;
        let product = ops[sum.inputs[0].expect("its operand was recorded")].0;
        assert_eq!(product.name, "matmul");
        // Two ops were dropped at once. The engine may have begun one before the drop, never both.
        let skipped =
            ops.iter().filter(|(op, ran)| op.name == "matmul" && *ran == Ran::Skipped).count();
        assert!(skipped >= 1, "{steps:#?}");
    }

    #[tokio::test]
    async fn recordings_do_not_disturb_each_other() {
        let device = Device::cpu_with(CpuOptions::default());
        let x = device.ones([2]).await.unwrap();
        let outer = device.record();
        (&x + 1.0).await.unwrap();
        let inner = device.record();
        (&x + 2.0).await.unwrap();
        assert_eq!(inner.finish().steps.len(), 1);
        (&x + 3.0).await.unwrap();
        drop(device.record());
        let steps = outer.finish().steps;
        assert_eq!(steps.iter().map(|s| s.ops[0].number).collect::<Vec<_>>(), [0, 1, 2]);
        (&x + 4.0).await.unwrap();
        assert!(!device.port.recordings.is_on());
    }
}
