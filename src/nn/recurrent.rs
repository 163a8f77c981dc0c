//! Recurrent layers: LSTM, GRU and plain ones, with PyTorch's weights by PyTorch's names.
//!
//! The inputs of all steps are multiplied at once. A step is a product and its gates, which fuse.

use super::init::{bound, uniform};
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// The shape of a recurrent layer: how many layers, in which directions, and how its values lie.
/// PyTorch's defaults: one layer, forwards, with biases, `[steps, batch, width]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RecurrentOptions {
    layers: usize,
    bidirectional: bool,
    bias: bool,
    batch_first: bool,
}

impl Default for RecurrentOptions {
    fn default() -> RecurrentOptions {
        RecurrentOptions { layers: 1, bidirectional: false, bias: true, batch_first: false }
    }
}

impl From<()> for RecurrentOptions {
    fn from(_: ()) -> RecurrentOptions {
        RecurrentOptions::default()
    }
}

impl RecurrentOptions {
    /// How many layers, each of which reads the outputs of the one before.
    pub fn layers(self, layers: usize) -> RecurrentOptions {
        RecurrentOptions { layers, ..self }
    }

    /// Whether each layer reads backwards as well; its outputs are both, one after the other.
    pub fn bidirectional(self, both: bool) -> RecurrentOptions {
        RecurrentOptions { bidirectional: both, ..self }
    }

    /// Whether there are biases.
    pub fn bias(self, bias: bool) -> RecurrentOptions {
        RecurrentOptions { bias, ..self }
    }

    /// Whether inputs and outputs are `[batch, steps, width]`.
    pub fn batch_first(self, first: bool) -> RecurrentOptions {
        RecurrentOptions { batch_first: first, ..self }
    }
}

/// What a step does with its gates.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Tanh,
    Lstm,
    Gru,
}

impl Kind {
    /// How many numbers a step computes for each of the state.
    fn gates(self) -> usize {
        match self {
            Kind::Tanh => 1,
            Kind::Lstm => 4,
            Kind::Gru => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Tanh => "Rnn",
            Kind::Lstm => "Lstm",
            Kind::Gru => "Gru",
        }
    }

    /// The next state of the inputs' part of a step and the last state, by the hidden weight and
    /// the bias that is not in the inputs' part.
    #[track_caller]
    fn step(
        self,
        weight: &TensorFuture,
        bias: Option<&TensorFuture>,
        x: &TensorFuture,
        last: &[TensorFuture],
    ) -> Vec<TensorFuture> {
        /// As many gates as there are to be, also of a value that has failed.
        fn gates<const N: usize>(all: &TensorFuture, width: usize) -> [TensorFuture; N] {
            std::array::from_fn(|k| all.narrow(1, k * width, width))
        }
        let width = weight.dims()[1];
        let h = &last[0];
        match self {
            Kind::Tanh => vec![(x + h.linear(weight, None)).tanh()],
            Kind::Lstm => {
                let [i, f, g, o] = gates(&(x + h.linear(weight, None)), width);
                let c = f.sigmoid() * &last[1] + i.sigmoid() * g.tanh();
                vec![o.sigmoid() * c.tanh(), c]
            }
            Kind::Gru => {
                let [xr, xz, xn] = gates(x, width);
                let [yr, yz, yn] = gates(&h.linear(weight, bias), width);
                let (r, z) = ((xr + yr).sigmoid(), (xz + yz).sigmoid());
                let new = (xn + r * yn).tanh();
                vec![&new + z * (h - &new)]
            }
        }
    }
}

/// The parameters of one direction of one layer.
#[derive(Debug)]
struct Cell {
    input: Parameter,
    hidden: Parameter,
    biases: Option<[Parameter; 2]>,
}

/// Their values for one call.
struct Values {
    input: TensorFuture,
    hidden: TensorFuture,
    biases: Option<[TensorFuture; 2]>,
}

