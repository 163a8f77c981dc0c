//! A thread that writes a file, and the future that feeds it.

use super::elements::Wire;
use super::handoff::{Handoff, handoff};
use super::{AHEAD_BYTES, CHUNK};
use crate::dtype::with_any_dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::future::TensorFuture;
use crate::tensor::read::ToVec;
use std::fs::File;
use std::future::Future;
use std::io::{BufWriter, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

type At = &'static Location<'static>;

/// The future of a `save`.
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

/// A piece of a file, in file order.
pub(crate) enum Piece {
    /// An archive's next entry begins, with this name.
    #[cfg(feature = "npy")]
    Entry(String),
    Bytes(Vec<u8>),
    /// The elements of a value.
    Elements(TensorFuture),
    /// A value's bytes, converted by the writing thread.
    Made(TensorFuture, Box<dyn FnOnce(Vec<u8>) -> Vec<u8> + Send>),
}

/// If a value is known to have failed, the pieces are that value alone, for its error. A failed
/// value may have any sizes, so no header is made.
pub(crate) fn known_failure<'a>(
    values: impl IntoIterator<Item = &'a TensorFuture>,
) -> Option<Vec<Piece>> {
    let failed = values.into_iter().find(|x| x.error().is_some())?;
    Some(vec![Piece::Elements(failed.clone())])
}

/// A message to the writing thread.
enum Sent {
    #[cfg(feature = "npy")]
    Entry(String),
    Bytes(Vec<u8>),
    Made(Box<dyn FnOnce() -> Vec<u8> + Send>),
    /// All pieces have been sent; without it the file is incomplete.
    End,
}

fn error(path: &Path, text: impl std::fmt::Display, at: At) -> Error {
    Error::new(ErrorKind::Source, "save", format!("{}: {text}", path.display()), at)
}

/// Writes a file of these pieces, or returns their error. Values are read back one
/// after the other.
pub(crate) fn save(path: PathBuf, pieces: Result<Vec<Piece>, String>, at: At) -> Save {
    Save(Box::pin(written(path, pieces, Out::Plain, at)))
}

/// As [`save`], for a zip archive: each entry is stored as it is.
#[cfg(feature = "npy")]
pub(crate) fn save_archive(path: PathBuf, pieces: Result<Vec<Piece>, String>, at: At) -> Save {
    Save(Box::pin(written(path, pieces, Out::archive, at)))
}

/// What the thread writes to.
enum Out {
    Plain(BufWriter<File>),
    #[cfg(feature = "npy")]
    Archive(Box<zip::ZipWriter<BufWriter<File>>>),
}

impl Out {
    #[cfg(feature = "npy")]
    fn archive(file: BufWriter<File>) -> Out {
        Out::Archive(Box::new(zip::ZipWriter::new(file)))
    }

    fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Out::Plain(file) => file.write_all(bytes),
            #[cfg(feature = "npy")]
            Out::Archive(zip) => zip.write_all(bytes),
        }
    }

    #[cfg(feature = "npy")]
    fn entry(&mut self, name: &str) -> std::io::Result<()> {
        let Out::Archive(zip) = self else { return Err(std::io::Error::other("no archive")) };
        let stored = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::DEFAULT)
            .large_file(true);
        Ok(zip.start_file(name, stored)?)
    }

    /// The file, complete.
    fn end(self) -> std::io::Result<File> {
        #[allow(clippy::infallible_destructuring_match)] // Without archives.
        let file = match self {
            Out::Plain(file) => file,
            #[cfg(feature = "npy")]
            Out::Archive(zip) => zip.finish()?,
        };
        file.into_inner().map_err(|e| e.into_error())
    }
}

async fn written(
    path: PathBuf,
    pieces: Result<Vec<Piece>, String>,
    open: fn(BufWriter<File>) -> Out,
    at: At,
) -> Result<()> {
    let pieces = pieces.map_err(|text| error(&path, text, at))?;
    let (to, from) = handoff::<Sent>(AHEAD_BYTES);
    // The thread's result comes back on a second queue.
    let (done, end) = handoff::<std::io::Result<()>>(0);
    let target = path.clone();
    let thread = std::thread::Builder::new().name("futensor-save".into());
    thread
        .spawn(move || {
            done.send_blocking(write(&target, open, &from), 0);
        })
        .map_err(|e| error(&path, format!("cannot start a thread to write it: {e}"), at))?;
    let mut wanted = true;
    for piece in pieces {
        wanted = wanted
            && match piece {
                #[cfg(feature = "npy")]
                Piece::Entry(name) => send(&to, 0, Sent::Entry(name)).await,
                Piece::Bytes(bytes) => send(&to, bytes.len(), Sent::Bytes(bytes)).await,
                Piece::Elements(x) => with_any_dtype!(x.dtype(), T => {
                    let read: ToVec<T> = x.to_vec::<T>();
                    chunks(&to, &read.await?).await
                }),
                Piece::Made(x, make) => {
                    let bytes = x.to_vec::<u8>().await?;
                    send(&to, bytes.len(), Sent::Made(Box::new(move || make(bytes)))).await
                }
            };
    }
    if wanted {
        send(&to, 0, Sent::End).await;
    }
    drop(to);
    match std::future::poll_fn(|cx| end.poll_receive(cx)).await {
        Some(Ok(())) => Ok(()),
        Some(Err(e)) => Err(error(&path, e, at)),
        None => Err(error(&path, "the writing thread panicked", at)),
    }
}

async fn send(to: &Handoff<Sent>, weight: usize, item: Sent) -> bool {
    let mut slot = Some(item);
    std::future::poll_fn(|cx| to.poll_send(cx, &mut slot, weight)).await
}

/// Sends elements in pieces that are short enough not to block the task.
async fn chunks<T: Wire>(to: &Handoff<Sent>, elements: &[T]) -> bool {
    for chunk in elements.chunks(CHUNK / size_of::<T>()) {
        let mut bytes = Vec::with_capacity(size_of_val(chunk));
        T::write(chunk, &mut bytes);
        if !send(to, bytes.len(), Sent::Bytes(bytes)).await {
            return false;
        }
    }
    true
}

/// The thread: writes a temporary file, and renames it at the end.
fn write(
    path: &Path,
    open: fn(BufWriter<File>) -> Out,
    from: &Handoff<Sent>,
) -> std::io::Result<()> {
    let part = beside(path);
    let written = (|| {
        let mut out = open(BufWriter::new(File::create_new(&part)?));
        loop {
            match from.receive_blocking() {
                #[cfg(feature = "npy")]
                Some(Sent::Entry(name)) => out.entry(&name)?,
                Some(Sent::Bytes(bytes)) => out.bytes(&bytes)?,
                Some(Sent::Made(make)) => out.bytes(&make())?,
                Some(Sent::End) => break,
                // The future was dropped, or a value failed.
                None => return Err(std::io::Error::other("given up")),
            }
        }
        out.end()?.sync_all()?;
        std::fs::rename(&part, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// A unique path beside another, for the temporary file.
fn beside(path: &Path) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{count}.part", std::process::id()));
    path.with_file_name(name)
}
