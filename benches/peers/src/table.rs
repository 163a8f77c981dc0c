//! Rows become tables: what the bar says, and everybody's times. Also the files by which other
//! programs' rows come in.

use crate::cases::{Against, Bar, CASES, Case, Work};
use crate::measure::Row;
use std::fmt::Write;

/// futensor, what the machine can do, or a library beside it.
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

/// One line a bar: our time over the other's, what is wanted, and whether it is so. Misses first.
pub fn bars(rows: &[Row]) -> String {
    let mut out = String::from(
        "| case | futensor | beside | time / its time | of the fastest samples | wanted | \
            |\n|---|---|---|---|---|---|---|\n",
    );
    let mut lines = Vec::new();
    for &case in CASES {
        let Some(ours) = median(rows, case, |engine| engine == "futensor") else { continue };
        for bar in case.bars() {
            let Some(Verdict { reference, ratio, fastest }) = judge(case, bar, rows) else {
                continue;
            };
            let missed = ratio > bar.most;
            let word = if missed { "**missed**" } else { "reached" };
            let (title, time, rate) = (case.title(), time(ours.median), rate(case, ours.median));
            let line = format!(
                "| {title} | {time}{rate} | {reference} | {ratio:.2} | {fastest:.2} | \
                <= {:.2} | {word} |\n",
                bar.most
            );
            lines.push((!missed, line));
        }
    }
    lines.sort_by_key(|(reached, _)| *reached);
    out.extend(lines.into_iter().map(|(_, line)| line));
    out
}

/// The row with the least median among the engines of a case that are wanted.
fn median(rows: &[Row], case: Case, wanted: impl Fn(&str) -> bool) -> Option<&Row> {
    let of = rows.iter().filter(|r| r.case == case.name() && wanted(&r.engine));
    of.min_by(|a, b| a.median.total_cmp(&b.median))
}

/// Libraries, each with all its variants: eager and compiled, pages kept or not, and so on.
const LIBRARIES: &[&str] = &["PyTorch", "torch.compile", "JAX", "NumPy", "candle", "burn"];

/// One line a case: futensor, what the machine can do, and each library in its fastest variant.
pub fn times(rows: &[Row]) -> String {
    let mut out = format!("| case | futensor | the machine | {} |\n", LIBRARIES.join(" | "));
    writeln!(out, "|---|---|---|{}", "---|".repeat(LIBRARIES.len())).expect("a string");
    let shown = |row: Option<&Row>| row.map_or("-".to_owned(), |row| time(row.median));
    for &case in CASES {
        let Some(ours) = median(rows, case, |engine| engine == "futensor") else { continue };
        let floor = median(rows, case, |e| is_floor(e) && !e.ends_with(" alone"));
        let floor = floor.map_or("-".to_owned(), |r| format!("{} ({})", time(r.median), r.engine));
        let peers = LIBRARIES.iter().map(|library| {
            let is_its = |engine: &str| engine.starts_with(library) && role(engine) == Role::Peer;
            shown(median(rows, case, is_its))
        });
        let peers: Vec<_> = peers.collect();
        let (title, ours) = (case.title(), time(ours.median));
        writeln!(out, "| {title} | {ours} | {floor} | {} |", peers.join(" | ")).expect("a string");
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
