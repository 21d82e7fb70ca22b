//! Pictures of lines with error bars, and of stacked bars, as SVG, and lines also as a gnuplot script.

use crate::stats::{Interval, StoppingRule, Summary};

/// A picture of lines with error bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Whether the x axis and the y axis are logarithmic.
    pub log: [bool; 2],
    /// The quantities of the x axis and of the y axis.
    pub quantities: (Quantity, Quantity),
    /// The lines.
    pub lines: Vec<Line>,
}

/// What the numbers of an axis mean, which decides how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A number without a unit.
    Number,
    /// Bytes, which are written as KiB, MiB and GiB.
    Bytes,
    /// Seconds, which are written as s, ms, us and ns.
    Seconds,
}

/// A line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// The points, in the order in which they are connected.
    pub points: Vec<Point>,
    /// Whether a model predicts the points. Predicted points are drawn without marks, as a dashed line with the
    /// colour of the previous measured line.
    pub model: bool,
}

impl Line {
    /// A line of measured points.
    pub fn new(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { name: name.into(), points, model: false }
    }

    /// A line of predictions for the previous measured line.
    pub fn model(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { name: name.into(), points, model: true }
    }
}

/// A point with an error bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// x value.
    pub x: f64,
    /// y value.
    pub y: f64,
    /// Lower end of the bar.
    pub low: f64,
    /// Upper end of the bar.
    pub high: f64,
}

impl Point {
    /// A point without an error bar.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

const COLOURS: [&str; 8] = ["#1b6ca8", "#c8442d", "#2f8f4e", "#8052a5", "#b8860b", "#3a3a3a", "#d4588f", "#119da4"];
/// The area of the lines, in pixels.
const PLOT_WIDTH: f64 = 560.0;
const PLOT_HEIGHT: f64 = 420.0;
const LEFT: f64 = 96.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 60.0;
/// Height of a name in the legend, in pixels.
const LEGEND_STEP: f64 = 18.0;
/// Maximum number of names in the legend. The last name says how many are missing.
const MAX_NAMES: usize = 48;
/// Width of a letter of the legend in pixels, a little more than the average width in this font size.
const LETTER_WIDTH: f64 = 6.8;
/// Place of the value 0 on a logarithmic axis.
const ZERO_PLACE: f64 = 0.02;
/// Number of ticks that fit on an axis with their labels.
const MAX_TICKS: usize = 9;

/// An axis, which maps values to the range 0 to 1.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Whether a logarithmic axis shows the value 0, at its lower end.
    zero: bool,
    /// Whether all values are whole numbers, for example numbers of ranks.
    whole: bool,
    quantity: Quantity,
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    /// Logarithm to base 10, with ticks at 1, 2 and 5, or only at 1.
    Ten,
    /// Logarithm to base 2, with ticks at powers of two.
    Two,
}

