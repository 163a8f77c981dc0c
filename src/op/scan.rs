//! The table of scans along a dimension: one row per scan.

/// Rows of scans: `name: Variant { columns }`.
///
/// `cpu` combines a value with the result so far, in a type that implements the host kernels'
/// `Running`; `cuda` does so in `A`, the compute type of the scan. `nothing` is the initial value.
/// `gradient` names a rule of `ops/order/scan`, or is `positions` if the method gathers values by
/// positions, which then carry the gradient. A GPU combines in any order, so the operation must be
/// associative. Floats are scanned in their type, integers and bool in int64.
macro_rules! for_each_scan {
    ($callback:ident) => {
        $callback! {
            cumsum: Sum {
                gradient: sums,
                nothing: ZERO, cpu: |a, b| a.plus(b),
                cuda_nothing: "A(0)", cuda: "add(a, b)",
            }
            cumprod: Product {
                gradient: products,
                nothing: ONE, cpu: |a, b| a.times(b),
                cuda_nothing: "A(1)", cuda: "mul(a, b)",
            }
            cummax: Max {
                gradient: positions,
                nothing: LOWEST, cpu: |a, b| a.larger(b),
                cuda_nothing: "lowest(A())", cuda: "maximum(a, b)",
            }
            cummin: Min {
                gradient: positions,
                nothing: HIGHEST, cpu: |a, b| a.smaller(b),
                cuda_nothing: "highest(A())", cuda: "minimum(a, b)",
            }
        }
    };
}
pub(crate) use for_each_scan;

macro_rules! scan_enum {
    ($($name:ident: $Variant:ident {
        gradient: $gradient:ident,
        nothing: $nothing:ident, cpu: |$a:ident, $b:ident| $e:expr,
        cuda_nothing: $cuda_nothing:literal, cuda: $cuda:literal,
    })*) => {
        /// A scan along a dimension.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Scan { $($Variant),* }

        #[allow(dead_code)] // Read by devices and tests.
        impl Scan {
            /// Every row, in the order of the table.
            pub const ALL: &'static [Scan] = &[$(Scan::$Variant),*];
            /// The method's name.
            pub const fn name(self) -> &'static str {
                match self { $(Scan::$Variant => stringify!($name)),* }
            }
            /// The combining operation and the initial value, as CUDA C.
            pub const fn cuda(self) -> (&'static str, &'static str) {
                match self { $(Scan::$Variant => ($cuda, $cuda_nothing)),* }
            }
        }
    };
}
for_each_scan!(scan_enum);
