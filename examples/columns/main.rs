//! Columns of an Arrow record batch as tensors, and back:
//!
//! ```text
//! cargo run --release -p columns
//! ```
//!
//! A column that Arrow made of a `Vec`, and that nobody else has, becomes a tensor without a copy;
//! any other is copied once. A `Vec` that was read becomes a column without a copy; the read itself
//! copies. Nulls are a mask of their own.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, PrimitiveArray, RecordBatch};
use arrow_buffer::NullBuffer;
use futensor::{DType, Device, Element, TensorFuture};
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The elements of a column, without a copy if nobody else has its buffer and it was a `Vec`'s, and
/// its nulls.
fn values<T: ArrowPrimitiveType>(column: ArrayRef) -> (Vec<T::Native>, Option<NullBuffer>) {
    let array: PrimitiveArray<T> = column.as_primitive().clone();
    // It has the buffer, too.
    drop(column);
    let (_, values, nulls) = array.into_parts();
    (values.into(), nulls)
}

/// The elements of a column `[rows]`, which the device takes over, and which of them are not null;
/// `None` if all are.
fn tensors<T>(column: ArrayRef, device: &Device) -> (TensorFuture, Option<TensorFuture>)
where
    T: ArrowPrimitiveType<Native: Element>,
{
    let (values, nulls) = values::<T>(column);
    let rows = [values.len()];
    // Bits there, bytes here.
    let valid = nulls.map(|nulls| device.from_vec(nulls.iter().collect::<Vec<bool>>(), rows));
    (device.from_vec(values, rows), valid)
}

/// The column of a tensor `[rows]`, with the nulls of a mask.
async fn column(x: &TensorFuture, valid: Option<&TensorFuture>) -> Outcome<ArrayRef> {
    let nulls = match valid {
        Some(valid) => Some(NullBuffer::from(valid.to_vec::<bool>().await?)),
        None => None,
    };
    Ok(Arc::new(Float32Array::new(x.to_vec::<f32>().await?.into(), nulls)))
}

/// What is not null, with mean 0 and deviation 1; nulls are 0, the mean.
fn standardised(x: &TensorFuture, valid: Option<&TensorFuture>) -> TensorFuture {
    let Some(valid) = valid else {
        let centred = x - x.mean_all();
        return &centred / centred.square().mean_all().sqrt();
    };
    let weight = valid.to_dtype(x.dtype());
    let count = weight.sum_all();
    let centred = (x - (x * &weight).sum_all() / &count) * weight;
    &centred / (centred.square().sum_all() / &count).sqrt()
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let device = Device::try_gpu(0);
    let heights = Float32Array::from(vec![Some(1.62), None, Some(1.80), Some(1.71)]);
    let ages = Int64Array::from(vec![31, 44, 27, 58]);
    let batch: [(&str, ArrayRef); 2] = [("height", Arc::new(heights)), ("age", Arc::new(ages))];
    let batch = RecordBatch::try_from_iter(batch)?;

    // A slice of it shares its buffers, and so it is copied; the batch is then taken to pieces.
    let younger: ArrayRef = batch.column(1).slice(2, 2);
    let (tail, _) = tensors::<Int64Type>(younger, &device);
    assert_eq!(tail.to_vec::<i64>().await?, [27, 58]);
    let (_, columns, _) = batch.into_parts();
    let [height, age] = <[ArrayRef; 2]>::try_from(columns).map_err(|_| "two columns")?;

    // A buffer becomes the `Vec` that the device takes over: no element is copied.
    let before = age.as_primitive::<Int64Type>().values().as_ptr();
    let (values, _) = values::<Int64Type>(age);
    assert_eq!(values.as_ptr(), before);
    let ages = device.from_vec(values, [4]);
    assert_eq!(ages.max_all().item::<i64>().await?, 58);

    let (heights, valid) = tensors::<Float32Type>(height, &device);
    let scaled = standardised(&heights, valid.as_ref());
    let score = &scaled + standardised(&ages.to_dtype(DType::F32), None);

    // Back: the read is the one copy, and the column takes its `Vec` over.
    let read = scaled.to_vec::<f32>().await?;
    let before = read.as_ptr();
    let taken = Float32Array::new(read.into(), None);
    assert_eq!(taken.values().as_ptr(), before);
    let columns = [
        ("height", column(&scaled, valid.as_ref()).await?),
        ("score", column(&score, valid.as_ref()).await?),
    ];
    let batch = RecordBatch::try_from_iter(columns)?;
    let height = batch.column(0).as_primitive::<Float32Type>();
    assert_eq!((batch.num_rows(), height.null_count(), height.is_null(1)), (4, 1, true));
    let known: Vec<f32> = height.iter().flatten().collect();
    let mean = known.iter().sum::<f32>() / known.len() as f32;
    let square = known.iter().map(|x| x * x).sum::<f32>() / known.len() as f32;
    assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-4, "{mean} {square}");
    println!("{} rows of {} columns, on {device}", batch.num_rows(), batch.num_columns());
    Ok(())
}
