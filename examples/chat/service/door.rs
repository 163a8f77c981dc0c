//! What holds for every route: a name for each request, who may ask, and which pages may.

use super::App;
use super::ask::Refusal;
use super::routes::refused;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of a client's own name for its request at most.
const NAME_MAX: usize = 128;

/// See the module.
pub async fn door(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let given = headers.get(&REQUEST_ID).filter(|name| name.len() <= NAME_MAX).cloned();
    let name = given.unwrap_or_else(|| {
        let name = format!("req-{:016x}", app.unique(app.count.fetch_add(1, Relaxed)));
        HeaderValue::from_str(&name).unwrap_or(HeaderValue::from_static("req"))
    });
    let origin = headers.get(header::ORIGIN).filter(|o| app.config.lets_in(o)).cloned();
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD).is_some();
    let preflight = request.method() == Method::OPTIONS && wanted;
    let more = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match () {
        () if preflight => StatusCode::NO_CONTENT.into_response(),
        () if request.uri().path().starts_with("/v1/") && !app.config.knows_key(headers) => {
            refused(
                &Refusal::new(401, "the API key is missing, or another").code("invalid_api_key"),
            )
        }
        () => next.run(request).await,
    };
    let head = response.headers_mut();
    if let Some(origin) = origin {
        head.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let shown = HeaderValue::from_static("x-request-id, retry-after");
        head.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, shown);
        if preflight {
            let methods = HeaderValue::from_static("GET, POST, OPTIONS");
            head.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            head.extend(more.map(|more| (header::ACCESS_CONTROL_ALLOW_HEADERS, more)));
            let day = HeaderValue::from_static("86400");
            head.insert(header::ACCESS_CONTROL_MAX_AGE, day);
        }
    }
    head.append(header::VARY, HeaderValue::from_static("origin"));
    head.insert(REQUEST_ID, name);
    response
}

impl super::Config {
    /// Whether pages of this origin may ask: of this machine, and what the service was told.
    fn lets_in(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let rest = origin.split_once("://").map_or("", |(_, rest)| rest);
        let host = rest.rsplit_once(':').map_or(rest, |(host, port)| match port.ends_with(']') {
            true => rest,
            false => host,
        });
        ["localhost", "127.0.0.1", "[::1]"].contains(&host)
            || self.origins.iter().any(|own| own == "*" || own == origin)
    }

    /// Whether a request brings the key, where there is one. It takes as long for any key.
    fn knows_key(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
        let differ = given.iter().zip(key.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        given.len() == key.len() && differ == 0
    }
}
