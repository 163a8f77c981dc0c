//! Sampling: the options of a request, and the numbers that the device is given.
//!
//! The choice is made on the device (`model/choose`). What is random about it is one number a
//! token, made here from the request's seed and the token's position alone: so the same request
//! draws the same tokens, whoever else is there.

use crate::error::{Error, Result};

/// So many of the last tokens the repetition penalty looks at.
pub const PENALIZED: usize = 64;

/// Alternatives at most that log-probabilities are told of.
pub const ALTERNATIVES: usize = 20;

/// Tokens with a bias at most.
const BIASED_MAX: usize = 1024;

/// How the next token is chosen from what the model says. The default is the likeliest: greedy.
///
/// Biases and penalties change the logits, which the temperature then divides; `min_p`, `top_k` and
/// `top_p`, in this order, leave some of the vocabulary, and one of these is drawn by its
/// probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 is greedy.
    pub temperature: f32,
    /// Of so many likeliest tokens; 0 is all of them.
    pub top_k: usize,
    /// Of the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Of the tokens that are at least so probable, as a part of the likeliest one's probability.
    pub min_p: f32,
    /// Logits of the last 64 tokens are divided by it (multiplied, where negative); 1 is none.
    pub repetition_penalty: f32,
    /// Is subtracted from a token's logit as often as the answer has that token.
    pub frequency_penalty: f32,
    /// Is subtracted from the logits of all tokens that the answer has.
    pub presence_penalty: f32,
    /// Is added to the logits of these tokens. No token is listed twice.
    pub logit_bias: Vec<(u32, f32)>,
    /// What random numbers are made from.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    pub(crate) fn check(&self) -> Result<()> {
        let no = |text: String| Err(Error::request(text));
        if !(0.0..=100.0).contains(&self.temperature) {
            return no(format!("a temperature is between 0 and 100, not {}", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return no(format!("top_p is above 0 and at most 1, not {}", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return no(format!("min_p is between 0 and 1, not {}", self.min_p));
        }
        if !(self.repetition_penalty >= 0.01 && self.repetition_penalty <= 100.0) {
            return no(format!(
                "a repetition penalty is between 0.01 and 100, not {}",
                self.repetition_penalty
            ));
        }
        for (name, value) in
            [("frequency", self.frequency_penalty), ("presence", self.presence_penalty)]
        {
            if !(-100.0..=100.0).contains(&value) {
                return no(format!("a {name} penalty is between -100 and 100, not {value}"));
            }
        }
        let biases = &self.logit_bias;
        if biases.len() > BIASED_MAX {
            return no(format!("{} biases of logits, of {BIASED_MAX} at most", biases.len()));
        }
        if let Some((token, bias)) = biases.iter().find(|(_, b)| !(-100.0..=100.0).contains(b)) {
            return no(format!("a bias is between -100 and 100, not {bias} (token {token})"));
        }
        let mut tokens: Vec<u32> = biases.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        match tokens.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => no(format!("two biases of token {}", pair[0])),
            None => Ok(()),
        }
    }

    /// Nothing but the likeliest token is asked for.
    pub(crate) fn is_plain(&self) -> bool {
        self.temperature == 0.0
            && self.repetition_penalty == 1.0
            && !self.counts()
            && self.logit_bias.is_empty()
    }

    /// It matters how often the answer has which token.
    pub(crate) fn counts(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// The largest logits that have to be found.
    pub(crate) fn largest(&self) -> usize {
        if self.temperature == 0.0 { 0 } else { self.top_k }
    }

    /// The random number for the token at this position: in [0, 1), by SplitMix64 (Steele, Lea and
    /// Flood 2014) of seed and position.
    pub(crate) fn draw(&self, position: usize) -> f32 {
        let mix = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let step = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mix(mix(self.seed).wrapping_add(step)) >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_of_their_own_for_each_seed_and_position() {
        let mut counts = [0; 10];
        for seed in 0..50 {
            let sampling = Sampling { seed, ..Sampling::default() };
            (0..200).for_each(|at| counts[(sampling.draw(at) * 10.0) as usize] += 1);
        }
        assert!(counts.iter().all(|&n| (900..1100).contains(&n)), "{counts:?}");
        let of = |seed, at| Sampling { seed, ..Sampling::default() }.draw(at);
        assert_eq!(of(1, 2), of(1, 2));
        assert!(of(1, 2) != of(2, 1) && of(1, 2) != of(1, 3));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { top_p: 0.0, ..Sampling::default() },
            Sampling { top_p: f32::NAN, ..Sampling::default() },
            Sampling { min_p: 1.5, ..Sampling::default() },
            Sampling { frequency_penalty: f32::NAN, ..Sampling::default() },
            Sampling { presence_penalty: 101.0, ..Sampling::default() },
            Sampling { logit_bias: vec![(1, 200.0)], ..Sampling::default() },
            Sampling { logit_bias: vec![(1, 1.0), (2, 1.0), (1, 1.0)], ..Sampling::default() },
            Sampling { logit_bias: (0..1025).map(|t| (t, 1.0)).collect(), ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
        ] {
            assert!(wrong.check().unwrap_err().is_request(), "{wrong:?}");
        }
        let large = Sampling { top_k: usize::MAX, ..Sampling::default() };
        assert!(Sampling::default().check().is_ok() && large.check().is_ok());
    }
}
