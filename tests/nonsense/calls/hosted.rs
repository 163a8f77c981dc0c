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
        ("fftn", |x| vec![
            x.fft2((), (), Norm::Backward),
            x.ifft2([0, 1], [0, 0], Norm::Ortho),
            x.fftn([usize::MAX, 2], [-1, 0], Norm::Forward),
            x.ifftn([3, -1, 1], (), Norm::Backward),
            x.ifftn((), [isize::MIN, isize::MAX], Norm::Ortho),
            x.fftn(isize::MIN, 0, Norm::Ortho),
        ]),
        ("rfftn", |x| vec![
            x.rfft2((), (), Norm::Backward),
            x.irfft2((), (), Norm::Backward),
            x.rfftn((), (), Norm::Ortho),
            x.irfftn((), (), Norm::Forward),
            x.rfftn([1; 70], (), Norm::Ortho),
            x.irfftn(usize::MAX / 2, 0, Norm::Ortho),
        ]),
        ("solve", |x| vec![
            x.solve(x),
            x.solve(x.device().ones([7])),
            x.triangular_solve(x, true, false),
            x.triangular_solve(x, false, true),
            x.lstsq(x),
            x.inverse(),
        ]),
        ("determinants", |x| vec![x.det(), x.slogdet().0, x.slogdet().1]),
        ("factors", |x| vec![
            x.cholesky(false),
            x.cholesky(true),
            x.qr().0,
            x.qr().1,
            x.eigh().0,
            x.eigh().1,
            x.svd().0,
            x.svd().1,
            x.svd().2,
        ]),
    ]
}
