//! Charts of reports as SVG: bars, lines and stacks over named places, and distributions. One frame for all of them: a
//! title, named places or an axis, a unit, a legend at the right.
//!
//! A crate of its own because two reports draw that may not know each other: the simulated SSD's must never reach the
//! host, which the benchmark runs on.
#![forbid(unsafe_code)]

mod frame;

use std::path::Path;

use plotters::prelude::*;

use frame::{colour, draw, grouped, legend, legend_below, name_groups, swatch};

pub use frame::{Error, Labels};

/// A value, with the ends of its error bar where it has one. What is not finite is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Height.
    pub value: f64,
    /// Least and greatest.
    pub range: Option<(f64, f64)>,
}

/// Named values, one for each place.
pub type Series = (String, Vec<Bar>);

/// Named shares, one for each place.
pub type Part = (String, Vec<f64>);

/// Named points of a line.
pub type Line = (String, Vec<(f64, f64)>);

/// The horizontal axis of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis<'a> {
    /// What it shows, with its unit.
    pub name: &'a str,
    /// Logarithmic.
    pub log: bool,
    /// Where the vertical axis begins: 0 for whole distributions, 0.99 for tails.
    pub shares_from: f64,
}

impl From<f64> for Bar {
    fn from(value: f64) -> Self {
        Bar { value, range: None }
    }
}

impl Bar {
    fn top(&self) -> f64 {
        self.range.map_or(self.value, |range| range.1.max(self.value))
    }
}

/// Bars side by side over named places.
///
/// # Errors
/// The file cannot be written.
pub fn bars(path: &Path, labels: Labels<'_>, places: &[String], series: &[Series]) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, labels, places.len(), most(series) * 1.1)?;
        name_groups(area, &mut chart, places, labels)?;
        let wide = 0.8 / series.len().max(1) as f64;
        for (number, (name, bars)) in series.iter().enumerate() {
            let colour = colour(number);
            let left = |place: usize| place as f64 + 0.1 + wide * number as f64;
            let shown = || bars.iter().enumerate().filter(|(_, bar)| bar.value.is_finite());
            let boxes = shown().map(|(place, bar)| {
                Rectangle::new([(left(place), 0.0), (left(place) + wide * 0.92, bar.value)], colour.filled())
            });
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
            chart.draw_series(shown().filter_map(|(place, bar)| range(left(place) + wide * 0.46, bar)))?;
        }
        legend(&mut chart)
    })
}

/// A line for each series over named places.
///
/// # Errors
/// The file cannot be written.
pub fn lines(path: &Path, labels: Labels<'_>, places: &[String], series: &[Series]) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, labels, places.len(), most(series) * 1.1)?;
        name_groups(area, &mut chart, places, labels)?;
        for (number, (name, bars)) in series.iter().enumerate() {
            let colour = colour(number);
            let shown = || (0..).zip(bars).filter(|(_, bar)| bar.value.is_finite());
            let points: Vec<(f64, f64)> =
                shown().map(|(place, bar)| (f64::from(place) + 0.5, bar.value)).collect();
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            let line = PathElement::new(points.clone(), colour.stroke_width(2));
            chart.draw_series([line])?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
            chart.draw_series(shown().filter_map(|(place, bar)| range(f64::from(place) + 0.5, bar)))?;
        }
        legend(&mut chart)
    })
}

/// Bars of shares that add up to one.
///
/// # Errors
/// The file cannot be written.
pub fn stacked(path: &Path, labels: Labels<'_>, places: &[String], parts: &[Part]) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, labels, places.len(), 1.0)?;
        name_groups(area, &mut chart, places, labels)?;
        let mut base = vec![0.0; places.len()];
        for (number, (name, shares)) in parts.iter().enumerate() {
            let colour = colour(number);
            let mut boxes = Vec::new();
            for (place, share) in shares.iter().enumerate() {
                let (left, low) = (place as f64, base[place]);
                boxes.push(Rectangle::new([(left + 0.15, low), (left + 0.85, low + share)], colour.filled()));
                base[place] += share;
            }
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        legend(&mut chart)
    })
}

