//! `load`: a thread that reads, and a stream that hands to the device what was read.

use super::handoff::{Handoff, handoff};
use super::wire::{self, Wire};
use super::{AHEAD_BYTES, CHUNK, HEADER_MAX};
use crate::dtype::{DType, with_dtype};
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use safetensors::SafeTensorError;
use safetensors::tensor::Metadata;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io::{Cursor, ErrorKind as Io, Read, Seek, SeekFrom};
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

type At = &'static Location<'static>;
type Upload = Box<dyn FnOnce(&Device) -> TensorFuture + Send>;

/// What the reading thread sends.
enum Message {
    /// The header is read: so many tensors and bytes will come.
    Start {
        tensors: usize,
        bytes: u64,
    },
    /// A tensor in host memory.
    Tensor {
        name: String,
        bytes: u64,
        upload: Upload,
    },
    Failed(Error),
}

/// How a file is loaded. Start from the default and change what matters.
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
    /// Most bytes that wait between the file and the device; 64 MiB by default. A larger tensor
    /// waits alone.
    pub fn ahead_bytes(mut self, bytes: usize) -> LoadOptions {
        self.ahead_bytes = bytes;
        self
    }

    /// Only the tensors of these names are read; the others are passed over.
    pub fn only(mut self, wanted: impl Fn(&str) -> bool + Send + 'static) -> LoadOptions {
        self.wanted = Box::new(wanted);
        self
    }
}

/// How far a [`Load`] has come. Of a file whose header has not been read yet, all are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Tensors that the stream has given.
    pub tensors: usize,
    /// Tensors that it gives in all.
    pub tensors_all: usize,
    /// Bytes of the tensors that it has given.
    pub bytes: u64,
    /// Bytes of all of them.
    pub bytes_all: u64,
}

impl Progress {
    /// From 0 to 1, by bytes.
    pub fn fraction(&self) -> f64 {
        match self.bytes_all {
            0 if self.tensors < self.tensors_all || self.tensors_all == 0 => 0.0,
            0 => 1.0,
            all => self.bytes as f64 / all as f64,
        }
    }
}

/// The tensors of a file in the order in which they lie there: a `Stream` of names and values that
/// are on their way to the device. Dropping it ends the reading thread; nobody waits for that.
#[must_use = "what is not received is read for nothing"]
pub struct Load {
    from: Handoff<Message>,
    device: Device,
    progress: Progress,
    /// Values that may still be under way to the device, and their bytes.
    under_way: VecDeque<(TensorFuture, u64)>,
    under_way_bytes: u64,
    ahead_bytes: u64,
    ended: bool,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// Loads the tensors of a safetensors file onto a device. Reading starts with the call, on a thread
/// of its own, and goes on as far ahead of what has been received as 64 MiB.
///
/// # Errors
/// They come out of the stream, which then ends: a file that cannot be read, is truncated, is longer than its
/// header says, has tensors that overlap or leave gaps, shapes that do not fit their bytes, or a type that
/// futensor has not. `is_source()` is true of all of them.
///
/// # Cancel safety
/// Dropping the stream ends it; what it has given stays.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Load {
    load_with(path, device, LoadOptions::default())
}

/// [`load`] with options: how far ahead it reads, and which tensors.
#[track_caller]
pub fn load_with(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Load {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    let open = move || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    };
    started(shown, open, device, options, Location::caller())
}

/// [`load`] from a file that is in memory: embedded by `include_bytes!`, or downloaded.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, safetensors};
/// let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[7, 8, 9]].concat();
/// let tensors = safetensors::load_bytes(file, &Device::cpu()).all().await?;
/// assert_eq!(tensors["w"].to_vec::<u8>().await?, [7, 8, 9]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// As [`load`].
///
/// # Cancel safety
/// As [`load`].
#[track_caller]
pub fn load_bytes(bytes: impl AsRef<[u8]> + Send + 'static, device: &Device) -> Load {
    let open = move || {
        let length = bytes.as_ref().len() as u64;
        Ok((Cursor::new(bytes), length))
    };
    started("bytes in memory".into(), open, device, LoadOptions::default(), Location::caller())
}

