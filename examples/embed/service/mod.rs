//! The service: an encoder (of `futensor-models`) and a tokenizer behind a batcher, a search index,
//! and the routes.

pub mod measure;
mod routes;
pub mod search;

use futensor::serve::{BatchOptions, Batcher, rows};
use futensor::{Device, TensorFuture, stack};
use futensor_models::Bert;
use search::Passage;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokenizers::{Tokenizer, TruncationParams};

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Most tokens of a text; what comes after is not read. As the model was published.
const TOKENS_MAX: usize = 256;

/// The folder's tokenizer, which pads nothing: read where nobody waits for the file.
pub async fn tokenizer(folder: &Path, tokens_max: usize) -> Outcome<Tokenizer> {
    let file = folder.join("tokenizer.json");
    let read = tokio::task::spawn_blocking(move || {
        Tokenizer::from_file(&file).map_err(|error| format!("{}: {error}", file.display()))
    });
    let mut tokenizer = read.await??;
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(Some(TruncationParams { max_length: tokens_max, ..Default::default() }))?;
    Ok(tokenizer)
}

/// The passages that can be searched, and their embeddings.
pub struct Index {
    pub passages: Vec<Passage>,
    /// `[passages, hidden]`.
    pub vectors: TensorFuture,
}

pub struct App {
    pub device: Device,
    tokenizer: Tokenizer,
    pub batcher: Batcher<Vec<u32>>,
    index: RwLock<Option<Arc<Index>>>,
}

impl App {
    pub async fn new(bert: Bert, folder: &Path) -> Outcome<Arc<App>> {
        let tokens_max = bert.config().max_position_embeddings.min(TOKENS_MAX);
        let tokenizer = tokenizer(folder, tokens_max).await?;
        let device = bert.device().clone();
        let options = BatchOptions::default()
            .batch_max(32)
            .queue(1024)
            .delay(Duration::from_millis(2))
            .eager(true);
        // Of one power of two, so that a short text does not wait for long ones.
        let length = |ids: &Vec<u32>| ids.len().next_power_of_two().max(16) as u64;
        let batcher = Batcher::grouped(options, length, move |texts| rows(&bert.embed(texts)));
        Ok(Arc::new(App { device, tokenizer, batcher, index: RwLock::default() }))
    }

    /// Token ids of a text. A few dozen microseconds a sentence.
    pub fn tokens(&self, text: &str) -> Outcome<Vec<u32>> {
        Ok(self.tokenizer.encode_fast(text, true)?.get_ids().to_vec())
    }

    /// Embeds the passages, through the same batcher as everybody, and opens the search.
    pub async fn index(self: Arc<App>, passages: Vec<Passage>) {
        let mut waiting = Vec::new();
        let mut vectors: Vec<TensorFuture> = Vec::new();
        let mut kept = Vec::new();
        for passage in passages {
            let Ok(tokens) = self.tokens(&passage.text) else { continue };
            waiting.push((passage, self.batcher.submit(tokens)));
            // Requests of others are to find room in the queue.
            if waiting.len() >= 64 {
                for (passage, answer) in waiting.drain(..) {
                    if let Ok(vector) = answer.await {
                        kept.push(passage);
                        vectors.push(vector.into());
                    }
                }
            }
        }
        for (passage, answer) in waiting {
            if let Ok(vector) = answer.await {
                kept.push(passage);
                vectors.push(vector.into());
            }
        }
        if vectors.is_empty() {
            return;
        }
        if let Ok(vectors) = stack(&vectors, 0).await {
            let index = Index { passages: kept, vectors: vectors.into() };
            *self.index.write().unwrap_or_else(|p| p.into_inner()) = Some(Arc::new(index));
        }
    }

    pub fn searched(&self) -> Option<Arc<Index>> {
        self.index.read().unwrap_or_else(|p| p.into_inner()).clone()
    }
}

/// Serves until `asked` resolves, then drains within five seconds.
pub async fn serve(
    app: Arc<App>,
    listener: tokio::net::TcpListener,
    asked: impl Future<Output = ()> + Send + 'static,
) -> Outcome<()> {
    axum::serve(listener, routes::router(app.clone())).with_graceful_shutdown(asked).await?;
    app.batcher.close();
    Ok(tokio::time::timeout(Duration::from_secs(5), app.device.waitall()).await??)
}
