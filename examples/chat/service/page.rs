//! The page at `/` and its files, compiled in.
//!
//! The output of a model is not to be trusted. Should the page's sanitiser let something through,
//! the policy allows scripts from these files alone, and requests to this server alone.

use super::App;
use axum::Router;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal: $kind:literal,)*) => {
        /// Name, type and content.
        const FILES: &[(&str, &str, &str)] =
            &[$(($name, $kind, include_str!(concat!("../page/", $name)))),*];
    };
}
files! {
    "index.html": "text/html; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "settings.js": "text/javascript; charset=utf-8",
    "request.js": "text/javascript; charset=utf-8",
    "talk.js": "text/javascript; charset=utf-8",
    "vendor/marked.umd.js": "text/javascript; charset=utf-8",
    "vendor/purify.min.js": "text/javascript; charset=utf-8",
    "vendor/marked.LICENSE": "text/plain; charset=utf-8",
    "vendor/purify.LICENSE": "text/plain; charset=utf-8",
}

pub fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(|| async { file("index.html") }))
        .route("/page/{*name}", get(|Path(name): Path<String>| async move { file(&name) }))
}

fn file(name: &str) -> Response {
    match FILES.iter().find(|(own, ..)| *own == name) {
        Some(&(_, kind, text)) => {
            let head = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (head, text).into_response()
        }
        None => (StatusCode::NOT_FOUND, "there is no such file").into_response(),
    }
}
