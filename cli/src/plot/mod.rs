//! Draws all pictures of `mcr` as SVG. The pictures are readable on light and dark pages: there is no background, and
//! lines and letters are medium grey.

mod axis;
mod curves;

pub use axis::{Axis, Quantity, Scale, short_bytes};
pub use curves::{Curve, Curves, Mark};

use crate::advice::At;
use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Width of a picture, in pixels.
const WIDTH: u32 = 720;
/// Height of a picture with labels of one line below the horizontal axis, in pixels.
const HEIGHT: u32 = 420;
const INK: RGBColor = RGBColor(118, 118, 118);
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE_FONT: (&str, u32) = ("sans-serif", 18);
/// Average width of a character of [`FONT`], in pixels. The fonts of readers differ, so the width is an estimate.
const CHARACTER: i32 = 7;
/// Distance from the left end of the picture to the vertical axis.
const LEFT: i32 = 78;
const RIGHT: i32 = 14;
/// Distance from the upper end of the picture to the first line of the legend.
const LEGEND_TOP: i32 = 42;
const LEGEND_STEP: i32 = 20;
/// Distance from the horizontal axis to the lower end of the picture, with labels of one line.
const BELOW: i32 = 54;
/// Colours that people with colour blindness can distinguish, also when printed in grey (after Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(148, 103, 189),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(140, 140, 60),
];

/// A value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Point {
    Known(f64),
    /// The value was not measured. The picture shows "-".
    Unmeasured,
    /// There is no such value. The picture shows nothing.
    Nothing,
}

impl Point {
    fn known(self) -> Option<f64> {
        match self {
            Self::Known(value) if value.is_finite() => Some(value),
            Self::Known(_) | Self::Unmeasured | Self::Nothing => None,
        }
    }
}

impl From<Option<f64>> for Point {
    /// `None` is a value that was not measured.
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Unmeasured, Self::Known)
    }
}

/// Positions on the horizontal axis with their labels, and lines or bars of values over these positions.
pub struct Figure {
    pub title: String,
    /// The label of the horizontal axis.
    pub below: &'static str,
    /// The label of the vertical axis.
    pub left: &'static str,
    pub places: Vec<String>,
    pub lines: Vec<(String, Vec<Point>)>,
    /// Whether to draw groups of bars instead of lines.
    pub bars: bool,
    /// The lower end of a linear vertical axis, if no value is lower.
    pub base: f64,
    pub scale: Scale,
}

/// Writes one SVG file for each figure. Creates the directory.
pub fn write(dir: &Path, figures: &[(impl AsRef<Path>, Figure)]) -> anyhow::Result<()> {
    create_dir(dir)?;
    figures.iter().try_for_each(|(name, figure)| write_svg(&dir.join(name), &draw(figure)?))
}

/// Writes one SVG file.
#[expect(clippy::disallowed_methods, reason = "the user asked for this file, which is not a file of a store")]
pub fn write_svg(path: &Path, svg: &str) -> anyhow::Result<()> {
    std::fs::write(path, svg).with_context(|| At::new(path, "cannot be written"))
}

/// Creates the directory of pictures. Fails if no file can be created in it. A long measurement calls this function
/// before it begins.
#[expect(clippy::disallowed_methods, reason = "the user asked for this directory, which is not in a store")]
pub fn create_dir(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| At::new(dir, "cannot be made"))?;
    let probe = dir.join(format!(".mcr-{}.part", std::process::id()));
    create(&probe).with_context(|| At::new(dir, "no file can be created in it"))?;
    let _ = std::fs::remove_file(probe);
    Ok(())
}

