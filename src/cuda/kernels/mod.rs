//! CUDA C for every kernel, and how each is launched.
//!
//! The launcher (`cuda/device/launch`) asks a family (`elementwise::plan`, `reduce::plan`...) for a
//! [`Plan`]: kernels to launch, with their arguments, in their grids. A [`Kernel`] is a small key
//! that can be hashed; its [`Kernel::source`] is generated only where the compiled one is not
//! cached. Sizes, strides and immediates are run-time arguments, so keys stay few.
//! `cuda/device/modules` compiles and loads the kernels.
//!
//! Pure text and arithmetic: no driver, no compiler, no memory. The order of additions in a kernel
//! depends on shapes alone, never on timing, so results repeat bit by bit.
//!
//! A pointer that a kernel only reads is a `const T*` in its signature and every other one is
//! written.

pub(crate) mod attention;
pub(crate) mod bundle;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod generate;
pub(crate) mod geometry;
pub(crate) mod halves;
pub(crate) mod index;
pub(crate) mod matmul;
pub(crate) mod paged;
pub(crate) mod quantized;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod scan;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod source;
pub(crate) mod top_p;
pub(crate) mod window;

use smallvec::SmallVec;
use source::KernelSource;

/// Names one compiled kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kernel {
    Elementwise(elementwise::Key),
    Reduce(reduce::Key),
    Softmax(softmax::Key),
    Copy(copy::Key),
    Index(index::Key),
    Scan(scan::Key),
    Sort(sort::Key),
    Matmul(matmul::Key),
    Window(window::Key),
    Attention(attention::Key),
    Halves(halves::Key),
    Quantized(quantized::Key),
    Paged(paged::Key),
    Rope(rope::Key),
    TopP(top_p::Key),
}

impl Kernel {
    /// The kernel as CUDA C.
    pub fn source(&self) -> KernelSource {
        match self {
            Kernel::Elementwise(key) => key.source(),
            Kernel::Reduce(key) => key.source(),
            Kernel::Softmax(key) => key.source(),
            Kernel::Copy(key) => key.source(),
            Kernel::Index(key) => key.source(),
            Kernel::Scan(key) => key.source(),
            Kernel::Sort(key) => key.source(),
            Kernel::Matmul(key) => key.source(),
            Kernel::Window(key) => key.source(),
            Kernel::Attention(key) => key.source(),
            Kernel::Halves(key) => key.source(),
            Kernel::Quantized(key) => key.source(),
            Kernel::Paged(key) => key.source(),
            Kernel::Rope(key) => key.source(),
            Kernel::TopP(key) => key.source(),
        }
    }
}

/// One argument of a launch, in the order of the kernel's parameters.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arg {
    /// Address of an input, plus bytes.
    In {
        index: u8,
        bytes: isize,
    },
    /// Address of an output, plus bytes.
    Out {
        index: u8,
        bytes: usize,
    },
    /// An address in the plan's scratch memory: bytes from its start, which is aligned to 256.
    Scratch(usize),
    /// Address of the step's index error: see [`source::INDEX_ERROR_BYTES`].
    IndexError,
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
    /// A struct by value.
    Struct(Words),
}

/// The bytes of a struct parameter, aligned to 8.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Words {
    words: SmallVec<[u64; 8]>,
    half: bool,
}

impl Words {
    pub fn u32(&mut self, x: u32) {
        if self.half {
            *self.words.last_mut().expect("what has half a word has that word") |= (x as u64) << 32;
        } else {
            self.words.push(x as u64);
        }
        self.half = !self.half;
    }

    /// Pads to eight bytes first, as a C struct would.
    pub fn u64(&mut self, x: u64) {
        self.half = false;
        self.words.push(x);
    }

    /// The arguments of the launch.
    pub fn as_words(&self) -> &[u64] {
        &self.words
    }
}

/// One launch of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    pub args: SmallVec<[Arg; 8]>,
}

/// The launches of one step, in order, on one stream.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Plan {
    /// Bytes of scratch memory that the launches share.
    pub scratch: usize,
    pub launches: SmallVec<[Launch; 1]>,
}

impl Launch {
    /// True where the driver takes so many blocks.
    pub fn fits(&self) -> bool {
        let [x, y, z] = self.grid.map(|n| n as usize);
        x <= GRID_X_MAX && y <= GRID_YZ_MAX && z <= GRID_YZ_MAX
    }
}

/// A grid of so many blocks. One that is too large stays so, though its numbers are cut: it
/// [does not fit](Launch::fits).
pub(crate) fn grid(x: usize, y: usize, z: usize) -> [u32; 3] {
    [x, y, z].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// Most blocks in the x dimension of a grid.
const GRID_X_MAX: usize = i32::MAX as usize;
/// Most blocks in the y and z dimensions of a grid.
pub(crate) const GRID_YZ_MAX: usize = 65_535;

/// An input as a kernel is planned for it: strides over the iteration shape, in elements, and the
/// largest power of two up to 16 that divides its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub strides: &'a [isize],
    pub align: usize,
}

impl<'a> Operand<'a> {
    /// The type of the elements at an address.
    pub fn at(ptr: u64, strides: &'a [isize]) -> Operand<'a> {
        Operand { strides, align: align(ptr) }
    }
}

/// The largest power of two up to 16 that divides an address.
pub(crate) fn align(ptr: u64) -> usize {
    1 << ptr.trailing_zeros().min(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::ReduceOp;

    #[test]
    fn more_rows_than_a_grid_has_blocks_do_not_fit() {
        let fits = |rows: usize| {
            let (shape, strides, dims) = ([rows, 2048], [2048, 1], [false, true]);
            let x = Operand { strides: &strides, align: 16 };
            let sum = reduce::identity(DType::F32);
            let plans = [
                reduce::plan(ReduceOp::Sum, &sum, &shape, &dims, &[x]),
                sort::plan(DType::F32, &shape, 1, x, 2048, false),
                softmax::plan(softmax::RowOp::LogSumExp, DType::F32, &shape, &dims, x, 16, 0.0),
            ];
            plans.map(|plan| plan.expect("few dimensions").launches.iter().all(Launch::fits))
        };
        assert_eq!(fits(1 << 30), [true; 3]);
        for rows in [1 << 31, 1 << 32, (1 << 32) + 1, 1 << 40] {
            assert_eq!(fits(rows), [false; 3], "{rows}");
        }
        assert_eq!(grid(1 << 32, 7, 1 << 40), [u32::MAX, 7, u32::MAX]);
    }

    #[test]
    fn rows_of_nothing_are_counted_however_many_they_are() {
        let (rows, sum) = (1usize << 33, reduce::identity(DType::F32));
        let x = Operand { strides: &[1, 1], align: 16 };
        let plan = reduce::plan(ReduceOp::Sum, &sum, &[rows, 0], &[false, true], &[x]);
        assert!(plan.expect("few dimensions").launches[0].args.contains(&Arg::U64(rows as u64)));
    }
}
