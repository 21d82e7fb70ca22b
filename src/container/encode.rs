//! Encodes the contents of a container as the bytes of its index.

use super::columns::Column;
use super::index::*;
use super::layout::DIGEST_BYTES_MIN;
use super::pieces::{self, Remaining};
use crate::classify::VariableRef;
use crate::codec::Chain;
use crate::header::{ElementType, FileHeader, Filter, Member, Role, Shape, VariableHeader};
use crate::merge::Layout;
use crate::plan::Scheme;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Bits of a variable's flags.
pub(super) mod flag {
    pub(in super::super) const KIND_OF_CLASS: u8 = 1;
    pub(in super::super) const RAW_FROM_SHAPE: u8 = 2;
    pub(in super::super) const GAPS: u8 = 4;
    pub(in super::super) const ONE_EXTENT: u8 = 8;
    pub(in super::super) const DIGEST: u8 = 16;
    pub(in super::super) const DIGEST_OF_FILE: u8 = 32;
    pub(in super::super) const FILTERED: u8 = 64;
    pub(in super::super) const ELSEWHERE: u8 = 128;
}

macro_rules! columns {
    ($($name:ident)*) => {
        /// All columns of the index.
        #[derive(Default)]
        struct Columns { $($name: Column),* }

        impl Columns {
            fn join(self) -> Vec<u8> {
                let all = [$(self.$name),*];
                let mut index = Column(Vec::with_capacity(all.iter().map(|c| c.0.len() + 10).sum()));
                index.number(all.len() as u64);
                all.iter().for_each(|column| index.number(column.0.len() as u64));
                all.iter().for_each(|column| index.bytes(&column.0));
                index.0
            }
        }
        /// Names of the columns, in order.
        pub(super) const COLUMNS: [&str; [$(stringify!($name)),*].len()] = [$(stringify!($name)),*];
    };
}
columns! {
    head references types filters chains classes class_names
    file_paths file_names ranks sizes modes times file_kinds counts file_digests
    flags variable_classes kinds paths names shapes lengths offsets extents filtered digests elsewhere
    stored_lengths segment_classes segment_kinds layouts segment_chains dependencies pieces
}

