//! Geometry against hand-drawn layouts, and the properties that hold for every layout.

use std::collections::HashSet;

use layout::geometry::Raid0Zones;
use layout::units::{ArrayOffset, MemberOffset, Slot, Stripe};
use layout::{FarSets, Geometry, GeometryError, Layout, Level, Raid10Layout, Role};
use proptest::prelude::*;

const CHUNK: u32 = 64 << 10;

fn geometry(level: Level, layout: &str, members: u32, chunks: u64) -> Geometry {
    let layout = match layout {
        "" => Layout::Unset,
        name => Layout::parse(level, name).unwrap(),
    };
    Geometry::new(level, layout, members, CHUNK, chunks * u64::from(CHUNK)).unwrap()
}

/// One line a stripe: what each member holds.
fn draw(geometry: &Geometry, stripes: u64) -> String {
    let cell = |stripe, member| match geometry.role(stripe, member) {
        Role::Data(index) => index.to_string(),
        Role::P => "P".into(),
        Role::Q => "Q".into(),
    };
    let row = |stripe| geometry.slots().map(|slot| cell(stripe, slot)).collect::<Vec<_>>().join(" ");
    Stripe::first(stripes).map(row).collect::<Vec<_>>().join(" / ")
}

#[test]
fn parity_layouts_as_drawn() {
    use Level::{Raid0, Raid4, Raid5, Raid6};
    let table = [
        (Raid0, "", 3, "0 1 2 / 0 1 2"),
        (Raid4, "", 4, "0 1 2 P / 0 1 2 P"),
        (Raid5, "la", 4, "0 1 2 P / 0 1 P 2 / 0 P 1 2 / P 0 1 2 / 0 1 2 P"),
        (Raid5, "ra", 4, "P 0 1 2 / 0 P 1 2 / 0 1 P 2 / 0 1 2 P / P 0 1 2"),
        (Raid5, "ls", 4, "0 1 2 P / 1 2 P 0 / 2 P 0 1 / P 0 1 2 / 0 1 2 P"),
        (Raid5, "rs", 4, "P 0 1 2 / 2 P 0 1 / 1 2 P 0 / 0 1 2 P / P 0 1 2"),
        (Raid5, "parity-first", 4, "P 0 1 2 / P 0 1 2"),
        (Raid5, "parity-last", 4, "0 1 2 P / 0 1 2 P"),
        (Raid6, "la", 5, "Q 0 1 2 P / 0 1 2 P Q / 0 1 P Q 2 / 0 P Q 1 2 / P Q 0 1 2"),
        (Raid6, "ra", 5, "P Q 0 1 2 / 0 P Q 1 2 / 0 1 P Q 2 / 0 1 2 P Q / Q 0 1 2 P"),
        (Raid6, "ls", 5, "Q 0 1 2 P / 0 1 2 P Q / 1 2 P Q 0 / 2 P Q 0 1 / P Q 0 1 2"),
        (Raid6, "rs", 5, "P Q 0 1 2 / 2 P Q 0 1 / 1 2 P Q 0 / 0 1 2 P Q / Q 0 1 2 P"),
        (Raid6, "parity-first", 5, "P Q 0 1 2 / P Q 0 1 2"),
        (Raid6, "parity-last", 5, "0 1 2 P Q / 0 1 2 P Q"),
        (Raid6, "ddf-zero-restart", 5, "P Q 0 1 2 / 0 P Q 1 2 / 0 1 P Q 2 / 0 1 2 P Q / Q 0 1 2 P"),
        (Raid6, "ddf-N-restart", 5, "0 1 2 P Q / 0 1 P Q 2 / 0 P Q 1 2 / P Q 0 1 2 / Q 0 1 2 P"),
        (Raid6, "ddf-N-continue", 5, "0 1 2 Q P / 1 2 Q P 0 / 2 Q P 0 1 / Q P 0 1 2 / P 0 1 2 Q"),
        (Raid6, "left-asymmetric-6", 5, "0 1 2 P Q / 0 1 P 2 Q / 0 P 1 2 Q / P 0 1 2 Q / 0 1 2 P Q"),
        (Raid6, "right-asymmetric-6", 5, "P 0 1 2 Q / 0 P 1 2 Q / 0 1 P 2 Q / 0 1 2 P Q"),
        (Raid6, "left-symmetric-6", 5, "0 1 2 P Q / 1 2 P 0 Q / 2 P 0 1 Q / P 0 1 2 Q"),
        (Raid6, "right-symmetric-6", 5, "P 0 1 2 Q / 2 P 0 1 Q / 1 2 P 0 Q / 0 1 2 P Q"),
        (Raid6, "parity-first-6", 5, "P 0 1 2 Q / P 0 1 2 Q"),
    ];
    for (level, layout, members, drawn) in table {
        let stripes = drawn.split(" / ").count() as u64;
        let geometry = geometry(level, layout, members, 16);
        assert_eq!(draw(&geometry, stripes), drawn, "{level} {layout}");
    }
}

