//! A model's folder, as Hugging Face's hub and its cache lay it out: where it is, what its
//! `config.json` says, and which files have its tensors. `load` reads those.

use crate::error::{Error, Result};
use crate::load::{INDEX, Loading, Shard};
use futensor::Device;
use futures_channel::oneshot;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

const CONFIG: &str = "config.json";
/// All tensors in one file.
const WHOLE: &str = "model.safetensors";

/// The most bytes of a `config.json`, and of a file in `refs`.
const CONFIG_MAX: u64 = 16 << 20;
/// The most bytes of an index: 100 each for half a million tensors.
const INDEX_MAX: u64 = 64 << 20;

/// A model's folder, as Hugging Face's hub lays it out: `config.json`, and the tensors in
/// `model.safetensors` or in the shards that `model.safetensors.index.json` names. Opening it looks
/// at all of these, and reads no tensor.
///
/// ```
/// # futensor::block_on(async {
/// use futensor::{Device, safetensors};
/// use futensor_models::Folder;
/// let device = Device::cpu();
/// let path = std::env::temp_dir().join(format!("futensor-models-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&path)?;
/// std::fs::write(path.join("config.json"), r#"{"model_type": "mine", "width": 3}"#)?;
/// safetensors::save(path.join("model.safetensors"), [("w", device.ones([2, 3]))]).await?;
///
/// let folder = Folder::open(&path).await?;
/// assert_eq!((&folder.config()["width"], folder.bytes()), (&3.into(), 24));
/// let mut tensors = folder.load(&device).all().await?;
/// assert_eq!(tensors.want("w", &[2, 3])?.dims(), [2, 3]);
/// tensors.end(|_| false)?;                             // nothing is left over
/// # std::fs::remove_dir_all(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    config: Value,
    shards: Vec<Shard>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Opens a plain folder, or a folder of the hub's cache (`models--organisation--name`): of that
    /// the snapshot that `refs/main` names, or the only one. A separate thread reads the files.
    ///
    /// # Errors
    /// If there is no such folder or snapshot, no `config.json`, no file of tensors, or if the
    /// index is not one or names a file that is not there. `is_model()` is true for all of these.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(path: impl AsRef<Path>) -> Result<Folder> {
        let path = path.as_ref().to_owned();
        apart(move || Folder::read(snapshot(&path, None)?)).await
    }

    /// Opens a revision in a folder of the hub's cache: a branch or a tag, as `refs` names it, or a
    /// commit.
    ///
    /// # Errors
    /// As [`open`](Self::open); and if there is no such revision.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// use futensor_models::Folder;
    /// let error = Folder::open_revision(".", "v1.0").await.unwrap_err();
    /// assert_eq!(error.to_string(), ".: there is no revision v1.0");
    /// # });
    /// ```
    pub async fn open_revision(path: impl AsRef<Path>, revision: &str) -> Result<Folder> {
        let (path, revision) = (path.as_ref().to_owned(), revision.to_owned());
        apart(move || Folder::read(snapshot(&path, Some(&revision))?)).await
    }

    /// Where its files are: of the hub's cache, the snapshot.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its `config.json` says.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Refuses it for what its `config.json` says; the error names that file.
    pub fn wrong(&self, says: impl std::fmt::Display) -> Error {
        wrong(&self.path.join(CONFIG), says)
    }

    /// The bytes of all its tensors, as its files' lengths say.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// The files of its tensors.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Loads its tensors onto a device, one file after the other.
    ///
    /// # Errors
    /// The stream returns the error and ends: as [`futensor::safetensors::load`], and if a file
    /// lacks a tensor that the index says is in it, or has one of which the index says otherwise.
    ///
    /// # Cancel safety
    /// Dropping the stream ends it; tensors that it has returned stay valid.
    pub fn load(&self, device: &Device) -> Loading {
        let whole = matches!(&self.shards[..], [Shard { names: None, .. }]);
        let of = self.path.join(if whole { WHOLE } else { INDEX });
        Loading::new(of.display().to_string(), self.shards.clone(), device)
    }

    fn read(path: PathBuf) -> Result<Folder> {
        let config = json(&path.join(CONFIG), CONFIG_MAX)?;
        let shards = shards(&path)?;
        Ok(Folder { path, config, shards })
    }
}

