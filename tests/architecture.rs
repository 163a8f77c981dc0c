//! The house stays tidy: imports run down only and in no circle, nothing outside `cuda/` says CUDA,
//! `graph/` knows no threads, `unsafe` is where it is expected and says why, and files can be read
//! in one sitting.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the top; each may use itself and what is below, but that nobody else names
/// `cuda`.
const LAYERS: [(&str, &[&str]); 15] = [
    ("train", &["train"]),
    ("serve", &["serve"]),
    ("optim", &["optim"]),
    ("nn", &["nn"]),
    ("ranks", &["ranks"]),
    ("data", &["data", "files", "gguf", "safetensors"]),
    ("quant", &["quant"]),
    ("cuda", &["cuda"]),
    ("tensor", &["tensor"]),
    ("ops", &["ops"]),
    // A device is above the engine, which is given it through the seam.
    ("host", &["host"]),
    ("engine", &["engine"]),
    ("seam", &["backend", "memory"]),
    ("graph", &["graph"]),
    (
        "ground",
        &[
            "alive",
            "op",
            "options",
            "dtype",
            "shape",
            "format",
            "error",
            "guard",
            "sync",
            "tally",
            "room",
            "view",
            "window",
            "blocks",
            "counted",
            "completion",
            "waiters",
            "philox",
        ],
    ),
];

/// Where CUDA may be said outside `cuda/`: the file, what it says (nothing: whatever it likes), and
/// why.
const SAYS_CUDA: &[(&str, &str, &str)] = &[
    ("lib.rs", "", "names the room, and what users have of it"),
    ("op.rs", "", "the table's column of CUDA C"),
    ("graph/device_run.rs", "", "what an op from outside is given, to bring a kernel of its own"),
    ("graph/operation.rs", "CudaRun", "that op's method is given it"),
    ("graph/operation.rs", "run_cuda", "that op's method"),
    ("graph/refusal.rs", "has no CUDA kernel", "what an op without that method fails with"),
    ("ops/custom.rs", "CudaRun", "stands between that op and the engine"),
    ("ops/custom.rs", "CudaView", "the same"),
    ("ops/custom.rs", "run_cuda", "the same"),
    (
        "nn/module.rs",
        "#[doc(alias(\"cuda\", \"cpu\"))]",
        "PyTorch's name, for who searches the documentation",
    ),
    ("tensor/creation.rs", "#[doc(alias(\"cuda\", \"cpu\"))]", "the same"),
];

/// Where unsafe code may be.
const UNSAFE: &[&str] = &[
    "host/thread_pool.rs",
    "memory.rs",
    "cuda/device/arrival.rs",
    "cuda/device/batch.rs",
    "cuda/device/blas.rs",
    "cuda/device/compile.rs",
    "cuda/device/context.rs",
    "cuda/device/convolution.rs",
    "cuda/device/dnn.rs",
    "cuda/device/driver.rs",
    "cuda/device/graph.rs",
    "cuda/device/lanes.rs",
    "cuda/device/libraries.rs",
    "cuda/device/made.rs",
    "cuda/device/nccl.rs",
    "cuda/device/nvidia.rs",
    "cuda/device/nvtx.rs",
    "cuda/device/peers.rs",
    "cuda/device/pinned.rs",
    "cuda/device/testing.rs",
    "cuda/device/tests.rs",
    "host/step.rs",
    "host/threads.rs",
    "blocks.rs",
    "completion.rs",
    "counted.rs",
    "cuda/exchange.rs",
    "cuda/worker/thread.rs",
    "engine/intake.rs",
    "engine/machine.rs",
    "engine/port.rs",
    "engine/port/fork.rs",
    "engine/port/schedule.rs",
    "engine/port/publish.rs",
    "engine/record.rs",
    "engine/small.rs",
    "engine/step.rs",
    "graph/claim.rs",
    "graph/device_run.rs",
    "graph/node.rs",
    "graph/node/kind.rs",
    "host/kernels/",
    "ranks/driver/mod.rs",
    "ranks/keeper.rs",
    "ranks/mpi/",
    "ranks/secret.rs",
    "tensor/creation.rs",
    "tensor/read.rs",
    "tensor/region/trace.rs",
    "view.rs",
];

