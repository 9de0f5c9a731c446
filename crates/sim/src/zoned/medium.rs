//! What a zoned drive holds: contents, states and pointers of its zones, and what of it a power cut may take.
//!
//! Fault model, which is the freedom that [`engine::zone_device`] leaves to a drive:
//! - The pointer of a zone lies, after a cut, anywhere between the end of what is durable and the end of what was applied.
//! - Unflushed blocks below the pointer read as the new contents, what stood there before, zeroes, or a client's bytes; with
//!   logical blocks of 512 bytes also as a mixture. On a placed drive each block is old or new.
//! - A reset or finish that is not durable is there or not. Zones that were open are closed, open, or finished by the drive.
//! - A flush covers what had returned when it was sent, and nothing that was in flight then.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::buffer::{Gather, Slice};
use engine::device::DeviceErrorKind;
use engine::zone_device::states::ZoneStates;
use engine::zone_device::{Zone, ZoneAccess, ZoneChange, ZoneState, ZonedInfo};

use crate::random::Random;
use layout::units::DeviceOffset;

pub(crate) const BLOCK: u64 = 4096;
const METADATA: usize = 64;

/// One block of 4 KiB and what stands beside it.
pub(crate) struct Contents {
    data: [u8; BLOCK as usize],
    beside: [u8; METADATA],
}

/// None: zeroes.
type Block = Option<Rc<Contents>>;

/// An operation that changes the medium. No two have the same number.
pub(crate) type Operation = u64;

#[derive(Clone)]
struct Version {
    operation: Operation,
    block: Block,
}

#[derive(Clone)]
struct ZoneMedium {
    /// What a read finds.
    blocks: Vec<Block>,
    /// Of blocks that are not durable: what they held when they last were, and what was written since.
    versions: BTreeMap<u32, Vec<Version>>,
    /// End of what was applied since the reset, in bytes.
    written: u64,
    /// The pointer is at least here after a cut.
    durable: u64,
    is_finished: bool,
    /// The operation that finished it, while that is not durable.
    finishing: Option<Operation>,
    /// The zone before its last reset, while that is not durable.
    before: Option<(Operation, Box<ZoneMedium>)>,
}

/// How much of what is not durable outlives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    Nothing,
    Everything,
    /// The program is killed, and the power stays: caches keep what they have.
    Killed,
    /// Any part. Hostile drives leave other bytes below the pointer, finish zones and keep others open.
    Some {
        hostile: bool,
    },
}

impl Survival {
    fn keeps(self, random: &Random) -> bool {
        match self {
            Survival::Nothing => false,
            Survival::Everything | Survival::Killed => true,
            Survival::Some { .. } => random.one_in(2),
        }
    }
}

/// A drive's zones.
#[derive(Clone)]
pub(crate) struct Medium {
    /// What the drive does, which may be less than it says.
    zoned: Rc<ZonedInfo>,
    unit: u64,
    states: ZoneStates,
    zones: Vec<ZoneMedium>,
    /// Where each operation is that is not durable.
    places: BTreeMap<Operation, (u32, u64)>,
    returned: BTreeSet<Operation>,
    operations: Operation,
}

impl Medium {
    pub(crate) fn new(zoned: Rc<ZonedInfo>, unit: u64) -> Self {
        let zone = ZoneMedium {
            blocks: vec![None; (zoned.capacity_bytes / BLOCK) as usize],
            versions: BTreeMap::new(),
            written: 0,
            durable: 0,
            is_finished: false,
            finishing: None,
            before: None,
        };
        Medium {
            states: ZoneStates::new(&zoned),
            zones: vec![zone; zoned.zones as usize],
            zoned,
            unit,
            places: BTreeMap::new(),
            returned: BTreeSet::new(),
            operations: 0,
        }
    }

    fn is_placed(&self) -> bool {
        self.zoned.access == ZoneAccess::Placed
    }

    fn next_operation(&mut self) -> Operation {
        self.operations += 1;
        self.operations
    }

    pub(crate) fn zone(&self, zone: u32) -> Zone {
        self.states.zone(zone)
    }

