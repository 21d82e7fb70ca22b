//! The examples of each command, for `--help` and the manual pages.

/// An example.
pub struct Example {
    /// The command line, as a user types it.
    pub command: &'static str,
    /// What the command line does.
    pub what: &'static str,
}

const fn example(command: &'static str, what: &'static str) -> Example {
    Example { command, what }
}

/// Each command, by its name below `mcr`, with its examples.
#[rustfmt::skip]
const TABLE: &[(&str, &[Example])] = &[
    ("", &[
        example("mcr save run --store /lustre/mcr --create", "Save every complete checkpoint below the directory run"),
        example("mcr restart --store /lustre/mcr --to run", "Restore the newest good checkpoint into run"),
        example("mcr run --job wave --store /lustre/mcr --watch run -- srun ./sim", "Run and save a simulation"),
    ]),
    ("save", &[
        example("mcr save run --store /lustre/mcr --create", "Save every complete checkpoint below the directory run"),
        example("mcr save run --store /lustre/mcr --layout 'out_{checkpoint}.{rank}'", "Name the files: out_100.0 is rank 0 of checkpoint 100"),
    ]),
    ("restart", &[
        example("mcr restart --store /lustre/mcr --to run", "Restore the newest good checkpoint; the job continues from it"),
        example("mcr restart --store /lustre/mcr --to look --checkpoint DD0007 --copy", "Only copy one checkpoint, also while the job is running"),
    ]),
    ("list", &[
        example("mcr list --store /lustre/mcr", "List the checkpoints of all jobs"),
        example("mcr list --store /lustre/mcr --job wave --json", "List the checkpoints of the job wave, for a script"),
    ]),
    ("show", &[
        example("mcr show --store /lustre/mcr", "Show the largest classes of the newest checkpoint"),
        example("mcr show DD0007 --files --store /lustre/mcr", "Show the files of the checkpoint DD0007"),
    ]),
    ("verify", &[
        example("mcr verify --store /lustre/mcr", "Verify all checkpoints"),
        example("mcr verify DD0007 --store /lustre/mcr --job wave", "Verify the checkpoint DD0007 of the job wave"),
        example("mcr verify --repair --store /lustre/mcr", "Mend damage by parity (mcr save --parity-percent)"),
        example("mcr verify --repair --from /archive/mcr --store /lustre/mcr", "Mend damage by parity or from a copy"),
    ]),
    ("ls", &[
        example("mcr ls latest --store /lustre/mcr", "List the files of the newest checkpoint"),
        example("mcr ls DD0007 --variables '*.cpu0003' --store /lustre/mcr", "List the variables of one rank's files"),
    ]),
    ("cat", &[
        example("mcr cat latest DD0007/DD0007.cpu0003 --store /lustre/mcr > cpu0003.h5", "Restore one file of the newest checkpoint"),
        example("mcr cat latest~1 run.log --store /lustre/mcr", "Print a file of the checkpoint before the newest"),
    ]),
    ("extract", &[
        example("mcr extract latest --variable 'Grid*/rho' --to rho.npy --store /lustre/mcr", "Write one variable of all ranks as a NumPy array"),
        example("mcr extract it_8 --variable rho --ranks 0-3 --to a.h5 --store /lustre/mcr", "Write one variable of four ranks to an HDF5 file"),
    ]),
    ("diff", &[
        example("mcr diff latest~1 latest --store /lustre/mcr", "Show what changed between the two newest checkpoints"),
        example("mcr diff DD0007 ./restored --json --store /lustre/mcr", "Compare a checkpoint with a directory, for a script"),
    ]),
    ("mount", &[
        example("mcr mount /tmp/checkpoints --store /lustre/mcr", "Show all checkpoints as read-only files"),
        example("mcr mount /tmp/checkpoints --store /lustre/mcr --job wave", "Show the checkpoints of the job wave"),
    ]),
    ("prune", &[
        example("mcr prune --keep 3 --store /lustre/mcr --dry-run", "Report which checkpoints would be deleted, except the newest 3"),
        example("mcr prune --mark-bad DD0007 --reason diverged --store /lustre/mcr", "Let restarts skip the checkpoint DD0007"),
    ]),
    ("copy", &[
        example("mcr copy latest --from /lustre/mcr --store /archive/mcr", "Copy the newest checkpoint"),
        example("mcr copy --all --from /lustre/mcr --store /archive/mcr --to-job a", "Copy all, to job a"),
    ]),
    ("manual", &[
        example("mcr manual /usr/share", "Write the manual pages and the completions of the shells for all users"),
        example("mcr manual ~/.local/share", "Write them for this user"),
    ]),
    ("cnc", &[
        example("mcr cnc --config mcr.toml", "Run an agent with the table [cnc] of the file"),
        example("mcr cnc --config mcr.toml --log-json", "Write the log as JSON"),
    ]),
    ("anc", &[
        example("mcr anc --config mcr.toml", "Run an aggregator with the table [anc] of the file"),
        example("mcr anc --config mcr.toml --create", "Create the store's directory if it does not exist"),
    ]),
    ("run", &[
        example("mcr run --job wave --store /lustre/mcr --watch run -- srun ./sim", "Run and save a simulation"),
        example("mcr run --config mcr.toml", "Save the checkpoints of a simulation that runs already, until SIGTERM"),
    ]),
    ("flush", &[
        example("mcr flush --job wave", "Wait until all files of the job wave are committed"),
        example("mcr flush --config mcr.toml --timeout 60", "Wait at most one minute"),
    ]),
    ("job", &[
        example("mcr job show", "Show the settings of the job in this directory"),
        example("mcr job list", "List the jobs that the daemon of this node saves"),
    ]),
    ("job show", &[
        example("mcr job show", "Show the settings of the job in this directory"),
        example("mcr job show --comment mcr:job=wave,watch=run", "Show the settings as for a job with this comment"),
    ]),
    ("job begin", &[
        example("mcr job begin", "In SLURM's Prolog: the job of SLURM_JOB_ID begins"),
        example("mcr job begin --wait 5", "Wait at most 5 s for the daemon"),
    ]),
    ("job end", &[
        example("mcr job end", "In SLURM's Epilog: the job of SLURM_JOB_ID is over"),
        example("mcr job end --wait 60", "Wait at most one minute until all files are committed"),
    ]),
    ("job list", &[
        example("mcr job list", "List the jobs that the daemon of this node saves"),
        example("mcr job list --json", "The same for a script"),
    ]),
    ("node", &[
        example("mcr node", "Save the jobs of all users, as root; usually systemd runs this daemon"),
        example("mcr node --own --run-dir /tmp/mcr", "Save only your own jobs, without root"),
    ]),
    ("node check", &[
        example("mcr node check", "Check the setup of SLURM and of this node"),
        example("mcr node check --slurm-conf /opt/slurm/etc/slurm.conf", "Check with SLURM's configuration in another place"),
    ]),
    ("gate", &[
        example("mcr gate", "Run the gate with the table [gate] of /etc/mcr/mcr.toml"),
        example("mcr gate --state /var/lib/mcr-gate --log-json", "Write the log as JSON"),
    ]),
    ("metrics", &[
        example("mcr metrics", "Serve the metrics of mcr node at http://127.0.0.1:7118/metrics"),
        example("mcr metrics --listen 10.0.0.7:7118", "Serve them on a network for administrators"),
    ]),
    ("status", &[
        example("mcr status --watch", "Show your jobs on this node, live; q ends it"),
        example("mcr status --aggregators node1:7117,node2:7117", "Ask two aggregators"),
        example("mcr status --serve --store /lustre/mcr", "Print the address of a page for a browser"),
        example("mcr status --aggregators unix:/tmp/mcr/wave.sock --json", "Ask an aggregator of this node, for a script"),
        example("mcr status --json --follow > events.jsonl", "Write a line for each event of a checkpoint"),
    ]),
    ("stats", &[
        example("mcr stats --store /lustre/mcr", "Show how much space each job and checkpoint uses"),
        example("mcr stats --store /lustre/mcr --job wave --keep 3", "Show what mcr prune --keep 3 would free"),
    ]),
    ("advise", &[
        example("mcr advise --mtbf 24 --store /lustre/mcr", "Advise an interval if the job fails once a day"),
        example("mcr advise --mtbf 24 --svg advice.svg --store /lustre/mcr", "Draw it with the growth of the store"),
        example("mcr advise --measure --aggregators 4 --store /lustre/mcr", "Measure other settings on a sample"),
    ]),
    ("layouts", &[
        example("mcr layouts", "List the presets, each with a file name as an example"),
        example("mcr layouts --json", "List also the patterns of each preset"),
    ]),
    ("cert", &[
        example("mcr cert init", "Make your key, once"),
        example("mcr cert rotate", "Replace your key while jobs run"),
    ]),
    ("cert init", &[
        example("mcr cert init", "Make your key in ~/.config/mcr, if there is none"),
        example("mcr cert init --dir /project/wave/mcr-key", "Make the key in another directory; then set MCR_CERT_DIR"),
    ]),
    ("cert rotate", &[
        example("mcr cert rotate", "Replace your key, with 2 min between the steps"),
        example("mcr cert rotate --step", "Do only the next step, and copy the files to all nodes yourself"),
    ]),
    ("config", &[
        example("mcr config check mcr.toml", "Check a file with the tables [cnc] and [anc]"),
        example("mcr config defaults", "Print every key with its default"),
    ]),
    ("config check", &[
        example("mcr config check mcr.toml", "Check a file with the tables [cnc] and [anc]"),
        example("mcr config check mcr.toml --json", "Check a file in a script"),
    ]),
    ("config defaults", &[
        example("mcr config defaults", "Print every key with its default"),
        example("mcr config defaults > mcr.toml", "Begin a configuration file"),
    ]),
    ("bench", &[
        example("mcr bench codecs run", "Measure each codec on your newest checkpoint"),
        example("mcr bench schemes run --plots figures", "Compute the figures of the paper from your checkpoints"),
    ]),
    ("bench codecs", &[
        example("mcr bench codecs run", "Measure each codec on your newest checkpoint"),
        example("mcr bench codecs run --sample 256M --profiles fast,max", "Measure more bytes, and compare two profiles"),
    ]),
    ("bench schemes", &[
        example("mcr bench schemes run", "Compute the tables of the paper from your checkpoints"),
        example("mcr bench schemes run --group-sizes 1,8,32 --plots figures", "Measure three group sizes, and write the figures as SVG"),
    ]),
    ("bench partitions", &[
        example("mcr bench partitions", "Compare all policies on generated traces"),
        example("mcr bench partitions --json", "The same for a script"),
    ]),
    ("bench scale", &[
        example("mcr bench scale --ranks 256,1024,4096", "Compare jobs of three sizes"),
        example("mcr bench scale --ranks 15408 --failures", "Simulate the job of the paper, with failures"),
        example("mcr bench scale --checkpoints-stored 1,100 --svg scale.svg", "Draw the costs over the checkpoints"),
    ]),
];

/// The examples of a command. `path`: the name of the command below `mcr`, for example `cert init`.
pub fn examples_of(path: &str) -> &'static [Example] {
    TABLE.iter().find(|(known, _)| *known == path).map_or(&[], |(_, examples)| examples)
}

/// The paths of all commands with examples.
#[cfg(test)]
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(path, _)| *path)
}
