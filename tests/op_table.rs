//! The book's table of ops and modules, and the table on the page of `TensorFuture`, have every op
//! that the sources offer, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use support::op_names::{FEATURES, Names, is_beside, table};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("")
}

/// The methods of the rows of the op tables.
fn rows_of_the_table() -> Names {
    futensor::rows::all().into_iter().map(|row| row.name.to_string()).collect()
}

/// The files of a folder and of the folders in it.
fn collect(folder: &Path, to: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => collect(&path, to),
            false => to.push(path),
        }
    }
}

/// Public functions of `src/tensor/` and `src/tensor/methods/` that return values to come, on
/// values and devices.
fn functions() -> Names {
    // On and off the tape, and what is not an op of its own.
    const NO_OPS: &[&str] = &[
        "requires_grad",
        "stop_gradient",
        "into_future_value",
        "sample",
        "log_prob",
        "entropy",
        "custom",
        "custom_fn",
        "custom_owned",
        "value",
    ];
    let mut found = Names::new();
    let mut files = Vec::new();
    for folder in ["methods", "creation", "chance"] {
        collect(&root().join("src/tensor").join(folder), &mut files);
    }
    let beside = fs::read_dir(root().join("src/tensor")).expect("the sources");
    files.extend(beside.map(|entry| entry.expect("an entry").path()));
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let source = fs::read_to_string(path).expect("a source file");
        let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        for (at, _) in source.match_indices("pub fn ") {
            let rest = &source[at + "pub fn ".len()..];
            let name = word(rest);
            let signature = rest.split_once('{').map_or(rest, |(signature, _)| signature);
            let futures =
                ["-> TensorFuture", "-> Vec<TensorFuture>", "-> (TensorFuture", "-> Later"];
            if !name.is_empty()
                && futures.iter().any(|f| signature.contains(f))
                && !NO_OPS.contains(&name)
            {
                found.insert(name.to_string());
            }
        }
    }
    found
}

/// Forms of an op that is there go without saying.
fn without_forms(names: Names) -> Names {
    let is_form = |name: &str| {
        let base = ["_keepdim", "_all", "_dtype"].iter().find_map(|form| name.strip_suffix(form));
        base.is_some_and(|base| names.contains(base))
    };
    names.iter().filter(|name| !is_form(name)).cloned().collect()
}

/// What a module makes public, but for the names given.
fn exported(path: &str, but: &[&str]) -> Names {
    let source = text(path);
    let mut found = Names::new();
    for statement in
        source.split(';').filter_map(|s| s.trim_start().split_once("pub use ").map(|(_, s)| s))
    {
        let list = statement.rsplit("::").next().unwrap_or("").trim_matches(['{', '}', ' ', '\n']);
        let names =
            list.split(',').map(str::trim).filter(|n| n.starts_with(|c: char| c.is_uppercase()));
        found.extend(names.filter(|n| !but.contains(n)).map(str::to_string));
    }
    found
}

#[test]
fn the_table_has_every_op_and_module_and_nothing_else() {
    let mut ops = rows_of_the_table();
    assert!(
        ops.contains("exp") && ops.contains("bitwise_xor") && ops.contains("argmin"),
        "{ops:?}"
    );
    ops.extend(functions());
    assert!(ops.contains("conv2d") && ops.contains("zeros") && ops.contains("cat"), "{ops:?}");
    let ops = without_forms(ops);
    let modules = exported(
        "src/nn/mod.rs",
        &["Module", "Mode", "Part", "Parameter", "Summary", "RecurrentOptions"],
    );
    assert!(modules.contains("Linear") && modules.contains("Sequential"), "{modules:?}");
    let beside = [
        "Optimizer",
        "State",
        "Step",
        "Update",
        "Constant",
        "Cosine",
        "Schedule",
        "StepDecay",
        "Warmup",
    ];
    let optimisers = exported("src/optim/mod.rs", &beside);

    let rows = table();
    let said = |wanted: &dyn Fn(&str) -> bool| -> Names {
        rows.iter()
            .filter(|(group, _)| wanted(group))
            .flat_map(|(_, names)| names.clone())
            .collect()
    };
    let compare = |what: &str, said: Names, there: &Names| {
        let missing: Vec<&String> = there.difference(&said).collect();
        let invented: Vec<&String> = said.difference(there).collect();
        assert!(missing.is_empty(), "{what} that are not in the table: {missing:?}");
        assert!(invented.is_empty(), "{what} that are not there: {invented:?}");
    };
    let (nn, optim) = (|g: &str| g.contains("`nn`"), |g: &str| g.contains("`optim`"));
    compare("ops", said(&|g| !is_beside(g)), &ops);
    compare("modules", said(&nn), &modules);
    compare("optimisers", said(&optim), &optimisers);
    for feature in FEATURES {
        let of_feature = |g: &str| g.contains(&format!("`{feature}`"));
        compare(feature, said(&of_feature), &methods_of(&format!("src/{feature}")));
    }
    let names = rows.iter().map(|(_, names)| names.len()).sum::<usize>();
    assert_eq!(names, said(&|_| true).len(), "a name is there twice");
}