const LINES_MAX: usize = 600;

struct Source {
    /// Relative to `src/`, with slashes.
    path: String,
    text: String,
    /// Compiled for tests alone: see [`test_files`].
    is_test: bool,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into(), is_test: false }
    }

    /// The names that lead to its module from the crate's root.
    fn module(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.path.trim_end_matches(".rs").split('/').map(String::from).collect();
        if names.last().is_some_and(|name| name == "mod" || self.path == "lib.rs") {
            names.pop();
        }
        names
    }
}

/// The Rust files below a folder, in order.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All files below `src/`.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let found = files_below(&root);
    let read = |path: PathBuf| {
        let name =
            path.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
        Source::new(&name, &fs::read_to_string(&path).expect("a source file"))
    };
    let mut all: Vec<Source> = found.into_iter().map(read).collect();
    let tests: BTreeSet<String> = all.iter().flat_map(test_files).collect();
    // With what stands in a folder of theirs.
    let beside = |path: &str| tests.iter().any(|of| path.starts_with(&of.replace(".rs", "/")));
    all.iter_mut().for_each(|s| s.is_test = tests.contains(&s.path) || beside(&s.path));
    all
}

/// The files of the modules that this one declares for tests.
fn test_files(source: &Source) -> Vec<String> {
    let folder =
        source.path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (k, line) in lines.iter().enumerate() {
        if !(line.starts_with("#[cfg(") && line.contains("test")) {
            continue;
        }
        let attributes = lines[k..].iter().take_while(|l| l.starts_with("#[")).count();
        let placed = lines[k..k + attributes]
            .iter()
            .find_map(|l| l.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        let item = lines.get(k + attributes).unwrap_or(&"");
        let Some(name) =
            item.strip_suffix(';').and_then(|l| l.rsplit_once("mod ")).map(|(_, name)| name)
        else {
            continue;
        };
        let inside = source.module().iter().map(|part| format!("{part}/")).collect::<String>();
        found.push(
            placed.map_or_else(|| format!("{inside}{name}.rs"), |file| format!("{folder}{file}")),
        );
    }
    found
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

fn layer_of_file(path: &str) -> Option<usize> {
    let name = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    LAYERS.iter().position(|(_, modules)| modules.contains(&name))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of a `use`: of `a::{b, c::{d, e as f}}`, `a::b`, `a::c::d` and `a::c::e`.
fn paths_of_use(tree: &str) -> Vec<Vec<String>> {
    let Some((start, list)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.split("::").map(|name| name.trim().to_owned()).collect()];
    };
    let start: Vec<String> = start
        .split("::")
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let list = list.trim_end().strip_suffix('}').unwrap_or(list);
    let (mut found, mut level, mut from) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => level += 1,
            '}' => level -= 1,
            ',' if level == 0 => {
                let part = &list[from..at];
                from = (at + 1).min(list.len());
                if !part.trim().is_empty() {
                    found.extend(
                        paths_of_use(part).into_iter().map(|path| [&start[..], &path].concat()),
                    );
                }
            }
            _ => {}
        }
    }
    found
}

/// The paths that stand in a line of code: at least two names, and no macro's `$crate`.
fn paths_of_line(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = line;
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        if !is_word(c) || matches!(before, Some(':' | '$')) {
            // What follows `::` or `$` is no beginning: the whole word goes by.
            let skip: usize = match rest.find(|c| !is_word(c)) {
                Some(0) | None => c.len_utf8(),
                Some(end) => end,
            };
            before = rest[..skip].chars().next_back();
            rest = &rest[skip..];
            continue;
        }
        let mut path = Vec::new();
        loop {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            path.push(rest[..end].to_owned());
            rest = &rest[end..];
            match rest.strip_prefix("::").filter(|after| after.starts_with(is_word)) {
                Some(after) => rest = after,
                None => break,
            }
        }
        before = None;
        if path.len() > 1 {
            found.push(path);
        }
    }
    found
}

/// A path in a file: the line, the modules inside the file around it, and its names.
type Named = (usize, Vec<String>, Vec<String>);

