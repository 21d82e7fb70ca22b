"""The codecs of the paper: `fpc` and `fpzip` (codecs.md, 3 and 4)."""

import struct

import numpy as np

from .entropy import BitReader, ByteReader, Model, decode_symbols
from .errors import check

BLOCK = 65536           # number of elements of a block of fpzip
_MASK = 2**64 - 1
_RESIDUAL_BYTES = (8, 7, 6, 5, 3, 2, 1, 0)


def fpc(data, parameter, raw_len):
    """codecs.md, 3: decodes `fpc`."""
    elements, tail = divmod(raw_len, 8)
    reader = ByteReader(data, "the payload")
    codes = reader.take((elements + 1) // 2)
    check(reader.left() >= tail, "the payload ends too early")
    residuals = reader.take(reader.left() - tail)
    tail_bytes = reader.rest()
    table_bits = min(parameter & 0xFF, (max(elements, 2) - 1).bit_length())
    mask = (1 << table_bits) - 1
    table_f = [0] * (mask + 1)
    table_d = [0] * (mask + 1)
    hash_f = hash_d = last = 0
    at = 0
    bits = []
    for i in range(elements):
        code = codes[i >> 1] & 15 if i & 1 else codes[i >> 1] >> 4
        length = _RESIDUAL_BYTES[code & 7]
        residual = int.from_bytes(residuals[at:at + length], "little")
        at += length
        prediction = (table_d[hash_d] + last) & _MASK if code & 8 else table_f[hash_f]
        v = residual ^ prediction
        table_f[hash_f] = v
        hash_f = ((hash_f << 6) ^ (v >> 48)) & mask
        d = (v - last) & _MASK
        table_d[hash_d] = d
        hash_d = ((hash_d << 2) ^ (d >> 40)) & mask
        last = v
        bits.append(v)
    check(at == len(residuals), "the length of the residuals differs from the length in the codes")
    check(elements % 2 == 0 or codes[-1] & 15 == 0, "the unused code is not 0")
    order = ">u8" if parameter & 0x100 else "<u8"
    return np.array(bits, np.uint64).astype(order).tobytes() + tail_bytes


class _Floats:
    """Converts floats of one width between number, bits and order (floating-point.md, 2 and 3)."""

    def __init__(self, width):
        self.pack_float = struct.Struct("<f" if width == 4 else "<d")
        self.pack_bits = struct.Struct("<i" if width == 4 else "<q")
        self.sign = 1 << (8 * width - 1)
        self.all = 2 * self.sign - 1
        self.single = width == 4
        self.scratch = memoryview(bytearray(8)).cast("f") if self.single else None

    def round(self, x):
        """Return a sum, rounded to the type. For two singles, a double sum that is rounded is the same."""
        if not self.single:
            return x
        self.scratch[0] = x
        return self.scratch[0]

    def unsigned_order(self, x):
        """order(x) + 2^(8w-1)."""
        bits, = self.pack_bits.unpack(self.pack_float.pack(x))
        return (bits if bits >= 0 else bits ^ (self.sign - 1)) + self.sign

    def from_unsigned_order(self, number):
        """The bits, as a signed number, and the float."""
        order = number - self.sign
        bits = order if order >= 0 else order ^ (self.sign - 1)
        return bits, self.pack_float.unpack(self.pack_bits.pack(bits))[0]


def fpzip(data, parameter, raw_len):
    """codecs.md, 4: decodes `fpzip`."""
    width = parameter & 0xFF
    elements, tail = divmod(raw_len, width)
    reader = ByteReader(data, "the payload")
    grids = _read_grids(reader, elements)
    differences = []
    model = Model(16 * width + 1)               # the model keeps its state for the next block
    while len(differences) < elements:
        count = min(BLOCK, elements - len(differences))
        symbols_len, bits_len = reader.varint(), reader.varint()
        symbols = decode_symbols(reader.take(symbols_len), count, model)
        differences.extend(_read_differences(symbols, reader.take(bits_len), 8 * width))
    tail_bytes = reader.take(tail)
    reader.finish()
    bits = _restore_grids(grids, differences, _Floats(width))
    order = (">" if parameter & 0x100 else "<") + f"i{width}"
    return np.array(bits, np.int64).astype(order).tobytes() + tail_bytes


def _read_grids(reader, elements):
    """codecs.md, 4.1: records of (count, x, y, elements). There may be many grids, so records are not expanded."""
    record_count = reader.varint()
    if record_count == 0:
        return [(1, elements, 1, elements)] if elements else []
    grids = []
    total = 0
    for _ in range(record_count):
        record = tuple(reader.varint() for _ in range(4))
        check(min(record) >= 1, "a record of grids contains a 0")
        total += record[0] * record[3]
        check(total <= elements, "the grids have too many elements")
        grids.append(record)
    check(total == elements, "the grids have too few elements")
    return grids


def _read_differences(symbols, bits, middle):
    """codecs.md, 4.2: the difference V - P of each element of a block."""
    reader = BitReader(bits)
    differences = []
    for symbol in symbols:
        size = symbol - middle
        if size == 0:
            differences.append(0)
        elif size > 0:
            differences.append((1 << (size - 1)) + reader.field(size - 1))
        else:
            differences.append(-(1 << (-size - 1)) - reader.field(-size - 1))
    reader.finish()
    return differences


def _restore_grids(grids, differences, floats):
    bits = []
    values = []
    for count, x, y, elements in grids:
        for _ in range(count):
            begin = len(bits)
            _restore_grid(bits, values, differences[begin:begin + elements], x, y, floats)
    return bits


def _restore_grid(bits, values, differences, x, y, floats):
    """codecs.md, 4.2: restores the elements of a grid from the differences."""
    round_to_type, to_order, from_order = floats.round, floats.unsigned_order, floats.from_unsigned_order
    mask = floats.all
    plane = x * y
    i = len(values)

    def step(distance):
        return round_to_type(values[i - distance] - (values[i - distance - 1] if column else 0.0))

    for element, difference in enumerate(differences):
        row, column = divmod(element, x)
        above, behind = row % y > 0, row >= y
        before = values[i - 1] if column else 0.0
        # Without a neighbour, the gradient is -0.0. Adding -0.0 changes no number, and no bit of a NaN.
        prediction = before
        if above and behind:
            prediction = round_to_type(before + round_to_type(
                round_to_type(step(x) + step(plane)) - step(x + plane)))
        elif above:
            prediction = round_to_type(before + step(x))
        elif behind:
            prediction = round_to_type(before + step(plane))
        if prediction != prediction:
            number = _order_of_before(bits, floats, column)
        else:
            number = to_order(prediction)
        element_bits, value = from_order((number + difference) & mask)
        bits.append(element_bits)
        values.append(value)
        i += 1


def _order_of_before(bits, floats, column):
    """The unsigned order of the element before. A NaN keeps its bits. In column 0, this is the order of +0.0."""
    before = bits[-1] if column else 0
    return (before if before >= 0 else before ^ (floats.sign - 1)) + floats.sign
