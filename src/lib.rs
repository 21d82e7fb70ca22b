//! Decisions and formats of mcrEngine, and a tour of the whole system. Read this page first, then follow one of the
//! two paths. The table of words, below the next two paragraphs, defines each term.
//!
//! A simulation with many ranks writes a checkpoint: at least one file for each rank. An agent on each compute node
//! (`mcr cnc`) notices that a file is finished and describes it. An aggregator (`mcr anc`) pulls the variables of a
//! group of ranks, merges variables that have the same meaning, compresses them and writes one container. A restart
//! follows the same path in the opposite direction and restores every file byte for byte. `mcr save` and `mcr run` do
//! the work of agents and aggregators in one process.
//!
//! The crates: `mcrengine` (this crate, `src/`) makes the decisions and defines the formats. `mcr-proto` is the
//! network protocol. `mcr-cnc` is the agent, `mcr-anc` is the aggregator, and `mcr-cli` is the command `mcr`.
//!
//! | word | meaning |
//! |---|---|
//! | rank | number of a process in the application's `MPI_COMM_WORLD` |
//! | group | the ranks that one aggregator merges into one container. Codec `predict` also has groups of arrays |
//! | checkpoint | all files that all ranks saved at one step |
//! | variable | one named array of one rank (in HDF5's words, a dataset), or the bytes between the arrays of a file |
//! | header | the description of a file or a variable without its bytes: path, type, shape, digest |
//! | class | variables of different ranks that are similar enough to be merged |
//! | segment | a merged, compressed run of bytes in a container |
//! | container, manifest | the file with a group's data in the store, and the small file that commits the group |
//! | fetch, merge, split | the aggregator pulls bytes from agents; joins bytes of ranks; the inverse of merge |
//! | flush, restart | a group goes from memory to the store; files of a checkpoint go from the store to a directory |
//! | raw, stored | bytes before compression, bytes after compression |
//! | label | the application's name of a checkpoint. If a name is overwritten, the second content is `LABEL~2` |
//! | incarnation | one start of a job. The first restart of the start, or its first agent, begins the incarnation |
//! | identity | the name that SLURM or the user gives a start. All processes of the start know the identity |
//! | capture, announcement | the agent captures (describes) the files of a rank, and announces the headers |
//! | link, session | an agent has one link to each aggregator. A session is one connection of a link |
//! | hub | the task of an aggregator that decides which group is flushed, and when |
//! | frame | a part of the data stream between two processes, at most 1 MiB. `container.md` uses the word differently |
//! | extent, piece | an extent is a range of bytes of a file. A piece is a part of a variable in one segment |
//! | lease | a reservation of memory in the budget of a process |
//! | base | an older segment that predicts the bytes of a new segment |
//! | pointer file | a small file of the application that names the newest checkpoint |
//! | partition, sub-buffer | a run of bytes that is loaded as a whole, and its place in memory ([`partition`]) |
//! | point, lane | an array of points has several numbers (lanes) for each point, such as x, y and z |
//!
//! # A file is a skeleton and variables
//!
//! A [`header::FileHeader`] describes a file without its bytes: path, length, digest, and a list of
//! [`header::VariableHeader`]. Each variable header has an element type, a shape, a digest, and the extents of the
//! file that hold the variable's bytes. The bytes between the variables (HDF5's own structures) are a variable too,
//! called the skeleton. The extents of all variables cover each byte of the file exactly once
//! ([`header::FileHeader::check`]). Writing every variable back to its extents therefore restores the file, and needs
//! no HDF5. A file of an unknown format is one variable of bytes.
//!
//! A chunk of a dataset (HDF5's unit of storage) may be stored through a reversible HDF5 filter. If
//! [`filter::put_on`] turns the unfiltered bytes back into the stored bytes, the unfiltered bytes are sent. The agent
//! compares the bytes when it describes the file. If the bytes differ, the stored bytes are sent.
//!
//! # Checkpoint: from a finished file to a manifest
//!
//! Rows 5 to 12 are [`flush_checkpoint`], top to bottom. The inputs of `flush_checkpoint` are a list of headers and a
//! source of the bytes of the variables, so both the daemon `mcr anc` and `mcr save` call this function, through
//! `anc/src/commit_group.rs`. Several segments pass rows 7 to 9 at the same time, on the threads of
//! `anc/src/pipeline.rs`.
//!
//! | # | step | where | function | result |
//! |---|---|---|---|---|
//! | 1 | watch | `cnc/src/watch.rs` | [`Watcher::spawn`] | `WatchEvent::Ready`: the files of one rank are finished |
//! | 2 | describe | `cnc/src/capture.rs` | [`capture`] | a [`header::FileHeader`] with digests |
//! | 3 | announce | `cnc/src/serve.rs` | `announce` | the aggregator has the headers |
//! | 4 | gather | `anc/src/group.rs` | [`step`] | `Phase::Flushing`: all ranks of the group have announced |
//! | 5 | classify | `src/classify.rs` | [`classify::classify`] | a [`classify::VariableClass`] for the same variable on different ranks |
//! | 6 | plan | `anc/src/plan_segments.rs` | [`plan_segments`] | a [`plan::SegmentPlan`] for each segment: which bytes, in which order |
//! | 7 | fetch and merge | `anc/src/fetch_segment.rs` | `fetch_segment` | the raw bytes of a segment, compared with their digests |
//! | 8 | look back | `anc/src/looking_back.rs` | `read` | the base: an older segment that predicts the bytes of the new segment, if there is one |
//! | 9 | compress | `anc/src/compress.rs` | [`compress`] | a [`container::StoredSegment`], decoded again and compared |
//! | 10 | write | `src/container/writer.rs` | [`container::ContainerWriter::append`], [`finish`] | a [`container::UnsealedContainer`]: durable, under a temporary name |
//! | 11 | seal | `src/container/writer.rs` | [`seal`] | a [`container::SealedContainer`]: durable, under its final name |
//! | 12 | commit | `src/manifest/commit.rs` | [`manifest::commit`] | a [`manifest::Manifest`]: every later restart sees the group |
//!
//! - Row 1: `cnc/src/settle.rs` decides when a file is finished. Row 2: `cnc/src/h5.rs` finds the variables of an
//!   HDF5 file. `capture_keeping` also keeps small files in memory. Row 4: `step` does no I/O. It returns the next
//!   phase and a list of effects, which are the actions that `anc/src/hub.rs` must start. The effect `Flush` puts the
//!   group into a queue; `anc/src/hub/flushing.rs` starts the flush, and `anc/src/hub/flush_work.rs` does the flush.
//! - Row 6: [`plan::plan`] makes the plan. The plan leaves out the variables that [`reuse::reusable`] finds in the
//!   store. [`bases::Bases`] finds the older segments for row 8.
//! - Row 7: a budget limits the memory of all segments together. [`plan::Scheme`] says how [`merge::merge`] joins
//!   pieces: one piece after the other, or, in the schemes whose names end in `-block`, one block of each piece in
//!   turn. Row 9: [`codec::encode_chosen`] chooses the codecs. Before row 11, [`parity::write`] may write the parity
//!   of the container, by which `mcr verify --repair` ([`copy::repair`]) mends damage. While row 11 runs,
//!   [`manifest::write`] writes the manifest under a temporary name.
//!
//! An *incarnation* is one start of a job. Only the newest incarnation of a job may commit.
//! `anc/src/hub/flush_work.rs` checks this rule before row 5 (`anc/src/incarnation.rs`) and again before row 12. If a
//! rank's files are older than the newest incarnation, the aggregator waits for new files.
//!
//! A variable's bytes come from a `Source` (`anc/src/source.rs`). `LocalSource` (`cli/src/local.rs`) reads the file
//! in the same process. `RemoteSource` (`anc/src/fetch.rs`) asks the agents, which read the file again. In
//! `anc/src/fetch.rs`, `AgentLink::ask` sends the request, `AgentLink::data` receives frames, and `Asked::fill` puts
//! the bytes in their places. On the agent, `answer` in `cnc/src/serve.rs` reads the extents of the file by
//! `read_ranges` and sends the frames.
//!
//! Bytes that are read again after row 2 are compared with their variable's digest before the commit. So a file that
//! changed after row 2 makes this checkpoint fail with an error, and harms no other checkpoint. Bytes that are kept
//! in memory since row 2 are not hashed again (`Source::is_checked`), because the digests were made from these bytes.
//! In a file that is kept in memory, variables of fewer than 4096 bytes get no digest. The digest of the file covers
//! these variables.
//!
//! # Restart: the same path in the opposite direction
//!
//! `restore_newest` in `cli/src/restart.rs` calls all rows. `candidates` chooses from the list of row 1 the
//! checkpoints to try. But if another node of the same start of the job has already decided (row 8), only the
//! checkpoint of this decision is tried.
//! In `cli/src/prepare.rs`, `prepare` calls rows 2 to 7 for each group, and `publish` calls row 9. The call of row 6
//! contains the calls of rows 3 to 5, for each segment. If a checkpoint is damaged and cannot be restored,
//! `restore_newest` reports the damage and tries the next older checkpoint.
//!
//! | # | step | where | function | result |
//! |---|---|---|---|---|
//! | 1 | choose | `src/manifest/list.rs` | [`manifest::list`] | a [`manifest::CheckpointState`] for each checkpoint, newest first |
//! | 2 | open | `src/container/set.rs` | [`container::ContainerSet::open`] | the indexes of a container and of its references |
//! | 3 | read | `src/container/reader.rs` | [`container::ContainerReader::read_segment`] | a [`container::StoredSegment`], compared with its checksum |
//! | 4 | decompress | `src/codec/chain.rs` | [`codec::Chain::decode`] | the raw bytes of a segment. The base, if there is one, is decoded first |
//! | 5 | split | `src/container/segments.rs` | [`container::SegmentBuffer::run`] | the pieces, by [`merge::runs`] |
//! | 6 | hand on | `anc/src/restart.rs` | [`restore_files`], [`send_ranks`] | the pieces, given to row 7 or sent to another node (`cli/src/remote.rs`) |
//! | 7 | write, verify | `cnc/src/restart.rs` | [`FileRestorer::write`], [`verify`] | a file under a temporary name, with the digest of row 2 of the first table |
//! | 8 | decide | `cli/src/decide.rs` | `decide` | an [`incarnation::Incarnation`]: the first node of a start decides, the other nodes follow |
//! | 9 | publish | `cnc/src/restart/publish.rs` | [`publish_all`] | all files of the checkpoint under their final names, or no file |
//!
//! Row 5: decoded segments stay in a [`partition::SharedBuffer`] until their last use.
//!
//! `mcr ls`, `cat`, `extract` and `diff` (`cli/src/inside/mod.rs`) and `mcr mount` (`cli/src/mount/mod.rs`) look inside
//! a checkpoint without a restart. [`image::FileReader`] and [`container::VariableReader`] decode only the segments
//! that they need, through the partition buffer of row 5.
//!
//! `mcr copy` and `mcr verify --repair` copy files between two stores without decoding segments ([`copy`]). The steps
//! have the same order as the steps of a commit.
//!
//! # Invariants
//!
//! - **A checkpoint exists if and only if valid manifests in its directory cover all of its groups**
//!   ([`manifest::CheckpointState::is_complete`]). A reader needs no root file and no lock. The records of
//!   incarnations only decide which complete checkpoint is the newest, and marks exclude checkpoints.
//! - **Checkpoints are ordered by incarnation, then by the time at which the application wrote them**
//!   ([`manifest::Place`]). The last checkpoint in this order is the newest. A checkpoint that was incomplete when a
//!   newer incarnation began never becomes complete.
//! - The types allow only one order of a commit. Only [`container::UnsealedContainer::seal`] makes a
//!   [`container::SealedContainer`], and only a sealed container can be committed. A writer that is dropped leaves a
//!   file under a temporary name, which no reader opens. `tests/crash` stops a store after every operation in turn.
//! - Checksums cover stored bytes, so damage is found before a decoder runs. Digests cover raw bytes, so an error of
//!   a decoder is found after the decoder ran. Every length that is read from a file is compared with a limit before
//!   memory is allocated for it.
//! - For every input, damage or crash a restart has one of three results: the right data, a typed error, or the data
//!   of an older checkpoint and a report of this choice.
//! - Every queue, buffer, wait and message has a limit. The code that creates a queue, buffer, wait or message states
//!   the limit.
//!
//! # Deliberately absent
//!
//! - `mcrengine` does not use tokio, tonic or HDF5. `make test` builds this crate alone to check this rule.
//! - `mcr-anc` uses neither HDF5 nor the application's files, only variables. `mcr-cnc` uses neither containers nor
//!   the store, only files and frames.
//! - Only [`store`] makes, renames or syncs a file on the parallel file system. `.clippy.toml` refuses the calls
//!   elsewhere.
//! - A committed file is never changed in place. Only [`prune::prune`] deletes committed files, and keeps containers
//!   to which other checkpoints refer. [`repack::repack`] replaces a kept container as a whole by a smaller container.
//!   [`copy::repair`] replaces a damaged file by an intact copy of this file.
//! - The generated wire types are used only where messages are sent and received. `proto/src/convert.rs` checks each
//!   header that arrives and converts it to the types of this crate.
//!
//! The page of [`container`] describes all bytes of a container. The page is sufficient to write a reader.
//!
//! [`Watcher::spawn`]: ../mcr_cnc/watch/struct.Watcher.html#method.spawn
//! [`capture`]: ../mcr_cnc/capture/fn.capture.html
//! [`step`]: ../mcr_anc/group/fn.step.html
//! [`flush_checkpoint`]: ../mcr_anc/flush/fn.flush_checkpoint.html
//! [`plan_segments`]: ../mcr_anc/plan_segments/fn.plan_segments.html
//! [`compress`]: ../mcr_anc/compress/fn.compress.html
//! [`finish`]: container::ContainerWriter::finish
//! [`seal`]: container::UnsealedContainer::seal
//! [`restore_files`]: ../mcr_anc/restart/fn.restore_files.html
//! [`send_ranks`]: ../mcr_anc/restart/fn.send_ranks.html
//! [`FileRestorer::write`]: ../mcr_cnc/restart/struct.FileRestorer.html#method.write
//! [`verify`]: ../mcr_cnc/restart/struct.FileRestorer.html#method.verify
//! [`publish_all`]: ../mcr_cnc/restart/fn.publish_all.html

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod bases;
pub mod classify;
pub mod codec;
pub mod container;
pub mod copy;
pub mod error;
pub mod error_chain;
pub mod filter;
pub mod gathered;
pub mod header;
pub mod ids;
pub mod image;
pub mod incarnation;
pub mod living;
mod looking;
pub mod manifest;
pub mod marks;
pub mod merge;
pub mod parity;
pub mod partition;
pub mod plan;
pub mod prune;
pub mod remembered;
pub mod repack;
pub mod retention;
pub mod reuse;
pub mod slabs;
pub mod store;
pub mod turns;
pub mod units;
pub mod varint;
pub mod verify;
pub mod watched;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The parts of a line that stand between backquotes.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_tour_names_only_files_and_functions_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tour: Vec<&str> = include_str!("lib.rs").lines().map_while(|line| line.strip_prefix("//!")).collect();
        let (mut files, mut functions) = (0, 0);
        for name in tour.iter().flat_map(|line| quoted(line)).filter(|name| name.ends_with(".rs")) {
            assert!(root.join(name).is_file(), "the tour names {name}, which does not exist");
            files += 1;
        }
        for row in tour.iter().map(|line| line.trim()).filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let Some(file) = cells.get(3).and_then(|cell| quoted(cell).next()) else { continue };
            let code = std::fs::read_to_string(root.join(file)).expect("readable");
            for function in quoted(cells[4]) {
                let name = function.rsplit("::").next().unwrap_or(function);
                let is_there = [format!("fn {name}("), format!("fn {name}<")].iter().any(|text| code.contains(text));
                assert!(is_there, "{file} has no function {name}, which the tour names");
                functions += 1;
            }
        }
        assert!(files >= 20 && functions >= 20, "the tour names only {files} files and {functions} functions");
    }
}
