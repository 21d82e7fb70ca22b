//! Decodes an index and checks every rule that needs no other file.

use super::columns::{Cursor, IndexFault, Parsed};
use super::encode::{COLUMNS, OfChecked, flag, gaps_beside, shape_bytes};
use super::index::*;
use super::layout::{DIGEST_BYTES_MIN, FILE_HEADER_LEN, SEGMENT_HEADER_LEN, SEGMENT_STORED_MAX};
use super::pieces::{self, Remaining};
use crate::classify::{VariableClass, VariableRef};
use crate::codec::{Chain, CodecError};
use crate::header::*;
use crate::ids::{CheckpointId, Digest, FILE_PATH_MAX, FilePath, GroupId, Rank};
use crate::merge::Layout;
use crate::plan::{Piece, Scheme};
use crate::units::{RawBytes, StoredBytes};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Maximum length of the name of a class or a variable, in bytes.
const NAME_MAX: usize = 1 << 16;

/// Decodes an index.
pub(crate) fn decode(bytes: &[u8]) -> Parsed<Index> {
    let mut c = split(bytes)?;
    let [
        head,
        references,
        types,
        filters,
        chains,
        classes,
        class_names,
        file_paths,
        file_names,
        ranks,
        sizes,
        modes,
        times,
        file_kinds,
        counts,
        file_digests,
        flags,
        variable_classes,
        kinds,
        paths,
        names,
        shapes,
        lengths,
        offsets,
        extents,
        filtered,
        digests,
        elsewhere,
        stored_lengths,
        segment_classes,
        segment_kinds,
        layouts,
        segment_chains,
        dependencies,
        piece_lists,
    ] = &mut c;

    let scheme = scheme(head)?;
    let block_bytes = head.small()?;
    // The second argument of `fits` is the least number of bytes that an item takes in the column.
    let reference_count = head.number()?;
    let reference_count = references.fits(reference_count, 66)?;
    let type_count = head.number()?;
    let type_count = types.fits(type_count, 1)?;
    let filter_count = head.number()?;
    let filter_count = filters.fits(filter_count, 1)?;
    let chain_count = head.number()?;
    let chain_count = chains.fits(chain_count, 1)?;
    let class_count = head.number()?;
    let class_count = classes.fits(class_count, 4)?;
    let file_count = head.number()?;
    let file_count = file_digests.fits(file_count, 32)?;
    let variable_count = head.number()?;
    let variable_count = flags.fits(variable_count, 1)?;
    let segment_count = head.number()?;
    let segment_count = stored_lengths.fits(segment_count, 1)?;
    if variable_count as u64 > VARIABLES_MAX {
        return flags.bad("there are more than 2^23 variables");
    }
    if reference_count > REFERENCES_MAX {
        return references.bad("there are more than 16 references");
    }

    let reference_table: Vec<_> = items(reference_count, || container_ref(references))?;
    let type_table: Vec<ElementType> = items(type_count, || element(types, true))?;
    let filter_table: Vec<Box<[Filter]>> = items(filter_count, || filter_set(filters))?;
    let chain_table: Vec<Chain> = items(chain_count, || chain(chains))?;
    let mut name = Vec::new();
    let mut class_table: Vec<VariableClass> = items(class_count, || {
        classes.front_coded(&mut name, class_names, NAME_MAX)?;
        let key = utf8(classes, &name)?;
        let role = role(classes)?;
        let element = type_table[classes.index(type_count)?].clone();
        Ok(VariableClass { key, role, element, members: Vec::new(), raw_bytes: RawBytes(0) })
    })?;

    let mut files: Vec<FileHeader> = Vec::with_capacity(file_count);
    let mut placements = Vec::with_capacity(variable_count);
    let mut file_name = Vec::new();
    let mut last_class = 0;
    let mut extents_in_all = 0u64;
    for f in 0..file_count {
        let was = files.last();
        file_paths.front_coded(&mut file_name, file_names, FILE_PATH_MAX)?;
        let path = FilePath::new(&file_name[..]).or_else(|_| file_paths.bad("a path is not below the directory"))?;
        let rank = ranks.delta(was.map_or(0, |l| u64::from(l.rank.0)))?;
        let rank = u32::try_from(rank).or_else(|_| ranks.bad("a rank has more than 32 bits"))?;
        let file_bytes = sizes.delta(was.map_or(0, |l| l.bytes))?;
        let mode = modes.delta(was.map_or(0, |l| u64::from(l.mode)))?;
        let mode = u32::try_from(mode).or_else(|_| modes.bad("a mode has more than 32 bits"))?;
        let modified_ns = times.delta(was.map_or(0, |l| l.modified_ns as u64))? as i64;
        let kind = file_kinds.number()?;
        let kind = FileKind::from_number(kind).map_or_else(|| file_kinds.bad("a file kind is not known"), Ok)?;
        let file_digest = Digest(file_digests.array()?);
        let count = counts.number()?;
        let count = flags.fits(count, 1)?;
        let mut variables: Vec<VariableHeader> = Vec::with_capacity(count);
        let mut gaps = None;
        let mut end = 0u64;
        name.clear();
        for v in 0..count {
            let flags_of = flags.byte()?;
            let has = |bit: u8| flags_of & bit != 0;
            let class = variable_classes.delta(last_class + 1)?;
            last_class = class;
            let class = match usize::try_from(class) {
                Ok(0) => None,
                Ok(n) if n <= class_count => Some(n - 1),
                _ => return variable_classes.bad("an index is out of range"),
            };
            let (role, element) = match class {
                Some(class) if has(flag::KIND_OF_CLASS) => {
                    (class_table[class].role, class_table[class].element.clone())
                }
                None if has(flag::KIND_OF_CLASS) => {
                    return flags.bad("a variable without a class takes its kind from a class");
                }
                _ => (role(kinds)?, type_table[kinds.index(type_count)?].clone()),
            };
            paths.front_coded(&mut name, names, NAME_MAX)?;
            let path = utf8(paths, &name)?;
            let shape = shape(shapes, variables.last())?;
            let raw_bytes = match has(flag::RAW_FROM_SHAPE) {
                true => {
                    shape_bytes(&shape, &element).map_or_else(|| shapes.bad("a shape has more than 2^64 bytes"), Ok)?
                }
                false => lengths.number()?,
            };
            let filters = match has(flag::FILTERED) {
                true => filter_table[filtered.index(filter_count)?].clone(),
                false => [].into(),
            };
            let extents: Box<[Extent]> = if has(flag::GAPS) {
                if has(flag::ONE_EXTENT) || has(flag::FILTERED) || gaps.replace(v).is_some() {
                    return flags.bad("the gaps belong to two variables, or to one with an extent or filters");
                }
                [].into()
            } else if has(flag::ONE_EXTENT) {
                let offset = offsets.delta(end)?;
                [Extent { offset, stored_bytes: raw_bytes, raw_bytes }].into()
            } else {
                extent_list(offsets, extents, end, !filters.is_empty())?
            };
            if let Some(last) = extents.last() {
                end = last.offset.wrapping_add(last.stored_bytes);
            }
            extents_in_all += extents.len() as u64;
            if extents_in_all > EXTENTS_MAX {
                return flags.bad("there are more than 2^25 extents");
            }
            placements.push(match has(flag::ELSEWHERE) {
                true => placement(elsewhere, reference_count, f, v)?,
                false => Placement::Pieces,
            });
            let digest = match (has(flag::DIGEST), has(flag::DIGEST_OF_FILE)) {
                (true, true) => return flags.bad("a digest is given twice"),
                (true, false) => Digest(digests.array()?),
                (false, true) => file_digest,
                (false, false) => NO_DIGEST,
            };
            if let Some(class) = class {
                let class = &mut class_table[class];
                class.members.push(reference(f, v));
                class.raw_bytes.0 = class
                    .raw_bytes
                    .0
                    .checked_add(raw_bytes)
                    .map_or_else(|| variable_classes.bad("a class has more than 2^64 bytes"), Ok)?;
            }
            let raw_bytes = RawBytes(raw_bytes);
            let chunk = Shape::default();
            variables.push(VariableHeader { role, path, element, shape, chunk, raw_bytes, digest, filters, extents });
        }
        if let Some(v) = gaps {
            let others = variables.iter().enumerate().filter(|(i, _)| *i != v).map(|(_, other)| other);
            let found = gaps_beside(others, file_bytes);
            variables[v].extents = found.map_or_else(|| offsets.bad("extents overlap or pass the end"), Ok)?;
            extents_in_all += variables[v].extents.len() as u64;
        }
        let (rank, bytes, digest) = (Rank(rank), file_bytes, file_digest);
        let file = FileHeader { path, rank, bytes, kind, mode, modified_ns, digest, variables };
        if file.check().is_err() {
            return offsets.bad("the extents of a file do not cover each of its bytes once");
        }
        files.push(file);
    }
    if FileHeader::stray_link(&files).is_some() {
        return file_kinds.bad("a hard link does not refer to an earlier regular file");
    }
    if placements.len() != variable_count {
        return counts.bad("the files have another number of variables than the head states");
    }
    let first = firsts(&files);
    resolve_same(&mut files, &placements, &first, elsewhere)?;
    for (file, variables) in files.iter().zip(first.windows(2)) {
        for (variable, placement) in file.variables.iter().zip(&placements[variables[0]..variables[1]]) {
            let must = variable.raw_bytes.0 >= DIGEST_BYTES_MIN && !matches!(placement, Placement::SameAs(_));
            if must && variable.digest == NO_DIGEST {
                return digests.bad("a variable of 4096 bytes or more has no digest");
            }
        }
    }

    let is_here = |at: VariableRef| placements[first[at.file as usize] + at.variable as usize] == Placement::Pieces;
    let order = piece_order(&files, &class_table, is_here);
    let total = |at: usize| order[at].of(&files).raw_bytes.0;
    let mut remaining = Remaining::new((0..order.len()).map(total));
    let mut next = 0;
    let mut all_pieces: Vec<Piece> = Vec::new();
    let mut offset = FILE_HEADER_LEN as u64;
    let mut segments = Vec::with_capacity(segment_count);
    for _ in 0..segment_count {
        let stored = stored_lengths.number()?;
        if stored > SEGMENT_STORED_MAX {
            return stored_lengths.bad("a segment has more than 1088 MiB of stored bytes");
        }
        let class = match segment_classes.index(class_count + 1)? {
            0 => None,
            n => Some(n - 1),
        };
        let (role, element) = match class {
            Some(class) => (class_table[class].role, class_table[class].element.clone()),
            None => (role(segment_kinds)?, type_table[segment_kinds.index(type_count)?].clone()),
        };
        let layout = NonZeroU32::new(layouts.small()?).map_or(Layout::Concatenated, Layout::Interleaved);
        let chain = chain_table[segment_chains.index(chain_count)?].clone();
        let needs = items(dependencies.count(1)?, || {
            let kind = dependencies.small()?;
            Ok(Dependency { kind, of: dependencies.text()?.into() })
        })?;
        let is_there = |base: &BaseRef| (base.reference as usize) < reference_count;
        match &needs[..] {
            [only]
                if only.kind == ON_OLDER && chain.needs_older() && only.base().is_some_and(|base| is_there(&base)) => {}
            [only] if only.kind == ON_OLDER => {
                return dependencies.bad("an older segment's name is not valid, or the chain needs no older segment");
            }
            _ if needs.iter().any(|need| need.kind == ON_OLDER) => {
                return dependencies.bad("a segment needs an older segment and something else");
            }
            _ if chain.needs_older() && needs.is_empty() => {
                return dependencies.bad("the chain needs an older segment, but no older segment is named");
            }
            _ => {}
        }
        let from = all_pieces.len();
        let raw = pieces::read(piece_lists, &order, total, &mut remaining, &mut next, &mut all_pieces)?;
        segments.push(SegmentEntry {
            offset,
            stored_bytes: StoredBytes(stored),
            raw_bytes: RawBytes(raw),
            class: class.map(|class| class as u32),
            role,
            element,
            layout,
            chain,
            pieces: from..all_pieces.len(),
            dependencies: needs,
        });
        offset = offset.saturating_add(SEGMENT_HEADER_LEN as u64).saturating_add(stored);
    }
    if !remaining.is_nothing() {
        return piece_lists.bad("bytes of a variable are in no segment");
    }
    c.iter().try_for_each(Cursor::end)?;

    let (by_variable, by_variable_start) = sort_pieces(&all_pieces, &first, placements.len());
    Ok(Index {
        scheme,
        block_bytes,
        references: reference_table,
        classes: class_table,
        segments,
        pieces: all_pieces,
        files,
        placements,
        first,
        by_variable,
        by_variable_start,
    })
}

