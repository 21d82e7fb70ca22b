//! Tests that this build decodes the bytes that earlier versions wrote.

use super::inputs::*;
use super::*;
use crate::codec::registers::tests::with_narrow_ones;

/// Each golden file: its name, its chain, and the shapes that the encoder got.
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
        ("fpzip-two-blocks", Chain::fpzip(4, Little, 2), two_blocks().0),
        ("columns", Chain::of(&[(ids::COLUMNS, 12)]), vec![]),
        ("shuffle-8", Chain::raw().then(ids::SHUFFLE, 8), vec![]),
        ("shuffle-3", Chain::raw().then(ids::SHUFFLE, 3), vec![]),
        ("bitshuffle-8", Chain::raw().then(ids::BITSHUFFLE, 8), vec![]),
        ("bitshuffle-3", Chain::raw().then(ids::BITSHUFFLE, 3), vec![]),
        ("runs-8", Chain::of(&[(ids::RUNS, 8)]), vec![]),
        ("runs-1", Chain::of(&[(ids::RUNS, 1)]), vec![]),
        ("pco-f64", Chain::pco(&ElementType::F64, 8).expect("numeric type"), vec![]),
        ("pco-f64-be", Chain::pco(&F64BE, 8).expect("numeric type"), vec![]),
        ("pco-f32", Chain::pco(&ElementType::F32, 8).expect("numeric type"), vec![]),
        (
            "pco-u16",
            Chain::pco(&ElementType::Int { width: 2, signed: false, order: Little }, 8).expect("numeric type"),
            vec![],
        ),
        ("lz4", Chain::lz4(), vec![]),
        ("zstd-3", Chain::zstd(3), vec![]),
        ("zstd-fast-18", Chain::zstd_fast(18), vec![]),
        ("gzip-6", Chain::gzip(6), vec![]),
        ("lzma-words", Chain::lzma_of_words(), vec![]),
        ("lzma-text", Chain::lzmas()[1].clone(), vec![]),
        ("paper-f64", Chain::paper(&ElementType::F64, true, false), vec![]),
        ("predict-f64", predicted(&ElementType::F64), grids()),
        ("predict-f64-be", predicted(&F64BE), grids()),
        ("predict-f32", predicted(&ElementType::F32), grids()),
        ("predict-rows", predicted(&ElementType::F32), rows(9, &[400, 331], 2).0),
        ("predict-narrow", Chain::predict(&ElementType::F32, 1).expect("numeric type"), rows(9, &[400, 331], 2).0),
        ("predict-curve", predicted(&ElementType::F32), rows_along_a_curve(9, 0.0, &[400, 327]).0),
        ("predict-strides", predicted(&ElementType::F64), transposed(40).0),
        ("predict-points", predicted(&ElementType::F64), points(12).0),
        ("predict-variables-first", predicted(&ElementType::F64), variables_first().0),
        ("predict-nested", predicted(&ElementType::F64), nested().0),
        ("predict-joined", predicted(&ElementType::F64), joined().0),
        ("predict-decimals", predicted(&ElementType::F64), decimals().0),
        ("predict-i64", predicted(&ElementType::Int { width: 8, signed: true, order: Little }), vec![]),
        ("predict-bytes", predicted(&ElementType::Bytes), vec![]),
        ("mixed", Chain::mixed(2), vec![]),
        ("since-f64", since_older(&ElementType::F64), grids()),
        ("since-f32", since_older(&ElementType::F32), grids()),
        ("since-rows", since_older(&ElementType::F32), rows(9, &[400, 331], 2).0),
        ("since-points", since_older(&ElementType::F64), points(12).0),
        ("since-slow", Chain::since(&ElementType::F64, 1).expect("numeric type"), vec![cube(16)]),
        ("since-i64", since_older(&ElementType::Int { width: 8, signed: true, order: Little }), grids()),
    ]
}

fn predicted(element: &ElementType) -> Chain {
    Chain::predict(element, 2).expect("numeric type or bytes")
}

fn since_older(element: &ElementType) -> Chain {
    Chain::since(element, 2).expect("numeric type")
}

