//! What the manager of an array needs from the simulator: changes that reach one shard after another, and time.

use std::rc::Rc;

use engine::array::platform::Platform;
use engine::array::scrub::ScrubState;
use engine::in_place::InPlace;
use engine::limits::LOOK_NS;
use engine::members::Attached;

use crate::disk::SimDevice;
use crate::machine::Machine;
use layout::units::{DeviceOffset, Slot};

pub(crate) struct SimPlatform {
    machine: Rc<Machine>,
    /// The host that the array runs on.
    host: u64,
    sets: Vec<Rc<InPlace<SimDevice>>>,
}

impl SimPlatform {
    pub(crate) fn new(machine: &Rc<Machine>, sets: Vec<Rc<InPlace<SimDevice>>>) -> Self {
        SimPlatform { machine: Rc::clone(machine), host: machine.hosts.current(), sets }
    }

    /// Makes a change on one shard after another, with time between.
    async fn tell(&self, change: impl Fn(&InPlace<SimDevice>)) {
        let world = &self.machine.world;
        for set in &self.sets {
            if world.random().one_in(3) {
                world.sleep_up_to(20).await;
            }
            change(set);
        }
    }

    /// Whether the devices in slots are still this array's to change. A fenced host goes on with its own.
    fn is_current(&self) -> bool {
        self.machine.hosts.is_current(self.host)
    }

    /// The manager's clock is faster than that of the members' operations: it looks as often as the scenario has it.
    fn tick_ns(&self) -> u64 {
        (3 * LOOK_NS / self.machine.scenario.look).div_ceil(2)
    }
}

fn attached(device: &Option<(Rc<SimDevice>, DeviceOffset)>) -> Option<Attached<SimDevice>> {
    device
        .as_ref()
        .map(|(device, data_offset)| Attached { device: SimDevice::clone(device), data_offset: *data_offset })
}

impl Platform<SimDevice> for SimPlatform {
    async fn attach(&self, slot: Slot, device: Option<(Rc<SimDevice>, DeviceOffset)>) {
        self.tell(|set| set.devices().attach(slot, attached(&device))).await;
        if self.is_current() {
            self.machine.disks.borrow_mut()[slot.index()] = device.map(|(device, _)| Rc::clone(&device.0));
        }
    }

    async fn attach_replacement(&self, slot: Slot, device: Option<(Rc<SimDevice>, DeviceOffset)>) {
        self.tell(|set| set.devices().attach_replacement(slot, attached(&device))).await;
        if self.is_current() {
            self.machine.coming.borrow_mut()[slot.index()] = device.map(|(device, _)| Rc::clone(&device.0));
        }
    }

    async fn promote_replacement(&self, slot: Slot) {
        self.tell(|set| set.devices().promote_replacement(slot)).await;
        if self.is_current() {
            let replacement = self.machine.coming.borrow_mut()[slot.index()].take();
            self.machine.disks.borrow_mut()[slot.index()] = replacement;
        }
    }

    fn now_ns(&self) -> u64 {
        self.machine.world.now() * self.tick_ns()
    }

    fn now_unix_s(&self) -> u64 {
        self.machine.world.now()
    }

    fn new_id(&self) -> u64 {
        self.machine.new_generation()
    }

    /// Up to half a look later than asked for.
    async fn sleep(&self, ns: u64) {
        let world = &self.machine.world;
        let ticks_min = ns.div_ceil(self.tick_ns());
        let late = world.random().below(self.machine.scenario.look / 3 + 1);
        world.look_after(ticks_min + late).await;
    }

    async fn pace(&self, _bytes: u64) {
        if self.machine.world.random().one_in(2) {
            self.machine.world.sleep_up_to(20).await;
        }
    }

    fn keep_scrub(&self, _state: &ScrubState) {}
}
