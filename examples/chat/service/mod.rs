//! The service: an engine, OpenAI's routes, and its orderly end. Nothing here blocks a thread.

mod answer;
pub mod ask;
mod metrics;
mod page;
#[path = "../../support/prometheus.rs"]
mod prometheus;
mod routes;

use futensor::Device;
use futensor_generate::{Engine, Llama, Options};
use metrics::Metrics;
use std::future::{Future, IntoFuture};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct Config {
    pub options: Options,
    /// How long a request may take in all; a client may ask for less (`x-deadline-ms`).
    pub deadline: Duration,
    /// How long the end may take.
    pub drain: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            options: Options::default(),
            deadline: Duration::from_secs(600),
            drain: Duration::from_secs(10),
        }
    }
}

/// The state that all requests share.
pub struct App {
    pub engine: Engine,
    /// The model's, for clients.
    pub name: String,
    pub config: Config,
    metrics: Metrics,
    /// Requests so far: part of their names, and of the seeds of those that bring none.
    count: AtomicU64,
}

/// Loads a model and starts its engine.
pub async fn start(device: &Device, path: &Path, config: Config) -> Outcome<Arc<App>> {
    let model = match path.is_dir() {
        true => Llama::from_folder(device, path).await?,
        false => Llama::from_gguf(device, path).await?,
    };
    let name = path.file_stem().map_or("model".into(), |stem| stem.to_string_lossy().into_owned());
    let engine = Engine::start(model, config.options.clone())?;
    let (metrics, count) = (Metrics::default(), AtomicU64::new(0));
    Ok(Arc::new(App { engine, name, config, metrics, count }))
}

/// Serves until `asked` resolves; then takes no new connections, lets the answers under way come to
/// their end, and ends the engine, all within [`Config::drain`].
pub async fn serve(
    app: Arc<App>,
    listener: tokio::net::TcpListener,
    asked: impl Future<Output = ()> + Send + 'static,
) -> Outcome<()> {
    let (tell, mut told) = tokio::sync::watch::channel(false);
    let ending = async move {
        asked.await;
        tell.send_replace(true);
    };
    let server = axum::serve(listener, routes::router(app.clone())).with_graceful_shutdown(ending);
    let mut server = tokio::spawn(server.into_future());
    let stop = server.abort_handle();
    let too_long = async {
        let _ = told.wait_for(|ending| *ending).await;
        tokio::time::sleep(app.config.drain).await;
    };
    let closed = tokio::select! {
        closed = &mut server => Some(closed),
        () = too_long => None,
    };
    // Answers that are not through by now are cut, and their requests end with them.
    stop.abort();
    app.engine.close();
    closed.ok_or("some answers did not end in time")???;
    Ok(())
}
