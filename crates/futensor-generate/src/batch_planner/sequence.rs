//! One admitted request: how far it has come, and what it holds.

use super::{Id, Job, Row};
use crate::pages::{BEGINNING, Page, Pages};
use std::time::Duration;

#[derive(Default)]
pub struct Sequence {
    pub slot: usize,
    /// Tokens that the host knows: the prompt, and what was read.
    pub known: Vec<u32>,
    /// Tokens that steps under way will bring.
    pub pending: usize,
    /// Tokens whose keys and values are there, or are made by steps under way.
    pub queued: usize,
    /// Tokens that it may have in the end.
    pub length_max: usize,
    pub table: Vec<Page>,
    /// Pages whose content is known to others, and the beginning that they make up.
    remembered: usize,
    beginning: u64,
    /// Steps under way with rows of it.
    pub flights: usize,
    pub deadline: Option<Duration>,
    pub room: usize,
    pub one_by_one: bool,
    pub ended: bool,
    /// It gets no more rows, and waits again once steps with rows of it are through.
    pub leaves: bool,
    /// It is not known yet what may follow.
    pub waits: bool,
}

impl Sequence {
    /// Shares what others have computed of the prompt; none where there is no room for the rest,
    /// beside `others` that are spoken for.
    pub fn admit(job: &Job, pages: &mut Pages, others: usize) -> Option<Sequence> {
        let length_max = job.prompt.len() + job.tokens;
        let mut sequence = Sequence {
            length_max,
            deadline: job.deadline,
            room: job.room,
            one_by_one: job.one_by_one,
            ..Sequence::default()
        };
        // The last token of a prompt is always computed: the next one is chosen from it.
        let (mut shared, mut idle, mut beginning) = (Vec::new(), 0, BEGINNING);
        for tokens in job.prompt[..job.prompt.len() - 1].chunks_exact(pages.size()) {
            let Some((page, serial)) = pages.find(beginning, tokens) else { break };
            idle += pages.is_idle(page) as usize;
            shared.push(page);
            beginning = serial;
        }
        let own = (job.prompt.len() + 1).div_ceil(pages.size()) - shared.len();
        if own + idle + others > pages.available() {
            return None;
        }
        shared.iter().for_each(|&page| pages.share(page));
        sequence.queued = shared.len() * pages.size();
        sequence.remembered = shared.len();
        sequence.beginning = beginning;
        sequence.table = shared;
        Some(sequence)
    }

    /// Rows until the next token can be chosen.
    pub fn rows_left(&self) -> usize {
        self.known.len() + self.pending - self.queued
    }

    pub fn can_go_on(&self) -> bool {
        let waits = self.one_by_one && self.pending > 0;
        let full = self.known.len() + self.pending >= self.length_max;
        !self.ended
            && !self.leaves
            && !self.waits
            && !full
            && !waits
            && self.pending < self.room
            && self.rows_left() > 0
    }

    /// Its reader has room for no other token.
    pub fn stalls(&self) -> bool {
        self.pending >= self.room
    }

    /// Pages that it will take for the tokens that it has, and one more.
    pub fn lacks(&self, size: usize) -> usize {
        let length = (self.known.len() + self.pending + 1).min(self.length_max);
        length.div_ceil(size).saturating_sub(self.table.len())
    }

    /// What it is where it has to wait again.
    pub fn job(self) -> Job {
        Job {
            tokens: self.length_max - self.known.len(),
            prompt: self.known,
            deadline: self.deadline,
            room: self.room,
            one_by_one: self.one_by_one,
            held: false,
        }
    }

    /// Takes the next page from another who has computed it, in place of computing it: how many
    /// tokens that saves.
    pub fn adopt(&mut self, pages: &mut Pages) -> usize {
        let (size, at) = (pages.size(), self.queued);
        if at != self.table.len() * size
            || self.remembered != self.table.len()
            || at + size >= self.known.len()
        {
            return 0;
        }
        let Some((page, serial)) = pages.find(self.beginning, &self.known[at..at + size]) else {
            return 0;
        };
        pages.share(page);
        self.table.push(page);
        self.beginning = serial;
        self.remembered += 1;
        self.queued += size;
        size
    }

    /// The next row lies in a page that it does not have.
    pub fn needs_page(&self, size: usize) -> bool {
        self.queued == self.table.len() * size
    }

    /// The next row; none where there is no page for it.
    pub fn row(&mut self, id: Id, pages: &mut Pages) -> Option<Row> {
        let position = self.queued;
        let (index, place) = (position / pages.size(), position % pages.size());
        if index == self.table.len() {
            self.table.push(pages.take()?);
        }
        self.queued += 1;
        let chooses = self.rows_left() == 0;
        self.pending += chooses as usize;
        let token = self.known.get(position).copied();
        Some(Row { id, slot: self.slot, token, position, page: self.table[index], place, chooses })
    }

    /// Tells of pages that are full of known tokens.
    pub fn remember(&mut self, pages: &mut Pages) {
        let size = pages.size();
        while (self.remembered + 1) * size <= self.queued.min(self.known.len()) {
            let k = self.remembered;
            let tokens = &self.known[k * size..(k + 1) * size];
            self.beginning = pages.learn(self.table[k], self.beginning, tokens);
            self.remembered += 1;
        }
    }
}
