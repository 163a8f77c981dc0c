//! The way from a fused program or an op to kernels on a stream.
//!
//! A device has one [`Launcher`], which its thread makes and uses with the context current. Plans
//! come from `cuda/kernels` (kernels, arguments, grids), functions from the module store, products
//! of matrices from cuBLAS; the launcher joins them with addresses and a stream. Nothing waits: the
//! step lends memory for intermediate results ([`Site`]), and gets it back in stream order. A batch
//! keeps a step's launches until all of them can go.

use super::args::Words;
use super::batch::Batch;
use crate::cuda::device::background::Background;
use crate::cuda::device::graph::executable::Captured;
use crate::cuda::device::libraries::blas::Blas;
use crate::cuda::device::libraries::convolutions::Convolutions;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::libraries::nvidia::{self, Function, Idle};
use crate::cuda::device::modules::cache::Disk;
use crate::cuda::device::modules::store::{Fusion, Modules};
use crate::cuda::device::{DeviceView, DeviceViewMut, Gpu, Site, Trouble};
use crate::cuda::kernels::halves::HalfProducts;
use crate::cuda::kernels::source::INDEX_ERROR_BYTES;
use crate::cuda::kernels::{Arg, Launch, Operand, Plan, copy, reduce};
use crate::cuda::ops::operand;
use crate::dtype::{DType, Scalar};
use crate::graph::device_run::{CudaArg, CudaGrid, CudaKernel};
use crate::graph::node::Reduction;
use crate::graph::program::{Code, Program};
use crate::shape::{Strides, contiguous_strides};
use smallvec::SmallVec;

/// Everything that launches of one device need.
pub(crate) struct Launcher {
    pub(crate) modules: Modules,
    pub(crate) blas: Blas,
    pub(crate) convolutions: Convolutions,
    pub(crate) half_products: HalfProducts,
    pub(crate) batch: Batch,
    pub background: Background,
    /// A custom op has launched since the flag was last cleared.
    pub(crate) had_custom: bool,
}

impl Launcher {
    /// For a device; libraries are looked for when they are needed.
    pub fn new(gpu: Gpu, pool: nvidia::Pool, background: Background) -> Launcher {
        Launcher::with(gpu, pool, Fusion::from_environment(), Disk::from_environment(), background)
    }

    pub fn with(
        gpu: Gpu,
        pool: nvidia::Pool,
        fusion: Fusion,
        disk: Disk,
        background: Background,
    ) -> Launcher {
        Launcher {
            modules: Modules::new(&gpu, fusion, disk, background.clone()),
            blas: Blas::new(&gpu, background.clone()),
            convolutions: Convolutions::new(pool, background.clone()),
            half_products: HalfProducts::default(),
            batch: Batch::default(),
            background,
            had_custom: false,
        }
    }

