//! The cases that are measured, their inputs, and the bar that futensor has set itself
//! for each.

/// Elements of the large tensors.
pub const LARGE: usize = 16 << 20;
/// Small ops in one go.
pub const OPS: usize = 10_000;
/// Batch, inputs, hidden units, classes.
pub const MLP: [usize; 4] = [256, 784, 256, 10];
pub const RATE: f64 = 0.05;
/// Rows, inputs and outputs of a product with a weight that stays.
pub const ROWS: [usize; 3] = [16, 384, 1536];
/// Side of the softmax's matrix.
pub const SOFTMAX: usize = 4096;

/// How often a chain multiplies: enough that a wake-up is no part of it.
pub fn chain_length(n: usize) -> usize {
    if n == 64 { 500 } else { 10 }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    /// `x + i` on `[1, 2]`, until the calls have returned.
    Enqueue,
    /// The same, detached or held, until all are done.
    Detached,
    /// The same, each awaited before the next.
    Awaited,
    /// `x * y + i`, each awaited before the next.
    AwaitedTwo,
    /// `relu((x * 2 + 1) * x - 0.5)`.
    Chain,
    Exp,
    Tanh,
    Gelu,
    Sum,
    Softmax,
    Matmul(usize),
    /// Few rows by a weight that stays.
    Rows,
    Randn,
    /// Two chains of products, independent of each other.
    Overlap(usize),
    /// Forward and loss.
    Mlp,
    /// Forward, backward, SGD.
    Train,
}

pub const CASES: &[Case] = &[
    Case::Enqueue,
    Case::Detached,
    Case::Awaited,
    Case::AwaitedTwo,
    Case::Chain,
    Case::Exp,
    Case::Tanh,
    Case::Gelu,
    Case::Sum,
    Case::Softmax,
    Case::Matmul(64),
    Case::Matmul(256),
    Case::Matmul(1000),
    Case::Matmul(2048),
    Case::Matmul(4096),
    Case::Rows,
    Case::Randn,
    Case::Overlap(64),
    Case::Overlap(512),
    Case::Mlp,
    Case::Train,
];

/// What a time is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Against {
    /// So many seconds.
    Seconds(f64),
    /// The fastest of the engines whose names begin so.
    Fastest(&'static [&'static str]),
    /// The same, and so many seconds more.
    Over(&'static [&'static str], f64),
    /// The fastest library.
    Peers,
}

/// futensor's time over the other's is to be no more than this.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    pub against: Against,
    pub most: f64,
}

const fn bar(against: Against, most: f64) -> Bar {
    Bar { against, most }
}

const AHEAD: Bar = bar(Against::Peers, 1.0);
const COPY: &[&str] = &["copy"];

/// What the work amounts to, an item.
pub enum Work {
    Bytes(f64),
    Flops(f64),
    Nothing,
}

