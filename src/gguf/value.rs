//! Metadata: typed values by key, with reading and writing.

use super::source::Source;
use std::collections::BTreeMap;
use std::io::Read;

/// A model's settings, by key.
pub type Metadata = BTreeMap<String, Value>;

/// The limit of nested arrays: deeper than files nest them.
const DEPTH_MAX: usize = 4;

macro_rules! values {
    ($($code:literal $Variant:ident $t:ty, $doc:literal;)*) => {
        /// A value of a file's metadata.
        ///
        /// ```
        /// use futensor::gguf::Value;
        /// assert_eq!(Value::from(7u32).as_u64(), Some(7));
        /// assert_eq!(Value::from("llama").as_str(), Some("llama"));
        /// assert_eq!(Value::from(0.5f32).as_f64(), Some(0.5));
        /// assert_eq!(Value::from(-1i32).as_u64(), None);
        /// ```
        #[derive(Clone, PartialEq, Debug)]
        pub enum Value {
            $(#[doc = $doc] $Variant($t),)*
            /// Several of one type.
            Array(Array),
        }

        /// Several values of one type.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Array {
            $(#[doc = $doc] $Variant(Vec<$t>),)*
            /// Arrays.
            Array(Vec<Array>),
        }

        $(
            impl From<$t> for Value {
                fn from(x: $t) -> Value {
                    Value::$Variant(x)
                }
            }

            impl From<Vec<$t>> for Value {
                fn from(x: Vec<$t>) -> Value {
                    Value::Array(Array::$Variant(x))
                }
            }
        )*

        impl Value {
            pub(super) fn read(from: &mut Source<impl Read>, code: u32) -> Result<Value, String> {
                match code {
                    $($code => Ok(Value::$Variant(<$t>::read(from)?)),)*
                    ARRAY => Ok(Value::Array(Array::read(from, 0)?)),
                    other => Err(unknown(other)),
                }
            }

            pub(super) fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Value::$Variant(x) => {
                        to.extend(u32::to_le_bytes($code));
                        x.write(to);
                    })*
                    Value::Array(array) => {
                        to.extend(ARRAY.to_le_bytes());
                        array.write(to);
                    }
                }
            }
        }

        impl Array {
            fn read(from: &mut Source<impl Read>, depth: usize) -> Result<Array, String> {
                let (code, count) = (u32::read(from)?, u64::read(from)?);
                match code {
                    $($code => Ok(Array::$Variant(from.several(count, <$t>::LEAST, <$t>::read)?)),)*
                    ARRAY if depth < DEPTH_MAX => {
                        Ok(Array::Array(from
                            .several(count, 12, |from| Array::read(from, depth + 1))?))
                    }
                    ARRAY => Err("arrays are nested too deep".into()),
                    other => Err(unknown(other)),
                }
            }

            fn write(&self, to: &mut Vec<u8>) {
                let head = |to: &mut Vec<u8>, code: u32, count: usize| {
                    to.extend(code.to_le_bytes());
                    to.extend((count as u64).to_le_bytes());
                };
                match self {
                    $(Array::$Variant(all) => {
                        head(to, $code, all.len());
                        all.iter().for_each(|x| x.write(to));
                    })*
                    Array::Array(all) => {
                        head(to, ARRAY, all.len());
                        all.iter().for_each(|x| x.write(to));
                    }
                }
            }

            /// The number of values.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$Variant(all) => all.len(),)*
                    Array::Array(all) => all.len(),
                }
            }
        }
    };
}

/// The type of arrays.
const ARRAY: u32 = 9;

values! {
    0 U8 u8, "Unsigned, 8 bits.";
    1 I8 i8, "Signed, 8 bits.";
    2 U16 u16, "Unsigned, 16 bits.";
    3 I16 i16, "Signed, 16 bits.";
    4 U32 u32, "Unsigned, 32 bits.";
    5 I32 i32, "Signed, 32 bits.";
    6 F32 f32, "A 32-bit float.";
    7 Bool bool, "A truth value.";
    8 String String, "Text.";
    10 U64 u64, "Unsigned, 64 bits.";
    11 I64 i64, "Signed, 64 bits.";
    12 F64 f64, "A 64-bit float.";
}

fn unknown(code: u32) -> String {
    format!("a value of type {code}, which this reader does not know")
}

impl From<&str> for Value {
    fn from(x: &str) -> Value {
        Value::String(x.into())
    }
}

impl Value {
    /// A non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().and_then(|x| x.try_into().ok())
    }

    /// An integer of any width.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128().and_then(|x| x.try_into().ok())
    }

    fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// A float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(x) = *self { Some(x) } else { None }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(x) = self { Some(x) } else { None }
    }

    /// Several strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        if let Value::Array(Array::String(all)) = self { Some(all) } else { None }
    }

    /// Several values of one type.
    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(all) = self { Some(all) } else { None }
    }
}

impl Array {
    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A value as the bytes of a file.
pub(super) trait Bytes: Sized {
    /// The smallest number of bytes of a value in a file.
    const LEAST: u64;
    fn read(from: &mut Source<impl Read>) -> Result<Self, String>;
    fn write(&self, to: &mut Vec<u8>);
}

macro_rules! bytes {
    ($($t:ty)*) => {$(
        impl Bytes for $t {
            const LEAST: u64 = size_of::<$t>() as u64;
            fn read(from: &mut Source<impl Read>) -> Result<$t, String> {
                Ok(<$t>::from_le_bytes(from.bytes()?))
            }
            fn write(&self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }
        }
    )*};
}
bytes! { u8 i8 u16 i16 u32 i32 f32 u64 i64 f64 }

impl Bytes for bool {
    const LEAST: u64 = 1;
    fn read(from: &mut Source<impl Read>) -> Result<bool, String> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{other} is not a bool")),
        }
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }
}

impl Bytes for String {
    const LEAST: u64 = 8;
    fn read(from: &mut Source<impl Read>) -> Result<String, String> {
        let length = u64::read(from)?;
        let text = from.several(length, 1, u8::read)?;
        String::from_utf8(text).map_err(|e| format!("a string that is not UTF-8: {e}"))
    }
    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        to.extend(self.as_bytes());
    }
}
