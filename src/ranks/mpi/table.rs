//! MPI's functions and constants, from a library that is loaded at run time.
//!
//! The functions have the same types in every implementation whose handles are pointers: those of
//! Open MPI, whose constants are addresses of objects that it exports, and those of MPI-5's
//! standard ABI, whose constants are small numbers (`mpi_abi.h`).

#![allow(unsafe_code)]

use super::find::{missing, places};
use crate::dtype::DType;
use crate::engine::exchange::Combine;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

/// A communicator, a group, a type, an op, a request.
pub(super) type Handle = *mut c_void;
/// Untyped memory, as MPI takes it: MPI does not write to operands.
pub(super) type Buf = *mut c_void;
/// The operand is in the memory of the result: the same value in both tables.
pub(super) const IN_PLACE: Buf = 1 as Buf;

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) = $symbol:literal;)* ;
        $($may:ident: fn($($given:ty),*) = $maybe:literal;)*) => {
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            $(pub $may: Option<unsafe extern "C" fn($($given),*) -> c_int>,)*
        }
        impl Functions {
            /// # Safety
            /// The library is an MPI whose handles are pointers.
            unsafe fn of(library: &Library) -> Result<Functions, String> {
                // SAFETY: the caller's promise: the symbols are the standard's functions.
                unsafe { Ok(Functions {
                    $($name: *library.get($symbol).map_err(|error| error.to_string())?,)*
                    $($may: library.get($maybe).ok().map(|symbol| *symbol),)*
                }) }
            }
        }
    };
}

functions! {
    init_thread: fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) = b"MPI_Init_thread\0";
    initialized: fn(*mut c_int) = b"MPI_Initialized\0";
    finalize: fn() = b"MPI_Finalize\0";
    comm_set_errhandler: fn(Handle, Handle) = b"MPI_Comm_set_errhandler\0";
    comm_rank: fn(Handle, *mut c_int) = b"MPI_Comm_rank\0";
    comm_size: fn(Handle, *mut c_int) = b"MPI_Comm_size\0";
    comm_group: fn(Handle, *mut Handle) = b"MPI_Comm_group\0";
    group_incl: fn(Handle, c_int, *const c_int, *mut Handle) = b"MPI_Group_incl\0";
    group_free: fn(*mut Handle) = b"MPI_Group_free\0";
    comm_free: fn(*mut Handle) = b"MPI_Comm_free\0";
    comm_create_group: fn(Handle, Handle, c_int, *mut Handle) = b"MPI_Comm_create_group\0";
    ibarrier: fn(Handle, *mut Handle) = b"MPI_Ibarrier\0";
    ibcast: fn(Buf, c_int, Handle, c_int, Handle, *mut Handle) = b"MPI_Ibcast\0";
    iallreduce: fn(Buf, Buf, c_int, Handle, Handle, Handle, *mut Handle) = b"MPI_Iallreduce\0";
    ireduce: fn(Buf, Buf, c_int, Handle, Handle, c_int, Handle, *mut Handle) = b"MPI_Ireduce\0";
    ireduce_scatter_block: fn(Buf, Buf, c_int, Handle, Handle, Handle, *mut Handle) =
        b"MPI_Ireduce_scatter_block\0";
    iallgather: fn(Buf, c_int, Handle, Buf, c_int, Handle, Handle, *mut Handle) =
        b"MPI_Iallgather\0";
    ialltoall: fn(Buf, c_int, Handle, Buf, c_int, Handle, Handle, *mut Handle) = b"MPI_Ialltoall\0";
    isend: fn(Buf, c_int, Handle, c_int, c_int, Handle, *mut Handle) = b"MPI_Isend\0";
    irecv: fn(Buf, c_int, Handle, c_int, c_int, Handle, *mut Handle) = b"MPI_Irecv\0";
    iprobe: fn(c_int, c_int, Handle, *mut c_int, *mut c_void) = b"MPI_Iprobe\0";
    test: fn(*mut Handle, *mut c_int, *mut c_void) = b"MPI_Test\0";
    error_string: fn(c_int, *mut c_char, *mut c_int) = b"MPI_Error_string\0";
    ;
    // MPI-4's way needs no participation of other ranks, and no intact parent.
    comm_create_from_group: fn(Handle, *const c_char, Handle, Handle, *mut Handle) =
        b"MPI_Comm_create_from_group\0";
}

/// The constants of a library.
pub(super) struct Constants {
    pub world: Handle,
    pub errors_return: Handle,
    pub info_null: Handle,
    pub multiple: c_int,
    types: [Handle; 6],
    ops: [Handle; 4],
}

