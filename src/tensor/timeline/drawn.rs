//! What is drawn of a recording that is written by hand: two streams, two tasks, a stretch in which
//! nothing runs.

use super::place;
use crate::dtype::DType;
use crate::engine::record::{Ran, RecordedAwait, RecordedOp, RecordedStep, Recording};
use std::panic::Location;
use std::time::Duration;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[track_caller]
fn step(
    number: usize,
    name: &str,
    (stream, point): (usize, u64),
    times: (u64, u64),
) -> RecordedStep {
    let op = RecordedOp {
        number,
        name: name.into(),
        family: if name == "matmul" { "products" } else { "elementwise" },
        shape: [2, 3].into(),
        dtype: DType::F32,
        location: Location::caller(),
        inputs: Vec::new(),
        written: true,
    };
    RecordedStep {
        ops: vec![op],
        ran: Ran::Stream { stream, point },
        waits: Vec::new(),
        began: us(times.0),
        ended: us(times.1),
        by_device: true,
    }
}

#[track_caller]
fn wait(
    task: usize,
    name: Option<&str>,
    op: Option<usize>,
    times: (u64, u64),
    ran_dry: bool,
) -> RecordedAwait {
    RecordedAwait {
        what: if op.is_some() { "item" } else { "waitall" },
        site: Location::caller(),
        op,
        task,
        name: name.map(Into::into),
        began: us(times.0),
        ended: us(times.1),
        queued: 3,
        ran_dry,
    }
}

/// Stream 0: `exp` 0-100, `mul` 100-150, then `sum` 400-450; stream 1: `matmul` 160-250, for which
/// it was told to wait for `exp`. `sum` reads `matmul`'s value. From 250 to 400 nothing runs.
fn recording() -> Recording {
    let mut product = step(2, "matmul", (1, 1), (160, 250));
    product.waits = vec![(0, 1)];
    // The same dependency twice is one arrow.
    product.ops[0].inputs = vec![Some(0), None];
    let mut sum = step(3, "sum", (0, 3), (400, 450));
    // One value from its own stream, which needs no arrow.
    sum.ops[0].inputs = vec![Some(2), Some(1)];
    let awaits = vec![
        wait(0, Some("reader"), Some(2), (120, 260), true),
        wait(1, None, Some(3), (270, 455), false),
        wait(0, Some("reader"), None, (300, 460), true),
    ];
    let steps =
        vec![step(0, "exp", (0, 1), (0, 100)), step(1, "mul", (0, 2), (100, 150)), product, sum];
    Recording { device: "by hand".into(), steps, awaits }
}

/// The elements of a class (titles have lines of their own), and what an attribute of one says.
fn of<'a>(svg: &'a str, class: &str) -> Vec<&'a str> {
    svg.split("\n<").filter(|element| element.contains(&format!("class=\"{class}\""))).collect()
}

fn text<'a>(element: &'a str, name: &str) -> &'a str {
    let from =
        element.find(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {element}"));
    element[from + name.len() + 3..].split('"').next().unwrap()
}

fn number(element: &str, name: &str) -> f64 {
    text(element, name).parse().unwrap()
}

/// From when to when, in microseconds.
fn times(element: &str) -> (f64, f64) {
    (number(element, "data-a"), number(element, "data-b"))
}

#[test]
fn each_stream_and_each_awaiting_task_has_a_lane() {
    let svg = recording().to_svg(1000);
    let titles: Vec<&str> = of(&svg, "lane")
        .iter()
        .map(|l| l.split("<title>").nth(1).unwrap().split('<').next().unwrap())
        .collect();
    assert_eq!(titles, ["stream 0", "stream 1", "reader", "task 1"]);
    let tops: Vec<f64> = of(&svg, "lane").iter().map(|l| number(l, "y")).collect();
    assert!(tops.is_sorted_by(|a, b| a < b), "{tops:?}");
    // Bars stand beside the names of their lanes.
    let beside = |bar: &str, lane: usize| (number(bar, "y") - tops[lane]).abs() < 20.0;
    let bars = of(&svg, "step");
    for (k, lane) in [0, 0, 1, 0].into_iter().enumerate() {
        assert!(beside(bars[k], lane), "{}", bars[k]);
    }
}

