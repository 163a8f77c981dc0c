//! The ops beside the tables: a folder for each family, a file for each op, behind one trait. The
//! list of them is here; an op that is not on it cannot be asked for.

use crate::graph::operation::Operation;

pub(crate) mod check;
pub(crate) mod custom;

/// Scaled dot products, over pages of a cache, and the rotation of positions.
pub(crate) mod attention {
    pub(crate) mod backward;
    pub(crate) mod paged;
    pub(crate) mod rope;
    pub(crate) mod scaled;
}

/// Checks of what other ops have made.
pub(crate) mod checks {
    pub(crate) mod finite;
}

/// Picking and placing elements by their indices.
pub(crate) mod index {
    pub(crate) mod along;
    pub(crate) mod along_back;
    pub(crate) mod classes;
    pub(crate) mod embedding;
    pub(crate) mod gather;
    pub(crate) mod index_copy;
    pub(crate) mod index_select;
    pub(crate) mod nonzero;
    pub(crate) mod one_hot;
    pub(crate) mod places;
    pub(crate) mod scatter;
    pub(crate) mod scatter_add;
    pub(crate) mod top_p;
}

/// Order along a dimension: sorting, and scans.
pub(crate) mod order {
    pub(crate) mod others;
    pub(crate) mod product_back;
    pub(crate) mod scan;
    pub(crate) mod scan_back;
    pub(crate) mod scan_places;
    pub(crate) mod sort;
    pub(crate) mod topk;
}

/// Products of matrices.
pub(crate) mod products {
    pub(crate) mod matmul;
    pub(crate) mod quantized;
    pub(crate) mod turned;
}

/// Functions of whole rows: softmax, its logarithm and its loss, and normalisation.
pub(crate) mod rows {
    pub(crate) mod channels;
    pub(crate) mod cross_entropy;
    pub(crate) mod logsumexp;
    pub(crate) mod nll;
    pub(crate) mod norm;
    pub(crate) mod norm_back;
    pub(crate) mod softmax;
    pub(crate) mod softmax_back;
}

/// Ops that move elements and compute nothing.
pub(crate) mod shaping {
    pub(crate) mod cat;
    pub(crate) mod roll;
    pub(crate) mod slice_assign;
    pub(crate) mod triangle;
}

/// Sliding windows: convolution and pooling.
pub(crate) mod windows {
    pub(crate) mod adaptive;
    pub(crate) mod conv;
    pub(crate) mod largest;
    pub(crate) mod patches;
    pub(crate) mod pool;
    pub(crate) mod resample;
    pub(crate) mod sample;
}

#[cfg(all(test, not(futensor_loom)))]
mod cost_tests;

/// Said by an op in place of `gradient`, where it has none; a test asks for either.
macro_rules! no_gradient {
    () => {
        fn gradient_needs(&self, _: &[bool]) -> crate::graph::operation::Needs {
            crate::graph::operation::Needs::NOTHING.as_they_are()
        }
        fn gradient(&self, _: &mut crate::Backward<'_>) -> Result<(), Refusal> {
            Err(Refusal::no_gradient())
        }
    };
}
pub(crate) use no_gradient;