    /// The drive puts a zone into a state by itself. Without a pointer nothing tells an earlier life of an empty zone from this
    /// one: a drive shows none then.
    pub(crate) fn turn(&mut self, zone: u32, state: ZoneState) {
        self.states.turn(zone, state);
        let own = &mut self.zones[zone as usize];
        own.is_finished |= state == ZoneState::Full;
        if own.written == 0 {
            own.blocks.fill(None);
        }
    }

    /// Writes at a place, or, without one, at the pointer. Returns the place.
    pub(crate) fn write(
        &mut self,
        zone: u32,
        at: Option<u64>,
        data: &Gather,
        metadata: Option<&Slice>,
    ) -> Result<(u64, Operation), DeviceErrorKind> {
        let bytes = data.len() as u64;
        let at = match at {
            Some(at) => self.states.write(zone, at, bytes).map(|()| at)?,
            None => self.states.append(zone, bytes)?,
        };
        let operation = self.next_operation();
        self.places.insert(operation, (zone, at + bytes));
        let own = &mut self.zones[zone as usize];
        own.written = own.written.max(at + bytes);
        let mut all = vec![0; data.len()];
        data.copy_to(&mut all);
        // A write may begin inside of a block: recovery fills up the one in which a pointer stands.
        let (mut from, mut index) = (at, 0);
        while from < at + bytes {
            let block = (from / BLOCK) as u32;
            let inside = (from % BLOCK) as usize..((at + bytes - from / BLOCK * BLOCK).min(BLOCK)) as usize;
            let before = own.blocks[block as usize].as_ref().map(|before| before.data);
            let mut data = before.filter(|_| inside.start > 0).unwrap_or([0; BLOCK as usize]);
            let first = (from - at) as usize;
            data[inside.clone()].copy_from_slice(&all[first..first + inside.len()]);
            // Without a buffer the metadata is undefined: a pattern that no format takes for its own.
            let beside = metadata.map_or([0xa5; METADATA], |all| {
                all.bytes()[index * METADATA..][..METADATA].try_into().expect("64 bytes a block")
            });
            own.put(block, operation, Some(Rc::new(Contents { data, beside })));
            from += inside.len() as u64;
            index += 1;
        }
        Ok((at, operation))
    }

    pub(crate) fn change(
        &mut self,
        zone: u32,
        change: ZoneChange,
        random: &Random,
    ) -> Result<Operation, DeviceErrorKind> {
        if zone >= self.zoned.zones {
            return Err(DeviceErrorKind::Invalid);
        }
        if self.is_placed() {
            return Ok(self.change_placed(zone, change, random));
        }
        self.states.change(zone, change)?;
        let operation = self.next_operation();
        let own = &mut self.zones[zone as usize];
        match change {
            ZoneChange::Reset => {
                let before = Box::new(own.clone());
                own.versions.clear();
                (own.written, own.durable, own.is_finished, own.finishing) = (0, 0, false, None);
                own.before = Some((operation, before));
            }
            ZoneChange::Finish if !own.is_finished => {
                (own.is_finished, own.finishing) = (true, Some(operation));
            }
            _ => {}
        }
        self.places.insert(operation, (zone, 0));
        Ok(operation)
    }

    /// A reset overwrites the header, and then the discard takes what it likes.
    fn change_placed(&mut self, zone: u32, change: ZoneChange, random: &Random) -> Operation {
        let (header, discard) = (self.next_operation(), self.next_operation());
        let own = &mut self.zones[zone as usize];
        if change == ZoneChange::Reset {
            own.put(0, header, None);
            self.places.insert(header, (zone, 0));
            if random.one_in(2) {
                (1..own.blocks.len() as u32).for_each(|block| own.put(block, discard, None));
                self.places.insert(discard, (zone, 0));
                self.returned.insert(discard);
            }
        }
        header
    }

    /// The operation has returned; with `durable` it is so from now on.
    pub(crate) fn returned(&mut self, operation: Operation, durable: bool) {
        self.returned.insert(operation);
        if durable || self.is_placed() && self.is_reset(operation) {
            self.made_durable(&[operation]);
        }
    }

    fn is_reset(&self, operation: Operation) -> bool {
        self.places.get(&operation).is_some_and(|(_, end)| *end == 0)
    }

