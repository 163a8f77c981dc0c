//! A picture of the `image` crate as a tensor, and back:
//!
//! ```text
//! cargo run --release -p pictures                  # a picture that it draws
//! cargo run --release -p pictures -- IN.png OUT.png
//! ```
//!
//! It decodes a picture on a thread for blocking work, hands its pixels over without a copy,
//! resizes and normalises them as models of ImageNet want them, and writes what such a model sees.
//! Each step is checked, the resizing beside that of `image`.

use futensor::{DType, Device, InterpolateMode, InterpolateOptions, TensorFuture};
use image::imageops::FilterType;
use image::{ImageFormat, RgbImage};
use std::io::Cursor;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Pixels along each side of what a model sees.
const SIDE: usize = 224;
/// Of red, green and blue over ImageNet, in [0, 1], as torchvision has them.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// A picture as `[1, 3, height, width]`, in [0, 1]. The device takes the pixels over as they lie:
/// the permutation is a view, and the division reads it.
fn tensor(picture: RgbImage, device: &Device) -> TensorFuture {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let pixels = device.from_vec(picture.into_raw(), [1, height, width, 3]);
    pixels.permute([0, 3, 1, 2]) / 255.0
}

/// The picture of such a tensor. The read is awaited, and the picture takes its pixels over.
async fn picture(x: &TensorFuture) -> Outcome<RgbImage> {
    let (height, width) = (x.dims()[2] as u32, x.dims()[3] as u32);
    let pixels = (x.clamp(0.0, 1.0) * 255.0).round().to_dtype(DType::U8).permute([0, 2, 3, 1]);
    let pixels = pixels.to_vec::<u8>().await?;
    Ok(RgbImage::from_raw(width, height, pixels).ok_or("as many pixels as there are places")?)
}

/// Values of the three colours, which fit any picture.
fn of_colours(values: [f32; 3], device: &Device) -> TensorFuture {
    device.from_slice(&values, [1, 3, 1, 1])
}

/// A PNG file of a picture that is there wherever this runs: waves of colours.
fn drawn() -> Outcome<Vec<u8>> {
    let wave = |at: u32, length: f32| ((at as f32 / length).sin() * 127.0 + 128.0) as u8;
    let picture = RgbImage::from_fn(320, 240, |x, y| {
        image::Rgb([wave(x, 40.0), wave(y, 25.0), wave(x + y, 60.0)])
    });
    let mut file = Vec::new();
    picture.write_to(&mut Cursor::new(&mut file), ImageFormat::Png)?;
    Ok(file)
}

/// The largest difference between two pictures of one size, of 255.
fn apart(a: &RgbImage, b: &RgbImage) -> u8 {
    assert_eq!(a.dimensions(), b.dimensions());
    a.as_raw().iter().zip(b.as_raw()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let (from, to) = (words.next(), words.next());
    let device = Device::try_gpu(0);
    // Decoding takes a processor's time, so the executor's threads are spared it.
    let decoded = tokio::task::spawn_blocking(move || -> Outcome<RgbImage> {
        let file = from.map_or_else(drawn, |path| Ok(std::fs::read(path)?))?;
        Ok(image::load_from_memory_with_format(&file, ImageFormat::Png)?.into_rgb8())
    });
    let decoded = decoded.await??;

    // There and back, each pixel is what it was.
    let x = tensor(decoded.clone(), &device);
    assert_eq!(apart(&picture(&x).await?, &decoded), 0);

    // As `image` resizes: by a triangle over all pixels that a place covers.
    let (mode, size) = (InterpolateMode::Linear, [SIDE, SIDE]);
    let small = x.interpolate(InterpolateOptions::size(size).mode(mode).antialias(true));
    let side = SIDE as u32;
    let theirs = image::imageops::resize(&decoded, side, side, FilterType::Triangle);
    let seen = picture(&small).await?;
    assert!(apart(&seen, &theirs) <= 2, "{} of 255 apart", apart(&seen, &theirs));

    // What a model takes, and back.
    let (mean, deviation) = (of_colours(MEAN, &device), of_colours(DEVIATION, &device));
    let input = (&small - &mean) / &deviation;
    assert_eq!((input.dims(), input.dtype()), (&[1, 3, SIDE, SIDE][..], DType::F32));
    let back = picture(&(&input * &deviation + &mean)).await?;
    assert!(apart(&back, &seen) <= 1);

    let (least, largest) = (input.min_all(), input.max_all());
    let (least, largest) = (least.item::<f32>().await?, largest.item::<f32>().await?);
    println!(
        "{} x {} pixels became {SIDE} x {SIDE} from {least:.2} to {largest:.2}, on {device}",
        decoded.width(),
        decoded.height(),
    );
    if let Some(to) = to {
        tokio::task::spawn_blocking(move || back.save_with_format(to, ImageFormat::Png)).await??;
    }
    Ok(())
}
