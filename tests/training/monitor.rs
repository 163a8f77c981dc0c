//! What a monitor writes while a training runs, and once it has ended.

use crate::support::block_on;
use futensor::train::{Monitor, MonitorOptions};
use futensor::{CpuOptions, Device};
use futures::FutureExt;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A folder of its own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("monitor-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn page(&self) -> PathBuf {
        self.0.join("a page.html")
    }

    /// What the page reads while the training runs.
    fn news(&self) -> Value {
        let text = std::fs::read_to_string(self.0.join("a page.html.data.js")).unwrap();
        let json = text.strip_prefix("news(").and_then(|text| text.strip_suffix(");\n"));
        serde_json::from_str(json.expect("a whole call")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn device() -> Device {
    Device::cpu_with(CpuOptions::default().threads(1))
}

fn often() -> MonitorOptions {
    MonitorOptions::default().every(Duration::from_millis(20))
}

fn curve<'a>(data: &'a Value, name: &str) -> &'a Value {
    let all = data["series"].as_array().unwrap();
    all.iter().find(|curve| curve["name"] == name).unwrap_or_else(|| panic!("no {name}: {data}"))
}

fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn each_step_is_on_the_page_with_what_belongs_to_it() {
    let (folder, device) = (Folder::new("each"), device());
    let monitor = block_on(Monitor::open(&device, folder.page())).unwrap();
    for step in 1..=30 {
        let loss = device.full((), 1.0 / step as f64) * 2.0;
        monitor.step(&loss);
        monitor.number("rate", step as f64);
        if step % 10 == 0 {
            monitor.value("right", &device.full([1, 1], step).to_dtype(futensor::DType::I64));
            block_on(device.waitall()).unwrap();
        }
    }
    block_on(monitor.finish()).unwrap();
    let data = folder.news();
    assert_eq!((&data["status"], &data["steps"]), (&"ended".into(), &30.into()));
    assert_eq!((&data["leftOut"], &data["failed"]), (&0.into(), &Value::Null));
    let numbers = |curve: &Value, of: &str| -> Vec<f64> {
        curve[of].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let loss = curve(&data, "loss");
    assert_eq!(numbers(loss, "steps"), (1..=30).map(f64::from).collect::<Vec<_>>());
    for (k, mean) in numbers(loss, "mean").into_iter().enumerate() {
        assert!((mean - 2.0 / (k as f64 + 1.0)).abs() < 1e-6, "step {}: {mean}", k + 1);
    }
    let right = curve(&data, "right");
    assert_eq!((numbers(right, "steps"), numbers(right, "mean")), {
        let steps = vec![10.0, 20.0, 30.0];
        (steps.clone(), steps)
    });
    assert_eq!(curve(&data, "rate")["last"], 30.0);
    // Between thirty steps are twenty-nine times.
    let times = numbers(curve(&data, "time a step (ms)"), "mean");
    assert!(times.len() == 29 && times.iter().all(|time| (0.0..60e3).contains(time)), "{times:?}");
    // The three waits of this test, by their line, and none of the monitor's own.
    let sites = data["sites"].as_array().unwrap();
    assert!(sites.len() == 1 && sites[0][0].as_str().unwrap().contains("monitor.rs:"), "{sites:?}");
    assert_eq!((&sites[0][1], &sites[0][2]), (&"waitall".into(), &3.into()));
    // The page has the same data, and needs no other file any more.
    let page = std::fs::read_to_string(folder.page()).unwrap();
    let own = page.split("\nnews(").nth(1).unwrap().split(");\n</script>").next().unwrap();
    assert_eq!(serde_json::from_str::<Value>(own).unwrap(), data);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "a part of a file is left");
}

#[test]
fn news_come_while_the_training_runs_and_a_step_waits_for_nothing() {
    let (folder, device) = (Folder::new("news"), device());
    let monitor = block_on(Monitor::open_with(&device, folder.page(), often())).unwrap();
    assert_eq!(folder.news()["status"], "runs");
    let (release, released) = futures::channel::oneshot::channel::<Vec<f32>>();
    let late = device.from_future([1], released);
    let begin = Instant::now();
    monitor.step(&late);
    monitor.value("norm", &(&late * 2.0));
    monitor.number("rate", 0.5);
    assert!(begin.elapsed() < Duration::from_secs(5));
    until(|| folder.news()["steps"] == 1);
    let finish = monitor.finish();
    let mut finish = Box::pin(finish);
    std::thread::sleep(Duration::from_millis(50));
    assert!(finish.as_mut().now_or_never().is_none(), "a value is not there yet");
    release.send(vec![3.0]).unwrap();
    block_on(finish).unwrap();
    let data = folder.news();
    let last = |name: &str| curve(&data, name)["last"].as_f64();
    assert_eq!((last("loss"), last("norm")), (Some(3.0), Some(6.0)));
}

