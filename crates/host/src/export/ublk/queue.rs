//! One queue on its shard: the same ring and executor as the members' I/O. Each tag, which is room for one request, has a
//! task that fetches a request, executes it, commits the result and fetches the next, while the device has this server.
//!
//! Invariants:
//! - A tag has one request at a time: its descriptor and its data in the device stay until its result is committed. By then
//!   no member's read may still fill its buffer.
//! - The device is closed when every task of every queue has ended; then the last sender of [`Ends`] is dropped, too.

use crossbeam::utils::CachePadded;
use engine::buffer::{Gather, Pool};
use engine::device::DeviceError;
use engine::error::VolumeError;
use engine::executor::Executor;
use engine::foreign_buffer::ForeignBuffer;
use engine::volume::{ReadInto, Volume, ZeroFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use zerocopy::IntoBytes;

use super::kernel::{Descriptors, become_io_flusher};
use super::protocol::{ABORTED, IoCommand, NO_BUFFER, auto_buffer, data_offset, io as command};
use super::request::{Request, errno, parse};
use crate::ring::file::RingFile;
use crate::ring::system_call::COMMAND_BYTES;
use crate::ring::{DriverAnswer, Ring};
use crate::shard::ShardContext;

/// The state of a device's queues, as the queues and the device's owner see it.
pub(super) struct QueuesState {
    /// A queue is no longer served, though this program did not stop the device.
    pub failed: AtomicBool,
    /// This program stops the device, or leaves it to the next server.
    pub stopping: AtomicBool,
    /// Requests that were answered with an error.
    pub errors: AtomicU64,
    /// Requests of each queue that were fetched and not answered. Only the queue's shard writes it.
    under_way: Box<[CachePadded<AtomicU32>]>,
}

impl QueuesState {
    pub fn new(queues: u16) -> Self {
        let under_way = (0..queues).map(|_| CachePadded::default()).collect();
        QueuesState {
            failed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            under_way,
        }
    }

    /// Requests that were fetched and not answered.
    pub fn under_way(&self) -> u32 {
        self.under_way.iter().map(|queue| queue.load(SeqCst)).sum()
    }

    fn count(&self, queue: u16, change: i32) {
        let under_way = &self.under_way[usize::from(queue)];
        under_way.store(under_way.load(Relaxed).wrapping_add_signed(change), SeqCst);
    }

    /// The driver gives a tag no further request; `result` says why. The first tag reports it for all.
    fn end(&self, result: i32) {
        let is_stop = result == ABORTED;
        if is_stop && self.stopping.load(SeqCst) || self.failed.swap(true, SeqCst) {
            return;
        }
        if is_stop {
            tracing::warn!(
                "another program has deleted the block device: the array goes on without it; stop the array and serve it again \
                 to get a new one"
            );
        } else {
            let error = io::Error::from_raw_os_error(result.saturating_neg());
            tracing::error!(
                %error,
                "the block device is no longer served, a fetch has failed: stop the array and serve it again"
            );
        }
    }
}

/// Nothing is ever sent: the receiver ends when every queue has dropped its sender, which says that all have ended.
pub(super) type Ends = Sender<()>;

/// Serves queue `number`: from here on it fetches.
pub(super) fn serve_queue<V: Volume + ReadInto>(
    context: &ShardContext,
    volume: Rc<V>,
    device: Arc<OwnedFd>,
    setup: QueueSetup,
    state: Arc<QueuesState>,
    ends: Ends,
) -> io::Result<()> {
    let QueueSetup { number, depth, registers, zero_copy } = setup;
    if !context.ring.uses_io_uring() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the system does not allow io_uring"));
    }
    if !become_io_flusher() {
        tracing::debug!(
            "PR_SET_IO_FLUSHER is not allowed: a system that is short of memory may wait for this array to write, and this array \
             for memory"
        );
    }
    let descriptors = Descriptors::map(&device, number, depth)?;
    let indices = if registers && zero_copy { context.ring.take_foreign_indices(depth) } else { None };
    let queue = Rc::new(Queue {
        registers,
        buffers: indices.unwrap_or_default().into_iter().map(ForeignBuffer::new).collect(),
        number,
        volume,
        descriptors,
        ring: context.ring.clone(),
        pool: Arc::clone(&context.pool),
        device: RingFile::character_device(device),
        state,
        _ends: ends,
    });
    start_tags(&context.executor, &queue, depth);
    Ok(())
}

