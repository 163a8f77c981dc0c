//! A machine for pickles that builds values and calls nothing.
//!
//! Source: Python's `pickletools`, protocols 2 to 5, of which this has what `torch.save` and plain
//! data need. Containers lie in one list and refer to each other by number, so they may share and
//! contain each other, and go in one step however deep they are.

use std::collections::HashMap;
use std::rc::Rc;

/// A value of a pickle.
#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    /// Bytes, and integers of more than 64 bits: nothing here reads them.
    Opaque,
    /// A function or class, as `module.name`.
    Name(Rc<str>),
    List(usize),
    Tuple(usize),
    Dict(usize),
    /// What a call of a name returns, or an instance of a class.
    Object(usize),
}

/// The values inside others.
#[derive(Default, Debug)]
pub(super) struct Values {
    pub lists: Vec<Vec<Value>>,
    pub tuples: Vec<Rc<[Value]>>,
    pub dicts: Vec<Vec<(Value, Value)>>,
    /// The name that was called, and the arguments.
    pub objects: Vec<(Value, Value)>,
    /// The values that the file keeps outside the pickle, as they are described.
    pub outside: Vec<Value>,
}

/// The name of the call that stands for a value outside the pickle.
pub(super) const OUTSIDE: &str = "a value outside the pickle";
/// Calls without arguments that make an empty dictionary. Every dictionary here keeps its order.
const DICTS: [&str; 3] = ["collections.OrderedDict", "builtins.dict", "__builtin__.dict"];

/// Runs a pickle, and returns the value that it leaves.
pub(super) fn unpickled(bytes: &[u8]) -> Result<(Value, Values), String> {
    let mut machine = Machine { rest: bytes, ..Machine::default() };
    let value = machine.run().map_err(|what| {
        format!("the pickle is broken at byte {}: {what}", bytes.len() - machine.rest.len())
    })?;
    Ok((value, machine.values))
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    /// The heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    values: Values,
}

