//! The handwritten digits, on a device, and minibatches of them.

use futensor::{Device, TensorFuture};

/// 1,797 images of 8 x 8 pixels from 0 to 16, then their labels: `data/make.py`.
const DIGITS: &[u8] = include_bytes!("data/digits.bin");
pub const COUNT: usize = 1797;
const PIXELS: usize = 64;

/// Images `[n, 1, 8, 8]` from 0 to 1, and labels `[n]`.
pub struct Images {
    pub x: TensorFuture,
    pub y: TensorFuture,
}

/// The digits: every fifth is held out.
pub struct Digits {
    pub train: Images,
    pub held_out: Images,
}

impl Digits {
    pub fn on(device: &Device) -> Digits {
        let images = |keep: fn(usize) -> bool| {
            let which: Vec<usize> = (0..COUNT).filter(|&i| keep(i)).collect();
            let pixels = which.iter().flat_map(|i| &DIGITS[i * PIXELS..][..PIXELS]);
            let x: Vec<f32> = pixels.map(|&p| p as f32 / 16.0).collect();
            let y: Vec<i64> = which.iter().map(|i| DIGITS[COUNT * PIXELS + i] as i64).collect();
            let n = which.len();
            Images { x: device.from_vec(x, [n, 1, 8, 8]), y: device.from_vec(y, [n]) }
        };
        Digits { train: images(|i| i % 5 != 4), held_out: images(|i| i % 5 == 4) }
    }
}

impl Images {
    pub fn len(&self) -> usize {
        self.y.numel()
    }

    /// One epoch in minibatches, in an order that the seed decides. They are picked on the device.
    pub fn batches(&self, size: usize, seed: u64) -> impl Iterator<Item = Images> {
        let mut order: Vec<i64> = (0..self.len() as i64).collect();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
        for i in (1..order.len()).rev() {
            // xorshift64 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let chunks: Vec<Vec<i64>> = order.chunks(size).map(<[i64]>::to_vec).collect();
        chunks.into_iter().map(|chunk| {
            let n = chunk.len();
            let index = self.x.device().from_vec(chunk, [n]);
            Images { x: self.x.index_select(0, &index), y: self.y.index_select(0, &index) }
        })
    }
}
