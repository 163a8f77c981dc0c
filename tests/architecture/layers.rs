//! The layers: imports run down only and in no circle, and what is above or outside is not known
//! below.

use crate::imports::{Import, circles, imports};
use crate::paths::paths_of_use;
use crate::source::{root, shipped, sources, sources_of};
use std::fs;

/// The layers, from the top; each may use itself and what is below, but that nobody else names
/// `cuda`.
pub const LAYERS: [(&str, &[&str]); 17] = [
    // Documentation alone: it may name everything.
    ("book", &["book"]),
    ("train", &["train"]),
    ("serve", &["serve"]),
    ("optim", &["optim"]),
    ("nn", &["nn"]),
    ("ranks", &["ranks"]),
    ("data", &["data", "files", "gguf", "npy", "pth", "safetensors"]),
    ("quant", &["quant"]),
    // Ops that other crates compute.
    ("hosted", &["fft", "hosted", "linalg"]),
    ("cuda", &["cuda"]),
    // The end of the process, as ranks and GPUs have it.
    ("process_end", &["process_end"]),
    // Ops and the tensors they are asked of: an op's gradient rule is written in tensors.
    ("tensor", &["tensor", "ops"]),
    // A device is above the engine, which is given it through the seam.
    ("host", &["host"]),
    ("engine", &["engine"]),
    ("seam", &["backend", "memory"]),
    ("graph", &["graph"]),
    (
        "ground",
        &[
            "op",
            "options",
            "configuration",
            "dtype",
            "float8",
            "shape",
            "format",
            "error",
            "guard",
            "json",
            "sync",
            "room",
            "view",
            "window",
            "concurrent",
            "philox",
        ],
    ),
];

pub fn layer_of_file(path: &str) -> Option<usize> {
    let name = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    LAYERS.iter().position(|(_, modules)| modules.contains(&name))
}

#[test]
fn imports_run_down_only() {
    let all = sources();
    for source in all.iter().filter(|s| !s.is_test && s.path != "lib.rs") {
        assert!(layer_of_file(&source.path).is_some(), "{} belongs to no layer", source.path);
    }
    let all = imports(&all);
    assert!(all.len() > 1000, "the test does not see the imports: {}", all.len());
    let mut wrong = Vec::new();
    for Import { from, line, to, name } in &all {
        let (Some(own), Some(used)) = (layer_of_file(from), layer_of_file(to)) else { continue };
        // The one name from above: see the test below.
        if (&from[..], &name[..]) == ("graph/operation.rs", "crate::Backward") {
            continue;
        }
        if used < own || used != own && LAYERS[used].0 == "cuda" {
            wrong.push(format!(
                "src/{from}:{line}: {} uses {}: {name}",
                LAYERS[own].0, LAYERS[used].0
            ));
        }
    }
    assert!(wrong.is_empty(), "imports run up, or into cuda/:\n{}", wrong.join("\n"));
}

/// The circles of files, as text.
fn circles_as_text(folder: &str, imports: &[Import]) -> String {
    let text = |circle: Vec<&Import>| {
        let mut lines: Vec<String> = circle
            .iter()
            .map(|i| format!("  {folder}/{}:{} -> {}: {}", i.from, i.line, i.to, i.name))
            .collect();
        lines.dedup();
        lines.join("\n")
    };
    circles(imports).into_iter().map(text).collect::<Vec<_>>().join("\n and\n")
}

#[test]
fn imports_run_in_no_circle() {
    let mut all = imports(&sources());
    all.retain(|import| layer_of_file(&import.from) == layer_of_file(&import.to));
    let found = circles_as_text("src", &all);
    assert!(found.is_empty(), "files that import each other:\n{found}");
}

#[test]
fn imports_of_companions_run_in_no_circle() {
    for package in fs::read_dir(root().join("crates")).expect("a folder").flatten() {
        let folder = format!("crates/{}/src", package.file_name().to_string_lossy());
        let all = imports(&sources_of(&folder));
        assert!(all.len() >= 10, "the test does not see the imports of {folder}: {}", all.len());
        let found = circles_as_text(&folder, &all);
        assert!(found.is_empty(), "files that import each other:\n{found}");
    }
}

/// A region installs itself as an interceptor while it traces: an ordinary op calls nothing of it.
#[test]
fn building_a_node_knows_no_regions() {
    let all = imports(&sources());
    let of_build = |import: &&Import| import.from.starts_with("tensor/build");
    assert!(all.iter().filter(of_build).count() > 10, "the test does not see the imports");
    let wrong: Vec<_> =
        all.iter().filter(of_build).filter(|i| i.to.starts_with("tensor/region")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn one_name_from_above_is_used_below_and_only_to_state_a_trait() {
    // Gradient rules are written in the ops that users call, so what they are given has its name in
    // the trait that `graph/` defines. Nothing below `tensor/` may call it, and no other name comes
    // down that way.
    let mut found = Vec::new();
    for source in sources().iter().filter(|s| s.path.starts_with("graph/") && !s.is_test) {
        for (_, line) in shipped(source) {
            for (at, _) in line.match_indices("crate::") {
                let name: String =
                    line[at + 7..].chars().take_while(|c| c.is_alphanumeric()).collect();
                if name.starts_with(char::is_uppercase) {
                    found.push(format!("{} {name}", source.path));
                }
            }
        }
    }
    assert_eq!(found, ["graph/operation.rs Backward"]);
}

#[test]
fn what_users_hold_makes_no_device_and_asks_of_none_what_it_is() {
    // A room opens its devices; what they can do stands in `Port`, or is asked of their `Driver`.
    for source in sources().iter().filter(|s| s.path.starts_with("tensor/") && !s.is_test) {
        for (number, line) in shipped(source) {
            for word in
                ["Opening", "CpuRunner", "SimRunner", "downcast_ref::<Cpu", "host::step", "is_host"]
            {
                assert!(!line.contains(word), "src/{}:{number} names {word}: {line}", source.path);
            }
        }
    }
}

#[test]
fn the_root_has_what_a_normal_program_names() {
    let root = fs::read_to_string(root().join("src/lib.rs")).expect("the root");
    let uses = root.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';'));
    let names: Vec<Vec<String>> = uses.flat_map(paths_of_use).collect();
    assert!(
        (30..=40).contains(&names.len()),
        "{} names: others have modules of their own",
        names.len()
    );
}
