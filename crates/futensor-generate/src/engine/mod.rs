//! Requests to streams of tokens: one thread asks the planner for steps, queues them on the
//! device, reads the chosen tokens, and hands them out.
//!
//! The thread sleeps while there is nothing to do. It waits for the device as any task does, by a
//! waker; no thread of an executor ever runs any of this. Readers' wakers and grammars, which may
//! take long, are the helpers'.

mod driver;
mod stream;
#[cfg(test)]
mod tests;

use crate::batch_planner::{Job, Limits, Refusal};
use crate::constraint::{Constraint, Grammar, Grammars};
use crate::error::{Error, Result, number_of};
use crate::helpers::Work;
use crate::lock::lock;
use crate::model::{Llama, Runner, Steps};
use crate::options::Options;
use crate::request::Request;
use crate::tokenizer::Text;
use driver::{Client, Driver, Readers};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use stream::Channel;
pub use stream::Tokens;

/// What an engine has done, and what it is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that have slot and pages.
    pub running: usize,
    /// Requests that wait for them.
    pub waiting: usize,
    /// Pages in use, and in all.
    pub pages_used: usize,
    /// Pages in all.
    pub pages: usize,
    /// Requests that were taken.
    pub requests: u64,
    /// Requests that went away before their end.
    pub left: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Steps that are through.
    pub steps: u64,
    /// Rows of all steps.
    pub rows: u64,
    /// Time that queueing them took, added up: the host's part of a step.
    pub queueing: Duration,
    /// Tokens that were handed out.
    pub tokens: u64,
    /// Tokens of prompts that nobody had to compute again.
    pub shared_tokens: u64,
    /// How often a request gave its slot and pages back, and waited again.
    pub preempted: u64,
}

enum Command {
    New(Box<Client>, Job),
    /// What came of a new one's constraint.
    Compiled(u64, Result<Arc<Grammar>>),
    HangUp(u64),
}

/// What handles, streams and the thread share.
#[derive(Default)]
struct Shared {
    commands: Mutex<Vec<Command>>,
    /// Set once no more are taken.
    closed: AtomicBool,
    next: AtomicU64,
    /// Requests that have not ended.
    open: AtomicUsize,
    stats: Mutex<Stats>,
    unparker: Unparker,
}

/// Wakes the thread, which parks between two rounds.
#[derive(Default)]
struct Unparker {
    thread: OnceLock<Thread>,
    unparked: AtomicBool,
}

impl Unparker {
    fn unpark(&self) {
        if !self.unparked.swap(true, AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.unparker.unpark();
    }
}

impl Shared {
    /// False where nobody takes commands any more.
    fn send(&self, command: Command) -> bool {
        let mut commands = lock(&self.commands);
        let open = !self.closed.load(Acquire);
        if open {
            commands.push(command);
        }
        drop(commands);
        self.unparker.unpark();
        open
    }

    /// What was sent; with `close` the last.
    fn take(&self, close: bool) -> Vec<Command> {
        let mut commands = lock(&self.commands);
        self.closed.fetch_or(close, AcqRel);
        std::mem::take(&mut commands)
    }
}

/// A model that answers. Clones are handles on the same one; it ends with the last of them, or when
/// it is [closed](Self::close).
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    model: Arc<Llama>,
    limits: Limits,
    options: Options,
    grammars: Arc<Grammars>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.closed.store(true, Release);
        self.shared.unparker.unpark();
    }
}

impl Engine {
    /// Starts a thread that runs the model.
    ///
    /// # Errors
    /// Where the options leave no room for a single page, or there is no thread to be had.
    pub fn start(model: Llama, options: Options) -> Result<Engine> {
        let model = Arc::new(model);
        let limits = model.limits(&options)?;
        let steps = Steps::new(model.clone(), &limits);
        let shared = Arc::new(Shared::default());
        lock(&shared.stats).pages = limits.pages;
        let Options { buffer, pause, unread, .. } = options;
        let readers = Readers { buffer, pause, end: unread };
        let driver = Driver::new(shared.clone(), limits.clone(), steps, readers);
        let spawned = std::thread::Builder::new()
            .name("futensor-generate".into())
            .spawn(move || live(driver));
        spawned.map_err(|e| Error::busy(format!("no thread: {e}")))?;
        let grammars = Grammars::new(model.tokenizer().clone(), model.vocabulary());
        let handle = Handle { shared, model, limits, options, grammars };
        Ok(Engine(Arc::new(handle)))
    }

    /// The model.
    pub fn model(&self) -> &Llama {
        &self.0.model
    }

    /// Tokens of a request at most, prompt and answer.
    pub fn context(&self) -> usize {
        self.0.limits.context.min(self.0.limits.pages * self.0.limits.page)
    }

    /// What it has done, and what it is at.
    pub fn stats(&self) -> Stats {
        *lock(&self.0.shared.stats)
    }

    /// The tokens that follow the request's prompt. The request waits for its turn, behind however
    /// many; the stream begins when it has come. A constraint is compiled meanwhile, on a helper
    /// thread.
    ///
    /// # Errors
    /// Where the request cannot be carried out. A constraint that cannot be compiled is the
    /// stream's first item.
    ///
    /// # Cancel safety
    /// Dropping the stream ends the request: its slot and its pages are free when the step under
    /// way is through.
    pub fn generate(&self, request: Request) -> Result<Tokens> {
        let job = self.job(&request)?;
        self.submit(request, job)
    }