/// How a queue is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSetup {
    pub number: u16,
    /// Requests that the queue has at once.
    pub depth: u16,
    /// The driver registers the memory of its requests with the ring.
    pub registers: bool,
    /// Members' reads fill that memory where they can.
    pub zero_copy: bool,
}

fn start_tags<V: Volume + ReadInto>(executor: &Executor, queue: &Rc<Queue<V>>, depth: u16) {
    for tag in 0..depth {
        executor.spawn(serve_tag(Rc::clone(queue), tag));
    }
}

/// One request after the other, until the device is stopped.
async fn serve_tag<V: Volume + ReadInto>(queue: Rc<Queue<V>>, tag: u16) {
    let mut fetched = queue.fetch(tag).await;
    while fetched == 0 {
        queue.state.count(queue.number, 1);
        let result = queue.execute(tag).await;
        let next = result.map(|result| queue.commit_and_fetch(tag, result));
        queue.state.count(queue.number, -1);
        let Some(next) = next else { return };
        fetched = next.await;
    }
    queue.state.end(fetched);
}

struct Queue<V> {
    number: u16,
    registers: bool,
    /// The memory of each tag's request, if the driver registers it and the ring had indices left.
    buffers: Vec<ForeignBuffer>,
    volume: Rc<V>,
    descriptors: Descriptors,
    ring: Ring,
    pool: Arc<Pool>,
    device: Rc<RingFile>,
    state: Arc<QueuesState>,
    /// The last field, dropped last: when it ends the device is closed.
    _ends: Ends,
}

impl<V> Drop for Queue<V> {
    fn drop(&mut self) {
        self.ring.give_foreign_indices(self.buffers.iter().map(ForeignBuffer::index));
    }
}

impl<V: Volume + ReadInto> Queue<V> {
    async fn fetch(&self, tag: u16) -> i32 {
        self.command(command::FETCH, tag, 0).await
    }

    fn commit_and_fetch(&self, tag: u16, result: i32) -> DriverAnswer {
        self.command(command::COMMIT_AND_FETCH, tag, result)
    }

    fn command(&self, number: u32, tag: u16, result: i32) -> DriverAnswer {
        let command = IoCommand { queue: self.number, tag, result, address: 0 };
        let mut payload = [0; COMMAND_BYTES];
        payload.copy_from_slice(command.as_bytes());
        let index = self.buffer(tag).map_or(NO_BUFFER, ForeignBuffer::index);
        let address = if self.registers { auto_buffer(index) } else { 0 };
        self.ring.command(&self.device, number, payload, address)
    }

    fn buffer(&self, tag: u16) -> Option<&ForeignBuffer> {
        self.buffers.get(usize::from(tag))
    }

    /// Executes the request of a tag. The result is the number of bytes, or a negated error number. None: this server stops,
    /// and the driver gives the request to the next one.
    async fn execute(&self, tag: u16) -> Option<i32> {
        let descriptor = self.descriptors.get(tag);
        let request = match parse(&descriptor) {
            Ok(request) => request,
            Err(result) => {
                tracing::warn!(
                    ?descriptor,
                    "a request of a kind that the block device does not offer is refused"
                );
                return Some(result);
            }
        };
        match self.apply(tag, request).await {
            Ok(bytes) => Some(bytes),
            Err(Failure::Volume(VolumeError::Stopping)) => None,
            Err(Failure::Volume(error)) => {
                self.state.errors.fetch_add(1, Relaxed);
                tracing::debug!(?request, %error, "failed");
                Some(-errno(&error))
            }
            Err(Failure::Copy(result)) => {
                self.state.errors.fetch_add(1, Relaxed);
                tracing::warn!(?request, result, "the data could not be copied to or from the kernel");
                Some(result)
            }
        }
    }

