//! What happened to an array, in words an operator understands. The engine has no clock: who receives an event
//! says when it was.

use serde::Serialize;

use crate::device::DeviceErrorKind;
use crate::mismatch::Mismatch;

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
    /// A block that could not be read was made from the others, written again and read back.
    BlockRewritten {
        /// Slot of the member.
        member: u32,
        /// Where on its device, in bytes.
        offset_bytes: u64,
        /// How long, in bytes.
        bytes: u64,
    },
    /// A block that could not be read could not be made either: whoever asked for it got an error.
    BlockUnreadable {
        /// Slot of the member.
        member: u32,
        /// Where on its device, in bytes.
        offset_bytes: u64,
        /// How long, in bytes.
        bytes: u64,
    },
    /// What belongs at a place of a member could not be made. It is in the member's bad-block log until it is written.
    BadBlockRecorded {
        /// Slot of the member.
        member: u32,
        /// Where on its device, in bytes.
        offset_bytes: u64,
        /// How long, in bytes.
        bytes: u64,
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
    /// A member that was away took its slot again. It gets what the bitmap marks, and nothing else.
    MemberReAdded {
        /// Slot of the member.
        member: u32,
    },
    /// A rebuilt member is in sync.
    RecoveryFinished {
        /// Slot of the member.
        member: u32,
    },
    /// What a member holds is being copied to the device that is to replace it.
    ReplacementStarted {
        /// Slot of the member.
        member: u32,
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// A member was replaced: another device has its slot, and it is no longer used.
    ReplacementFinished {
        /// Slot of the member.
        member: u32,
    },
    /// The device that was to replace a member is no longer used. The member stays.
    ReplacementFailed {
        /// Slot of the member.
        member: u32,
        /// Why.
        reason: String,
    },
    /// Parity is being made to agree with data.
    ResyncStarted {
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// Parity agrees with data.
    ResyncFinished {},
    /// Resync, recovery or replacement could not go on. It is tried again when members change, or after half a minute and
    /// then after twice the last wait, up to ten minutes.
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
    /// A check or repair of the array began, or goes on where it was.
    ScrubStarted {
        /// It repairs what it finds.
        repair: bool,
        /// The first stripe, or region of a mirror.
        from_stripe: u64,
    },
    /// A check or repair came to its end.
    ScrubFinished {
        /// It repaired what it found.
        repair: bool,
        /// What did not agree, in sectors of a member, as md counts.
        mismatch_sectors: u64,
        /// Mismatches that were repaired.
        repaired: u64,
        /// Mismatches that were to be repaired and are still there.
        left: u64,
    },
    /// A check or repair ended before its end.
    ScrubStopped {
        /// Why.
        reason: String,
    },
    /// Blocks that do not agree.
    Mismatch(Mismatch),
    /// Members are missing, and from here on every stripe write is logged before it is made.
    RedoLogInForce {},
    /// The array is whole again: stripe writes are no longer logged.
    RedoLogOver {},
    /// Members are missing and there is no log: a crash leaves stripes in doubt.
    RedoLogAbsent {
        /// Why.
        reason: String,
    },
    /// After a crash with members missing the writes that were on their way were made again.
    RedoLogReplayed {
        /// Records made again.
        records: u64,
        /// Stripes they were about, ascending, the first hundred.
        stripes: Vec<u64>,
        /// Slots of the members that were written.
        members: Vec<u32>,
    },
    /// Lost chunks of these stripes may be wrong: reading them is an error until they are overwritten.
    StripesInDoubt {
        /// First stripe.
        first: u64,
        /// First stripe after them.
        end: u64,
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

impl Event {
    /// Slot of the member that it is about, if it is about one.
    pub fn member(&self) -> Option<u32> {
        match self {
            Event::MemberError { member, .. }
            | Event::BlockRewritten { member, .. }
            | Event::BlockUnreadable { member, .. }
            | Event::BadBlockRecorded { member, .. }
            | Event::MemberFailed { member, .. }
            | Event::MemberKept { member, .. }
            | Event::MemberRemoved { member }
            | Event::RecoveryStarted { member, .. }
            | Event::MemberReAdded { member }
            | Event::RecoveryFinished { member }
            | Event::ReplacementStarted { member, .. }
            | Event::ReplacementFinished { member }
            | Event::ReplacementFailed { member, .. }
            | Event::MetadataError { member, .. } => Some(*member),
            Event::ResyncStarted { .. }
            | Event::ResyncFinished {}
            | Event::RebuildStopped { .. }
            | Event::StripeSuspect { .. }
            | Event::ScrubStarted { .. }
            | Event::ScrubFinished { .. }
            | Event::ScrubStopped { .. }
            | Event::Mismatch(_)
            | Event::RedoLogInForce {}
            | Event::RedoLogOver {}
            | Event::RedoLogAbsent { .. }
            | Event::RedoLogReplayed { .. }
            | Event::StripesInDoubt { .. } => None,
        }
    }
}

/// Receives events; called on the shard where they happen, so it must not block.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;
