//! Formats of blocks that no product reads: as a file is read they become a format that holds the
//! same values, or float32, to the values of gguf-py.

use crate::quant::Format;
use half::f16;
use std::fmt;

/// A format of quantised weights in files that becomes another type when it is loaded, with ggml's
/// name.
///
/// ```
/// use futensor::{gguf::Blocks, quant::Format};
/// assert_eq!((Blocks::Q5_1.to_string(), Blocks::Q5_1.format()), ("Q5_1".into(), None));
/// assert_eq!(Blocks::Q3_K.format(), Some(Format::Q6_K));
/// ```
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// 32 weights of 5 bits and a scale.
    Q5_0,
    /// 32 weights of 5 bits, a scale and a minimum.
    Q5_1,
    /// 256 weights of 3 bits, in sixteen parts with a scale of 6 bits each.
    Q3_K,
    /// 32 weights, each one of sixteen values, and a scale.
    IQ4_NL,
    /// 256 weights, each one of sixteen values, in eight parts with a scale of 6 bits each.
    IQ4_XS,
}

/// What the four bits of IQ4_NL and IQ4_XS stand for.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Blocks {
    /// Every one of them.
    pub(super) const ALL: [Blocks; 5] =
        [Blocks::Q5_0, Blocks::Q5_1, Blocks::Q3_K, Blocks::IQ4_NL, Blocks::IQ4_XS];

    /// ggml's number, the number of weights in a block, and its bytes.
    const fn layout(self) -> (u32, usize, usize) {
        match self {
            Blocks::Q5_0 => (6, 32, 22),
            Blocks::Q5_1 => (7, 32, 24),
            Blocks::Q3_K => (11, 256, 110),
            Blocks::IQ4_NL => (20, 32, 18),
            Blocks::IQ4_XS => (23, 256, 136),
        }
    }

    pub(super) const fn code(self) -> u32 {
        self.layout().0
    }

    /// The number of weights in a block.
    pub(super) const fn weights(self) -> usize {
        self.layout().1
    }

    /// The bytes of a block.
    pub(super) const fn bytes(self) -> usize {
        self.layout().2
    }

    /// The format that holds the same values, to the bit: what a matrix becomes. All else becomes
    /// float32.
    pub const fn format(self) -> Option<Format> {
        match self {
            Blocks::Q5_0 | Blocks::IQ4_NL => Some(Format::Q8_0),
            Blocks::Q3_K => Some(Format::Q6_K),
            Blocks::Q5_1 | Blocks::IQ4_XS => None,
        }
    }

    /// Writes whole blocks in [`format`](Self::format).
    pub(super) fn rewrite(self, blocks: &[u8], to: &mut [u8]) {
        let Some(format) = self.format() else { return };
        let blocks = blocks.chunks_exact(self.bytes());
        for (block, to) in blocks.zip(to.chunks_exact_mut(format.block_bytes())) {
            match self {
                Blocks::Q3_K => {
                    to.fill(0);
                    // Six bits: the low four of a half in 64 bytes, the high two in 32.
                    for (k, q) in three(block).enumerate() {
                        let (half, part, at, q) = (k / 128, k % 128 / 32, k % 32, (q + 32) as u8);
                        to[64 * half + 32 * (part % 2) + at] |= (q & 15) << (4 * (part / 2));
                        to[128 + 32 * half + at] |= (q >> 4) << (2 * part);
                    }
                    for part in 0..16 {
                        to[192 + part] = scale_of_three(block, part) as u8;
                    }
                    to[208..].copy_from_slice(&block[108..]);
                }
                _ => {
                    to[..2].copy_from_slice(&block[..2]);
                    let to = to[2..].iter_mut();
                    if self == Blocks::Q5_0 {
                        to.zip(five(&block[2..])).for_each(|(to, q)| *to = (q as i8 - 16) as u8);
                    } else {
                        to.zip(four(&block[2..]))
                            .for_each(|(to, q)| *to = VALUES[q as usize] as u8);
                    }
                }
            }
        }
    }

    /// Appends the weights of whole blocks.
    pub(super) fn unpack(self, blocks: &[u8], to: &mut Vec<f32>) {
        for block in blocks.chunks_exact(self.bytes()) {
            match self {
                Blocks::Q5_0 => {
                    let (d, q) = (half(block, 0), five(&block[2..]));
                    to.extend(q.map(|q| d * (q as i8 - 16) as f32));
                }
                Blocks::Q5_1 => {
                    let (d, m, q) = (half(block, 0), half(block, 2), five(&block[4..]));
                    to.extend(q.map(|q| d * q as f32 + m));
                }
                Blocks::Q3_K => {
                    let d = half(block, 108);
                    let scale = |k: usize| d * scale_of_three(block, k / 16) as f32;
                    to.extend(three(block).enumerate().map(|(k, q)| scale(k) * q as f32));
                }
                Blocks::IQ4_NL => {
                    let d = half(block, 0);
                    to.extend(four(&block[2..]).map(|q| d * VALUES[q as usize] as f32));
                }
                Blocks::IQ4_XS => {
                    let (d, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
                    for (part, q) in block[8..].chunks_exact(16).enumerate() {
                        let low = (block[4 + part / 2] >> (4 * (part % 2))) & 15;
                        let scale = low | ((high >> (2 * part)) as u8 & 3) << 4;
                        let d = d * (scale as i8 - 32) as f32;
                        to.extend(four(q).map(|q| d * VALUES[q as usize] as f32));
                    }
                }
            }
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Nibbles: the low ones of all bytes, then the high ones.
fn four(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let (low, high) = (bytes.iter().map(|b| b & 15), bytes.iter().map(|b| b >> 4));
    low.chain(high)
}

/// Nibbles with a fifth bit each, which are 32 bits before them.
fn five(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let (high, low) = bytes.split_at(4);
    four(low).enumerate().map(move |(k, q)| q | ((high[k / 8] >> (k % 8)) & 1) << 4)
}

/// The weights of a block of Q3_K, from -4 to 3: what has no high bit is less by four.
fn three(block: &[u8]) -> impl Iterator<Item = i8> {
    let lack = |k: usize| 4 - 4 * ((block[k % 32] >> (k / 32)) & 1) as i8;
    two(&block[32..96]).enumerate().map(move |(k, q)| q as i8 - lack(k))
}

/// The scale of a part of it, from -32 to 31.
fn scale_of_three(block: &[u8], part: usize) -> i8 {
    let scales = &block[96..108];
    let low = (scales[part % 8] >> (4 * (part / 8))) & 15;
    let high = (scales[8 + part % 4] >> (2 * (part / 4))) & 3;
    (low | high << 4) as i8 - 32
}

/// Pairs of bits: of each 32 bytes the lowest, then the next.
fn two(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let of = move |part: usize, shift: usize| {
        bytes[part * 32..][..32].iter().map(move |b| (b >> (2 * shift)) & 3)
    };
    (0..8).flat_map(move |k| of(k / 4, k % 4))
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names are ggml's.
        fmt::Debug::fmt(self, f)
    }
}
