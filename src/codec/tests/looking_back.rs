//! Tests of coding with the bytes of an older segment.

use super::inputs::*;
use super::*;

#[test]
fn a_field_that_hardly_changes_takes_a_part_of_what_it_takes_by_itself() {
    let field = |time: f64| -> Vec<u8> {
        // The field is rough in space, but changes slowly in time.
        let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1u32 << 24);
        let wave = |n: u32| (f64::from(n / 1024) * 0.3 + time).sin() * (f64::from(n / 32 % 32) * 0.2 - time).cos();
        (0..32 * 1024).flat_map(|n| (wave(n) + noise(n)).to_le_bytes()).collect()
    };
    let arrays = [ArrayShape { elements: 32 * 1024, dims: vec![32, 32, 32], ..ArrayShape::default() }];
    let [then, now] = [0.0, 1e-4].map(field);
    let mut scratch = Scratch::default();
    let predict = Chain::predict(&ElementType::F64, 2).expect("numeric type");
    let plain = predict.encode(&now, &arrays, &mut scratch).expect("encodes").len();
    scratch.set_older(Some(Arc::new(Older { raw: then, places: places(&arrays, 8) })));
    let since = Chain::since(&ElementType::F64, 2).expect("numeric type");
    let stored = since.encode(&now, &arrays, &mut scratch).expect("encodes");
    assert!(since.gives_back(&stored, &now, &mut scratch).is_ok_and(|same| same));
    assert!(stored.len() * 3 < plain * 2, "{} and {plain} bytes", stored.len());
    // The choice takes the older segment only if the gain is large.
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
        let since = Chain::since(&ElementType::F64, effort).expect("numeric type");
        let stored = since.encode(&now, &[cube(16)], &mut scratch).expect("encodes");
        assert!(since.gives_back(&stored, &now, &mut scratch).is_ok_and(|same| same));
        assert!(stored.len() * 4 < now.len(), "effort {effort}: {} of {} bytes", stored.len(), now.len());
    }
}

#[test]
fn a_part_of_the_arrays_says_whether_an_older_segment_is_worth_a_trial() {
    // 128 cubes of 16 KiB each. One older segment differs from the cubes by a smooth change. The other older segment
    // has unrelated numbers.
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
    let since = Chain::since(&ElementType::F64, 2).expect("numeric type");
    let stored = since.encode(&raw, &arrays, &mut scratch).expect("encodes");
    assert!(stored.len() < 300, "{} bytes", stored.len());
}

/// Particles, an older checkpoint of these particles with other numbers of rows on each rank, and the place of each
/// array in the older checkpoint.
fn wandered(now: &[u64], then: &[u64]) -> (Vec<ArrayShape>, Vec<u8>, Older) {
    let (arrays, raw) = rows_at(0.002, 12, now, 3);
    let (older_arrays, older) = rows_at(0.0, 12, then, 5);
    let places = places(&older_arrays, 4).into_iter().map(|place| OlderPlace { is_other_length: true, ..place });
    (arrays, raw, Older { raw: older, places: places.collect() })
}

#[test]
fn particles_that_wandered_to_other_ranks_are_known_again_by_their_numbers() {
    let (arrays, raw, older) = wandered(&[700, 600, 426], &[650, 650, 426]);
    let mut scratch = Scratch::default();
    let predict = Chain::predict(&ElementType::F32, 2).expect("numeric type");
    let alone = predict.encode(&raw, &arrays, &mut scratch).expect("encodes").len();
    let older = Arc::new(older);
    scratch.set_older(Some(Arc::clone(&older)));
    let since = Chain::since(&ElementType::F32, 2).expect("numeric type");
    let stored = since.encode(&raw, &arrays, &mut scratch).expect("encodes");
    // The speeds are unchanged, and the new positions follow from the speeds and the old positions.
    assert!(stored.len() * 3 < alone, "{} and {alone} bytes", stored.len());
    let mut afresh = Scratch::default();
    afresh.set_older(Some(Arc::new(Older { raw: older.raw.clone(), places: Vec::new() })));
    let again = since.decode(&stored, raw.len(), &mut afresh);
    assert!(again.is_ok_and(|again| again == raw));
    // The choice tries the older segment without a test on a part, because particles do not recur within a part.
    let basis = Basis { older: Some(&older), ..Basis::NOTHING };
    let coded = encode_chosen(&Profile::Max, &raw, &ElementType::F32, &arrays, false, &basis, &mut scratch);
    let coded = coded.expect("encodes");
    assert!(coded.chain.needs_older(), "{}", coded.reason);
}

#[test]
fn particles_in_another_order_in_as_many_rows_are_known_again() {
    let (arrays, raw) = rows_at(0.002, 24, &[13_822], 0);
    let (_, mut older) = rows_at(0.0, 24, &[13_822], 0);
    // The older segment has the numbers, positions and speeds in reverse order.
    let (numbers, rest) = older.split_at_mut(13_822 * 4);
    numbers.as_chunks_mut::<4>().0.reverse();
    rest.chunks_mut(13_822 * 12).for_each(|points| points.as_chunks_mut::<12>().0.reverse());
    let older = Arc::new(Older { raw: older, places: places(&arrays, 4) });
    let basis = Basis { older: Some(&older), ..Basis::NOTHING };
    let mut scratch = Scratch::default();
    let coded = encode_chosen(&Profile::Max, &raw, &ElementType::F32, &arrays, false, &basis, &mut scratch);
    let coded = coded.expect("encodes");
    assert!(coded.chain.needs_older(), "{}", coded.reason);
    assert!(coded.chain.gives_back(&coded.stored, &raw, &mut scratch).is_ok_and(|same| same));
}

#[test]
fn particles_of_which_the_older_segment_has_few_are_coded_as_if_there_were_none() {
    // One older segment has only a third of the particles. The other older segment ends before the arrays that it
    // should contain.
    let few = wandered(&[700, 600, 426], &[300, 200, 100]);
    let mut cut = wandered(&[700, 600, 426], &[650, 650, 426]);
    cut.2.raw.truncate(2000);
    for (arrays, raw, older) in [few, cut] {
        let mut scratch = Scratch::default();
        let predict = Chain::predict(&ElementType::F32, 2).expect("numeric type");
        let alone = predict.encode(&raw, &arrays, &mut scratch).expect("encodes").len();
        scratch.set_older(Some(Arc::new(older)));
        let since = Chain::since(&ElementType::F32, 2).expect("numeric type");
        let stored = since.encode(&raw, &arrays, &mut scratch).expect("encodes");
        assert!(since.gives_back(&stored, &raw, &mut scratch).is_ok_and(|same| same));
        assert!(stored.len() <= alone + 64, "{} and {alone} bytes", stored.len());
        // The choice does not try such an older segment.
        let older = scratch.work.older.clone();
        let basis = Basis { older: older.as_ref(), ..Basis::NOTHING };
        let coded = encode_chosen(&Profile::Max, &raw, &ElementType::F32, &arrays, false, &basis, &mut scratch);
        let coded = coded.expect("encodes");
        assert!(!coded.chain.needs_older(), "{}", coded.reason);
    }
}
