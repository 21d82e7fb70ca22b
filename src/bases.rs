//! Finds bases: segments of older checkpoints against which the segments of a new checkpoint may be coded.
//!
//! A base is a segment of an older container of the same group. A base has no base itself, so a restart decodes at
//! most one additional segment for each segment. Bases are looked for in the newest checkpoint and in the older
//! checkpoints against which the newest checkpoint was coded. A segment can be a base if it holds the same variables.
//! Two variables are the same if they agree in rank, path, type and shape. Paths may differ, for example because each
//! path contains the number of a step. Variables with different paths are the same if they agree in rank, class, type
//! and shape, and if they have the same position among the variables that agree in these properties. The length of a
//! list of numbers or of points with few components may differ. Particles move from rank to rank, and their
//! identification numbers show which particles are the same.

use crate::classify::{VariableClass, VariableRef};
use crate::codec::{LANES_POINT_MAX, Older, OlderPlace, Scratch};
use crate::container::{BaseSegment, ContainerReader, ContainerRef, Placement, ReadError, SegmentEntry, Source};
use crate::header::{ElementType, FileHeader, Role, Shape};
use crate::ids::{Digest, JobId};
use crate::manifest::Manifest;
use crate::merge::Layout;
use crate::plan::{Piece, SegmentPlan};
use crate::reuse::DEPENDENTS_MAX;
use crate::store::Store;
use crate::units::RawBytes;
use std::collections::HashMap;
use std::sync::Arc;

/// A base must hold at least the raw bytes of the segment divided by this number. Reading a base with fewer bytes is
/// not worth the time.
const HELD_MIN_DIVISOR: u64 = 4;

/// Containers that hold bases.
pub struct Bases {
    holders: Vec<Holder>,
}

struct Holder {
    container: Arc<ContainerRef>,
    reader: ContainerReader,
    /// Maps each variable of the new checkpoint to the same variable in the older container.
    twins: HashMap<VariableRef, VariableRef>,
    /// Maps each list of the new checkpoint to the same list, with another length, in the older container. The map is
    /// used for lists that are not in `twins`.
    of_other_length: HashMap<VariableRef, VariableRef>,
}

/// The base against which a segment may be coded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    holder: usize,
    segment: u32,
    /// The place of each piece of the segment in the base.
    pub places: Vec<OlderPlace>,
    /// Raw bytes of the base.
    pub raw_bytes: RawBytes,
    /// Whether the base is a segment of the newest checkpoint.
    pub is_newest: bool,
}

impl Bases {
    /// Opens the containers that may hold bases for the next checkpoint of a group: the container of `newest` and, if
    /// `may_go_back` is true, the older containers against which `newest` was coded. `files` are the files of the
    /// next checkpoint.
    pub fn load(
        store: &dyn Store,
        job: &JobId,
        newest: &Manifest,
        files: &[FileHeader],
        classes: &[VariableClass],
        may_go_back: bool,
    ) -> Result<Self, ReadError> {
        let open = |container: Arc<ContainerRef>| {
            let reader = ContainerReader::open(store, job, &container.checkpoint, container.group)?;
            let (recorded, found) = (container.index_digest, reader.index_digest());
            if recorded != found {
                let (path, expected, found) = (reader.path().into(), recorded.to_hex(), found.to_hex());
                return Err(ReadError::Foreign { path, what: "the digest of its index", expected, found });
            }
            let [twins, of_other_length] = twins(files, classes, &reader);
            Ok(Holder { container, reader, twins, of_other_length })
        };
        let mut holders = vec![open(Arc::new(ContainerRef {
            checkpoint: newest.checkpoint.clone(),
            group: newest.group,
            digest: newest.container.digest,
            index_digest: newest.container.index_digest,
        }))?];
        if may_go_back {
            let index = holders[0].reader.index();
            let mut older: Vec<u32> = index.segments().iter().filter_map(|s| Some(s.base()?.reference)).collect();
            older.sort_unstable();
            older.dedup();
            let known = newest.known_containers();
            let is_full = |container: &ContainerRef| {
                known.iter().any(|known| known.container == *container && known.dependents >= DEPENDENTS_MAX)
            };
            let older = older.iter().map(|&n| Arc::clone(&index.references()[n as usize]));
            let older: Vec<_> = older.filter(|container| !is_full(container)).collect();
            for container in older {
                let holder = open(container)?;
                // A repacked container is left out, because it holds only the bytes that existing checkpoints need.
                if !holder.reader.is_repacked() {
                    holders.push(holder);
                }
            }
        }
        Ok(Self { holders })
    }