/// Every op: its type, the names by which reference values of it and of its gradients in halves
/// are looked for, whether it has a `plan` in `cuda/ops`, and whether it moves elements of types
/// for storage, by their size, or refuses them.
macro_rules! for_each_operation {
    ($callback:ident) => {
        $callback! {
            attention::scaled::Attention {
                values: [scaled_dot_product_attention],
                gradients: [scaled_dot_product_attention],
                gpu: plan, storage: refused,
            }
            attention::scaled::AttentionGradient {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            attention::backward::AttentionBackward {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            attention::paged::PagedAttention {
                values: [paged_attention], gradients: [], gpu: plan, storage: refused,
            }
            attention::rope::Rope {
                values: [rope], gradients: [rope], gpu: plan, storage: refused,
            }
            checks::finite::CheckFinite {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            index::along::Along {
                values: [pad_mode interpolate], gradients: [pad_mode interpolate], gpu: none,
                storage: moved,
            }
            index::along_back::AlongBack {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            index::classes::Classes {
                values: [nll_loss], gradients: [nll_loss], gpu: plan, storage: refused,
            }
            index::embedding::Embedding {
                values: [embedding], gradients: [embedding], gpu: plan, storage: moved,
            }
            index::gather::Gather {
                values: [gather], gradients: [gather], gpu: plan, storage: moved,
            }
            index::index_copy::IndexCopy {
                values: [index_copy], gradients: [index_copy], gpu: plan, storage: moved,
            }
            index::index_select::IndexSelect {
                values: [index_select], gradients: [index_select], gpu: plan, storage: moved,
            }
            index::one_hot::OneHot {
                values: [one_hot], gradients: [], gpu: plan, storage: refused,
            }
            index::scatter::Scatter {
                values: [scatter scatter_reduce], gradients: [scatter scatter_reduce],
                gpu: plan, storage: moved,
            }
            index::scatter_add::ScatterAdd {
                values: [scatter_add], gradients: [scatter_add], gpu: plan, storage: refused,
            }
            index::top_p::TopP {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            order::product_back::ProductBack {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            order::scan::Running {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            order::scan_back::RunningProductBack {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            order::scan_places::RunningPlaces {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            order::sort::Sort {
                values: [sort], gradients: [sort], gpu: plan, storage: refused,
            }
            order::topk::TopK {
                values: [topk], gradients: [topk], gpu: plan, storage: refused,
            }
            products::matmul::MatMul {
                values: [matmul], gradients: [matmul], gpu: plan, storage: refused,
            }
            products::quantized::Dequantize {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            products::quantized::GroupedLinear {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            products::quantized::Quantize {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            products::quantized::QuantizedEmbedding {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            products::quantized::QuantizedLinear {
                values: [], gradients: [], gpu: plan, storage: refused,
            }
            products::turned::Turned {
                values: [matmul], gradients: [matmul], gpu: none, storage: refused,
            }
            rows::channels::Channels {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            rows::cross_entropy::CrossEntropy {
                values: [cross_entropy], gradients: [cross_entropy], gpu: none, storage: refused,
            }
            rows::logsumexp::LogSumExp {
                values: [logsumexp], gradients: [logsumexp], gpu: plan, storage: refused,
            }
            rows::nll::Nll {
                values: [nll_loss], gradients: [nll_loss], gpu: none, storage: refused,
            }
            rows::norm::Norm {
                values: [layer_norm rms_norm], gradients: [layer_norm rms_norm],
                gpu: plan, storage: refused,
            }
            rows::norm_back::NormBack {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            rows::softmax::Softmax {
                values: [softmax log_softmax], gradients: [softmax log_softmax],
                gpu: plan, storage: refused,
            }
            rows::softmax_back::SoftmaxBack {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            shaping::cat::Cat {
                values: [cat], gradients: [cat], gpu: plan, storage: moved,
            }
            shaping::roll::Roll {
                values: [roll], gradients: [roll], gpu: plan, storage: moved,
            }
            shaping::slice_assign::SliceAssign {
                values: [slice_assign], gradients: [slice_assign], gpu: plan, storage: moved,
            }
            shaping::triangle::Triangle {
                values: [tril triu], gradients: [tril triu], gpu: plan, storage: moved,
            }
            windows::adaptive::AdaptiveMax {
                values: [adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d],
                gradients: [adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d],
                gpu: plan, storage: refused,
            }
            windows::conv::Conv {
                values: [conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d],
                gradients: [
                    conv1d conv2d conv3d
                    conv_transpose1d conv_transpose2d conv_transpose3d
                ],
                gpu: plan, storage: refused,
            }
            windows::largest::Largest {
                values: [], gradients: [], gpu: none, storage: refused,
            }
            windows::patches::Patches {
                values: [unfold fold], gradients: [unfold fold], gpu: none, storage: refused,
            }
            windows::pool::Pool {
                values: [max_pool2d avg_pool1d avg_pool2d avg_pool3d],
                gradients: [max_pool2d avg_pool1d avg_pool2d avg_pool3d],
                gpu: plan, storage: refused,
            }
            windows::resample::Resample {
                values: [interpolate], gradients: [interpolate], gpu: none, storage: refused,
            }
            windows::sample::Sample {
                values: [grid_sample], gradients: [], gpu: none, storage: refused,
            }
        }
    };
}
#[allow(unused_imports)] // Builds without GPUs read it here alone.
pub(crate) use for_each_operation;

/// An op that is on the list.
pub(crate) trait Listed: Operation {
    /// True if it takes types for storage.
    const MOVES: bool;
}

macro_rules! moves {
    (moved) => {
        true
    };
    (refused) => {
        false
    };
}

macro_rules! listed {
    ($($family:ident::$op:ident::$Op:ident {
        values: [$($value:ident)*], gradients: [$($gradient:ident)*], gpu: $gpu:ident,
        storage: $storage:ident,
    })*) => {
        $(impl Listed for $family::$op::$Op {
            const MOVES: bool = moves!($storage);
        })*

        /// The names of the list: of each op those of its values and those of its gradients.
        #[doc(hidden)]
        pub fn operations() -> Vec<[&'static [&'static str]; 2]> {
            const LIST: &[[&[&str]; 2]] =
                &[$([&[$(stringify!($value)),*], &[$(stringify!($gradient)),*]]),*];
            LIST.to_vec()
        }
    };
}
for_each_operation!(listed);
