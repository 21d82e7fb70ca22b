"""Applies the filters of HDF5 again, so that the bytes equal those that the application wrote (container.md, 8.2)."""

import struct
import zlib

import numpy as np

SHUFFLE, DEFLATE, FLETCHER32 = 1, 2, 3


def put_on(filters, data):
    """Applies the filters from first to last."""
    for kind, value in filters:
        if kind == SHUFFLE:
            data = shuffle(data, value)
        elif kind == DEFLATE:
            data = deflate(data, value)
        else:
            data = data + struct.pack("<I", fletcher32(data))
    return data


def shuffle(data, width):
    elements = len(data) // width
    if width == 1 or elements < 2:
        return data
    whole = elements * width
    table = np.frombuffer(data, np.uint8, whole).reshape(elements, width)
    return table.T.tobytes() + data[whole:]


def deflate(data, level):
    """The output of the function `compress2` of the classic zlib at this level.

    Python uses the zlib of the system. At level 0, the blocks of zlib depend on the size of the output buffer, which
    Python chooses differently from `compress2`. So this function writes the blocks of level 0 itself.
    """
    if level > 0:
        return zlib.compress(data, level)
    blocks = [data[at:at + 65535] for at in range(0, len(data), 65535)] or [b""]
    result = [b"\x78\x01"]
    for number, block in enumerate(blocks):
        result.append(struct.pack("<BHH", number == len(blocks) - 1, len(block), len(block) ^ 0xFFFF))
        result.append(block)
    result.append(struct.pack(">I", zlib.adler32(data)))
    return b"".join(result)


def fletcher32(data):
    """The checksum of the filter fletcher32. Folding the sums after each 360 words keeps the sums below 2^63."""
    a = b = 0
    words = np.frombuffer(data, ">u2", len(data) // 2).astype(np.int64)
    for at in range(0, len(words), 360):
        block = words[at:at + 360]
        b += len(block) * a + int((block * np.arange(len(block), 0, -1)).sum())
        a += int(block.sum())
        a, b = _fold(a), _fold(b)
    if len(data) % 2:
        a += 256 * data[-1]
        b += a
        a, b = _fold(a), _fold(b)
    return _fold(b) * 65536 + _fold(a)


def _fold(x):
    return x % 65536 + x // 65536
