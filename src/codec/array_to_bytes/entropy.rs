//! Entropy coding for the codecs of numbers: an adaptive range coder for symbols, and strings of raw bits.
//!
//! The range coder is rANS (J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, section 3). The coder uses two
//! 64-bit states in turn, and moves 32-bit words between the states and the stored bytes. The model of the coder is
//! quasi-static, as in fpzip (M. Schindler's range coder): the frequencies stay fixed for a period and are then
//! computed again from the symbols seen. The weight of older symbols is halved repeatedly. Frequencies are never
//! stored, because the decoder computes them from the same symbols.
//!
//! All arithmetic is on integers and in a fixed order. Decoding never panics: missing bytes are read as zeros, and a
//! check at the end reports whether the states and lengths have the expected values.

/// Binary logarithm of the sum of all frequencies.
const TOTAL_BITS: u32 = 14;
const TOTAL: u32 = 1 << TOTAL_BITS;
/// Lower limit of a state between two symbols.
const STATE_MIN: u64 = 1 << 31;
/// Number of symbols before the first update of the model. The number doubles after each update, up to `PERIOD_LAST`.
const PERIOD_FIRST: usize = 32;
const PERIOD_LAST: usize = 1024;
/// All counts are halved when their sum exceeds this limit.
const COUNTED_MAX: u32 = 1 << 14;
/// The most bits that one symbol takes.
pub(super) const SYMBOL_BITS_MAX: usize = TOTAL_BITS as usize;
/// The most bytes that [`encode_symbols`] adds to the bits of its symbols: two states and part of a word.
pub(super) const SYMBOLS_OVERHEAD_BYTES: usize = 2 * size_of::<u64>() + size_of::<u32>();

/// Frequencies of the symbols seen so far. The next symbols are coded with these frequencies.
#[derive(Clone)]
pub(super) struct Model {
    /// How often each symbol was seen. Older symbols count less, because the counts are halved repeatedly.
    counts: Vec<u32>,
    counted: u32,
    /// First slot and number of slots of each symbol. There are `TOTAL` slots, and the number of slots of a symbol is
    /// its frequency, which is never 0.
    ranges: Vec<(u16, u16)>,
    /// The symbol of each slot. Only decoders fill this list.
    slots: Vec<u8>,
    period: usize,
    /// Number of symbols until the next update.
    left: usize,
}

impl Model {
    /// A model for the symbols from 0 up to `symbols` (exclusive). `symbols` is at most 256.
    pub(super) fn new(symbols: usize, for_decoding: bool) -> Self {
        let mut model = Self {
            counts: vec![0; symbols],
            counted: 0,
            ranges: vec![(0, 0); symbols],
            slots: vec![0; if for_decoding { TOTAL as usize } else { 0 }],
            period: PERIOD_FIRST,
            left: PERIOD_FIRST,
        };
        model.set_ranges();
        model
    }

    /// Counts symbols of the current period, and updates the frequencies when the period ends.
    fn learn(&mut self, symbols: &[u8]) {
        for &symbol in symbols {
            self.counts[usize::from(symbol)] += 1;
        }
        self.counted += symbols.len() as u32; // the value is at most PERIOD_LAST
        self.left -= symbols.len();
        if self.left == 0 {
            self.set_ranges();
            self.period = (self.period * 2).min(PERIOD_LAST);
            self.left = self.period;
            if self.counted > COUNTED_MAX {
                self.counts.iter_mut().for_each(|count| *count /= 2);
                self.counted = self.counts.iter().sum();
            }
        }
    }

    fn set_ranges(&mut self) {
        let spread = TOTAL - self.counts.len() as u32; // each symbol has at least one slot
        let mut given = 0;
        let mut likeliest = 0;
        for (symbol, (range, &count)) in self.ranges.iter_mut().zip(&self.counts).enumerate() {
            // Most symbols never occur. The product cannot overflow: a count is at most COUNTED_MAX + PERIOD_LAST,
            // and `spread` is less than TOTAL.
            let share = if count == 0 { 0 } else { count * spread / self.counted };
            range.1 = 1 + share as u16; // the value is at most TOTAL
            given += u32::from(range.1);
            if count > self.counts[likeliest] {
                likeliest = symbol;
            }
        }
        self.ranges[likeliest].1 += (TOTAL - given) as u16; // the slots that were lost by rounding down
        let mut start = 0;
        for (symbol, range) in self.ranges.iter_mut().enumerate() {
            range.0 = start;
            start += range.1;
            if let Some(slots) = self.slots.get_mut(usize::from(range.0)..usize::from(start)) {
                slots.fill(symbol as u8); // there are at most 256 symbols
            }
        }
    }
}

