//! Draws figures as SVG. The figures are readable on light and dark pages: there is no background, and lines and
//! letters are medium grey.

use anyhow::Context;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const SIZE: (u32, u32) = (720, 420);
const INK: RGBColor = RGBColor(118, 118, 118);
const FONT: (&str, u32) = ("sans-serif", 14);
/// Colours that people with colour blindness can distinguish, also when printed in grey (after Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(148, 103, 189),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(140, 140, 60),
];

/// Positions on the horizontal axis with their labels, and lines of values over these positions.
pub struct Figure {
    pub title: String,
    /// The label of the horizontal axis.
    pub below: &'static str,
    /// The label of the vertical axis.
    pub left: &'static str,
    pub places: Vec<String>,
    pub lines: Vec<(String, Vec<Option<f64>>)>,
    /// Whether to draw groups of bars instead of lines.
    pub bars: bool,
}

/// Writes one SVG file for each figure. Creates the directory.
#[expect(clippy::disallowed_methods, reason = "the user asked for these files, which are not files of a store")]
pub fn write(dir: &Path, figures: &[(impl AsRef<Path>, Figure)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    for (name, figure) in figures {
        let path = dir.join(name);
        std::fs::write(&path, draw(figure)?).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// The SVG text of the figure.
fn draw(figure: &Figure) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw_on(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), figure)
        .map_err(|error| anyhow::anyhow!("drawing {:?}: {error}", figure.title))?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_on(area: &Area<'_>, figure: &Figure) -> Result<(), Box<dyn std::error::Error>> {
    let text = FONT.into_font().color(&INK);
    let ratios = || figure.lines.iter().flat_map(|(_, points)| points.iter().flatten().copied());
    let least = ratios().fold(f64::INFINITY, f64::min).min(1.0);
    let most = ratios().fold(1.0, f64::max);
    let bottom = if figure.bars { 0.0 } else { least.floor().max(0.0) };
    let top = most + (most - bottom).max(0.1) * 0.08;
    let last = figure.places.len().saturating_sub(1) as f64;

    let caption = text.clone().pos(Pos::new(HPos::Center, VPos::Top));
    area.draw(&Text::new(figure.title.clone(), (SIZE.0 as i32 / 2, 10), caption))?;
    let (plot, legend) = area.margin(36, 4, 4, 8).split_horizontally(SIZE.0 - 180);
    let mut chart = ChartBuilder::on(&plot)
        .x_label_area_size(46)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..last + 0.5, bottom..top)?;
    // At most 8 long labels, or 72 characters of short labels with spaces, have space below the axis.
    let longest = figure.places.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let places = figure.places.len();
    let every = places.div_ceil(8).min((places * (longest + 2)).div_ceil(72)).max(1);
    let below = |x: &f64| match x.round() {
        place if (x - place).abs() > 1e-6 || place < 0.0 => String::new(),
        place => match figure.places.get(place as usize).filter(|_| (place as usize).is_multiple_of(every)) {
            Some(label) => label.clone(),
            None => String::new(),
        },
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.25))
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .x_labels(figure.places.len() * 2 + 1)
        .x_label_formatter(&below)
        .y_label_formatter(&|value| if top >= 20.0 { format!("{value:.0}") } else { format!("{value:.2}") })
        .x_desc(figure.below)
        .y_desc(figure.left)
        .draw()?;
    let width = 0.8 / figure.lines.len().max(1) as f64;
    for (nth, (name, points)) in figure.lines.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let known = || (0u32..).zip(points).filter_map(|(place, ratio)| Some((f64::from(place), (*ratio)?)));
        if figure.bars {
            let left = |place: f64| place - 0.4 + width * nth as f64;
            let bar = |(place, ratio)| {
                Rectangle::new([(left(place), 0.0), (left(place) + width * 0.92, ratio)], colour.filled())
            };
            chart.draw_series(known().map(bar))?;
        } else {
            // Every second line is narrower, so that two lines are both visible where they coincide.
            let width = if nth % 2 == 0 { 4 } else { 2 };
            chart.draw_series(LineSeries::new(known(), colour.stroke_width(width)))?;
            chart.draw_series(known().map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        let y = 40 + 24 * nth as i32; // there are only a few lines
        legend.draw(&Rectangle::new([(12, y - 4), (32, y + 4)], colour.filled()))?;
        let beside = text.clone().pos(Pos::new(HPos::Left, VPos::Center));
        legend.draw(&Text::new(name.clone(), (40, y), beside))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_any_lines_is_drawn_and_nothing_of_it_is_markup() {
        for (places, bars) in [(0, false), (1, true), (40, false)] {
            let ratios = (0..places).map(|n| (n % 3 > 0).then_some(1.0 + f64::from(n))).collect();
            let figure = Figure {
                title: "a < b & c".into(),
                below: "ranks",
                left: "ratio",
                places: (0..places).map(|n| format!("<{n}>")).collect(),
                lines: vec![("\"x\" <y>".into(), ratios)],
                bars,
            };
            let svg = draw(&figure).expect("drawn");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("<y>"), "{svg}");
        }
    }
}