/// The paths in a file's code, in `use` lines and elsewhere.
fn named_paths(source: &Source) -> Vec<Named> {
    let mut found = Vec::new();
    // The modules that are open, with the line that closes each.
    let mut inside: Vec<(String, String)> = Vec::new();
    let mut lines = shipped(source).into_iter();
    while let Some((number, line)) = lines.next() {
        let item = line.trim_start();
        let indent = &line[..line.len() - item.len()];
        let names = |inside: &[(String, String)]| {
            inside.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let bare = match item.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => {
                rest.split_once(") ").map_or(item, |(_, rest)| rest)
            }
            Some(rest) => rest.trim_start(),
            None => item,
        };
        if inside.last().is_some_and(|(_, end)| line.trim_end() == end) {
            inside.pop();
        } else if let Some(name) =
            bare.strip_prefix("mod ").and_then(|rest| rest.trim_end().strip_suffix(" {"))
        {
            inside.push((name.to_owned(), format!("{indent}}}")));
        } else if let Some(tree) = bare.strip_prefix("use ") {
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some((_, more)) = lines.next() else { break };
                tree.push(' ');
                tree.push_str(more.trim());
            }
            let tree = tree.split(';').next().unwrap_or_default();
            found.extend(paths_of_use(tree).into_iter().map(|path| (number, names(&inside), path)));
        } else {
            found
                .extend(paths_of_line(line).into_iter().map(|path| (number, names(&inside), path)));
        }
    }
    found
}

/// One file that names something of another.
#[derive(Debug, PartialEq)]
struct Import {
    from: String,
    line: usize,
    to: String,
    /// The name itself.
    name: String,
}

/// What the files import from each other. What a folder's `mod.rs` names of its own files is none:
/// it gathers them, and they may import it. What lies in the crate's root is nobody's.
fn imports(sources: &[Source]) -> Vec<Import> {
    let shipped: Vec<&Source> = sources.iter().filter(|s| !s.is_test).collect();
    let files: BTreeMap<Vec<String>, &str> =
        shipped.iter().map(|s| (s.module(), &s.path[..])).collect();
    let mut found = Vec::new();
    for source in shipped {
        let own = source.module();
        for (line, inside, path) in named_paths(source) {
            let mut here = [&own[..], &inside].concat();
            let mut rest = &path[..];
            match &path[0][..] {
                "crate" => (here, rest) = (Vec::new(), &path[1..]),
                "self" => rest = &path[1..],
                "super" => {
                    while rest.first().is_some_and(|name| name == "super") && here.pop().is_some() {
                        rest = &rest[1..];
                    }
                }
                name => {
                    if !files.contains_key(&[&here[..], &[name.to_owned()]].concat()) {
                        continue;
                    }
                }
            }
            here.extend_from_slice(rest);
            // The longest beginning that is a file's module: what follows is a name in it.
            let to =
                (1..=here.len()).rev().find_map(|k| Some((&here[..k], *files.get(&here[..k])?)));
            let Some((module, to)) = to else { continue };
            let gathers = source.path.ends_with("/mod.rs") && module.starts_with(&own);
            if to != source.path && !gathers && source.path != "lib.rs" {
                found.push(Import {
                    from: source.path.clone(),
                    line,
                    to: to.into(),
                    name: path.join("::"),
                });
            }
        }
    }
    found
}

/// Files that import each other, round whatever corners: each circle with what it is made of.
fn circles(imports: &[Import]) -> Vec<Vec<&Import>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().insert(&import.to);
    }
    let reach = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(file) = open.pop() {
            if seen.insert(file) {
                open.extend(next.get(file).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reach(file))).collect();
    let mut found: Vec<Vec<&Import>> = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for (file, ahead) in &reached {
        if !ahead.contains(file) || done.contains(file) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|ahead| ahead.contains(file));
        let circle: BTreeSet<&str> = ahead.iter().filter(back).copied().collect();
        found.push(
            imports
                .iter()
                .filter(|i| circle.contains(&i.from[..]) && circle.contains(&i.to[..]))
                .collect(),
        );
        done.extend(circle);
    }
    found
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
        if used < own || used != own && LAYERS[used].0 == "cuda" {
            wrong.push(format!(
                "src/{from}:{line}: {} uses {}: {name}",
                LAYERS[own].0, LAYERS[used].0
            ));
        }
    }
    assert!(wrong.is_empty(), "imports run up, or into cuda/:\n{}", wrong.join("\n"));
}

