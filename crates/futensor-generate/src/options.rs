//! What an engine has to share among requests.

use std::time::Duration;

/// What there is to share among requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests that run at the same time.
    pub slots: usize,
    /// Memory for keys and values, in bytes.
    pub pages_bytes: usize,
    /// Tokens a page of it.
    pub page: usize,
    /// Tokens of a request at most, prompt and answer; the model's own limit where that is less.
    pub context: usize,
    /// Tokens of prompts that one step takes up.
    pub chunk: usize,
    /// The same, of a step in which others wait for their next token.
    pub chunk_beside: usize,
    /// Requests that may wait for a slot and pages before `try_generate` refuses more.
    pub waiting: usize,
    /// Tokens that wait for a slow reader before its request stops.
    pub buffer: usize,
    /// A request that has stopped, and whose reader takes nothing for so long, gives its slot and
    /// pages back until he does.
    pub pause: Duration,
    /// After so long it ends.
    pub unread: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slots: 64,
            pages_bytes: 256 << 20,
            page: 32,
            context: 8192,
            chunk: 256,
            chunk_beside: 64,
            waiting: 256,
            buffer: 64,
            pause: Duration::from_secs(5),
            unread: Duration::from_secs(60),
        }
    }
}
