//! What `Operation` has defaults for is for ops from outside: those of the crate say it.

use crate::source::{Source, sources};

/// What an implementation leaves out, as (file, op, method).
fn unsaid(sources: &[Source]) -> (usize, Vec<String>) {
    let (mut seen, mut unsaid) = (0, Vec::new());
    for source in sources.iter().filter(|s| s.path.starts_with("ops/") && !s.is_test) {
        for rest in source.text.split("\nimpl Operation for ").skip(1) {
            seen += 1;
            let body = rest.split_once("\n}\n").map_or(rest, |(body, _)| body);
            let op = body.split(' ').next().unwrap_or_default();
            for ways in [&["fn estimate_ns("][..], &["fn gradient(", "no_gradient!()"]] {
                if !ways.iter().any(|way| body.contains(way)) {
                    unsaid.push(format!("{}: {op} has no `{}`", source.path, ways[0]));
                }
            }
        }
    }
    (seen, unsaid)
}

#[test]
fn every_op_says_what_it_costs_and_what_flows_back() {
    let (seen, unsaid) = unsaid(&sources());
    assert!(seen > 30, "the test does not see the ops: {seen}");
    assert!(unsaid.is_empty(), "{unsaid:?}");
}

#[test]
fn an_op_that_says_nothing_is_seen() {
    let text = "\nimpl Operation for Half {\n    fn estimate_ns(\n}\nimpl Operation for No {\n}\n";
    let (_, unsaid) = unsaid(&[Source::new("ops/half.rs", text)]);
    assert_eq!(unsaid.len(), 3, "{unsaid:?}");
}
