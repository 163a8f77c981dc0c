//! The tensors of a folder as a stream: one file after the other, each tensor beside what the index
//! says of it.

use crate::error::{Error, Result};
use crate::tensors::Tensors;
use futensor::safetensors::{self, Load, Progress};
use futensor::{Device, TensorFuture};
use futures_core::Stream;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The file that says which tensors are in which files (shards).
pub const INDEX: &str = "model.safetensors.index.json";

/// A file of tensors.
#[derive(Clone, Debug)]
pub struct Shard {
    pub path: PathBuf,
    /// Of its tensors, as the file's length says.
    pub bytes: u64,
    /// The tensors that it has by the index; `None` without an index.
    pub names: Option<BTreeSet<String>>,
}

/// The tensors of a [`Folder`](crate::Folder): a `Stream` of names and of values that are being
/// copied to the device. Dropping it ends the reading thread, without waiting for it.
#[must_use = "tensors that are not received are wasted"]
pub struct Loading {
    /// What says which tensors there are, for errors: the file, or the index.
    of: String,
    /// Those that are not read yet.
    shards: VecDeque<Shard>,
    open: Option<Open>,
    device: Device,
    progress: Progress,
    told: Option<Box<dyn FnMut(Progress) + Send>>,
}

/// The file that is read.
struct Open {
    load: Load,
    path: Arc<str>,
    /// Tensors that the index says are in it, and that have not come yet.
    names: Option<BTreeSet<String>>,
    /// The bytes of the files before it.
    before: u64,
}

impl std::fmt::Debug for Loading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loading").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl Loading {
    pub(crate) fn new(of: String, shards: Vec<Shard>, device: &Device) -> Loading {
        let names = shards.iter().filter_map(|shard| shard.names.as_ref());
        let progress = Progress {
            tensors_all: names.map(BTreeSet::len).sum(),
            bytes_all: shards.iter().map(|shard| shard.bytes).sum(),
            ..Progress::default()
        };
        let (shards, device) = (shards.into(), device.clone());
        Loading { of, shards, open: None, device, progress, told: None }
    }

    /// The progress. The bytes of all files are known from the start; the number of tensors of a
    /// single file when its header has been read.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Calls a function with the progress whenever a tensor has been received, on the thread that
    /// polls.
    ///
    /// ```no_run
    /// # futensor::block_on(async {
    /// use futensor::Device;
    /// use futensor_models::Folder;
    /// let folder = Folder::open("all-MiniLM-L6-v2").await?;
    /// let loading = folder.load(&Device::cpu()).on_progress(|progress| {
    ///     println!("{} of {} bytes", progress.bytes, progress.bytes_all);
    /// });
    /// let tensors = loading.all().await?;
    /// assert!(!tensors.is_empty());
    /// # Ok::<(), futensor_models::Error>(()) }).unwrap();
    /// ```
    pub fn on_progress(mut self, told: impl FnMut(Progress) + Send + 'static) -> Loading {
        self.told = Some(Box::new(told));
        self
    }

    /// The next tensor and its name; `None` at the end.
    ///
    /// # Errors
    /// As [`Folder::load`](crate::Folder::load).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[allow(clippy::should_implement_trait)] // A stream has no iterator.
    pub fn next(&mut self) -> Next<'_> {
        Next(self)
    }

    /// All remaining tensors, by name.
    ///
    /// # Errors
    /// As [`Folder::load`](crate::Folder::load).
    ///
    /// # Cancel safety
    /// Dropping the future drops the tensors that it has received.
    pub fn all(self) -> All {
        All { found: Tensors::new(self.of.clone()), loading: self }
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(String, Found)>>> {
        loop {
            if self.open.is_none() {
                let Some(Shard { path, names, .. }) = self.shards.pop_front() else {
                    return Poll::Ready(None);
                };
                let load = safetensors::load(&path, &self.device);
                let (path, before) = (path.display().to_string().into(), self.progress.bytes);
                self.open = Some(Open { load, path, names, before });
            }
            let Some(open) = &mut self.open else { unreachable!("a file was opened") };
            let next = ready!(Pin::new(&mut open.load).poll_next(cx));
            let of_file = open.load.progress();
            let path = open.path.clone();
            let failed = match next {
                Some(Ok((name, tensor))) => {
                    if open.names.as_mut().is_none_or(|names| names.remove(&name)) {
                        self.progress.tensors += 1;
                        self.progress.bytes = open.before + of_file.bytes;
                        if open.names.is_none() {
                            self.progress.tensors_all = of_file.tensors_all;
                        }
                        if let Some(told) = &mut self.told {
                            told(self.progress);
                        }
                        return Poll::Ready(Some(Ok((name, Found { tensor, path }))));
                    }
                    Error::model(format!("{path}: tensor {name} is not said to be here by {INDEX}"))
                }
                Some(Err(error)) => error.into(),
                None => match open.names.as_ref().and_then(BTreeSet::first) {
                    Some(name) => {
                        let text = format!("there is no tensor {name}, of which {INDEX} says so");
                        Error::model(format!("{path}: {text}"))
                    }
                    None => {
                        self.open = None;
                        continue;
                    }
                },
            };
            (self.open, self.shards) = (None, VecDeque::new());
            return Poll::Ready(Some(Err(failed)));
        }
    }
}

/// A tensor, and its file.
struct Found {
    tensor: TensorFuture,
    path: Arc<str>,
}

impl Stream for Loading {
    type Item = Result<(String, TensorFuture)>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.poll_one(cx));
        Poll::Ready(next.map(|next| next.map(|(name, found)| (name, found.tensor))))
    }
}

/// The future of [`Loading::next`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Next<'a>(&'a mut Loading);

impl Future for Next<'_> {
    type Output = Option<Result<(String, TensorFuture)>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut *self.0).poll_next(cx)
    }
}

/// The future of [`Loading::all`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct All {
    loading: Loading,
    found: Tensors,
}

impl Future for All {
    type Output = Result<Tensors>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(next) = ready!(self.loading.poll_one(cx)) {
            let (name, Found { tensor, path }) = match next {
                Ok(found) => found,
                Err(error) => return Poll::Ready(Err(error)),
            };
            if let Err(error) = self.found.insert(name, tensor, &path) {
                return Poll::Ready(Err(error));
            }
        }
        let of = Tensors::new(self.loading.of.clone());
        Poll::Ready(Ok(std::mem::replace(&mut self.found, of)))
    }
}
