//! The files of a monitor: the page, and beside it the data that the page reads while the training
//! runs. A page that was opened as a file may load scripts alone, so the data is a script: a call
//! with JSON. Each file is written beside its place and renamed, so that nobody reads half of it.

use super::seen::Seen;
use super::series::{Point, Series};

use crate::json::{escaped, quoted};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/chart.js"),
    include_str!("page/show.js"),
    include_str!("page/news.js"),
);
/// The most lines of the table of awaits.
const SITES_MAX: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Runs,
    Ended,
    GivenUp,
}

/// The paths of the two files.
pub(super) struct Pages {
    page: PathBuf,
    data: PathBuf,
}

impl Pages {
    pub fn new(page: &Path) -> Pages {
        let mut name = page.file_name().unwrap_or_default().to_os_string();
        name.push(".data.js");
        Pages { page: page.into(), data: page.with_file_name(name) }
    }

    /// The page, with nothing on it yet.
    pub fn open(&self, seen: &Seen) -> std::result::Result<(), String> {
        self.both(seen, Status::Runs).map_err(|error| error.to_string())
    }

    /// The data of a page that is open somewhere.
    pub fn refresh(&self, seen: &Seen) -> Result<()> {
        write(&self.data, &format!("news({});\n", data(seen, Status::Runs)))
    }

    /// Both for the last time: from now on the page needs no other file.
    pub fn close(&self, seen: &Seen, status: Status) -> std::result::Result<(), String> {
        self.both(seen, status).map_err(|error| error.to_string())
    }

    fn both(&self, seen: &Seen, status: Status) -> Result<()> {
        let data = data(seen, status);
        write(&self.data, &format!("news({data});\n"))?;
        let name = self.data.file_name().unwrap_or_default().to_string_lossy();
        let page = format!(
            include_str!("page/page.html"),
            title = escaped(&seen.title),
            style = STYLE,
            source = quoted(&name),
            data = data,
            script = SCRIPT,
        );
        write(&self.page, &page)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, path))
        .inspect_err(|_| drop(std::fs::remove_file(&part)))
}

fn number(x: f64) -> String {
    if x.is_finite() { format!("{x:.6e}") } else { "null".into() }
}

fn list<T>(items: impl IntoIterator<Item = T>, json: impl FnMut(T) -> String) -> String {
    format!("[{}]", items.into_iter().map(json).collect::<Vec<_>>().join(","))
}

fn curve(series: &Series) -> String {
    let column = |of: fn(&Point) -> f64| list(&series.points, |point| number(of(point)));
    format!(
        "{{\"name\":{},\"last\":{},\"lost\":{},\"firstLost\":{},\"steps\":{},\n\"mean\":{},\n\
         \"least\":{},\n\"most\":{}}}",
        quoted(&series.name),
        number(series.last),
        series.lost,
        series.first_lost.map_or("null".into(), |step| step.to_string()),
        list(&series.points, |point| point.step.to_string()),
        column(|point| point.sum / point.count as f64),
        column(|point| point.least),
        column(|point| point.most),
    )
}

/// The data of the page, as JSON.
fn data(seen: &Seen, status: Status) -> String {
    let sites = seen.sites();
    let sum = |of: fn(&crate::barrier::BarrierSite) -> u64| sites.iter().map(of).sum::<u64>();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let table = list(sites.iter().take(SITES_MAX), |site| {
        let (file, line) = (site.site.file(), site.site.line());
        format!(
            "[{},{},{},{},{:.1},{:.1},{}]",
            quoted(&format!("{file}:{line}")),
            quoted(site.what),
            site.count,
            site.waited,
            site.total.as_secs_f64() * 1e6,
            site.worst.as_secs_f64() * 1e6,
            site.ran_dry,
        )
    });
    let status = match status {
        Status::Runs => "runs",
        Status::Ended => "ended",
        Status::GivenUp => "given up",
    };
    format!(
        "{{\"title\":{},\"device\":{},\"status\":\"{status}\",\"steps\":{},\"leftOut\":{},\
         \"seconds\":{:.3},\"written\":{now},\"every\":{},\"failed\":{},\"awaits\":{},\
         \"ranDry\":{},\n\"sites\":{table},\n\"series\":{}}}",
        quoted(&seen.title),
        quoted(&seen.device),
        seen.steps,
        seen.left_out + seen.no_room,
        seen.began.elapsed().as_secs_f64(),
        seen.every.as_millis(),
        seen.failed.as_deref().map_or("null".into(), quoted),
        sum(|site| site.count),
        sum(|site| site.ran_dry),
        list(&seen.series, curve),
    )
}
