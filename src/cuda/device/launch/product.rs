//! Products of matrices: through cuBLAS where it takes the operands, else by a kernel of our own.
//!
//! Operands that the library cannot read as they lie are copied first, where the product is worth
//! the copy.
//!
//! **The epilogue of a product is a step of its own**, where on the CPU it belongs to the
//! product's. In one step it would still be two launches and as many passes: the epilogue is the
//! product's last reader and writes over its memory already, the event is recorded behind some 20
//! us of work whatever the number of steps, and a graph has no task table to save. cuBLASLt's
//! epilogues would save that pass, and a value would depend on fusion:
//!
//! - a half is rounded once, after the bias, where the ops apart round the product, too;
//! - GELU is by a `tanh` of its own, and ReLU's result for NaN is not documented (here it is NaN);
//! - a bias of float32 rounds alike, but the library picks an algorithm for each epilogue, and
//!   another algorithm adds in another order: each product, alone or not, would have to be pinned
//!   to an algorithm that has both. The gain is a pass over the result: by bandwidth 45 us beside
//!   the 2.7 ms that a product of 4,096 takes at 50 TFLOP/s of float32 (H100), under 2 %.

use super::launcher::Launcher;
use crate::cuda::device::driver_context::has_cublas;
use crate::cuda::device::libraries::gemm::{Misfit, ProductCall, calls};
use crate::cuda::device::libraries::handles::Use;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::{DeviceView, DeviceViewMut, Site, Trouble};
use crate::cuda::kernels::matmul::Product;
use crate::cuda::kernels::{Operand, align, elementwise};
use crate::graph::program::{Arg, Code, Program};
use crate::op::BinaryOp;
use crate::shape::{Shape, Strides, contiguous_strides};

/// From this many multiplications on, operands that cuBLAS does not take are copied for it.
const COPIED_FROM: usize = 1 << 20;

impl Launcher {
    /// `out = a b`, or `out += a b`, as [`Product`] says; operands and result by address.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub(crate) fn product(
        &mut self,
        site: &dyn Site,
        product: &Product,
        a: u64,
        b: u64,
        out: u64,
    ) -> Result<(), Trouble> {
        let work = [product.m, product.k, product.n]
            .iter()
            .fold(product.batch.numel(), |x, &n| x.saturating_mul(n));
        if product.dtype.is_float() && work > 0 && has_cublas() {
            let ready = match calls(product) {
                Ok(calls) => Some((calls, a, b)),
                Err(Misfit::Size) => None,
                Err(_) if work < COPIED_FROM => None,
                Err(misfit) => {
                    let all = misfit == Misfit::Batches;
                    let (mut p, mut from) = (product.clone(), [a, b]);
                    if all || matches!(misfit, Misfit::Layout { a: true, .. }) {
                        (from[0], p.a) =
                            self.packed(site, product, a, &product.a, [product.m, product.k], all)?;
                    }
                    if all || matches!(misfit, Misfit::Layout { b: true, .. }) {
                        (from[1], p.b) =
                            self.packed(site, product, b, &product.b, [product.k, product.n], all)?;
                    }
                    calls(&p).ok().map(|calls| (calls, from[0], from[1]))
                }
            };
            if let Some((calls, a, b)) = ready {
                let (dtypes, adds) = ([product.dtype, product.to], product.adds);
                self.blas.handles.ready(Use::of(site))?;
                self.library(
                    site,
                    LibraryCall::Product(ProductCall { dtypes, calls, adds, at: [a, b, out] }),
                );
                return Ok(());
            }
        }
        let numel = product.batch.numel() * product.m * product.n;
        let to = if product.adds { site.scratch(numel * product.to.size())? } else { out };
        match product.plan() {
            Some(plan) => self.run(site, &plan, &[a, b], &[to])?,
            None => {
                return Err(Trouble::no_kernel(format_args!(
                    "matmul of batches of {:?}",
                    product.batch
                )));
            }
        }
        if product.adds {
            let dtype = product.to;
            let mut p = Program::default();
            let (x, y) =
                (p.push(Code::Input(0), dtype, dtype), p.push(Code::Input(1), dtype, dtype));
            let sum = p.push(Code::Binary(BinaryOp::Add, Arg::Reg(x), Arg::Reg(y)), dtype, dtype);
            p.outputs.push(sum);
            let operands = [out, to].map(|ptr| Operand::at(ptr, &[1]));
            let plan = elementwise::plan(&p, &[numel], &operands, align(out));
            self.run(site, &plan, &[out, to], &[out])?;
        }
        Ok(())
    }

    /// An operand without gaps in scratch memory, and its strides. A matrix that repeats over
    /// batches goes on doing so, unless `all` of it is wanted.
    fn packed(
        &mut self,
        site: &dyn Site,
        product: &Product,
        ptr: u64,
        strides: &Strides,
        matrix: [usize; 2],
        all: bool,
    ) -> Result<(u64, Strides), Trouble> {
        let rank = product.batch.rank();
        let repeats = |d: usize| d < rank && strides[d] == 0 && !all;
        let full = product.batch.iter().copied().chain(matrix);
        let shape: Shape = full.enumerate().map(|(d, n)| if repeats(d) { 1 } else { n }).collect();
        let view = DeviceView { ptr, dtype: product.dtype, shape: &shape, strides };
        let to = site.scratch(shape.numel() * product.dtype.size())?;
        self.copy(site, view, DeviceViewMut { ptr: to, dtype: product.dtype, shape: &shape })?;
        let mut packed = contiguous_strides(&shape);
        (0..rank).filter(|&d| repeats(d)).for_each(|d| packed[d] = 0);
        Ok((to, packed))
    }
}
