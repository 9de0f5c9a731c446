//! The admin queue: properties, and what a controller answers.

use engine::buffer::{Gather, Slice};
use nvme_tcp::command::{Direction, FABRICS, Sqe, admin, fabrics};
use nvme_tcp::controller::{AdminCommand, Answer, DiscoveryService, Service};
use nvme_tcp::status::Status;
use nvme_tcp::target::queue::Slot;
use nvme_tcp::vendor::admin_opcode;
use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::aborts;
use super::association::Association;
use super::connection_limits::{COMMANDS, TRANSFER_BYTES_MAX};
use super::fabric::attach_command::{self, AttachCommand};
use super::link::Link;
use super::reservation_work::notify;
use super::server_state::Shared;
use crate::shard::ShardContext;

/// What a command that was not given up is completed with.
const NOT_ABORTED: u64 = 1;

/// The admin queue of an association.
pub(super) struct AdminQueue {
    pub association: Arc<Association>,
    /// The server's address, as this host knows it.
    local: SocketAddr,
    events: Rc<EventRequests>,
}

/// Event requests that wait, with the id by which the controller knows them.
#[derive(Default)]
struct EventRequests {
    waiting: RefCell<Vec<(u16, Slot)>>,
}

impl AdminQueue {
    pub fn new(association: Arc<Association>, local: SocketAddr) -> Self {
        AdminQueue { association, local, events: Rc::default() }
    }

