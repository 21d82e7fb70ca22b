//! `mpib check`: checks that each operation moves the right bytes. Times of an operation that fails are meaningless.

use super::room::Operations;
use super::{Failure, SiteOptions, all_fit, bytes};
use clap::Args;
use mpib::collectives::operation::{Collective, KINDS, Operation, Setting};
use mpib::comm::Comm;
use mpib::open_mpi;
use mpib::pathfinder::measure_paths;

#[derive(Args)]
pub struct Options {
    /// Block sizes to test, separated by commas
    #[arg(long, value_parser = bytes, value_delimiter = ',', default_values_t = [0, 1, 1000, 100_000])]
    sizes: Vec<usize>,
    /// Also check Open MPI's own algorithms (coll_tuned_*_algorithm)
    #[arg(long)]
    open_mpi: bool,
    #[command(flatten)]
    sites: SiteOptions,
}

impl Options {
    /// Whether algorithms of Open MPI are forced.
    pub fn forces_algorithms(&self) -> bool {
        self.open_mpi
    }
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    let n = comm.size();
    all_fit(&options.sizes, n)?;
    Operations { kinds: &KINDS, root: 0, native: true, passes_on: true }.fit(comm, &options.sizes)?;
    let sites = if options.sites.given() { options.sites.two_sites(comm)? } else { Vec::new() };
    let here = sites.iter().filter(|&&s| s == 0).count();
    let mut tried = 0;
    let mut wrong = Vec::new();
    for root in [0, n / 2, n - 1] {
        let lanes = if sites.is_empty() { 0 } else { here.min(n - here) };
        let distances = (0..n).map(|r| ((r * 5) % 7) as f64).collect();
        let paths = (lanes > 0).then(|| measure_paths(comm, &sites, root, 1000, 1)).transpose()?;
        let setting = Setting { root, sites: sites.clone(), distances, paths };
        for kind in KINDS {
            let own = if options.open_mpi { open_mpi::implementations(kind, n) } else { Vec::new() };
            for name in kind.implementations(lanes).into_iter().chain(own) {
                let mut operation = Collective::new(kind, &name, &setting, n).map_err(Failure::input)?;
                for &size in &options.sizes {
                    operation.prepare(comm, size)?;
                    operation.run(comm)?;
                    let mut bad = [f64::from(u8::from(!operation.is_right(comm)))];
                    comm.all_max(&mut bad)?;
                    tried += 1;
                    if bad[0] != 0.0 {
                        wrong.push(format!("{} with {size} bytes from root {root}", operation.name()));
                    }
                }
            }
        }
    }
    match wrong.as_slice() {
        [] => Ok(format!("{tried} operations on {n} ranks: all bytes arrived correctly\n")),
        some => Err(Failure::Output(format!("wrong bytes: {}", some.join("; ")))),
    }
}
