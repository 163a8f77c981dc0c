//! Convolutions, pooling, `interpolate`.

use super::super::case::ints;
use super::{Arg, Made, both, futures};
use futensor::op_options::{GridOptions, GridPadding};
use futensor::{ConvOptions, InterpolateMode, InterpolateOptions, PoolOptions};
use serde_json::Value;

/// Calls a case's op, if it is one of these.
pub fn call(op: &str, args: &[Arg], attrs: &Value) -> Option<Made> {
    let tensor = |i: usize| match args.get(i) {
        Some(Arg::Tensor(x)) => Some(x),
        _ => None,
    };
    let x = tensor(0)?;
    match op {
        "conv1d" => futures(x.conv1d(tensor(1)?, tensor(2), conv(attrs))),
        "conv2d" => futures(x.conv2d(tensor(1)?, tensor(2), conv(attrs))),
        "conv3d" => futures(x.conv3d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose3d" => futures(x.conv_transpose3d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose1d" => futures(x.conv_transpose1d(tensor(1)?, tensor(2), conv(attrs))),
        "conv_transpose2d" => futures(x.conv_transpose2d(tensor(1)?, tensor(2), conv(attrs))),
        "max_pool2d" => futures(x.max_pool2d(pool(attrs))),
        "max_pool1d_with_positions" => both(x.max_pool1d_with_positions(pool(attrs))),
        "max_pool2d_with_positions" => both(x.max_pool2d_with_positions(pool(attrs))),
        "max_pool3d_with_positions" => both(x.max_pool3d_with_positions(pool(attrs))),
        "avg_pool1d" => futures(x.avg_pool1d(pool(attrs))),
        "avg_pool3d" => futures(x.avg_pool3d(pool(attrs))),
        "avg_pool2d" => futures(x.avg_pool2d(pool(attrs))),
        "adaptive_avg_pool1d" => futures(x.adaptive_avg_pool1d(ints(&attrs["size"]))),
        "adaptive_avg_pool2d" => futures(x.adaptive_avg_pool2d(ints(&attrs["size"]))),
        "adaptive_avg_pool3d" => futures(x.adaptive_avg_pool3d(ints(&attrs["size"]))),
        "adaptive_max_pool1d" => futures(x.adaptive_max_pool1d(ints(&attrs["size"]))),
        "adaptive_max_pool2d" => futures(x.adaptive_max_pool2d(ints(&attrs["size"]))),
        "adaptive_max_pool3d" => futures(x.adaptive_max_pool3d(ints(&attrs["size"]))),
        "pixel_shuffle" => futures(x.pixel_shuffle(attrs["factor"].as_u64()? as usize)),
        "pixel_unshuffle" => futures(x.pixel_unshuffle(attrs["factor"].as_u64()? as usize)),
        "unfold" => futures(x.unfold(ints(&attrs["kernel"]), patches(attrs))),
        "fold" => {
            let (size, kernel) = (ints(&attrs["size"]), ints(&attrs["kernel"]));
            futures(x.fold(size, kernel, patches(attrs)))
        }
        "grid_sample" => futures(x.grid_sample(tensor(1)?, grid(attrs)?)),
        "interpolate" => futures(x.interpolate(interpolation(attrs)?)),
        _ => None,
    }
}

fn patches(attrs: &Value) -> ConvOptions {
    let options = ConvOptions::default().stride(ints(&attrs["stride"]));
    options.padding(ints(&attrs["padding"])).dilation(ints(&attrs["dilation"]))
}

fn grid(attrs: &Value) -> Option<GridOptions> {
    let padding = match attrs["padding_mode"].as_str()? {
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        _ => GridPadding::Zeros,
    };
    let options = GridOptions::default().padding(padding).nearest(attrs["mode"] == "nearest");
    let options = options.cubic(attrs["mode"] == "bicubic");
    Some(options.align_corners(attrs["align_corners"] == true))
}

/// One number or a list of them.
fn sizes(value: &Value) -> Vec<isize> {
    match value.as_i64() {
        Some(n) => vec![n as isize],
        None => ints(value),
    }
}

fn conv(attrs: &Value) -> ConvOptions {
    let groups = attrs["groups"].as_u64().expect("a number of groups") as usize;
    let options = ConvOptions::default().stride(sizes(&attrs["stride"]));
    let options = match attrs.get("padding") {
        Some(padding) => options.padding(sizes(padding)),
        None => options.padding_sides(ints(&attrs["before"]), ints(&attrs["after"])),
    };
    let options = options.dilation(sizes(&attrs["dilation"])).groups(groups);
    match attrs.get("output_padding") {
        Some(padding) => options.output_padding(sizes(padding)),
        None => options,
    }
}

fn pool(attrs: &Value) -> PoolOptions {
    let options = PoolOptions::new(ints(&attrs["kernel_size"]));
    let options = options.stride(ints(&attrs["stride"]));
    let mut options = match attrs.get("padding") {
        Some(padding) => options.padding(ints(padding)),
        None => options.padding_sides(ints(&attrs["before"]), ints(&attrs["after"])),
    };
    if let Some(dilation) = attrs.get("dilation") {
        options = options.dilation(ints(dilation));
    }
    if let Some(divisor) = attrs["divisor_override"].as_u64() {
        options = options.divisor(divisor as usize);
    }
    if attrs["count_include_pad"] == false {
        options = options.count_padding(false);
    }
    options.ceil(attrs["ceil_mode"] == true)
}

fn interpolation(attrs: &Value) -> Option<InterpolateOptions> {
    let options = match (&attrs["size"], &attrs["scale_factor"]) {
        (Value::Null, Value::Array(all)) => InterpolateOptions::scales(
            &all.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?,
        ),
        (Value::Null, one) => InterpolateOptions::scale(one.as_f64()?),
        (size, _) => InterpolateOptions::size(sizes(size)),
    };
    let mode = match attrs["mode"].as_str()? {
        "nearest" => InterpolateMode::Nearest,
        "nearest-exact" => InterpolateMode::NearestExact,
        "linear" | "bilinear" | "trilinear" => InterpolateMode::Linear,
        "bicubic" => InterpolateMode::Cubic,
        "area" => InterpolateMode::Area,
        _ => return None,
    };
    let options = options.mode(mode).antialias(attrs["antialias"] == true);
    Some(options.align_corners(attrs["align_corners"] == true))
}
