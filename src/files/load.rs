//! A thread that reads a file, and a stream that passes its tensors to the device.

use super::elements::Wire;
use super::handoff::{Handoff, handoff};
use super::{AHEAD_BYTES, CHUNK};
use crate::dtype::{DType, with_any_dtype};
use crate::error::{Error, ErrorKind, Result, bytes_of};
use crate::guard::caught;
use crate::host::kernels::copy::copy;
use crate::shape::{Shape, Strides};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::view::{Serial, View, ViewMut};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io::{Cursor, ErrorKind as Io, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

type At = &'static Location<'static>;
type Upload<T> = Box<dyn FnOnce(&Device) -> T + Send>;

/// An item of a stream: a tensor, or a type that contains one.
pub trait Loaded: Send + Unpin + 'static {
    /// The value that is being copied to the device.
    fn value(&self) -> &TensorFuture;
}

impl Loaded for TensorFuture {
    fn value(&self) -> &TensorFuture {
        self
    }
}

/// A message of the reading thread.
enum Message<T> {
    /// The header has been read.
    Start(Header),
    /// A tensor in host memory.
    Tensor {
        name: String,
        bytes: u64,
        upload: Upload<T>,
    },
    Failed(Error),
}

/// The header's number of tensors and bytes to come, and its metadata.
struct Header {
    tensors: usize,
    bytes: u64,
    metadata: BTreeMap<String, String>,
}

/// Options of loading a file. Start from the default and change what you need.
pub struct LoadOptions {
    ahead_bytes: usize,
    wanted: Box<dyn Fn(&str) -> bool + Send>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions { ahead_bytes: AHEAD_BYTES, wanted: Box::new(|_| true) }
    }
}

impl LoadOptions {
    /// The most bytes that wait between the file and the device; 64 MiB by default. A larger tensor
    /// waits alone.
    pub fn ahead_bytes(mut self, bytes: usize) -> LoadOptions {
        self.ahead_bytes = bytes;
        self
    }

    /// Reads only the tensors whose names are wanted, and skips the others.
    pub fn only(mut self, wanted: impl Fn(&str) -> bool + Send + 'static) -> LoadOptions {
        self.wanted = Box::new(wanted);
        self
    }
}

/// The progress of a [`Load`]. All counts are 0 until the header has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The number of tensors that the stream has returned.
    pub tensors: usize,
    /// The total number of tensors.
    pub tensors_all: usize,
    /// The bytes of the returned tensors.
    pub bytes: u64,
    /// The bytes of all tensors.
    pub bytes_all: u64,
}

impl Progress {
    /// The fraction of bytes, from 0 to 1.
    pub fn fraction(&self) -> f64 {
        match self.bytes_all {
            0 if self.tensors < self.tensors_all || self.tensors_all == 0 => 0.0,
            0 => 1.0,
            all => self.bytes as f64 / all as f64,
        }
    }
}

/// The tensors of a file, in file order: a `Stream` of names and of values that are being copied to
/// the device. Dropping it ends the reading thread, without waiting for it.
#[must_use = "tensors that are not received are wasted"]
pub struct Load<T = TensorFuture> {
    from: Handoff<Message<T>>,
    device: Device,
    progress: Progress,
    /// The header's, once the header has been read.
    metadata: Option<BTreeMap<String, String>>,
    /// An error that the stream has not returned yet.
    failed: Option<Error>,
    /// Values that may not have arrived on the device yet, and their bytes.
    under_way: VecDeque<(TensorFuture, u64)>,
    under_way_bytes: u64,
    ahead_bytes: u64,
    ended: bool,
}

impl<T> std::fmt::Debug for Load<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// A load that failed before it began.
pub(crate) fn failed<T>(error: Error, device: &Device) -> Load<T> {
    let (to, from) = handoff(0);
    to.send_blocking(Message::Failed(error), 0);
    of(from, device, 0)
}

fn of<T>(from: Handoff<Message<T>>, device: &Device, ahead_bytes: usize) -> Load<T> {
    Load {
        from,
        device: device.clone(),
        progress: Progress::default(),
        metadata: None,
        failed: None,
        under_way: VecDeque::new(),
        under_way_bytes: 0,
        ahead_bytes: ahead_bytes as u64,
        ended: false,
    }
}

