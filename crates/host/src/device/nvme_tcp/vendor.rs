//! Commands of the vendor's range, as their callers know them.

use engine::buffer::{Buffer, Gather};
use nvme_tcp::command::Sqe;
use nvme_tcp::status::Status;

/// A command of the vendor's range, which only Twill's targets know.
pub struct VendorCommand {
    /// The command.
    pub sqe: Sqe,
    /// What it brings.
    pub data: Gather,
    /// Bytes that it returns.
    pub bytes_in: u32,
    /// On which associations.
    pub sent: Sent,
    /// It writes what is not durable when it is answered.
    pub is_volatile: bool,
}

/// On which associations a command may be sent (F-I4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A question: again after a lost association.
    Again,
    /// Once, on whichever there is first.
    Once,
    /// An order: once, and only on the one that there was when it was given.
    OnThisOne,
}

/// What became of it.
#[derive(Debug)]
pub enum VendorReply {
    /// Its completion: status, value, and what it returned.
    Completed(Status, u64, Option<Buffer>),
    /// Its association was lost after it had been sent, and it must not be sent twice.
    Away,
    /// Its association was lost before it was sent, and it is for no other.
    NotSent,
}
