//! Compares the library's round trips with a plain loop of MPI_Send and MPI_Recv between two readings of the clock,
//! as in osu_latency. Both measurements alternate within one run:
//!
//!     ROUNDS=51 mpirun -n 2 --bind-to core target/release/examples/plain_loop
//!
//! For each size, the program prints the median one-way times of both measurements, and the median of the ratios of
//! neighbouring measurements with its 95 % interval. The exit status is 1 if a whole interval is above 1.05. Other
//! work on the machine can make two runs differ by more than 5 %. But neighbouring measurements are only milliseconds
//! apart, so other work affects both measurements. The sizes go up to 4 MiB. The number of timed round trips is a
//! tenth of osu_latency's number. Before the timed round trips, a tenth of this number of round trips run as a
//! warm-up.

use mpi::ffi;
use mpi::traits::AsRaw;
use mpib::collectives::Result;
use mpib::comm::{Comm, wtime};
use mpib::p2p::round_trips;
use mpib::stats::{StoppingRule, Summary, median};
use std::ffi::c_int;
use std::process::ExitCode;

const TAG: c_int = 1;
const LARGE_BYTES: usize = 8192;

/// A buffer that begins at a page.
fn pages(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    buffer.resize(bytes + 4096, 1);
    let start = buffer.as_ptr().align_offset(4096).min(4096);
    &mut buffer[start..start + bytes]
}

/// One-way time in seconds: the mean over `trips` round trips.
#[expect(unsafe_code, reason = "the loop must not use the library")]
fn plain(raw: ffi::MPI_Comm, rank: usize, bytes: usize, trips: usize) -> f64 {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let (out, back) = (pages(&mut out, bytes), pages(&mut back, bytes));
    // SAFETY: the value is a constant of the MPI library, which is initialised.
    let (len, other, byte) = (bytes as c_int, 1 - rank as c_int, unsafe { ffi::RSMPI_UINT8_T });
    let mut start = 0.0;
    for trip in 0..trips + trips / 10 {
        if trip == trips / 10 {
            start = wtime();
        }
        // SAFETY: both buffers have `len` bytes and live as long as the calls. MPI is initialised while the universe
        // in `main` exists.
        unsafe {
            let mut status = std::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
            if rank == 0 {
                ffi::MPI_Send(out.as_ptr().cast(), len, byte, other, TAG, raw);
                ffi::MPI_Recv(back.as_mut_ptr().cast(), len, byte, other, TAG, raw, status.as_mut_ptr());
            } else {
                ffi::MPI_Recv(back.as_mut_ptr().cast(), len, byte, other, TAG, raw, status.as_mut_ptr());
                ffi::MPI_Send(out.as_ptr().cast(), len, byte, other, TAG, raw);
            }
        }
    }
    (wtime() - start) / trips as f64 / 2.0
}

fn ours(comm: &Comm, bytes: usize, trips: usize) -> Result<f64> {
    let samples = round_trips(comm, 0, 1, bytes, bytes, &StoppingRule::fixed(trips))?;
    Ok(if samples.is_empty() { 0.0 } else { median(&samples) / 2.0 })
}

fn main() -> std::result::Result<ExitCode, Box<dyn std::error::Error>> {
    let rounds: usize = std::env::var("ROUNDS").unwrap_or_else(|_| "51".into()).parse()?;
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    let comm = Comm::of(&world)?;
    if comm.size() != 2 || rounds < 6 {
        return Err(format!("{} ranks and {rounds} rounds; 2 and at least 6 are needed", comm.size()).into());
    }
    let is_first = comm.rank() == 0;
    if is_first {
        println!("{:>9} {:>10} {:>10} {:>7}   95 %", "bytes", "loop, us", "mpib, us", "ratio");
    }
    let mut slow = Vec::new();
    for bytes in (0..=22).map(|power| 1 << power) {
        let trips = if bytes > LARGE_BYTES { 100 } else { 1000 };
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for n in [round % 2, 1 - round % 2] {
                comm.barrier()?;
                let seconds =
                    if n == 0 { plain(world.as_raw(), comm.rank(), bytes, trips) } else { ours(&comm, bytes, trips)? };
                times[n].push(seconds);
            }
        }
        if !is_first {
            continue;
        }
        let ratios: Vec<f64> = times[1].iter().zip(&times[0]).map(|(ours, plain)| ours / plain).collect();
        let summary = Summary::of(&ratios, 0.95);
        let interval = summary.interval(mpib::stats::Estimate::Median).ok_or("too few rounds")?;
        let [plain, ours] = times.each_ref().map(|all| median(all) * 1e6);
        println!(
            "{bytes:>9} {plain:>10.3} {ours:>10.3} {:>7.3}   {:.3} to {:.3}",
            summary.median, interval.low, interval.high
        );
        if interval.low > 1.05 {
            slow.push(bytes.to_string());
        }
    }
    if is_first {
        match slow.is_empty() {
            true => println!("at no size more than 5 % above the loop"),
            false => println!("more than 5 % above the loop at {} bytes", slow.join(", ")),
        }
    }
    Ok(ExitCode::from(u8::from(!slow.is_empty())))
}
