//! Everything that the page shows: the curves, the first error, the awaits of the program.

use super::options::MonitorOptions;
use super::series::Series;
use super::shared::{Told, What};
use crate::dtype::DType;
use crate::tensor::barriers::Barriers;
use crate::tensor::block_on::block_on;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::watch::BarrierSite;
use std::time::{Duration, Instant};

/// The most curves of a page: a name with the step's number in it would make one a step.
const SERIES_MAX: usize = 32;
const STEP_TIME: &str = "time a step (ms)";

/// Everything that the page shows.
pub(super) struct Seen {
    pub title: String,
    pub device: String,
    pub began: Instant,
    pub every: Duration,
    barriers: Barriers,
    pub series: Vec<Series>,
    /// The first value that failed.
    pub failed: Option<String>,
    /// Values that came too fast.
    pub left_out: u64,
    /// Numbers with names beyond the most curves.
    pub no_room: u64,
    pub steps: u64,
    points: usize,
    last_step: Option<(u64, Instant)>,
    /// At the last look: how often the device had run dry, and the number of steps.
    dry: (u64, u64),
}

/// The one element of a complete value, of any type.
fn read(value: &TensorFuture) -> Result<f64, String> {
    block_on(value.to_dtype(DType::F64).item::<f64>()).map_err(|error| error.to_string())
}

impl Seen {
    pub fn new(device: &Device, options: MonitorOptions) -> Seen {
        Seen {
            title: options.title,
            device: device.to_string(),
            began: Instant::now(),
            // A time that is added to another has an end.
            every: options.every.clamp(Duration::from_millis(20), Duration::from_secs(86_400)),
            barriers: device.barriers(),
            series: Vec::new(),
            failed: None,
            left_out: 0,
            no_room: 0,
            steps: 0,
            points: options.points.max(16),
            last_step: None,
            dry: (0, 0),
        }
    }

    /// Takes in what was told; false if its value is not complete.
    pub fn take(&mut self, told: &Told) -> bool {
        let step = told.step;
        let (name, value) = match &told.what {
            What::Number(name, number) => {
                self.add(name, step, *number);
                return true;
            }
            What::Loss(_, at) if self.last_step.is_none_or(|(last, _)| last < step) => {
                let at = *at;
                if let Some((last, before)) = self.last_step.replace((step, at)) {
                    // Some steps between may have been left out.
                    let time = (at - before).as_secs_f64() * 1e3 / (step - last) as f64;
                    self.add(STEP_TIME, step, time);
                }
                return self.take(told);
            }
            What::Loss(loss, _) => ("loss", loss),
            What::Value(name, value) => (&name[..], value),
        };
        if !value.is_ready() {
            return false;
        }
        match read(value) {
            Ok(number) => self.add(name, step, number),
            Err(text) if self.failed.is_none() => {
                self.failed = Some(format!("{name}, step {step}: {text}"));
            }
            Err(_) => {}
        }
        true
    }

    fn add(&mut self, name: &str, step: u64, number: f64) {
        let known = self.series.iter().position(|series| series.name == name);
        match known {
            Some(at) => self.series[at].add(step, number),
            None if self.series.len() < SERIES_MAX => {
                let mut series = Series::new(name.into(), self.points);
                series.add(step, number);
                self.series.push(series);
            }
            None => self.no_room += 1,
        }
    }

    /// The awaits of the program, without those of this thread.
    pub fn sites(&self) -> Vec<BarrierSite> {
        let mut sites = self.barriers.report().sites;
        sites.retain(|site| site.site.file() != file!());
        sites
    }

    /// Notes how often the device ran dry, a step, since the last look.
    pub fn note_dry(&mut self) {
        let dry = self.sites().iter().map(|site| site.ran_dry).sum();
        let (last_dry, last_step) = self.dry;
        if self.steps > last_step {
            let share = (dry - last_dry.min(dry)) as f64 / (self.steps - last_step) as f64;
            self.add("device ran dry (times a step)", self.steps, share);
            self.dry = (dry, self.steps);
        }
    }
}
