//! The house stays tidy: imports run down only, `graph/` knows no threads, `unsafe` is where it is expected
//! and says why, and files can be read in one sitting.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the top; each may use itself and what is below.
const LAYERS: [(&str, &[&str]); 12] = [
    ("train", &["train"]),
    ("serve", &["serve"]),
    ("optim", &["optim"]),
    ("nn", &["nn"]),
    ("data", &["data", "safetensors"]),
    ("tensor", &["tensor"]),
    ("ops", &["ops"]),
    ("engine", &["engine"]),
    ("backend", &["backend"]),
    ("kernels", &["kernels"]),
    ("graph", &["graph"]),
    ("ground", &["op", "dtype", "shape", "error", "guard", "sync", "view", "blocks", "counted", "completion"]),
];

/// Where unsafe code may be.
const UNSAFE: &[&str] = &[
    "backend/cpu/crew.rs",
    "backend/cpu/memory.rs",
    "backend/cuda/background.rs",
    "backend/cuda/blas.rs",
    "backend/cuda/compile.rs",
    "backend/cuda/context.rs",
    "backend/cuda/doubt.rs",
    "backend/cuda/gear.rs",
    "backend/cuda/graph.rs",
    "backend/cuda/made.rs",
    "backend/cuda/launch.rs",
    "backend/cuda/memory.rs",
    "backend/cuda/module.rs",
    "backend/cuda/nvtx.rs",
    "backend/cuda/pinned.rs",
    "backend/cuda/probe.rs",
    "backend/cuda/step.rs",
    "backend/cuda/testing.rs",
    "backend/cuda/tests.rs",
    "backend/cuda/upload.rs",
    "backend/host.rs",
    "blocks.rs",
    "completion.rs",
    "counted.rs",
    "engine/cuda/look.rs",
    "engine/cuda/region.rs",
    "engine/cuda/worker/launch.rs",
    "engine/driver.rs",
    "engine/intake.rs",
    "engine/machine.rs",
    "engine/machine/books.rs",
    "engine/machine/queue.rs",
    "engine/machine/take_up.rs",
    "engine/port.rs",
    "engine/record.rs",
    "engine/run.rs",
    "engine/small.rs",
    "graph/launch.rs",
    "graph/node.rs",
    "graph/plan.rs",
    "kernels/cpu/",
    "tensor/creation.rs",
    "tensor/read.rs",
    "tensor/region/trace.rs",
    "view.rs",
];

/// Longer than one sitting, with a reason.
const LONG: &[&str] = &[
    // Tests, one case after the other.
    "kernels/cpu/elementwise/tests.rs",
];
const LINES_MAX: usize = 600;

struct Source {
    /// Relative to `src/`, with slashes.
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("src can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    let read = |path: PathBuf| Source {
        path: path.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/"),
        text: fs::read_to_string(&path).expect("a source file"),
    };
    found.into_iter().map(read).collect()
}

/// The line without its comment. Good enough for Rust that rustfmt has seen.
fn code(line: &str) -> &str {
    match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    }
}

/// The lines of a file that are not in its test modules, with their numbers.
fn shipped(source: &Source) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut out = Vec::new();
    let mut k = 0;
    while k < lines.len() {
        let line = lines[k];
        if line.starts_with("#[cfg(") && line.contains("test") {
            // The item that follows, to its closing brace (or its semicolon).
            k += 1;
            while k < lines.len() && lines[k].starts_with("#[") {
                k += 1;
            }
            if lines.get(k).is_some_and(|l| !l.ends_with(';')) {
                while k < lines.len() && lines[k] != "}" {
                    k += 1;
                }
            }
        } else {
            out.push((k + 1, code(line)));
        }
        k += 1;
    }
    out
}

fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["tests.rs", "testing.rs", "measure.rs"].contains(&name)
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, modules)| modules.contains(&name))
}

fn layer_of_file(path: &str) -> Option<usize> {
    layer_of(path.split('/').next().unwrap_or(path).trim_end_matches(".rs"))
}

