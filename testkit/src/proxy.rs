//! A TCP proxy between a client and a server whose connections a test cuts, holds and delays.
//!
//! Bytes that are held are kept and passed on when the trouble is over, as a network does that comes back: a request may
//! arrive long after its sender gave up. Nothing is ever held by Nagle's algorithm.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::port::free_port;

/// A pump that holds bytes looks this often whether its connection was closed meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const BUFFER_BYTES: usize = 64 * 1024;

/// The way that bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Reply,
}

/// A trouble of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trouble {
    /// Everything passes.
    #[default]
    None,
    /// Open connections are closed, and so is each new one.
    Cut,
    /// Bytes of one way stay in the proxy.
    Held(Way),
    /// No bytes pass; connections stay open.
    BlackHole,
    /// Every piece of data waits this long in the proxy.
    Delay(Duration),
    /// Requests pass; the first bytes of a reply close the connection instead of passing.
    CutBeforeReply,
    /// The next connection that carries more than so many bytes this way is closed behind them, and the trouble is over.
    CutOnceAt(Way, usize),
}

/// A proxy on a free port of the loopback interface. It ends with this value.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<String>,
    trouble: Mutex<Trouble>,
    changed: Condvar,
    /// Both ends of every open connection, to close them.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    closed: AtomicBool,
    cuts: AtomicU64,
}

impl Proxy {
    /// Passes connections on to `host:port`.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(upstream: &str) -> Self {
        let port = free_port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port was free a moment ago");
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream.to_owned()),
            trouble: Mutex::default(),
            changed: Condvar::new(),
            open: Mutex::default(),
            closed: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        thread::spawn(move || accept(&listener, &accepting));
        Self { port, shared }
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Passes new connections on to another server; open ones stay where they are.
    pub fn redirect(&self, upstream: &str) {
        upstream.clone_into(&mut self.shared.upstream.lock().expect("no holder of this lock panics"));
    }

    /// Lets something go wrong from now on; `Trouble::None` ends it.
    pub fn trouble(&self, trouble: Trouble) {
        *self.shared.trouble() = trouble;
        self.shared.changed.notify_all();
        if trouble == Trouble::Cut {
            self.shared.close_all();
        }
    }

    /// The trouble there is now.
    pub fn current(&self) -> Trouble {
        *self.shared.trouble()
    }

    /// How many connections were closed on purpose.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.trouble(Trouble::Cut);
        // The accepting thread sees that it is closed at its next connection, which is this one.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl Shared {
    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().expect("no holder of this lock panics")
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, [TcpStream; 2]>> {
        self.open.lock().expect("no holder of this lock panics")
    }

    fn close_all(&self) {
        for (_, ends) in self.open().drain() {
            self.cuts.fetch_add(1, Ordering::SeqCst);
            close(&ends);
        }
    }

    fn close(&self, connection: u64, on_purpose: bool) {
        if let Some(ends) = self.open().remove(&connection) {
            self.cuts.fetch_add(u64::from(on_purpose), Ordering::SeqCst);
            close(&ends);
        }
    }

    /// Waits until bytes of this way may pass; says what is done with them.
    fn verdict(&self, way: Way, connection: u64, passed: usize, length: usize) -> Verdict {
        let mut trouble = self.trouble();
        loop {
            match *trouble {
                Trouble::None => return Verdict::Pass,
                Trouble::Delay(time) => return Verdict::PassAfter(time),
                Trouble::Cut => return Verdict::Cut(0),
                Trouble::CutBeforeReply if way == Way::Reply => return Verdict::Cut(0),
                Trouble::CutOnceAt(on, at) if on == way && passed + length > at => {
                    *trouble = Trouble::None;
                    return Verdict::Cut(at - passed.min(at));
                }
                Trouble::Held(held) if held != way => return Verdict::Pass,
                Trouble::Held(_) | Trouble::BlackHole => {
                    if !self.open().contains_key(&connection) {
                        return Verdict::Cut(0);
                    }
                    trouble = self.changed.wait_timeout(trouble, LOOK_AGAIN).expect("no holder of this lock panics").0;
                }
                Trouble::CutBeforeReply | Trouble::CutOnceAt(..) => return Verdict::Pass,
            }
        }
    }
}

enum Verdict {
    Pass,
    PassAfter(Duration),
    /// Only so many pass, and then the connection is closed.
    Cut(usize),
}

