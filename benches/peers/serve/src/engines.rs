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
    let tokens = served.tokenizer.encode_fast(text.text, true).map_err(|_| StatusCode::BAD_REQUEST)?;
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
        "futensor" => futensor_engine(folder, nice).await?,
        #[cfg(feature = "candle")]
        "candle-handler" | "candle-blocking" => candle_engine(folder, name == "candle-blocking")?,
        _ => return Err(format!("no engine is called {name} in this build").into()),
    };
    let served = Arc::new(Served { tokenizer, engine });
    let router =
        Router::new().route("/embed", post(embed)).route("/healthz", get(|| async { "ok" })).with_state(served);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

#[cfg(feature = "futensor")]
async fn futensor_engine(folder: &Path, nice: i32) -> Outcome<Engine> {
    use futensor::serve::{BatchOptions, Batcher, rows};
    let device = futensor::Device::cpu_with(futensor::CpuOptions::default().nice(nice));
    let bert = super::bert::Bert::load(&device, folder, futensor::DType::F32).await?;
    let options = BatchOptions::default().batch_max(32).queue(1024).eager(true);
    // As the example does: texts of about one length share batches.
    let length = |ids: &Vec<u32>| ids.len().next_power_of_two().max(16) as u64;
    let batcher = Batcher::grouped(options, length, move |texts| rows(&bert.embed(texts)));
    Ok(Box::new(move |tokens| {
        let answer = batcher.submit(tokens);
        Box::pin(async move { Ok(answer.await?.to_vec::<f32>().await?) })
    }))
}

#[cfg(feature = "candle")]
fn candle_engine(folder: &Path, blocking: bool) -> Outcome<Engine> {
    use candle_core::{DType, Device, Tensor};
    use candle_transformers::models::bert::{BertModel, Config};
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let weights = candle_nn::VarBuilder::from_buffered_safetensors(
        std::fs::read(folder.join("model.safetensors"))?,
        DType::F32,
        &Device::Cpu,
    )?;
    let model = Arc::new(BertModel::load(weights, &config)?);
    let embed = move |tokens: &[u32]| -> Outcome<Vec<f32>> {
        let ids = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let hidden = model.forward(&ids, &ids.zeros_like()?, None)?;
        let mean = hidden.mean(1)?;
        let norm = mean.sqr()?.sum_keepdim(1)?.sqrt()?;
        Ok(mean.broadcast_div(&norm)?.squeeze(0)?.to_vec1()?)
    };
    let embed = Arc::new(embed);
    Ok(Box::new(move |tokens| {
        let embed = embed.clone();
        Box::pin(async move {
            if blocking { tokio::task::spawn_blocking(move || embed(&tokens)).await? } else { embed(&tokens) }
        })
    }))
}
