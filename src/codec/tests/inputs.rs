//! Generated inputs. Every host generates the same inputs.

use super::*;

/// Numbers that are near their neighbours. The numbers are computed without a library's sine, because its results
/// differ between hosts.
pub(super) fn wave(n: usize) -> Vec<f64> {
    let step = |(x, v): &mut (f64, f64)| {
        (*x, *v) = (*x + *v * 0.01, *v - *x * 0.01);
        Some(*x)
    };
    std::iter::repeat_n((), n).scan((1.0, 0.5), |state, ()| step(state)).collect()
}

pub(super) fn cube(side: u64) -> ArrayShape {
    ArrayShape { elements: side.pow(3), dims: vec![side; 3], ..ArrayShape::default() }
}

/// Rough numbers. The computation needs no rounding, so every host computes the same numbers.
pub(super) fn rough(count: u64) -> impl Iterator<Item = f64> {
    // The last steps of SplitMix64.
    let mixed = |n: u64| {
        let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        n ^ n >> 31
    };
    (0..count).map(move |n| (mixed(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 11) as f64 / (1u64 << 50) as f64)
}

pub(super) fn before_a_change(raw: &[u8]) -> Vec<u8> {
    let change = |n: usize| ((n / 256).pow(2) + n / 16 % 16) as f64 / (1u64 << 24) as f64;
    let numbers = raw.as_chunks::<8>().0.iter().enumerate();
    numbers.flat_map(|(n, &x)| (f64::from_le_bytes(x) - change(n)).to_le_bytes()).collect()
}

/// Four columns. Each column has a grid in chunks, a finer grid that covers a part of the first grid, and points of
/// three components.
pub(super) fn grids() -> Vec<ArrayShape> {
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

/// The numbers of [`grids`]. The second column is computed from the first column. The third column is computed from
/// the first two columns, with a little noise. The fourth column is the first column in reverse order, negated.
pub(super) fn grid_numbers() -> Vec<f64> {
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

/// Nested grids in two columns, a density and an energy. Each column has a finer grid, the coarse grid, and another
/// finer grid. A coarse cell has the mean of the finer cells that cover it. The mean of the energy is weighted by the
/// density. All other numbers are rough.
pub(super) fn nested() -> (Vec<ArrayShape>, Vec<u8>) {
    const COARSE: [usize; 2] = [24, 20];
    /// The cells of a finer grid, and the coarse cell at which it begins.
    const FINE: [([usize; 2], [usize; 2]); 2] = [([16, 12], [2, 3]), ([8, 16], [14, 10])];
    let random: Vec<f64> = rough(2000).collect();
    let fine = |seed: usize, of: usize| -> Vec<f64> {
        let [rows, row] = FINE[of].0;
        (0..rows * row).map(|n| 1.0 + random[seed + 200 * of + n]).collect()
    };
    let density = [fine(0, 0), fine(0, 1)];
    let energy = [fine(900, 0), fine(900, 1)];
    let coarse = |fine: &[Vec<f64>; 2], weights: Option<&[Vec<f64>; 2]>, seed: usize| {
        let mut cells: Vec<f64> = (0..COARSE[0] * COARSE[1]).map(|n| 1.0 + random[seed + n]).collect();
        for (of, ([rows, row], [down, right])) in FINE.into_iter().enumerate() {
            for (j, i) in (0..rows / 2).flat_map(|j| (0..row / 2).map(move |i| (j, i))) {
                let (mut sum, mut all) = (0.0, 0.0);
                for n in [0, 1, row, row + 1].map(|step| 2 * j * row + 2 * i + step) {
                    let weight = weights.map_or(1.0, |weights| weights[of][n]);
                    (sum, all) = (sum + weight * fine[of][n], all + weight);
                }
                cells[(down + j) * COARSE[1] + right + i] = sum / all;
            }
        }
        cells
    };
    let columns = [(&density, coarse(&density, None, 400)), (&energy, coarse(&energy, Some(&density), 1400))];
    let numbers = columns.iter().flat_map(|(fine, coarse)| [&fine[0], coarse, &fine[1]]).flatten();
    let raw = numbers.flat_map(|x| x.to_le_bytes()).collect();
    let shape = |column: u32, [rows, row]: [usize; 2]| {
        let (elements, dims) = ((rows * row) as u64, vec![rows as u64, row as u64]);
        ArrayShape { elements, dims, column, ..ArrayShape::default() }
    };
    let shapes = |column: u32| [FINE[0].0, COARSE, FINE[1].0].map(|dims| shape(column, dims));
    ((0..2).flat_map(shapes).collect(), raw)
}

/// Three blocks of one grid. The blocks lie side by side along the second of three axes. The numbers are smooth.
pub(super) fn joined() -> (Vec<ArrayShape>, Vec<u8>) {
    const BLOCKS: u64 = 3;
    const DIMS: [u64; 3] = [6, 8, 10];
    let noise: Vec<f64> = rough(BLOCKS * DIMS.iter().product::<u64>()).collect();
    let mut raw = Vec::new();
    for n in 0..noise.len() as u64 {
        let (block, cell) = (n / (DIMS[0] * DIMS[1] * DIMS[2]), n % (DIMS[0] * DIMS[1] * DIMS[2]));
        let (z, y, x) = (cell / (DIMS[1] * DIMS[2]), cell / DIMS[2] % DIMS[1] + block * DIMS[1], cell % DIMS[2]);
        let [z, y, x] = [z, y, x].map(|at| at as f64 / 16.0);
        // The computation uses only products and sums, so every host gets the same numbers.
        let number = 2.0 + y * (1.5 - y * 0.61) + z * (0.4 + x * z) - x * x * y;
        raw.extend((number + noise[n as usize] / (1u64 << 36) as f64).to_le_bytes());
    }
    let shape = |_| ArrayShape { elements: DIMS.iter().product(), dims: DIMS.into(), ..ArrayShape::default() };
    ((0..BLOCKS).map(shape).collect(), raw)
}

/// Doubles with two decimal digits, in no order.
pub(super) fn decimals() -> (Vec<ArrayShape>, Vec<u8>) {
    let numbers = rough(1000).map(|x| (x * 12_500.0).floor() * 0.01);
    (vec![], numbers.flat_map(f64::to_le_bytes).collect())
}

/// More floats than one block of codec `fpzip` has: two grids with rows of 256 elements. The second block begins
/// within the second grid.
pub(super) fn two_blocks() -> (Vec<ArrayShape>, Vec<u8>) {
    let shape = |rows: u64| ArrayShape { elements: rows * 256, dims: vec![rows, 256], ..ArrayShape::default() };
    let number = |n: u32| ((n / 256 % 16) as f32) * 0.5 + ((n % 256) as f32) * 0.25;
    (vec![shape(10), shape(250)], (0..260 * 256).flat_map(|n| number(n).to_le_bytes()).collect())
}

/// Three square matrices of doubles. The first matrix has unrelated numbers. The second matrix is the transposed
/// first matrix, negated. The third matrix is the transposed first matrix with small changes.
pub(super) fn transposed(side: usize) -> (Vec<ArrayShape>, Vec<u8>) {
    let own: Vec<f64> = rough((side * side) as u64).collect();
    let turned = |by: &dyn Fn(f64) -> f64| -> Vec<f64> {
        (0..side * side).map(|n| by(own[n % side * side + n / side])).collect()
    };
    let raw = [own.clone(), turned(&|x| -x), turned(&|x| x * (1.0 + 1e-12))].concat();
    let shape = |_| ArrayShape { elements: (side * side) as u64, dims: vec![side as u64; 2], ..ArrayShape::default() };
    ((0..3).map(shape).collect(), raw.into_iter().flat_map(f64::to_le_bytes).collect())
}

/// Points with three components of different size, on two grids of similar size. One number is NaN. The numbers are
/// rough along each row, and smooth from row to row.
pub(super) fn points(side: u64) -> (Vec<ArrayShape>, Vec<u8>) {
    let grids = [[side, side + 3], [side + 1, side - 2]];
    let texture: Vec<f64> = rough(64 * 3).collect();
    let component = |at: u64, lane: usize| {
        let x = (at / 64) as f64 / 16.0;
        // The computation uses only products and sums, so every host gets the same numbers.
        (texture[at as usize % 64 * 3 + lane] + x * (1.5 - x * 0.11) + 3.0) * [1.0, 300.0, 7.0][lane]
    };
    let mut numbers: Vec<f64> = (grids.iter())
        .flat_map(|&[rows, row]| (0..rows * row).map(move |n| n / row * 64 + n % row))
        .flat_map(|at| (0..3).map(move |lane| component(at, lane)))
        .collect();
    let noise = rough(numbers.len() as u64);
    numbers.iter_mut().zip(noise).for_each(|(number, noise)| *number += noise / (1u64 << 42) as f64);
    numbers[77] = f64::NAN;
    let shape = |[rows, row]: [u64; 2]| {
        let dims = vec![rows, row, 3];
        ArrayShape { elements: dims.iter().product(), dims, ..ArrayShape::default() }
    };
    (grids.map(shape).into(), numbers.into_iter().flat_map(f64::to_le_bytes).collect())
}

/// Three variables of different size, rough along one axis and smooth along the other. Two grids of the first column
/// store one variable after the other. In the second column, the blocks of a grid store one variable after the other.
pub(super) fn variables_first() -> (Vec<ArrayShape>, Vec<u8>) {
    let shapes: [(u32, [u64; 4]); 3] = [(0, [1, 3, 32, 40]), (0, [1, 3, 41, 25]), (1, [8, 3, 16, 10])];
    let texture: Vec<f64> = rough(64 * 3).collect();
    let mut numbers = Vec::new();
    for (_, [blocks, lanes, rows, row]) in shapes {
        for at in 0..blocks * lanes * rows * row {
            let (x, y, lane) = (at % row, at / row % rows + 3 * (at / (row * rows * lanes)), at / (row * rows) % lanes);
            let (x, y, lane) = (x as usize, y as f64 / 32.0, lane as usize);
            // The computation uses only products and sums, so every host gets the same numbers.
            numbers.push((texture[x * 3 + lane] + y * (1.5 - y * 0.11) + 3.0) * [1.0, 3e6, -20.0][lane]);
        }
    }
    let noise = rough(numbers.len() as u64);
    numbers.iter_mut().zip(noise).for_each(|(number, noise)| *number += *number * noise / (1u64 << 42) as f64);
    let shape = |(column, dims): (u32, [u64; 4])| {
        let elements = dims.iter().product();
        let dims = dims.into_iter().filter(|&n| n > 1).collect();
        ArrayShape { elements, dims, column, ..ArrayShape::default() }
    };
    (shapes.map(shape).into(), numbers.into_iter().flat_map(f64::to_le_bytes).collect())
}

/// Particles near the places of a lattice with `side` places in each dimension, in a periodic box. There are columns
/// for the identification numbers, positions and speeds of the particles, in the order of a line through the lattice.
/// `arrays` gives the rows of each array, and `padding` rows of zeros follow each array. Two particles are missing,
/// so the last rows may also be zeros.
pub(super) fn rows(side: u32, arrays: &[u64], padding: usize) -> (Vec<ArrayShape>, Vec<u8>) {
    rows_at(0.0, side, arrays, padding)
}

/// The particles of [`rows`] at another time. Each particle has moved with its speed.
pub(super) fn rows_at(time: f32, side: u32, arrays: &[u64], padding: usize) -> (Vec<ArrayShape>, Vec<u8>) {
    let places = side.pow(3);
    // The line goes forth and back, similar to a space-filling curve.
    let line =
        |n: u32, _| u64::from(n / side) << 32 | u64::from(if (n / side).is_multiple_of(2) { n } else { places - n });
    rows_by(time, side, line, arrays, padding)
}

/// The particles of [`rows`] in the order of Morton's curve, in a box that begins at `begin`.
pub(super) fn rows_along_a_curve(side: u32, begin: f32, arrays: &[u64]) -> (Vec<ArrayShape>, Vec<u8>) {
    let morton = |_, at: [f32; 3]| {
        let cells = at.map(|x| ((f64::from(x) - f64::from(begin)).rem_euclid(10.0) / 10.0 * 65536.0) as u64);
        (0..16).rev().fold(0, |key, bit| cells.iter().fold(key, |key, cell| key << 1 | cell >> bit & 1))
    };
    rows_by(0.0, side, morton, arrays, 0)
}

/// The particles of [`rows`], sorted by a function of a particle's number and position.
fn rows_by(
    time: f32,
    side: u32,
    key: impl Fn(u32, [f32; 3]) -> u64,
    arrays: &[u64],
    padding: usize,
) -> (Vec<ArrayShape>, Vec<u8>) {
    let count: u64 = arrays.iter().sum();
    let places = side.pow(3);
    let mut numbers: Vec<u32> = (0..places).filter(|&n| n != 5 && n != places / 2).collect();
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
            let own = off[n as usize][d];
            (at[d] as f32 * cell + own * cell + own * 250.0 * time).rem_euclid(box_size).min(9.999)
        })
    };
    numbers.sort_by_key(|&n| key(n, position(n)));
    numbers.truncate(count as usize);
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

/// Older bytes for `raw`: every third number differs in its low bits, and the last 3 bytes are missing.
pub(super) fn older_of(raw: &[u8]) -> Vec<u8> {
    let changed = raw.iter().enumerate().map(|(i, byte)| if i % 24 == 0 { byte ^ 3 } else { *byte });
    changed.take(raw.len().saturating_sub(3)).collect()
}

/// The places of the arrays, if the older segment has the same layout as the segment itself.
pub(super) fn places(arrays: &[ArrayShape], width: usize) -> Vec<OlderPlace> {
    let mut from = 0usize;
    (arrays.iter())
        .map(|array| {
            let bytes = usize::try_from(array.elements).unwrap_or(0).saturating_mul(width);
            let place = OlderPlace { from, bytes, ..OlderPlace::default() };
            from = from.saturating_add(bytes);
            place
        })
        .collect()
}
