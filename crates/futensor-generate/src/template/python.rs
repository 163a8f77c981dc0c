//! What templates expect of Python: its JSON, its `%`, its dates.

use super::paid::{indented, measure, room};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// How `json.dumps` writes.
struct Style {
    ascii: bool,
    indent: Option<String>,
    between: String,
    behind_key: String,
    sorted: bool,
}

/// As `transformers` has it: `json.dumps`, and nothing is hidden from HTML.
pub fn tojson(
    state: &mut State,
    value: &Value,
    ascii: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let named = |name: &str| kwargs.get::<Option<Value>>(name).map(|v| v.filter(|v| !v.is_none()));
    let indent = match named("indent")? {
        None => None,
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(String::from),
        Some(indent) => {
            // `True` is one space.
            let width = i64::try_from(indent.clone()).unwrap_or(indent.is_true().into());
            // Written out by each part, and paid for before.
            indented(state, value, 0, width.max(0) as u64)?;
            Some(" ".repeat(usize::try_from(width).unwrap_or(0).min(1 << 16)))
        }
    };
    indented(state, value, 0, indent.as_ref().map_or(0, String::len) as u64)?;
    let (between, behind_key) = match named("separators")? {
        Some(both) => {
            let part = |k: usize| Ok::<_, Error>(both.get_item(&k.into())?.to_string());
            let (between, behind_key) = (part(0)?, part(1)?);
            // Each is written for each part.
            let parts = measure(state, value)?;
            state.consume_fuel(parts * (between.len() + behind_key.len()) as u64 / 64)?;
            (between, behind_key)
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let ascii = ascii.map_or_else(|| named("ensure_ascii"), |ascii| Ok(Some(ascii)))?;
    let sorted = named("sort_keys")?.is_some_and(|sorted| sorted.is_true());
    let ascii = ascii.is_some_and(|ascii| ascii.is_true());
    kwargs.assert_all_used()?;
    let style = Style { ascii, indent, between, behind_key, sorted };
    let mut text = String::new();
    write(&mut text, value, &style, 0)?;
    room(state, text.len() / 32)?;
    Ok(Value::from_safe_string(text))
}

fn write(to: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    let line = |to: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            to.push('\n');
            (0..depth).for_each(|_| to.push_str(indent));
        }
    };
    match value.kind() {
        ValueKind::None => to.push_str("null"),
        ValueKind::Bool => to.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => to.push_str(&number(value)),
        ValueKind::String => string(to, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            to.push('[');
            let mut any = false;
            for item in value.try_iter()? {
                if any {
                    to.push_str(&style.between);
                }
                any = true;
                line(to, depth + 1);
                write(to, &item, style, depth + 1)?;
            }
            if any {
                line(to, depth);
            }
            to.push(']');
        }
        ValueKind::Map => {
            to.push('{');
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorted {
                keys.sort();
            }
            for (k, key) in keys.iter().enumerate() {
                if k > 0 {
                    to.push_str(&style.between);
                }
                line(to, depth + 1);
                match key.kind() {
                    ValueKind::String => {
                        string(to, key.as_str().unwrap_or_default(), style.ascii);
                    }
                    _ => {
                        to.push('"');
                        write(to, key, style, depth)?;
                        to.push('"');
                    }
                }
                to.push_str(&style.behind_key);
                write(to, &value.get_item(key)?, style, depth + 1)?;
            }
            if !keys.is_empty() {
                line(to, depth);
            }
            to.push('}');
        }
        kind => return Err(wrong(format!("a value of type {kind} is not JSON"))),
    }
    Ok(())
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) if x.is_nan() => "NaN".into(),
        Ok(x) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(x) => repr(x),
        Err(_) => value.to_string(),
    }
}

/// As Python shows a float.
fn repr(x: f64) -> String {
    let text = format!("{x:?}");
    if x != 0.0 && x.abs() >= 1e-5 && x.abs() < 1e-4 {
        let text = format!("{x:e}");
        return exponent(&text);
    }
    exponent(&text)
}

/// With a sign, and two digits at least.
fn exponent(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once('e') else { return text.to_owned() };
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{}e{sign}{size:0>2}", digits.strip_suffix(".0").unwrap_or(digits))
}

fn string(to: &mut String, text: &str, ascii: bool) {
    to.push('"');
    for c in text.chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\u{8}' => to.push_str("\\b"),
            '\u{c}' => to.push_str("\\f"),
            c if c < ' ' || ascii && !(' '..='~').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(to, "\\u{unit:04x}");
                }
            }
            c => to.push(c),
        }
    }
    to.push('"');
}

