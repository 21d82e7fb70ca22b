//! Makes the plan of a container. The plan assigns each byte of each variable to a segment, and gives the order of
//! the bytes. No segment is larger than `segment_bytes`.
//!
//! The four schemes come from mcrEngine, SC12, section III-B. A class is cut into segments of at most
//! `segment_bytes`. Each segment is coded separately. Therefore, a reader of one variable reads only a few small
//! segments, damage spoils only one segment, and memory stays limited. Variables of fewer than `small_bytes` bytes
//! share segments, called pools (section VII: "variables < 100 B"). Classes that are too small for a segment are
//! pooled too.

pub(crate) mod piece;

pub use piece::Piece;
use piece::concatenated;

use crate::classify::{VariableClass, VariableRef};
use crate::codec::{Profile, UNTYPED_SEGMENT_DIVISOR};
use crate::header::{ElementType, FileHeader, Role, Shape};
use crate::merge::Layout;
use crate::slabs;
use crate::units::RawBytes;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::Range;

/// How the variables of a group are merged (mcrEngine, SC12, section III-B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Whole files, one after the other.
    Agnostic,
    /// Whole files, interleaved in blocks.
    AgnosticBlock,
    /// The variables of each class, one after the other, in rank order.
    #[default]
    Aware,
    /// The variables of each class, interleaved in blocks.
    AwareBlock,
}

impl Scheme {
    /// Whether files are split into skeleton and variables.
    pub fn takes_files_apart(self) -> bool {
        matches!(self, Self::Aware | Self::AwareBlock)
    }

    /// All schemes, in the order of the paper.
    pub const ALL: [Self; 4] = [Self::Agnostic, Self::AgnosticBlock, Self::Aware, Self::AwareBlock];

    /// The name of the scheme in configuration files, manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agnostic => "agnostic",
            Self::AgnosticBlock => "agnostic-block",
            Self::Aware => "aware",
            Self::AwareBlock => "aware-block",
        }
    }
}

/// The scheme and the sizes that determine a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// How variables are merged.
    pub scheme: Scheme,
    /// In the two block schemes: number of bytes taken from one piece before the next piece follows.
    pub block_bytes: NonZeroU32,
    /// Maximum raw bytes of a segment: a multiple of 8, from 64 KiB to 1 GiB.
    pub segment_bytes: u64,
    /// Variables with fewer raw bytes than this number are pooled instead of being coded with their class.
    pub small_bytes: u64,
    /// Classes with fewer raw bytes than this number, summed over all members, are pooled by type.
    pub small_class_bytes: u64,
    /// Whether classes of one type of numbers share segments, because their variables predict each other. The option
    /// affects only [`Scheme::Aware`].
    pub together: bool,
    /// Whether a small checkpoint gets smaller segments, so that all cores have work.
    pub spread: bool,
}

/// Maximum length of a segment of untyped bytes or records: 4 MiB. A segment has one description of the places of
/// its numbers, and these places change along a file.
const TAKEN_APART_BYTES_MAX: u64 = 4 << 20;

/// With [`PlanOptions::spread`]: the minimum number of segments, unless the segments would be shorter than
/// `SPREAD_BYTES_MIN`.
const SPREAD: u64 = 4;
const SPREAD_BYTES_MIN: u64 = 512 << 10;

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            scheme: Scheme::default(),
            block_bytes: const { NonZeroU32::new(64 << 10).expect("not zero") },
            segment_bytes: 4 << 20,
            small_bytes: 100,
            small_class_bytes: 8 << 10,
            together: false,
            spread: false,
        }
    }
}

impl PlanOptions {
    /// The defaults for a profile and a budget.
    pub fn of(profile: &Profile, budget_bytes: u64) -> Self {
        let (segment_bytes, together) = (profile.segment_bytes(budget_bytes), profile.is_together());
        Self { segment_bytes, together, spread: *profile == Profile::Fast, ..Self::default() }
    }

