//! The routes: `/embed`, `/search`, `/healthz`, `/stats`, and the page.

use super::App;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);
/// Texts of one request at most.
const TEXTS_MAX: usize = 64;

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/embed", post(embed))
        .route("/search", get(search))
        .route("/healthz", get(healthz))
        .route("/stats", get(stats))
        .route("/", get(|| async { Html(include_str!("../page.html")) }))
        .layer(DefaultBodyLimit::max(256 << 10))
        .with_state(app)
}

fn refusal(status: StatusCode, text: impl Into<String>) -> Response {
    (status, Json(json!({ "error": text.into() }))).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    texts: Vec<String>,
}

/// The embeddings of these texts, and how many tokens they were; or why not.
async fn embeddings(app: &App, texts: &[String]) -> Result<(Vec<Vec<f32>>, usize), Response> {
    let mut tokens = 0;
    let mut answers = Vec::new();
    for text in texts {
        let ids = app
            .tokens(text)
            .map_err(|e| refusal(StatusCode::UNPROCESSABLE_ENTITY, e.to_string()))?;
        tokens += ids.len();
        let answer = app.batcher.try_submit(ids).map_err(|_| {
            let mut busy = refusal(StatusCode::SERVICE_UNAVAILABLE, "the queue is full");
            busy.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
            busy
        })?;
        answers.push(answer);
    }
    let read = async {
        let mut vectors = Vec::new();
        for answer in answers {
            vectors.push(answer.await?.to_vec::<f32>().await?);
        }
        futensor::Result::<_>::Ok(vectors)
    };
    match tokio::time::timeout(DEADLINE, read).await {
        Ok(Ok(vectors)) => Ok((vectors, tokens)),
        Ok(Err(error)) => Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        Err(_) => Err(refusal(StatusCode::GATEWAY_TIMEOUT, "no answer in time")),
    }
}

async fn embed(State(app): State<Arc<App>>, Json(request): Json<Texts>) -> Response {
    if request.texts.is_empty() || request.texts.len() > TEXTS_MAX {
        let text = format!("{} texts, not 1 to {TEXTS_MAX}", request.texts.len());
        return refusal(StatusCode::UNPROCESSABLE_ENTITY, text);
    }
    match embeddings(&app, &request.texts).await {
        Ok((vectors, tokens)) => {
            Json(json!({ "embeddings": vectors, "tokens": tokens })).into_response()
        }
        Err(response) => response,
    }
}

#[derive(Deserialize)]
struct Asked {
    q: String,
    n: Option<usize>,
}

/// The passages nearest in meaning: one product with the index, on the device, and its largest.
async fn search(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Response {
    let from = Instant::now();
    let Some(index) = app.searched() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "the documentation is still being read");
    };
    let query = match app.tokens(&asked.q).map(|tokens| app.batcher.try_submit(tokens)) {
        Ok(Ok(query)) => query,
        Ok(Err(_)) => return refusal(StatusCode::SERVICE_UNAVAILABLE, "the queue is full"),
        Err(error) => return refusal(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    };
    let n = asked.n.unwrap_or(8).clamp(1, index.passages.len());
    let found = async {
        let scores = index.vectors.matmul(&query.await?);
        let (scores, at) = scores.topk(n, 0, true);
        let (scores, at) = (scores.to_vec::<f32>(), at.to_vec::<i64>());
        futensor::Result::<_>::Ok((scores.await?, at.await?))
    };
    match found.await {
        Ok((scores, at)) => {
            let passages: Vec<_> = scores
                .iter()
                .zip(at)
                .map(|(score, k)| {
                    let passage = &index.passages[k as usize];
                    json!({
                        "score": score, "place": passage.place, "title": passage.title,
                        "text": passage.text,
                    })
                })
                .collect();
            let took = from.elapsed().as_secs_f64() * 1e3;
            Json(json!({ "passages": passages, "of": index.passages.len(), "ms": took }))
                .into_response()
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn healthz(State(app): State<Arc<App>>) -> Response {
    match app.device.zeros([1]).error() {
        None => Json(json!({ "status": "ok" })).into_response(),
        Some(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, error.message()),
    }
}

async fn stats(State(app): State<Arc<App>>) -> Response {
    let (b, d) = (app.batcher.stats(), app.device.stats());
    Json(json!({
        "requests": b.requests, "answered": b.answered, "failed": b.failed, "refused": b.refused,
        "withdrawn": b.left_waiting + b.left_running, "batches": b.batches, "sizes": b.sizes,
        "waiting": b.waiting, "in_flight": b.in_flight, "queued": d.queued, "skipped": d.skipped,
        "answer_mean_ms": b.answer_total.as_secs_f64() * 1e3 / b.answered.max(1) as f64,
        "indexed": app.searched().map_or(0, |index| index.passages.len()),
    }))
    .into_response()
}
