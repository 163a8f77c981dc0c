//! The page, as it is served, and in a real browser where there is one.

use super::browser::Browser;
use super::{agent, serve};

/// What a model may write that means harm.
const EVIL: &str = "<img src=x onerror=\"document.title='EVIL'\"> \
    <script>document.title='EVIL'</script> [a](javascript:document.title='EVIL') \
    ![b](https://example.com/b.png?secret) <a href=\"javascript:document.title='EVIL'\">c</a> \
    <svg onload=\"document.title='EVIL'\"></svg> [d](data:text/html,<script>1</script>) \
    <iframe src=\"javascript:1\"></iframe> <style>*{display:none}</style> \
    [e](https://example.com/?a=1&b=2) **bold** `x < y`\n\n```js\n<b onclick=\"1\">\n```\n";

pub fn the_page_and_all_its_files_are_served_with_a_policy() {
    let server = serve();
    let (status, page) = server.get("/");
    assert_eq!(status, 200);
    let named = page.split(['"', ' ']).filter(|word| word.starts_with("page/"));
    let named: Vec<&str> = named.collect();
    assert!(named.len() >= 7, "{named:?}");
    for name in named {
        let (status, text) = server.get(&format!("/{name}"));
        assert!(status == 200 && text.len() > 500, "{name}: {status}");
    }
    // Nothing is asked of anybody else, and no line of script stands in the page itself.
    assert!(!page.contains("http") && !page.contains("<script>"), "{page}");
    let response = agent().get(server.url("/")).call().unwrap();
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "connect-src 'self'"] {
        assert!(policy.contains(rule) && !policy.contains("unsafe"), "{policy}");
    }
    assert_eq!(server.get("/page/../Cargo.toml").0, 404);
    assert_eq!(server.get("/page/vendor/README.md").0, 404);
}

/// As `page/vendor/README.md` has it.
pub fn what_others_have_written_is_as_they_published_it() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page/vendor");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let rows: Vec<Vec<&str>> = readme.lines().map(|line| line.split('`').collect()).collect();
    let files = rows.iter().filter(|row| row.len() > 5 && row[1].ends_with(".js"));
    let mut seen = 0;
    for row in files {
        let (file, hash) = (row[1], row[row.len() - 2]);
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let own: String =
            hmac_sha256::Hash::hash(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(own, hash, "{file}");
        seen += 1;
    }
    assert_eq!(seen, 2);
    for package in ["marked", "purify"] {
        let licence = std::fs::read_to_string(folder.join(format!("{package}.LICENSE"))).unwrap();
        assert!(licence.to_lowercase().contains("license"), "{package}");
    }
}

pub fn the_page_chats_in_a_real_browser() {
    let browser = Browser::find().expect("ignored without one");
    let server = serve();
    let page = browser.page(
        &server.url("/#q=Hello%20%3Cb%3E"),
        "exchanges.length === 1 && running === null && model !== null",
    );
    assert!(page.contains("<article class=\"user\">Hello &lt;b&gt;</article>"), "{page}");
    let answer = page.split("<article class=\"assistant").nth(1).expect("an answer");
    let foot = answer.split("<footer>").nth(1).expect("its foot").split("</footer>").next();
    let foot = foot.unwrap();
    assert!(foot.contains(" a second; the first after ") && foot.contains("tokens"), "{foot}");
    assert!(page.contains("<h1 id=\"model\">tiny</h1>") && page.contains("on cpu:"), "{page}");
    assert!(page.contains(&format!("http://{}/v1/chat/completions", server.address)), "{page}");
    assert!(server.app.engine.stats().tokens > 0);
}

