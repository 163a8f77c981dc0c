//! The table of scans, which run along a dimension: one row a scan.

/// Rows of scans: `name: Variant { columns }`.
///
/// A value is joined to what came before by `cpu`, in a type that implements the host kernels'
/// `Running`, or by `cuda`, in `A`, the type that the scan is computed in; `nothing` stands before
/// the first. `gradient` names a rule of `ops/order/scan`, or `positions`, where the method gathers
/// values from positions, which have the gradient. The order in which a GPU joins is its own, so
/// joining is associative. Floats are scanned in their type, integers and bool in int64.
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
        /// What runs along a dimension.
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
            /// What joins two values, and what stands before the first, as CUDA C.
            pub const fn cuda(self) -> (&'static str, &'static str) {
                match self { $(Scan::$Variant => ($cuda, $cuda_nothing)),* }
            }
        }
    };
}
for_each_scan!(scan_enum);
