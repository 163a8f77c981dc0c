//! The surroundings of a process: libraries and GPUs that are missing, settings, a disk cache that
//! is damaged.
//!
//! What a process reads once (its libraries, its settings) is tried in a process of its own: this
//! program again, with the name of a part to play.

use super::support::block_on;
use super::{Entry, convolutions, device, driver, entries};
use futensor::cuda::CudaOptions;
use futensor::{DType, Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub fn all() -> Vec<Entry> {
    entries![1, false;
        a_gpu_has_a_name_and_memory_and_a_number
        a_library_that_is_missing_is_named_with_where_it_was_looked_for
        a_machine_without_a_gpu_says_so_and_falls_back_to_the_cpu
        a_driver_that_lacks_a_call_is_said_to_be_too_old
        a_driver_without_the_newest_clock_tells_times_by_the_one_before
        a_compiler_that_is_newer_than_the_driver_is_named_with_what_to_do
        settings_of_the_environment_change_no_value
        libraries_in_a_pythons_wheels_are_found
        a_sum_has_the_same_bits_fused_or_not_and_however_its_operand_lies
        a_disk_cache_that_is_damaged_is_as_good_as_none
        a_disk_cache_is_thinned_out_and_rid_of_what_was_never_finished
    ]
    .to_vec()
}

const PART: &str = "FUTENSOR_TEST_PART";

/// A file that a part and its parent share.
fn hold() -> PathBuf {
    std::env::var_os("FUTENSOR_TEST_HOLD").unwrap().into()
}

/// Plays a part in a process of its own, where this is one.
pub fn part() -> Option<ExitCode> {
    let part = std::env::var(PART).ok()?;
    match part.as_str() {
        "probe" => match Device::cuda(0) {
            Ok(device) => println!("there: {device}"),
            Err(error) => {
                println!("{error}");
                println!("{} {}", Device::gpu_count(), Device::try_all_gpus().len());
                println!("{}", Device::try_gpu(0));
            }
        },
        "sums" => println!("{:?}", sums()),
        "timed" => println!("{}", timed()),
        "held" => println!("{}", driver::held(&hold())),
        "left" => driver::left(&hold()),
        "gone" => driver::gone(),
        "lost" => driver::lost(),
        "multiplied" => driver::multiplied(),
        "libraries" => println!("{}", device(0).libraries()),
        "convolved" => println!("{:?}", convolutions::seen()),
        "refused" => println!("{}", refused()),
        _ => println!("{:?}", values()),
    }
    Some(ExitCode::SUCCESS)
}

/// What this program prints in a part.
pub fn played(part: &str, change: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PART, part);
    let out = change(&mut command).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{part} ends with {}: {text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Bits of values that came through kernels alone, fused kernels, reductions and a product.
fn values() -> Vec<u32> {
    let device = device(0);
    let x = device.arange(0.0, 600.0, 1.0).reshape([20, 30]) / 7.0;
    let mut bits = Vec::new();
    for _ in 0..5 {
        let y = (&x * 2.0 + 1.0).sqrt() - x.sin();
        let read = [block_on(y.to_vec::<f32>()), block_on(y.sum(1).to_vec::<f32>())];
        let product = block_on(x.matmul(x.t()).to_vec::<f32>());
        bits =
            read.into_iter().chain([product]).flat_map(|v| v.unwrap()).map(f32::to_bits).collect();
    }
    bits
}

/// Bits of sums: of a value in memory, and of the same made on the way, from operands that lie in
/// rows, in columns and in half the bytes. And how many launches it took.
fn sums() -> (Vec<Vec<u32>>, u64) {
    let device = device(0);
    device.seed(3);
    let bits = |x: TensorFuture| -> Vec<u32> {
        block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
    };
    let simulator = Simulator::attach().unwrap();
    let mut all = Vec::new();
    let mut launches = 0;
    for shape in [[40, 1000], [100, 64], [3, 9000]] {
        let halves = block_on(device.randn(shape).to_dtype(DType::F16)).unwrap();
        let x = block_on(halves.to_dtype(DType::F32)).unwrap();
        let turned = block_on(x.t().reshape([shape[0] * shape[1]]) + 0.0).unwrap();
        let turned = turned.reshape([shape[1], shape[0]]).t();
        let products = block_on(&x * 1.5 + 0.25).unwrap();
        for dim in [0, 1] {
            let before = simulator.stats().launches;
            let widened = halves.to_dtype(DType::F32).sum(dim);
            let some = [x.sum(dim), turned.sum(dim), widened].map(bits);
            assert!(some.iter().all(|s| *s == some[0]), "{shape:?} over {dim}");
            let made =
                [products.sum(dim), (&x * 1.5 + 0.25).sum(dim), (&turned * 1.5 + 0.25).sum(dim)]
                    .map(bits);
            assert!(made.iter().all(|s| *s == made[0]), "{shape:?} over {dim}, made on the way");
            launches += simulator.stats().launches - before;
            all.extend([some[0].clone(), made[0].clone()]);
        }
    }
    (all, launches)
}

fn a_sum_has_the_same_bits_fused_or_not_and_however_its_operand_lies(_: &Simulator, _: u64) {
    let of = |fusion: &str| played("sums", |c| c.env("FUTENSOR_FUSION", fusion));
    let [fused, apart] = ["now", "never"].map(of);
    let split = |text: &str| {
        let (bits, launches) = text.trim_end().rsplit_once(", ").unwrap();
        (bits.to_owned(), launches.trim_end_matches(')').parse::<u64>().unwrap())
    };
    let ((fused, few), (apart, many)) = (split(&fused), split(&apart));
    assert!(few < many, "{few} launches fused, {many} apart");
    assert_eq!(fused, apart);
}

/// A folder of this test's own.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("futensor-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The folder that the simulated libraries lie in.
fn libraries() -> PathBuf {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap();
    PathBuf::from(path.split(':').next().unwrap())
}

fn a_gpu_has_a_name_and_memory_and_a_number(_: &Simulator, _: u64) {
    assert_eq!((Device::gpu_count(), Device::try_all_gpus().len()), (2, 2));
    let error = Device::cuda(7).unwrap_err();
    assert!(error.is_device() && error.message().contains("there is no GPU 7"), "{error}");
    let error = Device::cuda_with(7, CudaOptions::default()).unwrap_err();
    assert!(error.message().contains("cuda:7 is not available"), "{error}");
    let device = device(0);
    assert!(device.hardware().contains("simulated") || !device.hardware().is_empty());
    let before = device.memory();
    assert!(before.free.is_none() && before.total > 1 << 30, "{before:?}");
    let x = block_on(device.ones([1000]) + 1.0).unwrap();
    let open = device.memory();
    assert!(open.free.is_some_and(|free| free > 0 && free < open.total), "{open:?}");
    assert_eq!(open.total, before.total);
    drop(x);
    // The process's own device for a GPU is one, and lives on.
    assert_eq!(Device::cuda(1).unwrap(), Device::try_gpu(1));
}

fn a_library_that_is_missing_is_named_with_where_it_was_looked_for(_: &Simulator, _: u64) {
    let all = libraries();
    let some = folder("libraries");
    let probe = |links: &[&str], missing: &str| {
        for name in links {
            std::os::unix::fs::symlink(all.join(name), some.join(name)).unwrap();
        }
        let text = played("probe", |c| c.env("LD_LIBRARY_PATH", &some));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(missing) && lines[0].contains("not found"), "{text}");
        assert!(lines[0].contains(some.to_str().unwrap()), "{text}");
        assert_eq!(lines[1..], ["0 0", "cpu"], "{text}");
    };
    // Where the machine has NVIDIA's own, its loader finds them.
    let system = Command::new("ldconfig").arg("-p").output().map(|o| o.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&system).contains("libcuda.so") {
        return;
    }
    probe(&[], "libcuda.so");
    probe(&["libcuda.so", "libcuda.so.1"], "libnvrtc.so");
    probe(&["libnvrtc.so", "libnvrtc.so.13"], "libcublas.so");
    std::fs::remove_dir_all(&some).unwrap();
}

fn a_machine_without_a_gpu_says_so_and_falls_back_to_the_cpu(_: &Simulator, _: u64) {
    let text = played("probe", |c| c.env("FUTENSOR_SIM_DEVICES", "0"));
    assert!(text.contains("no GPU") && text.ends_with("0 0\ncpu\n"), "{text}");
}

/// Plays a part with a driver that lacks a call.
fn without(symbol: &str, part: &str) -> String {
    let (all, some) = (libraries(), folder("older"));
    let mut library = std::fs::read(all.join("libcuda.so")).unwrap();
    let symbol = format!("\0{symbol}\0").into_bytes();
    let places: Vec<usize> =
        (0..library.len() - symbol.len()).filter(|&i| library[i..].starts_with(&symbol)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&i| library[i + symbol.len() - 2] = b'?');
    std::fs::write(some.join("library"), library).unwrap();
    for file in std::fs::read_dir(&all).unwrap().flatten().filter(|f| f.path().is_symlink()) {
        std::os::unix::fs::symlink("library", some.join(file.file_name())).unwrap();
    }
    let text = played(part, |c| c.env("LD_LIBRARY_PATH", &some).env("FUTENSOR_SIM_DRIVER", "12.2"));
    std::fs::remove_dir_all(&some).unwrap();
    text
}

fn a_driver_that_lacks_a_call_is_said_to_be_too_old(_: &Simulator, _: u64) {
    let text = without("cuEventSynchronize", "probe");
    assert!(
        text.contains("too old: it knows CUDA 12.2") && text.contains("cuEventSynchronize"),
        "{text}"
    );
    assert!(text.ends_with("0 0\ncpu\n"), "{text}");
}

/// Whether a step of a recording has the GPU's time.
fn timed() -> bool {
    let device = Device::cuda_with(0, CudaOptions::default().timed(1)).unwrap();
    let recording = device.record();
    block_on(device.arange(0.0, 3000.0, 1.0).exp()).unwrap();
    recording.finish().steps.iter().any(|step| step.by_device)
}

fn a_driver_without_the_newest_clock_tells_times_by_the_one_before(_: &Simulator, _: u64) {
    assert_eq!(without("cuEventElapsedTime_v2", "timed"), "true\n");
}

/// What a value fails with whose kernel the driver does not take.
fn refused() -> String {
    let device = device(0);
    let failed = block_on(device.arange(0.0, 3000.0, 1.0).exp()).unwrap_err();
    assert!(!failed.is_device_lost(), "{failed}");
    // What needs no kernel goes on.
    assert_eq!(block_on(device.ones([2]).to_vec::<f32>()).unwrap(), [1.0, 1.0]);
    failed.to_string()
}

fn a_compiler_that_is_newer_than_the_driver_is_named_with_what_to_do(_: &Simulator, _: u64) {
    let text = played("refused", |c| {
        c.env("FUTENSOR_SIM_DRIVER", "12.2")
            .env("FUTENSOR_SIM_NVRTC", "12.8")
            .env("FUTENSOR_CACHE", "")
    });
    assert!(
        text.contains("NVRTC 12.8 is newer than NVIDIA's driver, which knows CUDA 12.2"),
        "{text}"
    );
    assert!(text.contains("arange") && text.contains("install an NVRTC"), "{text}");
}

fn libraries_in_a_pythons_wheels_are_found(_: &Simulator, _: u64) {
    let (all, root) = (libraries(), folder("wheels"));
    let (wheel, driver) =
        (root.join("lib/python3.12/site-packages/nvidia/cu13/lib"), root.join("driver"));
    [&wheel, &driver].into_iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    for file in std::fs::read_dir(&all).unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with("libcuda.") {
            std::os::unix::fs::symlink(file.path(), driver.join(file.file_name())).unwrap();
        }
    }
    // As NVIDIA's are, these know their own names.
    for name in ["libnvrtc.so.13", "libcublas.so.13", "libcublasLt.so.13"] {
        let mut link =
            Command::new(std::env::var("FUTENSOR_SIM_CXX").unwrap_or_else(|_| "g++".into()));
        link.args(["-shared", "-Wl,--no-as-needed", &format!("-Wl,-soname,{name}"), "-o"]);
        assert!(link.arg(wheel.join(name)).arg(all.join("libcuda.so")).status().unwrap().success());
    }
    let without = played("probe", |c| c.env("LD_LIBRARY_PATH", &driver));
    assert!(without.contains("libnvrtc.so") && without.contains("VIRTUAL_ENV"), "{without}");
    let got = played("values", |c| c.env("LD_LIBRARY_PATH", &driver).env("VIRTUAL_ENV", &root));
    assert_eq!(got, format!("{:?}\n", values()));
    // As in an image whose path begins with an environment that no variable names.
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/true", bin.join("python3")).unwrap();
    let own = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&own))).unwrap();
    let got = played("values", |c| {
        c.env("LD_LIBRARY_PATH", &driver).env_remove("VIRTUAL_ENV").env("PATH", path)
    });
    assert_eq!(got, format!("{:?}\n", values()));
    std::fs::remove_dir_all(&root).unwrap();
}

