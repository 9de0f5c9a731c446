//! The keeper of an array's superblocks: one task that turns changes of the members and of the intent into
//! superblocks on disk, in the order that makes them safe.
//!
//! - Superblocks are written whole, to every member in use, with FUA; a member that takes no superblock fails.
//! - A change of the members raises the event count by two: a member that lacks it is more than the one event behind
//!   that a crash between two superblocks explains (see [`super::assemble`]), so it is stale for Twill and for md.
//! - Only the keeper writes superblocks, one round at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::md_bitmap::{self, BitmapSuper};
use layout::md_superblock::{DeviceRole, Superblock};
use layout::units::Sectors;

use crate::buffer::{Buffer, Gather, Slice};
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::executor::join_all;
use crate::members::{Failing, MemberState};
use crate::stripe::StripeSet;

/// Keeps the superblocks of one array. Lives on one shard.
pub struct Keeper<D> {
    set: Rc<StripeSet<D>>,
    /// Superblock of the member in each slot.
    superblocks: RefCell<Vec<Option<Superblock>>>,
    /// Superblocks and devices of spares.
    spares: RefCell<Vec<Spare<D>>>,
    /// Device numbers that once were members and failed.
    failed: RefCell<Vec<u32>>,
    events: Cell<u64>,
    /// Bytes of each recovering member that are in sync **and durable**: what its superblock may say.
    recovered_bytes: RefCell<Vec<u64>>,
    /// States that the last superblocks told.
    told: RefCell<Vec<MemberState>>,
    /// Parity or copies may not agree from here on, whether or not writes are on their way.
    resync_from_bytes: Cell<Option<u64>>,
    close_wanted: Cell<bool>,
    /// [`Keeper::run`] ends after the next round.
    stopping: Cell<bool>,
    /// Seconds since 1970.
    now_s: Box<dyn Fn() -> u64>,
}

/// A device that waits for a slot.
pub struct Spare<D> {
    /// Its superblock.
    pub superblock: Superblock,
    /// This shard's way to it.
    pub device: Rc<D>,
}

/// What one round of superblocks says.
struct Round {
    version: u64,
    dirty: bool,
    closing: bool,
}

impl<D: Device> Keeper<D> {
    /// The keeper of the array behind `set`; superblocks in slot order.
    pub fn new(
        set: Rc<StripeSet<D>>,
        superblocks: Vec<Option<Superblock>>,
        resync_from_bytes: Option<u64>,
        now_s: Box<dyn Fn() -> u64>,
    ) -> Rc<Self> {
        let events = superblocks.iter().flatten().map(Superblock::events).max().unwrap_or(0);
        let told = set.shared.members.states();
        set.shared.loads.set_parity_agrees(resync_from_bytes.is_none());
        let slots = 0..set.shared.geometry.members();
        let recovered_bytes = slots.map(|slot| set.shared.members.recovered_bytes(slot)).collect();
        Rc::new(Keeper {
            set,
            superblocks: RefCell::new(superblocks),
            spares: RefCell::new(Vec::new()),
            failed: RefCell::new(Vec::new()),
            events: Cell::new(events),
            recovered_bytes: RefCell::new(recovered_bytes),
            told: RefCell::new(told),
            resync_from_bytes: Cell::new(resync_from_bytes),
            close_wanted: Cell::new(false),
            stopping: Cell::new(false),
            now_s,
        })
    }

    /// Writes superblocks whenever something wants them. Ends after [`Keeper::stop`], or when they cannot be written
    /// any more.
    pub async fn run(&self) {
        loop {
            self.set.shared.members.metadata_wanted().await;
            if !self.write_round().await || (self.stopping.get() && self.set.shared.members.is_settled()) {
                return;
            }
        }
    }

    /// One round: what is wanted now is on disk when it returns. False if no member takes superblocks.
    async fn write_round(&self) -> bool {
        let shared = &self.set.shared;
        let mut closing = self.close_wanted.take() && shared.suspects() == 0 && shared.intent.try_close();
        // Invariant 2: what was written is durable before the superblocks call it clean.
        if closing && (self.set.flush_members().await.is_err() || shared.suspects() > 0) {
            shared.intent.reopen();
            closing = false;
        }
        let round =
            Round { version: shared.members.metadata_version(), dirty: shared.intent.wants_dirty(), closing };
        let written = self.write_superblocks(&round).await;
        if closing && shared.members.metadata_version() == round.version && written > 0 {
            self.close_bitmaps().await;
        }
        if written == 0 {
            shared.members.metadata_lost();
            shared.intent.lost();
            return false;
        }
        if round.closing {
            shared.intent.clean_written();
        }
        if round.dirty {
            shared.intent.dirty_written();
        }
        shared.members.metadata_written(round.version);
        true
    }