    async fn apply(&self, tag: u16, request: Request) -> Result<i32, Failure> {
        match request {
            Request::Read { offset_bytes, bytes, registered } => {
                if registered && self.read_into(tag, offset_bytes, bytes).await {
                    return Ok(bytes.cast_signed());
                }
                let data = self.volume.read(offset_bytes, u64::from(bytes)).await?;
                self.give(tag, bytes, data).await
            }
            Request::Write { offset_bytes, bytes, fua } => {
                let data = self.take(tag, bytes).await?;
                self.volume.write(offset_bytes, data, fua).await?;
                Ok(bytes.cast_signed())
            }
            Request::Flush => Ok(self.volume.flush().await.map(|()| 0)?),
            Request::Discard { offset_bytes, bytes } => {
                Ok(self.volume.discard(offset_bytes, bytes).await.map(|()| 0)?)
            }
            Request::WriteZeroes { offset_bytes, bytes, may_unmap, fua } => {
                let flags = ZeroFlags { may_unmap, fua };
                Ok(self.volume.write_zeroes(offset_bytes, bytes, flags).await.map(|()| 0)?)
            }
        }
    }

    /// Lets the members' reads fill the request's own memory, if they can.
    async fn read_into(&self, tag: u16, offset_bytes: u64, bytes: u32) -> bool {
        let Some(buffer) = self.buffer(tag) else { return false };
        let is_read = self.volume.read_into(offset_bytes, u64::from(bytes), &buffer.lease()).await;
        if !is_read {
            // A member that has not answered in time may still fill the buffer, over the data that is copied there next.
            buffer.returned().await;
        }
        is_read
    }

    /// Copies the data of a read into its request.
    async fn give(&self, tag: u16, bytes: u32, data: Gather) -> Result<i32, Failure> {
        if data.len() != bytes as usize {
            tracing::error!(
                asked_bytes = bytes,
                read_bytes = data.len(),
                "the volume read another length than asked"
            );
            return Err(Failure::Copy(-libc::EIO));
        }
        let copied = self.ring.copy_out(&self.device, data_offset(self.number, tag), data).await;
        copied.map(|()| bytes.cast_signed()).map_err(|error| Failure::copy(&error))
    }

    /// Copies the data of a write out of its request, into memory that the engine may keep.
    async fn take(&self, tag: u16, bytes: u32) -> Result<Gather, Failure> {
        let buffer = self.pool.take(bytes as usize);
        let (buffer, copied) = self.ring.copy_in(&self.device, data_offset(self.number, tag), buffer).await;
        copied.map(|()| buffer.freeze().into()).map_err(|error| Failure::copy(&error))
    }
}

/// Why a request was not done.
enum Failure {
    /// The volume's error.
    Volume(VolumeError),
    /// The kernel did not copy the data: a negated error number.
    Copy(i32),
}

impl Failure {
    fn copy(error: &DeviceError) -> Self {
        Failure::Copy(-if error.errno == 0 { libc::EIO } else { error.errno })
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        Failure::Volume(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_this_program_did_not_ask_for_is_a_failure() {
        const EIO: i32 = -libc::EIO;
        for (stopping, result, failed) in
            [(true, ABORTED, false), (false, ABORTED, true), (true, EIO, true), (false, EIO, true)]
        {
            let state = QueuesState::new(1);
            state.stopping.store(stopping, SeqCst);
            state.end(result);
            assert_eq!(state.failed.load(SeqCst), failed, "stopping {stopping}, result {result}");
        }
    }
}
