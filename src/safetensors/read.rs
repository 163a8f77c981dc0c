//! `load`: reads and checks the header of a safetensors file, and streams its tensors.

use super::HEADER_MAX;
use super::wire::dtype_of;
use crate::error::{Error, Result, bytes_of};
use crate::files::{self, Layout, Load, LoadOptions, Opened, Part, Reading};
use crate::shape::Shape;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use safetensors::SafeTensorError;
use safetensors::tensor::Metadata;
use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::panic::Location;
use std::path::Path;

type At = &'static Location<'static>;

/// Loads the tensors of a safetensors file onto a device. A separate thread reads from this call
/// on, at most 64 MiB ahead of the tensors that have been received.
///
/// # Errors
/// The stream returns the error and ends: if the file cannot be read, is truncated, is longer than
/// its header says, has tensors that overlap or leave gaps, shapes that do not fit their bytes, or
/// a type that futensor does not have. `is_source()` is true for all of these.
///
/// # Cancel safety
/// Dropping the stream ends it; tensors that it has returned stay valid.
#[doc(alias = "load_file")]
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Load {
    load_with(path, device, LoadOptions::default())
}

/// [`load`] with options: how far ahead it reads, and which tensors.
#[track_caller]
pub fn load_with(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Load {
    let path = path.as_ref().to_path_buf();
    let shown = path.display().to_string();
    started(shown, move || files::opened(&path), device, options, Location::caller())
}

/// [`load`] for a file in memory: embedded by `include_bytes!`, or downloaded.
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
    let open = move || files::in_memory(bytes);
    started("bytes in memory".into(), open, device, LoadOptions::default(), Location::caller())
}

/// Starts the reading thread; `open` returns the file and its length.
fn started<F: Read + Seek>(
    shown: String,
    open: impl FnOnce() -> Opened<F> + Send + 'static,
    device: &Device,
    options: LoadOptions,
    at: At,
) -> Load {
    files::load(shown, device, options, at, move |reading, wanted| {
        let (mut file, length) = open().map_err(|e| reading.error(e))?;
        let (about, parts) = Header(reading).read(&mut file, length, wanted)?;
        if !reading.start(parts.len(), parts.iter().map(|p| p.bytes).sum(), about) {
            return Ok(());
        }
        for part in parts {
            if !reading.tensor(&mut file, part, |x| x)? {
                break;
            }
        }
        Ok(())
    })
}

struct Header<'a>(&'a Reading<TensorFuture>);

impl Header<'_> {
    fn error(&self, text: impl std::fmt::Display) -> Error {
        self.0.error(text)
    }

    /// Reads the header and checks it against the file's length.
    fn read(
        &self,
        file: &mut impl Read,
        length: u64,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(BTreeMap<String, String>, Vec<Part>)> {
        let io = |e: std::io::Error| self.error(e);
        let mut word = [0u8; 8];
        if length < 8 {
            return Err(self
                .error(format!("truncated: {} cannot hold a header", bytes_of(length as usize))));
        }
        file.read_exact(&mut word).map_err(io)?;
        let size = u64::from_le_bytes(word);
        if size > HEADER_MAX {
            return Err(self.error(format!(
                "a header of {}: this is not a safetensors file",
                bytes_of(size as usize)
            )));
        }
        if size > length - 8 {
            let length = bytes_of(length as usize);
            return Err(self.error(format!("truncated: {length}, but a header of {size}")));
        }
        let mut header = vec![0u8; size as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| self.refused(&e))?;
        let data = 8 + size;
        let end = data.saturating_add(metadata.data_len() as u64);
        if end > length {
            return Err(self.error(format!("truncated: {} of {end}", bytes_of(length as usize))));
        }
        if end < length {
            return Err(self.error(format!(
                "{} more than the header describes",
                bytes_of((length - end) as usize)
            )));
        }
        let mut parts = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name).filter(|_| wanted(&name)) else { continue };
            let Some(dtype) = dtype_of(info.dtype) else {
                let text =
                    format!("tensor {name} is {}, a type that futensor does not have", info.dtype);
                return Err(self.error(text));
            };
            let (start, end) = info.data_offsets;
            let (start, bytes) = (data + start as u64, (end - start) as u64);
            let (shape, layout) = (Shape::from(&info.shape[..]), Layout::default());
            parts.push(Part { name, dtype, shape, start, bytes, layout });
        }
        let about = metadata.metadata().iter().flatten();
        Ok((about.map(|(key, value)| (key.clone(), value.clone())).collect(), parts))
    }

    /// The message for a header that is refused.
    fn refused(&self, error: &serde_json::Error) -> Error {
        let text = error.to_string();
        let known = [
            (
                SafeTensorError::TensorInvalidInfo.to_string(),
                "a tensor's shape and type do not fit its bytes",
            ),
            (
                SafeTensorError::ValidationOverflow.to_string(),
                "a tensor's shape is larger than any memory",
            ),
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
        self.error(format!("the header does not describe tensors: {text}"))
    }
}
