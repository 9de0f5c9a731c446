//! A member joins while the array serves: another device in the slot of one that is out of use, or the same one, which was
//! away.
//!
//! Nothing is overwritten in place, so what a member that was away holds of a segment that is still there, sealed as it was
//! then, is right: such columns are adopted. Every other zone of the device is reset, durably, before any superblock calls it a
//! member: a start would take what is left in one for a column. Segments that lack a column then are made whole by reclaim; which
//! they are the zones say, so a crash at any moment needs no record of how far that was.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{Epoch, FooterBlock, SegmentHeader, ZonePlace};

use super::config::SUPERBLOCK_ZONES;
use super::places::HeldPlaces;
use super::port::LogPort;
use super::recover::decide::{SegmentFound, footer_places};
use super::recover::scan::{
    ColumnFound, HeaderFound, ZoneFound, read_footer, scan_column, scan_member, scan_zone,
};
use super::segment::{Segment, SegmentState};
use super::zone_budget::limit;
use crate::device::DeviceError;
use crate::members::MemberState;
use crate::zone_device::{ZoneDevice, ZoneState};

/// A device that is to have a slot.
pub struct Joining<D> {
    /// The slot of a member that is out of use.
    pub slot: usize,
    /// Its identity.
    pub uuid: [u8; 16],
    /// The device.
    pub device: Rc<D>,
}

/// A column that the device has of a segment as it is now.
struct Adopted {
    segment: Arc<Segment>,
    column: u8,
    zone: u32,
}

/// Puts a device into the slot of a member that is out of use: its columns are those that it has, and its other zones are empty.
/// The member is out of use still: the device is to be attached on every shard, and then it joins. Every shard has let go of the former
/// one, and one device joins at a time. Returns how many columns were adopted.
///
/// # Errors
/// The device cannot be read or written; it may have been changed, the array was not.
pub async fn exchange<D: ZoneDevice>(port: &LogPort<D>, joining: &Joining<D>) -> Result<usize, DeviceError> {
    let shared = &port.shared;
    let place = ZonePlace { set_uuid: shared.config.set_uuid, device_uuid: joining.uuid, zone: 0 };
    let mut zones = scan_member(&joining.device, &port.pool, SUPERBLOCK_ZONES, place, joining.slot).await?;
    zones.retain(|zone| zone.zone < shared.config.zones);
    let mut adopted: Vec<Adopted> = Vec::new();
    let mut rest: Vec<ZoneFound> = Vec::new();
    for zone in zones {
        match adopt(port, joining, &zone).await {
            Some(column) => adopted.push(column),
            None => rest.push(zone),
        }
    }
    let mut free = VecDeque::new();
    loop {
        for zone in rest.drain(..) {
            if empty(&joining.device, &zone).await? {
                free.push_back(zone.zone);
            }
        }
        joining.device.flush().await?;
        // Meanwhile segments may have been emptied, and what is left of them must not be found again.
        let (gone, there): (Vec<Adopted>, Vec<Adopted>) =
            adopted.into_iter().partition(|column| !is_there(port, column));
        adopted = there;
        if gone.is_empty() {
            break;
        }
        for column in gone {
            let place = ZonePlace { zone: column.zone, ..place };
            rest.extend(scan_zone(&joining.device, &port.pool, place, joining.slot).await);
        }
    }
    let Joining { slot, uuid, device } = joining;
    for segment in shared.table.all() {
        for (column, _, zone) in segment.zones().filter(|(_, of, zone)| of == slot && zone.is_some()) {
            let is_it =
                |adopted: &&Adopted| Arc::ptr_eq(&adopted.segment, &segment) && adopted.column == column;
            let own = adopted.iter().find(is_it).map(|adopted| adopted.zone);
            if zone != own {
                segment.place_column(column, None);
            }
        }
    }
    adopted.iter().for_each(|own| own.segment.place_column(own.column, Some(own.zone)));
    // What was read of footers while the member was away lacks its own.
    adopted.iter().flat_map(|own| &own.segment.places).for_each(HeldPlaces::let_go);
    let zoned = device.zoned();
    shared.table.exchange(*slot, free, limit(zoned.open_max, zoned.active_max));
    shared.members.exchange(*slot, *uuid);
    Ok(adopted.len())
}

