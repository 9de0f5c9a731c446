//! A zoned array at work: how members leave it, and how it ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::check::check;
use super::keeper::{Phase, Said};
use crate::array::scrub::{self, Phase as ScrubPhase, Refused, ScrubRequest, ScrubState};
use crate::error::VolumeError;
use crate::events::Event;
use crate::log::flush::flush_members;
use crate::log::port::{Blame, LogPort};
use crate::log::recover::found::RecoveryReport;
use crate::log::shared::LogShared;
use crate::members::{Failing, MemberState};
use crate::mismatch::Unit;
use crate::zone_device::ZoneDevice;

/// An array that was started and is not stopped yet. Lives on one shard.
pub struct Running<D> {
    port: Rc<LogPort<D>>,
    said: Rc<Said>,
    report: RecoveryReport,
    scrub: Rc<RefCell<Option<ScrubState>>>,
    is_checking: Rc<Cell<bool>>,
}

impl<D: ZoneDevice> Running<D> {
    pub(super) fn new(port: Rc<LogPort<D>>, said: Rc<Said>, report: RecoveryReport) -> Self {
        Running { port, said, report, scrub: Rc::default(), is_checking: Rc::default() }
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

    /// Starts, pauses, resumes or cancels a check.
    ///
    /// # Errors
    /// Why not.
    pub fn request_check(&self, request: ScrubRequest) -> Result<(), Refused> {
        let state = scrub::apply(self.scrub.borrow().as_ref(), request)?;
        let is_running = state.phase == ScrubPhase::Running;
        let from = Unit::Segment(state.next_stripe);
        *self.scrub.borrow_mut() = Some(state);
        if is_running && !self.is_checking.replace(true) {
            self.shared().members.report(Event::ScrubStarted { repair: false, from });
            let (port, scrub) = (Rc::clone(&self.port), Rc::clone(&self.scrub));
            let is_checking = Rc::clone(&self.is_checking);
            self.port.executor.spawn(async move {
                check(port, scrub).await;
                is_checking.set(false);
            });
        }
        Ok(())
    }

    /// The last check, with all it found.
    pub fn check_state(&self) -> Option<ScrubState> {
        self.scrub.borrow().clone()
    }

    /// The last superblocks of a run: they say clean if `closed` tells that every shard closed its segments and made them
    /// durable. No request is in flight.
    ///
    /// # Errors
    /// Something could not be made durable, or superblocks not written: the next start finds out what is there.
    pub async fn stop(&self, closed: Result<(), VolumeError>) -> Result<(), VolumeError> {
        if let Some(check) = self.scrub.borrow_mut().as_mut().filter(|check| check.is_open()) {
            check.phase = ScrubPhase::Cancelled;
        }
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
