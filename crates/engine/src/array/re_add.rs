//! Whether a member that was away may come back with what it holds, as a pure decision.
//!
//! The rules are md's (`super_1_validate`, `md_add_new_disk`): the same array, the role that it had, an event count not
//! below the bitmap's `events_cleared`, since bits that were cleared later say nothing about it. One is added: a member
//! that ran the array by itself meanwhile wrote what no bit here marks, and its generation says so (invariant 8). Where
//! superblocks have no generations beside them its word is taken only if it calls all that are in sync here active.
//!
//! It gets what the bitmap marks. Where no bitmap says what it lacks, but stripes are in doubt whose chunks it alone may tell, it is
//! rebuilt whole, and its word counts for those (invariant 11): a new device in its slot would lose them.

use layout::generations::{Generations, GenerationsArea};
use layout::md_superblock::{DeviceRole, Superblock};
use layout::redo_log::BitmapExtent;
use layout::units::Slot;

use super::assemble::describes_same;
use super::generations::{self, Here, MemberMetadata};
use crate::members::MemberState;

/// What the array is like now.
pub struct Array<'a> {
    /// Superblocks by slot.
    pub superblocks: &'a [Option<Superblock>],
    /// States by slot.
    pub states: &'a [MemberState],
    /// Device numbers of its spares, and of what is to replace its members.
    pub others: &'a [u32],
    /// Newest event count.
    pub events: u64,
    /// The bitmap's `events_cleared`; None without a bitmap.
    pub events_cleared: Option<u64>,
    /// How long the bitmap is on each member.
    pub bitmap: BitmapExtent,
    /// What its superblocks were last written with.
    pub generations: Option<&'a Generations>,
    /// Whether a device that was in a slot holds what stripes in doubt need, by the record of absences.
    pub may_hold: &'a dyn Fn(Slot, [u8; 16]) -> bool,
}

/// What a member that comes back lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// What the bitmap marks.
    Marked,
    /// Everything, but for what it holds of stripes in doubt.
    AllButHeld,
}

/// Why a member does not come back so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no member of this array.
    #[error("{0}")]
    NotOurs(String),
    /// Its place is taken.
    #[error("{0}")]
    Taken(String),
    /// No bitmap says what it lacks.
    #[error("{0}")]
    LacksMore(String),
}

/// The slot that a member with this superblock takes again, and what it lacks; `generations` are what goes with it.
///
/// # Errors
/// [`Refused`] says why it has to be added and rebuilt instead, or cannot be.
pub fn judge(
    member: &Superblock,
    generations: Option<&Generations>,
    array: &Array<'_>,
) -> Result<(Slot, Lacks), Refused> {
    let slot = belongs(member, array)?;
    is_free(member, slot, array)?;
    never_ran_apart(MemberMetadata { superblock: member, generations }, array)?;
    match lacks_only_marked(member, array) {
        Ok(()) => Ok((slot, Lacks::Marked)),
        Err(_) if (array.may_hold)(slot, member.device_uuid()) => Ok((slot, Lacks::AllButHeld)),
        Err(refused) => Err(refused),
    }
}

fn belongs(member: &Superblock, array: &Array<'_>) -> Result<Slot, Refused> {
    let Some(newest) = array.superblocks.iter().flatten().max_by_key(|superblock| superblock.events()) else {
        return Err(Refused::NotOurs("the array has no superblock any more".into()));
    };
    if member.set_uuid() != newest.set_uuid() {
        return Err(Refused::NotOurs("it belongs to another array".into()));
    }
    describes_same(member, newest).map_err(Refused::NotOurs)?;
    match member.role() {
        DeviceRole::Active(slot) if slot.index() < array.states.len() => Ok(slot),
        _ => Err(Refused::NotOurs("it was no member of the array when it was last there".into())),
    }
}

fn is_free(member: &Superblock, slot: Slot, array: &Array<'_>) -> Result<(), Refused> {
    let same = |other: &Superblock| other.device_uuid() == member.device_uuid();
    match array.states[slot.index()] {
        MemberState::Missing => {}
        _ if array.superblocks[slot.index()].as_ref().is_some_and(same) => {
            return Err(Refused::Taken(format!("it is in slot {slot} already")));
        }
        _ => return Err(Refused::Taken(format!("its slot {slot} has another member now"))),
    }
    let number = member.dev_number();
    let members = array.superblocks.iter().flatten().map(Superblock::dev_number);
    if members.chain(array.others.iter().copied()).any(|other| other == number) {
        return Err(Refused::Taken(format!("its device number {number} has another member now")));
    }
    Ok(())
}