/// Encodes an index. The inverse is `decode`. Fails if the contents contradict themselves.
pub(super) fn encode(contents: &Contents, segments: &[Written]) -> Result<Vec<u8>, &'static str> {
    let mut c = Columns::default();
    let files = &contents.files;
    let first = firsts(files);
    let exists = |at: VariableRef| at.of_checked(files).is_some();
    if !contents.classes.iter().flat_map(|class| &class.members).all(|m| exists(*m)) {
        return Err("a class has a member that does not exist");
    }

    let mut types = Interned::default();
    let mut filters: Interned<'_, Box<[Filter]>> = Interned::default();
    let mut chains = Interned::default();
    let mut references = Interned::default();
    let mut elsewhere: HashMap<VariableRef, &Source> = HashMap::with_capacity(contents.reused.len());
    for (at, source) in &contents.reused {
        if !exists(*at) || elsewhere.insert(*at, source).is_some() {
            return Err("a reused variable does not exist, or is listed twice");
        }
    }

    // The class of each variable plus one; 0 if the variable has no class.
    let mut class_of = vec![0u32; first[files.len()]];
    for (i, class) in contents.classes.iter().enumerate() {
        for at in &class.members {
            class_of[first[at.file as usize] + at.variable as usize] = i as u32 + 1;
        }
    }
    let mut before: &[u8] = &[];
    for class in &contents.classes {
        c.classes.front_coded(class.key.as_bytes(), before, &mut c.class_names);
        c.classes.number(role_code(class.role));
        c.classes.number(types.of(&class.element));
        before = class.key.as_bytes();
    }

    let mut last_file: Option<&FileHeader> = None;
    let mut last_class = 0;
    for (f, file) in files.iter().enumerate() {
        let was = |field: fn(&FileHeader) -> u64| last_file.map_or(0, field);
        c.file_paths.front_coded(file.path.as_bytes(), last_file.map_or(&[], |l| l.path.as_bytes()), &mut c.file_names);
        c.ranks.delta(u64::from(file.rank.0), was(|l| u64::from(l.rank.0)));
        c.sizes.delta(file.bytes, was(|l| l.bytes));
        c.modes.delta(u64::from(file.mode), was(|l| u64::from(l.mode)));
        c.times.delta(file.modified_ns as u64, was(|l| l.modified_ns as u64));
        c.file_kinds.number(file.kind.number());
        c.counts.number(file.variables.len() as u64);
        c.file_digests.bytes(&file.digest.0);
        last_file = Some(file);

        let gaps = gaps_variable(file);
        let mut last: Option<&VariableHeader> = None;
        let mut end = 0;
        for (v, variable) in file.variables.iter().enumerate() {
            let at = reference(f, v);
            let class = class_of[first[f] + v];
            let kind = class.checked_sub(1).map(|i| &contents.classes[i as usize]);
            let mut flags = 0;
            c.variable_classes.delta(u64::from(class), last_class + 1);
            last_class = u64::from(class);
            if kind.is_some_and(|k| k.role == variable.role && k.element == variable.element) {
                flags |= flag::KIND_OF_CLASS;
            } else {
                c.kinds.number(role_code(variable.role));
                c.kinds.number(types.of(&variable.element));
            }
            c.paths.front_coded(variable.path.as_bytes(), last.map_or(&[], |l| l.path.as_bytes()), &mut c.names);
            shape(&mut c.shapes, &variable.shape, last.map(|l| &l.shape));
            if shape_bytes(&variable.shape, &variable.element) == Some(variable.raw_bytes.0) {
                flags |= flag::RAW_FROM_SHAPE;
            } else {
                c.lengths.number(variable.raw_bytes.0);
            }
            if gaps == Some(v) {
                flags |= flag::GAPS;
            } else if let [only] = &variable.extents[..]
                && only.raw_bytes == variable.raw_bytes.0
                && only.stored_bytes == only.raw_bytes
            {
                flags |= flag::ONE_EXTENT;
                c.offsets.delta(only.offset, end);
                end = only.offset.wrapping_add(only.stored_bytes);
            } else {
                extents(&mut c.offsets, &mut c.extents, variable, &mut end);
            }
            if !variable.filters.is_empty() {
                flags |= flag::FILTERED;
                c.filtered.number(filters.of(&variable.filters));
            }
            let source = elsewhere.get(&at);
            if let Some(source) = source {
                flags |= flag::ELSEWHERE;
                let target = match source {
                    Source::SameAs(target) => {
                        c.elsewhere.number(0);
                        target
                    }
                    Source::External { container, at } => {
                        c.elsewhere.number(1 + references.of(container));
                        at
                    }
                };
                c.elsewhere.delta(u64::from(target.file), f as u64);
                c.elsewhere.delta(u64::from(target.variable), v as u64);
            }
            if variable.raw_bytes.0 >= DIGEST_BYTES_MIN && !matches!(source, Some(Source::SameAs(_))) {
                if variable.digest == file.digest {
                    flags |= flag::DIGEST_OF_FILE;
                } else {
                    flags |= flag::DIGEST;
                    c.digests.bytes(&variable.digest.0);
                }
            }
            c.flags.bytes(&[flags]);
            last = Some(variable);
        }
    }

    let is_here = |at: VariableRef| !elsewhere.contains_key(&at);
    let order = piece_order(files, &contents.classes, is_here);
    let mut ordinals = vec![u32::MAX; first[files.len()]];
    for (i, at) in order.iter().enumerate() {
        ordinals[first[at.file as usize] + at.variable as usize] = i as u32;
    }
    let ordinal = |at: VariableRef| {
        at.of_checked(files)?;
        let i = ordinals[first[at.file as usize] + at.variable as usize];
        (i != u32::MAX).then_some(i as usize)
    };
    let total = |at: usize| order[at].of(files).raw_bytes.0;
    let mut remaining = Remaining::new((0..order.len()).map(total));
    let mut next = 0;
    for segment in segments {
        c.stored_lengths.number(segment.stored_bytes.0);
        c.segment_classes.number(segment.class.map_or(0, |class| u64::from(class) + 1));
        if segment.class.is_none() {
            c.segment_kinds.number(role_code(segment.role));
            c.segment_kinds.number(types.of(&segment.element));
        }
        c.layouts.number(match segment.layout {
            Layout::Concatenated => 0,
            Layout::Interleaved(block) => u64::from(block.get()),
        });
        c.segment_chains.number(chains.of(&segment.chain));
        c.dependencies.number(u64::from(segment.base.is_some()));
        if let Some(BaseSegment { container, segment, digest }) = &segment.base {
            let reference = references.of(container) as u32; // at most 15: a check below limits the references
            let on = Dependency::on(&BaseRef { reference, segment: *segment, digest: *digest });
            c.dependencies.number(u64::from(on.kind));
            c.dependencies.text(&on.of);
        }
        pieces::write(&mut c.pieces, &segment.pieces, ordinal, total, &mut remaining, &mut next)?;
    }
    if !remaining.is_nothing() {
        return Err("bytes of a variable are in no segment, and the variable is not reused");
    }

    let types: Vec<&ElementType> = types.items;
    types.iter().for_each(|t| element(&mut c.types, t));
    filters.items.iter().for_each(|set| filter_set(&mut c.filters, set));
    chains.items.iter().for_each(|chain: &&Chain| chain.to_bytes(&mut c.chains.0));
    if references.items.len() > REFERENCES_MAX {
        return Err("it refers to more than 16 older containers");
    }
    for container in &references.items {
        let container: &&Arc<ContainerRef> = container;
        c.references.text(container.checkpoint.as_str().as_bytes());
        c.references.number(u64::from(container.group.0));
        c.references.bytes(&container.digest.0);
        c.references.bytes(&container.index_digest.0);
    }
    c.head.number(scheme_code(contents.scheme));
    c.head.number(u64::from(contents.block_bytes));
    for count in [
        references.items.len(),
        types.len(),
        filters.items.len(),
        chains.items.len(),
        contents.classes.len(),
        files.len(),
        first[files.len()],
        segments.len(),
    ] {
        c.head.number(count as u64);
    }
    Ok(c.join())
}

