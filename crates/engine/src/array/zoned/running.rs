//! A zoned array at work: how members leave it, and how it ends.

use std::rc::Rc;
use std::sync::Arc;

use super::keeper::{Phase, Said};
use crate::error::VolumeError;
use crate::log::flush::flush_members;
use crate::log::port::{Blame, LogPort};
use crate::log::recover::found::RecoveryReport;
use crate::log::shared::LogShared;
use crate::members::{Failing, MemberState};
use crate::zone_device::ZoneDevice;

/// An array that was started and is not stopped yet. Lives on one shard.
pub struct Running<D> {
    port: Rc<LogPort<D>>,
    said: Rc<Said>,
    report: RecoveryReport,
}

impl<D: ZoneDevice> Running<D> {
    pub(super) fn new(port: Rc<LogPort<D>>, said: Rc<Said>, report: RecoveryReport) -> Self {
        Running { port, said, report }
    }

    /// What all shards share.
    pub fn shared(&self) -> &Arc<LogShared> {
        &self.port.shared
    }

    /// This shard's way to the members.
    pub fn port(&self) -> &Rc<LogPort<D>> {
        &self.port
    }

    /// What the superblocks say.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// What the start found and did.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Takes a member out of use. On return the other members' superblocks call it failed.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub async fn fail(&self, slot: usize, reason: &str) -> Result<Failing, VolumeError> {
        let members = &self.shared().members;
        // Members that were not there from the start are failed already.
        if members.state(slot) != MemberState::InSync {
            return Ok(Failing::Failed);
        }
        match self.port.fail(slot, reason) {
            Blame::Array => Ok(Failing::Needed),
            Blame::Member | Blame::Zone => {
                members.settled().await?;
                Ok(Failing::Failed)
            }
        }
    }

    /// The last superblocks of a run: they say clean if `closed` tells that every shard closed its segments and made them
    /// durable. No request is in flight.
    ///
    /// # Errors
    /// Something could not be made durable, or superblocks not written: the next start finds out what is there.
    pub async fn stop(&self, closed: Result<(), VolumeError>) -> Result<(), VolumeError> {
        let durable = match closed {
            Ok(()) => flush_members(&self.port).await,
            Err(error) => Err(error),
        };
        let members = &self.shared().members;
        self.said.enter(if durable.is_ok() { Phase::Stopped } else { Phase::Abandoned });
        members.want_metadata();
        let settled = members.settled().await;
        durable?;
        Ok(settled?)
    }
}
