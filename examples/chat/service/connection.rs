//! Connections: a task each, with limits on how long a client may take to ask, and to take what it
//! is sent.
//!
//! A client that closes its own side once it has asked gets its answer. One that is gone looks the
//! same at first. As long as its answer has not begun it is sent an interim response, which any
//! client skips, and which tells the two apart; later the answer itself does so.

use super::Patience;
use axum::Router;
use axum::http::Version;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// How soon to look again behind what somebody else is to read.
const SOON: Duration = Duration::from_millis(50);

/// Serves a connection until its end; from `ending` on no further requests of it.
pub async fn serve(
    stream: TcpStream,
    router: Router,
    patience: Patience,
    mut ending: tokio::sync::watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let line = Arc::new(Line { stream, state: Mutex::default() });
    let (own, routes) = (line.clone(), TowerToHyperService::new(router));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let answering = Answering::begin(&own, request.version());
        let answer = routes.call(request);
        async move {
            let answer = answer.await;
            drop(answering);
            answer
        }
    });
    let io = Io { line: line.clone(), patience: patience.read, stalled: None };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .half_close(true)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let gone = line.gone();
    tokio::pin!(gone);
    let mut asked = false;
    loop {
        tokio::select! {
            _ = &mut connection => return,
            () = &mut gone => return,
            _ = ending.wait_for(|ending| *ending), if !asked => {
                asked = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

#[derive(Default)]
struct State {
    /// The client's side is closed.
    closed: bool,
    /// A request is there, and nothing of its answer is.
    answering: bool,
    /// Something that was written before may not have been sent.
    unsent: bool,
}

struct Line {
    stream: TcpStream,
    state: Mutex<State>,
}

impl Line {
    fn with(&self, change: impl FnOnce(&mut State)) {
        let state = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.closed && state.answering;
        change(state);
        if !before && state.closed && state.answering && !state.unsent {
            let _ = self.stream.try_write(INTERIM);
        }
    }

    /// Resolves when there is nobody who could take an answer.
    async fn gone(&self) {
        loop {
            match self.stream.peek(&mut [0]).await {
                Ok(0) => break,
                Ok(_) => tokio::time::sleep(SOON).await,
                Err(_) => return,
            }
        }
        self.with(|state| state.closed = true);
        let _ = self.stream.ready(Interest::ERROR).await;
    }
}

/// As long as it is there a request is being answered.
struct Answering(Option<Arc<Line>>);

impl Answering {
    fn begin(line: &Arc<Line>, version: Version) -> Answering {
        // Older clients know no interim responses.
        if version < Version::HTTP_11 {
            return Answering(None);
        }
        line.with(|state| state.answering = true);
        Answering(Some(line.clone()))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(line) = &self.0 {
            line.with(|state| state.answering = false);
        }
    }
}

/// A line as it is read and written. A write that makes no progress for long fails.
struct Io {
    line: Arc<Line>,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.line.stream.poll_read_ready(cx))?;
            match self.line.stream.try_read(into.initialize_unfilled()) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.line.with(|state| state.unsent = true);
        loop {
            if self.line.stream.poll_write_ready(cx)?.is_pending() {
                let patience = self.patience;
                let sleep =
                    self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                ready!(sleep.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            match self.line.stream.try_write(bytes) {
                Ok(count) => {
                    self.stalled = None;
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Nothing is kept here: all that was written before has been sent.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.with(|state| state.unsent = false);
        Poll::Ready(Ok(()))
    }

    /// The connection ends with its task.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
