//! Holds a zoned device to its contract: the one test for every implementation, for the simulator's drive, and for a drive
//! that an operator wants to try. It empties the zones that it uses.
//!
//! [`conforms`] tries what any device must do, error kinds included; [`worn_zone_conforms`] what a zone must do that is read-only
//! or offline. Both return the first thing that is wrong.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use super::{
    RESET_BYTES, Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZoneState, ZonedInfo,
    is_whole_metadata,
};
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::limits::BLOCK_BYTES;

/// Zones that [`conforms`] uses besides those that reach the limit of active zones.
pub const ZONES: u32 = 3;

/// Records in flight at once.
const DEPTH: usize = 8;

/// Longest zone that is filled whole.
const FILLED_BYTES_MAX: u64 = 64 << 20;

/// Longest record that is tried.
const LONG_BYTES: u64 = 1 << 20;

/// Memory that is in one piece for a drive.
const PAGE_BYTES: usize = 4096;

type Outcome = Result<(), String>;

/// Zones small enough to be filled, for a device in memory that is to be tried: three may be open and five active.
pub fn small_zones(access: ZoneAccess, metadata_bytes: u32) -> ZonedInfo {
    let block = BLOCK_BYTES as u64;
    ZonedInfo {
        access,
        zones: 12,
        zone_bytes: 128 * block,
        capacity_bytes: 96 * block,
        record_bytes_max: 16 << 12,
        metadata_bytes,
        open_max: (access != ZoneAccess::Placed).then_some(3),
        active_max: (access != ZoneAccess::Placed).then_some(5),
    }
}

/// Tries a device on its zones from `first` on: [`ZONES`] of them, and one more than may be active. Their contents are lost.
/// None of them is conventional, read-only or offline.
///
/// # Errors
/// The first thing that is not as the contract says.
pub async fn conforms<D: ZoneDevice>(device: &D, first: u32) -> Outcome {
    let info = device.zoned().clone();
    let last = first + ZONES;
    check(info.zones >= last, || format!("{} zones, but {last} are needed", info.zones))?;
    check(info.capacity_bytes >= 64 * BLOCK_BYTES as u64, || "zones of less than 64 blocks".to_owned())?;
    let trial = Trial { device };
    for zone in first..last {
        trial.reset(zone).await?;
    }
    trial.writes_in_order(first).await?;
    trial.errors_of_callers(first).await?;
    trial.long_records(first + 1, false).await?;
    match info.access {
        ZoneAccess::Append => {
            trial.appends(first + 1).await?;
            trial.long_records(first + 1, true).await?;
        }
        ZoneAccess::Sequential | ZoneAccess::Placed => {
            let appended = device.append(first, trial.record(1, 0), None, false).await;
            expect("an append", appended, DeviceErrorKind::Unsupported)?;
        }
    }
    match info.access {
        ZoneAccess::Append | ZoneAccess::Sequential => {
            trial.pointer_rules(first + 2).await?;
            trial.changes(first).await?;
            trial.active_limit(first).await?;
        }
        ZoneAccess::Placed => trial.any_place(first + 2).await?,
    }
    for zone in first..last {
        trial.reset(zone).await?;
    }
    Ok(())
}

/// Tries a zone that the drive has made read-only or offline. It changes nothing.
///
/// # Errors
/// The first thing that is not as the contract says.
pub async fn worn_zone_conforms<D: ZoneDevice>(device: &D, zone: u32, state: ZoneState) -> Outcome {
    let trial = Trial { device };
    let found = trial.zone(zone).await?;
    check(found.state == state && found.pointer_bytes.is_none(), || format!("reported {found:?}"))?;
    let (_, read) = device.read(device.zoned().offset_bytes(zone, 0), Buffer::new(BLOCK_BYTES)).await;
    match state {
        ZoneState::Offline => expect("a read of an offline zone", read, DeviceErrorKind::Io)?,
        _ => passes("a read of a read-only zone", read)?,
    }
    let refused = DeviceErrorKind::ZoneState;
    expect(
        "a write",
        device.write_at(ZoneOffset::new(zone, 0), trial.record(1, 0), None, false).await,
        refused,
    )?;
    if device.zoned().access == ZoneAccess::Append {
        expect("an append", device.append(zone, trial.record(1, 0), None, false).await, refused)?;
    }
    for change in [ZoneChange::Reset, ZoneChange::Finish, ZoneChange::Open, ZoneChange::Close] {
        expect(change.name(), device.change(zone, change).await, refused)?;
    }
    let after = trial.zone(zone).await?;
    check(after == found, || format!("{found:?} became {after:?}"))
}

