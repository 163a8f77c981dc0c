//! Words that are said in few places: CUDA's, those of threads, devices and executors, and the
//! names that stand behind the doors of `src/sync`.

use crate::layers::{LAYERS, layer_of_file};
use crate::paths::named_paths;
use crate::source::{shipped, sources};
use std::collections::BTreeSet;

/// Where CUDA may be said outside `cuda/`: the file, what it says (nothing: whatever it likes), and
/// why.
const SAYS_CUDA: &[(&str, &str, &str)] = &[
    ("lib.rs", "", "names the room, and what users have of it"),
    ("op/unary.rs", "", "the table's column of CUDA C"),
    ("op/binary.rs", "", "the same"),
    ("op/scan.rs", "", "the same"),
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
    ("tensor/creation/brought.rs", "#[doc(alias(\"cuda\", \"cpu\", \"to\"))]", "the same"),
];

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