    /// Maximum raw bytes of a segment with elements of this type.
    fn bytes_of_each(&self, element: &ElementType) -> u64 {
        match self.together && element.is_taken_apart() {
            true => (self.segment_bytes / UNTYPED_SEGMENT_DIVISOR).min(TAKEN_APART_BYTES_MAX).next_multiple_of(8),
            false => self.segment_bytes,
        }
    }
}

/// A segment before it is fetched: its pieces, and how they are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlan {
    /// Index of the class. `None` if the segment has variables of several classes.
    pub class: Option<u32>,
    /// Role of the variables.
    pub role: Role,
    /// Type of the elements. [`ElementType::Bytes`] in a pool of several types.
    pub element: ElementType,
    /// The pieces, in the order of merging.
    pub pieces: Vec<Piece>,
    /// How the pieces are merged.
    pub layout: Layout,
    /// Indices of the pieces at which the second class and each later class begins. Empty if there is one class.
    pub columns: Vec<u32>,
    /// Total length of the pieces.
    pub raw_bytes: RawBytes,
}

impl SegmentPlan {
    /// The class of a piece, as a number among the classes of this segment, counted from 0.
    pub fn column_of(&self, piece: usize) -> u32 {
        self.columns.partition_point(|&begin| begin as usize <= piece) as u32 // there are at most 2^24 pieces
    }
}

/// Cuts classes into segments. `skip` returns true for variables that need not be stored, because the same bytes are
/// already stored.
///
/// Each raw byte of each variable that is not skipped is in exactly one piece. The pieces of a variable are in
/// increasing order of their offsets, from segment to segment. No segment is larger than `segment_bytes`. Classes
/// with long segments come first, so that the threads that code the segments end at about the same time.
pub fn plan(
    files: &[FileHeader],
    classes: &[VariableClass],
    options: &PlanOptions,
    skip: impl Fn(VariableRef) -> bool,
) -> Vec<SegmentPlan> {
    let mut options = *options;
    if options.spread {
        let kept = classes.iter().flat_map(|class| &class.members).filter(|member| !skip(**member));
        let bytes: u64 = kept.map(|member| member.of(files).raw_bytes.0).sum();
        let part = bytes.div_ceil(SPREAD).next_multiple_of(8).max(SPREAD_BYTES_MIN);
        options.segment_bytes = options.segment_bytes.min(part);
    }
    // The segments of each class. The code below sorts the classes; the segments of a class keep their order.
    let mut segments: Vec<Vec<SegmentPlan>> = Vec::new();
    let mut pools: Vec<(Role, ElementType, Vec<Piece>)> = Vec::new();
    let together = options.together && options.scheme == Scheme::Aware;
    let mut bundles: Vec<Bundle<'_>> = Vec::new();
    let interleaved = matches!(options.scheme, Scheme::AgnosticBlock | Scheme::AwareBlock);
    for (c, class) in classes.iter().enumerate() {
        let whole = |variable: VariableRef| Piece { variable, offset: 0, bytes: variable.of(files).raw_bytes.0 };
        let kept = || class.members.iter().filter(|m| !skip(**m)).map(|m| whole(*m)).filter(|p| p.bytes > 0);
        if together && class.role == Role::Array && is_number(&class.element) {
            match bundles.iter_mut().find(|bundle| *bundle.element == class.element) {
                Some(bundle) => bundle.columns.push(kept().collect()),
                None => bundles.push(Bundle { element: &class.element, columns: vec![kept().collect()] }),
            }
            continue;
        }
        let class_is_small = kept().map(|p| p.bytes).sum::<u64>() < options.small_class_bytes;
        let (small, large): (Vec<Piece>, Vec<Piece>) =
            kept().partition(|p| class_is_small || p.bytes < options.small_bytes);
        if !small.is_empty() {
            let element = if class_is_small { class.element.clone() } else { ElementType::Bytes };
            match pools.iter_mut().find(|(role, e, _)| *role == class.role && *e == element) {
                Some((_, _, pool)) => pool.extend(small),
                None => pools.push((class.role, element, small)),
            }
        }
        let class_index = u32::try_from(c).expect("fewer than 2^32 headers fit in memory");
        let segment = |pieces: Vec<Piece>, layout| SegmentPlan {
            class: Some(class_index),
            role: class.role,
            element: class.element.clone(),
            raw_bytes: RawBytes(pieces.iter().map(|p| p.bytes).sum()),
            pieces,
            columns: Vec::new(),
            layout,
        };
        let mut own = Vec::new();
        let most = options.bytes_of_each(&class.element);
        if interleaved {
            let (width, options) = (u64::from(class.element.width()), PlanOptions { segment_bytes: most, ..options });
            rounds(&large, width, &options, |pieces, block| own.push(segment(pieces, Layout::Interleaved(block))));
        } else {
            concatenated(&large, most, |pieces| own.push(segment(pieces, Layout::Concatenated)));
        }
        segments.push(own);
    }
    for bundle in with_their_numbers(bundles, files) {
        segments.push(bundle.cut(files, options.segment_bytes));
    }
    for (role, element, pool) in pools {
        let mut own = Vec::new();
        concatenated(&pool, options.bytes_of_each(&element), |pieces| {
            let raw_bytes = RawBytes(pieces.iter().map(|p| p.bytes).sum());
            let (element, layout) = (element.clone(), Layout::Concatenated);
            own.push(SegmentPlan { class: None, role, element, pieces, layout, columns: Vec::new(), raw_bytes });
        });
        segments.push(own);
    }
    segments.sort_by_key(|own| std::cmp::Reverse(own.iter().map(|segment| segment.raw_bytes).max()));
    segments.into_iter().flatten().collect()
}

