//! A real browser without a window, where the machine has one: `FUTENSOR_BROWSER` names it, or it
//! is on the path.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A browser that has been found, with a profile of its own, which goes with it.
pub struct Browser {
    program: PathBuf,
    profile: PathBuf,
}

impl Browser {
    /// None where there is no Chromium or Chrome.
    pub fn find() -> Option<Browser> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let named = std::env::var_os("FUTENSOR_BROWSER").map(PathBuf::from);
        let names =
            ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
        let folders: Vec<PathBuf> = std::env::var_os("PATH")
            .map(|p| std::env::split_paths(&p).collect())
            .unwrap_or_default();
        let found = || folders.iter().flat_map(|f| names.map(|n| f.join(n))).find(|p| p.is_file());
        let own = format!("futensor-page-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Some(Browser { program: named.or_else(found)?, profile: std::env::temp_dir().join(own) })
    }

    /// What a page has become, as HTML, once it has loaded and this is true of it, an expression in
    /// its own language; or after 20 seconds without.
    pub fn page(&self, url: &str, until: &str) -> String {
        // It is spoken to through pipes, which it expects as the files 3 and 4.
        let mut run = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 < /dev/null > /dev/null 2> /dev/null", "sh"])
            .arg(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, from) =
            (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
        let mut answers =
            from.split(0).map(|answer| serde_json::from_slice::<Value>(&answer.unwrap()).unwrap());
        let mut ask = |method: &str,
                       session: &Value,
                       params: Value,
                       is_it: &dyn Fn(&Value) -> bool|
         -> Value {
            let mut message = json!({ "id": 1, "method": method, "params": params });
            if session.is_string() {
                message["sessionId"] = session.clone();
            }
            to.write_all(format!("{message}\0").as_bytes()).unwrap();
            answers.find(is_it).expect("an answer of the browser")
        };
        let answered = |answer: &Value| answer["id"] == 1;
        let target =
            ask("Target.createTarget", &Value::Null, json!({ "url": "about:blank" }), &answered);
        let target = json!({ "targetId": target["result"]["targetId"], "flatten": true });
        let session =
            ask("Target.attachToTarget", &Value::Null, target, &answered)["result"]["sessionId"]
                .clone();
        ask("Page.enable", &session, json!({}), &answered);
        ask("Page.navigate", &session, json!({ "url": url }), &|event| {
            event["method"] == "Page.loadEventFired"
        });
        let expression = format!(
            "new Promise(done => {{
                const end = () => done(document.documentElement.outerHTML), look = () => ({until}) \
                && end()
                const what = {{ childList: true, subtree: true, characterData: true }}
                new MutationObserver(look).observe(document, what)
                setTimeout(end, 20000)
                look()
            }})"
        );
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let page = ask("Runtime.evaluate", &session, params, &answered);
        let _ = run.kill();
        let _ = run.wait();
        page["result"]["result"]["value"].as_str().map_or_else(|| page.to_string(), str::to_owned)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
