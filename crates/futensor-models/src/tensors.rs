//! The tensors that a model is made of: each is taken once, with its shape checked, and none may be
//! left over.

use crate::error::{Error, Result};
use futensor::quant::Weight;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model's tensors by name, each with its file: a model takes each once, with its shape checked,
/// and [`end`](Self::end) refuses what is left over.
///
/// ```
/// use futensor::Device;
/// use futensor_models::Tensors;
/// let device = Device::cpu();
/// let mut tensors = Tensors::new("model.safetensors");
/// let file = "model.safetensors".into();
/// tensors.insert("a".to_owned(), device.ones([2, 3]), &file)?;
/// tensors.insert("b".to_owned(), device.ones([4]), &file)?;
/// assert_eq!(tensors.want("a", &[2, 3])?.dims(), [2, 3]);
/// let refused = |error: futensor_models::Error| error.to_string();
/// assert_eq!(
///     refused(tensors.want("a", &[2, 3]).unwrap_err()),
///     "model.safetensors: there is no tensor a"
/// );
/// assert_eq!(
///     refused(tensors.take("b", &[5]).unwrap_err()),
///     "model.safetensors: tensor b is [4], not [5]"
/// );
/// assert_eq!(
///     refused(tensors.end(|_| false).unwrap_err()),
///     "model.safetensors: tensor b is left over: a model with such a part is not supported"
/// );
/// # Ok::<(), futensor_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Tensors {
    of: Arc<str>,
    found: BTreeMap<String, (Weight, Arc<str>)>,
}

impl Tensors {
    /// None yet. `of` is the file that should name them all, for errors.
    pub fn new(of: impl Into<Arc<str>>) -> Tensors {
        Tensors { of: of.into(), found: BTreeMap::new() }
    }

    /// Adds a tensor of a file.
    ///
    /// # Errors
    /// If there is one with this name.
    pub fn insert(
        &mut self,
        name: String,
        tensor: impl Into<Weight>,
        file: &Arc<str>,
    ) -> Result<()> {
        if let Some((_, other)) = self.found.get(&name) {
            return Err(Error::model(format!("{file}: tensor {name} is in {other} as well")));
        }
        self.found.insert(name, (tensor.into(), file.clone()));
        Ok(())
    }

    /// How many have not been taken.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether all have been taken.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The shape of a tensor that has not been taken; `None` without one.
    pub fn dims(&self, name: &str) -> Option<Vec<usize>> {
        self.found.get(name).map(|(tensor, _)| tensor.dims())
    }

    /// Gives a dense tensor another shape: files disagree whether a row is a matrix. Where it has
    /// not as many elements, or there is none, nothing changes; taking it says so.
    pub fn reshape(&mut self, name: &str, dims: &[usize]) {
        if let Some((Weight::Dense(x), _)) = self.found.get_mut(name)
            && x.numel() == dims.iter().product::<usize>()
        {
            let dims: Vec<isize> = dims.iter().map(|&n| n as isize).collect();
            *x = x.reshape(dims);
        }
    }

    /// Takes a tensor of any shape; `None` without one.
    pub fn remove(&mut self, name: &str) -> Option<Weight> {
        self.found.remove(name).map(|(tensor, _)| tensor)
    }

    /// Takes a tensor of this shape; `None` without one.
    ///
    /// # Errors
    /// If it has another shape; then it stays.
    pub fn take(&mut self, name: &str, dims: &[usize]) -> Result<Option<Weight>> {
        match self.found.get(name) {
            Some((tensor, file)) if tensor.dims() != dims => {
                let own = tensor.dims();
                Err(Error::model(format!("{file}: tensor {name} is {own:?}, not {dims:?}")))
            }
            _ => Ok(self.remove(name)),
        }
    }

    /// Takes a tensor of this shape.
    ///
    /// # Errors
    /// If there is none, or it has another shape.
    pub fn want(&mut self, name: &str, dims: &[usize]) -> Result<Weight> {
        self.take(name, dims)?
            .ok_or_else(|| Error::model(format!("{}: there is no tensor {name}", self.of)))
    }

    /// Refuses tensors that are left over, but for those that a model may do without.
    ///
    /// # Errors
    /// If one is left over.
    pub fn end(self, may_be_left: impl Fn(&str) -> bool) -> Result<()> {
        let mut left = self.found.iter().filter(|(name, _)| !may_be_left(name));
        let Some((name, (_, file))) = left.next() else { return Ok(()) };
        let more = match left.count() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Err(Error::model(format!(
            "{file}: tensor {name}{more} is left over: a model with such a part is not supported"
        )))
    }
}
