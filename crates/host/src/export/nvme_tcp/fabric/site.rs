//! An attach on one shard: what its state machine asks for is done here, and the results go back in.
//!
//! Any shard may put in what came, and does what comes back itself: an op's read may be on one shard and its write on another.

use engine::buffer::{Buffer, Gather, Slice};
use engine::error::VolumeError;
use engine::fabric::effect::{Effect, Effects, Input};
use engine::fabric::order::{Contribution, Ending, Op, PeerIndex};
use nvme_tcp::status::Status;
use nvme_tcp::vendor;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::namespace::Namespace;
use super::attach::{Answered, Attach, Attaches, Given, Member, Token, Way};
use super::peers::Peer;
use super::within::within;
use crate::call::{Call, Reply};
use crate::fabric_wire::{ending_of_contribution, op_to_wire};
use crate::shard::ShardContext;

/// Longest sleep of the task that watches time limits, which the shard's end waits for.
const WATCH_MAX: Duration = Duration::from_millis(200);

/// An attach on one shard.
pub(super) struct Site {
    attach: Arc<Attach>,
    namespace: Rc<dyn Namespace>,
    shard: ShardContext,
    /// Reads that have begun for orders whose data is still on its way.
    ahead: RefCell<BTreeMap<Op, Ahead>>,
}

/// A read that has begun.
struct Ahead {
    rows: Range<u64>,
    result: Call<Result<Gather, ()>>,
}

/// While it lives, a read that has begun waits for its order.
pub(super) struct ReadAhead {
    site: Rc<Site>,
    op: Op,
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.site.ahead.borrow_mut().remove(&self.op);
    }
}