impl Constants {
    /// MPI's type for a type of elements; halves have none.
    pub fn of(&self, dtype: DType) -> Handle {
        self.types[match dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::I32 | DType::U32 => 2,
            DType::I64 | DType::U64 => 3,
            DType::U8 | DType::Bool | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 5,
        }]
    }

    pub fn op(&self, combine: Combine) -> Handle {
        self.ops[combine as usize]
    }

    /// # Safety
    /// The library is Open MPI.
    unsafe fn of_open_mpi(library: &Library) -> Result<Constants, String> {
        let object = |name: &str| {
            let name = format!("ompi_mpi_{name}\0");
            // SAFETY: this takes the address of an exported object, and reads nothing.
            let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
            symbol.map(|symbol| symbol.as_raw_ptr()).map_err(|error| error.to_string())
        };
        Ok(Constants {
            world: object("comm_world")?,
            errors_return: object("errors_return")?,
            info_null: object("info_null")?,
            multiple: 3,
            types: [
                object("float")?,
                object("double")?,
                object("int32_t")?,
                object("int64_t")?,
                object("uint8_t")?,
                object("int16_t")?,
            ],
            ops: [object("op_sum")?, object("op_prod")?, object("op_min")?, object("op_max")?],
        })
    }

    /// `mpi_abi.h`.
    fn standard() -> Constants {
        let number = |n: usize| n as Handle;
        Constants {
            world: number(0x101),
            errors_return: number(0x143),
            info_null: number(0x130),
            multiple: 4096,
            types: [0x210, 0x214, 0x250, 0x258, 0x241, 0x248].map(number),
            ops: [0x21, 0x24, 0x22, 0x23].map(number),
        }
    }
}

pub(super) struct Table {
    pub call: Functions,
    pub is: Constants,
}

// SAFETY: the table has functions that any thread may call, and constants.
unsafe impl Send for Table {}
// SAFETY: as above; the table does not change.
unsafe impl Sync for Table {}

impl Table {
    /// The first library that can be loaded.
    ///
    /// # Errors
    /// No library was found: where it was searched for, and how to install one.
    pub fn find() -> Result<Table, String> {
        let mut tried = Vec::new();
        for path in places(&|name| std::env::var(name).ok()) {
            match Table::load(&path) {
                Ok(table) => return Ok(table),
                Err(why) => tried.push((path, why)),
            }
        }
        Err(missing(&tried))
    }

    fn load(path: &Path) -> Result<Table, String> {
        // SAFETY: the library's initialisers run; the user has installed it for that. Its symbols
        // are global, since its plug-ins search for them.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|e| e.to_string())?;
        // SAFETY: this only tests for an exported object, and reads nothing; only Open MPI exports
        // it.
        let is_open = unsafe { library.get::<*mut c_void>(b"ompi_mpi_comm_world\0") }.is_ok();
        let is_standard =
            path.file_name().is_some_and(|name| name.to_string_lossy().contains("mpi_abi"));
        let is = match (is_open, is_standard) {
            // SAFETY: the library exports Open MPI's object.
            (true, _) => unsafe { Constants::of_open_mpi(&library)? },
            (_, true) => Constants::standard(),
            _ => return Err("neither Open MPI nor the standard ABI".into()),
        };
        // SAFETY: in both kinds of library handles are pointers.
        let call = unsafe { Functions::of(&library)? };
        // What the library has started does not end with this handle, so it is never unloaded.
        std::mem::forget(library);
        Ok(Table { call, is })
    }

    /// The library's text for an error.
    pub fn error(&self, code: c_int) -> String {
        let (mut text, mut length) = ([0 as c_char; 1024], 0);
        // SAFETY: the buffer is larger than MPI_MAX_ERROR_STRING of any MPI (at most 512).
        let asked = unsafe { (self.call.error_string)(code, text.as_mut_ptr(), &mut length) };
        // A `c_char` has a sign on some platforms.
        let said = text.iter().take(length.clamp(0, 1023) as usize);
        let bytes: Vec<u8> = said.map(|c| c.to_ne_bytes()[0]).collect();
        match asked {
            0 => String::from_utf8_lossy(&bytes).into_owned(),
            _ => format!("MPI error {code}"),
        }
    }

    pub fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(self.error(code)) }
    }

    /// A communicator of these ranks of the world, made without the other ranks.
    pub fn communicator(&self, ranks: &[usize], name: &str) -> Result<Handle, String> {
        let ranks: Vec<c_int> = ranks.iter().map(|&r| r as c_int).collect();
        let tag =
            name.bytes().fold(0i32, |h, b| h.wrapping_mul(31).wrapping_add(b as i32)) & 0x7fff;
        let tagged = format!("{name}\0");
        let (mut all, mut some, mut made) = (null_mut(), null_mut(), null_mut());
        // SAFETY: these are handles of this library, and local values for the new ones.
        unsafe {
            self.check((self.call.comm_group)(self.is.world, &mut all))?;
            self.check((self.call.group_incl)(
                all,
                ranks.len() as c_int,
                ranks.as_ptr(),
                &mut some,
            ))?;
            let code = match self.call.comm_create_from_group {
                Some(create) => create(
                    some,
                    tagged.as_ptr().cast(),
                    self.is.info_null,
                    self.is.errors_return,
                    &mut made,
                ),
                None => (self.call.comm_create_group)(self.is.world, some, tag, &mut made),
            };
            self.check(code)?;
            (self.call.group_free)(&mut some);
            (self.call.group_free)(&mut all);
            self.check((self.call.comm_set_errhandler)(made, self.is.errors_return))?;
        }
        Ok(made)
    }
}
