//! Connections with a deadline.
//!
//! If the network drops packets, or a host accepts no more connections, `connect` can hang for
//! minutes, and a look-up of a name may hang as well: both are limited by the deadline. A look-up
//! cannot be cancelled, so its thread stays until the system answers.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The longest time for one attempt: a host that refuses now may accept later.
const TRY: Duration = Duration::from_secs(5);
/// How long a join that this process has given up may still hold a port.
const HELD: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(5);
/// The shortest timeout: zero is an error of its own.
const LEAST: Duration = Duration::from_millis(1);

/// A connection to one of a host's addresses.
///
/// # Errors
/// The reason, if there is no connection by the deadline.
pub(crate) fn dial(address: &str, until: Instant) -> io::Result<TcpStream> {
    #[cfg(all(test, not(futensor_loom)))]
    tests::panics_at(address);
    let all = look_up(address, until, resolve)?;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (i, one) in all.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // An address that drops packets leaves time for the next one.
        match TcpStream::connect_timeout(one, (left / (all.len() - i) as u32).clamp(LEAST, TRY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at one of this host's addresses, without waiting for a connection.
///
/// # Errors
/// The reason, if the address is not available.
pub(crate) fn listen(address: &str, until: Instant) -> io::Result<TcpListener> {
    let all = look_up(address, until, resolve)?;
    let until = until.min(Instant::now() + HELD);
    loop {
        match TcpListener::bind(&all[..]) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            bound => {
                let listener = bound?;
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
        }
    }
}

fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    address.to_socket_addrs().map(Iterator::collect)
}

fn look_up(
    address: &str,
    until: Instant,
    ask: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (says, hears) = channel();
    let name = address.to_owned();
    let asks = move || drop(says.send(ask(&name)));
    std::thread::Builder::new().name("futensor-names".into()).spawn(asks)?;
    match hears.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            Err(io::Error::new(ErrorKind::TimedOut, "the look-up of the name timed out"))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("the look-up of the name panicked"))
        }
    }
}

/// True for an address that only this machine can reach.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let of = host.trim_start_matches('[').trim_end_matches(']');
    of.eq_ignore_ascii_case("localhost")
        || of.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(all(test, not(futensor_loom)))]
pub(super) mod tests {
    use super::*;

    /// Addresses at which a look-up panics.
    pub static PANICS_AT: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

    pub fn panics_at(address: &str) {
        let panics = crate::sync::lock_plain(&PANICS_AT).iter().any(|other| other == address);
        assert!(!panics, "a fault of this library's own");
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(300)
    }

    /// The error of a call, which must come in time, with some tolerance for a busy machine.
    fn ends<T>(what: impl FnOnce(Instant) -> io::Result<T>) -> io::Error {
        let until = soon();
        let error = what(until).err().expect("it cannot be had");
        let late = until.elapsed();
        assert!(late < Duration::from_secs(2), "late by {late:?}: {error}");
        error
    }

    /// A listener with a full backlog, and the connections that fill it.
    pub fn full() -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut callers = Vec::new();
        while let Ok(caller) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
            callers.push(caller);
            assert!(callers.len() < 5000, "a backlog without end");
        }
        (listener, callers)
    }

    #[test]
    fn a_host_that_takes_no_callers_is_given_up_in_time() {
        let (listener, _callers) = full();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(ends(|until| dial(&address, until)).kind(), ErrorKind::TimedOut);
        assert_eq!(ends(|_| dial(&address, Instant::now())).kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_look_up_that_does_not_end_is_left_behind_and_one_that_fails_says_why() {
        let (_stays, hangs) = channel::<()>();
        let never = move |_: &str| {
            let _ = hangs.recv();
            Ok(Vec::new())
        };
        let error = ends(|until| look_up("a.name:1", until, never));
        assert!(error.to_string().contains("look-up of the name timed out"), "{error}");
        let late = Instant::now() + Duration::from_secs(60);
        let error = look_up("a.name:1", late, |_| panic!("a resolver of somebody's")).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let error =
            look_up("a.name:1", late, |name| Err(io::Error::other(name.to_owned()))).unwrap_err();
        assert_eq!(error.to_string(), "a.name:1");
        let there = look_up("127.0.0.1:7", Instant::now(), |_| {
            panic!("nobody is asked for what is an address")
        });
        assert_eq!(there.unwrap(), ["127.0.0.1:7".parse().unwrap()]);
    }

    #[test]
    fn what_listens_is_called_by_name_and_a_port_in_use_is_an_error_soon() {
        let listener = listen("localhost:0", soon()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(dial(&format!("localhost:{port}"), soon()).is_ok());
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(ends(|until| listen(&address, until)).kind(), ErrorKind::AddrInUse);
        // An address that is released meanwhile is taken.
        let later = std::thread::spawn(move || listen(&address, Instant::now() + HELD));
        std::thread::yield_now();
        drop(listener);
        assert!(later.join().unwrap().is_ok());
    }

    #[test]
    fn an_address_of_this_machine_alone_is_known_without_a_look_up() {
        for own in ["127.0.0.1:7", "[::1]:7", "localhost:7", "LocalHost:7", "127.9.9.9:1"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["10.0.0.1:7", "[fe80::1]:7", "node0:7", "localhost.example:7"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
