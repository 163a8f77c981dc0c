//! A template's instructions, such that nothing is done before it is paid for.
//!
//! The library counts the items of a list that it compares, and not what is in them: a list that is
//! twice in a list, thirty times over, is thirty small lists, and a thousand million items to
//! whoever compares two of them. Its lists may be lazy as well, so that a million items are made by
//! one instruction, and looked at by another. So the instructions that look into values have the
//! filters and tests of this file around them, or instead of them: those [measure](measure) what is
//! looked at, and no value is lazy for longer than one instruction.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, Serde, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::{Serialize, Serializer};
use std::iter::once;
use std::sync::Arc;

/// Names that no template has for anything.
const PAID: &str = "\0paid";
const EAGER: &str = "\0eager";
const FILTER: &str = "\0filter";
const TEST: &str = "\0test";
const ITEM: &str = "\0item";
const SLICE: &str = "\0slice";
const MAP: &str = "\0map";
pub const REMAINDER: &str = "\0remainder";

/// Filters that look at no more of their values than the library has paid, or pay themselves.
const SHALLOW_FILTERS: [&str; 9] =
    ["count", "d", "default", "first", "items", "last", "length", "list", "tojson"];

/// Tests that look at no more of a value than its kind.
const SHALLOW_TESTS: [&str; 13] = [
    "boolean",
    "defined",
    "false",
    "float",
    "integer",
    "iterable",
    "mapping",
    "none",
    "number",
    "sequence",
    "string",
    "true",
    "undefined",
];

/// Bytes of a key at most: it is looked at whenever its map is.
const KEY_MAX: usize = 1024;

fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// The instructions of a template that has been compiled, paid for.
///
/// # Errors
/// Where it does what no template has to, and what cannot be paid for.
pub fn paid<'source>(compiled: &Instructions<'source>) -> Result<Instructions<'source>, Error> {
    use Instruction::*;
    let all = || (0..).map_while(|at| compiled.get(at).map(|i| (at, i)));
    let (mut groups, mut places, mut place) = (Vec::new(), Vec::new(), 0);
    for (_, instruction) in all() {
        let own = || instruction.clone();
        let pay = || ApplyFilter(PAID, Some(1), !0);
        let group = match instruction {
            Eq | Ne | Gt | Gte | Lt | Lte | In | CompareAndPreserve(_) | StringConcat => {
                vec![pay(), Swap, pay(), Swap, own()]
            }
            Add | Mul => vec![own(), ApplyFilter(EAGER, Some(1), !0)],
            Rem => vec![ApplyFilter(REMAINDER, Some(2), !0)],
            GetItem => vec![ApplyFilter(ITEM, Some(2), !0)],
            Slice => vec![ApplyFilter(SLICE, Some(4), !0)],
            BuildMap(pairs) if *pairs > 0 => {
                let values = u16::try_from(2 * pairs).map_err(|_| wrong("a map as large"))?;
                vec![ApplyFilter(MAP, Some(values), !0)]
            }
            ApplyFilter(name, count, _) if !SHALLOW_FILTERS.contains(name) => {
                counted(name, FILTER, *count, ApplyFilter)?
            }
            PerformTest(name, count, _) if !SHALLOW_TESTS.contains(name) => {
                counted(name, TEST, *count, PerformTest)?
            }
            // What a loop is asked is compared with what it was asked before.
            CallMethod("changed", count) if *count != Some(1) => match count {
                Some(2) => vec![pay(), own()],
                _ => return Err(wrong("a loop is asked whether several values have changed")),
            },
            MergeKwargs(parts) | UnpackLists(parts) => match parts {
                1 => vec![pay(), own()],
                2 => vec![pay(), Swap, pay(), Swap, own()],
                _ => return Err(wrong("a call with arguments from so many places")),
            },
            _ => vec![own()],
        };
        places.push(place);
        place += group.len() as u32;
        groups.push(group);
    }
    places.push(place);
    let mut made = Instructions::new(compiled.name(), compiled.source());
    for ((at, _), group) in all().zip(groups) {
        let line = compiled.get_line(at).map_or(0, |line| line as u16);
        for mut instruction in group {
            if let Jump(to)
            | JumpIfFalse(to)
            | JumpIfFalseOrPop(to)
            | JumpIfTrueOrPop(to)
            | Iterate(to)
            | BuildMacro(_, to, _) = &mut instruction
            {
                *to = places[*to as usize];
            }
            made.add_with_line(instruction, line);
        }
    }
    Ok(made)
}

