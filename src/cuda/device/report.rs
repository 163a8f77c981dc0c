//! The report of a GPU and its libraries for the user, and the convolutions that cuDNN declined.

use super::driver_context::{attribute, device, has_cublas, name};
use super::libraries::dnn;
use super::libraries::driver;
use super::libraries::search;
use super::modules::compile;
use crate::cuda::convolution::Convolution;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::sync::{Mutex, lock};
use crate::window::padding_shown;
use cudarc::driver::sys::CUdevice_attribute::*;
use std::fmt::Write;
use std::sync::Arc;

/// So many are remembered.
const MOST: usize = 32;

/// The convolutions that cuDNN declined, each with the reason.
#[derive(Clone, Default)]
pub(crate) struct DeclinedConvolutions(Arc<Mutex<Vec<String>>>);

impl DeclinedConvolutions {
    pub fn note(&self, asked: &Convolution, why: &Refusal) {
        let Convolution { dtype, side, geometry, .. } = asked;
        let ([depth, outs], groups, window) =
            (geometry.channels, geometry.groups, &geometry.window);
        let own = 3 - window.spatial;
        let shape = |first: [usize; 2], last: [usize; 3]| [&first, &last[own..]].concat();
        let line = format!(
            "{side} in {dtype}: input {:?}, weight {:?}, {}, padding {}: {why}",
            shape([geometry.batch, groups * depth], window.input),
            shape([groups * outs, depth], window.kernel),
            number_of(groups, "group", "groups"),
            padding_shown(&window.padding[own..]),
        );
        let mut list = lock(&self.0);
        if list.len() < MOST && !list.contains(&line) {
            list.push(line);
        }
    }
}

/// A GPU, its driver and its libraries, a line each.
pub(crate) fn report(ordinal: usize, cudnn: bool, declined: &DeclinedConvolutions) -> String {
    let cuda = |version: Option<driver::Version>| match version {
        Some((major, minor)) => format!("CUDA {major}.{minor}"),
        None => "none".into(),
    };
    let [major, minor] = [
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ]
    .map(|which| device(ordinal).map_or(0, |device| attribute(device, which)));
    let compiler = compile::compiler().map(|compiler| compiler.version);
    let products = if has_cublas() { "cuBLAS".into() } else { search::missing("cublas") };
    let convolutions = match dnn::library() {
        _ if !cudnn => "columns and products: cuDNN is switched off".into(),
        Ok(library) => format!("cuDNN {}", library.version),
        Err(why) => format!("columns and products: {why}"),
    };
    let mut text = format!(
        "GPU: {}, sm_{major}{minor}\ndriver: {}\nkernel compiler: NVRTC of {}\n\
         products: {products}\n\
         convolutions: {convolutions}\n",
        name(ordinal).unwrap_or_default(),
        cuda(driver::version()),
        cuda(compiler.ok()),
    );
    for line in &*lock(&declined.0) {
        let _ = writeln!(text, "not by cuDNN: {line}");
    }
    text
}
