//! Which candidates make up a zoned array: a pure decision over their superblocks.
//!
//! - Only epochs that *served* count. The superblock that says so may have reached some members only, so an epoch that was begun
//!   by a member that is here, has not served it or a later one, and is not called failed by those that did, never served a
//!   request: all superblocks that say *served* are durable before the first one (Z-I6).
//! - Of the superblocks whose served epoch counts, the newest served epoch speaks, of several the highest sequence (invariant 8).
//! - A member that the speaker calls recovering takes part as one in sync: what it has of older segments its zones say.
//! - In sync is a member that served the speaker's epoch or lists it as begun, and that the speaker does not call failed.
//! - A member whose own served epoch is neither the one that the speaker has for it nor one that the speaker knows of ran the
//!   array apart from the others.

use layout::units::Slot;
use layout::zoned::{COLUMNS_MAX, Columns, Epoch, Member, MemberState as Row, Superblock};

use crate::array::assemble::Verdict;
use crate::log::config::losses_survived;
use crate::members::MemberState;

/// A device with a superblock of a zoned array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonedCandidate {
    /// Its name in reasons.
    pub name: String,
    /// Its newest superblock.
    pub superblock: Superblock,
}

/// What candidates make up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonedAssembly {
    /// What the array says of itself.
    pub speaker: Superblock,
    /// The candidate in each slot that is in sync, or behind.
    pub slots: Vec<Option<usize>>,
    /// Slots whose member lacks columns of older segments: it takes part, and is no member to rely on yet.
    pub behind: Vec<usize>,
    /// What becomes of each candidate of this array.
    pub verdicts: Vec<(usize, Verdict)>,
    /// Slots whose member ran apart from the array.
    pub ran_apart: Vec<usize>,
    /// Candidates that are in their slot but not in sync, by slot.
    pub stale: Vec<(usize, usize)>,
    /// The highest numbers that any candidate knows: what is given out next is above them.
    pub newest: Newest,
    /// Whether it starts.
    pub start: Result<(), ZonedRefusal>,
}

/// The highest numbers that any candidate of an array knows, stale ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// Of superblocks.
    pub sequence: u64,
    /// Of epochs begun.
    pub epoch: u32,
    /// Below it segment numbers may be in use.
    pub segments_below: u64,
}

/// Why a zoned array does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZonedRefusal {
    /// Too few members are in sync.
    #[error("{in_sync} of {members} members are in sync, and {needed} are needed")]
    NotEnoughMembers {
        /// Members that are there and in sync.
        in_sync: usize,
        /// Least that the level takes.
        needed: usize,
        /// Members in all.
        members: usize,
    },
    /// Members ran the array apart from each other.
    #[error("{name} ran the array apart from the others, and each side may hold writes that the other lacks")]
    RanApart {
        /// A member of the other side.
        name: String,
    },
    /// A member is there twice.
    #[error("{name} is a copy of another member: both have one identity")]
    Copy {
        /// One of both.
        name: String,
    },
    /// A feature that a writer has to know.
    #[error("feature {bit} of the superblock has to be known to write, and this version does not know it")]
    ReadOnlyFeature {
        /// Its bit.
        bit: u32,
    },
    /// The table of members does not fit the level.
    #[error("the superblock lists {listed} members with a slot, and the array has {width} columns")]
    Table {
        /// Rows with a slot.
        listed: usize,
        /// Columns.
        width: usize,
    },
    /// The members differ in how they are cut.
    #[error("{name} is cut into other zones than the array")]
    OtherZones {
        /// The member.
        name: String,
    },
    /// The numbers of epochs are used up.
    #[error("the array was started {} times, more than its format counts", Epoch::NUMBER_MAX)]
    EpochsUsedUp,
}

impl ZonedAssembly {
    /// The array's name.
    pub fn name(&self) -> &str {
        &self.speaker.set_name
    }

    /// The states of the slots.
    pub fn states(&self) -> Vec<MemberState> {
        let state = |(slot, candidate): (usize, &Option<usize>)| match candidate {
            Some(_) if self.behind.contains(&slot) => MemberState::Recovering,
            Some(_) => MemberState::InSync,
            None => MemberState::Missing,
        };
        self.slots.iter().enumerate().map(state).collect()
    }
}

/// Decides about candidates of one or several arrays, in the order in which the arrays appear. With `force` the side of the
/// newest epoch starts although another ran apart from it; that side is left out.
pub fn assemble_zoned(candidates: &[ZonedCandidate], force: bool) -> Vec<ZonedAssembly> {
    let mut sets: Vec<[u8; 16]> = Vec::new();
    for candidate in candidates {
        if !sets.contains(&candidate.superblock.set_uuid) {
            sets.push(candidate.superblock.set_uuid);
        }
    }
    sets.iter().map(|set| assemble_set(candidates, *set, force)).collect()
}

