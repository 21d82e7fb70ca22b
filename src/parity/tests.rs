//! Tests of parity. `Field` computes parity from the formulas of docs/format/parity.md, without the library.

use super::blocks::Blocks;
use super::format::BLOCK_BYTES;
use super::*;
use crate::ids::Digest;
use crate::store::{MemoryStore, Store, StoredFile, create_dirs};
use proptest::prelude::*;
use std::io;
use std::path::Path;

const CONTAINER: &str = "j/c/group-0000.mcr";
const BLOCK: usize = BLOCK_BYTES as usize;

/// The numbers of 16 bits of docs/format/parity.md.
struct Field {
    log: Vec<u32>,
    number: Vec<u16>,
}

impl Field {
    fn new() -> Self {
        const BASIS: [u32; 16] = [
            0x0001, 0xACCA, 0x3C0E, 0x163E, 0xC582, 0xED2E, 0x914C, 0x4012, 0x6C98, 0x10D8, 0x6A72, 0xB900, 0xFDB8,
            0xFB34, 0xFF38, 0x991E,
        ];
        let polynomial =
            |number: u32| (0..16).filter(|bit| number >> bit & 1 == 1).fold(0, |sum, bit| sum ^ BASIS[bit]);
        let mut number_of = vec![0u16; 1 << 16];
        (0..1u32 << 16).for_each(|number| number_of[polynomial(number) as usize] = number as u16);
        let (mut log, mut number, mut power) = (vec![0; 1 << 16], Vec::new(), 1u32);
        for exponent in 0..65535 {
            number.push(number_of[power as usize]);
            log[number_of[power as usize] as usize] = exponent;
            power <<= 1;
            if power >> 16 == 1 {
                power ^= 0x1002D;
            }
        }
        Self { log, number }
    }

    fn times(&self, a: u16, b: u16) -> u16 {
        if a == 0 || b == 0 {
            return 0;
        }
        self.number[((self.log[a as usize] + self.log[b as usize]) % 65535) as usize]
    }

    fn divide(&self, a: u16, b: u16) -> u16 {
        if a == 0 {
            return 0;
        }
        self.number[((self.log[a as usize] + 65535 - self.log[b as usize]) % 65535) as usize]
    }

    /// Number `i` of the parity of `data`. `m`: number of parity numbers.
    fn parity(&self, data: &[u16], m: usize, i: usize) -> u16 {
        let wide = m.next_power_of_two();
        let mut sum = 0;
        for (nth, value) in data.iter().enumerate() {
            let (c, j) = (nth / wide, nth % wide);
            let point = |t: usize| ((c + 1) * wide + t) as u16;
            let mut term = *value;
            for t in (0..wide).filter(|t| *t != j) {
                term = self.divide(self.times(term, i as u16 ^ point(t)), point(j) ^ point(t));
            }
            sum ^= term;
        }
        sum
    }
}

/// Number `n` of a block: in each 64 bytes, 32 low bytes precede 32 high bytes.
fn number(block: &[u8], n: usize) -> u16 {
    let at = n / 32 * 64 + n % 32;
    u16::from_le_bytes([block[at], block[at + 32]])
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A store with a container of these bytes and its parity.
fn stored(container: &[u8], percent: u32) -> MemoryStore {
    let store = MemoryStore::new();
    let path = Path::new(CONTAINER);
    create_dirs(&store, path.parent().expect("a directory")).expect("made");
    store.put(path, container);
    let percent = ParityPercent::new(percent).expect("valid");
    let parity = write(&store, path, path, Digest([7; 32]), percent, MEMORY_BYTES).expect("written");
    store.rename(parity.path(), &parity_path(path)).expect("renamed");
    store
}

fn mended(store: &dyn Store) -> Result<(Vec<u8>, u64), MendError> {
    let mended = mend(store, Path::new(CONTAINER), Digest([7; 32]), None, &|_| ())?;
    let file = store.open(mended.temp.path()).expect("opens");
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes).expect("reads");
    Ok((bytes, mended.blocks))
}