    /// A command that brings data, if it is one.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn attach(&self, sqe: &Sqe, data_bytes: u32) -> Result<Option<AttachCommand>, Status> {
        let attach = AttachCommand::parse(&self.association, sqe, data_bytes)?;
        if attach.is_some() && !self.association.with(|_, properties| properties.is_ready()) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        Ok(attach)
    }

    /// Answers a command.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn command(
        &mut self,
        shared: &Arc<Shared>,
        shard: &ShardContext,
        link: &Rc<Link>,
        slot: Slot,
        sqe: &Sqe,
        data_bytes: u32,
    ) -> Result<(), Status> {
        let value = |value| link.answer(slot, Status::SUCCESS, value, Gather::new());
        let is_out = sqe.direction() == Direction::ToController;
        if is_out && data_bytes > 0 || data_bytes > TRANSFER_BYTES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        if sqe.opcode == FABRICS {
            value(self.fabrics(sqe)?);
            return Ok(());
        }
        if !self.association.with(|_, properties| properties.is_ready()) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        match sqe.opcode {
            admin::KEEP_ALIVE => value(0),
            admin::ABORT => self.abort(shard, link, slot, sqe),
            admin_opcode::ATTACH_REPORT => {
                let data = attach_command::report(&self.association, sqe.nsid.get(), data_bytes)?;
                self.send(link, slot, sqe, Answer::Done { dword0: 0, data }, data_bytes)?;
            }
            admin_opcode::LEDGER => {
                let data = attach_command::ledger(&self.association, sqe.nsid.get(), data_bytes)?;
                self.send(link, slot, sqe, Answer::Done { dword0: 0, data }, data_bytes)?;
            }
            _ => {
                let answer = self.answer(shared, sqe);
                if let Answer::Persistence { namespace, persists } = answer {
                    return self.persist(shared, shard, link, slot, (namespace, persists));
                }
                self.send(link, slot, sqe, answer, data_bytes)?;
            }
        }
        self.events.send(&self.association, link);
        Ok(())
    }

    fn fabrics(&self, sqe: &Sqe) -> Result<u64, Status> {
        let (attributes, offset) = (sqe.cdw10.get() as u8, sqe.cdw11.get());
        self.association.with(|_, properties| match sqe.fabrics_type() {
            fabrics::PROPERTY_GET => properties.get(attributes, offset),
            fabrics::PROPERTY_SET => {
                let value = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
                properties.set(attributes, offset, value).map(|()| 0)
            }
            _ => Err(Status::INVALID_OPCODE),
        })
    }

    /// An event request ends, and so does an I/O command that has not begun; any other command runs to its end.
    fn abort(&self, shard: &ShardContext, link: &Rc<Link>, slot: Slot, sqe: &Sqe) {
        let (queue, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        let answer = move |link: &Link, aborted| {
            let value = if aborted { 0 } else { NOT_ABORTED };
            link.answer(slot, Status::SUCCESS, value, Gather::new());
        };
        if queue == 0 {
            let aborted = self.association.with(|controller, _| controller.abort_event_request(cid));
            if let Some(waiting) = self.events.take(cid).filter(|_| aborted) {
                link.answer(waiting, Status::ABORT_REQUESTED, 0, Gather::new());
            }
            return answer(link, aborted);
        }
        let Some(of_queue) = self.association.shard_of(queue) else { return answer(link, false) };
        let serial = self.association.serial;
        let aborted = shard.shards.call(of_queue, async move |_| aborts::abort(serial, queue, cid));
        let link = Rc::clone(link);
        shard.executor.spawn(async move { answer(&link, aborted.await.unwrap_or(false)) });
    }

    fn answer(&self, shared: &Shared, sqe: &Sqe) -> Answer {
        let command = AdminCommand::from(sqe);
        match &self.association.entry {
            Some(entry) => entry.with(|subsystem| {
                self.association
                    .with(|controller, _| controller.admin(Service::Namespaces(subsystem), &command))
            }),
            None => {
                let discovery = DiscoveryService {
                    serial: "discovery".to_owned(),
                    model: "Twill".to_owned(),
                    firmware: env!("CARGO_PKG_VERSION").to_owned(),
                    commands_max: COMMANDS as u16,
                    log: shared.subsystems.discovery(&self.association.host.nqn, self.local),
                };
                self.association
                    .with(|controller, _| controller.admin(Service::Discovery(&discovery), &command))
            }
        }
    }

    fn send(
        &mut self,
        link: &Link,
        slot: Slot,
        sqe: &Sqe,
        answer: Answer,
        data_bytes: u32,
    ) -> Result<(), Status> {
        match answer {
            Answer::Done { dword0, mut data } => {
                if data.len() > data_bytes as usize {
                    return Err(Status::INVALID_SGL_LENGTH);
                }
                data.resize(data_bytes as usize, 0);
                let data = if data.is_empty() { Gather::new() } else { Slice::from_bytes(&data).into() };
                link.answer(slot, Status::SUCCESS, u64::from(dword0), data);
            }
            Answer::Failed(status) => return Err(status),
            Answer::Waits => self.events.waiting.borrow_mut().push((sqe.cid.get(), slot)),
            Answer::Persistence { .. } => return Err(Status::INTERNAL_ERROR),
        }
        Ok(())
    }

    /// Whether a namespace's reservations outlive a loss of power, from now on. Answered when that is durable.
    fn persist(
        &self,
        shared: &Arc<Shared>,
        shard: &ShardContext,
        link: &Rc<Link>,
        slot: Slot,
        (namespace, persists): (u32, bool),
    ) -> Result<(), Status> {
        let entry = Arc::clone(self.association.entry.as_ref().ok_or(Status::INVALID_FIELD)?);
        if entry.is_peer_only(&self.association.host.nqn) {
            return Err(Status::OPERATION_DENIED);
        }
        let changed = entry.change(namespace, move |subsystem| {
            let namespace = subsystem.namespace(namespace).ok_or(Status::INVALID_NAMESPACE)?;
            Ok(namespace.reservations().decide_persistence(persists))
        });
        let (shared, link) = (Arc::clone(shared), Rc::clone(link));
        shard.executor.spawn(async move {
            let status = match changed.await {
                Ok(Ok(changed)) => {
                    notify(&shared.associations, &entry, namespace, &changed);
                    Status::SUCCESS
                }
                Ok(Err(status)) => status,
                Err(_) => Status::INTERNAL_ERROR,
            };
            link.answer(slot, status, 0, Gather::new());
        });
        Ok(())
    }

    /// Sends events of other queues and hosts when they happen, until the association ends.
    pub fn watch_events(&self, shard: &ShardContext, link: &Rc<Link>) {
        let (association, events) = (Arc::clone(&self.association), Rc::clone(&self.events));
        let link = Rc::downgrade(link);
        shard.executor.spawn(poll_fn(move |context| {
            // It listens before it looks, so that no event falls between.
            association.listen(context.waker());
            match link.upgrade() {
                Some(link) if !association.has_ended() => events.send(&association, &link),
                _ => return Poll::Ready(()),
            }
            Poll::Pending
        }));
    }
}

impl EventRequests {
    fn take(&self, cid: u16) -> Option<Slot> {
        let mut waiting = self.waiting.borrow_mut();
        let at = waiting.iter().position(|(known, _)| *known == cid)?;
        Some(waiting.swap_remove(at).1)
    }

    fn send(&self, association: &Association, link: &Link) {
        while let Some((cid, dword0)) = association.with(|controller, _| controller.next_event()) {
            let Some(slot) = self.take(cid) else { return };
            link.answer(slot, Status::SUCCESS, u64::from(dword0), Gather::new());
        }
    }
}
