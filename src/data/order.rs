//! The order of an epoch: a permutation that depends on a seed, the same on every machine.

/// The indices below `len` in the order of an epoch: a Fisher-Yates shuffle with random numbers by
/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). `None` without memory for them, or if the
/// stream was dropped.
pub(super) fn shuffled(
    len: usize,
    seed: u64,
    epoch: u64,
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<usize>> {
    if !is_wanted() {
        return None;
    }
    let mut order = Vec::new();
    order.try_reserve_exact(len).ok()?;
    order.extend(0..len);
    let mut state = mix(seed).wrapping_add(mix(epoch ^ 0x9e37_79b9_7f4a_7c15));
    for i in (1..len).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let j = (mix(state) as u128 * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
        if i.is_multiple_of(1 << 16) && !is_wanted() {
            return None;
        }
    }
    Some(order)
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
