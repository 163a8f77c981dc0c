//! Files of tensors: what PyTorch's format holds comes back as it was, broken files are told apart,
//! and a file that does not answer blocks nobody.

use futensor::float8::{Float8E4M3, Float8E5M2};
use futensor::safetensors::{LoadOptions, load, load_bytes, load_with, save, save_with_metadata};
use futensor::{DType, Device, Element};
use futures::executor::block_on;
use futures::{FutureExt, TryStreamExt};
use half::{bf16, f16};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A path of its own that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(
            std::env::temp_dir()
                .join(format!("futensor-{}-{count}.safetensors", std::process::id())),
        )
    }
    fn with(bytes: &[u8]) -> Scratch {
        let scratch = Scratch::new();
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file: its header's text, padded, and its data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut text = header.as_bytes().to_vec();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text, data].concat()
}

fn small() -> Vec<u8> {
    let data: Vec<u8> =
        [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).chain([1, 0, 7]).collect();
    let header = r#"{"__metadata__":{"format":"pt"},
        "fc.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
        "flags":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]},
        "n":{"dtype":"U8","shape":[],"data_offsets":[10,11]}}"#;
    file(header, &data)
}

/// A message without the file's name.
fn reason<'a>(file: &Scratch, message: &'a str) -> Option<&'a str> {
    message.strip_prefix(&file.0.display().to_string()[..])
}

/// The message with which a file is refused.
fn refused(bytes: &[u8]) -> String {
    let scratch = Scratch::with(bytes);
    let error = block_on(load(&scratch.0, &Device::cpu()).all()).unwrap_err();
    assert!(error.is_source() && error.op() == "load", "{error}");
    assert!(error.to_string().contains("tests/files/safetensors.rs"), "{error}");
    // In memory it is refused for the same reason.
    let in_memory = block_on(load_bytes(bytes.to_vec(), &Device::cpu()).all()).unwrap_err();
    assert_eq!(
        in_memory.message().strip_prefix("bytes in memory"),
        reason(&scratch, error.message())
    );
    assert!(in_memory.to_string().contains("tests/files/safetensors.rs"), "{in_memory}");
    error.message().to_string()
}

#[tokio::test]
async fn names_shapes_types_and_elements_come_as_they_are() {
    let scratch = Scratch::with(&small());
    let device = Device::cpu();
    let mut load = load(&scratch.0, &device);
    let mut names = Vec::new();
    while let Some(loaded) = load.next().await {
        let (name, x) = loaded.unwrap();
        match &name[..] {
            "fc.weight" => {
                assert_eq!(
                    (x.dims(), x.to_vec::<f32>().await.unwrap()),
                    (&[1, 2][..], vec![1.5, -2.0])
                );
            }
            "flags" => assert_eq!(x.to_vec::<bool>().await.unwrap(), [true, false]),
            _ => assert_eq!((x.rank(), x.item::<u8>().await.unwrap()), (0, 7)),
        }
        names.push(name);
        assert_eq!((load.progress().tensors, load.progress().tensors_all), (names.len(), 3));
    }
    assert_eq!(names, ["fc.weight", "flags", "n"]);
    assert_eq!((load.progress().bytes, load.progress().bytes_all), (11, 11));
    assert_eq!(load.progress().fraction(), 1.0);
    assert!(load.next().await.is_none());
}

#[tokio::test]
async fn every_type_and_shape_survives_a_round_trip() {
    async fn check<T: Element>(device: &Device) {
        let (scratch, shapes) = (Scratch::new(), [vec![], vec![0], vec![3, 1, 5], vec![600, 700]]);
        let of = |shape: &Vec<usize>| {
            let n = shape.iter().product::<usize>();
            let data: Vec<T> = (0..n).map(|i| T::from_f64((i % 101) as f64 - 50.0)).collect();
            device.from_vec(data, &shape[..])
        };
        let all: Vec<_> =
            shapes.iter().enumerate().map(|(i, s)| (format!("x.{i}"), of(s))).collect();
        // A view is written as it is seen.
        let turned = all[2].1.transpose(0, 2);
        save(&scratch.0, all.iter().map(|(n, x)| (n.clone(), x)).chain([("t".into(), &turned)]))
            .await
            .unwrap();
        let loaded = load(&scratch.0, device).all().await.unwrap();
        assert_eq!(loaded.len(), 5);
        for (name, x) in all.iter().chain([&("t".to_string(), turned)]) {
            let y = &loaded[name];
            assert_eq!((x.shape(), x.dtype()), (y.shape(), y.dtype()));
            assert_eq!(x.to_vec::<T>().await.unwrap(), y.to_vec::<T>().await.unwrap());
        }
    }
    let device = Device::cpu();
    check::<f32>(&device).await;
    check::<f64>(&device).await;
    check::<f16>(&device).await;
    check::<bf16>(&device).await;
    check::<i32>(&device).await;
    check::<i64>(&device).await;
    check::<u8>(&device).await;
    check::<bool>(&device).await;
    check::<i8>(&device).await;
    check::<i16>(&device).await;
    check::<u16>(&device).await;
    check::<u32>(&device).await;
    check::<u64>(&device).await;
    check::<Float8E4M3>(&device).await;
    check::<Float8E5M2>(&device).await;
}