impl Axis {
    /// An axis for these values. Sizes and numbers of ranks are usually powers of two, so such values get ticks at
    /// powers of two.
    fn over(values: impl Iterator<Item = f64>, log: bool, quantity: Quantity) -> Self {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && (!log || *v >= 0.0)).collect();
        let positive = || values.iter().copied().filter(|v| *v > 0.0);
        let twos = positive().filter(|v| v.log2().fract() == 0.0).count();
        let scale = match log {
            false => Scale::Linear,
            true if quantity == Quantity::Bytes || 2 * twos > positive().count() => Scale::Two,
            true => Scale::Ten,
        };
        let ends = |low: f64, value: f64| low.min(value);
        let transformed = |v: f64| scale.of(v);
        let shown: Vec<f64> = if log { positive().map(transformed).collect() } else { values.clone() };
        let low = shown.iter().copied().fold(f64::INFINITY, ends);
        let high = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let zero = log && values.contains(&0.0);
        let whole = values.iter().all(|v| v.fract() == 0.0);
        let new = |low, high| Self { scale, low, high, zero, whole, quantity };
        if !low.is_finite() {
            return new(0.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                let low = low.min(0.0);
                new(low, if high > low { low + (high - low) * 1.05 } else { low + 1.0 })
            }
            _ => {
                let margin = (0.04 * (high - low)).max(0.1);
                // The value 0 gets a place left of the other values.
                let left = if zero { (0.1 * (high - low)).max(1.0) } else { 0.0 };
                new(low - margin - left, high + margin)
            }
        }
    }

    /// The place of a value. `None` if a logarithmic axis cannot show the value.
    fn place(&self, value: f64) -> Option<f64> {
        if self.zero && value == 0.0 {
            return Some(ZERO_PLACE);
        }
        let value = self.scale.of(value);
        value.is_finite().then(|| (value - self.low) / (self.high - self.low))
    }

    /// The value at a place: the inverse of [`Axis::place`], except for the value 0 of a logarithmic axis.
    fn value(&self, place: f64) -> f64 {
        let value = self.low + place * (self.high - self.low);
        match self.scale {
            Scale::Linear => value,
            Scale::Ten => 10f64.powf(value),
            Scale::Two => value.exp2(),
        }
    }

    /// The ticks with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let inside = |v: &f64| (self.low..=self.high).contains(&self.scale.of(*v));
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let mut values: Vec<f64> = match self.scale {
            Scale::Two => (first..=last).map(|e| 2f64.powi(e)).filter(inside).collect(),
            Scale::Ten => {
                let all = |steps: &[f64]| -> Vec<f64> {
                    let decades = (first - 1..=last).map(|e| 10f64.powi(e));
                    decades.flat_map(|decade| steps.iter().map(move |s| s * decade)).filter(inside).collect()
                };
                let fine = all(&[1.0, 2.0, 5.0]);
                if fine.len() <= MAX_TICKS { fine } else { all(&[1.0]) }
            }
            Scale::Linear => {
                let step = round_step((self.high - self.low) / 6.0);
                let step = if self.whole { step.max(1.0) } else { step };
                let first = (self.low / step).ceil() as i64;
                (0..=12).map(|i| (first + i) as f64 * step).filter(inside).collect()
            }
        };
        if self.zero {
            // Labels next to the label of 0 would overlap with it.
            values.retain(|v| self.place(*v).is_some_and(|place| place > 0.08));
        }
        let stride = values.len().div_ceil(MAX_TICKS).max(1);
        let zero = self.zero.then_some(0.0).into_iter();
        let step = values.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
        let step = if step.is_finite() { step } else { 1.0 };
        zero.chain(values.into_iter().step_by(stride)).map(|v| (v, self.label(v, step))).collect()
    }

    fn label(&self, value: f64, step: f64) -> String {
        match self.quantity {
            Quantity::Bytes => bytes(value),
            Quantity::Seconds => seconds(value, if self.scale == Scale::Linear { step } else { value }),
            Quantity::Number if self.scale == Scale::Linear => {
                if value.abs().max(step) >= 1e6 || step < 1e-4 {
                    format!("{value:.1e}")
                } else {
                    format!("{value:.0$}", (-step.log10().floor()).max(0.0) as usize)
                }
            }
            Quantity::Number if (1e-4..1e6).contains(&value) => trimmed(value),
            Quantity::Number => format!("{value:.0e}"),
        }
    }
}

impl Scale {
    fn of(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Ten => value.log10(),
            Self::Two => value.log2(),
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn round_step(rough: f64) -> f64 {
    let unit = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough).unwrap_or(unit)
}

/// A number with at most four digits after the point, and no zeros at the end.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Bytes as B, KiB, MiB or GiB.
pub fn size(bytes_of_block: usize) -> String {
    let text = bytes(bytes_of_block as f64);
    if text.ends_with('B') { text } else { format!("{text} B") }
}

fn bytes(value: f64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| value >= 2f64.powi(*power)) {
        Some((power, unit)) => format!("{} {unit}", trimmed(value / 2f64.powi(power))),
        None => trimmed(value),
    }
}