fn wrong(path: &Path, says: impl std::fmt::Display) -> Error {
    Error::model(format!("{}: {says}", path.display()))
}

/// The folder of a model's files: itself, or a snapshot in it.
fn snapshot(path: &Path, revision: Option<&str>) -> Result<PathBuf> {
    let snapshots = path.join("snapshots");
    if revision.is_none() && !snapshots.is_dir() {
        return Ok(path.to_owned());
    }
    let name = revision.unwrap_or("main");
    let no_revision = || wrong(path, format!("there is no revision {name}"));
    if !is_inside(name) {
        return Err(no_revision());
    }
    let reference = path.join("refs").join(name);
    let commit = match reference.is_file() {
        true => {
            let text = read(&reference, CONFIG_MAX)?;
            String::from_utf8_lossy(&text).trim().to_owned()
        }
        false => name.to_owned(),
    };
    let found = snapshots.join(&commit);
    if is_name(&commit) && found.is_dir() {
        return Ok(found);
    }
    if reference.is_file() {
        return Err(wrong(&reference, format!("there is no snapshot {commit:?}")));
    }
    if revision.is_some() {
        return Err(no_revision());
    }
    let all = std::fs::read_dir(&snapshots).map_err(|e| wrong(&snapshots, e))?;
    let mut all = all.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(wrong(&snapshots, "there is no snapshot")),
        (Some(_), Some(_)) => Err(wrong(
            &snapshots,
            "there are several snapshots, and refs/main, which chooses one, is not there",
        )),
    }
}

/// The files of tensors in a folder.
fn shards(folder: &Path) -> Result<Vec<Shard>> {
    let (whole, index) = (folder.join(WHOLE), folder.join(INDEX));
    if whole.exists() {
        let bytes = bytes_of_tensors(&whole).map_err(|e| wrong(&whole, e))?;
        return Ok(vec![Shard { path: whole, bytes, names: None }]);
    }
    if !index.exists() {
        return Err(wrong(folder, format!("there is neither {WHOLE} nor {INDEX}")));
    }
    let Index { weight_map } = json(&index, INDEX_MAX)?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in weight_map {
        if !is_name(&file) {
            let text = format!("tensor {name} is said to be in {file:?}, not a file of the folder");
            return Err(wrong(&index, text));
        }
        files.entry(file).or_default().insert(name);
    }
    if files.is_empty() {
        return Err(wrong(&index, "it names no tensor"));
    }
    let shard = |(file, names): (String, BTreeSet<String>)| {
        let path = folder.join(file);
        match bytes_of_tensors(&path) {
            Ok(bytes) => Ok(Shard { path, bytes, names: Some(names) }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let name = names.first().map_or("", String::as_str);
                let text = format!("there is no such file, and {INDEX} says that it has {name}");
                Err(wrong(&path, text))
            }
            Err(error) => Err(wrong(&path, error)),
        }
    };
    files.into_iter().map(shard).collect()
}

/// The bytes behind the header of a safetensors file. What is none is found out as it is loaded.
fn bytes_of_tensors(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut header = [0; 8];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(length.saturating_sub(8).saturating_sub(u64::from_le_bytes(header))),
    }
}

/// One name, which leads to no other folder.
fn is_name(name: &str) -> bool {
    is_inside(name) && Path::new(name).components().count() == 1
}

fn is_inside(name: &str) -> bool {
    let all_normal = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    !name.is_empty() && all_normal
}

fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| wrong(path, e))?;
    let mut text = Vec::new();
    file.take(max + 1).read_to_end(&mut text).map_err(|e| wrong(path, e))?;
    match text.len() as u64 > max {
        true => Err(wrong(path, format!("it is larger than {} MiB", max >> 20))),
        false => Ok(text),
    }
}

fn json<T: DeserializeOwned>(path: &Path, max: u64) -> Result<T> {
    serde_json::from_slice(&read(path, max)?).map_err(|e| wrong(path, e))
}

/// Runs a function on a thread of its own.
async fn apart<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("futensor-folder".into());
    thread
        .spawn(move || drop(tell.send(job())))
        .map_err(|e| Error::model(format!("cannot start a thread to read the folder: {e}")))?;
    told.await.unwrap_or_else(|_| Err(Error::model("reading the folder panicked")))
}
