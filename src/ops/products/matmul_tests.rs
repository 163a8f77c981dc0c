//! Weights in packed form: when they are made, for whom, and in whose memory.

use super::*;
use crate::memory::{Block, Memory};

const SIDE: usize = 64;
const BYTES: usize = 4 * SIDE * SIDE;
/// In two panels of 32 columns.
const PACKED: usize = BYTES;

fn weight(memory: &Arc<Memory>) -> Arc<Block> {
    let block = memory.alloc(BYTES).expect("there is room");
    let ptr = block.host().expect("host memory");
    let mut all = ViewMut { ptr, dtype: DType::F32, shape: &[SIDE, SIDE], life: PhantomData };
    assert!(all.fill_from((0..SIDE * SIDE).map(|i| (i % 17) as f32 - 8.0)));
    block
}

/// A view of a block, from an element on.
fn of<'a>(
    block: &Arc<Block>,
    from: usize,
    shape: &'a [usize; 2],
    strides: &'a [isize; 2],
) -> View<'a> {
    let ptr = block.host().expect("host memory").wrapping_add(4 * from);
    View { ptr, dtype: DType::F32, shape, strides }
}

const ALL: ([usize; 2], [isize; 2]) = ([SIDE, SIDE], [SIDE as isize, 1]);
const TURNED: ([usize; 2], [isize; 2]) = ([SIDE, SIDE], [1, SIDE as isize]);

fn used(block: &Arc<Block>, (shape, strides): &([usize; 2], [isize; 2])) -> Option<Arc<Weight>> {
    packed(&of(block, 0, shape, strides), Some(&**block))
}

#[test]
fn a_weight_is_packed_at_the_third_use_in_a_row_in_counted_memory_that_goes_with_it() {
    let memory = Memory::new(usize::MAX);
    let block = weight(&memory);
    assert!(used(&block, &ALL).is_none() && used(&block, &ALL).is_none());
    assert!(block.is_reusable(), "it may be written over so far");
    assert_eq!(memory.bytes().live, BYTES);
    let first = used(&block, &ALL).expect("packed").panels.bytes_kept();
    assert_eq!(first, PACKED);
    let now = memory.bytes();
    assert!((BYTES + PACKED..=BYTES + PACKED * 5 / 4).contains(&now.live), "{now:?}");
    assert_eq!(now.live, now.peak);
    assert!(used(&block, &ALL).is_some() && !block.is_reusable());
    assert_eq!(memory.bytes().live, now.live, "once");
    drop(block);
    assert_eq!(memory.bytes().live, 0);
}

#[test]
fn uses_from_another_side_or_after_a_write_begin_the_count_anew() {
    let memory = Memory::new(usize::MAX);
    let block = weight(&memory);
    for _ in 0..5 {
        assert!(used(&block, &ALL).is_none() && used(&block, &ALL).is_none());
        assert!(used(&block, &TURNED).is_none());
    }
    assert!(used(&block, &ALL).is_none() && used(&block, &ALL).is_none());
    let block = block.move_out();
    assert!(used(&block, &ALL).is_none() && used(&block, &ALL).is_none());
    assert!(used(&block, &ALL).is_some());
}

#[test]
fn another_view_of_the_same_buffer_is_not_mistaken_for_the_weight() {
    let memory = Memory::new(usize::MAX);
    let block = weight(&memory);
    (0..3).for_each(|_| drop(used(&block, &ALL)));
    assert!(used(&block, &ALL).is_some());
    let half = ([SIDE, SIDE / 2], [SIDE as isize, 1]);
    for _ in 0..4 {
        assert!(used(&block, &TURNED).is_none());
        assert!(used(&block, &half).is_none());
        let beside = of(&block, SIDE / 2, &half.0, &half.1);
        assert!(packed(&beside, Some(&*block)).is_none());
    }
    assert!(used(&block, &ALL).is_some(), "and the weight is packed as before");
}

#[test]
fn without_memory_to_spare_a_weight_is_not_packed() {
    let memory = Memory::new(BYTES + PACKED - 64);
    let block = weight(&memory);
    for _ in 0..5 {
        assert!(used(&block, &ALL).is_none());
    }
    assert_eq!(memory.bytes().live, BYTES);
    assert_eq!(memory.bytes().peak, BYTES, "it was not counted for a moment");
}

#[test]
fn what_is_packed_goes_when_a_value_needs_the_memory_and_is_not_packed_again() {
    let memory = Memory::new(4 * BYTES - 64);
    let block = weight(&memory);
    (0..3).for_each(|_| drop(used(&block, &ALL)));
    let packed = memory.bytes().live;
    assert!(packed > BYTES);
    let held = used(&block, &ALL).expect("packed");
    assert!(memory.alloc(2 * BYTES).is_none(), "somebody multiplies by it just now");
    drop(held);
    let value = memory.alloc(2 * BYTES).expect("now there is room");
    assert_eq!(memory.bytes().live, 3 * BYTES);
    drop(value);
    for _ in 0..5 {
        assert!(used(&block, &ALL).is_none());
    }
    // Other elements, another chance.
    let block = block.move_out();
    (0..3).for_each(|_| drop(used(&block, &ALL)));
    assert_eq!(memory.bytes().live, packed);
}

#[test]
fn nobody_waits_for_a_weight_that_somebody_else_is_packing() {
    let memory = Memory::new(usize::MAX);
    let block = weight(&memory);
    let keep = block.keep().expect("a place beside the elements");
    let made = keep.get_or_make(&*block, || {
        assert!(keep.get().is_none(), "there is nothing yet");
        assert!(keep.get_or_make(&*block, || panic!("it is made once")).is_none());
        assert!(!block.is_reusable(), "its elements are being read");
        memory.trim();
        Some(Arc::new(7))
    });
    assert!(made.is_some() && keep.get().is_some());
}

#[test]
fn trim_gives_back_what_nobody_multiplies_by_just_now() {
    let memory = Memory::new(usize::MAX);
    let (idle, busy) = (weight(&memory), weight(&memory));
    (0..3).for_each(|_| drop((used(&idle, &ALL), used(&busy, &ALL))));
    let held = used(&busy, &ALL).expect("packed");
    let before = memory.bytes().live;
    assert!(memory.trim() >= PACKED);
    let after = memory.bytes();
    assert!(after.live <= before - PACKED && after.live >= 2 * BYTES + PACKED, "{after:?}");
    assert!(idle.is_reusable() && !busy.is_reusable());
    drop(held);
    memory.trim();
    assert_eq!(memory.bytes().live, 2 * BYTES);
    assert!(used(&idle, &ALL).is_some(), "a weight that is still in use is packed again");
}
