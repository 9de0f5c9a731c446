//! What the manager of an array needs from whoever runs it: shards that are told one after another, and time.

use std::rc::Rc;

use engine::array::scrub::ScrubState;
use engine::array::state::Platform;
use engine::stripe::{Attached, StripeSet};

use crate::array::Machine;
use crate::disk::SimDevice;

pub(crate) struct SimPlatform {
    machine: Rc<Machine>,
    sets: Vec<Rc<StripeSet<SimDevice>>>,
}

impl SimPlatform {
    pub(crate) fn new(machine: &Rc<Machine>, sets: Vec<Rc<StripeSet<SimDevice>>>) -> Self {
        SimPlatform { machine: Rc::clone(machine), sets }
    }
}

impl Platform<SimDevice> for SimPlatform {
    async fn attach(&self, slot: u32, device: Option<(Rc<SimDevice>, u64)>) {
        let world = &self.machine.world;
        for set in &self.sets {
            if world.random().one_in(3) {
                world.sleep_up_to(20).await;
            }
            let attached = device.as_ref().map(|(device, data_offset_bytes)| Attached {
                device: SimDevice(Rc::clone(&device.0)),
                data_offset_bytes: *data_offset_bytes,
            });
            set.attach(slot, attached);
        }
        self.machine.disks.borrow_mut()[slot as usize] = device.map(|(device, _)| Rc::clone(&device.0));
    }

    async fn pause(&self) {
        let world = &self.machine.world;
        let ticks = world.random().between(1, self.machine.scenario.look);
        world.look_after(ticks).await;
    }

    async fn pace(&self, _bytes: u64) {
        if self.machine.world.random().one_in(2) {
            self.machine.world.sleep_up_to(20).await;
        }
    }

    fn keep_scrub(&self, _state: &ScrubState) {}
}
