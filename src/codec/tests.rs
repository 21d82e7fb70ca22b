//! What holds for every codec, and for chains of them.

use super::*;
use crate::ids::Digest;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

const F64BE: ElementType = ElementType::Float { width: 8, order: ByteOrder::Big };

fn particle() -> ElementType {
    let member = |offset, count, element| Member { offset, count, element };
    let id = ElementType::Int { width: 4, signed: false, order: ByteOrder::Little };
    ElementType::Compound {
        width: 30,
        members: [member(0, 1, id), member(6, 2, ElementType::F64), member(22, 2, ElementType::F32)].into(),
    }
}

/// Each codec with each kind of parameter, and chains of several.
fn chains() -> Vec<Chain> {
    use ByteOrder::{Big, Little};
    let mut chains = vec![
        Chain::raw(),
        Chain::gzip(1),
        Chain::zstd(3),
        Chain::lz4(),
        Chain::fpc(2, Little),
        Chain::fpc(20, Big),
        Chain::columns(&particle()).expect("a compound"),
        Chain::of(&[(columns::ID, 16)]),
        Chain::raw().then(shuffle::ID, 3).then(shuffle::ID, 8),
        Chain::shuffle_zstd(8, 1),
        Chain::paper(&ElementType::F64, true, false),
        Chain::paper(&ElementType::F32, true, false),
        Chain::fpc(8, Little).then(shuffle::ID, 2).then(lz4::ID, 0).then_zstd(1).then_gzip(1),
    ];
    let int = |width, order| ElementType::Int { width, signed: true, order };
    for element in [ElementType::F64, ElementType::F32, F64BE, int(4, Little), int(8, Big), ElementType::Bytes] {
        chains.extend([1, 2].map(|effort| Chain::predict(&element, effort).expect("numbers or bytes")));
    }
    for width in [1, 3, 4, 8] {
        chains.push(Chain::runs(width).expect("a width"));
        chains.push(Chain::bitshuffle_zstd(width, 1));
    }
    for (width, order, signed) in [(2, Little, true), (4, Big, false), (4, Little, true), (8, Little, false)] {
        let element = ElementType::Int { width, signed, order };
        chains.push(Chain::pco(&element, 4).expect("numbers").then(lz4::ID, 0));
    }
    chains.extend([ElementType::F64, F64BE, ElementType::F32].map(|e| Chain::pco(&e, 8).expect("numbers")));
    chains.push(Chain::runs(8).expect("a width").then(bitshuffle::ID, 4).then(lz4::ID, 0));
    for dimensions in 1..=3 {
        chains.extend([(4, Little), (4, Big), (8, Little), (8, Big)].map(|(w, o)| Chain::fpzip(w, o, dimensions)));
    }
    chains
}

