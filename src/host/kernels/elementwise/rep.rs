//! How registers hold the element types.

use crate::dtype::DType;

/// What a type is computed in: 16-bit floats in f32, rounded after each instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(in crate::host::kernels) enum Rep {
    F32,
    F64,
    I32,
    I64,
    U8,
    Bool,
}

pub(super) const REPS: usize = 6;

impl Rep {
    /// The representation of an element type; of one for storage, that in which it is converted.
    #[inline(always)]
    pub fn of(dtype: DType) -> Rep {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Rep::F32,
            DType::F8E4M3 | DType::F8E5M2 => Rep::F32,
            DType::F64 => Rep::F64,
            DType::I32 | DType::I8 | DType::I16 | DType::U16 => Rep::I32,
            DType::I64 | DType::U32 | DType::U64 => Rep::I64,
            DType::U8 => Rep::U8,
            DType::Bool => Rep::Bool,
        }
    }

    /// Bytes of one element.
    #[inline(always)]
    pub fn size(self) -> usize {
        match self {
            Rep::F32 | Rep::I32 => 4,
            Rep::F64 | Rep::I64 => 8,
            Rep::U8 | Rep::Bool => 1,
        }
    }
}
