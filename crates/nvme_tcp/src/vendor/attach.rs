//! The attach record: what the host that has an array tells each target about the others.
//!
//! Handles are known only when every target has answered, so it is sent twice, first without members. The answer's first
//! word is the target's own handle.

use std::fmt;

use byte_struct::byte_struct;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{MEMBERS_MAX, VERSION, is_member};
use crate::discovery::{DiscoveryEntry, DiscoveryLog, ENTRY_BYTES, SubsystemType};
use crate::status::Status;

/// Name, offset and size of each field of the record's head, for the check of `docs/formats.md`.
pub const ATTACH_FIELDS: &[(&str, usize, usize)] = RawHead::FIELDS;
/// Name, offset and size of each field of a member, for the check of `docs/formats.md`.
pub const ATTACH_MEMBER_FIELDS: &[(&str, usize, usize)] = RawMember::FIELDS;
/// Bytes of the longest record.
pub const ATTACH_BYTES_MAX: usize = size_of::<RawHead>() + MEMBERS_MAX * MEMBER_BYTES;

const MAGIC: [u8; 8] = *b"TwAttach";
const MEMBER_BYTES: usize = size_of::<RawMember>() + ENTRY_BYTES;
/// Where a discovery log page has the number of its entries, as the specification draws it.
const PAGE_ENTRIES_AT: usize = 8;

byte_struct! {
    struct RawHead, 64 bytes {
        0   8   magic: bytes,
        8   2   version: U16,
        10  2   members: U16,
        12  1   index: u8,
        13  3   reserve: bytes,
        16  8   key: U64,
        24  16  array: bytes,
        40  4   op_limit_ms: U32,
        44  4   reserve2: bytes,
        48  8   credit_bytes: U64,
        56  8   reserve3: bytes,
    }
}

byte_struct! {
    struct RawMember, 64 bytes {
        0   4   nsid: U32,
        4   4   handle: U32,
        8   16  ticket: bytes,
        24  8   boot_id: U64,
        32  8   shift_blocks: I64,
        40  4   flags: U32,
        44  20  reserve: bytes,
    }
}

/// What a target proves itself with to another. It is not shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub [u8; 16]);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a ticket")
    }
}

/// What a target is told of an attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRecord {
    /// The target's own index among the members.
    pub index: u8,
    /// Reservation key of the attach, not 0.
    pub key: u64,
    /// The array's UUID, for messages only.
    pub array: [u8; 16],
    /// Milliseconds after which an op that is not complete is given up.
    pub op_limit_ms: u32,
    /// Bytes of the target's memory that the host can use for its ops; 0: as much as there is.
    pub credit_bytes: u64,
    /// All members by their indices, or none yet.
    pub members: Vec<AttachMember>,
}

/// What a target is told of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachMember {
    /// Its namespace.
    pub nsid: u32,
    /// What its target knows the attach by.
    pub handle: u32,
    /// What its target takes a peer's word for.
    pub ticket: Ticket,
    /// Of its target.
    pub boot_id: u64,
    /// Blocks from the place of a row on the record's own target to its place on this one.
    pub shift_blocks: i64,
    /// No flag has a meaning yet.
    pub flags: u32,
    /// Where its subsystem is, by [`SubsystemType::Nvm`].
    pub place: DiscoveryEntry,
}

impl AttachRecord {
    /// The data of the command.
    ///
    /// # Panics
    /// If it is none that a target takes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.makes_sense(), "no target takes this record: {self:?}");
        let mut raw = RawHead::new_zeroed();
        raw.magic = MAGIC;
        raw.version.set(VERSION);
        raw.members.set(self.members.len() as u16);
        raw.index = self.index;
        raw.key.set(self.key);
        raw.array = self.array;
        raw.op_limit_ms.set(self.op_limit_ms);
        raw.credit_bytes.set(self.credit_bytes);
        let mut bytes = raw.as_bytes().to_vec();
        self.members.iter().for_each(|member| bytes.extend_from_slice(member.raw().as_bytes()));
        let entries = self.members.iter().map(|member| member.place.clone()).collect();
        let page = DiscoveryLog { generation: 0, entries, left_out: Vec::new() }.encode();
        bytes.extend_from_slice(&page[ENTRY_BYTES..]);
        bytes
    }

    /// Reads the data of the command.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn parse(bytes: &[u8]) -> Result<AttachRecord, Status> {
        let (raw, rest) = RawHead::ref_from_prefix(bytes).map_err(|_| Status::INVALID_SGL_LENGTH)?;
        let count = usize::from(raw.members.get());
        let reserved = raw.reserve != [0; 3] || raw.reserve2 != [0; 4] || raw.reserve3 != [0; 8];
        if raw.magic != MAGIC || raw.version.get() != VERSION || reserved || count > MEMBERS_MAX {
            return Err(Status::INVALID_FIELD);
        }
        if rest.len() != count * MEMBER_BYTES {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        let (raw_members, entries) =
            <[RawMember]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Status::INVALID_SGL_LENGTH)?;
        let places = places(entries, count)?;
        let members = raw_members.iter().zip(places).map(|(raw, place)| raw.member(place));
        let record = AttachRecord {
            index: raw.index,
            key: raw.key.get(),
            array: raw.array,
            op_limit_ms: raw.op_limit_ms.get(),
            credit_bytes: raw.credit_bytes.get(),
            members: members.collect::<Result<_, _>>()?,
        };
        if record.makes_sense() { Ok(record) } else { Err(Status::INVALID_FIELD) }
    }

    /// What holds of every record.
    fn makes_sense(&self) -> bool {
        let is_one = usize::from(self.index) < self.members.len();
        let mut places = self.members.iter().map(|member| member.place.subsystem_type);
        self.key != 0
            && self.members.len() <= MEMBERS_MAX
            && is_member(self.index)
            && (is_one || self.members.is_empty())
            && places.all(|place| place == SubsystemType::Nvm)
    }
}

/// Entries as they stand in a discovery log page behind its head, none of which may be left out.
fn places(entries: &[u8], count: usize) -> Result<Vec<DiscoveryEntry>, Status> {
    let mut page = vec![0; ENTRY_BYTES];
    page[PAGE_ENTRIES_AT..PAGE_ENTRIES_AT + 8].copy_from_slice(&(count as u64).to_le_bytes());
    page.extend_from_slice(entries);
    let log = DiscoveryLog::parse(&page).map_err(|_| Status::INVALID_FIELD)?;
    if log.left_out.is_empty() { Ok(log.entries) } else { Err(Status::INVALID_FIELD) }
}

impl AttachMember {
    fn raw(&self) -> RawMember {
        RawMember {
            nsid: self.nsid.into(),
            handle: self.handle.into(),
            ticket: self.ticket.0,
            boot_id: self.boot_id.into(),
            shift_blocks: self.shift_blocks.into(),
            flags: self.flags.into(),
            reserve: [0; 20],
        }
    }
}

impl RawMember {
    fn member(&self, place: DiscoveryEntry) -> Result<AttachMember, Status> {
        if self.reserve != [0; 20] {
            return Err(Status::INVALID_FIELD);
        }
        Ok(AttachMember {
            nsid: self.nsid.get(),
            handle: self.handle.get(),
            ticket: Ticket(self.ticket),
            boot_id: self.boot_id.get(),
            shift_blocks: self.shift_blocks.get(),
            flags: self.flags.get(),
            place,
        })
    }
}
