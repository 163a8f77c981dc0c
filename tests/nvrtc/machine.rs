//! What NVIDIA's compiler makes of the kernels that most of a program's time goes to, for sm_90: no
//! GPU has to be there to see that a kernel holds too much, or reads less at a time than it did.
//!
//!     cargo test -p futensor-nvrtc machine_code                       # red beyond the bounds
//!     FUTENSOR_MACHINE=write cargo test -p futensor-nvrtc machine_code  # writes them anew
//!
//! `machine.txt` has the bounds, a kernel a line: at most so many registers, bytes of shared
//! memory, 64-bit divisions (each some 70 to 100 instructions) and instructions in all; at least so
//! many bytes in its widest load from global memory, and so many instructions for tensor cores, for
//! the matrices that these take from shared memory (`ldmatrix`), and for copies to there past the
//! registers (`cp.async`). The registers and the shared memory are the assembler's word, the rest
//! is counted in nvdisasm's text.

use crate::catalogue::{binary, flat, unary};
use crate::cuda::kernels::attention::{Result as Made, Team};
use crate::cuda::kernels::{
    Kernel, Operand, Plan, attention, copy, halves, index, matmul, paged, quantized, reduce, scan,
    softmax, sort, window,
};
use crate::dtype::DType::*;
use crate::format::Format;
use crate::op::{BinaryOp, ReduceOp, Scan, ScatterMode, UnaryOp};
use crate::shape::contiguous_strides;
use futensor_nvrtc::{Compiled, Compiler, disassembly};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

/// Of one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Facts {
    registers: u32,
    shared: u32,
    load: u32,
    tensor: u32,
    divisions: u32,
    matrices: u32,
    copies: u32,
    all: u32,
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { registers, shared, load, tensor, divisions, matrices, copies, all } = self;
        write!(f, "{registers:>4} {shared:>6} {load:>3} {tensor:>4} {divisions:>3}")?;
        write!(f, " {matrices:>4} {copies:>3} {all:>5}")
    }
}

impl Facts {
    fn of(line: &str) -> Facts {
        let numbers: Vec<u32> =
            line.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        let [registers, shared, load, tensor, divisions, matrices, copies, all] = numbers[..]
        else {
            panic!("eight numbers: {line}")
        };
        Facts { registers, shared, load, tensor, divisions, matrices, copies, all }
    }

    fn is_within(&self, bounds: &Facts) -> bool {
        self.registers <= bounds.registers
            && self.shared <= bounds.shared
            && self.load >= bounds.load
            && self.tensor >= bounds.tensor
            && self.divisions <= bounds.divisions
            && self.matrices >= bounds.matrices
            && self.copies >= bounds.copies
            && self.all <= bounds.all
    }

    /// Counts an instruction.
    fn add(&mut self, instruction: &str) {
        let mut words = instruction.split_whitespace().filter(|word| !word.starts_with('@'));
        let mut parts = words.next().unwrap_or_default().split('.');
        let op = parts.next().unwrap_or_default();
        let parts: Vec<&str> = parts.collect();
        // What fills up the end does nothing.
        self.all += (op.trim_end_matches(';') != "NOP") as u32;
        // What is `STRONG` is a record that threads share.
        if matches!(op, "LDG" | "LDGSTS") && !parts.contains(&"STRONG") {
            let bytes = |part: &&str| match *part {
                "128" => Some(16),
                "64" => Some(8),
                "U16" | "S16" => Some(2),
                "U8" | "S8" => Some(1),
                _ => None,
            };
            self.load = self.load.max(parts.iter().find_map(bytes).unwrap_or(4));
        }
        self.tensor += matches!(op, "HMMA" | "IMMA" | "DMMA" | "HGMMA" | "IGMMA") as u32;
        self.matrices += (op == "LDSM") as u32;
        self.copies += (op == "LDGSTS") as u32;
        let divides = |call: &str| {
            ["div_s64", "div_u64", "rem_s64", "rem_u64"].iter().any(|d| call.ends_with(d))
        };
        let target = words.next().unwrap_or_default();
        let name = target.trim_matches(|c| "`();".contains(c));
        self.divisions += (op == "CALL" && divides(name)) as u32;
    }
}

