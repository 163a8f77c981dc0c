//! The library's own pages in a real browser: the timeline of a recording, and the page of a
//! training. Without a browser the trials are reported as ignored.

use futensor::recording::named;
use futensor::train::{Monitor, MonitorOptions};
use futensor::{CpuOptions, Device};
use libtest_mimic::{Arguments, Trial};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::browser::Browser;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// What a page that was opened as a file has become.
fn opened(path: &Path, until: &str) -> String {
    let browser = Browser::find().expect("ignored without one");
    browser.page(&format!("file://{}", path.display()), until)
}

/// A script of the page's that does this and then sees whether it is so; faults of either are said.
fn tried(does: &str, is_so: &str) -> String {
    format!(
        "(() => {{ try {{ if (!window.tried) {{ window.tried = true; {does} }} return {is_so} }} \
         catch (error) {{ document.title = `FAULT ${{error}}`; return true }} }})()"
    )
}

const EVIL: &str = "<img src=x onerror=\"document.title='EVIL'\"></script>";

#[tokio::main(flavor = "current_thread")]
async fn recorded(path: &Path) {
    let device = Device::cpu_with(CpuOptions::default().threads(2).streams(3).inline(false));
    let (a, b) = (device.randn([300, 300]), device.randn([300, 300]));
    device.waitall().await.unwrap();
    let recording = device.record();
    let joined = a.matmul(&a) + b.matmul(&b).exp();
    named(EVIL, joined.sum_all().item::<f32>()).await.unwrap();
    std::fs::write(path, recording.finish().to_html()).unwrap();
}

fn the_timeline_tells_all_of_a_step_and_finds_it_by_its_op_and_its_file() {
    let path = file("timeline.html");
    recorded(&path);
    let does = "$('search').value = 'matmul pages.rs'; find(true); goOn(1)";
    let page = opened(&path, &tried(does, "/\\d+ of \\d+/.test($('found').textContent)"));
    assert!(!page.contains("FAULT") && page.contains("of 2</output>"), "{page}");
    let details = page.split("id=\"details\"").nth(1).unwrap().split("</aside>").next().unwrap();
    for told in ["<h2>matmul", "products", "float32 [300, 300]", "tests/pages.rs:", "stream"] {
        assert!(details.contains(told), "no {told} in {details}");
    }
}

fn the_timeline_shows_a_users_texts_as_texts_and_filters_zooms_and_moves() {
    let path = file("timeline_evil.html");
    recorded(&path);
    let does = "select(awaits[0]); \
        [...$('legend').children].find(b => /products/.test(b.textContent)).click(); \
        const before = view.length; zoom(4, 300); if (!(view.length < before)) throw 'no zoom'; \
        const from = view.from; move(.1); if (!(view.from > from)) throw 'no move'; \
        document.dispatchEvent(new KeyboardEvent('keydown', { key: '0' })); \
        if (view.length !== before) throw 'not all'; \
        if (barAt(xOf((steps[0].a + steps[0].b) / 2), AXIS + steps[0].row.top + 5, 0) !== null \
            && steps[0].family === 'products') throw 'not hidden'; \
        showTip(awaits[0], 10, 10); $('tip').dataset.tried = 'yes'";
    let page = opened(&path, &tried(does, "$('tip').dataset.tried === 'yes'"));
    assert!(!page.contains("FAULT") && !page.contains("EVIL</title>"), "{page}");
    let body = page.split("<script type").next().unwrap();
    assert!(!body.contains("<img"), "{body}");
    assert!(body.contains("&lt;img src=x") && body.contains("aria-pressed=\"false\""), "{body}");
}

#[tokio::main(flavor = "current_thread")]
async fn the_page_of_a_training_reads_news_from_a_file_until_it_has_ended() {
    let path = file("train.html");
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let options = MonitorOptions::default().title(EVIL).every(Duration::from_millis(100));
    let monitor = Monitor::open_with(&device, &path, options).await.unwrap();
    // The page is opened before the first step, and sees them all.
    let shown = path.clone();
    let is_so = "shown.status === 'ended' && charts.size >= 3";
    let page = tokio::task::spawn_blocking(move || opened(&shown, is_so));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for step in 1..=50 {
        monitor.step(&device.full((), 1.0 / step as f64));
        monitor.number(EVIL, step as f64);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    monitor.finish().await.unwrap();
    let page = page.await.unwrap();
    let body = page.split("<body>").nth(1).unwrap().split("<script").next().unwrap();
    assert!(body.contains("has ended") && body.contains("<dd>50</dd>"), "{body}");
    assert!(body.contains("<h2>loss</h2>") && body.contains("<h2>&lt;img"), "{body}");
    assert!(!body.contains("<img") && !page.contains("<title>EVIL"), "{body}");
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
    let trials = trials!(
        the_timeline_tells_all_of_a_step_and_finds_it_by_its_op_and_its_file
        the_timeline_shows_a_users_texts_as_texts_and_filters_zooms_and_moves
        the_page_of_a_training_reads_news_from_a_file_until_it_has_ended
    );
    let without = Browser::find().is_none();
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(without)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
