//! The axes of a picture: the range, and round numbers as ticks.

use mcrengine::units::human_bytes;

/// What the numbers of an axis are. The quantity decides how a tick is written, and which numbers are round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Number,
    Bytes,
    Seconds,
    Percent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Logarithmic. Values of 0 and below have no place.
    Log,
}

/// An axis that contains all its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// The ends of the axis. With a logarithmic scale, both ends are above 0.
    from: f64,
    to: f64,
    scale: Scale,
    quantity: Quantity,
}

/// Maximum number of ticks with labels on an axis.
const TICKS_MAX: usize = 9;
/// The round times in seconds, from 1 ms to 1 year.
const TIMES_S: [f64; 35] = [
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1200.0,
    1800.0,
    3600.0,
    7200.0,
    14_400.0,
    28_800.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    1_209_600.0,
    2_592_000.0,
    5_184_000.0,
    15_552_000.0,
    31_104_000.0,
];

impl Axis {
    /// An axis over these values. A linear axis also contains `base`, for example 0. Values that are not finite, and
    /// on a logarithmic axis values that are not above 0, are ignored.
    pub fn over(values: impl Iterator<Item = f64>, scale: Scale, base: f64, quantity: Quantity) -> Self {
        let is_usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let first = (f64::INFINITY, f64::NEG_INFINITY);
        let (least, most) = values.filter(is_usable).fold(first, |(a, b), value| (a.min(value), b.max(value)));
        let (from, to) = match (scale, least <= most) {
            (Scale::Linear, true) => {
                let most = most.max(base);
                let from =
                    if least < base { (least - (most - least) * 0.05).min(0.0).max(least.floor()) } else { base };
                (from, most + (most - from).max(1e-3) * 0.08)
            }
            (Scale::Linear, false) => (base, base + 1.0),
            (Scale::Log, true) => (round_below(least), most * 1.15),
            (Scale::Log, false) => (1.0, 10.0),
        };
        Self { from, to, scale, quantity }
    }

    /// An axis of exactly this range.
    pub fn exactly(from: f64, to: f64, scale: Scale, quantity: Quantity) -> Self {
        Self { from, to, scale, quantity }
    }

    /// The beginning of the axis.
    pub fn from(&self) -> f64 {
        self.from
    }

    /// The place of a value, from 0 at the beginning to 1 at the end. `None` if the value is outside.
    pub fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        (-1e-9..=1.0 + 1e-9).contains(&place).then_some(place.clamp(0.0, 1.0))
    }

    /// The ticks: round values inside the axis, and their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<f64> = match (self.scale, self.quantity) {
            (Scale::Log, Quantity::Seconds) => thinned(TIMES_S.to_vec(), self),
            (Scale::Log, _) => self.log_ticks(),
            (Scale::Linear, _) => return self.linear_ticks(),
        };
        values.into_iter().map(|value| (value, self.label(value, None))).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let of = |steps: &[f64]| -> Vec<f64> {
            (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect()
        };
        let inside = |all: Vec<f64>| -> Vec<f64> { all.into_iter().filter(|v| self.place(*v).is_some()).collect() };
        let fine = inside(of(&[1.0, 2.0, 5.0]));
        if fine.len() <= TICKS_MAX { fine } else { thinned(of(&[1.0]), self) }
    }

    fn linear_ticks(&self) -> Vec<(f64, String)> {
        // Bytes have round numbers in their unit.
        let unit = match self.quantity {
            Quantity::Bytes => {
                (0..6).map(|n| 1024f64.powi(n)).take_while(|unit| *unit <= self.to).last().unwrap_or(1.0)
            }
            _ => 1.0,
        };
        let range = (self.to - self.from) / unit;
        let power = 10f64.powf((range / 6.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| range / step <= 7.0);
        let step = step.unwrap_or(power * 10.0);
        let first = (self.from / unit / step - 1e-9).ceil() as i64;
        let values = (first..first + 16).map(|n| n as f64 * step * unit);
        let inside = values.filter(|value| self.place(*value).is_some());
        inside.map(|value| (value, self.label(value, Some(step)))).collect()
    }

    /// The text of a tick. `step`: the distance between two ticks of a linear axis, in the unit of the label.
    fn label(&self, value: f64, step: Option<f64>) -> String {
        let decimals = |step: f64| (-step.log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
        let number = |value: f64| match step {
            Some(step) => format!("{value:.*}", decimals(step)),
            None if value >= 1.0 => format!("{value:.0}"),
            None => format!("{value:.*}", decimals(value)),
        };
        match self.quantity {
            Quantity::Number => number(value),
            Quantity::Percent => format!("{} %", number(value)),
            Quantity::Bytes => short_bytes(value.max(0.0) as u64),
            Quantity::Seconds => short_time(value),
        }
    }
}

/// The largest number of the form 1, 2 or 5 times a power of ten that is not above `value`.
fn round_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].map(|n| n * power).into_iter().find(|n| *n <= value * (1.0 + 1e-9)).unwrap_or(power)
}

