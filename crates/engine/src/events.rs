//! What happened to an array, for its operator. The engine has no clock: the receiver of an event adds the time.

use serde::Serialize;

use crate::device::DeviceErrorKind;
use crate::mismatch::{Mismatch, Unit};
use layout::units::{ArrayOffset, DeviceOffset, Slot, Stripe};

/// Something an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// An operation failed and will be tried once more.
    MemberError {
        /// Slot of the member.
        member: Slot,
        /// Kind of error.
        kind: DeviceErrorKind,
        /// What failed, where.
        error: String,
    },
    /// A block that could not be read was reconstructed, written again and read back.
    BlockRewritten {
        /// Slot of the member.
        member: Slot,
        /// Where on its device, in bytes.
        offset_bytes: DeviceOffset,
        /// How long, in bytes.
        bytes: u64,
    },
    /// A block of a zoned member is not what was written there. Other columns make what it held, where the level can.
    LogDamaged {
        /// Slot of the member.
        member: Slot,
        /// Where on its device, in bytes.
        offset_bytes: DeviceOffset,
        /// What is wrong there.
        what: &'static str,
    },
    /// A block could be neither read nor reconstructed: the request for it failed.
    BlockUnreadable {
        /// Slot of the member.
        member: Slot,
        /// Where on its device, in bytes.
        offset_bytes: DeviceOffset,
        /// How long, in bytes.
        bytes: u64,
    },
    /// A block of a member could not be reconstructed. It is in the member's bad-block log until it is written.
    BadBlockRecorded {
        /// Slot of the member.
        member: Slot,
        /// Where on its device, in bytes.
        offset_bytes: DeviceOffset,
        /// How long, in bytes.
        bytes: u64,
    },
    /// A member is no longer used.
    MemberFailed {
        /// Slot of the member.
        member: Slot,
        /// Why.
        reason: String,
        /// Members that still work.
        working: u32,
    },
    /// The connection to a member on another machine is lost.
    MemberAway {
        /// Slot of the member.
        member: Slot,
        /// Why.
        reason: String,
    },
    /// A member on another machine is connected again.
    MemberBack {
        /// Slot of the member.
        member: Slot,
        /// How long it was away, in milliseconds.
        after_ms: u64,
    },
    /// A member on another machine is not used any more as it is: a re-add takes it back.
    MemberEnded {
        /// Slot of the member.
        member: Slot,
        /// Why.
        reason: String,
    },
    /// Another host has taken the array over: this one writes nothing more.
    Fenced {
        /// How that is known.
        reason: String,
    },
    /// A member could not be failed: the array would be lost. The request got an error instead.
    MemberKept {
        /// Slot of the member.
        member: Slot,
        /// Why it should have failed.
        reason: String,
    },
    /// A member was removed from the array.
    MemberRemoved {
        /// Slot of the member.
        member: Slot,
    },
    /// A spare took a free slot and is being rebuilt.
    RecoveryStarted {
        /// Slot of the member.
        member: Slot,
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// A member that was detached took its slot again. Only the chunks that the bitmap marks are rebuilt.
    MemberReAdded {
        /// Slot of the member.
        member: Slot,
    },
    /// A rebuilt member is in sync.
    RecoveryFinished {
        /// Slot of the member.
        member: Slot,
    },
    /// A member's contents are being copied to the device that is to replace it.
    ReplacementStarted {
        /// Slot of the member.
        member: Slot,
        /// Where it starts, in bytes on the member.
        from_bytes: u64,
    },
    /// A member was replaced: another device has its slot, and it is no longer used.
    ReplacementFinished {
        /// Slot of the member.
        member: Slot,
    },
    /// The device that was to replace a member is no longer used. The member stays.
    ReplacementFailed {
        /// Slot of the member.
        member: Slot,
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
    /// A resync, recovery or replacement stopped. The array tries again when members change, or after half a minute and
    /// then after twice the last wait, up to ten minutes.
    RebuildStopped {
        /// Why.
        reason: String,
    },
    /// A stripe's write failed half way: its parity is made to agree before its next write.
    StripeSuspect {
        /// The stripe.
        stripe: Stripe,
        /// Why.
        reason: String,
    },
    /// A write to a mirror's region failed half way: its copies are made to agree before its next write.
    RegionSuspect {
        /// The region.
        region: u64,
        /// Where it begins in the array, in bytes.
        offset_bytes: ArrayOffset,
        /// Why.
        reason: String,
    },
    /// A check or repair of the array began, or goes on where it was.
    ScrubStarted {
        /// It repairs what it finds.
        repair: bool,
        /// The first stripe, region or segment.
        #[serde(flatten)]
        from: Unit,
    },
    /// A check or repair came to its end.
    ScrubFinished {
        /// It repaired what it found.
        repair: bool,
        /// Sectors that did not agree, counted on one member, as md counts.
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
    /// After a crash with members missing the redo log's records were replayed.
    RedoLogReplayed {
        /// Records replayed.
        records: u64,
        /// The stripes that they write, ascending, the first hundred.
        stripes: Vec<Stripe>,
        /// Slots of the members that were written.
        members: Vec<Slot>,
    },
    /// The host before this one died or was fenced, and the members' targets had recorded what it had under way: parity was made
    /// anew there, and nothing else awaits a resync.
    LedgersUsed {
        /// Stripes whose parity was made.
        stripes: u64,
    },
    /// These stripes are in doubt (the write hole): reads of their lost chunks fail until the chunks are overwritten.
    StripesInDoubt {
        /// First stripe.
        first: u64,
        /// First stripe after them.
        end: u64,
        /// Why.
        reason: String,
    },
    /// An operator said that what parity makes counts as right there: doubt is over.
    DoubtAccepted {
        /// First stripe.
        first: u64,
        /// First stripe after them.
        end: u64,
        /// How many of them were in doubt.
        stripes: u64,
    },
    /// Force took a member that is older than the array, because it could not start without.
    StaleMemberTaken {
        /// Slot of the member.
        member: Slot,
        /// Its event count.
        events: u64,
        /// That of the newest member.
        newest_events: u64,
        /// When it was last written, in seconds since 1970.
        written_unix_s: u64,
        /// When the newest member was.
        newest_written_unix_s: u64,
    },
    /// Of a zoned array: new segments are over another number of members than those before.
    SegmentsChanged {
        /// Members that have a column of them.
        columns: u32,
        /// Columns of missing members that are left out, since narrower segments would not hold what is live: what is written
        /// has less redundancy by this number. 0: it is as redundant as the level says.
        left_out: u32,
    },
    /// Of a zoned array: members were added. New segments are over all of them, and older ones are rewritten.
    GrowthStarted {
        /// Members before.
        from: u32,
        /// Members now.
        to: u32,
    },
    /// Of a zoned array: every segment is over all members, and superblocks give it its new size, from the next start on.
    GrowthFinished {
        /// Bytes that clients will see.
        size_bytes: u64,
    },
    /// The superblock of a member could not be written.
    MetadataError {
        /// Slot of the member.
        member: Slot,
        /// Why.
        reason: String,
    },
}

impl Event {
    /// Slot of the member that the event concerns, if it concerns one.
    pub fn member(&self) -> Option<Slot> {
        match self {
            Event::MemberError { member, .. }
            | Event::BlockRewritten { member, .. }
            | Event::LogDamaged { member, .. }
            | Event::BlockUnreadable { member, .. }
            | Event::BadBlockRecorded { member, .. }
            | Event::MemberFailed { member, .. }
            | Event::MemberKept { member, .. }
            | Event::MemberAway { member, .. }
            | Event::MemberBack { member, .. }
            | Event::MemberEnded { member, .. }
            | Event::MemberRemoved { member }
            | Event::RecoveryStarted { member, .. }
            | Event::MemberReAdded { member }
            | Event::RecoveryFinished { member }
            | Event::ReplacementStarted { member, .. }
            | Event::ReplacementFinished { member }
            | Event::ReplacementFailed { member, .. }
            | Event::StaleMemberTaken { member, .. }
            | Event::MetadataError { member, .. } => Some(*member),
            Event::Fenced { .. }
            | Event::ResyncStarted { .. }
            | Event::ResyncFinished {}
            | Event::RebuildStopped { .. }
            | Event::StripeSuspect { .. }
            | Event::RegionSuspect { .. }
            | Event::ScrubStarted { .. }
            | Event::ScrubFinished { .. }
            | Event::ScrubStopped { .. }
            | Event::Mismatch(_)
            | Event::RedoLogInForce {}
            | Event::RedoLogOver {}
            | Event::RedoLogAbsent { .. }
            | Event::RedoLogReplayed { .. }
            | Event::LedgersUsed { .. }
            | Event::StripesInDoubt { .. }
            | Event::DoubtAccepted { .. }
            | Event::SegmentsChanged { .. }
            | Event::GrowthStarted { .. }
            | Event::GrowthFinished { .. } => None,
        }
    }
}

/// Receives events; called on the shard where they happen, so it must not block.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;
