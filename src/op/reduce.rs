//! The table of reductions: one row per op. [`op`](super) describes the columns.

/// Rows of reductions: `name: Variant { columns }`.
///
/// A gradient reads `g` and `y` (both with the reduced dimensions at size 1), `x`, and `over`, the
/// dimensions that are reduced. `of_nothing` says whether a reduction of no elements is `defined`
/// or `refused`, `of_no_dims` whether an empty list of dimensions stands for `everything` or leaves
/// the operand `itself`.
macro_rules! for_each_reduce {
    ($callback:ident) => {
        $callback! {
            sum: Sum {
                doc: "Sum; integers and bool are added in int64. 0 without elements. Floats \
are added pairwise.",
                keepdim: sum_keepdim, everything: sum_all,
                class: sum, cost: fold, rounds: once, of_nothing: defined,
                of_no_dims: everything, domain: all,
                gradient: [(g) g],
            }
            prod: Prod {
                doc: "Product; integers and bool in int64. 1 without elements.",
                keepdim: prod_keepdim, everything: prod_all,
                class: sum, cost: fold, rounds: once, of_nothing: defined,
                of_no_dims: everything, domain: off_zero,
                gradient: [(g x over) over.through_product(&g, &x)],
            }
            mean: Mean {
                doc: "Arithmetic mean of floats; NaN without elements.",
                keepdim: mean_keepdim, everything: mean_all,
                class: float, cost: fold, rounds: once, of_nothing: defined,
                of_no_dims: everything, domain: all,
                gradient: [(g over) g.div(over.count as f64)],
            }
            max: Max {
                doc: "The largest element; NaN if one is NaN, 0 if it is -0. An error without \
elements.",
                keepdim: max_keepdim, everything: max_all,
                class: same, cost: fold, rounds: never, of_nothing: refused,
                of_no_dims: everything, domain: apart,
                gradient: [(g x y over) over.shared(&g, &x, &y)],
            }
            min: Min {
                doc: "The smallest element; NaN if one is NaN, 0 if it is -0. An error without \
elements.",
                keepdim: min_keepdim, everything: min_all,
                class: same, cost: fold, rounds: never, of_nothing: refused,
                of_no_dims: everything, domain: apart,
                gradient: [(g x y over) over.shared(&g, &x, &y)],
            }
            any: Any {
                doc: "True if any element is nonzero.",
                keepdim: any_keepdim, everything: any_all,
                class: test, cost: fold, rounds: never, of_nothing: defined,
                of_no_dims: itself, domain: all,
                gradient: [],
            }
            all: All {
                doc: "True if all elements are nonzero, or if there are none.",
                keepdim: all_keepdim, everything: all_all,
                class: test, cost: fold, rounds: never, of_nothing: defined,
                of_no_dims: itself, domain: all,
                gradient: [],
            }
            argmax: ArgMax {
                doc: "Position of the largest element (the first of equal ones); the first NaN if \
there is one.",
                keepdim: argmax_keepdim, everything: argmax_all,
                class: index, cost: search, rounds: never, of_nothing: refused,
                of_no_dims: everything, domain: apart,
                gradient: [],
            }
            argmin: ArgMin {
                doc: "Position of the smallest element (the first of equal ones); the first NaN if \
there is one.",
                keepdim: argmin_keepdim, everything: argmin_all,
                class: index, cost: search, rounds: never, of_nothing: refused,
                of_no_dims: everything, domain: apart,
                gradient: [],
            }
        }
    };
}
pub(crate) use for_each_reduce;
