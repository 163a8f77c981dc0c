//! The formats of weights: the layout of a block in a GGUF file, and the layout of [`ROWS`] rows of
//! blocks in memory.
//!
//! Shared by ops, the kernels of every device, and files. A block consists of half floats and
//! four-byte words. In memory sixteen rows are interleaved: for the same block of each row, first
//! the first half float of all sixteen rows, then the next one, then the first word of all sixteen
//! rows, and so on. So a register of sixteen lanes is loaded directly, one lane per row, and the
//! size equals that in the file (except that rows are padded with zeros to a multiple of sixteen).
//! All devices use one layout.

use crate::dtype::DType;
use half::{bf16, f16};
use std::fmt;

/// The number of rows that are interleaved in memory.
pub(crate) const ROWS: usize = 16;

/// A block format of weights, as in GGUF files, with ggml's names.
///
/// ```
/// use futensor::{DType, quant::Format};
/// assert_eq!((Format::Q4_1.block(), Format::Q4_1.block_bytes()), (32, 20));
/// assert_eq!((Format::Q4_1.dtype(), Format::F16.dtype()), (None, Some(DType::F16)));
/// assert_eq!(Format::Q6_K.to_string(), "Q6_K");
/// ```
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// 32 weights of 8 bits and a scale: `q * d`.
    Q8_0,
    /// 32 weights of 4 bits and a scale: `(q - 8) * d`.
    Q4_0,
    /// 32 weights of 4 bits, a scale and a minimum: `q * d + m`.
    Q4_1,
    /// 256 weights of 4 bits, in eight parts with a scale and a minimum of 6 bits each.
    Q4_K,
    /// 256 weights of 5 bits, in eight parts as those of Q4_K.
    Q5_K,
    /// 256 weights of 6 bits, in sixteen parts with a scale of 8 bits each.
    Q6_K,
    /// 256 weights of 2 bits, in sixteen parts with a scale and a minimum of 4 bits each.
    Q2_K,
    /// 32 float16 weights, multiplied with float32 activations.
    F16,
    /// 32 bfloat16 weights, as F16.
    BF16,
    /// 32 float32 weights, for matrices of which each row has its own
    /// (`Quantized::grouped_linear`).
    F32,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 10] = [
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::Q2_K,
        Format::F16,
        Format::BF16,
        Format::F32,
    ];

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q4_K => "Q4_K",
            Format::Q5_K => "Q5_K",
            Format::Q6_K => "Q6_K",
            Format::Q2_K => "Q2_K",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::F32 => "F32",
        }
    }

    /// The number of weights in a block; the width of a row is a multiple of it.
    pub const fn block(self) -> usize {
        match self {
            Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::Q2_K => 256,
            _ => 32,
        }
    }

    /// The bytes of a block.
    pub const fn block_bytes(self) -> usize {
        2 * self.halves() + 4 * self.words()
    }

    /// The number of half floats in a block.
    const fn halves(self) -> usize {
        match self {
            Format::Q8_0 | Format::Q4_0 | Format::Q6_K => 1,
            Format::Q4_1 | Format::Q4_K | Format::Q5_K | Format::Q2_K => 2,
            Format::F16 | Format::BF16 => 32,
            Format::F32 => 0,
        }
    }

    /// The number of four-byte words in a block.
    const fn words(self) -> usize {
        match self {
            Format::Q8_0 => 8,
            Format::Q4_0 | Format::Q4_1 => 4,
            Format::Q4_K => 3 + 32,
            Format::Q5_K => 3 + 8 + 32,
            Format::Q6_K => 32 + 16 + 4,
            Format::Q2_K => 4 + 16,
            Format::F16 | Format::BF16 => 0,
            Format::F32 => 32,
        }
    }

    /// Whether this crate can quantise to the format, as gguf-py does.
    pub const fn can_quantize(self) -> bool {
        !matches!(self, Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::Q2_K)
    }

    /// The element type, for formats of plain elements.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Format::F16 => Some(DType::F16),
            Format::BF16 => Some(DType::BF16),
            Format::F32 => Some(DType::F32),
            _ => None,
        }
    }

    /// Whether the half floats of a block are the last of it.
    pub(crate) const fn ends_with_halves(self) -> bool {
        matches!(self, Format::Q6_K | Format::Q2_K)
    }

    /// The offset and length of each field in a block of the file: half floats first, although some
    /// formats store them last.
    fn fields(self) -> impl Iterator<Item = (usize, usize)> {
        let (halves, words) = (self.halves(), self.words());
        let (first_half, first_word) =
            if self.ends_with_halves() { (4 * words, 0) } else { (0, 2 * halves) };
        (0..halves)
            .map(move |i| (first_half + 2 * i, 2))
            .chain((0..words).map(move |i| (first_word + 4 * i, 4)))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A matrix of weights in memory: its format, its sizes, and the offsets of its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packing {
    pub format: Format,
    /// Outputs of a layer; rows of a table.
    pub rows: usize,
    /// Inputs of a layer; the width of a table. A multiple of the block.
    pub columns: usize,
}

impl Packing {
    /// # Errors
    /// A message that says what is wrong with the sizes.
    pub fn new(format: Format, rows: usize, columns: usize) -> Result<Packing, String> {
        let packing = Packing { format, rows, columns };
        if !columns.is_multiple_of(format.block()) {
            return Err(format!(
                "rows of {columns} weights are not blocks of {} ({format})",
                format.block()
            ));
        }
        // Also checks sixteen rows for an empty matrix, so that no size below overflows.
        let rows_filled = rows.max(1).checked_next_multiple_of(ROWS);
        let row = packing.blocks().checked_mul(format.block_bytes());
        let bytes = rows_filled.zip(row).and_then(|(rows, row)| rows.checked_mul(row));
        match bytes.is_some_and(|bytes| bytes <= isize::MAX as usize) {
            true => Ok(packing),
            false => Err(format!("[{rows}, {columns}] of {format} is larger than any memory")),
        }
    }

    /// The number of blocks in a row.
    pub fn blocks(&self) -> usize {
        self.columns / self.format.block()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.blocks() * self.format.block_bytes()
    }

    /// Bytes in a file.
    pub fn file_bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.rows.next_multiple_of(ROWS) * self.row_bytes()
    }

    /// Bytes of sixteen rows.
    pub fn panel_bytes(&self) -> usize {
        ROWS * self.row_bytes()
    }

    /// Rows of the file's blocks as they lie in memory, in a panel of zeros: sixteen rows, or fewer
    /// at the end.
    pub fn pack(&self, rows: &[u8], panel: &mut [u8]) {
        assert_eq!(panel.len(), self.panel_bytes());
        let (row, block) = (self.row_bytes(), self.format.block_bytes());
        for (lane, row) in rows.chunks_exact(row.max(1)).enumerate() {
            for (block, tile) in row.chunks_exact(block).zip(panel.chunks_exact_mut(ROWS * block)) {
                let mut at = 0;
                for (field, len) in self.format.fields() {
                    tile[at + lane * len..][..len].copy_from_slice(&block[field..field + len]);
                    at += ROWS * len;
                }
            }
        }
    }

    /// All rows of the file's blocks, in memory of zeros.
    pub fn pack_all(&self, blocks: &[u8], panels: &mut [u8]) {
        let size = self.panel_bytes().max(1);
        for (rows, panel) in blocks.chunks(size).zip(panels.chunks_mut(size)) {
            self.pack(rows, panel);
        }
    }

    /// One block in the file's layout; `panels` is the whole memory.
    pub fn unpack_block(&self, panels: &[u8], row: usize, block: usize, to: &mut [u8]) {
        let (size, lane) = (self.format.block_bytes(), row % ROWS);
        let tile = &panels[row / ROWS * self.panel_bytes() + block * ROWS * size..][..ROWS * size];
        let mut at = 0;
        for (field, len) in self.format.fields() {
            to[field..field + len].copy_from_slice(&tile[at + lane * len..][..len]);
            at += ROWS * len;
        }
    }

    /// The matrix in the file's layout.
    #[cfg(any(feature = "gguf", test))]
    pub fn unpack(&self, panels: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.file_bytes()];
        let blocks = self.blocks();
        for (i, to) in out.chunks_exact_mut(self.format.block_bytes()).enumerate() {
            self.unpack_block(panels, i / blocks, i % blocks, to);
        }
        out
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The scale and the minimum of part `i` of a Q4_K or Q5_K block, 6 bits each, from its 12 bytes.
fn scale_and_min(scales: &[u8], i: usize) -> (u8, u8) {
    let (d, m) = (scales[i % 4], scales[4 + i % 4]);
    if i < 4 {
        return (d & 0x3f, m & 0x3f);
    }
    let both = scales[4 + i];
    (both & 0x0f | (d >> 2) & 0x30, both >> 4 | (m >> 2) & 0x30)
}

/// The weights of a block in the file's layout, bitwise as in gguf-py.
pub(crate) fn dequantize_block(format: Format, block: &[u8], to: &mut [f32]) {
    let nibble = |q: &[u8], i: usize| if i < q.len() { q[i] & 15 } else { q[i - q.len()] >> 4 };
    match format {
        Format::Q8_0 => {
            let d = half_at(block, 0);
            to.iter_mut().zip(&block[2..]).for_each(|(o, &q)| *o = q as i8 as f32 * d);
        }
        Format::Q4_0 => {
            let d = half_at(block, 0);
            let q = |i| nibble(&block[2..18], i) as f32 - 8.0;
            to.iter_mut().enumerate().for_each(|(i, o)| *o = d * q(i));
        }
        Format::Q4_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            let q = |i| nibble(&block[4..20], i) as f32;
            to.iter_mut().enumerate().for_each(|(i, o)| *o = d * q(i) + m);
        }
        Format::F16 => to.iter_mut().enumerate().for_each(|(i, o)| *o = half_at(block, 2 * i)),
        Format::BF16 => {
            let all = to.iter_mut().zip(block.as_chunks().0);
            all.for_each(|(o, &x)| *o = bf16::from_le_bytes(x).to_f32());
        }
        Format::F32 => {
            let all = to.iter_mut().zip(block.as_chunks().0);
            all.for_each(|(o, &x)| *o = f32::from_le_bytes(x));
        }
        Format::Q4_K => {
            let (d, least) = (half_at(block, 0), half_at(block, 2));
            for (part, to) in to.chunks_exact_mut(32).enumerate() {
                let (scale, min) = scale_and_min(&block[4..16], part);
                let (d, m) = (d * scale as f32, least * min as f32);
                let q = &block[16 + part / 2 * 32..][..32];
                to.iter_mut()
                    .zip(q)
                    .for_each(|(o, q)| *o = d * (q >> (part % 2 * 4) & 15) as f32 - m);
            }
        }
        Format::Q5_K => {
            let (d, least) = (half_at(block, 0), half_at(block, 2));
            for (part, to) in to.chunks_exact_mut(32).enumerate() {
                let (scale, min) = scale_and_min(&block[4..16], part);
                let (d, m) = (d * scale as f32, least * min as f32);
                // The fifth bits of all parts are in 32 bytes, a bit for each part.
                let (tops, q) = (&block[16..48], &block[48 + part / 2 * 32..][..32]);
                for (o, (q, top)) in to.iter_mut().zip(q.iter().zip(tops)) {
                    let q = q >> (part % 2 * 4) & 15 | (top >> part & 1) << 4;
                    *o = d * q as f32 - m;
                }
            }
        }
        Format::Q2_K => {
            let (d, least) = (half_at(block, 80), half_at(block, 82));
            for (i, o) in to.iter_mut().enumerate() {
                // For each half of 128 weights 32 bytes, a pair of bits for each 32 weights.
                let (half, part, at) = (i / 128, i % 128 / 32, i % 32);
                let q = block[16 + 32 * half + at] >> (2 * part) & 3;
                let both = block[i / 16];
                *o = d * (both & 15) as f32 * q as f32 - least * (both >> 4) as f32;
            }
        }
        Format::Q6_K => {
            let d = half_at(block, 208);
            for (i, o) in to.iter_mut().enumerate() {
                // For each half of 128 weights: the low bits are in 64 bytes, with the second 64
                // weights in the high nibbles; the two high bits are in 32 bytes, a pair for each
                // 32 weights.
                let (half, part, at) = (i / 128, i % 128 / 32, i % 32);
                let low = block[64 * half + 32 * (part % 2) + at] >> (part / 2 * 4) & 15;
                let high = block[128 + 32 * half + at] >> (2 * part) & 3;
                let scale = block[192 + i / 16] as i8;
                *o = d * scale as f32 * ((low | high << 4) as f32 - 32.0);
            }
        }
    }
}

