//! Empties the members of a new zoned array and writes their first superblocks.

use engine::array::zoned::plan::NewZonedArray;
use engine::array::zoned::superblock_log::{MemberLog, empty_log};
use engine::buffer::Pool;
use engine::device::{Device as _, DeviceError};
use engine::executor::join_all;
use engine::zone_device::{ZoneAccess, ZoneDevice, ZoneState};
use host::device::zoned::HostZones;
use layout::md_superblock::SUPERBLOCK_BYTES_MAX;
use layout::zoned::superblock_log::LOG_ZONES;
use layout::zoned::{BLOCK_BYTES, MemberZones};
use std::sync::Arc;

use super::members::OpenMembers;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks;

/// Zones that are looked at or emptied at once.
const AT_ONCE: usize = 64;

/// Makes members of the devices. For each, how many zones held something and were emptied.
///
/// # Errors
/// A device failed: none of them is a member then, but what they held is lost.
pub fn write(members: &OpenMembers, new: &NewZonedArray) -> Result<Vec<u32>, Failure> {
    // Every log is empty before the first new superblock, and the superblocks are written when all zones are empty: what a
    // crash leaves is no array.
    let mut reset = Vec::new();
    for slot in 0..members.shared.len() {
        erase_signatures(members, slot)?;
        let zones = new.zones;
        let emptied =
            on_device(members, slot, move |device, pool| async move { empty(&device, &pool, &zones).await })?;
        reset.push(emptied);
    }
    for slot in 0..members.shared.len() {
        let (superblock, zones) = (new.superblock(slot), new.zones);
        on_device(members, slot, move |device, pool| async move {
            MemberLog::new(&zones).write(&device, &pool, &superblock).await
        })?;
    }
    Ok(reset)
}

/// Runs I/O on a member's shard.
fn on_device<T, F>(
    members: &OpenMembers,
    slot: usize,
    work: impl FnOnce(HostZones, Arc<Pool>) -> F + Send + 'static,
) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, DeviceError>> + 'static,
{
    let shared = members.shared[slot].clone();
    let done = members.shards.run_on(0, move |context| async move {
        let device = shared.attach(&context.ring).expect("it was attached before");
        work(device, Arc::clone(&context.pool)).await
    });
    let done = done.map_err(|error| Failure::new(ExitKind::Internal, error.to_string()))?;
    done.map_err(|error| failed(members, slot, ExitKind::IoError, error.to_string()))
}

fn failed(members: &OpenMembers, slot: usize, kind: ExitKind, what: String) -> Failure {
    let problem = Problem::new(kind, &members.paths[slot], what);
    let message = "no array was made, and what the members held may be lost";
    Failure { kind, ..Failure::from_problems(message, vec![problem]) }
}

/// Empties a device: first the log, then every zone that holds something. How many those were.
async fn empty(device: &HostZones, pool: &Arc<Pool>, zones: &MemberZones) -> Result<u32, DeviceError> {
    let report = device.report(0..device.zoned().zones).await?;
    let is_placed = device.zoned().access == ZoneAccess::Placed;
    let in_log =
        report.iter().take(LOG_ZONES as usize).filter(|zone| !is_placed && zone.state != ZoneState::Empty);
    let mut emptied = in_log.count() as u32;
    empty_log(device, pool, zones).await?;
    let rest: Vec<u32> = report
        .iter()
        .skip(LOG_ZONES as usize)
        .filter(|zone| may_hold(zone.state))
        .map(|zone| zone.number)
        .collect();
    for zones in rest.chunks(AT_ONCE) {
        let held = if is_placed { with_contents(device, pool, zones).await? } else { zones.to_vec() };
        emptied += held.len() as u32;
        for result in join_all(held.into_iter().map(|zone| device.reset(zone))).await {
            result?;
        }
    }
    device.flush().await?;
    Ok(emptied)
}

fn may_hold(state: ZoneState) -> bool {
    !matches!(state, ZoneState::Empty | ZoneState::ReadOnly | ZoneState::Offline)
}

/// Of software zones those whose first block is not zeroes: only there a header may stand.
async fn with_contents(device: &HostZones, pool: &Arc<Pool>, zones: &[u32]) -> Result<Vec<u32>, DeviceError> {
    let reads =
        zones.iter().map(|zone| device.read(device.zoned().offset_bytes(*zone, 0), pool.take(BLOCK_BYTES)));
    let mut held = Vec::new();
    for (zone, (buffer, result)) in zones.iter().zip(join_all(reads).await) {
        result?;
        if buffer.bytes().iter().any(|byte| *byte != 0) {
            held.push(*zone);
        }
    }
    Ok(held)
}

/// Overwrites the marks of what an ordinary device held: file systems, partition tables, md superblocks wherever they are.
fn erase_signatures(members: &OpenMembers, slot: usize) -> Result<(), Failure> {
    if members.found[slot].is_empty() {
        return Ok(());
    }
    let of_io = |error: std::io::Error| failed(members, slot, ExitKind::IoError, error.to_string());
    let member = MemberFile::open_to_clear(&members.paths[slot])
        .map_err(|problem| failed(members, slot, problem.kind, problem.what))?;
    for found in superblocks::find_all(&member).map_err(of_io)? {
        member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(of_io)?;
    }
    for place in members.found[slot].iter().filter_map(|found| found.place.clone()) {
        let bytes = usize::try_from(place.end - place.start).unwrap_or(0);
        member.write(place.start, &vec![0; bytes]).map_err(of_io)?;
    }
    member.sync().map_err(of_io)
}
