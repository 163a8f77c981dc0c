//! DLPack with NumPy and PyTorch, in one process: tensors go both ways, and nothing is copied.
//!
//!     cargo test -p futensor-tests --test dlpack
//!     FUTENSOR_PYTHON=venv/bin/python cargo test -p futensor-tests --test dlpack
//!
//! The program opens Python's own library. Where that, NumPy or PyTorch is missing, their trials
//! are reported as ignored; those between two devices of ours always run.

#![allow(unsafe_code)]

use futensor::dlpack::DlManagedTensor;
use futensor::{DType, Device, Tensor, TensorFuture};
use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};
use support::{block_on, until};

/// What Python says of itself: its library, and where it finds packages.
fn python() -> Option<(String, String)> {
    let named = std::env::var("FUTENSOR_PYTHON").unwrap_or_else(|_| "python3".into());
    let asks = "import os, sys, sysconfig as s
print(os.path.join(s.get_config_var('LIBDIR'), s.get_config_var('LDLIBRARY')))
print(repr(sys.path))";
    let out = Command::new(named).args(["-c", asks]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let (library, path) = text.trim().split_once('\n')?;
    library.contains(".so").then(|| (library.to_owned(), path.to_owned()))
}

fn has(module: &str) -> bool {
    let named = std::env::var("FUTENSOR_PYTHON").unwrap_or_else(|_| "python3".into());
    let asks = format!("import {module}");
    Command::new(named).args(["-c", &asks]).output().is_ok_and(|out| out.status.success())
}

/// The interpreter, in this process.
struct Interpreter {
    ensure: unsafe extern "C" fn() -> c_int,
    run: unsafe extern "C" fn(*const c_char) -> c_int,
    release: unsafe extern "C" fn(c_int),
}

const PRELUDE: &str = r#"
import ctypes, sys
api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAME, USED = b"dltensor", b"used_dltensor"

class Lent:
    """What has a struct at an address."""
    def __init__(self, at):
        self.capsule = api.PyCapsule_New(at, NAME, None)
    def __dlpack__(self, **_):
        return self.capsule
    def __dlpack_device__(self):
        return (1, 0)

def lend(x, to):
    """Puts the address of a struct there."""
    capsule = x.__dlpack__()
    ctypes.c_uint64.from_address(to).value = api.PyCapsule_GetPointer(capsule, NAME)
    api.PyCapsule_SetName(capsule, USED)
"#;

impl Interpreter {
    fn get() -> &'static Interpreter {
        static ONE: OnceLock<Interpreter> = OnceLock::new();
        ONE.get_or_init(|| {
            let (library, path) = python().expect("ignored without it");
            let library = CString::new(library).unwrap();
            // SAFETY: Python's own library, with its functions as its headers declare them; it is
            // begun once, and never ended.
            unsafe {
                let how = libc::RTLD_NOW | libc::RTLD_GLOBAL;
                let library = libc::dlopen(library.as_ptr(), how);
                assert!(!library.is_null(), "Python's library cannot be opened");
                let find = |name: &std::ffi::CStr| {
                    let found = libc::dlsym(library, name.as_ptr());
                    assert!(!found.is_null(), "{name:?}");
                    found
                };
                let begin: unsafe extern "C" fn(c_int) =
                    std::mem::transmute(find(c"Py_InitializeEx"));
                begin(0);
                let one = Interpreter {
                    ensure: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(
                        find(c"PyGILState_Ensure"),
                    ),
                    run: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*const c_char) -> c_int,
                    >(find(c"PyRun_SimpleString")),
                    release: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(find(
                        c"PyGILState_Release",
                    )),
                };
                let save: unsafe extern "C" fn() -> *mut c_void =
                    std::mem::transmute(find(c"PyEval_SaveThread"));
                save();
                one.runs(&format!("import sys\nsys.path[:] = {path}\n{PRELUDE}"));
                one
            }
        })
    }

    /// Runs some lines, all of which succeed.
    fn runs(&self, code: &str) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        let code = CString::new(code).unwrap();
        // SAFETY: the interpreter is there; the thread has it between the two.
        let done = unsafe {
            let state = (self.ensure)();
            let done = (self.run)(code.as_ptr());
            (self.release)(state);
            done
        };
        assert_eq!(done, 0, "Python says why above");
    }
}

