//! The one error type of this crate: opaque, cheap to clone, with predicates.

use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A number of things, in words that fit it.
pub(crate) fn number_of(n: usize, one: &str, many: &str) -> String {
    let words = if n == 1 { one } else { many };
    format!("{n} {words}")
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Model,
    Request,
    Busy,
    Deadline,
    Ended,
    Device(futensor::Error),
}

/// Why there are no (more) tokens.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: Kind,
    text: Arc<str>,
}

impl Error {
    fn new(kind: Kind, text: impl Into<Arc<str>>) -> Error {
        Error { kind, text: text.into() }
    }

    pub(crate) fn model(text: impl Into<Arc<str>>) -> Error {
        Error::new(Kind::Model, text)
    }

    pub(crate) fn request(text: impl Into<Arc<str>>) -> Error {
        Error::new(Kind::Request, text)
    }

    pub(crate) fn busy(text: impl Into<Arc<str>>) -> Error {
        Error::new(Kind::Busy, text)
    }

    pub(crate) fn deadline() -> Error {
        Error::new(Kind::Deadline, "the deadline has passed")
    }

    pub(crate) fn unread(after: std::time::Duration) -> Error {
        Error::new(Kind::Deadline, format!("nobody has read for {} s", after.as_secs_f32()))
    }

    pub(crate) fn ended() -> Error {
        Error::new(Kind::Ended, "the engine has ended")
    }

    /// A file is no model that this crate can run, or its parts do not fit each other.
    pub fn is_model(&self) -> bool {
        matches!(self.kind, Kind::Model)
    }

    /// The request cannot be carried out: it is empty, too long, or asks for what there is not.
    pub fn is_request(&self) -> bool {
        matches!(self.kind, Kind::Request)
    }

    /// There is no room just now; later there may be.
    pub fn is_busy(&self) -> bool {
        matches!(self.kind, Kind::Busy)
    }

    /// The request's deadline has passed, or nobody has read its stream for too long.
    pub fn is_deadline(&self) -> bool {
        matches!(self.kind, Kind::Deadline)
    }

    /// The engine was closed.
    pub fn is_ended(&self) -> bool {
        matches!(self.kind, Kind::Ended)
    }

    /// What the device said, where it was the device that failed.
    pub fn device(&self) -> Option<&futensor::Error> {
        match &self.kind {
            Kind::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<futensor::Error> for Error {
    fn from(error: futensor::Error) -> Error {
        let text = error.to_string();
        Error::new(Kind::Device(error), text)
    }
}

impl From<futensor_models::Error> for Error {
    fn from(error: futensor_models::Error) -> Error {
        match error.device() {
            Some(error) => error.clone().into(),
            None => Error::model(error.to_string()),
        }
    }
}