fn is_number(element: &ElementType) -> bool {
    matches!(element, ElementType::Int { width: 4 | 8, .. } | ElementType::Float { width: 4 | 8, .. })
}

/// The classes whose elements are numbers of one type. Each class is a column of pieces.
struct Bundle<'a> {
    element: &'a ElementType,
    columns: Vec<Vec<Piece>>,
}

/// Moves columns of identification numbers (such as the numbers of particles) to the bundle of the floats of the same
/// rows. Such numbers are integers in the same HDF5 group as floats of the same width and byte order. There is one
/// integer for each float, or for each point of up to four floats. If several HDF5 groups (kinds of particles) have
/// such numbers, and each of these HDF5 groups is in several files, each HDF5 group gets separate columns.
fn with_their_numbers<'a>(mut bundles: Vec<Bundle<'a>>, files: &[FileHeader]) -> Vec<Bundle<'a>> {
    for n in 0..bundles.len() {
        let ElementType::Int { width, order, .. } = *bundles[n].element else { continue };
        let floats = ElementType::Float { width, order };
        let Some(target) = bundles.iter().position(|bundle| *bundle.element == floats) else { continue };
        let bytes = |piece: &Piece| piece.variable.of(files).raw_bytes.0;
        let mut widest: HashMap<(u32, &str), u64> = HashMap::new();
        for piece in bundles[target].columns.iter().flatten() {
            let widest = widest.entry((piece.variable.file, parent(piece, files))).or_default();
            *widest = bytes(piece).max(*widest);
        }
        let has_rows = |piece: &Piece| {
            let widest = widest.get(&(piece.variable.file, parent(piece, files)));
            widest.is_some_and(|&widest| widest % bytes(piece) == 0 && widest / bytes(piece) <= POINT_MAX)
        };
        let all = std::mem::take(&mut bundles[n].columns);
        let (theirs, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|numbers| !numbers.is_empty() && numbers.iter().all(has_rows));
        let mut first_in: HashMap<&str, u32> = HashMap::new();
        let mut kinds: Vec<&str> = Vec::new();
        for piece in theirs.iter().flatten() {
            let name = parent(piece, files);
            if *first_in.entry(name).or_insert(piece.variable.file) != piece.variable.file && !kinds.contains(&name) {
                kinds.push(name);
            }
        }
        bundles[n].columns = others;
        bundles[target].columns.splice(0..0, theirs);
        if kinds.len() > 1 && kinds.len() <= KINDS_MAX {
            let columns = std::mem::take(&mut bundles[target].columns);
            bundles[target].columns = columns.into_iter().flat_map(|column| by_kind(column, &kinds, files)).collect();
        }
    }
    bundles
}