    /// The same, where not too many wait already.
    ///
    /// # Errors
    /// One that [is busy](Error::is_busy) where [as many](Options::waiting) wait as may.
    pub fn try_generate(&self, request: Request) -> Result<Tokens> {
        let job = self.job(&request)?;
        let most = self.0.options.waiting.saturating_add(self.0.limits.slots);
        if self.0.shared.open.load(Acquire) >= most {
            return Err(Error::busy(format!(
                "as many requests as may wait are there already: {most}"
            )));
        }
        self.submit(request, job)
    }

    /// Compiles a constraint ahead, on a helper thread: for whoever wants to know whether it is one
    /// before he generates. Requests with the same constraint find it compiled.
    ///
    /// ```no_run
    /// # async fn doc(engine: futensor_generate::Engine) -> futensor_generate::Result<()> {
    /// use futensor_generate::Constraint;
    /// let wrong = engine.prepare(Constraint::Regex("(".into())).await;
    /// assert!(wrong.unwrap_err().is_request());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Where it is no grammar, or one that is too large.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub fn prepare(&self, constraint: impl Into<Arc<Constraint>>) -> Work<()> {
        self.0.grammars.prepare(constraint.into())
    }

    /// Ends every request with an error, and the thread.
    pub fn close(&self) {
        self.0.shared.closed.store(true, Release);
        self.0.shared.unparker.unpark();
    }

    fn job(&self, request: &Request) -> Result<Job> {
        request.check_small()?;
        let no = |text: String| Err(Error::request(text));
        let (prompt, context) = (request.prompt.len(), self.context());
        let tokens = request.tokens_max.unwrap_or_else(|| context.saturating_sub(prompt).max(1));
        match self.0.limits.admits(prompt, tokens) {
            Ok(()) => {}
            Err(Refusal::Empty) if prompt == 0 => return no("the prompt is empty".into()),
            Err(Refusal::Empty) => return no("no tokens are asked for".into()),
            Err(Refusal::TooLong | Refusal::TooLarge) => {
                let new = number_of(tokens, "new one", "new ones");
                let tokens = number_of(prompt, "token", "tokens");
                return no(format!("{tokens} and {new} are more than the {context} of a request"));
            }
        }
        let vocabulary = self.0.model.vocabulary() as u32;
        let biased = request.sampling.logit_bias.iter().map(|(token, _)| token);
        if let Some(token) = request.prompt.iter().chain(biased).find(|&&t| t >= vocabulary) {
            return no(format!("token {token} is not one of the model's {vocabulary}"));
        }
        // One that lies beyond all time is none.
        let deadline = request.deadline.and_then(|d| self.0.shared.now().checked_add(d));
        let (prompt, room) = (request.prompt.clone(), self.0.options.buffer);
        let constrained = request.constraint.is_some();
        Ok(Job { prompt, tokens, deadline, room, one_by_one: constrained, held: constrained })
    }

    fn submit(&self, request: Request, job: Job) -> Result<Tokens> {
        let shared = &self.0.shared;
        let id = shared.next.fetch_add(1, Relaxed);
        let channel = Arc::new(Channel::default());
        shared.open.fetch_add(1, AcqRel);
        let client = Client {
            id,
            channel: channel.clone(),
            tokenizer: self.0.model.tokenizer().clone(),
            text: Text::new(&request.stop),
            guide: None,
            sampling: Arc::new(request.sampling),
            prompt: request.prompt.len(),
            counts: BTreeMap::new(),
            counted: 0,
            logprobs: request.logprobs,
            ignore_end: request.ignore_end,
            begun: false,
            full: None,
        };
        if !shared.send(Command::New(Box::new(client), job)) {
            shared.open.fetch_sub(1, AcqRel);
            return Err(Error::ended());
        }
        if let Some(constraint) = request.constraint {
            let shared = shared.clone();
            self.0.grammars.compile(constraint, move |grammar| {
                shared.send(Command::Compiled(id, grammar));
            });
        }
        Ok(Tokens::new(id, channel, shared.clone()))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Engine").field(&self.stats()).finish()
    }
}

impl Shared {
    /// Time since this process first asked.
    fn now(&self) -> Duration {
        static EPOCH: OnceLock<Instant> = OnceLock::new();
        EPOCH.get_or_init(Instant::now).elapsed()
    }
}

/// The thread: polls the driver, and sleeps until somebody rings or a deadline comes.
fn live<R: Runner>(mut driver: Driver<R>) {
    let shared = driver.shared().clone();
    let _ = shared.unparker.thread.set(std::thread::current());
    let waker = Waker::from(shared.clone());
    loop {
        shared.unparker.unparked.store(false, Release);
        let Some(deadline) = driver.poll(&mut Context::from_waker(&waker), shared.now()) else {
            return;
        };
        while !shared.unparker.unparked.load(Acquire) {
            match deadline.map(|at| at.saturating_sub(shared.now())) {
                None => std::thread::park(),
                Some(Duration::ZERO) => break,
                Some(wait) => std::thread::park_timeout(wait),
            }
        }
    }
}
