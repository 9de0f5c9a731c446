//! What needs `unsafe` here: memory that the driver shares, and commands that name memory.
//!
//! Invariants:
//! - A mapping lives as long as its [`Descriptors`]; the driver alone writes there, and a descriptor does not change from
//!   the completion of its fetch until its result is committed.
//! - A control command has completed, or names no memory, when [`control`] returns.

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;
use zerocopy::IntoBytes;

use super::protocol::{ControlCommand, IoDescriptor, descriptors_offset};

/// Bytes of a command in an entry of 128 bytes.
const COMMAND_BYTES: usize = 80;

/// Of `linux/prctl.h`, since Linux 5.6.
const PR_SET_IO_FLUSHER: i32 = 57;

/// How often a command that waits asks whether it still should.
const LOOK: Duration = Duration::from_millis(50);

/// The requests of one queue, as the driver shows them.
pub(super) struct Descriptors {
    address: NonNull<IoDescriptor>,
    depth: u16,
    bytes: usize,
}

impl Descriptors {
    /// Maps those of `queue`, which has `depth` requests.
    pub fn map(device: impl AsFd, queue: u16, depth: u16) -> io::Result<Self> {
        let bytes = usize::from(depth) * size_of::<IoDescriptor>();
        // SAFETY: a new mapping at a place that the system chooses.
        let address = unsafe {
            let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                flags,
                device,
                descriptors_offset(queue),
            )?
        };
        Ok(Descriptors {
            address: NonNull::new(address.cast()).expect("a mapping is not at 0"),
            depth,
            bytes,
        })
    }

    /// The request with this tag, whose fetch has completed.
    #[inline]
    pub fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "a tag of this queue");
        // SAFETY: inside the mapping, aligned as pages are; any bytes are a descriptor, and the driver has written this
        // one before its fetch completed (first invariant). Volatile, since another request may be there next time.
        unsafe { self.address.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, to which no reference is given out.
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "the descriptors of a queue stay mapped");
        }
    }
}

/// Sends a command to the control device and waits for its result: not negative, or an error. The buffer goes to the
/// driver or comes from it.
pub(super) fn control(
    device: BorrowedFd<'_>,
    number: u32,
    mut command: ControlCommand,
    buffer: &mut [u8],
) -> io::Result<u32> {
    command.address = buffer.as_mut_ptr() as u64;
    command.bytes = u16::try_from(buffer.len()).expect("a short buffer");
    let mut ring = send(device, number, &command)?;
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Without an answer the driver might still write to the buffer.
            Err(error) => panic!("io_uring_enter failed: {error}"),
        }
        if let Some(result) = result(&mut ring) {
            return result;
        }
    }
}

/// Sends a command without a buffer that may take long, and gives up when `goes_on` is false.
pub(super) fn control_while(
    device: BorrowedFd<'_>,
    number: u32,
    command: &ControlCommand,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<u32> {
    assert!(command.bytes == 0 && command.address == 0, "what may be given up names no memory");
    let mut ring = send(device, number, command)?;
    loop {
        let limit = Timespec::from(LOOK);
        match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit)) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {}
            Err(error) => return Err(error),
        }
        if let Some(result) = result(&mut ring) {
            return result;
        }
        if !goes_on() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

type ControlRing = IoUring<Entry128, cqueue::Entry>;

/// A ring of its own for each command: there are few, and none waits for another.
fn send(device: BorrowedFd<'_>, number: u32, command: &ControlCommand) -> io::Result<ControlRing> {
    let mut ring: ControlRing = IoUring::builder().dontfork().build(2)?;
    let mut payload = [0; COMMAND_BYTES];
    payload[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
    let entry = opcode::UringCmd80::new(Fd(device.as_raw_fd()), number).cmd(payload).build();
    // SAFETY: the memory that the command names outlives it: `control` waits for it, `control_while` names none.
    unsafe { ring.submission().push(&entry).expect("an empty queue has room") };
    Ok(ring)
}

fn result(ring: &mut ControlRing) -> Option<io::Result<u32>> {
    let result = ring.completion().next()?.result();
    Some(u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
}

/// Tells the kernel not to free memory for this thread by writing to block devices: such a write may wait for this thread.
/// True if the system allowed it.
pub(super) fn become_io_flusher() -> bool {
    // SAFETY: a flag of this thread; no memory is named.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}
