//! How small values stand in configuration files of any format that `serde` has: by their names, or
//! field by field.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use std::num::NonZeroU64;
use std::time::Duration;

/// How a field of options is written.
pub(crate) trait Plain: Sized {
    type As: Serialize + DeserializeOwned;
    /// `None` where it is left out.
    fn written(&self) -> Option<Self::As>;
    fn read(from: Self::As) -> Self;
}

macro_rules! as_themselves {
    ($($t:ty)*) => {$(
        impl Plain for $t {
            type As = $t;
            fn written(&self) -> Option<$t> {
                Some(*self)
            }
            fn read(from: $t) -> $t {
                from
            }
        }
    )*};
}
as_themselves! { bool i32 u64 usize }

impl Plain for Duration {
    type As = Seconds;
    fn written(&self) -> Option<Seconds> {
        Some(Seconds(self.as_secs_f64()))
    }
    fn read(from: Seconds) -> Duration {
        // More than there can be has no end, as `Duration::MAX` has none.
        Duration::try_from_secs_f64(from.0).unwrap_or(Duration::MAX)
    }
}

impl<T: Plain> Plain for Option<T> {
    type As = T::As;
    fn written(&self) -> Option<T::As> {
        self.as_ref().and_then(T::written)
    }
    fn read(from: T::As) -> Option<T> {
        Some(T::read(from))
    }
}

/// A duration in seconds.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Seconds(f64);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        match seconds >= 0.0 {
            true => Ok(Seconds(seconds)),
            false => Err(D::Error::custom(format!("a duration of {seconds} seconds"))),
        }
    }
}

/// A count of steps, of which there is at least one.
pub(crate) fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    NonZeroU64::deserialize(deserializer).map(NonZeroU64::get)
}

/// A value that is written as its name.
macro_rules! by_name {
    ($Of:ty, $name:expr, $named:expr, $expected:literal) => {
        impl serde::Serialize for $Of {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let name: fn(&$Of) -> Result<&str, String> = $name;
                serializer.serialize_str(name(self).map_err(serde::ser::Error::custom)?)
            }
        }
        impl<'de> serde::Deserialize<'de> for $Of {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$Of, D::Error> {
                struct Named;
                impl serde::de::Visitor<'_> for Named {
                    type Value = $Of;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<$Of, E> {
                        ($named)(name).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Named)
            }
        }
    };
}
pub(crate) use by_name;

/// Options that are written field by field, and read through their setters, which have a field's
/// name. A field that is not there keeps its default.
macro_rules! configured {
    ($Of:ident; $($name:ident: $t:ty;)*) => {
        const _: () = {
            use crate::configuration::Plain;

            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Fields {
                $(
                    #[serde(skip_serializing_if = "Option::is_none")]
                    $name: Option<<$t as Plain>::As>,
                )*
            }
            impl serde::Serialize for $Of {
                fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    let fields = Fields { $($name: self.$name.written(),)* };
                    fields.serialize(to)
                }
            }
            impl<'de> serde::Deserialize<'de> for $Of {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$Of, D::Error> {
                    let fields = Fields::deserialize(from)?;
                    let mut options = $Of::default();
                    $(if let Some(value) = fields.$name {
                        options = options.$name(<$t as Plain>::read(value));
                    })*
                    Ok(options)
                }
            }
        };
    };
}
pub(crate) use configured;
