//! A recording as a page: its data as JSON, and the script that draws it (`page/`).
//!
//! The script draws the visible bars alone, so the page stays quick with all the steps that a
//! recording keeps. This file writes the data; `page/model.js` reads it, and names each field. Each
//! text is written once. Names from the user's program stand in the JSON, or are escaped, and the
//! script shows them as text, never as HTML.

use super::{Lane, barriers, lanes, micros, needs, place};
use crate::engine::record::{RecordedOp, RecordedStep, Recording};
use crate::json::{escaped, quoted};
use std::collections::HashMap;
use std::fmt::Write;

const STYLE: &str = include_str!("page/page.css");
/// In this order each file may use names of those before it as it is loaded.
const SCRIPT: &str = concat!(
    include_str!("page/model.js"),
    include_str!("page/view.js"),
    include_str!("page/draw.js"),
    include_str!("page/details.js"),
    include_str!("page/legend.js"),
    include_str!("page/input.js"),
);

/// Texts, each once, by their places in the list.
#[derive(Default)]
struct Texts {
    places: HashMap<String, usize>,
    json: Vec<String>,
}

impl Texts {
    fn add(&mut self, text: String) -> usize {
        let next = self.json.len();
        *self.places.entry(text).or_insert_with_key(|text| {
            self.json.push(quoted(text));
            next
        })
    }
}

/// The op that gives a step its color: in a group the one that is not elementwise, if any.
fn main_op(step: &RecordedStep) -> Option<&RecordedOp> {
    step.ops.iter().find(|op| op.family != "elementwise").or(step.ops.last())
}

fn list<T>(items: impl IntoIterator<Item = T>, json: impl FnMut(T) -> String) -> String {
    format!("[{}]", items.into_iter().map(json).collect::<Vec<_>>().join(","))
}

/// The data of the page, as JSON.
fn data(recording: &Recording) -> String {
    let lanes = lanes(recording);
    let at = |lane: &Lane| lanes.binary_search(lane).unwrap_or(lanes.len());
    let mut texts = Texts::default();
    let steps = recording.steps.iter().zip(needs(recording));
    let steps = list(steps, |(step, needs)| {
        let ops = list(&step.ops, |op| {
            format!(
                "[{},{},{},{},{}]",
                texts.add(op.name.clone()),
                texts.add(format!("{} {}", op.dtype, op.shape)),
                texts.add(place(op.location)),
                texts.add(op.location.to_string()),
                usize::from(op.written)
            )
        });
        let family = main_op(step).map_or("others", |op| op.family);
        format!(
            "[{},{},{:.3},{:.3},{},{ops},{}]\n",
            Lane::of(step).map_or(lanes.len(), |lane| at(&lane)),
            texts.add(family.into()),
            micros(step.began),
            micros(step.ended),
            usize::from(step.by_device),
            list(needs, |step| step.to_string())
        )
    });
    let awaits = list(recording.awaits.iter().zip(barriers(recording)), |(a, step)| {
        format!(
            "[{},{},{:.3},{:.3},{},{},{},{},{}]\n",
            at(&Lane::Task(a.task)),
            texts.add(a.what.into()),
            micros(a.began),
            micros(a.ended),
            texts.add(place(a.site)),
            texts.add(a.site.to_string()),
            a.queued,
            usize::from(a.ran_dry),
            step.map_or(String::from("null"), |step| step.to_string())
        )
    });
    let lanes = list(&lanes, |lane| {
        let kind = match lane {
            Lane::Stream(_) => "stream",
            Lane::TakeUp | Lane::Poll => "small",
            Lane::Task(_) => "task",
        };
        format!("[{},\"{kind}\"]", quoted(&lane.title(recording)))
    });
    let idle = list(recording.idle(), |(a, b)| format!("[{:.3},{:.3}]", micros(a), micros(b)));
    let mut out = String::from("{");
    let _ = write!(out, "\"device\":{},\"lanes\":{lanes},", quoted(&recording.device));
    let _ = write!(out, "\"idle\":{idle},\n\"steps\":{steps},\n\"awaits\":{awaits},\n");
    let _ = write!(out, "\"texts\":[{}]}}", texts.json.join(","));
    out
}

pub(super) fn page(recording: &Recording) -> String {
    format!(
        include_str!("page/page.html"),
        device = escaped(&recording.device),
        style = STYLE,
        data = data(recording),
        script = SCRIPT,
    )
}
