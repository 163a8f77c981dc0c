//! The options of a device, as methods that take the options by value and return them; and how
//! options and other small values stand in configuration files.

use std::time::Duration;

/// A duration in nanoseconds, saturated at the largest `u64`.
pub(crate) fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// True where the environment has a device check its ops for what is not finite.
pub(crate) fn checks_finite() -> bool {
    std::env::var_os("FUTENSOR_CHECK_FINITE").is_some_and(|v| v == "1")
}

/// The setters of a device's options: a method for each named field.
macro_rules! options {
    ($of:ident; $($(#[$doc:meta])* $name:ident: $t:ty;)*) => {
        impl $of {$(
            $(#[$doc])*
            pub fn $name(mut self, $name: $t) -> $of {
                self.$name = $name;
                self
            }
        )*}
    };
}
pub(crate) use options;

#[cfg(feature = "serde")]
mod fields {
    use serde::de::{DeserializeOwned, Error};
    use serde::{Deserialize, Deserializer, Serialize};
    use std::num::NonZeroU64;
    use std::time::Duration;

    /// How a field of options is written.
    pub trait Plain: Sized {
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
    pub struct Seconds(f64);

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
    pub fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        NonZeroU64::deserialize(deserializer).map(NonZeroU64::get)
    }

    /// The value of a device in options: it stays in the program.
    pub fn stays<S: serde::Serializer, T>(_: &Option<T>, _: S) -> Result<S::Ok, S::Error> {
        let text = "a tensor in options is no part of a configuration: set it in the program";
        Err(serde::ser::Error::custom(text))
    }
}
#[cfg(feature = "serde")]
pub(crate) use fields::{Plain, at_least_one, stays};

/// A value that is written as its name.
#[cfg(feature = "serde")]
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
#[cfg(feature = "serde")]
pub(crate) use by_name;

/// Options that are written field by field, and read through their setters, which have a field's
/// name. A field that is not there keeps its default.
#[cfg(feature = "serde")]
macro_rules! configured {
    ($Of:ident; $($name:ident: $t:ty;)*) => {
        const _: () = {
            use crate::options::Plain;

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
#[cfg(feature = "serde")]
pub(crate) use configured;
