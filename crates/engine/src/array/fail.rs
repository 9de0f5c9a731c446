//! An operator takes a member out of use that still works, or may. Unlike one that fails on its own there is time to log
//! writes first: no crash then leaves a stripe in doubt, not even one right after it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::state::{Manager, Platform};
use crate::device::Device;
use crate::members::Failing;

/// With five looks a second, two seconds: the log waits for writes that are on their way, and those to a member that hangs,
/// which may be why it is to fail, take much longer.
const LOOKS_MAX: u32 = 10;

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// Stops using a member, unless the array would be lost without it.
    pub async fn fail(&self, slot: u32, reason: &str) -> Failing {
        let shared = &self.set.shared;
        let members = &shared.members;
        let expected = members.expect_failure();
        shared.redo.poke();
        {
            let mut ready = pin!(shared.redo.ready_for_failure(members));
            let mut patience = pin!(async {
                for _ in 0..LOOKS_MAX {
                    self.platform.pause().await;
                }
            });
            poll_fn(|context| match (ready.as_mut().poll(context), patience.as_mut().poll(context)) {
                (Poll::Pending, Poll::Pending) => Poll::Pending,
                _ => Poll::Ready(()),
            })
            .await;
        }
        let failing = members.fail(slot, reason);
        drop(expected);
        shared.redo.poke();
        failing
    }
}
