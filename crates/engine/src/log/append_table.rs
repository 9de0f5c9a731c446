//! The compact stripe table (ZapRAID 3.4): which stripe a block of an append segment belongs to, and where the records of a
//! stripe are. It also keeps Z-I14: the place that an append returned is believed only if it is in the zone, in its group's
//! range, on a multiple of the record, and free.

use layout::zoned::SegmentShape;

use crate::sync::sequential::Mutex;

/// No stripe.
const FREE: u16 = u16::MAX;

/// The places of a segment, by column.
#[derive(Debug)]
pub struct AppendTable {
    stripes: u32,
    record_blocks: u32,
    columns: Mutex<Vec<Column>>,
}

/// Both ways, group after group, so that neither look-up depends on how long a group is.
#[derive(Debug)]
struct Column {
    /// For each place of a record: the stripe's id in its group.
    ids: Vec<u16>,
    /// For each id: the place, counted in records from the group's first.
    places: Vec<u16>,
}

/// Why a place is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongPlace {
    /// It is inside of a block, or in the segment's header.
    #[error("byte {at_bytes} of the zone is no place of a record")]
    OffBlock {
        /// The place.
        at_bytes: u64,
    },
    /// It is outside of the group.
    #[error("block {block} of the data region is not in group {group}")]
    OutsideGroup {
        /// The place.
        block: u32,
        /// The group of the stripe.
        group: u32,
    },
    /// It is not where a record begins.
    #[error("block {block} of the data region is not a multiple of the record of {record_blocks} blocks")]
    OffRecord {
        /// The place.
        block: u32,
        /// Blocks of a record.
        record_blocks: u32,
    },
    /// Another record is there.
    #[error("block {block} of the data region holds stripe {stripe} of the group already")]
    Taken {
        /// The place.
        block: u32,
        /// The stripe there.
        stripe: u16,
    },
}

impl AppendTable {
    /// No record is anywhere.
    pub fn new(shape: &SegmentShape) -> Self {
        let record_blocks = u32::from(shape.plan().record_blocks);
        let places = (shape.data_blocks() / record_blocks) as usize;
        let width = usize::from(shape.plan().columns.width());
        let column = || Column { ids: vec![FREE; places], places: vec![FREE; places] };
        let columns = Mutex::new((0..width).map(|_| column()).collect());
        AppendTable { stripes: shape.plan().group.into(), record_blocks, columns }
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let columns = self.columns.lock();
        columns.iter().map(|column| (column.ids.len() + column.places.len()) * size_of::<u16>()).sum()
    }

    /// The drive says that the record of a stripe begins at `block` of the data region.
    ///
    /// # Errors
    /// It cannot be there (Z-I14).
    pub fn place(&self, column: u8, group: u32, id: u16, block: u32) -> Result<(), WrongPlace> {
        let record_blocks = self.record_blocks;
        if !block.is_multiple_of(record_blocks) {
            return Err(WrongPlace::OffRecord { block, record_blocks });
        }
        let index = block / record_blocks;
        if index / self.stripes != group {
            return Err(WrongPlace::OutsideGroup { block, group });
        }
        let mut columns = self.columns.lock();
        let Column { ids, places } = &mut columns[usize::from(column)];
        let Some(at) = ids.get_mut(index as usize) else {
            return Err(WrongPlace::OutsideGroup { block, group });
        };
        match *at {
            FREE => *at = id,
            stripe => return Err(WrongPlace::Taken { block, stripe }),
        }
        // Of an id that comes twice, which no group hands out, the first stays.
        let in_group = (index % self.stripes) as u16;
        let known = self.of_id(group, id).and_then(|at| places.get_mut(at)).filter(|place| **place == FREE);
        known.into_iter().for_each(|place| *place = in_group);
        Ok(())
    }

    /// Where the place of a stripe is kept. None: no group has such an id.
    fn of_id(&self, group: u32, id: u16) -> Option<usize> {
        (u32::from(id) < self.stripes).then(|| group as usize * self.stripes as usize + usize::from(id))
    }

    /// The stripe that a block of a column belongs to, as group and id, and the block's number in its record.
    pub fn stripe_at(&self, column: u8, block: u32) -> Option<(u32, u16, u32)> {
        let index = block / self.record_blocks;
        let id = *self.columns.lock()[usize::from(column)].ids.get(index as usize)?;
        (id != FREE).then_some((index / self.stripes, id, block % self.record_blocks))
    }

    /// The group of a block of the data region, and the block's number in its record.
    pub fn in_group(&self, block: u32) -> (u32, u16) {
        (block / self.record_blocks / self.stripes, (block % self.record_blocks) as u16)
    }

    /// Where the record of a stripe begins in a column.
    pub fn find(&self, column: u8, group: u32, id: u16) -> Option<u32> {
        let at = self.of_id(group, id)?;
        let place = *self.columns.lock()[usize::from(column)].places.get(at)?;
        (place != FREE).then(|| (group * self.stripes + u32::from(place)) * self.record_blocks)
    }

    /// Blocks up to the end of the last record of any column.
    pub fn length(&self) -> u32 {
        let columns = self.columns.lock();
        let last = columns.iter().filter_map(|column| column.ids.iter().rposition(|at| *at != FREE)).max();
        last.map_or(0, |last| (last as u32 + 1) * self.record_blocks)
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use layout::geometry::Level;
    use layout::zoned::{Access, Carrier, Columns, SegmentPlan};

    fn table() -> AppendTable {
        let columns = Columns::new(Level::Raid5, 3).expect("three columns");
        let (access, carrier) = (Access::Append, Carrier::Inband);
        let plan = SegmentPlan { columns, access, carrier, record_blocks: 4, group: 4, band_blocks: 16 };
        AppendTable::new(&SegmentShape::new(plan, 100).expect("a shape"))
    }

    /// Z-I14: every place that a drive could name for a stripe of group 1 but the free ones of the group is refused.
    #[test]
    fn only_free_places_of_the_group_are_believed() {
        let table = table();
        table.place(0, 1, 2, 20).expect("free, and in the group");
        let taken = WrongPlace::Taken { block: 20, stripe: 2 };
        assert_eq!(table.place(0, 1, 3, 20), Err(taken));
        for block in (0..16).chain(32..200).filter(|block| block % 4 == 0) {
            assert_eq!(table.place(0, 1, 3, block), Err(WrongPlace::OutsideGroup { block, group: 1 }));
        }
        assert_eq!(table.place(0, 1, 3, 21), Err(WrongPlace::OffRecord { block: 21, record_blocks: 4 }));
        table.place(1, 1, 2, 28).expect("another column has another place");
        assert_eq!((table.stripe_at(0, 22), table.stripe_at(0, 16)), (Some((1, 2, 2)), None));
        assert_eq!(
            (table.find(0, 1, 2), table.find(1, 1, 2), table.find(2, 1, 2)),
            (Some(20), Some(28), None)
        );
        assert_eq!(table.length(), 32);
    }

    /// What a damaged footer says: an id that no group hands out, and one that comes twice.
    #[test]
    fn ids_that_cannot_be_have_no_place() {
        let table = table();
        table.place(0, 1, 3, 16).expect("free, and in the group");
        table.place(0, 1, 3, 24).expect("free, and in the group");
        table.place(0, 1, 9, 28).expect("free, and in the group");
        assert_eq!((table.find(0, 1, 3), table.find(0, 1, 9)), (Some(16), None));
        assert_eq!(table.find(0, 99, 3), None);
    }
}
