//! RAID-1 and RAID-10: the same bytes on several members.
//!
//! Two overlapping writes in flight must reach every copy in the same order, or the copies differ for ever. So a
//! write owns the regions it touches in the stripe table, in ascending order, while it is on its way.
//!
//! A write that fails may be on some copies only. Its regions are suspect until one copy was written over the others,
//! at the next write or by a resync; the array is not called clean before.
//!
//! A member that is rebuilt gets every write and serves no read before it is done: regions are copied as their
//! owner, so a copy never overwrites a newer write.

mod agree;
pub(crate) mod check;
pub(crate) mod engine;
pub(crate) mod read;
pub(crate) mod region;
pub(crate) mod replace;
mod salvage;
pub(crate) mod write;

pub(crate) use agree::copy_region;