/// The first module of each path from the crate's root that a line names: of `crate::a::b`, `a`; of
/// `use crate::{a::B, c}`, `a` and `c`; and of as many `super` as lead there.
fn named_modules(line: &str, depth: usize) -> Vec<String> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut found = Vec::new();
    let mut roots = vec!["crate::".to_string()];
    if depth > 0 {
        roots.push("super::".repeat(depth));
    }
    for root in roots {
        for (at, _) in line.match_indices(&root) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let rest = &line[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(list) => {
                    let mut level = 0;
                    let mut fresh = true;
                    for (i, c) in list.char_indices() {
                        match c {
                            '{' => level += 1,
                            '}' if level == 0 => break,
                            '}' => level -= 1,
                            ',' if level == 0 => fresh = true,
                            ' ' => {}
                            _ if fresh => {
                                found.push(word(&list[i..]));
                                fresh = false;
                            }
                            _ => {}
                        }
                    }
                }
                None => found.push(word(rest)),
            }
        }
    }
    found
}

#[test]
fn imports_run_down_only() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in sources().iter().filter(|s| !is_test(&s.path)) {
        let Some(own) = layer_of_file(&source.path) else {
            assert!(source.path == "lib.rs", "{} belongs to no layer", source.path);
            continue;
        };
        // `mod.rs` is the folder's module; another file is one deeper.
        let parts = source.path.split('/').count();
        let depth = if source.path.ends_with("/mod.rs") { parts - 1 } else { parts };
        for (number, line) in shipped(source) {
            for name in named_modules(line, depth) {
                let Some(used) = layer_of(&name) else { continue };
                seen += 1;
                if used < own {
                    wrong.push(format!(
                        "src/{}:{number}: {} uses {}: {}",
                        source.path,
                        LAYERS[own].0,
                        LAYERS[used].0,
                        line.trim()
                    ));
                }
            }
        }
    }
    assert!(seen > 100, "the test does not see the imports");
    assert!(wrong.is_empty(), "imports run up:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_imports_sees_every_form() {
    assert_eq!(named_modules("use crate::engine::port::Port;", 2), ["engine"]);
    assert_eq!(
        named_modules("use crate::{error::Error, graph::{node::Node, fuse}, ops};", 2),
        ["error", "graph", "ops"]
    );
    assert_eq!(named_modules("    let x = crate::tensor::device();", 2), ["tensor"]);
    assert_eq!(named_modules("use super::super::engine::port;", 2), ["engine"]);
    assert_eq!(named_modules("use super::super::cpu;", 3), [""; 0]);
}

#[test]
fn one_name_from_above_is_used_below_and_only_to_state_a_trait() {
    // Gradient rules are written in the ops that users call, so what they are given has its name in the trait
    // that `graph/` defines. Nothing below `tensor/` may call it, and no other name comes down that way.
    let mut found = Vec::new();
    for source in sources().iter().filter(|s| s.path.starts_with("graph/") && !is_test(&s.path)) {
        for (_, line) in shipped(source) {
            for (at, _) in line.match_indices("crate::") {
                let name: String = line[at + 7..].chars().take_while(|c| c.is_alphanumeric()).collect();
                if name.starts_with(char::is_uppercase) {
                    found.push(format!("{} {name}", source.path));
                }
            }
        }
    }
    assert_eq!(found, ["graph/operation.rs Backward"]);
}

#[test]
fn the_graph_knows_no_threads_and_no_devices() {
    for source in sources().iter().filter(|s| s.path.starts_with("graph/") && !is_test(&s.path)) {
        // What an op from outside is given on a GPU; that it may have a kernel there is all the rest knows of one.
        if source.path == "graph/launch.rs" {
            continue;
        }
        for (number, line) in shipped(source) {
            let known = ["run_cuda", "CudaRun", "has no CUDA kernel"];
            let rest = known.iter().fold(line.to_owned(), |line, known| line.replace(known, "")).to_lowercase();
            for word in ["std::thread", "thread::spawn", "cuda", "gpu", "tokio", "std::time", "instant::"] {
                assert!(!rest.contains(word), "src/{}:{number} names {word}: {line}", source.path);
            }
        }
    }
}

