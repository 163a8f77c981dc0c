//! Digits in a text that is JSON: a schema's number may have any number of them, and the likeliest
//! token after many is often another one. So after some nothing begins with a digit, where
//! something else may follow.

use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Digits in a row at most, outside of strings: as many as any 64-bit number has.
pub const DIGITS_MAX: usize = 20;

/// Where a text is, as far as digits are concerned.
#[derive(Clone)]
pub struct Numbers {
    tokenizer: Arc<Tokenizer>,
    /// Tokens that begin with a digit, a bit each.
    digits: Arc<[u32]>,
    run: usize,
    in_string: bool,
    escaped: bool,
}

impl Numbers {
    /// Of a text that has not begun.
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Numbers {
        let mut digits = vec![0u32; tokenizer.len().div_ceil(32)];
        for token in 0..tokenizer.len() {
            let is = tokenizer.bytes(token as u32).first().is_some_and(u8::is_ascii_digit);
            digits[token / 32] |= u32::from(is) << (token % 32);
        }
        let (tokenizer, digits) = (tokenizer.clone(), digits.into());
        Numbers { tokenizer, digits, run: 0, in_string: false, escaped: false }
    }

    pub fn accept(&mut self, token: u32) {
        for &byte in self.tokenizer.bytes(token) {
            self.run = if !self.in_string && byte.is_ascii_digit() { self.run + 1 } else { 0 };
            match (self.in_string, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (_, b'"') => self.in_string = !self.in_string,
                _ => {}
            }
        }
    }

    /// The mask without digits, where there are enough of them and something else may follow.
    pub fn end(&self, mask: &[u32]) -> Option<Vec<u32>> {
        if self.run < DIGITS_MAX {
            return None;
        }
        let digits = self.digits.iter().copied().chain(std::iter::repeat(0));
        let others: Vec<u32> = mask.iter().zip(digits).map(|(all, digits)| all & !digits).collect();
        others.iter().any(|&word| word != 0).then_some(others)
    }
}