/// Seconds in a unit that fits `step`, the difference between two ticks.
fn seconds(value: f64, step: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
    let fits = |(size, _): &(f64, &str)| step.abs() >= 0.999 * size;
    let (size, unit) = units.into_iter().find(fits).unwrap_or((1e-9, "ns"));
    if value == 0.0 { "0".into() } else { format!("{} {unit}", trimmed(value / size)) }
}

/// The start of a picture with its heading. `wide` is the width of the area of the lines or bars.
fn start(title: &str, names: &[&str], wide: f64) -> String {
    let shown = names.len().min(MAX_NAMES);
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = LEFT + wide + 52.0 + (LETTER_WIDTH * longest as f64).max(60.0);
    let width = width.max(LEFT + 9.0 * title.chars().count() as f64);
    let height = (TOP + PLOT_HEIGHT + BOTTOM).max(TOP + LEGEND_STEP * (shown + 1) as f64);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(title)
    )
}

/// The legend: the colour and the dash of each name.
fn legend(names: &[&str], styles: &[Style]) -> String {
    let mut out = String::new();
    for (i, name) in names.iter().enumerate().take(MAX_NAMES) {
        let y = TOP + 8.0 + LEGEND_STEP * i as f64;
        let x = LEFT + PLOT_WIDTH;
        let cut = names.len() > MAX_NAMES && i + 1 == MAX_NAMES;
        let text = if cut { format!("and {} more", names.len() - i) } else { escape(name) };
        if !cut {
            let (colour, dash) = styles[i];
            out += &format!(
                "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                x + 12.0,
                x + 34.0
            );
        }
        out += &format!("<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>\n", x + 40.0, y + 4.0);
    }
    out
}

/// The colour and the dash of a line.
type Style = (&'static str, &'static str);

/// The styles of lines: predictions have the colour of the previous measured line.
fn styles(lines: &[Line]) -> Vec<Style> {
    let models = lines.iter().any(|line| line.model);
    let (mut measured, mut predictions) = (0, 0);
    let of = |line: &Line| {
        (measured, predictions) = if line.model { (measured, predictions + 1) } else { (measured + 1, 0) };
        let (colour, dash) = style(measured.max(1) - 1);
        // Dashes distinguish predictions, or, without predictions, lines of the same colour.
        if models { (colour, style(COLOURS.len() * predictions).1) } else { (colour, dash) }
    };
    lines.iter().map(of).collect()
}

fn style(index: usize) -> Style {
    let dashes = ["", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\"", " stroke-dasharray=\"8 3 2 3\""];
    (COLOURS[index % COLOURS.len()], dashes[index / COLOURS.len() % dashes.len()])
}

/// The horizontal lines of an axis with their labels.
fn y_ticks(axis: &Axis, wide: f64) -> String {
    let mut out = String::new();
    for (y, label) in axis.ticks().into_iter().filter_map(|(t, label)| Some((y_at(axis, t)?, label))) {
        out += &format!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            LEFT + wide,
            LEFT - 6.0,
            y + 4.0
        );
    }
    out
}

fn y_at(axis: &Axis, value: f64) -> Option<f64> {
    axis.place(value).map(|place| TOP + PLOT_HEIGHT * (1.0 - place))
}

