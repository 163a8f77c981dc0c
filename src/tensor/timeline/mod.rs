//! Pictures of a [`Recording`]: JSON for Chrome and Perfetto, and a timeline as SVG or as an HTML
//! page that zooms and searches.
//!
//! There is a lane for each stream of the device, one for small steps that the engine or a poll ran
//! immediately, and one for each awaiting task. This file sorts a recording into lanes; `chrome`,
//! `svg` and `page` write them. They know only the recording, not the engine.

mod chrome;
#[cfg(test)]
mod drawn;
mod page;
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

    /// The timeline as a page that needs nothing else: one file, and no network.
    ///
    /// The wheel, buttons and keys zoom, dragging moves. A click on a step, or the arrow keys, tell
    /// all of it: its ops with their shapes and lines, from when to when it ran, what it needed,
    /// and who waited for it. The legend of the kinds of ops hides and shows them, and a search for
    /// an op, a file or a shape highlights what it finds.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{CpuOptions, Device};
    /// let device = Device::cpu_with(CpuOptions::default());
    /// let recording = device.record();
    /// device.ones([300, 300]).exp().await?;
    /// let page = recording.finish().to_html();
    /// assert!(page.starts_with("<!doctype html>") && page.contains("\"exp\""));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    pub fn to_html(&self) -> String {
        page::page(self)
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

/// Of each step the steps that it needed, by index: those whose values it reads, and those that its
/// stream was told to wait for. A host makes a step once its operands are complete; on a GPU its
/// stream waits, unless an earlier wait implies this one.
fn needs(recording: &Recording) -> Vec<BTreeSet<usize>> {
    let mut at: HashMap<(usize, u64), usize> = HashMap::new();
    let mut made_by: HashMap<usize, usize> = HashMap::new();
    for (i, step) in recording.steps.iter().enumerate() {
        made_by.extend(step.ops.iter().map(|op| (op.number, i)));
        if let Ran::Stream { stream, point } = step.ran {
            at.insert((stream, point), i);
        }
    }
    let of = |(i, step): (usize, &RecordedStep)| {
        let waits = step.waits.iter().filter_map(|wait| at.get(wait));
        let inputs = step.ops.iter().flat_map(|op| &op.inputs).flatten();
        let read = inputs.filter_map(|op| made_by.get(op));
        waits.chain(read).copied().filter(|from| *from != i).collect()
    };
    recording.steps.iter().enumerate().map(of).collect()
}

/// Pairs of steps, by index: the second needed the first, on another stream.
fn arrows(recording: &Recording) -> Vec<(usize, usize)> {
    let stream = |step: usize| match recording.steps[step].ran {
        Ran::Stream { stream, .. } => Some(stream),
        _ => None,
    };
    let apart =
        |from: usize, to: usize| stream(from).zip(stream(to)).is_some_and(|(from, to)| from != to);
    let pairs = needs(recording).into_iter().enumerate();
    let pairs = pairs.flat_map(|(to, needs)| needs.into_iter().map(move |from| (from, to)));
    pairs.filter(|&(from, to)| apart(from, to)).collect()
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
    }

    #[tokio::test]
    async fn the_page_has_all_that_was_recorded_and_text_that_ends_no_script() {
        let recording = recording().await;
        let page = recording.to_html();
        let (head, data) = page.split_once("id=\"recording\">").unwrap();
        let (data, rest) = data.split_once("</script>").unwrap();
        assert!(
            !head.contains("<one>") && !data.contains(['<', '>', '&']) && rest.contains("draw")
        );
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let text = |at: &serde_json::Value| data["texts"][at.as_u64().unwrap() as usize].clone();
        let rows = |name: &str| data[name].as_array().unwrap().clone();
        assert!(rows("lanes").iter().any(|lane| lane[0] == "the <one> who waits"), "{data}");
        assert_eq!(rows("steps").len(), recording.steps.len());
        assert_eq!(rows("awaits").len(), recording.awaits.len());
        for (row, step) in rows("steps").iter().zip(&recording.steps) {
            assert_eq!(row[5].as_array().unwrap().len(), step.ops.len());
            for (row, op) in row[5].as_array().unwrap().iter().zip(&step.ops) {
                assert_eq!(text(&row[0]), op.name);
                assert_eq!(text(&row[1]), format!("{} {}", op.dtype, op.shape));
                assert_eq!(text(&row[3]), op.location.to_string());
            }
            let times = (row[2].as_f64().unwrap(), row[3].as_f64().unwrap());
            assert!((times.0 - super::micros(step.began)).abs() < 1e-2 && times.0 <= times.1);
        }
        // A product is colored as one, whatever is fused to it.
        let product = recording.steps.iter().position(|s| s.ops[0].name == "matmul").unwrap();
        assert_eq!(text(&rows("steps")[product][1]), "products");
        // What an await points at is the step that ended it.
        let (k, waited) =
            recording.awaits.iter().enumerate().find(|(_, a)| a.what == "item").unwrap();
        let ended = rows("awaits")[k][8].as_u64().unwrap() as usize;
        assert!(recording.steps[ended].ops.iter().any(|op| Some(op.number) == waited.op));
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
