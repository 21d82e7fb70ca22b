//! Files of the job itself, which are never part of a checkpoint: the user's settings, the output file of the batch
//! job, and the output of this process. The output files grow while the job runs, so no checkpoint could wait until
//! such a file is closed.

use crate::fingerprint::Fingerprint;
use nix::sys::stat::fstat;
use std::fs::Metadata;
use std::sync::LazyLock;

/// Name of the user's file with settings.
pub const USER_FILE: &str = "mcr.toml";

/// Whether this is the path of the user's settings in the top level of the watched directory.
pub fn is_settings(path: &[u8]) -> bool {
    path == USER_FILE.as_bytes()
}

/// Whether SLURM gives this name to the output file of a batch job: `slurm-123.out`, `slurm-123_4.err`.
pub fn is_batch_output(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    name.starts_with(b"slurm-") && (name.ends_with(b".out") || name.ends_with(b".err"))
}

/// Whether a file is the standard output or the standard error of this process. The two files are looked up once, at
/// the first call.
pub(crate) fn is_own_output(metadata: &Metadata) -> bool {
    static OWN: LazyLock<Vec<Fingerprint>> = LazyLock::new(|| {
        // A closed descriptor has no file.
        let stats = [fstat(std::io::stdout()), fstat(std::io::stderr())];
        stats.into_iter().flatten().map(|stat| Fingerprint::of_stat(&stat)).collect()
    });
    let is = Fingerprint::of(metadata);
    OWN.iter().any(|own| (own.device, own.inode) == (is.device, is.inode))
}

#[cfg(test)]
mod tests {
    use crate::layout::Layout;
    use mcrengine::ids::FilePath;

    #[test]
    fn settings_and_the_output_of_a_batch_job_belong_to_no_checkpoint() {
        let layouts = [
            Layout::single("all".parse().expect("valid")),
            Layout::preset("files").expect("a preset"),
            Layout::from_patterns(&["**/{checkpoint}"], 0).expect("valid"),
        ];
        for layout in layouts {
            let is_placed = |path: &str| layout.place(&FilePath::new(path.as_bytes()).expect("valid")).is_some();
            for path in ["mcr.toml", "slurm-7.out", "slurm-7_1.err", "logs/slurm-7.out"] {
                assert!(!is_placed(path), "{} {path}", layout.name());
            }
            for path in ["inputs/mcr.toml", "slurm.out", "slurm-7.dat", "state"] {
                assert!(is_placed(path), "{} {path}", layout.name());
            }
        }
    }
}
