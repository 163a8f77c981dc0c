//! Lines of code, of comments and of prose have at most 100 columns. Tables and drawings of
//! Markdown may be wider.

use crate::source::{files_with, root};
use std::fs;

const COLUMNS_MAX: usize = 100;

#[test]
fn lines_have_at_most_a_hundred_columns() {
    let all = files_with(&["rs", "cuh", "py", "md"]);
    assert!(all.len() > 700, "the test does not see the files: {}", all.len());
    let mut wrong = Vec::new();
    for path in &all {
        let text = fs::read_to_string(root().join(path)).expect("a file");
        let (is_markdown, mut drawn) = (path.ends_with(".md"), false);
        for (at, line) in text.lines().enumerate() {
            drawn ^= is_markdown && line.starts_with("```");
            let is_wide = drawn || is_markdown && line.trim_start().starts_with('|');
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !is_wide {
                wrong.push(format!("{path}:{}: {columns} columns", at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "wider than {COLUMNS_MAX} columns:\n{}", wrong.join("\n"));
}
