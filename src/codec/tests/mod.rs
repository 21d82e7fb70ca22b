//! Tests of properties that every codec and every chain of codecs has.

mod choosing;
mod golden;
mod inputs;
mod looking_back;

use self::inputs::*;
use super::array_to_bytes::since;
use super::table::Codec;
use super::*;
use crate::header::{ByteOrder, ElementType, Member};
use crate::ids::Digest;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

const F64BE: ElementType = ElementType::Float { width: 8, order: ByteOrder::Big };

fn particle() -> ElementType {
    let member = |offset, count, element| Member { offset, count, element };
    let id = ElementType::Int { width: 4, signed: false, order: ByteOrder::Little };
    ElementType::Compound {
        width: 30,
        members: [member(0, 1, id), member(6, 2, ElementType::F64), member(22, 2, ElementType::F32)].into(),
    }
}

/// Every codec with each kind of parameter, and chains of several codecs.
fn chains() -> Vec<Chain> {
    use ByteOrder::{Big, Little};
    let mut chains = vec![
        Chain::raw(),
        Chain::gzip(1),
        Chain::zstd(3),
        Chain::zstd_fast(18),
        Chain::lz4(),
        Chain::lzma_of_words(),
        Chain::raw().then(ids::SHUFFLE, 8).then(ids::LZMA, 93),
        Chain::fpc(2, Little),
        Chain::fpc(20, Big),
        Chain::columns(&particle()).expect("a compound type"),
        Chain::of(&[(ids::COLUMNS, 16)]),
        Chain::raw().then(ids::SHUFFLE, 3).then(ids::SHUFFLE, 8),
        Chain::shuffle_zstd(8, 1),
        Chain::mixed(1),
        Chain::mixed(2).then_zstd(1),
        Chain::paper(&ElementType::F64, true, false),
        Chain::paper(&ElementType::F32, true, false),
        Chain::fpc(8, Little).then(ids::SHUFFLE, 2).then(ids::LZ4, 0).then_zstd(1).then_gzip(1),
    ];
    let int = |width, order| ElementType::Int { width, signed: true, order };
    for element in [ElementType::F64, ElementType::F32, F64BE, int(4, Little), int(8, Big), ElementType::Bytes] {
        chains.extend([1, 2].map(|effort| Chain::predict(&element, effort).expect("numeric type or bytes")));
    }
    for width in [1, 3, 4, 8] {
        chains.push(Chain::runs(width).expect("a valid width"));
        chains.push(Chain::bitshuffle_zstd(width, 1));
    }
    for (width, order, signed) in [(2, Little, true), (4, Big, false), (4, Little, true), (8, Little, false)] {
        let element = ElementType::Int { width, signed, order };
        chains.push(Chain::pco(&element, 4).expect("numeric type").then(ids::LZ4, 0));
    }
    chains.extend([ElementType::F64, F64BE, ElementType::F32].map(|e| Chain::pco(&e, 8).expect("numeric type")));
    chains.push(Chain::runs(8).expect("a valid width").then(ids::BITSHUFFLE, 4).then(ids::LZ4, 0));
    for dimensions in 1..=3 {
        chains.extend([(4, Little), (4, Big), (8, Little), (8, Big)].map(|(w, o)| Chain::fpzip(w, o, dimensions)));
    }
    chains
}

