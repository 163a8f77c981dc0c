//! From the values of a pickle to named tensors, as `torch._utils` rebuilds them. Pure.

use super::pickle::{OUTSIDE, Value, Values};
use crate::dtype::DType;
use crate::shape::{Shape, Strides};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

/// Dictionaries in dictionaries, at most. It also ends those that hold themselves.
const DEPTH_MAX: usize = 32;

/// A tensor: which elements of which storage it has.
pub(super) struct Described {
    pub name: String,
    /// The name of the storage in the archive.
    pub storage: Rc<str>,
    pub dtype: DType,
    /// In elements, as the strides.
    pub offset: usize,
    pub shape: Shape,
    /// None where the elements lie row by row.
    pub strides: Option<Strides>,
    /// The number of elements of the storage from the offset on.
    pub span: usize,
}

/// What a file holds.
pub(super) struct Contents {
    pub tensors: Vec<Described>,
    /// Numbers, texts and truth values, by name.
    pub metadata: BTreeMap<String, String>,
}

/// Names what the value of a pickle of `bytes` bytes holds.
pub(super) fn contents(root: &Value, values: &Values, bytes: usize) -> Result<Contents, String> {
    let mut walk = Walk {
        values,
        tensors: BTreeMap::new(),
        metadata: BTreeMap::new(),
        reached: HashSet::new(),
        unread: None,
        // A tensor takes more than a byte of a pickle, unless containers are shared.
        steps: 1000 + bytes,
        letters: 1000 + 64 * bytes,
    };
    if let Value::Object(at) = root
        && walk.called(*at) != Some(Call::Tensor)
    {
        return Err(format!(
            "it holds a {}, not a dictionary of tensors: write one by \
             torch.save(model.state_dict(), path)",
            walk.name_of(*at)
        ));
    }
    walk.value(&mut String::new(), root, 0)?;
    let all = 0..values.objects.len();
    let lost =
        all.filter(|at| walk.called(*at) == Some(Call::Tensor) && !walk.reached.contains(at));
    if let (Some((name, class)), true) = (&walk.unread, lost.count() > 0) {
        return Err(format!("{name} is a {class} with tensors in it, which are not read"));
    }
    let tensors = walk.tensors.into_values().collect();
    Ok(Contents { tensors, metadata: walk.metadata })
}

/// Calls that are known.
#[derive(Clone, Copy, PartialEq)]
enum Call {
    /// A tensor of elements in a storage.
    Tensor,
    /// A tensor as the first argument.
    Parameter,
    /// A tensor as a call of the first argument with the third.
    Typed,
    /// A tensor of another kind.
    Refused,
}

struct Walk<'a> {
    values: &'a Values,
    tensors: BTreeMap<String, Described>,
    metadata: BTreeMap<String, String>,
    /// The objects that are tensors here.
    reached: HashSet<usize>,
    /// The first object that is not built: its name and its class.
    unread: Option<(String, String)>,
    /// How many more values are looked at: shared containers could stand for any number.
    steps: usize,
    /// How many more letters names may have.
    letters: usize,
}

