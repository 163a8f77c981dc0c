//! Pictures of a [`Recording`]: JSON for Chrome and Perfetto, and a timeline as SVG or as an HTML
//! page.
//!
//! There is a lane for each stream of the device, one for small steps that the engine or a poll ran
//! immediately, and one for each awaiting task. This file sorts a recording into lanes; `chrome`
//! and `svg` write them. They know only the recording, not the engine.

mod chrome;
#[cfg(test)]
mod drawn;
mod svg;

use crate::engine::record::{Ran, RecordedAwait, RecordedStep, Recording};
use std::collections::{BTreeSet, HashMap};
use std::panic::Location;
use std::time::Duration;

impl Recording {
    /// The recording in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{CpuOptions, Device};
    /// let device = Device::cpu_with(CpuOptions::default());
    /// let recording = device.record();
    /// (device.ones([300, 300]).exp() + 1.0).await?;
    /// let json = recording.finish().to_chrome_json();
    /// assert!(json.starts_with("{\"traceEvents\":[") && json.contains("exp"));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn to_chrome_json(&self) -> String {
        chrome::json(self)
    }

    /// The recording as a picture, with a lane for each stream and each awaiting task. Idle
    /// stretches are hatched. An arrow marks a step that needed a result of another stream; a
    /// dashed line leads from the step that ended a barrier to the task that awaited it. `width` is
    /// in pixels.
    pub fn to_svg(&self, width: usize) -> String {
        svg::svg(self, width)
    }

    /// The picture as a self-contained HTML page: scroll to zoom, drag to pan, hover for
    /// names.
    pub fn to_html(&self) -> String {
        svg::page(self)
    }

    /// The periods between the first and the last step in which the device was idle.
    pub fn idle(&self) -> Vec<(Duration, Duration)> {
        let mut spans: Vec<(Duration, Duration)> = self
            .steps
            .iter()
            .filter(|s| s.ran != Ran::Skipped)
            .map(|s| (s.began, s.ended))
            .collect();
        spans.sort();
        let mut idle = Vec::new();
        let mut until = spans.first().map_or(Duration::ZERO, |s| s.0);
        for (began, ended) in spans {
            if began > until {
                idle.push((until, began));
            }
            until = until.max(ended);
        }
        idle
    }
}

/// A row of the picture.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lane {
    Stream(usize),
    TakeUp,
    Poll,
    Task(usize),
}

impl Lane {
    fn of(step: &RecordedStep) -> Option<Lane> {
        match step.ran {
            Ran::Stream { stream, .. } => Some(Lane::Stream(stream)),
            Ran::TakeUp => Some(Lane::TakeUp),
            Ran::Poll => Some(Lane::Poll),
            Ran::Skipped => None,
        }
    }

    fn title(&self, recording: &Recording) -> String {
        match self {
            Lane::Stream(stream) => format!("stream {stream}"),
            Lane::TakeUp => "engine, small steps".into(),
            Lane::Poll => "polls, small steps".into(),
            Lane::Task(task) => {
                let name = recording
                    .awaits
                    .iter()
                    .filter(|a| a.task == *task)
                    .find_map(|a| a.name.as_deref());
                name.map_or_else(|| format!("task {task}"), str::to_owned)
            }
        }
    }
}

/// The lanes of a recording, from the top.
fn lanes(recording: &Recording) -> Vec<Lane> {
    let steps = recording.steps.iter().filter_map(Lane::of);
    let tasks = recording.awaits.iter().map(|a| Lane::Task(a.task));
    steps.chain(tasks).collect::<BTreeSet<_>>().into_iter().collect()
}

/// File name and line.
fn place(at: &Location<'_>) -> String {
    let file = at.file().rsplit(['/', '\\']).next().unwrap_or(at.file());
    format!("{file}:{}", at.line())
}

/// The title of a step: its ops, and the line of the last one.
fn step_title(step: &RecordedStep) -> String {
    let names: Vec<&str> = step.ops.iter().map(|op| op.name.as_str()).collect();
    let mut text = names.join(" + ");
    if names.len() > 6 {
        text = format!("{} ... {} ({} ops)", names[0], names[names.len() - 1], names.len());
    }
    step.ops.last().map_or(text.clone(), |op| format!("{text}  {}", place(op.location)))
}

fn await_title(a: &RecordedAwait) -> String {
    format!("{}  {}", a.what, place(a.site))
}

