//! Prediction: of what is a number only the difference to what the other numbers tell is stored.
//!
//! Works on a whole segment, which may hold several classes: their variables predict each other. In this order:
//! rows of particles are put in the order of their numbers (`tables.rs`, `curve.rs`); columns are put in an order
//! (`order.rs`); runs that occur before are taken out (`repeats.rs`, `strides.rs`); each column gets the predictor that leaves the fewest bits of a
//! sample (`choose.rs`): a weighted sum of neighbours in up to three dimensions, of other columns, of products and
//! quotients of them (`linear.rs`, `weights.rs`, `fit.rs`), or integer
//! differences, or none (`predictor.rs`); the differences, as a count of representable numbers, are coded (`residual.rs`). What
//! coarse and fine grids tell of each other is in `nested.rs`, numbers in files that nobody described in `records.rs`, what an
//! older checkpoint tells in `older.rs`.
//!
//! The stream is described in `FORMAT.md`, beside this file.

mod choose;
mod components;
mod curve;
mod fit;
mod group;
mod layout;
mod linear;
mod nested;
mod numbers;
mod older;
mod order;
mod predictor;
mod records;
mod repeats;
mod residual;
mod strides;
mod tables;
mod weights;

use crate::codec::array_to_bytes::varint::{put, take};
use crate::codec::{
    ArrayCodec, ArrayJob, ArrayShape, BIG_ENDIAN, CodecError, CodecId, Older, Work, resize_for_overwrite, threads,
};
pub(crate) use components::LANES_POINT_MAX;
use group::{Group, Kind};
use layout::{Layout, Run};
use linear::Place;
use numbers::Elements;
use older::{Known, Twins};
use predictor::{Coded, Predictor};
pub(crate) use records::distance as record_bytes;
use repeats::Marks;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

pub(crate) const ID: CodecId = CodecId(5);
/// Bits of the parameter.
const INTEGERS: u32 = 1 << 9;
const BYTES: u32 = 1 << 10;
const EFFORT_SHIFT: u32 = 16;
/// The highest effort; decoding does not depend on it.
pub(crate) const EFFORT_MAX: u32 = 2;
/// What is added to the length of very short segments at most.
const MORE_BYTES: usize = 16 << 10;

pub(crate) struct Predict;

/// What a decoder fills, kept so that its pages need not be made anew for each segment.
#[derive(Default)]
pub(crate) struct Buffers {
    bits: Vec<u64>,
    values: Vec<f64>,
    froms: [Vec<repeats::From>; 2],
}

