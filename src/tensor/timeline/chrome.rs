//! A recording in Chrome's trace event format (the "JSON Object Format" of its specification):
//! complete events for steps and awaits, flow events for waits across streams and from the step
//! that ended a barrier, metadata for the lanes' names.

use super::{Lane, arrows, await_title, barriers, lanes, micros, step_title};
use crate::engine::record::{Ran, RecordedStep, Recording};
use crate::json::quoted;
use std::time::Duration;

pub(super) fn json(recording: &Recording) -> String {
    let lanes = lanes(recording);
    // Skipped ops have their own lane, after all others.
    let skipped = lanes.len();
    let tid =
        |lane: Option<Lane>| lane.and_then(|l| lanes.binary_search(&l).ok()).unwrap_or(skipped);
    let mut events = vec![format!(
        r#"{{"ph":"M","pid":1,"name":"process_name","args":{{"name":{}}}}}"#,
        quoted(&format!("device {}", recording.device))
    )];
    let titles = lanes.iter().map(|l| l.title(recording)).chain([String::from("skipped")]);
    for (k, title) in titles.enumerate() {
        let title = quoted(&title);
        events.push(format!(
            r#"{{"ph":"M","pid":1,"tid":{k},"name":"thread_name","args":{{"name":{title}}}}}"#
        ));
        events.push(format!(
            concat!(
                r#"{{"ph":"M","pid":1,"tid":{k},"name":"thread_sort_index","#,
                r#""args":{{"sort_index":{k}}}}}"#
            ),
            k = k
        ));
    }
    for step in &recording.steps {
        let at = step.ops.last().map_or_else(String::new, |op| op.location.to_string());
        let shape =
            step.ops.last().map_or_else(String::new, |op| format!("{} {}", op.dtype, op.shape));
        let state = if step.ran == Ran::Skipped { "skipped" } else { "ran" };
        events.push(format!(
            concat!(
                r#"{{"ph":"X","pid":1,"tid":{},"cat":"{state}","name":{},"ts":{:.3},"dur":{:.3},"#,
                r#""args":{{"line":{},"value":{},"ops":{}}}}}"#
            ),
            tid(Lane::of(step)),
            quoted(&step_title(step)),
            micros(step.began),
            micros(step.ended - step.began),
            quoted(&at),
            quoted(&shape),
            step.ops.len(),
            state = state,
        ));
    }
    for a in &recording.awaits {
        events.push(format!(
            concat!(
                r#"{{"ph":"X","pid":1,"tid":{},"cat":"await","name":{},"ts":{:.3},"dur":{:.3},"#,
                r#""args":{{"line":{},"queued":{},"ran_dry":{}}}}}"#
            ),
            tid(Some(Lane::Task(a.task))),
            quoted(&await_title(a)),
            micros(a.began),
            micros(a.ended.saturating_sub(a.began)),
            quoted(&a.site.to_string()),
            a.queued,
            a.ran_dry,
        ));
    }
    // A flow starts within its step: a start at the very end would belong to the next step.
    let leaves = |step: &RecordedStep| {
        micros(step.ended.saturating_sub(Duration::from_nanos(1)).max(step.began))
    };
    let mut flow = |cat: &str, (from, leaves): (usize, f64), (to, arrives): (usize, f64)| {
        let id = events.len();
        for (head, tid, ts) in
            [(r#""ph":"s""#, from, leaves), (r#""ph":"f","bp":"e""#, to, arrives)]
        {
            events.push(format!(
                concat!(
                    r#"{{{head},"pid":1,"tid":{tid},"id":{id},"cat":"{cat}","name":"{cat}","#,
                    r#""ts":{ts:.3}}}"#
                ),
                head = head,
                tid = tid,
                id = id,
                cat = cat,
                ts = ts,
            ));
        }
    };
    for (from, to) in arrows(recording) {
        let (from, to) = (&recording.steps[from], &recording.steps[to]);
        flow("wait", (tid(Lane::of(from)), leaves(from)), (tid(Lane::of(to)), micros(to.began)));
    }
    // From the step that ended a barrier to the task that awaited it.
    for (a, step) in recording.awaits.iter().zip(barriers(recording)) {
        if let Some(step) = step.map(|step| &recording.steps[step]) {
            let last = a.ended.saturating_sub(Duration::from_nanos(1)).max(a.began);
            flow(
                "barrier",
                (tid(Lane::of(step)), leaves(step)),
                (tid(Some(Lane::Task(a.task))), micros(last)),
            );
        }
    }
    format!("{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\"}}\n", events.join(",\n"))
}
