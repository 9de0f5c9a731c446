//! The record of generations: which unbroken run of the array a member belongs to, and beside which other members.
//!
//! md's superblock names devices by numbers that are given away again, and counts events on each side of an array that was
//! split alike. A generation has a random id that no other one has. Twill keeps the record in space that md leaves alone,
//! and md does not know it, so:
//! - A [`Generations`] goes with one superblock: it holds that one's digest. If another one is on the member, md or an
//!   older Twill wrote there since, and the record counts as absent ([`Generations::choose`]).
//! - Before a superblock is written the record that goes with it is durable in the one of two copies that does not go with
//!   the superblock on the member. So record and superblock change in the same instant, and a torn record leaves the other.
//!
//! What generations mean is the engine's matter. Bytes are drawn in `docs/formats.md`.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::headroom::{
    BLOCK_BYTES, BitmapExtent, Headroom, Place, RawStart, RecordError, RecordKind, sealed,
};
use crate::md_superblock::Superblock;
use crate::redo_log::RedoArea;
use crate::units::DeviceOffset;

/// A record fills one block, the largest unit that a device writes whole or not at all.
pub const RECORD_BYTES: usize = BLOCK_BYTES;
/// Generations before the current one that are remembered.
pub const HISTORY_MAX: usize = 64;
/// Devices that the record has room for.
pub const NAMES_MAX: usize = (RECORD_BYTES - FIXED_BYTES) / UUID_BYTES;
/// An array of more slots has no record: each member may have a replacement, too.
pub const SLOTS_MAX: usize = NAMES_MAX / 2;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const FIELDS: &[(&str, usize, usize)] = RawGenerations::FIELDS;

const KIND: RecordKind = RecordKind { magic: *b"TwGener\0", name: "record of generations", versions: 1..=1 };
const FIXED_BYTES: usize = 768;
const UUID_BYTES: usize = 16;
const COPIES: u64 = 2;
const BLOCK: u64 = RECORD_BYTES as u64;

byte_struct! {
    struct RawGenerations, 768 bytes {
        0    56   start: RawStart,
        56   8    sequence: U64,
        64   8    events: U64,
        72   4    superblock: U32,
        76   4    names: U32,
        80   8    current: U64,
        88   8    bitmap: U64,
        96   8    since_events: U64,
        104  8    absences: U64,
        112  144  reserve: bytes,
        256  512  history: [U64; 64],
    }
}

const _: () = {
    assert!(FIXED_BYTES == size_of::<RawGenerations>());
    assert!(FIXED_BYTES + NAMES_MAX * UUID_BYTES <= RECORD_BYTES);
    assert!(size_of::<[U64; HISTORY_MAX]>() == 512);
    assert!(SLOTS_MAX >= 100);
};

/// Where a member keeps its record: two copies, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationsArea {
    /// First byte on the device, a multiple of 4 KiB.
    pub start: DeviceOffset,
}

impl GenerationsArea {
    /// The room right before that of the redo log, or before the data where there is none, after everything that md has
    /// there. `None` at version 1.0, where data stands first, if there is too little, or too many slots.
    #[must_use]
    pub fn of(superblock: &Superblock, bitmap: BitmapExtent) -> Option<GenerationsArea> {
        if superblock.raid_disks() as usize > SLOTS_MAX {
            return None;
        }
        let room = Headroom::of(superblock, bitmap)?;
        let end = RedoArea::of(superblock, bitmap).map_or(room.end_bytes, |log| log.start.get());
        let start_bytes = end.checked_sub(COPIES * BLOCK)?;
        (start_bytes >= room.start_bytes).then_some(GenerationsArea { start: DeviceOffset::new(start_bytes) })
    }

    /// Where copy 0 or 1 is on the device. The record of sequence *n* is in copy *n* mod 2.
    #[must_use]
    pub fn copy_offset(self, sequence: u64) -> DeviceOffset {
        self.start + sequence % COPIES * BLOCK
    }
}

/// The generations of an array as one of its members has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Generations {
    /// The run of the array that the member belongs to: a random number, never 0.
    pub current: u64,
    /// The generation in which the array was last whole: what was written since is marked in its bitmap.
    pub bitmap: u64,
    /// Generations before the current one, newest first, at most [`HISTORY_MAX`].
    pub history: Vec<u64>,
    /// Event count from which on every superblock of the array went with a record.
    pub since_events: u64,
    /// Which record of absences goes with it ([`crate::absences`]): its id, or 0.
    pub absences: u64,
    /// Device UUIDs of its members: first by slot, then those that are to replace members.
    pub members: Vec<Option<[u8; 16]>>,
}

/// A record as it lies on a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationsRecord {
    /// What it says.
    pub generations: Generations,
    /// Counts up with every record of this member.
    pub sequence: u64,
    /// Event count of the superblock that it goes with, for people.
    pub events: u64,
    /// Digest of the superblock that it goes with.
    pub superblock: u32,
}