/// Maximum number of components of a point (`POINT_MAX`) and of kinds of rows (`KINDS_MAX`).
const POINT_MAX: u64 = 4;
const KINDS_MAX: usize = 32;

/// The path of the HDF5 group that holds a variable.
fn parent<'a>(piece: &Piece, files: &'a [FileHeader]) -> &'a str {
    let path: &str = &piece.variable.of(files).path;
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Divides a column: one column for each kind, then one column for the other pieces. Empty columns are left out.
fn by_kind(column: Vec<Piece>, kinds: &[&str], files: &[FileHeader]) -> Vec<Vec<Piece>> {
    let mut columns: Vec<Vec<Piece>> = vec![Vec::new(); kinds.len() + 1];
    for piece in column {
        let name = parent(&piece, files);
        columns[kinds.iter().position(|kind| *kind == name).unwrap_or(kinds.len())].push(piece);
    }
    columns.retain(|column| !column.is_empty());
    columns
}

impl Bundle<'_> {
    /// Cuts the bundle into segments. Columns whose variables have the same shapes, file by file, are placed next to
    /// each other. If one segment has no room for all files, each segment holds some files with all variables of
    /// these files. If a segment has no room for a single file, each segment holds slabs of the variables of one
    /// file.
    fn cut(mut self, files: &[FileHeader], segment_bytes: u64) -> Vec<SegmentPlan> {
        let mut first_of: HashMap<Vec<(u32, &Shape)>, usize> = HashMap::new();
        let mut places: Vec<usize> = Vec::with_capacity(self.columns.len());
        for (n, column) in self.columns.iter().enumerate() {
            let shapes = column.iter().map(|piece| (piece.variable.file, &piece.variable.of(files).shape)).collect();
            places.push(*first_of.entry(shapes).or_insert(n));
        }
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_by_key(|&n| places[n]);
        self.columns =
            order.into_iter().map(|n| std::mem::take(&mut self.columns[n])).filter(|c| !c.is_empty()).collect();

        let mut by_file = vec![0u64; files.len()];
        for piece in self.columns.iter().flatten() {
            by_file[piece.variable.file as usize] += piece.bytes;
        }
        let mut segments = Vec::new();
        let mut from = 0;
        while from < files.len() {
            let mut end = from + 1;
            let mut bytes = by_file[from];
            while end < files.len() && bytes.saturating_add(by_file[end]) <= segment_bytes {
                bytes += by_file[end];
                end += 1;
            }
            let columns = self.of_files(from as u32..end as u32);
            match bytes > segment_bytes {
                true => segments
                    .extend(slabs::divide(columns, files, segment_bytes).into_iter().map(|own| self.segment(own))),
                false if columns.is_empty() => {}
                false => segments.push(self.segment(columns)),
            }
            from = end;
        }
        segments
    }

    /// The pieces of each column that belong to the given files. Empty columns are left out.
    fn of_files(&self, files: Range<u32>) -> Vec<slabs::Column> {
        let own = |column: &Vec<Piece>| {
            let before = |file: u32| column.partition_point(|piece| piece.variable.file < file);
            column[before(files.start)..before(files.end)].to_vec()
        };
        self.columns.iter().map(own).filter(|column| !column.is_empty()).collect()
    }

    /// Makes one segment of at least one column.
    fn segment(&self, columns: Vec<slabs::Column>) -> SegmentPlan {
        let begins = columns.iter().scan(0, |begin, column| {
            *begin += column.len() as u32; // there are at most 2^24 pieces
            Some(*begin)
        });
        let begins = begins.take(columns.len() - 1).collect();
        let pieces = columns.concat();
        SegmentPlan {
            class: None,
            role: Role::Array,
            element: self.element.clone(),
            layout: Layout::Concatenated,
            columns: begins,
            raw_bytes: RawBytes(pieces.iter().map(|p| p.bytes).sum()),
            pieces,
        }
    }
}