/// The families: each kernel with its name.
fn families() -> Vec<(&'static str, Vec<(&'static str, Kernel)>)> {
    fn first(plan: Option<Plan>) -> Kernel {
        plan.expect("a plan").launches[0].kernel.clone()
    }
    let rows = |op, dtype, n: usize| {
        let strides = contiguous_strides(&[100, n]);
        let x = Operand { strides: &strides, align: 16 };
        first(softmax::plan(op, dtype, &[100, n], &[false, true], x, 16, 1e-5))
    };
    let reduced = |op, dtype, over: &[bool]| {
        let strides = contiguous_strides(&[4096, 4096]);
        let x = [Operand { strides: &strides, align: 16 }; 4];
        first(reduce::plan(op, &reduce::identity(dtype), &[4096, 4096], over, &x))
    };
    let sorted = |k| {
        let strides = contiguous_strides(&[3, 5000]);
        let x = Operand { strides: &strides, align: 16 };
        sort::plan(F32, &[3, 5000], 1, x, k, false).expect("a plan").launches
    };
    let attends = |result, dtype, team| {
        Kernel::Attention(attention::Key { result, dtype, mask: None, lengths: false, team })
    };
    let pages = |dtype, cache, heads| {
        let (table, lengths, capped) = (I64, I32, false);
        Kernel::Paged(paged::Key::Spans { dtype, cache, table, lengths, heads, capped })
    };
    let by_halves = |dtype, pieces, work| Kernel::Halves(halves::Key { dtype, pieces, work });
    let norm = softmax::RowOp::LayerNorm { weight: true, bias: true };
    let mut sorts: Vec<_> = sorted(5000).into_iter().map(|l| ("radix sort", l.kernel)).collect();
    sorts.extend(sorted(5).into_iter().map(|l| ("top-k", l.kernel)));
    vec![
        (
            "elementwise",
            vec![
                ("add, f32", flat(&binary(BinaryOp::Add, F32))),
                ("add, bf16", flat(&binary(BinaryOp::Add, BF16))),
                ("gelu, f32", flat(&unary(UnaryOp::Gelu, F32))),
                ("gelu, bf16", flat(&unary(UnaryOp::Gelu, BF16))),
                ("gelu_tanh, bf16", flat(&unary(UnaryOp::GeluTanh, BF16))),
            ],
        ),
        (
            "reductions",
            vec![
                ("sum of rows, f32", reduced(ReduceOp::Sum, F32, &[false, true])),
                ("sum of rows, bf16", reduced(ReduceOp::Sum, BF16, &[false, true])),
                ("sum of columns, f32", reduced(ReduceOp::Sum, F32, &[true, false])),
                ("argmax of rows, f32", reduced(ReduceOp::ArgMax, F32, &[false, true])),
            ],
        ),
        (
            "rows",
            vec![
                ("softmax of 1,024, f32", rows(softmax::RowOp::Softmax, F32, 1024)),
                ("softmax of 1,024, bf16", rows(softmax::RowOp::Softmax, BF16, 1024)),
                ("softmax of 100,000, f32", rows(softmax::RowOp::Softmax, F32, 100_000)),
                ("layer norm of 1,024, f32", rows(norm, F32, 1024)),
                ("layer norm of 1,024, bf16", rows(norm, BF16, 1024)),
            ],
        ),
        (
            "copies",
            vec![
                ("strided, 4 bytes", Kernel::Copy(copy::Key::Strided { size: 4, wide: false })),
                ("transposed, 4 bytes", Kernel::Copy(copy::Key::Transpose { size: 4 })),
                ("transposed, 2 bytes", Kernel::Copy(copy::Key::Transpose { size: 2 })),
            ],
        ),
        (
            "indices",
            vec![
                (
                    "gather, 16 bytes",
                    Kernel::Index(index::Key::Gather { size: 16, index: I64, wide: false }),
                ),
                (
                    "scatter_add, f32",
                    Kernel::Index(index::Key::ScatterRuns { mode: ScatterMode::Sum, dtype: F32 }),
                ),
            ],
        ),
        (
            "scans",
            vec![
                ("cumsum of rows, f32", Kernel::Scan(scan::Key::Rows(Scan::Sum, F32))),
                ("cumsum of columns, f32", Kernel::Scan(scan::Key::Columns(Scan::Sum, F32))),
            ],
        ),
        ("sorts", sorts),
        (
            "products",
            vec![
                ("f32", Kernel::Matmul(matmul::Key { dtype: F32, to: F32 })),
                ("f16 to f32", Kernel::Matmul(matmul::Key { dtype: F16, to: F32 })),
                ("i64", Kernel::Matmul(matmul::Key { dtype: I64, to: I64 })),
            ],
        ),
        (
            "windows",
            vec![(
                "convolution, f32",
                Kernel::Window(window::Key::Convolve { dtype: F32, back: false, wide: false }),
            )],
        ),
        (
            "attention",
            vec![
                ("f32", attends(Made::Output, F32, Team::Tiles(2))),
                ("bf16, 64 wide", attends(Made::Output, BF16, Team::Tensor(64))),
                ("bf16, 128 wide", attends(Made::Output, BF16, Team::Tensor(128))),
                ("statistics, bf16, 64 wide", attends(Made::Stats, BF16, Team::Tensor(64))),
                ("to queries, bf16, 64 wide", attends(Made::ToQuery, BF16, Team::Tensor(64))),
                ("to queries, bf16, 128 wide", attends(Made::ToQuery, BF16, Team::Tensor(128))),
                ("to keys, values, f32", attends(Made::ToKeys, F32, Team::Tiles(2))),
                ("to keys, values, bf16, 64 wide", attends(Made::ToKeys, BF16, Team::Tensor(64))),
                ("to keys, values, bf16, 128 wide", attends(Made::ToKeys, BF16, Team::Tensor(128))),
            ],
        ),
        (
            "pages",
            vec![
                ("f32", pages(F32, F32, 1)),
                ("f32 over f16", pages(F32, F16, 1)),
                ("f32 over bf16, four heads", pages(F32, BF16, 4)),
                ("f64, four heads", pages(F64, F64, 4)),
                ("joined, f32", Kernel::Paged(paged::Key::Meet { dtype: F32 })),
            ],
        ),
        (
            "quantised",
            vec![
                ("Q8_0, a row", Kernel::Quantized(quantized::Key::Few(Format::Q8_0, 1))),
                ("Q4_K, a row", Kernel::Quantized(quantized::Key::Few(Format::Q4_K, 1))),
                ("Q8_0, many rows", Kernel::Quantized(quantized::Key::Many(Format::Q8_0, 8))),
                ("Q4_K, many rows", Kernel::Quantized(quantized::Key::Many(Format::Q4_K, 8))),
                ("Q6_K, many rows", Kernel::Quantized(quantized::Key::Many(Format::Q6_K, 8))),
                ("Q4_K, 64 rows", Kernel::Quantized(quantized::Key::Many(Format::Q4_K, 2))),
                ("Q2_K, many rows", Kernel::Quantized(quantized::Key::Many(Format::Q2_K, 8))),
                ("rows by matrices", Kernel::Quantized(quantized::Key::Order(64, I64))),
                ("Q4_K, 8 rows of one", Kernel::Quantized(quantized::Key::Tiles(Format::Q4_K, 8))),
                (
                    "Q4_K, 64 rows of one",
                    Kernel::Quantized(quantized::Key::Tiles(Format::Q4_K, 64)),
                ),
            ],
        ),
        (
            "halves",
            vec![
                ("bf16 in two, cut", by_halves(BF16, 2, halves::Work::Cut)),
                ("bf16 in two, few rows", by_halves(BF16, 2, halves::Work::Few)),
                ("bf16 in two, 64 rows", by_halves(BF16, 2, halves::Work::Tiles(2))),
                ("bf16 in two, many rows", by_halves(BF16, 2, halves::Work::Tiles(8))),
                ("f16 rounded, few rows", by_halves(F16, 1, halves::Work::Few)),
                ("f16 rounded, many rows", by_halves(F16, 1, halves::Work::Tiles(8))),
            ],
        ),
    ]
}