/// The segment is still there, and no task is about to reset it.
fn is_there<D: ZoneDevice>(port: &LogPort<D>, column: &Adopted) -> bool {
    let there = port.shared.table.get(column.segment.slot());
    there.is_some_and(|there| Arc::ptr_eq(&there, &column.segment))
        && matches!(column.segment.state(), SegmentState::Sealed | SegmentState::Short)
}

/// The column that a zone holds, if it is the one that its segment would have: sealed by the same footers as the others, and
/// where drives chose the places of records, by those that the map names.
async fn adopt<D: ZoneDevice>(port: &LogPort<D>, joining: &Joining<D>, zone: &ZoneFound) -> Option<Adopted> {
    let HeaderFound::Right(header) = &zone.header else { return None };
    // Z-I4: the zones of the other members that are read here are not reset meanwhile.
    let _pin = port.shared.pins.enter(port.shard);
    let segment = port.shared.table.get(header.slot)?;
    let is_own = segment.key() == (header.segment, header.tag)
        && segment.headers.len() == header.columns.len()
        && segment.slot_of(header.column) == joining.slot
        && matches!(segment.state(), SegmentState::Sealed | SegmentState::Short);
    if !is_own || zone.state == ZoneState::Offline {
        return None;
    }
    let own = footer_of(&*joining.device, port, zone, header).await?;
    let first = own.first()?;
    let (epoch, data_blocks) = others_footer(port, &segment, joining.slot).await?;
    if (first.epoch, first.data_blocks) != (epoch, data_blocks) {
        return None;
    }
    // Where footers say the places, they are this column's own: nothing was guessed while its member was away.
    if let Some(places) = segment.places.as_ref().and_then(HeldPlaces::that_stay) {
        let mut columns = vec![None; header.columns.len()];
        columns[usize::from(header.column)] =
            Some(ColumnFound { footer: Some(own), end_block: zone.end_block, ..ColumnFound::default() });
        let header = SegmentHeader { column: 0, ..SegmentHeader::clone(header) };
        let found = SegmentFound { header, columns };
        let is_named = |(column, group, id, start)| places.table.find(column, group, id) == Some(start);
        if !footer_places(&found).into_iter().all(is_named) {
            return None;
        }
    }
    if zone.is_active() {
        joining.device.finish(zone.zone).await.ok()?;
    }
    Some(Adopted { column: header.column, zone: zone.zone, segment })
}

async fn footer_of<D: ZoneDevice>(
    device: &D,
    port: &LogPort<D>,
    zone: &ZoneFound,
    header: &SegmentHeader,
) -> Option<Vec<FooterBlock>> {
    match read_footer(device, &port.pool, zone, header).await {
        Some(footer) => Some(footer),
        None => scan_column(device, &port.pool, zone, header).await.footer,
    }
}

/// Epoch and length of the newest footer that a member in use has of a segment. All that count have the same.
async fn others_footer<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    joining: usize,
) -> Option<(Epoch, u32)> {
    let members = &port.shared.members;
    let mut newest: Option<(Epoch, u32)> = None;
    for (column, slot, zone) in segment.zones().filter(|(_, slot, _)| *slot != joining) {
        let (Some(zone), Some(device)) = (zone, port.device(slot)) else { continue };
        if members.state(slot) != MemberState::InSync {
            continue;
        }
        let place =
            ZonePlace { set_uuid: port.shared.config.set_uuid, device_uuid: members.uuid(slot), zone };
        let found = scan_zone(&device, &port.pool, place, slot).await?;
        let header = &segment.headers[usize::from(column)];
        let Some(footer) = footer_of(&*device, port, &found, header).await else { continue };
        let Some(FooterBlock { epoch, data_blocks, .. }) = footer.first() else { continue };
        if newest.is_none_or(|(newest, _)| newest.number < epoch.number) {
            newest = Some((*epoch, *data_blocks));
        }
    }
    newest
}

/// Empties a zone. False if it cannot be used: it is read-only or offline.
async fn empty<D: ZoneDevice>(device: &Rc<D>, zone: &ZoneFound) -> Result<bool, DeviceError> {
    match zone.state {
        ZoneState::ReadOnly | ZoneState::Offline => Ok(false),
        _ if zone.header == HeaderFound::Absent && !zone.is_active() => Ok(true),
        _ => device.reset(zone.zone).await.map(|()| true),
    }
}