impl Cell {
    fn values(&self, of: impl Fn(&TensorFuture) -> TensorFuture) -> Values {
        let of = |parameter: &Parameter| of(&parameter.value());
        Values {
            input: of(&self.input),
            hidden: of(&self.hidden),
            biases: self.biases.as_ref().map(|both| both.each_ref().map(of)),
        }
    }
}

/// The layers of a recurrent module.
#[derive(Debug)]
struct Stack {
    kind: Kind,
    hidden: usize,
    /// A cell for each direction of each layer.
    cells: Vec<Cell>,
    options: RecurrentOptions,
}

impl Stack {
    #[track_caller]
    fn new(
        kind: Kind,
        inputs: usize,
        hidden: usize,
        options: RecurrentOptions,
        device: &Device,
    ) -> Stack {
        let (bound, rows) = (bound(hidden), kind.gates().saturating_mul(hidden));
        let new = |shape: Shape| Parameter::new(uniform(device, shape, bound));
        let directions = 1 + options.bidirectional as usize;
        let cell = |k: usize| {
            let width = if k < directions { inputs } else { hidden.saturating_mul(directions) };
            Cell {
                input: new([rows, width].into()),
                hidden: new([rows, hidden].into()),
                biases: options.bias.then(|| [new([rows].into()), new([rows].into())]),
            }
        };
        let cells = (0..options.layers.saturating_mul(directions)).map(cell).collect();
        Stack { kind, hidden, cells, options }
    }

    /// Outputs `[steps, batch, width]`, and the last states `[cells, batch, hidden]`.
    #[track_caller]
    fn run(
        &self,
        x: &TensorFuture,
        first: &[Option<&TensorFuture>],
        at: At,
    ) -> (TensorFuture, Vec<TensorFuture>) {
        let narrow = |x: &TensorFuture| {
            mixed::narrowed([Some(x)], at).and_then(|[x]| x).unwrap_or_else(|| x.clone())
        };
        let x = &narrow(x);
        let first: Vec<Option<TensorFuture>> =
            first.iter().map(|state| state.map(narrow)).collect();
        let cells: Vec<Values> = self.cells.iter().map(|cell| cell.values(narrow)).collect();
        let _within = build::within(self.kind.name(), at);
        let refuse = |refusal| {
            let failed = build::refused(self.kind.name(), x, refusal, at);
            (failed.clone(), first.iter().map(|_| failed.clone()).collect())
        };
        let single = x.rank() == 2;
        let mut y = match x.rank() {
            2 => x.unsqueeze(1),
            3 if self.options.batch_first => x.transpose(0, 1),
            3 => x.clone(),
            _ => {
                let text = format!("steps, a batch and a width are needed, not {}", x.shape());
                return refuse(Refusal::shape(text));
            }
        };
        let (steps, batch) = (y.dims()[0], y.dims()[1]);
        if steps == 0 || self.cells.is_empty() {
            let cells = number_of(self.cells.len(), "layer", "layers");
            let text = format!("{} for {cells}", number_of(steps, "step", "steps"));
            return refuse(Refusal::shape(text));
        }
        let weights = &cells[0].input;
        if (y.dims()[2], y.dtype()) != (weights.dims()[1], weights.dtype()) {
            let (wide, dtype) = (weights.dims()[1], weights.dtype());
            let text = format!("{} {} for weights of {dtype} {wide} wide", x.dtype(), x.shape());
            return refuse(match y.dtype() == dtype {
                true => Refusal::shape(text),
                false => Refusal::dtype(text),
            });
        }
        let shape = [self.cells.len(), batch, self.hidden];
        let begin = |given: &Option<TensorFuture>| match given {
            None => y.device().zeros_dtype(shape, y.dtype()),
            Some(given) if single => given.unsqueeze(1),
            Some(given) => given.clone(),
        };
        let begins: Vec<TensorFuture> = first.iter().map(begin).collect();
        if let Some(wrong) = begins.iter().find(|state| state.dims() != shape) {
            let text = format!("a state of {} in place of {shape:?}", wrong.shape());
            return refuse(Refusal::shape(text));
        }
        if let Some(wrong) = begins.iter().find(|state| state.dtype() != y.dtype()) {
            return refuse(Refusal::dtype(format!(
                "a state of {} for {}",
                wrong.dtype(),
                y.dtype()
            )));
        }
        let directions = 1 + self.options.bidirectional as usize;
        let mut ends: Vec<Vec<TensorFuture>> = first.iter().map(|_| Vec::new()).collect();
        for (layer, cells) in cells.chunks(directions).enumerate() {
            let mut outputs = Vec::new();
            for (way, cell) in cells.iter().enumerate() {
                let k = (layer * directions + way) as isize;
                let state = begins.iter().map(|all| all.i(k)).collect();
                let (output, last) = self.one(cell, &y, steps, state, way == 1);
                outputs.push(output);
                ends.iter_mut().zip(last).for_each(|(all, one)| all.push(one));
            }
            y = match &outputs[..] {
                [one] => one.clone(),
                both => crate::cat(both, -1),
            };
        }
        let ends = ends.iter().map(|all| {
            let all = crate::stack(all, 0);
            if single { all.squeeze(1) } else { all }
        });
        let y = match (single, self.options.batch_first) {
            (true, _) => y.squeeze(1),
            (false, true) => y.transpose(0, 1),
            (false, false) => y,
        };
        (y, ends.collect())
    }