/// The families of methods in the table on the page of `TensorFuture`.
fn families() -> Vec<Names> {
    let source = text("src/tensor/future/families.rs");
    let rows = source.split_once("families! {").and_then(|(_, rest)| rest.split_once('}'));
    let (rows, _) = rows.expect("the rows of the table");
    let names = |row: &str| -> Option<Names> {
        let (_, names) = row.split_once("\":")?;
        Some(names.split([' ', ',', '\n']).filter(|n| !n.is_empty()).map(str::to_string).collect())
    };
    rows.split(';').filter_map(names).collect()
}

/// Public methods of values in the sources, but for the rows of the op tables.
fn methods() -> Names {
    // With a feature only.
    let mut found = methods_of("src/tensor");
    found.remove("to_ndarray");
    found
}

/// Public methods of values in a folder.
fn methods_of(folder: &str) -> Names {
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    let mut found = Names::new();
    for path in files {
        let source = fs::read_to_string(path).expect("a source file");
        for block in source.split("\nimpl TensorFuture {").skip(1) {
            let block = block.split("\n}\n").next().unwrap_or("");
            for rest in block.split("\n    pub fn ").skip(1) {
                let (name, arguments) = (word(rest), rest.split(')').next().unwrap_or(""));
                if arguments.contains("self") {
                    found.insert(name.to_string());
                }
            }
        }
    }
    found
}

/// The page of `TensorFuture` lists its methods by family, in the families of the book's table.
#[test]
fn the_page_of_a_value_has_a_table_of_its_methods_by_family() {
    let families = families();
    for (group, names) in table() {
        if !is_beside(&group) && group != "creation" {
            assert!(families.contains(&names), "{group} is another family on the page: {names:?}");
        }
    }
    let mut all = rows_of_the_table();
    all.extend(methods());
    assert!(all.contains("wait_to_read") && all.contains("conv2d"), "{all:?}");
    all.extend(["cat", "stack", "meshgrid", "einsum"].map(str::to_string));
    let all = without_forms(all);
    let listed: Names = families.iter().flatten().cloned().collect();
    let missing: Vec<&String> = all.difference(&listed).collect();
    let invented: Vec<&String> = listed.difference(&all).collect();
    assert!(missing.is_empty(), "methods that the page does not list: {missing:?}");
    assert!(invented.is_empty(), "the page lists what is not there: {invented:?}");
    assert_eq!(families.iter().map(Names::len).sum::<usize>(), listed.len(), "one is there twice");
}

/// The files of a folder's modules in the order of their declarations.
fn in_order(folder: &str) -> Vec<String> {
    let list = text(&format!("{folder}/mod.rs"));
    let module = |line: &str| {
        let name = line.split_once("mod ")?.1.strip_suffix(';')?;
        let inner = format!("{folder}/{name}");
        Some(match root().join(&inner).is_dir() {
            true => in_order(&inner),
            false => vec![text(&format!("{inner}.rs"))],
        })
    };
    list.lines().filter_map(module).flatten().collect()
}

