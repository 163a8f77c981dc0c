//! Losses and accuracies as an SVG.

use crate::model::Model;
use crate::report::Figures;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 2] = ["#2a6fb0", "#c4572b"];

/// Losses of minibatches on a logarithmic scale (a thin line each, and their running mean), and
/// held-out errors after each epoch as dots on the same scale.
pub fn svg(runs: &[(Model, &Figures)]) -> String {
    let (low, high): (f64, f64) = (1e-3, 4.0);
    let x = |at: f64| LEFT + at * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| {
        let part = (value.clamp(low, high).ln() - low.ln()) / (high.ln() - low.ln());
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
            font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for value in [1e-3, 1e-2, 1e-1, 1.0] {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(value) + 4.0,
            y = y(value),
        );
    }
    let middle = x(0.5);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"20\" text-anchor=\"middle\" font-size=\"14\">Handwritten digits: \
            loss of each \
         minibatch (lines), part of the held-out images that is wrong (dots)</text>\
         <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">training, from its \
         first step to its \
         last</text>",
        HEIGHT - 12.0
    );
    for (k, (model, figures)) in runs.iter().enumerate() {
        let colour = COLOURS[k % COLOURS.len()];
        let place = |i: usize, n: usize| x((i as f64 + 0.5) / n.max(1) as f64);
        let line = |values: &mut dyn Iterator<Item = f64>| -> String {
            let n = figures.losses.len();
            values.enumerate().map(|(i, v)| format!("{:.1},{:.1} ", place(i, n), y(v))).collect()
        };
        let plain = line(&mut figures.losses.iter().map(|&v| v as f64));
        let mut mean = None;
        let smooth = line(&mut figures.losses.iter().map(|&v| {
            let now = mean.map_or(v as f64, |m: f64| m * 0.95 + v as f64 * 0.05);
            mean = Some(now);
            now
        }));
        let _ = writeln!(
            out,
            "<polyline points=\"{plain}\" fill=\"none\" stroke=\"{colour}\" \
                stroke-opacity=\"0.25\"/>\
             <polyline points=\"{smooth}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        let n = figures.accuracies.len();
        for (i, accuracy) in figures.accuracies.iter().enumerate() {
            let at = x((i + 1) as f64 / n as f64);
            let _ = writeln!(
                out,
                "<circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                y(1.0 - accuracy)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}: {} steps, {:.2} % right</text>",
            x(0.62),
            TOP + 16.0 + 18.0 * k as f64,
            model.name(),
            figures.steps,
            figures.accuracy * 100.0
        );
    }
    out + "</svg>\n"
}