/// The labels of both axes, and the end of the picture.
fn end(x: &str, y: &str, wide: f64) -> String {
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(20,{:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</svg>\n",
        LEFT + wide / 2.0,
        TOP + PLOT_HEIGHT + 42.0,
        escape(x),
        TOP + PLOT_HEIGHT / 2.0,
        escape(y)
    )
}

impl Plot {
    /// Estimates with their intervals on logarithmic axes. Each item has the name of its line, its x value, and its
    /// times. A point without an interval has no bar. `x` is the label and the quantity of the x axis.
    pub fn of_times<'t>(
        title: String,
        x: (&str, Quantity),
        rule: &StoppingRule,
        times: impl IntoIterator<Item = (&'t str, f64, &'t Summary)>,
    ) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        let mut bars = false;
        for (name, x, seconds) in times {
            let y = seconds.value(rule.estimate);
            let interval = seconds.interval(rule.estimate);
            bars |= interval.is_some();
            let Interval { low, high } = interval.unwrap_or(Interval { low: y, high: y });
            let point = Point { x, y, low, high };
            match lines.iter_mut().find(|l| l.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line::new(name, vec![point])),
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        let estimate = rule.estimate.name();
        let interval = if bars { format!(", {} interval", super::percent(rule.confidence)) } else { String::new() };
        let y = format!("time ({estimate}{interval})");
        Self { title, x: x.0.into(), y, log: [true; 2], quantities: (x.1, Quantity::Seconds), lines }
    }

    /// The plot as a self-contained SVG picture.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|l| &l.points);
        let across = Axis::over(points().map(|p| p.x), self.log[0], self.quantities.0);
        let up = Axis::over(
            points().flat_map(|p| [p.low, p.y, p.high]).filter(|y| !self.log[1] || *y > 0.0),
            self.log[1],
            self.quantities.1,
        );
        let x_at = |v: f64| across.place(v).map(|place| LEFT + place * PLOT_WIDTH);
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let mut out = start(&self.title, &names, PLOT_WIDTH);
        for (x, label) in across.ticks().into_iter().filter_map(|(t, label)| Some((x_at(t)?, label))) {
            out += &format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n",
                TOP + PLOT_HEIGHT,
                TOP + PLOT_HEIGHT + 18.0
            );
        }
        out += &y_ticks(&up, PLOT_WIDTH);
        let styles = styles(&self.lines);
        for (line, (colour, dash)) in self.lines.iter().zip(&styles) {
            let bottom = TOP + PLOT_HEIGHT;
            let placed: Vec<_> = line
                .points
                .iter()
                // A bar that reaches 0 ends at the bottom of a logarithmic axis.
                .filter_map(|p| {
                    Some((x_at(p.x)?, y_at(&up, p.y)?, y_at(&up, p.low).unwrap_or(bottom), y_at(&up, p.high)))
                })
                .collect();
            let path: Vec<_> = placed.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
            out += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash}/>\n", path.join(" "));
            for (x, y, low, high) in placed.into_iter().filter(|_| !line.model) {
                if let (Some(high), true) = (high, low != y) {
                    out += &format!(
                        "<line x1=\"{x:.1}\" y1=\"{low:.1}\" x2=\"{x:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>"
                    );
                }
                out += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\" fill=\"{colour}\"/>\n");
            }
        }
        out + &legend(&names, &styles) + &end(&self.x, &self.y, PLOT_WIDTH)
    }

    /// The plot as a gnuplot script that contains its data.
    pub fn gnuplot(&self) -> String {
        let quote = |text: &str| text.replace(['"', '\\', '\n'], " ");
        let y = if self.quantities.1 == Quantity::Seconds { format!("{} in seconds", self.y) } else { self.y.clone() };
        let mut out = format!(
            "set title \"{}\"\nset xlabel \"{}\"\nset ylabel \"{}\"\nset key outside right\nset grid\n",
            quote(&self.title),
            quote(&self.x),
            quote(&y)
        );
        if self.log[0] {
            let base = if self.quantities.0 == Quantity::Bytes { " 2" } else { "" };
            out += &format!("set logscale x{base}\n");
        }
        let across = Axis::over(self.lines.iter().flat_map(|l| &l.points).map(|p| p.x), self.log[0], self.quantities.0);
        if across.zero {
            // Gnuplot leaves the value 0 out of a logarithmic axis. So the value gets the place that it has in the
            // SVG picture.
            let [low, zero, high] = [0.0, ZERO_PLACE, 1.0].map(|place| across.value(place));
            out += &format!("set xrange [{low:e}:{high:e}]\nset xtics add (\"0\" {zero:e})\n");
        }
        let x_of = |x: f64| if across.zero && x == 0.0 { across.value(ZERO_PLACE) } else { x };
        if self.log[1] {
            out += "set logscale y\n";
        }
        for (i, line) in self.lines.iter().enumerate() {
            out += &format!("$line{i} << END\n");
            line.points.iter().for_each(|p| out += &format!("{:e} {:e} {:e} {:e}\n", x_of(p.x), p.y, p.low, p.high));
            out += "END\n";
        }
        let parts = self.lines.iter().enumerate().map(|(i, line)| {
            let how = if line.model { "1:2 with lines dashtype 2" } else { "1:2:3:4 with yerrorlines" };
            format!("$line{i} using {how} title \"{}\"", quote(&line.name))
        });
        out + "plot " + &parts.collect::<Vec<_>>().join(", \\\n     ") + "\n"
    }
}