fn settings_of_the_environment_change_no_value(_: &Simulator, _: u64) {
    let want = format!("{:?}\n", values());
    let cache = folder("settings");
    let settings: [&[(&str, &str)]; 5] = [
        &[("FUTENSOR_FUSION", "now"), ("FUTENSOR_RELATIVES", "never")],
        &[("FUTENSOR_FUSION", "never"), ("FUTENSOR_TF32", "1")],
        &[("FUTENSOR_RELATIVES", "later")],
        &[("FUTENSOR_CACHE", ""), ("FUTENSOR_GRAPHS", "never")],
        &[("FUTENSOR_SYNC", "1"), ("FUTENSOR_NVTX", "1")],
    ];
    for some in settings {
        let set = |c: &mut Command| {
            c.env("FUTENSOR_CACHE", &cache).envs(some.iter().copied());
        };
        let got = played("values", |c| {
            set(c);
            c
        });
        assert_eq!(got, want, "{some:?}");
    }
    // Where no folder is named it is the user's own, and the stand-ins' images are not for it.
    let got = played("values", |c| c.env_remove("FUTENSOR_CACHE").env("XDG_CACHE_HOME", &cache));
    assert_eq!(got, want);
    assert!(!cache.join("futensor").exists());
    let got = played("values", |c| {
        c.env_remove("FUTENSOR_CACHE").env_remove("XDG_CACHE_HOME").env("HOME", cache.join("home"))
    });
    assert_eq!(got, want);
    assert!(!cache.join("home").exists());
    std::fs::remove_dir_all(&cache).unwrap();
}

