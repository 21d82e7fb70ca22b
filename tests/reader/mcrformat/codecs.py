"""Chains of codecs, and every codec except `fpc`, `fpzip`, `predict` and `since` (codecs.md)."""

import lzma
import zlib

import numpy as np

from . import paper, predict
from .entropy import ByteReader
from .errors import Damaged, Unsupported, check, where
from .packed import pco_numbers, zstd_frame
from .shuffles import unbitshuffle, unshuffle

RAW, FPC, FPZIP, COLUMNS, PREDICT, RUNS, PCO, SINCE, MIXED = range(1, 10)
SHUFFLE, LZ4, ZSTD, GZIP, BITSHUFFLE, LZMA = range(16, 22)
NAMES = {RAW: "raw", FPC: "fpc", FPZIP: "fpzip", COLUMNS: "columns", PREDICT: "predict", RUNS: "runs", PCO: "pco",
         SINCE: "since", MIXED: "mixed", SHUFFLE: "shuffle", LZ4: "lz4", ZSTD: "zstd", GZIP: "gzip",
         BITSHUFFLE: "bitshuffle", LZMA: "lzma"}
MAX_STEPS = 6
MAX_WIDTH = 2**20
MAX_LZMA_PIECE = 16 * 2**20


# 1. Chains


def read_chain(reader):
    """Read a chain record. Return a list of (codec, parameter)."""
    steps = reader.byte()
    chain = []
    for _ in range(steps):
        codec = int.from_bytes(reader.take(2), "little")
        chain.append((codec, int.from_bytes(reader.take(4), "little")))
    check(1 <= steps <= MAX_STEPS, f"a chain has {steps} steps")
    return chain


def check_chain(chain):
    """Section 1: checks the kinds of the steps, and their parameters."""
    for place, (codec, parameter) in enumerate(chain):
        if codec not in NAMES:
            raise Unsupported(f"codec {codec} is unknown")
        check((codec <= 15) == (place == 0), f"codec {NAMES[codec]} is not allowed at place {place} of its chain")
        check(_parameter_allowed(codec, parameter), f"codec {NAMES[codec]} has the parameter {parameter}")


def _parameter_allowed(codec, parameter):
    """Section 1, table: whether a step may have this parameter."""
    low, high = parameter & 0xFF, parameter >> 16
    width_bits = parameter & 0xFFFF
    if codec in (RAW, LZ4):
        return parameter == 0
    if codec == FPC:
        return parameter < 512 and 1 <= low <= 20
    if codec == FPZIP:
        return width_bits & ~0x1FF == 0 and low in (4, 8) and 1 <= high <= 3
    if codec in (COLUMNS, SHUFFLE):
        return 2 <= parameter <= MAX_WIDTH
    if codec in (RUNS, BITSHUFFLE):
        return 1 <= parameter <= MAX_WIDTH
    if codec == PREDICT and parameter & 0x400:
        return width_bits == 0x408 and high in (1, 2)
    if codec in (PREDICT, SINCE):
        return width_bits & ~0x3FF == 0 and low in (4, 8) and high in (1, 2)
    if codec == PCO:
        integers, unsigned = bool(parameter & 0x200), bool(parameter & 0x400)
        return (width_bits & ~0x7FF == 0 and low in (2, 4, 8) and 1 <= high <= 12
                and (integers or not unsigned) and (integers or low != 2))
    if codec == MIXED:
        return width_bits == 0 and high in (1, 2)
    if codec == ZSTD:
        return 1 <= parameter <= 22 or 266 <= parameter <= 276
    if codec == GZIP:
        return 1 <= parameter <= 9
    lc, lp, pb = _lzma_bits(parameter)
    return pb <= 4 and lc + lp <= 4


