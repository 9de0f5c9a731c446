//! What arrays candidates make.

use super::assemble::*;
use crate::limits::DATA_CHUNKS_MAX;
use crate::members::MemberState;
use layout::geometry::{Layout, Level};
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::units::{Sectors, Slot};

const DEVICE_BYTES: u64 = 64 << 20;

/// The first request that reached chunk 254 ended the shard.
#[test]
fn an_array_with_more_data_chunks_than_the_engine_tells_apart_is_refused() {
    for (level, members, starts) in [
        (Level::Raid5, 255, true),
        (Level::Raid5, 256, false),
        (Level::Raid0, 254, true),
        (Level::Raid0, 1000, true),
    ] {
        let candidates = candidates(level, members, 0);
        let refusal = one(&candidates).start.err();
        let data_chunks = DATA_CHUNKS_MAX + 1;
        assert_eq!(refusal, (!starts).then_some(Refusal::TooWide { data_chunks }), "{level} of {members}");
    }
}

#[test]
fn a_raid0_of_unequal_members_starts_if_its_superblocks_say_by_which_rule() {
    const MIB: u64 = 1 << 20;
    // The data areas begin at 1 MiB. The last member has less than a chunk more than the first.
    let sizes = [17 * MIB, 33 * MIB, 17 * MIB + 4096];
    for (layout, array_bytes) in [
        (Layout::Raid0Original, Some(64 * MIB)),
        (Layout::Raid0Alternate, Some(64 * MIB)),
        (Layout::Unset, None),
    ] {
        let array = NewArray {
            layout,
            data_offset: Some(Sectors(MIB / 512)),
            chunk_bytes: 64 << 10,
            ..NewArray::new([7; 16], Level::Raid0, 3)
        };
        let mut candidates = made(&array, &sizes);
        let assembly = one(&candidates);
        let zones = assembly.unequal_zones.as_ref().map(|zones| (zones.zones(), zones.array_bytes()));
        assert_eq!(zones, array_bytes.map(|bytes| (2, bytes)), "{layout}");
        assert_eq!(assembly.start.err(), zones.is_none().then_some(Refusal::ZonesNeedLayout), "{layout}");
        candidates.pop();
        let assembly = one(&candidates);
        assert_eq!((assembly.array_bytes(), assembly.unequal_zones), (None, None), "one is missing");
        assert!(matches!(assembly.start, Err(Refusal::NotEnoughMembers { .. })));
    }
    let array = NewArray { data_offset: Some(Sectors(MIB / 512)), ..NewArray::new([7; 16], Level::Raid0, 2) };
    let assembly = one(&made(&array, &[17 * MIB, 17 * MIB + 4096]));
    assert!(assembly.start.is_ok() && assembly.unequal_zones.is_none(), "equal to a chunk");
    assert_eq!(assembly.array_bytes(), Some(32 * MIB));
}

/// md's log of bad blocks: entries of 8 bytes.
#[test]
fn a_log_of_bad_blocks_has_room_for_an_entry_in_eight_bytes() {
    let of_raid5 = candidates(Level::Raid5, 3, 0);
    let Ok(superblock) = &of_raid5[0].superblock else { panic!("it was just made") };
    assert_eq!(superblock.bad_block_log().map(|(_, length)| length.bytes()), Some(4096));
    assert_eq!(super::bad_block_log::room(superblock), 512);
    let mut without = superblock.clone();
    without.drop_bad_block_log();
    assert_eq!(super::bad_block_log::room(&without), 0);
}

fn candidates(level: Level, members: u16, spares: u16) -> Vec<Candidate> {
    let array = NewArray {
        minor: MinorVersion::V1_2,
        set_uuid: [7; 16],
        name: "host:test".into(),
        ctime_s: 1,
        level,
        layout: Layout::default_for(level),
        chunk_bytes: if level == Level::Raid1 { 0 } else { 64 << 10 },
        raid_disks: u32::from(members),
        bitmap: NewBitmap::None,
        member_bytes: None,
        data_offset: None,
        clean: true,
    };
    made(&array, &vec![DEVICE_BYTES; usize::from(members + spares)])
}