    /// The containers to which the new checkpoint may refer.
    pub fn containers(&self) -> impl Iterator<Item = &Arc<ContainerRef>> {
        self.holders.iter().map(|holder| &holder.container)
    }

    /// Whether a variable can be coded against a base instead of being stored as a reference to older bytes. The
    /// result is true if the bytes of the variable equal an array whose segments may be bases. In this case,
    /// [`Bases::find`] uses this array for the variable from now on.
    pub fn may_predict(&mut self, at: VariableRef, source: &Source) -> bool {
        let Source::External { container, at: older } = source else { return false };
        let Some(holder) = self.holders.iter_mut().find(|holder| holder.container == *container) else { return false };
        let index = holder.reader.index();
        let is_array = index.variable(*older).is_some_and(|header| header.role == Role::Array);
        let may_be_base =
            |segment: &SegmentEntry| segment.dependencies.is_empty() && segment.layout == Layout::Concatenated;
        let is_base = is_array && index.pieces_of(*older).all(|(n, _)| may_be_base(&index.segments()[n as usize]));
        if is_base {
            holder.twins.insert(at, *older);
        }
        is_base
    }

    /// The older segment that holds the most bytes of this segment. If several segments hold equally many bytes, a
    /// segment of the newest checkpoint is preferred. `None` if no segment holds enough bytes.
    pub fn find(&self, segment: &SegmentPlan) -> Option<Base> {
        if segment.layout != Layout::Concatenated {
            return None;
        }
        let mut best: Option<(u64, usize, u32)> = None;
        for (n, holder) in self.holders.iter().enumerate() {
            let mut held: HashMap<u32, u64> = HashMap::new();
            for piece in &segment.pieces {
                holder.shared(piece, |segment, _, place| *held.entry(segment).or_default() += place.bytes as u64);
            }
            let most = held.into_iter().max_by_key(|&(segment, bytes)| (bytes, std::cmp::Reverse(segment)));
            if let Some((segment, bytes)) = most
                && best.is_none_or(|(most, ..)| bytes > most)
            {
                best = Some((bytes, n, segment));
            }
        }
        let (bytes, holder, chosen) = best?;
        if bytes < segment.raw_bytes.0 / HELD_MIN_DIVISOR {
            return None;
        }
        let of = &self.holders[holder];
        let pieces = of.reader.index().pieces(chosen);
        let mut begins: Vec<usize> = Vec::with_capacity(pieces.len());
        pieces.iter().fold(0, |at, piece| {
            begins.push(at);
            at + piece.bytes as usize // the sum is at most 1 GiB
        });
        let places = (segment.pieces.iter())
            .map(|piece| {
                let mut place = OlderPlace::default();
                of.shared(piece, |segment, nth, shared| {
                    if segment == chosen && shared.bytes > place.bytes {
                        place = OlderPlace { from: begins[nth] + shared.from, ..shared };
                    }
                });
                place
            })
            .collect();
        let raw_bytes = of.reader.index().segments()[chosen as usize].raw_bytes;
        Some(Base { holder, segment: chosen, places, raw_bytes, is_newest: holder == 0 })
    }

    /// Reads and decodes a base, for [`Basis::older`](crate::codec::Basis::older). Also returns the reference that
    /// the index stores.
    pub fn read(&self, base: &Base, scratch: &mut Scratch) -> Result<(Older, BaseSegment), ReadError> {
        let Holder { container, reader, .. } = &self.holders[base.holder];
        scratch.set_older(None); // a base has no base
        let raw = reader.decode_segment(base.segment, scratch)?;
        let named = BaseSegment { container: Arc::clone(container), segment: base.segment, digest: Digest::of(&raw) };
        Ok((Older { raw, places: base.places.clone() }, named))
    }
}

