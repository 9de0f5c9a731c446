//! Histories of an array for tests: devices with superblocks, records, bits and contents, and the acts that change them. What
//! is decided is decided by the functions that the program calls ([`assemble`], [`re_add::judge`], [`generations::go_on`],
//! [`device_numbers`]); what writes superblocks and data is small enough to be read here.
//!
//! Contents are cells. Each write gives a cell a value of its own and is a new head of the history that the array is in; a
//! device has the head that it holds. So a test sees what no superblock says: whether members in sync hold the same, and
//! whether a side that wrote is left out without a word.

mod key;

use std::fmt;

use layout::generations::{Generations, GenerationsRecord};
use layout::geometry::{Geometry, Layout, Level};
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::redo_log::BitmapExtent;
use layout::units::{Sectors, Slot};

use super::assemble::{Assembly, Candidate, Filter, Refusal, assemble};
use super::device_numbers::{self, FreeNumber, Numbers};
use super::generations;
use super::re_add;
use crate::members::MemberState;

pub(super) use key::key;

pub(super) const CELLS: usize = 2;
const DEVICE_BYTES: u64 = 64 << 20;

/// Mistakes that a test makes on purpose, to see that it would find them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Planted {
    /// Numbers of failed devices are given away, as if no superblock called them failed.
    pub(super) numbers_are_reused: bool,
    /// A re-add ignores the generation of the member that comes back.
    pub(super) any_generation_comes_back: bool,
}

/// A device and all that is on it.
#[derive(Clone)]
pub(super) struct Device {
    pub(super) superblock: Superblock,
    record: Option<GenerationsRecord>,
    cells: [u32; CELLS],
    /// Bits of its bitmap, and when bits were cleared.
    marks: u8,
    cleared: u64,
    /// The last write that it holds, of those that were acknowledged.
    head: usize,
}

impl Device {
    fn generations(&self) -> Option<&GenerationsRecord> {
        self.record.as_ref().filter(|record| record.superblock == self.superblock.digest())
    }
}

/// What outlives a boot.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) devices: Vec<Device>,
    /// Each write, with the one before it.
    heads: Vec<usize>,
    geometry: Geometry,
    has_room: bool,
    pub(super) planted: Planted,
    /// Contents were chosen by force or by md: what is left out was left out on purpose, or by md.
    pub(super) is_forced: bool,
    next_id: u64,
}

/// What ran wrong.
pub(super) type Wrong = String;

/// A running array.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) slots: Vec<Option<usize>>,
    pub(super) states: Vec<MemberState>,
    generations: Option<Generations>,
    /// md writes the superblocks: it knows no generations.
    is_md: bool,
    failed: Vec<u32>,
    events: u64,
    marks: u8,
    cleared: u64,
    head: usize,
    is_touched: bool,
    is_whole_start: bool,
    /// What is to replace a member.
    incoming: Option<usize>,
}

/// Which members get a round of superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    All,
    /// A crash comes after that of this slot.
    Only(usize),
}

impl Machine {
    pub(super) fn new(level: Level, members: u16, has_room: bool) -> Self {
        let array = NewArray {
            // At 1.0 there is no room for a record.
            minor: if has_room { MinorVersion::V1_2 } else { MinorVersion::V1_0 },
            set_uuid: [7; 16],
            name: "histories".into(),
            ctime_s: 1,
            level,
            layout: Layout::default_for(level),
            chunk_bytes: if level == Level::Raid1 { 0 } else { 64 << 10 },
            raid_disks: members.into(),
            bitmap: NewBitmap::Internal(None),
            member_bytes: Some(8 << 20),
            data_offset: None,
            clean: true,
        };
        let device = |i: u16| NewMember {
            device_bytes: DEVICE_BYTES,
            device_uuid: uuid(i.into()),
            role: DeviceRole::Active(Slot::new(i.into())),
        };
        let created = array.create(&(0..members).map(device).collect::<Vec<_>>()).expect("an array");
        let geometry = created.superblocks[0].geometry().expect("a geometry");
        let device = |superblock| Device {
            superblock,
            record: None,
            cells: [0; CELLS],
            marks: 0,
            cleared: 0,
            head: 0,
        };
        let devices = created.superblocks.into_iter().map(device).collect();
        let mut machine = Machine {
            devices,
            heads: vec![0],
            geometry,
            has_room,
            planted: Planted::default(),
            is_forced: false,
            next_id: 1,
        };
        // Its first run, with all of them.
        let all: Vec<usize> = (0..usize::from(members)).collect();
        let mut running = machine.start(&all, false).expect("right").expect("a new array starts");
        machine.write(&mut running, 0).expect("right");
        machine.stop(&mut running);
        machine
    }