/// Cuts interleaved pieces into segments of whole rounds. If one round is too large for a segment, the pieces are
/// divided among several segments.
fn rounds(pieces: &[Piece], width: u64, options: &PlanOptions, mut emit: impl FnMut(Vec<Piece>, NonZeroU32)) {
    // A block holds whole elements, so that no element is split between two blocks.
    let block = (u64::from(options.block_bytes.get()) / width * width).max(width).min(options.segment_bytes);
    let block = u32::try_from(block).ok().and_then(NonZeroU32::new).unwrap_or(options.block_bytes);
    let block_bytes = u64::from(block.get());
    // The number of blocks for which a segment has room limits the number of pieces.
    let side_by_side = usize::try_from(options.segment_bytes / block_bytes).unwrap_or(usize::MAX).max(1);
    for pieces in pieces.chunks(side_by_side) {
        let per_segment = (options.segment_bytes / (block_bytes * pieces.len() as u64)).max(1) * block_bytes;
        let longest = pieces.iter().map(|p| p.bytes).max().unwrap_or(0);
        let mut from = 0;
        while from < longest {
            let slices: Vec<Piece> = (pieces.iter().filter(|p| p.bytes > from))
                .map(|p| Piece {
                    variable: p.variable,
                    offset: p.offset + from,
                    bytes: per_segment.min(p.bytes - from),
                })
                .collect();
            emit(slices, block);
            from += per_segment;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{Naming, classify};
    use crate::header::VariableHeader;
    use crate::ids::{Digest, FilePath, Rank};
    use proptest::prelude::*;

    fn files(lens: &[Vec<u64>]) -> Vec<FileHeader> {
        let variable = |(i, &n): (usize, &u64)| VariableHeader {
            role: Role::Array,
            path: ["/a", "/b", "/c", "/d"][i % 4].into(),
            element: ElementType::F64,
            shape: Shape([n / 8].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(n),
            digest: Digest([0; 32]),
            filters: [].into(),
            extents: [].into(),
        };
        let file = |(rank, lens): (usize, &Vec<u64>)| FileHeader {
            path: FilePath::new(format!("f.{rank}").into_bytes()).expect("valid"),
            rank: Rank(rank as u32),
            bytes: 0,
            kind: Default::default(),
            mode: 0,
            modified_ns: 0,
            digest: Digest([0; 32]),
            variables: lens.iter().enumerate().map(variable).collect(),
        };
        lens.iter().enumerate().map(file).collect()
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece_in_order_and_within_the_bound(
            lens in prop::collection::vec(prop::collection::vec(0u64..4000, 0..6), 0..6),
            scheme in prop::sample::select(Scheme::ALL.to_vec()),
            block in 1u32..600,
            segment_bytes in (8u64..256).prop_map(|n| n * 8),
            skip_nth in 2u32..5,
            together in any::<bool>(),
            spread in any::<bool>(),
        ) {
            let files = files(&lens);
            let classes = classify(&files, &Naming::default());
            let options = PlanOptions {
                scheme, segment_bytes,
                block_bytes: NonZeroU32::new(block).expect("not zero"),
                small_bytes: 100, small_class_bytes: 500, together, spread,
            };
            let skip = |v: VariableRef| v.variable % skip_nth == 1;
            let segments = plan(&files, &classes, &options, skip);
            let mut covered: HashMap<VariableRef, u64> = HashMap::new();
            for segment in &segments {
                prop_assert!(segment.raw_bytes.0 <= segment_bytes && segment.raw_bytes.0 > 0);
                prop_assert_eq!(segment.raw_bytes.0, segment.pieces.iter().map(|p| p.bytes).sum::<u64>());
                for piece in &segment.pieces {
                    let end = covered.entry(piece.variable).or_default();
                    prop_assert_eq!(*end, piece.offset, "pieces of a variable follow each other");
                    prop_assert!(piece.bytes > 0);
                    *end += piece.bytes;
                }
            }
            let of_one = segments.chunk_by(|a, b| (a.class, a.role, &a.element) == (b.class, b.role, &b.element));
            let longest: Vec<_> = of_one.map(|own| own.iter().map(|segment| segment.raw_bytes).max()).collect();
            prop_assert!(longest.is_sorted_by(|a, b| a >= b), "classes with long segments come first: {:?}", longest);
            for (f, file) in files.iter().enumerate() {
                for (v, variable) in file.variables.iter().enumerate() {
                    let at = VariableRef { file: f as u32, variable: v as u32 };
                    let expected = if skip(at) { 0 } else { variable.raw_bytes.0 };
                    prop_assert_eq!(covered.get(&at).copied().unwrap_or(0), expected);
                }
            }
        }
    }

    #[test]
    fn classes_that_belong_together_share_a_segment_rank_by_rank() {
        let files = files(&[vec![400, 800, 400], vec![400, 800, 400], vec![400, 800, 400]]);
        let classes = classify(&files, &Naming::default());
        let options = PlanOptions { together: true, segment_bytes: 3200, ..PlanOptions::default() };
        let segments = plan(&files, &classes, &options, |_| false);
        let order: Vec<Vec<(u32, u32)>> = segments
            .iter()
            .map(|s| s.pieces.iter().map(|p| (p.variable.variable, p.variable.file)).collect())
            .collect();
        let of = |ranks: &[u32]| [0, 2, 1].iter().flat_map(|&v| ranks.iter().map(move |&r| (v, r))).collect::<Vec<_>>();
        assert_eq!(order, [of(&[0, 1]), of(&[2])], "variables of one shape are next to each other");
        assert_eq!(segments[0].columns, [2, 4]);
    }

    #[test]
    fn a_small_checkpoint_has_several_segments_where_they_are_spread() {
        let options = PlanOptions { spread: true, ..PlanOptions::default() };
        for (bytes, expected) in [(400_000, 1), (2_000_000, 4), (12_000_000, 4), (40_000_000, 10)] {
            let files = files(&[vec![bytes]]);
            let segments = plan(&files, &classify(&files, &Naming::default()), &options, |_| false);
            assert_eq!(segments.len(), expected, "{bytes} bytes");
            assert!(
                segments.iter().all(|segment| segment.raw_bytes.0.is_multiple_of(8) && segment.raw_bytes.0 <= 4 << 20)
            );
        }
    }

    #[test]
    fn a_segment_takes_no_more_memory_than_the_budget_whatever_its_elements() {
        let with_budgets = |profile: Profile| {
            let least = profile.segment_bytes(0) * profile.memory_per_raw_byte();
            [least, profile.budget_mib() << 20].map(|budget_bytes| (profile.clone(), budget_bytes))
        };
        for (profile, budget_bytes) in
            [Profile::Fast, Profile::Balanced, Profile::Max].into_iter().flat_map(with_budgets)
        {
            for n in 0..8 {
                let element = [ElementType::F64, ElementType::Bytes][n % 2].clone();
                let scheme = [Scheme::Agnostic, Scheme::AgnosticBlock, Scheme::Aware, Scheme::AwareBlock][n / 2];
                let mut files = files(&[vec![80 << 20]]);
                files[0].variables[0].element = element.clone();
                let classes = classify(&files, &Naming::default());
                let options = PlanOptions { scheme, ..PlanOptions::of(&profile, budget_bytes) };
                let segments = plan(&files, &classes, &options, |_| false);
                assert_eq!(segments.iter().map(|segment| segment.raw_bytes.0).sum::<u64>(), 80 << 20);
                for segment in segments {
                    let memory = segment.raw_bytes.0 * profile.memory_per_raw_byte_of(&element);
                    assert!(memory <= budget_bytes, "{profile}: {memory} of {budget_bytes}");
                }
            }
        }
    }

    #[test]
    fn variables_under_a_hundred_bytes_are_pooled() {
        let files = files(&[vec![40_000, 48, 96], vec![40_000, 48, 96]]);
        let classes = classify(&files, &Naming::default());
        let segments = plan(&files, &classes, &PlanOptions::default(), |_| false);
        let shape: Vec<(Option<u32>, usize)> = segments.iter().map(|s| (s.class, s.pieces.len())).collect();
        assert_eq!(shape, [(Some(0), 2), (None, 4)]);
    }
}
