//! Windows that move over planes: the columns that make a convolution a matrix product, their way back, and
//! pooling. One thread an element; 64-bit indices throughout.

use super::super::window::{Divisor, Window};
use super::generate::storage;
use super::source::{KernelSource, Part};
use super::{Arg, Kernel, Launch, Plan, Words};
use crate::dtype::DType;
use smallvec::{SmallVec, smallvec};

/// Names a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Columns { from: DType, to: DType },
    Fold { from: DType, to: DType, bias: bool },
    Max { dtype: DType, place: bool },
    Mean { dtype: DType },
    Spread { dtype: DType },
}

/// Threads of a block.
const THREADS: u32 = 256;

fn window_arg(w: &Window) -> Arg {
    let mut words = Words::default();
    for pair in [w.input, w.kernel, w.output, w.stride, w.padding, w.dilation] {
        pair.into_iter().for_each(|n| words.u64(n as u64));
    }
    Arg::Struct(words)
}

fn steps_arg(steps: [isize; 4]) -> Arg {
    let mut words = Words::default();
    steps.into_iter().for_each(|s| words.u64(s as u64));
    Arg::Struct(words)
}

fn plan(key: Key, n: usize, args: SmallVec<[Arg; 8]>) -> Plan {
    let mut plan = Plan::default();
    if n > 0 {
        let grid = [n.div_ceil(THREADS as usize) as u32, 1, 1];
        let kernel = Kernel::Window(key);
        plan.launches.push(Launch { kernel, grid, block: [THREADS, 1, 1], shared: 0, args });
    }
    plan
}

/// The columns of some images: for each group a row a channel and tap, in which each output place has the
/// element that it meets; then, as far as `rows` goes, a row of ones and rows of zeros.
pub(crate) struct Columns {
    pub from: DType,
    pub to: DType,
    pub images: usize,
    pub groups: usize,
    /// Channels of a group.
    pub channels: usize,
    pub rows: usize,
    /// Of the input: image, channel, row, column.
    pub steps: [isize; 4],
    /// Of the columns: image, group, row. Places lie side by side.
    pub to_steps: [usize; 3],
}

impl Columns {
    /// The launch; input 0 to output 0.
    pub fn plan(&self, window: &Window) -> Plan {
        let n = self.images * self.groups * self.rows * window.places();
        let [image, group, row] = self.to_steps;
        let args = smallvec![
            Arg::In { index: 0, bytes: 0 },
            Arg::Out { index: 0, bytes: 0 },
            Arg::U64(n as u64),
            window_arg(window),
            Arg::U64(self.channels as u64),
            Arg::U64(self.groups as u64),
            Arg::U64(self.rows as u64),
            steps_arg(self.steps),
            Arg::U64(image as u64),
            Arg::U64(group as u64),
            Arg::U64(row as u64),
        ];
        plan(Key::Columns { from: self.from, to: self.to }, n, args)
    }
}

/// Columns `[image, group, channel and tap, place]`, contiguous, added up where they come from. Input 0 are the
/// columns, input 1 the bias, where there is one.
pub(crate) fn fold(
    window: &Window,
    [from, to]: [DType; 2],
    [images, groups, channels]: [usize; 3],
    bias: bool,
) -> Plan {
    let n = images * groups * channels * window.input[0] * window.input[1];
    let mut args: SmallVec<[Arg; 8]> = smallvec![Arg::In { index: 0, bytes: 0 }];
    if bias {
        args.push(Arg::In { index: 1, bytes: 0 });
    }
    args.extend([
        Arg::Out { index: 0, bytes: 0 },
        Arg::U64(n as u64),
        window_arg(window),
        Arg::U64(channels as u64),
        Arg::U64(groups as u64),
    ]);
    plan(Key::Fold { from, to, bias }, n, args)
}