    /// Starts the array with these devices, as Twill does. The outer error is what is wrong, the inner one a refusal.
    pub(super) fn start(&mut self, with: &[usize], force: bool) -> Result<Result<Running, Refusal>, Wrong> {
        let candidates: Vec<Candidate> = with.iter().map(|device| self.candidate(*device, false)).collect();
        let assembly = one(&candidates, force);
        if let Err(refusal) = assembly.start {
            return Ok(Err(refusal));
        }
        let forced = force && one(&candidates, false).start.is_err();
        self.is_forced |= forced;
        let running = self.running(with, &assembly, false, forced)?;
        check_nothing_is_left_out(self, with, &running)?;
        Ok(Ok(running))
    }

    /// Starts the array as md does: of two sides that went on apart the newer.
    pub(super) fn start_md(&mut self, with: &[usize]) -> Result<Option<Running>, Wrong> {
        let candidates: Vec<Candidate> = with.iter().map(|device| self.candidate(*device, true)).collect();
        let assembly = one(&candidates, false);
        self.is_forced = true;
        match assembly.start {
            Ok(()) | Err(Refusal::Split { .. }) => self.running(with, &assembly, true, false).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn candidate(&self, device: usize, for_md: bool) -> Candidate {
        let device = &self.devices[device];
        let name = format!("u{}", device.superblock.device_uuid()[0]);
        let generations = device.generations().filter(|_| !for_md).cloned();
        Candidate { name, size_bytes: DEVICE_BYTES, superblock: Ok(device.superblock.clone()), generations }
    }

    fn running(
        &mut self,
        with: &[usize],
        assembly: &Assembly,
        is_md: bool,
        forced: bool,
    ) -> Result<Running, Wrong> {
        let slots: Vec<Option<usize>> =
            assembly.slots.iter().map(|slot| slot.map(|index| with[index])).collect();
        let states = assembly.states();
        let in_sync = || {
            let slots = slots.iter().zip(&states).filter(|(_, state)| **state == MemberState::InSync);
            slots.filter_map(|(device, _)| device.map(|device| &self.devices[device]))
        };
        let first = in_sync().max_by_key(|device| device.superblock.events()).expect("members in sync");
        let mut running = Running {
            generations: assembly.generations.now.clone(),
            is_md,
            failed: match self.planted.numbers_are_reused {
                true => Vec::new(),
                false => device_numbers::failed(in_sync().map(|device| &device.superblock)),
            },
            events: assembly.events,
            marks: in_sync().fold(0, |marks, device| marks | device.marks),
            cleared: in_sync().map(|device| device.cleared).max().expect("members"),
            head: first.head,
            is_touched: false,
            incoming: None,
            is_whole_start: states.iter().all(|state| *state == MemberState::InSync),
            slots,
            states,
        };
        if forced {
            self.mix(&mut running);
        }
        check(self, &running)?;
        self.finish_recoveries(&mut running)?;
        Ok(running)
    }

    /// Stale members were taken by force. What they and the others hold together is something that no other device holds.
    fn mix(&mut self, running: &mut Running) {
        self.heads.push(running.head);
        running.head = self.heads.len() - 1;
        for cell in 0..CELLS {
            let mut held = running.in_sync().map(|(_, device)| self.devices[device].cells[cell]);
            let first = held.next();
            if held.any(|other| Some(other) != first) {
                let value = u32::try_from(running.head).expect("a few writes");
                running.in_sync().for_each(|(_, device)| self.devices[device].cells[cell] = value);
            }
        }
        running.in_sync().for_each(|(_, device)| self.devices[device].head = running.head);
    }

    /// What was being rebuilt goes on, and ends.
    fn finish_recoveries(&mut self, running: &mut Running) -> Result<(), Wrong> {
        for slot in 0..running.slots.len() {
            if running.states[slot] != MemberState::Recovering {
                continue;
            }
            let device = running.slots[slot].expect("a member");
            let superblock = &self.devices[device].superblock;
            let by_bitmap = superblock.recovers_by_bitmap() && superblock.events() > running.cleared;
            self.touch(running, Round::All);
            self.rebuild(running, slot, by_bitmap);
        }
        check(self, running)
    }

    /// Whether the write `old` came before `new` or is it.
    fn leads_to(&self, old: usize, new: usize) -> bool {
        let mut at = new;
        while at > old {
            at = self.heads[at];
        }
        at == old
    }

    /// Whether two of these devices hold writes of which neither came before the other.
    pub(super) fn is_split(&self, with: &[usize]) -> bool {
        let heads = || with.iter().map(|device| self.devices[*device].head);
        heads().any(|one| heads().any(|other| !self.leads_to(one, other) && !self.leads_to(other, one)))
    }

    /// A write that is acknowledged.
    pub(super) fn write(&mut self, running: &mut Running, cell: usize) -> Result<(), Wrong> {
        self.touch(running, Round::All);
        running.marks |= 1 << cell;
        let value = u32::try_from(self.heads.len()).expect("a few writes");
        self.heads.push(running.head);
        running.head = self.heads.len() - 1;
        for device in running.in_use() {
            let device = &mut self.devices[device];
            device.cells[cell] = value;
            device.marks = running.marks;
        }
        for (_, device) in running.in_sync() {
            self.devices[device].head = running.head;
        }
        check(self, running)
    }

    /// The first superblocks of a run, which come twice.
    fn touch(&mut self, running: &mut Running, round: Round) {
        if !running.is_touched {
            self.round(running, round);
            if round == Round::All {
                self.round(running, Round::All);
                running.is_touched = true;
            }
        }
    }

    /// A crash in the first round of superblocks.
    pub(super) fn crash_at_first(&mut self, running: &mut Running, after: usize) {
        self.touch(running, Round::Only(after));
    }

    pub(super) fn stop(&mut self, running: &mut Running) {
        if !running.is_touched && !running.is_whole_start {
            return; // a member that was only forgotten is none the older for it
        }
        if running.states.iter().all(|state| *state == MemberState::InSync) {
            running.cleared = running.events;
            running.marks = 0;
        }
        self.round(running, Round::All);
    }

    /// Superblocks are written, with the records before them.
    fn round(&mut self, running: &mut Running, round: Round) {
        running.events += 1;
        let in_use: Vec<(u32, Slot, usize)> = Slot::all()
            .zip(&running.slots)
            .filter(|(slot, _)| running.is_in_use(slot.index()))
            .filter_map(|(slot, device)| {
                let device = (*device)?;
                Some((self.devices[device].superblock.dev_number(), slot, device))
            })
            .collect();
        let mut members = vec![None; running.slots.len()];
        for (_, slot, device) in &in_use {
            members[slot.index()] = Some(self.devices[*device].superblock.device_uuid());
        }
        members.extend(running.incoming.map(|device| Some(self.devices[device].superblock.device_uuid())));
        let is_whole = running.states.iter().all(|state| *state == MemberState::InSync);
        let next_id = &mut self.next_id;
        let new_id = || {
            *next_id += 1;
            *next_id
        };
        let before = running.generations.as_ref();
        let told = generations::go_on(before, &members, is_whole, running.events, new_id);
        if before.is_some_and(|before| before.current != told.current) && round == Round::All {
            // As good as a write: from here on they are not what the others are.
            self.heads.push(running.head);
            running.head = self.heads.len() - 1;
            running.in_sync().for_each(|(_, device)| self.devices[device].head = running.head);
        }
        running.generations = Some(told.clone()).filter(|_| !running.is_md && self.has_room);
        let active: Vec<(u32, Slot)> = in_use.iter().map(|(number, slot, _)| (*number, *slot)).collect();
        let numbers = Numbers { active: &active, spares: &[], failed: &running.failed };
        for (_, slot, device) in &in_use {
            let slot = slot.index();
            if matches!(round, Round::Only(only) if only != slot) {
                continue;
            }
            let device = &mut self.devices[*device];
            device.superblock.set_events(running.events);
            numbers.tell(&mut device.superblock);
            device.superblock.set_replacement(false);
            let is_recovering = running.states[slot] == MemberState::Recovering;
            device.superblock.set_recovery_offset(is_recovering.then_some(Sectors(0)));
            if let Some(generations) = &running.generations {
                device.record = Some(GenerationsRecord {
                    generations: generations.clone(),
                    sequence: 1,
                    events: running.events,
                    superblock: device.superblock.digest(),
                });
            }
            device.marks = running.marks;
            device.cleared = running.cleared;
        }
    }

    /// The member in a slot fails. False if the array needs it.
    pub(super) fn fail(&mut self, running: &mut Running, slot: usize, round: Round) -> bool {
        let is_out =
            |other: Slot| other.index() == slot || running.states[other.index()] != MemberState::InSync;
        if running.states[slot] != MemberState::InSync || !self.geometry.survives(is_out) {
            return false;
        }
        let device = running.slots[slot].take().expect("a member");
        running.failed.push(self.devices[device].superblock.dev_number());
        running.states[slot] = MemberState::Missing;
        self.round(running, round);
        running.is_touched = true;
        true
    }

    /// A new device takes the first free slot and is rebuilt. False if there is none.
    pub(super) fn add(&mut self, running: &mut Running) -> Result<bool, Wrong> {
        let Some(slot) = running.slots.iter().position(Option::is_none) else { return Ok(false) };
        let device = self.new_device(running);
        self.touch(running, Round::All);
        running.slots[slot] = Some(device);
        running.states[slot] = MemberState::Recovering;
        self.round(running, Round::All);
        self.rebuild(running, slot, false);
        check(self, running).map(|()| true)
    }

    /// A new device gets what the member in a slot holds, then its slot.
    pub(super) fn replace(&mut self, running: &mut Running, slot: usize) -> Result<bool, Wrong> {
        let Some(old) = running.slots[slot] else { return Ok(false) };
        let device = self.new_device(running);
        self.touch(running, Round::All);
        running.incoming = Some(device);
        self.round(running, Round::All);
        running.incoming = None;
        running.failed.push(self.devices[old].superblock.dev_number());
        running.slots[slot] = Some(device);
        self.devices[device].cells = self.devices[old].cells;
        self.devices[device].head = running.head;
        self.round(running, Round::All);
        check(self, running).map(|()| true)
    }

    /// A member that was away comes back and gets what the bitmap marks. False if it is refused.
    pub(super) fn re_add(&mut self, running: &mut Running, device: usize) -> Result<bool, Wrong> {
        if running.slots.contains(&Some(device)) {
            return Ok(false);
        }
        let superblocks: Vec<Option<Superblock>> = running
            .slots
            .iter()
            .map(|slot| slot.map(|device| self.devices[device].superblock.clone()))
            .collect();
        let array = re_add::Array {
            superblocks: &superblocks,
            states: &running.states,
            others: &[],
            events: running.events,
            events_cleared: Some(running.cleared),
            bitmap: BitmapExtent::Bytes(512),
            generations: running.generations.as_ref(),
            may_hold: &|_, _| false,
        };
        let own = &self.devices[device];
        let mut record = own.generations().map(|record| record.generations.clone());
        if self.planted.any_generation_comes_back
            && let (Some(record), Some(now)) = (&mut record, &running.generations)
        {
            record.current = now.current;
        }
        let Ok((slot, _)) = re_add::judge(&own.superblock, record.as_ref(), &array) else { return Ok(false) };
        let slot = slot.index();
        self.touch(running, Round::All);
        running.slots[slot] = Some(device);
        running.states[slot] = MemberState::Recovering;
        self.round(running, Round::All);
        self.rebuild(running, slot, true);
        check(self, running).map(|()| true)
    }

    /// The member in a slot gets what is marked, or everything, and is in sync.
    fn rebuild(&mut self, running: &mut Running, slot: usize, by_bitmap: bool) {
        let device = running.slots[slot].expect("a member");
        let (_, source) = running.in_sync().find(|(_, source)| *source != device).expect("a source");
        for cell in 0..CELLS {
            if !by_bitmap || running.marks & 1 << cell != 0 {
                self.devices[device].cells[cell] = self.devices[source].cells[cell];
            }
        }
        self.devices[device].head = running.head;
        running.states[slot] = MemberState::InSync;
        self.round(running, Round::All);
    }

    fn new_device(&mut self, running: &Running) -> usize {
        let superblocks =
            || running.in_use().map(|device| &self.devices[device].superblock).collect::<Vec<_>>();
        let taken = |number: u32| superblocks().iter().any(|superblock| superblock.dev_number() == number);
        let number = match running.is_md {
            // md counts on from the members of the array.
            true => (self.geometry.members()..).find(|number| !taken(*number)).expect("a number"),
            false if self.planted.numbers_are_reused => {
                (0..).find(|number| !taken(*number)).expect("a number")
            }
            false => match device_numbers::free(&superblocks(), taken, &running.failed)[0] {
                FreeNumber::Unused(number) | FreeNumber::Beyond(number) | FreeNumber::Used(number) => number,
            },
        };
        let identity = self.devices.iter().map(|device| device.superblock.device_uuid()[0]).max();
        let like = superblocks()[0].clone();
        let identity = uuid(usize::from(identity.expect("devices")));
        let superblock = like.for_new_device(number, identity, DEVICE_BYTES).expect("a superblock");
        let device = Device { superblock, record: None, cells: [0; CELLS], marks: 0, cleared: 0, head: 0 };
        self.devices.push(device);
        self.devices.len() - 1
    }
}

impl Running {
    fn is_in_use(&self, slot: usize) -> bool {
        matches!(self.states[slot], MemberState::InSync | MemberState::Recovering)
    }

    fn in_use(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|slot| self.is_in_use(*slot)).filter_map(|slot| self.slots[slot])
    }

    fn in_sync(&self) -> impl Iterator<Item = (usize, usize)> {
        let slots = (0..self.slots.len()).filter(|slot| self.states[*slot] == MemberState::InSync);
        slots.filter_map(|slot| Some((slot, self.slots[slot]?)))
    }

    /// Slots of members in use.
    pub(super) fn used_slots(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| self.is_in_use(*slot)).collect()
    }
}

