//! A tiny array that runs: acts are performed at it, and what it holds is compared with what it may hold.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use engine::array::assemble::Refusal;
use engine::buffer::{Buffer, Gather};
use engine::members::{Failing, MemberState};
use engine::volume::Space;
use layout::md_superblock::{DeviceRole, SUPERBLOCK_BYTES_MAX, Superblock};
use layout::units::{ArrayOffset, Slot};

use super::act::{Act, Crash, Devices};
use super::lineage::{Cells, Head};
use super::site::{CHUNK, Site, beside, cells, cells_in};
use crate::array::Array;
use crate::disk::Disk;
use crate::disk::cache::Survivors;
use crate::machine::Machine;
use crate::operator;
use crate::pages::{self, Content};
use crate::start::How;
use crate::world::{Ended, NO_LIMIT};

/// What is wrong.
pub(super) type Wrong = String;

/// The cell that a write in flight goes to when the power goes.
const CELL_IN_FLIGHT: usize = 0;

/// Whether repairs end before the next act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Everything that is due is done before the next act.
    AtRest,
    /// The next act comes as soon as the one before it has returned: repairs are under way.
    AtOnce,
}

pub(super) struct Run {
    pub(super) array: Rc<Array>,
    pub(super) site: Site,
    pub(super) head: Head,
    pace: Pace,
}

/// What came of a start.
pub(super) enum Started {
    Runs(Run),
    Refused(Refusal),
}

/// What came of an act.
pub(super) enum Done {
    Runs(Run),
    /// The array does not run any more.
    Off(Site),
    /// It was refused, or there is nothing to do it to: nothing has changed.
    Not,
}

impl Run {
    /// Starts the array with these devices.
    pub(super) fn start(site: Site, with: Devices, force: bool, pace: Pace) -> Result<Started, Wrong> {
        site.connect(with);
        let machine = Rc::clone(&site.machine);
        machine.excuses.beyond.set(force);
        let in_doubt = if force { cells_in_doubt(&site) } else { 0 };
        let how = How { force, ..How::usual(&machine.scenario) };
        let array = match Array::assemble(&machine, how) {
            Some(Ok(array)) => array,
            Some(Err(refusal)) => return Ok(Started::Refused(refusal)),
            None => return Err(failure(&site)),
        };
        let mut run = Run { array, site, head: 0, pace };
        run.head = match force {
            true => run.accept(in_doubt),
            false => run.judge().map_err(|what| traced(&run.site, &what))?,
        };
        if !run.array.shared.members.all_in_sync() {
            run.head = run.site.lineage.ran(run.head);
        }
        run.settle()?;
        Ok(Started::Runs(run))
    }

    /// Where the array is that was started: all members in sync hold what was written on the way there, and no other device
    /// that was there holds a write that the array has not.
    fn judge(&self) -> Result<Head, Wrong> {
        let lineage = &self.site.lineage;
        let in_sync = self.in_sync();
        let heads: Vec<Head> = in_sync.iter().filter_map(|disk| lineage.head(disk.number)).collect();
        let head = lineage.newest(&heads).ok_or("no member in sync was ever one")?;
        for disk in &in_sync {
            let own = lineage.head(disk.number).ok_or(format!("device {} is in sync, new", disk.number))?;
            if lineage.wrote_without(head, own) {
                return Err(format!("invariant 8: device {} is in sync and lacks a write", disk.number));
            }
            if lineage.wrote_without(own, head) {
                return Err(format!("invariant 8: device {} is of another side, in sync", disk.number));
            }
        }
        let has_room = self.site.machine.scenario.data_offset > 0;
        for disk in self.site.machine.connected() {
            let is_whole = superblock(&self.site.machine, &disk).is_some_and(|own| is_whole(&own));
            let own = lineage.head(disk.number).unwrap_or(head);
            if is_whole && has_room && lineage.wrote_without(own, head) {
                return Err(format!(
                    "device {} holds an acknowledged write that the array has not, which started without a word of it",
                    disk.number
                ));
            }
        }
        Ok(head)
    }

    /// Where the array is that was started by force: cells that differ between its members, and those in doubt, may hold
    /// anything.
    fn accept(&mut self, in_doubt: Cells) -> Head {
        let heads: Vec<Head> =
            self.in_sync().iter().filter_map(|disk| self.site.lineage.head(disk.number)).collect();
        let lineage = &mut self.site.lineage;
        let newest = lineage.newest(&heads).unwrap_or(0);
        let in_doubt = in_doubt | lineage.torn_above(newest);
        let differs = |cell: &usize| {
            heads.iter().any(|head| lineage.may_hold(*head, *cell) != lineage.may_hold(newest, *cell))
        };
        let differing = (0..4).filter(differs).fold(in_doubt, |all, cell| all | 1 << cell);
        let hit = beside(self.site.machine.geometry(), differing);
        lineage.accepted(newest, hit)
    }

