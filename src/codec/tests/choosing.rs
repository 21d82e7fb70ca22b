//! Tests of which chain an element type or a profile gets, and of how many bytes the chain saves.

use super::inputs::*;
use super::*;

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
        let json = serde_json::to_string(&profile).expect("a profile becomes JSON");
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<Profile>(&json).expect("JSON becomes a profile"), profile);
    }
    assert_eq!("zstd-3".parse(), Ok(Profile::Zstd { level: 3 }));
    for name in ["", "zst", "zstd-0", "zstd-23", "zstd-", "fpc-21", "raw-1", "zstd-99999999999", "-3", "default"] {
        assert_eq!(name.parse::<Profile>(), Err(ProfileError { found: name.into() }));
    }
}

#[test]
fn the_default_profile_takes_what_is_shorter_for_each_segment() {
    let mut scratch = Scratch::default();
    let mut shown = |raw: &[u8]| {
        let (chain, stored) =
            encode_best(&Profile::Fast, raw, &ElementType::F64, &[], false, &mut scratch).expect("encodes");
        let zstd = Chain::zstd_fast(18);
        let other = if chain == zstd { Chain::shuffle_zstd(8, 1) } else { zstd };
        let other_bytes = other.encode(raw, &[], &mut scratch).expect("encodes").len();
        assert!(stored.len() <= other_bytes, "{chain} {} {other} {other_bytes}", stored.len());
        chain.to_string()
    };
    for n in [10_000, 300_000] {
        let smooth: Vec<u8> = wave(n).iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(shown(&smooth), "shuffle(8) zstd(1)");
        // The only pattern is that the same triples of numbers repeat.
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as usize
        };
        let triples: Vec<[u8; 24]> = (0..64).map(|_| std::array::from_fn(|_| random() as u8)).collect();
        let repeats: Vec<u8> = (0..n / 3).flat_map(|_| triples[random() % 64]).collect();
        assert_eq!(shown(&repeats), "zstd(fast 2^18)");
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
    // Records of eleven numbers that differ widely in size.
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
    let decisions = deciding.finish(&Decisions::default(), &"c0".parse().expect("a valid name"), None);
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
        match &coded.reason {
            Reason::Tried { trials, .. } => (coded.chain.to_string(), trials.len()),
            reason => panic!("{reason}"),
        }
    };
    assert_eq!(tried(&names), ("zstd(fast 2^15)".into(), 1));
    let (chain, trials) = tried(&numbers);
    assert!(chain.starts_with("shuffle") && trials > 1, "{chain} after {trials} trials");
}

#[test]
fn balanced_codes_bytes_that_are_clearly_no_numbers_at_a_low_level() {
    let shown = |profile, raw: &[u8]| {
        let mut scratch = Scratch::default();
        let (chain, stored) =
            encode_best(&profile, raw, &ElementType::Bytes, &[], false, &mut scratch).expect("encodes");
        assert!(chain.gives_back(&stored, raw, &mut scratch).expect("decodes"));
        chain.to_string()
    };
    let clear: Vec<u8> = (0..9000).flat_map(|n| format!("/Grid{:08}/Density ", n / 30).into_bytes()).collect();
    let mixed = |n: u32| n.wrapping_mul(0x9E37_79B9) >> 20;
    let others: Vec<u8> = (0..9000).flat_map(|n| format!("{} {}\n", mixed(n), mixed(n + 9000)).into_bytes()).collect();
    assert_eq!([&clear, &others].map(|raw| shown(Profile::Balanced, raw)), ["zstd(3)", "zstd(6)"]);
    assert_ne!(shown(Profile::Max, &clear), "zstd(3)");
}

#[test]
fn numbers_in_bytes_that_nobody_described_are_taken_apart_by_the_stronger_profiles() {
    let mut raw = b"state of a code\nat time 0.25\n(".to_vec();
    raw.extend(wave(20_000).iter().flat_map(|x| x.to_be_bytes()));
    raw.extend(b")\n");
    let mut scratch = Scratch::default();
    let mut stored_bytes = |profile| {
        let (chain, stored) =
            encode_best(&profile, &raw, &ElementType::Bytes, &[], false, &mut scratch).expect("encodes");
        assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
        (chain.steps()[0].codec == ids::MIXED, stored.len())
    };
    let (_, fast) = stored_bytes(Profile::Fast);
    for profile in [Profile::Balanced, Profile::Max] {
        let (is_mixed, stored) = stored_bytes(profile);
        assert!(is_mixed && stored * 10 < fast * 9, "{stored} and {fast} bytes");
    }
}

