//! The in-place engines of one shard: RAID-0, mirrors and parity over md's layouts. The level of the array decides which
//! engine gets the requests of the volume and the work of the array's management on stripes or regions.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::{Gather, Pool, Slice};
use crate::counters::Counters;
use crate::device::{Device, ReadForeign};
use crate::error::VolumeError;
use crate::executor::Executor;
use crate::foreign_buffer::Lease;
use crate::limits::BLOCK_BYTES;
use crate::members::attachment::{Attached, Attachments};
use crate::members::port::MemberPort;
use crate::members::read_into::{Reads, read_into};
use crate::mirror;
use crate::mirror::engine::MirrorEngine;
use crate::mirror::region::{self, Region};
use crate::mismatch::{Checked, ScrubMode, Unit};
use crate::stripe::engine::ParityEngine;
use crate::stripe::redo::log::RedoLog;
use crate::stripe::redo::{absence_record, headers, retire, tend};
use crate::stripe::shared::Shared;
use crate::stripe::stripe_table::Claim;
use crate::stripe::unit_number::UnitNumber;
use crate::stripe::zero::{Zeroing, zero_stripes};
use crate::stripe::{check, copy, read, recovery, replay, resync, write};
use crate::striped::StripedEngine;
use crate::volume::{Engine, EngineShape, ReadInto, Space, ZeroFlags};
use layout::geometry::Level;
use layout::units::{ArrayOffset, MemberOffset, Slot, Stripe};

/// The engine of the level.
enum LevelEngine<D> {
    Striped(StripedEngine<D>),
    Mirror(MirrorEngine<D>),
    Parity(Rc<ParityEngine<D>>),
    /// The same, with an observer that measures the stages of stripe writes.
    Observed(Rc<ParityEngine<D>>),
}

/// One shard's view of an in-place array.
pub struct InPlace<D> {
    /// The state that all shards share.
    pub shared: Arc<Shared>,
    /// Which shard this is.
    pub shard: usize,
    /// Where this shard's tasks run.
    pub executor: Executor,
    port: Rc<MemberPort<D>>,
    redo: Rc<RedoLog<D>>,
    engine: LevelEngine<D>,
}

impl<D: Device> InPlace<D> {
    /// The view of shard `shard`; `members` in slot order.
    pub fn new(
        shared: Arc<Shared>,
        shard: usize,
        pool: Arc<Pool>,
        executor: Executor,
        members: Vec<Option<Attached<D>>>,
    ) -> Rc<Self> {
        let Shared { members: health, loads, counters, .. } = &*shared;
        let (health, loads, counters) = (Arc::clone(health), Arc::clone(loads), Arc::clone(counters));
        let port = Rc::new(MemberPort::new(health, loads, counters, shard, pool, members));
        let redo = RedoLog::new(Arc::clone(&shared), Rc::clone(&port));
        let engine = match shared.geometry.level() {
            Level::Raid0 => LevelEngine::Striped(StripedEngine::new(&port, &shared.raid0_zones())),
            Level::Raid1 | Level::Raid10 => LevelEngine::Mirror(MirrorEngine::new(&shared, &port, shard)),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => {
                let engine = ParityEngine::new(&shared, &port, shard, executor.clone(), &redo);
                match shared.observer.get() {
                    None => LevelEngine::Parity(engine),
                    Some(_) => LevelEngine::Observed(engine),
                }
            }
        };
        Rc::new(InPlace { shared, shard, executor, port, redo, engine })
    }

    /// The devices of all slots on this shard.
    pub fn devices(&self) -> &Attachments<D> {
        &self.port.devices
    }

    /// Memory of this shard.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.port.pool
    }

    pub(crate) fn redo_log(&self) -> &Rc<RedoLog<D>> {
        &self.redo
    }
}

impl<D: Device> Engine for InPlace<D> {
    fn shape(&self) -> EngineShape {
        let geometry = &self.shared.geometry;
        EngineShape {
            size_bytes: geometry.array_bytes(),
            io_min_bytes: geometry.chunk_bytes().max(BLOCK_BYTES as u32),
            io_opt_bytes: geometry.optimal_io_bytes(),
        }
    }

    fn counters(&self) -> &Counters {
        self.port.counters()
    }