fn assemble_set(candidates: &[ZonedCandidate], set_uuid: [u8; 16], force: bool) -> ZonedAssembly {
    let of_set: Vec<(usize, &ZonedCandidate)> = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| candidate.superblock.set_uuid == set_uuid)
        .collect();
    let superblocks: Vec<&Superblock> = of_set.iter().map(|(_, candidate)| &candidate.superblock).collect();
    let speaker = speaker(&superblocks).clone();
    let width = usize::from(speaker.plan.columns.width());
    let mut assembly = ZonedAssembly {
        slots: vec![None; width],
        behind: Vec::new(),
        verdicts: Vec::new(),
        ran_apart: Vec::new(),
        stale: Vec::new(),
        newest: newest(&superblocks),
        start: Ok(()),
        speaker,
    };
    let (mut apart, mut other_zones, mut copy) = (None, None, None);
    for (index, candidate) in of_set {
        let standing = standing(&assembly.speaker, &candidate.superblock, &assembly.slots);
        let verdict = match standing {
            Standing::InSync(slot) => {
                assembly.slots[slot] = Some(index);
                Verdict::Member { slot: Slot::of_index(slot), state: MemberState::InSync }
            }
            Standing::Behind(slot) => {
                assembly.slots[slot] = Some(index);
                assembly.behind.push(slot);
                Verdict::Member { slot: Slot::of_index(slot), state: MemberState::Recovering }
            }
            Standing::Spare => Verdict::Spare,
            Standing::Stale { slot, reason } => {
                assembly.stale.push((slot, index));
                Verdict::Refused { reason }
            }
            Standing::Apart { slot, reason } => {
                assembly.ran_apart.push(slot);
                apart.get_or_insert_with(|| candidate.name.clone());
                Verdict::Refused { reason }
            }
            Standing::OtherZones => {
                other_zones.get_or_insert_with(|| candidate.name.clone());
                Verdict::Refused { reason: "its superblock cuts it into other zones than the array's".into() }
            }
            Standing::Copy => {
                copy.get_or_insert_with(|| candidate.name.clone());
                let reason = "another device has its identity: leave out the one that is the copy".to_owned();
                Verdict::Refused { reason }
            }
            Standing::Foreign { reason } => Verdict::Refused { reason },
        };
        assembly.verdicts.push((index, verdict));
    }
    assembly.start = match copy {
        Some(name) => Err(ZonedRefusal::Copy { name }),
        None => may_start(&assembly, apart.filter(|_| !force), other_zones),
    };
    assembly
}

fn may_start(
    assembly: &ZonedAssembly,
    apart: Option<String>,
    other_zones: Option<String>,
) -> Result<(), ZonedRefusal> {
    let ZonedAssembly { speaker, slots, .. } = assembly;
    let listed = speaker.members.iter().filter(|member| member.slot.is_some()).count();
    if listed != slots.len()
        || speaker.members.iter().filter_map(|m| m.slot).any(|s| usize::from(s) >= slots.len())
    {
        return Err(ZonedRefusal::Table { listed, width: slots.len() });
    }
    if let Some(bit) = speaker.read_only_feature() {
        return Err(ZonedRefusal::ReadOnlyFeature { bit });
    }
    if let Some(name) = apart {
        return Err(ZonedRefusal::RanApart { name });
    }
    if let Some(name) = other_zones {
        return Err(ZonedRefusal::OtherZones { name });
    }
    if assembly.newest.epoch >= Epoch::NUMBER_MAX {
        return Err(ZonedRefusal::EpochsUsedUp);
    }
    let (in_sync, needed) = (slots.iter().flatten().count(), needed(speaker.plan.columns));
    if in_sync < needed {
        return Err(ZonedRefusal::NotEnoughMembers { in_sync, needed, members: slots.len() });
    }
    Ok(())
}

fn newest(superblocks: &[&Superblock]) -> Newest {
    superblocks.iter().fold(Newest::default(), |newest, superblock| Newest {
        sequence: newest.sequence.max(superblock.sequence),
        epoch: newest.epoch.max(superblock.epoch.number),
        segments_below: newest.segments_below.max(superblock.segments_below),
    })
}

/// Members that an array cannot do without.
pub fn needed(columns: Columns) -> usize {
    usize::from(columns.width()) - losses_survived(columns.level())
}

/// The superblock that counts.
fn speaker<'a>(superblocks: &[&'a Superblock]) -> &'a Superblock {
    let counts =
        |superblock: &&&Superblock| superblock.served.is_none_or(|served| has_served(superblocks, served));
    let newest =
        |superblock: &&&Superblock| (superblock.served.map(|epoch| epoch.number), superblock.sequence);
    let counting = superblocks.iter().filter(counts).max_by_key(newest);
    counting.or_else(|| superblocks.iter().max_by_key(newest)).expect("a set has a candidate")
}