/// Devices of an array that was just made; those behind the members are spares.
fn made(array: &NewArray, sizes: &[u64]) -> Vec<Candidate> {
    let role = |slot: Slot| match slot.get() < array.raid_disks {
        true => DeviceRole::Active(slot),
        false => DeviceRole::Spare,
    };
    let device = |(slot, device_bytes): (Slot, &u64)| NewMember {
        device_bytes: *device_bytes,
        device_uuid: (u128::from(slot.get()) + 1).to_le_bytes(),
        role: role(slot),
    };
    let devices: Vec<NewMember> = Slot::all().zip(sizes).map(device).collect();
    let created = array.create(&devices).expect("an array");
    let candidate = |((i, superblock), size_bytes): ((usize, Superblock), &u64)| Candidate {
        name: format!("m{i}"),
        size_bytes: *size_bytes,
        superblock: Ok(superblock),
        generations: None,
    };
    created.superblocks.into_iter().enumerate().zip(sizes).map(candidate).collect()
}

/// md shrinks an array of five members: their superblocks say that there are four, and the last one has its slot still. An
/// assembly of any array panicked when it met such a member.
#[test]
fn an_array_that_md_is_shrinking_is_refused() {
    let mut candidates = candidates(Level::Raid5, 5, 0);
    for candidate in &mut candidates {
        change(candidate, |superblock| *superblock = shrinking(superblock));
    }
    let assembly = one(&candidates);
    assert!(matches!(assembly.start, Err(Refusal::Features { .. })), "{:?}", assembly.start);
    assert_eq!(reason(&assembly, 4), "it is in slot 4 of an array of 4");
}

/// With one member less, in the middle of a reshape.
fn shrinking(superblock: &Superblock) -> Superblock {
    let mut bytes = superblock.encode(512);
    let field = |at: usize| at..at + 4;
    bytes[8] |= 4; // RESHAPE_ACTIVE
    bytes[field(92)].copy_from_slice(&4u32.to_le_bytes()); // raid_disks
    bytes[field(112)].copy_from_slice(&(-1i32).to_le_bytes()); // delta_disks
    bytes[field(216)].fill(0);
    let covered = &bytes[..256 + 2 * superblock.roles().len()];
    let words =
        covered.chunks(4).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let sum: u64 = words.sum();
    let folded = u32::try_from((sum & 0xffff_ffff) + (sum >> 32)).expect("no carry");
    bytes[field(216)].copy_from_slice(&folded.to_le_bytes());
    Superblock::parse(&bytes, MinorVersion::V1_2, DEVICE_BYTES).expect("a superblock")
}

fn change(candidate: &mut Candidate, change: impl FnOnce(&mut Superblock)) {
    change(candidate.superblock.as_mut().expect("a superblock"));
}

fn one(candidates: &[Candidate]) -> Assembly {
    let mut found = assemble(candidates, &Filter::default());
    assert_eq!(found.arrays.len(), 1);
    found.arrays.remove(0)
}

fn reason(assembly: &Assembly, index: usize) -> String {
    match &assembly.verdicts[index].1 {
        Verdict::Refused { reason } => reason.clone(),
        other => panic!("{index} is taken: {other:?}"),
    }
}

#[test]
fn whole_in_any_order() {
    let mut candidates = candidates(Level::Raid5, 5, 1);
    candidates.reverse();
    let assembly = one(&candidates);
    assert_eq!(assembly.slots, [Some(5), Some(4), Some(3), Some(2), Some(1)]);
    assert_eq!((assembly.spares, assembly.start), (vec![0], Ok(())));
}

#[test]
fn a_stale_member_is_left_out_and_two_are_too_many() {
    let mut candidates = candidates(Level::Raid5, 5, 0);
    candidates.iter_mut().skip(1).for_each(|c| change(c, |s| s.set_events(10)));
    change(&mut candidates[0], |s| s.set_events(8));
    let assembly = one(&candidates);
    assert!(reason(&assembly, 0).contains("event count 8"));
    assert_eq!(assembly.start, Ok(()));
    change(&mut candidates[1], |s| s.set_events(7));
    let assembly = one(&candidates);
    assert!(matches!(assembly.start, Err(Refusal::NotEnoughMembers { present: 3, .. })), "{assembly:?}");
    // force takes the newer of the two, and only that one
    let force = Filter { force: true, ..Filter::default() };
    let assembly = assemble(&candidates, &force).arrays.remove(0);
    assert_eq!((assembly.slots[0], assembly.slots[1], assembly.start), (Some(0), None, Ok(())));
}