/// The values inside the axis. If there are too many values, some are left out evenly.
fn thinned(values: Vec<f64>, axis: &Axis) -> Vec<f64> {
    let inside: Vec<f64> = values.into_iter().filter(|value| axis.place(*value).is_some()).collect();
    let every = inside.len().div_ceil(TICKS_MAX).max(1);
    inside.into_iter().step_by(every).collect()
}

/// A number of bytes without decimals that are 0, such as `4 KiB`.
pub fn short_bytes(bytes: u64) -> String {
    let text = human_bytes(bytes);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// A time in its largest unit, such as `30 min`.
fn short_time(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= unit * 0.999).unwrap_or((1e-3, "ms"));
    let rounded = (seconds / unit * 100.0).round() / 100.0;
    format!("{rounded} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], scale: Scale, base: f64, quantity: Quantity) -> Vec<String> {
        let axis = Axis::over(values.iter().copied(), scale, base, quantity);
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_with_only_the_decimals_that_they_need() {
        let linear = |values: &[f64], base, quantity| labels(values, Scale::Linear, base, quantity);
        assert_eq!(linear(&[2.15, 2.48], 1.0, Quantity::Number), ["1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(linear(&[3.0, 100.0], 0.0, Quantity::Number), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(linear(&[0.4, 4.1], 0.0, Quantity::Percent), ["0 %", "1 %", "2 %", "3 %", "4 %"]);
        let gib = 1024.0 * 1024.0 * 1024.0;
        assert_eq!(linear(&[gib, 4.1 * gib], 0.0, Quantity::Bytes), ["0 B", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]);
        let log = |values: &[f64], quantity| labels(values, Scale::Log, 0.0, quantity);
        assert_eq!(log(&[0.9, 88.0], Quantity::Number), ["0.5", "1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(log(&[1.0, 1e6], Quantity::Number), ["1", "10", "100", "1000", "10000", "100000", "1000000"]);
        assert_eq!(log(&[600.0, 7000.0], Quantity::Seconds), ["10 min", "20 min", "30 min", "1 h", "2 h"]);
    }

    #[test]
    fn every_axis_has_few_ticks_and_all_are_inside() {
        for values in [[1e-9, 1e9], [3.0, 3.0], [0.0, 0.0], [-1.0, 1e7], [f64::NAN, f64::INFINITY], [1e300, 1e301]] {
            for scale in [Scale::Linear, Scale::Log] {
                for quantity in [Quantity::Number, Quantity::Bytes, Quantity::Seconds, Quantity::Percent] {
                    let axis = Axis::over(values.into_iter(), scale, 0.0, quantity);
                    let ticks = axis.ticks();
                    assert!(ticks.len() <= 10, "{values:?} {scale:?} {quantity:?}: {ticks:?}");
                    assert!(ticks.iter().all(|(tick, _)| axis.place(*tick).is_some()), "{values:?} {scale:?}");
                }
            }
        }
        assert_eq!(Axis::over([1.0].into_iter(), Scale::Linear, 0.0, Quantity::Number).place(2.0), None);
        assert_eq!([short_bytes(4096), short_bytes(1536), short_bytes(500)], ["4 KiB", "1.5 KiB", "500 B"]);
    }
}
