//! Connections: who takes long to ask, who closes his side, who is gone, and what the server's own
//! end makes of them.

use super::{Server, serve, serve_on, serve_with};
use chat::Config;
use futensor::{CpuOptions, Device};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Asks for so many tokens in one piece.
fn ask(server: &Server, tokens: usize) -> TcpStream {
    let body = json!({ "prompt": "a", "max_tokens": tokens, "ignore_eos": true }).to_string();
    let mut stream = connect(server);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream
}

pub fn who_closes_his_side_gets_his_answer() {
    let server = serve();
    let mut stream = ask(&server, 40);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("HTTP/1.1 200") && text.contains("\"completion_tokens\":40"), "{text}");
    // An answer that has begun as well.
    let mut stream = server.begin(20);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
}

pub fn who_is_gone_before_his_answer_frees_what_he_had() {
    let server = serve();
    let stream = ask(&server, 500);
    server.until(|s| s.running == 1 && s.tokens > 0);
    drop(stream);
    server.until(|s| s.running == 0 && s.pages_used == 0 && s.left == 1);
}

pub fn who_takes_long_to_ask_is_not_waited_for() {
    let mut config = Config::default();
    config.patience.head = Duration::from_millis(300);
    config.patience.body = Duration::from_millis(300);
    let server = serve_with(config);
    let begin = Instant::now();
    let half = |text: &str| {
        let mut stream = connect(&server);
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\n";
    let mut heads: Vec<_> = (0..20).map(|_| half(head)).collect();
    let mut bodies: Vec<_> =
        (0..20).map(|_| half(&format!("{head}content-length: 99\r\n\r\n{{"))).collect();
    for stream in &mut heads {
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        assert!(!text.contains(" 200 "), "{text}");
    }
    for stream in &mut bodies {
        let mut text = [0; 12];
        stream.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"HTTP/1.1 408");
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

pub fn a_stream_that_the_end_cuts_is_told_so() {
    let mut server = serve_with(Config { drain: Duration::ZERO, ..Config::default() });
    let mut stream = server.begin(400);
    server.end.take().unwrap().send(()).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"error\"") && rest.contains("the engine has ended"), "{rest}");
    assert!(!rest.contains("[DONE]"));
    let served = server.served.take().unwrap();
    assert!(server.runtime.block_on(served).unwrap().is_err());
}

pub fn asked_twice_it_ends_at_once() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let mut server =
        serve_on(device.clone(), Config { drain: Duration::from_secs(600), ..Config::default() });
    // Nothing comes on.
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let gate = futensor::custom::custom_fn(
        "gate",
        &[&device.ones([1])],
        |m| Ok(m[0].clone()),
        move |_| {
            let _ = held.lock().unwrap().recv_timeout(Duration::from_secs(60));
            Ok(())
        },
    );
    gate.detach();
    let _stream = ask(&server, 9);
    server.until(|s| s.running == 1);
    let (end, begin) = (server.end.take().unwrap(), Instant::now());
    end.send(()).unwrap();
    end.send(()).unwrap();
    let served = server.served.take().unwrap();
    assert!(server.runtime.block_on(served).unwrap().is_err());
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    go.send(()).unwrap();
}
