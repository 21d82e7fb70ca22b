//! Determines the site of each rank: from lists of ranks, host names or a file, or by round trips.

use crate::collectives::Result;
use crate::comm::Comm;
use crate::p2p::round_trips;
use crate::stats::StoppingRule;

/// Sites that are specified wrongly or do not exist.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// The text is not a list of ranks.
    #[error("--sites {0:?}: expected ranks of each site, as in 0-3/4-7 or 0,2,4/1,3,5")]
    Syntax(String),
    /// A rank is in no site, or in more than one site.
    #[error("--sites: rank {rank} is in {times} sites; every rank from 0 to {last} must be in one", last = .ranks - 1)]
    Covered {
        /// The rank.
        rank: usize,
        /// The number of sites that contain the rank.
        times: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A line of the file is wrong.
    #[error("site file, line {line}: {text:?}; expected a host name (which may have a *) and the name of its site")]
    Line {
        /// Line number, starting at 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// No line of the file matches a host.
    #[error("site file: host {host} of rank {rank} matches no line")]
    Host {
        /// The rank on this host.
        rank: usize,
        /// Name of the host.
        host: String,
    },
    /// All ranks are in one site, but two sites are needed.
    #[error("all {0} ranks are in one site; two sites are needed")]
    One(usize),
    /// There are more than two sites.
    #[error("there are {0} sites; exactly two are needed")]
    Many(usize),
}

/// Sites from a list such as `0-3/4-7`.
pub fn from_ranks(text: &str, ranks: usize) -> Result<Vec<usize>, SiteError> {
    let bad = || SiteError::Syntax(text.to_string());
    let mut times = vec![0; ranks];
    let mut sites = vec![0; ranks];
    for (site, part) in text.split('/').enumerate() {
        for range in part.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let first: usize = first.trim().parse().map_err(|_| bad())?;
            let last: usize = last.trim().parse().map_err(|_| bad())?;
            if first > last || last >= ranks {
                return Err(bad());
            }
            for rank in first..=last {
                times[rank] += 1;
                sites[rank] = site;
            }
        }
    }
    match times.iter().position(|&t| t != 1) {
        Some(rank) => Err(SiteError::Covered { rank, times: times[rank], ranks }),
        None => Ok(sites),
    }
}

/// Hosts that match `pattern` (with `*` for any characters) form one site, and all other hosts form the other site.
/// Rank 0 is in site 0.
pub fn from_mask(pattern: &str, hosts: &[String]) -> Vec<usize> {
    let matching: Vec<bool> = hosts.iter().map(|h| matches(pattern, h)).collect();
    matching.iter().map(|m| usize::from(Some(m) != matching.first())).collect()
}

/// Sites from lines with a host pattern and a site's name. The first match counts. Empty lines and `#` comments are
/// ignored.
pub fn from_file(text: &str, hosts: &[String]) -> Result<Vec<usize>, SiteError> {
    let mut rules: Vec<(&str, &str)> = Vec::new();
    for (line, whole) in text.lines().enumerate() {
        let words: Vec<_> = whole.split('#').next().unwrap_or("").split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [pattern, site] => rules.push((pattern, site)),
            _ => return Err(SiteError::Line { line: line + 1, text: whole.to_string() }),
        }
    }
    let mut names: Vec<&str> = Vec::new();
    let site_of = |(rank, host): (usize, &String)| {
        let (_, site) = rules
            .iter()
            .find(|(pattern, _)| matches(pattern, host))
            .ok_or_else(|| SiteError::Host { rank, host: host.clone() })?;
        Ok(names.iter().position(|n| n == site).unwrap_or_else(|| {
            names.push(site);
            names.len() - 1
        }))
    };
    hosts.iter().enumerate().map(site_of).collect()
}

/// Whether a pattern matches. `*` matches any number of characters; other characters match themselves.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    // The last part must match at the very end, which may be further right than its first match.
    last.map_or(rest.is_empty(), |part| text.len() >= first.len() + part.len() && text.ends_with(part))
}

/// Returns an error unless there are exactly two sites.
pub fn two(sites: &[usize]) -> Result<(), SiteError> {
    let different: std::collections::BTreeSet<_> = sites.iter().collect();
    match different.len() {
        0 | 1 => Err(SiteError::One(sites.len())),
        2 => Ok(()),
        many => Err(SiteError::Many(many)),
    }
}

/// Finds the far ranks: the ranks after the largest step between consecutive sorted times, if this step at least
/// doubles the time. Steps are compared in seconds, not as factors, because the factor between memory and network may
/// be larger than the factor between the sites.
pub fn far_by_times(times: &[f64]) -> Vec<bool> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let step = sorted
        .windows(2)
        .filter(|w| w[1] >= 2.0 * w[0])
        .max_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0])))
        .map_or(f64::INFINITY, |w| (w[0] + w[1]) / 2.0);
    times.iter().map(|&t| t > step).collect()
}