/// Cuts the index into its columns. Columns after the last known column were added by a later build and may be
/// ignored.
fn split(bytes: &[u8]) -> Parsed<[Cursor<'_>; COLUMNS.len()]> {
    let mut head = Cursor::new("columns", bytes);
    let count = head.count(1)?;
    if count < COLUMNS.len() {
        return head.bad("there are too few columns");
    }
    let lengths: Vec<u64> = items(count, || head.number())?;
    let mut rest = head;
    let mut columns = COLUMNS.map(|name| Cursor::new(name, &[]));
    for (i, length) in lengths.into_iter().enumerate() {
        let length = rest.fits(length, 1)?;
        let column = rest.bytes(length)?;
        if let Some(known) = columns.get_mut(i) {
            *known = Cursor::new(COLUMNS[i], column);
        }
    }
    rest.end()?;
    Ok(columns)
}

/// Reads `count` items. The caller has compared `count` with the remaining bytes, or `count` is small.
fn items<T>(count: usize, mut item: impl FnMut() -> Parsed<T>) -> Parsed<Vec<T>> {
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(item()?);
    }
    Ok(items)
}

/// Copies digests: if the index says that a variable A equals a variable B, A gets the digest of B. Variable B must
/// have the same length and must not equal a third variable.
fn resolve_same(
    files: &mut [FileHeader],
    placements: &[Placement],
    first: &[usize],
    column: &Cursor<'_>,
) -> Parsed<()> {
    for f in 0..files.len() {
        for v in 0..files[f].variables.len() {
            let Placement::SameAs(target) = placements[first[f] + v] else { continue };
            let Some(of) = target.of_checked(files) else {
                return column.bad("a variable equals a variable that does not exist");
            };
            let at = first[target.file as usize] + target.variable as usize;
            if matches!(placements[at], Placement::SameAs(_)) {
                return column.bad("a variable equals a variable that itself equals a third variable");
            }
            let (raw_bytes, digest) = (of.raw_bytes, of.digest);
            let variable = &mut files[f].variables[v];
            if variable.raw_bytes != raw_bytes {
                return column.bad("a variable equals a variable of another length");
            }
            variable.digest = digest;
        }
    }
    Ok(())
}

