//! The contract between the engine and a member's device.
//!
//! Of every operation:
//! - Offset and length are multiples of [`DeviceInfo::logical_block_bytes`]; buffers are aligned to 4 KiB at their
//!   start, slices at least to the logical block.
//! - The device handles short transfers: an operation is done whole or fails. A failed write may have been made in part.
//! - A write that returned is visible to every later read. It is durable once a flush that was sent after it has
//!   returned, or at once if it was sent with `fua`.
//!
//! Cancellation: there is none. An operation owns its memory until it completes, and gives it back with the result. A
//! future that is dropped early leaves its operation running; the device keeps the memory until then.
//!
//! After [`DeviceErrorKind::Timeout`] or [`DeviceErrorKind::Gone`] the operation may still happen: the system still holds
//! it, and a controller that is reset or a path that comes back makes it minutes later. Therefore
//! - the device keeps the memory of a late operation, and the caller of a read gets other memory back;
//! - while a late operation may still change the medium (a write, a discard, zeroes), the device sends nothing else to
//!   the medium, from any shard. It holds further operations back, in order, and fails them unsent with `Timeout`, at the
//!   latest when their own limit is over. So a late write never lands on top of a newer one, and a read never returns
//!   data that changes by itself afterwards;
//! - the engine does not repeat the operation and takes neither the old nor the new contents of the range for granted:
//!   it fails the member, or, where the array would be lost without it, calls the stripe suspect until parity was made
//!   again. It never reaches the medium past this device, by another handle that was opened meanwhile.
//!
//! Abilities that only some devices have are traits of their own ([`ReadForeign`],
//! [`ZoneDevice`](crate::zone_device::ZoneDevice)); only what needs one is bound by it.
//! Futures are `Unpin`, so that one task can wait for many without allocating.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::buffer::{Buffer, Gather};
use crate::fabric::host::Attach;
use crate::fabric::order::{Answer, Order, PeerIndex, Settle, Stamp};
use crate::foreign_buffer::Lease;
use layout::units::DeviceOffset;

/// A device's size, unit and abilities.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DeviceInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Unit of addressing in bytes: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Whether a discarded range reads as zeroes afterwards.
    pub discard_zeroes: bool,
    /// Name for messages: a path or an address.
    pub name: String,
}

impl DeviceInfo {
    /// Whether a range has bytes, lies inside the device and is aligned to its logical blocks, as that of every operation
    /// must.
    #[inline]
    pub fn allows(&self, offset: DeviceOffset, bytes: u64) -> bool {
        let mask = u64::from(self.logical_block_bytes) - 1; // a power of two
        let is_inside = offset.get().checked_add(bytes).is_some_and(|end| end <= self.size_bytes);
        bytes > 0 && is_inside && (offset.get() | bytes) & mask == 0
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceErrorKind {
    /// The device could not read or write the place (EIO, medium error, bad checksum).
    Io,
    /// No space is left below a thin device or a sparse file (ENOSPC).
    NoSpace,
    /// The device is gone (ENODEV, ENXIO, file cut short). The operation may still happen.
    Gone,
    /// No answer within the time limit. The operation may still happen.
    Timeout,
    /// Another host has reserved the device: this one may not use it any more. No member fails for it (F-I7).
    Fenced,
    /// The device does not have this operation.
    Unsupported,
    /// Offset or length is outside the device or not aligned: the caller's mistake.
    Invalid,
    /// The zone has no room for the write: it is full, or the rest of its capacity is shorter.
    ZoneFull,
    /// The zone is read-only or offline, or the change does not lead on from its state.
    ZoneState,
    /// The write or the change would open a zone beyond the device's limit of open or of active zones.
    TooManyOpen,
    /// A write was not at its zone's pointer, or an append returned a place where it cannot be: what the caller knows of the
    /// zone is not what the device knows.
    NotAtPointer,
}

impl DeviceErrorKind {
    /// In words, for messages.
    pub fn words(self) -> &'static str {
        match self {
            DeviceErrorKind::Io => "an I/O error",
            DeviceErrorKind::NoSpace => "no space is left",
            DeviceErrorKind::Gone => "the device is gone, or was cut short",
            DeviceErrorKind::Timeout => "no answer within the time limit",
            DeviceErrorKind::Fenced => "another host has reserved it",
            DeviceErrorKind::Unsupported => "the device cannot do that",
            DeviceErrorKind::Invalid => "outside the device, or not aligned",
            DeviceErrorKind::ZoneFull => "the zone has no room for it",
            DeviceErrorKind::ZoneState => "the zone's state does not allow it",
            DeviceErrorKind::TooManyOpen => "too many zones are open or active",
            DeviceErrorKind::NotAtPointer => "not at the zone's write pointer",
        }
    }
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} of {bytes} bytes at {offset} failed: {}{}", kind.words(), errno_text(*errno))]
pub struct DeviceError {
    /// The kind, to match on.
    pub kind: DeviceErrorKind,
    /// The operation: "read", "write", "flush", "discard", "write zeroes", "append", "report zones", "reset zone", ….
    pub operation: &'static str,
    /// Where on the device.
    pub offset: DeviceOffset,
    /// How long, in bytes.
    pub bytes: u64,
    /// The system's error number, 0 if there is none.
    pub errno: i32,
}

fn errno_text(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(" ({})", std::io::Error::from_raw_os_error(errno)) }
}