/// Quantises a block to the same bytes as gguf-py; only for formats that [`Format::can_quantize`]
/// and that are not of plain elements.
pub(crate) fn quantize_block(format: Format, x: &[f32], block: &mut [u8]) {
    let inverse = |d: f32| if d == 0.0 { 0.0 } else { 1.0 / d };
    let write = |to: &mut [u8], x: f32| to.copy_from_slice(&f16::from_f32(x).to_le_bytes());
    let nibbles = |to: &mut [u8], q: &dyn Fn(f32) -> f32| {
        let q = |x: f32| (q(x) as u8).min(15);
        to.iter_mut().enumerate().for_each(|(i, to)| *to = q(x[i]) | q(x[i + 16]) << 4);
    };
    match format {
        Format::Q8_0 => {
            let d = x.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
            let id = inverse(d);
            write(&mut block[..2], d);
            // Ties round away from zero.
            block[2..].iter_mut().zip(x).for_each(|(o, x)| *o = (x * id).round() as i8 as u8);
        }
        Format::Q4_0 => {
            let largest = x.iter().fold(0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
            let d = largest / -8.0;
            let id = inverse(d);
            write(&mut block[..2], d);
            nibbles(&mut block[2..], &|x| x * id + 8.5);
        }
        _ => {
            let (max, min) = x.iter().fold((x[0], x[0]), |(a, b), &x| (a.max(x), b.min(x)));
            let d = (max - min) / 15.0;
            let id = inverse(d);
            write(&mut block[..2], d);
            write(&mut block[2..4], min);
            nibbles(&mut block[4..], &|x| (x - min) * id + 0.5);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_as_it_was() {
        for format in Format::ALL {
            for rows in [1, 15, 16, 17, 40] {
                let packing = Packing::new(format, rows, 2 * format.block()).unwrap();
                let file: Vec<u8> = (0..packing.file_bytes())
                    .map(|i| ((i as u32).wrapping_mul(2654435761) >> 23) as u8)
                    .collect();
                let mut panels = vec![0; packing.bytes()];
                packing.pack_all(&file, &mut panels);
                assert!(packing.unpack(&panels) == file, "{format} of {rows} rows");
                assert!(rows % ROWS > 0 || panels != file, "rows lie side by side");
            }
        }
    }

    #[test]
    fn sizes_that_are_no_blocks_or_beyond_memory_are_refused() {
        assert!(
            Packing::new(Format::Q6_K, 1, 128).unwrap_err().contains("not blocks of 256 (Q6_K)")
        );
        assert!(Packing::new(Format::Q4_0, 1, 33).is_err());
        assert!(
            Packing::new(Format::Q4_0, usize::MAX, 32)
                .unwrap_err()
                .contains("larger than any memory")
        );
        assert!(Packing::new(Format::Q4_0, 1 << 40, 1 << 40).is_err());
        assert!(Packing::new(Format::Q8_0, 0, 1 << 60).is_err());
        assert!(Packing::new(Format::F16, 1, 1 << 63).is_err());
        assert_eq!(Packing::new(Format::Q8_0, 0, 1 << 50).map(|p| p.bytes()), Ok(0));
    }
}
