//! The mutations of `tests/mutations/list` can still be made.

use crate::source::{below, files_below, root};
use std::fs;

/// A paragraph of `tests/mutations/list`: what is broken, and the text that is replaced.
fn mutations() -> Vec<(String, String)> {
    let path = root().join("tests/mutations/list");
    let text = fs::read_to_string(path).expect("the list of mutations");
    let mutation = |part: &str| {
        let lines: Vec<&str> = part.lines().filter_map(|line| line.strip_prefix("- ")).collect();
        let before = lines.join("\n");
        (part.lines().next().unwrap_or_default().trim().to_owned(), before)
    };
    format!("\n{text}").split("\n== ").skip(1).map(mutation).collect()
}

/// Code without what a formatter moves: spaces, the ends of lines, the comma before a closing
/// bracket.
fn dense(code: &str) -> String {
    let code: String = code.split_whitespace().collect();
    code.replace(",)", ")").replace(",]", "]").replace(",}", "}")
}

#[test]
fn every_mutation_can_still_be_made() {
    let root = root();
    let mut all = below(&root.join("src"), &["rs", "cuh"]);
    for packages in ["crates", "examples"] {
        let packages = fs::read_dir(root.join(packages)).expect("a folder").flatten();
        packages
            .flat_map(|package| ["src", "service"].map(|folder| package.path().join(folder)))
            .filter(|folder| folder.is_dir())
            .for_each(|folder| all.extend(files_below(&folder)));
    }
    let all: Vec<String> =
        all.iter().map(|file| dense(&fs::read_to_string(file).expect("a source file"))).collect();
    for (name, before) in mutations() {
        let before = dense(&before);
        // Its last comma may be such a one too.
        let before = before.trim_end_matches(',');
        let found: usize = all.iter().map(|text| text.matches(before).count()).sum();
        assert!(
            !before.is_empty() && found == 1,
            "{name}: its text is there {found} times:\n{before}"
        );
    }
    assert!(mutations().len() >= 15, "the test does not see the list");
}