thread_local! {
    /// Sites of this shard that are in use, by handle.
    static SITES: RefCell<BTreeMap<u32, Weak<Site>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Site {
    /// The attach on this shard.
    pub fn of(attach: &Arc<Attach>, shard: &ShardContext) -> Rc<Site> {
        let is_it = |site: &Rc<Site>| Arc::ptr_eq(&site.attach, attach);
        let known = SITES.with_borrow(|sites| sites.get(&attach.handle()).and_then(Weak::upgrade));
        if let Some(known) = known.filter(is_it) {
            return known;
        }
        let namespace = attach.source.open(shard);
        let (attach, shard, ahead) = (Arc::clone(attach), shard.clone(), RefCell::default());
        let site = Rc::new(Site { attach, namespace, shard, ahead });
        SITES.with_borrow_mut(|sites| {
            sites.retain(|_, one| one.strong_count() > 0);
            sites.insert(site.attach.handle(), Rc::downgrade(&site));
        });
        site
    }

    /// Reads rows that are no part of a sum.
    pub async fn read(&self, rows: Range<u64>) -> Result<Gather, ()> {
        let bytes = rows.end - rows.start;
        match self.namespace.read(rows.start, bytes).await {
            Ok(data) if data.len() as u64 == bytes => Ok(data),
            Ok(_) => Err(()),
            Err(error) => {
                tracing::debug!(?rows, %error, "rows of an op cannot be read");
                Err(())
            }
        }
    }

    /// Begins the read of an order while its data is fetched (D5). F-I1: the host has the stripe, so nothing is written to these rows
    /// before the op's own write.
    pub fn read_ahead(self: &Rc<Self>, op: Op, rows: Range<u64>) -> ReadAhead {
        let (reply, result) = Reply::new(self.shard.index);
        let (site, wanted) = (Rc::clone(self), rows.clone());
        self.shard.executor.spawn(async move { reply.send(site.read(wanted).await) });
        self.ahead.borrow_mut().insert(op, Ahead { rows, result });
        ReadAhead { site: Rc::clone(self), op }
    }

    /// What was read ahead, or is read now.
    fn ahead_or_now(
        self: &Rc<Self>,
        op: Op,
        rows: Range<u64>,
    ) -> impl Future<Output = Result<Gather, ()>> + 'static {
        // At once: the command that began the read is at its end soon.
        let ahead = self.ahead.borrow_mut().remove(&op).filter(|ahead| ahead.rows == rows);
        let site = Rc::clone(self);
        async move {
            match ahead {
                Some(ahead) => ahead.result.await.unwrap_or(Err(())),
                None => site.read(rows).await,
            }
        }
    }

    /// Puts in what came, and does what is to be done then.
    ///
    /// # Errors
    /// As [`Attach::give`].
    pub fn give(self: &Rc<Self>, input: Input<Token>) -> Result<(), Status> {
        let Given { effects, watch } = self.attach.give(input)?;
        self.carry_out(effects);
        if watch {
            self.shard.executor.spawn(watch_limits(Rc::clone(self)));
        }
        Ok(())
    }

    /// A result of what the state machine asked for: it is there, so it takes it.
    fn give_back(self: &Rc<Self>, input: Input<Token>) {
        let taken = self.give(input);
        assert!(taken.is_ok(), "the ops of an attach outlive it");
    }

    fn carry_out(self: &Rc<Self>, effects: Effects<Token>) {
        for effect in effects {
            let site = Rc::clone(self);
            match effect {
                Effect::Answer { token, answer, data } => token.send(Answered { answer, data }),
                Effect::Limit { .. } => {} // its time runs since it was entered
                Effect::Read { op, rows } => {
                    let read = self.ahead_or_now(op, rows);
                    self.shard.executor.spawn(async move {
                        let result = read.await.map(|data| whole(data, &site.shard));
                        site.give_back(Input::Read { op, result });
                    });
                }
                Effect::Write { op, start, data, fua } => self.shard.executor.spawn(async move {
                    let written = site.namespace.write(start, data, fua).await;
                    let result = written.map_err(|error| {
                        tracing::warn!(op = op.0, start, %error, "an op cannot write");
                        let is_full = matches!(error, VolumeError::NoSpace { .. });
                        if is_full { Ending::NoSpace } else { Ending::WriteFailed }
                    });
                    site.give_back(Input::Written { op, result });
                }),
                Effect::Forward { destination, to, contribution, data } => {
                    self.shard.executor.spawn(async move {
                        let op = contribution.stamp.op;
                        let ending = site.forward(to, contribution, data).await;
                        site.give_back(Input::Forwarded { op, destination, ending });
                    });
                }
            }
        }
    }

    /// Sends a contribution. What does not come to an answer within the op's limit counts as not reached.
    async fn forward(&self, to: PeerIndex, contribution: Contribution, data: Slice) -> Ending {
        let (members, limit) = (self.attach.members(), self.attach.op_limit());
        let Some(member) = members.get(usize::from(to)) else { return Ending::PeerUnreachable };
        let block_bytes = u64::from(self.namespace.info().logical_block_bytes);
        let Some(slba) = (contribution.rows.start / block_bytes).checked_add_signed(member.shift_blocks)
        else {
            return Ending::ContributionRefused;
        };
        match &member.way {
            Way::Own => Ending::ContributionRefused,
            Way::Here(attaches) => {
                let attaches = attaches.upgrade();
                let start = slba.checked_mul(block_bytes);
                let (Some(attaches), Some(start)) = (attaches, start) else { return Ending::PeerUnreachable };
                let rows = start..start.saturating_add(data.len() as u64);
                let part = Contribution { rows, ..contribution };
                self.hand_over(&attaches, member, part, data, limit).await
            }
            Way::Away(peer) => self.send(peer, member, &contribution, (slba, block_bytes), data, limit).await,
        }
    }

    /// To a member of this server, by the rules of one that is not.
    async fn hand_over(
        &self,
        attaches: &Attaches,
        member: &Member,
        contribution: Contribution,
        data: Slice,
        limit: Duration,
    ) -> Ending {
        let Some(attach) = attaches.of_handle(member.namespace, member.handle) else {
            return Ending::PeerUnreachable;
        };
        let (there, here) = (Site::of(&attach, &self.shard), self.namespace.info());
        let info = there.namespace.info();
        if info.logical_block_bytes != here.logical_block_bytes || contribution.rows.end > info.size_bytes {
            return Ending::ContributionRefused;
        }
        let (token, answered) = Reply::new(self.shard.index);
        if there.give(Input::Contribution { contribution, data: data.into(), token }).is_err() {
            return Ending::PeerUnreachable;
        }
        match within(&self.shard.ring, limit, answered).await {
            Some(Ok(answered)) => answered.answer.ending,
            Some(Err(_)) | None => Ending::PeerUnreachable,
        }
    }

    async fn send(
        &self,
        peer: &Peer,
        member: &Member,
        contribution: &Contribution,
        (slba, block_bytes): (u64, u64),
        data: Slice,
        limit: Duration,
    ) -> Ending {
        let command = vendor::Peer {
            op: op_to_wire(contribution.stamp),
            slba,
            blocks: (data.len() as u64 / block_bytes) as u32,
            handle: member.handle,
            member: contribution.from,
            answer_when_complete: contribution.when_complete,
        };
        let sqe = command.encode(member.namespace);
        let answered = peer.send(&self.shard, sqe, data.into(), limit).await;
        answered.map_or(Ending::PeerUnreachable, ending_of_contribution)
    }
}

/// Data as one buffer that may be written to.
fn whole(data: Gather, shard: &ShardContext) -> Buffer {
    let copied = |data: &Gather| {
        let mut buffer = shard.pool.take(data.len());
        data.copy_to(buffer.bytes_mut());
        buffer
    };
    let Some(slice) = data.slices().first().filter(|_| data.slices().len() == 1).cloned() else {
        return copied(&data);
    };
    drop(data);
    slice.thaw().unwrap_or_else(|slice| copied(&slice.into()))
}

/// Ends reductions whose time is over, as long as there are any whose time runs.
async fn watch_limits(site: Rc<Site>) {
    loop {
        let now = Instant::now();
        let (expired, next) = site.attach.expired(now);
        for op in expired {
            site.limit(op);
        }
        let Some(next) = next else { return };
        if site.shard.is_stopping() {
            return;
        }
        site.shard.ring.sleep(next.saturating_duration_since(now).min(WATCH_MAX)).await;
    }
}

impl Site {
    fn limit(self: &Rc<Self>, op: Op) {
        self.give_back(Input::Limit { op });
    }
}
