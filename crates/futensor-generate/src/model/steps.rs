//! A step of the planner's as one call of a region: packed rows in, tokens out.
//!
//! Rows are filled up to one of some sizes, so that few plans are made. A row that only fills up
//! has token 0 at position 0, of page 0 and of a slot that is nobody's; nobody reads what comes of
//! it.

use super::choose::{self, Wishes};
use super::forward::{Rows, State, Turns};
use super::{Choice, Llama, Runner, Wish};
use crate::batch_planner::{Limits, Step};
use crate::error::Result;
use crate::sampling::PENALIZED;
use futensor::region::{Flat, Region, Tensors};
use futensor::{DType, TensorFuture};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// What a step's choosing rows ask for, in a region's plan.
#[derive(Clone, Copy)]
struct Kind {
    /// So many rows, of those that there are in the step's shapes; 0 where none chooses.
    choosing: usize,
    /// They do not all take the likeliest token.
    wishes: bool,
    /// Of so many largest logits, at most.
    largest: usize,
    /// Tokens with a bias or a count, at most.
    listed: usize,
    mask: bool,
    logprobs: bool,
}

impl Tensors for Kind {
    fn into_flat(self, flat: &mut Flat) {
        let numbers = [self.choosing, self.largest, self.listed];
        (numbers, [self.wishes, self.mask, self.logprobs]).into_flat(flat);
    }
    fn from_flat(flat: &mut Flat) -> Option<Kind> {
        let ([choosing, largest, listed], [wishes, mask, logprobs]) = Tensors::from_flat(flat)?;
        Some(Kind { choosing, wishes, largest, listed, mask, logprobs })
    }
}

type Call = Region<'static, (State, Kind, Vec<TensorFuture>), (State, Vec<TensorFuture>)>;

/// Plans for all sizes of steps that come again and again.
const PLANS_MAX: usize = 256;

/// A step's numbers, a row each beside the tables of pages: token, slot, place, position, and which
/// rows choose.
const ROWS: usize = 5;

/// Numbers of a row that chooses, which are floats.
const FLOATS: usize = 8;

/// The model as a runner of steps.
pub struct Steps {
    model: Arc<Llama>,
    limits: Limits,
    call: Call,
    /// `None` only while a step is queued.
    state: Option<State>,
}

/// Sizes that rows are filled up to, of so many at least.
fn filled(n: usize, least: usize) -> usize {
    match n {
        0..=8 => n.max(least),
        _ => {
            // Two sizes between powers of two.
            let power = n.next_power_of_two();
            if n <= power / 4 * 3 { power / 4 * 3 } else { power }
        }
    }
}

/// Pages that a sequence has at most.
fn pages_of(limits: &Limits) -> usize {
    limits.context.div_ceil(limits.page)
}

impl Steps {
    pub fn new(model: Arc<Llama>, limits: &Limits) -> Steps {
        let call = Steps::region(model.clone(), limits);
        let mut steps = Steps { model, limits: limits.clone(), call, state: None };
        steps.reset();
        steps
    }

