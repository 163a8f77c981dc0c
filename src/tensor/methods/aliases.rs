//! PyTorch's and NumPy's names for the methods of the op tables, so that a search of the
//! documentation finds them.

/// Adds the alias of a method, if its name has one.
macro_rules! aliased {
    (neg $($method:tt)*) => { #[doc(alias = "negative")] $($method)* };
    (abs $($method:tt)*) => { #[doc(alias = "absolute")] $($method)* };
    (sign $($method:tt)*) => { #[doc(alias = "sgn")] $($method)* };
    (recip $($method:tt)*) => { #[doc(alias = "reciprocal")] $($method)* };
    (log $($method:tt)*) => { #[doc(alias = "ln")] $($method)* };
    (asin $($method:tt)*) => { #[doc(alias = "arcsin")] $($method)* };
    (acos $($method:tt)*) => { #[doc(alias = "arccos")] $($method)* };
    (atan $($method:tt)*) => { #[doc(alias = "arctan")] $($method)* };
    (asinh $($method:tt)*) => { #[doc(alias = "arcsinh")] $($method)* };
    (acosh $($method:tt)*) => { #[doc(alias = "arccosh")] $($method)* };
    (atanh $($method:tt)*) => { #[doc(alias = "arctanh")] $($method)* };
    (atan2 $($method:tt)*) => { #[doc(alias = "arctan2")] $($method)* };
    (sigmoid $($method:tt)*) => { #[doc(alias = "expit")] $($method)* };
    (silu $($method:tt)*) => { #[doc(alias = "swish")] $($method)* };
    (round $($method:tt)*) => { #[doc(alias = "rint")] $($method)* };
    (trunc $($method:tt)*) => { #[doc(alias = "fix")] $($method)* };
    (sub $($method:tt)*) => { #[doc(alias = "subtract")] $($method)* };
    (mul $($method:tt)*) => { #[doc(alias = "multiply")] $($method)* };
    (div $($method:tt)*) => { #[doc(alias("divide", "true_divide"))] $($method)* };
    (pow $($method:tt)*) => { #[doc(alias = "power")] $($method)* };
    (remainder $($method:tt)*) => { #[doc(alias = "mod")] $($method)* };
    (floor_divide $($method:tt)*) => { #[doc(alias = "floordiv")] $($method)* };
    (eq $($method:tt)*) => { #[doc(alias = "equal")] $($method)* };
    (ne $($method:tt)*) => { #[doc(alias = "not_equal")] $($method)* };
    (lt $($method:tt)*) => { #[doc(alias = "less")] $($method)* };
    (le $($method:tt)*) => { #[doc(alias = "less_equal")] $($method)* };
    (gt $($method:tt)*) => { #[doc(alias = "greater")] $($method)* };
    (ge $($method:tt)*) => { #[doc(alias = "greater_equal")] $($method)* };
    (max $($method:tt)*) => { #[doc(alias = "amax")] $($method)* };
    (min $($method:tt)*) => { #[doc(alias = "amin")] $($method)* };
    (mean $($method:tt)*) => { #[doc(alias = "average")] $($method)* };
    ($other:ident $($method:tt)*) => { $($method)* };
}
pub(crate) use aliased;