    /// What a flush that is sent now covers.
    pub(crate) fn flush_covers(&self) -> Vec<Operation> {
        self.places.keys().copied().filter(|operation| self.returned.contains(operation)).collect()
    }

    pub(crate) fn made_durable(&mut self, operations: &[Operation]) {
        for &operation in operations {
            self.returned.remove(&operation);
            if let Some((zone, end)) = self.places.remove(&operation) {
                self.zones[zone as usize].made_durable(operation, end);
            }
        }
    }

    /// Whether a range can be read.
    pub(crate) fn readable(&self, offset: DeviceOffset, bytes: u64) -> Result<(), DeviceErrorKind> {
        let offset_bytes = offset.get();
        let zones = offset_bytes / self.zoned.zone_bytes..=(offset_bytes + bytes - 1) / self.zoned.zone_bytes;
        zones.into_iter().try_for_each(|zone| self.states.read(zone as u32))
    }

    /// Copies contents out; a range lies in one zone's capacity.
    pub(crate) fn read(&self, offset: DeviceOffset, data: &mut [u8], metadata: &mut [u8]) {
        let offset_bytes = offset.get();
        let own = &self.zones[(offset_bytes / self.zoned.zone_bytes) as usize];
        let in_zone = offset_bytes % self.zoned.zone_bytes;
        for (index, target) in data.chunks_mut(BLOCK as usize).enumerate() {
            let block = own.blocks.get((in_zone / BLOCK) as usize + index).and_then(Option::as_ref);
            let beside = metadata.get_mut(index * METADATA..(index + 1) * METADATA);
            match block {
                Some(block) => {
                    target.copy_from_slice(&block.data[..target.len()]);
                    beside.into_iter().for_each(|beside| beside.copy_from_slice(&block.beside));
                }
                None => {
                    target.fill(0);
                    beside.into_iter().for_each(|beside| beside.fill(0));
                }
            }
        }
    }

    /// Flips one bit of a block, or of what stands beside it.
    pub(crate) fn flip(&mut self, zone: u32, block: u32, bit: usize) {
        let own = &mut self.zones[zone as usize].blocks[block as usize];
        let zeroes = || Contents { data: [0; BLOCK as usize], beside: [0; METADATA] };
        let mut new = own.as_ref().map_or_else(zeroes, |old| Contents { data: old.data, beside: old.beside });
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        match byte.checked_sub(BLOCK as usize) {
            None => new.data[byte] ^= mask,
            Some(byte) => new.beside[byte % METADATA] ^= mask,
        }
        *own = Some(Rc::new(new));
    }

    /// What a power cut leaves.
    pub(crate) fn cut(&self, survival: Survival, random: &Random) -> Medium {
        if survival == Survival::Killed {
            let mut left = self.clone();
            left.returned.extend(left.places.keys()); // a flush covers what was applied before it is sent
            return left;
        }
        let mut left = Medium::new(Rc::clone(&self.zoned), self.unit);
        left.operations = self.operations;
        for number in 0..self.zoned.zones {
            let zone = self.zones[number as usize].settled(survival, random);
            let state = self.states.zone(number).state;
            left.zones[number as usize] = zone.cut(survival, random, self.is_placed(), self.unit);
            match state {
                ZoneState::ReadOnly | ZoneState::Offline => left.states.turn(number, state),
                ZoneState::NoPointer => {}
                _ => left.restart(number, survival, random),
            }
        }
        left
    }

    /// The state of a zone after a restart, within the limits: a drive that has no room for one more active zone finishes it.
    fn restart(&mut self, number: u32, survival: Survival, random: &Random) {
        let own = &mut self.zones[number as usize];
        let hostile = survival == Survival::Some { hostile: true };
        // Of one that was finished before all blocks may have been written, wherever its pointer was then.
        let finishes = own.written > 0 && hostile && random.one_in(10) && !own.is_finished;
        if finishes {
            // What was never written since the reset is deallocated: a zone that the drive fills shows no earlier life.
            let end = own.written.div_ceil(BLOCK) as usize;
            own.blocks.iter_mut().skip(end).for_each(|block| *block = None);
        }
        if own.is_finished || finishes {
            own.is_finished = true;
            return self.states.turn(number, ZoneState::Full);
        }
        if own.written == 0 {
            return;
        }
        if self.states.write(number, 0, own.written).is_err() {
            own.is_finished = true;
            return self.states.turn(number, ZoneState::Full);
        }
        own.is_finished = self.states.zone(number).state == ZoneState::Full;
        let stays_open = hostile && random.one_in(4);
        if !own.is_finished && !stays_open {
            self.states.change(number, ZoneChange::Close).expect("it is open");
        }
    }
}

