//! Line and bar charts as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Error;

const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(60, 60, 60),
    RGBColor(188, 189, 34),
    RGBColor(23, 63, 95),
];

const SIZE: (u32, u32) = (960, 420);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;
type Series = (String, Vec<f64>);

/// A line for each series over named places.
pub(super) fn lines(
    path: &Path,
    title: &str,
    unit: &str,
    xs: &[String],
    series: &[Series],
) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, title, xs.len(), most(series) * 1.1)?;
        name_groups(area, &mut chart, xs, unit)?;
        for (place, (name, values)) in series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let points: Vec<(f64, f64)> = (0..)
                .zip(values)
                .filter(|(_, value)| value.is_finite())
                .map(|(x, value)| (f64::from(x) + 0.5, *value))
                .collect();
            let dots = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
            chart.draw_series(dots)?;
            let line = PathElement::new(points.clone(), colour.stroke_width(2));
            chart.draw_series([line])?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        legend(&mut chart)
    })
}

/// Bars side by side in groups.
pub(super) fn bars(
    path: &Path,
    title: &str,
    unit: &str,
    xs: &[String],
    series: &[Series],
) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, title, xs.len(), most(series) * 1.1)?;
        name_groups(area, &mut chart, xs, unit)?;
        let wide = 0.8 / series.len() as f64;
        for (place, (name, values)) in series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let left = |group: usize| group as f64 + 0.1 + wide * place as f64;
            let boxes =
                values.iter().enumerate().filter(|(_, value)| value.is_finite()).map(|(group, value)| {
                    Rectangle::new([(left(group), 0.0), (left(group) + wide * 0.92, *value)], colour.filled())
                });
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        legend(&mut chart)
    })
}

/// Bars of shares that add up to one.
pub(super) fn stacked(path: &Path, title: &str, xs: &[String], parts: &[Series]) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = grouped(area, title, xs.len(), 1.0)?;
        name_groups(area, &mut chart, xs, "share of time")?;
        let mut base = vec![0.0; xs.len()];
        for (place, (name, shares)) in parts.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let mut boxes = Vec::new();
            for (group, share) in shares.iter().enumerate() {
                let (left, low) = (group as f64, base[group]);
                boxes.push(Rectangle::new([(left + 0.15, low), (left + 0.85, low + share)], colour.filled()));
                base[group] += share;
            }
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        legend(&mut chart)
    })
}

/// Distribution functions: x in microseconds on a logarithmic scale, y the share of requests at most that slow.
pub(super) fn distributions(
    path: &Path,
    title: &str,
    curves: &[(String, Vec<(f64, f64)>)],
) -> Result<(), Error> {
    let points = || curves.iter().flat_map(|(_, points)| points).map(|point| point.0.max(0.1));
    let (least, greatest) = (points().fold(f64::MAX, f64::min), points().fold(0.1, f64::max));
    let least = least.min(greatest);
    let room = greatest * (greatest / least).powf(0.45).max(2.0); // for the legend
    draw(path, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 17))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((least..room).log_scale(), 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("latency, us").y_desc("share of requests").light_line_style(WHITE).draw()?;
        for (place, (name, points)) in curves.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let line = PathElement::new(points.clone(), colour.stroke_width(2));
            chart.draw_series([line])?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.85)).draw()?;
        Ok(())
    })
}

fn most(series: &[Series]) -> f64 {
    series
        .iter()
        .flat_map(|(_, values)| values)
        .copied()
        .filter(|value| value.is_finite())
        .fold(1e-9, f64::max)
}

/// A chart with room for the legend at the right.
fn grouped<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    groups: usize,
    top: f64,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let wide = groups as f64 * 1.45;
    let chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..wide, 0.0..top)?;
    Ok(chart)
}

/// Names under the groups instead of numbers, in two rows where there are many.
fn name_groups<'a, 'b: 'a>(area: &Area<'b>, chart: &mut Chart<'a, 'b>, xs: &[String], unit: &str) -> Drawn {
    chart.configure_mesh().disable_x_mesh().light_line_style(WHITE).x_labels(0).y_desc(unit).draw()?;
    let many = xs.iter().map(String::len).sum::<usize>() > 70;
    let centre = Pos::new(HPos::Center, VPos::Top);
    let style = TextStyle::from(("sans-serif", if many { 10 } else { 13 })).pos(centre);
    for (i, name) in xs.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(i as f64 + 0.5, 0.0));
        let lower = if many && i % 2 == 1 { 20 } else { 6 };
        area.draw(&Text::new(name.clone(), (x, y + lower), style.clone()))?;
    }
    Ok(())
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.85)).draw()?;
    Ok(())
}

fn swatch(x: i32, y: i32, colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
}

fn draw(path: &Path, paint: impl FnOnce(&Area<'_>) -> Drawn) -> Result<(), Error> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let painted = area.fill(&WHITE).map_err(Into::into).and_then(|()| paint(&area));
    let presented = painted.and_then(|()| area.present().map_err(Into::into));
    presented.map_err(|error| Error::Figure {
        name: path.file_name().unwrap_or_default().to_string_lossy().to_string(),
        reason: error.to_string(),
    })
}