type Done<T = ()> = Result<T, String>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Done<Value> {
        loop {
            let [op] = self.take()?;
            match op {
                // PROTO, FRAME
                0x80 => drop(self.take::<1>()?),
                0x95 => drop(self.take::<8>()?),
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.marked()?),
                b'2' => {
                    let top = self.top()?.clone();
                    self.stack.push(top);
                }

                b'N' => self.stack.push(Value::None),
                0x88 | 0x89 => self.stack.push(Value::Bool(op == 0x88)),
                b'K' => {
                    let [n] = self.take()?;
                    self.stack.push(Value::Int(n.into()));
                }
                b'M' => {
                    let n = u16::from_le_bytes(self.take()?);
                    self.stack.push(Value::Int(n.into()));
                }
                b'J' => {
                    let n = i32::from_le_bytes(self.take()?);
                    self.stack.push(Value::Int(n.into()));
                }
                0x8a => {
                    let [n] = self.take()?;
                    self.long(n.into())?;
                }
                0x8b => {
                    let n = u32::from_le_bytes(self.take()?);
                    self.long(n as usize)?;
                }
                b'G' => {
                    let x = f64::from_be_bytes(self.take()?);
                    self.stack.push(Value::Float(x));
                }
                b'X' => {
                    let n = u32::from_le_bytes(self.take()?);
                    self.text(n.into())?;
                }
                0x8c => {
                    let [n] = self.take()?;
                    self.text(n.into())?;
                }
                0x8d => {
                    let n = u64::from_le_bytes(self.take()?);
                    self.text(n)?;
                }
                // BINSTRING, SHORT_BINSTRING, BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
                b'T' | b'B' => {
                    let n = u32::from_le_bytes(self.take()?);
                    self.opaque(n.into())?;
                }
                b'U' | b'C' => {
                    let [n] = self.take()?;
                    self.opaque(n.into())?;
                }
                0x8e | 0x96 => {
                    let n = u64::from_le_bytes(self.take()?);
                    self.opaque(n)?;
                }

                b')' => self.tuple(Vec::new()),
                b't' => {
                    let items = self.marked()?;
                    self.tuple(items);
                }
                0x85..=0x87 => {
                    let n = (op - 0x84) as usize;
                    let at = self.height(n)?;
                    let items = self.stack.split_off(at);
                    self.tuple(items);
                }
                // EMPTY_LIST, EMPTY_SET
                b']' | 0x8f => self.list(Vec::new()),
                // LIST, FROZENSET
                b'l' | 0x91 => {
                    let items = self.marked()?;
                    self.list(items);
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                // APPENDS, ADDITEMS
                b'e' | 0x90 => {
                    let items = self.marked()?;
                    self.append(items)?;
                }
                b'}' => self.dict(),
                b'd' => {
                    let items = self.marked()?;
                    self.dict();
                    self.set(items)?;
                }
                b's' => {
                    let at = self.height(2)?;
                    let items = self.stack.split_off(at);
                    self.set(items)?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.set(items)?;
                }

                b'q' => {
                    let [n] = self.take()?;
                    self.put(n.into())?;
                }
                b'r' => {
                    let n = u32::from_le_bytes(self.take()?);
                    self.put(n)?;
                }
                0x94 => self.put(self.memo.len() as u32)?,
                b'h' => {
                    let [n] = self.take()?;
                    self.get(n.into())?;
                }
                b'j' => {
                    let n = u32::from_le_bytes(self.take()?);
                    self.get(n)?;
                }

                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.stack.push(Value::Name(format!("{module}.{name}").into()));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Text(module), Value::Text(name)) = (module, name) else {
                        return Err("a name that is no text".into());
                    };
                    self.stack.push(Value::Name(format!("{module}.{name}").into()));
                }
                // REDUCE, NEWOBJ
                b'R' | 0x81 => {
                    let (arguments, called) = (self.pop()?, self.pop()?);
                    self.call(called, arguments);
                }
                0x92 => {
                    let _named = self.pop()?;
                    let (arguments, called) = (self.pop()?, self.pop()?);
                    self.call(called, arguments);
                }
                // The state of an instance: attributes of a dictionary, or of what is not built.
                b'b' => drop(self.pop()?),
                b'Q' => {
                    let what = self.pop()?;
                    self.values.outside.push(what.clone());
                    self.call(Value::Name(OUTSIDE.into()), what);
                }
                other => return Err(format!("an instruction {other:#04x} that is not known")),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Done<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or("it ends")?;
        self.rest = rest;
        Ok(*taken)
    }

    fn bytes(&mut self, n: u64) -> Done<&'a [u8]> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let (taken, rest) = self.rest.split_at_checked(n).ok_or("it ends")?;
        self.rest = rest;
        Ok(taken)
    }

    fn line(&mut self) -> Done<&'a str> {
        let end = self.rest.iter().position(|b| *b == b'\n').ok_or("it ends")?;
        let line = self.bytes(end as u64 + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| "a name that is no text".into())
    }

    fn text(&mut self, n: u64) -> Done {
        let text = std::str::from_utf8(self.bytes(n)?).map_err(|_| "a text that is none")?;
        self.stack.push(Value::Text(text.into()));
        Ok(())
    }

    fn opaque(&mut self, n: u64) -> Done {
        self.bytes(n)?;
        self.stack.push(Value::Opaque);
        Ok(())
    }

    /// A whole number of `n` bytes, in two's complement.
    fn long(&mut self, n: usize) -> Done {
        let bytes = self.bytes(n as u64)?;
        self.stack.push(if n > 8 {
            Value::Opaque
        } else {
            let sign = bytes.last().map_or(0, |b| if b & 0x80 != 0 { 0xff } else { 0 });
            let mut wide = [sign; 8];
            wide[..n].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        });
        Ok(())
    }

    /// The height of the stack below its last `n` values, which are above the last mark.
    fn height(&self, n: usize) -> Done<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let at = self.stack.len().checked_sub(n).filter(|at| *at >= floor);
        at.ok_or_else(|| "a value is missing".into())
    }

    fn pop(&mut self) -> Done<Value> {
        self.height(1)?;
        self.stack.pop().ok_or_else(|| "a value is missing".into())
    }

    fn top(&self) -> Done<&Value> {
        let at = self.height(1)?;
        Ok(&self.stack[at])
    }

    /// The values above the last mark, which goes.
    fn marked(&mut self) -> Done<Vec<Value>> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn put(&mut self, at: u32) -> Done {
        let top = self.top()?.clone();
        self.memo.insert(at, top);
        Ok(())
    }

    fn get(&mut self, at: u32) -> Done {
        let value = self.memo.get(&at).ok_or("a value that it has not kept")?;
        self.stack.push(value.clone());
        Ok(())
    }

    fn tuple(&mut self, items: Vec<Value>) {
        self.stack.push(Value::Tuple(self.values.tuples.len()));
        self.values.tuples.push(items.into());
    }

    fn list(&mut self, items: Vec<Value>) {
        self.stack.push(Value::List(self.values.lists.len()));
        self.values.lists.push(items);
    }

    fn dict(&mut self) {
        self.stack.push(Value::Dict(self.values.dicts.len()));
        self.values.dicts.push(Vec::new());
    }

    fn append(&mut self, items: Vec<Value>) -> Done {
        match self.top()? {
            Value::List(at) => {
                let at = *at;
                self.values.lists[at].extend(items);
                Ok(())
            }
            // Items of an instance that is not built.
            Value::Object(_) => Ok(()),
            _ => Err("items of what is no list".into()),
        }
    }

    fn set(&mut self, items: Vec<Value>) -> Done {
        if !items.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        match self.top()? {
            Value::Dict(at) => {
                let pairs = items.as_chunks().0.iter().map(|[k, v]| (k.clone(), v.clone()));
                let at = *at;
                self.values.dicts[at].extend(pairs);
                Ok(())
            }
            Value::Object(_) => Ok(()),
            _ => Err("entries of what is no dictionary".into()),
        }
    }

    /// What a call leaves: an empty dictionary, or an object that says what was called.
    fn call(&mut self, called: Value, arguments: Value) {
        let bare = matches!(&arguments, Value::Tuple(at) if self.values.tuples[*at].is_empty());
        if bare && matches!(&called, Value::Name(name) if DICTS.contains(&&**name)) {
            return self.dict();
        }
        self.stack.push(Value::Object(self.values.objects.len()));
        self.values.objects.push((called, arguments));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_holds_itself_ends() {
        // ] q\0 h\0 a .
        let (value, values) = unpickled(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert!(matches!(value, Value::List(0)));
        assert!(matches!(values.lists[0][..], [Value::List(0)]));
    }

    #[test]
    fn deep_values_go_without_a_deep_stack() {
        let mut bytes = vec![b']'];
        bytes.extend(std::iter::repeat_n(0x85, 1_000_000));
        bytes.push(b'.');
        let (value, values) = unpickled(&bytes).unwrap();
        assert!(matches!(value, Value::Tuple(999_999)));
        drop(values);
    }

    #[test]
    fn what_is_below_a_mark_is_not_taken() {
        for broken in
            [&b"N(s."[..], b"N(a.", b"N(.", b"N(R.", b"t.", b"h\x01.", b"}(Nu.", b"Q.", b""]
        {
            assert!(unpickled(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn whole_numbers_of_any_length_have_their_sign() {
        for (bytes, n) in [
            (&b"\x8a\x00."[..], 0),
            (b"\x8a\x01\xff.", -1),
            (b"\x8a\x02\xff\x00.", 255),
            (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", i64::MIN),
            (b"J\xfe\xff\xff\xff.", -2),
        ] {
            let (value, _) = unpickled(bytes).unwrap();
            assert!(matches!(value, Value::Int(m) if m == n), "{bytes:?}: {value:?}");
        }
    }
}
