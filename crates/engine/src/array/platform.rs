//! What the management of an array needs from the program or the simulator that runs it.

use std::future::Future;
use std::rc::Rc;

use super::scrub::ScrubState;
use layout::units::{DeviceOffset, Slot};

/// Shards, time, and a place for what the members have no place for.
pub trait Platform<D>: 'static {
    /// Puts a device into a slot on every shard, or takes it out; returns when every shard has done so.
    fn attach(&self, slot: Slot, device: Option<(Rc<D>, DeviceOffset)>) -> impl Future<Output = ()>;

    /// Puts a device beside the member in a slot on every shard, or takes it away; returns when every shard has done so.
    fn attach_replacement(
        &self,
        slot: Slot,
        device: Option<(Rc<D>, DeviceOffset)>,
    ) -> impl Future<Output = ()>;

    /// The device beside the member in a slot takes its place on every shard; returns when every shard has done so.
    fn promote_replacement(&self, slot: Slot) -> impl Future<Output = ()>;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// Seconds since 1970, for superblocks.
    fn now_unix_s(&self) -> u64;

    /// A random number other than 0, one that was not drawn before on any machine.
    fn new_id(&self) -> u64;

    /// Returns when `ns` nanoseconds or more have passed by [`Platform::now_ns`].
    fn sleep(&self, ns: u64) -> impl Future<Output = ()>;

    /// Called after each batch of a scrub and each piece of a resync or recovery with the member bytes it covered. It wakes
    /// its task every [`LOOK_NS`](crate::limits::LOOK_NS) at least while it waits: work that is not wanted any more does not
    /// wait on.
    fn pace(&self, bytes: u64) -> impl Future<Output = ()>;

    /// Keeps how far a scrub is for the next run.
    fn keep_scrub(&self, state: &ScrubState);
}