/// The input of most golden files: 500 numbers, including a few special values such as NaN, and 3 additional bytes.
fn golden_raw(chain: &Chain) -> Vec<u8> {
    let big = chain.to_string().contains("be");
    let odd = [f64::from_bits(0x7FF8_0000_0000_BEEF), -0.0, f64::INFINITY, 5e-324];
    let numbers = wave(500).into_iter().enumerate().map(|(i, x)| if i % 125 == 60 { odd[i / 125] } else { x });
    let mut raw: Vec<u8> = match chain.steps()[0] {
        Step { codec: ids::PREDICT | ids::SINCE, param } if param & 0xFF == 4 => {
            grid_numbers().into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect()
        }
        Step { codec: ids::SINCE, param } if param >> 16 == 1 => rough(4096).flat_map(f64::to_le_bytes).collect(),
        Step { codec: ids::SINCE, .. } => grid_numbers().into_iter().flat_map(f64::to_le_bytes).collect(),
        Step { codec: ids::PREDICT, param } if param & 0x600 == 0 => {
            grid_numbers().into_iter().flat_map(|x| if big { x.to_be_bytes() } else { x.to_le_bytes() }).collect()
        }
        // A header, big-endian floats, a marker, and doubles at an odd position.
        Step { codec: ids::MIXED, .. } => {
            let floats = wave(1500).into_iter().flat_map(|x| (x as f32).to_be_bytes());
            let doubles = numbers.chain(wave(700)).flat_map(f64::to_le_bytes);
            b"a header\n".iter().copied().chain(floats).chain([0, 0, 23]).chain(doubles).collect()
        }
        Step { codec: ids::RUNS, .. } => {
            // Runs of each length up to 24, between elements that do not repeat.
            (0..600u32).flat_map(|n| f64::from(n.isqrt() * 7 + n % 3 / 2 * (n % 100 / 90)).to_le_bytes()).collect()
        }
        Step { codec: ids::FPZIP | ids::PCO, param } if param & 0xFF == 4 => {
            numbers.flat_map(|x| (x as f32).to_le_bytes()).collect()
        }
        _ => numbers.flat_map(|x| if big { x.to_be_bytes() } else { x.to_le_bytes() }).collect(),
    };
    raw.extend(*b"end");
    raw
}

/// A golden file has four parts: the chain, the length of the raw bytes (`u32`, little-endian), the raw bytes, and
/// the stored bytes. Chains that need an older segment get the bytes that `older_of` or `before_a_change` computes
/// from the raw bytes. Golden files are never rewritten. MCR_ADD_GOLDEN=1 adds missing golden files.
#[test]
fn golden_files_decode_to_their_input_and_our_own_codecs_still_give_the_same_bytes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/v1/codec");
    let listed = golden();
    for (name, chain, arrays) in &listed {
        let path = folder.join(format!("{name}.bin"));
        if !path.exists() && std::env::var_os("MCR_ADD_GOLDEN").is_some() {
            let raw = match *name {
                "predict-rows" | "predict-narrow" | "since-rows" => rows(9, &[400, 331], 2).1,
                "predict-curve" => rows_along_a_curve(9, 0.0, &[400, 327]).1,
                "predict-strides" => transposed(40).1,
                "predict-points" | "since-points" => points(12).1,
                "predict-variables-first" => variables_first().1,
                "predict-nested" => nested().1,
                "predict-joined" => joined().1,
                "predict-decimals" => decimals().1,
                "fpzip-two-blocks" => two_blocks().1,
                _ => golden_raw(chain),
            };
            let mut file = Vec::new();
            chain.to_bytes(&mut file);
            file.extend((raw.len() as u32).to_le_bytes());
            file.extend(&raw);
            file.extend(chain.encode(&raw, arrays, &mut with_older(chain, &raw, arrays)).expect("encodes"));
            std::fs::write(&path, file).expect("tests/data is writable");
        }
        let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (read, used) = Chain::from_bytes(&file).expect("a valid chain");
        assert_eq!(read, *chain, "{name}");
        let (len, rest) = file[used..].split_first_chunk::<4>().expect("the length is present");
        let (raw, stored) = rest.split_at(u32::from_le_bytes(*len) as usize);
        let mut scratch = with_older(chain, raw, &[]);
        let wide = read.decode(stored, raw.len(), &mut scratch);
        let narrow = with_narrow_ones(|| read.decode(stored, raw.len(), &mut scratch));
        for (decoded, registers) in [(wide, "wide"), (narrow, "narrow")] {
            let found = decoded.as_ref().map(Vec::len);
            assert!(decoded.as_ref().is_ok_and(|decoded| decoded == raw), "{name}, {registers} registers: {found:?}");
        }
        let is_our_own = read.steps().iter().all(|step| {
            [ids::RAW, ids::FPC, ids::FPZIP, ids::SHUFFLE, ids::BITSHUFFLE, ids::RUNS].contains(&step.codec)
        });
        if is_our_own {
            assert_eq!(read.encode(raw, arrays, &mut scratch).expect("encodes"), stored, "{name}");
        }
    }
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let found: BTreeSet<String> =
        files.map(|file| file.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    let expected: BTreeSet<String> = listed.iter().map(|(name, ..)| format!("{name}.bin")).collect();
    assert_eq!(found, expected, "the folder has the listed golden files and no others");
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
