//! The launches of one step, collected until the step has everything it needs.
//!
//! Preparing a step may find that a kernel is still being compiled, or that memory is short; then
//! the step is retried. If it had already launched some of its kernels, a kernel that works in
//! place would run twice. So a step launches nothing until it has everything.

#![allow(unsafe_code)]

use super::args::{Words, pointers};
use crate::cuda::device::libraries::blas::Blas;
use crate::cuda::device::libraries::convolutions::Convolutions;
use crate::cuda::device::libraries::library_call::LibraryCall;
use crate::cuda::device::libraries::nvidia::{Function, Span};
use crate::cuda::device::{Stream, Trouble};
use crate::graph::device_run::StreamCall;
use crate::graph::operation::Refusal;
use crate::guard::caught;
use std::ops::Range;

enum Item {
    Kernel {
        function: Function,
        grid: [[u32; 3]; 2],
        shared: u32,
        words: Range<usize>,
        starts: Range<usize>,
    },
    Library(LibraryCall<u64>),
    Zero(Span),
    /// A user's, which gets the stream.
    Call(StreamCall),
}

/// The launches of a step, in order.
#[derive(Default)]
pub(crate) struct Batch {
    items: Vec<Item>,
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Batch {
    pub fn launch(&mut self, function: Function, grid: [[u32; 3]; 2], shared: u32, of: &Words) {
        let words = self.words.len()..self.words.len() + of.words.len();
        let starts = self.starts.len()..self.starts.len() + of.starts.len();
        self.words.extend_from_slice(&of.words);
        self.starts.extend_from_slice(&of.starts);
        self.items.push(Item::Kernel { function, grid, shared, words, starts });
    }

    pub fn library(&mut self, call: LibraryCall<u64>) {
        self.items.push(Item::Library(call));
    }

    /// Zeroes memory that belongs to the step.
    pub fn zero(&mut self, ptr: u64, bytes: usize) {
        // SAFETY: the step's memory has that many bytes there.
        self.items.push(Item::Zero(unsafe { Span::new(ptr, bytes) }));
    }

    pub fn call(&mut self, f: StreamCall) {
        self.items.push(Item::Call(f));
    }

    pub fn has_products(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Library(LibraryCall::Product(_))))
    }

    /// Discards all launches.
    pub fn clear(&mut self) {
        self.items.clear();
        self.words.clear();
        self.starts.clear();
    }

    pub fn send(
        &mut self,
        stream: &Stream,
        blas: &Blas,
        convolutions: &Convolutions,
    ) -> Result<(), Trouble> {
        let mut sent = Ok(());
        for item in std::mem::take(&mut self.items) {
            sent = match item {
                Item::Kernel { function, grid, shared, words, starts } => {
                    let mut arguments = pointers(&mut self.words[words], &self.starts[starts]);
                    // SAFETY: the function was looked up for this launch, and modules are unloaded
                    // only between launches. A plan's arguments match the kernel that it names;
                    // their addresses come from views of memory whose other users precede this step
                    // on its lane. For custom kernels, the caller of `CudaRun::launch`
                    // promises the same.
                    unsafe { stream.raw.launch(function, grid, shared, &mut arguments) }
                }
                Item::Library(LibraryCall::Product(product)) => blas.multiply(stream, &product),
                Item::Library(LibraryCall::Convolution(convolved)) => {
                    convolutions.convolve(stream, &convolved)
                }
                Item::Zero(span) => stream.raw.zero(span),
                Item::Call(f) => {
                    let handle = stream.raw.handle().cast();
                    caught(|| f(handle)).map_err(|words| Refusal::kernel(words).into())
                }
            };
            if sent.is_err() {
                break;
            }
        }
        self.clear();
        sent
    }
}