/// The parameter for elements of a width and kind.
pub(crate) fn param(width: u8, is_big: bool, is_float: bool, effort: u32) -> u32 {
    let big = if is_big { BIG_ENDIAN } else { 0 };
    let integers = if is_float { 0 } else { INTEGERS };
    u32::from(width) | big | integers | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

/// The parameter for bytes of which nothing is known.
pub(crate) fn param_of_bytes(effort: u32) -> u32 {
    BYTES | 8 | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

fn elements_of(param: u32) -> Elements {
    Elements { width: (param & 0xFF) as usize, is_big: param & BIG_ENDIAN != 0, is_float: param & INTEGERS == 0 }
}

/// Whether a parameter is for bytes of which nothing is known.
pub(crate) fn is_of_bytes(param: u32) -> bool {
    param & BYTES != 0
}

/// Whether records are found in bytes of which nothing is known, and are most of them; else prediction has nothing to do.
pub(crate) fn is_of_records(raw: &[u8], arrays: &[ArrayShape]) -> bool {
    records_of(raw, arrays).is_some_and(|found| found.bytes().is_some_and(|bytes| bytes * 2 > raw.len()))
}

fn records_of(raw: &[u8], arrays: &[ArrayShape]) -> Option<records::Records> {
    records::find(raw, &file_lengths(arrays))
}

/// How long each file is, where elements are bytes of which nothing is known.
pub(crate) fn file_lengths(arrays: &[ArrayShape]) -> Vec<usize> {
    arrays.iter().map(|array| usize::try_from(array.elements).unwrap_or(usize::MAX)).collect()
}

fn damaged(what: &'static str) -> CodecError {
    CodecError::Damaged { codec: "predict", what }
}

impl ArrayCodec for Predict {
    fn id(&self) -> (CodecId, &'static str) {
        (ID, "predict")
    }

    fn takes(&self, param: u32) -> bool {
        let effort = param >> EFFORT_SHIFT;
        matches!(param & 0xFF, 4 | 8)
            && param & 0xF800 == 0
            && (param & BYTES == 0 || param & 0xFFFF == BYTES | 8)
            && (1..=EFFORT_MAX).contains(&effort)
    }

    fn max_encoded_bytes(&self, _param: u32, raw_bytes: usize) -> usize {
        // A column is never coded in more than its elements take, but for some forty bytes, and has an element at least.
        raw_bytes * 12 + MORE_BYTES
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let effort = job.param >> EFFORT_SHIFT;
        stored.clear();
        if job.param & BYTES == 0 {
            let kind = elements_of(job.param);
            return encode(kind, job.raw, layout::groups(job.arrays, job.raw, kind), None, effort, work, stored);
        }
        let none = records::Records { width: 8, lanes: 1, regions: Vec::new() };
        let found = records_of(job.raw, job.arrays).unwrap_or(none);
        let (records, others) = found.split(job.raw);
        let packed = pack(&others, effort)?;
        found.write(stored);
        put(packed.len(), stored);
        stored.extend(packed);
        let kind = Elements { width: found.width, is_big: false, is_float: true };
        let arrays = found.arrays();
        let kind_of = if found.lanes > 1 { Kind::Lanes(found.lanes) } else { Kind::Plain };
        let group = Group::new(kind_of, None, arrays);
        let groups = if group.arrays.is_empty() { Vec::new() } else { vec![group] };
        encode(kind, &records, groups, None, effort, work, stored)
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let wrong = || damaged("the stream does not say what it must");
        if param & BYTES == 0 {
            return decode(elements_of(param), stored, None, raw_bytes, work, raw).ok_or_else(wrong);
        }
        decode_bytes(stored, raw_bytes, work, raw).ok_or_else(wrong)
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, effort) = (elements_of(param), param >> EFFORT_SHIFT);
        if param & BYTES != 0 {
            return write!(f, "(bytes, effort {effort})");
        }
        let letter = if kind.is_float { 'f' } else { 'i' };
        write!(f, "({letter}{}{}, effort {effort})", kind.width * 8, if kind.is_big { "be" } else { "" })
    }
}

/// Whether an older segment has rows that are known again by their numbers.
pub(crate) fn has_known_rows(param: u32, raw: &[u8], arrays: &[ArrayShape], older: &Older) -> bool {
    let kind = elements_of(param);
    if !kind.is_float {
        return false;
    }
    let elements = raw.len() / kind.width;
    let mut groups = layout::groups(arrays, raw, kind);
    let mut tables = tables::find(&mut groups, &raw[..elements * kind.width], kind, 1);
    Known::new(&groups, &mut tables, arrays, older, kind);
    tables.iter().any(|table| table.older.is_some())
}

/// The stream of codec `since`: as [`Predict`], with the older segment.
pub(crate) fn encode_since(
    job: ArrayJob<'_>,
    older: &Older,
    stored: &mut Vec<u8>,
    work: &mut Work,
) -> Result<(), CodecError> {
    let kind = elements_of(job.param);
    let groups = layout::groups(job.arrays, job.raw, kind);
    stored.clear();
    encode(kind, job.raw, groups, Some((job.arrays, older)), job.param >> EFFORT_SHIFT, work, stored)
}

/// What [`encode_since`] gave. `None` where the stream does not say what it must.
pub(crate) fn decode_since(
    param: u32,
    stored: &[u8],
    older: &Older,
    raw_bytes: usize,
    raw: &mut Vec<u8>,
    work: &mut Work,
) -> Option<()> {
    decode(elements_of(param), stored, Some(&older.raw), raw_bytes, work, raw)
}

/// One zstd frame.
fn pack(bytes: &[u8], effort: u32) -> Result<Vec<u8>, CodecError> {
    zstd::bulk::compress(bytes, if effort > 1 { 19 } else { 3 })
        .map_err(|error| CodecError::Library { codec: "predict", source: error.into() })
}

fn encode(
    kind: Elements,
    raw: &[u8],
    mut groups: Vec<Group>,
    since: Option<(&[ArrayShape], &Older)>,
    effort: u32,
    work: &mut Work,
    stored: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let threads = work.threads;
    let (body, tail) = raw.split_at(raw.len() / kind.width * kind.width);
    let mut tables = if kind.is_float { tables::find(&mut groups, body, kind, threads) } else { Vec::new() };
    let mut header = Vec::new();
    let (mut all, mut like) = (Cow::Borrowed(body), Vec::new());
    if let Some((arrays, older)) = since {
        let mut known = Known::new(&groups, &mut tables, arrays, older, kind);
        known.write(&mut header);
        tables.iter_mut().for_each(|table| table.move_on(known.groups.len()));
        groups.splice(0..0, std::mem::take(&mut known.groups));
        let before = known.before(body, &older.raw, kind, &groups, &tables);
        all = Cow::Owned(before.ok_or_else(|| damaged("the older segment is shorter than it was said to be"))?);
        like = known.like;
    }
    let own_order = Layout::new(groups, tables, None).ok_or_else(|| damaged("the arrays do not add up"))?;
    let Buffers { bits, values, .. } = std::mem::take(&mut work.predict);
    let choice = choose::Choice::new(own_order, &like, &all, kind, (effort, threads), (bits, values));
    let choose::Choice { mut layout, bits, values, runs, nested, predictors } = choice;

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
    tables::encode_orders(&layout, (kind, &bits), (effort, threads), &mut header, &mut orders);
    work.predict = Buffers { bits, values, froms: runs.froms }; // for whoever decodes it again
    let packed = pack(&header, effort)?;
    put(packed.len(), stored);
    put(header.len(), stored);
    let parts = || [&packed].into_iter().chain(predictors.iter().flat_map(|(_, parts)| parts)).chain([&orders]);
    stored.reserve(parts().map(Vec::len).sum::<usize>() + tail.len());
    parts().for_each(|part| stored.extend_from_slice(part));
    stored.extend_from_slice(tail);
    Ok(())
}

/// So many elements of a buffer that only grows, whatever they are. What is not written is not even made: the system gives
/// zeros when they are asked for.
fn of_length<T: Default + Clone>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = vec![T::default(); len];
    }
    &mut buffer[..len]
}

