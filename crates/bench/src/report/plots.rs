//! Plots of what was measured.

use std::path::Path;

use charts::{Axis, Bar, Labels, Part, Series};

use super::measured::Measured;
use crate::Error;
use crate::figures::{Figures, Shares};

/// What a plot shows, its unit, what its places are, and where a value comes from.
pub(super) struct View(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) fn(&Figures) -> f64,
);

/// How figures become a plot; each panel of an experiment has its own.
pub(super) enum Plot {
    /// A line for each series.
    Lines(View),
    /// Bars side by side.
    Bars(View),
    /// A bar for each run, cut into the stages of a write.
    Stages(&'static str, fn(&Figures) -> Option<Shares>),
    /// The distribution of latencies, a line for each run.
    Latencies(&'static str),
}

impl Plot {
    /// What it shows.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Plot::Lines(View(what, ..)) | Plot::Bars(View(what, ..)) => what,
            Plot::Stages(what, _) | Plot::Latencies(what) => what,
        }
    }

    /// Draws the runs of one panel.
    pub(super) fn draw(&self, path: &Path, title: &str, measured: &[&Measured]) -> Result<(), Error> {
        let xs = distinct(measured.iter().map(|measured| &measured.x));
        match self {
            Plot::Lines(View(_, unit, places, of)) => {
                charts::lines(path, Labels { title, places, unit }, &xs, &series(measured, &xs, *of))?;
            }
            Plot::Bars(View(_, unit, places, of)) => {
                charts::bars(path, Labels { title, places, unit }, &xs, &series(measured, &xs, *of))?;
            }
            Plot::Stages(_, of) => {
                let shares: Vec<Shares> =
                    measured.iter().filter_map(|measured| of(&measured.figures)).collect();
                let labels = Labels { title, places: "level and size", unit: "share of time" };
                charts::stacked(path, labels, &xs, &stage_parts(&shares))?;
            }
            Plot::Latencies(_) => {
                let curve = |measured: &&Measured| {
                    let points = measured.figures.lat_curve.iter();
                    (measured.x.clone(), points.map(|(ns, share)| (*ns as f64 / 1e3, *share)).collect())
                };
                let axis = Axis { name: "latency, us", log: true, shares_from: 0.0 };
                charts::distributions(path, title, axis, &measured.iter().map(curve).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

fn series(measured: &[&Measured], xs: &[String], of: fn(&Figures) -> f64) -> Vec<Series> {
    let of_one = |name: &String| {
        let find = |x: &String| measured.iter().find(|m| m.series == *name && m.x == *x);
        let value = |x: &String| find(x).map_or(f64::NAN, |measured| of(&measured.figures));
        xs.iter().map(|x| Bar::from(value(x))).collect()
    };
    let names = distinct(measured.iter().map(|measured| &measured.series));
    names.iter().map(|name| (name.clone(), of_one(name))).collect()
}

fn stage_parts(shares: &[Shares]) -> Vec<Part> {
    type OfShares = (&'static str, fn(&Shares) -> f64);
    const PARTS: [OfShares; 6] = [
        ("claim", |shares| shares.claim),
        ("wait", |shares| shares.wait),
        ("pre-read", |shares| shares.pre_read),
        ("parity", |shares| shares.parity),
        ("write", |shares| shares.write),
        ("complete", |shares| shares.complete),
    ];
    PARTS.iter().map(|(name, of)| ((*name).to_string(), shares.iter().map(of).collect())).collect()
}

/// The names, each once, in the order in which they come.
pub(super) fn distinct<'a, T: ToString + 'a>(names: impl Iterator<Item = &'a T>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names.map(ToString::to_string) {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}