struct Trial<'a, D> {
    device: &'a D,
}

impl<D: ZoneDevice> Trial<'_, D> {
    /// Writes at the pointer, several in flight, come back right and move it.
    async fn writes_in_order(&self, zone: u32) -> Outcome {
        let (mut at, mut writes) = (0, Vec::new());
        for seed in 0..DEPTH {
            let record = self.record(1 + seed % 3, seed);
            let next = at + record.len() as u64;
            writes.push(self.device.write_at(ZoneOffset::new(zone, at), record, None, seed % 4 == 3));
            at = next;
        }
        for (seed, result) in all(writes).await.into_iter().enumerate() {
            passes(&format!("write {seed} in order"), result)?;
        }
        passes("a flush", self.device.flush().await)?;
        self.is_at(zone, ZoneState::ImplicitlyOpen, at).await?;
        let mut from = 0;
        for seed in 0..DEPTH {
            from = self.reads_back(zone, from, 1 + seed % 3, seed).await?;
        }
        Ok(())
    }

    /// What is the caller's mistake is refused as such, and changes nothing.
    async fn errors_of_callers(&self, zone: u32) -> Outcome {
        let (device, before) = (self.device, self.zone(zone).await?);
        let info = device.zoned();
        let at = before.pointer_bytes.unwrap_or(0);
        let odd = || Gather::from(Slice::from_bytes(&[0; BLOCK_BYTES + 100]));
        let invalid = DeviceErrorKind::Invalid;
        expect(
            "an odd length",
            device.write_at(ZoneOffset::new(zone, at), odd(), None, false).await,
            invalid,
        )?;
        let record = || self.record(1, 0);
        expect(
            "a write beyond the last zone",
            device.write_at(ZoneOffset::new(info.zones, 0), record(), None, false).await,
            invalid,
        )?;
        expect(
            "an odd place",
            device.write_at(ZoneOffset::new(zone, at + 100), record(), None, false).await,
            invalid,
        )?;
        expect("a reset beyond the last zone", device.reset(info.zones).await, invalid)?;
        let longer = info.record_bytes_max as usize / BLOCK_BYTES + 1;
        if longer <= 4096 {
            let long = device.write_at(ZoneOffset::new(zone, at), self.record(longer, 0), None, false).await;
            expect("a record beyond the limit", long, invalid)?;
        }
        let unsupported = DeviceErrorKind::Unsupported;
        let start = info.offset_bytes(zone, 0);
        expect("a plain write", device.write(start, record(), false).await, unsupported)?;
        expect("a discard", device.discard(start, BLOCK_BYTES as u64).await, unsupported)?;
        expect("zeroes", device.write_zeroes(start, BLOCK_BYTES as u64, true).await, unsupported)?;
        let metadata = Some(Slice::from_bytes(&[7; 100]));
        let kind = if info.metadata_bytes == 0 { unsupported } else { invalid };
        expect(
            "odd metadata",
            device.write_at(ZoneOffset::new(zone, at), record(), metadata, false).await,
            kind,
        )?;
        let beyond = device.report(info.zones..info.zones + 5).await;
        check(beyond == Ok(Vec::new()), || format!("a report beyond the last zone: {beyond:?}"))?;
        let after = self.zone(zone).await?;
        check(after == before, || format!("refused operations left {after:?}, before {before:?}"))
    }

    /// Appends in flight get places side by side, each whole, and bring their metadata.
    async fn appends(&self, zone: u32) -> Outcome {
        let append = |seed: usize| {
            let (record, metadata) = (self.record(1 + seed % 2, seed), self.metadata(1 + seed % 2, seed));
            self.device.append(zone, record, metadata, seed == 5)
        };
        let mut places = Vec::new();
        for (seed, result) in all((0..DEPTH).map(append).collect()).await.into_iter().enumerate() {
            let place = result.map_err(|error| format!("append {seed}: {error}"))?;
            places.push((place, 1 + seed % 2, seed));
        }
        places.sort_unstable();
        let mut end = 0;
        for (place, blocks, seed) in places {
            check(place == end, || format!("append {seed} went to {place}, the one before ended at {end}"))?;
            end = self.reads_back(zone, place, blocks, seed).await?;
            self.metadata_reads_back(zone, place, blocks, seed).await?;
        }
        self.is_at(zone, ZoneState::ImplicitlyOpen, end).await?;
        passes("finish", self.device.finish(zone).await)?;
        expect(
            "an append to a full zone",
            self.device.append(zone, self.record(1, 0), None, false).await,
            DeviceErrorKind::ZoneFull,
        )?;
        self.reset(zone).await
    }

    /// Records of every length bring their metadata, wherever that lies in memory: it may cross pages.
    async fn long_records(&self, zone: u32, appends: bool) -> Outcome {
        self.reset(zone).await?;
        let info = self.device.zoned();
        let longest = u64::from(info.record_bytes_max).min(LONG_BYTES) as usize / BLOCK_BYTES;
        let mut at = 0;
        for (seed, blocks) in (0..).zip([1, 3, 7, 8, 16, 24, 32, 64, 128, longest]) {
            let metadata = self.metadata(blocks, seed);
            let is_whole = metadata.as_ref().is_none_or(|metadata| is_whole_metadata(metadata.len()));
            if blocks > longest || !is_whole || at + (blocks * BLOCK_BYTES) as u64 > info.capacity_bytes {
                continue;
            }
            let metadata = metadata.map(|metadata| before_a_page_ends(&metadata, 64 * (seed + 1)));
            let record = self.record(blocks, seed);
            let place = match appends {
                true => self.device.append(zone, record, metadata, false).await,
                false => {
                    let write = self.device.write_at(ZoneOffset::new(zone, at), record, metadata, false);
                    write.await.map(|()| at)
                }
            };
            let place = place.map_err(|error| format!("a record of {blocks} blocks: {error}"))?;
            check(place == at, || format!("a record of {blocks} blocks went to {place}, not {at}"))?;
            self.metadata_reads_back(zone, at, blocks, seed).await?;
            at = self.reads_back(zone, at, blocks, seed).await?;
        }
        self.reset(zone).await
    }

    /// A write elsewhere than at the pointer is refused; a zone takes its capacity and no more.
    async fn pointer_rules(&self, zone: u32) -> Outcome {
        let (device, block) = (self.device, BLOCK_BYTES as u64);
        let not_there = DeviceErrorKind::NotAtPointer;
        let write = |at: u64| device.write_at(ZoneOffset::new(zone, at), self.record(1, 1), None, false);
        expect("a write beyond the pointer", write(block).await, not_there)?;
        passes("a write at the start", write(0).await)?;
        expect("a write below the pointer", write(0).await, not_there)?;
        self.is_at(zone, ZoneState::ImplicitlyOpen, block).await?;
        let capacity = self.zone(zone).await?.capacity_bytes;
        if capacity > FILLED_BYTES_MAX {
            passes("finish", device.finish(zone).await)?;
        } else {
            let most = (device.zoned().record_bytes_max as usize).min(1 << 20) / BLOCK_BYTES;
            let mut at = block;
            while at + block < capacity {
                let left = usize::try_from((capacity - at) / block - 1).expect("below 64 MiB");
                let record = self.record(left.min(most), 2);
                let end = at + record.len() as u64;
                passes(
                    "filling a zone",
                    device.write_at(ZoneOffset::new(zone, at), record, None, false).await,
                )?;
                at = end;
            }
            let long = device.write_at(ZoneOffset::new(zone, at), self.record(2, 3), None, false).await;
            expect("a write beyond the capacity", long, DeviceErrorKind::ZoneFull)?;
            passes("the last block", write(at).await)?;
        }
        self.is(zone, ZoneState::Full).await?;
        expect("a write to a full zone", write(0).await, DeviceErrorKind::ZoneFull)?;
        self.reads_back(zone, 0, 1, 1).await?;
        self.reset(zone).await?;
        passes("a write after the reset", write(0).await)?;
        self.reads_back(zone, 0, 1, 1).await.map(|_| ())
    }

    /// Zones open, close, finish and refuse what does not lead on.
    async fn changes(&self, zone: u32) -> Outcome {
        use ZoneChange::{Close, Finish, Open, Reset};
        let device = self.device;
        let refused = DeviceErrorKind::ZoneState;
        self.reset(zone).await?;
        expect("close an empty zone", device.change(zone, Close).await, refused)?;
        passes("a write", device.write_at(ZoneOffset::new(zone, 0), self.record(2, 1), None, false).await)?;
        let at = 2 * BLOCK_BYTES as u64;
        let steps = [
            (Close, ZoneState::Closed),
            (Close, ZoneState::Closed),
            (Open, ZoneState::ExplicitlyOpen),
            (Open, ZoneState::ExplicitlyOpen),
            (Close, ZoneState::Closed),
        ];
        for (change, state) in steps {
            passes(change.name(), device.change(zone, change).await)?;
            self.is_at(zone, state, at).await?;
        }
        passes("a write", device.write_at(ZoneOffset::new(zone, at), self.record(1, 2), None, false).await)?;
        self.is_at(zone, ZoneState::ImplicitlyOpen, at + BLOCK_BYTES as u64).await?;
        for change in [Finish, Finish] {
            passes(change.name(), device.change(zone, change).await)?;
            self.is(zone, ZoneState::Full).await?;
        }
        expect("open a full zone", device.change(zone, Open).await, refused)?;
        expect("close a full zone", device.change(zone, Close).await, refused)?;
        self.reads_back(zone, 0, 2, 1).await?;
        for change in [Reset, Reset] {
            passes(change.name(), device.change(zone, change).await)?;
            self.is_at(zone, ZoneState::Empty, 0).await?;
        }
        Ok(())
    }

    /// As many zones are active as the drive says, and no more, and no more are open than it says.
    async fn active_limit(&self, first: u32) -> Outcome {
        let info = self.device.zoned().clone();
        let Some(most) = info.active_max.filter(|most| first + most < info.zones) else { return Ok(()) };
        for zone in first..=first + most {
            self.reset(zone).await?;
        }
        // Zones that others have left active count, too.
        let zones = self.report(0..info.zones).await?;
        let most = most.saturating_sub(zones.iter().filter(|zone| zone.state.is_active()).count() as u32);
        if most == 0 {
            return Ok(());
        }
        let write = |zone: u32, at: u64| {
            self.device.write_at(ZoneOffset::new(zone, at), self.record(1, 4), None, false)
        };
        for zone in first..first + most {
            passes("a write to one more zone", write(zone, 0).await)?;
        }
        let zones = self.report(first..first + most).await?;
        let open = zones.iter().filter(|zone| zone.state.is_open()).count();
        let allowed = info.open_max.unwrap_or(most);
        check(open <= allowed as usize, || format!("{open} zones are open, the limit is {allowed}"))?;
        let beyond = first + most;
        expect("a write to a zone too many", write(beyond, 0).await, DeviceErrorKind::TooManyOpen)?;
        self.is_at(beyond, ZoneState::Empty, 0).await?;
        // A drive need not make room for a closed zone by itself while as many are active as may be: null_blk does not.
        if let Some(open) = zones.iter().find(|zone| zone.state.is_open() && zone.number != first) {
            passes("close zone", self.device.change(open.number, ZoneChange::Close).await)?;
        }
        passes("a write to a closed zone", write(first, BLOCK_BYTES as u64).await)?;
        passes("finish", self.device.finish(first).await)?;
        passes("a write once one is full", write(beyond, 0).await)?;
        for zone in first..=beyond {
            self.reset(zone).await?;
        }
        Ok(())
    }

    /// Without pointers any place may be written in any order, again and again; a reset takes the header.
    async fn any_place(&self, zone: u32) -> Outcome {
        let (device, block) = (self.device, BLOCK_BYTES as u64);
        let places = [9, 0, 5, 30, 5];
        for (seed, place) in places.into_iter().enumerate() {
            let at = place * block;
            passes(
                "a write",
                device.write_at(ZoneOffset::new(zone, at), self.record(1, seed), None, seed == 3).await,
            )?;
            self.reads_back(zone, at, 1, seed).await?;
        }
        let capacity = device.zoned().capacity_bytes;
        let long =
            device.write_at(ZoneOffset::new(zone, capacity - block), self.record(2, 0), None, false).await;
        expect("a write beyond the capacity", long, DeviceErrorKind::Invalid)?;
        for change in [ZoneChange::Finish, ZoneChange::Open, ZoneChange::Close] {
            passes(change.name(), device.change(zone, change).await)?;
        }
        self.reads_back(zone, 30 * block, 1, 3).await?;
        self.reset(zone).await?;
        let (header, read) =
            device.read(device.zoned().offset_bytes(zone, 0), Buffer::new(RESET_BYTES)).await;
        passes("a read after a reset", read)?;
        check(header.bytes().iter().all(|byte| *byte == 0), || "the header is there after a reset".to_owned())
    }

    async fn reset(&self, zone: u32) -> Outcome {
        passes("reset zone", self.device.reset(zone).await)?;
        match self.device.zoned().access {
            ZoneAccess::Placed => Ok(()),
            _ => self.is_at(zone, ZoneState::Empty, 0).await,
        }
    }

    async fn zone(&self, zone: u32) -> Result<Zone, String> {
        let zones = self.report(zone..zone + 1).await?;
        zones.first().copied().ok_or_else(|| "a report without the zone".to_owned())
    }

    async fn report(&self, zones: std::ops::Range<u32>) -> Result<Vec<Zone>, String> {
        let reported =
            self.device.report(zones.clone()).await.map_err(|error| format!("a report: {error}"))?;
        let are_those = reported.iter().map(|zone| zone.number).eq(zones.clone());
        check(are_those, || format!("a report of {zones:?} says {reported:?}"))?;
        Ok(reported)
    }

    async fn is(&self, zone: u32, state: ZoneState) -> Outcome {
        let found = self.zone(zone).await?;
        check(found.state == state, || {
            format!("zone {zone} is {}, not {}", found.state.words(), state.words())
        })
    }

    /// The zone is in this state with its pointer here; on a placed device it has none.
    async fn is_at(&self, zone: u32, state: ZoneState, pointer_bytes: u64) -> Outcome {
        let found = self.zone(zone).await?;
        let wanted = match self.device.zoned().access {
            ZoneAccess::Placed => (ZoneState::NoPointer, None),
            _ => (state, Some(pointer_bytes)),
        };
        check((found.state, found.pointer_bytes) == wanted, || {
            format!("zone {zone}: {found:?}, not {wanted:?}")
        })
    }

    /// Reads a record and compares it. Returns its end.
    async fn reads_back(&self, zone: u32, at: u64, blocks: usize, seed: usize) -> Result<u64, String> {
        let buffer = Buffer::new(blocks * BLOCK_BYTES);
        let (read, result) = self.device.read(self.device.zoned().offset_bytes(zone, at), buffer).await;
        passes("a read", result)?;
        let is_same = read.bytes() == pattern(blocks * BLOCK_BYTES, seed);
        check(is_same, || format!("record {seed} at {at} of zone {zone} reads as something else"))?;
        Ok(at + (blocks * BLOCK_BYTES) as u64)
    }

    async fn metadata_reads_back(&self, zone: u32, at: u64, blocks: usize, seed: usize) -> Outcome {
        let Some(wanted) = self.metadata(blocks, seed) else { return Ok(()) };
        let (data, metadata) = (Buffer::new(blocks * BLOCK_BYTES), Buffer::new(wanted.len()));
        let (data, metadata, result) =
            self.device.read_metadata(ZoneOffset::new(zone, at), data, metadata).await;
        passes("a read with metadata", result)?;
        let has =
            |what| format!("record {seed} of {blocks} blocks, at {at} of zone {zone}, has other {what}");
        check(data.bytes() == pattern(blocks * BLOCK_BYTES, seed), || has("data"))?;
        check(metadata.bytes() == wanted.bytes(), || has("metadata"))
    }

    /// A record as the engine makes it: pieces of whole blocks from several buffers.
    fn record(&self, blocks: usize, seed: usize) -> Gather {
        let bytes = pattern(blocks * BLOCK_BYTES, seed);
        bytes.chunks(BLOCK_BYTES * blocks.div_ceil(2)).map(Slice::from_bytes).collect()
    }

    fn metadata(&self, blocks: usize, seed: usize) -> Option<Slice> {
        let each_bytes = self.device.info().logical_block_bytes;
        match self.device.zoned().metadata_of(blocks * BLOCK_BYTES, each_bytes) {
            0 => None,
            bytes => Some(Slice::from_bytes(&pattern(bytes, seed + 100))),
        }
    }
}