/// Gives a number to each distinct value, in the order in which the values first occur.
struct Interned<'a, T> {
    items: Vec<&'a T>,
    numbers: HashMap<&'a T, u64>,
}

impl<T> Default for Interned<'_, T> {
    fn default() -> Self {
        Self { items: Vec::new(), numbers: HashMap::new() }
    }
}

impl<'a, T: Eq + Hash> Interned<'a, T> {
    fn of(&mut self, item: &'a T) -> u64 {
        *self.numbers.entry(item).or_insert_with(|| {
            self.items.push(item);
            self.items.len() as u64 - 1
        })
    }
}

/// Index of the skeleton, if the skeleton has no filters and its extents are exactly the gaps between the file's
/// other variables.
fn gaps_variable(file: &FileHeader) -> Option<usize> {
    let skeleton = file.variables.iter().position(|v| v.role == Role::Skeleton)?;
    let variable = &file.variables[skeleton];
    let others = file.variables.iter().enumerate().filter(|(v, _)| *v != skeleton).map(|(_, other)| other);
    let gaps = gaps_beside(others, file.bytes)?;
    (variable.filters.is_empty() && gaps == variable.extents).then_some(skeleton)
}

/// The extents of a file that are not covered by the variables `others`. `None` if the variables overlap or extend
/// past the end of the file.
pub(super) fn gaps_beside<'a>(
    others: impl Iterator<Item = &'a VariableHeader>,
    bytes: u64,
) -> Option<Box<[crate::header::Extent]>> {
    let mut runs: Vec<(u64, u64)> = (others.flat_map(|other| &other.extents))
        .filter(|e| e.stored_bytes > 0)
        .map(|e| (e.offset, e.stored_bytes))
        .collect();
    runs.sort_unstable();
    let mut end = 0u64;
    for &(offset, len) in &runs {
        if offset < end {
            return None;
        }
        end = offset.checked_add(len)?;
    }
    (end <= bytes).then(|| FileHeader::gaps(&runs, bytes))
}

