//! Ops that other crates compute.

use super::Call;
use futensor::TensorFuture;
use futensor::fft::Norm;

pub fn all() -> Vec<Call> {
    calls![
        ("fft", |x| vec![
            x.fft(None, -1, Norm::Backward),
            x.fft(0, 0, Norm::Ortho),
            x.fft(usize::MAX, -2, Norm::Forward),
            x.ifft(3, isize::MIN, Norm::Backward),
            x.ifft(1, isize::MAX, Norm::Ortho),
        ]),
        ("rfft", |x| vec![
            x.rfft(None, -1, Norm::Backward),
            x.rfft(7, 0, Norm::Ortho),
            x.rfft(usize::MAX / 2, 0, Norm::Ortho),
            x.irfft(None, -1, Norm::Backward),
            x.irfft(usize::MAX, 0, Norm::Forward),
        ]),
    ]
}
