//! Every op with arguments that nobody means.

use futensor::TensorFuture;

pub type Call = (&'static str, Box<dyn Fn(&TensorFuture) -> Vec<TensorFuture>>);

macro_rules! calls {
    ($(($name:expr, |$x:ident| $e:expr)),* $(,)?) => {
        vec![$(($name, Box::new(|$x: &TensorFuture| -> Vec<TensorFuture> { $e }) as Box<_>)),*]
    };
}

mod hosted;
mod layers;
mod numbers;
mod picking;
mod rows;
mod shapes;
mod whole;

/// Where ops are called by name.
pub const SOURCES: &[&str] = &[
    include_str!("layers.rs"),
    include_str!("numbers.rs"),
    include_str!("picking.rs"),
    include_str!("shapes.rs"),
    include_str!("whole.rs"),
    // What is made of no value.
    include_str!("../arguments.rs"),
];

pub fn none() -> [TensorFuture; 0] {
    []
}

pub fn calls() -> Vec<Call> {
    let mut all = rows::all();
    all.extend(numbers::all());
    all.extend(picking::all());
    all.extend(shapes::all());
    all.extend(layers::all());
    all.extend(whole::all());
    all.extend(hosted::all());
    all
}