/// Bytes that look like numbers, like anything, or like nothing; any length.
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
            // A decoder that starts afresh, from the chain as the container stores it.
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
        effort in 1u32..3,
    ) {
        let (arrays, raw) = rows(10, &parts, padding);
        let chain = Chain::predict(&ElementType::F32, effort).expect("numbers");
        let mut scratch = Scratch::default();
        let mut stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        prop_assert!(chain.decode(&stored, raw.len(), &mut scratch).is_ok_and(|again| again == raw));
        let at = at.index(stored.len());
        stored[at] ^= 1 << bit;
        // Anything but a panic.
        let _ = chain.decode(&stored, raw.len(), &mut scratch);
    }

    #[test]
    fn what_is_coded_with_an_older_segment_comes_back_with_it_and_is_told_or_wrong_without(
        (raw, arrays) in prop_oneof![
            (raw_bytes(), arrays()),
            Just(()).prop_map(|()| (grid_numbers().into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>(), grids())),
            prop::collection::vec(1u64..300, 1..4).prop_map(|parts| { let (arrays, raw) = rows(8, &parts, 1); (raw, arrays) }),
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
            // Some are moved, some cut, some lie beyond the end, or not between elements.
            for (place, (from, skip, less)) in older.places.iter_mut().zip(&moved) {
                let bytes = place.bytes.saturating_sub(*less);
                *place = OlderPlace { from: place.from.saturating_add(from * 4), skip: skip * 4, bytes };
            }
            let older = Arc::new(older);
            let bytes = raw.len();
            for effort in [1, 2] {
                let chain = Chain::since(&element, effort).expect("numbers");
                let mut scratch = Scratch::default();
                prop_assert!(matches!(chain.encode(&raw, &arrays, &mut scratch), Err(CodecError::NothingOlder)));
                scratch.set_older(Some(Arc::clone(&older)));
                let mut stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
                prop_assert!(stored.len() <= since::Since.max_encoded_bytes(chain.steps()[0].param, bytes));
                // A decoder knows the bytes alone.
                let alone = |raw: Vec<u8>| Some(Arc::new(Older { raw, places: Vec::new() }));
                let mut afresh = Scratch::default();
                afresh.set_older(alone(older.raw.clone()));
                let again = chain.decode(&stored, bytes, &mut afresh);
                prop_assert!(again.as_ref().is_ok_and(|again| *again == raw), "{chain}: {again:?}");
                afresh.set_older(None);
                prop_assert!(matches!(chain.decode(&stored, bytes, &mut afresh), Err(CodecError::NothingOlder)));
                // With another segment: anything but a panic, or another length.
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
    // Each step at most half as much again, and some.
    let most = raw_bytes * 16 + 600_000 * usize::from(chain.to_string().contains("columns")) + 40_000;
    for buffer in [&scratch.front, &scratch.back] {
        prop_assert!(buffer.capacity() <= most, "{}: {} bytes for {}", chain, buffer.capacity(), raw_bytes);
    }
    Ok(())
}

#[test]
fn a_bomb_is_refused_before_it_takes_memory() {
    let raw = vec![0; 30 << 20];
    for chain in [Chain::zstd(3), Chain::gzip(6), Chain::lz4(), Chain::raw().then_zstd(1).then_zstd(1)] {
        let stored = chain.encode(&raw, &[], &mut Scratch::default()).expect("encodes");
        let mut scratch = Scratch::default();
        let error = chain.decode(&stored, 1000, &mut scratch).expect_err("too long");
        assert!(scratch.front.capacity() + scratch.back.capacity() < 10_000, "{chain}: {error}");
    }
}

#[test]
fn a_segment_above_the_limit_is_refused() {
    let error = Chain::zstd(1).decode(&[], SEGMENT_BYTES_MAX + 1, &mut Scratch::default()).expect_err("too long");
    assert_eq!(error.to_string(), "a segment of 1073741825 raw bytes; at most 1073741824 are allowed");
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
    for (steps, expected) in [
        (&[][..], "not a chain of codecs: it has no steps"),
        (&[(18, 1)], "not a chain of codecs: the first step is no array-to-bytes codec"),
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
        (&[(5, 0x4_0008)], "codec predict: parameter 0x40008 is not valid"),
        (&[(5, 0x1_0604)], "codec predict: parameter 0x10604 is not valid"),
        (&[(6, 0)], "codec runs: parameter 0x0 is not valid"),
        (&[(7, 0x8_0002)], "codec pco: parameter 0x80002 is not valid"),
        (&[(7, 0x8_0408)], "codec pco: parameter 0x80408 is not valid"),
        (&[(7, 0xD_0008)], "codec pco: parameter 0xd0008 is not valid"),
        (&[(1, 0), (20, 0)], "codec bitshuffle: parameter 0x0 is not valid"),
        (&[(4, 1)], "codec columns: parameter 0x1 is not valid"),
        (&[(1, 0), (16, 1 << 21)], "codec shuffle: parameter 0x200000 is not valid"),
        (&[(1, 0), (17, 3)], "codec lz4: parameter 0x3 is not valid"),
        (&[(1, 0), (18, 0)], "codec zstd: parameter 0x0 is not valid"),
        (&[(1, 0), (19, 10)], "codec gzip: parameter 0xa is not valid"),
    ] {
        assert_eq!(chain(steps), Err(expected.into()), "{steps:?}");
    }
    let mut bytes = Vec::new();
    Chain::shuffle_zstd(8, 1).to_bytes(&mut bytes);
    for len in 0..bytes.len() {
        Chain::from_bytes(&bytes[..len]).expect_err("a cut chain is refused");
    }
}

#[test]
fn a_column_that_is_taken_apart_again_is_refused() {
    // One column of 16 bytes, whose chain is columns(16), with nothing in it.
    let mut stored = vec![1, 16];
    Chain::of(&[(columns::ID, 16)]).to_bytes(&mut stored);
    stored.push(0);
    let error = Chain::of(&[(columns::ID, 16)]).decode(&stored, 0, &mut Scratch::default()).expect_err("nested");
    assert_eq!(error.to_string(), "codec columns: the stored bytes are damaged: a column is taken apart again");
}

#[test]
fn the_papers_chain_depends_on_the_type() {
    let shown = |element: &ElementType, double, pooled| Chain::paper(element, double, pooled).to_string();
    assert_eq!(shown(&ElementType::F64, true, false), "fpc(2) gzip(6)");
    assert_eq!(shown(&F64BE, false, false), "fpc(2,be)");
    assert_eq!(shown(&ElementType::F32, true, false), "fpzip(4,1d) gzip(6)");
    assert_eq!(shown(&ElementType::Bytes, true, false), "lz4 gzip(6)");
    assert_eq!(shown(&particle(), false, false), "lz4");
    assert_eq!(shown(&ElementType::F64, true, true), "gzip(6)");
}

#[test]
fn profiles_are_read_as_they_are_shown() {
    for name in [
        "fast",
        "balanced",
        "max",
        "paper",
        "paper-single",
        "raw",
        "gzip",
        "zstd",
        "zstd-22",
        "shuffle-zstd-9",
        "fpc",
        "fpc-2",
        "fpzip",
    ] {
        let profile: Profile = name.parse().expect("known");
        assert_eq!(profile.to_string(), name);
        let json = serde_json::to_string(&profile).expect("is text");
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<Profile>(&json).expect("is a profile"), profile);
    }
    assert_eq!("default".parse(), Ok(Profile::Fast), "its name in version 0.1");
    assert_eq!("zstd-3".parse(), Ok(Profile::Zstd { level: 3 }));
    for name in ["", "zst", "zstd-0", "zstd-23", "zstd-", "fpc-21", "raw-1", "zstd-99999999999", "-3", "default-1"] {
        assert_eq!(name.parse::<Profile>(), Err(ProfileError { found: name.into() }));
    }
}

/// Numbers near each other, without a library's sine.
fn wave(n: usize) -> Vec<f64> {
    let step = |(x, v): &mut (f64, f64)| {
        (*x, *v) = (*x + *v * 0.01, *v - *x * 0.01);
        Some(*x)
    };
    std::iter::repeat_n((), n).scan((1.0, 0.5), |state, ()| step(state)).collect()
}

#[test]
fn the_default_profile_takes_what_is_shorter_for_each_segment() {
    let mut scratch = Scratch::default();
    let mut shown = |raw: &[u8]| {
        let (chain, stored) =
            encode_best(&Profile::Fast, raw, &ElementType::F64, &[], false, &mut scratch).expect("encodes");
        let other = if chain == Chain::zstd(3) { Chain::shuffle_zstd(8, 1) } else { Chain::zstd(3) };
        let other_bytes = other.encode(raw, &[], &mut scratch).expect("encodes").len();
        assert!(stored.len() <= other_bytes, "{chain} {} {other} {other_bytes}", stored.len());
        chain.to_string()
    };
    for n in [10_000, 300_000] {
        let smooth: Vec<u8> = wave(n).iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(shown(&smooth), "shuffle(8) zstd(1)");
        // No pattern but that the same three numbers come again and again.
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as usize
        };
        let triples: Vec<[u8; 24]> = (0..64).map(|_| std::array::from_fn(|_| random() as u8)).collect();
        let repeats: Vec<u8> = (0..n / 3).flat_map(|_| triples[random() % 64]).collect();
        assert_eq!(shown(&repeats), "zstd(3)");
    }
    let noise: Vec<u8> = (0..40_000u32).flat_map(|i| Digest::of(&i.to_le_bytes()).0).collect();
    assert_eq!(shown_raw(&noise), "raw");
}

