//! A small parallel simulation that does not use mcrEngine: the application in `make demo`.
//!
//! `heat --launch 8 --dir DIR` starts eight processes that solve the heat equation together. The processes exchange
//! the edges of their parts over Unix-domain sockets, and each process writes an HDF5 checkpoint every few steps.
//! `--restart` continues from the newest checkpoint in DIR that is complete on every rank. Any number
//! of ranks, with or without interruptions, computes the same bits of the final state. At the end, heat prints the
//! digest of the final state.

mod checkpoint;
mod net;
mod solver;

use net::Neighbours;
use solver::{Block, Grid};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "\
A 3-D heat equation on several processes, with HDF5 checkpoints.

Usage: heat --launch RANKS --dir DIR [options]               start all ranks and wait for them
       heat --rank R --ranks RANKS --dir DIR --rendezvous DIR [options]    start one rank

  --dir DIR               where checkpoints (heat.it_000120.rank_3.h5) and the final state are written
  --steps N               number of steps, including those before a restart  [240]
  --checkpoint-every N    steps between checkpoints                       [40]
  --grid NXxNYxNZ         cells; the nz planes are distributed over the ranks [64x64x64]
  --step-ms N             minimum time for a step in ms, for demonstration    [0]
  --ranks-per-node N      write below DIR/node-0, DIR/node-1, ... as if each node had its own disk
  --restart               continue from the newest checkpoint in DIR that is complete on every rank
  --rendezvous DIR        directory of the ranks' sockets (use a short path: at most 107 bytes for a socket)
";
/// Maximum number of processes that `--launch` starts.
const RANKS_MAX: u32 = 1024;

