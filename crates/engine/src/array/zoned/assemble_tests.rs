//! Which members make up a zoned array, as a table of histories.

use layout::zoned::{Columns, Epoch, MapEntryBytes, Member, MemberState as Row, Superblock};

use super::assemble::{ZonedAssembly, ZonedCandidate, ZonedRefusal, assemble_zoned};
use super::plan::{DeviceZones, NewZonedArray, RESERVE_PERCENT, Wanted, plan, widened};
use crate::array::assemble::Verdict;
use crate::log::config::OpenCounts;
use crate::zone_device::{ZoneAccess, ZonedInfo};
use layout::geometry::Level;

pub(super) fn zones(access: ZoneAccess, count: u32) -> ZonedInfo {
    ZonedInfo {
        access,
        zones: count,
        zone_bytes: 1 << 20,
        capacity_bytes: 1 << 20,
        record_bytes_max: 1 << 20,
        metadata_bytes: 0,
        open_max: None,
        active_max: None,
    }
}

/// An array with every choice left to the plan.
pub(super) fn wanted(level: Level, width: u8) -> Wanted {
    Wanted {
        columns: Columns::new(level, width).expect("columns"),
        small_blocks: None,
        large_blocks: None,
        group: None,
        open: OpenCounts::ONE,
        reserve_percent: RESERVE_PERCENT,
        map_entry: MapEntryBytes::Eight,
        carrier: None,
    }
}

pub(super) fn new_array(level: Level, members: u8) -> NewZonedArray {
    let device = |slot: u8| DeviceZones {
        name: format!("m{slot}"),
        logical_block_bytes: 4096,
        zoned: zones(ZoneAccess::Placed, 40),
    };
    let devices: Vec<DeviceZones> = (0..members).map(device).collect();
    let (plan, zones) = plan(&wanted(level, members), &devices).expect("a plan");
    NewZonedArray {
        set_uuid: [7; 16],
        name: "test".to_owned(),
        devices: (1..=members).map(|member| [member; 16]).collect(),
        plan,
        zones,
        now_unix_s: 1,
        random: 99,
    }
}

/// Members of a RAID-5 as they are on disk, with what runs of the array do to them.
struct World {
    members: Vec<Superblock>,
}

impl World {
    fn new() -> Self {
        let new = new_array(Level::Raid5, 4);
        World { members: (0..4).map(|slot| new.superblock(slot)).collect() }
    }

    /// A start with these members: `begun` get the epoch, of these `served` also the superblock that calls it served and
    /// the others failed.
    fn run(&mut self, epoch: Epoch, begun: &[usize], served: &[usize]) {
        let speaker = begun.iter().map(|&slot| self.members[slot].clone());
        let speaker =
            speaker.max_by_key(|superblock| (superblock.served.map(|e| e.number), superblock.sequence));
        let speaker = speaker.expect("a member");
        for &slot in begun {
            let own = &mut self.members[slot];
            let (device_uuid, slot_number) = (own.device_uuid, own.slot);
            *own = Superblock { device_uuid, slot: slot_number, ..speaker.clone() };
            own.sequence = speaker.sequence + 1;
            own.epoch = epoch;
            own.epochs.insert(0, epoch);
            own.clean = false;
        }
        for &slot in served {
            let own = &mut self.members[slot];
            own.sequence += 1;
            own.served = Some(epoch);
            for row in &mut own.members {
                let is_in = begun.contains(&usize::from(row.slot.expect("no spares")));
                (row.state, row.epoch) =
                    if is_in { (Row::InSync, Some(epoch)) } else { (Row::Failed, row.epoch) };
                row.events = own.sequence;
            }
        }
    }

    fn assemble(&self, present: &[usize]) -> ZonedAssembly {
        assemble_of(present.iter().map(|&slot| self.members[slot].clone()).collect(), false)
    }
}

