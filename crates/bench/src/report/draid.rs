//! The dRAID paper's figures at its own scale, in virtual time, and beside them what was measured over sockets.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use charts::{Bar, Labels, Series, escape};
use serde::Deserialize;
use sim::experiment::draid::{ALL, Experiment, Row};

use super::html;
use super::output::write_file;
use super::plan::Plan;
use super::plots::distinct;
use crate::Error;

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

/// What is drawn: of which unit, and where a value comes from.
type View = (&'static str, &'static str, fn(&Row) -> f64);

const VIEWS: [View; 2] =
    [("throughput", "MB/s", |row| row.measured.mb_per_s), ("mean latency", "us", |row| row.measured.mean_us)];

pub(super) fn names() -> Vec<(&'static str, &'static str)> {
    ALL.iter().map(|experiment| (experiment.name, experiment.title)).collect()
}

/// Runs the experiments and writes the page.
pub(super) fn write(plan: &Plan, say: &dyn Fn(&str)) -> Result<PathBuf, Error> {
    let over_sockets: Vec<Vec<Socket>> =
        plan.measured.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let (mut all, mut sections) = (Vec::new(), Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for experiment in
        ALL.iter().filter(|one| plan.only.is_empty() || plan.only.iter().any(|only| only == one.name))
    {
        say(&format!("figures {}: {}", experiment.figures, experiment.title));
        let rows = experiment.run(threads);
        let plots = draw(experiment, &plan.output, &rows)?;
        sections.push(section(experiment, &plots, &rows));
        all.extend(rows);
    }
    if !over_sockets.is_empty() {
        sections.push(measured(&over_sockets.iter().flatten().collect::<Vec<_>>()));
    }
    let json = serde_json::to_vec_pretty(&all).expect("figures are plain data");
    write_file(&plan.output.join("figures.json"), &json)?;
    let page = plan.output.join("index.html");
    write_file(&page, html::page(&about(), &sections).as_bytes())?;
    Ok(page)
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

/// A plot for each level and view. Their files and captions.
fn draw(experiment: &Experiment, folder: &Path, rows: &[Row]) -> Result<Vec<(String, String)>, Error> {
    let mut plots = Vec::new();
    for panel in distinct(rows.iter().map(|row| &row.panel)) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.panel == panel).collect();
        let xs = distinct(rows.iter().map(|row| &row.x));
        for (what, unit, of) in VIEWS {
            let file = format!("{}-{}.svg", experiment.name, plots.len() + 1);
            let caption = format!("{}: {panel}, {what}", experiment.title);
            let labels = Labels { title: &caption, places: experiment.places, unit };
            charts::lines(&folder.join(&file), labels, &xs, &series(&rows, &xs, of))?;
            plots.push((file, caption));
        }
    }
    Ok(plots)
}

fn series(rows: &[&Row], xs: &[String], of: fn(&Row) -> f64) -> Vec<Series> {
    let line = |name: &String| {
        let at = |x: &String| rows.iter().find(|row| row.series == *name && row.x == *x);
        let points = xs.iter().map(|x| Bar::from(at(x).map_or(f64::NAN, |row| of(row)))).collect();
        (name.clone(), points)
    };
    distinct(rows.iter().map(|row| &row.series)).iter().map(line).collect()
}

fn about() -> String {
    format!(
        "<p>Figures of the dRAID paper at its own scale, in virtual time: the engine as it is and the targets' own state machines, on \
         network cards of 92 Gbit/s goodput each way and drives that were fitted to the paper's figures. Processors take no time. \
         <i>host</i> makes parity at the host, as any RAID over NVMe-oF does, <i>peer</i> at the targets. {}</p>",
        html::RAW
    )
}

fn section(experiment: &Experiment, plots: &[(String, String)], rows: &[Row]) -> String {
    let Experiment { name, figures, title, .. } = experiment;
    let mut text = format!("<h2 id=\"{name}\">Figures {figures}: {}</h2>", escape(title));
    text += "<table class=\"claims\"><tr><th>the paper</th><th>here</th></tr>";
    for claim in experiment.claims {
        let here = claim.here(rows).map_or_else(
            || "the points for it are not there".to_owned(),
            |here| format!("{} ({})", here.words, here.verdict.words()),
        );
        let _infallible = write!(text, "<tr><td>{}</td><td>{}</td></tr>", escape(claim.paper), escape(&here));
    }
    text += "</table>";
    text += &html::figures(plots);
    text += "<details><summary>figures</summary><table>";
    text += "<tr><th>level</th><th>parity at</th><th>at</th><th>MB/s</th><th>mean us</th><th>p99 us</th><th>bytes sent</th><th>received</th></tr>";
    for Row { panel, series, x, measured, .. } in rows {
        let _infallible = write!(
            text,
            "<tr><td>{panel}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td></tr>",
            escape(series),
            escape(x),
            measured.mb_per_s,
            measured.mean_us,
            measured.p99_us,
            measured.host.sent,
            measured.host.received
        );
    }
    text + "</table></details>"
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
