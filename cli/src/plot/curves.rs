//! Curves over a horizontal axis of numbers, with marked positions. Several of these panels form one picture.

use super::{Area, Axis, BELOW, Drawn, Frame, HEIGHT, INK, Key, LEFT, Panel, Quantity, Scale, colour, svg_of};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A line through points.
pub struct Curve {
    pub name: String,
    /// Pairs of a horizontal and a vertical value, sorted by the horizontal value.
    pub points: Vec<(f64, f64)>,
}

/// A vertical line with a dot on its curve.
pub struct Mark {
    pub name: String,
    /// The horizontal and the vertical value of the dot.
    pub at: (f64, f64),
}

/// A panel with curves and marks.
pub struct Curves {
    pub title: String,
    /// The labels of the horizontal and of the vertical axis.
    pub labels: [String; 2],
    pub quantities: [Quantity; 2],
    /// The scale of the horizontal axis. The vertical axis is linear and begins at 0.
    pub scale: Scale,
    /// The highest value of the vertical axis, if values above this value are not interesting.
    pub top: Option<f64>,
    pub curves: Vec<Curve>,
    pub marks: Vec<Mark>,
}

impl Curves {
    /// One SVG text with all panels, the first panel at the top.
    pub fn svg(panels: &[Self]) -> anyhow::Result<String> {
        let title = panels.first().map_or("", |panel| panel.title.as_str());
        let draw: Vec<_> = panels.iter().map(|panel| move |area: &Area<'_>| panel.draw_on(area)).collect();
        let panels: Vec<Panel<'_>> = draw.iter().map(|draw| -> Panel<'_> { (HEIGHT, draw) }).collect();
        svg_of(title, &panels)
    }

    fn draw_on(&self, area: &Area<'_>) -> Drawn {
        // Curves with marks are grey and have no legend, so that a mark can have the colour of a curve of another
        // panel.
        let curves = if self.marks.is_empty() { &self.curves[..] } else { &[] };
        let of_curve = |nth: usize| if self.marks.is_empty() { colour(nth) } else { INK };
        let names = curves.iter().map(|curve| &curve.name).chain(self.marks.iter().map(|mark| &mark.name));
        let keys: Vec<Key> = (0..).zip(names).map(|(nth, name)| (colour(nth), name.clone())).collect();
        let frame = Frame::new(area, &self.title, [&self.labels[0], &self.labels[1]], &keys, BELOW)?;
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter().copied());
        let (least, most) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), (x, _)| (a.min(x), b.max(x)));
        let across = match least < most {
            true => Axis::exactly(least, most, self.scale, self.quantities[0]),
            false => Axis::over([least].into_iter(), self.scale, 0.0, self.quantities[0]),
        };
        let below_top = |y: &f64| self.top.is_none_or(|top| *y <= top);
        let up = Axis::over(points().map(|(_, y)| y).filter(below_top), Scale::Linear, 0.0, self.quantities[1]);
        frame.y_ticks(&up)?;
        frame.x_ticks(&across)?;
        let pixel = |(x, y): (f64, f64)| Some((frame.x(across.place(x)?), frame.y(up.place(y)?)));
        for (nth, curve) in self.curves.iter().enumerate() {
            // Later curves are narrower, so that curves are all visible where they coincide.
            let width = width_of(nth, self.curves.len());
            // The curve is interrupted where it is above the picture.
            for run in curve.points.iter().map(|point| pixel(*point)).collect::<Vec<_>>().split(Option::is_none) {
                frame.path(run.iter().flatten().copied().collect(), of_curve(nth).stroke_width(width))?;
            }
        }
        for (nth, mark) in self.marks.iter().enumerate() {
            let (colour, width) = (colour(nth), width_of(nth, self.marks.len()));
            let Some(x) = across.place(mark.at.0).map(|place| frame.x(place)) else { continue };
            frame.line([(x, frame.top), (x, frame.bottom())], colour.stroke_width(width - 1))?;
            if let Some(at) = pixel(mark.at) {
                frame.area.draw(&Circle::new(at, width + 3, colour.filled()))?;
            }
        }
        if self.curves.is_empty() {
            let at = (LEFT + frame.width / 2, frame.top + frame.height / 2);
            frame.text("not known", at, Pos::new(HPos::Center, VPos::Center))?;
        }
        frame.line([(LEFT, frame.top), (LEFT, frame.bottom())], INK.mix(0.25).stroke_width(1))
    }
}

/// The width of one of `count` lines that may coincide, in pixels. The last line is the narrowest.
fn width_of(nth: usize, count: usize) -> u32 {
    2 + (count - 1 - nth).min(3) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_of_any_curves_are_drawn_below_each_other() {
        let panel = |points: Vec<(f64, f64)>, scale| Curves {
            title: "a < b".into(),
            labels: ["interval".into(), "lost".into()],
            quantities: [Quantity::Seconds, Quantity::Percent],
            scale,
            top: Some(50.0),
            curves: vec![Curve { name: "<c>".into(), points }],
            marks: vec![Mark { name: "by & by".into(), at: (60.0, 4.0) }],
        };
        let points = vec![(10.0, 99.0), (60.0, 4.0), (600.0, 9.0), (6000.0, f64::INFINITY)];
        let mut empty = panel(Vec::new(), Scale::Linear);
        empty.curves.clear();
        let svg = Curves::svg(&[panel(points, Scale::Log), panel(vec![(1.0, 2.0)], Scale::Linear), empty]);
        let svg = svg.expect("drawn");
        assert!(svg.starts_with("<svg") && svg.contains("height=\"1260\"") && svg.contains("not known"), "{svg}");
        assert!(svg.contains("by &amp; by") && !svg.contains("<c>"), "{svg}");
        assert!(svg.contains("10 min") && svg.contains("5 %"), "{svg}");
    }
}
