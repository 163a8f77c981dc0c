//! What a library computes, be it at once or captured for a graph: which call, and where its
//! operands and its result are.

use super::dnn;
use super::gemm::Multiplied;
use std::sync::Arc;

/// A convolution that cuDNN computes.
#[derive(Clone)]
pub(crate) struct Convolved<At> {
    pub plan: Arc<dnn::Plan>,
    /// Where both operands, the result and the workspace are.
    pub at: [At; 4],
}

#[derive(Clone)]
pub(crate) enum Called<At> {
    Product(Multiplied<At>),
    Convolution(Convolved<At>),
}

impl<At> Called<At> {
    pub fn at(&self) -> &[At] {
        match self {
            Called::Product(product) => &product.at,
            Called::Convolution(convolved) => &convolved.at,
        }
    }

    /// The same at other places.
    pub fn placed<To>(&self, place: impl FnMut(&At) -> To) -> Called<To> {
        match self {
            Called::Product(Multiplied { dtypes, calls, adds, at }) => {
                let (at, calls) = (at.each_ref().map(place), calls.clone());
                Called::Product(Multiplied { dtypes: *dtypes, calls, adds: *adds, at })
            }
            Called::Convolution(Convolved { plan, at }) => {
                Called::Convolution(Convolved { plan: plan.clone(), at: at.each_ref().map(place) })
            }
        }
    }
}