fn close(ends: &[TcpStream; 2]) {
    for end in ends {
        // One that is closed already needs nothing.
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, client) in (0_u64..).zip(listener.incoming()) {
        if shared.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        if *shared.trouble() == Trouble::Cut {
            continue;
        }
        let shared = shared.clone();
        thread::spawn(move || serve(number, client, &shared));
    }
}

fn serve(number: u64, client: TcpStream, shared: &Arc<Shared>) {
    let upstream = shared.upstream.lock().expect("no holder of this lock panics").clone();
    // A client whose server is down sees its connection closed.
    let Ok(server) = TcpStream::connect(upstream) else { return };
    let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else { return };
    let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    for end in [&client, &server] {
        if end.set_nodelay(true).is_err() {
            return;
        }
    }
    shared.open().insert(number, [client, server]);
    let replies = {
        let shared = shared.clone();
        thread::spawn(move || pump(Way::Reply, number, from_server, to_client, &shared))
    };
    pump(Way::Request, number, from_client, to_server, shared);
    // A pump that panicked has said so, and its connection is closed either way.
    let _ = replies.join();
    shared.close(number, false);
}

fn pump(way: Way, connection: u64, mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut passed = 0;
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let through = match shared.verdict(way, connection, passed, length) {
            Verdict::Pass => length,
            Verdict::PassAfter(time) => {
                thread::sleep(time);
                length
            }
            Verdict::Cut(through) => {
                // The other end may be gone already; it is closed in any case.
                let _ = to.write_all(&buffer[..through]);
                shared.close(connection, true);
                return;
            }
        };
        if to.write_all(&buffer[..through]).is_err() {
            break;
        }
        passed += through;
    }
    // An end that was said is passed on; the other way may go on.
    let _ = to.shutdown(Shutdown::Write);
    if way == Way::Reply {
        shared.close(connection, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens").to_string();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut answers = client.try_clone().expect("a stream can be shared");
                    std::io::copy(&mut &client, &mut answers)
                });
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).expect("the proxy listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("it is no zero");
        stream
    }

    fn say(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(words)?;
        let mut heard = vec![0; words.len()];
        stream.read_exact(&mut heard).map(|()| heard)
    }

    #[test]
    fn everything_passes_until_there_is_trouble() {
        let proxy = Proxy::start(&echo());
        let mut stream = connect(&proxy);
        assert_eq!(say(&mut stream, b"one").expect("it passes"), b"one");
        proxy.trouble(Trouble::Cut);
        assert!(say(&mut stream, b"two").is_err(), "open connections are closed");
        assert!(say(&mut connect(&proxy), b"three").is_err(), "new ones too");
        proxy.trouble(Trouble::None);
        assert_eq!(say(&mut connect(&proxy), b"four").expect("it passes again"), b"four");
    }

    #[test]
    fn bytes_that_are_held_arrive_when_the_trouble_is_over() {
        let proxy = Proxy::start(&echo());
        for trouble in [Trouble::BlackHole, Trouble::Held(Way::Request), Trouble::Held(Way::Reply)] {
            let mut stream = connect(&proxy);
            assert_eq!(say(&mut stream, b"before").expect("it passes"), b"before");
            proxy.trouble(trouble);
            stream.write_all(b"held").expect("the proxy takes it");
            stream.set_read_timeout(Some(Duration::from_millis(100))).expect("it is no zero");
            assert!(stream.read(&mut [0; 4]).is_err(), "{trouble:?}");
            proxy.trouble(Trouble::None);
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("it is no zero");
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).expect("it arrives");
            assert_eq!(&heard, b"held");
        }
    }

    #[test]
    fn a_cut_lets_exactly_so_many_bytes_pass() {
        let proxy = Proxy::start(&echo());
        for at in 0..5 {
            let mut stream = connect(&proxy);
            proxy.trouble(Trouble::CutOnceAt(Way::Reply, at));
            stream.write_all(b"hello").expect("the proxy takes it");
            let mut heard = Vec::new();
            // An end and a reset are the same here.
            let _ = stream.read_to_end(&mut heard);
            assert_eq!(heard, b"hello"[..at]);
            assert_eq!(proxy.current(), Trouble::None, "a cut happens once");
        }
        proxy.trouble(Trouble::CutBeforeReply);
        assert!(say(&mut connect(&proxy), b"sent").is_err());
        assert_eq!(proxy.cuts(), 6);
    }
}