/// Distribution functions: at each point the share of all that is at most so large.
///
/// # Errors
/// The file cannot be written.
pub fn distributions(path: &Path, title: &str, axis: Axis<'_>, curves: &[Line]) -> Result<(), Error> {
    let points = || curves.iter().flat_map(|(_, points)| points).map(|point| point.0);
    let greatest = points().fold(0.0, f64::max).max(1e-9);
    draw(path, |area| {
        let mut builder = ChartBuilder::on(area);
        builder.caption(title, ("sans-serif", 17)).margin(12).x_label_area_size(40).y_label_area_size(64);
        let shares = axis.shares_from..1.0;
        let precise = axis.shares_from > 0.5;
        let share = move |share: &f64| if precise { format!("{share:.4}") } else { format!("{share:.1}") };
        // The two scales are two types: the same is said of both.
        macro_rules! paint {
            ($chart:expr) => {{
                let mut chart = $chart;
                let mut mesh = chart.configure_mesh();
                mesh.x_desc(axis.name).y_desc("share").y_label_formatter(&share);
                mesh.light_line_style(WHITE).draw()?;
                for (number, (name, points)) in curves.iter().enumerate() {
                    let colour = colour(number);
                    let line = PathElement::new(points.clone(), colour.stroke_width(2));
                    chart
                        .draw_series([line])?
                        .label(name.as_str())
                        .legend(move |(x, y)| swatch(x, y, colour));
                }
                legend_below(&mut chart)
            }};
        }
        match axis.log {
            false => paint!(builder.build_cartesian_2d(0.0..greatest * 1.02, shares)?),
            true => {
                let least = points().filter(|x| *x > 0.0).fold(greatest, f64::min);
                let room = greatest * (greatest / least).powf(0.45).max(2.0); // for the legend
                paint!(builder.build_cartesian_2d((least..room).log_scale(), shares)?)
            }
        }
    })
}

fn most(series: &[Series]) -> f64 {
    let tops = series.iter().flat_map(|(_, bars)| bars).map(Bar::top);
    tops.filter(|top| top.is_finite()).fold(1e-9, f64::max)
}

fn range(x: f64, bar: &Bar) -> Option<PathElement<(f64, f64)>> {
    let (low, high) = bar.range?;
    Some(PathElement::new(vec![(x, low), (x, high)], BLACK.stroke_width(1)))
}

/// Text as HTML and SVG take it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels { title: "a title", places: "block size", unit: "GB/s" };

    fn drawn(paint: impl FnOnce(&Path) -> Result<(), Error>) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chart.svg");
        paint(&path).expect("drawn");
        std::fs::read_to_string(path).expect("a chart")
    }

    #[test]
    fn every_chart_names_its_title_unit_places_and_series() {
        let places = ["4K".to_string(), "64K".to_string()];
        let bar = |value: f64| Bar { value, range: Some((value / 2.0, value * 2.0)) };
        let series = [
            ("one".to_string(), vec![bar(1.0), bar(2.0)]),
            ("two".to_string(), vec![bar(3.0), f64::NAN.into()]),
        ];
        let parts = [("one".to_string(), vec![0.25, 0.5]), ("two".to_string(), vec![0.75, 0.5])];
        let charts = [
            drawn(|path| bars(path, LABELS, &places, &series)),
            drawn(|path| lines(path, LABELS, &places, &series)),
            drawn(|path| stacked(path, LABELS, &places, &parts)),
        ];
        for (number, chart) in charts.iter().enumerate() {
            for word in ["a title", "GB/s", "block size", "4K", "64K", "one", "two"] {
                assert!(chart.contains(word), "{word} in chart {number}");
            }
        }
        // Bars and their swatches: two and one that has a value, and one swatch for each series.
        assert_eq!(charts[0].matches("fill=\"#0072B2\"").count(), 3);
        assert_eq!(charts[0].matches("fill=\"#D55E00\"").count(), 2);
    }

    #[test]
    fn distributions_are_drawn_on_both_scales_and_without_points() {
        let curve = |name: &str| (name.to_string(), vec![(1.0, 0.2), (10.0, 0.9), (100.0, 1.0)]);
        for (log, shares_from) in [(true, 0.0), (false, 0.99)] {
            let axis = Axis { name: "latency, us", log, shares_from };
            let chart = drawn(|path| distributions(path, "t", axis, &[curve("a"), curve("b")]));
            assert!(chart.contains("latency, us") && chart.contains("<polyline"), "log {log}");
            drawn(|path| distributions(path, "t", axis, &[("none".to_string(), vec![])]));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_with_the_figures_name() {
        let error =
            bars(Path::new("/nowhere/at/all.svg"), LABELS, &["x".into()], &[]).expect_err("no folder");
        assert_eq!(error.name, "all.svg");
    }
}
