//! The routes: `/predict`, `/healthz`, `/metrics`, `/stats`, and the page.

use super::{App, Engine, input, metrics};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Larger bodies are answered 413: 64 numbers do not need more.
const BODY_MAX: usize = 8 << 10;

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/predict", post(predict))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_text))
        .route("/stats", get(stats))
        .route("/", get(|| async { Html(include_str!("../page.html")) }))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(app)
}

fn refusal(status: StatusCode, text: impl Into<String>) -> Response {
    (status, Json(json!({ "error": text.into() }))).into_response()
}

fn busy(text: &str) -> Response {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    response
}

/// Counts a request that ends without an answer: its client has gone, and hyper drops the handler.
struct Unanswered<'a>(&'a App, Instant, bool);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.2 {
            self.0.metrics.count(499, self.1.elapsed());
        }
    }
}

async fn predict(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    let mut counted = Unanswered(&app, Instant::now(), false);
    let response = match body {
        Ok(body) => answer(&app, &headers, &body).await,
        Err(rejection) => refusal(rejection.status(), rejection.body_text()),
    };
    counted.2 = true;
    app.metrics.count(response.status().as_u16(), counted.1.elapsed());
    response
}

async fn answer(app: &Arc<App>, headers: &HeaderMap, body: &Bytes) -> Response {
    let image = match input::image(headers, body) {
        Ok(image) => image,
        Err((status, text)) => return refusal(status, text),
    };
    let asked = headers.get("x-deadline-ms").and_then(|v| v.to_str().ok()?.parse().ok());
    let deadline =
        asked.map_or(app.config.deadline, |ms| Duration::from_millis(ms).min(app.config.deadline));
    let engine = app.engine();
    // The queue's places are the limit: a few batches are under way, whatever comes. The place is
    // given back as the answer is dropped.
    let Ok(answer) = engine.batcher.try_submit(image) else { return busy("the queue is full") };
    let read = async { answer.await?.to_vec::<f32>().await };
    match tokio::time::timeout(deadline, read).await {
        Ok(Ok(probability)) => {
            let best =
                (0..probability.len()).max_by(|&a, &b| probability[a].total_cmp(&probability[b]));
            Json(json!({ "digit": best, "probability": probability })).into_response()
        }
        Ok(Err(error)) if error.is_device_lost() => {
            app.device_was_lost(&engine, &error);
            busy("the device is lost")
        }
        Ok(Err(error)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        // The answer is dropped with `read`: its queued work is skipped.
        Err(_) => refusal(StatusCode::GATEWAY_TIMEOUT, format!("no answer within {deadline:?}")),
    }
}

fn health(app: &Arc<App>, engine: &Arc<Engine>) -> (bool, serde_json::Value) {
    let lost = engine.lost();
    if let Some(error) = lost.as_ref().filter(|e| e.is_device_lost()) {
        app.device_was_lost(engine, error);
    }
    let status = match (&lost, engine.fallback) {
        (Some(_), _) => "lost",
        (None, true) => "fallback",
        (None, false) => "ok",
    };
    let error = lost.as_ref().map(|e| e.message().to_owned());
    (lost.is_none(), json!({ "status": status, "device": engine.device.name(), "error": error }))
}

/// 200 while the model can answer, 503 while it cannot.
async fn healthz(State(app): State<Arc<App>>) -> Response {
    let (fine, text) = health(&app, &app.engine());
    let status = if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(text)).into_response()
}

async fn metrics_text(State(app): State<Arc<App>>) -> Response {
    let text = metrics::text(&app, &app.engine());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// The page's live figures.
async fn stats(State(app): State<Arc<App>>) -> Response {
    let engine = app.engine();
    let (b, d) = (engine.batcher.stats(), engine.device.stats());
    let barriers: Vec<_> = app
        .barriers()
        .sites
        .iter()
        .map(|s| {
            let file = s.site.file().rsplit('/').next().unwrap_or("");
            json!({
                "site": format!("{file}:{}", s.site.line()), "what": s.what, "count": s.count,
                "waited": s.waited,
                "mean_us": s.total.as_micros() as f64 / s.count.max(1) as f64,
                "worst_us": s.worst.as_micros() as u64, "queued": s.queued_mean,
                "ran_dry": s.ran_dry,
            })
        })
        .collect();
    Json(json!({
        "health": health(&app, &engine).1,
        "statuses": app.metrics.statuses(),
        "p50_ms": app.metrics.quantile(0.5) * 1e3,
        "p99_ms": app.metrics.quantile(0.99) * 1e3,
        "waiting": b.waiting, "running": b.running, "in_flight": b.in_flight,
        "requests": b.requests, "batches": b.batches, "refused": b.refused,
        "withdrawn": b.left_waiting + b.left_running,
        "queued": d.queued, "skipped": d.skipped, "steps": d.started,
        "barriers": barriers,
    }))
    .into_response()
}
