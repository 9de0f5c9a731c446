//! What happened to an array, in words an operator understands. The engine has no clock: who receives an event
//! says when it was.

use serde::Serialize;

use crate::device::DeviceErrorKind;

/// Something an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// An operation failed and will be tried once more.
    MemberError {
        /// Slot of the member.
        member: u32,
        /// Kind of error.
        kind: DeviceErrorKind,
        /// What failed, where.
        error: String,
    },
    /// A member is no longer used.
    MemberFailed {
        /// Slot of the member.
        member: u32,
        /// Why.
        reason: String,
        /// Members that still work.
        working: u32,
    },
    /// A member could not be failed: the array would be lost. The request got an error instead.
    MemberKept {
        /// Slot of the member.
        member: u32,
        /// Why it should have failed.
        reason: String,
    },
    /// A member was removed from the array.
    MemberRemoved {
        /// Slot of the member.
        member: u32,
    },
    /// A spare took a free slot and is being rebuilt.
    RecoveryStarted {
        /// Slot of the member.
        member: u32,
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// A rebuilt member is in sync.
    RecoveryFinished {
        /// Slot of the member.
        member: u32,
    },
    /// Parity is being made to agree with data.
    ResyncStarted {
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// Parity agrees with data.
    ResyncFinished {},
    /// Resync or recovery could not go on.
    RebuildStopped {
        /// Why.
        reason: String,
    },
    /// A write failed half way; the stripe's parity is made to agree before its next write.
    StripeSuspect {
        /// Which stripe.
        stripe: u64,
        /// Why.
        reason: String,
    },
    /// Superblocks could not be written on a member.
    MetadataError {
        /// Slot of the member.
        member: u32,
        /// Why.
        reason: String,
    },
}

/// Receives events; called on the shard where they happen, so it must not block.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;
