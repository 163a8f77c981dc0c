//! A recording as a picture that stands as it is: SVG, for documents. Every element carries its
//! times as attributes. Arrows lie behind the bars, whose labels they would cover.

use super::{Lane, arrows, await_title, barriers, lanes, micros, step_title};
use crate::engine::record::Recording;
use crate::error::number_of;
use crate::json::escaped;
use std::fmt::Write;

const TOP: f64 = 46.0;
const ROW: f64 = 26.0;
const BAR: f64 = 19.0;

const STYLE: &str = "\
text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#222}\
.lane{fill:#555}.axis{fill:#888;font-size:10px}.rule{stroke:#e3e3e3}\
.step rect{stroke:#fff;stroke-width:.6}.step text,.await text{pointer-events:none}\
.step:hover rect,.await:hover rect{stroke:#000;stroke-width:1}\
.await rect{fill:#fff6dd;stroke:#c8930a}.await.dry rect{fill:#ffe3df;stroke:#c33}\
.gap{fill:url(#hatch)}.idle{fill:#d33;fill-opacity:.10}\
.arrow{fill:none;stroke:#333;stroke-opacity:.65}.head{fill:#333}\
.barrier{fill:none;stroke:#c8930a;stroke-width:1.2;stroke-dasharray:3 2}.barrier.dry{stroke:#c33}";

/// A color for an op's name, by a hash (FNV-1a) of the name.
fn color(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3));
    format!("hsl({},58%,{}%)", hash % 360, 70 + hash / 360 % 12)
}

fn span(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}

/// A round distance between marks on the axis, so that about ten fit.
fn tick(total: f64) -> f64 {
    let rough = (total / 10.0).max(1e-3);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|&t| t >= rough).unwrap_or(10.0 * power)
}

/// The part of a text that fits into this many pixels.
fn fitting(text: &str, pixels: f64) -> String {
    let room = ((pixels - 6.0) / 6.7).floor().max(0.0) as usize;
    if text.chars().count() <= room {
        text.to_owned()
    } else if room < 4 {
        String::new()
    } else {
        text.chars().take(room - 1).chain(['…']).collect()
    }
}

struct Scale {
    /// The right edge of the lanes' names.
    left: f64,
    from: f64,
    pixels_per_us: f64,
}

impl Scale {
    fn x(&self, us: f64) -> f64 {
        self.left + (us - self.from) * self.pixels_per_us
    }
    fn bar(
        &self,
        out: &mut String,
        (class, fill): (&str, &str),
        times: (f64, f64),
        y: f64,
        (label, title): (&str, &str),
    ) {
        let (x, width) = (self.x(times.0), ((times.1 - times.0) * self.pixels_per_us).max(0.8));
        let _ = writeln!(
            out,
            "<g class=\"{class}\" data-a=\"{:.3}\" data-b=\"{:.3}\" data-l=\"{}\"><title>{}</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" rx=\"2\"{fill}/>\
             <text x=\"{:.2}\" y=\"{}\">{}</text></g>",
            times.0,
            times.1,
            escaped(label),
            escaped(title),
            x + 3.0,
            y + 13.5,
            escaped(&fitting(label, width)),
        );
    }
}

