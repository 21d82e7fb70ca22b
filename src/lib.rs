//! Decisions and formats of mcrEngine, and the tour of the whole system: read this page, then follow either path.
//!
//! A simulation of many ranks writes a checkpoint: one file or more for each rank. An agent on each compute node (`mcr
//! cnc`) sees that a file is finished and describes it; an aggregator (`mcr anc`) pulls the variables of a group of ranks,
//! puts what means the same together, compresses it and writes one container. A restart goes the same way upwards, and
//! every file comes back byte for byte. `mcr save` and `mcr run` walk the same path in one process.
//!
//! The crates: `mcrengine` (here, `src/`) decides and knows the formats; `mcr-proto` is the wire; `mcr-cnc` knows files;
//! `mcr-anc` knows groups; `mcr-cli` is the one binary. Words have one meaning everywhere: *rank, group, checkpoint,
//! variable, header, class, segment, container, manifest, fetch, merge, split, flush, restart, raw* and *stored* bytes.
//!
//! # A file is a skeleton and variables
//!
//! [`header::FileHeader`] is a file without its bytes: path, length, digest, and a list of
//! [`header::VariableHeader`], each with its element type, shape, digest, and the extents where its bytes are. The
//! variables' extents, the skeleton's among them, cover the file exactly once ([`header::FileHeader::check`]); so
//! writing every variable back where it was gives the file, and no HDF5 is needed for it. What cannot be
//! understood is one variable of bytes. Of a chunk behind a reversible filter the unfiltered bytes travel, if
//! [`filter::put_on`] gives back what [`filter::take_off`] took; that is tried when the file is described.
//!
//! # Checkpoint: from a finished file to a manifest
//!
//! Rows 5 to 11 are [`flush_checkpoint`], top to bottom; it runs on a thread of its own and needs a list of headers and
//! somebody who has the bytes, so the daemons and `mcr save` both call it.
//!
//! | # | step | where | function | gives |
//! |---|---|---|---|---|
//! | 1 | watch | `cnc/src/watch.rs` | [`Watcher::spawn`] | `WatchEvent::Ready`: the files of one rank are finished, as `cnc/src/settle.rs` judges |
//! | 2 | describe | `cnc/src/capture.rs` | [`capture`] | [`header::FileHeader`] with digests; the map of an HDF5 file is from `cnc/src/h5.rs` |
//! | 3 | announce | `cnc/src/serve.rs` | `announce` | the headers at the aggregator |
//! | 4 | gather | `anc/src/group.rs` | [`step`] | `Phase::Flushing` once every rank of the group has announced; `anc/src/hub.rs` does what it says |
//! | 5 | classify | `src/classify.rs` | [`classify::classify`] | [`classify::VariableClass`]: the same variable on different ranks |
//! | 6 | plan | `src/plan.rs` | [`plan::plan`] | [`plan::SegmentPlan`]: which bytes, in which order; what [`reuse::reusable`] finds in the store is left out |
//! | 7 | fetch and merge | `anc/src/flush.rs` | `fetch_segment` | raw bytes of a segment, within the budget; [`merge::merge`] interleaves them where the scheme says so |
//! | 8 | look back | `anc/src/looking_back.rs` | `read` | the same segment of an older checkpoint ([`bases::Bases`]), where the profile wants one and the class gains |
//! | 9 | compress | `anc/src/compress.rs` | [`compress`] | [`container::StoredSegment`], by [`codec::encode_chosen`], decoded again and compared |
//! | 10 | write | `src/container/writer.rs` | [`container::ContainerWriter::append`], [`finish`] | [`container::UnsealedContainer`]: synced, under a temporary name |
//! | 11 | seal | `src/container/writer.rs` | [`seal`] | [`container::SealedContainer`]: under its final name; meanwhile [`manifest::write`] syncs its manifest under a temporary one |
//! | 12 | commit | `src/manifest.rs` | [`manifest::commit`] | [`manifest::Manifest`]: from here on a restart sees the group |
//!
//! Before row 5, `anc/src/hub.rs` asks the store which incarnation of the job may commit (`admit` in
//! `anc/src/incarnation.rs`), and before row 12 once more. A rank whose files are older than that incarnation is awaited anew.
//!
//! A variable's bytes come from whoever implements `anc/src/source.rs`: `RemoteSource` (`anc/src/fetch.rs`) asks the
//! agents, which read the file again and compare; `LocalSource` (`cli/src/local.rs`) reads it here. What arrives is compared with
//! the digest of row 2 before it is written, so a file that changed meanwhile spoils this checkpoint only, openly; only
//! bytes that are still in the very memory that was hashed are not hashed again (`is_checked`), and of those files the
//! digests that no container holds are not made at all.
//!
//! # Restart: the same upwards
//!
//! `cli/src/prepare.rs` is this table: `prepare` is rows 2 to 7, and row 8 is `publish`. `cli/src/restart.rs` chooses, and
//! goes on to an older checkpoint, openly, where one of them fails because of the checkpoint.
//!
//! | # | step | where | function | gives |
//! |---|---|---|---|---|
//! | 1 | choose | `src/manifest.rs` | [`manifest::list`] | [`manifest::CheckpointState`], newest first; only complete ones count. `src/looking.rs` looks at each |
//! | 1b | decide | `cli/src/decide.rs` | `role`, `decide` | [`incarnation::Incarnation`]: the first node of a start decides, the others follow |
//! | 2 | open | `src/container/set.rs` | [`container::ContainerSet::open`] | the container's index, and those of older containers that it refers to |
//! | 3 | read | `src/container/reader.rs` | [`container::ContainerReader::read_segment`] | [`container::StoredSegment`], its checksum compared |
//! | 4 | decompress | `src/codec/mod.rs` | [`codec::Chain::decode`] | raw bytes of a segment; of the older one that it was coded with first, if it was |
//! | 5 | split | `src/container/set.rs` | [`container::ContainerSet::run`] | one piece for each variable, as [`merge::split`] would |
//! | 6 | hand on | `anc/src/restart.rs` | [`restore_files`], [`send_ranks`] | pieces to a file of this node, or as frames to another (`cli/src/remote.rs`) |
//! | 7 | write, verify | `cnc/src/restart.rs` | [`FileRestorer::write`], [`verify`] | a file beside its final name whose digest equals that of row 2 above |
//! | 8 | publish | `cnc/src/restart/publish.rs` | [`publish_all`] | all files of the checkpoint under their final names, or none |
//!
//! # What holds
//!
//! - **A checkpoint exists if and only if valid manifests in its directory cover all of its groups**
//!   ([`manifest::CheckpointState::is_complete`]). There is no root file, no lock and no state elsewhere.
//! - **Of the checkpoints of a job the newest is that of the newest incarnation, and within it the one that the application
//!   wrote last** ([`manifest::Place`]). What was not whole when a newer incarnation began never becomes whole.
//! - The order of a commit is the only one that types allow: only [`container::UnsealedContainer::seal`] makes a
//!   [`container::SealedContainer`], and only that can be committed. A writer that is dropped leaves a temporary name that
//!   no reader looks at. `tests/crash` stops a store after every operation in turn.
//! - Checksums cover stored bytes, so damage is found before a decoder runs on it; digests cover raw bytes, so a
//!   decoder's mistake is found after. Whatever is read is checked against a limit before memory is taken for it.
//! - Any input, damage or crash ends in the right data, a typed error, or an older checkpoint chosen openly.
//! - Every queue, buffer, wait and message has a bound, named where it is made.
//!
//! # Deliberately absent
//!
//! - From `mcrengine`: tokio, tonic, HDF5. `make test` builds it alone, so that nothing slips in.
//! - From `mcr-anc`: HDF5 and the application's files; it knows variables. From `mcr-cnc`: containers and the
//!   store; it knows files and frames.
//! - Outside [`store`]: making, renaming or syncing a file on the parallel file system. `.clippy.toml` refuses the calls.
//! - Changing a committed file. It is only deleted, and only by [`prune::prune`], which keeps what others refer to; what stays of a
//!   pruned checkpoint is replaced as a whole by something smaller ([`repack::repack`]).
//! - Generated wire types beyond `anc/src/serve.rs`, `anc/src/hub.rs`, `anc/src/fetch.rs` and the agent's links. What they
//!   carry becomes our own types, checked, in `proto/src/convert.rs`.
//!
//! The bytes on disk: [`container`] (its page is the format's description, complete enough to write a reader from).
//!
//! [`Watcher::spawn`]: ../mcr_cnc/watch/struct.Watcher.html#method.spawn
//! [`capture`]: ../mcr_cnc/capture/fn.capture.html
//! [`step`]: ../mcr_anc/group/fn.step.html
//! [`flush_checkpoint`]: ../mcr_anc/flush/fn.flush_checkpoint.html
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

    /// The cells of a line between backquotes.
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