/// What applies a filter or a test by way of the one that pays, which is told the name, behind
/// so many arguments or as many as the top of them says.
fn counted<'a>(
    name: &'a str,
    way: &'static str,
    count: Option<u16>,
    make: fn(&'a str, Option<u16>, u8) -> Instruction<'a>,
) -> Result<Vec<Instruction<'a>>, Error> {
    use Instruction::{Add, LoadConst, Swap};
    let name = LoadConst(Value::from(name));
    Ok(match count {
        Some(n) => {
            let n = n.checked_add(1).ok_or_else(|| wrong("too many arguments"))?;
            vec![name, make(way, Some(n), !0)]
        }
        None => vec![name, Swap, LoadConst(1.into()), Add, make(way, None, !0)],
    })
}

/// Adds what the instructions of this file ask for.
pub fn add_to(environment: &mut Environment) {
    environment.add_filter(PAID, |state: &State, value: Value| -> Result<Value, Error> {
        // A text that a filter is given is paid for.
        if value.as_str().is_none() {
            measure(state, &value)?;
        }
        Ok(value)
    });
    environment.add_filter(EAGER, |state: &State, value: Value| eager(state, value));
    environment.add_filter(ITEM, item);
    environment.add_filter(SLICE, slice);
    environment.add_filter(MAP, map);
    environment.add_filter(FILTER, |state: &mut State, given: Rest<ValueOrKwargs>| {
        let (name, given) = named(state, given)?;
        state.apply_filter(&name, &given)
    });
    environment.add_test(TEST, |state: &mut State, given: Rest<ValueOrKwargs>| {
        let (name, given) = named(state, given)?;
        state.perform_test(&name, &given)
    });
    // Lazy where the library has them.
    environment.add_filter("zip", |state: &State, list: Value, others: Rest<Value>| {
        eager(state, minijinja::filters::zip(state, list, others)?)
    });
    environment.add_filter("reverse", |state: &State, value: Value| {
        eager(state, minijinja::filters::reverse(&value)?)
    });
    environment.add_filter("chain", chain);
    environment.add_filter("split", split);
    environment.add_filter("lines", |state: &State, text: &Value| {
        room(state, parts(text.as_str().unwrap_or_default(), Some("\n")))?;
        minijinja::filters::lines(text)
    });
    environment.add_function("namespace", |state: &State, of: Option<ValueOrKwargs>| {
        state.consume_fuel(of.as_ref().and_then(|of| of.len()).unwrap_or(0) as u64)?;
        minijinja::functions::namespace(of)
    });
    // They show all that there is.
    environment.remove_global("debug");
    environment.remove_filter("pprint");
}

/// Pays for all of a value before it is looked at: a list that is twice in a list is looked at
/// twice. Says how many values that are.
pub fn measure(state: &State, value: &Value) -> Result<u64, Error> {
    indented(state, value, 0, 0)
}

/// The same of a value that is written with so many spaces before each part, and so many more a
/// level.
pub fn indented(state: &State, value: &Value, before: u64, more: u64) -> Result<u64, Error> {
    let text = value.as_str().map_or(0, str::len) as u64;
    state.consume_fuel(1 + text / 16 + before / 64)?;
    let (mut count, before) = (1, before.saturating_add(more));
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                count += indented(state, &item, before, more)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                count += indented(state, &key, 0, 0)?;
                count += indented(state, &value.get_item(&key)?, before, more)?;
            }
        }
        _ => {}
    }
    Ok(count)
}

/// What a filter or a test is given, paid for, and its name. Each argument may be looked at for
/// each part of the first value, and each of its characters for each of that one's.
fn named(state: &State, given: Rest<ValueOrKwargs>) -> Result<(String, Vec<Value>), Error> {
    let mut given: Vec<Value> = given.0.into_iter().map(ValueOrKwargs::into_value).collect();
    let name = given.pop().and_then(|name| name.as_str().map(String::from)).unwrap_or_default();
    let Some((first, others)) = given.split_first() else { return Ok((name, given)) };
    let text = |value: &Value| value.as_str().map_or(0, str::len) as u64;
    let parts = if first.as_str().is_some() { 1 } else { measure(state, first)? };
    for other in others {
        let each = measure(state, other)? + text(other) / 64;
        state.consume_fuel(parts.saturating_mul(each))?;
        if name == "trim" {
            state.consume_fuel(text(first).saturating_mul(text(other)) / 64)?;
        }
    }
    Ok((name, given))
}