#[test]
fn bars_have_the_callers_line_and_the_length_of_their_time() {
    let recording = recording();
    let svg = recording.to_svg(1000);
    let bars = of(&svg, "step");
    assert_eq!(bars.len(), 4);
    let pixels_per_us = number(bars[0], "width") / 100.0;
    for (bar, step) in bars.iter().zip(&recording.steps) {
        let want = (step.began.as_micros() as f64, step.ended.as_micros() as f64);
        assert_eq!(times(bar), want);
        assert!((number(bar, "width") - (want.1 - want.0) * pixels_per_us).abs() < 0.02, "{bar}");
        assert!(
            (number(bar, "x") - number(bars[0], "x") - want.0 * pixels_per_us).abs() < 0.02,
            "{bar}"
        );
        let op = &step.ops[0];
        assert_eq!(text(bar, "data-l"), format!("{}  {}", op.name, place(op.location)));
        assert!(
            place(op.location).starts_with("drawn.rs:") && svg.contains(&op.location.to_string())
        );
    }
}

#[test]
fn gaps_are_drawn_where_a_stream_idles_and_where_the_whole_device_does() {
    let recording = recording();
    assert_eq!(recording.idle(), [(us(150), us(160)), (us(250), us(400))]);
    let svg = recording.to_svg(1000);
    let idle: Vec<_> = of(&svg, "idle").into_iter().map(times).collect();
    assert_eq!(idle, [(150.0, 160.0), (250.0, 400.0)]);
    let gaps: Vec<_> = of(&svg, "gap").into_iter().map(times).collect();
    // Of stream 0, and of stream 1; the picture ends with the last await.
    assert_eq!(gaps, [(150.0, 400.0), (450.0, 460.0), (0.0, 160.0), (250.0, 460.0)]);
    assert!(svg.contains("idle for 160.0 us of it"), "{svg}");
    // Behind both lanes of the device, and behind no task's.
    let (band, lanes) = (of(&svg, "idle")[0], of(&svg, "lane"));
    let (top, bottom) = (number(band, "y"), number(band, "y") + number(band, "height"));
    let inside: Vec<bool> = lanes.iter().map(|l| (top..bottom).contains(&number(l, "y"))).collect();
    assert_eq!(inside, [true, true, false, false]);
}

#[test]
fn arrows_lead_from_what_was_needed_to_who_needed_it_on_another_stream() {
    let recording = recording();
    assert_eq!(super::arrows(&recording), [(0, 2), (2, 3)]);
    let svg = recording.to_svg(1000);
    let arrows = of(&svg, "arrow");
    assert_eq!(
        arrows.iter().copied().map(times).collect::<Vec<_>>(),
        [(100.0, 160.0), (250.0, 400.0)]
    );
    let rows = |arrow: &str| {
        let ys: Vec<f64> = text(arrow, "data-y").split(' ').map(|y| y.parse().unwrap()).collect();
        ys[1] - ys[0]
    };
    assert!(rows(arrows[0]) > 0.0 && rows(arrows[1]) < 0.0, "down to stream 1, and up again");
    assert!(
        arrows.iter().all(|a| text(a, "marker-end") == "url(#head)") && svg.contains("id=\"head\"")
    );
}