impl Case {
    pub fn name(self) -> String {
        match self {
            Case::Matmul(n) => format!("matmul-{n}"),
            Case::Overlap(n) => format!("overlap-{n}"),
            Case::AwaitedTwo => "awaited-two".into(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    pub fn title(self) -> String {
        match self {
            Case::Enqueue => "`x + i` on [1, 2], until the call returns".into(),
            Case::Detached => format!("{OPS} x `x + i` on [1, 2], executed and checked, an op"),
            Case::Awaited => "`x + i` on [1, 2], awaited each".into(),
            Case::AwaitedTwo => "`x * y + i` on [1, 2], awaited each".into(),
            Case::Chain => "`relu((x*2+1)*x-0.5)`, 16 Mi".into(),
            Case::Exp | Case::Tanh | Case::Gelu | Case::Sum => format!("`{}`, 16 Mi", self.name()),
            Case::Softmax => "softmax of [4096, 4096]".into(),
            Case::Matmul(n) => format!("matmul, n = {n}"),
            Case::Rows => "[16, 384] by a constant [384, 1536]".into(),
            Case::Randn => "`randn`, 16 Mi, a number".into(),
            Case::Overlap(n) => format!(
                "two chains of {} products of {n}x{n}, \
                together",
                chain_length(n)
            ),
            Case::Mlp => "MLP 784-256-10, batch 256: forward + loss".into(),
            Case::Train => "the same: forward + backward + SGD".into(),
        }
    }

    /// A time is divided by this.
    pub fn items(self) -> f64 {
        match self {
            Case::Enqueue | Case::Detached | Case::Awaited | Case::AwaitedTwo => OPS as f64,
            Case::Randn => LARGE as f64,
            _ => 1.0,
        }
    }

    pub fn work(self) -> Work {
        let large = (4 * LARGE) as f64;
        match self {
            Case::Chain | Case::Exp | Case::Tanh | Case::Gelu | Case::Softmax => {
                Work::Bytes(2.0 * large)
            }
            Case::Sum => Work::Bytes(large),
            Case::Matmul(n) => Work::Flops(2.0 * (n * n * n) as f64),
            Case::Rows => Work::Flops(2.0 * ROWS.iter().product::<usize>() as f64),
            Case::Overlap(n) => Work::Flops(4.0 * (n * n * n * chain_length(n)) as f64),
            _ => Work::Nothing,
        }
    }

    /// What is wanted.
    pub fn bars(self) -> Vec<Bar> {
        let share = |against, least: f64| bar(against, 1.0 / least);
        let copy = Against::Fastest(COPY);
        match self {
            Case::Enqueue => vec![bar(Against::Seconds(0.1e-6), 1.0)],
            Case::Detached => vec![bar(Against::Fastest(&["candle"]), 1.5)],
            // What a synchronous call costs, and a tenth of a microsecond.
            Case::Awaited => vec![bar(Against::Over(&["candle"], 0.1e-6), 1.0), AHEAD],
            Case::AwaitedTwo => vec![bar(Against::Seconds(0.3e-6), 1.0), AHEAD],
            Case::Chain | Case::Exp => vec![share(copy, 0.9), AHEAD],
            // Bound by arithmetic.
            Case::Tanh | Case::Gelu => vec![bar(copy, 1.5), AHEAD],
            Case::Sum => vec![share(Against::Fastest(&["read"]), 0.9), AHEAD],
            Case::Softmax => vec![share(copy, 0.8), AHEAD],
            Case::Matmul(64) => vec![bar(Against::Fastest(&["gemm crate"]), 1.2)],
            Case::Matmul(_) => vec![share(Against::Peers, 0.95)],
            Case::Rows => vec![share(Against::Fastest(&["gemm crate"]), 2.0), AHEAD],
            Case::Randn => vec![bar(Against::Seconds(0.5e-9), 1.0), AHEAD],
            Case::Overlap(64) => vec![bar(Against::Fastest(&["futensor alone"]), 0.6)],
            Case::Overlap(_) => vec![bar(Against::Fastest(&["futensor alone"]), 1.05)],
            Case::Mlp | Case::Train => vec![AHEAD],
        }
    }

    /// Whether all who do it come to the same numbers.
    pub fn is_determined(self) -> bool {
        self != Case::Randn
    }
}

/// Uniform numbers in `-scale..scale`, the same each time (SplitMix64).
pub fn numbers(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let number = |i: usize| {
        let mut z = (seed << 40).wrapping_add(i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 * 2.0 * scale - scale
    };
    (0..n).map(number).collect()
}

/// What an MLP starts from: a batch, its classes, and both layers' weights (outputs by inputs) and
/// biases.
pub struct Start {
    pub x: Vec<f32>,
    pub y: Vec<i64>,
    pub w1: Vec<f32>,
    pub b1: Vec<f32>,
    pub w2: Vec<f32>,
    pub b2: Vec<f32>,
}

pub fn start() -> Start {
    let [batch, inputs, hidden, classes] = MLP;
    let bound = |fan: usize| 1.0 / (fan as f32).sqrt();
    Start {
        x: numbers(1, batch * inputs, 1.7),
        y: (0..batch as i64).map(|i| i * 7 % classes as i64).collect(),
        w1: numbers(2, hidden * inputs, bound(inputs)),
        b1: numbers(3, hidden, bound(inputs)),
        w2: numbers(4, classes * hidden, bound(hidden)),
        b2: numbers(5, classes, bound(hidden)),
    }
}
