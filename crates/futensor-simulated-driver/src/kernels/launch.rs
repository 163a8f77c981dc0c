//! One launch: a kernel, its grid, and a copy of its arguments.

use crate::checks::report::Findings;
use crate::checks::shared;
use crate::kernels::fibers;
use crate::kernels::image::{Image, Shape};
use crate::machine::faults::{Fault, LaunchFate};
use crate::random::Random;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes at the largest alignment that a parameter or shared memory can ask for.
#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

/// One launch: a kernel, its grid, and a copy of its arguments.
#[derive(Clone)]
pub struct Launch {
    pub image: Arc<Image>,
    /// Its kernel's place in the image.
    pub entry: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    arguments: Vec<Vec<Line>>,
    /// What it is to suffer.
    pub fate: LaunchFate,
}

impl Launch {
    /// A launch over a grid, with copies of its arguments: of each, an address that is valid for
    /// the size that the kernel's entry names.
    ///
    /// # Safety
    /// The addresses are as said.
    pub unsafe fn new(
        image: Arc<Image>,
        entry: usize,
        (grid, block, shared): ([u32; 3], [u32; 3], usize),
        addresses: &[usize],
    ) -> Launch {
        let sizes = &image.entries[entry].parameters;
        let copy = |(&address, &size): (&usize, &usize)| {
            let mut lines = vec![Line([0; 256]); size.div_ceil(256)];
            // SAFETY: by this function's contract; the lines have room for it.
            unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, lines.as_mut_ptr().cast(), size)
            };
            lines
        };
        let arguments = addresses.iter().zip(sizes).map(copy).collect();
        Launch { image, entry, grid, block, shared, arguments, fate: LaunchFate::default() }
    }

    /// Its kernel.
    pub fn name(&self) -> &str {
        &self.image.entries[self.entry].name
    }

    /// The same, with another fate.
    pub fn suffering(&self, fate: LaunchFate) -> Launch {
        Launch { fate, ..self.clone() }
    }

    /// How many threads it has.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).map(|&n| u64::from(n)).product()
    }

    /// Runs it. The seed says whether threads and blocks start from the first or from the last.
    /// What is wrong with what its threads share goes to `found`.
    pub fn run(&self, order: &mut Random, found: &mut Findings) -> Result<(), Fault> {
        if let Some(status) = self.fate.fault {
            return Err(Fault { status, text: "a fault on demand".into() });
        }
        let descending = order.bits() & 1 == 1;
        let mut shared = vec![Line([0xFF; 256]); self.shared.div_ceil(256)];
        // Kernels own their arguments: each run works on a copy, as a graph may run this launch
        // again.
        let mut copies = self.arguments.clone();
        let mut addresses: Vec<*mut c_void> =
            copies.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
        let entry = &self.image.entries[self.entry];
        let (dynamic, dynamic_bytes) = (shared.as_mut_ptr().cast(), self.shared);
        let shape = Shape { grid: self.grid, block: self.block, dynamic, dynamic_bytes };
        let done = fibers::run(&self.image, entry.work, &mut addresses, &shape, descending);
        found.extend(
            shared::end()
                .into_iter()
                .map(|text| ("race", format!("kernel {}: {text}", entry.name))),
        );
        done
    }

    /// Eight bytes of an argument.
    pub fn word(&self, parameter: usize, offset: usize) -> usize {
        let mut bytes = [0; 8];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let at = offset + i;
            *byte = self.arguments[parameter].get(at / 256).map_or(0, |line| line.0[at % 256]);
        }
        usize::from_le_bytes(bytes)
    }
}
