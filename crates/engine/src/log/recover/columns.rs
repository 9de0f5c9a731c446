//! The columns of a segment that can be read, and their footers.

use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::SegmentHeader;

use super::decide::SegmentFound;
use super::scan::{ColumnFound, ZoneFound, read_footer};
use crate::buffer::Pool;
use crate::executor::join_all;
use crate::zone_device::ZoneDevice;

/// Columns of a segment that are read at once: each takes up to 1 MiB meanwhile.
pub const COLUMNS_AT_ONCE: usize = 8;

/// A column that a member has which can be read.
pub struct Present<'a, D> {
    /// The segment's header, with the column's number.
    pub header: SegmentHeader,
    /// Its zone.
    pub zone: &'a ZoneFound,
    /// Its member.
    pub device: Rc<D>,
}

/// The columns of a segment that are there, with their headers.
pub fn present<'a, D>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    header: &SegmentHeader,
    zones: &'a [Option<ZoneFound>],
) -> Vec<Present<'a, D>> {
    let column = |(column, zone): (u8, &'a Option<ZoneFound>)| {
        let zone = zone.as_ref()?;
        let device = devices(zone.slot)?;
        Some(Present { header: SegmentHeader { column, ..header.clone() }, zone, device })
    };
    (0..).zip(zones).filter_map(column).collect()
}

/// Reads the footers of the columns of a segment. `zones` are those with a header of the segment, by column.
pub async fn read_footers<D: ZoneDevice>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    pool: &Arc<Pool>,
    header: &SegmentHeader,
    zones: &[Option<ZoneFound>],
) -> SegmentFound {
    let header = SegmentHeader { column: 0, generation: 0, ..header.clone() };
    let mut found = SegmentFound { columns: vec![None; header.columns.len()], header };
    let read = async |of: &Present<'_, D>| {
        let footer = read_footer(&*of.device, pool, of.zone, &of.header).await;
        (of.header.column, ColumnFound { footer, end_block: of.zone.end_block, ..ColumnFound::default() })
    };
    for some in present(devices, &found.header, zones).chunks(COLUMNS_AT_ONCE) {
        for (column, held) in join_all(some.iter().map(|of| Box::pin(read(of)))).await {
            found.columns[usize::from(column)] = Some(held);
        }
    }
    found
}
