//! What tells one state of a [`Machine`] from another.

use layout::geometry::Level;
use layout::md_superblock::DeviceRole;
use layout::units::Slot;

use super::{Device, Machine};

/// What tells this machine from others, whatever ids, event counts and values were drawn, and whatever member is where if
/// that makes no difference.
pub(in crate::array) fn key(machine: &Machine) -> Vec<u8> {
    let mut key = Key::default();
    let mut order: Vec<usize> = (0..machine.devices.len()).collect();
    if machine.geometry.level() == Level::Raid10 {
        Slot::first(4).for_each(|slot| _ = position(&mut key.slots, slot)); // pairs
    } else {
        order.sort_by_cached_key(|device| likeness(machine, &machine.devices[*device]));
    }
    order.iter().for_each(|device| _ = key.of_device(machine.devices[*device].superblock.device_uuid()));
    for &device in &order {
        add(&mut key, machine, &machine.devices[device], &order);
    }
    key.byte(u32::from(machine.is_forced));
    key.finish()
}

/// What can be said of a device without naming another one.
fn likeness(machine: &Machine, device: &Device) -> impl Ord + use<> {
    let superblock = &device.superblock;
    let newer = machine.devices.iter().filter(|other| other.superblock.events() > superblock.events());
    let same = machine.devices.iter().filter(|other| other.cells == device.cells);
    let told = device.generations().map(|record| record.generations.history.len());
    let active = superblock.roles().filter(|role| matches!(role, DeviceRole::Active(_)));
    (newer.count(), same.count(), told, active.count(), device.marks, device.cells.map(|cell| cell == 0))
}

fn add(key: &mut Key, machine: &Machine, device: &Device, order: &[usize]) {
    let superblock = &device.superblock;
    key.events(superblock.events());
    key.events(device.cleared);
    key.byte(u32::from(superblock.recovery_offset().is_some()));
    let others = || order.iter().map(|device| &machine.devices[*device]);
    let names = others().position(|other| other.superblock.dev_number() == superblock.dev_number());
    key.byte(u32::try_from(names.expect("itself")).expect("a few"));
    for other in others() {
        match superblock.role_of(other.superblock.dev_number()) {
            Some(DeviceRole::Active(slot)) => key.slot(slot),
            Some(DeviceRole::Faulty) => key.byte(101),
            _ => key.byte(100),
        }
    }
    match device.generations().map(|record| &record.generations) {
        None => key.byte(0),
        Some(told) => {
            key.byte(1 + u32::try_from(told.history.len()).expect("a few"));
            let ids = std::iter::once(&told.current).chain(&told.history).chain([&told.bitmap]);
            ids.for_each(|id| key.id(*id));
            let mut members: Vec<u32> =
                told.members.iter().flatten().map(|uuid| key.of_device(*uuid)).collect();
            members.sort_unstable();
            key.byte(u32::try_from(members.len()).expect("a few"));
            members.into_iter().for_each(|member| key.byte(member));
            key.events(told.since_events);
        }
    }
    device.cells.iter().for_each(|value| key.value(*value));
    key.byte(device.marks.into());
    // How the write that it holds stands to those of others.
    others().for_each(|other| key.byte(u32::from(machine.leads_to(device.head, other.head))));
}

/// A state without the numbers that were drawn: what is equal but for these is equal.
#[derive(Default)]
struct Key {
    bytes: Vec<u8>,
    ids: Vec<u64>,
    values: Vec<u32>,
    slots: Vec<Slot>,
    devices: Vec<[u8; 16]>,
    events: Vec<(usize, u64)>,
}

impl Key {
    fn byte(&mut self, value: u32) {
        self.bytes.push(u8::try_from(value).expect("a small number"));
    }

    fn id(&mut self, id: u64) {
        let at = position(&mut self.ids, id);
        self.byte(at);
    }

    fn value(&mut self, value: u32) {
        let at = position(&mut self.values, value);
        self.byte(at);
    }

    fn slot(&mut self, slot: Slot) {
        let at = position(&mut self.slots, slot);
        self.byte(at);
    }

    fn of_device(&mut self, uuid: [u8; 16]) -> u32 {
        position(&mut self.devices, uuid)
    }

    /// Of event counts only the order counts, and whether two are neighbours.
    fn events(&mut self, events: u64) {
        self.events.push((self.bytes.len(), events));
        self.bytes.push(0);
    }

    fn finish(mut self) -> Vec<u8> {
        let mut sorted: Vec<u64> = self.events.iter().map(|(_, events)| *events).collect();
        sorted.sort_unstable();
        sorted.dedup();
        for (at, events) in &self.events {
            let below = sorted.windows(2).take_while(|pair| pair[1] <= *events);
            let steps: u64 = below.map(|pair| (pair[1] - pair[0]).min(3)).sum();
            self.bytes[*at] = u8::try_from(steps).expect("a few rounds");
        }
        self.bytes
    }
}

fn position<T: PartialEq>(known: &mut Vec<T>, wanted: T) -> u32 {
    let at = known.iter().position(|known| *known == wanted).unwrap_or_else(|| {
        known.push(wanted);
        known.len() - 1
    });
    u32::try_from(at).expect("a few")
}
