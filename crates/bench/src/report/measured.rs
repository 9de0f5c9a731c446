//! One run of an experiment, with its place in the plots.

use serde::Serialize;

use crate::figures::Figures;

/// One run of an experiment.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) experiment: &'static str,
    pub(super) panel: String,
    pub(super) series: String,
    pub(super) x: String,
    pub(super) figures: Figures,
}
