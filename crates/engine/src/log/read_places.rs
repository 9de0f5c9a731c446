//! Places of sealed append segments, read from their footers when they are first needed: by a read of what a member cannot
//! give, or by reclaim.

use std::sync::Arc;

use layout::zoned::{SegmentHeader, ZonePlace};

use super::footer_places::{Footers, places_of_stripes};
use super::places::{Asked, Places};
use super::port::LogPort;
use super::recover::columns::read_footers;
use super::recover::decide::{Decision, SegmentFound, decide, newest_footers};
use super::recover::scan::{ColumnFound, HeaderFound, ZoneFound, scan_column, scan_zone};
use super::segment::{Segment, SegmentState};
use crate::error::VolumeError;
use crate::executor::{join_all, yield_now};
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Where the records of a segment are, read if need be. None: the engine chose their places.
///
/// # Errors
/// Too few columns tell it.
pub async fn places_of<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
) -> Result<Option<Arc<Places>>, VolumeError> {
    let Some(held) = &segment.places else { return Ok(None) };
    let reading = match held.ask().await {
        Asked::There(places) => return Ok(Some(places)),
        Asked::Read(reading) => reading,
    };
    // Z-I4: no zone of a segment that is in its slot from here on is reset under the read.
    let _pin = port.shared.pins.enter(port.shard);
    let there = port.shared.table.get(segment.slot());
    let there = there.filter(|there| std::ptr::eq(&**there, segment));
    let Some(there) = there.filter(|there| there.state() != SegmentState::Resetting) else {
        return Err(unknown(segment, "it is being emptied"));
    };
    let places = Arc::new(read(port, segment).await?);
    if reading.found(&places) {
        port.shared.places.add(&there, places.bytes());
    }
    Ok(Some(places))
}

fn unknown(segment: &Segment, why: &str) -> VolumeError {
    let reason = format!("it cannot be told where the records of segment {} are: {why}", segment.number());
    VolumeError::Io { reason }
}

async fn read<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Result<Places, VolumeError> {
    let zones = find_columns(port, segment).await;
    let mut found = read_footers(&|slot| port.device(slot), &port.pool, &segment.headers[0], &zones).await;
    let has_footer = newest_footers(&found);
    // One that was closed early has its footer behind its last record.
    scan(port, &mut found, &zones, |column| !has_footer[usize::from(column)]).await;
    if let Some(footers) = Footers::of(&found) {
        let mut places = footers.places();
        let shape = segment.shape();
        for group in 0..shape.data_blocks() / shape.group_blocks() {
            for (column, blocks) in footers.lost_of_group(&places, group) {
                places.add_group(column, blocks);
            }
            yield_now().await; // clients of this shard wait
        }
        return Ok(places);
    }
    scan(port, &mut found, &zones, |column| has_footer[usize::from(column)]).await;
    let places = match decide(&found) {
        Decision::Records { stripes, .. } => places_of_stripes(&found, &stripes),
        Decision::Sealed(_) => None,
    };
    places.ok_or_else(|| unknown(segment, "too few of its columns can be read"))
}

/// Reads the records of columns that can be read, and the footer behind them.
async fn scan<D: ZoneDevice>(
    port: &LogPort<D>,
    found: &mut SegmentFound,
    zones: &[Option<ZoneFound>],
    is_wanted: impl Fn(u8) -> bool,
) {
    for (column, zone) in (0u8..).zip(zones).filter(|(column, _)| is_wanted(*column)) {
        let device = zone.as_ref().and_then(|zone| port.device(zone.slot));
        let (Some(zone), Some(device)) = (zone, device) else { continue };
        let header = SegmentHeader { column, ..found.header.clone() };
        let scanned = scan_column(&*device, &port.pool, zone, &header).await;
        let own = found.columns[usize::from(column)].get_or_insert_default();
        let footer = own.footer.take().or(scanned.footer);
        *own = ColumnFound { footer, ..scanned };
    }
}

/// The zones of a segment that can be read and have its header, by column.
pub async fn find_columns<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Vec<Option<ZoneFound>> {
    let config = &port.shared.config;
    let mut zones: Vec<Option<ZoneFound>> = vec![None; segment.headers.len()];
    let scan = async |(column, slot, zone): (u8, usize, Option<u32>)| {
        let (zone, device) = (zone?, port.device(slot)?);
        if port.shared.members.state(slot) != MemberState::InSync {
            return None;
        }
        let place =
            ZonePlace { set_uuid: config.set_uuid, device_uuid: port.shared.members.uuid(slot), zone };
        Some((column, scan_zone(&device, &port.pool, place, slot).await?))
    };
    for (column, found) in
        join_all(segment.zones().map(|zone| Box::pin(scan(zone)))).await.into_iter().flatten()
    {
        let header = &segment.headers[0];
        let is_own = |found: &ZoneFound| {
            matches!(&found.header, HeaderFound::Right(own) if (own.segment, own.tag, own.column)
                == (header.segment, header.tag, column))
        };
        zones[usize::from(column)] = Some(found).filter(is_own);
    }
    zones
}
