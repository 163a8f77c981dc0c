//! `load`: reads the archive's pickle, and streams the storages' elements.

use super::pickle::unpickled;
use super::rebuild::{Described, contents};
use crate::error::{Result, bytes_of};
use crate::files::{self, Archive, Layout, Load, LoadOptions, Opened, Part, Reading};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::io::{Read, Seek, SeekFrom};
use std::panic::Location;
use std::path::Path;

type At = &'static Location<'static>;

/// The longest pickle that is read. It has names and shapes, no elements.
const PICKLE_MAX: u64 = 100 << 20;
/// How often the bytes of a file may be in its tensors: tensors may share their elements.
const SHARED_MAX: u64 = 64;

/// Loads the tensors of a file that `torch.save` wrote onto a device, in the order of their names.
/// A separate thread reads from this call on, at most 64 MiB ahead of the tensors that have been
/// received. Tensors that share elements in Python do not share them here.
///
/// # Errors
/// The stream returns the error and ends: if the file cannot be read, is no archive of PyTorch's,
/// is damaged, holds a whole model or tensors inside other Python objects, or has a tensor of a
/// kind (sparse, quantised) or type that futensor does not have. `is_source()` is true for all of
/// these.
///
/// # Cancel safety
/// Dropping the stream ends it; tensors that it has returned stay valid.
#[doc(alias = "pickle")]
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Load {
    load_with(path, device, LoadOptions::default())
}

/// [`load`] with options: how far ahead it reads, and which tensors.
///
/// # Errors
/// As [`load`].
///
/// # Cancel safety
/// As [`load`].
#[track_caller]
pub fn load_with(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Load {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    started(shown, move || files::opened(&path), device, options, Location::caller())
}

/// [`load`] for a file in memory.
///
/// # Errors
/// As [`load`].
///
/// # Cancel safety
/// As [`load`].
#[track_caller]
pub fn load_bytes(bytes: impl AsRef<[u8]> + Send + 'static, device: &Device) -> Load {
    let open = move || files::in_memory(bytes);
    started("bytes in memory".into(), open, device, LoadOptions::default(), Location::caller())
}

fn started<F: Read + Seek>(
    shown: String,
    open: impl FnOnce() -> Opened<F> + Send + 'static,
    device: &Device,
    options: LoadOptions,
    at: At,
) -> Load {
    files::load(shown, device, options, at, move |reading, wanted| {
        let (mut file, length) = open().map_err(|e| reading.error(e))?;
        refuse_old(reading, &mut file)?;
        let mut archive = Archive::open(reading, file)?;
        let names = archive.names()?;
        let Some(folder) = names.iter().find_map(|name| name.strip_suffix("data.pkl")) else {
            return Err(reading.error("the archive has no data.pkl: PyTorch did not write it"));
        };
        let big_endian = is_big_endian(&mut archive, &names, folder)?;
        let mut pickle = Vec::new();
        let entry = archive.entry(&format!("{folder}data.pkl"))?;
        if entry.size() > PICKLE_MAX {
            let text = format!("a pickle of {}", bytes_of(entry.size() as usize));
            return Err(reading.error(text));
        }
        { entry }.read_to_end(&mut pickle).map_err(|e| reading.error(format!("data.pkl: {e}")))?;
        let (value, values) = unpickled(&pickle).map_err(|e| reading.error(e))?;
        let held = contents(&value, &values, pickle.len()).map_err(|e| reading.error(e))?;
        drop((value, values, pickle));

        let bytes_of_all = |tensors: &[Described]| -> u64 {
            tensors.iter().map(|t| (t.shape.numel() * t.dtype.size()) as u64).sum()
        };
        let tensors: Vec<_> = held.tensors.into_iter().filter(|t| wanted(&t.name)).collect();
        let bytes = bytes_of_all(&tensors);
        if bytes > length.saturating_mul(SHARED_MAX) {
            let [held, length] = [bytes, length].map(|n| bytes_of(n as usize));
            let text = format!("tensors of {held} in a file of {length}");
            return Err(reading.error(text));
        }
        if !reading.start(tensors.len(), bytes, held.metadata) {
            return Ok(());
        }
        for tensor in tensors {
            if !streamed(reading, &mut archive, folder, tensor, big_endian)? {
                break;
            }
        }
        Ok(())
    })
}

/// Names the format before PyTorch 1.6, which is no archive.
fn refuse_old(reading: &Reading<TensorFuture>, file: &mut (impl Read + Seek)) -> Result<()> {
    let mut start = [0; 4];
    let read = file.read_exact(&mut start);
    file.seek(SeekFrom::Start(0)).map_err(|e| reading.error(e))?;
    // A pickle of protocol 2 that begins with a long number.
    if read.is_ok() && start[..3] == [0x80, 2, 0x8a] {
        return Err(reading.error(
            "written in the format before PyTorch 1.6: write it again by \
             torch.save(torch.load(path), path)",
        ));
    }
    Ok(())
}

fn is_big_endian<F: Read + Seek>(
    archive: &mut Archive<'_, F, TensorFuture>,
    names: &[String],
    folder: &str,
) -> Result<bool> {
    let name = format!("{folder}byteorder");
    let mut text = [0; 3];
    if !names.contains(&name) {
        return Ok(false);
    }
    // "big" or "little".
    Ok(archive.entry(&name)?.read_exact(&mut text).is_ok() && &text == b"big")
}

/// Reads a tensor's part of its storage and sends it; false if the stream was dropped.
fn streamed<F: Read + Seek>(
    reading: &Reading<TensorFuture>,
    archive: &mut Archive<'_, F, TensorFuture>,
    folder: &str,
    tensor: Described,
    big_endian: bool,
) -> Result<bool> {
    let Described { name, storage, dtype, offset, shape, strides, span } = tensor;
    let size = dtype.size() as u64;
    let (start, bytes) = (offset as u64 * size, span as u64 * size);
    let layout = Layout { big_endian, strides };
    let entry = format!("{folder}data/{storage}");
    // The whole of a storage, as it is most often, is compared with its checksum.
    let mut whole = archive.entry(&entry)?;
    if start.saturating_add(bytes) > whole.size() {
        return Err(reading.error(format!("truncated within tensor {name}")));
    }
    let part = Part { name: name.clone(), dtype, shape, start, bytes, layout };
    if start > 0 {
        drop(whole);
        return reading.tensor(&mut archive.stored(&entry)?, part, |x| x);
    }
    let ends = bytes == whole.size();
    let sent = reading.tensor_from(&mut whole, part, |x| x)?;
    if sent && ends {
        let ended = whole.read(&mut [0]);
        ended.map_err(|e| reading.error(format!("tensor {name}: {e}")))?;
    }
    Ok(sent)
}