/// Sorts the pieces by variable. Pieces of one variable keep their order, which is the order of the offsets.
fn sort_pieces(pieces: &[Piece], first: &[usize], variables: usize) -> (Vec<u32>, Vec<u32>) {
    let flat = |piece: &Piece| first[piece.variable.file as usize] + piece.variable.variable as usize;
    let mut start = vec![0u32; variables + 1];
    pieces.iter().for_each(|piece| start[flat(piece) + 1] += 1);
    for i in 0..variables {
        start[i + 1] += start[i];
    }
    let mut to = start.clone();
    let mut sorted = vec![0; pieces.len()];
    for (i, piece) in pieces.iter().enumerate() {
        let to = &mut to[flat(piece)];
        sorted[*to as usize] = i as u32;
        *to += 1;
    }
    (sorted, start)
}

fn utf8(column: &Cursor<'_>, bytes: &[u8]) -> Parsed<Box<str>> {
    std::str::from_utf8(bytes).map(Box::from).or_else(|_| column.bad("a name is not UTF-8"))
}

fn scheme(column: &mut Cursor<'_>) -> Parsed<Scheme> {
    match column.number()? {
        0 => Ok(Scheme::Agnostic),
        1 => Ok(Scheme::AgnosticBlock),
        2 => Ok(Scheme::Aware),
        3 => Ok(Scheme::AwareBlock),
        _ => column.unknown("a scheme"),
    }
}

