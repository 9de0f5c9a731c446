//! Resync: parity that agrees with data. Stripes are owned while that is done; what is as usual in several side by side is
//! done at once ([`run`](super::run)), else one stripe at a time. Which stripes and how fast is decided in `array/`.

use std::ops::Range;

use super::agree::make_parity_agree;
use super::engine::ParityEngine;
use super::run::make_parity_of_run_agree;
use super::stripe_table::Claim;
use crate::device::Device;
use crate::error::VolumeError;

/// Makes the parity of stripes side by side agree with their data (md's resync). Where data is missing that is an error:
/// parity is all there is of it then.
pub(crate) async fn resync_run<D: Device>(
    engine: &ParityEngine<D>,
    run: Range<u64>,
) -> Result<(), VolumeError> {
    let mut at = run.start;
    while at < run.end {
        let claims = engine.claim_run_in_turn(at, run.end).await;
        resync_owned(engine, &claims).await?;
        at += claims.len() as u64;
    }
    Ok(())
}

async fn resync_owned<D: Device>(engine: &ParityEngine<D>, claims: &[Claim]) -> Result<(), VolumeError> {
    if make_parity_of_run_agree(engine, claims).await? {
        return Ok(());
    }
    for owned in claims.iter().map(|claim| engine.owned(claim)) {
        if !owned.lost().is_empty() {
            return Err(owned.too_many_missing(owned.missing()));
        }
        make_parity_agree(owned).await?;
    }
    Ok(())
}
