//! The book's table of ops and modules, which stands between two comments. `op_table` checks that
//! the table has all of them.

use std::collections::BTreeSet;

pub type Names = BTreeSet<String>;

/// The table, as (group, names).
pub fn table() -> Vec<(String, Names)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ops.md");
    let text = std::fs::read_to_string(path).expect("the chapter of ops");
    let table = text.split_once("<!-- ops -->").and_then(|(_, rest)| rest.split_once("<!-- /ops"));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').splitn(2, '|');
        let (group, names) = (cells.next()?.trim(), cells.next()?);
        let names: Names = names.split('`').skip(1).step_by(2).map(str::to_string).collect();
        (!names.is_empty()).then(|| (group.to_string(), names))
    };
    table.expect("a table between two comments").0.lines().filter_map(row).collect()
}

/// Features that bring ops of other crates; each is a folder of the sources as well.
pub const FEATURES: [&str; 2] = ["fft", "linalg"];

/// True of a group of modules, of optimisers, or of ops that a feature brings.
pub fn is_beside(group: &str) -> bool {
    let is_of = |name: &&str| group.contains(&format!("`{name}`"));
    ["nn", "optim"].iter().chain(&FEATURES).any(is_of)
}

/// The ops of a group.
pub fn group(name: &str) -> Names {
    let group = table().into_iter().find(|(group, _)| group == name);
    group.expect("a group of this name").1
}

/// The ops in the table.
pub fn ops() -> Names {
    let groups = table().into_iter().filter(|(group, _)| !is_beside(group));
    let names: Names = groups.flat_map(|(_, names)| names).collect();
    assert!(names.contains("conv2d") && names.contains("exp"), "{names:?}");
    names
}