fn role(column: &mut Cursor<'_>) -> Parsed<Role> {
    match column.number()? {
        0 => Ok(Role::Skeleton),
        1 => Ok(Role::Array),
        2 => Ok(Role::StoredChunks),
        3 => Ok(Role::WholeFile),
        _ => column.unknown("a role"),
    }
}

fn container_ref(column: &mut Cursor<'_>) -> Parsed<Arc<ContainerRef>> {
    let name = column.text()?;
    let name = std::str::from_utf8(name).ok().and_then(|name| name.parse::<CheckpointId>().ok());
    let Some(checkpoint) = name else { return column.bad("a checkpoint has no valid name") };
    let group = GroupId(column.small()?);
    let (digest, index_digest) = (Digest(column.array()?), Digest(column.array()?));
    Ok(Arc::new(ContainerRef { checkpoint, group, digest, index_digest }))
}

fn chain(column: &mut Cursor<'_>) -> Parsed<Chain> {
    match Chain::from_bytes(column.remainder()) {
        Ok((chain, used)) => column.bytes(used).map(|_| chain),
        Err(CodecError::Unknown { .. }) => column.unknown("a codec"),
        Err(_) => column.bad("a chain of codecs is not valid"),
    }
}

fn element(column: &mut Cursor<'_>, may_nest: bool) -> Parsed<ElementType> {
    let order = |column: &mut Cursor<'_>| match column.byte()? {
        0 => Ok(ByteOrder::Little),
        1 => Ok(ByteOrder::Big),
        _ => column.bad("a byte order is neither little-endian nor big-endian"),
    };
    let element = match column.byte()? {
        0 => ElementType::Bytes,
        1 => {
            let (width, signed) = (column.byte()?, column.byte()?);
            if signed > 1 {
                return column.bad("an integer is neither signed nor unsigned");
            }
            ElementType::Int { width, signed: signed == 1, order: order(column)? }
        }
        2 => ElementType::Float { width: column.byte()?, order: order(column)? },
        3 => ElementType::Fixed { width: column.small()? },
        4 if may_nest => {
            let width = column.small()?;
            let count = column.count(3)?;
            if count > MEMBERS_MAX {
                return column.bad("a compound has more than 1024 members");
            }
            let members: Vec<Member> = items(count, || {
                let (offset, count) = (column.small()?, column.small()?);
                Ok(Member { offset, count, element: element(column, false)? })
            })?;
            ElementType::Compound { width, members: members.into() }
        }
        4 => return column.bad("a compound type contains a compound type"),
        _ => return column.unknown("an element type"),
    };
    if element.is_valid() { Ok(element) } else { column.bad("an element type is not valid") }
}

