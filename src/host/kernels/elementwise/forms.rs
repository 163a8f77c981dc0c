//! What all loops have in common: an instance for each level, operands that are one element, lines
//! of memory.

use crate::host::kernels::simd::{LEVELS, Loop};
use crate::host::kernels::stream::LINE;

/// A loop, compiled for each level.
pub(super) type Instances = [Loop; LEVELS];

/// Which operands of a binary loop are one element: none, the second, the first.
pub(super) const NONE: u8 = 0;
pub(super) const SECOND: u8 = 1;
pub(super) const FIRST: u8 = 2;

/// How far ahead, in bytes, the operand is asked for. A Xeon by itself looks a few lines ahead:
/// there `tanh` of 16 Mi took 12 ms without and 3.5 with it, `gelu` 15 and 4.2, nearer than 2 KiB
/// it is slower. (On the Zen 5 it brings nothing, and a negation takes 6 % longer.)
pub(super) const AHEAD: usize = 4096;

/// Elements of a line.
pub(super) const LANES: usize = LINE / size_of::<f32>();