/// Starts the reading thread: `read` gets the filter of names.
pub(crate) fn load<T: Loaded>(
    shown: String,
    device: &Device,
    options: LoadOptions,
    at: At,
    read: impl FnOnce(&Reading<T>, &dyn Fn(&str) -> bool) -> Result<()> + Send + 'static,
) -> Load<T> {
    let LoadOptions { ahead_bytes, wanted } = options;
    let (to, from) = handoff(ahead_bytes);
    let reading = Reading { shown: shown.clone(), at, to };
    let spawned = thread(move || {
        // The filter of names is user code, and may panic.
        let done = caught(|| read(&reading, &*wanted)).unwrap_or_else(|words| {
            Err(reading.error(format!("the reading thread panicked: {words}")))
        });
        if let Err(error) = done {
            reading.to.send_blocking(Message::Failed(error), 0);
        }
    });
    match spawned {
        Ok(()) => of(from, device, ahead_bytes),
        Err(error) => failed(
            error_at(&shown, format!("cannot start a thread to read it: {error}"), at),
            device,
        ),
    }
}

/// Runs on a thread for files.
fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("futensor-load".into()).spawn(run).map(drop)
}

/// Runs a function on a separate thread; a panic becomes an error of the file.
#[cfg(feature = "gguf")]
pub(crate) fn off_thread<R: Send + 'static>(
    shown: String,
    at: At,
    run: impl FnOnce() -> Result<R> + Send + 'static,
) -> impl Future<Output = Result<R>> + Send + 'static {
    let (to, from) = handoff(0);
    let spawned = thread(move || {
        to.send_blocking(run(), 0);
    });
    async move {
        spawned
            .map_err(|e| error_at(&shown, format!("cannot start a thread to read it: {e}"), at))?;
        let read = std::future::poll_fn(|cx| from.poll_receive(cx)).await;
        read.unwrap_or_else(|| Err(error_at(&shown, "the reading thread panicked", at)))
    }
}

/// A file, or bytes in its place, and the length.
pub(crate) type Opened<F> = std::io::Result<(F, u64)>;

pub(crate) fn opened(path: &Path) -> Opened<File> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

pub(crate) fn in_memory<B: AsRef<[u8]>>(bytes: B) -> Opened<Cursor<B>> {
    let length = bytes.as_ref().len() as u64;
    Ok((Cursor::new(bytes), length))
}

/// The error of a file.
pub(crate) fn error_at(shown: &str, text: impl std::fmt::Display, at: At) -> Error {
    Error::new(ErrorKind::Source, "load", format!("{shown}: {text}"), at)
}