pub(super) fn svg(recording: &Recording, width: usize) -> String {
    let lanes = lanes(recording);
    let row = |lane: &Lane| lanes.binary_search(lane).ok().map(|k| TOP + k as f64 * ROW);
    let times = recording.steps.iter().map(|s| (micros(s.began), micros(s.ended)));
    let times = times.chain(recording.awaits.iter().map(|a| (micros(a.began), micros(a.ended))));
    let (from, to) = times.fold((f64::MAX, 0f64), |(from, to), (a, b)| (from.min(a), to.max(b)));
    let (from, to) = if from > to { (0.0, 1.0) } else { (from, to.max(from + 1e-3)) };
    let width = width.max(400) as f64;
    let longest = lanes.iter().map(|lane| lane.title(recording).chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * 6.7 + 22.0).clamp(100.0, 240.0).round();
    let scale = Scale { left, from, pixels_per_us: (width - left - 12.0) / (to - from) };
    let height = TOP + lanes.len() as f64 * ROW + 30.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         data-left=\"{left}\" data-from=\"{from:.3}\" \
             data-to=\"{to:.3}\">\n<style>{STYLE}</style>\n\
         <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\">\
         <rect width=\"6\" height=\"6\" fill=\"#fafafa\"/><rect width=\"1.2\" height=\"6\" \
             fill=\"#ddd\"/></pattern>\
         <marker id=\"head\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"6\" \
             markerHeight=\"6\" orient=\"auto\">\
         <path class=\"head\" d=\"M0 0 6 3 0 6z\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );

    let idle = recording.idle();
    let idle_us: f64 = idle.iter().map(|(a, b)| micros(*b - *a)).sum();
    let _ = writeln!(
        out,
        "<text x=\"8\" y=\"15\">device {}: {} in {}, idle for {} of it; {} that waited</text>",
        escaped(&recording.device),
        number_of(recording.steps.len(), "step", "steps"),
        span(to - from),
        span(idle_us),
        number_of(recording.awaits.len(), "await", "awaits")
    );

    // The axis.
    let bottom = TOP + lanes.len() as f64 * ROW;
    out += "<g id=\"axis\">\n";
    let step = tick(to - from);
    let mut at = 0.0;
    while at <= to - from {
        let (x, text) = (scale.x(from + at), span(at));
        let fits = x + 2.0 + text.len() as f64 * 6.2 < width;
        let _ = writeln!(
            out,
            "<line class=\"rule\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{}\" y2=\"{bottom}\"/>\
             <text class=\"axis\" x=\"{:.2}\" y=\"{}\">{}</text>",
            TOP - 8.0,
            x + 2.0,
            TOP - 10.0,
            if fits { text } else { String::new() }
        );
        at += step;
    }
    out += "</g>\n";

    // Periods in which the whole device was idle, across its lanes; and those in which a stream
    // was.
    let device_rows = lanes.iter().filter(|l| !matches!(l, Lane::Task(_))).count() as f64;
    let flat = |out: &mut String, class: &str, a: f64, b: f64, y: f64, height: f64, title: &str| {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" data-a=\"{a:.3}\" data-b=\"{b:.3}\" x=\"{:.2}\" y=\"{y}\" \
             width=\"{:.2}\" \
             height=\"{height}\"><title>{}</title></rect>",
            scale.x(a),
            (b - a) * scale.pixels_per_us,
            escaped(title)
        );
    };
    for lane in lanes.iter().filter(|l| matches!(l, Lane::Stream(_))) {
        let y = row(lane).unwrap_or(TOP);
        let mut own: Vec<_> = recording
            .steps
            .iter()
            .filter(|s| Lane::of(s).as_ref() == Some(lane))
            .map(|s| (s.began, s.ended))
            .collect();
        own.sort();
        // Also before its first step and after its last.
        let mut until = from;
        for (a, b) in own.iter().map(|&(a, b)| (micros(a), micros(b))).chain([(to, to)]) {
            if a > until {
                flat(
                    &mut out,
                    "gap",
                    until,
                    a,
                    y,
                    BAR,
                    &format!("the stream idles for {}", span(a - until)),
                );
            }
            until = until.max(b);
        }
    }
    for (a, b) in idle {
        let (a, b) = (micros(a), micros(b));
        let title = format!("the device idles for {}", span(b - a));
        flat(&mut out, "idle", a, b, TOP - 3.0, device_rows * ROW, &title);
    }

    for (k, lane) in lanes.iter().enumerate() {
        let title = lane.title(recording);
        let y = TOP + k as f64 * ROW + 13.5;
        let _ = writeln!(
            out,
            "<text class=\"lane\" x=\"8\" y=\"{y}\"><title>{}</title>{}</text>",
            escaped(&title),
            escaped(&fitting(&title, left - 4.0))
        );
    }
    for (from, to) in arrows(recording) {
        let (from, to) = (&recording.steps[from], &recording.steps[to]);
        let (Some(y1), Some(y2)) =
            (Lane::of(from).and_then(|l| row(&l)), Lane::of(to).and_then(|l| row(&l)))
        else {
            continue;
        };
        let (a, b) = (micros(from.ended), micros(to.began));
        let (x1, x2) = (scale.x(a), scale.x(b));
        let (y1, y2) = (y1 + BAR / 2.0, y2 + BAR / 2.0);
        let _ = writeln!(
            out,
            "<path class=\"arrow\" marker-end=\"url(#head)\" data-a=\"{a:.3}\" data-b=\"{b:.3}\" \
             data-y=\"{y1} {y2}\" \
             d=\"M{x1:.2} {y1}C{:.2} {y1} {:.2} {y2} {x2:.2} {y2}\"/>",
            x1 + 14.0,
            x2 - 14.0,
        );
    }
    for step in &recording.steps {
        let Some(y) = Lane::of(step).and_then(|lane| row(&lane)) else { continue };
        let (a, b) = (micros(step.began), micros(step.ended));
        let label = step_title(step);
        let mut title = format!("{label}\n{}", span(b - a));
        for op in &step.ops {
            let written = if op.written { "" } else { ", fused away" };
            let _ =
                write!(title, "\n{} {} {}{written}  {}", op.name, op.dtype, op.shape, op.location);
        }
        let main = step.ops.last().map_or("", |op| op.name.as_str());
        let fill = format!(" fill=\"{}\"", color(main));
        scale.bar(&mut out, ("step", &fill), (a, b), y, (&label, &title));
    }
    for a in &recording.awaits {
        let Some(y) = row(&Lane::Task(a.task)) else { continue };
        let times = (micros(a.began), micros(a.ended));
        let label = await_title(a);
        let dry = if a.ran_dry { "\nthe device ran dry" } else { "" };
        let ops = number_of(a.queued, "op", "ops");
        let title = format!(
            "{label}\nwaited {}\nqueued or running: {ops}{dry}\n{}",
            span(times.1 - times.0),
            a.site
        );
        let class = if a.ran_dry { "await dry" } else { "await" };
        scale.bar(&mut out, (class, ""), times, y, (&label, &title));
    }
    for (a, step) in recording.awaits.iter().zip(barriers(recording)) {
        let Some(y2) = row(&Lane::Task(a.task)) else { continue };
        // Of a whole device: from the lanes' top.
        let step = step.map(|step| &recording.steps[step]);
        let y1 = step.and_then(|s| row(&Lane::of(s)?)).map_or(TOP - 3.0, |y| y + BAR);
        let end = micros(a.ended);
        let begin = step.map_or(end, |s| micros(s.ended).min(end));
        let class = if a.ran_dry { "barrier dry" } else { "barrier" };
        let _ = writeln!(
            out,
            "<path class=\"{class}\" data-a=\"{begin:.3}\" data-b=\"{end:.3}\" data-y=\"{y1} {}\" \
             d=\"M{:.2} {y1}L{:.2} {}\"><title>this ended the wait of {}</title></path>",
            y2 + BAR,
            scale.x(begin),
            scale.x(end),
            y2 + BAR,
            escaped(&await_title(a)),
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"axis legend\" x=\"8\" y=\"{}\">hatched: the stream idles; red: the whole \
         device idles; \
         yellow: a task awaits, and dashed what ended its wait (red: and the device ran dry); \
         arrows: a step needed what another stream made</text>",
        bottom + 18.0
    );
    out += "</svg>\n";
    out
}