/// A pooling: input 0 to output 0. Planes are walked in rows of `inner`, by steps of outer and inner plane,
/// row and column.
pub(crate) fn pool(
    key: Key,
    window: &Window,
    [planes, inner]: [usize; 2],
    steps: [isize; 4],
    divisor: Option<Divisor>,
) -> Plan {
    let [high, wide] = if matches!(key, Key::Spread { .. }) { window.input } else { window.output };
    let n = planes * high * wide;
    let mut args: SmallVec<[Arg; 8]> = smallvec![
        Arg::In { index: 0, bytes: 0 },
        Arg::Out { index: 0, bytes: 0 },
        Arg::U64(n as u64),
        window_arg(window),
        Arg::U64(inner.max(1) as u64),
        steps_arg(steps),
    ];
    if let Some(divisor) = divisor {
        let (mode, fixed) = match divisor {
            Divisor::Met => (0, 1),
            Divisor::Padded => (1, 1),
            Divisor::Fixed(n) => (2, n),
        };
        args.extend([Arg::U32(mode), Arg::U64(fixed as u64)]);
    }
    plan(key, n, args)
}

/// The kernels that are wanted beside this one: those of the same types.
pub(super) fn relatives(key: &Key) -> Vec<Key> {
    match *key {
        Key::Columns { from, to } | Key::Fold { from: to, to: from, .. } => {
            let folds = [false, true].map(|bias| Key::Fold { from: to, to: from, bias });
            [Key::Columns { from, to }].into_iter().chain(folds).collect()
        }
        Key::Max { dtype, .. } => [false, true].map(|place| Key::Max { dtype, place }).to_vec(),
        Key::Mean { dtype } | Key::Spread { dtype } => vec![Key::Mean { dtype }, Key::Spread { dtype }],
    }
}

impl Key {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        let pooled = |from: DType, to: DType, more: &[&str]| -> Vec<String> {
            let (s, d) = (storage(from), storage(to));
            let fixed = ["u64 n", "ft::Window w", "i64 inner", "ft::Steps from"];
            let all = [format!("const {s}* x"), format!("{d}* out")].into_iter();
            all.chain(fixed.iter().chain(more).map(|p| p.to_string())).collect()
        };
        let (name, params, code): (&str, Vec<String>, String) = match *self {
            Key::Columns { from, to } => {
                let (s, d) = (storage(from), storage(to));
                let mut params = vec![format!("const {s}* x"), format!("{d}* out")];
                for p in ["u64 n", "ft::Window w", "i64 channels", "i64 groups", "i64 rows", "ft::Steps from"] {
                    params.push(p.into());
                }
                params.extend(["i64 to_image", "i64 to_group", "i64 to_row"].map(String::from));
                let call = "x, out, n, w, channels, groups, rows, from, to_image, to_group, to_row";
                ("columns", params, format!("    ft::columns<{s}, {d}>({call});\n"))
            }
            Key::Fold { from, to, bias } => {
                let (s, d) = (storage(from), storage(to));
                let mut params = vec![format!("const {s}* cols")];
                if bias {
                    params.push(format!("const {d}* bias"));
                }
                params.push(format!("{d}* out"));
                params.extend(["u64 n", "ft::Window w", "i64 channels", "i64 groups"].map(String::from));
                let given = if bias { "bias".to_string() } else { format!("(const {d}*)0") };
                let call = format!("cols, {given}, out, n, w, channels, groups");
                ("fold", params, format!("    ft::fold<{bias}, {s}, {d}>({call});\n"))
            }
            Key::Max { dtype, place } => {
                let to = if place { DType::I64 } else { dtype };
                let types = format!("{place}, {}, {}", storage(dtype), storage(to));
                let code = format!("    ft::pool_max<{types}>(x, out, n, w, inner, from);\n");
                ("pool_max", pooled(dtype, to, &[]), code)
            }
            Key::Mean { dtype } | Key::Spread { dtype } => {
                let name = if matches!(self, Key::Mean { .. }) { "pool_mean" } else { "pool_spread" };
                let call = "x, out, n, w, inner, from, mode, fixed";
                let code = format!("    ft::{name}<{}>({call});\n", storage(dtype));
                (name, pooled(dtype, dtype, &["u32 mode", "u64 fixed"]), code)
            }
        };
        KernelSource::new(name, &[Part::Base, Part::Window], THREADS, &params, &code)
    }
}