fn shown_raw(raw: &[u8]) -> String {
    let best = encode_best(&Profile::Fast, raw, &ElementType::F64, &[], false, &mut Scratch::default());
    best.expect("encodes").0.to_string()
}

#[test]
fn what_is_constant_is_a_few_bytes_whatever_its_width() {
    let shown = |raw: &[u8], element: &ElementType| {
        let mut scratch = Scratch::default();
        let (chain, stored) = encode_best(&Profile::Balanced, raw, element, &[], false, &mut scratch).expect("encodes");
        assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
        (chain.to_string(), stored.len())
    };
    assert_eq!(shown(&0.1f64.to_le_bytes().repeat(40_000), &ElementType::F64), ("runs(8)".into(), 12));
    let wide: Vec<u8> = (0..100_000u32).map(|n| (n / 1000) as u8).collect();
    let (chain, bytes) = shown(&wide.repeat(6), &ElementType::Fixed { width: 100_000 });
    assert_eq!(chain, "runs(100000) zstd(3)");
    assert!(bytes < 1000, "{bytes}");
}

#[test]
fn records_that_nobody_described_are_shuffled_by_their_length() {
    let mut seed = 1u64;
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    // Eleven numbers of sizes of their own.
    let number = |n: i32, noise: f64| 10f64.powi(40 * (n % 11) - 200) * (1.0 + noise / 100.0);
    let raw: Vec<u8> = (0..50_000).flat_map(|n| number(n, noise()).to_le_bytes()).collect();
    let mut scratch = Scratch::default();
    let coded = |kept: Option<&Decision>, scratch: &mut Scratch| {
        let basis = Basis { kept, ..Basis::NOTHING };
        encode_chosen(&Profile::Fast, &raw, &ElementType::Bytes, &[], false, &basis, scratch).expect("encodes")
    };
    let first = coded(None, &mut scratch);
    assert_eq!(first.chain.to_string(), "shuffle(88) zstd(1)", "{}", first.reason);
    let mut deciding = Deciding::default();
    deciding.note("a", 0, raw.len(), &first);
    let decisions = deciding.finish(&Decisions::default(), &"c0".parse().expect("a name"), None);
    let second = coded(decisions.first(), &mut scratch);
    assert_eq!((&second.chain, &second.reason), (&first.chain, &Reason::Kept));
}

