//! How long a batch gathers before its first read (StRAID 4.3: a write that has joined by then needs no read of its own).
//!
//! A sequential stream reaches its last stripe in parts: the client sends the next write when an earlier one is
//! acknowledged. An owner that reads at once reads data that is about to be overwritten. So an owner whose batch holds the
//! beginning of a stripe and belongs to a stream waits until the batch covers the stripe, or until as many stripe writes of
//! its shard have ended as were in flight when the batch last grew: at most the time of one write. Other owners do not
//! wait.
//!
//! The wait ends: a gathering owner waits only for owners that are not themselves waiting, and those end within the
//! members' time limit.

use super::engine::ParityEngine;
use super::stripe_table::Claim;
use crate::code::union::StripeWrite;
use crate::device::Device;
use crate::executor::yield_now;

/// Lets the rest of a stripe join its beginning.
pub(super) async fn gather_stream<D: Device>(engine: &ParityEngine<D>, own: &StripeWrite, claim: &mut Claim) {
    let writes = &engine.in_flight;
    if !own.begins_stripe() && !claim.joined().any(StripeWrite::begins_stripe) {
        return; // the stream has written the beginning already: it will not come
    }
    let waiting = writes.wait();
    let stripe_bytes = engine.shared.geometry.stripe_bytes();
    let gathered = |claim: &Claim| own.bytes() + claim.joined().map(StripeWrite::bytes).sum::<u64>();
    let (mut bytes, mut until) = (gathered(claim), writes.all_ended());
    while bytes < stripe_bytes && writes.any_will_end() && writes.ended.get() < until {
        writes.change().await;
        yield_now().await; // clients whose requests have just ended send new ones
        claim.gather();
        let grown = gathered(claim);
        if grown > bytes {
            (bytes, until) = (grown, writes.all_ended());
        }
    }
    drop(waiting);
}