/// Members in sync hold the same.
fn check(machine: &Machine, running: &Running) -> Result<(), Wrong> {
    let mut cells = None;
    for (slot, device) in running.in_sync() {
        let own = machine.devices[device].cells;
        if *cells.get_or_insert(own) != own {
            return Err(format!("slot {slot} is in sync and holds {own:?}, others hold {cells:?}"));
        }
    }
    Ok(())
}

/// Whatever a whole member among these holds is in what was started. md's rules alone see a side only if all of it is there.
fn check_nothing_is_left_out(machine: &Machine, with: &[usize], running: &Running) -> Result<(), Wrong> {
    for &device in with {
        let device = &machine.devices[device];
        let is_whole = super::split::whole_member(&device.superblock).is_some();
        if is_whole && machine.has_room && !machine.is_forced && !machine.leads_to(device.head, running.head)
        {
            let name = candidate_name(device);
            return Err(format!(
                "{name} holds writes that the array does not, which started without a word of it"
            ));
        }
    }
    Ok(())
}

fn candidate_name(device: &Device) -> String {
    format!("u{} in {:?}", device.superblock.device_uuid()[0], device.superblock.role())
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            let superblock = &device.superblock;
            writeln!(
                f,
                "  u{}: number {} event {} roles {:?} cells {:?} marks {:b} cleared {} head {}, {:?}",
                superblock.device_uuid()[0],
                superblock.dev_number(),
                superblock.events(),
                superblock.roles().take(7).collect::<Vec<_>>(),
                device.cells,
                device.marks,
                device.cleared,
                device.head,
                device.generations().map(|record| (
                    &record.generations.current,
                    &record.generations.history,
                    record
                        .generations
                        .members
                        .iter()
                        .map(|uuid| uuid.map(|uuid| uuid[0]))
                        .collect::<Vec<_>>(),
                )),
            )?;
        }
        Ok(())
    }
}

fn uuid(device: usize) -> [u8; 16] {
    [u8::try_from(device + 1).expect("a few devices"); 16]
}

fn one(candidates: &[Candidate], force: bool) -> Assembly {
    assemble(candidates, &Filter { force, ..Filter::default() }).arrays.remove(0)
}
