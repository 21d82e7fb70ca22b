//! What codecs of numbers end in: symbols by an adaptive range coder, and raw bits.
//!
//! The range coder is rANS (J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, section 3): 64-bit states, 32-bit
//! words, two states in turn. Its model is quasi-static, as in fpzip (M. Schindler's range coder): frequencies rest
//! for a period, then follow the symbols seen, whose weight halves as they age. So no frequencies are stored.
//!
//! Everything is integer arithmetic in a fixed order, and decoding never panics: what is cut reads as zeros, and the
//! end says whether states and lengths came out as they must.

/// log2 of the sum of all frequencies.
const TOTAL_BITS: u32 = 14;
const TOTAL: u32 = 1 << TOTAL_BITS;
/// States are at least this between symbols.
const STATE_MIN: u64 = 1 << 31;
/// Symbols between updates of the model: first few, then twice as many each time.
const PERIOD_FIRST: usize = 32;
const PERIOD_LAST: usize = 1024;
/// Counts are halved when there are as many as this.
const COUNTED_MAX: u32 = 1 << 14;
/// The most bits that one symbol takes.
pub(super) const SYMBOL_BITS_MAX: usize = TOTAL_BITS as usize;
/// The most bytes that [`encode_symbols`] adds to what its symbols take: two states and part of a word.
pub(super) const SYMBOLS_OVERHEAD_BYTES: usize = 2 * size_of::<u64>() + size_of::<u32>();

/// What is known about the symbols to come.
#[derive(Clone)]
pub(super) struct Model {
    /// Of each symbol since long, ageing.
    counts: Vec<u32>,
    counted: u32,
    /// First slot and number of slots of each symbol; the latter is never 0.
    ranges: Vec<(u16, u16)>,
    /// The symbol of each slot; kept by decoders only.
    slots: Vec<u8>,
    period: usize,
    /// Symbols until the next update.
    left: usize,
}

impl Model {
    /// For symbols from 0 up to `symbols`, at most 256 of them.
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

    /// Learns what came in the period that ends, or in a part of it.
    fn learn(&mut self, symbols: &[u8]) {
        for &symbol in symbols {
            self.counts[usize::from(symbol)] += 1;
        }
        self.counted += symbols.len() as u32; // at most PERIOD_LAST
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
        let spread = TOTAL - self.counts.len() as u32; // each symbol has one slot for certain
        let mut given = 0;
        let mut likeliest = 0;
        for (symbol, (range, &count)) in self.ranges.iter_mut().zip(&self.counts).enumerate() {
            // Most never come. No overflow: counts are at most COUNTED_MAX and PERIOD_LAST, the rest is less than
            // TOTAL.
            let share = if count == 0 { 0 } else { count * spread / self.counted };
            range.1 = 1 + share as u16; // at most TOTAL
            given += u32::from(range.1);
            if count > self.counts[likeliest] {
                likeliest = symbol;
            }
        }
        self.ranges[likeliest].1 += (TOTAL - given) as u16; // what rounding left
        let mut start = 0;
        for (symbol, range) in self.ranges.iter_mut().enumerate() {
            range.0 = start;
            start += range.1;
            if let Some(slots) = self.slots.get_mut(usize::from(range.0)..usize::from(start)) {
                slots.fill(symbol as u8); // at most 256 symbols
            }
        }
    }
}

/// Buffers of [`encode_symbols`], used again.
#[derive(Default)]
pub(super) struct SymbolBuffers {
    ranges: Vec<(u16, u16)>,
    words: Vec<u32>,
}

/// Appends the code of the symbols: both states, then the words in the order of reading.
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
    // The decoder goes forwards, so the encoder goes backwards.
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

/// Fills `symbols` from what [`encode_symbols`] appended. `false` if it did not.
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
        let slots: &[u8; TOTAL as usize] = model.slots.first_chunk().expect("the model is for decoding");
        let mut next = |state: &mut u64| {
            let slot = (*state as usize) & (TOTAL as usize - 1);
            let symbol = slots[slot];
            let (start, count) = model.ranges[usize::from(symbol)];
            // No overflow: less than count * 2^50 + count, and count is at most 2^14.
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
            // Whichever comes next is the odd one's turn.
            states.swap(0, 1);
        }
        model.learn(now);
        rest = later;
    }
    states == [STATE_MIN; 2] && at == words.len() && tail.is_empty()
}

/// Strings of raw bits, the first in the lowest place of the first byte.
#[derive(Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    open: u64,
    open_bits: u32,
}

impl BitWriter {
    /// Begins anew.
    pub(super) fn clear(&mut self) {
        *self = Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() };
        self.bytes.clear();
    }

    /// Appends the low `bits` of `value`, at most 63; those above are zero.
    #[inline(always)]
    pub(super) fn put(&mut self, value: u64, bits: u32) {
        self.open |= value << self.open_bits;
        let after = self.open_bits + bits;
        if after >= 64 {
            self.bytes.extend_from_slice(&self.open.to_le_bytes());
            // Shifted twice, since 64 is too far for one shift.
            self.open = value >> (63 - self.open_bits) >> 1;
        }
        self.open_bits = after % 64;
    }

    /// All bytes, the last one filled up with zeros.
    pub(super) fn finish(&mut self) -> &[u8] {
        let bytes = self.open_bits.div_ceil(8) as usize;
        self.bytes.extend_from_slice(&self.open.to_le_bytes()[..bytes]);
        (self.open, self.open_bits) = (0, 0);
        &self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote; beyond the end there are zeros.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at_bits: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at_bits: 0 }
    }

    /// The next `bits`, at most 63.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> u64 {
        let (byte, shift) = (self.at_bits / 8, self.at_bits as u32 % 8);
        let (low, high) = match self.bytes.get(byte..byte + 9) {
            Some(&[a, b, c, d, e, f, g, h, high]) => (u64::from_le_bytes([a, b, c, d, e, f, g, h]), high),
            _ => self.near_the_end(byte),
        };
        self.at_bits += bits as usize;
        // Shifted twice, since 64 is too far for one shift.
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

    /// Whether exactly all bytes were read.
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
                    // Decoding with what the model knows by now, and without.
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