/// One line a row: which array chunk each member holds, `-` for none.
fn draw_copies(geometry: &Geometry) -> String {
    let rows = geometry.member_bytes() / u64::from(CHUNK);
    let mut cells = vec![vec!["-".to_string(); geometry.members() as usize]; rows as usize];
    for chunk in 0..geometry.array_bytes() / u64::from(CHUNK) {
        for place in geometry.copies(ArrayOffset::new(chunk * u64::from(CHUNK)), 1).places {
            cells[(place.member_offset.get() / u64::from(CHUNK)) as usize][place.member.index()] =
                chunk.to_string();
        }
    }
    cells.iter().map(|row| row.join(" ")).collect::<Vec<_>>().join(" / ")
}

#[test]
fn raid10_layouts_as_drawn() {
    let table = [
        ("n2", 4, 2, "0 0 1 1 / 2 2 3 3"),
        ("n2", 3, 3, "0 0 1 / 1 2 2 / 3 3 -"),
        ("n3", 4, 2, "0 0 0 1 / 1 1 - -"),
        ("n2", 2, 2, "0 0 / 1 1"),
        ("f2", 4, 4, "0 1 2 3 / 4 5 6 7 / 3 0 1 2 / 7 4 5 6"),
        ("f2", 3, 5, "0 1 2 / 3 4 5 / 2 0 1 / 5 3 4 / - - -"),
        ("f3", 3, 3, "0 1 2 / 2 0 1 / 1 2 0"),
        ("o2", 4, 4, "0 1 2 3 / 3 0 1 2 / 4 5 6 7 / 7 4 5 6"),
        ("o2", 3, 2, "0 1 2 / 2 0 1"),
        ("o3", 4, 3, "0 1 2 3 / 3 0 1 2 / 2 3 0 1"),
    ];
    for (layout, members, rows, drawn) in table {
        assert_eq!(
            draw_copies(&geometry(Level::Raid10, layout, members, rows)),
            drawn,
            "{layout} on {members}"
        );
    }
}

fn one_of(slots: &[u32]) -> impl Fn(Slot) -> bool {
    move |slot| slots.contains(&slot.get())
}

#[test]
fn raid10_survives_what_leaves_a_copy_of_everything() {
    let near = geometry(Level::Raid10, "n2", 4, 8);
    assert_eq!(near.losses_survived(), 1);
    assert!(near.survives(one_of(&[0, 2])));
    assert!(!near.survives(one_of(&[0, 1])));
    let far = geometry(Level::Raid10, "f2", 4, 8);
    assert!(far.survives(one_of(&[0, 2])));
    assert!(!far.survives(one_of(&[3, 0])));
    let odd = geometry(Level::Raid10, "n2", 3, 8);
    for lost in odd.slots() {
        assert!(odd.survives(|slot| slot == lost));
        assert!(!odd.survives(|slot| slot != lost));
    }
    // Of two chunks on three members, the second being on members 2 and 0, nothing is on 1 and 2 alone.
    let short = geometry(Level::Raid10, "n3", 4, 1);
    assert!(short.survives(one_of(&[3])));
}