/// The names of the families.
pub fn names() -> Vec<&'static str> {
    families().into_iter().map(|(family, _)| family).collect()
}

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/machine.txt"))
}

/// Compiles the kernels of a family and reads their machine code.
fn facts(
    compiler: &Compiler,
    kernels: &[(&'static str, Kernel)],
) -> Result<Vec<(String, Facts)>, String> {
    let sources: Vec<_> = kernels.iter().map(|(_, kernel)| kernel.source()).collect();
    let text = crate::cuda::kernels::source::module(&sources);
    let Compiled { image, used, .. } =
        compiler.compile(&text, 90, crate::cuda::kernels::source::OPTIONS)?;
    let mut found: HashMap<String, Facts> = HashMap::new();
    for used in used {
        let facts = found.entry(used.kernel).or_default();
        (facts.registers, facts.shared) = (used.registers, used.shared);
    }
    for (kernel, instruction) in disassembly(&image)? {
        found.get_mut(&kernel).ok_or(kernel)?.add(&instruction);
    }
    let mut out: Vec<(String, Facts)> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for ((name, _), source) in kernels.iter().zip(&sources) {
        if seen.contains(&&*source.entry) {
            continue;
        }
        seen.push(&source.entry);
        let facts = found.get(&source.entry).ok_or(format!("{name} is missing"))?;
        // One name may be that of several kernels, which are numbered.
        let same =
            out.iter().filter(|(n, _)| n == name || n.starts_with(&format!("{name}, kernel")));
        let name = match same.count() {
            0 => (*name).to_owned(),
            n => format!("{name}, kernel {}", n + 1),
        };
        out.push((name, *facts));
    }
    Ok(out)
}

/// A family's machine code is within the bounds.
pub fn check(compiler: &Compiler, family: &str) -> Result<(), String> {
    let (_, kernels) = families().into_iter().find(|(name, _)| *name == family).expect("a family");
    let found = facts(compiler, &kernels)?;
    let line = |name: &str, facts: &Facts| format!("{:<44} {facts}", format!("{family}: {name}"));
    if std::env::var_os("FUTENSOR_MACHINE").is_some_and(|v| v == "write") {
        return write(found.iter().map(|(name, facts)| line(name, facts)), family);
    }
    let text = std::fs::read_to_string(path()).map_err(|e| e.to_string())?;
    let bounds: HashMap<&str, Facts> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| (line[..44].trim(), Facts::of(&line[44..])))
        .collect();
    let mut beyond = String::new();
    for (name, facts) in &found {
        match bounds.get(&*format!("{family}: {name}")) {
            Some(bounds) if facts.is_within(bounds) => {}
            Some(bounds) => {
                beyond += &format!("{}\n{:<44} {bounds}\n", line(name, facts), "  its bounds");
            }
            None => beyond += &format!("no bounds: {}\n", line(name, facts)),
        }
    }
    if beyond.is_empty() { Ok(()) } else { Err(format!("beyond the bounds:\n{HEAD}{beyond}")) }
}

const HEAD: &str =
    "# family: kernel             registers shared load tensor divisions matrices copies all\n";

/// Replaces a family's lines.
fn write(lines: impl Iterator<Item = String>, family: &str) -> Result<(), String> {
    // Trials run side by side.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    let others = text.lines().filter(|line| {
        !line.starts_with('#') && !line.is_empty() && !line.starts_with(&format!("{family}: "))
    });
    let mut all: Vec<String> = others.map(str::to_owned).chain(lines).collect();
    let order = |line: &String| names().iter().position(|f| line.starts_with(&format!("{f}: ")));
    all.sort_by_key(order);
    std::fs::write(path(), format!("{HEAD}{}\n", all.join("\n"))).map_err(|e| e.to_string())
}

