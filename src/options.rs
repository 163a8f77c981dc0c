//! What can be set of a device, by methods that take it and give it back.

/// What can be set of a device's options: a method for each field that is named.
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
