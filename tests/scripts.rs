//! The scripts of the repository, as far as they can be asked without being run.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn asked(script: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(root().join(script)).args(arguments).output().expect("bash");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn each_part_of_a_run_on_a_gpu_fits_into_a_borrowed_machines_command() {
    let (well, limits) = asked("tests/gpu/run", &["limits"]);
    let parts = ["smoke", "right1", "fast1", "right2", "safe", "fast2", "peers", "worst", "hosts"];
    assert!(
        well && limits.lines().map(|line| line.split(' ').next().unwrap()).eq(parts),
        "{limits}"
    );
    for line in limits.lines() {
        let (part, seconds) = line.split_once(' ').expect("a part and its seconds");
        let seconds: u32 = seconds.parse().expect("seconds");
        assert!((60..=540).contains(&seconds), "{part} may take {seconds} s");
    }
}

#[test]
fn the_run_of_the_night_has_parts_and_each_leaves_its_result() {
    let (well, parts) = asked(".ci/nightly", &["list"]);
    let parts: Vec<&str> = parts.lines().collect();
    assert!(well && parts.len() >= 15, "{parts:?}");
    for part in ["targets", "seeds", "cuda", "nvrtc", "mutations/1", "mutations/8", "benches"] {
        assert!(parts.contains(&part), "{part} is no part of {parts:?}");
    }
    let (well, said) = asked(".ci/nightly", &["no-part"]);
    assert!(!well && said.contains("there is no part no-part"), "{said}");
    let left = root().join("target/nightly/no-part");
    let text = std::fs::read_to_string(&left).expect("a result");
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in\n{text}")).trim().to_owned()
    };
    assert_eq!((line("part"), line("status")), ("no-part".to_owned(), "2".to_owned()));
    assert!(
        line("commit").len() >= 40
            && line("date").ends_with('Z')
            && line("seconds").parse::<u32>().is_ok()
    );
    assert!(text.contains("there is no part no-part"), "its last lines:\n{text}");
    for file in [left.clone(), left.with_extension("log")] {
        std::fs::remove_file(file).expect("it was made");
    }
}

#[test]
fn contributing_lists_each_part_of_the_run_of_the_night() {
    let (well, parts) = asked(".ci/nightly", &["list"]);
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    assert!(well && !parts.is_empty());
    for part in parts.lines() {
        let name = part.split('/').next().expect("a name");
        let is_there = |text: String| page.lines().any(|line| line.contains(&text));
        let row = is_there(format!("`{name}`")) || is_there(format!("| `{name}/1`"));
        assert!(row, "CONTRIBUTING.md does not list {name}");
    }
}
