//! Matrix multiplication in plain loops, as cuBLAS defines a gemm, for the types that it takes
//! here.
//!
//! Column-major, as BLAS. Half types are widened and accumulated in f32, f64 in f64. Knows nothing
//! of handles and streams; the caller has checked every address.

use half::{bf16, f16};

/// Element types, by their `cudaDataType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Type {
    F32,
    F64,
    F16,
    Bf16,
}

impl Type {
    /// The type with this number, if it is one of ours.
    pub fn new(number: u32) -> Option<Type> {
        Some(match number {
            0 => Type::F32,
            1 => Type::F64,
            2 => Type::F16,
            14 => Type::Bf16,
            _ => return None,
        })
    }
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Type::F16 | Type::Bf16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }

    /// An element as a number.
    ///
    /// # Safety
    /// `base` is the address of at least `index + 1` elements of this type that nobody writes
    /// meanwhile.
    pub unsafe fn read(self, base: usize, index: usize) -> f64 {
        let at = base + index * self.bytes();
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Type::F32 => f64::from((at as *const f32).read_unaligned()),
                Type::F64 => (at as *const f64).read_unaligned(),
                Type::F16 => f64::from((at as *const f16).read_unaligned()),
                Type::Bf16 => f64::from((at as *const bf16).read_unaligned()),
            }
        }
    }

    /// Writes an element, rounded to its type.
    ///
    /// # Safety
    /// As `read`, and nobody else uses the element meanwhile.
    pub unsafe fn write(self, base: usize, index: usize, value: f64) {
        let at = base + index * self.bytes();
        // SAFETY: the caller's promise. A value is an f32 here unless the type is F64, so each
        // rounds once.
        unsafe {
            match self {
                Type::F32 => (at as *mut f32).write_unaligned(value as f32),
                Type::F64 => (at as *mut f64).write_unaligned(value),
                Type::F16 => (at as *mut f16).write_unaligned(f16::from_f32(value as f32)),
                Type::Bf16 => (at as *mut bf16).write_unaligned(bf16::from_f32(value as f32)),
            }
        }
    }
}

/// A matrix in memory, and how batches follow each other.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Matrix {
    pub address: usize,
    pub element: Type,
    /// Elements from one column to the next.
    pub leading: usize,
    /// Elements from one batch to the next.
    pub stride: usize,
    /// Read as its transpose.
    pub transposed: bool,
}

impl Matrix {
    /// Bytes from the first element to the last of a `rows` by `columns` matrix as stored, batches
    /// included.
    pub fn extent(&self, rows: usize, columns: usize, batches: usize) -> usize {
        if rows == 0 || columns == 0 || batches == 0 {
            return 0;
        }
        ((batches - 1) * self.stride + (columns - 1) * self.leading + rows) * self.element.bytes()
    }
}

/// What follows the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// GELU by its tanh approximation, as cublasLt's epilogue.
    Gelu,
}

/// `d = activation(alpha * op(a) * op(b) + beta * c + bias)`, with an element of the bias for each
/// row.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batches: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub alpha: f64,
    pub beta: f64,
    /// Accumulate in f64.
    pub wide: bool,
    pub bias: Option<(usize, Type)>,
    pub activation: Activation,
}

impl Gemm {
    /// Computes.
    ///
    /// # Safety
    /// The matrices, to their `extent`, are memory that nobody else writes meanwhile; `d` is nobody
    /// else's.
    pub unsafe fn run(&self) {
        for batch in 0..self.batches {
            // SAFETY: the caller's promise, for each batch.
            unsafe {
                match self.wide {
                    true => self.batch::<f64>(batch),
                    false => self.batch::<f32>(batch),
                }
            }
        }
    }

    unsafe fn batch<T: Sum>(&self, batch: usize) {
        let (m, n, k) = (self.m, self.n, self.k);
        let place =
            |matrix: &Matrix| matrix.address + batch * matrix.stride * matrix.element.bytes();
        let load = |matrix: &Matrix, rows: usize, columns: usize| {
            let base = place(matrix);
            let mut dense = vec![T::default(); rows * columns];
            for column in 0..columns {
                for row in 0..rows {
                    let (i, j) = if matrix.transposed { (column, row) } else { (row, column) };
                    // SAFETY: (i, j) lies in the matrix as stored, so within its extent.
                    dense[column * rows + row] =
                        T::narrow(unsafe { matrix.element.read(base, j * matrix.leading + i) });
                }
            }
            dense
        };
        let (a, b) = (load(&self.a, m, k), load(&self.b, k, n));
        let mut sums = vec![T::default(); m];
        for column in 0..n {
            sums.fill(T::default());
            for inner in 0..k {
                let factor = b[column * k + inner];
                for (sum, &element) in sums.iter_mut().zip(&a[inner * m..][..m]) {
                    *sum = sum.plus(element.times(factor));
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                let mut value = T::narrow(self.alpha).times(*sum);
                if self.beta != 0.0 {
                    // SAFETY: (row, column) lies in c.
                    let old = unsafe {
                        self.c.element.read(place(&self.c), column * self.c.leading + row)
                    };
                    value = value.plus(T::narrow(self.beta).times(T::narrow(old)));
                }
                if let Some((address, element)) = self.bias {
                    // SAFETY: the bias has m elements, checked with the matrices.
                    value = value.plus(T::narrow(unsafe { element.read(address, row) }));
                }
                let value = activate(self.activation, value.wide());
                // SAFETY: (row, column) lies in d, which is this call's.
                unsafe {
                    self.d.element.write(place(&self.d), column * self.d.leading + row, value)
                };
            }
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh())
        }
    }
}

/// The type that sums are kept in.
trait Sum: Copy + Default {
    fn narrow(x: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn wide(self) -> f64;
}

macro_rules! sums {
    ($($T:ty),*) => {$(
        impl Sum for $T {
            fn narrow(x: f64) -> Self { x as $T }
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn wide(self) -> f64 { self as f64 }
        }
    )*};
}
sums!(f32, f64);
