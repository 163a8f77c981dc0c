//! From a request's body to an image, or to a clear 4xx.

use super::model::Pixels;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

/// What is wrong with a request, and the status that says so.
pub type Wrong = (StatusCode, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    pixels: Vec<f32>,
}

/// The image of a body: JSON `{"pixels": [64 numbers]}`, or 64 raw bytes; values from 0 to 16.
pub fn image(headers: &HeaderMap, body: &Bytes) -> Result<Pixels, Wrong> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let pixels: Vec<f32> = match kind.as_str() {
        "application/json" => {
            let request: Request = serde_json::from_slice(body).map_err(|e| {
                (StatusCode::BAD_REQUEST, format!("not the JSON that is expected: {e}"))
            })?;
            request.pixels
        }
        "application/octet-stream" => body.iter().map(|&b| b as f32).collect(),
        _ => {
            let text = "send application/json or application/octet-stream";
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text.into()));
        }
    };
    let wrong = |text: String| (StatusCode::UNPROCESSABLE_ENTITY, text);
    let count = pixels.len();
    let pixels: Pixels = pixels.try_into().map_err(|_| wrong(format!("{count} pixels, not 64")))?;
    match pixels.iter().find(|p| !(0.0..=16.0).contains(*p)) {
        Some(value) => Err(wrong(format!("a pixel of {value}, not within 0 and 16"))),
        None => Ok(pixels),
    }
}