/// Buffers of [`encode_symbols`], kept between calls.
#[derive(Default)]
pub(super) struct SymbolBuffers {
    ranges: Vec<(u16, u16)>,
    words: Vec<u32>,
}

/// Appends the code of the symbols: both states, then the words in the order in which the decoder reads them.
pub(super) fn encode_symbols(symbols: &[u8], model: &mut Model, buffers: &mut SymbolBuffers, out: &mut Vec<u8>) {
    let SymbolBuffers { ranges, words } = buffers;
    ranges.clear();
    let mut rest = symbols;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(model.left.min(rest.len()));
        ranges.extend(now.iter().map(|&symbol| model.ranges[usize::from(symbol)]));
        model.learn(now);
        rest = later;
    }
    words.clear();
    // The decoder reads the symbols forwards, so the encoder must write them backwards.
    let mut states = [STATE_MIN; 2];
    for (i, &(start, slots)) in ranges.iter().enumerate().rev() {
        let state = &mut states[i % 2];
        let (start, slots) = (u64::from(start), u64::from(slots));
        if *state >= slots << (31 + 32 - TOTAL_BITS) {
            words.push(*state as u32); // the low word
            *state >>= 32;
        }
        *state = ((*state / slots) << TOTAL_BITS) + *state % slots + start;
    }
    out.extend(states.iter().flat_map(|state| state.to_le_bytes()));
    out.extend(words.iter().rev().flat_map(|word| word.to_le_bytes()));
}

/// Fills `symbols` from the bytes that [`encode_symbols`] appended. Returns `false` if these bytes are damaged.
#[must_use]
pub(super) fn decode_symbols(stored: &[u8], symbols: &mut [u8], model: &mut Model) -> bool {
    let (words, tail) = stored.as_chunks::<4>();
    let [a, b, c, d, words @ ..] = words else { return false };
    let state = |low: &[u8; 4], high: &[u8; 4]| {
        u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32
    };
    let mut states = [state(a, b), state(c, d)];
    let mut at = 0;
    let mut rest = &mut *symbols;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(model.left.min(rest.len()));
        let slots: &[u8; TOTAL as usize] = model.slots.first_chunk().expect("the model was made for decoding");
        let mut next = |state: &mut u64| {
            let slot = (*state as usize) & (TOTAL as usize - 1);
            let symbol = slots[slot];
            let (start, count) = model.ranges[usize::from(symbol)];
            // The sum cannot overflow: it is less than count * 2^50 + count, and count is at most 2^14.
            *state = u64::from(count) * (*state >> TOTAL_BITS) + (slot as u64 - u64::from(start));
            if *state < STATE_MIN {
                let word = words.get(at).map_or(0, |&word| u32::from_le_bytes(word));
                *state = *state << 32 | u64::from(word);
                at += 1;
            }
            symbol
        };
        let [even, odd] = &mut states;
        let (pairs, single) = now.as_chunks_mut::<2>();
        for pair in pairs {
            pair[0] = next(even);
            pair[1] = next(odd);
        }
        if let [last] = single {
            *last = next(even);
            // The next symbol uses the other state, so the states change places.
            states.swap(0, 1);
        }
        model.learn(now);
        rest = later;
    }
    states == [STATE_MIN; 2] && at == words.len() && tail.is_empty()
}

/// Writes strings of raw bits. The first bit is the lowest bit of the first byte.
#[derive(Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    open: u64,
    open_bits: u32,
}