/// Fails where there is no fuel for so many items, each of which the library has half a unit for
/// when they are made.
pub fn room(state: &State, items: usize) -> Result<(), Error> {
    match state.fuel_levels() {
        Some((_, left)) if items as u64 / 2 > left => state.consume_fuel(left + 1),
        _ => Ok(()),
    }
}

/// Parts of a text between these, or between spaces.
pub fn parts(text: &str, by: Option<&str>) -> usize {
    by.map_or_else(|| text.split_whitespace().count(), |by| text.matches(by).count()) + 1
}

fn split(
    state: &State,
    text: &Value,
    by: Option<Arc<str>>,
    most: Option<i64>,
) -> Result<Value, Error> {
    room(state, parts(text.as_str().unwrap_or_default(), by.as_deref()))?;
    minijinja::filters::split(text, by, most)
}

/// A list's items, made now. What is no list is as it is.
fn eager(state: &State, value: Value) -> Result<Value, Error> {
    let lazy = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && value.downcast_object_ref::<Vec<Value>>().is_none()
        && value.downcast_object_ref::<Tuple>().is_none();
    if lazy { Ok(Value::from(items(state, &value)?)) } else { Ok(value) }
}

fn items(state: &State, list: &Value) -> Result<Vec<Value>, Error> {
    let mut made = Vec::new();
    for item in list.try_iter()? {
        room(state, made.len() + 1)?;
        made.push(item);
    }
    Ok(made)
}

/// `value[key]`.
fn item(state: &State, value: &Value, key: &Value) -> Result<Value, Error> {
    measure(state, key)?;
    if value.kind() == ValueKind::Iterable {
        state.consume_fuel(value.len().unwrap_or(0) as u64)?;
    }
    value.get_item(key)
}

/// `value[start:stop:step]`.
fn slice(
    state: &State,
    value: &Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(wrong("a slice in steps of 0"));
    }
    let of = |length: usize| {
        let (length, back) = (length as i64, step < 0);
        let (first, last) = if back { (-1, length - 1) } else { (0, length) };
        let place = |at: Option<i64>, default: i64| {
            at.map_or(default, |at| if at < 0 { at + length } else { at }.clamp(first, last))
        };
        let (start, stop) = if back {
            (place(start, last), place(stop, first))
        } else {
            (place(start, first), place(stop, last))
        };
        let steps = (stop - start).signum() == step.signum();
        let count =
            if steps { ((stop - start).abs() - 1) / step.abs().min(length + 1) + 1 } else { 0 };
        (0..count).map(move |k| (start + k * step) as usize)
    };
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        return Ok(of(characters.len()).map(|k| characters[k]).collect::<String>().into());
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = items(state, value)?;
            state.consume_fuel(items.len() as u64 / 4)?;
            let some: Vec<Value> = of(items.len()).map(|k| items[k].clone()).collect();
            Ok(match value.downcast_object_ref::<Tuple>() {
                Some(_) => Value::from(Tuple::from(some)),
                None => Value::from(some),
            })
        }
        kind => Err(wrong(format!("a slice of a value of type {kind}"))),
    }
}

/// A map of keys and values in turn.
fn map(pairs: Rest<Value>) -> Result<Value, Error> {
    for key in pairs.0.iter().step_by(2) {
        let simple = key.as_str().map_or(key.as_object().is_none(), |key| key.len() <= KEY_MAX);
        if !simple {
            return Err(wrong(format!("a key is a number or a text of {KEY_MAX} bytes at most")));
        }
    }
    Ok(Value::from(Serde(Pairs(pairs.0))))
}

/// Keys and values in turn: the last of a key counts.
struct Pairs(Vec<Value>);

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.chunks(2).map(|pair| (&pair[0], &pair[1])))
    }
}

/// The library's, whose lists and maps are lazy.
fn chain(state: &State, list: Value, others: Rest<Value>) -> Result<Value, Error> {
    let all: Vec<Value> = once(list).chain(others.0).collect();
    if all.iter().all(|value| value.kind() == ValueKind::Map) {
        let mut pairs = Vec::new();
        for map in &all {
            for key in map.try_iter()? {
                state.consume_fuel(1)?;
                let value = map.get_item(&key)?;
                pairs.extend([key, value]);
            }
        }
        return Ok(Value::from(Serde(Pairs(pairs))));
    }
    let mut made = Vec::new();
    for list in &all {
        for item in list.try_iter()? {
            room(state, made.len() + 1)?;
            made.push(item);
        }
    }
    Ok(Value::from(made))
}
