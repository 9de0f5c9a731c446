//! A paper's experiments at its own scale, in virtual time.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use charts::{Bar, Labels, Series, escape};
use sim::experiment::paper::{Experiment, Measured as _, Point, Row};

use super::html;
use super::output::write_file;
use super::plan::Plan;
use super::plots::distinct;
use crate::Error;

pub(super) fn names<P: Point>(all: &[Experiment<P>]) -> Vec<(&'static str, &'static str)> {
    all.iter().map(|experiment| (experiment.name, experiment.title)).collect()
}

/// Points that are measured beside those of an experiment, each with its place: of traces that were given.
pub(super) type More<'a, P> = &'a dyn Fn(&Experiment<P>) -> Vec<(String, P)>;

/// Runs the experiments and writes the page, `about` before them and `after` behind.
pub(super) fn write<P: Point>(
    plan: &Plan,
    all: &[Experiment<P>],
    more: More<'_, P>,
    (about, after): (&str, Option<String>),
    say: &dyn Fn(&str),
) -> Result<PathBuf, Error> {
    let (mut rows, mut sections) = (Vec::new(), Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let is_chosen =
        |one: &&Experiment<P>| plan.only.is_empty() || plan.only.iter().any(|only| only == one.name);
    for experiment in all.iter().filter(is_chosen) {
        say(&format!("figures {}: {}", experiment.figures, experiment.title));
        let mut points = (experiment.points)();
        points.extend(more(experiment));
        let own = experiment.measure(&points, threads);
        let plots = draw(experiment, &plan.output, &own)?;
        sections.push(section(experiment, &plots, &own));
        rows.extend(own);
    }
    sections.extend(after);
    let json = serde_json::to_vec_pretty(&rows).expect("figures are plain data");
    write_file(&plan.output.join("figures.json"), &json)?;
    let page = plan.output.join("index.html");
    let about = format!("<p>{about} {}</p>", html::RAW);
    write_file(&page, html::page(&about, &sections).as_bytes())?;
    Ok(page)
}

/// A plot for each panel and view of which there is anything. Their files and captions.
fn draw<P: Point>(
    experiment: &Experiment<P>,
    folder: &Path,
    rows: &[Row<P>],
) -> Result<Vec<(String, String)>, Error> {
    let mut plots = Vec::new();
    for panel in distinct(rows.iter().map(|row| &row.panel)) {
        let rows: Vec<&Row<P>> = rows.iter().filter(|row| row.panel == panel).collect();
        let xs = distinct(rows.iter().map(|row| &row.x));
        for (what, unit, of) in P::Measured::VIEWS {
            if rows.iter().all(|row| of(&row.measured).is_nan()) {
                continue;
            }
            let file = format!("{}-{}.svg", experiment.name, plots.len() + 1);
            let title = if panel.is_empty() { what.to_string() } else { format!("{panel}, {what}") };
            let caption = format!("{}: {title}", experiment.title);
            let labels = Labels { title: &caption, places: experiment.places, unit };
            charts::lines(&folder.join(&file), labels, &xs, &series(&rows, &xs, *of))?;
            plots.push((file, caption));
        }
    }
    Ok(plots)
}

fn series<P: Point>(rows: &[&Row<P>], xs: &[String], of: fn(&P::Measured) -> f64) -> Vec<Series> {
    let line = |name: &String| {
        let at = |x: &String| rows.iter().find(|row| row.series == *name && row.x == *x);
        let points = xs.iter().map(|x| Bar::from(at(x).map_or(f64::NAN, |row| of(&row.measured)))).collect();
        (name.clone(), points)
    };
    distinct(rows.iter().map(|row| &row.series)).iter().map(line).collect()
}

fn section<P: Point>(experiment: &Experiment<P>, plots: &[(String, String)], rows: &[Row<P>]) -> String {
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
    text += "<details><summary>figures</summary><table><tr><th>part</th><th>series</th><th>at</th>";
    for head in P::Measured::HEADS {
        let _infallible = write!(text, "<th>{head}</th>");
    }
    text += "</tr>";
    for Row { panel, series, x, measured, .. } in rows {
        let names = [panel, series, x].into_iter().cloned();
        let cells = names.chain(measured.cells()).map(|cell| format!("<td>{}</td>", escape(&cell)));
        let _infallible = write!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</table></details>"
}
