//! The state of an optimizer, by name, to be saved with the weights.
//!
//! State for a parameter's elements has the parameter's shape, and a name that begins with the
//! parameter's number. So it has the same meaning for an optimizer whose state is
//! [sharded](super::Sharded) over any number of ranks.

use crate::error::{Error, ErrorKind};
use crate::nn::Parameter;
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::collections::HashMap;
use std::panic::Location;

/// Values by name.
pub type State = Vec<(String, TensorFuture)>;

/// The parameter that state of this name belongs to.
pub(super) fn beside<'a>(parameters: &'a [Parameter], name: &str) -> Option<&'a Parameter> {
    parameters.get(name.split_once('.')?.0.parse::<usize>().ok()?)
}

/// Checks that state has the shapes of its parameters.
///
/// # Errors
/// The first entry that does not.
#[track_caller]
pub(super) fn fits(optimizer: &str, parameters: &[Parameter], state: &State) -> Result<(), Error> {
    for (name, value) in state {
        let Some(parameter) = beside(parameters, name) else { continue };
        let own = parameter.value();
        if own.shape() != value.shape() {
            let text = format!(
                "{name} has shape {}, but its parameter has {}",
                value.shape(),
                own.shape()
            );
            return Err(Error::new(
                ErrorKind::Shape,
                optimizer,
                text,
                build::seen(Location::caller()),
            ));
        }
    }
    Ok(())
}

/// A state that is being restored, entry by entry.
pub(super) struct Taken<'a> {
    optimizer: &'a str,
    left: HashMap<String, TensorFuture>,
}

impl Taken<'_> {
    /// # Errors
    /// An entry that has another shape than its parameter.
    #[track_caller]
    pub fn new<'a>(
        optimizer: &'a str,
        parameters: &[Parameter],
        state: State,
    ) -> Result<Taken<'a>, Error> {
        fits(optimizer, parameters, &state)?;
        Ok(Taken { optimizer, left: state.into_iter().collect() })
    }

    pub fn take(&mut self, name: &str) -> Option<TensorFuture> {
        self.left.remove(name)
    }

    /// Takes two entries that are only valid together.
    ///
    /// # Errors
    /// One of the two is missing.
    #[track_caller]
    pub fn take_both(
        &mut self,
        a: &str,
        b: &str,
    ) -> Result<Option<(TensorFuture, TensorFuture)>, Error> {
        let missing = match (self.take(a), self.take(b)) {
            (Some(a), Some(b)) => return Ok(Some((a, b))),
            (None, None) => return Ok(None),
            (None, _) => a,
            (_, None) => b,
        };
        let text = format!("{missing} is missing");
        Err(Error::new(ErrorKind::Argument, self.optimizer, text, build::seen(Location::caller())))
    }

    /// # Errors
    /// Entries are left over: the state belongs to another optimizer or model.
    #[track_caller]
    pub fn end(self) -> Result<(), Error> {
        let Some(name) = self.left.into_keys().min() else { return Ok(()) };
        let text = format!("{name} is not part of its state");
        Err(Error::new(ErrorKind::Argument, self.optimizer, text, build::seen(Location::caller())))
    }
}
