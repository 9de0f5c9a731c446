//! The decision as a table: what each column holds of each stripe, and what becomes of the stripes.

use super::decide::*;
use super::scan::{ColumnFound, RecordFound};
use layout::geometry::Level;
use layout::zoned::{
    Access, BlockEntry, BlockName, Carrier, Class, Columns, DataOffset, Epoch, RecordDescriptor, RecordKind,
    SegmentColumn, SegmentHeader, SegmentPlan, SegmentShape, Sequence, StripeDescriptor,
};

const RECORD_BLOCKS: u32 = 2;

pub(super) fn header(level: Level, width: u8, access: Access) -> SegmentHeader {
    let columns = Columns::new(level, width).expect("columns");
    let (carrier, group) = (Carrier::Inband, if access == Access::Append { 4 } else { 0 });
    let plan = SegmentPlan { columns, access, carrier, record_blocks: 2, group, band_blocks: 8 };
    SegmentHeader {
        segment: 5,
        tag: 9,
        epoch: Epoch { number: 3, random: 77 },
        first_sequence: Sequence(100),
        class: Class::Small,
        shape: SegmentShape::new(plan, 64).expect("a shape"),
        slot: 1,
        column: 0,
        generation: 0,
        columns: (0..width).map(|slot| SegmentColumn { slot: slot.into(), zone: Some(2) }).collect(),
    }
}

fn record(
    header: &SegmentHeader,
    column: u8,
    place: u32,
    stripe: u32,
    letter: char,
    durable: u32,
) -> RecordFound {
    let offset = DataOffset(place * RECORD_BLOCKS);
    let data = usize::from(header.shape.plan().columns.data());
    let entry = |index: usize| {
        let name = BlockName::User(u64::from(stripe) * 100 + index as u64);
        BlockEntry { name, sequence: Sequence(u64::from(stripe) + 1000), checksum: index as u32 }
    };
    let descriptor = StripeDescriptor {
        epoch: if letter == 'F' { 78 } else { 77 },
        stripe: if header.shape.is_append() { stripe } else { offset.0 },
        sequence: Sequence(u64::from(stripe) + 2000),
        durable_blocks: durable,
        rows: 1,
        entries: (0..data).map(entry).collect(),
    };
    let kind = RecordKind::of_role(header.shape.role(column, offset));
    let descriptor = RecordDescriptor { stripe: descriptor, kind, place: None, checksums: vec![0] };
    RecordFound { block: offset.zone_block(), descriptor, is_whole: letter != 'T', parts: Vec::new() }
}

/// Columns as text, a letter for each stripe: `W` a whole record, `T` a torn one, `F` one of a foreign epoch, `.` none; `-`:
/// the column cannot be read.
fn found(header: &SegmentHeader, columns: &[&str], durable: u32) -> SegmentFound {
    let column = |(column, text): (u8, &&str)| {
        let records = (0..).zip(text.chars()).filter(|(_, letter)| *letter != '.');
        let records = records.map(|(place, letter)| record(header, column, place, place, letter, durable));
        (*text != "-").then(|| ColumnFound {
            records: records.collect(),
            end_block: 64,
            ..ColumnFound::default()
        })
    };
    SegmentFound { header: header.clone(), columns: (0..).zip(columns).map(column).collect() }
}

fn verdicts(found: &SegmentFound) -> String {
    let Decision::Records { stripes, .. } = decide(found) else { panic!("there are no footers") };
    let letter = |stripe: &StripeFound| match stripe.verdict {
        Verdict::Keep => 'K',
        Verdict::Move => 'M',
        Verdict::Lost => 'L',
        Verdict::Void => 'V',
    };
    stripes.iter().map(letter).collect()
}

#[test]
fn what_becomes_of_each_stripe() {
    use Level::{Raid0, Raid5, Raid6, Raid10};
    // Level, columns, up to which stripe everything was flushed, what becomes of the stripes.
    let table: &[(Level, &[&str], u32, &str)] = &[
        (Raid5, &["WW", "WW", "WW", "WW"], 0, "KK"),
        (Raid5, &["WW", "WW", "WW", "W."], 0, "KM"),
        (Raid5, &["WW", "WW", "WW", "WT"], 0, "KM"),
        (Raid5, &["WW", "W.", "WW", "WT"], 0, "KV"),
        (Raid5, &["TT", "WW", "WW", "TT"], 1, "LV"),
        (Raid5, &["WW", "WW", "-", "WW"], 0, "KK"),
        (Raid5, &["WW", "W.", "-", "WW"], 0, "KV"),
        (Raid5, &["WF", "WF", "WF", "WF"], 0, "K"),
        (Raid5, &[".W", ".W", ".W", ".W"], 0, "K"),
        (Raid0, &["WW", "WW", "W."], 0, "KV"),
        (Raid0, &["WW", "WT", "WW"], 2, "KL"),
        (Raid6, &["WW", "W.", "W.", "WW", "WW"], 0, "KM"),
        (Raid6, &["W.", "W.", "W.", "WW", "WW"], 0, "KV"),
        (Raid6, &["-", "WW", "WT", "WW", "WW"], 0, "KM"),
        (Raid6, &["-", "W.", "WT", "WW", "WW"], 2, "KL"),
        (Raid10, &["W.", "WW", "WW", "W."], 0, "KM"),
        (Raid10, &["W.", "W.", "WW", "WW"], 0, "KV"),
        (Raid10, &["-", "WW", "WW", "WW"], 0, "KK"),
    ];
    for (level, columns, flushed, expected) in table {
        let header = header(*level, columns.len() as u8, Access::Placed);
        let durable = DataOffset(flushed * RECORD_BLOCKS).zone_block();
        assert_eq!(verdicts(&found(&header, columns, durable)), *expected, "{level:?} {columns:?} {flushed}");
    }
}

