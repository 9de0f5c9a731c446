//! Clients that keep a number of requests in flight.

use std::cell::RefCell;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather, Slice};
use engine::executor::join_all;
use engine::log::engine::LogSet;
use engine::volume::{Engine as _, Space as _};

use super::drive::TimedZones;
use super::machine::Machine;
use super::members::{BLOCK, Served};
use crate::timeline::Timeline;

/// Longest request.
pub(super) const REQUEST_BYTES_MAX: u64 = 1 << 20;
const FILL_BLOCKS: u64 = 32;
const FILL_DEPTH: u32 = 4;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) is_read: bool,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A request that has ended.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) took_ns: u64,
    pub(super) at_ns: u64,
    pub(super) bytes: u64,
    /// A read was reconstructed meanwhile: this one, if it was alone.
    pub(super) met_reconstruction: bool,
}

struct Clients {
    set: Rc<LogSet<TimedZones>>,
    time: Rc<Timeline>,
    next: RefCell<Box<dyn FnMut() -> Option<Request>>>,
    data: Slice,
    ended: RefCell<Vec<Ended>>,
}

impl Served {
    /// Keeps `depth` requests in flight until there are no more. What has ended, in the order in which it did.
    pub(super) async fn work(
        &self,
        machine: &Machine,
        depth: u32,
        next: impl FnMut() -> Option<Request> + 'static,
    ) -> Vec<Ended> {
        let clients = Rc::new(Clients {
            set: Rc::clone(&self.set),
            time: Rc::clone(&machine.time),
            next: RefCell::new(Box::new(next)),
            data: Buffer::new(REQUEST_BYTES_MAX as usize).freeze(),
            ended: RefCell::default(),
        });
        let client = |_| machine.executor.spawn_with_result(Rc::clone(&clients).client());
        join_all((0..depth).map(client)).await;
        clients.ended.take()
    }

    /// Writes everything once, in order.
    pub(super) async fn fill(&self, machine: &Machine, blocks: u64) {
        let mut firsts = (0..blocks).step_by(FILL_BLOCKS as usize);
        let next = move || {
            let first = firsts.next()?;
            let bytes = FILL_BLOCKS.min(blocks - first) * BLOCK;
            Some(Request { is_read: false, offset: first * BLOCK, bytes })
        };
        self.work(machine, FILL_DEPTH, next).await;
    }
}

impl Clients {
    async fn client(self: Rc<Self>) {
        loop {
            let request = (self.next.borrow_mut())();
            let Some(Request { is_read, offset, bytes }) = request else { return };
            let (since_ns, reconstructed) = (self.time.now_ns(), self.reconstructed());
            let ended = match is_read {
                true => self.set.read(offset, bytes).await.map(drop),
                false => self.set.write(offset, Gather::from(self.data.part(0, bytes as usize)), false).await,
            };
            ended.expect("the array survives what is missing");
            let at_ns = self.time.now_ns();
            let met_reconstruction = self.reconstructed() > reconstructed;
            self.ended.borrow_mut().push(Ended {
                took_ns: at_ns - since_ns,
                at_ns,
                bytes,
                met_reconstruction,
            });
        }
    }

    fn reconstructed(&self) -> u64 {
        self.set.counters().reconstructed_reads.get()
    }
}
