//! Admin commands of the fabric: a host tells a target of its attach, and asks how it stands.

use engine::buffer::Gather;
use nvme_tcp::command::Sqe;
use nvme_tcp::identify::NamespaceFacts;
use nvme_tcp::status::Status;
use nvme_tcp::target::queue::Slot;
use nvme_tcp::vendor::{
    ATTACH_BYTES_MAX, AttachMember, AttachRecord, AttachReport, Capability, LedgerAction, LedgerReport,
    LedgerStep, REPORT_BYTES, admin_opcode,
};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::super::association::Association;
use super::super::link::Link;
use super::super::subsystems::{Entry, Subsystems};
use super::attach::{Attach, Member, Way};
use crate::device::nvme_tcp::{Portal, RemoteAddress};

/// An Attach, or a step of a ledger, whose record is on its way.
pub(in super::super) struct AttachCommand {
    association: Arc<Association>,
    namespace: u32,
    bytes: u32,
    is_ledger_step: bool,
}

impl AttachCommand {
    /// The command, if it is one.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn parse(
        association: &Arc<Association>,
        sqe: &Sqe,
        data_bytes: u32,
    ) -> Result<Option<AttachCommand>, Status> {
        let is_ledger_step = sqe.opcode == admin_opcode::LEDGER_STEP;
        if !is_ledger_step && sqe.opcode != admin_opcode::ATTACH {
            return Ok(None);
        }
        entry_for_host(association)?;
        if data_bytes == 0 || data_bytes as usize > ATTACH_BYTES_MAX {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        let association = Arc::clone(association);
        let namespace = sqe.nsid.get();
        Ok(Some(AttachCommand { association, namespace, bytes: data_bytes, is_ledger_step }))
    }

    /// Bytes of the record.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The record is here: answers an Attach with the target's handle.
    pub fn carry_out(&self, subsystems: &Subsystems, link: &Rc<Link>, slot: Slot, data: &Gather) {
        let mut record = vec![0; data.len()];
        data.copy_to(&mut record);
        let done = match self.is_ledger_step {
            true => self.ledger_step(&record).map(|()| 0),
            false => self.attach(subsystems, &record),
        };
        match done {
            Ok(handle) => link.answer(slot, Status::SUCCESS, u64::from(handle), Gather::new()),
            Err(status) => link.answer(slot, status, 0, Gather::new()),
        }
    }

    fn attach(&self, subsystems: &Subsystems, record: &[u8]) -> Result<u32, Status> {
        let record = AttachRecord::parse(record)?;
        let (entry, host) = (entry_of(&self.association)?, &self.association.host);
        let source = entry.may_attach(host, self.namespace, record.key)?;
        let attach = entry.attaches.attach(self.namespace, host, record.key, source);
        // F-I6: it is entered first and its right looked at again then, so that a preempt between the two ends it.
        entry.review_attaches(self.namespace);
        if !record.members.is_empty() {
            self.set_members(subsystems, &attach, &record)?;
        }
        let (subsystem, handle) = (&self.association.subsystem, attach.handle());
        tracing::info!(%subsystem, namespace = self.namespace, host = %host.nqn, members = record.members.len(), "a host attaches");
        Ok(handle)
    }

    /// F-I6: as an attach, of a host that has the right now. What a former host writes later ends its ledger.
    fn ledger_step(&self, record: &[u8]) -> Result<(), Status> {
        let LedgerStep { action, id, key, area } = LedgerStep::parse(record)?;
        let (entry, host) = (entry_of(&self.association)?, &self.association.host);
        entry.may_attach(host, self.namespace, key)?;
        let NamespaceFacts { blocks, block_log2, .. } = facts_of(entry, self.namespace)?;
        if area.end > blocks {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        match action {
            LedgerAction::Begin => {
                let area = area.start << block_log2..area.end << block_log2;
                entry.ledgers.begin(self.namespace, id, host, area);
                Ok(())
            }
            LedgerAction::Complete if entry.ledgers.complete(self.namespace, id, host) => Ok(()),
            LedgerAction::Complete => Err(Status::NO_ATTACH),
        }
    }

    fn set_members(
        &self,
        subsystems: &Subsystems,
        attach: &Arc<Attach>,
        record: &AttachRecord,
    ) -> Result<(), Status> {
        let own = &record.members[usize::from(record.index)];
        let is_own = own.nsid == self.namespace
            && own.handle == attach.handle()
            && own.place.nqn == self.association.subsystem;
        if !is_own {
            return Err(Status::INVALID_FIELD);
        }
        let members = record.members.iter().enumerate().map(|(index, member)| {
            let way = if index == usize::from(record.index) { Way::Own } else { way(subsystems, member)? };
            let AttachMember { nsid, handle, shift_blocks, .. } = *member;
            Ok(Member { namespace: nsid, handle, shift_blocks, way })
        });
        let members = members.collect::<Result<_, Status>>()?;
        let given = entry_of(&self.association)?.peer_memory;
        let credit = if record.credit_bytes == 0 { given } else { given.min(record.credit_bytes) };
        let op_limit = Duration::from_millis(record.op_limit_ms.max(1).into());
        attach.set_members(record.index, credit, op_limit, members)
    }
}

/// How contributions get to a member.
fn way(subsystems: &Subsystems, member: &AttachMember) -> Result<Way, Status> {
    let place = &member.place;
    // A name is one subsystem in all the world: what this server has by it is what is meant.
    if let Some(entry) = subsystems.find(&place.nqn) {
        return Ok(Way::Here(Arc::downgrade(&entry.attaches)));
    }
    let address = RemoteAddress {
        portal: Portal { host: place.address.to_string(), port: place.service },
        nqn: place.nqn.clone(),
        namespace: member.nsid,
    };
    let connected = subsystems.peers.connect(&address).map_err(|error| {
        tracing::error!(peer = %address, %error, "no thread can be started that connects to a peer");
        Status::INTERNAL_ERROR
    })?;
    // A server that connects to no peers reaches none.
    Ok(connected.map_or_else(|| Way::Here(std::sync::Weak::new()), Way::Away))
}

fn facts_of(entry: &Entry, namespace: u32) -> Result<NamespaceFacts, Status> {
    let facts = entry.with(|subsystem| subsystem.namespace(namespace).map(|one| one.facts().clone()));
    facts.ok_or(Status::INVALID_NAMESPACE)
}

/// The same for what no other target may ask.
fn entry_for_host(association: &Association) -> Result<&Arc<Entry>, Status> {
    let entry = entry_of(association)?;
    if entry.is_peer_only(&association.host.nqn) { Err(Status::OPERATION_DENIED) } else { Ok(entry) }
}

fn entry_of(association: &Association) -> Result<&Arc<Entry>, Status> {
    association.entry.as_ref().filter(|entry| entry.has_fabric()).ok_or(Status::INVALID_OPCODE)
}

/// Answers an Attach report.
///
/// # Errors
/// The status to answer with.
pub(in super::super) fn report(
    association: &Association,
    namespace: u32,
    data_bytes: u32,
) -> Result<Vec<u8>, Status> {
    let entry = entry_for_host(association)?;
    let attach = entry.attaches.of_host(namespace, &association.host).ok_or(Status::NO_ATTACH)?;
    if (data_bytes as usize) < REPORT_BYTES {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    let is_reached = |member: &Member| match &member.way {
        Way::Own => true,
        Way::Here(attaches) => {
            let of = |handle| attaches.upgrade()?.of_handle(member.namespace, handle);
            of(member.handle).is_some()
        }
        Way::Away(peer) => peer.is_up(),
    };
    let members = attach.members();
    let bits = members.iter().enumerate().filter(|(_, member)| is_reached(member));
    let reached = bits.fold(0, |bits, (index, _)| bits | 1u32 << index);
    let capability = entry.with(|subsystem| Capability::parse(&subsystem.facts().capability));
    let report = AttachReport {
        handle: attach.handle(),
        reached,
        ops_open: u32::try_from(attach.ops_open()).unwrap_or(u32::MAX),
        boot_id: capability.map_or(0, |capability| capability.boot_id),
        key: attach.key,
        ledger: entry.ledgers.id(namespace).unwrap_or(0),
        credit_bytes: attach.credit_bytes(),
    };
    Ok(report.encode().to_vec())
}

/// Answers what is recorded of a namespace's changes: to a host that may read it.
///
/// # Errors
/// The status to answer with.
pub(in super::super) fn ledger(
    association: &Association,
    namespace: u32,
    data_bytes: u32,
) -> Result<Vec<u8>, Status> {
    let entry = entry_for_host(association)?;
    entry.admit(&association.host, namespace)?.read?;
    let log2 = facts_of(entry, namespace)?.block_log2;
    let blocks = |range: Range<u64>| range.start >> log2..range.end.div_ceil(1 << log2);
    let report = entry.ledgers.listed(namespace).map_or(LedgerReport::NONE, |listed| LedgerReport {
        id: listed.id,
        area: blocks(listed.area),
        ranges: listed.ranges.into_iter().map(blocks).collect(),
    });
    Ok(report.encode(data_bytes as usize))
}