#[tokio::test]
async fn what_is_saved_the_reference_library_reads() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let (x, y) = (device.arange(0.0, 6.0, 1.0).reshape([2, 3]), device.from_vec(vec![1u8, 2], [2]));
    save(&scratch.0, [("b", &y), ("a", &x)]).await.unwrap();
    let bytes = std::fs::read(&scratch.0).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let a = read.tensor("a").unwrap();
    assert_eq!((a.dtype(), a.shape()), (safetensors::Dtype::F32, &[2, 3][..]));
    let floats: Vec<f32> =
        a.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(floats, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(read.tensor("b").unwrap().data(), [1, 2]);
    // Elements begin at whole words, however long the names are.
    for n in 1..10 {
        save(&scratch.0, [("n".repeat(n), &x)]).await.unwrap();
        let bytes = std::fs::read(&scratch.0).unwrap();
        assert!(
            u64::from_le_bytes(bytes[..8].try_into().unwrap()).is_multiple_of(8),
            "a name of {n}"
        );
    }
}

#[test]
fn each_kind_of_broken_file_says_what_is_wrong() {
    let whole = small();
    assert!(refused(&whole[..5]).contains("truncated: 5 bytes cannot hold a header"));
    assert!(refused(&whole[..40]).contains("truncated: 40 bytes, but a header of"));
    let message = refused(&whole[..whole.len() - 1]);
    assert!(
        message.contains(&format!("truncated: {} bytes of {}", whole.len() - 1, whole.len())),
        "{message}"
    );
    let mut long = whole.clone();
    long.extend([0; 3]);
    assert!(refused(&long).contains("3 bytes more than the header describes"));
    assert!(refused(&[0xff; 64]).contains("this is not a safetensors file"));
    assert!(refused(&file("{]", &[])).contains("the header does not describe tensors"));
    let one = |info: &str, data: &[u8]| refused(&file(&format!("{{\"x\":{{{info}}}}}"), data));
    let message = one(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#, &[0; 8]);
    assert!(message.contains("shape and type do not fit its bytes"), "{message}");
    let message = one(r#""dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]"#, &[0; 2]);
    assert!(
        message.contains("tensor x is F8_E8M0, a type that futensor does not have"),
        "{message}"
    );
    let message = one(r#""dtype":"BOOL","shape":[3],"data_offsets":[0,3]"#, &[0, 1, 2]);
    assert!(message.contains("tensor x: element 2 is not a bool"), "{message}");
    let message =
        one(r#""dtype":"F32","shape":[18446744073709551615,8],"data_offsets":[0,8]"#, &[0; 8]);
    assert!(message.contains("larger than any memory"), "{message}");
    let message = one(r#""dtype":"U8","shape":[4],"data_offsets":[4,8]"#, &[0; 8]);
    assert!(message.contains("tensor x overlaps another one, or leaves a gap"), "{message}");
    let two = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    let message = refused(&file(two, &[0; 6]));
    assert!(message.contains("tensor b overlaps another one"), "{message}");
    // Their sum is all but more than a number holds.
    let each = (1u64 << 61) - 1;
    let tensor = |i: u64| {
        let (from, to) = (i * each, (i + 1) * each);
        format!(r#""{i}":{{"dtype":"U8","shape":[{each}],"data_offsets":[{from},{to}]}}"#)
    };
    let message =
        refused(&file(&format!("{{{}}}", (0..8).map(tensor).collect::<Vec<_>>().join(",")), &[]));
    assert!(message.contains("truncated"), "{message}");
    let error = block_on(load("/nowhere/x.safetensors", &Device::cpu()).all()).unwrap_err();
    assert!(error.is_source() && error.message().contains("/nowhere/x.safetensors"), "{error}");
}

#[tokio::test]
async fn only_what_is_wanted_is_read() {
    let scratch = Scratch::with(&small());
    let options = LoadOptions::default().ahead_bytes(1).only(|name| name.starts_with("fc."));
    let stream = load_with(&scratch.0, &Device::cpu(), options);
    let all: Vec<_> = stream.map_ok(|(name, x)| (name, x.dtype())).try_collect().await.unwrap();
    assert_eq!(all, [("fc.weight".to_string(), DType::F32)]);
}

#[tokio::test]
async fn a_choice_of_names_that_panics_is_an_error_of_the_stream() {
    let options =
        LoadOptions::default().only(|name| if name == "n" { panic!("no {name}") } else { true });
    let scratch = Scratch::with(&small());
    let error = load_with(&scratch.0, &Device::cpu(), options).all().await.unwrap_err();
    assert!(error.is_source() && error.message().ends_with("panicked: no n"), "{error}");
}

#[tokio::test]
async fn a_dropped_stream_ends_in_the_middle_and_keeps_what_it_gave() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let each = device.ones([1 << 16]);
    save(&scratch.0, (0..20).map(|i| (format!("{i:02}"), &each))).await.unwrap();
    let options = LoadOptions::default().ahead_bytes(1 << 18);
    let mut stream = load_with(&scratch.0, &device, options);
    let (name, x) = stream.next().await.unwrap().unwrap();
    drop(stream);
    assert_eq!((&name[..], x.sum_all().item::<f32>().await.unwrap()), ("00", 65536.0));
}

/// Opening a named pipe waits for the other side: here, for ever.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_does_not_answer_blocks_nobody() {
    let scratch = Scratch::new();
    assert!(std::process::Command::new("mkfifo").arg(&scratch.0).status().unwrap().success());
    let mut stream = load(&scratch.0, &Device::cpu());
    assert!(stream.next().now_or_never().is_none());
    tokio::task::yield_now().await;
    assert!(stream.next().now_or_never().is_none());
    drop(stream);
    // Lets the reading thread go, which nobody waits for.
    drop(std::fs::OpenOptions::new().read(true).write(true).open(&scratch.0).unwrap());
}

#[tokio::test]
async fn a_save_that_fails_or_is_dropped_leaves_the_old_file() {
    let (scratch, device) = (Scratch::with(b"old"), Device::cpu());
    let wrong = device.ones([2]) + device.ones([3]);
    let error = save(&scratch.0, [("x", &wrong)]).await.unwrap_err();
    assert!(error.is_shape());
    // Whatever its sizes.
    let large = device.zeros([usize::MAX]);
    for all in [vec![("x", &large)], vec![("x", &large), ("y", &large)]] {
        assert!(save(&scratch.0, all).await.unwrap_err().same_root(&large.error().unwrap()));
    }
    let repeated = device.zeros([1]).expand([1usize << 60]);
    let error = save(&scratch.0, (0..8).map(|i| (i.to_string(), &repeated))).await.unwrap_err();
    assert!(error.message().contains("too large for a file"), "{error}");
    // Fails only once it is computed.
    let late = device.ones([2, 2]).index_select(0, device.full([1], 9));
    assert!(save(&scratch.0, [("x", &late)]).await.unwrap_err().is_index());
    let twice = device.ones([2]);
    let error = save(&scratch.0, [("x", &twice), ("x", &twice)]).await.unwrap_err();
    assert!(error.is_source() && error.message().contains("two tensors are named x"), "{error}");
    drop(save(&scratch.0, [("x", &twice)]));
    assert_eq!(std::fs::read(&scratch.0).unwrap(), b"old");
    // Dropped in the middle, when the file beside it has begun.
    let never = device.from_future([2], std::future::pending::<futensor::Result<Vec<f32>>>());
    let mut saving = save(&scratch.0, [("x", &twice), ("y", &never)]);
    let name = scratch.0.file_name().unwrap().to_str().unwrap().to_owned() + ".";
    let parts = || {
        let files = std::fs::read_dir(scratch.0.parent().unwrap()).unwrap().flatten();
        files.filter(|file| file.file_name().to_str().is_some_and(|n| n.starts_with(&name))).count()
    };
    let until = |there: usize| {
        let begun = std::time::Instant::now();
        while parts() != there {
            assert!(begun.elapsed().as_secs() < 30, "{} files beside it, for {there}", parts());
            std::thread::yield_now();
        }
    };
    assert!(futures::poll!(&mut saving).is_pending());
    until(1);
    drop(saving);
    until(0);
    assert_eq!(std::fs::read(&scratch.0).unwrap(), b"old");
    save(&scratch.0, [("x", &twice)]).await.unwrap();
    assert_eq!(load(&scratch.0, &device).all().await.unwrap().len(), 1);
    let error = save("/nowhere/x.safetensors", [("x", &twice)]).await.unwrap_err();
    assert!(error.is_source() && error.op() == "save");
}

#[tokio::test]
async fn metadata_is_written_and_read_as_the_reference_library_has_it() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let about = [("step", "1200"), ("format", "pt"), ("note", "\"a\"\n\u{e9}\\ \u{0}"), ("", "")];
    let w = device.arange(0.0, 6.0, 1.0);
    save_with_metadata(&scratch.0, about, [("w", &w)]).await.unwrap();
    let bytes = std::fs::read(&scratch.0).unwrap();
    let (_, reference) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let want: std::collections::BTreeMap<String, String> =
        about.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let theirs = reference.metadata().clone().unwrap();
    assert_eq!(theirs.into_iter().collect::<std::collections::BTreeMap<_, _>>(), want);
    // Ours, before and after the tensors; and a stream that was not asked loses nothing.
    let mut file = load(&scratch.0, &device);
    assert_eq!(file.metadata().await.unwrap(), want);
    assert_eq!((file.progress().tensors, file.progress().tensors_all), (0, 1));
    let (name, x) = file.next().await.unwrap().unwrap();
    assert_eq!((&name[..], x.to_vec::<f32>().await.unwrap()[5]), ("w", 5.0));
    assert!(file.next().await.is_none());
    assert_eq!(file.metadata().await.unwrap(), want);
    // The reference writes what is read here.
    let theirs = safetensors::serialize(
        std::iter::empty::<(String, safetensors::tensor::TensorView<'_>)>(),
        Some(want.clone().into_iter().collect()),
    );
    let mut none = load_bytes(theirs.unwrap(), &device);
    assert_eq!(none.metadata().await.unwrap(), want);
    assert!(none.next().await.is_none());
    // The same file, byte for byte, in whatever order the words are given; and with no tensors.
    let again = Scratch::new();
    save_with_metadata(&again.0, about.iter().rev().copied(), [("w", &w)]).await.unwrap();
    assert_eq!(std::fs::read(&again.0).unwrap(), bytes);
    save_with_metadata::<_, _, &str, &futensor::TensorFuture>(&again.0, about, []).await.unwrap();
    assert_eq!(load(&again.0, &device).metadata().await.unwrap(), want);
    save(&again.0, [("w", &w)]).await.unwrap();
    assert!(load(&again.0, &device).metadata().await.unwrap().is_empty());
}

#[tokio::test]
async fn metadata_that_no_file_can_have_is_refused_and_a_broken_header_is_told_twice() {
    let (scratch, device) = (Scratch::new(), Device::cpu());
    let w = device.ones([1]);
    let twice = save_with_metadata(&scratch.0, [("a", "1"), ("a", "2")], [("w", &w)]).await;
    assert!(twice.unwrap_err().message().contains("a is given twice"));
    let name = save(&scratch.0, [("__metadata__", &w)]).await.unwrap_err();
    assert!(name.message().contains("no tensor can be named __metadata__"), "{name}");
    let long = "x".repeat(100 << 20);
    let long = save_with_metadata(&scratch.0, [("a", long)], [("w", &w)]).await.unwrap_err();
    assert!(long.message().contains("no reader takes it"), "{long}");
    assert!(!scratch.0.exists());
    let broken = Scratch::with(&file(r#"{"__metadata__":{"step":3}}"#, &[]));
    let mut broken = load(&broken.0, &device);
    let first = broken.metadata().await.unwrap_err();
    assert!(first.is_source() && broken.metadata().await.is_err());
    assert_eq!(broken.all().await.unwrap_err().message(), first.message());
}