/// The same bytes, of which the first `bytes` stand at the end of a page.
fn before_a_page_ends(contents: &Slice, bytes: usize) -> Slice {
    let mut buffer = Buffer::new(PAGE_BYTES + contents.len());
    let start = PAGE_BYTES - bytes;
    buffer.bytes_mut()[start..][..contents.len()].copy_from_slice(contents.bytes());
    buffer.freeze().part(start, contents.len())
}

/// Bytes that differ at each place and for each seed.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + seed * 31 + 1) as u8).collect()
}

/// Polls all of them until all have returned.
async fn all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = Pin::new(future).poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

fn passes<T>(what: &str, result: Result<T, DeviceError>) -> Outcome {
    result.map(|_| ()).map_err(|error| format!("{what}: {error}"))
}

fn expect<T: Debug>(what: &str, result: Result<T, DeviceError>, kind: DeviceErrorKind) -> Outcome {
    match result {
        Err(error) if error.kind == kind => Ok(()),
        Err(error) => Err(format!("{what} failed with {:?}, not {kind:?}: {error}", error.kind)),
        Ok(value) => Err(format!("{what} succeeded ({value:?}), but it is {kind:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceInfo};
    use crate::executor::Executor;
    use crate::zone_device::memory::{Doing, MemoryZones, Reading, ReadingMetadata, Reporting};
    use layout::units::DeviceOffset;
    use std::future::{Ready, ready};
    use std::ops::Range;
    use std::rc::Rc;

    /// How a drive breaks the contract.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Lie {
        None,
        /// Appends return the start of the zone, as two emulators did.
        PlaceZero,
        /// An append's metadata is not kept.
        NoMetadata,
        /// That of a write in order is not.
        NoMetadataInOrder,
        /// Finish does nothing.
        NoFinish,
        /// A reset does nothing and succeeds.
        NoReset,
        /// A write off the pointer goes to the pointer, as the system's own append mode does.
        AnyWriteAppends,
        /// The drive has fewer active zones than it says.
        FewerActive,
        /// A refused write says that the medium failed.
        AllIo,
        /// A report is of the moment before.
        LateReport,
        /// Plain writes go around the pointers.
        PlainWrites,
    }

    struct Liar {
        device: Rc<MemoryZones>,
        lie: Lie,
        zoned: ZonedInfo,
    }

    impl Liar {
        fn new(lie: Lie) -> Self {
            let zoned = ZonedInfo {
                access: ZoneAccess::Append,
                zones: 12,
                zone_bytes: 128 << 12,
                capacity_bytes: 96 << 12,
                record_bytes_max: 16 << 12,
                metadata_bytes: 64,
                open_max: Some(3),
                active_max: Some(5),
            };
            let active_max = if lie == Lie::FewerActive { Some(4) } else { zoned.active_max };
            let real = ZonedInfo { active_max, ..zoned.clone() };
            Liar { device: Rc::new(MemoryZones::new(real, 4096, "a liar")), lie, zoned }
        }

        fn as_io(&self, result: Result<(), DeviceError>) -> Ready<Result<(), DeviceError>> {
            let is_hidden = self.lie == Lie::AllIo;
            ready(result.map_err(|error| match is_hidden {
                true => DeviceError { kind: DeviceErrorKind::Io, ..error },
                false => error,
            }))
        }
    }

    /// The result of an operation that does not wait.
    fn now<F: Future + Unpin>(mut future: F) -> F::Output {
        match Pin::new(&mut future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory does not wait"),
        }
    }

    impl Device for Liar {
        type Read = Reading;
        type Done = Doing;

        fn info(&self) -> &DeviceInfo {
            self.device.info()
        }

        fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Reading {
            self.device.read(offset, buffer)
        }

        fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> Doing {
            match self.lie {
                Lie::PlainWrites => self.device.flush(),
                _ => self.device.write(offset, data, fua),
            }
        }

        fn flush(&self) -> Doing {
            self.device.flush()
        }

        fn discard(&self, offset: DeviceOffset, bytes: u64) -> Doing {
            self.device.discard(offset, bytes)
        }

        fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> Doing {
            self.device.write_zeroes(offset, bytes, may_unmap)
        }
    }

    impl ZoneDevice for Liar {
        type Append = Ready<Result<u64, DeviceError>>;
        type Changed = Ready<Result<(), DeviceError>>;
        type Report = Reporting;
        type ReadMetadata = ReadingMetadata;

        fn zoned(&self) -> &ZonedInfo {
            &self.zoned
        }

        fn report(&self, zones: Range<u32>) -> Reporting {
            match self.lie {
                Lie::LateReport if zones.start == 2 => self.device.report(9..10),
                _ => self.device.report(zones),
            }
        }

        fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append {
            let metadata = metadata.filter(|_| self.lie != Lie::NoMetadata);
            let place = now(self.device.append(zone, data, metadata, fua));
            ready(place.map(|place| if self.lie == Lie::PlaceZero { 0 } else { place }))
        }

        fn write_at(
            &self,
            to: ZoneOffset,
            data: Gather,
            metadata: Option<Slice>,
            fua: bool,
        ) -> Self::Changed {
            let is_right = |own: &Slice| own.len().is_multiple_of(64);
            let metadata = metadata.filter(|own| self.lie != Lie::NoMetadataInOrder || !is_right(own));
            let ZoneOffset { zone, in_zone_bytes } = to;
            let pointer = (zone < self.zoned.zones).then(|| self.device.zone(zone).pointer_bytes).flatten();
            let at = match (self.lie, pointer) {
                (Lie::AnyWriteAppends, Some(pointer)) => pointer,
                _ => in_zone_bytes,
            };
            self.as_io(now(self.device.write_at(ZoneOffset::new(zone, at), data, metadata, fua)))
        }

        fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> ReadingMetadata {
            self.device.read_metadata(from, data, metadata)
        }

        fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
            match (self.lie, change) {
                (Lie::NoFinish, ZoneChange::Finish) | (Lie::NoReset, ZoneChange::Reset) => ready(Ok(())),
                _ => ready(now(self.device.change(zone, change))),
            }
        }
    }

    #[test]
    fn a_device_that_breaks_the_contract_is_named() {
        for (lie, said) in [
            (Lie::None, None),
            (Lie::PlaceZero, Some("the one before ended at")),
            (Lie::NoMetadata, Some("has other metadata")),
            (Lie::NoMetadataInOrder, Some("of 1 blocks, at 0 of zone 2, has other metadata")),
            (Lie::NoFinish, Some("an append to a full zone succeeded")),
            (Lie::NoReset, Some("a reset beyond the last zone succeeded")),
            (Lie::AnyWriteAppends, Some("an odd place succeeded")),
            (Lie::FewerActive, Some("a write to one more zone")),
            (Lie::AllIo, Some("failed with Io, not Invalid")),
            (Lie::LateReport, Some("a report of")),
            (Lie::PlainWrites, Some("a plain write succeeded")),
        ] {
            let executor = Executor::new(Box::new(|| {}));
            let result = executor.spawn_with_result(async move { conforms(&Liar::new(lie), 1).await });
            executor.run_ready(usize::MAX);
            let result = result.try_take().expect("memory does not wait");
            match said {
                None => assert_eq!(result, Ok(())),
                Some(said) => {
                    let found = result.expect_err(&format!("{lie:?} passes"));
                    assert!(found.contains(said), "{lie:?}: {found}");
                }
            }
        }
    }
}