#[test]
fn one_event_behind_is_a_crash_between_two_superblocks() {
    let mut candidates = candidates(Level::Raid6, 5, 0);
    candidates.iter_mut().take(2).for_each(|c| change(c, |s| s.set_events(3)));
    candidates.iter_mut().skip(2).for_each(|c| change(c, |s| s.set_events(4)));
    assert_eq!(one(&candidates).slots.iter().flatten().count(), 5);
}

#[test]
fn the_newest_superblock_outweighs_a_members_own_word() {
    let mut candidates = candidates(Level::Raid5, 5, 0);
    for candidate in &mut candidates[1..] {
        change(candidate, |s| s.set_events(s.events() + 1));
        change(candidate, |s| s.set_role(0, DeviceRole::Faulty));
    }
    assert!(reason(&one(&candidates), 0).contains("failed"));
}

/// A RAID-5 whose member 2 md was replacing by the last candidate.
fn replacing() -> Vec<Candidate> {
    let mut candidates = candidates(Level::Raid5, 5, 1);
    candidates.iter_mut().for_each(|c| change(c, |s| s.set_role(5, DeviceRole::Active(Slot::new(2)))));
    change(&mut candidates[5], |s| {
        s.set_replacement(true);
        s.set_recovery_offset(Some(Sectors(800)));
    });
    candidates
}

#[test]
fn the_copy_of_a_member_that_is_there_goes_on_in_any_order_and_however_new() {
    for turn in 0..6 {
        for newer in [0, 1] {
            let mut candidates = replacing();
            change(&mut candidates[5], |s| s.set_events(s.events() + newer));
            candidates.rotate_left(turn);
            let (original, copy) = ((2 + 6 - turn) % 6, (5 + 6 - turn) % 6);
            let assembly = one(&candidates);
            assert_eq!((assembly.slots[2], &assembly.start), (Some(original), &Ok(())), "{turn} {newer}");
            assert!(assembly.states().iter().all(|state| *state == MemberState::InSync));
            assert_eq!(assembly.replacements, [(copy, Slot::new(2))], "{turn} {newer}");
            assert_eq!(assembly.verdicts[copy].1, Verdict::Replacement { slot: Slot::new(2) });
        }
    }
}

#[test]
fn a_stale_copy_and_a_second_one_are_left_out() {
    let mut stale = replacing();
    let events = stale[5].superblock.as_ref().unwrap().events();
    stale.iter_mut().take(5).for_each(|c| change(c, |s| s.set_events(events + 2)));
    let assembly = one(&stale);
    assert!(assembly.replacements.is_empty() && reason(&assembly, 5).contains("taken by m2"), "{assembly:?}");
    let mut two = replacing();
    let mut other = two[5].clone();
    change(&mut other, |s| s.set_device(6, [0x66; 16]));
    two.push(other);
    two.iter_mut().for_each(|c| change(c, |s| s.set_role(6, DeviceRole::Active(Slot::new(2)))));
    let assembly = one(&two);
    assert_eq!((assembly.replacements.len(), assembly.slots[2]), (1, Some(2)), "{assembly:?}");
    let mut rebuilt = replacing();
    change(&mut rebuilt[2], |s| s.set_recovery_offset(Some(Sectors(8))));
    assert!(one(&rebuilt).replacements.is_empty(), "a member that is not there is not copied");
}

