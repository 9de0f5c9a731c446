//! ZapRAID's experiments, and traces that were given in the settings of the last three.

use std::path::PathBuf;

use sim::experiment::zoned::{ALL, Experiment, Trace, replayed};

use super::lab::traces_in;
use super::plan::Plan;
use super::virtual_time;
use crate::{Error, trace};

const ABOUT: &str = "Experiments of the ZapRAID paper in virtual time: the log engine as it is, on drives that take the times of the paper's \
                     ZN540 (Fig. 2), or of FEMU. What is filled or recovered is smaller than the paper's by the factor that memory asks for. \
                     Processors take no time. <i>zone write</i> writes zones in order, groups of 16384 are as long as a segment, which is \
                     the paper's ZoneAppend-Only; <i>twill</i> is how an array comes. <i>raizn</i> is the authors' stand-in for RAIZN, by its rules. Traces of \
                     applications are stand-ins where their names say so.";

/// The experiment of real applications' traces that takes those which are given.
const REPLAYS: &str = "exp10";

pub(super) fn names() -> Vec<(&'static str, &'static str)> {
    virtual_time::names(ALL)
}

/// Runs the experiments and writes the page.
pub(super) fn write(plan: &Plan, say: &dyn Fn(&str)) -> Result<PathBuf, Error> {
    let mut traces = Vec::new();
    for path in traces_in(plan.traces.as_deref())? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let requests = trace::read(&path)?;
        traces.push(Trace::new(&name, requests.iter().map(|one| (!one.write, one.offset, one.bytes))));
    }
    let more = |experiment: &Experiment| match experiment.name {
        REPLAYS => traces.iter().flat_map(replayed).collect(),
        _ => Vec::new(),
    };
    virtual_time::write(plan, ALL, &more, (ABOUT, None), say)
}
