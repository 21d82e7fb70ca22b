//! Types for numbers of bytes. Bytes before and after compression have different types, so that a caller cannot
//! confuse them.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

macro_rules! byte_unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self(0), Add::add)
            }
        }
        /// Prints a rounded number for people, such as 1.50 GiB. Field 0 has the exact number.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&human_bytes(self.0))
            }
        }
    };
}

byte_unit!(
    /// Number of bytes before compression.
    RawBytes
);
byte_unit!(
    /// Number of bytes after compression.
    StoredBytes
);

/// Formats a number of bytes for people: `640 B`, `1.50 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_read_well() {
        let shown: Vec<String> = [0, 1023, 1024, 1536, 1 << 20, (1 << 30) - 1, u64::MAX].map(human_bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "1.00 GiB", "16.00 EiB"]);
        assert_eq!(format!("{:>10}", RawBytes(1024)), "  1.00 KiB");
    }
}