#[test]
fn bytes_that_hold_no_numbers_are_tried_once() {
    let names: Vec<u8> = (0..9000).flat_map(|n| format!("/Grid{:08}/Density ", n / 30).into_bytes()).collect();
    let numbers: Vec<u8> = wave(20_000).iter().flat_map(|x| x.to_le_bytes()).collect();
    let tried = |raw: &[u8]| {
        let mut scratch = Scratch::default();
        let coded = encode_chosen(&Profile::Fast, raw, &ElementType::Bytes, &[], false, &Basis::NOTHING, &mut scratch)
            .expect("encodes");
        assert!(coded.chain.decode(&coded.stored, raw.len(), &mut scratch).expect("decodes") == raw);
        let chosen = choose(&Profile::Fast, raw, &ElementType::Bytes, &[], false, &mut scratch);
        assert_eq!(chosen, coded.chain, "both ways to ask give the same");
        match &coded.reason {
            Reason::Tried { trials, .. } => (coded.chain.to_string(), trials.len()),
            reason => panic!("{reason}"),
        }
    };
    assert_eq!(tried(&names), ("zstd(3)".into(), 1));
    let (chain, trials) = tried(&numbers);
    assert!(chain != "zstd(3)" && trials > 1, "{chain} after {trials} trials");
}

#[test]
fn a_fast_store_gets_what_takes_no_time_and_a_slow_one_the_fewest_bytes() {
    let raw: Vec<u8> = wave(20_000).iter().flat_map(|x| x.to_le_bytes()).collect();
    let calls = std::cell::Cell::new(0);
    // Each trial takes as long as any other.
    let clock = || {
        calls.set(calls.get() + 1);
        std::time::Duration::from_millis(10 * calls.get())
    };
    let coded = |bytes_per_s| {
        let store = Some(StoreRate { bytes_per_s, cores: 1 });
        let basis = Basis { store, clock: &clock, ..Basis::NOTHING };
        encode_chosen(&Profile::Fast, &raw, &ElementType::F64, &[], false, &basis, &mut Scratch::default())
            .expect("encodes")
    };
    assert!(coded(1 << 50).chain.is_raw());
    let slow = coded(1000);
    let Reason::Tried { trials, .. } = &slow.reason else { panic!("{}", slow.reason) };
    assert!(trials.len() > 5);
    let least = trials.iter().min_by_key(|trial| trial.stored_bytes).expect("some");
    assert_eq!(least.chain, slow.chain);
}

#[test]
fn records_are_shorter_in_columns() {
    let record = |(i, x): (usize, f64)| {
        let mut bytes = [0; 30];
        bytes[..4].copy_from_slice(&(i as u32 * 7 % 40_000).to_le_bytes());
        bytes[6..14].copy_from_slice(&x.to_le_bytes());
        bytes[14..22].copy_from_slice(&(x * x / 3.0).to_le_bytes());
        bytes[22..26].copy_from_slice(&(i as f32).to_le_bytes());
        bytes
    };
    for n in [300, 20_000] {
        let raw: Vec<u8> = wave(n).into_iter().enumerate().flat_map(record).collect();
        let mut scratch = Scratch::default();
        let (chain, stored) =
            encode_best(&Profile::Fast, &raw, &particle(), &[], false, &mut scratch).expect("encodes");
        let zstd = Chain::zstd(3).encode(&raw, &[], &mut scratch).expect("encodes");
        assert_eq!(chain.to_string(), "columns(30)");
        assert!(stored.len() * 10 < zstd.len() * 9, "{n} records: {} and {} bytes", stored.len(), zstd.len());
        assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
    }
}