#[test]
fn imports_run_in_no_circle() {
    let mut all = imports(&sources());
    all.retain(|import| layer_of_file(&import.from) == layer_of_file(&import.to));
    let text = |circle: Vec<&Import>| {
        let mut lines: Vec<String> = circle
            .iter()
            .map(|i| format!("  src/{}:{} -> {}: {}", i.from, i.line, i.to, i.name))
            .collect();
        lines.dedup();
        lines.join("\n")
    };
    let found: Vec<String> = circles(&all).into_iter().map(text).collect();
    assert!(found.is_empty(), "files that import each other:\n{}", found.join("\n and\n"));
}

#[test]
fn the_reader_of_imports_sees_every_form() {
    let text = "
use crate::{
    b::Two,
    a::{x::{self, One as Uno}, z},
};
pub(crate) use super::z::*;
use std::fmt;
mod inner {
    use super::super::x;
    use super::own;
}
// crate::b::comment
#[cfg(test)]
mod tests {
    use crate::b::only_for_tests;
}
fn f(x: &crate::b::Two) -> Vec<super::x::One> {
    $crate::b::of_a_macro();
    self::own(other::crate::b, x::<u8>)
}
";
    let files = [
        Source::new("lib.rs", "use a::x;"),
        Source::new("a/mod.rs", "mod x;\nuse x::One;\nuse crate::b::Two;"),
        Source::new("a/x.rs", ""),
        Source::new("a/y.rs", text),
        Source::new("a/z.rs", "fn f() -> super::Gathered { deep::f() }"),
        Source::new("a/z/deep.rs", "use crate::a::x::One;"),
        Source::new("b.rs", ""),
    ];
    let found: Vec<(String, usize, String)> = imports(&files)
        .into_iter()
        .map(|i| (format!("{} {}", i.from, i.to), i.line, i.name))
        .collect();
    let expected = [
        ("a/mod.rs b.rs", 3, "crate::b::Two"),
        ("a/y.rs b.rs", 2, "crate::b::Two"),
        ("a/y.rs a/x.rs", 2, "crate::a::x::self"),
        ("a/y.rs a/x.rs", 2, "crate::a::x::One"),
        ("a/y.rs a/z.rs", 2, "crate::a::z"),
        ("a/y.rs a/z.rs", 6, "super::z::*"),
        ("a/y.rs a/x.rs", 9, "super::super::x"),
        ("a/y.rs b.rs", 17, "crate::b::Two"),
        ("a/y.rs a/x.rs", 17, "super::x::One"),
        ("a/z.rs a/mod.rs", 1, "super::Gathered"),
        ("a/z.rs a/z/deep.rs", 1, "deep::f"),
        ("a/z/deep.rs a/x.rs", 1, "crate::a::x::One"),
    ];
    assert_eq!(
        found,
        expected.map(|(files, line, name)| (files.to_owned(), line, name.to_owned()))
    );
}

#[test]
fn the_reader_of_imports_sees_circles() {
    let import = |from: &str, to: &str| Import {
        from: from.into(),
        line: 1,
        to: to.into(),
        name: to.into(),
    };
    let all = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f")];
    let all = all.map(|(from, to)| import(from, to));
    let pairs = |circle: &Vec<&Import>| {
        circle.iter().map(|i| format!("{}{}", i.from, i.to)).collect::<Vec<_>>()
    };
    let found: Vec<Vec<String>> = circles(&all).iter().map(pairs).collect();
    assert_eq!(found, [vec!["ab", "bc", "ca"], vec!["de", "ed"]]);
    assert!(circles(&all[3..5]).is_empty());
}

#[test]
fn files_of_tests_are_those_that_are_declared_so() {
    let declared = |path: &str, text: &str| test_files(&Source::new(path, text));
    assert_eq!(declared("a/mod.rs", "#[cfg(test)]\nmod tests;\nmod own;"), ["a/tests.rs"]);
    assert_eq!(
        declared("a/b.rs", "#[cfg(all(test, not(loom)))]\n#[path = \"b_tests.rs\"]\npub mod t;"),
        ["a/b_tests.rs"]
    );
    assert_eq!(
        declared("b.rs", "#[cfg(test)]\nmod tests {\n}\n#[cfg(test)]\nmod more;"),
        ["b/more.rs"]
    );
    let all = sources();
    let known: BTreeSet<&String> = all.iter().map(|s| &s.path).collect();
    let lost: Vec<String> =
        all.iter().flat_map(test_files).filter(|path| !known.contains(path)).collect();
    assert!(lost.is_empty(), "declared, and not there: {lost:?}");
}