    fn begin(&self) -> Option<u64> {
        self.shared.foreground.begin(&self.shared.loads)
    }

    fn end(&self, began_ns: Option<u64>) {
        self.shared.foreground.end(began_ns, &self.shared.loads);
    }
}

impl<D: Device> Space for InPlace<D> {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let offset = ArrayOffset::new(offset_bytes);
        match &self.engine {
            LevelEngine::Striped(engine) => engine.read(offset, bytes).await,
            LevelEngine::Mirror(engine) => mirror::read::read_copies(engine, offset, bytes).await,
            LevelEngine::Parity(engine) | LevelEngine::Observed(engine) => {
                let Some(mut piece) = read::start_piece(engine, offset, bytes) else {
                    // On the heap: the future of a read of one piece carries nothing of the other ways.
                    return Box::pin(read::read_stripes(engine, offset, bytes)).await;
                };
                match (&mut piece.answer).await {
                    (buffer, Ok(())) => Ok(Gather::from(buffer.freeze())),
                    (_, Err(error)) => Box::pin(piece.read_again(error)).await,
                }
            }
        }
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let offset = ArrayOffset::new(offset_bytes);
        match &self.engine {
            LevelEngine::Striped(engine) => engine.write(offset, data, fua).await,
            LevelEngine::Mirror(engine) => mirror::write::write_copies(engine, offset, data, fua).await,
            LevelEngine::Observed(engine) if engine.is_measured() => {
                Box::pin(write::write_stripes::<D, true>(engine, offset, data, fua)).await
            }
            // Of an observed array too: a benchmark is to run what clients run.
            LevelEngine::Parity(engine) | LevelEngine::Observed(engine) => {
                write::write_stripes::<D, false>(engine, offset, data, fua).await
            }
        }
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        InPlace::flush(self).await
    }

    /// Discards the whole stripes of a range where every member promises zeroes, else does nothing.
    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        let (LevelEngine::Parity(engine) | LevelEngine::Observed(engine)) = &self.engine else {
            return Ok(());
        };
        let zeroes = |slot| self.devices().attached(slot).is_none_or(|at| at.device.info().discard_zeroes);
        if !self.shared.geometry.slots().all(zeroes) {
            return Ok(());
        }
        let whole = self.whole_stripes(offset_bytes, bytes);
        zero_stripes(engine, whole, Zeroing::Discard).await
    }

    /// Makes a range read as zeroes: whole stripes at the members, the ends of the range by writes.
    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, how: ZeroFlags) -> Result<(), VolumeError> {
        let ZeroFlags { may_unmap, fua } = how;
        let whole = self.whole_stripes(offset_bytes, bytes);
        let engine = match &self.engine {
            LevelEngine::Parity(engine) | LevelEngine::Observed(engine) if !whole.is_empty() => engine,
            _ => return self.write_zero_data(offset_bytes, bytes, fua).await,
        };
        let (end_bytes, stripe_bytes) = (offset_bytes + bytes, self.shared.geometry.stripe_bytes());
        let (start_whole, end_whole) = (whole.start.get() * stripe_bytes, whole.end.get() * stripe_bytes);
        self.write_zero_data(offset_bytes, start_whole - offset_bytes, fua).await?;
        zero_stripes(engine, whole, Zeroing::WriteZeroes { may_unmap }).await?;
        self.write_zero_data(end_whole, end_bytes - end_whole, fua).await?;
        // Not the members' flush alone: that may fail a member, whose failure must be on disk first (invariant 8).
        if fua { self.flush().await } else { Ok(()) }
    }
}

/// Zeroes.
impl<D: Device> InPlace<D> {
    fn whole_stripes(&self, offset_bytes: u64, bytes: u64) -> Range<Stripe> {
        let stripe_bytes = self.shared.geometry.stripe_bytes();
        Stripe::new(offset_bytes.div_ceil(stripe_bytes))..Stripe::new((offset_bytes + bytes) / stripe_bytes)
    }

