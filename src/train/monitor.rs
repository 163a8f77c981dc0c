//! A page that shows a training while it runs.
//!
//! The training loop hands in futures and goes on. The monitor's thread (`writer`) reads the values
//! that are complete, once in a while, keeps them in a bounded number of points (`series`), and
//! writes the page (`page`). An executor's thread pays for a push under a short lock alone.

mod options;
mod page;
mod seen;
mod series;
mod shared;
mod writer;

use crate::error::Result;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
pub use options::MonitorOptions;
use shared::{End, Shared, What};
use std::future::Future;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Writes a page that shows a training while it runs: curves of the loss and of other values, the
/// time a step, and the lines where the program waited and let the device run dry.
///
/// Open the page in a browser as a file, without a server. The page reads its data again while the
/// training runs, from a file beside it with the ending `.data.js`. After the end of the training
/// the page needs no other file.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, grad, nn::{self, Module}, optim::{Optimizer, Sgd, clip_grad_norm}};
/// use futensor::train::Monitor;
/// # let folder = std::env::temp_dir().join(format!("futensor-monitor-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let page = folder.join("train.html");
/// let device = Device::cpu();
/// let net = nn::Linear::new(3, 1, &device);
/// let mut sgd = Sgd::new(net.parameters(), 0.1);
/// let monitor = Monitor::open(&device, &page).await?;
/// for _ in 0..20 {
///     device.ready().await;
///     let loss = net.forward(&device.randn([8, 3])).square().mean_all();
///     let (gradients, norm) = clip_grad_norm(&grad(&loss, &net.parameters()), 1.0);
///     sgd.step(&gradients).detach();
///     monitor.step(&loss);                                   // neither waits for a value
///     monitor.value("gradient norm", &norm);
/// }
/// monitor.finish().await?;
/// let written = std::fs::read_to_string(&page).unwrap();
/// assert!(written.contains("\"steps\":20,") && written.contains("gradient norm"));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # What it costs
///
/// Each call takes a short lock and pushes a handle. A thread of the monitor reads the values once
/// they are complete, so the monitor delays neither the loop nor the device. The monitor observes
/// the values. Its memory is bounded: a page has at most 32 curves with a limited number of points,
/// and values that come faster than the thread reads are left out. The page counts them. While a
/// monitor is open, each await on the device is counted as by
/// [`Device::barriers`](crate::Device::barriers).
///
/// # Cancel safety
///
/// Dropping the monitor, or the future of [`finish`](Self::finish), ends it: the page shows the
/// values that were complete, and says that the training was given up.
#[derive(Debug)]
#[must_use = "a monitor that is dropped ends"]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// Opens a page at this path. The file exists once the future is ready. The monitor counts the
    /// awaits on this device.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Cancel safety
    /// Dropping the future ends the monitor, and may leave an empty page.
    #[track_caller]
    pub fn open(device: &Device, path: impl AsRef<Path>) -> OpenMonitor {
        Monitor::open_with(device, path, MonitorOptions::default())
    }

    /// [`open`](Self::open), with options.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, train::{Monitor, MonitorOptions}};
    /// let device = Device::cpu();
    /// let options = MonitorOptions::default().title("digits");
    /// let nowhere = Monitor::open_with(&device, "no/such/folder/train.html", options);
    /// assert!(nowhere.await.unwrap_err().to_string().contains("no/such/folder/train.html"));
    /// # });
    /// ```
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// # Cancel safety
    /// Dropping the future ends the monitor, and may leave an empty page.
    #[track_caller]
    pub fn open_with(
        device: &Device,
        path: impl AsRef<Path>,
        options: MonitorOptions,
    ) -> OpenMonitor {
        let shared = Arc::new(Shared::new(path.as_ref().into(), Location::caller()));
        if let Err(error) = writer::start(shared.clone(), device, options) {
            shared.lock().opened = Some(Err(format!("no thread to write it: {error}")));
        }
        OpenMonitor(Some(Monitor(shared)))
    }

    /// Tells of a step that was queued, and of its loss. The time between two calls is the time a
    /// step.
    pub fn step(&self, loss: &TensorFuture) {
        self.0.tell(true, What::Loss(loss.clone(), Instant::now()));
    }

    /// Tells a value of the last step, of one element: a norm, an accuracy. Each name has a curve.
    pub fn value(&self, name: &str, value: &TensorFuture) {
        self.0.tell(false, What::Value(name.into(), value.clone()));
    }

    /// Tells a number of the last step: a learning rate, a length.
    pub fn number(&self, name: &str, number: f64) {
        self.0.tell(false, What::Number(name.into(), number));
    }

    /// Waits for all values and for the last write of the page.
    ///
    /// # Errors
    /// The page could not be written. A value that failed is no error here: the page shows the
    /// error.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait: the page then has the values that are complete.
    pub fn finish(self) -> FinishMonitor {
        self.0.end(End::Finish);
        FinishMonitor(self)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.0.end(End::GiveUp);
    }
}

/// The future of [`Monitor::open`].
#[derive(Debug)]
#[must_use = "the page is there once this is awaited, and the monitor ends with it"]
pub struct OpenMonitor(Option<Monitor>);

impl Future for OpenMonitor {
    type Output = Result<Monitor>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Monitor>> {
        let monitor = self.0.as_ref().unwrap_or_else(|| panic!("polled after its end"));
        let opened = std::task::ready!(monitor.0.poll(cx, |state| state.opened.clone()));
        let monitor = self.0.take();
        Poll::Ready(opened.map(|()| monitor.unwrap_or_else(|| unreachable!("it was there"))))
    }
}

/// The future of [`Monitor::finish`].
#[derive(Debug)]
#[must_use = "the page is written for the last time once this is awaited"]
pub struct FinishMonitor(Monitor);

impl Future for FinishMonitor {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.0.poll(cx, |state| state.finished.clone())
    }
}