#[test]
fn only_the_smallest_profile_takes_lzma_and_takes_it_where_it_leaves_less() {
    let mixed = |n: u32| n.wrapping_mul(0x9E37_79B9) >> 20;
    let names: Vec<u8> = (0..6000)
        .flat_map(|n| format!("<cell id='{n}' kind='{}'>{}</cell>\n", mixed(n) % 7, mixed(n)).into_bytes())
        .collect();
    let mut scratch = Scratch::default();
    let mut shown = |profile| {
        let (chain, stored) =
            encode_best(&profile, &names, &ElementType::Bytes, &[], false, &mut scratch).expect("encodes");
        assert!(chain.gives_back(&stored, &names, &mut scratch).expect("decodes"));
        (chain.to_string(), stored.len())
    };
    let (chain, stored_bytes) = shown(Profile::Max);
    assert_eq!(chain, "lzma(3)");
    let (other, other_bytes) = shown(Profile::Balanced);
    assert!(!other.contains("lzma") && stored_bytes * 100 < other_bytes * 99, "{other}: {stored_bytes}, {other_bytes}");
}

#[test]
fn integers_that_repeat_byte_by_byte_are_shuffled() {
    // The corners of the cells of a mesh. The cells come in an irregular order.
    let [cells, side] = [24u64, 25];
    let count = cells.pow(3);
    let corners = |n: u64| {
        let n = n * 4099 % count;
        let first = (n / cells / cells * side + n / cells % cells) * side + n % cells;
        [0, 1, side, side + 1, side * side, side * side + 1, side * (side + 1), side * (side + 1) + 1]
            .map(|c| first + c)
    };
    let raw: Vec<u8> = (0..count).flat_map(corners).flat_map(u64::to_le_bytes).collect();
    let element = ElementType::Int { width: 8, signed: false, order: ByteOrder::Little };
    let mut scratch = Scratch::default();
    let shuffled = Chain::shuffle_zstd(8, 3).encode(&raw, &[], &mut scratch).expect("encodes").len();
    for profile in [Profile::Balanced, Profile::Max] {
        let (chain, stored) = encode_best(&profile, &raw, &element, &[], false, &mut scratch).expect("encodes");
        assert!(stored.len() <= shuffled, "{chain}: {} and {shuffled} bytes", stored.len());
    }
}

#[test]
fn a_fast_store_gets_what_takes_no_time_and_a_slow_one_the_fewest_bytes() {
    let raw: Vec<u8> = wave(20_000).iter().flat_map(|x| x.to_le_bytes()).collect();
    let calls = std::cell::Cell::new(0);
    // Each trial takes 10 ms.
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
    let least = trials.iter().min_by_key(|trial| trial.stored_bytes).expect("there are trials");
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

/// The stored bytes of a chain, after a check that they decode to the raw bytes.
fn coded(chain: &Chain, raw: &[u8], arrays: &[ArrayShape]) -> Vec<u8> {
    let mut scratch = Scratch::default();
    let stored = chain.encode(raw, arrays, &mut scratch).expect("encodes");
    assert!(chain.gives_back(&stored, raw, &mut scratch).expect("decodes"));
    stored
}

#[test]
fn components_of_points_are_told_by_their_own_neighbours_in_all_directions() {
    let (grids, raw) = points(40);
    let lines: Vec<ArrayShape> =
        (grids.iter()).map(|grid| ArrayShape { dims: vec![grid.dims[0] * grid.dims[1], 3], ..grid.clone() }).collect();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F64, effort).expect("numeric type");
        let [of_grids, of_lines] = [&grids, &lines].map(|arrays| coded(&chain, &raw, arrays).len());
        assert!(of_grids * 100 < of_lines * 95, "effort {effort}: {of_grids} bytes as grids, {of_lines} as lines");
    }
    // If the last extents of the grids differ, no grid consists of points.
    let thin: Vec<ArrayShape> = [[120, 12, 3], [40, 12, 9]]
        .map(|dims| ArrayShape { elements: dims.iter().product(), dims: dims.into(), ..ArrayShape::default() })
        .into();
    let chain = Chain::predict(&ElementType::F64, 1).expect("numeric type");
    let kinds = [thin.clone(), vec![thin[0].clone(); 2]].map(|arrays| {
        let stored = chain.encode(&raw[..8640 * 8], &arrays, &mut Scratch::default()).expect("encodes");
        unpacked(&stored).0[..2].to_vec()
    });
    assert_eq!(kinds, [[1, 0], [1, 4]], "one group each: plain grids, then grids of points");
}