/// How instructions are counted, without a compiler.
pub fn counting() {
    let mut facts = Facts::default();
    for instruction in [
        "@!P0 LDG.E.U16 R4, desc[UR4][R2.64] ;",
        "LDG.E.64.STRONG.SYS R4, desc[UR4][R2.64] ;",
        "CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;",
        "@P1 CALL.REL.NOINC `($kernel_12$__internal_1_$__cuda_sm20_rem_u64) ;",
        "CALL.REL.NOINC `($__internal_2_$__cuda_sm3x_div_rn_noftz_f32_slowpath) ;",
        "HMMA.16816.F32.BF16 R4, R4, R8, RZ ;",
        "BRA `(.L_x_0) ;",
        "LDSM.16.MT88.4 R4, [R8] ;",
        "LDGSTS.E [R3], desc[UR4][R6.64], P1 ;",
        "NOP;",
    ] {
        facts.add(instruction);
    }
    let counted = Facts { load: 4, tensor: 1, divisions: 2, ..Facts::default() };
    assert_eq!(facts, Facts { matrices: 1, copies: 1, all: 9, ..counted });
    facts.add("LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;");
    assert_eq!(facts.load, 16);
    let bounds = Facts { registers: 32, load: 16, tensor: 1, divisions: 2, matrices: 1, ..facts };
    assert!(facts.is_within(&bounds));
    for worse in [
        Facts { registers: 33, ..facts },
        Facts { shared: 1, ..facts },
        Facts { load: 8, ..facts },
        Facts { tensor: 0, ..facts },
        Facts { divisions: 3, ..facts },
        Facts { matrices: 0, ..facts },
        Facts { copies: 0, ..facts },
        Facts { all: 11, ..facts },
    ] {
        assert!(!worse.is_within(&bounds), "{worse:?}");
    }
}