    /// One direction of a layer: the outputs of all steps, and the last state.
    #[track_caller]
    fn one(
        &self,
        cell: &Values,
        x: &TensorFuture,
        steps: usize,
        mut state: Vec<TensorFuture>,
        backwards: bool,
    ) -> (TensorFuture, Vec<TensorFuture>) {
        // The hidden bias of a GRU is inside its reset gate.
        let (early, late) = match (&cell.biases, self.kind) {
            (None, _) => (None, None),
            (Some([a, b]), Kind::Gru) => (Some(a.clone()), Some(b.clone())),
            (Some([a, b]), Kind::Tanh | Kind::Lstm) => (Some(a + b), None),
        };
        let parts = x.linear(&cell.input, early.as_ref());
        let mut outputs = vec![None; steps];
        for t in 0..steps {
            let t = if backwards { steps - 1 - t } else { t };
            state = self.kind.step(&cell.hidden, late.as_ref(), &parts.i(t), &state);
            outputs[t] = Some(state[0].clone());
        }
        let outputs: Vec<TensorFuture> = outputs.into_iter().flatten().collect();
        (crate::stack(&outputs, 0), state)
    }

    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        let directions = 1 + self.options.bidirectional as usize;
        for (k, cell) in self.cells.iter().enumerate() {
            let way = if k % directions == 1 { "_reverse" } else { "" };
            let behind = format!("l{}{way}", k / directions);
            visit(&format!("weight_ih_{behind}"), Part::Parameter(&cell.input));
            visit(&format!("weight_hh_{behind}"), Part::Parameter(&cell.hidden));
            if let Some([input, hidden]) = &cell.biases {
                visit(&format!("bias_ih_{behind}"), Part::Parameter(input));
                visit(&format!("bias_hh_{behind}"), Part::Parameter(hidden));
            }
        }
    }
}

