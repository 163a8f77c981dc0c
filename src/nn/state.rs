//! Walking over a module's parts, and loading values by name.

use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::error::{Error, ErrorKind};
use crate::tensor::future::TensorFuture;
use std::collections::HashMap;
use std::panic::Location;

/// Visits a part, and those of a module in it, with full names.
pub(super) fn walk(name: &str, part: &Part<'_>, visit: &mut dyn FnMut(&str, &Part<'_>)) {
    visit(name, part);
    if let Part::Module(module) = part {
        module.parts(&mut |inner, part| walk(&format!("{name}.{inner}"), &part, visit));
    }
}

/// Switches a part, and those of a module in it, between training and use.
pub(super) fn switch(name: &str, part: &Part<'_>, training: bool) {
    walk(name, part, &mut |_, part| {
        if let Part::Mode(mode) = part {
            mode.set(training);
        }
    });
}

/// Puts values in by name: all of them, or none.
#[track_caller]
pub(super) fn load(module: &impl Module, state: Vec<(String, TensorFuture)>) -> Result<(), Error> {
    let at = Location::caller();
    let error = |kind, text: String| Err(Error::new(kind, "load_state", text, at));
    let mut given: HashMap<String, TensorFuture> = state.into_iter().collect();
    let mut found: Vec<(Parameter, TensorFuture)> = Vec::new();
    for (name, parameter) in module.named_parameters().into_iter().chain(module.named_buffers()) {
        let Some(value) = given.remove(&name) else {
            return error(ErrorKind::Argument, format!("there is no value for {name}"));
        };
        if let Err(own) = parameter.takes(value.shape()) {
            let text = format!("{name} has shape {own}, and the value {}", value.shape());
            return error(ErrorKind::Shape, text);
        }
        let device = parameter.device().unwrap_or_else(|| value.device());
        let dtype = if parameter.is_lazy() { parameter.lazy_dtype() } else { parameter.value().dtype() };
        found.push((parameter, value.to_device(&device).to_dtype(dtype)));
    }
    let mut names: Vec<String> = given.into_keys().collect();
    names.sort();
    if !names.is_empty() {
        return error(ErrorKind::Argument, format!("nothing here is called {}", names.join(", ")));
    }
    for (parameter, value) in found {
        parameter.set(value);
    }
    Ok(())
}
