//! The versions of the protocol. Each side sends the versions that it speaks, and the aggregator chooses one version.
//! Thereby programs of two releases work together during an upgrade.

use std::ops::RangeInclusive;

/// The versions that this build speaks.
pub const WIRE_VERSIONS: RangeInclusive<u32> = 1..=1;

/// The versions of the protocol of gates that this build speaks.
pub const GATE_VERSIONS: RangeInclusive<u32> = 1..=1;

/// The versions that a message offers. Programs of releases without ranges send only `oldest`, so `newest` is 0.
pub fn offered(oldest: u32, newest: u32) -> RangeInclusive<u32> {
    oldest..=newest.max(oldest)
}

/// The newest version that both sides speak.
pub fn choose(ours: &RangeInclusive<u32>, theirs: &RangeInclusive<u32>) -> Option<u32> {
    let (oldest, newest) = (ours.start().max(theirs.start()), ours.end().min(theirs.end()));
    (oldest <= newest).then_some(*newest)
}

/// The versions as text for people.
pub fn named(versions: &RangeInclusive<u32>) -> String {
    match (versions.start(), versions.end()) {
        (oldest, newest) if oldest == newest => format!("version {oldest}"),
        (oldest, newest) => format!("versions {oldest} to {newest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use prost::Message;

    #[test]
    fn the_newest_version_that_both_sides_speak_is_chosen() {
        for (ours, theirs, chosen) in [
            (1..=1, 1..=1, Some(1)),
            (1..=1, 1..=3, Some(1)),
            (2..=4, 1..=3, Some(3)),
            (1..=4, 2..=2, Some(2)),
            (1..=1, 2..=3, None),
            (3..=4, 1..=2, None),
        ] {
            assert_eq!(choose(&ours, &theirs), chosen, "{ours:?} {theirs:?}");
            assert_eq!(choose(&theirs, &ours), chosen, "{ours:?} {theirs:?}");
        }
        assert_eq!((offered(1, 0), offered(1, 3), offered(0, 0)), (1..=1, 1..=3, 0..=0));
        assert_eq!((named(&(1..=1)), named(&(1..=3))), ("version 1".into(), "versions 1 to 3".into()));
    }

    #[test]
    fn an_aggregator_without_ranges_reads_the_oldest_version_of_an_agent() {
        let hello = v1::Hello { version: 1, newest_version: 2, ..Default::default() };
        assert_eq!(hello.encode_to_vec(), [8, 1, 96, 2], "fields 1 and 12");
        let old = v1::Hello::decode(&[8, 1][..]).expect("the hello of an agent without ranges");
        assert_eq!(offered(old.version, old.newest_version), 1..=1);
        let request = v1::RestoreRequest { version: 1, newest_version: 2, ..Default::default() };
        assert_eq!(request.encode_to_vec(), [8, 1, 48, 2], "fields 1 and 6");
    }
}