impl<T: Loaded> Load<T> {
    /// The progress.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The next tensor and its name; `None` at the end.
    ///
    /// # Errors
    /// As the function that returned the stream.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[allow(clippy::should_implement_trait)] // A stream has no iterator.
    pub fn next(&mut self) -> NextTensor<'_, T> {
        NextTensor(self)
    }

    /// All remaining tensors, by name.
    ///
    /// # Errors
    /// As the function that returned the stream.
    ///
    /// # Cancel safety
    /// Dropping the future drops the tensors that it has received.
    pub fn all(self) -> All<T> {
        All { load: self, found: BTreeMap::new() }
    }

    fn begin(&mut self, header: Header) {
        self.progress.tensors_all = header.tensors;
        self.progress.bytes_all = header.bytes;
        self.metadata = Some(header.metadata);
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(String, T)>>> {
        loop {
            // The limit ahead of the device is that ahead of the file.
            while let Some((value, bytes)) = self.under_way.front_mut() {
                if !value.is_ready() {
                    if self.under_way_bytes <= self.ahead_bytes {
                        break;
                    }
                    ready!(value.poll_done(cx));
                }
                self.under_way_bytes -= *bytes;
                self.under_way.pop_front();
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(error) = self.failed.take() {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            match ready!(self.from.poll_receive(cx)) {
                Some(Message::Start(header)) => self.begin(header),
                Some(Message::Tensor { name, bytes, upload }) => {
                    self.progress.tensors += 1;
                    self.progress.bytes += bytes;
                    let value = upload(&self.device);
                    if !value.value().is_ready() {
                        self.under_way.push_back((value.value().clone(), bytes));
                        self.under_way_bytes += bytes;
                    }
                    return Poll::Ready(Some(Ok((name, value))));
                }
                Some(Message::Failed(error)) => self.failed = Some(error),
                None => self.ended = true,
            }
        }
    }
}

impl Load<TensorFuture> {
    /// The metadata of the header: texts by name, `__metadata__` in the file. It is known before
    /// the first tensor is read, and the stream loses nothing by it. Empty if the file has none.
    ///
    /// # Errors
    /// If the header cannot be read: the error that the stream returns as well.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn metadata(&mut self) -> LoadMetadata<'_> {
        LoadMetadata(self)
    }
}

/// The future of [`Load::metadata`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct LoadMetadata<'a>(&'a mut Load);

impl Future for LoadMetadata<'_> {
    type Output = Result<BTreeMap<String, String>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let load = &mut *self.0;
        if load.metadata.is_none() && load.failed.is_none() && !load.ended {
            // The header is the first that the thread sends, or why there is none.
            match ready!(load.from.poll_receive(cx)) {
                Some(Message::Start(header)) => load.begin(header),
                Some(Message::Failed(error)) => load.failed = Some(error),
                Some(Message::Tensor { .. }) => unreachable!("the header comes first"),
                None => load.ended = true,
            }
        }
        match (&load.metadata, &load.failed) {
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (metadata, _) => Poll::Ready(Ok(metadata.clone().unwrap_or_default())),
        }
    }
}

impl<T: Loaded> futures_core::Stream for Load<T> {
    type Item = Result<(String, T)>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(cx)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.ended {
            true => (0, Some(0)),
            false => (0, None),
        }
    }
}

/// The future of [`Load::next`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct NextTensor<'a, T = TensorFuture>(&'a mut Load<T>);

impl<T: Loaded> Future for NextTensor<'_, T> {
    type Output = Option<Result<(String, T)>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_one(cx)
    }
}

/// The future of [`Load::all`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct All<T = TensorFuture> {
    load: Load<T>,
    found: BTreeMap<String, T>,
}

impl<T: Loaded> Future for All<T> {
    type Output = Result<BTreeMap<String, T>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(next) = ready!(self.load.poll_one(cx)) {
            match next {
                Ok((name, value)) => {
                    self.found.insert(name, value);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.found)))
    }
}

/// The state of a reading thread.
pub(crate) struct Reading<T> {
    /// The name of the file, for errors.
    shown: String,
    pub at: At,
    to: Handoff<Message<T>>,
}

/// A tensor's entry in the header.
pub(crate) struct Part {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// The offset of its elements in the file.
    pub start: u64,
    /// The number of bytes from there that hold them.
    pub bytes: u64,
    pub layout: Layout,
}

/// How a tensor's elements lie in a file.
#[derive(Default)]
pub(crate) struct Layout {
    pub big_endian: bool,
    /// The distances between elements, which do not overlap; none if they lie row by row.
    pub strides: Option<Strides>,
}

impl<T: Loaded> Reading<T> {
    pub fn error(&self, text: impl std::fmt::Display) -> Error {
        error_at(&self.shown, text, self.at)
    }

    /// Announces what the header says; false if the stream was dropped.
    pub fn start(&self, tensors: usize, bytes: u64, metadata: BTreeMap<String, String>) -> bool {
        self.to.send_blocking(Message::Start(Header { tensors, bytes, metadata }), 0)
    }

    /// Sends a tensor; false if the stream was dropped.
    pub fn give(
        &self,
        name: String,
        bytes: u64,
        upload: impl FnOnce(&Device) -> T + Send + 'static,
    ) -> bool {
        let weight = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.to.send_blocking(Message::Tensor { name, bytes, upload: Box::new(upload) }, weight)
    }