/// Fails if the file of a picture cannot be created. An existing file is not changed.
pub fn check_svg(path: &Path) -> anyhow::Result<()> {
    let exists = path.symlink_metadata().is_ok();
    create(path).with_context(|| At::new(path, "cannot be written"))?;
    if !exists {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the user asked for this file, which is not a file of a store")]
fn create(path: &Path) -> std::io::Result<()> {
    std::fs::File::options().write(true).create(true).truncate(false).open(path).map(drop)
}

/// The result of drawing one element. Only the size of the memory limits drawing into a text.
type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The height of a panel in pixels, and the function that draws the panel.
type Panel<'p> = (u32, &'p dyn Fn(&Area<'_>) -> Drawn);

/// Draws panels below each other into one SVG text. Each panel has its own height in pixels.
fn svg_of(title: &str, panels: &[Panel<'_>]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = panels.iter().map(|(height, _)| height).sum();
    let mut draw = || -> Drawn {
        let mut rest = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        for (height, panel) in panels {
            let (upper, lower) = rest.split_vertically(*height);
            panel(&upper)?;
            rest = lower;
        }
        rest.present()?;
        Ok(())
    };
    draw().map_err(|error| anyhow::anyhow!("drawing {title:?}: {error}"))?;
    Ok(svg)
}

/// The SVG text of the figure.
fn draw(figure: &Figure) -> anyhow::Result<String> {
    let labels = Labels::of(figure);
    let height = HEIGHT + labels.extra_height() as u32; // at most a few hundred pixels
    svg_of(&figure.title, &[(height, &|area: &Area<'_>| figure.draw_on(area, &labels))])
}

/// The labels below the horizontal axis of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labels {
    /// Every so often, a label has space.
    Every(usize),
    /// All labels are drawn vertically. `longest`: the number of characters of the longest label.
    Vertical { longest: usize },
}

/// Maximum number of characters of a vertical label. The rest is cut.
const VERTICAL_MAX: usize = 16;

impl Labels {
    fn of(figure: &Figure) -> Self {
        let longest = figure.places.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let width = (WIDTH as i32 - LEFT - RIGHT) as usize;
        let fitting = (width / (longest * CHARACTER as usize + 14)).max(1);
        match figure.places.len() <= fitting {
            true => Self::Every(1),
            // Bars of different things all need their names. Lines have ordered positions.
            false if figure.bars && figure.places.len() <= 40 => Self::Vertical { longest: longest.min(VERTICAL_MAX) },
            false => Self::Every(figure.places.len().div_ceil(fitting)),
        }
    }

    /// The height that vertical labels need in addition to a line of text.
    fn extra_height(self) -> i32 {
        match self {
            Self::Every(_) => 0,
            Self::Vertical { longest } => (longest as i32 * CHARACTER - 12).max(0),
        }
    }
}

/// The inner part of a picture, between the axes.
struct Frame<'a, 'b> {
    area: &'a Area<'b>,
    top: i32,
    width: i32,
    height: i32,
}

/// The colour and the name of an entry of a legend.
type Key = (RGBColor, String);

fn text_style(pos: Pos) -> TextStyle<'static> {
    FONT.into_font().color(&INK).pos(pos)
}

impl<'a, 'b> Frame<'a, 'b> {
    /// Draws the title, the legend and the names of the axes. `below`: the height below the horizontal axis.
    fn new(area: &'a Area<'b>, title: &str, axes: [&str; 2], keys: &[Key], below: i32) -> Drawn<Self> {
        let (width, height) = area.dim_in_pixel();
        let (width, height) = (width as i32, height as i32); // small
        let caption = TITLE_FONT.into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(title.to_owned(), (width / 2, 12), caption))?;
        let (mut x, mut y) = (LEFT, LEGEND_TOP + 8);
        for (colour, name) in keys {
            let needs = 26 + name.chars().count() as i32 * CHARACTER + 16;
            if x > LEFT && x + needs > width {
                (x, y) = (LEFT, y + LEGEND_STEP);
            }
            area.draw(&Rectangle::new([(x, y - 4), (x + 18, y + 4)], colour.filled()))?;
            let beside = text_style(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(name.clone(), (x + 24, y), beside))?;
            x += needs;
        }
        let top = if keys.is_empty() { LEGEND_TOP } else { y + 18 };
        let frame = Self { area, top, width: width - LEFT - RIGHT, height: (height - top - below).max(40) };
        let middle = Pos::new(HPos::Center, VPos::Bottom);
        area.draw(&Text::new(axes[0].to_owned(), (LEFT + frame.width / 2, height - 6), text_style(middle)))?;
        let vertical = FONT.into_font().transform(FontTransform::Rotate270).color(&INK);
        let vertical = vertical.pos(Pos::new(HPos::Center, VPos::Center));
        area.draw(&Text::new(axes[1].to_owned(), (16, top + frame.height / 2), vertical))?;
        frame.line([(LEFT, frame.bottom()), (LEFT + frame.width, frame.bottom())], INK.stroke_width(1))?;
        Ok(frame)
    }

    fn bottom(&self) -> i32 {
        self.top + self.height
    }

    /// The pixel of a share of the width.
    fn x(&self, place: f64) -> i32 {
        LEFT + (place * f64::from(self.width)).round() as i32
    }

    /// The pixel of a share of the height, from the bottom.
    fn y(&self, place: f64) -> i32 {
        self.bottom() - (place * f64::from(self.height)).round() as i32
    }

    fn line(&self, points: [(i32, i32); 2], style: ShapeStyle) -> Drawn {
        Ok(self.area.draw(&PathElement::new(points.to_vec(), style))?)
    }

    fn text(&self, text: &str, at: (i32, i32), pos: Pos) -> Drawn {
        Ok(self.area.draw(&Text::new(text.to_owned(), at, text_style(pos)))?)
    }

    /// Draws the mark of a value that was not measured, the `nth` mark above the horizontal axis.
    fn hyphen(&self, x: i32, nth: i32, colour: RGBColor) -> Drawn {
        let style = TITLE_FONT.into_font().color(&colour).pos(Pos::new(HPos::Center, VPos::Bottom));
        Ok(self.area.draw(&Text::new("-", (x, self.bottom() - 2 - 8 * nth), style))?)
    }

    /// Draws the ticks and the lines of the grid of the vertical axis.
    fn y_ticks(&self, axis: &Axis) -> Drawn {
        for (y, label) in axis.ticks().into_iter().filter_map(|(t, label)| Some((self.y(axis.place(t)?), label))) {
            if y < self.bottom() {
                self.line([(LEFT, y), (LEFT + self.width, y)], INK.mix(0.25).stroke_width(1))?;
            }
            self.text(&label, (LEFT - 8, y), Pos::new(HPos::Right, VPos::Center))?;
        }
        Ok(())
    }

    /// Draws the ticks of the horizontal axis.
    fn x_ticks(&self, axis: &Axis) -> Drawn {
        for (x, label) in axis.ticks().into_iter().filter_map(|(t, label)| Some((self.x(axis.place(t)?), label))) {
            self.line([(x, self.bottom()), (x, self.bottom() + 5)], INK.stroke_width(1))?;
            self.text(&label, (x, self.bottom() + 9), Pos::new(HPos::Center, VPos::Top))?;
        }
        Ok(())
    }

    /// Draws a line through points of the picture.
    fn path(&self, points: Vec<(i32, i32)>, style: ShapeStyle) -> Drawn {
        Ok(self.area.draw(&PathElement::new(points, style))?)
    }
}

/// The colour of the line or bar with this number.
fn colour(nth: usize) -> RGBColor {
    COLOURS[nth % COLOURS.len()]
}

impl Figure {
    fn draw_on(&self, area: &Area<'_>, labels: &Labels) -> Drawn {
        let keys: Vec<Key> = (0..).zip(&self.lines).map(|(nth, (name, _))| (colour(nth), name.clone())).collect();
        let has_unmeasured = self.lines.iter().any(|(_, points)| points.contains(&Point::Unmeasured));
        let below = if has_unmeasured { format!("{} (-: not measured)", self.below) } else { self.below.to_owned() };
        let frame = Frame::new(area, &self.title, [&below, self.left], &keys, BELOW + labels.extra_height())?;
        let values = self.lines.iter().flat_map(|(_, points)| points.iter().filter_map(|point| point.known()));
        let axis = Axis::over(values, self.scale, self.base, Quantity::Number);
        frame.y_ticks(&axis)?;
        self.draw_places(&frame, *labels)?;
        if self.bars { self.draw_bars(&frame, &axis) } else { self.draw_lines(&frame, &axis) }
    }

    /// The share of the width at the middle of a position.
    fn middle(&self, place: usize) -> f64 {
        (place as f64 + 0.5) / self.places.len().max(1) as f64
    }

    fn draw_places(&self, frame: &Frame<'_, '_>, labels: Labels) -> Drawn {
        let bottom = frame.bottom();
        for (place, label) in self.places.iter().enumerate() {
            let x = frame.x(self.middle(place));
            match labels {
                Labels::Every(every) if place.is_multiple_of(every) => {
                    frame.line([(x, bottom), (x, bottom + 5)], INK.stroke_width(1))?;
                    frame.text(label, (x, bottom + 9), Pos::new(HPos::Center, VPos::Top))?;
                }
                Labels::Every(_) => {}
                Labels::Vertical { .. } => {
                    let cut: String = label.chars().take(VERTICAL_MAX).collect();
                    let vertical = FONT.into_font().transform(FontTransform::Rotate270).color(&INK);
                    let vertical = vertical.pos(Pos::new(HPos::Right, VPos::Center));
                    frame.area.draw(&Text::new(cut, (x, bottom + 8), vertical))?;
                }
            }
        }
        Ok(())
    }

    fn draw_lines(&self, frame: &Frame<'_, '_>, axis: &Axis) -> Drawn {
        let mut hyphens = vec![0; self.places.len()];
        for (nth, (_, points)) in self.lines.iter().enumerate() {
            let colour = colour(nth);
            // Every second line is narrower, so that two lines are both visible where they coincide.
            let width = if nth % 2 == 0 { 4 } else { 2 };
            let mut run = Vec::new();
            for (place, point) in points.iter().enumerate() {
                let x = frame.x(self.middle(place));
                match point.known().and_then(|value| axis.place(value)) {
                    Some(share) => run.push((x, frame.y(share))),
                    None => {
                        // A line does not cross a value that was not measured.
                        frame.path(std::mem::take(&mut run), colour.stroke_width(width))?;
                        if let (Point::Unmeasured, Some(above)) = (point, hyphens.get_mut(place)) {
                            frame.hyphen(x, *above, colour)?;
                            *above += 1;
                        }
                    }
                }
            }
            frame.path(run, colour.stroke_width(width))?;
            for (place, point) in points.iter().enumerate() {
                if let Some(share) = point.known().and_then(|value| axis.place(value)) {
                    let at = (frame.x(self.middle(place)), frame.y(share));
                    frame.area.draw(&Circle::new(at, 4, colour.filled()))?;
                }
            }
        }
        Ok(())
    }

    fn draw_bars(&self, frame: &Frame<'_, '_>, axis: &Axis) -> Drawn {
        let slot = 1.0 / self.places.len().max(1) as f64;
        for place in 0..self.places.len() {
            let there: Vec<(usize, Point)> = (self.lines.iter().enumerate())
                .filter_map(|(nth, (_, points))| Some((nth, *points.get(place)?)))
                .filter(|(_, point)| *point != Point::Nothing)
                .collect();
            // All bars of a figure have one width, and the bars of a position are centred.
            let width = 0.84 * slot / self.lines.len().max(1) as f64;
            let left = self.middle(place) - width * there.len() as f64 / 2.0;
            for (at, (nth, point)) in there.into_iter().enumerate() {
                let begin = left + width * at as f64;
                let (from, to) = (frame.x(begin), frame.x(begin + width * 0.94).max(frame.x(begin) + 1));
                let Some(value) = point.known() else {
                    frame.hyphen((from + to) / 2, 0, colour(nth))?;
                    continue;
                };
                let zero = frame.y(axis.place(axis.from()).unwrap_or(0.0));
                // A bar of the lowest value is a thin line.
                let top = frame.y(axis.place(value).unwrap_or(0.0)).min(zero - 2);
                frame.area.draw(&Rectangle::new([(from, top), (to, zero)], colour(nth).filled()))?;
                // The value is drawn if there is space for four digits.
                if to - from >= 4 * CHARACTER {
                    let label = format!("{value:.2}");
                    frame.text(&label, ((from + to) / 2, top - 4), Pos::new(HPos::Center, VPos::Bottom))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(places: u32, bars: bool, scale: Scale) -> Figure {
        let ratios = (0..places).map(|n| (n % 3 > 0).then_some(1.0 + f64::from(n)).into()).collect();
        Figure {
            title: "a < b & c".into(),
            below: "ranks",
            left: "ratio",
            places: (0..places).map(|n| format!("<{n}>")).collect(),
            lines: vec![("\"x\" <y>".into(), ratios)],
            bars,
            base: 1.0,
            scale,
        }
    }

    #[test]
    fn a_figure_of_any_lines_is_drawn_and_nothing_of_it_is_markup() {
        for (places, bars) in [(0, false), (1, true), (30, true), (40, false), (300, true)] {
            for scale in [Scale::Linear, Scale::Log] {
                let svg = draw(&figure(places, bars, scale)).expect("drawn");
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
                assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("<y>"), "{svg}");
            }
        }
    }

    #[test]
    fn a_value_that_was_not_measured_is_a_hyphen_and_no_value_is_nothing() {
        let hyphens = |points: &[Point]| {
            let mut figure = figure(points.len() as u32, true, Scale::Linear);
            figure.lines[0].1 = points.to_vec();
            let svg = draw(&figure).expect("drawn");
            let content = |text: &&str| text.split(['>', '<']).nth(1).map(str::trim) == Some("-");
            svg.split("<text").filter(content).count()
        };
        assert_eq!(hyphens(&[Point::Known(2.0), Point::Unmeasured, Point::Nothing]), 1);
        assert_eq!(hyphens(&[Point::Unmeasured, Point::Unmeasured]), 2);
        assert_eq!(hyphens(&[Point::Known(f64::NAN), Point::Known(1.5)]), 1);
    }

    #[test]
    fn names_of_bars_are_all_drawn_and_names_of_ordered_points_have_space() {
        assert_eq!(Labels::of(&figure(4, true, Scale::Linear)), Labels::Every(1));
        assert_eq!(Labels::of(&figure(30, true, Scale::Linear)), Labels::Vertical { longest: 4 });
        assert!(matches!(Labels::of(&figure(60, false, Scale::Linear)), Labels::Every(every) if every > 1));
    }
}