    async fn write_superblocks(&self, round: &Round) -> usize {
        let writes = self.prepare(round);
        let started: Vec<D::Done> = writes.iter().filter_map(|write| write.start(&self.set)).collect();
        assert_eq!(started.len(), writes.len(), "a member in use is attached");
        let mut written = 0;
        for (write, result) in writes.iter().zip(join_all(started).await) {
            match result {
                Ok(()) => written += 1,
                Err(error) => written += usize::from(self.retry(write, error).await),
            }
        }
        written
    }

    /// A second try, then the member fails, which asks for another round.
    async fn retry(&self, write: &SuperblockWrite, error: DeviceError) -> bool {
        let members = &self.set.shared.members;
        members.note_error(write.slot, &error);
        let Some(again) = write.start(&self.set) else { return false };
        let Err(error) = again.await else { return true };
        members.report(Event::MetadataError { member: write.slot, reason: error.to_string() });
        // The array may need the member for its data still; its superblock is simply old then.
        let _: Failing = members.fail(write.slot, &format!("its superblock cannot be written: {error}"));
        false
    }

    fn prepare(&self, round: &Round) -> Vec<SuperblockWrite> {
        let states = self.set.shared.members.states();
        let changed = *self.told.borrow() != states;
        self.note_failed(&states);
        self.events.set(self.events.get() + if changed { 2 } else { 1 });
        let clean_offset = self.resync_from_bytes.get();
        let resync = if round.dirty { Some(0) } else { clean_offset };
        let mut superblocks = self.superblocks.borrow_mut();
        let active: Vec<(u32, u32)> = (0u32..)
            .zip(superblocks.iter())
            .filter(|(slot, _)| in_use(states[*slot as usize]))
            .filter_map(|(slot, superblock)| Some((superblock.as_ref()?.dev_number(), slot)))
            .collect();
        let mut writes = Vec::new();
        for (slot, superblock) in (0u32..).zip(superblocks.iter_mut()) {
            let Some(superblock) = superblock.as_mut().filter(|_| in_use(states[slot as usize])) else {
                continue;
            };
            self.fill(superblock, resync, &active);
            superblock.set_recovery_offset(match states[slot as usize] {
                MemberState::Recovering => {
                    Some(Sectors::from_bytes_floor(self.recovered_bytes.borrow()[slot as usize]))
                }
                MemberState::InSync | MemberState::Failed | MemberState::Missing => None,
            });
            if let Some(member) = self.set.attached(slot) {
                let bytes = superblock.encode(member.device.info().logical_block_bytes as usize);
                writes.push(SuperblockWrite {
                    slot,
                    offset: superblock.offset(),
                    data: Slice::from_bytes(&bytes),
                });
            }
        }
        *self.told.borrow_mut() = states;
        writes
    }

    /// Members that are out of use stay known by their device number: their role is "faulty" from now on.
    fn note_failed(&self, states: &[MemberState]) {
        for (slot, superblock) in self.superblocks.borrow().iter().enumerate() {
            if let Some(superblock) = superblock.as_ref().filter(|_| !in_use(states[slot])) {
                let number = superblock.dev_number();
                let mut failed = self.failed.borrow_mut();
                if !failed.contains(&number) {
                    failed.push(number);
                }
            }
        }
    }

    fn fill(&self, superblock: &mut Superblock, resync: Option<u64>, active: &[(u32, u32)]) {
        superblock.set_events(self.events.get());
        superblock.set_utime_s((self.now_s)());
        superblock.set_resync_offset(resync.map(Sectors::from_bytes_floor));
        let roles = u32::try_from(superblock.roles().len()).expect("a few roles");
        let spares: Vec<u32> =
            self.spares.borrow().iter().map(|spare| spare.superblock.dev_number()).collect();
        for number in 0..roles {
            let role = match active.iter().find(|(active, _)| *active == number) {
                Some((_, slot)) => DeviceRole::Active(u16::try_from(*slot).expect("a slot is below 1920")),
                None if spares.contains(&number) => DeviceRole::Spare,
                None if self.failed.borrow().contains(&number) => DeviceRole::Faulty,
                // A number that nobody has, or whose device was not there when the array was assembled.
                None => match superblock.role_of(number) {
                    Some(DeviceRole::Active(_)) => DeviceRole::Faulty,
                    Some(role) => role,
                    None => continue,
                },
            };
            superblock.set_role(number, role);
        }
    }