    /// Copies elements in row-major order to contiguous memory. The two must not overlap.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub fn copy(
        &mut self,
        site: &dyn Site,
        from: DeviceView<'_>,
        to: DeviceViewMut<'_>,
    ) -> Result<(), Trouble> {
        let strides = contiguous_strides(from.shape);
        let to_operand = Operand::at(to.ptr, &strides);
        let plan = copy::plan(from.dtype.size(), from.shape, operand(&from), to_operand, 0);
        self.run(site, &plan, &[from.ptr], &[to.ptr])
    }

    /// Zeroes memory by a kernel.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub fn zero(&mut self, site: &dyn Site, ptr: u64, bytes: usize) -> Result<(), Trouble> {
        let mut zeros = Program::default();
        let zero = zeros.push(Code::Fill(Scalar::Int(0)), DType::U8, DType::U8);
        zeros.outputs.push(zero);
        let to = DeviceViewMut { ptr, dtype: DType::U8, shape: &[bytes] };
        self.group(site, &zeros, &[bytes], &[], &[to], None)
    }

    /// A view without gaps: itself, or a copy in scratch memory. `strides` lends the memory for its
    /// strides.
    pub(crate) fn contiguous<'a>(
        &mut self,
        site: &dyn Site,
        view: DeviceView<'a>,
        strides: &'a mut Strides,
    ) -> Result<DeviceView<'a>, Trouble> {
        if view.is_contiguous() {
            return Ok(view);
        }
        let ptr = site.scratch(view.numel() * view.dtype.size())?;
        self.copy(site, view, DeviceViewMut { ptr, dtype: view.dtype, shape: view.shape })?;
        *strides = contiguous_strides(view.shape);
        Ok(DeviceView { ptr, strides, ..view })
    }

    pub(crate) fn reduce(
        &mut self,
        site: &dyn Site,
        reduction: &Reduction,
        input: DeviceView<'_>,
        output: DeviceViewMut<'_>,
    ) -> Result<(), Trouble> {
        let program = reduce::identity(input.dtype);
        let dims = &reduction.dims;
        let plan = reduce::plan(reduction.op, &program, input.shape, dims, &[operand(&input)]);
        if let Some(plan) = plan {
            return self.run(site, &plan, &[input.ptr], &[output.ptr]);
        }
        let mut strides = Strides::new();
        let input = self.contiguous(site, input, &mut strides)?;
        match reduce::plan(reduction.op, &program, input.shape, dims, &[operand(&input)]) {
            Some(plan) => self.run(site, &plan, &[input.ptr], &[output.ptr]),
            // Kept and reduced dimensions by turns, more than eight of each.
            None => Err(Trouble::no_kernel(format_args!(
                "{} over {:?}",
                reduction.op.name(),
                input.shape
            ))),
        }
    }

    /// Forgets kernels that were not used since the last call; `trim` unloads them.
    pub fn forget_unused(&mut self) {
        self.modules.forget_unused();
        self.convolutions.forget_unused();
    }

    /// Unloads unused modules, once no graph is left.
    pub fn trim(&mut self, idle: &Idle<'_>) {
        self.modules.trim(idle);
    }

    /// Ends the background, unloads all modules and ends the cuBLAS handles, once no graph is left.
    pub fn clear(&mut self, idle: &Idle<'_>) {
        self.background.end();
        self.modules.clear(idle);
        self.blas.clear(idle);
        self.convolutions.clear();
    }

    /// Queues the launches of a plan: inputs and outputs by address, in the plan's order.
    pub(crate) fn run(
        &mut self,
        site: &dyn Site,
        plan: &Plan,
        inputs: &[u64],
        outputs: &[u64],
    ) -> Result<(), Trouble> {
        let mut functions: SmallVec<[Function; 4]> = SmallVec::new();
        for launch in &plan.launches {
            functions.push(self.modules.single(&launch.kernel)?);
        }
        self.launch_plan(site, plan, &functions, inputs, outputs)
    }

    /// Queues launches whose functions are at hand.
    pub(crate) fn launch_plan(
        &mut self,
        site: &dyn Site,
        plan: &Plan,
        functions: &[Function],
        inputs: &[u64],
        outputs: &[u64],
    ) -> Result<(), Trouble> {
        if let Some(Launch { grid, .. }) = plan.launches.iter().find(|launch| !launch.fits()) {
            return Err(Trouble::no_kernel(format_args!(
                "a value that takes a grid of {grid:?} blocks or more"
            )));
        }
        let scratch = if plan.scratch > 0 { site.scratch(plan.scratch)? } else { 0 };
        for (Launch { grid, block, shared, args, .. }, &function) in
            plan.launches.iter().zip(functions)
        {
            let mut words = Words::default();
            for arg in args {
                match arg {
                    Arg::In { index, bytes } => {
                        words.address(inputs[*index as usize].wrapping_add_signed(*bytes as i64))
                    }
                    Arg::Out { index, bytes } => {
                        words.address(outputs[*index as usize] + *bytes as u64)
                    }
                    Arg::Scratch(bytes) => words.address(scratch + *bytes as u64),
                    Arg::IndexError => words.address(site.index_error()?),
                    Arg::U32(x) => words.push(&[*x as u64]),
                    Arg::U64(x) => words.push(&[*x]),
                    Arg::F32(x) => words.push(&[x.to_bits() as u64]),
                    Arg::F64(x) => words.push(&[x.to_bits()]),
                    Arg::Struct(w) => words.push(w.as_words()),
                }
            }
            self.launch(site, function, [*grid, *block], *shared, &words);
        }
        Ok(())
    }

    fn launch(
        &mut self,
        site: &dyn Site,
        function: Function,
        grid: [[u32; 3]; 2],
        shared: u32,
        words: &Words,
    ) {
        match site.launch_list() {
            Some(launch_list) => launch_list.launch(function, grid, shared, words),
            None => self.batch.launch(function, grid, shared, words),
        }
    }

    /// The step is not to be launched, or not now.
    pub fn forget(&mut self) {
        self.batch.clear();
        self.modules.asked.clear();
    }

    /// Makes all launches of the batch.
    ///
    /// # Errors
    /// See [`Trouble`]; launches that were made before can harm only the step's own
    /// results.
    pub fn send(&mut self, site: &dyn Site) -> Result<(), Trouble> {
        self.modules.were_seen();
        self.batch.send(&site.stream(), &self.blas, &self.convolutions)
    }

    /// Queues a library's call, whose handle is ready.
    pub(crate) fn library(&mut self, site: &dyn Site, call: LibraryCall<u64>) {
        match site.launch_list() {
            Some(launch_list) => launch_list.library(&call),
            None => self.batch.library(call),
        }
    }

    /// A library's call as a graph, by capturing it on a stream: what the stream was given before
    /// stays outside. A product works in the workspace of the lane `home`.
    pub(crate) fn captured(
        &self,
        raw: nvidia::Raw,
        call: &LibraryCall<u64>,
        home: usize,
    ) -> Result<Captured, Trouble> {
        match call {
            LibraryCall::Product(product) => self.blas.captured(raw, product, home),
            LibraryCall::Convolution(convolved) => self.convolutions.captured(raw, convolved),
        }
    }

    /// Queues one launch of a kernel from outside.
    pub(crate) fn launch_custom(
        &mut self,
        site: &dyn Site,
        kernel: CudaKernel<'_>,
        grid: CudaGrid,
        args: &[CudaArg<'_>],
    ) -> Result<(), Trouble> {
        let function = self.modules.custom(kernel)?;
        let mut words = Words::default();
        for arg in args {
            match *arg {
                CudaArg::Address(x) => words.address(x),
                CudaArg::U64(x) => words.push(&[x]),
                CudaArg::I64(x) => words.push(&[x as u64]),
                CudaArg::U32(x) => words.push(&[x as u64]),
                CudaArg::I32(x) => words.push(&[x as u32 as u64]),
                CudaArg::F32(x) => words.push(&[x.to_bits() as u64]),
                CudaArg::F64(x) => words.push(&[x.to_bits()]),
                CudaArg::Bytes(bytes) => {
                    let word = |chunk: &[u8]| {
                        let mut eight = [0; 8];
                        eight[..chunk.len()].copy_from_slice(chunk);
                        u64::from_ne_bytes(eight)
                    };
                    words.push(&bytes.chunks(8).map(word).collect::<SmallVec<[u64; 16]>>());
                }
            }
        }
        self.launch(site, function, [grid.grid, grid.block], grid.shared, &words);
        Ok(())
    }
}

const _: () =
    assert!(INDEX_ERROR_BYTES == 32, "the driver of the device reads the record back in this size");