/// Whether requests may have been served in an epoch that some superblock calls served.
fn has_served(superblocks: &[&Superblock], epoch: Epoch) -> bool {
    let says: Vec<&&Superblock> =
        superblocks.iter().filter(|superblock| superblock.served == Some(epoch)).collect();
    let is_failed = |device: &[u8; 16]| {
        says.iter()
            .any(|by| by.members.iter().any(|row| row.device_uuid == *device && row.state == Row::Failed))
    };
    !superblocks.iter().any(|other| {
        let has_begun = other.epochs.contains(&epoch);
        let is_behind = other.served.is_none_or(|served| served.number < epoch.number);
        has_begun && is_behind && !is_failed(&other.device_uuid)
    })
}

/// How a candidate stands to the array.
enum Standing {
    InSync(usize),
    /// In sync, but for columns of segments that were written before it came.
    Behind(usize),
    Spare,
    Stale {
        slot: usize,
        reason: String,
    },
    Apart {
        slot: usize,
        reason: String,
    },
    OtherZones,
    Copy,
    Foreign {
        reason: String,
    },
}

fn standing(speaker: &Superblock, own: &Superblock, slots: &[Option<usize>]) -> Standing {
    let foreign = |reason: &str| Standing::Foreign { reason: reason.to_owned() };
    let Some(row) = speaker.members.iter().find(|row| row.device_uuid == own.device_uuid) else {
        return foreign("the newest superblock of its array does not list it");
    };
    let Some(slot) =
        row.slot.map(usize::from).filter(|slot| *slot < slots.len() && *slot < COLUMNS_MAX.into())
    else {
        return if row.slot.is_none() {
            Standing::Spare
        } else {
            foreign("its slot is beyond the array's columns")
        };
    };
    if slots[slot].is_some() {
        return Standing::Copy;
    }
    if own.zones != speaker.zones || !own.plan.is_akin_to(&speaker.plan) {
        return Standing::OtherZones;
    }
    if ran_apart(speaker, own, row) {
        let epoch = own.served.map(|epoch| epoch.to_string()).unwrap_or_default();
        let reason = format!(
            "it ran the array apart from the others, in epoch {epoch}: name only the members of the side to keep"
        );
        return Standing::Apart { slot, reason };
    }
    let has_part =
        speaker.served.is_none_or(|served| own.served == Some(served) || own.epochs.contains(&served));
    match (row.state, has_part) {
        (Row::InSync, true) => Standing::InSync(slot),
        (Row::Failed, _) => {
            let last = row.epoch.map_or("never".to_owned(), |epoch| format!("in epoch {epoch}"));
            let reason = format!(
                "stale: the others call it failed since event {}; it was last in sync {last}",
                row.events
            );
            Standing::Stale { slot, reason }
        }
        (Row::Recovering, true) => Standing::Behind(slot),
        (_, false) => {
            let served = speaker.served.map(|epoch| epoch.to_string()).unwrap_or_default();
            let reason = format!("stale: the array served in epoch {served} without it");
            Standing::Stale { slot, reason }
        }
        (Row::Spare, _) => Standing::Spare,
    }
}

/// The slot that a member which was away has in a running array, whose newest superblock is `speaker`.
///
/// # Errors
/// Why it is not taken back, in words.
pub fn slot_of_returning(speaker: &Superblock, own: &Superblock) -> Result<usize, String> {
    if own.set_uuid != speaker.set_uuid {
        return Err("it is a member of another array".to_owned());
    }
    let slots = vec![None; usize::from(speaker.plan.columns.width())];
    match standing(speaker, own, &slots) {
        Standing::InSync(slot) | Standing::Behind(slot) | Standing::Stale { slot, .. } => Ok(slot),
        Standing::Apart { reason, .. } | Standing::Foreign { reason } => Err(reason),
        Standing::OtherZones => Err("its superblock cuts it into other zones than the array's".to_owned()),
        Standing::Spare => Err("it is a spare, and has no slot".to_owned()),
        Standing::Copy => Err("another device has its identity".to_owned()),
    }
}

/// Whether a member served an epoch that the speaker's side does not know, though its list reaches back that far.
fn ran_apart(speaker: &Superblock, own: &Superblock, row: &Member) -> bool {
    let Some(served) = own.served else { return false };
    let is_known =
        row.epoch == Some(served) || speaker.served == Some(served) || speaker.epochs.contains(&served);
    let reaches = speaker.epochs.last().is_some_and(|oldest| served.number >= oldest.number);
    // A superblock that says served may have reached this member alone; then it was never served (see above).
    !is_known && reaches
}