impl Walk<'_> {
    fn name_of(&self, object: usize) -> &str {
        match &self.values.objects[object].0 {
            Value::Name(name) => name,
            _ => "value of an unknown kind",
        }
    }

    fn called(&self, object: usize) -> Option<Call> {
        Some(match self.name_of(object) {
            "torch._utils._rebuild_tensor"
            | "torch._utils._rebuild_tensor_v2"
            | "torch._utils._rebuild_tensor_v3" => Call::Tensor,
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                Call::Parameter
            }
            "torch._tensor._rebuild_from_type_v2" => Call::Typed,
            name if name.starts_with("torch._utils._rebuild_") => Call::Refused,
            _ => return None,
        })
    }

    fn value(&mut self, name: &mut String, value: &Value, depth: usize) -> Result<(), String> {
        let values = self.values;
        let shown =
            |name: &str| if name.is_empty() { "the value".into() } else { name.to_string() };
        let left = self.steps.checked_sub(1).zip(self.letters.checked_sub(name.len()));
        let Some((steps, letters)) = left else {
            return Err("it holds more values than its length allows".into());
        };
        (self.steps, self.letters) = (steps, letters);
        if depth > DEPTH_MAX {
            return Err(format!("{} lies more than {DEPTH_MAX} levels deep", shown(name)));
        }
        match value {
            Value::Dict(at) => {
                for (key, value) in &values.dicts[*at] {
                    match key {
                        Value::Text(key) => self.inside(name, key, value, depth)?,
                        Value::Int(key) => self.inside(name, &key.to_string(), value, depth)?,
                        _ => return Err(format!("{} has a key that is no text", shown(name))),
                    }
                }
            }
            Value::List(_) | Value::Tuple(_) => {
                for (i, item) in items(values, value).into_iter().flatten().enumerate() {
                    self.inside(name, &i.to_string(), item, depth)?;
                }
            }
            Value::Object(at) => match self.called(*at) {
                Some(_) => {
                    let at_tensor = |e: String| format!("tensor {}: {e}", shown(name));
                    let tensor = self.tensor(name, *at, 0).map_err(at_tensor)?;
                    self.tensors.insert(name.clone(), tensor);
                }
                None => {
                    let class = self.name_of(*at).to_string();
                    self.unread.get_or_insert_with(|| (shown(name), class));
                }
            },
            Value::Bool(x) => self.note(name, x.to_string()),
            Value::Int(x) => self.note(name, x.to_string()),
            Value::Float(x) => self.note(name, x.to_string()),
            Value::Text(x) => self.note(name, x.to_string()),
            Value::None | Value::Opaque | Value::Name(_) => {}
        }
        Ok(())
    }

    fn inside(
        &mut self,
        name: &mut String,
        key: &str,
        value: &Value,
        depth: usize,
    ) -> Result<(), String> {
        let outer = name.len();
        if outer > 0 {
            name.push('.');
        }
        name.push_str(key);
        self.value(name, value, depth + 1)?;
        name.truncate(outer);
        Ok(())
    }

    fn note(&mut self, name: &str, text: String) {
        self.letters = self.letters.saturating_sub(text.len());
        self.metadata.insert(name.to_string(), text);
    }

    /// The tensor that an object stands for.
    fn tensor(&mut self, name: &str, object: usize, depth: usize) -> Result<Described, String> {
        let broken = || "its description is broken".to_string();
        let (values, called) = (self.values, self.called(object));
        let arguments = &values.objects[object].1;
        let Value::Tuple(at) = arguments else { return Err(broken()) };
        let arguments = &values.tuples[*at];
        match called {
            Some(Call::Parameter) if depth < 4 => match arguments.first() {
                Some(Value::Object(inner)) => self.tensor(name, *inner, depth + 1),
                _ => Err(broken()),
            },
            Some(Call::Typed) if depth < 4 => match &arguments[..] {
                [Value::Name(function), _, Value::Tuple(given), ..]
                    if function.starts_with("torch._utils._rebuild_tensor") =>
                {
                    self.reached.insert(object);
                    self.of_storage(name, &values.tuples[*given])
                }
                _ => Err(broken()),
            },
            Some(Call::Tensor) => {
                self.reached.insert(object);
                self.of_storage(name, arguments)
            }
            Some(Call::Refused) => {
                let kind = self.name_of(object).trim_start_matches("torch._utils._rebuild_");
                Err(format!("a tensor of the kind {kind}, which futensor does not have"))
            }
            _ => Err(broken()),
        }
    }

    /// `(storage, offset, shape, strides, ..)`, of the third version with the type behind.
    fn of_storage(&self, name: &str, arguments: &[Value]) -> Result<Described, String> {
        let broken = || "its description is broken".to_string();
        let [Value::Object(storage), Value::Int(offset), shape, strides, rest @ ..] = arguments
        else {
            return Err(broken());
        };
        let (Value::Name(called), Value::Tuple(storage)) = &self.values.objects[*storage] else {
            return Err(broken());
        };
        let storage = &self.values.tuples[*storage];
        let [Value::Text(_), Value::Name(kind), Value::Text(key), _, Value::Int(length), ..] =
            &storage[..]
        else {
            return Err(broken());
        };
        if **called != *OUTSIDE {
            return Err(broken());
        }
        let typed = match rest {
            [_, _, Value::Name(dtype), ..] => dtype,
            _ => kind,
        };
        let dtype = dtype_of(typed)?;
        let size = |x: &Value| match x {
            Value::Int(n) => usize::try_from(*n).map_err(|_| broken()),
            _ => Err(broken()),
        };
        let sizes = items(self.values, shape).ok_or_else(broken)?;
        let sizes: Vec<usize> = sizes.iter().map(size).collect::<Result<_, _>>()?;
        let steps = items(self.values, strides).ok_or_else(broken)?;
        let steps: Vec<usize> = steps.iter().map(size).collect::<Result<_, _>>()?;
        let (offset, mut length) = (size(&Value::Int(*offset))?, size(&Value::Int(*length))?);
        if **kind == *"torch.storage.UntypedStorage" {
            length /= dtype.size();
        }
        let (span, strides) = lying(&sizes, &steps, dtype)?;
        if span.checked_add(offset).is_none_or(|end| end > length) {
            return Err("it lies outside its storage".into());
        }
        let (name, shape) = (name.to_string(), Shape::from(&sizes[..]));
        Ok(Described { name, storage: key.clone(), dtype, offset, shape, strides, span })
    }
}