fn entries_of(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder).unwrap().flatten().map(|f| f.path());
    let mut list: Vec<PathBuf> =
        list.filter(|p| p.extension().is_some_and(|e| e == "cubin")).collect();
    list.sort();
    list
}

/// What the cache makes of an image: a mark, its length, FNV-1a in 128 bits of length and image,
/// and the image.
fn entry_of(image: &[u8]) -> Vec<u8> {
    let length = (image.len() as u64).to_le_bytes();
    let sum =
        length.iter().chain(image).fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |h, &b| {
            (h ^ b as u128).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        });
    [b"futensor kernel1".as_slice(), &length, &sum.to_le_bytes(), image].concat()
}

fn a_disk_cache_is_thinned_out_and_rid_of_what_was_never_finished(_: &Simulator, _: u64) {
    let cache = folder("thin");
    let hours_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for n in 0..4200u32 {
        std::fs::write(cache.join(format!("{n:032x}.cubin")), [0]).unwrap();
    }
    let [old, new] = ["1.0.part", "2.0.part"].map(|name| cache.join(name));
    std::fs::File::create(&old).unwrap().set_modified(hours_ago).unwrap();
    std::fs::File::create(&new).unwrap();
    played("values", |c| c.env("FUTENSOR_CACHE", &cache));
    let left = entries_of(&cache).len();
    assert!((3072..4096).contains(&left), "{left} entries are left");
    assert!(!old.exists() && new.exists());
    std::fs::remove_dir_all(&cache).unwrap();
}