    fn region(model: Arc<Llama>, limits: &Limits) -> Call {
        let turns = Turns::new(&model, limits.context);
        let (scratch, device) = (limits.slots as i64, model.device.clone());
        let pages = pages_of(limits);
        let step = move |(state, kind, inputs): (State, Kind, Vec<TensorFuture>)| {
            let n = inputs[0].dims()[0] / (ROWS + pages);
            let row = |k: usize| inputs[0].narrow(0, k * n, n);
            let [given, slots, places, positions, choosing] = [0, 1, 2, 3, 4].map(row);
            let known = given.ge(0);
            let tokens = known.where_cond(&given, state.last.index_select(0, &slots));
            let rows = Rows {
                lengths: &positions + 1,
                places,
                tables: inputs[0].narrow(0, ROWS * n, n * pages).reshape([n, pages]),
                turns: turns.all.iter().map(|turn| turn.at(&positions)).collect(),
                tokens: tokens.clone(),
            };
            let (hidden, mut state) = model.forward(state, &rows, &turns);
            if kind.choosing == 0 {
                // Something to wait for.
                let through = hidden.narrow(0, 0, 1).narrow(1, 0, 1);
                return (state, vec![through]);
            }
            let choosing = choosing.narrow(0, 0, kind.choosing);
            let hidden = hidden.index_select(0, choosing.clamp_min(0));
            let logits = model.logits(&hidden);
            let mut told = Vec::new();
            let chosen = if kind.wishes {
                let float = |k: usize| inputs[1].i(k).reshape([-1, 1]);
                let last = tokens.index_select(0, choosing.clamp_min(0)).reshape([-1, 1]);
                let mut more = inputs[4..].iter();
                let listed = (kind.listed > 0).then(|| [(); 3].map(|()| next(&mut more)));
                let wishes = Wishes {
                    temperature: float(0),
                    top_p: float(1),
                    min_p: float(2),
                    draw: float(3),
                    repetition: float(4),
                    frequency: float(5),
                    presence: float(6),
                    answered: float(7),
                    top_k: inputs[2].clone(),
                    largest: kind.largest,
                    last,
                    recent: inputs[3].clone(),
                    listed,
                    mask: kind.mask.then(|| next(&mut more).to_dtype(DType::Bool)),
                };
                choose::choose(&logits, &wishes)
            } else {
                choose::likeliest(&logits)
            };
            if kind.logprobs {
                told.extend(choose::logprobs(&logits, &chosen));
            }
            // Rows that fill up choose for nobody.
            let slots = slots.index_select(0, choosing.clamp_min(0));
            let slots = choosing.ge(0).where_cond(slots, scratch);
            state.last = state.last.index_copy(0, slots, &chosen);
            told.insert(0, chosen);
            (state, told)
        };
        device.region(step).plans_max(PLANS_MAX)
    }

    /// What a step's plan is for, and the tensors that it begins with.
    fn inputs(&self, step: &Step, wishes: &[Wish]) -> (Kind, Vec<TensorFuture>) {
        let (device, limits) = (&self.model.device, &self.limits);
        // The CPU sums a single row by float32 up in another order than rows beside each other,
        // which are all alike where a matrix has 4,096 elements.
        let least = if self.model.weights.is_dense { 2 } else { 1 };
        let n = filled(step.rows.len(), least);
        // Beside rows of prompts fewer sizes will do.
        let m = match wishes.len() {
            0 => 0,
            all if all == step.rows.len() => n,
            some => some.next_power_of_two().clamp(least, n),
        };
        let kind = kind(wishes, m);
        // One tensor of all numbers: each costs the thread that queues.
        let pages = pages_of(limits);
        let mut numbers = vec![0i64; (ROWS + pages) * n];
        let (rows, tables) = numbers.split_at_mut(ROWS * n);
        rows[n..2 * n].fill(limits.slots as i64);
        rows[4 * n..].fill(-1);
        for (k, row) in step.rows.iter().enumerate() {
            rows[k] = row.token.map_or(-1, i64::from);
            rows[n + k] = row.slot as i64;
            rows[2 * n + k] = row.page as i64 * limits.page as i64 + row.place as i64;
            rows[3 * n + k] = row.position as i64;
            let own = &step.tables[&row.slot];
            own.iter().zip(&mut tables[k * pages..]).for_each(|(&page, to)| *to = page as i64);
        }
        let choosing = (0..).zip(&step.rows).filter(|(_, row)| row.chooses);
        choosing.zip(&mut rows[4 * n..]).for_each(|((k, _), to)| *to = k);
        let mut inputs = vec![device.from_vec(numbers, [(ROWS + pages) * n])];
        if !kind.wishes {
            return (kind, inputs);
        }
        let mut floats = vec![0f32; FLOATS * m];
        // Rows that fill up have a temperature, and no penalty.
        floats[4 * m..5 * m].fill(1.0);
        let (mut top_k, mut recent) = (vec![0i64; m], vec![-1i64; m * (PENALIZED - 1)]);
        for (k, wish) in wishes.iter().enumerate() {
            let s = &wish.sampling;
            let own: [f32; FLOATS] = [
                s.temperature,
                s.top_p,
                s.min_p,
                wish.draw,
                s.repetition_penalty,
                s.frequency_penalty,
                s.presence_penalty,
                f32::from(wish.answered),
            ];
            own.into_iter().enumerate().for_each(|(at, value)| floats[at * m + k] = value);
            top_k[k] = s.top_k.min(self.model.vocabulary()) as i64;
            let own = &mut recent[k * (PENALIZED - 1)..];
            wish.recent.iter().zip(own).for_each(|(&token, to)| *to = token as i64);
        }
        inputs.push(device.from_vec(floats, [FLOATS, m]));
        inputs.push(device.from_vec(top_k, [m, 1]));
        inputs.push(device.from_vec(recent, [m, PENALIZED - 1]));
        if kind.listed > 0 {
            let shape = [m, kind.listed];
            let (mut tokens, mut biases) =
                (vec![0i64; m * kind.listed], vec![0f32; m * kind.listed]);
            let mut counts = biases.clone();
            for (k, wish) in wishes.iter().enumerate() {
                for (at, &(token, bias, count)) in (k * kind.listed..).zip(&wish.listed) {
                    (tokens[at], biases[at], counts[at]) = (token as i64, bias, count as f32);
                }
            }
            inputs.push(device.from_vec(tokens, shape));
            inputs.push(device.from_vec(biases, shape));
            inputs.push(device.from_vec(counts, shape));
        }
        if kind.mask {
            let vocabulary = self.model.vocabulary();
            let mut allowed = vec![1u8; m * vocabulary];
            for (row, wish) in allowed.chunks_mut(vocabulary).zip(wishes) {
                if let Some(bits) = &wish.mask {
                    row.iter_mut().enumerate().for_each(|(t, a)| {
                        *a = (bits.get(t / 32).copied().unwrap_or(0) >> (t % 32)) as u8 & 1;
                    });
                }
            }
            inputs.push(device.from_vec(allowed, [m, vocabulary]));
        }
        (kind, inputs)
    }
}

