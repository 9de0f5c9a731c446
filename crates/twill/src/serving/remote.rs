//! Members on other machines in a served array: what happens to them is told to the operator, and those that come back are
//! taken back by the bitmap.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use engine::array::volume::VolumeMode;
use engine::events::Event;
use engine::members::MemberState;
use engine::stripe::Shared;
use host::device::SharedDevice;
use host::device::nvme_tcp::{RemoteEvent, RemoteState};
use parking_lot::Mutex;

use super::event_log::EventLog;
use super::platform::Known;
use layout::units::Slot;

/// Follows the members of one array.
pub(super) struct Remotes {
    log: Arc<EventLog>,
    known: Arc<Mutex<Known>>,
    shared: Arc<Shared>,
    mode: Arc<VolumeMode>,
    /// Members that were lost, and have not come back for good.
    lost: Mutex<BTreeSet<PathBuf>>,
    /// Members whose machines were down at the start.
    absent: Mutex<BTreeSet<PathBuf>>,
}

impl Remotes {
    pub(super) fn new(
        log: &Arc<EventLog>,
        known: &Arc<Mutex<Known>>,
        shared: &Arc<Shared>,
        mode: &Arc<VolumeMode>,
    ) -> Arc<Self> {
        let (log, known) = (Arc::clone(log), Arc::clone(known));
        let (shared, mode) = (Arc::clone(shared), Arc::clone(mode));
        Arc::new(Remotes { log, known, shared, mode, lost: Mutex::default(), absent: Mutex::default() })
    }

    /// Follows what happens to a device, if it is on another machine.
    pub(super) fn follow(self: &Arc<Self>, device: &SharedDevice) {
        let Some(remote) = device.remote() else { return };
        let remotes = Arc::downgrade(self);
        remote.listen(Box::new(move |name, event| {
            if let Some(remotes) = remotes.upgrade() {
                remotes.happened(name, event);
            }
        }));
    }

    fn happened(&self, name: &str, event: RemoteEvent) {
        let slot = slot_of(&self.known.lock(), name);
        match (slot, event) {
            // F-I7: nothing is written any more, and no member fails.
            (_, RemoteEvent::Fenced { reason }) => {
                self.mode.fenced.store(true, Relaxed);
                self.shared.members.set_fenced(&format!("{name}: {reason}"));
            }
            (Some(member), RemoteEvent::Away { reason }) => {
                self.lost.lock().insert(name.into());
                self.log.add(Event::MemberAway { member, reason });
            }
            (Some(member), RemoteEvent::Back { after }) => {
                if self.shared.members.state(member) != MemberState::Failed {
                    self.lost.lock().remove(Path::new(name));
                }
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                self.log.add(Event::MemberBack { member, after_ms });
            }
            (Some(member), RemoteEvent::Ended { reason }) => {
                self.lost.lock().insert(name.into());
                self.log.add(Event::MemberEnded { member, reason });
            }
            (None, _) => {}
        }
    }

    /// A member needs no more attention.
    pub(super) fn settle(&self, path: &Path) {
        self.lost.lock().remove(path);
        self.absent.lock().remove(path);
    }

    /// Members whose machines were down at the start are to be taken back.
    pub(super) fn expect(&self, absent: Vec<PathBuf>) {
        self.absent.lock().extend(absent);
    }

    /// Those of them that have not come.
    pub(super) fn absent(&self) -> Vec<PathBuf> {
        self.absent.lock().iter().cloned().collect()
    }

    /// Failed members that were lost and may be taken back now.
    pub(super) fn due(&self) -> Vec<PathBuf> {
        let known = self.known.lock();
        let is_due = |path: &&PathBuf| {
            let name = path.display().to_string();
            let Some(slot) = slot_of(&known, &name) else { return false };
            let device = known.devices.get(&name).and_then(SharedDevice::remote);
            let state = device.map(|device| device.status().state);
            let may_come = matches!(state, Some(RemoteState::Connected | RemoteState::Ended));
            may_come && self.shared.members.state(slot) == MemberState::Failed
        };
        self.lost.lock().iter().filter(is_due).cloned().collect()
    }
}

/// The slot of the member with this name.
fn slot_of(known: &Known, name: &str) -> Option<Slot> {
    let mut members = Slot::all().zip(&known.paths);
    members.find(|(_, path)| path.as_deref() == Some(Path::new(name))).map(|(slot, _)| slot)
}