fn device() -> Device {
    Device::cpu_with(Default::default())
}

/// The address of a tensor's first element.
fn address(x: &Tensor) -> usize {
    let lent = x.to_dlpack().unwrap();
    // SAFETY: it was just lent, and is given back here.
    unsafe {
        let tensor = &lent.as_ref().dl_tensor;
        let at = tensor.data as usize + tensor.byte_offset as usize;
        lent.as_ref().deleter.unwrap()(lent.as_ptr());
        at
    }
}

/// A tensor that Python makes; its name there, and its address.
fn taken(python: &Interpreter, device: &Device, made: &str) -> Tensor {
    let mut slot = 0u64;
    let to = &raw mut slot as usize;
    python.runs(&format!("{made}\nlend(x, {to})"));
    let lent = NonNull::new(slot as *mut DlManagedTensor).unwrap();
    // SAFETY: Python lends it to nobody else, and writes no element.
    block_on(unsafe { device.from_dlpack(lent) }.unwrap()).unwrap()
}

fn every_type_goes_there_and_back() {
    let device = device();
    let x = device.arange(0.0, 24.0, 1.0).reshape([2, 3, 4]);
    for dtype in DType::ALL {
        for x in [
            x.to_dtype(dtype),
            x.to_dtype(dtype).transpose(0, 2),
            x.to_dtype(dtype).i((.., 1, 1..3)),
        ] {
            let x = block_on(&x).unwrap();
            // SAFETY: it was just lent.
            let y = unsafe { device.from_dlpack(x.to_dlpack().unwrap()) }.unwrap();
            let y = block_on(y).unwrap();
            assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
            assert_eq!(address(&y), address(&x));
            let numbers = |x: &Tensor| block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap();
            assert_eq!(numbers(&y), numbers(&x), "{dtype}");
        }
    }
    drop(x);
    until(|| device.stats().bytes_live == 0);
}

fn what_is_lent_is_written_over_by_nobody() {
    let device = device();
    let x = block_on(device.zeros([1000]) + 1.0).unwrap();
    let lent = x.to_dlpack().unwrap();
    // The last handle is gone: without the loan this would be done in place.
    let y = x.into_future_value().slice_assign(0..500, device.full([500], 9.0));
    block_on(&y).unwrap();
    // SAFETY: as above.
    let back: TensorFuture = unsafe { device.from_dlpack(lent) }.unwrap();
    assert_eq!(block_on(back.to_vec::<f32>()).unwrap(), [1.0; 1000]);
}

fn numpy_reads_a_tensor_where_it_lies() {
    let (python, device) = (Interpreter::get(), device());
    let x = block_on((device.arange(0.0, 1200.0, 1.0).reshape([30, 40]) + 0.0).t()).unwrap();
    let (at, lent) = (address(&x), x.to_dlpack().unwrap().as_ptr() as usize);
    drop(x);
    python.runs(&format!(
        "import numpy
a = numpy.from_dlpack(Lent({lent}))
assert a.shape == (40, 30) and a.dtype == numpy.float32 and a.ctypes.data == {at}
assert (a == numpy.arange(1200).reshape(30, 40).T).all()"
    ));
    assert!(device.stats().bytes_live > 0);
    python.runs("del a");
    until(|| device.stats().bytes_live == 0);
}