#[test]
fn variables_that_lie_one_after_the_other_are_told_each_by_its_own_neighbours() {
    let (arrays, raw) = variables_first();
    let lines: Vec<ArrayShape> =
        (arrays.iter()).map(|array| ArrayShape { dims: vec![array.elements], ..array.clone() }).collect();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F64, effort).expect("numeric type");
        let [of_grids, of_lines] = [&arrays, &lines].map(|arrays| coded(&chain, &raw, arrays));
        assert!(of_grids.len() * 10 < of_lines.len() * 9, "{} and {} bytes", of_grids.len(), of_lines.len());
        // Two groups of arrays. In the first group, all elements of a variable lie together, in two runs of one array
        // each. In the second group, 160 elements lie together, in one run of one array.
        let grids = [4, 0, 3, 0, 0, 2, 1, 1, 32, 120, 1, 1, 41, 75];
        assert_eq!(unpacked(&of_grids).0[..15], [&[2][..], &grids].concat());
        assert_eq!(unpacked(&of_grids).0[15..20], [4, 0, 3, 0xA0, 1]);
    }
    // Neighbouring planes of one grid are as similar as neighbouring rows. An empty array in the same segment does
    // not change the result.
    let planes: Vec<u8> = (0..3 * 32 * 40).flat_map(|n| rough_plane(n).to_le_bytes()).collect();
    let empty = ArrayShape { elements: 0, dims: vec![0, 32, 40], ..ArrayShape::default() };
    let chain = Chain::predict(&ElementType::F64, 1).expect("numeric type");
    let first_kind = |raw: &[u8], arrays: &[ArrayShape]| {
        unpacked(&chain.encode(raw, arrays, &mut Scratch::default()).expect("encodes")).0[1]
    };
    let own = &raw[..planes.len()];
    assert_eq!([first_kind(&planes, &arrays[..1]), first_kind(own, &arrays[..1])], [0, 4]);
    assert_eq!(first_kind(own, &[empty, arrays[0].clone()]), 4);
    // Levels with different means but equal patterns are also one grid.
    let pattern: Vec<f64> = rough(32 * 40).collect();
    let levels: Vec<u8> = (0..3 * 32 * 40)
        .flat_map(|n| (1040.0 + (n / 1280) as f64 * 99.0 + pattern[n % 1280] * 1e-3).to_le_bytes())
        .collect();
    assert_eq!(first_kind(&levels, &arrays[..1]), 0);
}

/// An element of a grid with planes of 32 x 40 places. The elements differ as much from plane to plane as from row to
/// row.
fn rough_plane(n: usize) -> f64 {
    let (plane, row, column) = (n / 1280, n / 40 % 32, n % 40);
    5.0 + ((plane * 7 + row * 5 + column * 3) % 11) as f64
}

#[test]
fn tensors_of_particles_are_told_by_their_own_components() {
    // Two components are equal, and the two other components are unrelated.
    let other: Vec<f64> = rough(9000).collect();
    let tensor =
        |n: usize| [other[n], 1.0 + other[n + 3000] * 1e-6, 1.0 + other[n + 3000] * 1e-6, other[n + 6000] * 1e9];
    let raw: Vec<u8> = (0..3000).flat_map(tensor).flat_map(f64::to_le_bytes).collect();
    let of = |dims: &[u64]| ArrayShape { elements: 12_000, dims: dims.into(), ..ArrayShape::default() };
    let chain = Chain::predict(&ElementType::F64, 1).expect("numeric type");
    let stored = [&[3000, 2, 2][..], &[3000, 4], &[12_000]].map(|dims| coded(&chain, &raw, &[of(dims)]));
    assert_eq!(stored[0], stored[1], "a 2 x 2 tensor is coded as a point with four components");
    assert!(stored[0].len() * 20 < stored[2].len() * 19, "{} and {} bytes", stored[0].len(), stored[2].len());
}

#[test]
fn effort_1_predicts_a_field_around_0_by_the_lorenzo_sum_of_doubles() {
    // Each of three terms is rough along two axes and constant along the third axis, so the Lorenzo sum predicts it
    // exactly.
    let walk = |axis: usize| -> Vec<f64> {
        let steps = rough(96).skip(axis * 32).take(32);
        steps.scan(0.0, |sum, step| Some(std::mem::replace(sum, *sum + step - 4.0))).collect()
    };
    let [a, b, c] = [0, 1, 2].map(walk);
    let value = |n: usize| {
        let (a, b, c) = (a[n / 1024], b[n / 32 % 32], c[n % 32]);
        a * b + b * c + c * a - 40.0
    };
    let raw: Vec<u8> = (0..1 << 15).flat_map(|n| value(n).to_le_bytes()).collect();
    let chain = Chain::predict(&ElementType::F64, 1).expect("numeric type");
    let mut scratch = Scratch::default();
    let stored = chain.encode(&raw, &[cube(32)], &mut scratch).expect("encodes");
    assert!(stored.len() < raw.len() / 4, "{} of {}", stored.len(), raw.len());
    assert_eq!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes"), raw);
}

