//! The servers: one router, and behind it nothing, futensor, or candle.

use super::Outcome;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use tokenizers::Tokenizer;

pub const NAMES: &[&str] = &[
    "none",
    #[cfg(feature = "futensor")]
    "futensor",
    #[cfg(feature = "futensor")]
    "futensor-single",
    #[cfg(feature = "candle")]
    "candle-batched",
    #[cfg(feature = "candle")]
    "candle-handler",
    #[cfg(feature = "candle")]
    "candle-blocking",
];

type Embedding = Pin<Box<dyn Future<Output = Outcome<Vec<f32>>> + Send>>;
type Engine = Box<dyn Fn(Vec<u32>) -> Embedding + Send + Sync>;

struct Served {
    tokenizer: Tokenizer,
    engine: Engine,
}

#[derive(serde::Deserialize)]
struct Text {
    text: String,
}

async fn embed(
    State(served): State<Arc<Served>>,
    Json(text): Json<Text>,
) -> Result<Json<Vec<f32>>, StatusCode> {
    let tokens =
        served.tokenizer.encode_fast(text.text, true).map_err(|_| StatusCode::BAD_REQUEST)?;
    let vector = (served.engine)(tokens.get_ids().to_vec()).await;
    vector.map(Json).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// Starts a server and says where it listens.
#[allow(unused_variables)] // Of the builds with one engine.
pub async fn start(name: &str, folder: &Path, nice: i32) -> Outcome<SocketAddr> {
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
    // The file pads everything to 128 tokens.
    tokenizer.with_padding(None);
    let engine: Engine = match name {
        "none" => Box::new(|tokens| Box::pin(async move { Ok(vec![tokens.len() as f32; 384]) })),
        #[cfg(feature = "futensor")]
        "futensor" | "futensor-single" => futensor_engine(folder, nice, name == "futensor").await?,
        #[cfg(feature = "candle")]
        "candle-batched" => candle_batched(folder)?,
        #[cfg(feature = "candle")]
        "candle-handler" | "candle-blocking" => candle_engine(folder, name == "candle-blocking")?,
        _ => return Err(format!("no engine is called {name} in this build").into()),
    };
    let served = Arc::new(Served { tokenizer, engine });
    let router = Router::new()
        .route("/embed", post(embed))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(served);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// Texts of about one length share batches of at most so many.
const BATCH_MAX: usize = 32;

fn length_class(tokens: &[u32]) -> usize {
    tokens.len().next_power_of_two().max(16)
}

#[cfg(feature = "futensor")]
async fn futensor_engine(folder: &Path, nice: i32, batched: bool) -> Outcome<Engine> {
    use futensor::serve::{BatchOptions, Batcher, rows};
    let device = futensor::Device::cpu_with(futensor::CpuOptions::default().nice(nice));
    let bert = futensor_models::Bert::from_folder(&device, folder, futensor::DType::F32).await?;
    if !batched {
        return Ok(Box::new(move |tokens| {
            let row = bert.embed(&[tokens]).squeeze(0);
            Box::pin(async move { Ok(row.to_vec::<f32>().await?) })
        }));
    }
    let options = BatchOptions::default().batch_max(BATCH_MAX).queue(1024).eager(true);
    let length = |ids: &Vec<u32>| length_class(ids) as u64;
    let batcher = Batcher::grouped(options, length, move |texts| rows(&bert.embed(texts)));
    Ok(Box::new(move |tokens| {
        let answer = batcher.submit(tokens);
        Box::pin(async move { Ok(answer.await?.to_vec::<f32>().await?) })
    }))
}

#[cfg(feature = "candle")]
fn candle_model(folder: &Path) -> Outcome<candle_transformers::models::bert::BertModel> {
    use candle_transformers::models::bert::{BertModel, Config};
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let weights = candle_nn::VarBuilder::from_buffered_safetensors(
        std::fs::read(folder.join("model.safetensors"))?,
        candle_core::DType::F32,
        &candle_core::Device::Cpu,
    )?;
    Ok(BertModel::load(weights, &config)?)
}

/// A row of texts, the shorter ones padded: the means of what the model makes of their tokens.
#[cfg(feature = "candle")]
fn candle_embed(
    model: &candle_transformers::models::bert::BertModel,
    texts: &[Vec<u32>],
) -> Outcome<Vec<Vec<f32>>> {
    use candle_core::{DType, Device, Tensor};
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let padded = |text: &Vec<u32>, of: fn(u32) -> u32, pad: u32| {
        let mut row: Vec<u32> = text.iter().map(|&id| of(id)).collect();
        row.resize(longest, pad);
        row
    };
    let shape = (texts.len(), longest);
    let ids: Vec<u32> = texts.iter().flat_map(|text| padded(text, |id| id, 0)).collect();
    let ids = Tensor::from_vec(ids, shape, &Device::Cpu)?;
    let is_padded = texts.iter().any(|text| text.len() != longest);
    let mean = if is_padded {
        let mask: Vec<u32> = texts.iter().flat_map(|text| padded(text, |_| 1, 0)).collect();
        let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
        let hidden = model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        let weights = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
        hidden.broadcast_mul(&weights)?.sum(1)?.broadcast_div(&weights.sum(1)?)?
    } else {
        model.forward(&ids, &ids.zeros_like()?, None)?.mean(1)?
    };
    let norm = mean.sqr()?.sum_keepdim(1)?.sqrt()?;
    Ok(mean.broadcast_div(&norm)?.to_vec2()?)
}

#[cfg(feature = "candle")]
fn candle_engine(folder: &Path, blocking: bool) -> Outcome<Engine> {
    let model = Arc::new(candle_model(folder)?);
    let embed = move |tokens| Ok(candle_embed(&model, &[tokens])?.remove(0));
    let embed = Arc::new(embed);
    Ok(Box::new(move |tokens| {
        let embed = embed.clone();
        Box::pin(async move {
            if blocking {
                tokio::task::spawn_blocking(move || embed(tokens)).await?
            } else {
                embed(tokens)
            }
        })
    }))
}

/// As one would batch by hand: a thread that takes what waits, in batches as futensor's.
#[cfg(feature = "candle")]
fn candle_batched(folder: &Path) -> Outcome<Engine> {
    use tokio::sync::{mpsc, oneshot};
    type Asked = (Vec<u32>, oneshot::Sender<Outcome<Vec<f32>>>);
    let model = candle_model(folder)?;
    let (ask, mut asked) = mpsc::unbounded_channel::<Asked>();
    std::thread::spawn(move || {
        let mut waiting: std::collections::VecDeque<Asked> = Default::default();
        loop {
            if waiting.is_empty() {
                match asked.blocking_recv() {
                    Some(first) => waiting.push_back(first),
                    None => return,
                }
            }
            while let Ok(next) = asked.try_recv() {
                waiting.push_back(next);
            }
            let class = length_class(&waiting[0].0);
            let mut batch = Vec::new();
            waiting = waiting.into_iter().fold(
                Default::default(),
                |mut left: std::collections::VecDeque<_>, one| {
                    match length_class(&one.0) == class && batch.len() < BATCH_MAX {
                        true => batch.push(one),
                        false => left.push_back(one),
                    }
                    left
                },
            );
            let (texts, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            match candle_embed(&model, &texts) {
                Ok(rows) => answers
                    .into_iter()
                    .zip(rows)
                    .for_each(|(answer, row)| drop(answer.send(Ok(row)))),
                Err(why) => eprintln!("a batch failed: {why}"),
            }
        }
    });
    Ok(Box::new(move |tokens| {
        let (tell, told) = oneshot::channel();
        let sent = ask.send((tokens, tell));
        Box::pin(async move {
            sent.map_err(|_| "the thread has ended")?;
            told.await?
        })
    }))
}
