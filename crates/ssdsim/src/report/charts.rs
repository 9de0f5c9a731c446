//! Bar and line charts as SVG.

use std::path::Path;

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::Error;

const COLOURS: [RGBColor; 8] = [
    RGBColor(120, 120, 120),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

const SIZE: (u32, u32) = (900, 380);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A bar, with the ends of its error bar where it has one.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Height.
    pub value: f64,
    /// Least and greatest.
    pub range: Option<(f64, f64)>,
}

/// Named values, one for each group of a bar chart.
pub type Series = (String, Vec<Bar>);

/// Named points of a line.
pub type Line = (String, Vec<(f64, f64)>);

/// Bars side by side in groups.
pub fn bars(path: &Path, title: &str, unit: &str, groups: &[String], series: &[Series]) -> Result<(), Error> {
    let top = |bar: &Bar| bar.range.map_or(bar.value, |range| range.1.max(bar.value));
    let most = series.iter().flat_map(|(_, bars)| bars).map(top).fold(0.0, f64::max);
    draw(path, |area| {
        let count = series.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..(most * 1.45).max(1e-9))?;
        group_axis(area, &mut chart, groups, unit)?;
        for (place, (name, bars)) in series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let left = |group: usize| group as f64 + 0.1 + 0.8 * place as f64 / count;
            let wide = 0.8 / count;
            let boxes = bars.iter().enumerate().map(|(group, bar)| {
                Rectangle::new([(left(group), 0.0), (left(group) + wide * 0.92, bar.value)], colour.filled())
            });
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
            let ranges = bars.iter().enumerate().filter_map(|(group, bar)| {
                let (low, high) = bar.range?;
                let x = left(group) + wide * 0.46;
                Some(PathElement::new(vec![(x, low), (x, high)], BLACK.stroke_width(1)))
            });
            chart.draw_series(ranges)?;
        }
        legend(&mut chart)
    })
}

/// Bars of shares that add up to one.
pub fn stacked(
    path: &Path,
    title: &str,
    groups: &[String],
    parts: &[(String, Vec<f64>)],
) -> Result<(), Error> {
    draw(path, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..1.45)?;
        group_axis(area, &mut chart, groups, "share of parity updates")?;
        let mut base = vec![0.0; groups.len()];
        for (place, (name, shares)) in parts.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let boxes: Vec<_> = shares
                .iter()
                .enumerate()
                .map(|(group, share)| {
                    let left = group as f64;
                    let corners = [(left + 0.12, base[group]), (left + 0.88, base[group] + share)];
                    Rectangle::new(corners, colour.filled())
                })
                .collect();
            chart.draw_series(boxes)?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
            base.iter_mut().zip(shares).for_each(|(base, share)| *base += share);
        }
        legend(&mut chart)
    })
}

/// Tails of distribution functions: x in milliseconds, y the share of requests at most that slow.
pub fn tails(path: &Path, title: &str, lines: &[Line]) -> Result<(), Error> {
    let most = lines.iter().flat_map(|(_, points)| points).map(|point| point.0).fold(0.0, f64::max);
    draw(path, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..(most * 1.02).max(1e-9), 0.99..1.0)?;
        chart
            .configure_mesh()
            .x_desc("response time, ms")
            .y_desc("share of requests")
            .y_label_formatter(&|share| format!("{share:.4}"))
            .light_line_style(WHITE)
            .draw()?;
        for (place, (name, points)) in lines.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let line = PathElement::new(points.clone(), colour.stroke_width(2));
            chart.draw_series([line])?.label(name.as_str()).legend(move |(x, y)| swatch(x, y, colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Names under the groups instead of numbers, in two rows where there are many.
fn group_axis<'a, 'b: 'a>(
    area: &Area<'b>,
    chart: &mut Chart<'a, 'b>,
    groups: &[String],
    unit: &str,
) -> Drawn {
    chart.configure_mesh().disable_x_mesh().light_line_style(WHITE).x_labels(0).y_desc(unit).draw()?;
    let many = groups.len() > 12;
    let centre = Pos::new(HPos::Center, VPos::Top);
    let style = TextStyle::from(("sans-serif", if many { 10 } else { 13 })).pos(centre);
    for (i, name) in groups.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(i as f64 + 0.5, 0.0));
        let lower = if many && i % 2 == 1 { 20 } else { 6 };
        area.draw(&Text::new(name.clone(), (x, y + lower), style.clone()))?;
    }
    Ok(())
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Drawn {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
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