fn filter_set(column: &mut Cursor<'_>) -> Parsed<Box<[Filter]>> {
    let count = column.count(1)?;
    if count == 0 || count > FILTERS_MAX {
        return column.bad("a list of filters is empty or has more than 8 filters");
    }
    let filters: Vec<Filter> = items(count, || match column.byte()? {
        1 => Ok(Filter::Shuffle { width: column.small()? }),
        2 => Ok(Filter::Deflate { level: column.byte()? }),
        3 => Ok(Filter::Fletcher32),
        _ => column.unknown("a filter"),
    })?;
    Ok(filters.into())
}

fn shape(column: &mut Cursor<'_>, before: Option<&VariableHeader>) -> Parsed<Shape> {
    match (column.number()?, before) {
        (0, Some(before)) => Ok(before.shape.clone()),
        (n @ 1.., _) if n <= DIMENSIONS_MAX as u64 + 1 => {
            items(n as usize - 1, || column.number()).map(|dims| Shape(dims.into()))
        }
        _ => column.bad("a shape has more than 32 dimensions, or repeats the previous shape although there is none"),
    }
}

fn extent_list(offsets: &mut Cursor<'_>, lengths: &mut Cursor<'_>, end: u64, filtered: bool) -> Parsed<Box<[Extent]>> {
    let count = lengths.count(1)?;
    let count = offsets.fits(count as u64, 1)?;
    let (mut end, mut raw, mut stored) = (end, 0, 0);
    let extents = items(count, || {
        let offset = offsets.delta(end)?;
        raw = lengths.delta(raw)?;
        stored = if filtered { lengths.delta(stored)? } else { raw };
        end = offset.wrapping_add(stored);
        Ok(Extent { offset, stored_bytes: stored, raw_bytes: raw })
    })?;
    Ok(extents.into())
}

fn placement(column: &mut Cursor<'_>, references: usize, file: usize, variable: usize) -> Parsed<Placement> {
    let kind = column.index(references + 1)?;
    let (file, variable) = (column.delta(file as u64)?, column.delta(variable as u64)?);
    let (Ok(file), Ok(variable)) = (u32::try_from(file), u32::try_from(variable)) else {
        return column.bad("a file or variable number has more than 32 bits");
    };
    let at = VariableRef { file, variable };
    match kind {
        0 => Ok(Placement::SameAs(at)),
        n => Ok(Placement::External { reference: n as u32 - 1, at }),
    }
}

impl IndexFault {
    /// The fault as a sentence.
    pub(crate) fn sentence(&self) -> String {
        format!("column {}: {}", self.column, self.what)
    }
}