#[test]
fn sizes_are_rounded_as_md_does() {
    let raid5 = Geometry::new(Level::Raid5, Layout::LeftSymmetric, 4, CHUNK, (1 << 30) + 4096).unwrap();
    assert_eq!((raid5.member_bytes(), raid5.array_bytes()), (1 << 30, 3 << 30));
    assert_eq!((raid5.stripe_bytes(), raid5.stripes()), (3 * u64::from(CHUNK), 1 << 14));
    let raid1 = Geometry::new(Level::Raid1, Layout::Unset, 2, 0, (1 << 20) + 513).unwrap();
    assert_eq!((raid1.array_bytes(), raid1.losses_survived()), ((1 << 20) + 512, 1));
    let whole = raid1.copies(ArrayOffset::START, 1 << 30);
    assert_eq!((whole.len, whole.places.len()), ((1 << 20) + 512, 2));
}

#[test]
fn petabytes_do_not_overflow() {
    let member = 1u64 << 52;
    let raid6 =
        Geometry::new(Level::Raid6, Layout::LeftSymmetric, 256, 64 << 20, member).expect("2^60 bytes fit");
    let last = raid6.array_bytes() - 1;
    let place = raid6.locate(ArrayOffset::new(last));
    assert_eq!(
        raid6.array_offset(place.stripe, place.data_index, place.chunk_offset),
        ArrayOffset::new(last)
    );
    let too_large = Geometry::new(Level::Raid0, Layout::Unset, 1920, 4096, 1 << 53);
    assert_eq!(too_large, Err(GeometryError::TooLarge));
}

#[test]
fn what_md_refuses_is_refused() {
    let new = |level, layout, members, chunk| Geometry::new(level, layout, members, chunk, 1 << 30);
    assert!(matches!(new(Level::Raid6, Layout::LeftSymmetric, 3, CHUNK), Err(GeometryError::Members { .. })));
    assert!(matches!(
        new(Level::Raid6, Layout::DdfNContinue, 256, CHUNK),
        Err(GeometryError::Members { .. })
    ));
    assert!(matches!(
        new(Level::Raid5, Layout::LeftSymmetric, 3, 12 << 10),
        Err(GeometryError::Chunk { .. })
    ));
    assert!(matches!(new(Level::Raid5, Layout::LeftSymmetric, 3, 2048), Err(GeometryError::Chunk { .. })));
    assert!(new(Level::Raid0, Layout::Unset, 3, 12 << 10).is_ok());
    assert!(matches!(
        new(Level::Raid5, Layout::LeftSymmetric6, 4, CHUNK),
        Err(GeometryError::UnknownLayout { .. })
    ));
    assert!(matches!(new(Level::Raid10, Layout::near(3), 2, CHUNK), Err(GeometryError::Copies { .. })));
    let straddling = Layout::Raid10(Raid10Layout { near: 2, far: 2, offset: true, far_sets: FarSets::None });
    assert!(matches!(new(Level::Raid10, straddling, 5, CHUNK), Err(GeometryError::CopiesCollide { .. })));
    assert!(new(Level::Raid10, straddling, 6, CHUNK).is_ok());
}

