//! The experiments of the StRAID and ScalaRAID papers at this machine's size, or of the dRAID or ZapRAID paper in virtual time, as a page
//! with plots and the raw figures beside it.

mod claims;
mod draid;
mod experiments;
mod html;
mod lab;
mod measured;
mod output;
mod plan;
mod plots;
mod virtual_time;
mod zapraid;

use std::path::PathBuf;

use crate::Error;
use crate::array::OpenMembers;
use crate::machine::Machine;
use crate::run::run_on;
use experiments::Experiment;
use lab::{Case, Lab};
use measured::Measured;
use output::write_file;

pub use plan::{Extent, Plan, Set};

/// Names of the experiments of a set, and what each shows.
pub fn names(set: Set) -> Vec<(&'static str, &'static str)> {
    match set {
        Set::OnMachine(_) => experiments::ALL.iter().map(|one| (one.name, one.title)).collect(),
        Set::Draid => draid::names(),
        Set::Zapraid => zapraid::names(),
    }
}

/// Runs the experiments and writes `index.html`, a plot for each chart and `figures.json`. Returns the page; `say`
/// hears how it goes.
///
/// # Errors
/// An unknown name, a run that failed, a file that cannot be written.
pub fn write(plan: &Plan, say: &dyn Fn(&str)) -> Result<PathBuf, Error> {
    let names = names(plan.set);
    if let Some(unknown) = plan.only.iter().find(|only| !names.iter().any(|(name, _)| name == only)) {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        return Err(Error::Setting(format!("no experiment {unknown:?}; there are {}", known.join(", "))));
    }
    std::fs::create_dir_all(&plan.output)
        .map_err(|source| Error::Io { path: plan.output.clone(), source })?;
    match plan.set {
        Set::OnMachine(extent) => write_on_machine(plan, extent, say),
        Set::Draid => draid::write(plan, say),
        Set::Zapraid => zapraid::write(plan, say),
    }
}

fn write_on_machine(plan: &Plan, extent: Extent, say: &dyn Fn(&str)) -> Result<PathBuf, Error> {
    let lab = Lab::new(plan, extent)?;
    let members = OpenMembers::open(&lab.members())?;
    let (mut all, mut sections) = (Vec::new(), Vec::new());
    for experiment in experiments::ALL {
        if !plan.only.is_empty() && !plan.only.iter().any(|only| only == experiment.name) {
            continue;
        }
        let measured = measure(experiment, &lab, &members, say)?;
        let plots = experiment.draw(&plan.output, &measured)?;
        sections.push(html::section(experiment, &plots, &measured));
        all.extend(measured);
    }
    let json = serde_json::to_vec_pretty(&all).expect("figures are plain data");
    write_file(&plan.output.join("figures.json"), &json)?;
    let page = plan.output.join("index.html");
    write_file(&page, html::page(&html::about_machine(&Machine::now(), &lab.words()), &sections).as_bytes())?;
    Ok(page)
}

fn measure(
    experiment: &Experiment,
    lab: &Lab,
    members: &OpenMembers,
    say: &dyn Fn(&str),
) -> Result<Vec<Measured>, Error> {
    let cases = (experiment.cases)(lab);
    let (mut measured, count) = (Vec::new(), cases.len());
    for (number, Case { panel, series, x, setting }) in (1..).zip(cases) {
        say(&format!("{} {number} of {count}: {panel} {series}, {x}", experiment.name));
        let figures = run_on(members, &setting)?;
        measured.push(Measured { experiment: experiment.name, panel, series, x, figures });
    }
    Ok(measured)
}