/// Each golden file: its name, the chain, and the shapes that the encoder was given.
fn golden() -> Vec<(&'static str, Chain, Vec<ArrayShape>)> {
    use ByteOrder::{Big, Little};
    let grid = || vec![ArrayShape { elements: 480, dims: vec![8, 6, 10], ..ArrayShape::default() }];
    vec![
        ("raw", Chain::raw(), vec![]),
        ("fpc-2", Chain::fpc(2, Little), vec![]),
        ("fpc-16-be", Chain::fpc(16, Big), vec![]),
        ("fpzip-f64-1d", Chain::fpzip(8, Little, 1), grid()),
        ("fpzip-f64-2d-be", Chain::fpzip(8, Big, 2), grid()),
        ("fpzip-f64-3d", Chain::fpzip(8, Little, 3), grid()),
        ("fpzip-f32-1d", Chain::fpzip(4, Little, 1), vec![]),
        ("columns", Chain::of(&[(columns::ID, 12)]), vec![]),
        ("shuffle-8", Chain::raw().then(shuffle::ID, 8), vec![]),
        ("shuffle-3", Chain::raw().then(shuffle::ID, 3), vec![]),
        ("bitshuffle-8", Chain::raw().then(bitshuffle::ID, 8), vec![]),
        ("bitshuffle-3", Chain::raw().then(bitshuffle::ID, 3), vec![]),
        ("runs-8", Chain::of(&[(runs::ID, 8)]), vec![]),
        ("runs-1", Chain::of(&[(runs::ID, 1)]), vec![]),
        ("pco-f64", Chain::pco(&ElementType::F64, 8).expect("numbers"), vec![]),
        ("pco-f64-be", Chain::pco(&F64BE, 8).expect("numbers"), vec![]),
        ("pco-f32", Chain::pco(&ElementType::F32, 8).expect("numbers"), vec![]),
        (
            "pco-u16",
            Chain::pco(&ElementType::Int { width: 2, signed: false, order: Little }, 8).expect("numbers"),
            vec![],
        ),
        ("lz4", Chain::lz4(), vec![]),
        ("zstd-3", Chain::zstd(3), vec![]),
        ("gzip-6", Chain::gzip(6), vec![]),
        ("paper-f64", Chain::paper(&ElementType::F64, true, false), vec![]),
        ("predict-f64", predicted(&ElementType::F64), grids()),
        ("predict-f64-be", predicted(&F64BE), grids()),
        ("predict-f32", predicted(&ElementType::F32), grids()),
        ("predict-rows", predicted(&ElementType::F32), rows(9, &[400, 331], 2).0),
        ("predict-i64", predicted(&ElementType::Int { width: 8, signed: true, order: Little }), vec![]),
        ("predict-bytes", predicted(&ElementType::Bytes), vec![]),
        ("since-f64", since_older(&ElementType::F64), grids()),
        ("since-f32", since_older(&ElementType::F32), grids()),
        ("since-slow", Chain::since(&ElementType::F64, 1).expect("numbers"), vec![cube(16)]),
        ("since-i64", since_older(&ElementType::Int { width: 8, signed: true, order: Little }), grids()),
    ]
}

fn predicted(element: &ElementType) -> Chain {
    Chain::predict(element, 2).expect("numbers or bytes")
}

fn cube(side: u64) -> ArrayShape {
    ArrayShape { elements: side.pow(3), dims: vec![side; 3], ..ArrayShape::default() }
}

