//! Which column holds what, and how a zone is divided.

use layout::geometry::Level;
use layout::zoned::{
    Access, COLUMNS_MAX, Carrier, ColumnRole, Columns, DataOffset, SegmentPlan, SegmentShape,
};
use proptest::prelude::*;

use crate::samples::{self, Dice};

/// One line a band: what each column holds.
fn draw(columns: Columns, bands: u32) -> String {
    let cell = |column, band| match columns.role(column, band) {
        ColumnRole::Data(index) => index.to_string(),
        ColumnRole::P => "P".into(),
        ColumnRole::Q => "Q".into(),
        ColumnRole::Copy(index) => format!("{index}'"),
    };
    let row = |band| (0..columns.width()).map(|column| cell(column, band)).collect::<Vec<_>>().join(" ");
    (0..bands).map(row).collect::<Vec<_>>().join(" / ")
}

#[test]
fn columns_as_drawn() {
    let table = [
        (Level::Raid0, 3, "0 1 2 / 0 1 2"),
        (Level::Raid10, 4, "0 0' 1 1' / 0 0' 1 1'"),
        (Level::Raid4, 4, "0 1 2 P / 0 1 2 P"),
        (Level::Raid5, 4, "P 0 1 2 / 2 P 0 1 / 1 2 P 0 / 0 1 2 P / P 0 1 2"),
        (Level::Raid5, 2, "P 0 / 0 P"),
        (Level::Raid6, 5, "P Q 0 1 2 / 2 P Q 0 1 / 1 2 P Q 0 / 0 1 2 P Q / Q 0 1 2 P / P Q 0 1 2"),
        (Level::Raid6, 3, "P Q 0 / 0 P Q / Q 0 P"),
    ];
    for (level, width, drawn) in table {
        let columns = Columns::new(level, width).unwrap();
        assert_eq!(draw(columns, drawn.split(" / ").count() as u32), drawn, "{level} of {width}");
    }
}

#[test]
fn columns_that_cannot_be() {
    for level in Level::ALL {
        let least = match level {
            Level::Raid0 => Some(1),
            Level::Raid1 => None,
            Level::Raid4 | Level::Raid5 | Level::Raid10 => Some(2),
            Level::Raid6 => Some(3),
        };
        for width in 0..=u8::MAX {
            let is_even = level != Level::Raid10 || width % 2 == 0;
            let expected = least.is_some_and(|least| (least..=COLUMNS_MAX).contains(&width)) && is_even;
            assert_eq!(Columns::new(level, width).is_some(), expected, "{level} of {width}");
        }
    }
}

/// What the design promises of descriptors, by data columns.
#[test]
fn rows_of_a_descriptor() {
    for (data, rows) in [(1, 168), (3, 63), (6, 32), (10, 19), (30, 6), (62, 3), (64, 3)] {
        assert_eq!(Carrier::rows_per_descriptor(data), rows, "{data} data columns");
    }
    let blocks = |rows, data| Carrier::Inband.descriptor_blocks(rows, data);
    assert_eq!(
        (blocks(31, 6), blocks(31, 7), blocks(31, 10), blocks(31, 14)),
        (Some(1), Some(2), Some(2), Some(3))
    );
    assert_eq!(
        (blocks(24, 30), blocks(25, 30), blocks(12, 62), blocks(13, 62)),
        (Some(4), None, Some(4), None)
    );
    assert_eq!((blocks(0, 3), Carrier::Oob.descriptor_blocks(16, 3)), (Some(1), Some(0)));
    assert_eq!((Carrier::Inband.rows_in(8, 3), Carrier::Inband.rows_in(32, 3)), (7, 31));
    assert_eq!((Carrier::Inband.record_blocks(1, 62), Carrier::Inband.rows_in(1, 3)), (Some(2), 0));
    // At 7 data columns a descriptor block has 28 rows: 30 blocks hold no more than 29.
    assert_eq!((Carrier::Inband.rows_in(30, 7), Carrier::Inband.whole_record(30, 7)), (28, Some(29)));
    assert_eq!(Carrier::Inband.whole_record(1, 3), None);
}

fn shape(access: Access, carrier: Carrier, record_blocks: u16, group: u16, capacity: u32) -> SegmentShape {
    let band_blocks = u32::from(record_blocks) * u32::from(group.max(1));
    let columns = Columns::new(Level::Raid5, 4).unwrap();
    SegmentShape::new(SegmentPlan { columns, access, carrier, record_blocks, group, band_blocks }, capacity)
        .unwrap()
}

/// The paper's example: zones of 275,712 blocks, chunks of one.
#[test]
fn the_zones_of_a_zn540() {
    let write = shape(Access::Sequential, Carrier::Oob, 1, 1, 275_712);
    assert_eq!((write.data_blocks(), write.footer_blocks()), (274_346, 1_365));
    assert_eq!((write.entries_per_footer(), write.footer_start(), write.rows()), (201, 274_347, 274_346));
    let append = shape(Access::Append, Carrier::Oob, 1, 256, 275_712);
    assert_eq!(append.entries_per_footer(), 183);
    assert_eq!((append.data_blocks(), append.footer_blocks()), (274_176, 1_499));
    assert_eq!((append.group_of(DataOffset(255)), append.group_of(DataOffset(256))), (0, 1));
    let large = shape(Access::Placed, Carrier::Inband, 32, 1, 65_536);
    assert_eq!(
        (large.rows_max(), large.rows()),
        (31, large.data_blocks() / 32 * 31 + (large.data_blocks() % 32 - 1))
    );
}