/// Why a rank or the launcher failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}\n\n{USAGE}")]
    Usage(String),
    #[error("rank {rank}, {doing} rank {neighbour}")]
    Neighbour { rank: u32, neighbour: u32, doing: &'static str, source: io::Error },
    #[error("{path}: {doing}", path = .path.display())]
    File { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("{path}: {doing}", path = .path.display())]
    Hdf5 { path: PathBuf, doing: &'static str, source: hdf5::Error },
    #[error("{path}: (step, rank, ranks, first plane) are {found} instead of {expected}", path = .path.display())]
    OtherRun { path: PathBuf, found: String, expected: String },
    #[error("the temperature is not a number after step {step}")]
    Diverged { step: u64 },
    #[error("some of {ranks} ranks failed: {failed:?}")]
    Ranks { ranks: u32, failed: Vec<u32> },
    #[error("{doing}")]
    System { doing: &'static str, source: io::Error },
}

/// The command line options.
#[derive(Clone, Debug)]
struct Options {
    launch: bool,
    rank: u32,
    ranks: u32,
    dir: PathBuf,
    rendezvous: Option<PathBuf>,
    steps: u64,
    checkpoint_every: u64,
    grid: Grid,
    step_ms: u64,
    ranks_per_node: Option<u32>,
    restart: bool,
    launched_by: Option<u32>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            launch: false,
            rank: 0,
            ranks: 0,
            dir: PathBuf::new(),
            rendezvous: None,
            steps: 240,
            checkpoint_every: 40,
            grid: Grid { nx: 64, ny: 64, nz: 64 },
            step_ms: 0,
            ranks_per_node: None,
            restart: false,
            launched_by: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            if arg == "--restart" {
                options.restart = true;
                continue;
            }
            let wrong = |what: &str| Failure::Usage(format!("{arg}: {what}"));
            let value = args.next().ok_or_else(|| wrong("the option is unknown, or its value is missing"))?;
            let number = || value.parse::<u64>().map_err(|_| wrong("not a number"));
            let small = || value.parse::<u32>().map_err(|_| wrong("not a number"));
            match arg.as_str() {
                "--launch" => (options.launch, options.ranks) = (true, small()?),
                "--rank" => options.rank = small()?,
                "--ranks" => options.ranks = small()?,
                "--dir" => options.dir = value.into(),
                "--rendezvous" => options.rendezvous = Some(value.into()),
                "--steps" => options.steps = number()?,
                "--checkpoint-every" => options.checkpoint_every = number()?,
                "--step-ms" => options.step_ms = number()?,
                "--ranks-per-node" => options.ranks_per_node = Some(small()?),
                "--launched-by" => options.launched_by = Some(small()?),
                "--grid" => {
                    let cells: Option<Vec<usize>> = value.split('x').map(|n| n.parse().ok()).collect();
                    let Some(&[nx, ny, nz]) = cells.as_deref() else { return Err(wrong("not of the form 64x64x64")) };
                    options.grid = Grid { nx, ny, nz };
                }
                _ => return Err(wrong("unknown")),
            }
        }
        options.check()
    }

    fn check(self) -> Result<Self, Failure> {
        let Grid { nx, ny, nz } = self.grid;
        let planes_enough = nz >= self.ranks as usize;
        let complaint = match () {
            () if self.ranks == 0 || self.ranks > RANKS_MAX => "there must be 1 to 1024 ranks",
            () if self.rank >= self.ranks => "--rank must be less than --ranks",
            () if self.dir.as_os_str().is_empty() => "--dir is missing",
            () if !self.launch && self.ranks > 1 && self.rendezvous.is_none() => "--rendezvous is missing",
            () if [nx, ny, nz].iter().any(|n| !(2..=Grid::AXIS_MAX).contains(n)) => "an axis has 2 to 2048 cells",
            () if !planes_enough => "each rank needs a plane, but there are more ranks than cells along z",
            () if self.ranks_per_node == Some(0) => "--ranks-per-node must be at least 1",
            () if self.checkpoint_every == 0 => "--checkpoint-every must be at least 1",
            () if self.steps > i32::MAX as u64 => "--steps is too large",
            () => return Ok(self),
        };
        Err(Failure::Usage(complaint.to_owned()))
    }

    /// The directory to which a rank writes.
    fn dir_of(&self, rank: u32) -> PathBuf {
        match self.ranks_per_node {
            Some(n) => self.dir.join(format!("node-{}", rank / n)),
            None => self.dir.clone(),
        }
    }
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| match options.launch {
        true => launch(&options),
        false => die_with_launcher(&options).and_then(|()| run_rank(&options)),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut message = format!("heat: {failure}");
            let mut cause = std::error::Error::source(&failure);
            while let Some(error) = cause {
                message.push_str(&format!(": {error}"));
                cause = error.source();
            }
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the ranks as processes, waits for them, and prints the digest of the final state.
fn launch(options: &Options) -> Result<(), Failure> {
    let system = |doing| move |source| Failure::System { doing, source };
    let scratch = match &options.rendezvous {
        Some(_) => None,
        None => Some(Scratch::create().map_err(system("creating a directory for sockets"))?),
    };
    let rendezvous = match (&options.rendezvous, &scratch) {
        (Some(dir), _) => dir,
        (None, Some(scratch)) => &scratch.0,
        (None, None) => return Err(Failure::Usage("--rendezvous is missing".to_owned())),
    };
    let program = std::env::current_exe().map_err(system("finding the path of this program"))?;
    let Grid { nx, ny, nz } = options.grid;
    let mut children = Vec::new();
    for rank in 0..options.ranks {
        let mut command = Command::new(&program);
        command.stdin(Stdio::null()).arg("--dir").arg(&options.dir).arg("--rendezvous").arg(rendezvous);
        for (name, value) in [
            ("--rank", u64::from(rank)),
            ("--ranks", u64::from(options.ranks)),
            ("--steps", options.steps),
            ("--checkpoint-every", options.checkpoint_every),
            ("--step-ms", options.step_ms),
            ("--launched-by", u64::from(std::process::id())),
        ] {
            command.arg(name).arg(value.to_string());
        }
        command.arg("--grid").arg(format!("{nx}x{ny}x{nz}"));
        if let Some(n) = options.ranks_per_node {
            command.arg("--ranks-per-node").arg(n.to_string());
        }
        command.args(options.restart.then_some("--restart"));
        children.push(command.spawn().map_err(system("starting a rank"))?);
    }
    // If a rank fails, its neighbours fail too, and then their neighbours. Therefore it is sufficient to wait for one
    // rank after the other.
    let mut failed = Vec::new();
    for (rank, child) in (0..).zip(&mut children) {
        if !child.wait().map_err(system("waiting for a rank"))?.success() {
            failed.push(rank);
        }
    }
    if !failed.is_empty() {
        return Err(Failure::Ranks { ranks: options.ranks, failed });
    }
    println!("final state after {} steps: {}", options.steps, final_digest(options)?);
    Ok(())
}

/// A directory for sockets that only this user may enter. Dropping this value removes the directory.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let base = std::env::temp_dir();
        for attempt in 0..1000 {
            let dir = base.join(format!("heat-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done.map(|()| Self(dir)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok(); // the directory contains only sockets
    }
}

/// Makes the kernel kill this rank when the launcher dies. A node's job manager also kills the ranks of a job.
fn die_with_launcher(options: &Options) -> Result<(), Failure> {
    let Some(launcher) = options.launched_by else { return Ok(()) };
    let system = |source| Failure::System { doing: "binding this rank to its launcher", source };
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(|errno| system(errno.into()))?;
    match u32::try_from(nix::unistd::getppid().as_raw()) == Ok(launcher) {
        true => Ok(()),
        false => Err(system(io::Error::other("the launcher has ended"))),
    }
}

/// Runs one rank from its first step, or from the step of its restart, to the last step.
fn run_rank(options: &Options) -> Result<(), Failure> {
    let &Options { rank, ranks, grid, .. } = options;
    let dir = options.dir_of(rank);
    std::fs::create_dir_all(&dir).map_err(|source| Failure::File {
        path: dir.clone(),
        doing: "creating the directory for checkpoints",
        source,
    })?;
    let rendezvous = options.rendezvous.as_deref().unwrap_or(Path::new("."));
    let mut neighbours = Neighbours::meet(rendezvous, rank, ranks, grid)?;
    let mut block = match options.restart {
        true => newest(options, &dir, &mut neighbours)?,
        false => Block::cold(grid, grid.planes_of(rank, ranks)),
    };
    while block.step < options.steps {
        let started = Instant::now();
        block.advance(&mut neighbours)?;
        if block.step.is_multiple_of(options.checkpoint_every) {
            checkpoint::write(&dir, rank, ranks, &block)?;
            if rank == 0 {
                say(&format!("step {}: mean temperature {:.4}, checkpoint written", block.step, block.mean));
            }
        }
        std::thread::sleep(Duration::from_millis(options.step_ms).saturating_sub(started.elapsed()));
    }
    write_final(&dir, rank, ranks, &block)
}

fn say(line: &str) {
    if cfg!(not(test)) {
        writeln!(io::stdout(), "{line}").ok(); // a closed output must not stop the simulation
    }
}

/// Returns the state at the newest step whose file is complete on every rank. If there is no such step, returns the
/// initial state. All ranks get the same result.
fn newest(options: &Options, dir: &Path, neighbours: &mut Neighbours) -> Result<Block, Failure> {
    let &Options { rank, ranks, grid, .. } = options;
    let planes = grid.planes_of(rank, ranks);
    let mut steps = checkpoint::steps(dir, rank)?.into_iter().filter(|&step| step <= options.steps).peekable();
    loop {
        let mut mine: Option<Block> = None;
        while let Some(step) = steps.peek().filter(|_| mine.is_none()) {
            match checkpoint::read(dir, *step, rank, ranks, grid, planes.clone()) {
                Ok(block) => mine = Some(block),
                Err(failure) => {
                    eprintln!("rank {rank}: skipping an unusable checkpoint: {failure}");
                    steps.next();
                }
            }
        }
        // Step numbers are far below 2^53, so they are exact as f64. A rank without a checkpoint uses -1.
        let step = mine.as_ref().map_or(-1.0, |block| block.step as f64);
        let oldest = neighbours.min(step)?;
        let agreed = -neighbours.min(-step)? == oldest;
        match mine {
            _ if oldest < 0.0 => {
                if rank == 0 {
                    say("no complete checkpoint: starting at step 0");
                }
                return Ok(Block::cold(grid, planes));
            }
            Some(block) if agreed => {
                if rank == 0 {
                    say(&format!("continuing from the checkpoint of step {}", block.step));
                }
                return Ok(block);
            }
            _ => while steps.next_if(|&step| step as f64 > oldest).is_some() {},
        }
    }
}

fn final_path(dir: &Path, rank: u32) -> PathBuf {
    dir.join(format!("final.rank_{rank}.bin"))
}

/// Writes plane by plane, so that the concatenated files of all ranks are the same for any number of ranks.
fn write_final(dir: &Path, rank: u32, ranks: u32, block: &Block) -> Result<(), Failure> {
    let plane = block.grid.plane();
    let mut bytes = Vec::new();
    for (hot, molten) in block.temperature[block.own()].chunks(plane).zip(block.melted_step.chunks(plane)) {
        bytes.extend(hot.iter().flat_map(|t| t.to_le_bytes()));
        bytes.extend(molten.iter().flat_map(|s| s.to_le_bytes()));
    }
    if rank + 1 == ranks {
        bytes.extend([block.mean, block.integral].iter().flat_map(|n| n.to_le_bytes()));
    }
    let path = final_path(dir, rank);
    std::fs::write(&path, bytes).map_err(|source| Failure::File { path, doing: "writing the final state", source })
}

fn final_digest(options: &Options) -> Result<String, Failure> {
    let mut hasher = blake3::Hasher::new();
    for rank in 0..options.ranks {
        let path = final_path(&options.dir_of(rank), rank);
        let bytes = std::fs::read(&path);
        hasher.update(&bytes.map_err(|source| Failure::File { path, doing: "reading the final state", source })?);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path, ranks: u32, steps: u64, restart: bool) -> Options {
        let args = format!("--rank 0 --ranks {ranks} --rendezvous r --steps {steps} --checkpoint-every 4 --grid 6x5x8");
        let mut args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        args.extend(["--dir".to_owned(), dir.to_str().expect("a name in UTF-8").to_owned()]);
        args.extend(restart.then(|| "--restart".to_owned()));
        Options::parse(args.into_iter()).expect("valid options")
    }

    /// Runs all ranks as threads. Returns the result of each rank.
    fn run(options: &Options) -> Vec<Result<(), Failure>> {
        let rendezvous = tempfile::tempdir().expect("a directory for sockets");
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..options.ranks)
                .map(|rank| {
                    let options = Options { rank, rendezvous: Some(rendezvous.path().to_owned()), ..options.clone() };
                    scope.spawn(move || run_rank(&options))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic")).collect()
        })
    }

    fn finish(options: &Options) -> String {
        for result in run(options) {
            result.expect("the rank finishes");
        }
        final_digest(options).expect("a final state")
    }

    fn undisturbed(steps: u64) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        finish(&options(dir.path(), 1, steps, false))
    }

    #[test]
    fn the_final_state_does_not_depend_on_the_number_of_ranks() {
        let alone = undisturbed(20);
        for ranks in [2, 3, 8] {
            let dir = tempfile::tempdir().expect("a directory");
            assert_eq!(finish(&options(dir.path(), ranks, 20, false)), alone, "{ranks} ranks");
        }
        assert_ne!(undisturbed(19), alone, "the digest must depend on the number of steps");
    }

    #[test]
    fn an_interrupted_run_ends_where_an_undisturbed_one_does() {
        let dir = tempfile::tempdir().expect("a directory");
        finish(&options(dir.path(), 3, 11, false)); // the newest checkpoint of this run is from step 8
        assert_eq!(checkpoint::steps(dir.path(), 1).expect("readable"), [8, 4]);
        assert_eq!(finish(&options(dir.path(), 3, 20, true)), undisturbed(20));
    }

    #[test]
    fn a_restart_takes_the_newest_checkpoint_that_is_whole_on_every_rank() {
        let dir = tempfile::tempdir().expect("a directory");
        finish(&options(dir.path(), 3, 13, false)); // writes checkpoints at steps 4, 8 and 12
        let path = checkpoint::path(dir.path(), 12, 1);
        let whole = std::fs::metadata(&path).expect("written").len();
        std::fs::File::options().write(true).open(&path).expect("writable").set_len(whole / 2).expect("cut");
        std::fs::remove_file(checkpoint::path(dir.path(), 8, 2)).expect("removed");
        // If a rank used step 8 or 12, the state would differ, or a rank would report an error of its neighbour.
        for rank in 0..3 {
            std::fs::remove_file(final_path(dir.path(), rank)).expect("removed");
        }
        assert_eq!(finish(&options(dir.path(), 3, 20, true)), undisturbed(20));
    }

    #[test]
    fn ranks_of_different_nodes_write_into_different_directories() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { ranks_per_node: Some(2), ..options(dir.path(), 3, 6, false) };
        assert_eq!(finish(&options), undisturbed(6));
        for (node, rank) in [(0, 0), (0, 1), (1, 2)] {
            let path = checkpoint::path(&dir.path().join(format!("node-{node}")), 4, rank);
            assert!(path.is_file(), "{}", path.display());
        }
    }

    #[test]
    fn a_restart_without_any_checkpoint_is_a_new_run() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(finish(&options(dir.path(), 2, 6, true)), undisturbed(6));
    }

    #[test]
    fn a_rank_that_fails_takes_the_others_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        // A directory has the name of the first checkpoint of rank 1, so rank 1 fails in the middle of the run.
        std::fs::create_dir(checkpoint::path(dir.path(), 4, 1)).expect("made");
        let results = run(&options(dir.path(), 3, 20, false));
        let text = |rank: usize| format!("{}", results[rank].as_ref().expect_err("the rank must fail"));
        assert!(text(1).contains("heat.it_000004.rank_1.h5: writing"), "{}", text(1));
        for rank in [0, 2] {
            assert!(text(rank).contains("rank 1"), "{}", text(rank));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_the_reason() {
        for (args, reason) in [
            ("--launch 0 --dir d", "1 to 1024 ranks"),
            ("--launch 9 --dir d --grid 4x4x8", "more ranks than cells"),
            ("--launch 2", "--dir is missing"),
            ("--launch 2 --dir d --grid 4x4", "64x64x64"),
            ("--launch 2 --dir", "its value is missing"),
            ("--rank 2 --ranks 2 --dir d", "less than --ranks"),
            ("--frobnicate 3", "unknown"),
        ] {
            let refused = Options::parse(args.split(' ').map(str::to_owned)).expect_err(args).to_string();
            assert!(refused.contains(reason), "{args}: {refused}");
        }
    }
}