/// Number of bytes of an array of this shape. `None` if the number exceeds 64 bits.
pub(super) fn shape_bytes(shape: &Shape, element: &ElementType) -> Option<u64> {
    shape.0.iter().try_fold(u64::from(element.width()), |product, &n| product.checked_mul(n))
}

/// Writes a shape. If the shape equals the shape of the previous variable in this file, writes 0. If not, writes the
/// number of dimensions plus one, then each dimension.
fn shape(column: &mut Column, shape: &Shape, before: Option<&Shape>) {
    if before == Some(shape) {
        return column.number(0);
    }
    column.number(shape.0.len() as u64 + 1);
    shape.0.iter().for_each(|&n| column.number(n));
}

/// Writes the number of extents. For each extent, writes its offset relative to the end of the previous extent, and
/// its raw length relative to the previous raw length. With filters, writes the stored length too.
fn extents(offsets: &mut Column, lengths: &mut Column, variable: &VariableHeader, end: &mut u64) {
    lengths.number(variable.extents.len() as u64);
    let (mut raw, mut stored) = (0, 0);
    for extent in &variable.extents {
        offsets.delta(extent.offset, *end);
        lengths.delta(extent.raw_bytes, raw);
        if !variable.filters.is_empty() {
            lengths.delta(extent.stored_bytes, stored);
        }
        (raw, stored) = (extent.raw_bytes, extent.stored_bytes);
        *end = extent.offset.wrapping_add(extent.stored_bytes);
    }
}

fn role_code(role: Role) -> u64 {
    match role {
        Role::Skeleton => 0,
        Role::Array => 1,
        Role::StoredChunks => 2,
        Role::WholeFile => 3,
    }
}

fn scheme_code(scheme: Scheme) -> u64 {
    match scheme {
        Scheme::Agnostic => 0,
        Scheme::AgnosticBlock => 1,
        Scheme::Aware => 2,
        Scheme::AwareBlock => 3,
    }
}

fn element(column: &mut Column, element_type: &ElementType) {
    use crate::header::ByteOrder;
    let order = |o: &ByteOrder| match o {
        ByteOrder::Little => 0,
        ByteOrder::Big => 1,
    };
    match element_type {
        ElementType::Bytes => column.bytes(&[0]),
        ElementType::Int { width, signed, order: o } => column.bytes(&[1, *width, u8::from(*signed), order(o)]),
        ElementType::Float { width, order: o } => column.bytes(&[2, *width, order(o)]),
        ElementType::Fixed { width } => {
            column.bytes(&[3]);
            column.number(u64::from(*width));
        }
        ElementType::Compound { width, members } => {
            column.bytes(&[4]);
            column.number(u64::from(*width));
            column.number(members.len() as u64);
            for Member { offset, count, element: inner } in members {
                column.number(u64::from(*offset));
                column.number(u64::from(*count));
                element(column, inner);
            }
        }
    }
}

fn filter_set(column: &mut Column, filters: &[Filter]) {
    column.number(filters.len() as u64);
    for filter in filters {
        match filter {
            Filter::Shuffle { width } => {
                column.bytes(&[1]);
                column.number(u64::from(*width));
            }
            Filter::Deflate { level } => column.bytes(&[2, *level]),
            Filter::Fletcher32 => column.bytes(&[3]),
        }
    }
}

/// [`VariableRef::of`] for a reference that may be invalid: returns `None` if the files have no such variable.
pub(super) trait OfChecked {
    fn of_checked(self, files: &[FileHeader]) -> Option<&VariableHeader>;
}

impl OfChecked for VariableRef {
    fn of_checked(self, files: &[FileHeader]) -> Option<&VariableHeader> {
        files.get(self.file as usize)?.variables.get(self.variable as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_lists_the_columns_in_their_order() {
        let document = include_str!("../../docs/format/container.md");
        let table = document.split("| column ").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("the table");
        let first_cells = table.lines().skip(2).filter_map(|row| row.split('|').nth(1));
        let names: Vec<&str> = first_cells.flat_map(|cell| cell.split(',')).map(str::trim).collect();
        assert_eq!(names, COLUMNS);
        assert!(document.contains(&format!("needs the first {} and ignores", COLUMNS.len())));
    }
}