    /// Does an act.
    pub(super) fn perform(mut self, act: Act) -> Result<Done, Wrong> {
        let pace = self.pace;
        let is_done = match act {
            Act::Start(with) => return self.stop().and_then(|site| restart(&site, with, false, pace)),
            Act::Force(with) => return self.stop().and_then(|site| restart(&site, with, true, pace)),
            Act::Crash(crash) => return self.crash(crash).map(Done::Off),
            Act::Write(cell) => self.write(cell, true).map(|()| true)?,
            Act::Fail(slot) => self.fail(slot)?,
            Act::Add => self.add_new()?,
            Act::ReAdd(device) => self.re_add(device)?,
            Act::Replace(slot) => self.replace(slot)?,
        };
        if !is_done {
            return Ok(Done::Not);
        }
        self.settle()?;
        Ok(Done::Runs(self))
    }

    /// An act is over: what is due is done first, where the pace is so.
    fn settle(&mut self) -> Result<(), Wrong> {
        if self.pace == Pace::AtRest {
            self.rest()?;
            self.read_lost()?;
        }
        self.note_in_sync();
        Ok(())
    }

    /// A client reads the cells whose member is away and that may hold one of several contents. What parity made of such a cell
    /// it holds from then on, whoever comes back. What a member that is there holds of a torn write is no such promise: it may be
    /// lost with the member.
    fn read_lost(&mut self) -> Result<(), Wrong> {
        for cell in 0..4 {
            let Some(allowed) = self.site.lineage.may_hold(self.head, cell) else { continue };
            if allowed.iter().all(|content| *content == allowed[0]) || !self.is_made_by_parity(cell) {
                continue;
            }
            match self.read(cell)? {
                Some(Some(found)) if allowed.contains(&found) => {
                    self.head = self.site.lineage.read(self.head, cell, found);
                }
                _ => {} // `check_cells` judges it
            }
        }
        Ok(())
    }

    /// What a cell reads as; None: an error.
    pub(super) fn read(&self, cell: usize) -> Result<Option<Option<Content>>, Wrong> {
        let offset = cells(self.site.machine.geometry())[cell];
        let own = Rc::clone(&self.array);
        let result =
            self.until("a read", async move { own.shards[0].volume.read(offset, u64::from(CHUNK)).await })?;
        Ok(result.ok().map(|data| {
            let mut bytes = vec![0; CHUNK as usize];
            data.copy_to(&mut bytes);
            pages::identify(&bytes, offset / u64::from(CHUNK))
        }))
    }

    fn is_made_by_parity(&self, cell: usize) -> bool {
        let geometry = self.site.machine.geometry();
        let places = self.site.machine.places(cells(geometry)[cell]);
        geometry.parity_chunks() > 0 && self.state(places[0].0) != MemberState::InSync
    }

    /// Runs until nothing is left to do.
    pub(super) fn rest(&mut self) -> Result<(), Wrong> {
        match self.array.run(NO_LIMIT) {
            Ended::Idle => {
                self.note_in_sync();
                Ok(())
            }
            _ => Err(failure(&self.site)),
        }
    }

    /// Members in sync are where the array is.
    fn note_in_sync(&mut self) {
        for disk in self.in_sync() {
            self.site.lineage.follow(disk.number, self.head);
        }
    }

    /// The devices of members in sync.
    fn in_sync(&self) -> Vec<Rc<Disk>> {
        self.devices(MemberState::InSync)
    }

    fn devices(&self, of: MemberState) -> Vec<Rc<Disk>> {
        let disks = self.site.machine.disks.borrow();
        let slots = Slot::all().zip(disks.iter()).filter(|(slot, _)| self.state(*slot) == of);
        slots.filter_map(|(_, disk)| disk.clone()).collect()
    }

    pub(super) fn state(&self, slot: Slot) -> MemberState {
        self.array.shared.members.state(slot)
    }

