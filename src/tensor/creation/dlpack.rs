//! DLPack, the C struct by which libraries hand tensors over without a copy.
//!
//! The layout is that of DLPack's `dlpack.h` up to version 0.8, which NumPy, PyTorch, CuPy and JAX
//! take and give in a capsule named `dltensor`. What a handle lends stays as it is: its memory is
//! written over by nobody while the other side has it.

#![allow(unsafe_code)]

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, bytes_of};
use crate::graph::value::{Buffer, Storage, Value};
use crate::guard::discard_unlocked;
use crate::shape::{Layout, Shape, Strides, contiguous_strides};
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::{Tensor, TensorFuture};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::Location;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Kinds of memory (`DLDeviceType`): the host's, a GPU's, and page-locked host memory.
const CPU: i32 = 1;
const GPU: i32 = 2;
const GPU_HOST: i32 = 3;

/// A device in DLPack's words (`DLDevice`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDevice {
    /// `kDLCPU` is 1, `kDLCUDA` 2, `kDLCUDAHost` 3.
    pub device_type: i32,
    /// The number of the GPU.
    pub device_id: i32,
}

/// An element type in DLPack's words (`DLDataType`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDataType {
    /// Signed integers are 0, unsigned ones 1, floats 2, bfloat16 4, bool 6.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// 1.
    pub lanes: u16,
}

/// A tensor in DLPack's words (`DLTensor`).
#[repr(C)]
#[derive(Debug)]
pub struct DlTensor {
    /// Where the memory begins.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DlDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DlDataType,
    /// The sizes.
    pub shape: *mut i64,
    /// The strides in elements; null if the elements lie in row-major order without gaps.
    pub strides: *mut i64,
    /// Where the first element is, from `data` on.
    pub byte_offset: u64,
}

/// A tensor with its owner (`DLManagedTensor`). Whoever has it calls `deleter` once.
#[repr(C)]
#[derive(Debug)]
pub struct DlManagedTensor {
    /// The tensor.
    pub dl_tensor: DlTensor,
    /// The owner's.
    pub manager_ctx: *mut c_void,
    /// Ends the loan.
    pub deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

fn type_of(dtype: DType) -> DlDataType {
    let code = match dtype {
        DType::I32 | DType::I64 | DType::I8 | DType::I16 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 12,
    };
    DlDataType { code, bits: 8 * dtype.size() as u8, lanes: 1 }
}

/// What somebody else lent; dropping it ends the loan.
struct Loan(*mut DlManagedTensor);

// SAFETY: the caller of `from_dlpack` promises that the deleter may be called from any thread.
unsafe impl Send for Loan {}
// SAFETY: as above; nothing is done with it but its end.
unsafe impl Sync for Loan {}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: the tensor is alive until its one deleter is called, here.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

/// Host memory of somebody else's.
struct Lent {
    ptr: usize,
    bytes: usize,
    /// Some, until it is dropped.
    loan: Option<Loan>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} at {:#x})", bytes_of(self.bytes), self.ptr)
    }
}

impl Buffer for Lent {
    fn host(&self) -> Option<*mut u8> {
        Some(self.ptr as *mut u8)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        discard_unlocked(self.loan.take());
    }
}

/// A value that is lent to somebody else.
struct Borrowed {
    managed: DlManagedTensor,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _value: TensorFuture,
}

unsafe extern "C" fn give_back(managed: *mut DlManagedTensor) {
    // SAFETY: the tensor is the one that `to_dlpack` gave, whose context is its box.
    drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Borrowed>()) });
}

/// A tensor as its struct describes it.
struct Described {
    device: DlDevice,
    dtype: DType,
    layout: Layout,
    /// The lowest address of an element.
    lowest: usize,
    bytes: usize,
}

