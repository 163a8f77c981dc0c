//! The engine's thread: it takes commands, has the planner plan, queues steps ahead, and hands out
//! the tokens that they chose. A step that fails fails the requests that run, and no others.

use super::stream::Channel;
use super::{Command, Shared};
use crate::batch_planner::{BatchPlanner, Event, Id, Job, Limits, Step};
use crate::constraint::Guided;
use crate::error::{Error, Result};
use crate::helpers::{Helpers, STUCK};
use crate::lock::lock;
use crate::model::{Choice, Runner, Wish};
use crate::request::{End, Logprobs, Token};
use crate::sampling::{PENALIZED, Sampling};
use crate::tokenizer::{Text, Tokenizer};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Steps that are queued at a time: one that runs, and one that follows it.
const AHEAD: usize = 2;

/// Whom tokens go to, and what becomes of them on the way.
pub struct Client {
    pub id: Id,
    pub channel: Arc<Channel>,
    pub tokenizer: Arc<Tokenizer>,
    pub text: Text,
    /// Of one with a constraint, once that is compiled.
    pub guide: Option<Guided>,
    pub sampling: Arc<Sampling>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How often the answer has which token, as far as that was counted and is wanted.
    pub counts: BTreeMap<u32, u32>,
    pub counted: usize,
    pub logprobs: Option<usize>,
    pub ignore_end: bool,
    /// It has had a slot.
    pub begun: bool,
    /// Since when its reader has no room, and how many tokens it had read then.
    pub full: Option<(u64, Duration)>,
}

/// See the module.
pub struct Driver<R: Runner> {
    shared: Arc<Shared>,
    planner: BatchPlanner,
    runner: R,
    flights: VecDeque<(Step, R::Flight)>,
    clients: HashMap<Id, Client>,
    helpers: Helpers,
    readers: Readers,
    /// When a reader has paused for long enough.
    again: Option<Duration>,
}

/// What readers are given.
#[derive(Clone, Copy)]
pub struct Readers {
    /// Tokens that wait for one.
    pub buffer: usize,
    /// A request whose reader takes none of them for so long waits, and ends after so long.
    pub pause: Duration,
    pub end: Duration,
}

