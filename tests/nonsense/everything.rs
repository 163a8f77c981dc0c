//! Every op on every kind of value: a value or an error, and never a panic or a wait without end.

use super::calls::{Call, SOURCES, calls};
use futensor::*;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// Calls that are meant to fail inside a kernel.
const FAILING_KERNELS: &[&str] = &["a kernel that fails", "a rule that panics"];

/// Calls whose results would need memory, or need none; others look at every element, which takes
/// its time.
const TRIED_ON_LARGE: &[&str] = &[
    "neg",
    "exp",
    "add1",
    "cast",
    "sort",
    "cumsum",
    "repeat",
    "reshape",
    "transpose",
    "unsqueeze",
    "squeeze",
    "expand",
    "narrow",
    "i",
    "flatten",
    "pad",
    "cat",
];

/// True of a file with calls, and of that in which rows have their methods.
fn is_called_at(file: &str) -> bool {
    file.contains("nonsense/") || file.ends_with("tensor/operand/rows.rs")
}

/// True of an error that shows the inside of something, or has "1 dimensions".
fn strange(text: &str) -> bool {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && !"-.".contains(c)).collect();
    let plural = |word: &str| {
        word.ends_with('s') && !["is", "as", "has", "was", "does", "comes"].contains(&word)
    };
    let inside = ["[[", "Some(", "None", "Ok(", " { ", "::"].iter().any(|sign| text.contains(sign));
    inside || words.windows(2).any(|pair| pair[0] == "1" && plural(pair[1]))
}

/// Calls whose errors have another name: of layers, which name themselves or a part, of ops that
/// the caller names, and of gradients.
const NAMED_OTHERWISE: &[&str] =
    &["forward", "forward_with", "attend", "custom", "custom_fn", "grad", "grad_with"];