/// One shard's way to a member's device. Other shards have handles to the same device.
pub trait Device: 'static {
    /// A read in flight.
    type Read: Future<Output = (Buffer, Result<(), DeviceError>)> + Unpin + 'static;
    /// Any other operation in flight.
    type Done: Future<Output = Result<(), DeviceError>> + Unpin + 'static;

    /// Size and abilities.
    fn info(&self) -> &DeviceInfo;

    /// Fills `buffer` from `offset` on.
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Self::Read;

    /// Writes `data` at `offset`; with `fua` it is durable on return.
    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> Self::Done;

    /// Makes every write that returned before this call durable.
    fn flush(&self) -> Self::Done;

    /// Discards a range: its contents are no longer needed.
    fn discard(&self, offset: DeviceOffset, bytes: u64) -> Self::Done;

    /// Makes a range read as zeroes. `may_unmap` allows the device to free the space.
    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> Self::Done;

    /// The way to have the device's target take part in ops among targets. Which members have it changes while an array runs, and
    /// differs from slot to slot: so it is asked for each stripe, and is no trait that an array's devices have or lack.
    fn peer(&self) -> Option<&dyn PeerMember> {
        None
    }
}

/// A member whose target makes parity together with others ([`crate::fabric`]).
pub trait PeerMember {
    /// Its place, while its target is attached.
    fn place(&self) -> Option<Place>;

    /// Has an order carried out by the attach with this key ([`Place::key`]). It is sent once: after [`NoAnswer::Away`] the
    /// caller settles.
    fn order(&self, key: u64, order: Order, data: Gather) -> Answering;

    /// Asks what became of an op whose order was sent under this key, connecting again if need be.
    fn settle(&self, key: u64, stamp: Stamp, how: Settle) -> Answering;

    /// Waits a while for its target to be attached again, if it is not now.
    fn attached(&self) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// A member's place among the targets of an attach.
#[derive(Clone, Debug)]
pub struct Place {
    /// The attach.
    pub attach: Arc<Attach>,
    /// The member's number in it.
    pub index: PeerIndex,
    /// Most bytes of an order.
    pub order_bytes_max: u64,
    /// Under which its target knows the attach: another one whenever the member was connected anew. F-I4: an op is asked for under
    /// the key that its order was sent under. Under a later one it would be an op that never came, whatever it has written.
    pub key: u64,
}

/// An order or a question on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Answered, NoAnswer>>>>;

/// What a target answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// How it ended.
    pub answer: Answer,
    /// What a reduction to the host came to; else empty.
    pub data: Gather,
}

/// Why a target gave no answer.
#[derive(Clone, Debug)]
pub enum NoAnswer {
    /// The connection was lost on the way: the order may have been carried out, in part or not at all.
    Away,
    /// The target does not know the attach: it was restarted, or another host has it.
    Forgot,
    /// The member cannot be asked.
    Device(DeviceError),
}

/// The ability to read into a buffer that lies outside of this process.
pub trait ReadForeign: Device {
    /// Fills `target` with `bytes` bytes from `offset` on. `target` must suit the device as any memory: where it
    /// does not, the read fails with [`DeviceErrorKind::Invalid`]. None: this handle cannot, and nothing was started.
    fn read_into(&self, offset: DeviceOffset, bytes: usize, target: Lease) -> Option<Self::Done>;
}
