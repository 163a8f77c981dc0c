//! The table at the end, and the JSON object.

use crate::setup::{Outcome, Setup};
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Rows of one part.
struct Part {
    title: &'static str,
    rows: Vec<(String, String)>,
    notes: Vec<String>,
}

pub struct Report {
    device: String,
    parts: Vec<Part>,
    json: Map<String, Value>,
}

impl Report {
    pub fn new(setup: &Setup) -> Report {
        let device = setup.device.name().to_owned();
        let json = Map::from_iter([("device".to_owned(), json!(device))]);
        Report { device, parts: Vec::new(), json }
    }

    pub fn part(&mut self, title: &'static str) {
        self.parts.push(Part { title, rows: Vec::new(), notes: Vec::new() });
    }

    fn last(&mut self) -> &mut Part {
        if self.parts.is_empty() {
            self.part("");
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    pub fn row(&mut self, what: impl Into<String>, value: impl Into<String>) {
        self.last().rows.push((what.into(), value.into()));
    }

    pub fn time(&mut self, what: impl Into<String>, time: Duration) {
        self.row(what, seconds(time.as_secs_f64()));
    }

    /// A time of `n` ops, with the time of one.
    pub fn time_of(&mut self, what: impl Into<String>, time: Duration, n: usize) {
        let (all, one) = (seconds(time.as_secs_f64()), seconds(time.as_secs_f64() / n as f64));
        self.row(what, format!("{all} ({one} each)"));
    }

    /// Lines below the table of this part.
    pub fn note(&mut self, text: impl Into<String>) {
        self.last().notes.push(text.into());
    }

    pub fn json(&mut self, key: &str, value: Value) {
        self.json.insert(key.to_owned(), value);
    }

    pub fn write_json(&self, file: &Path) -> Outcome<()> {
        let text = serde_json::to_string_pretty(&Value::Object(self.json.clone()))?;
        Ok(crate::output::write(file, text + "\n")?)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "futensor, asynchronous computation on {}, {} cores",
            self.device,
            crate::setup::cores()
        )?;
        let rows = || self.parts.iter().flat_map(|part| &part.rows);
        let left = rows().map(|(what, _)| what.chars().count()).max().unwrap_or(0);
        for (i, part) in self.parts.iter().enumerate() {
            writeln!(f, "\n{}. {}", i + 1, part.title)?;
            for (what, value) in &part.rows {
                writeln!(f, "   {what:<left$}  {value}")?;
            }
            for note in &part.notes {
                for line in note.lines() {
                    writeln!(f, "   {line}")?;
                }
            }
        }
        Ok(())
    }
}

/// A time with three digits and a fitting unit.
pub fn seconds(s: f64) -> String {
    let (value, unit) = match s {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "us"),
        s => (s * 1e9, "ns"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Bytes in MiB.
pub fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
