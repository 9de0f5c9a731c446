//! Resync: makes parity agree with data, as the owner of each stripe. Adjacent stripes with nothing out of the ordinary are
//! done at once ([`run`](super::run)), others one by one. `array/` decides which stripes, and how fast.

use std::ops::Range;

use super::agree::make_parity_agree;
use super::engine::ParityEngine;
use super::peers::{left_by_peers, make_parity_by_peers};
use super::run::make_parity_of_run_agree;
use super::stripe_table::Claim;
use crate::device::Device;
use crate::error::VolumeError;
use layout::units::Stripe;

/// Makes the parity of a run of stripes agree with their data (md's resync). An error where data is missing: parity is then
/// the only record of it.
pub(crate) async fn resync_run<D: Device>(
    engine: &ParityEngine<D>,
    run: Range<Stripe>,
) -> Result<(), VolumeError> {
    let mut at = run.start;
    while at < run.end {
        let claims = engine.claim_run_in_turn(at..run.end).await;
        resync_owned(engine, &claims).await?;
        at = at + claims.len() as u64;
    }
    Ok(())
}

async fn resync_owned<D: Device>(engine: &ParityEngine<D>, claims: &[Claim]) -> Result<(), VolumeError> {
    let left = left_by_peers(engine, claims, make_parity_by_peers).await?;
    if left.len() == claims.len() && make_parity_of_run_agree(engine, claims).await? {
        return Ok(());
    }
    for owned in left.into_iter().map(|claim| engine.owned(claim)) {
        if !owned.lost().is_empty() {
            return Err(owned.too_many_missing(owned.missing()));
        }
        make_parity_agree(owned).await?;
    }
    Ok(())
}