#[test]
fn every_kernel_that_chooses_a_level_is_tested_at_every_level() {
    // A family is a file of `kernels/cpu`, or a folder.
    let family = |path: &str| {
        let name = path.strip_prefix("kernels/cpu/")?.split('/').next()?.trim_end_matches(".rs").to_owned();
        (!["isa", "simd", "testing", "measure"].contains(&&name[..])).then_some(name)
    };
    let (mut chooses, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for source in sources() {
        let Some(family) = family(&source.path) else { continue };
        let shipped = shipped(&source);
        let names = |words: &[&str]| shipped.iter().any(|(_, line)| words.iter().any(|w| line.contains(w)));
        if !is_test(&source.path)
            && names(&["vectorize!(", "at_level(", "multiversion!", "level()", "instances::<"])
        {
            chooses.insert(family.clone());
        }
        if source.text.contains("at_every_level! {") || source.text.contains("Level::available()") {
            tested.insert(family);
        }
    }
    assert!(chooses.len() >= 10, "the test does not see who chooses: {chooses:?}");
    // Elementwise kernels and copies call `stream`; pooling is tried by the reference cases, at every level too.
    tested.extend(["stream", "pool"].map(String::from));
    let untested: Vec<&String> = chooses.difference(&tested).collect();
    assert!(untested.is_empty(), "tested at the widest level alone: {untested:?}");
}

#[test]
fn nothing_knows_an_executor() {
    // But for the one question whether `block_on` stands inside a task of tokio's.
    for source in sources().iter().filter(|s| !is_test(&s.path) && s.path != "tensor/block_on.rs") {
        for (number, line) in shipped(source) {
            for word in ["tokio::", "futures::", "async_std"] {
                assert!(!line.contains(word), "src/{}:{number} names {word}: {line}", source.path);
            }
        }
    }
}

#[test]
fn unsafe_is_where_it_is_expected_and_says_why() {
    let mut wrong = Vec::new();
    let mut reopened = Vec::new();
    for source in &sources() {
        if source.text.contains("allow(unsafe_code)") {
            reopened.push(source.path.clone());
        }
        if is_test(&source.path) {
            continue;
        }
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, line) in shipped(source) {
            let opens = line.contains("unsafe {") || line.contains("unsafe impl");
            if !opens {
                continue;
            }
            // On the line itself, or within the comment and the statement that lead to it.
            let from = number.saturating_sub(25);
            let near = &lines[from..number];
            if !near.iter().any(|l| l.contains("SAFETY")) {
                wrong.push(format!("src/{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    let expected = |path: &String| UNSAFE.iter().any(|u| path == u || u.ends_with('/') && path.starts_with(u));
    let new: Vec<&String> = reopened.iter().filter(|p| !expected(p)).collect();
    assert!(new.is_empty(), "unsafe is reopened in files that are not listed: {new:?}");
    let gone: Vec<&&str> = UNSAFE
        .iter()
        .filter(|u| !reopened.iter().any(|p| p == *u || u.ends_with('/') && p.starts_with(**u)))
        .collect();
    assert!(gone.is_empty(), "listed, and no longer needed: {gone:?}");
    assert!(wrong.is_empty(), "no SAFETY note near:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_read_in_one_sitting() {
    let mut wrong = Vec::new();
    for source in &sources() {
        let lines = source.text.lines().count();
        if lines > LINES_MAX && !LONG.contains(&&source.path[..]) {
            wrong.push(format!("src/{}: {lines} lines", source.path));
        }
    }
    assert!(wrong.is_empty(), "longer than {LINES_MAX} lines:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is() {
    for source in &sources() {
        assert!(source.text.starts_with("//!"), "src/{} does not open with what it is", source.path);
    }
}

/// A paragraph of `tests/mutations/list`: what is broken, and the text that is replaced.
fn mutations() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutations/list");
    let text = fs::read_to_string(path).expect("the list of mutations");
    let mutation = |part: &str| {
        let lines: Vec<&str> = part.lines().filter_map(|line| line.strip_prefix("- ")).collect();
        // A single line is looked for however deep it stands.
        let before = if let [one] = lines[..] { one.trim().to_owned() } else { lines.join("\n") };
        (part.lines().next().unwrap_or_default().trim().to_owned(), before)
    };
    format!("\n{text}").split("\n== ").skip(1).map(mutation).collect()
}

#[test]
fn every_mutation_can_still_be_made() {
    let all = sources();
    for (name, before) in mutations() {
        let found: usize = all.iter().map(|source| source.text.matches(&before).count()).sum();
        assert!(!before.is_empty() && found == 1, "{name}: its text is there {found} times:\n{before}");
    }
    assert!(mutations().len() >= 15, "the test does not see the list");
}