impl ZoneMedium {
    fn put(&mut self, block: u32, operation: Operation, contents: Block) {
        let before = std::mem::replace(&mut self.blocks[block as usize], contents.clone());
        let base = || vec![Version { operation: 0, block: before }];
        let versions = self.versions.entry(block).or_insert_with(base);
        versions.push(Version { operation, block: contents });
    }

    fn made_durable(&mut self, operation: Operation, end: u64) {
        if let Some((reset, before)) = &mut self.before {
            if operation < *reset {
                return before.made_durable(operation, end);
            }
            self.before = None; // what is durable behind a reset takes it along
        }
        self.durable = self.durable.max(end.min(self.written));
        if self.finishing == Some(operation) {
            self.finishing = None;
            self.durable = self.written;
        }
        self.versions.retain(|_, versions| {
            if let Some(at) = versions.iter().position(|version| version.operation == operation) {
                versions.drain(..at);
            }
            versions.len() > 1
        });
    }

    /// The zone, or what it was before a reset that does not outlive the cut.
    fn settled(&self, survival: Survival, random: &Random) -> &ZoneMedium {
        match &self.before {
            Some((_, before)) if !survival.keeps(random) => before.settled(survival, random),
            _ => self,
        }
    }

    fn cut(&self, survival: Survival, random: &Random, is_placed: bool, unit: u64) -> ZoneMedium {
        let is_finished = self.is_finished && (self.finishing.is_none() || survival.keeps(random));
        let span = self.written - self.durable;
        let pointer = match survival {
            Survival::Nothing => self.durable,
            Survival::Everything | Survival::Killed => self.written,
            Survival::Some { .. } => {
                let grain = random.pick(&[unit, BLOCK, span.max(BLOCK)]);
                (self.durable + random.below(span / grain + 1) * grain).min(self.written)
            }
        };
        let mut blocks = self.blocks.clone();
        for (&block, versions) in &self.versions {
            let is_below = is_placed || is_finished || u64::from(block) * BLOCK < pointer;
            let newest = versions.last().expect("not empty");
            blocks[block as usize] = match survival {
                Survival::Everything | Survival::Killed => newest.block.clone(),
                Survival::Nothing => versions[0].block.clone(),
                Survival::Some { hostile } if hostile && !is_placed && is_below && random.one_in(2) => {
                    foreign(&versions[0].block, &newest.block, unit, random)
                }
                Survival::Some { .. } => versions[random.below(versions.len() as u64) as usize].block.clone(),
            };
        }
        ZoneMedium {
            blocks,
            versions: BTreeMap::new(),
            written: pointer,
            durable: pointer,
            is_finished,
            finishing: None,
            before: None,
        }
    }
}

/// What a hostile drive leaves of an unflushed block: zeroes, a client's bytes, or, of 512-byte blocks, a part of each.
fn foreign(old: &Block, new: &Block, unit: u64, random: &Random) -> Block {
    let Some(new) = new else { return None };
    let mut left = Contents { data: new.data, beside: new.beside };
    match random.below(if unit < BLOCK { 4 } else { 2 }) {
        0 => return None,
        1 => {
            crate::pages::fill(&mut left.data, random.below(16), 1 + random.below(9) as u32);
            left.beside = [0x5a; METADATA];
        }
        _ => {
            for (index, part) in left.data.chunks_exact_mut(unit as usize).enumerate() {
                if random.one_in(2) {
                    let start = index * unit as usize;
                    match old {
                        Some(old) => part.copy_from_slice(&old.data[start..start + unit as usize]),
                        None => part.fill(0),
                    }
                }
            }
        }
    }
    Some(Rc::new(left))
}
