//! Lines of code and of comments have at most 100 columns.

use crate::source::{files_with, root};
use std::fs;

const COLUMNS_MAX: usize = 100;

/// What is not wrapped yet.
const NOT_YET: &[&str] = &[
    "src/cuda/",
    "src/data/",
    "src/files/",
    "src/gguf/",
    "src/nn/",
    "src/op.rs",
    "src/ops/",
    "src/optim/",
    "src/quant/",
    "src/ranks/",
    "src/safetensors/",
    "src/serve/",
    "src/tensor/",
    "crates/",
    "tests/",
    "benches/",
    "examples/",
];

#[test]
fn lines_have_at_most_a_hundred_columns() {
    let all = files_with(&["rs", "cuh", "py"]);
    assert!(all.len() > 600, "the test does not see the files: {}", all.len());
    let mut wrong = Vec::new();
    for path in all.iter().filter(|path| !NOT_YET.iter().any(|part| path.starts_with(part))) {
        let text = fs::read_to_string(root().join(path)).expect("a file");
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                wrong.push(format!("{path}:{}: {columns} columns", at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "wider than {COLUMNS_MAX} columns:\n{}", wrong.join("\n"));
}