/// Starts the thread that reads what `open` gives: the file, and its length.
fn started<F: Read + Seek>(
    shown: String,
    open: impl FnOnce() -> std::io::Result<(F, u64)> + Send + 'static,
    device: &Device,
    options: LoadOptions,
    at: At,
) -> Load {
    let (to, from) = handoff(options.ahead_bytes);
    let ahead_bytes = options.ahead_bytes as u64;
    let own = shown.clone();
    let thread = std::thread::Builder::new().name("futensor-load".into());
    let spawned = thread.spawn(move || {
        let reading = Reading { shown, at, to: &to };
        if let Err(error) = reading.run(open, &*options.wanted) {
            to.send_blocking(Message::Failed(error), 0);
        }
    });
    let mut load = Load {
        from,
        device: device.clone(),
        progress: Progress::default(),
        under_way: VecDeque::new(),
        under_way_bytes: 0,
        ahead_bytes,
        ended: false,
    };
    if let Err(error) = spawned {
        let text = format!("{own}: no thread to read it: {error}");
        let (to, from) = handoff(0);
        to.send_blocking(Message::Failed(Error::new(ErrorKind::Source, "load", text, at)), 0);
        load.from = from;
    }
    load
}

impl Load {
    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The next tensor and its name; `None` at the end.
    ///
    /// # Errors
    /// As [`load`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[allow(clippy::should_implement_trait)] // A stream has no iterator.
    pub fn next(&mut self) -> NextTensor<'_> {
        NextTensor(self)
    }

    /// All that are left, by name.
    ///
    /// # Errors
    /// As [`load`].
    ///
    /// # Cancel safety
    /// Dropping the future drops what it has received.
    pub fn all(self) -> All {
        All { load: self, found: BTreeMap::new() }
    }

    fn poll_one(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(String, TensorFuture)>>> {
        loop {
            // Not further ahead of the device than of the file.
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
            match ready!(self.from.poll_receive(cx)) {
                Some(Message::Start { tensors, bytes }) => {
                    self.progress.tensors_all = tensors;
                    self.progress.bytes_all = bytes;
                }
                Some(Message::Tensor { name, bytes, upload }) => {
                    self.progress.tensors += 1;
                    self.progress.bytes += bytes;
                    let value = upload(&self.device);
                    if !value.is_ready() {
                        self.under_way.push_back((value.clone(), bytes));
                        self.under_way_bytes += bytes;
                    }
                    return Poll::Ready(Some(Ok((name, value))));
                }
                Some(Message::Failed(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => self.ended = true,
            }
        }
    }
}

impl futures_core::Stream for Load {
    type Item = Result<(String, TensorFuture)>;
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
pub struct NextTensor<'a>(&'a mut Load);

impl Future for NextTensor<'_> {
    type Output = Option<Result<(String, TensorFuture)>>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_one(cx)
    }
}

/// The future of [`Load::all`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct All {
    load: Load,
    found: BTreeMap<String, TensorFuture>,
}

impl Future for All {
    type Output = Result<BTreeMap<String, TensorFuture>>;
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

/// What the thread does.
struct Reading<'a> {
    /// What is read, in words.
    shown: String,
    at: At,
    to: &'a Handoff<Message>,
}

/// A tensor of the header.
struct Part {
    name: String,
    dtype: DType,
    shape: Shape,
    start: u64,
    bytes: u64,
}

