//! Where and when estimates were measured, and whether they fit another run.

use crate::collectives::Result;
use crate::collectives::operation::Setting;
use crate::comm::Comm;
use crate::report::date;
use serde::{Deserialize, Serialize};

/// The run that measured estimates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Number of ranks.
    pub ranks: usize,
    /// The rank that scattered or gathered.
    pub root: usize,
    /// Host of each rank, in rank order.
    pub hosts: Vec<String>,
    /// Site of each rank; empty without sites.
    pub sites: Vec<usize>,
    /// The version string of the MPI library.
    pub mpi_library: String,
    /// Number and model of the processors of rank 0's host.
    pub processors: String,
    /// Date and time in UTC, for example `2026-03-01T09:30:00Z`.
    pub date: String,
}

/// Why estimates of one run must not be used in another run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the estimates of {date} do not fit: {what}: measured with {measured}, here {here}; measure again \
     (mpib collective --estimates)"
)]
pub struct Misfit {
    /// Date of the estimates.
    pub date: String,
    /// The property that differs.
    pub what: &'static str,
    /// Its value when the estimates were measured.
    pub measured: String,
    /// Its value in this run.
    pub here: String,
}

impl Origin {
    /// This run. All ranks must call this function, and all ranks get the values of rank 0.
    pub fn of(comm: &Comm, setting: &Setting) -> Result<Self> {
        let (count, model) = processors();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut own = [mpi_library(), format!("{count} x {model}"), date(now)];
        for text in &mut own {
            let bytes = if comm.rank() == 0 { text.as_bytes() } else { &[] };
            *text = String::from_utf8_lossy(&comm.all_bytes(bytes)?.swap_remove(0)).into_owned();
        }
        let [mpi_library, processors, date] = own;
        let (root, sites) = (setting.root, setting.sites.clone());
        Ok(Self { ranks: comm.size(), root, hosts: hosts(comm)?, sites, mpi_library, processors, date })
    }

    /// Whether estimates with this origin may be used in the run `here`: the number of ranks, the root, the placement
    /// of the ranks on hosts, the MPI library and the processors must be equal, and also the sites if both runs have
    /// sites. The names of the hosts may differ, because a batch job gets other nodes of the same kind in each run.
    pub fn fits(&self, here: &Self) -> std::result::Result<(), Misfit> {
        let differs = |what, measured: &dyn ToString, here: &dyn ToString| {
            let (measured, here) = (measured.to_string(), here.to_string());
            let date = self.date.clone();
            if measured == here { Ok(()) } else { Err(Misfit { date, what, measured, here }) }
        };
        differs("number of ranks", &self.ranks, &here.ranks)?;
        differs("root", &self.root, &here.root)?;
        differs("MPI library", &self.mpi_library, &here.mpi_library)?;
        differs("processors", &self.processors, &here.processors)?;
        let (measured, placed) = (first_equal(&self.hosts), first_equal(&here.hosts));
        if let Some(rank) = (0..self.ranks).find(|&rank| measured.get(rank) != placed.get(rank)) {
            let text = |first: &[usize]| {
                let host = first.get(rank).map_or("no host".into(), |first| format!("the host of rank {first}"));
                format!("rank {rank} on {host}")
            };
            differs("placement of ranks", &text(&measured), &text(&placed))?;
        }
        if self.sites.is_empty() || here.sites.is_empty() {
            return Ok(());
        }
        let text = |sites: &[usize]| format!("{:?} as the first rank of each rank's site", first_equal(sites));
        differs("sites", &text(&self.sites), &text(&here.sites))
    }
}

/// For each rank, the first rank with an equal value: the same host, or the same site. So names and numbers of hosts
/// and sites do not matter.
fn first_equal<T: Ord>(values: &[T]) -> Vec<usize> {
    let mut first = std::collections::BTreeMap::new();
    values.iter().enumerate().map(|(rank, value)| *first.entry(value).or_insert(rank)).collect()
}

/// The host of each rank. All ranks must call this function.
pub fn hosts(comm: &Comm) -> Result<Vec<String>> {
    let mine = mpi::environment::processor_name().unwrap_or_else(|_| "?".into());
    Ok(comm.all_bytes(mine.as_bytes())?.iter().map(|b| String::from_utf8_lossy(b).into_owned()).collect())
}

/// The version string of the MPI library.
pub fn mpi_library() -> String {
    mpi::environment::library_version().unwrap_or_default().trim_end_matches('\0').trim().into()
}

/// Number and model of this host's processors.
pub fn processors() -> (usize, String) {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ").map(|(_, m)| m));
    let usable = std::thread::available_parallelism().map_or(0, usize::from);
    let count = text.lines().filter(|l| l.starts_with("processor")).count().max(usable);
    (count, model.unwrap_or("?").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Origin {
        Origin {
            ranks: 4,
            root: 0,
            hosts: ["n1", "n1", "n2", "n2"].map(String::from).to_vec(),
            sites: vec![0, 0, 1, 1],
            mpi_library: "Open MPI v4.1.4".into(),
            processors: "2 x Xeon".into(),
            date: "2026-03-01T09:30:00Z".into(),
        }
    }

    #[test]
    fn estimates_fit_other_nodes_of_the_same_kind_on_another_day() {
        let mut here = measured();
        here.hosts = ["n7", "n7", "n3", "n3"].map(String::from).to_vec();
        here.date = "2026-04-01T09:30:00Z".into();
        here.sites = vec![1, 1, 0, 0]; // the same sites with other numbers
        assert_eq!(measured().fits(&here), Ok(()));
        here.sites = Vec::new();
        assert_eq!(measured().fits(&here), Ok(()));
    }

    #[test]
    fn estimates_of_another_run_are_refused_with_what_differs() {
        type Change = fn(&mut Origin);
        let changes: [(&str, Change); 7] = [
            ("number of ranks", |here| here.ranks = 5),
            ("root", |here| here.root = 1),
            ("MPI library", |here| here.mpi_library = "MPICH 4.0.2".into()),
            ("processors", |here| here.processors = "64 x EPYC".into()),
            ("placement of ranks", |here| here.hosts.swap(1, 2)),
            ("placement of ranks", |here| here.hosts.truncate(3)),
            ("sites", |here| here.sites = vec![0, 1, 1, 1]),
        ];
        for (what, change) in changes {
            let mut here = measured();
            change(&mut here);
            let misfit = measured().fits(&here).expect_err(what);
            assert_eq!(misfit.what, what);
            assert!(misfit.measured != misfit.here && misfit.to_string().contains("2026-03-01"), "{misfit}");
        }
        let mut here = measured();
        here.hosts.swap(1, 2);
        let text = measured().fits(&here).expect_err("other placement").to_string();
        assert!(
            text.contains("measured with rank 1 on the host of rank 0, here rank 1 on the host of rank 1"),
            "{text}"
        );
    }
}
