//! A link to a target that a test can cut: what goes through it is passed on until then.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes connections to a port of its own on to another.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    /// Both ends of each connection.
    open: Mutex<Vec<[TcpStream; 2]>>,
    /// Answers until one is lost and every connection with it; below 0: none is.
    until_lost: AtomicI64,
    is_over: AtomicBool,
}

impl Proxy {
    /// To this port of this machine.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            open: Mutex::default(),
            until_lost: AtomicI64::new(-1),
            is_over: AtomicBool::new(false),
        });
        let handle = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if handle.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // Without a target the client sees its connection closed.
                let Ok(target) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _passed_on = handle.pass_on(client, target);
            }
        });
        Proxy { port: own, shared }
    }

    /// Cuts every connection; new ones are taken.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Cuts every connection, and again when this many more answers have come and another one is on its way.
    pub fn cut_and_lose_answer(&self, number: i64) {
        self.shared.until_lost.store(number, Ordering::SeqCst);
        self.cut();
    }

    /// Whether that answer has come.
    pub fn has_lost_answer(&self) -> bool {
        self.shared.until_lost.load(Ordering::SeqCst) < 0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.cut();
        let _wakes_the_listener = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn cut(&self) {
        for ends in self.open.lock().expect("no panic").drain(..) {
            ends.iter().for_each(|end| _ = end.shutdown(Shutdown::Both));
        }
    }

    fn loses_next(&self) -> bool {
        let next = |left| (left >= 0).then(|| left - 1);
        self.until_lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(0)
    }

    /// Passes on what a target says, until an answer is to be lost.
    fn pass_answers(&self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut bytes)?;
            if read > 0 && self.loses_next() {
                self.cut();
                return Ok(());
            }
            if read == 0 {
                return Ok(());
            }
            to.write_all(&bytes[..read])?;
        }
    }

    fn pass_on(self: &Arc<Self>, client: TcpStream, target: TcpStream) -> io::Result<()> {
        for end in [&client, &target] {
            end.set_nodelay(true)?;
        }
        for (from, to, are_answers) in [(&client, &target, false), (&target, &client, true)] {
            let (mut from, mut to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(self));
            thread::spawn(move || {
                let _ended = match are_answers {
                    true => shared.pass_answers(&mut from, &mut to),
                    false => io::copy(&mut from, &mut to).map(drop),
                };
                // What one end closes is closed at the other.
                let _already = to.shutdown(Shutdown::Both);
            });
        }
        self.open.lock().expect("no panic").push([client, target]);
        Ok(())
    }
}
