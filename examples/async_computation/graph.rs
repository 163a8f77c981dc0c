//! Part 2: `z = x * y + 2`, its dependency graph as the engine saw it, and its value.

use crate::report::Report;
use crate::setup::{Outcome, Setup, check};
use futensor::CpuOptions;
use futensor::recording::{Ran, RecordedStep};

pub async fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let device = setup.own(CpuOptions::default());
    let recording = device.record();
    let x = device.ones([1, 2]);
    let y = device.ones([1, 2]);
    let z = &x * &y + 2.0;
    let shown = z.display().await?;
    let small = recording.finish().steps;
    check(z.to_vec::<f32>().await? == [3.0, 3.0], "z is 3 everywhere")?;
    let ops = |steps: &[RecordedStep], name| {
        steps.iter().flat_map(|s| &s.ops).filter(|op| op.name == name).count()
    };
    check(ops(&small, "mul") == 1 && ops(&small, "add") == 1, "both ops of z were recorded once")?;

    // Two independent branches that meet, and one that nobody wants.
    let recording = device.record();
    let (a, b) = (device.randn([256, 256]), device.randn([256, 256]));
    let left = (a.matmul(&a) * 0.5).relu();
    let right = b.matmul(&b) - 1.0;
    let sum = (&left + &right).sum_all();
    drop(right.matmul(&left).exp());
    let value = sum.item::<f32>().await?;
    device.waitall().await?;
    let large = recording.finish().steps;
    check(value.is_finite(), "the sum is a number")?;
    check(ops(&large, "sum") == 1, "the sum was recorded once")?;

    report.part("the dependency graph of z = x * y + 2, as the engine saw it");
    report.note(lines(&small));
    report.note(format!("z = {shown}"));
    report.note(
        "\nTwo branches of [256, 256] that meet in a sum, and a product of both that is dropped:",
    );
    report.note(lines(&large));
    Ok(())
}

/// A line for each step: where and after what it ran, and its ops with their operands. Values that
/// were fused away are in brackets.
fn lines(steps: &[RecordedStep]) -> String {
    let mut text = String::new();
    for step in steps {
        let place = match step.ran {
            Ran::Stream { stream, point } => format!("stream {stream} step {point}"),
            Ran::TakeUp => "at take-up".into(),
            Ran::Poll => "by the poll".into(),
            Ran::Skipped => "skipped".into(),
            other => format!("{other:?}"),
        };
        let after: Vec<String> =
            step.waits.iter().map(|(s, p)| format!("stream {s} step {p}")).collect();
        let ops: Vec<String> = step
            .ops
            .iter()
            .map(|op| {
                let inputs: Vec<String> =
                    op.inputs.iter().map(|i| i.map_or("-".into(), |i| format!("%{i}"))).collect();
                let call = format!("%{} = {}({})", op.number, op.name, inputs.join(", "));
                let fused = !op.written && step.ran != Ran::Skipped;
                if fused { format!("[{call}]") } else { call }
            })
            .collect();
        let after =
            if after.is_empty() { String::new() } else { format!("   after {}", after.join(", ")) };
        let line = step.ops.last().map_or(0, |op| op.location.line());
        text += &format!("{place:<16} {}   graph.rs:{line}{after}\n", ops.join("  "));
    }
    text
}
