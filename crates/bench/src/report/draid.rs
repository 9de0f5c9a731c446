//! The dRAID paper's figures, and beside them what was measured over sockets.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use charts::escape;
use serde::Deserialize;
use sim::experiment::draid::ALL;

use super::plan::Plan;
use super::virtual_time;
use crate::Error;

const ABOUT: &str = "Figures of the dRAID paper at its own scale, in virtual time: the engine as it is and the targets' own state machines, on \
                     network cards of 92 Gbit/s goodput each way and drives that were fitted to the paper's figures. Processors take no \
                     time. <i>host</i> makes parity at the host, as any RAID over NVMe-oF does, <i>peer</i> at the targets.";

/// A point that was measured over sockets.
#[derive(Debug, Deserialize)]
struct Socket {
    experiment: String,
    panel: String,
    series: String,
    x: String,
    bytes_per_s: f64,
    latency_us: f64,
    sent: f64,
    received: f64,
}

pub(super) fn names() -> Vec<(&'static str, &'static str)> {
    virtual_time::names(ALL)
}

/// Runs the experiments and writes the page.
pub(super) fn write(plan: &Plan, say: &dyn Fn(&str)) -> Result<PathBuf, Error> {
    let over_sockets: Vec<Vec<Socket>> =
        plan.measured.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let over_sockets: Vec<&Socket> = over_sockets.iter().flatten().collect();
    let after = (!over_sockets.is_empty()).then(|| measured(&over_sockets));
    virtual_time::write(plan, ALL, &|_| Vec::new(), (ABOUT, after), say)
}

fn read(path: &Path) -> Result<Vec<Socket>, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::Setting(format!(
            "{} is not what cargo xtask bench-draid --json writes: {error}",
            path.display()
        ))
    })
}

/// What was measured over sockets, as a table.
fn measured(sockets: &[&Socket]) -> String {
    let mut text = "<h2 id=\"sockets\">Over sockets, at a machine's size</h2><p>By <code>cargo xtask bench-draid</code>: network \
                    namespaces, links of a limited rate each way.</p><table><tr><th>figure</th><th>level</th><th>series</th>\
                    <th>at</th><th>MB/s</th><th>mean us</th><th>bytes sent</th><th>received</th></tr>"
        .to_owned();
    for one in sockets {
        let _infallible = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td></tr>",
            escape(&one.experiment),
            escape(&one.panel),
            escape(&one.series),
            escape(&one.x),
            one.bytes_per_s / 1e6,
            one.latency_us,
            one.sent,
            one.received
        );
    }
    text + "</table>"
}