/// Without the policy as well: the browser does not ask it of what a debugger runs.
pub fn the_page_shows_a_hostile_answer_and_does_nothing_of_it() {
    let browser = Browser::find().expect("ignored without one");
    let server = serve();
    let text = serde_json::to_string(EVIL).unwrap();
    let shown = format!(
        "(() => {{ if (!window.tried) {{ window.tried = true; const a = new Answer(); \
         a.add({text}); a.end(); setTimeout(() => a.foot.classList.add('tried'), 500) }} \
         setTimeout(() => document.body.append(' '), 600); \
         return document.querySelector('.tried') !== null }})()"
    );
    let page = browser.page(&server.url("/"), &shown);
    assert!(page.contains("class=\"tried\"") && !page.contains("<title>EVIL"), "{page}");
    let body = page.split("<div class=\"body\">").nth(1).expect("an answer");
    let body = body.split("<footer").next().unwrap();
    for tag in ["<img", "<script", "<svg", "<iframe", "<style", "<b onclick"] {
        assert!(!body.contains(tag), "{tag}: {body}");
    }
    for link in body.split("<a ").skip(1).filter_map(|rest| rest.split('>').next()) {
        assert!(!link.contains("javascript:") && !link.contains("data:"), "{link}");
    }
    for kept in [
        "href=\"https://example.com/?a=1&amp;b=2\"",
        "rel=\"noopener noreferrer nofollow\"",
        "<strong>bold</strong>",
        "<code>x &lt; y</code>",
        "&lt;b onclick=",
        "&lt;img src=x",
    ] {
        assert!(body.contains(kept), "no {kept}: {body}");
    }
}

/// A server stands in that never ends its first answer, and says that it is busy at the second.
pub fn the_page_marks_half_an_answer_and_sends_it_no_more() {
    let browser = Browser::find().expect("ignored without one");
    let server = serve();
    let stand_in = "window.asked = []; window.fetch = async (url, { body, signal }) => { \
        asked.push(JSON.parse(body)); \
        if (asked.length === 2) return new Response('{\"error\":{\"message\":\"full\"}}', \
            { status: 503, headers: { 'retry-after': '9' } }); \
        const piece = (text, end) => new TextEncoder().encode('data: ' + JSON.stringify({ choices: \
            [{ delta: { content: text }, finish_reason: end }] }) + '\\n\\n'); \
        const whole = asked.length > 2; \
        return new Response(new ReadableStream({ start(to) { to.enqueue(piece('half of', null)); \
            if (whole) { to.enqueue(piece(' it', 'stop')); to.close() } \
            signal.addEventListener('abort', () => to.error(new Error('cut'))) } })) };";
    let talk = "(async () => { $('seed').value = '7'; $('system').value = 'Be brief'; \
        const first = send('one'); while (!talk.textContent.includes('half of')) \
        await new Promise(go => setTimeout(go, 10)); stop(); await first; \
        await send('two'); await send('three'); await send('four'); \
        document.body.dataset.asked = JSON.stringify(asked); })();";
    let until = format!(
        "(() => {{ if (!window.tried) {{ window.tried = true; {stand_in} {talk} }} \
         setTimeout(() => document.body.append(' '), 100); \
         return !!document.body.dataset.asked }})()"
    );
    let page = browser.page(&server.url("/"), &until);
    assert_eq!(page.matches("class=\"assistant half\"").count(), 2, "{page}");
    assert!(
        page.contains("Stopped. Half an answer") && page.contains("Try again in 9 s"),
        "{page}"
    );
    let asked = page.split("data-asked=\"").nth(1).unwrap().split('"').next().unwrap();
    let asked: serde_json::Value = serde_json::from_str(&asked.replace("&quot;", "\"")).unwrap();
    let said = |k: usize| -> Vec<&str> {
        let messages = asked[k]["messages"].as_array().unwrap();
        messages.iter().map(|m| m["content"].as_str().unwrap()).collect()
    };
    assert_eq!(said(2), ["Be brief", "three"]);
    assert_eq!(said(3), ["Be brief", "three", "half of it", "four"]);
    assert_eq!((&asked[3]["seed"], &asked[3]["stream"]), (&7.into(), &true.into()));
}
