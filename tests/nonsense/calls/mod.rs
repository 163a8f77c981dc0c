//! Every op with arguments that nobody means.

use futensor::TensorFuture;

pub type Call = (&'static str, Box<dyn Fn(&TensorFuture) -> Vec<TensorFuture>>);

macro_rules! calls {
    ($(($name:expr, |$x:ident| $e:expr)),* $(,)?) => {
        vec![$(($name, Box::new(|$x: &TensorFuture| -> Vec<TensorFuture> { $e }) as Box<_>)),*]
    };
}

mod layers;
mod numbers;
mod picking;
mod shapes;
mod whole;

pub fn none() -> [TensorFuture; 0] {
    []
}

pub fn calls() -> Vec<Call> {
    let mut all = numbers::all();
    all.extend(picking::all());
    all.extend(shapes::all());
    all.extend(layers::all());
    all.extend(whole::all());
    all
}
