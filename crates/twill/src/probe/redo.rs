//! The redo log of an array that is not served: what it asks for, read from the members' files and devices.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use engine::array::assemble::Assembly;
use engine::array::redo::{MemberLog, Repair, Situation, decide, member_of, read_log};
use engine::array::start_bitmap::StartBitmap;
use engine::members::MemberState;
use layout::geometry::Geometry;
use layout::md_bitmap::{self, BitmapSuper};
use layout::md_superblock::Superblock;
use layout::redo_log::{BitmapExtent, StripeRange};

use super::candidates::Candidates;
use super::member_file::MemberFile;

/// What is known of an array's redo log before it is served.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What is to be done.
    pub repair: Repair,
    /// The members' bitmaps, by slot.
    pub bitmaps: Vec<BitmapExtent>,
    /// From where on parity may not agree, in bytes of the members.
    pub resync_from_bytes: Option<u64>,
}

/// Reads the logs of an array's members and decides what they ask for. What cannot be read is part of the decision.
/// `bitmap` is what the array starts with, if it has one.
pub fn find(
    candidates: &Candidates,
    assembly: &Assembly,
    bitmap: Option<&StartBitmap>,
    force: bool,
    read_only: bool,
) -> Found {
    let (mut found, mut logs) = (Found::default(), Vec::new());
    let states = assembly.states();
    for (slot, index) in (0u32..).zip(&assembly.slots) {
        let member = index.and_then(|index| {
            let superblock = candidates.read[index].superblock.as_ref().ok()?;
            Some((superblock, MemberFile::open(&candidates.paths[index]).ok()?))
        });
        let held =
            member.as_ref().map_or(BitmapExtent::Unknown, |(superblock, file)| extent(superblock, file));
        found.bitmaps.push(held);
        if let Some((superblock, file)) = member.filter(|_| states[slot as usize] == MemberState::InSync) {
            logs.extend(read_member(slot, superblock, held, &file));
        }
    }
    let Some(geometry) = assembly.geometry else { return found };
    let redundant = geometry.losses_survived() > 0;
    let resync_from_bytes = assembly.resync_from_bytes.filter(|_| redundant);
    let events = assembly.events;
    let situation = Situation { geometry, states: &states, events, resync_from_bytes, bitmap, force };
    found.repair = decide(&situation, &logs);
    if read_only && !found.repair.records.is_empty() {
        doubt_instead(&mut found.repair, &geometry);
    }
    found.resync_from_bytes = found.repair.resync_from_bytes(&situation);
    found
}

/// Nothing is written to an array that is served read-only: the stripes of the records are in doubt.
fn doubt_instead(repair: &mut Repair, geometry: &Geometry) {
    let doubts =
        repair.stripes(geometry).into_iter().map(|stripe| StripeRange { first: stripe, end: stripe + 1 });
    repair.doubts.extend(doubts);
    repair.records.clear();
    repair.reason = Some("the redo log is not replayed on a read-only array".to_string());
}

fn read_member(
    slot: u32,
    superblock: &Superblock,
    bitmap: BitmapExtent,
    file: &MemberFile,
) -> Option<MemberLog> {
    let member = member_of(superblock, bitmap)?;
    let read = async |offset, bytes| file.read(offset, bytes).map_err(|error| error.to_string());
    Some(at_once(read_log(slot, &member, read)))
}

/// How long the bitmap of a member is.
fn extent(superblock: &Superblock, file: &MemberFile) -> BitmapExtent {
    let Some(start) = superblock.bitmap_start() else { return BitmapExtent::Absent };
    let room = superblock.bitmap_room(file.device_bytes).unwrap_or(0);
    let Ok(bytes) = file.read(start.bytes(), md_bitmap::SUPER_BYTES) else { return BitmapExtent::Unknown };
    match BitmapSuper::parse(&bytes, superblock.set_uuid(), room) {
        Ok(bitmap) => BitmapExtent::Bytes(bitmap.bitmap_bytes()),
        Err(_) => BitmapExtent::Unknown,
    }
}

/// The result of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("files are read at once"),
    }
}