/// Bytes of any length: numbers of several kinds, random bytes, and equal bytes.
fn raw_bytes() -> impl Strategy<Value = Vec<u8>> {
    let doubles = prop::collection::vec(any::<f64>(), 0..200)
        .prop_map(|v| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let smooth = (any::<f32>(), -4.0f32..4.0, 0usize..400, any::<bool>()).prop_map(|(start, step, n, big)| {
        let value = |i| start + step * (i as f32);
        (0..n).flat_map(|i| if big { value(i).to_be_bytes() } else { value(i).to_le_bytes() }).collect::<Vec<u8>>()
    });
    let odd_bits = prop::collection::vec(
        prop::sample::select(vec![
            0u64,
            1 << 63,
            f64::NAN.to_bits() | 0xBAD,
            0xFFF0_0000_0000_0001,
            0x7FF0_0000_0000_0000,
            1,
            0x8000_0000_8000_0000,
            0x7F80_0001_FFC0_0000,
            1.0f64.to_bits(),
        ]),
        0..300,
    )
    .prop_map(|v| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let any_bytes = prop::collection::vec(any::<u8>(), 0..600);
    let records = (1usize..6, 40usize..90, prop::collection::vec(any::<u8>(), 0..20), any::<u16>()).prop_map(
        |(lanes, rows, head, seed)| {
            let value = |n: usize| 1.0 + ((n * (usize::from(seed) + 3)) as f64).sin() * (n % lanes) as f64;
            head.into_iter().chain((0..lanes * rows).flat_map(|n| value(n).to_le_bytes())).collect::<Vec<u8>>()
        },
    );
    let same = (any::<u8>(), 0usize..3000).prop_map(|(byte, n)| vec![byte; n]);
    let body = prop_oneof![doubles, smooth, odd_bits, any_bytes, same, records];
    (body, prop::collection::vec(any::<u8>(), 0..9)).prop_map(|(mut body, tail)| {
        body.extend(tail);
        body
    })
}

fn arrays() -> impl Strategy<Value = Vec<ArrayShape>> {
    let dims = prop::collection::vec(prop_oneof![1u64..12, Just(0), Just(u64::MAX)], 0..5);
    let chunk = prop::collection::vec(prop_oneof![1u64..6, Just(0)], 0..5);
    let array = (dims, 0u64..300, any::<bool>(), 0u32..3, chunk).prop_map(|(dims, cut, whole, column, chunk)| {
        let product = dims.iter().fold(1u64, |a, &n| a.saturating_mul(n));
        ArrayShape { elements: if whole { product } else { cut }, dims, chunk, column, is_integer: column == 2 }
    });
    prop::collection::vec(array, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_chain_gives_back_every_bit(raw in raw_bytes(), arrays in arrays()) {
        let mut scratch = Scratch::default();
        for chain in chains() {
            let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
            let mut most = raw.len();
            for step in chain.steps() {
                most = match Codec::find(step.codec).expect("known") {
                    Codec::Array(codec) => codec.max_encoded_bytes(step.param, most),
                    Codec::Bytes(codec) => codec.max_encoded_bytes(most),
                };
            }
            prop_assert!(stored.len() <= most, "{chain}: {} bytes, at most {most}", stored.len());
            let again = chain.decode(&stored, raw.len(), &mut scratch);
            prop_assert!(again.as_ref().is_ok_and(|again| *again == raw), "{chain}: {again:?}");
            prop_assert!(chain.gives_back(&stored, &raw, &mut scratch).is_ok_and(|same| same), "{chain}");
            if let Some((_, others)) = raw.split_first().filter(|(_, others)| !others.is_empty()) {
                let others = [others, &[!raw[0]]].concat();
                prop_assert!(others == raw || !chain.gives_back(&stored, &others, &mut scratch).unwrap_or(false));
            }
            // A new decoder reads the chain as the container stores it.
            let mut bytes = Vec::new();
            chain.to_bytes(&mut bytes);
            let (read, used) = Chain::from_bytes(&bytes).expect("valid");
            prop_assert_eq!((&read, used), (&chain, bytes.len()));
            prop_assert_eq!(read.decode(&stored, raw.len(), &mut Scratch::default()).expect("decodes"), &raw[..]);
        }
    }

    #[test]
    fn particles_come_back_in_the_order_they_came_in_and_damaged_ones_are_told_or_wrong(
        parts in prop::collection::vec(1u64..400, 1..5), padding in 0usize..3, at in any::<prop::sample::Index>(), bit in 0u32..8,
        effort in 1u32..3, is_curve in any::<bool>(),
    ) {
        let (arrays, raw) = if is_curve { rows_along_a_curve(10, 3.0, &parts) } else { rows(10, &parts, padding) };
        let chain = Chain::predict(&ElementType::F32, effort).expect("numeric type");
        let mut scratch = Scratch::default();
        let mut stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        prop_assert!(chain.decode(&stored, raw.len(), &mut scratch).is_ok_and(|again| again == raw));
        let at = at.index(stored.len());
        stored[at] ^= 1 << bit;
        // Damaged bytes may give an error or wrong bytes, but no panic.
        let _ = chain.decode(&stored, raw.len(), &mut scratch);
    }

    #[test]
    fn what_is_there_transposed_takes_a_part_of_it_and_comes_back_and_damage_is_no_panic(
        side in 20usize..50, (at, bit) in (any::<prop::sample::Index>(), 0u32..8),
    ) {
        let (arrays, raw) = transposed(side);
        let chain = Chain::predict(&ElementType::F64, 2).expect("numeric type");
        let mut scratch = Scratch::default();
        let mut stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        // The matrix takes about 50 bits a number. The transposed copy takes almost no bytes. The copy with small
        // changes takes about 13 bits a number.
        prop_assert!(stored.len() * 16 < raw.len() * 9, "{} of {} bytes", stored.len(), raw.len());
        prop_assert!(chain.decode(&stored, raw.len(), &mut scratch).is_ok_and(|again| again == raw));
        let at = at.index(stored.len());
        stored[at] ^= 1 << bit;
        check_hostile(&chain, &stored, raw.len(), &mut scratch)?;
    }

    #[test]
    fn what_is_coded_with_an_older_segment_comes_back_with_it_and_is_told_or_wrong_without(
        (raw, arrays) in prop_oneof![
            (raw_bytes(), arrays()),
            Just(()).prop_map(|()| (grid_numbers().into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>(), grids())),
            prop::collection::vec(150u64..300, 1..4).prop_map(|parts| { let (arrays, raw) = rows(9, &parts, 1); (raw, arrays) }),
        ],
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        moved in prop::collection::vec((0usize..9, 0usize..3, 0usize..40), 0..12),
        (at, bit) in (any::<prop::sample::Index>(), 0u32..8),
        lost in any::<prop::sample::Index>(),
    ) {
        for element in [ElementType::F64, F64BE, ElementType::F32, ElementType::Int { width: 4, signed: true, order: ByteOrder::Little }] {
            let mut older = Older { raw: older_of(&raw), places: places(&arrays, element.width() as usize) };
            let is_empty = older.raw.is_empty();
            for (at, value) in changes.iter().filter(|_| !is_empty) {
                let at = at.index(older.raw.len());
                older.raw[at] ^= value;
            }
            // Some places are moved, and some are shortened. Some places lie beyond the end, or begin within an
            // element.
            for (place, (from, skip, less)) in older.places.iter_mut().zip(&moved) {
                let bytes = place.bytes.saturating_sub(*less);
                let (from, skip) = (place.from.saturating_add(from * 4), skip * 4);
                *place = OlderPlace { from, skip, bytes, is_other_length: less % 3 == 1 };
            }
            let older = Arc::new(older);
            let bytes = raw.len();
            for effort in [1, 2] {
                let chain = Chain::since(&element, effort).expect("numeric type");
                let mut scratch = Scratch::default();
                prop_assert!(matches!(chain.encode(&raw, &arrays, &mut scratch), Err(CodecError::NothingOlder)));
                scratch.set_older(Some(Arc::clone(&older)));
                let mut stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
                prop_assert!(stored.len() <= since::Since.max_encoded_bytes(chain.steps()[0].param, bytes));
                // The decoder gets only the bytes of the older segment, without the places of the arrays.
                let alone = |raw: Vec<u8>| Some(Arc::new(Older { raw, places: Vec::new() }));
                let mut afresh = Scratch::default();
                afresh.set_older(alone(older.raw.clone()));
                let again = chain.decode(&stored, bytes, &mut afresh);
                prop_assert!(again.as_ref().is_ok_and(|again| *again == raw), "{chain}: {again:?}");
                afresh.set_older(None);
                prop_assert!(matches!(chain.decode(&stored, bytes, &mut afresh), Err(CodecError::NothingOlder)));
                // A shortened older segment may give an error or wrong bytes, but no panic and no other length.
                afresh.set_older(alone(older.raw[..lost.index(older.raw.len() + 1)].to_vec()));
                check_hostile(&chain, &stored, bytes, &mut afresh)?;
                if !stored.is_empty() {
                    let at = at.index(stored.len());
                    stored[at] ^= 1 << bit;
                }
                afresh.set_older(Some(Arc::clone(&older)));
                check_hostile(&chain, &stored, bytes, &mut afresh)?;
            }
        }
    }

    #[test]
    fn encoding_does_not_depend_on_what_was_encoded_before(first in raw_bytes(), second in raw_bytes()) {
        let mut used = Scratch::default();
        for chain in chains() {
            chain.encode(&first, &[], &mut used).expect("encodes");
            let stored = chain.encode(&second, &[], &mut used).expect("encodes");
            prop_assert_eq!(stored, chain.encode(&second, &[], &mut Scratch::default()).expect("encodes"), "{}", chain);
        }
    }

    #[test]
    fn damaged_bytes_give_an_error_or_the_right_length_within_bounded_memory(
        raw in raw_bytes(),
        arrays in arrays(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        more in prop::collection::vec(any::<u8>(), 0..4),
        expected in prop_oneof![4 => Just(None), 1 => (0usize..5000).prop_map(Some)],
    ) {
        for chain in chains() {
            let mut scratch = Scratch::default();
            let mut stored = chain.encode(&raw, &arrays, &mut Scratch::default()).expect("encodes");
            for (at, value) in &flips {
                if !stored.is_empty() {
                    let at = at.index(stored.len());
                    stored[at] ^= value;
                }
            }
            if let Some(cut) = cut {
                stored.truncate(cut.index(stored.len() + 1));
            }
            stored.extend(&more);
            check_hostile(&chain, &stored, expected.unwrap_or(raw.len()), &mut scratch)?;
        }
    }

    #[test]
    fn random_bytes_never_panic(stored in prop::collection::vec(any::<u8>(), 0..400), raw_bytes in 0usize..3000) {
        for chain in chains() {
            check_hostile(&chain, &stored, raw_bytes, &mut Scratch::default())?;
        }
    }

    #[test]
    fn random_chains_are_valid_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40), stored in any::<[u8; 9]>()) {
        if let Ok((chain, used)) = Chain::from_bytes(&bytes) {
            let mut again = Vec::new();
            chain.to_bytes(&mut again);
            prop_assert_eq!(&again[..], &bytes[..used]);
            check_hostile(&chain, &stored, 100, &mut Scratch::default())?;
        }
    }

    #[test]
    fn the_best_chain_is_never_longer_than_the_raw_bytes_and_gives_them_back(raw in raw_bytes(), arrays in arrays()) {
        let mut scratch = Scratch::default();
        let elements = [ElementType::F64, ElementType::F32, F64BE, ElementType::Bytes, particle(),
            ElementType::Fixed { width: 12 }, ElementType::Int { width: 2, signed: true, order: ByteOrder::Big }];
        let profiles = ["fast", "balanced", "max", "paper", "paper-single", "raw", "gzip", "zstd", "shuffle-zstd", "fpc", "fpzip"];
        for (element, profile) in elements.iter().flat_map(|e| profiles.map(|p| (e, p))) {
            let profile: Profile = profile.parse().expect("known");
            let (chain, stored) =
                encode_best(&profile, &raw, element, &arrays, raw.len() % 2 == 0, &mut scratch).expect("encodes");
            prop_assert!(stored.len() <= raw.len());
            prop_assert_eq!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes"), &raw[..], "{}", chain);
        }
    }
}

fn check_hostile(chain: &Chain, stored: &[u8], raw_bytes: usize, scratch: &mut Scratch) -> Result<(), TestCaseError> {
    if let Ok(raw) = chain.decode(stored, raw_bytes, scratch) {
        prop_assert_eq!(raw.len(), raw_bytes, "{}", chain);
    }
    // Each step may grow the bytes by at most half, plus a constant.
    let most = raw_bytes * 16 + 600_000 * usize::from(chain.to_string().contains("columns")) + 40_000;
    for buffer in [&scratch.front, &scratch.back] {
        prop_assert!(buffer.capacity() <= most, "{}: {} bytes for {}", chain, buffer.capacity(), raw_bytes);
    }
    Ok(())
}

#[test]
fn a_bomb_is_refused_before_it_takes_memory() {
    let raw = vec![0; 30 << 20];
    for chain in
        [Chain::zstd(3), Chain::gzip(6), Chain::lz4(), Chain::lzma_of_words(), Chain::raw().then_zstd(1).then_zstd(1)]
    {
        let stored = chain.encode(&raw, &[], &mut Scratch::default()).expect("encodes");
        let mut scratch = Scratch::default();
        let error = chain.decode(&stored, 1000, &mut scratch).expect_err("too many bytes are refused");
        assert!(scratch.front.capacity() + scratch.back.capacity() < 10_000, "{chain}: {error}");
    }
}

#[test]
fn a_segment_above_the_limit_is_refused() {
    let error = Chain::zstd(1)
        .decode(&[], SEGMENT_BYTES_MAX + 1, &mut Scratch::default())
        .expect_err("too many bytes are refused");
    assert_eq!(error.to_string(), "the segment has 1073741825 raw bytes; at most 1073741824 are allowed");
}

#[test]
fn chains_that_are_not_one_array_codec_and_then_byte_codecs_are_refused() {
    let chain = |steps: &[(u16, u32)]| {
        let steps: Vec<Step> = steps.iter().map(|&(id, param)| Step { codec: CodecId(id), param }).collect();
        Chain::new(&steps).map(|chain| chain.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(chain(&[(1, 0), (16, 8), (18, 1)]), Ok("shuffle(8) zstd(1)".into()));
    assert_eq!(chain(&[(1, 0)]), Ok("raw".into()));
    assert_eq!(chain(&[(2, 0x102), (19, 6)]), Ok("fpc(2,be) gzip(6)".into()));
    assert_eq!(chain(&[(3, 0x3_0104), (17, 0)]), Ok("fpzip(4,3d,be) lz4".into()));
    assert_eq!(chain(&[(4, 24)]), Ok("columns(24)".into()));
    assert_eq!(chain(&[(6, 24), (20, 8)]), Ok("runs(24) bitshuffle(8)".into()));
    assert_eq!(chain(&[(7, 0x8_0708)]), Ok("pco(u64be, level 8)".into()));
    assert_eq!(chain(&[(7, 0x4_0004)]), Ok("pco(f32, level 4)".into()));
    assert_eq!(chain(&[(5, 0x2_0308)]), Ok("predict(i64be, effort 2)".into()));
    assert_eq!(chain(&[(5, 0x1_0408)]), Ok("predict(bytes, effort 1)".into()));
    assert_eq!(chain(&[(9, 0x2_0000)]), Ok("mixed(effort 2)".into()));
    assert_eq!(chain(&[(1, 0), (21, 93)]), Ok("lzma(93)".into()));
    for (steps, expected) in [
        (&[][..], "not a chain of codecs: it has no steps"),
        (&[(18, 1)], "not a chain of codecs: the first step is not an array-to-bytes codec"),
        (&[(1, 0), (2, 2)], "not a chain of codecs: an array-to-bytes codec is not the first step"),
        (&[(1, 0); 7], "not a chain of codecs: it has more than 6 steps"),
        (&[(0, 0)], "codec 0 is not known to this build"),
        (&[(1, 0), (999, 0)], "codec 999 is not known to this build"),
        (&[(1, 1)], "codec raw: parameter 0x1 is not valid"),
        (&[(2, 0)], "codec fpc: parameter 0x0 is not valid"),
        (&[(2, 21)], "codec fpc: parameter 0x15 is not valid"),
        (&[(3, 0x1_0005)], "codec fpzip: parameter 0x10005 is not valid"),
        (&[(3, 0x4_0008)], "codec fpzip: parameter 0x40008 is not valid"),
        (&[(3, 0x1_0208)], "codec fpzip: parameter 0x10208 is not valid"),
        (&[(5, 0x1_0003)], "codec predict: parameter 0x10003 is not valid"),
        (&[(5, 0x0_0008)], "codec predict: parameter 0x8 is not valid"),
        (&[(5, 0x3_0008)], "codec predict: parameter 0x30008 is not valid"),
        (&[(5, 0x1_0604)], "codec predict: parameter 0x10604 is not valid"),
        (&[(6, 0)], "codec runs: parameter 0x0 is not valid"),
        (&[(7, 0x8_0002)], "codec pco: parameter 0x80002 is not valid"),
        (&[(7, 0x8_0408)], "codec pco: parameter 0x80408 is not valid"),
        (&[(9, 0x2)], "codec mixed: parameter 0x2 is not valid"),
        (&[(9, 0x3_0000)], "codec mixed: parameter 0x30000 is not valid"),
        (&[(7, 0xD_0008)], "codec pco: parameter 0xd0008 is not valid"),
        (&[(1, 0), (20, 0)], "codec bitshuffle: parameter 0x0 is not valid"),
        (&[(4, 1)], "codec columns: parameter 0x1 is not valid"),
        (&[(1, 0), (16, 1 << 21)], "codec shuffle: parameter 0x200000 is not valid"),
        (&[(1, 0), (17, 3)], "codec lz4: parameter 0x3 is not valid"),
        (&[(1, 0), (21, 225)], "codec lzma: parameter 0xe1 is not valid"),
        (&[(1, 0), (21, 2 * 9 + 3)], "codec lzma: parameter 0x15 is not valid"),
        (&[(1, 0), (18, 0)], "codec zstd: parameter 0x0 is not valid"),
        (&[(1, 0), (19, 10)], "codec gzip: parameter 0xa is not valid"),
    ] {
        assert_eq!(chain(steps), Err(expected.into()), "{steps:?}");
    }
    let mut bytes = Vec::new();
    Chain::shuffle_zstd(8, 1).to_bytes(&mut bytes);
    for len in 0..bytes.len() {
        Chain::from_bytes(&bytes[..len]).expect_err("an incomplete chain is refused");
    }
}

#[test]
fn a_column_that_is_taken_apart_again_is_refused() {
    // One column of 16 bytes. The chain of the column is columns(16), and the column has no data.
    let mut stored = vec![1, 16];
    Chain::of(&[(ids::COLUMNS, 16)]).to_bytes(&mut stored);
    stored.push(0);
    let error = Chain::of(&[(ids::COLUMNS, 16)])
        .decode(&stored, 0, &mut Scratch::default())
        .expect_err("nested chains are refused");
    assert_eq!(
        error.to_string(),
        "codec columns: the stored bytes are damaged: a column contains columns or streams again"
    );
}

/// Each chain encodes a slice of each real checkpoint file, as bytes.
#[test]
fn slices_of_real_checkpoints_come_back() {
    let Some(corpus) = std::env::var_os("MCR_CORPUS") else {
        eprintln!("skipped: MCR_CORPUS does not name a folder of checkpoints");
        return;
    };
    let mut folders = vec![PathBuf::from(corpus)];
    let mut scratch = Scratch::default();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            if files % 7 != 0 {
                continue; // every seventh file is enough
            }
            let whole = std::fs::read(&path).expect("readable");
            let raw = &whole[whole.len() / 3..whole.len().min(whole.len() / 3 + (256 << 10) + 5)];
            let elements = (raw.len() / 8) as u64;
            let arrays = [ArrayShape { elements, dims: vec![elements / 256, 16, 16], ..ArrayShape::default() }];
            let is_predict = |chain: &Chain| chain.steps()[0].codec == ids::PREDICT;
            // Chains of `predict` are slow, so each file is encoded with only one of these chains.
            let (slow, fast): (Vec<Chain>, Vec<Chain>) = chains().into_iter().partition(is_predict);
            let one = slow[files / 7 % slow.len()].clone();
            for chain in fast.into_iter().chain([one]) {
                let stored = chain.encode(raw, &arrays, &mut scratch).expect("encodes");
                let again = chain.decode(&stored, raw.len(), &mut scratch).expect("decodes");
                assert!(again == raw, "{}: {chain}", path.display());
            }
        }
    }
    assert!(files > 0, "MCR_CORPUS names an empty folder");
}