#[test]
fn words_are_mdadms() {
    for level in Level::ALL {
        assert_eq!(level.to_string().parse::<Level>(), Ok(level));
        assert_eq!(level.md_number().to_string().parse::<Level>(), Ok(level));
        assert_eq!(Level::from_md_number(level.md_number()), Ok(level));
        for layout in Layout::parity_layouts(level) {
            assert_eq!(Layout::parse(level, &layout.to_string()), Ok(layout));
            assert_eq!(Layout::from_md_word(level, layout.md_word()), Ok(layout));
        }
    }
    assert_eq!(Layout::parse(Level::Raid10, "f2").unwrap().md_word(), 0x201);
    assert_eq!(Layout::parse(Level::Raid10, "o2").unwrap().md_word(), 0x10201);
    assert_eq!(Layout::from_md_word(Level::Raid10, 0x102).unwrap().to_string(), "near=2");
    assert!(Layout::from_md_word(Level::Raid10, 1 << 19 | 0x102).is_err());
    assert!(Layout::from_md_word(Level::Raid6, 6).is_err());
    assert_eq!(Level::from_md_number(-1), Err(GeometryError::UnknownLevel("linear".into())));
}

#[test]
fn raid0_zones_follow_the_longer_members() {
    let chunk = u64::from(CHUNK);
    let sizes = [2 * chunk, chunk, 3 * chunk + 4096];
    assert_eq!(Raid0Zones::new(Layout::Unset, CHUNK, &sizes), Err(GeometryError::ZonesNeedLayout));
    let member_rows = |layout| {
        let zones = Raid0Zones::new(layout, CHUNK, &sizes).unwrap();
        assert_eq!((zones.zones(), zones.array_bytes()), (3, 6 * chunk));
        let place = |i: u64| {
            let (member, offset, run) = zones.locate(ArrayOffset::new(i * chunk + 5));
            assert_eq!((offset.get() % chunk, run), (5, chunk - 5));
            format!("{member}:{}", offset.get() / chunk)
        };
        (0..6).map(place).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(member_rows(Layout::Raid0Alternate), "0:0 1:0 2:0 0:1 2:1 2:2");
    assert_eq!(member_rows(Layout::Raid0Original), "0:0 1:0 2:0 2:1 0:1 2:2");
}

fn striped() -> impl Strategy<Value = Geometry> {
    let levels = prop_oneof![Just(Level::Raid0), Just(Level::Raid4), Just(Level::Raid5), Just(Level::Raid6)];
    (levels, any::<prop::sample::Index>(), 4u32..20, 12u32..27, 1u64..300).prop_map(
        |(level, layout, members, chunk_bits, chunks)| {
            let layouts: Vec<Layout> = match level {
                Level::Raid0 | Level::Raid4 => vec![Layout::Unset],
                _ => Layout::parity_layouts(level).collect(),
            };
            let chunk = 1u32 << chunk_bits;
            Geometry::new(level, *layout.get(&layouts), members, chunk, chunks * u64::from(chunk) + 512)
                .unwrap()
        },
    )
}

fn mirrored() -> impl Strategy<Value = Geometry> {
    let far_sets = prop_oneof![Just(FarSets::None), Just(FarSets::Old), Just(FarSets::Fixed)];
    (1u8..5, 1u8..5, any::<bool>(), far_sets, 2u32..14, 1u64..60).prop_filter_map(
        "md refuses these copies",
        |(near, far, offset, far_sets, members, chunks)| {
            let layout = Layout::Raid10(Raid10Layout { near, far, offset, far_sets });
            Geometry::new(Level::Raid10, layout, members, 4096, chunks * 4096).ok()
        },
    )
}

proptest! {
    #[test]
    fn every_chunk_of_a_stripe_is_used_once(geometry in striped()) {
        for stripe in Stripe::first(geometry.stripes()) {
            let mut used = HashSet::new();
            let mut exponents = HashSet::new();
            for index in 0..geometry.data_chunks() {
                let member = geometry.data_member(stripe, index);
                prop_assert!(used.insert(member));
                prop_assert_eq!(geometry.role(stripe, member), Role::Data(index));
                let exponent = geometry.syndrome_index(stripe, index);
                prop_assert!(exponent < geometry.syndrome_width());
                prop_assert!(exponents.insert(exponent));
            }
            for (member, role) in
                [(geometry.p_member(stripe), Role::P), (geometry.q_member(stripe), Role::Q)]
            {
                if let Some(member) = member {
                    prop_assert!(used.insert(member));
                    prop_assert_eq!(geometry.role(stripe, member), role);
                }
            }
            prop_assert_eq!(used.len() as u32, geometry.members());
            let end = geometry.member_offset(stripe) + u64::from(geometry.chunk_bytes());
            prop_assert!(end <= MemberOffset::new(geometry.member_bytes()));
        }
    }

    #[test]
    fn locate_is_undone(geometry in striped(), at in any::<prop::sample::Index>()) {
        let offset = at.index(geometry.array_bytes() as usize) as u64;
        let place = geometry.locate(ArrayOffset::new(offset));
        prop_assert!(place.stripe.get() < geometry.stripes());
        prop_assert!(place.chunk_offset < geometry.chunk_bytes());
        prop_assert_eq!(
            geometry.array_offset(place.stripe, place.data_index, place.chunk_offset),
            ArrayOffset::new(offset)
        );
    }

    #[test]
    fn every_copy_has_a_place_of_its_own(geometry in mirrored()) {
        let Layout::Raid10(layout) = geometry.layout() else { panic!("RAID-10") };
        let mut used = HashSet::new();
        for chunk in 0..geometry.array_bytes() / 4096 {
            let copies = geometry.copies(ArrayOffset::new(chunk * 4096 + 512), 1024);
            prop_assert_eq!(copies.len, 1024);
            let members: HashSet<Slot> = copies.places.iter().map(|place| place.member).collect();
            prop_assert_eq!(members.len() as u32, layout.copies());
            for place in copies.places {
                prop_assert!(place.member_offset + 1024 <= MemberOffset::new(geometry.member_bytes()));
                prop_assert!(used.insert((place.member, place.member_offset)));
            }
        }
    }

    #[test]
    fn losses_survived_is_the_guarantee(geometry in mirrored(), first in 0u32..14) {
        let lost = geometry.losses_survived();
        let run = |slot: Slot| (slot.get() + geometry.members() - first % geometry.members()) % geometry.members();
        prop_assert!(geometry.survives(|slot| run(slot) < lost));
        prop_assert!(!geometry.survives(|_| true));
    }

    #[test]
    fn raid0_zones_use_every_chunk_once(
        sizes in prop::collection::vec(1u64..40, 1..8),
        original in any::<bool>(),
    ) {
        let layout = if original { Layout::Raid0Original } else { Layout::Raid0Alternate };
        let bytes: Vec<u64> = sizes.iter().map(|chunks| chunks * 4096).collect();
        let zones = Raid0Zones::new(layout, 4096, &bytes).unwrap();
        prop_assert_eq!(zones.array_bytes(), bytes.iter().sum::<u64>());
        let mut used = HashSet::new();
        for chunk in 0..zones.array_bytes() / 4096 {
            let (member, offset, _) = zones.locate(ArrayOffset::new(chunk * 4096));
            prop_assert!(offset < MemberOffset::new(bytes[member.index()]));
            prop_assert!(used.insert((member, offset)));
        }
    }

    #[test]
    fn equal_members_make_one_zone(members in 1u32..9, chunks in 1u64..30, at in 0u64..270) {
        let zones = Raid0Zones::new(Layout::Unset, CHUNK, &vec![chunks * u64::from(CHUNK); members as usize]);
        let zones = zones.unwrap();
        let geometry =
            Geometry::new(Level::Raid0, Layout::Unset, members, CHUNK, chunks * u64::from(CHUNK)).unwrap();
        prop_assert_eq!(zones.array_bytes(), geometry.array_bytes());
        let offset = at % geometry.stripes() * u64::from(CHUNK);
        let place = geometry.locate(ArrayOffset::new(offset));
        let (member, member_offset, _) = zones.locate(ArrayOffset::new(offset));
        prop_assert_eq!(member, geometry.data_member(place.stripe, place.data_index));
        prop_assert_eq!(member_offset, geometry.member_offset(place.stripe));
    }
}