    /// Runs some work until it is done, and no further than it takes.
    pub(super) fn until<T: 'static>(
        &self,
        words: &str,
        work: impl Future<Output = T> + 'static,
    ) -> Result<T, Wrong> {
        let told = Rc::new(RefCell::new(None));
        let tell = Rc::clone(&told);
        self.array.spawn(0, words, async move {
            let result = work.await;
            *tell.borrow_mut() = Some(result);
        });
        loop {
            if let Some(result) = told.borrow_mut().take() {
                return Ok(result);
            }
            match self.array.run(2) {
                Ended::Steps => {}
                Ended::Idle if told.borrow().is_some() => {}
                _ => return Err(failure(&self.site)),
            }
        }
    }

    /// A client writes a cell. An error needs an excuse: the stripe is in doubt.
    pub(super) fn write(&mut self, cell: usize, fua: bool) -> Result<(), Wrong> {
        let offset = cells(self.site.machine.geometry())[cell];
        let content = self.site.lineage.next_content(cell);
        let own = Rc::clone(&self.array);
        let (before, was_in_sync) = (self.head, self.in_sync());
        let data = block(offset, content);
        let result =
            self.until("a write", async move { own.shards[0].volume.write(offset, data, fua).await })?;
        self.head = match result {
            Ok(()) if fua => self.site.lineage.written(self.head, cell, content),
            Ok(()) => self.site.lineage.torn(self.head, cell, content),
            Err(_) if self.is_doubtful(cell) => self.site.lineage.torn(self.head, cell, content),
            Err(error) => return Err(format!("invariant 6: a write of cell {cell} failed: {error}")),
        };
        // A device whose slot went to another meanwhile may have taken the write.
        let now: Vec<u32> = self.in_sync().iter().map(|disk| disk.number).collect();
        for left in was_in_sync.iter().filter(|disk| !now.contains(&disk.number)) {
            let torn = self.site.lineage.torn(before, cell, content);
            self.site.lineage.follow(left.number, torn);
        }
        self.note_in_sync();
        Ok(())
    }

    /// Whether an error of a request to this cell is excused: a member is missing and the stripe in doubt.
    pub(super) fn is_doubtful(&self, cell: usize) -> bool {
        let geometry = self.site.machine.geometry();
        if geometry.parity_chunks() == 0 || self.array.shared.members.all_in_sync() {
            return false;
        }
        let stripe = geometry.locate(ArrayOffset::new(cells(geometry)[cell])).stripe;
        let consistency = &self.array.shared.consistency;
        consistency.is_in_doubt(stripe) || consistency.is_suspect(stripe)
    }

    /// Takes the member in a slot out of use and out of the slot. False if the array needs it.
    pub(super) fn fail(&mut self, slot: Slot) -> Result<bool, Wrong> {
        if matches!(self.state(slot), MemberState::Missing | MemberState::Failed) {
            return Ok(false);
        }
        let own = Rc::clone(&self.array);
        let failing =
            self.until("failing", async move { own.manager.membership().fail(slot, "an operator").await })?;
        if failing == Failing::Needed {
            return Ok(false);
        }
        let own = Rc::clone(&self.array);
        self.until("removing", async move { own.manager.membership().remove(slot).await })?;
        Ok(true)
    }

    fn add_new(&mut self) -> Result<bool, Wrong> {
        let disk = self.site.machine.new_disk(true);
        self.add(&disk)
    }

    /// Adds a device, whatever it holds.
    pub(super) fn add(&mut self, disk: &Rc<Disk>) -> Result<bool, Wrong> {
        let (own, added, reuse) =
            (Rc::clone(&self.array), Rc::clone(disk), self.site.planted.numbers_are_reused);
        let number = self.until("adding", async move {
            match reuse {
                true => operator::add_spare_with(&own, &added, |_| lowest_free_number(&own)).await,
                false => operator::add_spare(&own, &added).await,
            }
        })?;
        if number.is_some() {
            disk.plug(true);
        }
        Ok(number.is_some())
    }

    /// A device comes back with what it holds. False if it is refused.
    pub(super) fn re_add(&mut self, device: u32) -> Result<bool, Wrong> {
        let disk = Rc::clone(&self.site.machine.all_disks.borrow()[device as usize]);
        if self.is_used(device) || superblock(&self.site.machine, &disk).is_none() {
            return Ok(false);
        }
        let (own, back) = (Rc::clone(&self.array), Rc::clone(&disk));
        let is_back = self.until("re-adding", async move { operator::re_add(&own, &back).await })?;
        if is_back {
            disk.plug(true);
        }
        Ok(is_back)
    }

    fn replace(&mut self, slot: Slot) -> Result<bool, Wrong> {
        if self.array.manager.replacements().may_replace(slot).is_err() {
            return Ok(false);
        }
        let own = Rc::clone(&self.array);
        self.until("replacing", async move { operator::begin_replacement(&own, slot).await })?;
        Ok(true)
    }

    /// Whether a device is in a slot, is to have one, or waits for one.
    pub(super) fn is_used(&self, device: u32) -> bool {
        let machine = &self.site.machine;
        let is_it = |disk: &Option<Rc<Disk>>| disk.as_ref().is_some_and(|disk| disk.number == device);
        let spares = self.array.writer.superblocks().spares().borrow();
        machine.disks.borrow().iter().any(is_it)
            || machine.coming.borrow().iter().any(is_it)
            || spares.iter().any(|spare| spare.device.0.number == device)
    }

    /// Stops the array, after which nothing that was written may be lost.
    pub(super) fn stop(self) -> Result<Site, Wrong> {
        let own = Rc::clone(&self.array);
        let stopped = self.until("stopping", async move { own.running.stop().await })?;
        if let Err(error) = stopped {
            return Err(format!("an orderly stop failed: {error}"));
        }
        Ok(self.end(|_| false))
    }

    /// The power goes.
    fn crash(mut self, crash: Crash) -> Result<Site, Wrong> {
        if crash == Crash::Quiet {
            return Ok(self.end(|_| false));
        }
        self.write(CELL_IN_FLIGHT, false)?;
        let place = self.site.machine.places(cells(self.site.machine.geometry())[CELL_IN_FLIGHT])[0];
        let disk = self.site.machine.disks.borrow()[place.0.index()].as_ref().map(|disk| disk.number);
        Ok(self.end(|device| (Some(device) == disk) == (crash == Crash::OnlyData)))
    }

    /// The program is gone, and of what was not durable only what these devices have is left.
    fn end(self, keeps: impl Fn(u32) -> bool) -> Site {
        let in_slots = [MemberState::Recovering, MemberState::InSync].map(|state| self.devices(state));
        self.array.kill();
        self.array.world.cut();
        for disk in self.site.machine.all_disks.borrow().iter() {
            let survives = keeps(disk.number);
            disk.cut(&|_, _| if survives { Survivors::All } else { Survivors::None });
        }
        let machine = Rc::clone(&self.site.machine);
        let mut lineage = self.site.lineage.clone();
        // Superblocks may call a device a member whose rebuild, or whose copy of another one, ended with the array or as the power
        // went.
        for disk in machine.all_disks.borrow().iter() {
            let has_slot = in_slots.iter().flatten().any(|other| other.number == disk.number);
            let is_member = superblock(&machine, disk).is_some_and(|own| is_whole(&own));
            if is_member && (has_slot || lineage.head(disk.number).is_none()) {
                lineage.follow(disk.number, self.head);
            }
        }
        Site { machine, lineage, ..self.site }
    }
}