/// The items of a tuple or list.
fn items<'a>(values: &'a Values, value: &Value) -> Option<&'a [Value]> {
    match value {
        Value::Tuple(at) => Some(&values.tuples[*at]),
        Value::List(at) => Some(&values.lists[*at]),
        _ => None,
    }
}

/// How many elements of the storage a shape with strides spans, and the strides if they are not
/// those of rows.
fn lying(
    sizes: &[usize],
    steps: &[usize],
    dtype: DType,
) -> Result<(usize, Option<Strides>), String> {
    let too_large = || "it is larger than any memory".to_string();
    if sizes.len() != steps.len() {
        return Err("its description is broken".into());
    }
    let wide = sizes.iter().filter(|n| **n > 0).try_fold(dtype.size(), |n, d| n.checked_mul(*d));
    if wide.is_none_or(|n| isize::try_from(n).is_err()) {
        return Err(too_large());
    }
    let numel: usize = sizes.iter().product();
    if numel == 0 {
        return Ok((0, None));
    }
    let mut last = 0usize;
    for (n, step) in sizes.iter().zip(steps) {
        let way = (n - 1).checked_mul(*step).and_then(|way| last.checked_add(way));
        last = way.filter(|n| *n < isize::MAX as usize).ok_or_else(too_large)?;
    }
    let span = last + 1;
    let (mut row, mut in_rows) = (1, true);
    for (n, step) in sizes.iter().zip(steps).rev() {
        in_rows &= *n == 1 || *step == row;
        row *= n;
    }
    if in_rows {
        return Ok((span, None));
    }
    // Repeated elements: from a few bytes they could make any number.
    if numel > span.saturating_mul(REPEATED_MAX) {
        return Err("it repeats its elements more than 1,024 times".into());
    }
    Ok((span, Some(steps.iter().map(|n| *n as isize).collect())))
}

/// How often an element of the file may be in a tensor (`expand`), on average.
const REPEATED_MAX: usize = 1024;

fn dtype_of(name: &str) -> Result<DType, String> {
    Ok(match name {
        "torch.FloatStorage" | "torch.float32" => DType::F32,
        "torch.DoubleStorage" | "torch.float64" => DType::F64,
        "torch.HalfStorage" | "torch.float16" => DType::F16,
        "torch.BFloat16Storage" | "torch.bfloat16" => DType::BF16,
        "torch.IntStorage" | "torch.int32" => DType::I32,
        "torch.LongStorage" | "torch.int64" => DType::I64,
        "torch.ByteStorage" | "torch.uint8" => DType::U8,
        "torch.BoolStorage" | "torch.bool" => DType::Bool,
        "torch.CharStorage" | "torch.int8" => DType::I8,
        "torch.ShortStorage" | "torch.int16" => DType::I16,
        "torch.uint16" => DType::U16,
        "torch.uint32" => DType::U32,
        "torch.uint64" => DType::U64,
        "torch.float8_e4m3fn" => DType::F8E4M3,
        "torch.float8_e5m2" => DType::F8E5M2,
        other => {
            let name = other.trim_start_matches("torch.").trim_end_matches("Storage");
            return Err(format!("it is of {name}, a type that futensor does not have"));
        }
    })
}
