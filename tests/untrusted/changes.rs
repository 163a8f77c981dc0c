//! Changes valid inputs: their bits, lengths, pieces and words.

use support::Rng;

/// The most bytes of a changed input.
const BYTES_MAX: usize = 256 << 10;

/// Numbers near which sums, signs and sizes overflow.
const NUMBERS: [u64; 12] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0xffff,
    1 << 20,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 60,
    i64::MAX as u64,
    u64::MAX,
];

/// The input of this number: one of the corpus, changed in some places.
pub fn changed(corpus: &[Vec<u8>], words: &[&str], seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut bytes = corpus[rng.below(corpus.len())].clone();
    // The fields of some kinds are few, and lie before a large rest.
    let is_at_head = rng.below(2) == 0;
    for _ in 0..1 + rng.below(3) {
        let end = if is_at_head { bytes.len().min(512) } else { bytes.len() };
        let at = rng.below(end + 1);
        change(&mut bytes, at, corpus, words, &mut rng);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, at: usize, corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let left = bytes.len() - at;
    let some = |rng: &mut Rng, most: usize| rng.below(most.min(64) + 1);
    match rng.below(10) {
        0 if left > 0 => bytes[at] ^= 1 << rng.below(8),
        1 if left > 0 => bytes[at] = rng.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + some(rng, left))),
        // A length, of one to eight bytes.
        4 | 5 => {
            let number = NUMBERS[rng.below(NUMBERS.len())].wrapping_add(rng.next() % 3);
            let width = (1 << rng.below(4)).min(left);
            bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        }
        // A number in decimal digits.
        6 => {
            let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
            let digits = bytes[at + from..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = NUMBERS[rng.below(NUMBERS.len())].to_string();
            bytes.splice(at + from..at + from + digits, number.into_bytes());
        }
        // A piece of it again, often many times: brackets nest.
        7 => {
            let piece = bytes[at..at + some(rng, left)].to_vec();
            let times = if rng.below(8) == 0 { 1000 } else { 1 + rng.below(4) };
            bytes.splice(at..at, piece.repeat(times));
        }
        8 if !words.is_empty() => {
            let word = words[rng.below(words.len())].bytes();
            bytes.splice(at..at, word);
        }
        // A piece of another input.
        _ => {
            let other = &corpus[rng.below(corpus.len())];
            let from = rng.below(other.len() + 1);
            let piece = other[from..from + rng.below(other.len() - from + 1)].to_vec();
            let gone = some(rng, left);
            bytes.splice(at..at + gone, piece);
        }
    }
}
