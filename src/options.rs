//! The options of a device, as methods that take the options by value and return them.

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
