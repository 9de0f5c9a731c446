//! The header: whether the log is in force, beside which superblock, and which of its records are obsolete.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::VERSION;
use super::area::SlotPlan;
use super::raw::{DOUBTS_MAX, RawHeader, RawRange};
use crate::headroom::{BLOCK_BYTES, Place, RecordError, RecordKind, sealed};
use crate::units::Stripe;

const KIND: RecordKind = RecordKind { magic: *b"TwRedoH\0", name: "redo log", versions: 1..=VERSION };
const IN_FORCE: u32 = 1;

/// Stripes from `first` to `end` - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StripeRange {
    /// The first stripe.
    pub first: u64,
    /// The first stripe after the range.
    pub end: u64,
}

impl StripeRange {
    /// One stripe.
    #[must_use]
    pub const fn of(stripe: Stripe) -> Self {
        Self { first: stripe.get(), end: stripe.get() + 1 }
    }
}

impl From<StripeRange> for std::ops::Range<u64> {
    fn from(range: StripeRange) -> Self {
        range.first..range.end
    }
}

/// A checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoHeader {
    /// Counts up with every write of a header. Of two valid headers the one with the higher generation counts.
    pub generation: u64,
    /// Counts up each time the log is put in force. Records of another epoch are obsolete.
    pub epoch: u64,
    /// Whether the log is in force: every stripe in flight has a record.
    pub in_force: bool,
    /// Records with a lower sequence number are obsolete: their writes are durable on the members.
    pub retired_below: u64,
    /// Event count of the superblock that is about to be written, for people who read the log.
    pub events: u64,
    /// Digests of the member's superblock as it is and as it is about to be written. If the superblock on the member
    /// matches neither, another program has run the array since, and the log is obsolete.
    pub superblocks: [u32; 2],
    /// The slots.
    pub plan: SlotPlan,
    /// From this stripe on parity that is there may not agree, though no missing chunk is in doubt: a resync is due once all
    /// members are there.
    pub resync_from: Option<Stripe>,
    /// Stripes in doubt, ascending: the rest does not say what their missing chunks held.
    pub doubts: Vec<StripeRange>,
}

impl RedoHeader {
    /// Checks `bytes`, [`BLOCK_BYTES`] read at `place`. `area_bytes` is the length of the log on this member.
    ///
    /// # Errors
    /// [`RecordError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], place: Place, area_bytes: u64) -> Result<RedoHeader, RecordError> {
        let block = KIND.check(bytes, BLOCK_BYTES, place)?;
        let (raw, rest) = RawHeader::read_from_prefix(block).expect("a block");
        let wrong = |field, found: u64, expected| Err(RecordError::Field { field, found, expected });
        let flags = raw.flags.get();
        if flags & !IN_FORCE != 0 {
            return wrong("flags", flags.into(), "0 or 1");
        }
        let Some(plan) = SlotPlan::checked(raw.slot_bytes.get(), raw.slots.get(), area_bytes) else {
            return wrong("slots", raw.slots.get().into(), "slots that fit in the area");
        };
        let count = raw.doubts.get() as usize;
        if count > DOUBTS_MAX {
            return wrong("doubts", count as u64, "as many ranges as the header holds");
        }
        let range = |raw: &RawRange| StripeRange { first: raw.first.get(), end: raw.end.get() };
        let raws = <[RawRange]>::ref_from_prefix_with_elems(rest, count).expect("ranges that fit").0;
        let doubts: Vec<StripeRange> = raws.iter().map(range).collect();
        let mut end = 0;
        for doubt in &doubts {
            if doubt.first < end || doubt.end <= doubt.first {
                return wrong("doubts", doubt.first, "ranges in ascending order");
            }
            end = doubt.end;
        }
        Ok(RedoHeader {
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            in_force: flags & IN_FORCE != 0,
            retired_below: raw.retired_below.get(),
            events: raw.events.get(),
            superblocks: [raw.superblock_now.get(), raw.superblock_next.get()],
            plan,
            resync_from: raw.resync_from.get().checked_sub(1).map(Stripe::new),
            doubts,
        })
    }

    /// The block to write at `place`.
    ///
    /// # Panics
    /// If there are more than [`DOUBTS_MAX`] ranges in doubt.
    #[must_use]
    pub fn encode(&self, place: Place) -> Vec<u8> {
        assert!(self.doubts.len() <= DOUBTS_MAX, "{} ranges in doubt", self.doubts.len());
        let mut raw = RawHeader::new_zeroed();
        raw.start = KIND.start(place);
        raw.generation.set(self.generation);
        raw.epoch.set(self.epoch);
        raw.retired_below.set(self.retired_below);
        raw.events.set(self.events);
        raw.superblock_now.set(self.superblocks[0]);
        raw.superblock_next.set(self.superblocks[1]);
        raw.flags.set(if self.in_force { IN_FORCE } else { 0 });
        raw.slot_bytes.set(self.plan.slot_bytes);
        raw.slots.set(self.plan.slots);
        raw.doubts.set(self.doubts.len() as u32);
        raw.resync_from.set(self.resync_from.map_or(0, |stripe| stripe.next().get()));
        let mut block = raw.as_bytes().to_vec();
        for range in &self.doubts {
            block.extend_from_slice(&range.first.to_le_bytes());
            block.extend_from_slice(&range.end.to_le_bytes());
        }
        sealed(block)
    }
}
