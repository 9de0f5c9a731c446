//! Peer mode (dRAID): targets make the parity of a stripe among themselves, so that its bytes cross the host's network
//! interface once.
//!
//! A host gives the members of a stripe *orders* that belong to one *op*. A **contributor** sends its part of the new parity, or
//! of a lost chunk, to a **reducer**, which adds the parts up. Both are state machines without I/O or clock ([`target`]); the
//! network server, the simulator and tests drive the same ones. A target knows ops, ranges and coefficients, and never the
//! array's geometry (F-I16), so that any linear code fits. [`host`] decides what the answers of an op's participants mean.
//!
//! Invariants, each named where it is kept:
//! - F-I1: A contribution is made of what was on the drive before the target's own write began. Where new contents are sent
//!   whole (reconstruct-write), nothing is overwritten before the new parity is complete at its reducers.
//! - F-I2: A contribution is added at most once, whole, or its op is aborted; a reduction counts as applied when the drive has
//!   answered, and not before.
//! - F-I3: The numbers of ops only grow. An op that is retired or aborted has no effect any more.
//! - F-I4: A host tries nothing again before every participant is final: it answered, was settled, or has failed as a member.
//! - F-I10: No message waits for memory that depends on another message: a host has credit for all that its orders take.
//! - F-I14: A ledger is used only if it is complete: every change of the data area is in it until its stripe is consistent.
//! - F-I16: A target never knows geometry.

pub mod choose;
mod contributor;
pub mod credit;
pub mod effect;
pub mod epochs;
pub mod host;
pub mod ledger;
pub mod mode;
pub mod order;
pub mod recording;
mod reducer;
pub mod reducer_choice;
pub mod target;
#[cfg(test)]
mod target_tests;