#[test]
fn nothing_outside_cuda_says_cuda() {
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::new());
    for source in sources().iter().filter(|s| !s.is_test && !s.path.starts_with("cuda/")) {
        for (number, line) in shipped(source) {
            let mut rest = line.to_owned();
            for (k, (path, word, _)) in SAYS_CUDA.iter().enumerate() {
                let known = if word.is_empty() { line } else { *word };
                if *path == source.path
                    && known.to_lowercase().contains("cuda")
                    && rest.contains(known)
                {
                    rest = rest.replace(known, "");
                    needed.insert(k);
                }
            }
            if rest.to_lowercase().contains("cuda") {
                wrong.push(format!("src/{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    let gone: Vec<_> =
        (0..SAYS_CUDA.len()).filter(|k| !needed.contains(k)).map(|k| SAYS_CUDA[k]).collect();
    assert!(gone.is_empty(), "listed, and no longer needed: {gone:?}");
    assert!(wrong.is_empty(), "says CUDA:\n{}", wrong.join("\n"));
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
fn the_graph_knows_no_threads_and_no_devices() {
    for source in sources().iter().filter(|s| s.path.starts_with("graph/") && !s.is_test) {
        // What an op from outside is given on a GPU; that it may have a kernel there is all the
        // rest knows of one.
        if source.path == "graph/device_run.rs" {
            continue;
        }
        for (number, line) in shipped(source) {
            let known = ["run_cuda", "CudaRun", "has no CUDA kernel"];
            let rest = known
                .iter()
                .fold(line.to_owned(), |line, known| line.replace(known, ""))
                .to_lowercase();
            for word in
                ["std::thread", "thread::spawn", "cuda", "gpu", "tokio", "std::time", "instant::"]
            {
                assert!(!rest.contains(word), "src/{}:{number} names {word}: {line}", source.path);
            }
        }
    }
}

/// Where what is below the doors of `sync/` names `std`'s locks, threads or clock all the same: the
/// file, the name, and why.
const PAST_THE_DOORS: &[(&str, &str, &str)] = &[
    (
        "host/kernels/simd.rs",
        "std::sync::atomic::AtomicU8",
        "what the machine has: found once, whoever looks first",
    ),
    ("host/kernels/simd.rs", "std::sync::atomic::Ordering", "the same"),
];

#[test]
fn atomics_locks_threads_and_time_are_named_through_their_doors_alone() {
    let below = LAYERS.iter().position(|(name, _)| *name == "tensor").expect("a layer");
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| !s.is_test && !s.path.starts_with("sync/")) {
        if layer_of_file(&source.path).is_none_or(|layer| layer < below)
            || source.path == "host/kernels/testing.rs"
        {
            continue;
        }
        let door = source.text.contains("threads::thread_local;")
            || source.text.contains(" thread_local}");
        for (number, line) in shipped(source) {
            // The macro needs no path: where the door's is not imported, it is `std`'s.
            if line.contains("thread_local!") && !door {
                wrong.push(format!("src/{}:{number}: thread_local!", source.path));
            }
        }
        for (number, _, path) in named_paths(source) {
            let name = path.join("::");
            let past = match path.iter().map(|name| &name[..]).collect::<Vec<_>>()[..] {
                ["std", "sync", "Arc" | "Weak", ..] | ["std", "time", "Duration", ..] => false,
                ["std", "thread_local"] | ["std", "hint", "spin_loop"] => true,
                ["std", "sync" | "thread" | "time", ..]
                | ["libc", "futex" | "sched_yield" | "nanosleep"] => true,
                ["loom" | "shuttle", ..] => true,
                _ => false,
            };
            match PAST_THE_DOORS
                .iter()
                .find(|(file, known, _)| *file == source.path && *known == name)
            {
                Some(listed) if past => drop(seen.insert(listed)),
                _ if past => wrong.push(format!("src/{}:{number}: {name}", source.path)),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "past the doors of src/sync:\n{}", wrong.join("\n"));
    let gone: Vec<_> = PAST_THE_DOORS.iter().filter(|listed| !seen.contains(listed)).collect();
    assert!(gone.is_empty(), "listed, and no longer needed: {gone:?}");
}

#[test]
fn every_kernel_that_chooses_a_level_is_tested_at_every_level() {
    // A family is a file of `host/kernels`, or a folder.
    let family = |path: &str| {
        let name = path
            .strip_prefix("host/kernels/")?
            .split('/')
            .next()?
            .trim_end_matches(".rs")
            .to_owned();
        (!["isa", "simd", "testing"].contains(&&name[..])).then_some(name)
    };
    let (mut chooses, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for source in sources() {
        let Some(family) = family(&source.path) else { continue };
        let shipped = shipped(&source);
        let names =
            |words: &[&str]| shipped.iter().any(|(_, line)| words.iter().any(|w| line.contains(w)));
        if !source.is_test
            && names(&["vectorize!(", "at_level(", "multiversion!", "level()", "instances::<"])
        {
            chooses.insert(family.clone());
        }
        if source.text.contains("at_every_level! {") || source.text.contains("Level::available()") {
            tested.insert(family);
        }
    }
    assert!(chooses.len() >= 10, "the test does not see who chooses: {chooses:?}");
    // Elementwise kernels and copies call `stream`; pooling is tried by the reference cases, at
    // every level too.
    tested.extend(["stream", "pool"].map(String::from));
    let untested: Vec<&String> = chooses.difference(&tested).collect();
    assert!(untested.is_empty(), "tested at the widest level alone: {untested:?}");
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

/// A call of a symbol that the driver lacks is a panic inside cudarc.
#[test]
fn every_call_of_the_driver_is_on_the_list_that_a_device_looks_through_first() {
    let sources = sources();
    let driver =
        sources.iter().find(|s| s.path == "cuda/device/driver.rs").expect("the list is there");
    let called: BTreeSet<&str> = sources
        .iter()
        .filter(|source| source.path.starts_with("cuda/"))
        .flat_map(|source| source.text.split("sys::cu").skip(1))
        .map(|rest| &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())])
        .filter(|call| call.starts_with(char::is_uppercase))
        .collect();
    assert!(called.len() > 40, "{called:?}");
    let missing: Vec<_> = called
        .iter()
        .filter(|call| !driver.text.contains(&format!("    \"cu{call}\",\n")))
        .collect();
    assert!(missing.is_empty(), "not on the list: {missing:?}");
}

#[test]
fn nothing_knows_an_executor() {
    // But for the one question whether `block_on` stands inside a task of tokio's.
    for source in sources().iter().filter(|s| !s.is_test && s.path != "tensor/block_on.rs") {
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
        if source.is_test {
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
    let expected =
        |path: &String| UNSAFE.iter().any(|u| path == u || u.ends_with('/') && path.starts_with(u));
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
fn the_root_has_what_a_normal_program_names() {
    let root = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/lib.rs"))
        .expect("the root");
    let uses = root.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';'));
    let names: Vec<Vec<String>> = uses.flat_map(paths_of_use).collect();
    assert!(
        (30..=40).contains(&names.len()),
        "{} names: others have modules of their own",
        names.len()
    );
}

#[test]
fn files_are_read_in_one_sitting() {
    let mut wrong = Vec::new();
    for source in &sources() {
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("src/{}: {lines} lines", source.path));
        }
    }
    assert!(wrong.is_empty(), "longer than {LINES_MAX} lines:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is() {
    for source in &sources() {
        assert!(
            source.text.starts_with("//!"),
            "src/{} does not open with what it is",
            source.path
        );
    }
}

/// A paragraph of `tests/mutations/list`: what is broken, and the text that is replaced.
fn mutations() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations/list");
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = files_below(&root.join("src"));
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
        let found: usize = all.iter().map(|text| text.matches(&before).count()).sum();
        assert!(
            !before.is_empty() && found == 1,
            "{name}: its text is there {found} times:\n{before}"
        );
    }
    assert!(mutations().len() >= 15, "the test does not see the list");
}
