//! What is chosen for new arrays of every level and kind of member, and what is refused.

use super::super::assemble_tests::{new_array, wanted, zones};
use super::*;
use layout::geometry::Level;
use layout::zoned::LogPlace;

fn devices(zoned: &[ZonedInfo]) -> Vec<DeviceZones> {
    let device = |(slot, zoned): (usize, &ZonedInfo)| DeviceZones {
        name: format!("m{slot}"),
        logical_block_bytes: 4096,
        zoned: zoned.clone(),
    };
    zoned.iter().enumerate().map(device).collect()
}

#[test]
fn every_level_and_kind_makes_an_array_that_its_superblock_holds() {
    for (level, width) in [
        (Level::Raid0, 1),
        (Level::Raid0, 64),
        (Level::Raid10, 2),
        (Level::Raid10, 8),
        (Level::Raid4, 4),
        (Level::Raid5, 2),
        (Level::Raid5, 4),
        (Level::Raid6, 3),
        (Level::Raid6, 62),
    ] {
        for access in [ZoneAccess::Append, ZoneAccess::Sequential, ZoneAccess::Placed] {
            for metadata_bytes in [0, 64] {
                let zoned = ZonedInfo { metadata_bytes, ..zones(access, 40) };
                let (plan, zones) =
                    plan(&wanted(level, width), &devices(&vec![zoned; width.into()])).expect("a plan");
                let is_oob = access == ZoneAccess::Append && metadata_bytes == 64;
                assert_eq!(plan.carrier == Carrier::Oob, is_oob);
                let data = u64::from(plan.columns.data()) * u64::from(zones.capacity_blocks) * 38;
                assert!(
                    plan.logical_blocks > data / 3 && plan.logical_blocks < data,
                    "{level} {width} {access:?}"
                );
                let new = NewZonedArray {
                    plan,
                    zones,
                    devices: (1..=width).map(|w| [w; 16]).collect(),
                    ..new_array(Level::Raid5, 4)
                };
                let superblock = new.superblock(usize::from(width) - 1);
                let place = LogPlace { zone: 0, block: 0 };
                assert_eq!(Superblock::parse(&superblock.encode(place), place), Ok(superblock.clone()));
                let config = config(&superblock).expect("a configuration");
                // Segments over fewer members can be made, too: that is how failures are survived.
                for members in (1..=width).filter(|members| Columns::new(level, *members).is_some()) {
                    for class in [Class::Small, Class::Large] {
                        assert!(
                            config.shape(class, members).is_ok(),
                            "{level} {class:?} over {members} of {width}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let four = |zoned: ZonedInfo| devices(&vec![zoned; 4]);
    let refused =
        |wanted: &Wanted, devices: &[DeviceZones]| plan(wanted, devices).expect_err("refused").to_string();
    let raid5 = wanted(Level::Raid5, 4);
    let fits = zones(ZoneAccess::Sequential, 40);
    let mut mixed = four(fits.clone());
    mixed[2].zoned.zone_bytes *= 2;
    assert!(
        refused(&raid5, &mixed)
            .starts_with("m2 has zones of 2048 KiB, written in order, and m0 has zones of 1024")
    );
    mixed[2].zoned = ZonedInfo { access: ZoneAccess::Append, ..fits.clone() };
    assert!(refused(&raid5, &mixed).contains("written by appends"));
    let limited = ZonedInfo { active_max: Some(4), ..fits.clone() };
    assert!(
        refused(&raid5, &four(limited))
            .starts_with("m0: 2 open segments need 5 zones at once, and the drive allows 4")
    );
    assert!(plan(&raid5, &four(ZonedInfo { open_max: Some(5), ..fits.clone() })).is_ok());
    let few = refused(&raid5, &four(zones(ZoneAccess::Sequential, 9)));
    assert!(few.starts_with("m0 has 9 zones; 10 are needed"), "{few}");
    assert!(plan(&raid5, &four(zones(ZoneAccess::Sequential, 10))).is_ok());
    let oob = Wanted { carrier: Some(Carrier::Oob), ..raid5.clone() };
    assert!(refused(&oob, &four(fits.clone())).starts_with("m0 has no 64 bytes of metadata"));
    let long = Wanted { large_blocks: Some(64), ..raid5.clone() };
    let short = ZonedInfo { record_bytes_max: 128 << 10, ..fits.clone() };
    assert!(
        refused(&long, &four(short.clone())).contains("longer than one command of m0, which has 32 at most")
    );
    assert!(plan(&raid5, &four(short)).is_ok());
    let crossed = Wanted { small_blocks: Some(16), large_blocks: Some(8), ..raid5.clone() };
    assert!(refused(&crossed, &four(fits.clone())).contains("longer than large ones"));
    let appended = ZonedInfo { access: ZoneAccess::Append, ..fits };
    let alone = refused(
        &Wanted { small_blocks: Some(200), large_blocks: Some(200), ..raid5.clone() },
        &four(appended.clone()),
    );
    assert!(
        alone.contains("200 blocks, and a zone of 256 has room for 1, expected room for 2 at least"),
        "{alone}"
    );
    assert!(plan(&raid5, &four(appended)).is_ok());
}

#[test]
fn shards_are_as_many_as_the_drives_have_zones_for() {
    for (wanted, zones, limits, expected) in [
        (8, 1026, vec![None], 8),
        (8, 66, vec![None], 4),
        (8, 10, vec![None], 1),
        (8, 1026, vec![Some(14), None], 5),
        (8, 1026, vec![Some(5)], 1),
        (1, 1026, vec![None], 1),
    ] {
        assert_eq!(
            shards(wanted, OpenCounts::ONE, zones, limits.clone()),
            expected,
            "{wanted} over {zones} zones, {limits:?}"
        );
    }
}