impl Generations {
    /// Of the two copies read at `area` the record that goes with the superblock on the member.
    ///
    /// # Errors
    /// Why none of them counts, for people.
    pub fn choose(
        copies: [&[u8]; 2],
        superblock: &Superblock,
        area: GenerationsArea,
    ) -> Result<GenerationsRecord, String> {
        let digest = superblock.digest();
        let mut reasons = Vec::new();
        let mut chosen: Option<GenerationsRecord> = None;
        for (copy, bytes) in (0u64..).zip(copies) {
            match GenerationsRecord::parse(bytes, Place::on(superblock, area.copy_offset(copy))) {
                Err(RecordError::Absent(_)) => {}
                Err(error) => reasons.push(error.to_string()),
                Ok(record) if record.superblock != digest => {
                    let (own, events) = (record.events, superblock.events());
                    reasons
                        .push(format!("it goes with another superblock, of event {own}, this is {events}"));
                }
                Ok(record) if record.generations.members.len() < superblock.raid_disks() as usize => {
                    reasons.push(format!("it has {} slots only", record.generations.members.len()));
                }
                Ok(record) if chosen.as_ref().is_none_or(|other| other.sequence < record.sequence) => {
                    chosen = Some(record);
                }
                Ok(_) => {}
            }
        }
        chosen.ok_or_else(|| match reasons.is_empty() {
            true => KIND.absent().to_string(),
            false => reasons.join("; "),
        })
    }
}

impl GenerationsRecord {
    /// Checks what was read at `place`, [`RECORD_BYTES`] bytes.
    ///
    /// # Errors
    /// [`RecordError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], place: Place) -> Result<GenerationsRecord, RecordError> {
        let block = KIND.check(bytes, RECORD_BYTES, place)?;
        let (raw, rest) = RawGenerations::read_from_prefix(block).expect("a block");
        let history: Vec<u64> = raw.history.iter().map(|id| id.get()).collect();
        let known = history.iter().position(|id| *id == 0).unwrap_or(HISTORY_MAX);
        let names = raw.names.get() as usize;
        check_values(&raw, &history[known..], names, rest)?;
        let (uuids, _) =
            <[[u8; UUID_BYTES]]>::ref_from_prefix_with_elems(rest, names).expect("checked to fit");
        let member = |uuid: &[u8; UUID_BYTES]| Some(*uuid).filter(|uuid| *uuid != [0; UUID_BYTES]);
        let generations = Generations {
            current: raw.current.get(),
            bitmap: raw.bitmap.get(),
            history: history[..known].to_vec(),
            since_events: raw.since_events.get(),
            absences: raw.absences.get(),
            members: uuids.iter().map(member).collect(),
        };
        let (sequence, events) = (raw.sequence.get(), raw.events.get());
        Ok(GenerationsRecord { generations, sequence, events, superblock: raw.superblock.get() })
    }

    /// The block to write at `place`.
    ///
    /// # Panics
    /// If there are more than [`NAMES_MAX`] names or [`HISTORY_MAX`] generations, or the current one has no id.
    #[must_use]
    pub fn encode(&self, place: Place) -> Vec<u8> {
        let Generations { current, bitmap, history, since_events, absences, members } = &self.generations;
        assert!(members.len() <= NAMES_MAX && history.len() <= HISTORY_MAX, "{:?}", self.generations);
        assert!(*current != 0 && *bitmap != 0 && !history.contains(&0), "{:?}", self.generations);
        let mut raw = RawGenerations::new_zeroed();
        raw.start = KIND.start(place);
        raw.sequence.set(self.sequence);
        raw.events.set(self.events);
        raw.superblock.set(self.superblock);
        raw.names.set(u32::try_from(members.len()).expect("a few names"));
        raw.current.set(*current);
        raw.bitmap.set(*bitmap);
        raw.since_events.set(*since_events);
        raw.absences.set(*absences);
        raw.history.iter_mut().zip(history).for_each(|(raw, id)| raw.set(*id));
        let mut block = raw.as_bytes().to_vec();
        members.iter().for_each(|uuid| block.extend_from_slice(&uuid.unwrap_or_default()));
        sealed(block)
    }
}

/// `beyond` is what stands after the last generation of the history, `rest` what stands after the fixed part.
fn check_values(raw: &RawGenerations, beyond: &[u64], names: usize, rest: &[u8]) -> Result<(), RecordError> {
    let wrong = |field, found: u64, expected| Err(RecordError::Field { field, found, expected });
    if names == 0 || names > NAMES_MAX {
        return wrong("names", names as u64, "as many as the record holds");
    }
    if raw.current.get() == 0 || raw.bitmap.get() == 0 {
        return wrong("current", 0, "an id");
    }
    if let Some(id) = beyond.iter().find(|id| **id != 0) {
        return wrong("history", *id, "nothing after its end");
    }
    let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !is_empty(&raw.reserve) || !is_empty(&rest[names * UUID_BYTES..RECORD_BYTES - FIXED_BYTES]) {
        return wrong("reserve", 1, "zeroes");
    }
    Ok(())
}