#[test]
fn the_copy_of_a_member_that_is_gone_takes_its_slot_and_goes_on_from_where_it_was() {
    let mut gone = replacing();
    gone.remove(2);
    let mut failed = replacing();
    failed.iter_mut().for_each(|c| change(c, |s| s.set_role(2, DeviceRole::Faulty)));
    let mut stale = replacing();
    stale.iter_mut().for_each(|c| change(c, |s| s.set_events(9)));
    change(&mut stale[2], |s| s.set_events(6));
    for mut candidates in [gone, failed, stale] {
        let copy = candidates.len() - 1;
        let assembly = one(&candidates);
        assert_eq!((assembly.slots[2], &assembly.start), (Some(copy), &Ok(())));
        assert_eq!(assembly.states()[2], MemberState::Recovering);
        change(&mut candidates[copy], |s| s.set_recovery_offset(None));
        assert_eq!(one(&candidates).states()[2], MemberState::InSync, "it was complete");
    }
}

#[test]
fn dirty_and_degraded_starts_and_the_redo_log_tells_what_is_in_doubt() {
    let mut candidates = candidates(Level::Raid5, 5, 0);
    candidates.iter_mut().for_each(|c| change(c, |s| s.set_resync_offset(Some(Sectors(0)))));
    assert_eq!(one(&candidates).start, Ok(()));
    candidates.remove(2);
    let assembly = one(&candidates);
    assert_eq!((assembly.start, assembly.resync_from_bytes), (Ok(()), Some(0)));
}

/// Runs some members without the others: so often superblocks are written.
fn go_on(candidates: &mut [Candidate], with: &[usize], rounds: u64) {
    let out: Vec<u32> = (0..candidates.len()).filter(|i| !with.contains(i)).map(|i| i as u32).collect();
    for &member in with {
        change(&mut candidates[member], |s| {
            s.set_events(s.events() + rounds);
            s.set_utime_s(s.utime_s() + rounds);
            out.iter().for_each(|number| s.set_role(*number, DeviceRole::Faulty));
        });
    }
}

#[test]
fn sides_that_went_on_apart_are_not_mixed() {
    let levels = [(Level::Raid1, 2, vec![0], vec![1]), (Level::Raid6, 4, vec![0, 2], vec![1, 3])];
    for (level, members, here, there) in levels {
        for rounds in [(3, 2), (2, 2), (2, 9)] {
            let mut candidates = candidates(level, members, 0);
            go_on(&mut candidates, &here, rounds.0);
            go_on(&mut candidates, &there, rounds.1);
            candidates.rotate_left(1); // whatever the order
            let assembly = one(&candidates);
            assert!(matches!(assembly.start, Err(Refusal::Split { .. })), "{level} {rounds:?}: {assembly:?}");
            let force = Filter { force: true, ..Filter::default() };
            let forced = assemble(&candidates, &force).arrays.remove(0);
            let taken = forced.slots.iter().flatten().count();
            assert_eq!((forced.start, taken), (Ok(()), here.len()), "one side of it");
            candidates.retain(|candidate| here.iter().any(|member| candidate.name == format!("m{member}")));
            assert_eq!(one(&candidates).start, Ok(()), "{level} {rounds:?}");
        }
    }
}

/// The first to fail calls the last to come back failed, and nothing was split.
#[test]
fn members_that_failed_in_turn_were_not_split() {
    let mut candidates = candidates(Level::Raid1, 3, 0);
    go_on(&mut candidates, &[1, 2], 1);
    go_on(&mut candidates, &[2], 2); // m1 fails
    for number in [0, 2] {
        // m0 is rebuilt from m2, which fails then
        change(&mut candidates[number], |s| {
            s.set_events(20);
            s.set_role(0, DeviceRole::Active(Slot::new(0)));
            s.set_role(1, DeviceRole::Faulty);
        });
    }
    change(&mut candidates[0], |s| s.set_events(30));
    change(&mut candidates[0], |s| s.set_role(2, DeviceRole::Faulty));
    let assembly = one(&candidates);
    assert_eq!((assembly.slots, assembly.start), (vec![Some(0), None, None], Ok(())));
    candidates.remove(2);
    assert_eq!(one(&candidates).start, Ok(()), "no member that says otherwise is there");
}

