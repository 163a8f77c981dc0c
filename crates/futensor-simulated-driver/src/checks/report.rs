//! Findings and counters.
//!
//! A report is one line, "kind: text". Kinds: `race`, `use after free`, `overrun`, `leak`,
//! `misuse`, `kernel` (a fault or misbehaviour inside a kernel), `blocking`, `stall` (a thread that
//! launches calls what may wait for the device while it works), `internal`.

use std::collections::BTreeSet;

/// What work has found while it ran: a kind and a text each.
pub type Findings = Vec<(&'static str, String)>;

/// Reports kept; the rest is only counted.
const KEPT_MAX: usize = 1000;

/// The list of findings, each once.
#[derive(Default)]
pub struct Reports {
    lines: Vec<(&'static str, String)>,
    seen: BTreeSet<String>,
    /// Findings beyond `KEPT_MAX`.
    pub dropped: usize,
}

impl Reports {
    /// Adds a finding, unless the same line is there.
    pub fn add(&mut self, kind: &'static str, text: String) {
        let line = format!("{kind}: {text}");
        if self.seen.contains(&line) {
            return;
        }
        if std::env::var_os("FUTENSOR_SIM_VERBOSE").is_some() {
            eprintln!("simulated driver: {line}");
        }
        if self.lines.len() >= KEPT_MAX {
            self.dropped += 1;
            return;
        }
        self.seen.insert(line);
        self.lines.push((kind, text));
    }

    /// How many findings there are of a kind, or of all kinds.
    pub fn count(&self, kind: Option<&str>) -> usize {
        self.lines.iter().filter(|line| kind.is_none_or(|kind| line.0 == kind)).count()
    }

    /// All findings, one a line.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (kind, line) in &self.lines {
            text += &format!("{kind}: {line}\n");
        }
        if self.dropped > 0 {
            text += &format!("... and {} more\n", self.dropped);
        }
        text
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Reports::default();
    }
}

/// Counters since the last reset; the same layout as `futsim_stats` writes.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Kernels put on a stream, those of a graph at each launch of it included, and library calls
    /// (gemm).
    pub launches: u64,
    /// Copies put on a stream.
    pub copies: u64,
    /// Fills put on a stream.
    pub fills: u64,
    /// Device allocations asked for and granted.
    pub allocations: u64,
    /// Device allocations given back.
    pub frees: u64,
    /// Device allocations that have not been given back (by a call; the free may still be queued).
    pub live_allocations: u64,
    /// Bytes held by allocations whose free has not run.
    pub live_bytes: u64,
    /// The largest `live_bytes` so far.
    pub peak_bytes: u64,
    /// Pinned host allocations that have not been freed.
    pub live_pinned: u64,
    /// Events made.
    pub events: u64,
    /// Events not destroyed.
    pub live_events: u64,
    /// Events put on a stream.
    pub records: u64,
    /// Calls of `cuStreamWaitEvent`, a dropped one included.
    pub waits: u64,
    /// Calls of `cuEventQuery` and `cuStreamQuery`.
    pub queries: u64,
    /// Calls that wait for the device: synchronisations, pageable copies, synchronous copies and
    /// frees.
    pub blocking_calls: u64,
    /// Streams not destroyed, default streams not counted.
    pub live_streams: u64,
    /// Host functions put on a stream.
    pub host_functions: u64,
    /// Graphs put on a stream.
    pub graph_launches: u64,
    /// Captures that were ended, each a graph.
    pub captures: u64,
    /// Nodes of executable graphs that were given other parameters.
    pub node_updates: u64,
    /// Modules not unloaded.
    pub live_modules: u64,
    /// Graphs and executable graphs not destroyed.
    pub live_graphs: u64,
    /// Items of work that have run.
    pub items_run: u64,
    /// Calls of the driver.
    pub calls: u64,
    /// Pools not destroyed, default ones not counted.
    pub live_pools: u64,
    /// Rights on pools that were given or taken.
    pub accesses: u64,
    /// Handles of cuBLAS and of cuDNN not destroyed.
    pub live_handles: u64,
    /// Calls that tell a handle of cuBLAS its stream, its mode or its workspace.
    pub bindings: u64,
    /// Convolutions of cuDNN put on a stream.
    pub convolutions: u64,
    /// Products of halves put on a stream.
    pub half_products: u64,
    /// Allocations at an address that a pool had kept.
    pub reused: u64,
    /// Events put on a stream that tell the time.
    pub timed_records: u64,
    /// Allocations for which a pool had to reserve more memory, which takes a driver milliseconds.
    pub growths: u64,
}