    /// Writes zeroes as data, a buffer at a time.
    async fn write_zero_data(&self, offset_bytes: u64, bytes: u64, fua: bool) -> Result<(), VolumeError> {
        let zeroes: &Slice = &self.port.zeroes;
        let mut at = offset_bytes;
        while at < offset_bytes + bytes {
            let step = (offset_bytes + bytes - at).min(zeroes.len() as u64);
            let part = zeroes.part(0, usize::try_from(step).expect("at most the buffer"));
            self.write(at, Gather::from(part), fua).await?;
            at += step;
        }
        Ok(())
    }
}

/// The work of an array's management: on stripes at the parity levels, on regions of a mirror.
impl<D: Device> InPlace<D> {
    fn parity(&self) -> &Rc<ParityEngine<D>> {
        match &self.engine {
            LevelEngine::Parity(engine) | LevelEngine::Observed(engine) => engine,
            _ => unreachable!("a parity level has stripes"),
        }
    }

    fn mirror(&self) -> &MirrorEngine<D> {
        let LevelEngine::Mirror(engine) = &self.engine else { unreachable!("a mirror has regions") };
        engine
    }

    /// Flushes every working member, then waits for the metadata that an acknowledgement relies on.
    pub(crate) async fn flush(&self) -> Result<(), VolumeError> {
        self.shared.verify();
        headers::flush_volume(&self.redo).await
    }

    /// Flushes every working member.
    pub(crate) async fn flush_members(&self) -> Result<(), VolumeError> {
        self.port.flush().await
    }

    /// Makes the parity of one stripe agree with its data (md's resync). An error where data is missing: parity is then the
    /// only record of it.
    pub async fn resync_stripe(&self, stripe: Stripe) -> Result<(), VolumeError> {
        self.resync_run(stripe..stripe.next()).await
    }

    /// As [`Self::resync_stripe`] for a run of adjacent stripes.
    pub(crate) async fn resync_run(&self, run: Range<Stripe>) -> Result<(), VolumeError> {
        resync::resync_run(self.parity(), run).await
    }

    /// Those of the given stripes that a recovering member may lack, as runs.
    pub(crate) fn lacking(&self, slot: Slot, stripes: Range<Stripe>) -> SmallVec<[Range<Stripe>; 4]> {
        recovery::lacking(&self.shared, slot, stripes)
    }

    /// Rebuilds a run of stripes of the member in `slot`. The caller owns the stripes until the member's cursor has moved
    /// over them.
    pub(crate) async fn recover_run(&self, run: &[Claim], slot: Slot) -> Result<(), VolumeError> {
        recovery::recover_run(self.parity(), run, slot).await
    }

    /// Copies what the member in `slot` holds of a run of adjacent stripes to its replacement.
    pub(crate) async fn copy_run(&self, run: Range<Stripe>, slot: Slot) -> Result<(), VolumeError> {
        copy::copy_run(self.parity(), run, slot).await
    }

    /// Checks one stripe, and repairs it if `mode` says so.
    ///
    /// # Errors
    /// A member could not be read, and the array cannot do without it.
    pub async fn check_stripe(&self, stripe: Stripe, mode: ScrubMode) -> Result<Checked, VolumeError> {
        check::check_stripe(self.parity(), stripe, mode).await
    }

    /// The stripe or region with a number.
    pub(crate) fn unit(&self, number: UnitNumber) -> Unit {
        match &self.engine {
            LevelEngine::Parity(_) | LevelEngine::Observed(_) => Unit::Stripe(number.stripe()),
            LevelEngine::Striped(_) | LevelEngine::Mirror(_) => Unit::Region(number.get()),
        }
    }

    /// Checks a stripe or region, and repairs it if `mode` says so.
    pub(crate) async fn check(&self, number: UnitNumber, mode: ScrubMode) -> Result<Checked, VolumeError> {
        match &self.engine {
            LevelEngine::Parity(_) | LevelEngine::Observed(_) => {
                self.check_stripe(number.stripe(), mode).await
            }
            LevelEngine::Striped(_) | LevelEngine::Mirror(_) => self.check_region(number.get(), mode).await,
        }
    }

    /// Makes the parity of a stripe agree with its data, or the copies of a region with each other.
    pub(crate) async fn make_agree(&self, number: UnitNumber) -> Result<(), VolumeError> {
        match &self.engine {
            LevelEngine::Parity(_) | LevelEngine::Observed(_) => self.resync_stripe(number.stripe()).await,
            LevelEngine::Striped(_) | LevelEngine::Mirror(_) => self.copy_region(number.get(), None).await,
        }
    }