/// Finds sites by round trips between rank 0 and all other ranks, then between the first far rank and the other far
/// ranks, and so on. For S sites this search takes fewer than S n round trips, instead of n (n-1) / 2 for all pairs.
/// All ranks must call this function.
pub fn find(comm: &Comm) -> Result<Vec<usize>> {
    let n = comm.size();
    let rule = StoppingRule::fixed(10);
    let mut sites = vec![0usize; n];
    let mut open: Vec<usize> = (0..n).collect();
    let mut limit = f64::INFINITY;
    for site in 0..n {
        let Some((&pivot, others)) = open.split_first() else { break };
        let mut times = vec![0.0f64; others.len()];
        for (time, &other) in times.iter_mut().zip(others) {
            if [pivot, other].contains(&comm.rank()) {
                // Take the fastest round trip, because disturbances only make round trips slower.
                let trips = round_trips(comm, pivot, other, 0, 0, &rule)?;
                *time = trips.into_iter().fold(f64::INFINITY, f64::min);
                if comm.rank() != pivot {
                    *time = 0.0;
                }
            }
        }
        comm.broadcast(&mut times, pivot)?;
        let far = far_by_times(&times);
        if site == 0 {
            // A later pivot may have no far ranks. So all pivots use the limit between near and far that the first
            // pivot found.
            let near = times.iter().zip(&far).filter(|(_, far)| !**far).map(|(t, _)| *t).fold(0.0, f64::max);
            let away = times.iter().zip(&far).filter(|(_, far)| **far).map(|(t, _)| *t).fold(f64::INFINITY, f64::min);
            limit = if near > 0.0 { (near + away) / 2.0 } else { away };
        }
        let far: Vec<bool> = if site == 0 { far } else { times.iter().map(|&t| t >= limit).collect() };
        sites[pivot] = site;
        let still: Vec<_> = others.iter().zip(&far).filter(|(_, far)| **far).map(|(&r, _)| r).collect();
        others.iter().filter(|r| !still.contains(r)).for_each(|&r| sites[r] = site);
        open = still;
    }
    Ok(sites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_may_be_given_as_ranges_and_lists() {
        assert_eq!(from_ranks("0-3/4-7", 8), Ok(vec![0, 0, 0, 0, 1, 1, 1, 1]));
        assert_eq!(from_ranks("0,2/1,3", 4), Ok(vec![0, 1, 0, 1]));
        assert_eq!(from_ranks("0-1/3", 4), Err(SiteError::Covered { rank: 2, times: 0, ranks: 4 }));
        assert_eq!(from_ranks("0-2/2-3", 4), Err(SiteError::Covered { rank: 2, times: 2, ranks: 4 }));
        for bad in ["", "a/b", "0-3/4-9", "3-0/1", "0--3"] {
            assert_eq!(from_ranks(bad, 4), Err(SiteError::Syntax(bad.into())), "{bad:?}");
        }
    }

    fn hosts() -> Vec<String> {
        ["east-1", "west-1", "east-2", "gate"].map(String::from).to_vec()
    }

    #[test]
    fn hosts_may_be_named_by_a_mask_or_in_a_file() {
        assert_eq!(from_mask("east-*", &hosts()), [0, 1, 0, 1]);
        assert_eq!(from_mask("west*", &hosts()), [0, 1, 0, 0]);
        assert_eq!(from_mask("*-1", &hosts()), [0, 0, 1, 1]);
        assert_eq!(from_file("# sites\neast-* e\nwest-1 w # one\n* e\n", &hosts()), Ok(vec![0, 1, 0, 0]));
        let missing = from_file("east-* e\nwest-* w", &hosts());
        assert_eq!(missing, Err(SiteError::Host { rank: 3, host: "gate".into() }));
        assert_eq!(from_file("a b c", &hosts()), Err(SiteError::Line { line: 1, text: "a b c".into() }));
    }

    #[test]
    fn stars_match_anything_and_nothing_else_does() {
        for (pattern, text, is) in [
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "axxbc", false),
            ("a*b", "abab", true),
            ("*", "", true),
            ("ab*b", "ab", false),
            ("a", "ab", false),
            ("*a*", "xay", true),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }

    #[test]
    fn far_is_beyond_the_widest_step_and_nobody_is_far_without_one() {
        // One rank is reached over shared memory, two ranks are on other hosts of the same site, and two ranks are at
        // the other site.
        assert_eq!(far_by_times(&[1e-6, 60e-6, 65e-6, 10.1e-3, 10.2e-3]), [false, false, false, true, true]);
        assert_eq!(far_by_times(&[60e-6, 65e-6, 70e-6]), [false; 3]);
        assert_eq!(far_by_times(&[]), [false; 0]);
    }

    #[test]
    fn one_site_and_three_sites_are_not_two() {
        assert_eq!(two(&[0, 0]), Err(SiteError::One(2)));
        assert_eq!(two(&[0, 1, 2]), Err(SiteError::Many(3)));
        assert_eq!(two(&[1, 0]), Ok(()));
    }
}