macro_rules! recurrent {
    ($($(#[$doc:meta])* $Name:ident $Kind:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $Name(Stack);

        impl $Name {
            /// A layer with random weights from the device's generator: uniform between -b and b,
            /// where b is one over the square root of `hidden`.
            #[track_caller]
            pub fn new(
                inputs: usize,
                hidden: usize,
                options: impl Into<RecurrentOptions>,
                device: &Device,
            ) -> $Name {
                $Name(Stack::new(Kind::$Kind, inputs, hidden, options.into(), device))
            }
        }

        impl Module for $Name {
            /// The outputs, from a state of zeros.
            #[track_caller]
            fn forward(&self, x: &TensorFuture) -> TensorFuture {
                self.run(x, None).0
            }
            fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
                self.0.parts(visit);
            }
        }
    )*};
}
recurrent! {
    /// Long short-term memory (Hochreiter and Schmidhuber 1997), with PyTorch's weights
    /// `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, ..., `_reverse`.
    ///
    /// ```
    /// use futensor::{Device, nn, nn::Module};
    /// let device = Device::cpu();
    /// let layer = nn::Lstm::new(3, 5, nn::RecurrentOptions::default().layers(2), &device);
    /// let x = device.ones([7, 2, 3]);                                 // steps, batch, inputs
    /// let (y, (h, c)) = layer.run(&x, None);
    /// assert_eq!((y.dims(), h.dims()), (&[7, 2, 5][..], &[2, 2, 5][..]));
    /// let (y, _) = layer.run(&x, Some((&h, &c)));                     // goes on from there
    /// assert_eq!(y.dims(), layer.forward(&x).dims());
    /// assert_eq!(layer.named_parameters()[4].0, "weight_ih_l1");
    /// ```
    Lstm Lstm;
    /// A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), with PyTorch's weights.
    ///
    /// ```
    /// use futensor::{Device, nn};
    /// let device = Device::cpu();
    /// let both = nn::RecurrentOptions::default().bidirectional(true).batch_first(true);
    /// let layer = nn::Gru::new(3, 5, both, &device);
    /// let (y, h) = layer.run(&device.ones([2, 7, 3]), None);          // batch, steps, inputs
    /// assert_eq!((y.dims(), h.dims()), (&[2, 7, 10][..], &[2, 2, 5][..]));
    /// ```
    Gru Gru;
    /// A plain recurrent layer, `tanh(W x + b + U h + d)`, with PyTorch's weights.
    ///
    /// ```
    /// use futensor::{Device, nn};
    /// let device = Device::cpu();
    /// let layer = nn::Rnn::new(3, 5, (), &device);
    /// let (y, h) = layer.run(&device.ones([7, 3]), None);             // steps, inputs
    /// assert_eq!((y.dims(), h.dims()), (&[7, 5][..], &[1, 5][..]));
    /// ```
    Rnn Tanh;
}

impl Lstm {
    /// The outputs of all steps, and the last state: hidden and cell values `[layers * directions,
    /// batch, hidden]`. `state` is the first state, of zeros if it is not given.
    ///
    /// # Errors
    /// A shape error if there are no steps, or if the inputs or a state have another shape than the
    /// layer's; a type error if their types are not that of the weights.
    #[track_caller]
    pub fn run(
        &self,
        x: impl AsRef<TensorFuture>,
        state: Option<(&TensorFuture, &TensorFuture)>,
    ) -> (TensorFuture, (TensorFuture, TensorFuture)) {
        let first = [state.map(|s| s.0), state.map(|s| s.1)];
        let (y, mut last) = self.0.run(x.as_ref(), &first, Location::caller());
        let c = last.pop().unwrap_or_else(|| y.clone());
        (y, (last.swap_remove(0), c))
    }
}

macro_rules! of_one_state {
    ($($Name:ident)*) => {$(
        impl $Name {
            /// The outputs of all steps, and the last state `[layers * directions, batch, hidden]`.
            /// `state` is the first state, of zeros if it is not given.
            ///
            /// # Errors
            /// A shape error if there are no steps, or if the inputs or the state have another
            /// shape than the layer's; a type error if their types are not that of the weights.
            #[track_caller]
            pub fn run(
                &self,
                x: impl AsRef<TensorFuture>,
                state: Option<&TensorFuture>,
            ) -> (TensorFuture, TensorFuture) {
                let (y, mut last) = self.0.run(x.as_ref(), &[state], Location::caller());
                (y, last.swap_remove(0))
            }
        }
    )*};
}
of_one_state! { Gru Rnn }