/// In append segments the records of a stripe stand at different places: they belong together by their id in the group.
#[test]
fn appended_records_are_found_by_their_stripe() {
    let header = header(Level::Raid5, 3, Access::Append);
    let orders: [&[(u32, u32)]; 3] =
        [&[(0, 0), (1, 1), (2, 2)], &[(0, 2), (1, 0), (2, 1)], &[(0, 1), (1, 2)]];
    let column = |(column, order): (u8, &&[(u32, u32)])| {
        let records = order.iter().map(|(place, stripe)| record(&header, column, *place, *stripe, 'W', 1));
        Some(ColumnFound { records: records.collect(), end_block: 64, ..ColumnFound::default() })
    };
    let columns = (0..).zip(&orders).map(column).collect();
    let found = SegmentFound { header: header.clone(), columns };
    assert_eq!(verdicts(&found), "MKK", "stripe 0 lacks its record in the last column");
    let Decision::Records { stripes, .. } = decide(&found) else { unreachable!("no footers") };
    let starts: Vec<_> = stripes.iter().map(|stripe| stripe.starts.to_vec()).collect();
    assert_eq!(starts[1], [Some(2), Some(4), Some(0)]);
    assert_eq!(
        starts[0],
        [Some(0), Some(2), Some(4)],
        "what the last column lacks is given a free place of the group"
    );
}

/// Behind an append that moved the pointer by a part of its length another one is off the grid: the column does not count as having it.
#[test]
fn what_was_appended_off_the_grid_is_missing_there() {
    let header = header(Level::Raid5, 3, Access::Append);
    let column = |column| {
        let mut own = record(&header, column, 0, 0, 'W', 1);
        own.block += u32::from(column == 2);
        Some(ColumnFound { records: vec![own], end_block: 64, ..ColumnFound::default() })
    };
    let found = SegmentFound { header: header.clone(), columns: (0..3).map(column).collect() };
    assert_eq!(verdicts(&found), "M");
}

/// A drive acknowledged an append and wrote nothing: what it was sent later stands one place early, the first stripe of the next
/// group in this one. The place is that of the stripe that was lost.
#[test]
fn what_stands_a_group_early_is_missing_there() {
    let header = header(Level::Raid6, 3, Access::Append);
    let column = |column| {
        let sent = (0..5u32).filter(|sent| column != 2 || *sent != 2);
        let records = (0..).zip(sent).map(|(place, sent)| {
            let mut own = record(&header, column, place, sent % 4, 'W', 1);
            own.descriptor.stripe.sequence = Sequence(u64::from(sent) + 2000);
            own
        });
        Some(ColumnFound { records: records.collect(), end_block: 64, ..ColumnFound::default() })
    };
    let found = SegmentFound { header: header.clone(), columns: (0..3).map(column).collect() };
    assert_eq!(verdicts(&found), "KKMKM");
    let Decision::Records { stripes, .. } = decide(&found) else { unreachable!("no footers") };
    let starts: Vec<_> = stripes.iter().map(|stripe| stripe.starts.to_vec()).collect();
    assert_eq!(starts[2], [Some(4), Some(4), Some(6)]);
    assert_eq!(starts[4], [Some(8), Some(8), Some(8)], "in its own group it has a place, too");
}

#[test]
fn what_was_flushed_and_is_not_told_of_is_counted() {
    let header = header(Level::Raid5, 4, Access::Placed);
    let durable = DataOffset(3 * RECORD_BLOCKS).zone_block();
    let found = found(&header, &["W..W", "W..W", "W..W", "W..W"], durable);
    let Decision::Records { unknown_blocks, stripes } = decide(&found) else { unreachable!("no footers") };
    assert_eq!(
        (unknown_blocks, stripes.len()),
        (4, 2),
        "two stripes of two blocks each have no descriptor anywhere"
    );
}

/// The same input gives the same decision, and a decision does not change what it was made from.
#[test]
fn a_decision_is_made_again_the_same() {
    let header = header(Level::Raid6, 5, Access::Placed);
    let found = found(&header, &["WTW", "W.W", "-", "WW.", "W.T"], 3);
    assert_eq!(decide(&found), decide(&found));
}
