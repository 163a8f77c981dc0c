//! Philox 4x32-10: counter-based random words (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). Block `i` of a seed is a pure function of both.
//!
//! The key is the seed, its lower half first. The counter's words 0 and 1 are the block's number, lower
//! half first; words 2 and 3 are zero. Called by the CPU loops in `cpu/random.rs`; the CUDA source says the
//! same in its own words. Knows nothing of distributions.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Blocks `first`, `first + 1`, ... of a seed: word `w` of the `j`th stands at `[w][j]`, so that loops over
/// `j` vectorise.
#[inline(always)]
pub(crate) fn blocks<const N: usize>(seed: u64, first: u64) -> [[u32; N]; 4] {
    let index: [u64; N] = std::array::from_fn(|j| first.wrapping_add(j as u64));
    philox(
        [index.map(|i| i as u32), index.map(|i| (i >> 32) as u32), [0; N], [0; N]],
        [seed as u32, (seed >> 32) as u32],
    )
}

#[inline(always)]
fn philox<const N: usize>(mut counter: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        for j in 0..N {
            let a = MULTIPLIERS[0] as u64 * counter[0][j] as u64;
            let b = MULTIPLIERS[1] as u64 * counter[2][j] as u64;
            counter[0][j] = (b >> 32) as u32 ^ counter[1][j] ^ key[0];
            counter[2][j] = (a >> 32) as u32 ^ counter[3][j] ^ key[1];
            counter[1][j] = b as u32;
            counter[3][j] = a as u32;
        }
    }
    counter
}

/// One block's four words.
#[cfg_attr(not(test), allow(dead_code))] // The reference for tests.
pub(crate) fn block(seed: u64, index: u64) -> [u32; 4] {
    blocks::<1>(seed, index).map(|[word]| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 publishes (tests/kat_vectors, `philox 4x32 10`).
    #[test]
    fn philox_gives_the_published_known_answers() {
        let answer = |counter: [u32; 4], key| philox(counter.map(|word| [word]), key).map(|[word]| word);
        assert_eq!(answer([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(answer([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            answer([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn blocks_side_by_side_are_the_blocks_one_by_one() {
        let seed = 0x0123_4567_89ab_cdef;
        for first in [0, 5, u32::MAX as u64 - 3, u64::MAX - 7] {
            let many = blocks::<16>(seed, first);
            for j in 0..16 {
                let one = block(seed, first.wrapping_add(j as u64));
                assert_eq!([many[0][j], many[1][j], many[2][j], many[3][j]], one);
            }
        }
    }
}