fn decode_bytes(mut stored: &[u8], raw_bytes: usize, work: &mut Work, raw: &mut Vec<u8>) -> Option<()> {
    let found = records::Records::read(&mut stored)?;
    let bytes = found.bytes().filter(|&bytes| bytes <= raw_bytes)?;
    let packed = take(&mut stored)?;
    let (packed, stored) = stored.split_at_checked(packed)?;
    let others = zstd::bulk::decompress(packed, raw_bytes - bytes).ok()?;
    let mut records = Vec::new();
    let kind = Elements { width: found.width, is_big: false, is_float: true };
    decode(kind, stored, None, bytes, work, &mut records)?;
    raw.clear();
    found.join(&records, &others, raw)?;
    (raw.len() == raw_bytes).then_some(())
}

fn decode(
    kind: Elements,
    mut stored: &[u8],
    older: Option<&[u8]>,
    raw_bytes: usize,
    work: &mut Work,
    raw: &mut Vec<u8>,
) -> Option<()> {
    let elements = raw_bytes / kind.width;
    let (packed, header_bytes) = (take(&mut stored)?, take(&mut stored)?);
    let (packed, mut codes) = stored.split_at_checked(packed)?;
    let most = raw_bytes * 12 + MORE_BYTES;
    (header_bytes <= if older.is_some() { most * 2 } else { most }).then_some(())?;
    let header = zstd::bulk::decompress(packed, header_bytes).ok()?;
    let mut header = header.as_slice();
    let (known_groups, mut known_body) = match older {
        Some(older) => Known::read(&mut header, older, kind, elements)?,
        None => (0, Vec::new()),
    };
    let known = known_body.len() / kind.width;
    let mut layout = Layout::read(&mut header, known + elements)?;
    let known_columns = Twins::check(&layout, known_groups, known)?;
    (older.is_some() || layout.tables.iter().all(|table| table.older.is_none())).then_some(())?;
    older::fill_by_number(&layout.groups, &layout.tables, older.unwrap_or_default(), kind, &mut known_body)?;
    let working = layout.elements();
    let (threads, Buffers { bits, values, froms }) = (work.threads, &mut work.predict);
    for (i, froms) in froms.iter_mut().enumerate() {
        froms.clear();
        let count = take(&mut header)?;
        let mut lists: [&[u8]; 3] = [&[]; 3];
        for list in &mut lists {
            let bytes = take(&mut header)?;
            let (front, rest) = header.split_at_checked(bytes)?;
            (*list, header) = (front, rest);
        }
        let [skips, lengths, from_bytes] = lists;
        if count > 0 {
            froms.resize(working, 0);
            repeats::places(froms, (known, if i == 0 { 0 } else { known as i64 }), count, skips, lengths, from_bytes)?;
        }
    }
    for (froms, least) in froms.iter_mut().zip([0, known]).filter(|_| layout.has_strides) {
        strides::read(&mut header, (known, least), working, froms)?;
    }
    let runs = froms.each_ref().map(Vec::as_slice);
    let mut nested = Vec::new();
    for _ in 0..take(&mut header).filter(|&n| n <= layout.columns.len())? {
        nested.push((take(&mut header)?, nested::read(&mut header)?));
    }
    let all_cells = choose::all_cells(&layout.columns, &nested)?;
    // Whatever was decoded before: every element is written before it is read.
    let bits = of_length(bits, working);
    let values = of_length(values, if kind.is_float { working } else { 0 });
    if cfg!(debug_assertions) {
        bits.fill(0xA5A5_A5A5_A5A5_A5A5);
        values.fill(f64::NAN);
    }
    if known > 0 {
        layout.runs(|from, step, run| match run {
            Run::After(to, count) if from < known => {
                kind.load_all(&known_body[from * kind.width..], step, &mut bits[to..to + count]);
            }
            Run::After(..) | Run::Placed(..) => {} // what is known is in no table
        });
    }
    values.iter_mut().zip(&bits[..known]).for_each(|(value, &bits)| *value = kind.value(bits));
    for column in layout.columns[..known_columns].iter().filter(|_| kind.is_float) {
        column.unwrap(&mut values[column.base..column.base + column.elements]);
    }
    let mut stored = Vec::new();
    for column in known_columns..layout.columns.len() {
        let place = Place { columns: &layout.columns, column };
        let predictor = Predictor::read(&mut header, place, known_columns, kind)?;
        let mut parts: [&[u8]; 3] = [&[]; 3];
        for part in &mut parts {
            let (front, rest) = codes.split_at_checked(take(&mut header)?)?;
            (*part, codes) = (front, rest);
        }
        stored.push((predictor, parts));
    }
    let columns = &layout.columns;
    // Of the others no doubles are made.
    let mut is_read = vec![!nested.is_empty(); columns.len()];
    for (n, (predictor, _)) in stored.iter().enumerate() {
        predictor.backs().for_each(|back| is_read[known_columns + n - usize::from(back)] = true);
    }
    // No more than there are threads, so that they stay near the processors.
    let buffers = Mutex::new(Vec::new());
    let buffers = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
    let coded = |n: usize| {
        let (column, (predictor, parts)) = (known_columns + n, &stored[n]);
        let cells = all_cells.get(column).filter(|_| predictor.told.is_some()).map_or(&[][..], Vec::as_slice);
        (predictor.told.is_none() || kind.is_float && !cells.is_empty()).then_some(())?;
        let base = columns[column].base;
        let marks = Marks::new(runs, cells, base..base + columns[column].elements);
        let buffer = buffers().pop().unwrap_or_default();
        Coded::new(kind, *parts, marks, buffer)
    };
    // What is stored of a column does not depend on others, its elements do.
    threads::in_turn(stored.len(), threads, coded, |n, coded| {
        let place = Place { columns, column: known_columns + n };
        let coded = coded?;
        stored[n].0.decode(place, kind, &coded, bits, values, is_read[place.column])?;
        buffers().push(coded.into_buffer());
        Some(())
    })?;
    let orders = tables::decode_orders(&layout, (kind, bits), threads, &mut header, &mut codes)?;
    layout.tables.iter_mut().zip(orders).for_each(|(table, slots)| table.slots = slots);
    header.is_empty().then_some(())?;
    resize_for_overwrite(raw, raw_bytes);
    let (body, tail) = raw.split_at_mut(elements * kind.width);
    layout.store(bits, kind, known, body, threads);
    (codes.len() == tail.len()).then(|| tail.copy_from_slice(codes))
}