#[test]
fn a_long_training_takes_no_more_room_than_a_short_one() {
    let (folder, device) = (Folder::new("long"), device());
    let options = MonitorOptions::default().every(Duration::MAX).points(100);
    let monitor = block_on(Monitor::open_with(&device, folder.page(), options)).unwrap();
    let loss = block_on(device.ones(()).into_future()).unwrap();
    for step in 0..200_000 {
        monitor.step(&loss);
        monitor.number(&format!("name {}", step % 1000), 1.0);
    }
    block_on(monitor.finish()).unwrap();
    let data = folder.news();
    let curves = data["series"].as_array().unwrap();
    assert!(curves.len() <= 32, "{} curves", curves.len());
    for curve in curves {
        assert!(curve["steps"].as_array().unwrap().len() <= 100, "{curve}");
    }
    let bytes = std::fs::metadata(folder.page()).unwrap().len();
    assert!(bytes < 400_000, "{bytes} bytes");
    assert_eq!(data["steps"], 200_000);
    // A thousand names have no room, and what came too fast has none either: it is said.
    assert!(data["leftOut"].as_u64().unwrap() > 100_000, "{}", data["leftOut"]);
}

#[test]
fn names_beyond_the_most_curves_are_counted() {
    let (folder, device) = (Folder::new("names"), device());
    let monitor = block_on(Monitor::open(&device, folder.page())).unwrap();
    monitor.step(&device.ones(()));
    (0..50).for_each(|k| monitor.number(&format!("name {k}"), 1.0));
    block_on(monitor.finish()).unwrap();
    let data = folder.news();
    let own = data["series"].as_array().unwrap().len();
    assert!(own == 32 && data["leftOut"].as_u64().unwrap() >= 51 - 32, "{}", data["leftOut"]);
}

#[test]
fn what_fails_and_what_is_no_number_is_said() {
    let (folder, device) = (Folder::new("fails"), device());
    let monitor = block_on(Monitor::open(&device, folder.page())).unwrap();
    for number in [1.0, f64::NAN, f64::INFINITY] {
        monitor.step(&device.full((), number));
    }
    monitor.value("norm", &(device.ones([2]) + device.ones([3])));
    monitor.value("norm", &device.ones([2]));
    monitor.number("rate", f64::NEG_INFINITY);
    block_on(monitor.finish()).unwrap();
    let data = folder.news();
    let loss = curve(&data, "loss");
    assert_eq!((loss["lost"].as_u64(), loss["firstLost"].as_u64()), (Some(2), Some(2)));
    assert_eq!(loss["last"], Value::Null);
    assert_eq!(loss["mean"], serde_json::json!([1.0]));
    let failed = data["failed"].as_str().unwrap();
    assert!(
        failed.starts_with("norm, step 3: ") && failed.contains("cannot broadcast"),
        "{failed}"
    );
}

#[test]
fn a_users_texts_are_texts_on_the_page() {
    let (folder, device) = (Folder::new("texts"), device());
    let evil = "</script><img src=x onerror=alert(1)>\" 'é";
    let options = MonitorOptions::default().title(evil);
    let monitor = block_on(Monitor::open_with(&device, folder.page(), options)).unwrap();
    monitor.step(&device.ones(()));
    monitor.number(evil, 1.0);
    block_on(monitor.finish()).unwrap();
    let data = folder.news();
    assert_eq!((&data["title"], &curve(&data, evil)["last"]), (&evil.into(), &1.0.into()));
    let page = std::fs::read_to_string(folder.page()).unwrap();
    assert!(!page.contains("<img") && page.matches("</script>").count() == 1);
    assert!(page.contains("<title>&lt;/script&gt;&lt;img"));
}

#[test]
fn a_monitor_that_is_dropped_writes_what_is_there() {
    let (folder, device) = (Folder::new("dropped"), device());
    let (_never, released) = futures::channel::oneshot::channel::<Vec<f32>>();
    let never = device.from_future([1], released);
    for is_finished in [false, true] {
        let monitor = block_on(Monitor::open_with(&device, folder.page(), often())).unwrap();
        let loss = block_on(device.ones(()).into_future()).unwrap();
        monitor.step(&loss);
        monitor.step(&never);
        if is_finished {
            let mut finish = Box::pin(monitor.finish());
            assert!(finish.as_mut().now_or_never().is_none());
        } else {
            drop(monitor);
        }
        until(|| folder.news()["status"] == "given up");
        let data = folder.news();
        assert_eq!((&data["steps"], &curve(&data, "loss")["last"]), (&2.into(), &1.0.into()));
    }
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_at_the_opening() {
    let folder = Folder::new("nowhere");
    let error = block_on(Monitor::open(&device(), folder.0.join("no/such.html"))).unwrap_err();
    assert!(error.to_string().contains("no/such.html"), "{error}");
}