#[test]
fn a_field_that_neighbours_predict_takes_only_the_bytes_of_the_noise() {
    // Each value is a weighted sum of the eight earlier values within two steps, plus noise from -4 to 4. No other
    // prediction leaves a smaller error. The length of a row is a power of two, so a sample at a constant distance
    // would cover only a few columns.
    const SIDE: usize = 256;
    let along = [1.0, -1.8, 0.81]; // the coefficients of (1 - 0.9 z)^2
    let mut field = vec![0.0f64; SIDE * SIDE];
    for (n, noise) in rough((SIDE * SIDE) as u64).enumerate() {
        let (i, j) = (n / SIDE, n % SIDE);
        let mut predicted = 0.0;
        for (back, a) in along.iter().enumerate().take(i + 1) {
            for (left, b) in along.iter().enumerate().take(j + 1).filter(|(left, _)| back + left > 0) {
                predicted -= a * b * field[(i - back) * SIDE + j - left];
            }
        }
        field[n] = predicted + noise - 4.0;
    }
    let not_predicted: f64 =
        field.iter().map(|x| 8f64.log2() - (x.abs().next_up() - x.abs()).log2()).sum::<f64>() / 8.0;
    let raw: Vec<u8> = field.iter().flat_map(|x| x.to_le_bytes()).collect();
    let array = ArrayShape { elements: field.len() as u64, dims: vec![SIDE as u64; 2], ..ArrayShape::default() };
    let mut scratch = Scratch::default();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F64, effort).expect("numeric type");
        let stored = chain.encode(&raw, std::slice::from_ref(&array), &mut scratch).expect("encodes");
        assert_eq!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes"), raw);
        let least = not_predicted as usize;
        assert!(stored.len() * 100 < least * 104, "effort {effort}: {} bytes, at least {least}", stored.len());
    }
}

#[test]
fn what_is_mirrored_but_for_half_of_its_bits_takes_no_more_than_those() {
    // Runs of twelve values repeat earlier runs. Some runs are reversed or negated, and all values differ from the
    // earlier values by up to one part in a million. Of each value, 33 bits and a sign cannot be predicted. In the
    // first half, no value predicts another value.
    const COUNT: usize = 3 << 14;
    const RUN: usize = 12;
    let noise: Vec<f64> = rough(2 * COUNT as u64).collect();
    let mut field: Vec<f64> = noise[..COUNT].iter().map(|x| (x - 4.0) * 1.7).collect();
    for run in 0..COUNT / RUN {
        let from = run.wrapping_mul(0x9E37_79B1) % (COUNT / RUN) * RUN;
        let sign = if run % 3 == 0 { -1.0 } else { 1.0 };
        for n in 0..RUN {
            let source = field[from + if run % 2 == 0 { n } else { RUN - 1 - n }];
            field.push(source * sign * (1.0 + (noise[COUNT + run * RUN + n] - 4.0) / 4e6));
        }
    }
    let raw: Vec<u8> = field.iter().flat_map(|x| x.to_le_bytes()).collect();
    let array = ArrayShape { elements: field.len() as u64, dims: vec![field.len() as u64], ..ArrayShape::default() };
    let mut scratch = Scratch::default();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F64, effort).expect("numeric type");
        let mut code = |raw: &[u8], elements: usize| {
            let array = ArrayShape { elements: elements as u64, dims: vec![elements as u64], ..array.clone() };
            let stored = chain.encode(raw, std::slice::from_ref(&array), &mut scratch).expect("encodes");
            assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
            stored.len()
        };
        let (first, all) = (code(&raw[..COUNT * 8], COUNT), code(&raw, 2 * COUNT));
        // Each run takes up to five additional bytes for the place of the earlier run.
        let most = COUNT * 34 / 8 + COUNT / RUN * 5;
        assert!(all < first + most, "effort {effort}: {all} bytes, {first} of the first half, {most} for the others");
    }
}