/// Pairs of steps, by index: the second step needed the first, on another stream. On a GPU the
/// stream was told to wait, unless an earlier wait implied this one; on the host the step was not
/// made before its operands were complete.
fn arrows(recording: &Recording) -> Vec<(usize, usize)> {
    let mut at: HashMap<(usize, u64), usize> = HashMap::new();
    let mut made_by: HashMap<usize, usize> = HashMap::new();
    for (i, step) in recording.steps.iter().enumerate() {
        made_by.extend(step.ops.iter().map(|op| (op.number, i)));
        if let Ran::Stream { stream, point } = step.ran {
            at.insert((stream, point), i);
        }
    }
    let mut arrows = Vec::new();
    for (i, step) in recording.steps.iter().enumerate() {
        let Ran::Stream { stream: own, .. } = step.ran else { continue };
        let waits = step.waits.iter().filter_map(|wait| at.get(wait)).copied();
        let read = step
            .ops
            .iter()
            .flat_map(|op| &op.inputs)
            .flatten()
            .filter_map(|op| made_by.get(op))
            .copied();
        let elsewhere = |from: &usize| match recording.steps[*from].ran {
            Ran::Stream { stream, .. } => stream != own,
            _ => false,
        };
        let from: BTreeSet<usize> = waits.chain(read.filter(elsewhere)).collect();
        arrows.extend(from.into_iter().map(|from| (from, i)));
    }
    arrows
}

/// For each await, the step whose end completed it, if its op was recorded.
fn barriers(recording: &Recording) -> Vec<Option<usize>> {
    let steps = recording.steps.iter().enumerate();
    let made_by: HashMap<usize, usize> =
        steps.flat_map(|(i, step)| step.ops.iter().map(move |op| (op.number, i))).collect();
    recording.awaits.iter().map(|a| made_by.get(&a.op?).copied()).collect()
}

fn micros(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use crate::recording::{Recording, named};
    use crate::{CpuOptions, Device};

    async fn recording() -> Recording {
        let device = Device::cpu_with(CpuOptions::default().threads(2).streams(3).inline(false));
        let (a, b) = (device.randn([300, 300]), device.randn([300, 300]));
        device.waitall().await.unwrap();
        let recording = device.record();
        let joined = a.matmul(&a) + b.matmul(&b).exp();
        named("the <one> who waits", joined.sum_all().item::<f32>()).await.unwrap();
        (joined + 1.0).wait_to_read().await.unwrap();
        recording.finish()
    }

    #[tokio::test]
    async fn chrome_json_is_json_and_names_lanes_ops_and_awaits() {
        let recording = recording().await;
        let json: serde_json::Value = serde_json::from_str(&recording.to_chrome_json()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let named = |name: &str| {
            of("M").iter().any(|e| e["args"]["name"].as_str().is_some_and(|n| n.contains(name)))
        };
        assert!(named("stream 0") && named("the <one> who waits"), "{json:#}");
        let spans = of("X");
        assert_eq!(spans.len(), recording.steps.len() + recording.awaits.len());
        assert!(
            spans
                .iter()
                .all(|e| e["dur"].as_f64().unwrap() >= 0.0 && e["args"]["line"].is_string())
        );
        assert!(
            spans.iter().filter(|e| e["name"].as_str().unwrap().contains("matmul")).count() >= 2
        );
        // Each flow has two ends.
        assert_eq!(of("s").len(), of("f").len());
        assert!(of("s").len() >= super::arrows(&recording).len());
    }

    #[tokio::test]
    async fn the_picture_has_each_lane_and_text_that_is_escaped() {
        let recording = recording().await;
        let svg = recording.to_svg(1200);
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("the &lt;one&gt; who waits") && !svg.contains("<one>"));
        for lane in super::lanes(&recording) {
            let title = lane.title(&recording).replace('<', "&lt;").replace('>', "&gt;");
            assert!(svg.contains(&title), "{title}");
        }
        assert!(svg.matches("class=\"step\"").count() >= recording.steps.len());
        assert!(recording.to_html().contains("<script>"));
    }

    #[tokio::test]
    async fn awaits_are_recorded_with_their_line_and_the_op_that_ended_them() {
        let recording = recording().await;
        let read =
            recording.awaits.iter().find(|a| a.what == "item").expect("the read had to wait");
        assert!(read.site.file().ends_with("timeline/mod.rs"));
        assert!(read.ended >= read.began && read.queued > 0);
        let ops: Vec<_> = recording.steps.iter().flat_map(|s| &s.ops).collect();
        assert_eq!(ops[read.op.expect("its op was recorded")].name, "sum");
        assert!(recording.steps.iter().all(|s| s.ended >= s.began));
    }
}
