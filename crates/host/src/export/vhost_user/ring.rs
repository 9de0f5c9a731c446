//! One ring of requests on its shard, beside the members' I/O: waits for the guest's kick, carries out what is available side by
//! side, and puts each into the used ring as it ends.
//!
//! Invariants:
//! - A request is answered only when the volume has ended it; until then it is noted as under way.
//! - A ring has ended when none of its requests is under way: only then is its place told, and its memory let go.
//! - What the guest has written into its memory is read once, into memory of this process, and checked there.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::task::{Poll, Waker};

use engine::buffer::Pool;
use engine::error::VolumeError;
use engine::volume::{Volume, ZeroFlags};
use parking_lot::Mutex;
use virtio_queue::{Queue, QueueOwnedT as _, QueueT as _, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::chains::{Chain, Memory, chains_again};
use super::in_flight::InFlight;
use super::request::{self, HEADER_BYTES, Header, Kind, SERIAL_BYTES, Status};
use crate::shard::ShardContext;

/// Data of a ring's requests that is held at once. More requests wait in the ring.
const HELD_BYTES_MAX: usize = 32 << 20;

/// Longest read or write of the volume; a longer request is made of several, one after the other.
const PIECE_BYTES: usize = 1 << 20;

/// The guest's memory as the frontend has shared it. It may be given more or less of it while rings run.
pub(super) type SharedMemory = Mutex<Arc<GuestMemoryMmap>>;

/// How the guest is told of answers; the frontend exchanges it while the ring runs.
pub(super) type Call = Mutex<Option<OwnedFd>>;

/// What one ring works with.
pub(super) struct RingSetup {
    pub index: u16,
    /// Where it is, and from where it goes on.
    pub queue: Queue,
    pub memory: Arc<SharedMemory>,
    pub kick: OwnedFd,
    pub call: Arc<Call>,
    pub in_flight: Option<InFlight>,
    /// Heads that a former server has left under way.
    pub again: Vec<u16>,
    pub shared: Arc<RingShared>,
    /// Gets the index of the available ring from which on nothing was begun.
    pub ended: Sender<u16>,
}

/// What rings share with the frontend's thread.
pub(super) struct RingShared {
    /// The ring is to end; a kick lets it see that.
    pub stop: AtomicBool,
    /// The guest has not asked for a cache: each write is durable when it is answered.
    pub writes_through: Arc<AtomicBool>,
    /// Requests that were answered with an error.
    pub errors: Arc<AtomicU64>,
    pub serial: [u8; SERIAL_BYTES],
    /// The socket that the machine has connected to.
    pub path: PathBuf,
}

/// Serves a ring until it is stopped.
pub(super) async fn serve<V: Volume>(context: ShardContext, volume: Rc<V>, setup: RingSetup) {
    let RingSetup { index, queue, memory, kick, call, in_flight, again, shared, ended } = setup;
    let kick = Rc::new(kick);
    let left = chains_again(&memory.lock(), &queue, &again, &shared.path);
    let ring = Rc::new(Ring {
        index,
        queue: RefCell::new(queue),
        in_flight: RefCell::new(in_flight),
        memory,
        call,
        volume,
        pool: Arc::clone(&context.pool),
        shared,
        under_way: Cell::new(0),
        held: Cell::new(0),
        waits: RefCell::default(),
        is_broken: Cell::new(false),
    });
    if !left.is_empty() {
        let requests = left.len();
        tracing::info!(
            path = %ring.shared.path.display(),
            ring = index,
            requests,
            "requests that a former server had begun are carried out again"
        );
    }
    for chain in left {
        ring.begin(&context, chain);
    }
    loop {
        let is_stopping = ring.shared.stop.load(SeqCst);
        if !is_stopping && ring.held.get() >= HELD_BYTES_MAX {
            ring.until(|ring| ring.held.get() < HELD_BYTES_MAX).await;
            continue;
        }
        let next = if is_stopping { Next::Stop } else { ring.next() };
        match next {
            Next::Stop => break,
            Next::Request(chain) => ring.begin(&context, chain),
            Next::None => {
                if context.ring.readable(&kick).await.is_err() {
                    ring.broken("its kick cannot be waited for");
                    break;
                }
                // An event that is there by now may be of the requests that are looked for next.
                let _no_more = rustix::io::read(&*kick, &mut [0; 8]);
            }
        }
    }
    ring.until(|ring| ring.under_way.get() == 0).await;
    let next = ring.queue.borrow().next_avail();
    let _frontend_gone = ended.send(next);
}

/// What a ring does next.
enum Next {
    Request(Chain),
    /// Nothing is available: the guest kicks when something is.
    None,
    Stop,
}

struct Ring<V> {
    index: u16,
    queue: RefCell<Queue>,
    in_flight: RefCell<Option<InFlight>>,
    memory: Arc<SharedMemory>,
    call: Arc<Call>,
    volume: Rc<V>,
    pool: Arc<Pool>,
    shared: Arc<RingShared>,
    /// Requests that were begun and have not ended.
    under_way: Cell<usize>,
    /// Data of those in bytes.
    held: Cell<usize>,
    /// The ring's own task, while it waits for requests to end.
    waits: RefCell<Option<Waker>>,
    /// The log has it that the guest broke this ring; a guest that goes on kicking must not fill the log.
    is_broken: Cell<bool>,
}

impl<V: Volume> Ring<V> {
    /// The next available request. Where there is none the guest is asked to kick.
    fn next(&self) -> Next {
        let (memory, mut queue) = (self.current(), self.queue.borrow_mut());
        loop {
            match queue.iter(Arc::clone(&memory)).map(|mut available| available.next()) {
                Ok(Some(chain)) => return Next::Request(chain),
                Ok(None) => {}
                // The indices of its rings are not ones: it is left alone until it is set up again.
                Err(error) => {
                    self.broken(&error.to_string());
                    return Next::None;
                }
            }
            match queue.enable_notification(&*memory) {
                Ok(true) => {}
                Ok(false) => return Next::None,
                Err(error) => {
                    self.broken(&error.to_string());
                    return Next::None;
                }
            }
        }
    }

    fn current(&self) -> Memory {
        Arc::clone(&self.memory.lock())
    }

    /// Carries a request out in a task of its own.
    fn begin(self: &Rc<Self>, context: &ShardContext, chain: Chain) {
        if let Some(in_flight) = &mut *self.in_flight.borrow_mut() {
            in_flight.begin(chain.head_index());
        }
        let ring = Rc::clone(self);
        let bytes: usize = chain.clone().map(|descriptor| descriptor.len() as usize).sum();
        let bytes = bytes.min(PIECE_BYTES);
        ring.under_way.set(ring.under_way.get() + 1);
        ring.held.set(ring.held.get() + bytes);
        context.executor.spawn(async move {
            if let Some(written) = ring.carry_out(&chain).await {
                ring.answer(chain.head_index(), written);
            }
            ring.under_way.set(ring.under_way.get() - 1);
            ring.held.set(ring.held.get() - bytes);
            ring.waits.take().into_iter().for_each(Waker::wake);
        });
    }

    /// Waits until requests have ended so that `is_so`.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        poll_fn(|context| {
            if is_so(self) {
                return Poll::Ready(());
            }
            self.waits.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Puts a request into the used ring, and tells the guest if it wants to know.
    fn answer(&self, head: u16, written: u32) {
        let (memory, mut queue) = (self.current(), self.queue.borrow_mut());
        let in_flight = self.in_flight.borrow();
        if let Some(in_flight) = &*in_flight {
            in_flight.answering(head);
        }
        if let Err(error) = queue.add_used(&*memory, head, written) {
            return self.broken(&error.to_string());
        }
        if let Some(in_flight) = &*in_flight {
            in_flight.answered(head, queue.next_used());
        }
        // Where it cannot be read whether it wants to know, it is told.
        if queue.needs_notification(&*memory).unwrap_or(true)
            && let Some(call) = &*self.call.lock()
        {
            let _full_is_as_good = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }

    fn broken(&self, why: &str) {
        if self.is_broken.replace(true) {
            return;
        }
        tracing::warn!(
            path = %self.shared.path.display(),
            ring = self.index,
            why,
            "a vhost-user guest has broken this ring: nothing is taken from it until the guest puts it right or sets the device up again"
        );
    }

    /// Carries a request out. The bytes that were written to the guest; none: this server stops, and the next one does it.
    async fn carry_out(&self, chain: &Chain) -> Option<u32> {
        let (memory, to_write) = (chain.memory(), chain.clone());
        let reader = chain.clone().reader(memory);
        let parts = reader.and_then(|reader| Ok((reader, to_write.writer(memory)?)));
        // Without room for a status there is nothing that could be answered.
        let Ok((mut reader, mut writer)) = parts else { return Some(0) };
        let Some(room) = writer.available_bytes().checked_sub(1) else { return Some(0) };
        let Ok(mut status_writer) = writer.split_at(room) else { return Some(0) };
        let status = match self.apply(&mut reader, &mut writer).await {
            Ok(()) => Status::Done,
            Err(Failure::Stopping) => return None,
            Err(Failure::Status(status)) => {
                self.shared.errors.fetch_add(1, Relaxed);
                status
            }
        };
        let written = writer.bytes_written() + status_writer.write(&[status as u8]).unwrap_or(0);
        Some(u32::try_from(written).unwrap_or(u32::MAX))
    }

    async fn apply(&self, reader: &mut Reader<'_>, writer: &mut Writer<'_>) -> Result<(), Failure> {
        let mut header = [0; HEADER_BYTES];
        reader.read_exact(&mut header).map_err(Failure::copy)?;
        let header = Header::of(header);
        let kind = Kind::of(header.kind).ok_or(Failure::Status(Status::Unsupported))?;
        let offset_bytes = header.offset_bytes().ok_or(Failure::Status(Status::Failed))?;
        let fua = self.shared.writes_through.load(Relaxed);
        match kind {
            Kind::Read => self.read(offset_bytes, writer).await,
            Kind::Write => self.write(offset_bytes, reader, fua).await,
            Kind::Flush => Ok(self.volume.flush().await?),
            Kind::Serial => {
                let room = writer.available_bytes().min(SERIAL_BYTES);
                writer.write_all(&self.shared.serial[..room]).map_err(Failure::copy)
            }
            Kind::Discard | Kind::WriteZeroes => {
                // One byte more than a list may have is refused with the rest of its faults.
                let mut bytes = vec![0; reader.available_bytes().min(request::RANGES_BYTES_MAX + 1)];
                reader.read_exact(&mut bytes).map_err(Failure::copy)?;
                for range in request::ranges(kind, &bytes).map_err(Failure::Status)? {
                    let request::Range { offset_bytes, bytes, may_unmap } = range;
                    match kind {
                        Kind::Discard => self.volume.discard(offset_bytes, bytes).await?,
                        _ => {
                            let flags = ZeroFlags { may_unmap, fua };
                            self.volume.write_zeroes(offset_bytes, bytes, flags).await?;
                        }
                    }
                }
                Ok(())
            }
        }
    }

    async fn read(&self, offset_bytes: u64, writer: &mut Writer<'_>) -> Result<(), Failure> {
        let mut at = offset_bytes;
        while writer.available_bytes() > 0 {
            let bytes = writer.available_bytes().min(PIECE_BYTES);
            let data = self.volume.read(at, bytes as u64).await?;
            for slice in data.slices() {
                writer.write_all(slice.bytes()).map_err(Failure::copy)?;
            }
            at += bytes as u64;
        }
        Ok(())
    }

    async fn write(&self, offset_bytes: u64, reader: &mut Reader<'_>, fua: bool) -> Result<(), Failure> {
        let mut at = offset_bytes;
        while reader.available_bytes() > 0 {
            let bytes = reader.available_bytes().min(PIECE_BYTES);
            let mut buffer = self.pool.take(bytes);
            reader.read_exact(buffer.bytes_mut()).map_err(Failure::copy)?;
            self.volume.write(at, buffer.freeze().into(), fua).await?;
            at += bytes as u64;
        }
        Ok(())
    }
}

/// Why a request was not done.
enum Failure {
    Status(Status),
    /// The array stops: another server is to carry the request out.
    Stopping,
}

impl Failure {
    /// The guest's memory is not what its request says.
    fn copy(_: std::io::Error) -> Self {
        Failure::Status(Status::Failed)
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Stopping => Failure::Stopping,
            error => {
                tracing::debug!(%error, "a request of a vhost-user guest failed");
                Failure::Status(request::status_of(&error))
            }
        }
    }
}
