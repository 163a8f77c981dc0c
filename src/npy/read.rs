//! `load` and `load_npz`: read headers, check them, and stream the elements.

use super::header::{self, Header};
use crate::error::{Error, ErrorKind, Result, bytes_of};
use crate::files::{self, Archive, Load, LoadOptions, Opened, Part, Reading, in_memory, opened};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::future::Future;
use std::io::{Read, Seek};
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

type At = &'static Location<'static>;

/// Loads the array of a `.npy` file onto a device.
///
/// # Errors
/// If the file cannot be read, is truncated or longer than its header says, or holds Python
/// objects, fields or elements of a type that futensor does not have. `is_source()` is true for all
/// of these.
///
/// # Cancel safety
/// Dropping the future ends the reading.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> LoadArray {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    array(shown, move || opened(&path), device, Location::caller())
}

/// [`load`] for a file in memory.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, npy};
/// let mut file = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
/// let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }";
/// file.extend(format!("{header:69}\n").bytes());
/// file.extend([7, 8]);
/// let x = npy::load_bytes(file, &Device::cpu()).await?;
/// assert_eq!(x.to_vec::<u8>().await?, [7, 8]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// As [`load`].
///
/// # Cancel safety
/// As [`load`].
#[track_caller]
pub fn load_bytes(bytes: impl AsRef<[u8]> + Send + 'static, device: &Device) -> LoadArray {
    array("bytes in memory".into(), move || in_memory(bytes), device, Location::caller())
}

/// Loads the arrays of a `.npz` file onto a device. A separate thread reads from this call on, at
/// most 64 MiB ahead of the tensors that have been received. The names are those of the archive,
/// without `.npy`.
///
/// # Errors
/// The stream returns the error and ends: as [`load`], and if the file is no zip archive, an entry
/// is damaged, or an entry is no array.
///
/// # Cancel safety
/// Dropping the stream ends it; tensors that it has returned stay valid.
#[track_caller]
pub fn load_npz(path: impl AsRef<Path>, device: &Device) -> Load {
    load_npz_with(path, device, LoadOptions::default())
}

/// [`load_npz`] with options: how far ahead it reads, and which tensors.
///
/// # Errors
/// As [`load_npz`].
///
/// # Cancel safety
/// As [`load_npz`].
#[track_caller]
pub fn load_npz_with(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Load {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    arrays(shown, move || opened(&path), device, options, Location::caller())
}

/// [`load_npz`] for a file in memory.
///
/// # Errors
/// As [`load_npz`].
///
/// # Cancel safety
/// As [`load_npz`].
#[track_caller]
pub fn load_npz_bytes(bytes: impl AsRef<[u8]> + Send + 'static, device: &Device) -> Load {
    let open = move || in_memory(bytes);
    arrays("bytes in memory".into(), open, device, LoadOptions::default(), Location::caller())
}

/// The future of [`load`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct LoadArray {
    load: Load,
    shown: String,
    at: At,
}

impl Future for LoadArray {
    type Output = Result<TensorFuture>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let next = ready!(futures_core::Stream::poll_next(Pin::new(&mut self.load), cx));
        Poll::Ready(match next {
            Some(loaded) => loaded.map(|(_, x)| x),
            // Polled again after its end.
            None => {
                let text = format!("{}: the array has been received", self.shown);
                Err(Error::new(ErrorKind::Source, "load", text, self.at))
            }
        })
    }
}

fn array<F: Read + Seek>(
    shown: String,
    open: impl FnOnce() -> Opened<F> + Send + 'static,
    device: &Device,
    at: At,
) -> LoadArray {
    let options = LoadOptions::default();
    let load = files::load(shown.clone(), device, options, at, move |reading, _| {
        let (mut file, length) = open().map_err(|e| reading.error(e))?;
        let (header, start) = header::read(&mut file).map_err(|e| reading.error(e))?;
        let end = start.saturating_add(header.bytes);
        if end != length {
            let bytes = |n: u64| bytes_of(usize::try_from(n).unwrap_or(usize::MAX));
            let text = format!("{}, but {} by its header", bytes(length), bytes(end));
            return Err(reading.error(text));
        }
        if reading.start(1, header.bytes, Default::default()) {
            reading.tensor_from(&mut file, part("array".into(), header), |x| x)?;
        }
        Ok(())
    });
    LoadArray { load, shown, at }
}

fn part(name: String, header: Header) -> Part {
    let Header { dtype, shape, layout, bytes } = header;
    Part { name, dtype, shape, start: 0, bytes, layout }
}

fn arrays<F: Read + Seek>(
    shown: String,
    open: impl FnOnce() -> Opened<F> + Send + 'static,
    device: &Device,
    options: LoadOptions,
    at: At,
) -> Load {
    files::load(shown, device, options, at, move |reading, wanted| {
        let (file, _) = open().map_err(|e| reading.error(e))?;
        let mut archive = Archive::open(reading, file)?;
        let mut parts = Vec::new();
        for entry in archive.names()? {
            let Some(name) = entry.strip_suffix(".npy") else {
                return Err(reading.error(format!("{entry} is not an array")));
            };
            if wanted(name) {
                let header = headed(reading, &mut archive, &entry)?.0;
                parts.push((entry.clone(), part(name.into(), header)));
            }
        }
        let bytes = parts.iter().map(|(_, part)| part.bytes).sum();
        if !reading.start(parts.len(), bytes, Default::default()) {
            return Ok(());
        }
        for (entry, part) in parts {
            let (_, mut file) = headed(reading, &mut archive, &entry)?;
            let name = part.name.clone();
            if !reading.tensor_from(&mut file, part, |x| x)? {
                break;
            }
            // The end of the entry, where its checksum is compared.
            let ended = file.read(&mut [0]).map_err(|e| format!("tensor {name}: {e}"));
            if ended.map_err(|e| reading.error(e))? > 0 {
                let text = format!("tensor {name} has more elements than its header says");
                return Err(reading.error(text));
            }
        }
        Ok(())
    })
}

/// An entry's header, and the entry, which stands at its elements.
fn headed<'a, F: Read + Seek>(
    reading: &Reading<TensorFuture>,
    archive: &'a mut Archive<'_, F, TensorFuture>,
    entry: &str,
) -> Result<(Header, impl Read + use<'a, F>)> {
    let mut file = archive.entry(entry)?;
    let size = file.size();
    let (header, before) =
        header::read(&mut file).map_err(|e| reading.error(format!("{entry}: {e}")))?;
    if before.saturating_add(header.bytes) != size {
        let text = format!("{entry} is longer or shorter than its header says");
        return Err(reading.error(text));
    }
    Ok((header, file))
}
