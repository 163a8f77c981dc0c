//! The one error type of this crate: opaque, cheap to clone, with predicates.

use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be loaded.
///
/// ```
/// # futensor::block_on(async {
/// let error = futensor_models::Folder::open("not/there").await.unwrap_err();
/// assert!(error.is_model() && error.device().is_none());
/// assert!(error.to_string().starts_with("not/there"));
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// `None` if the files are at fault.
    device: Option<futensor::Error>,
    text: Arc<str>,
}

impl Error {
    pub(crate) fn model(text: impl Into<Arc<str>>) -> Error {
        Error { device: None, text: text.into() }
    }

    /// A file is missing or broken, or it is not of a model that this crate can run.
    pub fn is_model(&self) -> bool {
        self.device.is_none()
    }

    /// The device's error, if the device failed.
    pub fn device(&self) -> Option<&futensor::Error> {
        self.device.as_ref()
    }
}

/// An error of a file is the model's. Its message names the file.
impl From<futensor::Error> for Error {
    fn from(error: futensor::Error) -> Error {
        match error.is_source() {
            true => Error::model(error.message().to_owned()),
            false => Error { text: error.to_string().into(), device: Some(error) },
        }
    }
}