impl BitWriter {
    /// Empties the writer, so that it can be used again.
    pub(super) fn clear(&mut self) {
        *self = Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() };
        self.bytes.clear();
    }

    /// Appends the low `bits` bits of `value`. `bits` is at most 63, and all higher bits of `value` must be zero.
    #[inline(always)]
    pub(super) fn put(&mut self, value: u64, bits: u32) {
        self.open |= value << self.open_bits;
        let after = self.open_bits + bits;
        if after >= 64 {
            self.bytes.extend_from_slice(&self.open.to_le_bytes());
            // One shift by 64 bits would overflow, so the shift is done in two steps.
            self.open = value >> (63 - self.open_bits) >> 1;
        }
        self.open_bits = after % 64;
    }

    /// All bytes written. The unused bits of the last byte are zero.
    pub(super) fn finish(&mut self) -> &[u8] {
        let bytes = self.open_bits.div_ceil(8) as usize;
        self.bytes.extend_from_slice(&self.open.to_le_bytes()[..bytes]);
        (self.open, self.open_bits) = (0, 0);
        &self.bytes
    }
}

/// Reads the bits that a [`BitWriter`] wrote. Bits beyond the end are zero.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at_bits: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at_bits: 0 }
    }

    /// The next `bits` bits. `bits` is at most 63.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> u64 {
        let (byte, shift) = (self.at_bits / 8, self.at_bits as u32 % 8);
        let (low, high) = match self.bytes.get(byte..byte + 9) {
            Some(&[a, b, c, d, e, f, g, h, high]) => (u64::from_le_bytes([a, b, c, d, e, f, g, h]), high),
            _ => self.near_the_end(byte),
        };
        self.at_bits += bits as usize;
        // One shift by 64 bits would overflow, so the shift is done in two steps.
        ((low >> shift) | (u64::from(high) << (63 - shift) << 1)) & !(!0 << bits)
    }

    #[cold]
    fn near_the_end(&self, byte: usize) -> (u64, u8) {
        let mut nine = [0; 9];
        let rest = self.bytes.get(byte..).unwrap_or_default();
        for (to, from) in nine.iter_mut().zip(rest) {
            *to = *from;
        }
        let [a, b, c, d, e, f, g, h, high] = nine;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), high)
    }

    /// Whether the last bit that was read belongs to the last byte.
    pub(super) fn is_at_end(&self) -> bool {
        self.at_bits.div_ceil(8) == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn symbols_come_back_over_several_calls_and_each_cut_is_noticed(
            runs in prop::collection::vec(prop::collection::vec(0u8..65, 0..3000), 1..4),
            few in any::<bool>(),
        ) {
            let mut buffers = SymbolBuffers::default();
            let (mut writer, mut reader) = (Model::new(65, false), Model::new(65, true));
            for mut symbols in runs {
                if few {
                    symbols.iter_mut().for_each(|s| *s = *s / 21 + 30);
                }
                let mut stored = Vec::new();
                encode_symbols(&symbols, &mut writer, &mut buffers, &mut stored);
                let most = SYMBOLS_OVERHEAD_BYTES + symbols.len() * SYMBOL_BITS_MAX / 8;
                prop_assert!(stored.len() <= most, "{} bytes, at most {most}", stored.len());
                let mut longer = stored.clone();
                longer.extend([0; 4]);
                for damaged in [&stored[..stored.len() - 1], &stored[..stored.len() - 4], &longer] {
                    // The damaged bytes are decoded with the current model, and with a new model.
                    let mut symbols = vec![0; symbols.len()];
                    prop_assert!(!decode_symbols(damaged, &mut symbols, &mut reader.clone()));
                    prop_assert!(!decode_symbols(damaged, &mut symbols, &mut Model::new(65, true)));
                }
                let mut again = vec![0; symbols.len()];
                prop_assert!(decode_symbols(&stored, &mut again, &mut reader));
                prop_assert_eq!(again, symbols);
            }
        }

        #[test]
        fn raw_bits_come_back(items in prop::collection::vec((any::<u64>(), 0u32..64), 0..300)) {
            let mut writer = BitWriter::default();
            writer.put(1, 1);
            writer.clear();
            for &(value, bits) in &items {
                writer.put(value & !(!0 << bits), bits);
            }
            let bytes = writer.finish().to_vec();
            let mut reader = BitReader::new(&bytes);
            for &(value, bits) in &items {
                prop_assert_eq!(reader.take(bits), value & !(!0 << bits));
            }
            prop_assert!(reader.is_at_end());
        }
    }

    #[test]
    fn one_symbol_over_and_over_costs_next_to_nothing() {
        let mut stored = Vec::new();
        encode_symbols(&[7; 65_536], &mut Model::new(129, false), &mut SymbolBuffers::default(), &mut stored);
        assert!(stored.len() < 200, "{} bytes", stored.len());
    }
}
