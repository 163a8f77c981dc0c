//! The text of a translation unit: shared parts, then entries.
//!
//! The hand-written parts are files under `device/`; one is expanded from the op table. A part is
//! included only where an entry needs it, so that a simulated device can tell by the text alone
//! whether a kernel has barriers.

use crate::op::{Class, Scan, for_each_binary, for_each_unary};
use std::sync::LazyLock;

/// How the compiler is called, beside the architecture. Contraction is off because every
/// instruction rounds to its own type; kernels that want a fused multiply-add say `fma`.
pub(crate) const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false"];

/// Size of the record that a kernel which takes indices fills when one is out of range (zeroed
/// before): `u32 lock, found; u64 position; i64 index; u64 size`.
pub(crate) const INDEX_ERROR_BYTES: usize = 32;

/// Shared text, in the order in which parts are included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    Base,
    Ops,
    Elementwise,
    Random,
    Reduce,
    Softmax,
    Copy,
    Index,
    Scan,
    Sort,
    Matmul,
    Window,
    Tensor,
    Attention,
    AttentionTensor,
    AttentionKeys,
    Halves,
    Quantized,
    QuantizedGroups,
    Paged,
    TopP,
}

impl Part {
    fn text(self) -> &'static str {
        match self {
            Part::Base => include_str!("device/base.cuh"),
            Part::Ops => &OPS,
            Part::Elementwise => include_str!("device/elementwise.cuh"),
            Part::Random => include_str!("device/random.cuh"),
            Part::Reduce => include_str!("device/reduce.cuh"),
            Part::Softmax => include_str!("device/softmax.cuh"),
            Part::Copy => include_str!("device/copy.cuh"),
            Part::Index => include_str!("device/index.cuh"),
            Part::Scan => &SCANS,
            Part::Sort => include_str!("device/sort.cuh"),
            Part::Matmul => include_str!("device/matmul.cuh"),
            Part::Window => include_str!("device/window.cuh"),
            Part::Tensor => include_str!("device/tensor.cuh"),
            Part::Attention => include_str!("device/attention.cuh"),
            Part::AttentionTensor => include_str!("device/attention_tensor.cuh"),
            Part::AttentionKeys => include_str!("device/attention_keys.cuh"),
            Part::Halves => include_str!("device/halves.cuh"),
            Part::Quantized => include_str!("device/quantized.cuh"),
            Part::QuantizedGroups => include_str!("device/quantized_groups.cuh"),
            Part::Paged => include_str!("device/paged.cuh"),
            Part::TopP => include_str!("device/top_p.cuh"),
        }
    }
}

static OPS: LazyLock<String> =
    LazyLock::new(|| include_str!("device/ops.cuh").to_owned() + &table());

static SCANS: LazyLock<String> = LazyLock::new(|| scans() + include_str!("device/scan.cuh"));

/// The CUDA columns of the table of scans, by the numbers of its rows.
fn scans() -> String {
    let mut out = String::from(
        "
namespace ft {
FN float lowest(float) { return -1.0f / 0.0f; }
FN double lowest(double) { return -1.0 / 0.0; }
FN i64 lowest(i64) { return (i64)(1ull << 63); }
template <class A> FN A highest(A a) { return -lowest(a); }
template <> FN_SPECIAL i64 highest(i64 a) { return ~lowest(a); }
template <int OP> struct Scan;
",
    );
    for scan in Scan::ALL {
        let (row, (join, nothing)) = (*scan as usize, scan.cuda());
        out += &format!(
            "template <> struct Scan<{row}> {{
    template <class A> FN_MEMBER A join(A a, A b) {{ return {join}; }}
    template <class A> FN_MEMBER A nothing() {{ return {nothing}; }}
}};
"
        );
    }
    out + "template <int OP, class A> FN A join(A a, A b) { return Scan<OP>().join(a, b); }
template <int OP, class A> FN A nothing() { return Scan<OP>().template nothing<A>(); }
}  // namespace ft
"
}