    /// Reads a tensor, converts it by `made`, and sends it; false if the stream was dropped.
    pub fn tensor(
        &self,
        file: &mut (impl Read + Seek + ?Sized),
        part: Part,
        made: fn(TensorFuture) -> T,
    ) -> Result<bool> {
        self.seek(file, &part.name, part.start)?;
        self.tensor_from(file, part, made)
    }

    /// As [`tensor`](Self::tensor), from a reader that stands at the elements.
    pub fn tensor_from(
        &self,
        file: &mut (impl Read + ?Sized),
        part: Part,
        made: fn(TensorFuture) -> T,
    ) -> Result<bool> {
        let at = self.at;
        with_any_dtype!(part.dtype, E => {
            let Some(data) = self.elements::<E>(file, &part)? else { return Ok(false) };
            let Part { name, shape, bytes, .. } = part;
            Ok(self.give(name, bytes, move |device|
                made(device.handed("from_vec", data, shape, at))))
        })
    }

    /// Reads a tensor's elements, row by row; `None` if the stream was dropped.
    fn elements<E: Wire>(
        &self,
        file: &mut (impl Read + ?Sized),
        part: &Part,
    ) -> Result<Option<Vec<E>>> {
        let no_memory = || {
            let bytes = bytes_of(part.bytes as usize);
            self.error(format!("no memory for tensor {} of {bytes}", part.name))
        };
        let mut data: Vec<E> = Vec::new();
        let stored = part.bytes as usize / size_of::<E>();
        data.try_reserve_exact(stored).map_err(|_| no_memory())?;
        let wanted = self.pieces(file, &part.name, part.bytes, CHUNK, &mut |chunk| {
            if part.layout.big_endian {
                chunk.chunks_exact_mut(size_of::<E>()).for_each(<[u8]>::reverse);
            }
            let before = data.len();
            E::read(chunk, &mut data).map_err(|at| {
                let at = before + at;
                self.error(format!("tensor {}: element {at} is not a {}", part.name, part.dtype))
            })
        })?;
        if !wanted {
            return Ok(None);
        }
        let Some(strides) = &part.layout.strides else { return Ok(Some(data)) };
        let (dtype, shape) = (part.dtype, part.shape.dims());
        let mut rows: Vec<E> = Vec::new();
        rows.try_reserve_exact(part.shape.numel()).map_err(|_| no_memory())?;
        rows.resize(part.shape.numel(), E::from_f64(0.0));
        let room = ViewMut { ptr: rows.as_mut_ptr().cast(), dtype, shape, life: PhantomData };
        copy(View { ptr: data.as_ptr().cast(), dtype, shape, strides }, &room, &Serial);
        Ok(Some(rows))
    }

    /// Reads bytes of a tensor in chunks of `size`, the last one shorter; false if the stream was
    /// dropped.
    pub fn chunks(
        &self,
        file: &mut (impl Read + Seek + ?Sized),
        name: &str,
        start: u64,
        bytes: u64,
        size: usize,
        take: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        self.seek(file, name, start)?;
        self.pieces(file, name, bytes, size, take)
    }

    fn pieces(
        &self,
        file: &mut (impl Read + ?Sized),
        name: &str,
        bytes: u64,
        size: usize,
        take: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut left = bytes;
        let mut chunk = vec![0u8; (size as u64).min(bytes) as usize];
        while left > 0 {
            if self.to.is_unwanted() {
                return Ok(false);
            }
            let chunk = &mut chunk[..(size as u64).min(left) as usize];
            file.read_exact(chunk).map_err(|e| self.broken(name, &e))?;
            take(chunk)?;
            left -= chunk.len() as u64;
        }
        Ok(true)
    }

    fn seek(&self, file: &mut (impl Seek + ?Sized), name: &str, start: u64) -> Result<()> {
        file.seek(SeekFrom::Start(start)).map(drop).map_err(|e| self.broken(name, &e))
    }

    /// The error of a tensor that cannot be read.
    fn broken(&self, name: &str, error: &std::io::Error) -> Error {
        match error.kind() {
            Io::UnexpectedEof => self.error(format!("truncated within tensor {name}")),
            _ => self.error(format!("tensor {name}: {error}")),
        }
    }
}