impl Described {
    /// # Safety
    /// The pointers lead to as many sizes and strides as the tensor has dimensions.
    unsafe fn of(tensor: &DlTensor) -> std::result::Result<Described, String> {
        let &DlTensor { data, device, ndim, dtype: code, shape, strides, byte_offset } = tensor;
        let dtype = DType::ALL.into_iter().find(|&dtype| type_of(dtype) == code);
        let dtype = dtype.ok_or_else(|| format!("elements of an unknown type: {code:?}"))?;
        let rank = usize::try_from(ndim).ok().filter(|&n| n <= 64);
        let rank = rank.ok_or("more dimensions than a tensor has here")?;
        let list = |list: *const i64| match rank {
            0 => &[],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(list, rank) },
        };
        let sizes: Option<Vec<usize>> =
            list(shape).iter().map(|&n| usize::try_from(n).ok()).collect();
        let shape = Shape::from(sizes.ok_or("a size below 0")?);
        build::fits(&shape, dtype).map_err(|refusal| refusal.message)?;
        let strides: Strides = if strides.is_null() || shape.numel() == 0 {
            contiguous_strides(&shape)
        } else {
            list(strides).iter().map(|&s| s as isize).collect()
        };
        // How far elements lie before and behind the first.
        let (mut before, mut behind) = (0isize, 0isize);
        for (&n, &s) in shape.iter().zip(&strides).filter(|_| shape.numel() > 0) {
            let far = s.checked_mul(n as isize - 1).ok_or("strides beyond the address space")?;
            let side = if far < 0 { &mut before } else { &mut behind };
            *side = side.checked_add(far).ok_or("strides beyond the address space")?;
        }
        let offset = before.unsigned_abs();
        let elements = if shape.numel() == 0 { 0 } else { offset + behind as usize + 1 };
        let bytes = elements.checked_mul(dtype.size()).ok_or("strides beyond the address space")?;
        let first = (data as usize).wrapping_add(byte_offset as usize);
        let lowest = first.wrapping_sub(offset * dtype.size());
        if !first.is_multiple_of(dtype.size()) || first == 0 && bytes > 0 {
            return Err(format!("elements of {dtype} at {first:#x}"));
        }
        let layout = Layout { shape, strides, offset };
        Ok(Described { device, dtype, layout, lowest, bytes })
    }
}

/// DLPack.
impl Device {
    /// A tensor in the memory of another library, without a copy on a device that has the same
    /// memory: host memory on a CPU, that of a GPU on the GPU with its number. A GPU copies host
    /// memory when a step first needs it. The loan ends when the last value in this memory is gone.
    ///
    /// # Errors
    /// If the tensor is somewhere else, or its type is not one of [`DType`]. The caller then still
    /// has it.
    ///
    /// # Safety
    /// `managed` is valid in the sense of DLPack, and nobody else ends the loan. Its elements are
    /// there (on a GPU, the work that writes them is through, or the device's stream is ordered
    /// behind it), and nobody writes them until the loan ends. A bool is 0 or 1. The deleter may be
    /// called from any thread.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = (device.arange(0.0, 6.0, 1.0).reshape([2, 3]).t() + 1.0).await?;
    /// let lent = x.to_dlpack()?;
    /// // SAFETY: it was just made, and goes nowhere else.
    /// let y = unsafe { device.from_dlpack(lent) }?;
    /// assert_eq!(y.to_vec::<f32>().await?, x.to_vec::<f32>().await?);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("from_numpy", "from_blob", "from_raw"))]
    #[track_caller]
    pub unsafe fn from_dlpack(&self, managed: NonNull<DlManagedTensor>) -> Result<TensorFuture> {
        let at = Location::caller();
        let refused = |text| Error::new(ErrorKind::Argument, "from_dlpack", text, at);
        // SAFETY: the caller's promise.
        let described = unsafe { Described::of(&managed.as_ref().dl_tensor) }.map_err(refused)?;
        self.lent(described, managed, at).map_err(refused)
    }

