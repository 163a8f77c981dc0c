//! The ten laws of the contract, as trials over a factory of devices.
//!
//!     cargo test -p futensor-tests --test laws                 # all
//!     cargo test -p futensor-tests --test laws law_4           # one law
//!
//! Each trial is a promise and fails when it is broken. What must be running and what must be
//! queued is decided by gates that the trial holds, never by a sleep; a trial that does not end
//! within a minute ends the process with its name.

#[path = "../support/mod.rs"]
mod support;

mod barriers;
mod calls;
mod devices;
mod ends;
mod errors;
mod foreign;
mod fusion;
mod handles;
mod list;
mod observers;
mod pressure;
mod races;
mod regions;
mod wakers;
mod weights;

use libtest_mimic::{Arguments, Trial};
use support::{Deadline, Kind};

/// Trials of one law.
pub struct Laws {
    trials: Vec<Trial>,
    list: list::List,
}

impl Laws {
    /// Adds a promise for each kind of device.
    pub fn add(&mut self, law: u32, kinds: &'static [Kind], name: &'static str, promise: fn(Kind)) {
        self.list.note(law, kinds, name);
        // Those for a GPU are in a suite of their own.
        for &kind in kinds.iter().filter(|&&kind| kind != Kind::Cuda) {
            let name = format!("law_{law}::{name}[{}]", kind.name());
            let named = name.clone();
            self.trials.push(Trial::test(name, move || {
                let _deadline = Deadline::of(&named);
                promise(kind);
                Ok(())
            }));
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

fn main() {
    let mut laws = Laws { trials: Vec::new(), list: list::List::default() };
    calls::add(&mut laws);
    barriers::add(&mut laws);
    observers::add(&mut laws);
    ends::add(&mut laws);
    errors::add(&mut laws);
    pressure::add(&mut laws);
    races::add(&mut laws);
    devices::add(&mut laws);
    handles::add(&mut laws);
    fusion::add(&mut laws);
    foreign::add(&mut laws);
    regions::add(&mut laws);
    wakers::add(&mut laws);
    weights::add(&mut laws);
    laws.trials.push(laws.list.trial());
    libtest_mimic::run(&Arguments::from_args(), laws.trials).exit();
}