#[test]
fn force_takes_a_member_that_the_others_call_failed() {
    let mut candidates = candidates(Level::Raid5, 4, 0);
    go_on(&mut candidates, &[0, 1, 2], 5);
    candidates.remove(0);
    let refused = |assembly: &Assembly| matches!(assembly.start, Err(Refusal::NotEnoughMembers { .. }));
    assert!(refused(&one(&candidates)));
    let force = Filter { force: true, ..Filter::default() };
    let assembly = assemble(&candidates, &force).arrays.remove(0);
    assert_eq!((assembly.slots, assembly.start), (vec![None, Some(0), Some(1), Some(2)], Ok(())));
}

/// Acts "start 0+2, write 0, force 0+1+3": the slot beside a copy that had the write got a stale one, and reads took turns.
#[test]
fn force_takes_no_stale_copy_beside_a_newer_one() {
    let mut candidates = candidates(Level::Raid10, 4, 0);
    go_on(&mut candidates, &[0, 2], 5);
    candidates.remove(2);
    let force = Filter { force: true, ..Filter::default() };
    let assembly = assemble(&candidates, &force).arrays.remove(0);
    assert_eq!((assembly.slots, assembly.start), (vec![Some(0), None, None, Some(2)], Ok(())));
}

/// A member that is being rebuilt fills its slot and helps no other one: a stale member that would is taken.
#[test]
fn force_takes_a_stale_member_beside_one_that_is_being_rebuilt() {
    let mut candidates = candidates(Level::Raid5, 3, 0);
    go_on(&mut candidates, &[0, 2], 5);
    change(&mut candidates[2], |superblock| superblock.set_recovery_offset(Some(Sectors(8))));
    let force = Filter { force: true, ..Filter::default() };
    let assembly = assemble(&candidates, &force).arrays.remove(0);
    assert_eq!((assembly.slots, assembly.start), (vec![Some(0), Some(1), Some(2)], Ok(())));
}

#[test]
fn copies_short_members_and_strangers_are_refused_with_a_reason() {
    let mut candidates = candidates(Level::Raid5, 5, 0);
    candidates.push(candidates[1].clone());
    candidates[2].size_bytes /= 2;
    let broken = Candidate {
        name: "x".into(),
        size_bytes: 1,
        superblock: Err("no md superblock".into()),
        generations: None,
    };
    candidates.push(broken);
    let found = assemble(&candidates, &Filter::default());
    assert!(reason(&found.arrays[0], 5).contains("same member"));
    assert!(reason(&found.arrays[0], 2).contains("cut short"));
    assert_eq!(found.others, [(6, Verdict::Refused { reason: "no md superblock".into() })]);
    let other = Filter { name: Some("other".into()), ..Filter::default() };
    assert!(assemble(&candidates, &other).arrays.is_empty());
    let same = Filter { name: Some("test".into()), ..Filter::default() };
    assert_eq!(assemble(&candidates, &same).arrays.len(), 1);
}

/// The adding of a spare was cut short after it had its superblock; the array never knew it and gave its number away.
#[test]
fn a_spare_with_the_number_of_another_device_is_refused() {
    let known = candidates(Level::Raid5, 5, 2);
    for (number, expected) in [(5, Some("device number 5")), (2, Some("slot 2 is taken by m2")), (6, None)] {
        for spare_first in [true, false] {
            let mut candidates = known.clone();
            change(&mut candidates[6], |superblock| {
                *superblock =
                    superblock.for_new_device(number, [99; 16], DEVICE_BYTES).expect("a superblock");
            });
            if spare_first {
                candidates.rotate_right(1);
            }
            let assembly = one(&candidates);
            let spares = 2 - expected.iter().count();
            assert_eq!((assembly.spares.len(), assembly.start.clone()), (spares, Ok(())), "{number}");
            let reasons = assembly.verdicts.iter().filter_map(|(index, verdict)| match verdict {
                Verdict::Refused { reason } => Some((*index, reason)),
                _ => None,
            });
            for (index, reason) in reasons.clone() {
                let own = candidates[index].superblock.as_ref().expect("a superblock");
                assert_eq!(own.role(), DeviceRole::Spare, "{number}: a member is taken before a spare");
                assert!(expected.is_some_and(|expected| reason.contains(expected)), "{reason}");
            }
            assert_eq!(reasons.count(), expected.iter().count(), "{number} {spare_first}");
        }
    }
}