#[test]
fn the_parity_is_what_the_page_of_the_format_says() {
    let field = Field::new();
    assert_eq!((field.times(2, 3), field.divide(field.times(12345, 999), 999)), (field.times(3, 2), 12345));
    for (blocks, percent) in [(1, 2), (7, 50), (11, 30), (200, 2), (401, 1)] {
        let container = noise(blocks * BLOCK - 5, blocks as u64);
        let store = stored(&container, percent);
        let file = store.get(&parity_path(Path::new(CONTAINER))).expect("there");
        let header = parse_header(file[..HEADER_LEN].try_into().expect("128 bytes"), Path::new("x"), 0).expect("valid");
        let Geometry { data, parity, stripes, .. } = header.geometry;
        assert_eq!(file.len() as u64, header.geometry.file_bytes());
        for stripe in [0, stripes - 1] {
            let record = &file[header.geometry.record_at(stripe) as usize..];
            let of_container: Vec<Vec<u8>> = (0..data)
                .map(|row| {
                    let at = (header.geometry.offset(row, stripe) as usize).min(container.len());
                    let mut block = container[at..(at + BLOCK).min(container.len())].to_vec();
                    block.resize(BLOCK, 0);
                    block
                })
                .collect();
            for n in [0, 31, 32, 2047] {
                let numbers: Vec<u16> = of_container.iter().map(|block| number(block, n)).collect();
                for i in 0..parity as usize {
                    let block = &record[header.geometry.table_bytes() + i * BLOCK..][..BLOCK];
                    assert_eq!(
                        number(block, n),
                        field.parity(&numbers, parity as usize, i),
                        "{blocks}, {percent}, {i}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_check_values_of_the_page_are_right() {
    let field = Field::new();
    let data = [0x0102, 0x0304, 0x0506, 0x0708, 0x090A];
    assert_eq!([0, 1, 2].map(|i| field.parity(&data, 3, i)), [0x08A3, 0x00D9, 0x001A]);
    assert_eq!((field.times(0x1234, 0x5678), field.times(2, 2)), (0x35C9, 3));
}

#[test]
fn the_parity_is_as_long_as_its_percentage_and_at_least_one_block() {
    for (bytes, percent, blocks) in [(1, 2, 1), (100 * 4096, 2, 2), (200 * 4096, 2, 4), (201 * 4096, 2, 6), (0, 50, 1)]
    {
        let geometry = Geometry::of(bytes, ParityPercent::new(percent).expect("valid"));
        assert_eq!(u64::from(geometry.parity) * geometry.stripes, blocks, "{bytes} bytes, {percent} %");
    }
    for percent in 1..=50 {
        let percent = ParityPercent::new(percent).expect("valid");
        let geometry = Geometry::of(1 << 30, percent);
        let ratio = geometry.file_bytes() as f64 / (1u64 << 30) as f64 * 100.0;
        let expected = f64::from(percent.get());
        assert!(ratio >= expected && ratio < expected * 1.1 + 0.3, "{percent:?}: {ratio} %");
    }
    assert!(ParityPercent::new(0).is_none() && ParityPercent::new(51).is_none());
}

#[test]
fn a_sector_that_the_disk_cannot_read_is_mended_too() {
    struct BadSector(Vec<u8>);
    impl StoredFile for BadSector {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            let range = offset as usize..offset as usize + into.len();
            if range.contains(&9000) {
                return Err(io::Error::from_raw_os_error(5));
            }
            into.copy_from_slice(&self.0[range]);
            Ok(())
        }
    }
    let file = BadSector(noise(5 * BLOCK, 1));
    let blocks = Blocks { file: &file, bytes: 5 * BLOCK as u64 - 10 };
    let mut run = vec![9; 6 * BLOCK];
    assert_eq!(blocks.read_possible(0, &mut run, BLOCK), [2]);
    assert_eq!(
        (&run[..2 * BLOCK], &run[3 * BLOCK..5 * BLOCK - 10]),
        (&file.0[..2 * BLOCK], &file.0[3 * BLOCK..5 * BLOCK - 10])
    );
    assert!(run[5 * BLOCK - 10..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_parity_file_of_another_length_makes_no_reader_busy() {
    let store = stored(&noise(9 * BLOCK, 1), 10);
    let path = parity_path(Path::new(CONTAINER));
    let mut file = store.get(&path).expect("there");
    let header: &[u8; HEADER_LEN] = file[..HEADER_LEN].try_into().expect("128 bytes");
    let mut header = parse_header(header, Path::new("x"), 0).expect("valid");
    header.bytes = 1 << 50;
    header.geometry.stripes = (1 << 38) / 9 + 1;
    for at in [0, file.len() - HEADER_LEN] {
        file[at..at + HEADER_LEN].copy_from_slice(&header.to_record());
    }
    store.put(&path, &file);
    assert!(matches!(mended(&store), Err(MendError::Cut { .. } | MendError::Read(_))));
    check(&store, Path::new(CONTAINER), Digest([7; 32]), 1 << 50).expect_err("too short");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Damages at most as many blocks of each stripe as the stripe has parity blocks, and blocks of the parity file.
    #[test]
    fn damage_within_the_parity_is_mended(
        len in 1usize..3_000_000,
        percent in 1u32..=50,
        seed in any::<u64>(),
        holes in prop::collection::vec((any::<prop::sample::Index>(), 1usize..5000), 0..6),
        cut in prop::option::of(1usize..4096),
    ) {
        let container = noise(len, seed);
        let store = stored(&container, percent);
        let geometry = Geometry::of(len as u64, ParityPercent::new(percent).expect("valid"));
        let mut damaged = container.clone();
        for (at, hole) in &holes {
            let at = at.index(len);
            damaged[at..(at + hole).min(len)].fill(0xA5);
        }
        if let Some(cut) = cut {
            damaged.truncate(len.saturating_sub(cut));
        }
        let mut lost = vec![0; geometry.stripes as usize];
        for (nth, block) in container.chunks(BLOCK).enumerate() {
            let at = nth * BLOCK;
            if damaged.get(at..at + block.len()) != Some(block) {
                lost[nth % geometry.stripes as usize] += 1;
            }
        }
        store.put(Path::new(CONTAINER), &damaged);
        let is_mendable = lost.iter().all(|lost| *lost <= geometry.parity);
        match mended(&store) {
            Ok((bytes, blocks)) => {
                prop_assert!(is_mendable && bytes == container);
                prop_assert_eq!(blocks, lost.iter().map(|lost| u64::from(*lost)).sum::<u64>());
            }
            Err(MendError::NothingFound) => prop_assert!(damaged == container),
            Err(MendError::Beyond { .. }) => prop_assert!(!is_mendable),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    /// Any damage of the parity file is noticed. If a block of the container is damaged too, mending fails or gives the
    /// right bytes.
    #[test]
    fn damage_of_the_parity_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..=255, seed in any::<u64>()) {
        let container = noise(60 * BLOCK, seed);
        let store = stored(&container, 5);
        let path = parity_path(Path::new(CONTAINER));
        let mut parity = store.get(&path).expect("there");
        let at = at.index(parity.len());
        parity[at] ^= flip;
        store.put(&path, &parity);
        let digest = Digest([7; 32]);
        prop_assert!(check(&store, Path::new(CONTAINER), digest, container.len() as u64).is_err());
        let mut damaged = container.clone();
        damaged[seed as usize % (60 * BLOCK)] ^= 1;
        store.put(Path::new(CONTAINER), &damaged);
        if let Ok((bytes, _)) = mended(&store) {
            prop_assert!(bytes == container);
        }
    }
}
