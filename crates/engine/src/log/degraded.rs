//! A block made from the rest of its row. The result counts only if its own checksum is right (Z-I12), so a block of another
//! member that is wrong without an error cannot pass for right: another set of columns is tried then.

use layout::units::Slot;
use layout::zoned::{BlockPlace, ColumnRole, DataOffset};
use smallvec::SmallVec;

use super::port::LogPort;
use super::segment::Segment;
use crate::buffer::{Buffer, Slice};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;
use layout::units::DeviceOffset;

/// Reads a block of the log and verifies it, from the other columns where it must be (Z-I12).
pub(super) async fn read_block<D: ZoneDevice>(
    port: &LogPort<D>,
    at: BlockPlace,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Option<Slice> {
    let segment = port.shared.table.get(at.slot)?;
    let slot = segment.slot_of(at.column);
    if port.shared.members.state(slot) == MemberState::InSync
        && let Some(read) = segment.zone_of(at.column).and_then(|zone| port.read(slot, zone, at.block, 1))
    {
        let (buffer, result) = read.await;
        if result.is_ok() && is_right(buffer.bytes()) {
            return Some(buffer.freeze());
        }
    }
    make_block(port, &segment, at, is_right).await.ok()
}

/// A row of a stripe, as far as its columns can be read.
struct Row {
    data: Vec<Option<Slice>>,
    copies: Vec<Slice>,
    p: Option<Slice>,
    q: Option<Slice>,
}

/// Makes the block at a place from the other columns of its row.
///
/// # Errors
/// Too few of them can be read, or no set of them makes a block with the right checksum.
pub async fn make_block<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    at: BlockPlace,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Result<Slice, VolumeError> {
    let offset = DataOffset::of_zone_block(at.block).expect("the map names blocks of the data region");
    let slot = segment.slot_of(at.column);
    let unreadable = || VolumeError::Unreadable {
        member: Slot::of_index(slot),
        offset_bytes: port.device(slot).map_or(DeviceOffset::START, |device| {
            let in_zone = u64::from(at.block) * crate::limits::BLOCK_BYTES as u64;
            device.zoned().offset_bytes(segment.zone_of(at.column).unwrap_or(0), in_zone)
        }),
    };
    let ColumnRole::Data(index) = segment.shape().role(at.column, offset) else { return Err(unreadable()) };
    port.counters().reconstructed_reads.add(1);
    let row = read_row(port, segment, at, offset, index).await;
    solve(&row, usize::from(index), port, is_right).ok_or_else(unreadable)
}

/// Reads the other columns of a block's row. What cannot be read is absent.
async fn read_row<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    at: BlockPlace,
    offset: DataOffset,
    index: u8,
) -> Row {
    let mut row = Row { data: vec![None; segment.data_columns()], copies: Vec::new(), p: None, q: None };
    let mut roles: SmallVec<[ColumnRole; 8]> = SmallVec::new();
    let mut reads = Vec::new();
    for (column, slot, _) in segment.zones() {
        let zone = segment.readable_zone_of(column);
        let (Some(zone), Some(block)) = (zone, other_block(segment, at, offset, column)) else { continue };
        if column == at.column || port.shared.members.state(slot) != MemberState::InSync {
            continue;
        }
        if let Some(read) = port.read(slot, zone, block, 1) {
            roles.push(segment.shape().role(column, offset));
            reads.push(read);
        }
    }
    for (role, (buffer, result)) in roles.into_iter().zip(join_all(reads).await) {
        if result.is_err() {
            continue;
        }
        let slice = buffer.freeze();
        match role {
            ColumnRole::Data(of) => row.data[usize::from(of)] = Some(slice),
            ColumnRole::Copy(of) if of == index => row.copies.push(slice),
            ColumnRole::Copy(_) => {}
            ColumnRole::P => row.p = Some(slice),
            ColumnRole::Q => row.q = Some(slice),
        }
    }
    row
}

/// Where the same row is in another column: at the same offset, or, where the drives chose, where the table says.
fn other_block(segment: &Segment, at: BlockPlace, offset: DataOffset, column: u8) -> Option<u32> {
    match &segment.table {
        None => Some(at.block),
        Some(table) => {
            let (group, id, in_record) = table.stripe_at(at.column, offset.0)?;
            let start = table.find(column, group, id)?;
            Some(DataOffset(start + in_record).zone_block())
        }
    }
}

fn solve<D: ZoneDevice>(
    row: &Row,
    index: usize,
    port: &LogPort<D>,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Option<Slice> {
    let right = |out: Buffer| is_right(out.bytes()).then(|| out.freeze());
    if let Some(copy) = row.copies.iter().find(|copy| is_right(copy.bytes())) {
        return Some(copy.clone());
    }
    let others = || (0..row.data.len()).filter(|&of| of != index);
    let without = |left_out: Option<usize>| -> Option<SmallVec<[(usize, &[u8]); 16]>> {
        let wanted = others().filter(|&of| Some(of) != left_out);
        wanted.map(|of| Some((of, row.data[of].as_ref()?.bytes()))).collect()
    };
    let take = || port.pool.take(crate::limits::BLOCK_BYTES);
    if let (Some(p), Some(known)) = (&row.p, without(None)) {
        let mut out = take();
        let known: SmallVec<[&[u8]; 16]> = known.iter().map(|(_, bytes)| *bytes).collect();
        parity::recover_data_from_p(&known, p.bytes(), out.bytes_mut());
        if let Some(found) = right(out) {
            return Some(found);
        }
    }
    if let (Some(q), Some(known)) = (&row.q, without(None)) {
        let mut out = take();
        parity::recover_data_from_q(&known, q.bytes(), index, out.bytes_mut());
        if let Some(found) = right(out) {
            return Some(found);
        }
    }
    // Two are lost, or one of the others is wrong without an error.
    let (p, q) = (row.p.as_ref()?, row.q.as_ref()?);
    others().find_map(|of| {
        let (mut out, mut second) = (take(), take());
        let known = without(Some(of))?;
        let lost = (index, of);
        parity::recover_two_data(&known, p.bytes(), q.bytes(), lost, (out.bytes_mut(), second.bytes_mut()));
        right(out)
    })
}