/// rustdoc shows the methods of a type in the order of their modules.
#[test]
fn the_page_of_a_value_has_the_ops_in_the_order_of_the_table() {
    let files = in_order("src/tensor/methods");
    assert!(files.len() > 15, "the test does not see the modules");
    let mut reached = 0;
    for (group, names) in table() {
        // Rows of the op table are nowhere by name, and creation is another page; options have `mut
        // self`.
        let is_in = |file: &String, name: &String| {
            let method =
                file.split_once(&format!("pub fn {name}(")).map(|(_, rest)| rest.trim_start());
            method.is_some_and(|rest| rest.starts_with("&self") || rest.starts_with("self"))
        };
        let at = |name: &String| files.iter().position(|file| is_in(file, name));
        let places: BTreeSet<usize> = names.iter().filter_map(at).collect();
        assert!(
            places.first().is_none_or(|first| *first >= reached),
            "{group} comes too early on the page"
        );
        reached = places.last().map_or(reached, |last| *last);
    }
    assert!(reached + 1 == files.len(), "the table ends before the page does");
}

/// Ops that no sweep of speed measures, and why.
const NOT_SWEPT: &[(&str, &[&str])] = &[
    (
        "a view, or one element: nothing is computed",
        &[
            "zeros",
            "ones",
            "full",
            "zeros_like",
            "ones_like",
            "full_like",
            "reshape",
            "flatten",
            "t",
            "unsqueeze",
            "squeeze",
            "movedim",
            "unflatten",
            "unbind",
            "meshgrid",
            "diagonal",
        ],
    ),
    ("values from outside", &["from_vec", "from_slice", "from_pinned", "from_future", "to_device"]),
    (
        "numbers by chance: in `benches/peers/run`",
        &[
            "rand",
            "randn",
            "rand_like",
            "randn_like",
            "randint",
            "randperm",
            "uniform",
            "normal",
            "exponential",
            "gamma",
            "bernoulli",
            "multinomial",
            "dropout",
            "dropout_with",
        ],
    ),
    (
        "a form of an op that is swept",
        &[
            "eye_diagonal",
            "cumsum_with",
            "cumprod_with",
            "max_initial",
            "min_initial",
            "sort",
            "split_with_sizes",
            "layer_norm_weighted",
            "layer_norm_plain",
            "rms_norm_plain",
            "batch_norm_train",
            "max_pool1d",
            "max_pool3d",
        ],
    ),
    (
        "operands that the sweep cannot make: shares, and lengths",
        &["binary_cross_entropy", "ctc_loss"],
    ),
    ("PyTorch has none", &["paged_attention", "rope", "top_p", "categorical"]),
];

/// The cases of the sweep name ops as the reference cases do.
fn swept() -> Names {
    let cases = text("benches/peers/sweep/cases.jsonl");
    let op = |line: &str| {
        let name = line.split_once("\"op\": \"")?.1.split('"').next()?;
        Some(match name {
            "cast" => "to_dtype".to_owned(),
            "where" => "where_cond".to_owned(),
            _ => name.to_owned(),
        })
    };
    let found: Names = cases.lines().filter_map(op).collect();
    assert_eq!(cases.lines().filter_map(op).count(), cases.lines().count(), "a line without an op");
    found
}

#[test]
fn the_sweep_of_speed_has_every_op() {
    let ops: Names = table()
        .into_iter()
        .filter(|(group, _)| !is_beside(group))
        .flat_map(|(_, names)| names)
        .collect();
    let left: Names = NOT_SWEPT.iter().flat_map(|(_, ops)| *ops).map(|op| op.to_string()).collect();
    let swept = swept();
    let forgotten: Vec<&String> =
        ops.iter().filter(|op| !swept.contains(*op) && !left.contains(*op)).collect();
    assert!(forgotten.is_empty(), "no case in benches/peers/sweep: {forgotten:?}");
    let stale: Vec<&String> =
        left.iter().filter(|op| swept.contains(*op) || !ops.contains(*op)).collect();
    assert!(stale.is_empty(), "left out, and swept or gone: {stale:?}");
}