impl Holder {
    /// Calls `found` for each segment that holds bytes of a piece and may be a base. The arguments are the number of
    /// the segment, the number of the older piece in the segment, and the place of the bytes in the older piece.
    fn shared(&self, piece: &Piece, mut found: impl FnMut(u32, usize, OlderPlace)) {
        let index = self.reader.index();
        let Some(&twin) = self.twins.get(&piece.variable) else {
            // The list must be in one piece, because each row may have moved to any other row.
            let Some(&other) = self.of_other_length.get(&piece.variable) else { return };
            let mut pieces = index.pieces_of(other);
            if let (Some((number, at)), None) = (pieces.next(), pieces.next()) {
                let (segment, theirs) = (&index.segments()[number as usize], &index.all_pieces()[at]);
                if segment.layout == Layout::Concatenated && segment.dependencies.is_empty() {
                    let bytes = theirs.bytes as usize; // the value is at most the length of a segment
                    found(
                        number,
                        at - segment.pieces.start,
                        OlderPlace { from: 0, skip: 0, bytes, is_other_length: true },
                    );
                }
            }
            return;
        };
        for (number, at) in index.pieces_of(twin) {
            let segment = &index.segments()[number as usize];
            let theirs = index.all_pieces()[at];
            let (from, to) =
                (piece.offset.max(theirs.offset), (piece.offset + piece.bytes).min(theirs.offset + theirs.bytes));
            if segment.layout == Layout::Concatenated && segment.dependencies.is_empty() && from < to {
                // Both pieces are within a segment, which has at most 1 GiB.
                let [skip, bytes, from] = [from - piece.offset, to - from, from - theirs.offset].map(|n| n as usize);
                found(number, at - segment.pieces.start, OlderPlace { from, skip, bytes, is_other_length: false });
            }
        }
    }
}

/// The properties by which a variable is recognised: the rank, the path or class, the type, all or some of the
/// extents, and the number of the variable among the variables that agree in all these properties.
type VariableKey<'a> = (u32, &'a str, &'a ElementType, &'a [u64], u32);

/// Finds the same variables in an older container. Both maps lead from a new variable to the same variable in the
/// older container. The first map has variables of equal shape. The second map has lists (arrays of numbers or
/// points), whose lengths may differ.
fn twins(
    files: &[FileHeader],
    classes: &[VariableClass],
    older: &ContainerReader,
) -> [HashMap<VariableRef, VariableRef>; 2] {
    let index = older.index();
    let of_class = |classes: &'_ [VariableClass]| -> HashMap<VariableRef, usize> {
        classes.iter().enumerate().flat_map(|(n, class)| class.members.iter().map(move |at| (*at, n))).collect()
    };
    let (own_class, their_class) = (of_class(classes), of_class(index.classes()));
    let all: Extents = |shape| Some(&shape.0);
    [all, components].map(|extents| {
        let by_path = |files| named(files, extents, |_, path| Some(path));
        let own_key = |at, _: &str| own_class.get(&at).map(|&n| &*classes[n].key);
        let their_key = |at, _: &str| their_class.get(&at).map(|&n| &*index.classes()[n].key);
        let own = [by_path(files), named(files, extents, own_key)];
        let theirs = [by_path(index.files()), named(index.files(), extents, their_key)];
        let mut twins = HashMap::new();
        for (own, theirs) in own.into_iter().zip(theirs) {
            let theirs: HashMap<VariableKey<'_>, VariableRef> =
                theirs.into_iter().map(|(at, name)| (name, at)).collect();
            for (at, name) in own {
                let Some(&found) = theirs.get(&name) else { continue };
                let stored = match index.placement(found) {
                    Some(Placement::SameAs(target)) => target,
                    _ => found,
                };
                if index.placement(stored) == Some(Placement::Pieces) {
                    twins.entry(at).or_insert(stored);
                }
            }
        }
        twins
    })
}

/// Selects the extents by which a variable is recognised. `None` if the variable cannot be recognised.
type Extents = fn(&Shape) -> Option<&[u64]>;

/// The extents of a list without the length of the list. A list of numbers has no other extent. A list of points has
/// one other extent, the number of components.
fn components(shape: &Shape) -> Option<&[u64]> {
    match &*shape.0 {
        [_] => Some(&[]),
        [_, n] if *n <= LANES_POINT_MAX as u64 => Some(&shape.0[1..]),
        _ => None,
    }
}

/// The variables that are arrays, with the properties by which they are recognised.
fn named<'a>(
    files: &'a [FileHeader],
    extents: Extents,
    name: impl Fn(VariableRef, &'a str) -> Option<&'a str>,
) -> Vec<(VariableRef, VariableKey<'a>)> {
    let mut seen: HashMap<VariableKey<'a>, u32> = HashMap::new();
    let mut all = Vec::new();
    for (f, file) in files.iter().enumerate() {
        for (v, header) in file.variables.iter().enumerate().filter(|(_, header)| header.role == Role::Array) {
            let at = VariableRef { file: f as u32, variable: v as u32 };
            let (Some(name), Some(extents)) = (name(at, &header.path), extents(&header.shape)) else { continue };
            let name = (file.rank.0, name, &header.element, extents, 0);
            let nth = seen.entry(name).or_default();
            all.push((at, (name.0, name.1, name.2, name.3, *nth)));
            *nth += 1;
        }
    }
    all
}