#[test]
fn rows_in_the_order_of_their_numbers_take_less_than_in_the_order_they_came_in() {
    let (arrays, raw) = rows(16, &[1500, 1500, 1094], 2);
    let mut scratch = Scratch::default();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F32, effort).expect("numeric type");
        let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
        let unknown: Vec<ArrayShape> = arrays.iter().map(|a| ArrayShape { is_integer: false, ..a.clone() }).collect();
        let plain = chain.encode(&raw, &unknown, &mut scratch).expect("encodes");
        // With effort 1, tables have no weights, so tables save fewer bytes.
        let part = if effort == 1 { 995 } else { 990 };
        assert!(stored.len() * 1000 < plain.len() * part, "effort {effort}: {} and {}", stored.len(), plain.len());
    }
}

#[test]
fn an_order_along_a_curve_costs_next_to_nothing() {
    let numbered = |begin: f32| rows_along_a_curve(16, begin, &[1500, 1500, 1094]);
    let (_, by_line) = rows(16, &[1500, 1500, 1094], 0);
    let mut scratch = Scratch::default();
    for effort in [1, 2] {
        let chain = Chain::predict(&ElementType::F32, effort).expect("numeric type");
        for begin in [0.0, 3.7] {
            let (arrays, raw) = numbered(begin);
            let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
            assert!(chain.decode(&stored, raw.len(), &mut scratch).expect("decodes") == raw);
            // Two particles are missing. With the particles sorted along a line, the order takes only a few bits for
            // each particle. With the particles sorted along a curve, the order may take half a bit more for each
            // particle.
            let other = chain.encode(&by_line, &arrays, &mut scratch).expect("encodes");
            let most = other.len() + 4094 / 16;
            assert!(stored.len() < most, "effort {effort} from {begin}: {} and {}", stored.len(), other.len());
        }
    }
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n > 0x7F {
        bytes.push((n & 0x7F) as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// The header of a predicted stream, and the bytes after the header. The stream begins with two lengths and a zstd
/// frame that holds the header.
fn unpacked(stored: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut at = 0;
    let [packed, bytes] = [(); 2].map(|()| {
        let from = at;
        at += stored[from..].iter().position(|&byte| byte < 0x80).expect("the varint ends") + 1;
        (from..at).rev().fold(0, |n, at| n << 7 | usize::from(stored[at] & 0x7F))
    });
    (::zstd::bulk::decompress(&stored[at..at + packed], bytes).expect("a valid zstd frame"), &stored[at + packed..])
}

#[test]
fn a_damaged_header_of_rows_of_a_curve_or_of_points_is_refused_or_wrong_but_never_a_panic() {
    let along_a_curve = rows_along_a_curve(9, 0.0, &[400, 327]);
    let inputs = [
        (ElementType::F32, rows(9, &[727], 0)),
        (ElementType::F32, along_a_curve),
        (ElementType::F64, points(12)),
        (ElementType::F64, variables_first()),
    ];
    for (element, (arrays, raw)) in inputs {
        let chain = Chain::predict(&element, 2).expect("numeric type");
        let mut scratch = Scratch::default();
        let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
        let (header, rest) = unpacked(&stored);
        for at in 0..header.len() {
            for change in [1, 0x80, 0xFF] {
                let mut damaged = header.clone();
                damaged[at] ^= change;
                let frame = ::zstd::bulk::compress(&damaged, 1).expect("compresses");
                let all = [&varint(frame.len()), &varint(damaged.len()), &frame, rest].concat();
                if let Ok(decoded) = chain.decode(&all, raw.len(), &mut scratch) {
                    assert_eq!(decoded.len(), raw.len(), "byte {at}");
                }
            }
        }
    }
}

#[test]
fn numbers_that_come_again_far_away_are_found_in_a_large_table() {
    // Rows of 16 numbers. Each row occurs three times, as in ghost zones and time levels.
    let number =
        |row: usize, n: usize| (row * 16 + n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).to_le_bytes();
    let rows = [1, 77, 1239].into_iter().flat_map(|step| (0..5000).map(move |n| n * step % 5000));
    let raw: Vec<u8> = rows.flat_map(|row| (0..16).flat_map(move |n| number(row, n))).collect();
    let mut scratch = Scratch::default();
    let mut bytes = |chain: Chain| chain.encode(&raw, &[], &mut scratch).expect("encodes").len();
    let (large, small) = (bytes(Chain::zstd_fast(18)), bytes(Chain::zstd_fast(14)));
    assert!(large * 3 < raw.len() * 2 && large * 4 < small * 3, "{large} {small} {}", raw.len());
    assert_eq!(Chain::zstd_fast(99).to_string(), "zstd(fast 2^20)");
    let is_known = |param| Chain::new(&[Chain::raw().steps()[0], Step { codec: ids::ZSTD, param }]).is_ok();
    assert!([1, 22, 266, 276].into_iter().all(is_known) && ![0, 23, 265, 277].into_iter().any(is_known));
}
