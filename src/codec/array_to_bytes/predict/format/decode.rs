//! The decoder: turns a stream back into the bytes of a segment.

use super::super::particles::{decode_orders, fill_known_rows};
use super::copies::{Marks, Source};
use super::layout::{Layout, Run};
use super::linear::Place;
use super::numbers::Elements;
use super::older::Known;
use super::predictor::{Coded, Predictor};
use super::{copies, nested, records, strides};
use crate::codec::array_to_bytes::varint::take;
use crate::codec::{CodecError, Work, resize_for_overwrite, threads};
use std::sync::{Mutex, PoisonError};

/// Encoded bytes that every segment may take in addition to 12 bytes for each raw byte. Short segments need these
/// additional bytes.
pub(crate) const MORE_BYTES: usize = 16 << 10;

/// Buffers of a decoder. The buffers are kept between segments, so that the system does not allocate their pages
/// again.
#[derive(Default)]
pub(crate) struct Buffers {
    pub bits: Vec<u64>,
    pub values: Vec<f64>,
    pub froms: [Vec<Source>; 2],
}

pub(crate) fn damaged(what: &'static str) -> CodecError {
    CodecError::Damaged { codec: "predict", what }
}

/// The first `len` elements of a buffer that only grows. The values of the elements are arbitrary. This function
/// writes no new pages; the system allocates each page when the page is first written.
pub(crate) fn of_length<T: Default + Clone>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = vec![T::default(); len];
    }
    &mut buffer[..len]
}

pub(crate) fn decode_bytes(mut stored: &[u8], raw_bytes: usize, work: &mut Work, raw: &mut Vec<u8>) -> Option<()> {
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

pub(crate) fn decode(
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
    let known_columns = layout.known_columns(known_groups, known)?;
    (older.is_some() || layout.tables.iter().all(|table| table.older.is_none())).then_some(())?;
    fill_known_rows(&layout.groups, &layout.tables, older.unwrap_or_default(), kind, &mut known_body)?;
    let working = layout.elements();
    let threads = work.threads;
    let Buffers { bits, values, froms } = work.kept::<Buffers>();
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
            copies::places(froms, known, if i == 0 { 0 } else { known as i64 }, count, skips, lengths, from_bytes)?;
        }
    }
    for (froms, least) in froms.iter_mut().zip([0, known]).filter(|_| layout.has_strides) {
        strides::read(&mut header, known, least, working, froms)?;
    }
    let runs = froms.each_ref().map(Vec::as_slice);
    let mut nested = Vec::new();
    for _ in 0..take(&mut header).filter(|&n| n <= layout.columns.len())? {
        nested.push((take(&mut header)?, nested::read(&mut header)?));
    }
    let all_cells = nested::all_cells(&layout.columns, &nested)?;
    // The buffers hold elements of an earlier segment. Every element is written before it is read.
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
            Run::After(..) | Run::Placed(..) => {} // known elements are not in tables
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
    // For each column, whether predictions read the values of the column. Other columns are not converted to doubles.
    let mut is_read = vec![!nested.is_empty(); columns.len()];
    for (n, (predictor, _)) in stored.iter().enumerate() {
        predictor.backs().for_each(|back| is_read[known_columns + n - usize::from(back)] = true);
    }
    // At most one buffer for each thread, so that the buffers stay in the processors' caches.
    let buffers = Mutex::new(Vec::new());
    let buffers = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
    let coded = |n: usize| {
        let (column, (predictor, parts)) = (known_columns + n, &stored[n]);
        let cells = all_cells.get(column).filter(|_| predictor.derived.is_some()).map_or(&[][..], Vec::as_slice);
        (predictor.derived.is_none() || kind.is_float && !cells.is_empty()).then_some(())?;
        let base = columns[column].base;
        let marks = Marks::new(runs, cells, base..base + columns[column].elements);
        let buffer = buffers().pop().unwrap_or_default();
        Coded::new(kind, *parts, marks, buffer)
    };
    // The stored differences of columns are decoded in parallel. The elements depend on earlier columns, so columns
    // are filled in order.
    threads::in_turn(stored.len(), threads, coded, |n, coded| {
        let place = Place { columns, column: known_columns + n };
        let coded = coded?;
        stored[n].0.decode(place, kind, &coded, bits, values, is_read[place.column])?;
        buffers().push(coded.into_buffer());
        Some(())
    })?;
    let orders = decode_orders(&layout, kind, bits, threads, &mut header, &mut codes)?;
    layout.tables.iter_mut().zip(orders).for_each(|(table, slots)| table.slots = slots);
    header.is_empty().then_some(())?;
    resize_for_overwrite(raw, raw_bytes);
    let (body, tail) = raw.split_at_mut(elements * kind.width);
    layout.store(bits, kind, known, body, threads);
    (codes.len() == tail.len()).then(|| tail.copy_from_slice(codes))
}
