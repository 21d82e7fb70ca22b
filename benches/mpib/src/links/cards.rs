//! Byte counters of network cards: Linux' table of network devices, and the counters of InfiniBand and Omni-Path
//! ports, whose traffic is not in this table.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// The bytes that a card has carried since its start or, as the result of [`between`], between two readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The name of the device, for example `eth0` or `mlx5_0/1`.
    pub name: String,
    /// Sent bytes, with all headers.
    pub sent_bytes: u64,
    /// Received bytes, with all headers.
    pub received_bytes: u64,
}

/// Maximum number of cards of a host. A host with many containers has many virtual cards.
const CARDS_MAX: usize = 64;

/// Counters of this host's cards, without the loopback device. A counter that cannot be read is left out.
pub fn read() -> Vec<Card> {
    let mut cards = of_table(&std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default());
    cards.retain(|card| card.name != "lo");
    cards.extend(infiniband(Path::new("/sys/class/infiniband")));
    cards.truncate(CARDS_MAX);
    cards
}

/// Parses the table of /proc/net/dev. The table has two header lines, and then one line for each card, with a name, a
/// colon, and 16 numbers.
pub fn of_table(table: &str) -> Vec<Card> {
    let card = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let name = name.trim().to_string();
        Some(Card { name, received_bytes: *numbers.first()?, sent_bytes: *numbers.get(8)? })
    };
    table.lines().filter_map(card).collect()
}

/// The ports of InfiniBand and Omni-Path cards. Their counters count words of 4 bytes.
fn infiniband(class: &Path) -> Vec<Card> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.take(CARDS_MAX).filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let mut cards = Vec::new();
    for device in names(class) {
        let ports = class.join(&device).join("ports");
        for port in names(&ports) {
            let words = |counter: &str| -> Option<u64> {
                let path = ports.join(&port).join("counters").join(counter);
                std::fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            if let (Some(sent), Some(received)) = (words("port_xmit_data"), words("port_rcv_data")) {
                let name = format!("{device}/{port}");
                let (sent_bytes, received_bytes) = (sent.saturating_mul(4), received.saturating_mul(4));
                cards.push(Card { name, sent_bytes, received_bytes });
            }
        }
    }
    cards
}

/// The bytes of each card between two readings. Cards that are in only one of the readings are left out.
pub fn between(before: &[Card], after: &[Card]) -> Vec<Card> {
    let difference = |card: &Card| {
        let old = before.iter().find(|old| old.name == card.name)?;
        Some(Card {
            name: card.name.clone(),
            sent_bytes: card.sent_bytes.saturating_sub(old.sent_bytes),
            received_bytes: card.received_bytes.saturating_sub(old.received_bytes),
        })
    };
    after.iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier \
        compressed\n    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     \
        0       0          0\n  eth0: 5000      10    0    0    0     0          0         0 700 8    0    0    0     0\
           0          0\n broken: 12 x\n";

    #[test]
    fn the_table_of_network_devices_is_read_and_this_host_has_no_card_named_lo() {
        let card = |name: &str, sent_bytes, received_bytes| Card { name: name.into(), sent_bytes, received_bytes };
        assert_eq!(of_table(TABLE), [card("lo", 100, 100), card("eth0", 700, 5000)]);
        assert_eq!(of_table(""), []);
        assert!(read().iter().all(|card| card.name != "lo"), "{:?}", read());
    }

    #[test]
    fn ports_of_infiniband_count_words_of_four_bytes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (port, complete) in [("1", true), ("2", false)] {
            let counters = directory.path().join("mlx5_0/ports").join(port).join("counters");
            std::fs::create_dir_all(&counters).expect("made");
            std::fs::write(counters.join("port_xmit_data"), "10\n").expect("written");
            if complete {
                std::fs::write(counters.join("port_rcv_data"), "3\n").expect("written");
            }
        }
        let card = Card { name: "mlx5_0/1".into(), sent_bytes: 40, received_bytes: 12 };
        assert_eq!(infiniband(directory.path()), [card]);
        assert_eq!(infiniband(&directory.path().join("missing")), []);
    }

    #[test]
    fn the_bytes_of_a_measurement_are_a_difference_and_never_negative() {
        let card = |name: &str, sent_bytes, received_bytes| Card { name: name.into(), sent_bytes, received_bytes };
        let found =
            between(&[card("a", 10, 20), card("b", 9, 9)], &[card("a", 15, 20), card("b", 1, 10), card("c", 1, 1)]);
        assert_eq!(found, [card("a", 5, 0), card("b", 0, 1)]);
    }
}