/// No write went to it that the array does not know of.
fn never_ran_apart(metadata: MemberMetadata<'_>, array: &Array<'_>) -> Result<(), Refused> {
    let (member, of_array) = (metadata.superblock, array.events);
    if member.events() > of_array {
        let events = member.events();
        return Err(Refused::LacksMore(format!(
            "its event count {events} is beyond the array's {of_array}: it was used elsewhere"
        )));
    }
    let superblocks = Slot::all().zip(array.superblocks).zip(array.states);
    let in_sync: Vec<(Slot, &Superblock)> = superblocks
        .filter(|(_, state)| **state == MemberState::InSync)
        .filter_map(|((slot, superblock), _)| Some((slot, superblock.as_ref()?)))
        .collect();
    let has_room = GenerationsArea::of(member, array.bitmap).is_some();
    let here = Here { generations: array.generations, in_sync: &in_sync, has_room };
    generations::lacks_only_marked(metadata, &here).map_err(Refused::LacksMore)
}

fn lacks_only_marked(member: &Superblock, array: &Array<'_>) -> Result<(), Refused> {
    let lacks_more = |why: String| Err(Refused::LacksMore(why));
    let Some(events_cleared) = array.events_cleared.filter(|_| member.bitmap_start().is_some()) else {
        return lacks_more("without a bitmap there is no record of what it lacks".into());
    };
    if member.recovery_offset().is_some() && !member.recovers_by_bitmap() {
        return lacks_more("it was being rebuilt when it went away".into());
    }
    let events = member.events();
    if events < events_cleared {
        return lacks_more(format!(
            "its event count {events} is below {events_cleared}, from when bits were cleared: it was away too long"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Failed, InSync, Missing, Recovering};
    use layout::geometry::{Layout, Level};
    use layout::md_superblock::{MinorVersion, NewArray, NewBitmap, NewMember};
    use layout::units::Sectors;

    const MEMBERS: u16 = 4;

    fn superblocks(set_uuid: [u8; 16], bitmap: NewBitmap) -> Vec<Superblock> {
        let array = NewArray {
            minor: MinorVersion::V1_2,
            set_uuid,
            name: "test".into(),
            ctime_s: 1,
            level: Level::Raid6,
            layout: Layout::default_for(Level::Raid6),
            chunk_bytes: 64 << 10,
            raid_disks: u32::from(MEMBERS),
            bitmap,
            member_bytes: None,
            data_offset: None,
            clean: true,
        };
        let device = |i: u16| NewMember {
            device_bytes: 64 << 20,
            device_uuid: [i as u8 + 1; 16],
            role: DeviceRole::Active(Slot::new(i.into())),
        };
        array.create(&(0..MEMBERS).map(device).collect::<Vec<_>>()).expect("an array").superblocks
    }

    /// An array at event 20 whose slots 1 and 2 are free; the member of slot 2 went away at event 15.
    fn judged(
        change: impl FnOnce(&mut Superblock, &mut Vec<Option<Superblock>>, &mut Vec<MemberState>),
    ) -> Result<Slot, Refused> {
        let bitmap = NewBitmap::Internal(None);
        let mut all = superblocks([7; 16], bitmap);
        all.iter_mut().for_each(|superblock| superblock.set_events(20));
        let mut member = all[2].clone();
        member.set_events(15);
        let mut by_slot: Vec<Option<Superblock>> = all.into_iter().map(Some).collect();
        (by_slot[1], by_slot[2]) = (None, None);
        let mut states = vec![InSync, Missing, Missing, InSync];
        change(&mut member, &mut by_slot, &mut states);
        let array = Array {
            superblocks: &by_slot,
            states: &states,
            others: &[9],
            events: 20,
            events_cleared: Some(15),
            bitmap: BitmapExtent::Bytes(512),
            generations: None,
            may_hold: &|_, _| false,
        };
        judge(&member, None, &array).map(|(slot, lacks)| {
            assert_eq!(lacks, Lacks::Marked);
            slot
        })
    }

    fn lacks_more(judged: &Result<Slot, Refused>, why: &str) {
        assert!(matches!(judged, Err(Refused::LacksMore(reason)) if reason.contains(why)), "{judged:?}");
    }

    #[test]
    fn one_that_was_away_for_a_while_comes_back() {
        assert_eq!(judged(|_, _, _| ()), Ok(Slot::new(2)));
        assert_eq!(judged(|member, _, _| member.set_events(20)), Ok(Slot::new(2)));
        let by_bitmap = judged(|member, _, _| {
            member.set_recovery_offset(Some(Sectors(8)));
            member.set_recovers_by_bitmap();
        });
        assert_eq!(by_bitmap, Ok(Slot::new(2)), "it went away while it caught up");
        let one_in_touch = judged(|member, _, _| member.set_role(0, DeviceRole::Faulty));
        lacks_more(&one_in_touch, "device 0 is the member in slot 0");
    }

    #[test]
    fn who_lacks_more_than_is_marked_is_refused() {
        lacks_more(&judged(|member, _, _| member.set_events(14)), "below 15");
        lacks_more(&judged(|member, _, _| member.set_events(21)), "elsewhere");
        lacks_more(&judged(|member, _, _| member.set_recovery_offset(Some(Sectors(8)))), "being rebuilt");
        let alone = judged(|member, _, _| {
            [0, 3].into_iter().for_each(|other| member.set_role(other, DeviceRole::Faulty));
        });
        lacks_more(&alone, "device 0 is the member in slot 0");
        let by_another = judged(|_, superblocks, _| {
            superblocks[3].as_mut().unwrap().set_device(7, [77; 16]);
        });
        lacks_more(&by_another, "device 7 is the member in slot 3");
        let member = &superblocks([7; 16], NewBitmap::None)[2];
        let others: Vec<Option<Superblock>> = vec![None, None, None, Some(member.clone())];
        let array = Array {
            superblocks: &others,
            states: &[Missing; 4],
            others: &[],
            events: 20,
            events_cleared: None,
            bitmap: BitmapExtent::Absent,
            generations: None,
            may_hold: &|_, _| false,
        };
        assert!(matches!(judge(member, None, &array), Err(Refused::Taken(_))), "its number is in use");
        let others: Vec<Option<Superblock>> =
            superblocks([7; 16], NewBitmap::None).into_iter().map(Some).take(2).chain([None, None]).collect();
        let array = Array { superblocks: &others, ..array };
        lacks_more(&judge(member, None, &array).map(|(slot, _)| slot), "without a bitmap");
    }

    #[test]
    fn one_that_holds_what_is_in_doubt_comes_back_to_be_rebuilt() {
        let mut member = superblocks([7; 16], NewBitmap::None).remove(2);
        let others = superblocks([7; 16], NewBitmap::None).into_iter().take(2).map(Some);
        let others: Vec<Option<Superblock>> = others.chain([None, None]).collect();
        let held_by =
            |slot: u32, device: [u8; 16]| move |of: Slot, other| of.get() == slot && other == device;
        let judged = |member: &Superblock, may_hold: &dyn Fn(Slot, [u8; 16]) -> bool| {
            let array = Array {
                superblocks: &others,
                states: &[InSync, InSync, Missing, Missing],
                others: &[],
                events: 20,
                events_cleared: None,
                bitmap: BitmapExtent::Absent,
                generations: None,
                may_hold,
            };
            judge(member, None, &array)
        };
        let own = member.device_uuid();
        assert_eq!(judged(&member, &held_by(2, own)), Ok((Slot::new(2), Lacks::AllButHeld)));
        assert!(
            matches!(judged(&member, &held_by(2, [9; 16])), Err(Refused::LacksMore(_))),
            "another device does"
        );
        member.set_events(21);
        let elsewhere = judged(&member, &held_by(2, own));
        assert!(
            matches!(&elsewhere, Err(Refused::LacksMore(why)) if why.contains("elsewhere")),
            "{elsewhere:?}"
        );
    }

    #[test]
    fn a_place_that_is_taken_stays_so() {
        for state in [Failed, Recovering, InSync] {
            let other = judged(|member, superblocks, states| {
                let mut other = member.clone();
                other.set_device(5, [99; 16]);
                (superblocks[2], states[2]) = (Some(other), state);
            });
            assert!(
                matches!(&other, Err(Refused::Taken(why)) if why.contains("another member")),
                "{other:?}"
            );
            let itself = judged(|member, superblocks, states| {
                (superblocks[2], states[2]) = (Some(member.clone()), state);
            });
            assert!(matches!(&itself, Err(Refused::Taken(why)) if why.contains("already")), "{itself:?}");
        }
        let number = judged(|member, superblocks, _| {
            superblocks[0].as_mut().unwrap().set_device(member.dev_number(), [9; 16]);
        });
        assert!(matches!(number, Err(Refused::Taken(_))));
        assert!(matches!(
            judged(|member, _, _| member.set_device(9, [9; 16])),
            Err(Refused::NotOurs(_) | Refused::Taken(_))
        ));
    }

    #[test]
    fn strangers_and_spares_are_refused() {
        let spare = judged(|member, _, _| member.set_role(2, DeviceRole::Spare));
        assert!(matches!(spare, Err(Refused::NotOurs(_))), "{spare:?}");
        let stranger = judged(|member, _, _| *member = superblocks([8; 16], NewBitmap::None).remove(2));
        assert_eq!(stranger, Err(Refused::NotOurs("it belongs to another array".into())));
    }
}
