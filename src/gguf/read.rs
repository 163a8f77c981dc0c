//! `open` and `Gguf`: a file whose header has been read, and a stream of its tensors.

use super::header::Header;
use super::{Blocks, Kind, Load, LoadOptions, Metadata, TensorInfo};
use crate::error::{Result, bytes_of, number_of};
use crate::files::{self, Layout, Loaded, Part, Reading};
use crate::format::{Packing, ROWS};
use crate::memory::Pages;
use crate::quant::{Quantized, Weight};
use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{Cursor, Read, Seek};
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

type At = &'static Location<'static>;

trait ReadSeek: Read + Seek {}
impl<F: Read + Seek> ReadSeek for F {}

/// A file or bytes in memory, and the length.
type Opened = std::io::Result<(Box<dyn ReadSeek>, u64)>;

impl Loaded for Weight {
    fn value(&self) -> &TensorFuture {
        self.value()
    }
}

/// A GGUF file whose header has been read and checked. Clones share the file.
#[derive(Clone)]
pub struct Gguf {
    shown: String,
    open: Arc<dyn Fn() -> Opened + Send + Sync>,
    length: u64,
    header: Arc<Header>,
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = number_of(self.tensors().len(), "tensor", "tensors");
        write!(f, "Gguf({}, {tensors})", self.shown)
    }
}

/// The future of [`open`].
#[must_use = "futures do nothing unless awaited"]
pub struct Opening(Pin<Box<dyn Future<Output = Result<Gguf>> + Send>>);

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opening")
    }
}

impl Future for Opening {
    type Output = Result<Gguf>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Gguf>> {
        self.0.as_mut().poll(cx)
    }
}

/// Opens a GGUF file: from this call on, a separate thread reads its header.
///
/// # Errors
/// `is_source()` is true for each of these: a file that cannot be read, is truncated, has an
/// unsupported version (2 and 3 are supported), or big-endian numbers; duplicate keys or tensors;
/// tensors that overlap, extend beyond the end of the file, or are not aligned; rows that are not a
/// whole number of blocks; a tensor or metadata type that is not supported. Reading a header takes
/// at most a few times its size in memory.
///
/// # Cancel safety
/// Dropping the future cancels the operation.
#[track_caller]
pub fn open(path: impl AsRef<Path>) -> Opening {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    let open = move || -> Opened {
        let file = File::open(&path)?;
        let length = file.metadata()?.len();
        Ok((Box::new(file), length))
    };
    opening(shown, Arc::new(open), Location::caller())
}

/// [`open`] for a file in memory: embedded by `include_bytes!`, or downloaded.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// As [`open`].
#[track_caller]
pub fn open_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Opening {
    /// A handle that reads like the bytes that it shares.
    struct Handle<B>(Arc<B>);
    impl<B: AsRef<[u8]>> AsRef<[u8]> for Handle<B> {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }
    let bytes = Arc::new(bytes);
    let open = move || -> Opened {
        let length = (*bytes).as_ref().len() as u64;
        Ok((Box::new(Cursor::new(Handle(bytes.clone()))), length))
    };
    opening("bytes in memory".into(), Arc::new(open), Location::caller())
}

fn opening(shown: String, open: Arc<dyn Fn() -> Opened + Send + Sync>, at: At) -> Opening {
    Opening(Box::pin(files::off_thread(shown.clone(), at, move || {
        let wrong = |text: String| files::error_at(&shown, text, at);
        let (file, length) = open().map_err(|e| wrong(e.to_string()))?;
        let header = Arc::new(Header::read(file, length).map_err(wrong)?);
        Ok(Gguf { shown, open, length, header })
    })))
}

impl Gguf {
    /// The model's settings.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The tensors, in the order of their data in the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// Loads the tensors onto a device, in the order of their data in the file. A separate thread
    /// reads from this call on, at most 64 MiB ahead of the tensors that have been received, and
    /// packs quantised weights.
    ///
    /// # Errors
    /// The stream returns the error and ends: if the file can no longer be read, or its length has
    /// changed since it was opened. `is_source()` is true for both.
    ///
    /// # Cancel safety
    /// Dropping the stream ends it; tensors that it has returned stay valid.
    #[track_caller]
    pub fn load(&self, device: &Device) -> Load<Weight> {
        self.load_with(device, LoadOptions::default())
    }

