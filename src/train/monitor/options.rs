//! The options of a monitor.

use crate::options::options;
use std::time::Duration;

/// How a [`Monitor`](super::Monitor) writes.
///
/// ```
/// use futensor::train::MonitorOptions;
/// use std::time::Duration;
/// let options = MonitorOptions::default().title("digits, cnn").every(Duration::from_millis(500));
/// assert!(format!("{options:?}").contains("digits, cnn"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MonitorOptions {
    pub(super) title: String,
    pub(super) every: Duration,
    pub(super) points: usize,
}

impl Default for MonitorOptions {
    fn default() -> MonitorOptions {
        MonitorOptions { title: "training".into(), every: Duration::from_secs(1), points: 1000 }
    }
}

impl MonitorOptions {
    /// The title of the page; "training" by default.
    pub fn title(mut self, title: impl Into<String>) -> MonitorOptions {
        self.title = title.into();
        self
    }
}

options! {
    MonitorOptions;
    /// How often the page is written at most; a second by default, and 20 ms at least.
    every: Duration;
    /// The most points of a curve; 1000 by default, and 16 at least. In a longer training
    /// neighbouring points become one point, which keeps their mean, least and largest.
    points: usize;
}