    /// How many regions a mirror has.
    pub fn regions(&self) -> u64 {
        region::region_count(&self.shared.geometry)
    }

    /// Copies one region from a copy that is in sync to the others: all others for a resync, or only the one in
    /// `slot` for a recovery.
    pub async fn copy_region(&self, region: u64, slot: Option<Slot>) -> Result<(), VolumeError> {
        mirror::copy_region(self.mirror(), Region(region), slot).await
    }

    /// Copies what the member in `slot` holds of a region of a mirror to its replacement.
    pub(crate) async fn replace_region(&self, region: u64, slot: Slot) -> Result<(), VolumeError> {
        mirror::replace::replace_region(self.mirror(), Region(region), slot).await
    }

    /// Checks one region of a mirror, and repairs it if `mode` says so.
    ///
    /// # Errors
    /// A member could not be read, and the array cannot do without it.
    pub async fn check_region(&self, region: u64, mode: ScrubMode) -> Result<Checked, VolumeError> {
        mirror::check::check_region(self.mirror(), Region(region), mode).await
    }

    /// Redoes one logged write of a member: `data`, or zeroes without it. Called before the array serves anything.
    pub(crate) async fn redo_piece(
        &self,
        slot: Slot,
        offset: MemberOffset,
        bytes: u64,
        data: Option<Gather>,
    ) -> Result<(), VolumeError> {
        replay::redo_piece(&self.port, slot, offset, bytes, data).await
    }

    /// Redoes a logged write of a missing chunk: makes parity of its contents from `offset` on. Called before the array
    /// serves anything.
    pub(crate) async fn redo_missing(
        &self,
        slot: Slot,
        offset: MemberOffset,
        contents: Slice,
    ) -> Result<(), VolumeError> {
        replay::redo_missing(self.parity(), slot, offset, contents).await
    }

    /// The contents of a missing chunk of which a record tells what parity said without the data of some members.
    pub(crate) async fn missing_of_partial(
        &self,
        slot: Slot,
        offset: MemberOffset,
        partial: &[u8],
        without: &[Slot],
    ) -> Result<Vec<(MemberOffset, Slice)>, VolumeError> {
        replay::missing_of_partial(self.parity(), (slot, offset), partial, without).await
    }

    /// Returns when all records of the redo log that were begun before this call are retired, if the log is in force.
    pub(crate) async fn outlive_redo_records(&self) -> Result<(), VolumeError> {
        retire::outlive_records(&self.redo).await
    }

    /// Writes a header of the redo log to every member that holds the log. The caller holds the right to announce.
    pub(crate) async fn write_headers(&self, in_force: bool) -> Result<(), VolumeError> {
        headers::write_headers(&self.redo, in_force).await
    }

    /// Puts the redo log in force. The caller holds the right to announce.
    pub(crate) async fn open_redo(&self, is_announced: bool) {
        tend::open(&self.redo, is_announced).await;
    }

    /// What is known of members that are away is on record when it returns.
    pub(crate) async fn persist_absences(&self) -> Result<(), VolumeError> {
        absence_record::persist(&self.redo).await
    }

    /// Writes that record. The caller holds the right to announce. False if it is void, and superblocks have to say so.
    pub(crate) async fn write_absences(&self) -> bool {
        absence_record::write(&self.redo).await
    }

    /// Puts suspect stripes in doubt: a header records doubt, not suspicion.
    pub(crate) fn doubt_suspects(&self) {
        tend::doubt_suspects(&self.redo);
    }
}

impl<D: ReadForeign> ReadInto for InPlace<D> {
    async fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> bool {
        let offset = ArrayOffset::new(offset_bytes);
        let reads: Option<Reads> = match &self.engine {
            LevelEngine::Striped(engine) => Some(engine.reads(offset, bytes)),
            LevelEngine::Mirror(engine) => mirror::read::reads(engine, offset, bytes),
            LevelEngine::Parity(engine) | LevelEngine::Observed(engine) => {
                read::present_reads(engine, offset, bytes)
            }
        };
        match reads {
            Some(reads) => read_into(&self.port, &reads, target).await,
            None => false,
        }
    }
}
