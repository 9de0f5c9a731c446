//! The rows of the superblock's table of members.

use byte_struct::byte_struct;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use super::sequence::{Epoch, RawEpoch};
use crate::uuid::display_uuid;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const MEMBER_FIELDS: &[(&str, usize, usize)] = RawMember::FIELDS;

/// The slot of a device that is none of the members.
const NO_SLOT: u16 = u16::MAX;

byte_struct! {
    /// A member on disk.
    pub(super) struct RawMember, 40 bytes {
        0   16  device_uuid: bytes,
        16  1   state: u8,
        17  1   flags: u8,
        18  2   slot: U16,
        20  4   retired_zones: U32,
        24  8   events: U64,
        32  8   epoch: RawEpoch,
    }
}

/// How a device stands to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It has its column of every segment that names it.
    InSync = 1,
    /// It is in its slot, and columns are still being rebuilt.
    Recovering = 2,
    /// It failed, or was removed, or was not there when the array went on.
    Failed = 3,
    /// It waits for a member to fail; it has no slot.
    Spare = 4,
}

impl MemberState {
    const ALL: [MemberState; 4] =
        [MemberState::InSync, MemberState::Recovering, MemberState::Failed, MemberState::Spare];
}

/// A member as a superblock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The device.
    pub device_uuid: [u8; 16],
    /// How it stands to the array.
    pub state: MemberState,
    /// What segment headers call it; `None` for a spare. A failed member keeps its slot while segments name it.
    pub slot: Option<u16>,
    /// Zones that turned read-only or offline and were given up.
    pub retired_zones: u32,
    /// The sequence of superblocks when its row changed last.
    pub events: u64,
    /// The last epoch that served with it in sync; none before the first.
    pub epoch: Option<Epoch>,
}

/// A value of the table that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MembersFault {
    pub(super) field: &'static str,
    pub(super) found: String,
    pub(super) expected: String,
}

impl Member {
    pub(super) fn of_raw(row: usize, raw: &RawMember) -> Result<Member, MembersFault> {
        let wrong = |field, found: String, expected: &str| {
            Err(MembersFault { field, found: format!("{found} in row {row}"), expected: expected.into() })
        };
        if raw.device_uuid == [0; 16] {
            return wrong("device_uuid", "zero".into(), "a device");
        }
        let Some(state) = MemberState::ALL.into_iter().find(|state| *state as u8 == raw.state) else {
            let expected = "1 (in sync), 2 (recovering), 3 (failed) or 4 (spare)";
            return wrong("state", raw.state.to_string(), expected);
        };
        if raw.flags != 0 {
            return wrong("flags", format!("{:#x}", raw.flags), "0");
        }
        let slot = Some(raw.slot.get()).filter(|slot| *slot != NO_SLOT);
        if slot.is_none() != (state == MemberState::Spare) {
            return wrong("slot", raw.slot.get().to_string(), "a slot, 65535 for a spare only");
        }
        Ok(Member {
            device_uuid: raw.device_uuid,
            state,
            slot,
            retired_zones: raw.retired_zones.get(),
            events: raw.events.get(),
            epoch: Some(Epoch::of_raw(raw.epoch)).filter(|epoch| *epoch != Epoch::default()),
        })
    }

    pub(super) fn to_raw(self) -> RawMember {
        let mut raw = RawMember::new_zeroed();
        raw.device_uuid = self.device_uuid;
        raw.state = self.state as u8;
        raw.slot.set(self.slot.unwrap_or(NO_SLOT));
        raw.retired_zones.set(self.retired_zones);
        raw.events.set(self.events);
        raw.epoch = self.epoch.unwrap_or_default().to_raw();
        raw
    }
}

/// Each device has one row and each slot one device; the member with this UUID is among them, in its own slot.
pub(super) fn check_members(members: &[Member], own: [u8; 16], slot: u16) -> Result<(), MembersFault> {
    for (row, member) in members.iter().enumerate() {
        let before = &members[..row];
        if before.iter().any(|other| other.device_uuid == member.device_uuid) {
            let found = format!("{} in row {row} again", display_uuid(&member.device_uuid));
            return Err(MembersFault {
                field: "device_uuid",
                found,
                expected: "one row for each device".into(),
            });
        }
        if member.slot.is_some() && before.iter().any(|other| other.slot == member.slot) {
            let found = format!("{} in row {row} again", member.slot.unwrap_or(NO_SLOT));
            return Err(MembersFault { field: "slot", found, expected: "one device in each slot".into() });
        }
    }
    let row = members.iter().find(|member| member.device_uuid == own);
    let Some(row) = row else {
        let found = format!("without {}", display_uuid(&own));
        return Err(MembersFault { field: "members", found, expected: "this member among them".into() });
    };
    let listed = row.slot.unwrap_or(NO_SLOT);
    if listed == slot {
        return Ok(());
    }
    Err(MembersFault {
        field: "slot",
        found: slot.to_string(),
        expected: format!("{listed} as in the own row"),
    })
}