/// True of an error with the name of the function that is called where it says; forms have the name
/// of the op. (What finds no memory may be a part.)
fn says_what_was_called(error: &Error) -> bool {
    let at = error.location();
    if !at.file().contains("nonsense/calls") || error.is_out_of_memory() {
        return true;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = fs::read_to_string(root.join(at.file())).unwrap_or_default();
    let line = source.lines().nth(at.line() as usize - 1).unwrap_or_default();
    let call: String = line.chars().skip(at.column() as usize - 1).collect();
    let Some((path, _)) = call.split_once('(') else { return true };
    // One in brackets begins with these.
    let is_operator =
        path.is_empty() || !path.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
    let is_layer = error.op().starts_with(char::is_uppercase);
    if is_operator || is_layer {
        return true;
    }
    let called = path.rsplit("::").next().unwrap_or_default();
    let form = called.strip_prefix(error.op());
    form.is_some_and(|form| form.is_empty() || form.starts_with('_'))
        || NAMED_OTHERWISE.contains(&called)
}

/// What is wrong with a call on a value, if anything.
fn wrong(
    runtime: &tokio::runtime::Runtime,
    name: &str,
    call: &dyn Fn(&TensorFuture) -> Vec<TensorFuture>,
    x: &TensorFuture,
) -> Vec<String> {
    let Ok(values) = catch_unwind(AssertUnwindSafe(|| call(x))) else {
        return vec!["the call panics".into()];
    };
    let mut found = Vec::new();
    for (i, y) in values.iter().enumerate() {
        let limit = Duration::from_secs(20);
        let wait =
            || runtime.block_on(async { tokio::time::timeout(limit, y.wait_to_read()).await });
        let Ok(ended) = catch_unwind(AssertUnwindSafe(wait)) else {
            found.push(format!("{i} panics when it is awaited"));
            continue;
        };
        match ended {
            Err(_) => found.push(format!("{i} hangs")),
            // What has no kernel on a GPU says so.
            Ok(Err(error))
                if error.is_kernel() && error.message().contains("has no CUDA kernel") => {}
            Ok(Err(error)) if error.is_kernel() && !FAILING_KERNELS.contains(&name) => {
                found.push(format!("{i} fails in its kernel: {error}"));
            }
            Ok(Err(error))
                if error.message().is_empty() || !is_called_at(error.location().file()) =>
            {
                found.push(format!("{i} has an error that does not say where: {error}"));
            }
            Ok(Err(error)) if !says_what_was_called(&error) => {
                found.push(format!("{i} names another op than the one that was called: {error}"))
            }
            Ok(Err(error)) if strange(error.message()) => {
                found.push(format!("{i} is told strangely: {error}"))
            }
            Ok(Err(_)) => {}
            Ok(Ok(())) if y.numel() < 10_000 => {
                let read = || {
                    runtime.block_on(async {
                        let shown = tokio::time::timeout(limit, y.display()).await;
                        let read = y.to_dtype(DType::F64).to_vec::<f64>();
                        (shown, tokio::time::timeout(limit, read).await)
                    })
                };
                match catch_unwind(AssertUnwindSafe(read)) {
                    Ok((Ok(Ok(_)), Ok(Ok(read)))) if read.len() == y.numel() => {}
                    Ok((shown, read)) => {
                        found.push(format!("{i} cannot be shown or read: {shown:?} {read:?}"))
                    }
                    Err(_) => found.push(format!("{i} panics when it is read")),
                }
            }
            Ok(Ok(())) => {}
        }
    }
    found
}

pub fn try_all(calls: &[Call], values: &[(String, TensorFuture)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut found = String::new();
    for (name, call) in calls {
        for (of, x) in values {
            for what in wrong(&runtime, name, call, x) {
                found += &format!("{name} of {of}: {what}\n");
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// Each op of the op table is a row of the op tables, which all are called, or is called by
/// its name.
pub fn no_op_is_without_nonsense(_: &Device) {
    let rows = rows::all().into_iter().map(|row| row.name);
    let mut called: BTreeSet<&str> =
        rows.chain(rows::scans().iter().map(|(name, _)| *name)).collect();
    for source in SOURCES {
        let calls = source.match_indices('(').map(|(at, _)| &source[..at]);
        called.extend(calls.filter_map(|before| {
            before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()
        }));
    }
    let mut ops = support::op_names::ops();
    ops.extend(
        rows::operations().into_iter().flat_map(|[values, _]| values).map(|n| n.to_string()),
    );
    let forgotten: Vec<&String> = ops.iter().filter(|op| !called.contains(&op[..])).collect();
    assert!(forgotten.is_empty(), "nobody calls {forgotten:?} with nonsense");
}

pub fn an_error_that_is_told_strangely_is_seen(_: &Device) {
    for text in [
        "a padding of [[4, 4], [4, 4]]",
        "0 shifts for 1 dimensions",
        "Some(3) of it",
        "a Span { start: 1 }",
    ] {
        assert!(strange(text), "{text}");
    }
    for text in [
        "1 is too many for shape [2, 1]",
        "1 shift for 2 dimensions",
        "index 1 has no place in 21 rows",
    ] {
        assert!(!strange(text), "{text}");
    }
}

pub fn nonsense_gives_values_or_errors_and_never_panics_or_hangs(device: &Device) {
    let types = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
    ];
    // Each kernel of a GPU is compiled: one type of a kind.
    let types = if device.name().starts_with("cpu") {
        &types[..]
    } else {
        &[DType::F32, DType::F16, DType::I64, DType::Bool]
    };
    let shapes: [&[usize]; 9] =
        [&[], &[0], &[3], &[1, 1], &[2, 3], &[3, 3], &[2, 0, 3], &[2, 2, 3, 3], &[1, 2, 1, 3]];
    let mut values = Vec::new();
    for &dtype in types {
        for shape in shapes {
            let n: usize = shape.iter().product();
            let x = (device.arange(0, n as i64, 1) - 1).to_dtype(dtype).reshape(shape);
            values.push((format!("{dtype} {shape:?}"), x));
        }
    }
    values.push(("NaN".into(), device.full([2, 3], f64::NAN)));
    values.push(("infinity".into(), device.full([2, 3], f64::INFINITY)));
    values.push(("9 dimensions".into(), device.ones([1; 9])));
    values.push(("64 dimensions".into(), device.ones([1; 64])));
    values.push(("300 dimensions".into(), device.ones([1; 300])));
    values.push(("a failed value".into(), device.ones([2]) + device.ones([3])));
    values.push(("nothing of large sizes".into(), device.zeros([0, 1 << 10, 4])));
    values.push(("65 dimensions".into(), device.ones([1; 65])));
    try_all(&calls(), &values);
}

pub fn values_larger_than_memory_are_refused_or_never_written(device: &Device) {
    let values = [
        ("a constant of 2^40".to_string(), device.zeros([1usize << 40])),
        ("a constant of 2^64".to_string(), device.zeros([1usize << 62, 4])),
        ("a constant of the largest sizes".to_string(), device.zeros([usize::MAX, usize::MAX, 2])),
    ];
    let calls: Vec<Call> =
        calls().into_iter().filter(|(name, _)| TRIED_ON_LARGE.contains(name)).collect();
    assert!(calls.len() >= TRIED_ON_LARGE.len());
    try_all(&calls, &values);
}
