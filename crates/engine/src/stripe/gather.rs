//! How long a batch gathers before its first read (StRAID 4.3: what has joined by then needs no read of its own).
//!
//! The tail of a sequential stream is a stripe in parts: its next writes come when the client hears that earlier ones
//! are done. An owner that reads at once reads what is about to be overwritten. So a batch that is the beginning of a
//! stripe and belongs to a stream waits until the stripe is whole, or as many stripe writes of its shard have ended as
//! were in flight when it last grew: the time of one write at the most. Others wait for nobody.
//!
//! It cannot wait for ever: who gathers waits only for owners who wait for nobody, and those end within the members'
//! time limit.

use super::engine::ParityEngine;
use super::stripe_table::Claim;
use crate::code::union::StripeWrite;
use crate::device::Device;
use crate::executor::yield_now;

/// Lets the rest of a stripe join the beginning of it.
pub(super) async fn gather_stream<D: Device>(engine: &ParityEngine<D>, own: &StripeWrite, claim: &mut Claim) {
    let writes = &engine.in_flight;
    if !own.begins_stripe() && !claim.joined().any(StripeWrite::begins_stripe) {
        return; // what is missing was written already: it will not come
    }
    let waiting = writes.wait();
    let stripe_bytes = engine.shared.geometry.stripe_bytes();
    let gathered = |claim: &Claim| own.bytes() + claim.joined().map(StripeWrite::bytes).sum::<u64>();
    let (mut bytes, mut until) = (gathered(claim), writes.all_ended());
    while bytes < stripe_bytes && writes.any_will_end() && writes.ended.get() < until {
        writes.change().await;
        yield_now().await; // those whose requests have just ended come with new ones
        claim.gather();
        let grown = gathered(claim);
        if grown > bytes {
            (bytes, until) = (grown, writes.all_ended());
        }
    }
    drop(waiting);
}
