//! The service: an engine, OpenAI's routes, and its orderly end. Nothing here blocks a thread.

mod answer;
pub mod ask;
mod connection;
mod door;
mod metrics;
mod page;
#[path = "../../support/prometheus.rs"]
mod prometheus;
mod routes;
pub mod tools;

use futensor::Device;
use futensor_generate::{Engine, Llama, Options};
use metrics::Metrics;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct Config {
    pub options: Options,
    /// How long a request may take in all; a client may ask for less (`x-deadline-ms`).
    pub deadline: Duration,
    /// How long the end may take.
    pub drain: Duration,
    /// How long clients may take.
    pub patience: Patience,
    /// What clients have to bring as `Authorization: Bearer KEY`, where there is one.
    pub key: Option<String>,
    /// Whose pages may ask, beside those of this machine; `*` is everybody's.
    pub origins: Vec<String>,
}

/// How long clients may take.
#[derive(Clone, Debug)]
pub struct Patience {
    /// For the head of a request.
    pub head: Duration,
    /// For its body.
    pub body: Duration,
    /// To take some of what they are sent.
    pub read: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            options: Options::default(),
            deadline: Duration::from_secs(600),
            drain: Duration::from_secs(10),
            patience: Patience {
                head: Duration::from_secs(20),
                body: Duration::from_secs(30),
                read: Duration::from_secs(60),
            },
            key: None,
            origins: Vec::new(),
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
    /// When it began, in seconds.
    began: u64,
    /// Requests so far: part of their names, and of the seeds of those that bring none.
    count: AtomicU64,
}

impl App {
    /// Refuses a model that it does not have.
    fn knows(&self, model: Option<&str>) -> Result<(), ask::Refusal> {
        let Some(model) = model.filter(|&model| model != self.name) else { return Ok(()) };
        let model: String = model.chars().take(60).collect();
        let text = format!("there is no model {model:?}: {:?} is", self.name);
        let refusal = ask::Refusal { status: 404, ..ask::Refusal::of_request(text, "model") };
        Err(refusal.code("model_not_found"))
    }

    /// A number that no request of this service has had, or had before it was started again.
    fn unique(&self, count: u64) -> u64 {
        self.began.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(count)
    }
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
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    Ok(Arc::new(App { engine, name, config, metrics, began, count }))
}

/// How long the last events may take.
const LAST: Duration = Duration::from_millis(500);

/// Serves until `asked` resolves; then takes no new connections, lets the answers under way come to
/// their end, and ends the engine, all within [`Config::drain`]. Where it is asked once more it
/// ends at once. What is cut is told so.
pub async fn serve<F: Future<Output = ()> + Send>(
    app: Arc<App>,
    listener: tokio::net::TcpListener,
    mut asked: impl FnMut() -> F,
) -> Outcome<()> {
    let (tell, told) = tokio::sync::watch::channel(false);
    let router = routes::router(app.clone());
    let mut connections = JoinSet::new();
    {
        let asked = asked();
        tokio::pin!(asked);
        loop {
            tokio::select! {
                () = &mut asked => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (patience, router) = (app.config.patience.clone(), router.clone());
                        let line = connection::serve(stream, router, patience, told.clone());
                        connections.spawn(line);
                    }
                    // No file is free, say: others are when somebody leaves.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
    }
    drop(listener);
    tell.send_replace(true);
    let closed = tokio::select! {
        () = all(&mut connections) => true,
        () = tokio::time::sleep(app.config.drain) => false,
        () = asked() => false,
    };
    app.engine.close();
    if !closed {
        // Streams are told, and then cut.
        let _ = tokio::time::timeout(LAST, all(&mut connections)).await;
        return Err("some answers did not end in time".into());
    }
    Ok(())
}

async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}