fn kind(wishes: &[Wish], choosing: usize) -> Kind {
    let any = |asks: fn(&Wish) -> bool| wishes.iter().any(asks);
    let (mask, logprobs) = (any(|w| w.mask.is_some()), any(|w| w.logprobs.is_some()));
    let plain = !mask && !any(|w| !w.sampling.is_plain());
    // Few sizes, so that there are few plans.
    let most = |of: fn(&Wish) -> usize| match wishes.iter().map(of).max().unwrap_or(0) {
        0 => 0,
        n => n.checked_next_power_of_two().unwrap_or(n).max(64),
    };
    let (largest, listed) = (most(|w| w.sampling.largest()), most(|w| w.listed.len()));
    Kind { choosing, wishes: !plain, largest, listed, mask, logprobs }
}

fn next(inputs: &mut std::slice::Iter<'_, TensorFuture>) -> TensorFuture {
    inputs.next().expect("an input for each thing that the kind names").clone()
}

impl Runner for Steps {
    type Flight = Pin<Box<dyn Future<Output = Result<Vec<Choice>>> + Send>>;

    fn queue(&mut self, step: &Step, wishes: &[Wish]) -> Self::Flight {
        let (kind, inputs) = self.inputs(step, wishes);
        let Some(state) = self.state.take() else {
            return Box::pin(async { Err(crate::Error::ended()) });
        };
        let (state, told) = self.call.call((state, kind, inputs));
        self.state = Some(state);
        let choosing = wishes.len();
        if kind.choosing == 0 {
            let through = told[0].to_vec::<f32>();
            return Box::pin(async move {
                through.await?;
                Ok(Vec::new())
            });
        }
        let tokens = told[0].to_vec::<i64>();
        let logprobs = (told.len() > 1).then(|| {
            (
                told[1].to_vec::<f32>(),
                told[2].to_vec::<f32>(),
                told[3].to_vec::<i64>(),
                told[2].dims()[1],
            )
        });
        Box::pin(async move {
            let plain = |token: i64| Choice { token: token as u32, ..Choice::default() };
            let mut choices: Vec<Choice> =
                tokens.await?.into_iter().take(choosing).map(plain).collect();
            if let Some((own, values, tokens, each)) = logprobs {
                let (own, values, tokens) = (own.await?, values.await?, tokens.await?);
                for (k, choice) in choices.iter_mut().enumerate() {
                    choice.logprob = own[k];
                    let row = k * each..(k + 1) * each;
                    let pairs = tokens[row.clone()].iter().zip(&values[row]);
                    choice.alternatives =
                        pairs.map(|(&token, &value)| (token as u32, value)).collect();
                }
            }
            Ok(choices)
        })
    }

    fn reset(&mut self) {
        let pages = [self.limits.pages + 1, self.limits.page];
        self.state = Some(State::new(&self.model, pages, self.limits.slots));
    }
}
