//! The encoder: turns a segment into a stream, in the order of `docs/format/predict.md`.

use super::super::format::decode::{Buffers, damaged};
use super::super::format::group::Group;
use super::super::format::layout::Layout;
use super::super::format::nested;
use super::super::format::numbers::Elements;
use super::super::format::older::Known;
use super::super::format::param::elements_of;
use super::super::particles::{encode_orders, find_tables};
use super::effort::Effort;
use super::groups::groups;
use super::pipeline::{Choice, Spare, Task, choose};
use crate::codec::array_to_bytes::varint::put;
use crate::codec::{ArrayShape, CodecError, Older, Work};
use std::borrow::Cow;

/// Whether an older segment has rows with the same numbers as rows of this segment.
pub(crate) fn has_known_rows(param: u32, raw: &[u8], arrays: &[ArrayShape], older: &Older) -> bool {
    let kind = elements_of(param);
    if !kind.is_float {
        return false;
    }
    let elements = raw.len() / kind.width;
    let mut groups = groups(arrays, raw, kind);
    let mut tables = find_tables(&mut groups, &raw[..elements * kind.width], kind, 1);
    Known::new(&groups, &mut tables, arrays, older, kind);
    tables.iter().any(|table| table.older.is_some())
}

/// One zstd frame.
pub(crate) fn pack(bytes: &[u8], effort: &Effort) -> Result<Vec<u8>, CodecError> {
    zstd::bulk::compress(bytes, effort.header_zstd_level)
        .map_err(|error| CodecError::Library { codec: "predict", source: error.into() })
}

pub(crate) fn encode(
    kind: Elements,
    raw: &[u8],
    mut groups: Vec<Group>,
    since: Option<(&[ArrayShape], &Older)>,
    effort: &'static Effort,
    work: &mut Work,
    stored: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let threads = work.threads;
    let (body, tail) = raw.split_at(raw.len() / kind.width * kind.width);
    let mut tables = if kind.is_float { find_tables(&mut groups, body, kind, threads) } else { Vec::new() };
    let mut header = Vec::new();
    let (mut all, mut like) = (Cow::Borrowed(body), Vec::new());
    if let Some((arrays, older)) = since {
        let mut known = Known::new(&groups, &mut tables, arrays, older, kind);
        known.write(&mut header);
        tables.iter_mut().for_each(|table| table.move_on(known.groups.len()));
        groups.splice(0..0, std::mem::take(&mut known.groups));
        let before = known.before(body, &older.raw, kind, &groups, &tables);
        all = Cow::Owned(before.ok_or_else(|| damaged("the older segment is too short"))?);
        like = known.like;
    }
    let own_order = Layout::new(groups, tables, None).ok_or_else(|| damaged("the arrays have too many columns"))?;
    let Buffers { bits, values, .. } = std::mem::take(work.kept::<Buffers>());
    let task = Task { body: &all, kind, like: &like, effort, threads };
    let Choice { mut layout, bits, values, runs, nested, predictors } = choose(own_order, task, Spare { bits, values });

    layout.has_strides = runs.strides.iter().any(|strides| !strides.is_empty());
    layout.write(&mut header);
    for tokens in &runs.tokens {
        put(tokens.count, &mut header);
        for list in [&tokens.skips, &tokens.lengths, &tokens.froms] {
            put(list.len(), &mut header);
            header.extend_from_slice(list);
        }
    }
    runs.strides.iter().filter(|_| layout.has_strides).for_each(|strides| strides.write(&mut header));
    put(nested.len(), &mut header);
    for (column, links) in &nested {
        put(*column, &mut header);
        nested::write(links, &mut header);
    }
    for (predictor, parts) in &predictors {
        predictor.write(&mut header);
        parts.iter().for_each(|part| put(part.len(), &mut header));
    }
    let mut orders = Vec::new();
    encode_orders(&layout, kind, &bits, effort, threads, &mut header, &mut orders);
    // The buffers are reused when the stream is decoded to check it.
    *work.kept::<Buffers>() = Buffers { bits, values, froms: runs.froms };
    let packed = pack(&header, effort)?;
    put(packed.len(), stored);
    put(header.len(), stored);
    let parts = || [&packed].into_iter().chain(predictors.iter().flat_map(|(_, parts)| parts)).chain([&orders]);
    stored.reserve(parts().map(Vec::len).sum::<usize>() + tail.len());
    parts().for_each(|part| stored.extend_from_slice(part));
    stored.extend_from_slice(tail);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::format::decode::decode;
    use super::super::super::format::group::Kind;
    use super::*;
    use proptest::prelude::*;

    /// A strategy for groups of every kind, with arrays of equal extents.
    fn group() -> impl Strategy<Value = Group> {
        let kind = prop_oneof![
            Just(Kind::Plain),
            (2usize..5).prop_map(Kind::Lanes),
            (2usize..4, prop::sample::select(vec![0usize, 1]))
                .prop_map(|(lanes, together)| Kind::Points { lanes, together }),
            (0usize..3).prop_map(Kind::Join),
        ];
        (kind, 1usize..5, 1usize..9, 1usize..12, 1usize..4).prop_map(|(kind, nz, ny, nx, count)| {
            let dims = match kind {
                Kind::Plain | Kind::Join(_) => [nz, ny, nx],
                Kind::Lanes(lanes) => [1, nz * ny, lanes],
                Kind::Points { lanes, .. } => [nz, ny, nx * lanes],
            };
            Group::new(kind, None, vec![dims; count])
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn any_groups_of_columns_are_decoded_to_the_same_bits(
            groups in prop::collection::vec(group(), 0..6),
            numbers in prop::collection::vec(prop_oneof![8 => -1e3f64..1e3, 1 => any::<f64>()], 1..40),
            step in 0.0f64..0.2, tail in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let elements: usize = groups.iter().filter_map(Group::elements).sum();
            for (kind, is_smooth) in [(8, true), (8, false), (4, true)].map(|(width, is_smooth)| (Elements { width, is_big: false, is_float: true }, is_smooth)) {
                let value = |n: usize| if is_smooth { (n as f64 * step).sin() } else { numbers[n % numbers.len()] };
                let mut raw: Vec<u8> = match kind.width {
                    4 => (0..elements).flat_map(|n| (value(n) as f32).to_le_bytes()).collect(),
                    _ => (0..elements).flat_map(|n| value(n).to_le_bytes()).collect(),
                };
                raw.extend(tail.iter().take(kind.width - 1));
                for effort in [1, 2].map(Effort::of) {
                    let (mut work, mut stored, mut again) = (Work::default(), Vec::new(), Vec::new());
                    encode(kind, &raw, groups.clone(), None, effort, &mut work, &mut stored).expect("encodes");
                    prop_assert_eq!(decode(kind, &stored, None, raw.len(), &mut Work::default(), &mut again), Some(()));
                    prop_assert_eq!(&again, &raw);
                }
            }
        }
    }
}
