"""Codecs `shuffle` and `bitshuffle` (codecs.md, 9 and 13)."""

import numpy as np


def unshuffle(data, width):
    """Section 9: decodes `shuffle`."""
    elements = len(data) // width
    whole = elements * width
    planes = np.frombuffer(data, np.uint8, whole).reshape(width, elements)
    return planes.T.tobytes() + data[whole:]


def unbitshuffle(data, width):
    """Section 13: decodes `bitshuffle`."""
    elements = len(data) // width // 8 * 8
    whole = elements * width
    planes = np.frombuffer(data, np.uint8, whole).reshape(width * 8, elements // 8)
    bits = np.unpackbits(planes, axis=1, bitorder="little").reshape(width, 8, elements)
    values = np.packbits(bits, axis=1, bitorder="little").reshape(width, elements)
    return values.T.tobytes() + data[whole:]
