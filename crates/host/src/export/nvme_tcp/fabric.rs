//! Peer mode at a target: orders, what targets send each other, and the attaches that both belong to.
//!
//! The way of an order: `command` reads it, and finds the host's `attach` of the namespace. The attach has the state machine of
//! [`engine::fabric`], which all shards share under a lock. A `site` is the attach on one shard: it puts in what came, and
//! carries out what comes back, through the namespace's volume and through `peers`, the connections to other targets.
//!
//! Invariants:
//! - F-I6: an order passes the gate as a write does, and is at work until it is answered; an attach that has lost its right
//!   gathers no more, so that a preempt waits for the drive only.
//! - F-I10: no command of the fabric waits for memory or for another one's answer while others wait for it: what comes is taken
//!   at once, and bounded by the slots of the queues.
//! - F-I14: a change is in its namespace's ledger before it goes to the drive.
//! - F-I16: nothing here knows an array.

pub(super) mod attach;
pub(super) mod attach_command;
pub(super) mod command;
pub(super) mod ledgers;
pub(super) mod peers;
mod site;
mod within;
