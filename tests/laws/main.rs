//! The ten laws of the contract, as trials over a factory of devices.
//!
//!     cargo test -p futensor-tests --test laws                 # all
//!     cargo test -p futensor-tests --test laws law_4           # one law
//!
//! Each trial is a promise and fails when it is broken. What must be running and what must be
//! queued is decided by gates that the trial holds, never by a sleep. `support/trials.rs` says how
//! they are run: one that does not end within a minute fails, as does one that leaves something
//! behind.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trials.rs"]
mod trials;

mod barriers;
mod calls;
mod captured;
mod devices;
mod ends;
mod errors;
mod finite;
mod foreign;
mod fusion;
mod handles;
mod list;
mod observers;
mod plans;
mod pressure;
mod races;
mod regions;
mod waits;
mod wakers;
mod weights;

use std::process::ExitCode;
use support::Kind;
use trials::Case;

/// Trials of one law.
pub struct Laws {
    cases: Vec<Case>,
    list: list::List,
}

impl Laws {
    /// Adds a promise for each kind of device.
    pub fn add(&mut self, law: u32, kinds: &'static [Kind], name: &'static str, promise: fn(Kind)) {
        self.list.note(law, kinds, name);
        // Those for a GPU are in a suite of their own.
        for &kind in kinds.iter().filter(|&&kind| kind != Kind::Cuda) {
            let name = format!("law_{law}::{name}[{}]", kind.name());
            self.cases.push(Case::new(name, move || promise(kind)));
        }
    }
}

/// `promises!(laws, 1, ALL; a b c)`: the functions `a`, `b` and `c` prove law 1 on all kinds.
macro_rules! promises {
    ($laws:expr, $law:literal, $kinds:expr; $($name:ident)*) => {
        $($laws.add($law, $kinds, stringify!($name), $name);)*
    };
}
pub(crate) use promises;

fn main() -> ExitCode {
    let mut laws = Laws { cases: Vec::new(), list: list::List::default() };
    calls::add(&mut laws);
    barriers::add(&mut laws);
    observers::add(&mut laws);
    ends::add(&mut laws);
    errors::add(&mut laws);
    finite::add(&mut laws);
    pressure::add(&mut laws);
    races::add(&mut laws);
    devices::add(&mut laws);
    handles::add(&mut laws);
    fusion::add(&mut laws);
    foreign::add(&mut laws);
    captured::add(&mut laws);
    regions::add(&mut laws);
    plans::add(&mut laws);
    waits::add(&mut laws);
    wakers::add(&mut laws);
    weights::add(&mut laws);
    laws.cases.push(laws.list.trial());
    trials::run(laws.cases, false)
}