    /// [`load`](Self::load) with options: how far ahead it reads, and which tensors.
    #[track_caller]
    pub fn load_with(&self, device: &Device, options: LoadOptions) -> Load<Weight> {
        let (own, at) = (self.clone(), Location::caller());
        files::load(self.shown.clone(), device, options, at, move |reading, wanted| {
            let (mut file, length) = (own.open)().map_err(|e| reading.error(e))?;
            if length != own.length {
                let text = format!(
                    "{} now, but {} when it was opened",
                    bytes_of(length as usize),
                    own.length
                );
                return Err(reading.error(text));
            }
            let wanted: Vec<&TensorInfo> =
                own.tensors().iter().filter(|t| wanted(&t.name)).collect();
            if !reading.start(
                wanted.len(),
                wanted.iter().map(|t| t.bytes).sum(),
                Default::default(),
            ) {
                return Ok(());
            }
            for info in wanted {
                if !tensor(reading, &mut *file, info)? {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Reads a tensor and sends it; false if the receiver was dropped.
fn tensor(reading: &Reading<Weight>, file: &mut dyn ReadSeek, info: &TensorInfo) -> Result<bool> {
    let (name, bytes, start) = (info.name.clone(), info.bytes, info.start);
    let format = match info.kind {
        Kind::Dense(dtype) => {
            let part = Part {
                name,
                dtype,
                shape: info.dims[..].into(),
                start,
                bytes,
                layout: Layout::default(),
            };
            return reading.tensor(file, part, Weight::Dense);
        }
        Kind::Quantized(format) => format,
        Kind::Converted(blocks) => {
            match blocks.format().filter(|_| matches!(info.dims.len(), 2 | 3)) {
                Some(format) => format,
                None => return unpacked(reading, file, info, blocks),
            }
        }
    };
    let (columns, rows) = info.dims.split_last().expect("two dimensions or more");
    let packing = Packing::new(format, rows.iter().product(), *columns)
        .map_err(|text| reading.error(format!("tensor {name}: {text}")))?;
    let mut panels = Pages::with_room(packing.bytes()).ok_or_else(|| {
        reading.error(format!("no memory for tensor {name} of {}", bytes_of(bytes as usize)))
    })?;
    // Sixteen rows at a time, rewritten where the file has another format.
    let mut rewritten = match info.kind {
        Kind::Converted(_) => vec![0; packing.panel_bytes().min(packing.file_bytes())],
        _ => Vec::new(),
    };
    let mut pack = |read: &mut [u8]| {
        let rows = match info.kind {
            Kind::Converted(blocks) => {
                let all = read.len() / blocks.bytes() * format.block_bytes();
                blocks.rewrite(read, &mut rewritten[..all]);
                &rewritten[..all]
            }
            _ => read,
        };
        packing.pack(rows, panels.more(packing.panel_bytes()));
        Ok(())
    };
    let row =
        info.kind.row_bytes(*columns as u64).expect("whole blocks, as the header's check found");
    let sixteen = ROWS * row as usize;
    let wanted = reading.chunks(file, &name, start, bytes, sixteen, &mut pack)?;
    let at = reading.at;
    Ok(wanted
        && reading
            .give(name, bytes, move |device| Quantized::of(device, panels, packing, at).into()))
}

/// Reads a tensor, unpacks it and sends it; false if the receiver was dropped.
fn unpacked(
    reading: &Reading<Weight>,
    file: &mut dyn ReadSeek,
    info: &TensorInfo,
    blocks: Blocks,
) -> Result<bool> {
    let (name, bytes, shape, at) =
        (info.name.clone(), info.bytes, Shape::from(&info.dims[..]), reading.at);
    let mut data: Vec<f32> = Vec::new();
    if data.try_reserve_exact(shape.numel()).is_err() {
        return Err(reading.error(format!("no memory for tensor {name} of {shape} in float32")));
    }
    let mut unpack = |read: &mut [u8]| {
        blocks.unpack(read, &mut data);
        Ok(())
    };
    let size = blocks.bytes() << 12;
    let wanted = reading.chunks(file, &name, info.start, bytes, size, &mut unpack)?;
    Ok(wanted
        && reading.give(name, bytes, move |device| {
            Weight::Dense(device.handed("from_blocks", data, shape, at))
        }))
}