    fn lent(
        &self,
        Described { device, dtype, layout, lowest, bytes }: Described,
        managed: NonNull<DlManagedTensor>,
        at: At,
    ) -> std::result::Result<TensorFuture, String> {
        let loan = || Loan(managed.as_ptr());
        let runner = &self.port.runner;
        let value = match device.device_type {
            _ if bytes == 0 => {
                drop(loan());
                Value::nothing()
            }
            CPU | GPU_HOST => {
                let lent = Lent { ptr: lowest, bytes, loan: Some(loan()) };
                let value = Value::placed(Storage::Shared(Arc::new(lent)), &layout);
                runner.receive(value, &layout.shape, dtype)
            }
            GPU => {
                let number = usize::try_from(device.device_id).unwrap_or(usize::MAX);
                let owner = move || Box::new(loan()) as Box<dyn Any + Send>;
                let buffer = runner.lent(self.port, number, lowest as u64, bytes, &owner)?;
                Value::placed(Storage::Shared(buffer), &layout)
            }
            other => return Err(format!("memory of a device of kind {other}")),
        };
        let at = build::seen(at);
        Ok(TensorFuture::new(self.port.given(layout.shape, dtype, at, Ok(value))))
    }
}

/// DLPack.
impl Tensor {
    /// Lends the elements to another library, without a copy: for Python in a capsule named
    /// `dltensor`. Whoever gets the struct ends the loan by its `deleter`. Until then nothing in
    /// this library writes over the elements.
    ///
    /// On a GPU, the deleter may be called only when the work that reads the elements is through.
    ///
    /// # Errors
    /// On a GPU, an argument error for a value whose elements are not there: a constant, or host
    /// data that no op has needed yet. `x + 0.0` puts them there.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().ones([2, 3]).await?;
    /// let lent = x.to_dlpack()?;
    /// // SAFETY: it was just made; its deleter is called once.
    /// unsafe {
    ///     let tensor = &lent.as_ref().dl_tensor;
    ///     assert_eq!((tensor.ndim, tensor.device.device_type), (2, 1));
    ///     lent.as_ref().deleter.unwrap()(lent.as_ptr());
    /// }
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("as_ptr", "data_ptr"))]
    #[track_caller]
    pub fn to_dlpack(&self) -> Result<NonNull<DlManagedTensor>> {
        let value: TensorFuture = TensorFuture::clone(self);
        let (shape, dtype) = (value.shape().clone(), value.dtype());
        let known = match value.node.completion.get() {
            Some(Ok(known)) => known,
            Some(Err(error)) => return Err(error.clone()),
            None => unreachable!("a tensor is complete"),
        };
        let layout = known.layout(&shape);
        let on_gpu = value.port().runner.address(known);
        let (device_type, device_id, base) = match (on_gpu, known.host()) {
            (Some((number, base)), _) => (GPU, number as i32, base as usize),
            (None, Some(base)) if value.port().profile.in_memory => (CPU, 0, base as usize),
            _ => {
                let text = "the elements are not on the GPU yet: no op has needed them there";
                let at = Location::caller();
                return Err(Error::new(ErrorKind::Argument, "to_dlpack", text, at));
            }
        };
        let mut lent = Box::new(Borrowed {
            managed: DlManagedTensor {
                dl_tensor: DlTensor {
                    data: (base + layout.offset * dtype.size()) as *mut c_void,
                    device: DlDevice { device_type, device_id },
                    ndim: shape.rank() as i32,
                    dtype: type_of(dtype),
                    shape: null_mut(),
                    strides: null_mut(),
                    byte_offset: 0,
                },
                manager_ctx: null_mut(),
                deleter: Some(give_back),
            },
            shape: shape.iter().map(|&n| n as i64).collect(),
            strides: layout.strides.iter().map(|&s| s as i64).collect(),
            _value: value,
        });
        lent.managed.dl_tensor.shape = lent.shape.as_mut_ptr();
        lent.managed.dl_tensor.strides = lent.strides.as_mut_ptr();
        let lent = Box::into_raw(lent);
        // SAFETY: it was just a box, and is nobody else's.
        unsafe { (*lent).managed.manager_ctx = lent.cast() };
        // SAFETY: as above.
        Ok(unsafe { NonNull::from(&mut (*lent).managed) })
    }
}