/// The op table's CUDA column as functions: `ft::op_add<T>(a, b)`.
fn table() -> String {
    let mut out = String::from("\nnamespace ft {\n");
    let result = |class: Class| match class {
        Class::test | Class::compare | Class::logic => "bool",
        Class::number | Class::float | Class::real | Class::any | Class::bits => "T",
        Class::sum | Class::same | Class::index => "T",
    };
    macro_rules! unary {
        ($($name:ident: $Variant:ident {
            doc: $text:literal,
            page: $page:ident, class: $class:ident, cost: $cost:ident, rounds: $rounds:ident,
            domain: $domain:ident,
            gradient: $gradient:tt,
            cpu: |$x:ident| $e:expr,
            cuda: $cuda:literal,
        })*) => {$(
            out += &format!("template <class T> FN {} op_{}(T x) {{ return {}; }}\n",
                result(Class::$class), stringify!($name), $cuda);
        )*};
    }
    macro_rules! binary {
        ($($name:ident: $Variant:ident {
            doc: $text:literal,
            class: $class:ident, cost: $cost:ident, rounds: $rounds:ident, number: $number:ident,
            domain: $domain:ident,
            gradient: $gradient:tt,
            cpu: |$a:ident, $b:ident| $e:expr,
            cuda: $cuda:literal,
        })*) => {$(
            out += &format!("template <class T> FN {} op_{}(T a, T b) {{ return {}; }}\n",
                result(Class::$class), stringify!($name), $cuda);
        )*};
    }
    for_each_unary!(unary);
    for_each_binary!(binary);
    out + "}  // namespace ft\n"
}

/// One kernel as CUDA C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelSource {
    /// Name of the `extern "C"` function; equal names mean equal text.
    pub entry: String,
    pub parts: &'static [Part],
    pub body: String,
}

impl KernelSource {
    /// `params` are declarations in order; `code` stands between the braces.
    pub fn new(
        prefix: &str,
        parts: &'static [Part],
        threads: u32,
        params: &[String],
        code: &str,
    ) -> KernelSource {
        let tail = format!("({}) {{\n{code}}}\n", params.join(", "));
        let entry = format!("{prefix}_{:016x}", fnv1a(&[tail.as_bytes(), &threads.to_le_bytes()]));
        let body =
            format!("extern \"C\" __global__ void __launch_bounds__({threads}) {entry}{tail}");
        KernelSource { entry, parts, body }
    }

    /// The same for a kernel whose threads hold much: the compiler takes the registers that it
    /// wants for one block, and does not spill some to make room for more. (Where threads hold
    /// little and wait for memory, more blocks are worth more.)
    pub fn with_registers(self, threads: u32) -> KernelSource {
        self.with_blocks(threads, 1)
    }

    /// The same for a kernel of which so many blocks have to fit a processor at a time.
    pub fn with_blocks(mut self, threads: u32, blocks: u32) -> KernelSource {
        let bounds = format!("__launch_bounds__({threads}");
        self.body = self.body.replacen(&bounds, &format!("{bounds}, {blocks}"), 1);
        self
    }

    /// The translation unit of this kernel alone.
    pub fn text(&self) -> String {
        module([self])
    }
}

/// One translation unit of several kernels: compiling 50 at once costs about as much as 8 alone.
pub(crate) fn module<'a>(kernels: impl IntoIterator<Item = &'a KernelSource> + Clone) -> String {
    let mut parts: Vec<Part> = kernels.clone().into_iter().flat_map(|k| k.parts).copied().collect();
    parts.sort();
    parts.dedup();
    let mut out: String = parts.into_iter().map(Part::text).collect();
    let mut seen: Vec<&str> = Vec::new();
    for kernel in kernels {
        if !seen.contains(&kernel.entry.as_str()) {
            seen.push(&kernel.entry);
            out += &kernel.body;
        }
    }
    out
}

/// Fowler, Noll and Vo's hash: stable from run to run, as names in a disk cache must be.
fn fnv1a(parts: &[&[u8]]) -> u64 {
    parts
        .iter()
        .flat_map(|p| p.iter())
        .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3))
}