impl<R: Runner> Driver<R> {
    pub fn new(shared: Arc<Shared>, limits: Limits, runner: R, readers: Readers) -> Driver<R> {
        Driver {
            shared,
            planner: BatchPlanner::new(limits),
            runner,
            flights: VecDeque::new(),
            clients: HashMap::new(),
            helpers: Helpers::looked_after(),
            readers: Readers { buffer: readers.buffer.max(1), ..readers },
            again: None,
        }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Does all there is to do. When to look again at the latest, if ever; `None` where the engine
    /// is closed.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Duration) -> Option<Option<Duration>> {
        loop {
            if self.shared.closed.load(Acquire) {
                return None;
            }
            for command in self.shared.take(false) {
                self.obey(command);
            }
            for event in self.planner.expire(now) {
                self.tell(event, &[]);
            }
            if self.flights.len() < AHEAD {
                self.resume(now);
                self.admit();
                if self.look(now) {
                    continue;
                }
            }
            while self.flights.len() < AHEAD && self.queue() {}
            self.count();
            let Some((_, flight)) = self.flights.front_mut() else { break };
            let Poll::Ready(choices) = Pin::new(flight).poll(cx) else { break };
            self.land(choices);
        }
        let soon = self.helpers.look(now).then(|| now + STUCK);
        Some(self.planner.deadline().into_iter().chain(soon).chain(self.again).min())
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::New(client, job) => {
                lock(&self.shared.stats).requests += 1;
                let id = client.id;
                self.clients.insert(id, *client);
                self.planner.submit(id, Job { room: self.readers.buffer, ..job });
            }
            Command::Compiled(id, Ok(grammar)) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.guide = Some(Guided::new(grammar));
                    self.planner.release(id);
                }
            }
            Command::Compiled(id, Err(error)) => self.fail(id, error),
            Command::HangUp(id) => {
                self.planner.end(id);
                if let Some(client) = self.part(id) {
                    lock(&self.shared.stats).left += 1;
                    client.free(&self.helpers);
                }
            }
        }
    }

    /// Takes those in who come next, and gives grammars a moment, in which a step is under way: a
    /// request whose mask takes longer is left out of the next one.
    fn admit(&mut self) {
        for id in self.planner.admit() {
            // One that was there before knows what may follow.
            if let Some(client) = self.clients.get_mut(&id)
                && !std::mem::replace(&mut client.begun, true)
            {
                client.ask(&self.helpers, &self.shared);
            }
        }
        let begin = Instant::now();
        let waits = |id: Id| self.clients.get(&id).is_some_and(Client::waits);
        while begin.elapsed() < STUCK && self.planner.running().any(waits) {
            std::thread::sleep(STUCK / 20);
        }
    }

    /// Those whom nobody read wait for a slot once somebody does, and end where nobody does for
    /// long.
    fn resume(&mut self, now: Duration) {
        self.again = None;
        let Readers { buffer, end, .. } = self.readers;
        let paused: Vec<Id> = self.planner.paused().collect();
        for id in paused {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let (room, since) = client.reads(buffer, buffer / 2, now);
            match since.map(|since| since.saturating_add(end)) {
                None => self.planner.resume(id, room),
                Some(at) if at <= now => self.fail(id, Error::unread(end)),
                at => self.again = self.again.into_iter().chain(at).min(),
            }
        }
    }

    /// Sees what readers have taken: whoever has room goes on, and whoever takes nothing for long
    /// waits: then there is room for others.
    fn look(&mut self, now: Duration) -> bool {
        let Readers { buffer, pause, .. } = self.readers;
        let mut paused = false;
        let running: Vec<Id> = self.planner.running().collect();
        for id in running {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let pending = self.planner.pending(id);
            let (room, since) = client.reads(buffer, pending, now);
            self.planner.room(id, room, client.waits());
            match since.map(|since| since.saturating_add(pause)) {
                Some(at) if at <= now => paused |= self.planner.pause(id),
                at => self.again = self.again.into_iter().chain(at).min(),
            }
        }
        paused
    }

    /// Queues the next step, where there is one.
    fn queue(&mut self) -> bool {
        let Some(step) = self.planner.plan() else { return false };
        let mut wishes = Vec::new();
        let mut lost = Vec::new();
        for row in step.rows.iter().filter(|row| row.chooses) {
            let wish = self.wish(row.id, row.position + 1);
            // Who cannot say what may follow ends when the step is through.
            wishes.push(wish.unwrap_or_else(|error| {
                lost.push((row.id, error));
                Wish::default()
            }));
        }
        let begin = Instant::now();
        let flight = self.runner.queue(&step, &wishes);
        lock(&self.shared.stats).queueing += begin.elapsed();
        self.flights.push_back((step, flight));
        for (id, error) in lost {
            self.fail(id, error);
        }
        true
    }

    /// How the token at this position is to be chosen.
    fn wish(&mut self, id: Id, position: usize) -> Result<Wish> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(Wish::default()) };
        let sampling = client.sampling.clone();
        // The last token before is the device's to add: the host may not know it yet.
        let known = self.planner.known(id).unwrap_or_default();
        let known = &known[..known.len().min(position - 1)];
        let recent = match sampling.repetition_penalty {
            1.0 => Vec::new(),
            _ => known[known.len().saturating_sub(PENALIZED - 1)..].to_vec(),
        };
        let listed = client.listed(known);
        Ok(Wish {
            draw: if sampling.temperature > 0.0 { sampling.draw(position) } else { 0.0 },
            sampling,
            recent,
            listed,
            answered: position > client.prompt,
            mask: client.guide.as_ref().map(Guided::mask).transpose()?,
            logprobs: client.logprobs,
        })
    }

    /// The oldest step is through.
    fn land(&mut self, choices: Result<Vec<Choice>>) {
        let Some((step, _)) = self.flights.pop_front() else { return };
        match choices {
            Ok(choices) => {
                {
                    let stats = &mut *lock(&self.shared.stats);
                    stats.steps += 1;
                    stats.rows += step.rows.len() as u64;
                }
                for event in self.planner.conclude(&step, true) {
                    self.tell(event, &choices);
                }
                self.planner.settle(&step);
            }
            Err(error) => {
                // What follows was made from it, and so was everything that pages hold.
                let mut events = self.planner.conclude(&step, false);
                for (step, _) in std::mem::take(&mut self.flights) {
                    events.extend(self.planner.conclude(&step, false));
                    self.planner.settle(&step);
                }
                self.planner.settle(&step);
                events.extend(self.planner.lose_all());
                for event in events {
                    if let Event::Failed { id } = event {
                        self.fail(id, error.clone());
                    }
                }
                self.runner.reset();
            }
        }
    }

    fn tell(&mut self, event: Event, choices: &[Choice]) {
        match event {
            Event::Late { id } => self.fail(id, Error::deadline()),
            Event::Failed { id } => self.fail(id, Error::ended()),
            Event::Token { id, choice, last } => {
                let token = self
                    .clients
                    .get_mut(&id)
                    .zip(choices.get(choice))
                    .map(|(c, t)| c.token(t, last));
                match token {
                    Some(Ok(token)) => {
                        self.deliver(id, token);
                        if let Some(client) = self.clients.get(&id) {
                            client.ask(&self.helpers, &self.shared);
                        }
                    }
                    Some(Err(error)) => {
                        self.planner.end(id);
                        self.fail(id, error);
                    }
                    None => self.planner.end(id),
                }
            }
        }
    }

    fn deliver(&mut self, id: Id, token: Token) {
        let end = token.end.is_some();
        lock(&self.shared.stats).tokens += 1;
        self.planner.learn(id, token.id);
        if end {
            self.planner.end(id);
            if let Some(client) = self.part(id) {
                client.channel.send(Ok(token), true, &self.helpers);
                client.free(&self.helpers);
            }
        } else if let Some(client) = self.clients.get(&id) {
            client.channel.send(Ok(token), false, &self.helpers);
        }
    }

    fn fail(&mut self, id: Id, error: Error) {
        self.planner.end(id);
        if let Some(client) = self.part(id) {
            lock(&self.shared.stats).failed += 1;
            client.channel.send(Err(error), true, &self.helpers);
            client.free(&self.helpers);
        }
    }

    /// One that is there no more.
    fn part(&mut self, id: Id) -> Option<Client> {
        let client = self.clients.remove(&id)?;
        self.shared.open.fetch_sub(1, AcqRel);
        Some(client)
    }

    fn count(&self) {
        let stats = &mut *lock(&self.shared.stats);
        stats.running = self.planner.running().len();
        stats.waiting = self.planner.waiting();
        stats.pages_used = self.planner.pages().used();
        stats.shared_tokens = self.planner.shared_tokens();
        stats.preempted = self.planner.preempted();
    }

    #[cfg(test)]
    pub fn planner(&self) -> &BatchPlanner {
        &self.planner
    }

    #[cfg(test)]
    pub fn flights(&self) -> usize {
        self.flights.len()
    }
}