fn a_disk_cache_that_is_damaged_is_as_good_as_none(_: &Simulator, _: u64) {
    let cache = folder("cache");
    let run =
        || played("values", |c| c.env("FUTENSOR_CACHE", &cache).env("FUTENSOR_FUSION", "now"));
    let want = run();
    let whole: Vec<(PathBuf, Vec<u8>)> =
        entries_of(&cache).into_iter().map(|p| (p.clone(), std::fs::read(p).unwrap())).collect();
    assert!(whole.len() > 3, "{} entries", whole.len());
    let damages: [fn(&[u8]) -> Vec<u8>; 4] = [
        |_| Vec::new(),
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |bytes| {
            bytes
                .iter()
                .enumerate()
                .map(|(i, &b)| if i == bytes.len() - 9 { b ^ 1 } else { b })
                .collect()
        },
        |_| b"what is this".to_vec(),
    ];
    for damage in damages {
        for (path, bytes) in &whole {
            std::fs::write(path, damage(bytes)).unwrap();
        }
        assert_eq!(run(), want);
        // What a run did not ask for stays as it was, and which fused kernels it asks for depends
        // on who is quick.
        let anew = whole
            .iter()
            .filter(|(path, bytes)| std::fs::read(path).is_ok_and(|now| now == *bytes))
            .count();
        assert!(anew > 0, "none of {} is written anew", whole.len());
    }
    // One that is whole, and that the driver does not take.
    let forged = entry_of(b"no image at all");
    whole.iter().for_each(|(path, _)| std::fs::write(path, &forged).unwrap());
    assert_eq!(run(), want);
    let left =
        whole.iter().filter(|(path, _)| std::fs::read(path).is_ok_and(|now| now == forged)).count();
    assert!(left < whole.len(), "all of {left} are left");
    // What a compiler of another version made is not taken.
    let before = entries_of(&cache).len();
    let version = ("FUTENSOR_SIM_NVRTC", "12.8");
    let got = played("values", |c| {
        c.env("FUTENSOR_CACHE", &cache).env("FUTENSOR_FUSION", "now").env(version.0, version.1)
    });
    assert_eq!(got, want);
    let both = entries_of(&cache).len();
    // Each run asks for more than three kernels, as the first did.
    assert!(both > before + 3, "{before} entries, and with another compiler {both}");
    // A folder that others may write into is not used: what lies there is code.
    use std::os::unix::fs::PermissionsExt;
    entries_of(&cache).iter().for_each(|p| std::fs::remove_file(p).unwrap());
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(run(), want);
    assert_eq!(entries_of(&cache), [] as [PathBuf; 0]);
    std::fs::remove_dir_all(&cache).unwrap();
}