/// Tasks hold the array that they work for.
impl Drop for Run {
    fn drop(&mut self) {
        self.array.shards.iter().for_each(|shard| shard.executor.abandon());
        self.array.world.cut();
        self.array.open.borrow_mut().clear();
    }
}

fn restart(site: &Site, with: Devices, force: bool, pace: Pace) -> Result<Done, Wrong> {
    match Run::start(site.twin(), with, force, pace)? {
        Started::Runs(run) => Ok(Done::Runs(run)),
        Started::Refused(_) => Ok(Done::Not),
    }
}

/// What a world found, with the last of what happened there.
pub(super) fn failure(site: &Site) -> Wrong {
    let world = &site.machine.world;
    traced(site, &world.failure().unwrap_or_else(|| "it does not go on".to_string()))
}

pub(super) fn traced(site: &Site, what: &str) -> Wrong {
    format!("{what}\n    | {}", site.machine.world.trace_tail().join("\n    | "))
}

/// The superblock on a device.
pub(super) fn superblock(machine: &Machine, disk: &Disk) -> Option<Superblock> {
    let bytes = disk.read_at_once(disk.places.superblock, SUPERBLOCK_BYTES_MAX);
    Superblock::parse(&bytes, machine.scenario.metadata, disk.places.size).ok()
}

/// Whether a superblock says that its device holds all of its member.
fn is_whole(own: &Superblock) -> bool {
    matches!(own.role(), DeviceRole::Active(_)) && own.recovery_offset().is_none() && !own.is_replacement()
}

fn cells_in_doubt(site: &Site) -> Cells {
    cells_in(site.machine.geometry(), &site.doubts(true))
}

/// The lowest number that no device in use has.
fn lowest_free_number(array: &Array) -> u32 {
    let superblocks = array.writer.superblocks().all();
    let is_taken = |number: u32| superblocks.iter().flatten().any(|own| own.dev_number() == number);
    (0..).find(|number| !is_taken(*number)).expect("a few devices")
}

fn block(offset: u64, content: Content) -> Gather {
    let mut buffer = Buffer::new(CHUNK as usize);
    pages::fill(buffer.bytes_mut(), offset / u64::from(CHUNK), content);
    Gather::from(buffer.freeze())
}
