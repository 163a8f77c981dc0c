//! The service: a model behind a batcher, its routes, and its orderly end.
//!
//! [`App`] holds the engine that answers (device, model, batcher) and replaces it, or asks for the
//! end, when its device is lost. Nothing here blocks a thread.

mod input;
mod metrics;
mod model;
#[path = "../../support/prometheus.rs"]
mod prometheus;
mod routes;

use futensor::barrier::{BarrierReport, Barriers};
use futensor::serve::{BatchOptions, Batcher};
use futensor::{CpuOptions, Device, Error};
use metrics::Metrics;
use model::{Model, Pixels};
use std::borrow::Cow;
use std::future::{Future, IntoFuture};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::watch;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What happens when the device is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// The model moves to the CPU, and the service goes on.
    Cpu,
    /// The service ends with an error, for its supervisor to start it anew.
    Exit,
}

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Requests in a batch at most.
    pub batch: usize,
    /// How long a request waits for company.
    pub delay: Duration,
    /// Whether a request goes out at once where nothing is under way.
    pub eager: bool,
    /// Requests that may wait for a batch; more are answered 503.
    pub queue: usize,
    /// How long a request may take in all; a client may ask for less.
    pub deadline: Duration,
    /// How long the end may take.
    pub drain: Duration,
    pub on_loss: OnLoss,
    /// The weights, as a safetensors file.
    pub model: Cow<'static, [u8]>,
    /// Where they are from, for errors.
    pub model_file: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            batch: 32,
            delay: Duration::from_millis(2),
            eager: true,
            queue: 256,
            deadline: Duration::from_secs(2),
            drain: Duration::from_secs(5),
            on_loss: OnLoss::Cpu,
            model: Cow::Borrowed(include_bytes!("../model/digits.safetensors")),
            model_file: "model/digits.safetensors".into(),
        }
    }
}

/// What answers: replaced as a whole when its device is lost.
pub struct Engine {
    pub device: Device,
    pub batcher: Batcher<Pixels>,
    pub barriers: Barriers,
    /// It took the place of one whose device was lost.
    pub fallback: bool,
}

impl Engine {
    async fn start(device: Device, config: &Config, fallback: bool) -> Outcome<Engine> {
        let model = Model::load(&device, config.model.clone()).await;
        let model = model.map_err(|error| format!("{}: {error}", config.model_file))?;
        let options = BatchOptions::default()
            .batch_max(config.batch)
            .delay(config.delay)
            .eager(config.eager)
            .queue(config.queue);
        let batcher = Batcher::new(options, move |requests| model.forward(requests));
        let barriers = device.barriers();
        Ok(Engine { device, batcher, barriers, fallback })
    }

    /// Why its device is of no use any more. Looks, and waits for nothing: an op on a device that
    /// has ended fails at the call.
    pub fn lost(&self) -> Option<Error> {
        self.device.zeros([1]).error()
    }
}

/// The state that all requests share.
pub struct App {
    engine: RwLock<Arc<Engine>>,
    pub config: Config,
    pub metrics: Metrics,
    /// Set once the service is to end; holds the reason where that is an error.
    end: watch::Sender<Option<String>>,
}

impl App {
    pub async fn new(device: Device, config: Config) -> Outcome<Arc<App>> {
        let engine = Engine::start(device, &config, false).await?;
        Ok(Arc::new(App {
            engine: RwLock::new(Arc::new(engine)),
            config,
            metrics: Metrics::default(),
            end: watch::Sender::new(None),
        }))
    }

    /// Who answers just now.
    pub fn engine(&self) -> Arc<Engine> {
        self.engine.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    pub fn barriers(&self) -> BarrierReport {
        self.engine().barriers.report()
    }

    /// A request, or a look at the health, met a lost device: the first to say so brings about what
    /// the policy asks for.
    pub fn device_was_lost(self: &Arc<Self>, of: &Arc<Engine>, error: &Error) {
        if !self.metrics.count_loss(of.device.name()) {
            return;
        }
        eprintln!("{error}");
        match self.config.on_loss {
            OnLoss::Exit => {
                self.end.send_replace(Some(error.to_string()));
            }
            OnLoss::Cpu => {
                let app = self.clone();
                tokio::spawn(async move {
                    let device = Device::cpu_with(CpuOptions::default());
                    match Engine::start(device, &app.config, true).await {
                        Ok(engine) => {
                            *app.engine.write().unwrap_or_else(|p| p.into_inner()) =
                                Arc::new(engine);
                        }
                        Err(error) => {
                            app.end.send_replace(Some(error.to_string()));
                        }
                    }
                });
            }
        }
    }
}

/// Loads the model and listens, in this order: whoever is told of the address (`announce`) or gets
/// a connection meets a model that has its weights. A port that is taken, or weights of another
/// network, are errors.
pub async fn start(
    device: Device,
    config: Config,
    address: std::net::SocketAddr,
    announce: impl FnOnce(std::net::SocketAddr),
) -> Outcome<(Arc<App>, tokio::net::TcpListener)> {
    let app = App::new(device, config).await?;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(|error| format!("{address}: {error}"))?;
    announce(listener.local_addr()?);
    Ok((app, listener))
}

/// Serves until `asked` resolves or the policy ends it; then takes no new connections, lets those
/// that are there finish, and drains the device, all within [`Config::drain`].
pub async fn serve(
    app: Arc<App>,
    listener: tokio::net::TcpListener,
    asked: impl Future<Output = ()> + Send + 'static,
) -> Outcome<()> {
    let mut ends = app.end.subscribe();
    let end = app.clone();
    tokio::spawn(async move {
        asked.await;
        // An error that is there already stays.
        end.end.send_if_modified(|reason| {
            reason.is_none().then(|| *reason = Some(String::new())).is_some()
        });
    });
    let mut begins = app.end.subscribe();
    let ending = async move {
        let _ = begins.wait_for(Option::is_some).await;
    };
    let server = axum::serve(listener, routes::router(app.clone())).with_graceful_shutdown(ending);
    let server = tokio::spawn(server.into_future());
    let reason = ends.wait_for(Option::is_some).await?.clone().unwrap_or_default();

    let until = tokio::time::Instant::now() + app.config.drain;
    let stop = server.abort_handle();
    let closed = tokio::time::timeout_at(until, server).await;
    // Connections that are not through by now are cut; their requests are withdrawn with them.
    stop.abort();
    let engine = app.engine();
    engine.batcher.close();
    let drained = tokio::time::timeout_at(until, engine.device.waitall()).await;
    if !reason.is_empty() {
        return Err(reason.into());
    }
    closed.map_err(|_| "some connections did not end in time")???;
    drained.map_err(|_| "the device did not drain in time")??;
    Ok(())
}
