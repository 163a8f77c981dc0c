//! `unsafe` is where it is expected, and says why.

use crate::source::{shipped, sources};

/// Where unsafe code may be.
const UNSAFE: &[&str] = &[
    "concurrent/free_lists.rs",
    "concurrent/completion.rs",
    "concurrent/counted.rs",
    "cuda/device/driver_context.rs",
    "cuda/device/graph/executable.rs",
    "cuda/device/graph/launch.rs",
    "cuda/device/lanes.rs",
    "cuda/device/launch/batch.rs",
    "cuda/device/libraries/blas.rs",
    "cuda/device/libraries/convolutions.rs",
    "cuda/device/libraries/dnn.rs",
    "cuda/device/libraries/driver.rs",
    "cuda/device/libraries/nccl.rs",
    "cuda/device/libraries/nvidia.rs",
    "cuda/device/libraries/nvtx.rs",
    "cuda/device/libraries/search.rs",
    "cuda/device/memory/chunked.rs",
    "cuda/device/memory/page_locked.rs",
    "cuda/device/memory/pinned.rs",
    "cuda/device/modules/compile.rs",
    "cuda/device/peers.rs",
    "cuda/device/testing.rs",
    "cuda/device/tests/custom.rs",
    "cuda/device/tests/programs.rs",
    "cuda/exchange.rs",
    "cuda/gpu.rs",
    "cuda/worker/thread.rs",
    "engine/intake.rs",
    "engine/machine.rs",
    "engine/machine/task_table.rs",
    "engine/port.rs",
    "engine/port/fork.rs",
    "engine/port/publish.rs",
    "engine/port/schedule.rs",
    "engine/record.rs",
    "engine/small.rs",
    "engine/step.rs",
    "graph/claim.rs",
    "graph/device_run.rs",
    "graph/node.rs",
    "graph/node/kind.rs",
    "host/kernels/",
    "host/step.rs",
    "host/thread_pool.rs",
    "host/threads.rs",
    "memory.rs",
    "process_end.rs",
    "ranks/driver/mod.rs",
    "ranks/keeper.rs",
    "ranks/mpi/",
    "ranks/secret.rs",
    "tensor/creation.rs",
    "tensor/creation/dlpack.rs",
    "tensor/creation/pinned.rs",
    "tensor/read.rs",
    "tensor/region/trace.rs",
    "view.rs",
];

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