/// Rough numbers, and what they were before a smooth change; exact, so that every host gets the same.
fn rough(count: u64) -> impl Iterator<Item = f64> {
    // The end of SplitMix64.
    let mixed = |n: u64| {
        let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        n ^ n >> 31
    };
    (0..count).map(move |n| (mixed(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 11) as f64 / (1u64 << 50) as f64)
}

fn before_a_change(raw: &[u8]) -> Vec<u8> {
    let change = |n: usize| ((n / 256).pow(2) + n / 16 % 16) as f64 / (1u64 << 24) as f64;
    let numbers = raw.as_chunks::<8>().0.iter().enumerate();
    numbers.flat_map(|(n, &x)| (f64::from_le_bytes(x) - change(n)).to_le_bytes()).collect()
}

fn since_older(element: &ElementType) -> Chain {
    Chain::since(element, 2).expect("numbers")
}

/// Four columns, each of a grid in chunks, a finer one that covers some of it, and points of three components.
fn grids() -> Vec<ArrayShape> {
    let column = |column| {
        let array = |dims: &[u64], chunk: &[u64]| ArrayShape {
            elements: dims.iter().product(),
            dims: dims.into(),
            chunk: chunk.into(),
            column,
            is_integer: false,
        };
        [array(&[12, 10], &[6, 5]), array(&[8, 6], &[]), array(&[40, 3], &[])]
    };
    (0..4).flat_map(column).collect()
}

/// Their numbers: the second column is made of the first, the third nearly so, the fourth is the first backwards.
fn grid_numbers() -> Vec<f64> {
    let mut state = 7u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let fine: Vec<f64> = (0..48).map(|n| 2.0 + f64::from(n / 6) * 0.25 + noise() * 0.01).collect();
    let row_after_row: Vec<f64> = (0..120)
        .map(|n| match (n / 10, n % 10) {
            (j @ 3..7, k @ 2..5) => {
                let first = (j - 3) * 2 * 6 + (k - 2) * 2;
                (fine[first] + fine[first + 1] + fine[first + 6] + fine[first + 7]) / 4.0
            }
            (j, k) => 1.0 + (j + k) as f64 * 0.1 + noise() * 0.01,
        })
        .collect();
    let chunks = (0..4).flat_map(|c| (0..30).map(move |n| (c / 2 * 6 + n / 5) * 10 + c % 2 * 5 + n % 5));
    let mut first: Vec<f64> = chunks.map(|n| row_after_row[n]).collect();
    first.extend(&fine);
    first.extend((0..40).flat_map(|n| [f64::from(n), -0.5 * f64::from(n), 3.0]));
    let second: Vec<f64> = first.iter().map(|x| 2.5 * x + 1.0).collect();
    let third: Vec<f64> = first.iter().zip(&second).map(|(x, y)| x * y / (x + 3.0) + noise() * 1e-9).collect();
    let fourth: Vec<f64> = first.iter().rev().map(|x| -x).collect();
    [first, second, third, fourth].concat()
}

/// Particles on a lattice of so many in each dimension, a little off their places, in a periodic box: their numbers, their
/// positions and their speeds, row after row along a crooked line, in arrays with so many rows. The last ones of these
/// are empty, so many rows are filled up with zeros besides, and two particles are missing.
fn rows(side: u32, arrays: &[u64], padding: usize) -> (Vec<ArrayShape>, Vec<u8>) {
    let count: u64 = arrays.iter().sum();
    let places = side.pow(3);
    let mut numbers: Vec<u32> = (0..places).filter(|&n| n != 5 && n != places / 2).collect();
    // Line by line there and back, as curves that fill space do.
    numbers.sort_by_key(|&n| (n / side, if (n / side).is_multiple_of(2) { n } else { places - n }));
    numbers.truncate(count as usize);
    let mut state = 11u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    let off: Vec<[f32; 3]> = (0..places).map(|_| [noise(), noise(), noise()]).collect();
    let position = |n: u32| {
        let at = [n / side / side, n / side % side, n % side];
        let box_size = 10.0f32;
        std::array::from_fn::<f32, 3, _>(|d| {
            let cell = box_size / side as f32;
            (at[d] as f32 * cell + off[n as usize][d] * cell).rem_euclid(box_size).min(9.999)
        })
    };
    let (mut shapes, mut raw) = (Vec::new(), Vec::new());
    for column in 0..3u32 {
        let mut left = numbers.iter();
        for &all in arrays {
            let own: Vec<u32> = left.by_ref().copied().take(all as usize).collect();
            let rows = all as usize + padding;
            let width = if column == 0 { 1 } else { 3 };
            let mut bytes: Vec<u8> = own
                .iter()
                .flat_map(|&n| match column {
                    0 => vec![n + 7],
                    1 => position(n).map(f32::to_bits).to_vec(),
                    _ => off[n as usize].map(|x| (x * 250.0).to_bits()).to_vec(),
                })
                .flat_map(u32::to_le_bytes)
                .collect();
            bytes.resize(rows * width * 4, 0);
            raw.extend(bytes);
            let dims = if width == 1 { vec![rows as u64] } else { vec![rows as u64, 3] };
            shapes.push(ArrayShape {
                elements: (rows * width) as u64,
                dims,
                chunk: Vec::new(),
                column,
                is_integer: column == 0,
            });
        }
    }
    (shapes, raw)
}

/// What was there before: every third number differs in its low bits, and the last bytes are missing.
fn older_of(raw: &[u8]) -> Vec<u8> {
    let changed = raw.iter().enumerate().map(|(i, byte)| if i % 24 == 0 { byte ^ 3 } else { *byte });
    changed.take(raw.len().saturating_sub(3)).collect()
}

/// Each array where it lies in the segment itself.
fn places(arrays: &[ArrayShape], width: usize) -> Vec<OlderPlace> {
    let mut from = 0usize;
    (arrays.iter())
        .map(|array| {
            let bytes = usize::try_from(array.elements).unwrap_or(0).saturating_mul(width);
            let place = OlderPlace { from, skip: 0, bytes };
            from = from.saturating_add(bytes);
            place
        })
        .collect()
}

#[test]
fn a_field_that_hardly_changes_takes_a_part_of_what_it_takes_by_itself() {
    let field = |time: f64| -> Vec<u8> {
        // Rough in space, slow in time.
        let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1u32 << 24);
        let wave = |n: u32| (f64::from(n / 1024) * 0.3 + time).sin() * (f64::from(n / 32 % 32) * 0.2 - time).cos();
        (0..32 * 1024).flat_map(|n| (wave(n) + noise(n)).to_le_bytes()).collect()
    };
    let arrays = [ArrayShape { elements: 32 * 1024, dims: vec![32, 32, 32], ..ArrayShape::default() }];
    let [then, now] = [0.0, 1e-4].map(field);
    let mut scratch = Scratch::default();
    let predict = Chain::predict(&ElementType::F64, 2).expect("numbers");
    let plain = predict.encode(&now, &arrays, &mut scratch).expect("encodes").len();
    scratch.set_older(Some(Arc::new(Older { raw: then, places: places(&arrays, 8) })));
    let since = Chain::since(&ElementType::F64, 2).expect("numbers");
    let stored = since.encode(&now, &arrays, &mut scratch).expect("encodes");
    assert!(since.gives_back(&stored, &now, &mut scratch).is_ok_and(|same| same));
    assert!(stored.len() * 3 < plain * 2, "{} and {plain} bytes", stored.len());
    // Choosing sees that, and does not look where the gain is small.
    let basis = |older: Vec<u8>| Some(Arc::new(Older { raw: older, places: places(&arrays, 8) }));
    for (older, is_since) in [(field(0.0), true), (vec![0; now.len()], false)] {
        let older = basis(older);
        let basis = Basis { older: older.as_ref(), ..Basis::NOTHING };
        let coded = encode_chosen(&Profile::Max, &now, &ElementType::F64, &arrays, false, &basis, &mut scratch)
            .expect("encodes");
        assert_eq!(coded.chain.needs_older(), is_since, "{}", coded.reason);
    }
}

