//! Reservation commands of an I/O queue: from the command with its data to the answer.

use engine::buffer::{Gather, Slice};
use nvme_tcp::command::{Sqe, io};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::ReservationAnswer;
use nvme_tcp::target::queue::Slot;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::association::Associations;
use super::connection_limits::TRANSFER_BYTES_MAX;
use super::gate::Gate;
use super::link::Link;
use super::server_state::Shared;
use super::subsystems::{Changed, Entry};

/// Between two looks at whether former commands have ended.
const LOOK: Duration = Duration::from_millis(1);
/// Data of the commands that have any: two keys, and room for more to come.
const OUT_BYTES_MAX: u32 = 4096;

/// A reservation command.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservationWork {
    namespace: u32,
    opcode: u8,
    dwords: [u32; 2],
    data_bytes: u32,
}

impl ReservationWork {
    /// The command, if it is one.
    ///
    /// # Errors
    /// The status to answer with: more data than such a command has.
    pub fn parse(sqe: &Sqe, data_bytes: u32) -> Result<Option<ReservationWork>, Status> {
        let opcode = sqe.opcode;
        let most = match opcode {
            io::RESERVATION_REPORT => TRANSFER_BYTES_MAX,
            io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE | io::RESERVATION_RELEASE => OUT_BYTES_MAX,
            _ => return Ok(None),
        };
        if data_bytes > most {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        let dwords = [sqe.cdw10.get(), sqe.cdw11.get()];
        Ok(Some(ReservationWork { namespace: sqe.nsid.get(), opcode, dwords, data_bytes }))
    }

    /// Bytes of data that the command moves.
    pub fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// Bytes of data that the host sends.
    pub fn data_out_bytes(&self) -> u32 {
        if self.opcode == io::RESERVATION_REPORT { 0 } else { self.data_bytes }
    }

    /// Carries it out in a task of its own, which answers it.
    pub fn carry_out(self, shared: &Arc<Shared>, gate: &Rc<Gate>, link: Rc<Link>, slot: Slot, data: &Gather) {
        let mut bytes = vec![0; data.len()];
        data.copy_to(&mut bytes);
        let (shared, gate) = (Arc::clone(shared), Rc::clone(gate));
        gate.shard.clone().executor.spawn(async move {
            let (status, data) = match self.apply(&shared, &gate, bytes).await {
                Ok(data) => (Status::SUCCESS, data),
                Err(status) => (status, Gather::new()),
            };
            link.answer(slot, status, 0, data);
        });
    }

    async fn apply(self, shared: &Shared, gate: &Gate, data: Vec<u8>) -> Result<Gather, Status> {
        let ReservationWork { namespace, opcode, dwords, data_bytes } = self;
        let host = gate.host.clone();
        if opcode == io::RESERVATION_REPORT {
            let answer = gate.entry.with(|one| one.reservation(&host, namespace, opcode, dwords, &data))?;
            return match answer {
                ReservationAnswer::Report(report) => padded(report, data_bytes),
                ReservationAnswer::Change(_) => Err(Status::INTERNAL_ERROR),
            };
        }
        let changed = gate.entry.change(namespace, move |subsystem| {
            match subsystem.reservation(&host, namespace, opcode, dwords, &data)? {
                ReservationAnswer::Change(change) => Ok(change),
                ReservationAnswer::Report(_) => Err(Status::INTERNAL_ERROR),
            }
        });
        let changed = changed.await.map_err(|_| Status::INTERNAL_ERROR)??;
        // F-I6: what gathers for a host that has lost its right is aborted, so that it holds no preempt up.
        gate.entry.review_attaches(namespace);
        notify(&shared.associations, &gate.entry, namespace, &changed);
        if opcode == io::RESERVATION_ACQUIRE {
            // F-I6: whichever host was the holder before this one, all that began before is over when this is answered. A command
            // has its data when it begins, so it ends by itself.
            while gate.entry.queues.has_before(namespace, changed.epoch) {
                gate.shard.ring.sleep(LOOK).await;
            }
        }
        Ok(Gather::new())
    }
}

/// A report as long as the host has room for: what is behind it reads as zeroes.
fn padded(mut report: Vec<u8>, bytes: u32) -> Result<Gather, Status> {
    if report.len() > bytes as usize {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    report.resize(bytes as usize, 0);
    Ok(Slice::from_bytes(&report).into())
}

/// Hosts that lost something hear of it, and so does the operator.
pub(super) fn notify(associations: &Associations, entry: &Entry, namespace: u32, changed: &Changed) {
    let subsystem = entry.with(|subsystem| subsystem.facts().nqn.clone());
    for victim in &changed.change.victims {
        let host = &victim.host.nqn;
        tracing::warn!(%host, %subsystem, namespace, "another host has taken this one's registration: it may use the namespace only as a stranger");
    }
    for notice in &changed.change.notices {
        associations.notify(&subsystem, notice, namespace);
    }
}