/// `left % right`: of a text, its fields filled; of a number, what is over.
pub fn remainder(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    let Some(text) = left.as_str() else { return over(left, right) };
    let (own, parts) = (text.len() as u64, measure(state, right)?);
    state.consume_fuel(own / 64)?;
    // A list is one value, a tuple is many.
    let tuple = right.downcast_object_ref::<minijinja::value::Tuple>().is_some();
    let given: Vec<Value> = if tuple { right.try_iter()?.collect() } else { vec![right.clone()] };
    let (mut made, mut rest, mut next) = (String::new(), text, given.iter());
    while let Some(at) = rest.find('%') {
        made.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let flags = rest.len() - rest.trim_start_matches(['-', '0', '+', ' ']).len();
        let (flags, width) = rest.split_at(flags);
        let digits = width.len() - width.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (width, mut kind) = width.split_at(digits);
        let mut precision = None;
        if let Some(after) = kind.strip_prefix('.') {
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            precision = Some(&after[..digits]);
            kind = &after[digits..];
        }
        let size = |text: &str| match text {
            "" => Ok(0),
            text => text
                .parse::<usize>()
                .ok()
                .filter(|&n| n < 10_000)
                .ok_or_else(|| wrong("a format as wide as that")),
        };
        let (width, precision) = (size(width)?, precision.map(size).transpose()?);
        let letter = kind.chars().next().ok_or_else(|| wrong("a format without a kind"))?;
        rest = &kind[letter.len_utf8()..];
        if letter == '%' {
            made.push('%');
            continue;
        }
        let value = next.next().ok_or_else(|| wrong("not enough values for the format"))?;
        // It may be as large as all of them.
        state.consume_fuel(parts + width as u64 / 64)?;
        let float = || f64::try_from(value.clone()).map_err(|_| wrong("no number for a format"));
        let whole = || match value.is_integer() {
            true => i64::try_from(value.clone()).map_err(|_| wrong("no number for a format")),
            false => float().map(|x| x as i64),
        };
        let plain = match letter {
            's' => value.to_string().chars().take(precision.unwrap_or(usize::MAX)).collect(),
            'r' => format!("{value:?}"),
            'd' | 'i' => whole()?.to_string(),
            'x' => format!("{:x}", whole()?),
            'f' => format!("{:.*}", precision.unwrap_or(6), float()?),
            other => return Err(wrong(format!("the format %{other} is not known"))),
        };
        let plain = match flags.contains('+') && "dif".contains(letter) && !plain.starts_with('-') {
            true => format!("+{plain}"),
            false => plain,
        };
        let lack = width.saturating_sub(plain.chars().count());
        if flags.contains('-') {
            made.push_str(&plain);
            made.extend(std::iter::repeat_n(' ', lack));
        } else if flags.contains('0') && "difx".contains(letter) {
            let digits = plain.trim_start_matches(['-', '+']);
            made.push_str(&plain[..plain.len() - digits.len()]);
            made.extend(std::iter::repeat_n('0', lack));
            made.push_str(digits);
        } else {
            made.extend(std::iter::repeat_n(' ', lack));
            made.push_str(&plain);
        }
    }
    if next.next().is_some() && right.kind() != ValueKind::Map {
        return Err(wrong("more values than the format has"));
    }
    made.push_str(rest);
    room(state, made.len() / 32)?;
    Ok(made.into())
}

/// What is over of a division, of its right side's sign.
fn over(left: &Value, right: &Value) -> Result<Value, Error> {
    let zero = || wrong("a remainder of a division by zero");
    if left.is_integer() && right.is_integer() {
        let (a, b) = (i64::try_from(left.clone())?, i64::try_from(right.clone())?);
        let over = a.checked_rem(b).ok_or_else(zero)?;
        return Ok(if over != 0 && (over < 0) != (b < 0) { over + b } else { over }.into());
    }
    let (a, b) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    if b == 0.0 {
        return Err(zero());
    }
    let over = a % b;
    Ok(if over != 0.0 && (over < 0.0) != (b < 0.0) { over + b } else { over }.into())
}

/// The time now as a format has it; in UTC.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    strftime(format, now.as_secs())
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Seconds since 1970 as a format has them.
pub fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    if format.len() > 256 {
        return Err(wrong("a format of a date as long as that"));
    }
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut of_year) = (1970, days);
    while of_year >= 365 + u64::from(leap(year)) {
        of_year -= 365 + u64::from(leap(year));
        year += 1;
    }
    let (mut month, mut day) = (0, of_year);
    let length = |month: usize| match month {
        1 => 28 + u64::from(leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    while day >= length(month) {
        day -= length(month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = (days + 4) % 7;
    let twelve = (hour + 11) % 12 + 1;
    let mut made = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        let mut kind = rest.next().unwrap_or('%');
        let short = kind == '-';
        if short {
            kind = rest.next().unwrap_or('%');
        }
        let mut padded = |n: u64, width: usize| match short {
            true => made.push_str(&n.to_string()),
            false => made.push_str(&format!("{n:0width$}")),
        };
        match kind {
            'd' => padded(day + 1, 2),
            'm' => padded(month as u64 + 1, 2),
            'y' => padded(year % 100, 2),
            'Y' => padded(year, 4),
            'H' => padded(hour, 2),
            'I' => padded(twelve, 2),
            'M' => padded(minute, 2),
            'S' => padded(second, 2),
            'j' => padded(of_year + 1, 3),
            'w' => padded(weekday, 1),
            'u' => padded((weekday + 6) % 7 + 1, 1),
            'e' => made.push_str(&format!("{:>2}", day + 1)),
            'a' => made.push_str(&DAYS[weekday as usize][..3]),
            'A' => made.push_str(DAYS[weekday as usize]),
            'b' | 'h' => made.push_str(&MONTHS[month][..3]),
            'B' => made.push_str(MONTHS[month]),
            'p' => made.push_str(if hour < 12 { "AM" } else { "PM" }),
            'F' => made.push_str(&strftime("%Y-%m-%d", seconds)?),
            'T' => made.push_str(&strftime("%H:%M:%S", seconds)?),
            'R' => made.push_str(&strftime("%H:%M", seconds)?),
            // A time without a zone has neither its name nor its distance.
            'Z' | 'z' => {}
            '%' => made.push('%'),
            other => return Err(wrong(format!("%{other} of a date is not known"))),
        }
    }
    Ok(made)
}