/// A bar that is a stack of parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name below the bar, in one or two lines.
    pub name: String,
    /// The value of each part. A negative value is drawn as 0.
    pub values: Vec<f64>,
    /// The interval of the sum of all parts.
    pub interval: Option<Interval>,
}

/// A picture of bars, each of which is a stack of parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Heading.
    pub title: String,
    /// Label of the y axis.
    pub y: String,
    /// The quantity of the y axis.
    pub quantity: Quantity,
    /// Names of the parts, from the bottom to the top.
    pub parts: Vec<String>,
    /// The bars, from left to right.
    pub bars: Vec<Bar>,
}

/// Minimum distance between the middles of two bars, in pixels.
const BAR_STEP_MIN: f64 = 92.0;

impl Bars {
    /// The picture as SVG.
    pub fn svg(&self) -> String {
        let sums = self.bars.iter().flat_map(|bar| {
            let sum: f64 = bar.values.iter().map(|value| value.max(0.0)).sum();
            [sum, bar.interval.map_or(sum, |interval| interval.high)]
        });
        let up = Axis::over(sums.chain([0.0]), false, self.quantity);
        let names: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        let wide = PLOT_WIDTH.max(BAR_STEP_MIN * self.bars.len() as f64);
        let mut out = start(&self.title, &names, wide);
        out += &y_ticks(&up, wide);
        let step = wide / self.bars.len().max(1) as f64;
        for (i, Bar { name, values, interval }) in self.bars.iter().enumerate() {
            let middle = LEFT + step * (i as f64 + 0.5);
            let mut below = 0.0;
            for (part, value) in values.iter().map(|value| value.max(0.0)).enumerate() {
                if let (Some(bottom), Some(top), true) = (y_at(&up, below), y_at(&up, below + value), value > 0.0) {
                    out += &format!(
                        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>\n",
                        middle - 0.3 * step,
                        0.6 * step,
                        bottom - top,
                        style(part).0
                    );
                }
                below += value;
            }
            if let Some((low, high)) = interval.and_then(|i| Some((y_at(&up, i.low.max(0.0))?, y_at(&up, i.high)?))) {
                for (x1, x2, y1, y2) in [(0.0, 0.0, low, high), (-6.0, 6.0, low, low), (-6.0, 6.0, high, high)] {
                    out += &format!(
                        "<line x1=\"{:.1}\" y1=\"{y1:.1}\" x2=\"{:.1}\" y2=\"{y2:.1}\" stroke=\"black\"/>\n",
                        middle + x1,
                        middle + x2
                    );
                }
            }
            for (line, text) in name.lines().enumerate() {
                out += &format!(
                    "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    TOP + PLOT_HEIGHT + 18.0 + 15.0 * line as f64,
                    escape(text)
                );
            }
        }
        let bottom = TOP + PLOT_HEIGHT;
        out += &format!(
            "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{:.1}\" y2=\"{bottom}\" stroke=\"#888\"/>\n",
            LEFT + wide
        );
        for (i, name) in names.iter().enumerate() {
            let y = TOP + 8.0 + LEGEND_STEP * i as f64;
            let x = LEFT + wide + 16.0;
            out += &format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                y - 6.0,
                style(i).0,
                x + 22.0,
                y + 4.0,
                escape(name)
            );
        }
        out + &end("", &self.y, wide)
    }

    /// The picture as a gnuplot script that contains its data.
    pub fn gnuplot(&self) -> String {
        let quote = |text: &str| text.replace(['"', '\\', '\n'], " ");
        let y = if self.quantity == Quantity::Seconds { format!("{} in seconds", self.y) } else { self.y.clone() };
        let mut out = format!(
            "set title \"{}\"\nset ylabel \"{}\"\nset key outside right\nset grid y\nset yrange [0:*]\n\
             set style data histograms\nset style histogram rowstacked\nset style fill solid\nset boxwidth 0.6\n\
             set xtics rotate by -30\n$bars << END\n",
            quote(&self.title),
            quote(&y)
        );
        for Bar { name, values, .. } in &self.bars {
            let values: Vec<_> = values.iter().map(|value| format!("{:e}", value.max(0.0))).collect();
            out += &format!("\"{}\" {}\n", quote(name), values.join(" "));
        }
        let parts = self.parts.iter().zip(2..).map(|(name, column)| {
            let names = if column == 2 { ":xtic(1)" } else { "" };
            format!("$bars using {column}{names} title \"{}\"", quote(name))
        });
        out + "END\nplot " + &parts.collect::<Vec<_>>().join(", \\\n     ") + "\n"
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], log: bool, quantity: Quantity) -> Vec<String> {
        Axis::over(values.iter().copied(), log, quantity).ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_picture() {
        assert_eq!(labels(&[0.61, 3.5], false, Quantity::Number), ["0", "1", "2", "3"]);
        assert_eq!(labels(&[0.1, 0.62], false, Quantity::Number), ["0.0", "0.2", "0.4", "0.6"]);
        assert_eq!(labels(&[1.0, 2.0], false, Quantity::Number), ["0", "1", "2"]);
        assert_eq!(labels(&[2.0, 4.0, 8.0, 16.0], true, Quantity::Number), ["2", "4", "8", "16"]);
        let sizes = [0.0, 1024.0, 65536.0, 1048576.0];
        assert_eq!(
            labels(&sizes, true, Quantity::Bytes),
            ["0", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]
        );
        assert_eq!(
            labels(&[1.1e-5, 9e-4], true, Quantity::Seconds),
            ["10 us", "20 us", "50 us", "100 us", "200 us", "500 us", "1 ms"]
        );
        assert_eq!(
            labels(&[0.02, 0.11], false, Quantity::Seconds),
            ["0", "20 ms", "40 ms", "60 ms", "80 ms", "100 ms"]
        );
        for values in [[1e-9, 1e9], [3.0, 3.0], [0.0, 0.0], [-1.0, 1e7]] {
            for log in [false, true] {
                let axis = Axis::over(values.into_iter(), log, Quantity::Number);
                let ticks = axis.ticks();
                assert!(ticks.len() <= 13, "{values:?}");
                assert!(
                    ticks.iter().all(|(t, _)| axis.place(*t).is_some_and(|p| (0.0..=1.0).contains(&p))),
                    "{values:?}"
                );
            }
        }
    }

    #[test]
    fn sizes_in_legends_have_the_units_of_the_axis() {
        assert_eq!(
            [0, 100, 1024, 1536, 1 << 20, 3 << 30].map(size),
            ["0 B", "100 B", "1 KiB", "1.5 KiB", "1 MiB", "3 GiB"]
        );
    }

    #[test]
    fn a_legend_fits_into_its_picture() {
        let line = |i: usize| Line::new(format!("round-trip/{i}-{i}"), vec![Point::at(1.0, 1.0)]);
        for count in [1, 28, 500] {
            let quantities = (Quantity::Number, Quantity::Number);
            let lines = (0..count).map(line).collect();
            let plot = Plot { title: "t".into(), x: "x".into(), y: "y".into(), log: [true; 2], quantities, lines };
            let svg = plot.svg();
            let attribute = |text: &str, name: &str| -> f64 {
                let value = text.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
                value.and_then(|value| value.parse().ok()).expect("a number")
            };
            let height = attribute(&svg, "height");
            let texts = svg.split("<text").skip(1).filter(|text| text.contains(" y="));
            assert!(texts.into_iter().all(|text| attribute(text, "y") < height), "{count}");
            assert_eq!(svg.contains("and 453 more"), count == 500);
        }
    }

    #[test]
    fn the_latency_at_0_bytes_is_in_the_gnuplot_figure_where_the_svg_has_it() {
        let points = [0.0, 1024.0, 65536.0].map(|x| Point::at(x, 1e-6)).to_vec();
        let quantities = (Quantity::Bytes, Quantity::Seconds);
        let lines = vec![Line::new("a", points)];
        let plot = Plot { title: "t".into(), x: "x".into(), y: "y".into(), log: [true; 2], quantities, lines };
        let script = plot.gnuplot();
        let after = |head: &str| script.split(head).nth(1).unwrap_or_else(|| panic!("{head}: {script}"));
        let number = |text: &str| text.parse::<f64>().expect("a number").log2();
        let range: Vec<f64> =
            after("set xrange [").split(']').next().expect("its end").split(':').map(number).collect();
        let data: Vec<f64> =
            after("$line0 << END\n").lines().take(3).map(|l| number(&l[..l.find(' ').expect("x")])).collect();
        let tick = number(after("set xtics add (\"0\" ").split(')').next().expect("its end"));
        assert_eq!(data[0], tick);
        let svg = plot.svg();
        let in_svg =
            svg.split("<circle cx=\"").skip(1).map(|c| c[..c.find('"').expect("x")].parse::<f64>().expect("x"));
        for (x, pixel) in data.iter().zip(in_svg) {
            let place = (x - range[0]) / (range[1] - range[0]);
            assert!((LEFT + place * PLOT_WIDTH - pixel).abs() < 0.1, "{x} {pixel}: {script}");
        }
    }

    #[test]
    fn predictions_have_the_colour_of_the_line_before_and_no_marks() {
        let points = || vec![Point::at(1.0, 1.0), Point::at(2.0, 3.0)];
        let lines = vec![
            Line::new("one lane", points()),
            Line::model("one lane, model", points()),
            Line::new("two lanes", points()),
            Line::model("two lanes, model", points()),
        ];
        let styles = styles(&lines);
        assert!(styles[0].0 == styles[1].0 && styles[2].0 == styles[3].0 && styles[0].0 != styles[2].0, "{styles:?}");
        assert!(styles[0].1.is_empty() && styles[1].1.contains("dash") && styles[2].1.is_empty(), "{styles:?}");
        let quantities = (Quantity::Number, Quantity::Seconds);
        let plot = Plot { title: "t".into(), x: "x".into(), y: "y".into(), log: [false; 2], quantities, lines };
        assert_eq!((plot.svg().matches("<circle").count(), plot.svg().matches("<polyline").count()), (4, 4));
        assert_eq!(plot.gnuplot().matches("with yerrorlines").count(), 2);
    }

    #[test]
    fn the_parts_of_a_bar_are_stacked() {
        let bar = |name: &str, values: [f64; 2], interval| Bar { name: name.into(), values: values.into(), interval };
        let bars = vec![bar("a", [1.0, 2.0], Some(Interval { low: 2.5, high: 4.0 })), bar("b\nc", [3.0, -0.5], None)];
        let parts = vec!["gather".to_string(), "write".to_string()];
        let picture = Bars { title: "t".into(), y: "time".into(), quantity: Quantity::Seconds, parts, bars };
        let svg = picture.svg();
        // The background, three parts (a negative part is not drawn), and two marks of the legend.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 2, "{svg}");
        assert_eq!(svg.matches("stroke=\"black\"").count(), 3, "one interval with its two ends: {svg}");
        assert!(svg.contains(">gather<") && svg.contains(">write<") && svg.contains(">c<"), "{svg}");
        // The interval ends above the bar, so the axis is longer than the bar.
        assert!(svg.contains(">4 s<"), "{svg}");
        let script = picture.gnuplot();
        assert!(script.contains("\"b c\" 3e0 0e0\n") && script.matches(" using ").count() == 2, "{script}");
    }
}
