//! The barrier report: where a program waits, how long, how deep the queue was, and whether the
//! wait left the device idle.
//!
//! A [`Barriers`] collects while it lives; a [`BarrierReport`] is the result, as a table. `watch`
//! does the collecting.

use super::device::Device;
use super::watch::{BarrierSite, Table, Watcher};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Collects the barriers of one device or of all devices while it lives: made by
/// [`Device::barriers`] and [`barriers`].
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{CpuOptions, Device};
/// let device = Device::cpu_with(CpuOptions::default());
/// let barriers = device.barriers();
/// let mut x = device.ones([1000]);
/// for _ in 0..3 {
///     x = (&x + 1.0).await?.into();                     // waits each time
/// }
/// device.waitall().await?;                              // once
/// let report = barriers.report();
/// assert_eq!(report.sites.iter().map(|site| site.count).sum::<u64>(), 4);
/// println!("{report}");                                  // a table, the longest waits first
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "barriers are collected while this lives"]
pub struct Barriers {
    table: Arc<Table>,
    _watcher: Watcher,
}

/// Collects the barriers of every device from now on. Without a collector, an await costs one
/// relaxed load more.
pub fn barriers() -> Barriers {
    Barriers { table: Table::open(None), _watcher: Watcher::new() }
}

impl Device {
    /// Collects this device's barriers from now on. Without a collector, an await costs one relaxed
    /// load more.
    pub fn barriers(&self) -> Barriers {
        Barriers { table: Table::open(Some(self.port)), _watcher: Watcher::new() }
    }
}

impl Barriers {
    /// The barriers that were collected so far.
    pub fn report(&self) -> BarrierReport {
        BarrierReport { sites: self.table.sites() }
    }
}

/// Where a program waits: one entry for each site, the longest waits first. `Display` prints a
/// table.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BarrierReport {
    /// The sites, the longest total first.
    pub sites: Vec<BarrierSite>,
}

impl BarrierReport {
    /// The time waited at all sites together.
    pub fn total(&self) -> Duration {
        self.sites.iter().map(|site| site.total).sum()
    }
}

fn time(d: Duration) -> String {
    let s = d.as_secs_f64();
    match () {
        _ if s >= 1.0 => format!("{s:.2} s"),
        _ if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        _ => format!("{:.1} us", s * 1e6),
    }
}

impl fmt::Display for BarrierReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head =
            ["site", "what", "device", "count", "waited", "total", "worst", "queued", "ran dry"];
        let rows = self.sites.iter().map(|s| {
            [
                format!("{}:{}", s.site.file(), s.site.line()),
                s.what.to_owned(),
                s.device.to_owned(),
                s.count.to_string(),
                s.waited.to_string(),
                time(s.total),
                time(s.worst),
                format!("{:.1} (max {})", s.queued_mean, s.queued_max),
                s.ran_dry.to_string(),
            ]
        });
        let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
        let width = |k: usize| rows.iter().map(|row| row[k].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        for row in rows {
            for (k, cell) in row.iter().enumerate() {
                let gap = if k == 0 { "" } else { "  " };
                // Words to the left, numbers to the right.
                match k {
                    0..3 => write!(f, "{gap}{cell:<0$}", widths[k])?,
                    _ => write!(f, "{gap}{cell:>0$}", widths[k])?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
