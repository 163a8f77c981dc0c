//! Philox 4x32-10: counter-based random words (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). Block `i` of a seed is a pure function of both.
//!
//! The key is the seed, its lower half first. The counter's words 0 and 1 are the block's number,
//! lower half first; words 2 and 3 are zero. Called by the CPU loops in `host/kernels/random.rs`;
//! the CUDA source says the same in its own words. Knows nothing of distributions.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Blocks `first`, `first + 1`, ... of a seed: word `w` of the `j`th is put at `words[w][j]`. The
/// loop over `j` is the one that vectorises.
#[inline(always)]
pub(crate) fn blocks<const N: usize>(seed: u64, first: u64, words: &mut [[u32; N]; 4]) {
    let key = [seed as u32, (seed >> 32) as u32];
    for j in 0..N {
        let index = first.wrapping_add(j as u64);
        let block = philox([index as u32, (index >> 32) as u32, 0, 0], key);
        words[0][j] = block[0];
        words[1][j] = block[1];
        words[2][j] = block[2];
        words[3][j] = block[3];
    }
}

/// The ten rounds. The words are held in the lower halves of 64 bits, of which the upper may be
/// anything: so a product's two halves need one shift and no mask, in a vector too.
#[inline(always)]
fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] =
        [counter[0] as u64, counter[1] as u64, counter[2] as u64, counter[3] as u64];
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = (c0 & 0xffff_ffff) * MULTIPLIERS[0] as u64;
        let b = (c2 & 0xffff_ffff) * MULTIPLIERS[1] as u64;
        (c0, c1, c2, c3) = ((b >> 32) ^ c1 ^ key[0] as u64, b, (a >> 32) ^ c3 ^ key[1] as u64, a);
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

/// One block's four words.
#[cfg_attr(not(test), allow(dead_code))] // The reference for tests.
pub(crate) fn block(seed: u64, index: u64) -> [u32; 4] {
    philox([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 publishes (tests/kat_vectors, `philox 4x32 10`).
    #[test]
    fn philox_gives_the_published_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn blocks_side_by_side_are_the_blocks_one_by_one() {
        let seed = 0x0123_4567_89ab_cdef;
        for first in [0, 5, u32::MAX as u64 - 3, u64::MAX - 7] {
            let mut many = [[0; 16]; 4];
            blocks(seed, first, &mut many);
            for j in 0..16 {
                let one = block(seed, first.wrapping_add(j as u64));
                assert_eq!([many[0][j], many[1][j], many[2][j], many[3][j]], one);
            }
        }
    }
}
