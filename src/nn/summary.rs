//! `Summary`: a module as a text, a line a part.
//!
//! `module` walks the parts. What is said of a parameter is known at once, its shape and its type:
//! no element is read, so nothing waits.

use super::parameter::Parameter;
use std::fmt;

/// A module's tree, with the shape of each weight and how many numbers there are: what
/// [`Module::summary`](super::Module::summary) gives. Its `Display` is a table, its first column
/// the names that [`Module::parameter`](super::Module::parameter) and files of weights know.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    lines: Vec<Line>,
    /// Cells that are counted, by name.
    seen: Vec<(Parameter, String)>,
    /// Of all trained and frozen parameters, each once.
    parameters: Count,
    frozen: Count,
    buffers: Count,
    lazy: usize,
}

/// A module whose parts are still to come.
pub(super) struct Open {
    line: usize,
    before: usize,
}

/// Numbers, and the bytes that they take.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    numbers: usize,
    bytes: usize,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.numbers = self.numbers.saturating_add(other.numbers);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[derive(Clone, Debug)]
struct Line {
    depth: usize,
    name: String,
    /// A module's type, or a weight's shape.
    what: String,
    count: String,
    note: String,
}

impl Summary {
    /// Numbers in all parameters, each counted once, buffers apart; of lazy ones as many as are
    /// there.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let net = nn::Linear::new(4, 2, &Device::cpu());
    /// assert_eq!(net.summary().parameters(), 4 * 2 + 2);
    /// ```
    pub fn parameters(&self) -> usize {
        self.parameters.numbers
    }

    /// The line of a module; its parts follow, and then its [end](Self::end).
    pub(super) fn begin(&mut self, name: &str, depth: usize, kind: String) -> Open {
        let (name, what) = (name.to_owned(), kind);
        let line = Line { depth, name, what, count: String::new(), note: String::new() };
        self.lines.push(line);
        Open { line: self.lines.len() - 1, before: self.parameters.numbers }
    }

    /// All parts of a module are there.
    pub(super) fn end(&mut self, module: Open) {
        self.lines[module.line].count = grouped(self.parameters.numbers - module.before);
    }

    /// The line of a parameter or a buffer.
    pub(super) fn cell(&mut self, name: String, depth: usize, cell: &Parameter, is_buffer: bool) {
        let (what, numbers, bytes) = match cell.lazy_shape() {
            Some(shape) => (shape, None, 0),
            None => {
                let value = cell.value();
                let dtype = value.dtype();
                (format!("{} {dtype}", value.shape()), Some(value.numel()), dtype.size())
            }
        };
        let count = Count {
            numbers: numbers.unwrap_or(0),
            bytes: numbers.unwrap_or(0).saturating_mul(bytes),
        };
        let frozen = !is_buffer && !cell.is_trained();
        let tied = self.seen.iter().find(|(other, _)| other.is(cell)).map(|(_, name)| name.clone());
        let note = match &tied {
            Some(other) => format!("as {other}"),
            None if is_buffer => "buffer".into(),
            None if frozen => "frozen".into(),
            None if numbers.is_none() => "lazy".into(),
            None => String::new(),
        };
        if tied.is_none() {
            self.seen.push((cell.clone(), name.clone()));
            let (all, more) = match is_buffer {
                true => (&mut self.buffers, None),
                false => (&mut self.parameters, frozen.then_some(&mut self.frozen)),
            };
            all.add(count);
            more.into_iter().for_each(|more| more.add(count));
            self.lazy += usize::from(numbers.is_none());
        }
        let count = numbers.map_or("?".into(), grouped);
        self.lines.push(Line { depth, name, what, count, note });
    }
}

/// A count, its thousands apart.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = |line: &Line| match line.depth {
            0 => line.what.clone(),
            depth => format!("{:indent$}{}", "", line.name, indent = 2 * depth),
        };
        let second = |line: &Line| if line.depth == 0 { "" } else { &line.what }.to_owned();
        let width = |of: &dyn Fn(&Line) -> String| {
            self.lines.iter().map(|line| of(line).chars().count()).max().unwrap_or(0)
        };
        let (a, b) = (width(&first), width(&second));
        let c = width(&|line: &Line| line.count.clone());
        for line in &self.lines {
            let text = format!(
                "{:a$}  {:b$}  {:>c$}  {}",
                first(line),
                second(line),
                line.count,
                line.note
            );
            writeln!(f, "{}", text.trim_end())?;
        }
        let Count { numbers, bytes } = self.parameters;
        let word = if numbers == 1 { "parameter" } else { "parameters" };
        write!(f, "{} {word}", grouped(numbers))?;
        if self.frozen.numbers > 0 {
            write!(f, " ({} frozen)", grouped(self.frozen.numbers))?;
        }
        let word = if bytes == 1 { "byte" } else { "bytes" };
        write!(f, ", {} {word}", grouped(bytes))?;
        if self.buffers.numbers > 0 {
            write!(f, "; {} numbers in buffers", grouped(self.buffers.numbers))?;
        }
        if self.lazy > 0 {
            write!(f, "; {} lazy", self.lazy)?;
        }
        Ok(())
    }
}
