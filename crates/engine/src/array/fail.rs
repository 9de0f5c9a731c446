//! An operator takes a member out of use that still works, or may. Unlike one that fails on its own there is time to log
//! writes first: no crash then leaves a stripe in doubt, not even one right after it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::platform::Platform;
use super::state::Manager;
use crate::device::Device;
use crate::limits::{ANSWER_NS, LOG_IN_FORCE_NS};
use crate::members::Failing;

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// Stops using a member, unless the array would be lost without it. One that does not answer, which may be why it is to
    /// fail, fails at once: what comes before the log would wait for it, and all writes with that.
    pub async fn fail(&self, slot: u32, reason: &str) -> Failing {
        let (members, redo) = (&self.set.shared.members, &self.set.shared.redo);
        let Some(member) = self.set.devices().described(slot).filter(|_| redo.is_used()) else {
            return members.fail(slot, reason);
        };
        // A read, whatever comes of it: what a flush says must not be lost here.
        let block = self.set.pool().take(member.device.info().logical_block_bytes as usize);
        let asked = Rc::clone(&member);
        let answer = self.set.executor.spawn_with_result(async move {
            _ = asked.device.read(asked.data_offset_bytes, block).await;
        });
        if self.in_time(ANSWER_NS, answer).await.is_none() {
            return members.fail(slot, reason);
        }
        let expected = members.expect_failure();
        redo.poke();
        self.in_time(LOG_IN_FORCE_NS, redo.ready_for_failure(members)).await;
        // It may have failed by itself meanwhile, and another device has the slot.
        let failing = match self.set.devices().is_in_slot(slot, &member) {
            true => members.fail(slot, reason),
            false => Failing::Failed,
        };
        drop(expected);
        redo.poke();
        failing
    }

    /// What some work comes to, unless that takes too long.
    async fn in_time<T>(&self, limit_ns: u64, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut patience = pin!(self.platform.sleep(limit_ns));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