#[test]
fn a_smooth_change_of_rough_numbers_takes_a_few_bits_each() {
    let now: Vec<u8> = rough(4096).flat_map(f64::to_le_bytes).collect();
    let mut scratch = Scratch::default();
    scratch.set_older(Some(Arc::new(Older { raw: before_a_change(&now), places: places(&[cube(16)], 8) })));
    for effort in [1, 2] {
        let since = Chain::since(&ElementType::F64, effort).expect("numbers");
        let stored = since.encode(&now, &[cube(16)], &mut scratch).expect("encodes");
        assert!(since.gives_back(&stored, &now, &mut scratch).is_ok_and(|same| same));
        assert!(stored.len() * 4 < now.len(), "effort {effort}: {} of {} bytes", stored.len(), now.len());
    }
}

#[test]
fn a_part_of_the_arrays_says_whether_an_older_segment_is_worth_a_trial() {
    // 128 cubes of 16 KiB each: rough ones that changed smoothly, and rough ones that have nothing to do with those before.
    let arrays: Vec<ArrayShape> = (0..128).map(|_| cube(16)).collect();
    let now: Vec<u8> = rough(128 * 4096).flat_map(f64::to_le_bytes).collect();
    let mut other = now.clone();
    other.reverse();
    let cubes = now.chunks(4096 * 8).flat_map(before_a_change).collect();
    let mut scratch = Scratch::default();
    for (older, is_worth) in [(cubes, true), (other, false)] {
        let older = Arc::new(Older { raw: older, places: places(&arrays, 8) });
        let basis = Basis { older: Some(&older), ..Basis::NOTHING };
        let coded = encode_chosen(&Profile::Max, &now, &ElementType::F64, &arrays, false, &basis, &mut scratch)
            .expect("encodes");
        assert_eq!(coded.chain.needs_older(), is_worth, "{}", coded.reason);
        let Reason::Tried { trials, .. } = &coded.reason else { panic!("{}", coded.reason) };
        assert_eq!(trials.len(), if is_worth { 2 } else { 1 }, "{}", coded.reason);
    }
}

#[test]
fn what_did_not_change_takes_next_to_nothing() {
    let (arrays, raw) = (grids(), grid_numbers().into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>());
    let mut scratch = Scratch::default();
    scratch.set_older(Some(Arc::new(Older { raw: raw.clone(), places: places(&arrays, 8) })));
    let since = Chain::since(&ElementType::F64, 2).expect("numbers");
    let stored = since.encode(&raw, &arrays, &mut scratch).expect("encodes");
    assert!(stored.len() < 300, "{} bytes", stored.len());
}

#[test]
fn rows_in_the_order_of_their_numbers_take_less_than_in_the_order_they_came_in() {
    let (arrays, raw) = rows(16, &[1500, 1500, 1094], 2);
    let mut scratch = Scratch::default();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F32, effort).expect("numbers");
        let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
        let unknown: Vec<ArrayShape> = arrays.iter().map(|a| ArrayShape { is_integer: false, ..a.clone() }).collect();
        let plain = chain.encode(&raw, &unknown, &mut scratch).expect("encodes");
        assert!(stored.len() * 100 < plain.len() * 99, "effort {effort}: {} and {} bytes", stored.len(), plain.len());
    }
}

