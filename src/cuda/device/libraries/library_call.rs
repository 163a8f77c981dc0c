//! A call of a library, for now or for a graph: its kind, and the places of its operands and
//! result.

use super::dnn;
use super::gemm::ProductCall;
use std::sync::Arc;

/// A convolution that cuDNN computes.
#[derive(Clone)]
pub(crate) struct ConvolutionCall<At> {
    pub plan: Arc<dnn::Plan>,
    /// Where both operands, the result and the workspace are.
    pub at: [At; 4],
}

#[derive(Clone)]
pub(crate) enum LibraryCall<At> {
    Product(ProductCall<At>),
    Convolution(ConvolutionCall<At>),
}

impl<At> LibraryCall<At> {
    pub fn at(&self) -> &[At] {
        match self {
            LibraryCall::Product(product) => &product.at,
            LibraryCall::Convolution(convolved) => &convolved.at,
        }
    }

    /// The same at other places.
    pub fn placed<To>(&self, place: impl FnMut(&At) -> To) -> LibraryCall<To> {
        match self {
            LibraryCall::Product(ProductCall { dtypes, calls, adds, at }) => {
                let (at, calls) = (at.each_ref().map(place), calls.clone());
                LibraryCall::Product(ProductCall { dtypes: *dtypes, calls, adds: *adds, at })
            }
            LibraryCall::Convolution(ConvolutionCall { plan, at }) => {
                LibraryCall::Convolution(ConvolutionCall {
                    plan: plan.clone(),
                    at: at.each_ref().map(place),
                })
            }
        }
    }
}
