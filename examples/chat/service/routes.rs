//! The routes: OpenAI's, `/health`, `/healthz` and `/metrics`; the page's are in `page`.

use super::answer::{Answer, error_body};
use super::ask::{self, Refusal};
use super::{App, door, metrics, page};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures::StreamExt as _;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Larger bodies are answered 413: no context has room for more text.
const BODY_MAX: usize = 2 << 20;

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(one_model))
        .route("/health", get(healthz))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_text))
        .merge(page::router())
        .fallback(|| async { refused(&Refusal::new(404, "there is no such route")) })
        .method_not_allowed_fallback(|| async {
            refused(&Refusal::new(405, "the route is there for another method"))
        })
        .layer(axum::middleware::from_fn_with_state(app.clone(), door::door))
        .with_state(app)
}

pub fn refused(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(error_body(refusal))).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    complete(app, request, true).await
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    complete(app, request, false).await
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

async fn complete(app: Arc<App>, request: Request, chat: bool) -> Response {
    let mut counted = Unanswered(&app, Instant::now(), false);
    let answered = answer(&app, request, chat).await;
    counted.2 = true;
    let response = answered.unwrap_or_else(|refusal| refused(&refusal));
    app.metrics.count(response.status().as_u16(), counted.1.elapsed());
    response
}

/// The body, unless its head, or what comes of it, says that it is too large.
async fn received(request: Request) -> Result<Vec<u8>, Refusal> {
    let no = |status: u16, text: String| Refusal::new(status, text);
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > BODY_MAX as u64) {
        return Err(no(413, format!("a body has {BODY_MAX} bytes at most")));
    }
    let (mut pieces, mut body, mut came) = (request.into_body().into_data_stream(), Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| no(400, format!("the body did not come: {error}")))?;
        came += piece.len();
        if came <= BODY_MAX {
            body.extend_from_slice(&piece);
        } else if came > 8 * BODY_MAX {
            break;
        }
        // Whoever is still writing hears no answer: some of what is too much is taken off his
        // hands.
    }
    match came <= BODY_MAX {
        true => Ok(body),
        false => Err(no(413, format!("a body has {BODY_MAX} bytes at most"))),
    }
}

async fn answer(app: &Arc<App>, request: Request, chat: bool) -> Result<Response, Refusal> {
    let headers = request.headers().clone();
    let body = tokio::time::timeout(app.config.patience.body, received(request)).await;
    let body = body.map_err(|_| Refusal::new(408, "the body did not come in time"))??;
    let (requests, asked) = ask::read(app, body, chat).await?;
    let wanted = headers.get("x-deadline-ms").and_then(|v| v.to_str().ok()?.parse().ok());
    let deadline =
        wanted.map_or(app.config.deadline, |ms| Duration::from_millis(ms).min(app.config.deadline));
    let begin = |mut request: futensor_generate::Request| {
        request.deadline = Some(deadline);
        app.engine.try_generate(request)
    };
    let tokens = requests.into_iter().map(begin).collect::<Result<Vec<_>, _>>()?;
    let stream = asked.stream;
    let answer = Answer::new(app.clone(), asked, tokens.len());
    if !stream {
        let head = [(header::CONTENT_TYPE, "application/json")];
        return Ok((head, answer.whole(tokens).await?).into_response());
    }
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((head, Body::from_stream(answer.events(tokens))).into_response())
}

fn model(app: &App) -> serde_json::Value {
    json!({
        "id": app.name, "object": "model", "created": app.began, "owned_by": "futensor",
        "max_model_len": app.engine.context(),
    })
}

async fn models(State(app): State<Arc<App>>) -> Response {
    Json(json!({ "object": "list", "data": [model(&app)] })).into_response()
}

async fn one_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    match app.knows(Some(&id)) {
        Ok(()) => Json(model(&app)).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

/// 200 while the model can answer, 503 while it cannot. Looks, and waits for nothing: an op on a
/// device that has ended fails at the call.
async fn healthz(State(app): State<Arc<App>>) -> Response {
    let device = app.engine.model().device();
    let lost = device.zeros([1]).error();
    let status = if lost.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if lost.is_none() { "ok" } else { "lost" };
    let error = lost.map(|e| e.message().to_owned());
    (status, Json(json!({ "status": word, "device": device.name(), "error": error })))
        .into_response()
}

async fn metrics_text(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text(&app)).into_response()
}