fn assemble_of(superblocks: Vec<Superblock>, force: bool) -> ZonedAssembly {
    let candidate =
        |superblock: Superblock| ZonedCandidate { name: format!("m{}", superblock.slot), superblock };
    let candidates: Vec<ZonedCandidate> = superblocks.into_iter().map(candidate).collect();
    let mut arrays = assemble_zoned(&candidates, force);
    assert_eq!(arrays.len(), 1);
    arrays.remove(0)
}

fn in_sync(assembly: &ZonedAssembly) -> Vec<usize> {
    (0..assembly.slots.len()).filter(|slot| assembly.slots[*slot].is_some()).collect()
}

const E: fn(u32, u32) -> Epoch = |number, random| Epoch { number, random };

#[test]
fn a_new_array_and_one_that_served_are_whole() {
    let mut world = World::new();
    for epoch in 2..70 {
        let assembly = world.assemble(&[3, 1, 0, 2]);
        assert_eq!((in_sync(&assembly), &assembly.start), (vec![0, 1, 2, 3], &Ok(())));
        assert_eq!(
            assembly.slots,
            [Some(2), Some(1), Some(3), Some(0)],
            "each in its own slot, in any order"
        );
        world.run(E(epoch, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
        world.members.iter_mut().for_each(|member| member.epochs.truncate(64));
    }
    assert_eq!(world.assemble(&[0, 1, 2, 3]).newest.epoch, 69);
}

#[test]
fn a_member_that_missed_an_epoch_that_served_is_stale_and_the_reason_says_since_when() {
    let mut world = World::new();
    world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    world.run(E(3, 2), &[0, 1, 2], &[0, 1, 2]);
    let assembly = world.assemble(&[0, 1, 2, 3]);
    assert_eq!((in_sync(&assembly), &assembly.start), (vec![0, 1, 2], &Ok(())));
    let Verdict::Refused { reason } = &assembly.verdicts[3].1 else { panic!("{:?}", assembly.verdicts) };
    assert!(reason.starts_with("stale: the others call it failed since event"), "{reason}");
    assert_eq!((assembly.stale, assembly.ran_apart), (vec![(3, 3)], vec![]));
    // It is stale for every set of the others that can start, and two are too few.
    assert_eq!(
        world.assemble(&[3, 1]).start,
        Err(ZonedRefusal::NotEnoughMembers { in_sync: 1, needed: 3, members: 4 })
    );
}

#[test]
fn an_epoch_that_never_served_makes_no_member_stale() {
    let mut world = World::new();
    world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    world.run(E(3, 2), &[0, 1, 2], &[]); // cut before it served: member 3 missed nothing
    assert_eq!(in_sync(&world.assemble(&[0, 1, 2, 3])), [0, 1, 2, 3]);
    assert_eq!(in_sync(&world.assemble(&[1, 3])), [1, 3]);
    // The superblock that says served reached one member only: no request was served either, while another that had begun
    // it is there to say so.
    world.run(E(4, 3), &[0, 1, 2], &[0]);
    assert_eq!(in_sync(&world.assemble(&[0, 1, 2, 3])), [0, 1, 2, 3]);
    // Without those others it counts: nothing tells that it did not serve.
    assert_eq!(in_sync(&world.assemble(&[0, 3])), [0]);
}

#[test]
fn a_served_superblock_that_reached_some_leaves_the_others_in_sync() {
    let mut world = World::new();
    world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    world.run(E(3, 2), &[0, 1, 2, 3], &[1, 2]);
    assert_eq!(in_sync(&world.assemble(&[0, 1, 2, 3])), [0, 1, 2, 3]);
}

#[test]
fn sides_that_ran_apart_are_told_apart_also_by_the_same_number() {
    for other in [E(3, 77), E(4, 5), E(9, 2)] {
        let mut world = World::new();
        world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
        let before = world.members[3].clone();
        world.run(E(3, 2), &[0, 1, 2], &[0, 1, 2]);
        // The other side: member 3 with copies of two others, elsewhere.
        let ours = world.members.clone();
        world.members = (0..4)
            .map(|slot| Superblock {
                device_uuid: ours[slot].device_uuid,
                slot: slot as u16,
                ..before.clone()
            })
            .collect();
        world.run(other, &[1, 2, 3], &[1, 2, 3]);
        let theirs = world.members[3].clone();
        let all: Vec<Superblock> = ours[..3].iter().cloned().chain([theirs]).collect();
        let assembly = assemble_of(all.clone(), false);
        assert!(
            matches!(assembly.start, Err(ZonedRefusal::RanApart { .. })),
            "{other}: {:?}",
            assembly.start
        );
        let forced = assemble_of(all, true);
        assert!(in_sync(&forced).len() != 4, "{other}: force takes one side, never both");
    }
}

#[test]
fn copies_foreign_members_and_other_zones_are_refused_by_name() {
    let mut world = World::new();
    world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    let mut with_copy = world.members.clone();
    with_copy.push(world.members[1].clone());
    let assembly = assemble_of(with_copy, false);
    assert_eq!(assembly.start, Err(ZonedRefusal::Copy { name: "m1".into() }));

    let mut foreign = world.members.clone();
    foreign[2].device_uuid = [99; 16];
    let assembly = assemble_of(foreign, false);
    assert_eq!((in_sync(&assembly), &assembly.start), (vec![0, 1, 3], &Ok(())));
    assert!(
        matches!(&assembly.verdicts[2].1, Verdict::Refused { reason } if reason.contains("does not list it"))
    );

    let mut cut = world.members.clone();
    cut[0].zones.zones -= 1;
    cut[0].sequence -= 1;
    assert_eq!(assemble_of(cut, false).start, Err(ZonedRefusal::OtherZones { name: "m0".into() }));
}

/// The superblocks that list a new member reached some: the others are members of the same array still, and it has the new one,
/// whether that is there or not.
#[test]
fn superblocks_of_before_members_were_added_are_of_the_same_array() {
    let mut world = World::new();
    world.run(E(2, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    let mut grown = world.members[0].clone();
    grown.plan = widened(&grown, 5).expect("one more");
    (grown.growing, grown.sequence) = (true, grown.sequence + 1);
    let row = Member { device_uuid: [5; 16], slot: Some(4), ..grown.members[0] };
    grown.members.push(row);
    let new = Superblock { device_uuid: [5; 16], slot: 4, ..grown.clone() };
    world.members[0] = grown;
    let old = || world.members.iter().cloned();
    let assembly = assemble_of(old().chain([new.clone()]).collect(), false);
    assert_eq!((in_sync(&assembly), &assembly.start), (vec![0, 1, 2, 3, 4], &Ok(())));
    let assembly = assemble_of(old().collect(), false);
    assert_eq!((in_sync(&assembly), assembly.slots.len(), &assembly.start), (vec![0, 1, 2, 3], 5, &Ok(())));
    // Its own superblock is the first that is written.
    let assembly = assemble_of(old().skip(1).chain([new]).collect(), false);
    assert_eq!((in_sync(&assembly), &assembly.start), (vec![1, 2, 3, 4], &Ok(())));
    let assembly = assemble_of(old().skip(1).collect(), false);
    assert_eq!((assembly.slots.len(), &assembly.start), (4, &Ok(())), "nobody knows of it");
    // Another level is another array.
    let mut other = world.members.clone();
    other[1].plan.columns = Columns::new(Level::Raid6, 4).expect("columns");
    assert!(matches!(assemble_of(other, false).start, Err(ZonedRefusal::OtherZones { .. })));
}

#[test]
fn the_limits_of_the_format_refuse_a_start() {
    let mut world = World::new();
    world.members[1].ro_compat = 4;
    world.members[1].sequence = 50;
    assert_eq!(world.assemble(&[0, 1, 2, 3]).start, Err(ZonedRefusal::ReadOnlyFeature { bit: 2 }));
    let mut world = World::new();
    world.run(E(Epoch::NUMBER_MAX, 1), &[0, 1, 2, 3], &[0, 1, 2, 3]);
    assert_eq!(world.assemble(&[0, 1, 2, 3]).start, Err(ZonedRefusal::EpochsUsedUp));
}
