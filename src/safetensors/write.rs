//! `save`: tensors read back one after the other, and a thread that writes them.

use super::handoff::{Handoff, handoff};
use super::wire::{Wire, name_of};
use super::{AHEAD_BYTES, CHUNK};
use crate::dtype::with_dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::future::TensorFuture;
use crate::tensor::read::ToVec;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::future::Future;
use std::io::{BufWriter, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

type At = &'static Location<'static>;

/// The future of [`save`].
#[must_use = "a file is written while its future is awaited"]
pub struct Save(Pin<Box<dyn Future<Output = Result<()>> + Send>>);

impl std::fmt::Debug for Save {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Save")
    }
}

impl Future for Save {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

/// Writes tensors by name into a safetensors file. They are read back one after the other, and a
/// thread of its own writes them, so that little more than the largest of them is in host memory at
/// once. The file appears under its name when it is whole, in place of the one that was there.
///
/// The order in the file is the usual one: wide types first, then by name.
///
/// # Errors
/// A value that failed, with its own error; two tensors of one name; whatever the file system says.
///
/// # Cancel safety
/// Dropping the future gives up: there is no new file then, and the old one stays.
#[track_caller]
pub fn save<N: Into<String>, T: AsRef<TensorFuture>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Save {
    let (path, at): (PathBuf, At) = (path.as_ref().to_path_buf(), Location::caller());
    let mut tensors: Vec<(String, TensorFuture)> =
        tensors.into_iter().map(|(name, x)| (name.into(), x.as_ref().clone())).collect();
    tensors.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then_with(|| a.cmp(b)));
    Save(Box::pin(written(path, tensors, at)))
}

fn error(path: &Path, text: impl std::fmt::Display, at: At) -> Error {
    Error::new(ErrorKind::Source, "save", format!("{}: {text}", path.display()), at)
}

/// The file's first bytes: the length of the header, and the header.
fn header(tensors: &[(String, TensorFuture)]) -> Result<Vec<u8>, String> {
    let mut infos = Vec::new();
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| &name[..]).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("two tensors are called {}", pair[0]));
    }
    let mut start = 0usize;
    for (name, x) in tensors {
        let end = start + x.numel() * x.dtype().size();
        let info =
            TensorInfo { dtype: name_of(x.dtype()), shape: x.dims().to_vec(), data_offsets: (start, end) };
        infos.push((name.clone(), info));
        start = end;
    }
    let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    // Elements begin at a multiple of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    Ok(out)
}

async fn written(path: PathBuf, tensors: Vec<(String, TensorFuture)>, at: At) -> Result<()> {
    if let Some(error) = tensors.iter().find_map(|(_, x)| x.error()) {
        return Err(error);
    }
    let head = header(&tensors).map_err(|text| error(&path, text, at))?;
    let (to, from) = handoff::<Piece>(AHEAD_BYTES);
    // The thread's last word comes back on a queue of its own.
    let (done, end) = handoff::<std::io::Result<()>>(0);
    let target = path.clone();
    let thread = std::thread::Builder::new().name("futensor-save".into());
    thread
        .spawn(move || {
            done.send_blocking(write(&target, &from), 0);
        })
        .map_err(|e| error(&path, format!("no thread to write it: {e}"), at))?;
    let mut wanted = send(&to, Piece::Bytes(head)).await;
    for (_, x) in &tensors {
        if !wanted {
            break;
        }
        wanted = with_dtype!(x.dtype(), T => {
            let read: ToVec<T> = x.to_vec::<T>();
            pieces(&to, &read.await?).await
        });
    }
    if wanted {
        send(&to, Piece::End).await;
    }
    drop(to);
    match std::future::poll_fn(|cx| end.poll_receive(cx)).await {
        Some(Ok(())) => Ok(()),
        Some(Err(e)) => Err(error(&path, e, at)),
        None => Err(error(&path, "the writing thread panicked", at)),
    }
}

enum Piece {
    Bytes(Vec<u8>),
    /// Everything has been sent: without it the file is not whole.
    End,
}

async fn send(to: &Handoff<Piece>, piece: Piece) -> bool {
    let weight = if let Piece::Bytes(bytes) = &piece { bytes.len() } else { 0 };
    let mut slot = Some(piece);
    std::future::poll_fn(|cx| to.poll_send(cx, &mut slot, weight)).await
}

/// Sends elements in pieces, none of which keeps the task long.
async fn pieces<T: Wire>(to: &Handoff<Piece>, elements: &[T]) -> bool {
    for chunk in elements.chunks(CHUNK / size_of::<T>()) {
        let mut bytes = Vec::with_capacity(size_of_val(chunk));
        T::write(chunk, &mut bytes);
        if !send(to, Piece::Bytes(bytes)).await {
            return false;
        }
    }
    true
}

/// What the thread does: a file beside the one that is wanted, and its name at the end.
fn write(path: &Path, from: &Handoff<Piece>) -> std::io::Result<()> {
    let part = beside(path);
    let written = (|| {
        let mut file = BufWriter::new(File::create_new(&part)?);
        loop {
            match from.receive_blocking() {
                Some(Piece::Bytes(bytes)) => file.write_all(&bytes)?,
                Some(Piece::End) => break,
                // The future was dropped, or a value failed.
                None => return Err(std::io::Error::other("given up")),
            }
        }
        let file = file.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// A path of its own beside another, for a file that is not whole yet.
fn beside(path: &Path) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{count}.part", std::process::id()));
    path.with_file_name(name)
}
