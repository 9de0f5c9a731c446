//! What all charts have: size, colours, title, places, legend, file.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A chart that could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("figure {name}: {reason}")]
pub struct Error {
    /// Which one.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// What stands around a chart over named places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Above it.
    pub title: &'a str,
    /// What the places are; nothing is said if this is empty.
    pub places: &'a str,
    /// Unit of the values.
    pub unit: &'a str,
}

/// As 0xRRGGBB. Colours that colour-blind people tell apart come first.
const COLOURS: [u32; 12] = [
    0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x787878, 0x9467bd, 0x8c564b, 0x3c3c3c,
    0xbcbd22, 0x173f5f,
];

const SIZE: (u32, u32) = (960, 420);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>;
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The colour of a series.
pub fn colour(number: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[number % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}

/// A chart with room for the legend at the right.
pub fn grouped<'a, 'b>(
    area: &'a Area<'b>,
    labels: Labels<'_>,
    places: usize,
    top: f64,
) -> Result<Chart<'a, 'b, RangedCoordf64>, Box<dyn std::error::Error>> {
    let chart = ChartBuilder::on(area)
        .caption(labels.title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(50)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..places.max(1) as f64 * 1.45, 0.0..top)?;
    Ok(chart)
}

/// Names under the places instead of numbers, in two rows where they are long.
pub fn name_groups<'a, 'b: 'a>(
    area: &Area<'b>,
    chart: &mut Chart<'a, 'b, RangedCoordf64>,
    places: &[String],
    labels: Labels<'_>,
) -> Drawn {
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(0)
        .y_desc(labels.unit)
        .x_desc(labels.places)
        .draw()?;
    let many = places.iter().map(String::len).sum::<usize>() > 70;
    let centre = Pos::new(HPos::Center, VPos::Top);
    let style = TextStyle::from(("sans-serif", if many { 10 } else { 13 })).pos(centre);
    for (i, name) in places.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(i as f64 + 0.5, 0.0));
        let lower = if many && i % 2 == 1 { 20 } else { 6 };
        area.draw(&Text::new(name.clone(), (x, y + lower), style.clone()))?;
    }
    Ok(())
}

/// The names of the series, at the upper right.
pub fn legend<'a, 'b: 'a, X: Ranged<ValueType = f64>>(chart: &mut Chart<'a, 'b, X>) -> Drawn {
    place_legend(chart, SeriesLabelPosition::UpperRight)
}

/// At the lower right, where distributions leave room.
pub fn legend_below<'a, 'b: 'a, X: Ranged<ValueType = f64>>(chart: &mut Chart<'a, 'b, X>) -> Drawn {
    place_legend(chart, SeriesLabelPosition::LowerRight)
}

fn place_legend<'a, 'b: 'a, X: Ranged<ValueType = f64>>(
    chart: &mut Chart<'a, 'b, X>,
    position: SeriesLabelPosition,
) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

/// The colour of a series in the legend.
pub fn swatch(x: i32, y: i32, colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
}

/// Paints on a white area and writes it as a file.
pub fn draw(path: &Path, paint: impl FnOnce(&Area<'_>) -> Drawn) -> Result<(), Error> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let painted = area.fill(&WHITE).map_err(Into::into).and_then(|()| paint(&area));
    let presented = painted.and_then(|()| area.present().map_err(Into::into));
    presented.map_err(|error| Error {
        name: path.file_name().unwrap_or_default().to_string_lossy().to_string(),
        reason: error.to_string(),
    })
}