/// The input of the golden files: 500 numbers, a few that are none, and 3 bytes more.
fn golden_raw(chain: &Chain) -> Vec<u8> {
    let big = chain.to_string().contains("be");
    let odd = [f64::from_bits(0x7FF8_0000_0000_BEEF), -0.0, f64::INFINITY, 5e-324];
    let numbers = wave(500).into_iter().enumerate().map(|(i, x)| if i % 125 == 60 { odd[i / 125] } else { x });
    let mut raw: Vec<u8> = match chain.steps()[0] {
        Step { codec: predict::ID | since::ID, param } if param & 0xFF == 4 => {
            grid_numbers().into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect()
        }
        Step { codec: since::ID, param } if param >> 16 == 1 => rough(4096).flat_map(f64::to_le_bytes).collect(),
        Step { codec: since::ID, .. } => grid_numbers().into_iter().flat_map(f64::to_le_bytes).collect(),
        Step { codec: predict::ID, param } if param & 0x600 == 0 => {
            grid_numbers().into_iter().flat_map(|x| if big { x.to_be_bytes() } else { x.to_le_bytes() }).collect()
        }
        Step { codec: runs::ID, .. } => {
            // Runs of each length up to 24, between what is none.
            (0..600u32).flat_map(|n| f64::from(n.isqrt() * 7 + n % 3 / 2 * (n % 100 / 90)).to_le_bytes()).collect()
        }
        Step { codec: fpzip::ID | pco::ID, param } if param & 0xFF == 4 => {
            numbers.flat_map(|x| (x as f32).to_le_bytes()).collect()
        }
        _ => numbers.flat_map(|x| if big { x.to_be_bytes() } else { x.to_le_bytes() }).collect(),
    };
    raw.extend(*b"end");
    raw
}

/// A golden file is the chain, the length of the raw bytes (`u32`, little-endian), the raw bytes, the stored bytes. What
/// is coded with an older segment is with what `older_of` or `before_a_change` gives for the raw bytes.
/// Files are added once, never rewritten; MCR_ADD_GOLDEN=1 adds those that are not there.
#[test]
fn golden_files_decode_to_their_input_and_our_own_codecs_still_give_the_same_bytes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/v1/codec");
    let listed = golden();
    for (name, chain, arrays) in &listed {
        let path = folder.join(format!("{name}.bin"));
        if !path.exists() && std::env::var_os("MCR_ADD_GOLDEN").is_some() {
            let raw = if *name == "predict-rows" { rows(9, &[400, 331], 2).1 } else { golden_raw(chain) };
            let mut file = Vec::new();
            chain.to_bytes(&mut file);
            file.extend((raw.len() as u32).to_le_bytes());
            file.extend(&raw);
            file.extend(chain.encode(&raw, arrays, &mut with_older(chain, &raw, arrays)).expect("encodes"));
            std::fs::write(&path, file).expect("tests/data is writable");
        }
        let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (read, used) = Chain::from_bytes(&file).expect("a chain");
        assert_eq!(read, *chain, "{name}");
        let (len, rest) = file[used..].split_first_chunk::<4>().expect("a length");
        let (raw, stored) = rest.split_at(u32::from_le_bytes(*len) as usize);
        let mut scratch = with_older(chain, raw, &[]);
        let decoded = read.decode(stored, raw.len(), &mut scratch);
        assert!(decoded.as_ref().is_ok_and(|decoded| decoded == raw), "{name}: {decoded:?}");
        let is_our_own = read
            .steps()
            .iter()
            .all(|step| [ID_RAW, fpc::ID, fpzip::ID, shuffle::ID, bitshuffle::ID, runs::ID].contains(&step.codec));
        if is_our_own {
            assert_eq!(read.encode(raw, arrays, &mut scratch).expect("encodes"), stored, "{name}");
        }
    }
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let found: BTreeSet<String> =
        files.map(|file| file.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    let expected: BTreeSet<String> = listed.iter().map(|(name, ..)| format!("{name}.bin")).collect();
    assert_eq!(found, expected, "each golden file is loaded");
}

fn with_older(chain: &Chain, raw: &[u8], arrays: &[ArrayShape]) -> Scratch {
    let mut scratch = Scratch::default();
    let width = (chain.steps()[0].param & 0xFF) as usize;
    let is_slow = chain.steps()[0].param >> 16 == 1;
    let older = |raw| Older { raw, places: places(arrays, width) };
    let older = || older(if is_slow { before_a_change(raw) } else { older_of(raw) });
    scratch.set_older(chain.needs_older().then(|| Arc::new(older())));
    scratch
}

const ID_RAW: CodecId = array_to_bytes::raw::ID;

/// Real checkpoints, as bytes: each chain on a slice of each file.
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
                continue; // every seventh is enough
            }
            let whole = std::fs::read(&path).expect("readable");
            let raw = &whole[whole.len() / 3..whole.len().min(whole.len() / 3 + (256 << 10) + 5)];
            let elements = (raw.len() / 8) as u64;
            let arrays = [ArrayShape { elements, dims: vec![elements / 256, 16, 16], ..ArrayShape::default() }];
            let is_predict = |chain: &Chain| chain.steps()[0].codec == predict::ID;
            // Prediction takes its time: one of its chains for each file.
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