def longest_code(codec, parameter, n):
    """Section 1.1: the length of the longest code of n bytes."""
    def up(divisor):
        return -(-n // divisor)

    if codec in (RAW, SHUFFLE, BITSHUFFLE):
        return n
    if codec == FPC:
        return n + -(-(n // 8) // 2)
    if codec == FPZIP:
        elements = n // (parameter & 0xFF)
        return n + 2 * elements + 30 * -(-elements // 65536) + elements // 16 + 5
    if codec == COLUMNS:
        return n + 5 + 47 * min(2049, parameter)
    if codec == PREDICT:
        return 12 * n + 16384
    if codec == SINCE:
        return 24 * n + 32768
    if codec == RUNS:
        return n + 5
    if codec == PCO:
        return 2 * n + 4096
    if codec == MIXED:
        return n + 15 * (n // 4) + 388
    if codec == LZ4:
        return 11 * n // 10 + 20
    if codec == ZSTD:
        return n + n // 256 + 64
    if codec == GZIP:
        return n + up(8) + up(64) + 64
    return n + 3 * up(65536) + 74 * up(524288) + 69


def decode_chain(chain, stored, raw_len, base=None):
    """The raw bytes of a segment. `base` has the raw bytes of the base, for `since`."""
    check_chain(chain)
    rooms = [raw_len]
    for codec, parameter in chain[:-1]:
        rooms.append(longest_code(codec, parameter, rooms[-1]))
    data = bytes(stored)
    for (codec, parameter), room in reversed(list(zip(chain[1:], rooms[1:]))):
        with where(f"codec {NAMES[codec]}"):
            data = _decode_bytes(codec, parameter, data, room)
            check(len(data) <= room, f"there are {len(data)} bytes, and at most {room} bytes are possible")
    codec, parameter = chain[0]
    with where(f"codec {NAMES[codec]}"):
        data = _decode_array(codec, parameter, data, raw_len, base)
        check(len(data) == raw_len, f"{len(data)} bytes instead of {raw_len}")
    return data


def _decode_bytes(codec, parameter, data, room):
    """Decodes a step "bytes to bytes"."""
    if codec == SHUFFLE:
        return unshuffle(data, parameter)
    if codec == LZ4:
        return _lz4(data, room)
    if codec == ZSTD:
        return zstd_frame(data, room)
    if codec == GZIP:
        return _gzip(data, room)
    if codec == BITSHUFFLE:
        return unbitshuffle(data, parameter)
    return _lzma(data, parameter, room)


def _decode_array(codec, parameter, data, raw_len, base):
    """Decodes a step "array to bytes"."""
    if codec == RAW:
        return data
    if codec == FPC:
        return paper.fpc(data, parameter, raw_len)
    if codec == FPZIP:
        return paper.fpzip(data, parameter, raw_len)
    if codec == COLUMNS:
        return _columns(data, parameter, raw_len)
    if codec == PREDICT:
        return predict.decode(data, parameter, raw_len)
    if codec == RUNS:
        return _runs(data, parameter, raw_len)
    if codec == PCO:
        return _pco(data, parameter, raw_len)
    if codec == MIXED:
        return _mixed(data, raw_len)
    check(base is not None, "there is no base")
    return predict.decode_since(data, parameter, raw_len, base)


# 5 to 8. Codecs "array to bytes"


def _columns(data, width, raw_len):
    """Section 5: decodes `columns`."""
    reader = ByteReader(data, "the payload")
    records, tail = divmod(raw_len, width)
    count = reader.varint()
    check(count <= 2049, f"the number of columns, {count}, is not possible")
    columns = []
    for _ in range(count):
        column_bytes = reader.varint()
        check(1 <= column_bytes <= width, f"a column has {column_bytes} bytes")
        columns.append((column_bytes, _inner_chain(reader), reader.varint()))
    check(sum(column[0] for column in columns) == width, "the columns together have another width than a record")
    table = np.empty((records, width), np.uint8)
    at = 0
    for number, (column_bytes, chain, stored_len) in enumerate(columns):
        with where(f"column {number}"):
            raw = decode_chain(chain, reader.take(stored_len), column_bytes * records)
        table[:, at:at + column_bytes] = np.frombuffer(raw, np.uint8).reshape(records, column_bytes)
        at += column_bytes
    result = table.tobytes() + reader.take(tail)
    reader.finish()
    return result


def _inner_chain(reader):
    """Decode a chain inside of `columns` or `mixed`."""
    chain = read_chain(reader)
    check(chain[0][0] not in (COLUMNS, MIXED, SINCE), "an inner chain has a codec that is not allowed")
    return chain


def _runs(data, width, raw_len):
    """Section 6: decodes `runs`."""
    reader = ByteReader(data, "the payload")
    left, tail = divmod(raw_len, width)
    parts = []
    while left:
        copied = reader.varint()
        check(copied <= left, "there are more elements in runs than in the segment")
        parts.append(reader.take(copied * width))
        left -= copied
        if left == 0:
            break
        repeated = reader.varint()
        check(1 <= repeated <= left, "a run has no elements, or more elements than the segment has left")
        parts.append(reader.take(width) * repeated)
        left -= repeated
    parts.append(reader.take(tail))
    reader.finish()
    return b"".join(parts)


def _pco(data, parameter, raw_len):
    """Section 7: decodes `pco`."""
    width = parameter & 0xFF
    kind = "f" if not parameter & 0x200 else "u" if parameter & 0x400 else "i"
    count, tail = divmod(raw_len, width)
    check(len(data) >= tail, "the payload ends early")
    numbers = pco_numbers(data[:len(data) - tail], count, np.dtype(f"{kind}{width}"))
    if parameter & 0x100:
        numbers = numbers.byteswap()
    return numbers.tobytes() + data[len(data) - tail:]


def _mixed(data, raw_len):
    """Section 8: decodes `mixed`."""
    reader = ByteReader(data, "the payload")
    count = reader.varint()
    check(1 <= count <= 9, f"the number of streams, {count}, is not possible")
    streams = [(_inner_chain(reader), reader.varint()) for _ in range(count)]
    region_count = reader.varint()
    check(region_count <= raw_len // 4, f"the number of regions, {region_count}, is not possible")
    regions = []
    lengths = [0] * count
    for _ in range(region_count):
        gap, stream, length = reader.varint(), reader.varint(), reader.varint()
        check(1 <= stream < count, f"a region has the stream {stream}, which does not exist")
        regions.append((gap, stream, length))
        lengths[stream] += length
    lengths[0] = raw_len - sum(lengths)
    check(lengths[0] >= 0, "the regions are longer than the segment")
    contents = []
    for number, ((chain, stored_len), length) in enumerate(zip(streams, lengths)):
        with where(f"stream {number}"):
            raw = decode_chain(chain, reader.take(stored_len), length)
        contents.append(ByteReader(raw, f"stream {number}"))
    reader.finish()
    parts = []
    for gap, stream, length in regions:
        parts.append(contents[0].take(gap))
        parts.append(contents[stream].take(length))
    parts.append(contents[0].rest())
    return b"".join(parts)


# 9 to 14. Codecs "bytes to bytes"


def _lz4(data, room):
    """Section 10: one block of LZ4, as lz4_Block_format.md of github.com/lz4/lz4 describes it."""
    result = bytearray()
    at, end = 0, len(data)
    try:
        while True:
            token = data[at]
            length, at = _lz4_length(data, token >> 4, at + 1)
            check(length <= end - at and len(result) + length <= room, "literals are too long")
            result += data[at:at + length]
            at += length
            if at == end:
                return bytes(result)
            offset = data[at] | data[at + 1] << 8
            length, at = _lz4_length(data, token & 15, at + 2)
            length += 4
            check(1 <= offset <= len(result) and len(result) + length <= room, "a match is out of bounds")
            begin = len(result) - offset
            if offset >= length:
                result += result[begin:begin + length]
            else:
                period = bytes(result[begin:])
                result += (period * (length // offset + 1))[:length]
    except IndexError:
        raise Damaged("the block ends early") from None


def _lz4_length(data, length, at):
    if length == 15:
        while True:
            byte = data[at]
            at += 1
            length += byte
            if byte != 255:
                break
    return length, at


def _gzip(data, room):
    """Section 12: decodes `gzip`."""
    stream = zlib.decompressobj(wbits=31)
    try:
        raw = stream.decompress(data, room + 1)
    except zlib.error as error:
        raise Damaged(str(error)) from None
    check(len(raw) <= room, f"there are more than {room} bytes")
    check(stream.eof and not stream.unused_data, "there is not exactly one member")
    return raw


def _lzma_bits(parameter):
    rest, lc = divmod(parameter, 9)
    pb, lp = divmod(rest, 5)
    return lc, lp, pb


def _lzma(data, parameter, room):
    """Section 14: decodes `lzma`."""
    lc, lp, pb = _lzma_bits(parameter)
    reader = ByteReader(data, "the payload")
    count = reader.varint()
    check(count <= room // 524288 + 1, f"the number of pieces, {count}, is not possible")
    lengths = [(reader.varint(), reader.varint()) for _ in range(count)]
    check(sum(raw_len for raw_len, _ in lengths) <= room, f"there are more than {room} bytes")
    parts = []
    for raw_len, stored_len in lengths:
        check(raw_len <= MAX_LZMA_PIECE, f"a piece has {raw_len} bytes")
        filters = [{"id": lzma.FILTER_LZMA2, "dict_size": max(raw_len, 4096), "lc": lc, "lp": lp, "pb": pb}]
        stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
        try:
            raw = stream.decompress(reader.take(stored_len), raw_len + 1)
        except (lzma.LZMAError, EOFError) as error:
            raise Damaged(str(error)) from None
        check(len(raw) == raw_len and stream.eof and not stream.unused_data, "the end of a piece is wrong")
        parts.append(raw)
    reader.finish()
    return b"".join(parts)
