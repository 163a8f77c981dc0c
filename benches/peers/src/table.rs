//! Rows become tables: what the bar says, and everybody's times. Also the files by which other
//! programs' rows come in.

use crate::cases::{Against, Bar, CASES, Case, Work};
use crate::measure::Row;
use std::fmt::Write;

/// Ours, what the machine can do, or a library beside us.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Ours,
    Floor,
    Peer,
}

fn role(engine: &str) -> Role {
    let floor =
        ["copy", "read", "gemm crate", "FMA peak", "tokio"].iter().any(|f| engine.starts_with(f));
    match engine {
        _ if engine.starts_with("futensor") => Role::Ours,
        _ if floor || engine.contains(" alone") => Role::Floor,
        _ => Role::Peer,
    }
}

/// What the machine can do.
pub fn is_floor(engine: &str) -> bool {
    role(engine) == Role::Floor
}

/// Three digits and a unit.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "us"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", digits(value))
}

fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn rate(case: Case, seconds: f64) -> String {
    match case.work() {
        Work::Bytes(bytes) => format!(" ({} GB/s)", digits(bytes / seconds * 1e-9)),
        Work::Flops(flops) => format!(" ({} GFLOP/s)", digits(flops / seconds * 1e-9)),
        Work::Nothing => String::new(),
    }
}

struct Verdict {
    reference: String,
    ratio: f64,
    /// The same of the fastest samples: where it says something else, the machine had other work.
    fastest: f64,
}

fn judge(case: Case, bar: Bar, rows: &[Row]) -> Option<Verdict> {
    let of = |engine: &Row| engine.case == case.name();
    let ours = rows.iter().find(|r| of(r) && r.engine == "futensor")?;
    let fastest = |wanted: &dyn Fn(&str) -> bool| {
        rows.iter()
            .filter(|r| of(r) && wanted(&r.engine))
            .min_by(|a, b| a.median.total_cmp(&b.median))
    };
    let (name, median, best) = match bar.against {
        Against::Seconds(seconds) => ("the bar".to_owned(), seconds, seconds),
        Against::Fastest(names) => {
            let row = fastest(&|e| names.iter().any(|n| e.starts_with(n)))?;
            (row.engine.clone(), row.median, row.fastest)
        }
        Against::Over(names, more) => {
            let row = fastest(&|e| names.iter().any(|n| e.starts_with(n)))?;
            (format!("{} + {}", row.engine, time(more)), row.median + more, row.fastest + more)
        }
        Against::Peers => {
            let row = fastest(&|e| role(e) == Role::Peer)?;
            (row.engine.clone(), row.median, row.fastest)
        }
    };
    let reference = format!("{name}: {}", time(median));
    Some(Verdict { reference, ratio: ours.median / median, fastest: ours.fastest / best })
}

/// One line a bar: our time over the other's, what is wanted, and whether it is so.
pub fn bars(rows: &[Row]) -> String {
    let mut out = String::from(
        "| case | futensor | beside | time / its time | of the fastest samples | wanted | \
            |\n|---|---|---|---|---|---|---|\n",
    );
    for &case in CASES {
        let Some(ours) = rows.iter().find(|r| r.case == case.name() && r.engine == "futensor")
        else {
            continue;
        };
        let judged: Vec<_> =
            case.bars().into_iter().filter_map(|b| Some((b, judge(case, b, rows)?))).collect();
        let reached = |(bar, verdict): &(Bar, Verdict)| verdict.ratio <= bar.most;
        for (i, judged) in judged.iter().enumerate() {
            let (bar, verdict) = judged;
            let (title, time) = match i {
                0 => (case.title(), format!("{}{}", time(ours.median), rate(case, ours.median))),
                _ => Default::default(),
            };
            let word = if reached(judged) { "reached" } else { "**missed**" };
            let wanted = format!("<= {:.2}", bar.most);
            let Verdict { reference, ratio, fastest } = verdict;
            writeln!(
                out,
                "| {title} | {time} | {reference} | {ratio:.2} | {fastest:.2} | {wanted} \
                | {word} |"
            )
            .expect("a string");
        }
    }
    out
}

/// One line an engine, case after case: its time, the fastest of its samples, and ours over its.
pub fn times(rows: &[Row]) -> String {
    let mut out = String::from(
        "| case | engine | median | fastest sample | processor time | futensor's time / its \
            |\n|---|---|---|---|---|---|\n",
    );
    for &case in CASES {
        let mut of: Vec<&Row> = rows.iter().filter(|r| r.case == case.name()).collect();
        let ours = of.iter().find(|r| r.engine == "futensor").map(|r| r.median);
        of.sort_by(|a, b| a.median.total_cmp(&b.median));
        of.sort_by_key(|r| match role(&r.engine) {
            Role::Ours if r.engine == "futensor" => -1,
            Role::Ours => 0,
            Role::Floor => 1,
            Role::Peer => 2,
        });
        for (i, row) in of.iter().enumerate() {
            let title = if i == 0 { case.title() } else { String::new() };
            let ratio = match ours {
                Some(ours) if row.engine != "futensor" => format!("{:.2}", ours / row.median),
                _ => String::new(),
            };
            let name = match role(&row.engine) {
                Role::Floor => format!("*{}*", row.engine),
                _ => row.engine.clone(),
            };
            let (median, fastest, cpu) = (time(row.median), time(row.fastest), time(row.cpu));
            let rate = rate(case, row.median);
            writeln!(out, "| {title} | {name} | {median}{rate} | {fastest} | {cpu} | {ratio} |")
                .expect("a string");
        }
    }
    out
}

pub fn to_json(rows: &[Row], about: &[String]) -> String {
    let row = |r: &Row| {
        serde_json::json!({
            "case": r.case, "engine": r.engine,
            "median": r.median, "fastest": r.fastest, "cpu": r.cpu
        })
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    serde_json::to_string_pretty(&serde_json::json!({ "about": about, "rows": rows }))
        .expect("plain values")
}

/// The rows of a file, and what it says of itself (`about`: lines).
pub fn from_json(text: &str) -> Result<(Vec<Row>, Vec<String>), Box<dyn std::error::Error>> {
    let file: serde_json::Value = serde_json::from_str(text)?;
    let row = |v: &serde_json::Value| {
        Some(Row {
            case: v["case"].as_str()?.to_owned(),
            engine: v["engine"].as_str()?.to_owned(),
            median: v["median"].as_f64()?,
            fastest: v["fastest"].as_f64()?,
            cpu: v["cpu"].as_f64()?,
        })
    };
    let rows = file["rows"].as_array().ok_or("no rows")?.iter().map(row).collect::<Option<_>>();
    let about = file["about"].as_array().map(Vec::as_slice).unwrap_or_default();
    let about = about.iter().filter_map(|l| l.as_str()).map(str::to_owned).collect();
    Ok((rows.ok_or("a row that is none")?, about))
}

/// `text` with what stands between the two marks replaced.
pub fn replaced(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

pub const BEGIN: &str = "<!-- tables: begin -->";
pub const END: &str = "<!-- tables: end -->";