    /// md's own bitmap, where there is one, is not kept while Twill writes: its event count stays behind, so that md
    /// would resync everything. At a clean stop nothing is dirty, and the bitmap can say so.
    async fn close_bitmaps(&self) {
        if self.resync_from_bytes.get().is_some() {
            return;
        }
        let superblocks = self.superblocks.borrow().clone();
        for (slot, superblock) in (0u32..).zip(superblocks) {
            let Some(superblock) = superblock.filter(|_| in_use(self.set.shared.members.state(slot))) else {
                continue;
            };
            let (Some(start), Some(member)) = (superblock.bitmap_start(), self.set.attached(slot)) else {
                continue;
            };
            let room = superblock.bitmap_room(member.device.info().size_bytes).unwrap_or(0);
            let (buffer, read) = member.device.read(start.bytes(), Buffer::new(4096)).await;
            let parsed =
                read.ok().and_then(|()| BitmapSuper::parse(buffer.bytes(), superblock.set_uuid(), room).ok());
            let Some(mut bitmap) = parsed else { continue }; // md finds it out of date and resyncs
            bitmap.set_events(superblock.events());
            bitmap.set_events_cleared(superblock.events());
            let bytes = usize::try_from(bitmap.bitmap_bytes()).expect("a bitmap fits in memory");
            let unit = member.device.info().logical_block_bytes as usize;
            let mut area = vec![0; bytes.max(md_bitmap::SUPER_BYTES).next_multiple_of(unit)];
            area[..md_bitmap::SUPER_BYTES].copy_from_slice(&bitmap.encode());
            let written =
                member.device.write(start.bytes(), Gather::from(Slice::from_bytes(&area)), true).await;
            if let Err(error) = written {
                self.set.shared.members.note_error(slot, &error);
            }
        }
    }

    /// Asks for clean superblocks if no write is on its way.
    pub fn want_close(&self) {
        self.close_wanted.set(true);
        self.set.shared.members.want_metadata();
    }

    /// The last superblocks of an orderly stop: everything is flushed, no write is on its way any more.
    pub async fn stop(&self) -> Result<(), crate::volume::VolumeError> {
        self.set.flush_volume().await?;
        self.stopping.set(true);
        self.want_close();
        let settled = self.set.shared.members.settled().await;
        settled.map_err(|_| crate::volume::VolumeError::Io {
            reason: "the superblocks cannot be written".into(),
        })
    }

    /// From here on the superblocks say that parity or copies agree up to `from_bytes` only, or all of it.
    pub fn set_resync(&self, from_bytes: Option<u64>) {
        self.resync_from_bytes.set(from_bytes);
        self.set.shared.loads.set_parity_agrees(from_bytes.is_none());
    }

    /// Where parity or copies may not agree from.
    pub fn resync_from_bytes(&self) -> Option<u64> {
        self.resync_from_bytes.get()
    }

    /// Newest event count.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// The superblock of the member in a slot, as last written; the outer `None` means that there is no such slot.
    pub fn try_superblock(&self, slot: usize) -> Option<Option<Superblock>> {
        self.superblocks.borrow().get(slot).cloned()
    }

    /// The member in `slot` is in sync and durable below `bytes`.
    pub fn set_recovered(&self, slot: u32, bytes: u64) {
        self.recovered_bytes.borrow_mut()[slot as usize] = bytes;
    }

    /// Puts a superblock in a slot, or takes it out; the member goes with it.
    pub fn set_superblock(&self, slot: u32, superblock: Option<Superblock>) {
        self.set_recovered(slot, 0);
        let old = std::mem::replace(&mut self.superblocks.borrow_mut()[slot as usize], superblock);
        if let Some(old) = old {
            let number = old.dev_number();
            if !self.failed.borrow().contains(&number) {
                self.failed.borrow_mut().push(number);
            }
        }
    }

    /// A device number that no device has, for one that is added.
    pub fn free_dev_number(&self) -> Option<u32> {
        let superblocks = self.superblocks.borrow();
        let roles = superblocks.iter().flatten().map(|superblock| superblock.roles().len()).max()?;
        let spares = self.spares.borrow();
        let used = |number: u32| {
            superblocks.iter().flatten().any(|superblock| superblock.dev_number() == number)
                || spares.iter().any(|spare| spare.superblock.dev_number() == number)
        };
        let free = (0..u32::try_from(roles).ok()?).filter(|&number| !used(number));
        let number = free.min_by_key(|number| self.failed.borrow().contains(number))?;
        self.failed.borrow_mut().retain(|failed| *failed != number);
        Some(number)
    }

    /// The spares, for the one who hands them out.
    pub fn spares(&self) -> &RefCell<Vec<Spare<D>>> {
        &self.spares
    }
}

fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}

struct SuperblockWrite {
    slot: u32,
    offset: u64,
    data: Slice,
}

impl SuperblockWrite {
    fn start<D: Device>(&self, set: &StripeSet<D>) -> Option<D::Done> {
        set.attached(self.slot)
            .map(|member| member.device.write(self.offset, Gather::from(self.data.clone()), true))
    }
}