#[test]
fn a_barrier_is_marked_from_what_ended_it_to_who_awaited_it() {
    let svg = recording().to_svg(1000);
    assert_eq!((of(&svg, "await dry").len(), of(&svg, "await").len()), (2, 1));
    let dry: Vec<_> = of(&svg, "barrier dry").into_iter().map(times).collect();
    // The product, and the await of the device as a whole, where it ended.
    assert_eq!(dry, [(250.0, 260.0), (460.0, 460.0)]);
    let other: Vec<_> = of(&svg, "barrier").into_iter().map(times).collect();
    assert_eq!(other, [(450.0, 455.0)]);
    assert!(of(&svg, "await")[0].contains("item  drawn.rs:"));
}

#[test]
fn nothing_is_drawn_outside_of_the_picture() {
    for width in [400, 1000, 3000] {
        let svg = recording().to_svg(width);
        let left = number(svg.lines().next().unwrap(), "data-left");
        for class in ["step", "await", "await dry", "gap", "idle"] {
            for element in of(&svg, class) {
                let (x, wide) = (number(element, "x"), number(element, "width"));
                assert!(x >= left - 0.01 && x + wide <= width as f64, "{element}");
            }
        }
    }
    // Nothing at all is a picture too.
    assert!(Recording::default().to_svg(800).trim_end().ends_with("</svg>"));
    assert!(Recording::default().to_html().contains("</html>"));
}

#[test]
fn perfetto_gets_lanes_durations_and_flows() {
    let json: serde_json::Value = serde_json::from_str(&recording().to_chrome_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let lane = |name: &str| {
        let named = events.iter().find(|e| e["name"] == "thread_name" && e["args"]["name"] == name);
        named.unwrap_or_else(|| panic!("no lane {name}"))["tid"].clone()
    };
    let span = |name: &str| {
        let found =
            events.iter().find(|e| e["ph"] == "X" && e["name"].as_str().unwrap().starts_with(name));
        found.unwrap_or_else(|| panic!("no span {name}"))
    };
    for (name, at, lasts, on) in [
        ("exp", 0.0, 100.0, "stream 0"),
        ("mul", 100.0, 50.0, "stream 0"),
        ("matmul", 160.0, 90.0, "stream 1"),
        ("sum", 400.0, 50.0, "stream 0"),
        ("waitall", 300.0, 160.0, "reader"),
    ] {
        let span = span(name);
        assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(at), Some(lasts)), "{span}");
        assert_eq!(span["tid"], lane(on), "{span}");
        assert!(span["args"]["line"].as_str().unwrap().contains("drawn.rs:"), "{span}");
    }
    // Each flow begins within the span that it comes from, and ends in the one that it leads to.
    let flows = |ph: &str, cat: &str| -> Vec<&serde_json::Value> {
        events.iter().filter(|e| e["ph"] == ph && e["cat"] == cat).collect()
    };
    let inside = |event: &serde_json::Value, name: &str| {
        let (span, ts) = (span(name), event["ts"].as_f64().unwrap());
        let from = span["ts"].as_f64().unwrap();
        event["tid"] == span["tid"] && ts >= from && ts < from + span["dur"].as_f64().unwrap()
    };
    for (cat, pairs) in [
        ("wait", [("exp", "matmul"), ("matmul", "sum")]),
        ("barrier", [("matmul", "item"), ("sum", "item")]),
    ] {
        let (begins, ends) = (flows("s", cat), flows("f", cat));
        assert_eq!((begins.len(), ends.len()), (2, 2));
        for (k, (from, to)) in pairs.into_iter().enumerate() {
            assert_eq!(begins[k]["id"], ends[k]["id"]);
            assert!(inside(begins[k], from), "{} {from}", begins[k]);
            assert!(cat == "barrier" || inside(ends[k], to), "{} {to}", ends[k]);
        }
    }
    let tasks = flows("f", "barrier").iter().map(|e| e["tid"].clone()).collect::<Vec<_>>();
    assert_eq!(tasks, [lane("reader"), lane("task 1")]);
    let mut ids: Vec<_> =
        flows("s", "wait").iter().chain(&flows("s", "barrier")).map(|e| e["id"].as_u64()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "each flow has a number of its own");
}