impl<R: Runner> Drop for Driver<R> {
    /// Closed, or its thread has panicked: no stream is left without an end.
    fn drop(&mut self) {
        let late = self.shared.take(true).into_iter().filter_map(|command| match command {
            Command::New(client, _) => Some(*client),
            Command::Compiled(..) | Command::HangUp(_) => None,
        });
        for client in self.clients.drain().map(|(_, client)| client).chain(late) {
            client.channel.send(Err(Error::ended()), true, &self.helpers);
        }
        self.helpers.see_through();
        // What the last answers held goes with the driver, which may end before it counts again.
        let stats = &mut *lock(&self.shared.stats);
        (stats.running, stats.waiting, stats.pages_used) = (0, 0, 0);
    }
}

impl Client {
    /// Has a helper see what the grammar allows next, and ring then.
    fn ask(&self, helpers: &Helpers, shared: &Arc<Shared>) {
        if let Some(guide) = &self.guide {
            let (guide, shared) = (guide.ask(), shared.clone());
            helpers.push(move || {
                guide.find();
                shared.unparker.unpark();
            });
        }
    }

    /// A grammar's states may take 20 ms to free: a helper does that.
    fn free(self, helpers: &Helpers) {
        if self.guide.is_some() {
            helpers.push(move || drop(self));
        }
    }

    /// How many tokens its reader has room for; where those are not more than are pending, since
    /// when it has taken none.
    fn reads(&mut self, buffer: usize, pending: usize, now: Duration) -> (usize, Option<Duration>) {
        let (room, read) = self.channel.room(buffer, pending);
        self.full = match self.full {
            _ if room > pending => None,
            Some((before, since)) if before == read => Some((read, since)),
            _ => Some((read, now)),
        };
        (room, self.full.map(|(_, since)| since))
    }

    /// True where that is not known yet.
    fn waits(&self) -> bool {
        self.guide.as_ref().is_some_and(Guided::waits)
    }

    /// Tokens with biases and counts, of those before the last; all that is known is counted once.
    fn listed(&mut self, known: &[u32]) -> Vec<(u32, f32, u32)> {
        let sampling = &self.sampling;
        if sampling.counts() {
            for &token in known.get(self.prompt + self.counted..).unwrap_or_default() {
                *self.counts.entry(token).or_default() += 1;
                self.counted += 1;
            }
        }
        let count = |token: u32| self.counts.get(&token).copied().unwrap_or(0);
        let mut listed: Vec<(u32, f32, u32)> =
            sampling.logit_bias.iter().map(|&(token, bias)| (token, bias, count(token))).collect();
        let biased: HashSet<u32> = sampling.logit_bias.iter().map(|(token, _)| *token).collect();
        let others = self.counts.iter().filter(|(token, _)| !biased.contains(token));
        listed.extend(others.map(|(&token, &count)| (token, 0.0, count)));
        // Where the last one is the first to be counted.
        if listed.is_empty() && sampling.counts() {
            listed.push((0, 0.0, 0));
        }
        listed
    }

    /// What the reader is given for a choice.
    fn token(&mut self, choice: &Choice, last: bool) -> Result<Token> {
        let id = choice.token;
        let ends = !self.ignore_end && self.tokenizer.ends().contains(&id);
        let (mut text, mut stopped) = match ends {
            true => (String::new(), true),
            false => self.text.push(self.tokenizer.bytes(id)),
        };
        if let Some(guide) = &self.guide {
            stopped |= guide.accept(id)?;
        }
        let end = if stopped { Some(End::Stop) } else { last.then_some(End::Length) };
        if end.is_some() {
            text.push_str(&self.text.finish());
        }
        let logprobs = self.logprobs.map(|n| Logprobs {
            chosen: choice.logprob,
            alternatives: choice.alternatives.iter().take(n).copied().collect(),
        });
        Ok(Token { id, text, logprobs, end })
    }
}