#[test]
fn plans_that_cannot_be_are_refused_by_name() {
    let columns = Columns::new(Level::Raid5, 8).unwrap();
    let good = SegmentPlan {
        columns,
        access: Access::Append,
        carrier: Carrier::Inband,
        record_blocks: 8,
        group: 256,
        band_blocks: 4096,
    };
    let refused = |plan, capacity| SegmentShape::new(plan, capacity).unwrap_err().to_string();
    assert!(SegmentShape::new(good, 10_000).is_ok());
    assert_eq!(
        refused(SegmentPlan { record_blocks: 30, ..good }, 10_000),
        "record_blocks is 30 blocks, expected a record whose blocks are all in use, such as 29 blocks"
    );
    assert_eq!(
        refused(SegmentPlan { record_blocks: 1, ..good }, 10_000),
        "record_blocks is 1 blocks, expected room for a descriptor and a row"
    );
    assert_eq!(
        refused(SegmentPlan { group: 8193, ..good }, 10_000),
        "group is 8193 records, expected 1 to 8192 records of 8 blocks"
    );
    assert_eq!(
        refused(SegmentPlan { band_blocks: 3000, ..good }, 10_000),
        "band_blocks is 3000 blocks, expected 2048 blocks or a multiple"
    );
    assert_eq!(
        refused(good, 2048),
        "data_blocks is 0 blocks, expected 2048 to 2147483648 blocks, whole groups"
    );
}

proptest! {
    /// In every band each role is held by exactly one column, and data is found where its role is.
    #[test]
    fn each_role_has_one_column(seed: u64, band: u32) {
        let columns = samples::columns(&mut Dice(seed));
        let mut data = vec![0; columns.data().into()];
        let (mut parity, mut copies) = (0, vec![0; columns.data().into()]);
        for column in 0..columns.width() {
            match columns.role(column, band) {
                ColumnRole::Data(index) => {
                    data[usize::from(index)] += 1;
                    prop_assert_eq!(columns.data_column(index, band), column);
                }
                ColumnRole::Copy(index) => copies[usize::from(index)] += 1,
                ColumnRole::P | ColumnRole::Q => parity += 1,
            }
        }
        prop_assert!(data.iter().all(|count| *count == 1));
        let is_mirror = columns.level() == Level::Raid10;
        prop_assert_eq!(parity, if is_mirror { 0 } else { columns.parity() });
        prop_assert!(copies.iter().all(|count| *count == i32::from(is_mirror)));
    }

    /// Parity and data of RAID-5 and 6 are spread evenly over as many bands as there are columns.
    #[test]
    fn bands_spread_parity_evenly(width in 3u8..20) {
        for level in [Level::Raid5, Level::Raid6] {
            let columns = Columns::new(level, width).unwrap();
            for column in 0..width {
                let held = (0..width.into()).filter(|band| !columns.role(column, *band).is_data()).count();
                prop_assert_eq!(held, usize::from(columns.parity()));
            }
        }
    }

    /// The regions fit in the zone, waste less than a footer's worth and a group, and the rows are those of a walk from
    /// record to record.
    #[test]
    fn zones_are_divided_without_waste(seed: u64) {
        let mut dice = Dice(seed);
        let drawn = samples::shape(&mut dice);
        let plan = *drawn.plan();
        let unit = if drawn.is_append() { drawn.group_blocks() } else { u32::from(plan.record_blocks) };
        let capacity = drawn.footer_start() + drawn.footer_blocks() + dice.below(u64::from(unit) * 3) as u32;
        let shape = SegmentShape::new(plan, capacity).unwrap();
        let used = shape.footer_start() + shape.footer_blocks();
        prop_assert!(used <= capacity);
        prop_assert_eq!(shape.footer_blocks(), shape.data_blocks().div_ceil(shape.entries_per_footer()));
        let step = if shape.is_append() { unit } else { 1 };
        let more = shape.data_blocks() + step;
        prop_assert!(1 + more + shape.footer_blocks_of(more) > capacity, "{step} more blocks of data would fit");
        let (mut offset, mut rows) = (DataOffset(0), 0);
        while offset.0 < shape.data_blocks() {
            let room = shape.room_at(offset).min(plan.record_blocks.into());
            let here = plan.carrier.rows_in(room, plan.columns.data());
            rows += here;
            let band = shape.band_of(offset);
            offset.0 += plan.carrier.record_blocks(here, plan.columns.data()).unwrap();
            prop_assert!(shape.band_of(DataOffset(offset.0 - 1)) == band, "a stripe does not cross a band");
        }
        prop_assert_eq!(offset.0, shape.data_blocks());
        prop_assert_eq!(rows, shape.rows());
    }
}
