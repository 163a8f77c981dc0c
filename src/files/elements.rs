//! Elements as bytes of a file: little-endian on every machine.

use crate::dtype::Element;
use crate::float8::{Float8E4M3, Float8E5M2};
use half::{bf16, f16};

/// An element that a file can hold.
pub(crate) trait Wire: Element {
    /// Appends elements from whole chunks of bytes. An invalid byte (such as a bool of 2) is an
    /// error with its position.
    fn read(bytes: &[u8], to: &mut Vec<Self>) -> Result<(), usize>;
    /// Appends the bytes of elements.
    fn write(elements: &[Self], to: &mut Vec<u8>);
}

macro_rules! wire {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn read(bytes: &[u8], to: &mut Vec<$t>) -> Result<(), usize> {
                let each = |b: &[u8]| <$t>::from_le_bytes(b.try_into().expect("chunks of one \
                    element"));
                to.extend(bytes.chunks_exact(size_of::<$t>()).map(each));
                Ok(())
            }
            fn write(elements: &[$t], to: &mut Vec<u8>) {
                elements.iter().for_each(|x| to.extend_from_slice(&x.to_le_bytes()));
            }
        }
    )*};
}
wire!(f32, f64, f16, bf16, i32, i64, u8, i8, i16, u16, u32, u64);

macro_rules! wire_of_a_byte {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn read(bytes: &[u8], to: &mut Vec<$t>) -> Result<(), usize> {
                to.extend(bytes.iter().map(|&bits| <$t>::from_bits(bits)));
                Ok(())
            }
            fn write(elements: &[$t], to: &mut Vec<u8>) {
                to.extend(elements.iter().map(|x| x.to_bits()));
            }
        }
    )*};
}
wire_of_a_byte!(Float8E4M3, Float8E5M2);

impl Wire for bool {
    fn read(bytes: &[u8], to: &mut Vec<bool>) -> Result<(), usize> {
        match bytes.iter().position(|&b| b > 1) {
            Some(wrong) => Err(wrong),
            None => {
                to.extend(bytes.iter().map(|&b| b == 1));
                Ok(())
            }
        }
    }
    fn write(elements: &[bool], to: &mut Vec<u8>) {
        to.extend(elements.iter().map(|&b| b as u8));
    }
}
