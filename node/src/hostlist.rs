//! SLURM's list of node names, such as `n[1-3,7],login`. SLURM advises Prolog scripts against running SLURM commands,
//! so the list is expanded here, and not by `scontrol show hostnames`.

/// Maximum number of nodes of a job.
pub const NODES_MAX: usize = 1 << 16;

/// A list that cannot be expanded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of nodes {list:?} cannot be expanded: {why}")]
pub struct HostlistError {
    /// The first 80 characters of the list.
    list: String,
    why: &'static str,
}

/// The names in a list, in the order of the list. Numbers keep their leading zeros.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let wrong = |why| HostlistError { list: list.chars().take(80).collect(), why };
    let mut names = Vec::new();
    for item in split(list).ok_or_else(|| wrong("a bracket is not closed"))? {
        let mut expanded = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after.split_once(']').ok_or_else(|| wrong("a bracket is not closed"))?;
            let numbers = numbers_of(ranges).ok_or_else(|| wrong("a range must be FIRST-LAST"))?;
            if names.len() + expanded.len().saturating_mul(numbers.len()) > NODES_MAX {
                return Err(wrong("it has more than 65536 nodes"));
            }
            let with = |name: &String| {
                let of = |number: &String| format!("{name}{before}{number}");
                numbers.iter().map(of).collect::<Vec<_>>()
            };
            expanded = expanded.iter().flat_map(with).collect();
            rest = after;
        }
        expanded.iter_mut().for_each(|name| name.push_str(rest));
        if rest.contains(']') || expanded.iter().any(String::is_empty) {
            return Err(wrong("a name is missing"));
        }
        names.append(&mut expanded);
        if names.len() > NODES_MAX {
            return Err(wrong("it has more than 65536 nodes"));
        }
    }
    Ok(names)
}

/// Splits a list at the commas outside of brackets. `None` if the brackets do not match.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut is_within) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !is_within => is_within = true,
            ']' if is_within => is_within = false,
            '[' | ']' => return None,
            ',' if !is_within => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    (!is_within).then_some(parts)
}

/// The numbers of a list of ranges such as `1-3,07`. All numbers of a range have the width of the first number.
fn numbers_of(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (from, to, width): (u64, u64, usize) = (first.parse().ok()?, last.parse().ok()?, first.len());
        if from > to || to - from >= NODES_MAX as u64 {
            return None;
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded_in_order_and_numbers_keep_their_zeros() {
        for (list, names) in [
            ("n1", "n1"),
            ("n[1-3,7],login", "n1 n2 n3 n7 login"),
            ("rack[1-2]n[08-10]", "rack1n08 rack1n09 rack1n10 rack2n08 rack2n09 rack2n10"),
            ("n[9-11]-ib,m", "n9-ib n10-ib n11-ib m"),
            ("b,a", "b a"),
        ] {
            assert_eq!(expand(list).map(|names| names.join(" ")).as_deref(), Ok(names), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_and_a_long_list_has_a_bound() {
        for list in ["", "n[1-3", "n1]", "n[3-1]", "n[a-b]", "n[[1]]", "a,,b", "n[1-99999]", "n[-1]", "n[]"] {
            assert!(expand(list).is_err(), "{list}: {:?}", expand(list));
        }
        let long = format!("{}{}", "a[1-100]".repeat(9), "x".repeat(200));
        let error = expand(&long).expect_err("too many").to_string();
        assert!(error.contains("65536") && error.len() < 200, "{error}");
    }
}
