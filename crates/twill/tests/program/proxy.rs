//! A link to a target that a test can cut: what goes through it is passed on until then.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes connections to a port of its own on to another.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Both ends of each connection.
    open: Mutex<Vec<[TcpStream; 2]>>,
    is_over: AtomicBool,
}

impl Proxy {
    /// To this port of this machine.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
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
        for ends in self.shared.open.lock().expect("no panic").drain(..) {
            ends.iter().for_each(|end| _ = end.shutdown(Shutdown::Both));
        }
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
    fn pass_on(&self, client: TcpStream, target: TcpStream) -> io::Result<()> {
        for end in [&client, &target] {
            end.set_nodelay(true)?;
        }
        for (from, to) in [(&client, &target), (&target, &client)] {
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                let _ended = io::copy(&mut from, &mut to);
                // What one end closes is closed at the other.
                let _already = to.shutdown(Shutdown::Both);
            });
        }
        self.open.lock().expect("no panic").push([client, target]);
        Ok(())
    }
}