fn an_array_of_numpys_is_computed_with_where_it_lies() {
    let (python, device) = (Interpreter::get(), device());
    let x = taken(
        python,
        &device,
        "import numpy
x = numpy.arange(2400, dtype=numpy.float64).reshape(40, 60)[::-1, ::2]
before = sys.getrefcount(x)",
    );
    assert_eq!((x.dims(), x.dtype()), (&[40, 30][..], DType::F64));
    python.runs(&format!("assert x.ctypes.data == {}", address(&x)));
    let sums = block_on((&x * 2.0).sum([1]).to_vec::<f64>()).unwrap();
    let row = |row: usize| (0..30).map(|i| (row * 60 + 2 * i) as f64 * 2.0).sum::<f64>();
    let want: Vec<f64> = (0..40).rev().map(row).collect();
    assert_eq!(sums, want);
    drop(x);
    // The loan holds the array until the value's memory is dropped.
    until(|| {
        let mut count = 0u64;
        let to = &raw mut count as usize;
        python.runs(&format!(
            "ctypes.c_uint64.from_address({to}).value = 1 + sys.getrefcount(x) - before"
        ));
        count <= 1
    });
}

fn pytorch_reads_a_tensor_where_it_lies() {
    let (python, device) = (Interpreter::get(), device());
    for (dtype, theirs) in [(DType::BF16, "bfloat16"), (DType::I64, "int64"), (DType::Bool, "bool")]
    {
        let x = device.arange(0.0, 600.0, 1.0).reshape([20, 30]).gt(300.0).to_dtype(dtype);
        let x = block_on(x.t()).unwrap();
        let (at, lent) = (address(&x), x.to_dlpack().unwrap().as_ptr() as usize);
        drop(x);
        python.runs(&format!(
            "import torch
a = torch.from_dlpack(Lent({lent}))
assert a.shape == (30, 20) and a.dtype == torch.{theirs} and a.data_ptr() == {at}
assert ((a != 0) == (torch.arange(600).reshape(20, 30) > 300).T).all()
del a"
        ));
        until(|| device.stats().bytes_live == 0);
    }
}

fn a_tensor_of_pytorchs_is_computed_with_where_it_lies() {
    let (python, device) = (Interpreter::get(), device());
    let made = "import torch\nx = torch.arange(600).to(torch.bfloat16).reshape(20, 30).T";
    let x = taken(python, &device, made);
    assert_eq!((x.dims(), x.dtype()), (&[30, 20][..], DType::BF16));
    python.runs(&format!("assert x.data_ptr() == {}", address(&x)));
    let largest = block_on(x.max_all().to_dtype(DType::F32).item::<f32>()).unwrap();
    assert_eq!(largest, 600.0);
    // It may be gone there before it is here.
    python.runs("del x");
    let first = block_on(x.i((.., 0)).to_dtype(DType::F32).to_vec::<f32>()).unwrap();
    assert_eq!(first, (0..30).map(|i| i as f32).collect::<Vec<_>>());
}

fn main() {
    // There is one interpreter, with one set of names.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let is_there = python().is_some();
    let (numpy, torch) = (is_there && has("numpy"), is_there && has("torch"));
    let trial = |name: &str, runs: fn(), is_there: bool| {
        let runs = move || {
            runs();
            Ok::<(), Failed>(())
        };
        Trial::test(name, runs).with_ignored_flag(!is_there)
    };
    macro_rules! trials {
        ($($name:ident: $there:expr),* $(,)?) => {
            vec![$(trial(stringify!($name), $name, $there)),*]
        };
    }
    let all = trials![
        every_type_goes_there_and_back: true,
        what_is_lent_is_written_over_by_nobody: true,
        numpy_reads_a_tensor_where_it_lies: numpy,
        an_array_of_numpys_is_computed_with_where_it_lies: numpy,
        pytorch_reads_a_tensor_where_it_lies: torch,
        a_tensor_of_pytorchs_is_computed_with_where_it_lies: torch,
    ];
    libtest_mimic::run(&arguments, all).exit();
}