impl Reading<'_> {
    fn error(&self, text: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Source, "load", format!("{}: {text}", self.shown), self.at)
    }

    fn run<F: Read + Seek>(
        &self,
        open: impl FnOnce() -> std::io::Result<(F, u64)>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        let (mut file, length) = open().map_err(|e| self.error(e))?;
        let parts = self.header(&mut file, length, wanted)?;
        let bytes = parts.iter().map(|p| p.bytes).sum();
        if !self.to.send_blocking(Message::Start { tensors: parts.len(), bytes }, 0) {
            return Ok(());
        }
        for part in parts {
            let upload = with_dtype!(part.dtype, T => self.read::<T>(&mut file, &part)?);
            let Some(upload) = upload else { return Ok(()) };
            let weight = usize::try_from(part.bytes).unwrap_or(usize::MAX);
            if !self.to.send_blocking(Message::Tensor { name: part.name, bytes: part.bytes, upload }, weight) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the header and checks all that it says against the file's length.
    fn header(&self, file: &mut impl Read, length: u64, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Part>> {
        let io = |e: std::io::Error| self.error(e);
        let mut word = [0u8; 8];
        if length < 8 {
            return Err(self.error(format!("truncated: {length} bytes hold no header")));
        }
        file.read_exact(&mut word).map_err(io)?;
        let size = u64::from_le_bytes(word);
        if size > HEADER_MAX {
            return Err(self.error(format!("a header of {size} bytes: this is no safetensors file")));
        }
        if size > length - 8 {
            return Err(self.error(format!("truncated: {length} bytes, and a header of {size}")));
        }
        let mut header = vec![0u8; size as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| self.refused(&e))?;
        let data = 8 + size;
        let end = data + metadata.data_len() as u64;
        if end > length {
            return Err(self.error(format!("truncated: {length} bytes of {end}")));
        }
        if end < length {
            return Err(self.error(format!("{} bytes more than the header speaks of", length - end)));
        }
        let mut parts = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name).filter(|_| wanted(&name)) else { continue };
            let Some(dtype) = wire::dtype_of(info.dtype) else {
                let text = format!("tensor {name} is {}, a type that futensor has not", info.dtype);
                return Err(self.error(text));
            };
            let (start, end) = info.data_offsets;
            let (start, bytes) = (data + start as u64, (end - start) as u64);
            parts.push(Part { name, dtype, shape: Shape::from(&info.shape[..]), start, bytes });
        }
        Ok(parts)
    }

    /// Why a header is refused, in words.
    fn refused(&self, error: &serde_json::Error) -> Error {
        let text = error.to_string();
        let known = [
            (SafeTensorError::TensorInvalidInfo.to_string(), "a tensor's shape and type do not fit its bytes"),
            (SafeTensorError::ValidationOverflow.to_string(), "a tensor's shape is larger than any memory"),
            (SafeTensorError::MisalignedSlice.to_string(), "a tensor ends in the middle of a byte"),
        ];
        let offset = SafeTensorError::InvalidOffset(String::new()).to_string();
        let offset = offset.trim_end_matches(|c: char| !c.is_alphanumeric());
        if let Some((_, words)) = known.iter().find(|(known, _)| text.contains(known)) {
            return self.error(words);
        }
        if let Some(name) = text.split_once(offset).map(|(_, rest)| rest) {
            let name = name.split(" at line").next().unwrap_or(name).trim_matches([':', ' ', '`']);
            return self.error(format!("tensor {name} overlaps another one, or leaves a gap"));
        }
        self.error(format!("the header is no description of tensors: {text}"))
    }

    /// Reads a tensor's elements; `None` where nobody wants them any more.
    fn read<T: Wire>(&self, file: &mut (impl Read + Seek), part: &Part) -> Result<Option<Upload>> {
        let broken = |e: std::io::Error| match e.kind() {
            Io::UnexpectedEof => self.error(format!("truncated within tensor {}", part.name)),
            _ => self.error(format!("tensor {}: {e}", part.name)),
        };
        file.seek(SeekFrom::Start(part.start)).map_err(broken)?;
        let mut data: Vec<T> = Vec::new();
        let count = part.shape.numel();
        if data.try_reserve_exact(count).is_err() {
            return Err(self.error(format!("no memory for tensor {} of {} bytes", part.name, part.bytes)));
        }
        let mut chunk = vec![0u8; CHUNK.min(part.bytes as usize)];
        let mut left = part.bytes as usize;
        while left > 0 {
            if self.to.is_unwanted() {
                return Ok(None);
            }
            let chunk = &mut chunk[..CHUNK.min(left)];
            file.read_exact(chunk).map_err(broken)?;
            let before = data.len();
            T::read(chunk, &mut data).map_err(|at| {
                let text = format!("tensor {}: element {} is no {}", part.name, before + at, part.dtype);
                self.error(text)
            })?;
            left -= chunk.len();
        }
        let (shape, at) = (part.shape.clone(), self.at);
        Ok(Some(Box::new(move |device: &Device| device.handed("from_vec", data, shape, at))))
    }
}
