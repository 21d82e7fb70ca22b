//! Decisions and formats of mcrEngine, and a tour of the whole system. Read this page first, then follow one of the
//! two paths.
//!
//! A simulation with many ranks writes a checkpoint: at least one file for each rank. An agent on each compute node
//! (`mcr cnc`) notices that a file is finished and describes it. An aggregator (`mcr anc`) pulls the variables of a
//! group of ranks, merges variables that have the same meaning, compresses them and writes one container. A restart
//! follows the same path in the opposite direction and restores every file byte for byte. `mcr save` and `mcr run` do
//! all of this in one process.
//!
//! The crates: `mcrengine` (this one, `src/`) makes the decisions and knows the formats; `mcr-proto` is the network
//! protocol; `mcr-cnc` knows files; `mcr-anc` knows groups; `mcr-cli` is the one binary. Each of these words has one
//! meaning in all crates: *rank, group, checkpoint, variable, header, class, segment, container, manifest, fetch,
//! merge, split, flush, restart, raw* and *stored* bytes.
//!
//! # A file is a skeleton and variables
//!
//! A [`header::FileHeader`] describes a file without its bytes: path, length, digest, and a list of
//! [`header::VariableHeader`]. Each variable header has an element type, a shape, a digest, and the extents of the
//! file that hold the variable's bytes. The bytes between the variables (HDF5's own structures) are a variable too,
//! called the skeleton. The extents of all variables cover each byte of the file exactly once
//! ([`header::FileHeader::check`]). Writing every variable back to its extents therefore restores the file, and needs
//! no HDF5. A file of an unknown format is one variable of bytes. If a chunk was stored through a reversible HDF5
//! filter, its unfiltered bytes are sent instead, provided that [`filter::put_on`] reproduces the bytes that
//! [`filter::take_off`] was given. The agent tries this when it describes the file.
//!
//! # Checkpoint: from a finished file to a manifest
//!
//! Rows 5 to 12 are [`flush_checkpoint`], top to bottom; rows 7 to 10 run on the threads of `anc/src/pipeline.rs`. It
//! needs a list of headers and a source of their bytes, so the daemons and `mcr save` both call it.
//!
//! | # | step | where | function | gives |
//! |---|---|---|---|---|
//! | 1 | watch | `cnc/src/watch.rs` | [`Watcher::spawn`] | `WatchEvent::Ready`: the files of one rank are finished (`cnc/src/settle.rs` decides when) |
//! | 2 | describe | `cnc/src/capture.rs` | [`capture`] | [`header::FileHeader`] with digests; `cnc/src/h5.rs` finds the variables of an HDF5 file |
//! | 3 | announce | `cnc/src/serve.rs` | `announce` | the headers at the aggregator |
//! | 4 | gather | `anc/src/group.rs` | [`step`] | `Phase::Flushing` once every rank of the group has announced; `anc/src/hub.rs` executes the effects that `step` returns |
//! | 5 | classify | `src/classify.rs` | [`classify::classify`] | [`classify::VariableClass`]: the same variable on different ranks |
//! | 6 | plan | `anc/src/plan_segments.rs` | [`plan_segments`] | [`plan::SegmentPlan`]: which bytes, in which order, by [`plan::plan`]; what [`reuse::reusable`] finds in the store is left out; for each segment the older one that it may be coded with ([`bases::Bases`]) |
//! | 7 | fetch and merge | `anc/src/fetch_segment.rs` | `fetch_segment` | raw bytes of a segment, within the budget, compared with their digests (`anc/src/digests.rs`); [`merge::merge`] interleaves them where the scheme says so |
//! | 8 | look back | `anc/src/looking_back.rs` | `read` | the older segment, where the profile wants one and the class gains |
//! | 9 | compress | `anc/src/compress.rs` | [`compress`] | [`container::StoredSegment`], by [`codec::encode_chosen`], decoded again and compared |
//! | 10 | write | `src/container/writer.rs` | [`container::ContainerWriter::append`], [`finish`] | [`container::UnsealedContainer`]: synced, under a temporary name |
//! | 11 | seal | `src/container/writer.rs` | [`seal`] | [`container::SealedContainer`]: under its final name; meanwhile [`manifest::write`] syncs its manifest under a temporary one |
//! | 12 | commit | `src/manifest/commit.rs` | [`manifest::commit`] | [`manifest::Manifest`]: from here on a restart sees the group |
//!
//! Before row 5 and again before row 12, `anc/src/hub.rs` asks the store which incarnation of the job may commit
//! (`admit` in `anc/src/incarnation.rs`). If a rank's files are older than that incarnation, the aggregator waits for
//! new ones.
//!
//! A variable's bytes come from a `Source` (`anc/src/source.rs`): `RemoteSource` (`anc/src/fetch.rs`) asks the
//! agents, which read the file again and compare; `LocalSource` (`cli/src/local.rs`) reads the file here. Bytes are
//! compared with the digest of row 2 before they are written, so a file that changed meanwhile spoils this checkpoint
//! only, openly. Bytes that are still in the very memory that was hashed are not hashed again (`is_checked`); of such
//! files the digests that no container holds are not made at all.
//!
//! # Restart: the same path in the opposite direction
//!
//! `cli/src/prepare.rs` is this table: `prepare` is rows 2 to 7, and `publish` is row 8. `cli/src/restart.rs` chooses
//! the checkpoint. If a checkpoint cannot be restored because it is damaged, `cli/src/restart.rs` reports this and
//! tries the next older one.
//!
//! | # | step | where | function | gives |
//! |---|---|---|---|---|
//! | 1 | choose | `src/manifest/list.rs` | [`manifest::list`] | [`manifest::CheckpointState`], newest first; only complete ones count. `src/looking.rs` looks at each |
//! | 1b | decide | `cli/src/decide.rs` | `role`, `decide` | [`incarnation::Incarnation`]: the first node of a start decides, the others follow |
//! | 2 | open | `src/container/set.rs` | [`container::ContainerSet::open`] | the container's index, and those of older containers that it refers to |
//! | 3 | read | `src/container/reader.rs` | [`container::ContainerReader::read_segment`] | [`container::StoredSegment`], its checksum compared |
//! | 4 | decompress | `src/codec/mod.rs` | [`codec::Chain::decode`] | raw bytes of a segment; if it was coded against an older segment, that one is decoded first |
//! | 5 | split | `src/container/set.rs` | [`container::ContainerSet::run`] | one piece for each variable, along [`merge::runs`] |
//! | 6 | hand on | `anc/src/restart.rs` | [`restore_files`], [`send_ranks`] | pieces written to a file of this node, or sent as frames to another node (`cli/src/remote.rs`) |
//! | 7 | write, verify | `cnc/src/restart.rs` | [`FileRestorer::write`], [`verify`] | a file under a temporary name in its final directory, with the digest of row 2 above |
//! | 8 | publish | `cnc/src/restart/publish.rs` | [`publish_all`] | all files of the checkpoint under their final names, or none |
//!
//! # Invariants
//!
//! - **A checkpoint exists if and only if valid manifests in its directory cover all of its groups**
//!   ([`manifest::CheckpointState::is_complete`]). There is no root file and no lock, and no state is kept anywhere
//!   else.
//! - **The newest checkpoint of a job is the one with the newest incarnation and, within that incarnation, the one
//!   that the application wrote last** ([`manifest::Place`]). A checkpoint that was incomplete when a newer
//!   incarnation began never becomes complete.
//! - The types allow only one order of a commit: only [`container::UnsealedContainer::seal`] makes a
//!   [`container::SealedContainer`], and only a sealed container can be committed. A writer that is dropped leaves a
//!   file under a temporary name, which no reader opens. `tests/crash` stops a store after every operation in turn.
//! - Checksums cover stored bytes, so damage is found before a decoder runs. Digests cover raw bytes, so an error of
//!   a decoder is found after it ran. Every length that is read is compared with a limit before memory is allocated
//!   for it.
//! - Every input, damage or crash has one of three results: the right data, a typed error, or an older checkpoint
//!   whose choice is reported.
//! - Every queue, buffer, wait and message has a limit, stated where it is created.
//!
//! # Deliberately absent
//!
//! - From `mcrengine`: tokio, tonic, HDF5. `make test` builds it alone, so that nothing slips in.
//! - From `mcr-anc`: HDF5 and the application's files; it knows variables. From `mcr-cnc`: containers and the
//!   store; it knows files and frames.
//! - Outside [`store`]: making, renaming or syncing a file on the parallel file system. `.clippy.toml` refuses the
//!   calls.
//! - Changing a committed file. It is only deleted, and only by [`prune::prune`], which keeps what others refer to;
//!   what stays of a pruned checkpoint is replaced as a whole by something smaller ([`repack::repack`]).
//! - Generated wire types beyond `anc/src/serve.rs`, `anc/src/hub.rs` with its files, `anc/src/fetch.rs` and the
//!   agent's links. What they carry becomes our own types, checked, in `proto/src/convert.rs`.
//!
//! The bytes on disk are described on the page of [`container`], completely enough to write a reader from it.
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
pub mod error;
pub mod error_chain;
pub mod filter;
pub mod gathered;
pub mod header;
pub mod ids;
pub mod incarnation;
pub mod living;
mod looking;
pub mod manifest;
pub mod marks;
pub mod merge;
pub mod plan;
pub mod prune;
pub mod remembered;
pub mod repack;
pub mod retention;
pub mod reuse;
pub mod slabs;
pub mod store;
pub mod units;
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
            assert!(root.join(name).is_file(), "the tour names {name}, which is not there");
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
        assert!(files >= 20 && functions >= 20, "the tour is not read as it was: {files} files, {functions} functions");
    }
}
