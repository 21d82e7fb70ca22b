"""CRC-32C and BLAKE3 (container.md, 3.1).

The packages `crc32c` and `blake3` are used if they are installed. Otherwise this module computes the hashes slowly.
"""

import struct

import numpy as np

try:
    from crc32c import crc32c as _fast_crc32c
except ImportError:
    _fast_crc32c = None
try:
    from blake3 import blake3 as _fast_blake3
except ImportError:
    _fast_blake3 = None


def crc32c(data):
    """CRC-32C: polynomial 1EDC6F41, reflected; initial value FFFFFFFF; final XOR with FFFFFFFF."""
    return _fast_crc32c(bytes(data)) if _fast_crc32c else crc32c_plain(data)


def blake3(data):
    """The unkeyed BLAKE3 hash of 32 bytes."""
    return _fast_blake3(bytes(data)).digest() if _fast_blake3 else blake3_plain(data)


# CRC-32C without a package


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c_plain(data):
    table = _CRC_TABLE
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


# BLAKE3 without a package. For one chunk, the words in `_compress` are numbers. For several chunks, the words are
# arrays with one 64-bit number for each chunk.

_CHUNK = 1024
_BLOCK = 64
_MANY = 16                      # with at least this number of chunks, arrays are faster
_MASK = 0xFFFFFFFF
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
             (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _compress(chaining, words, counter, length, flags):
    """The compression function. Its inputs are 8 chaining words and 16 words of a block. Returns 8 chaining words."""
    v = [*chaining, *_IV[:4], counter & _MASK, counter >> 32, length, flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(_QUARTERS):
            va, vb, vc, vd = v[a], v[b], v[c], v[d]
            va = (va + vb + words[2 * i]) & _MASK
            vd = vd ^ va
            vd = (vd >> 16) | (vd << 16) & _MASK
            vc = (vc + vd) & _MASK
            vb = vb ^ vc
            vb = (vb >> 12) | (vb << 20) & _MASK
            va = (va + vb + words[2 * i + 1]) & _MASK
            vd = vd ^ va
            vd = (vd >> 8) | (vd << 24) & _MASK
            vc = (vc + vd) & _MASK
            vb = vb ^ vc
            v[a], v[b], v[c], v[d] = va, (vb >> 7) | (vb << 25) & _MASK, vc, vd
        words = [words[i] for i in _PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def _hash_chunk(chunk, number, root=False):
    """The chaining value of one chunk, 0 to 1024 bytes."""
    chaining = _IV
    blocks = [chunk[at:at + _BLOCK] for at in range(0, len(chunk), _BLOCK)] or [b""]
    for i, block in enumerate(blocks):
        flags = _CHUNK_START if i == 0 else 0
        if i == len(blocks) - 1:
            flags |= _CHUNK_END | (_ROOT if root else 0)
        words = struct.unpack("<16I", block.ljust(_BLOCK, b"\0"))
        chaining = _compress(chaining, words, number, len(block), flags)
    return chaining


def _hash_full_chunks(data, count):
    """The chaining values of the first `count` chunks, each of 1024 bytes."""
    if count < _MANY:
        return [_hash_chunk(data[_CHUNK * i:_CHUNK * (i + 1)], i) for i in range(count)]
    words = np.frombuffer(data, "<u4", count * (_CHUNK // 4)).reshape(count, 16, 16).astype(np.uint64)
    counter = np.arange(count, dtype=np.uint64)
    chaining = [np.full(count, word, np.uint64) for word in _IV]
    for block in range(16):
        flags = (_CHUNK_START if block == 0 else 0) | (_CHUNK_END if block == 15 else 0)
        columns = [np.ascontiguousarray(words[:, block, i]) for i in range(16)]
        chaining = _compress(chaining, columns, counter, _BLOCK, flags)
    return np.stack(chaining, axis=1).tolist()


def _hash_parents(level):
    """The chaining values one level up the tree. A value without a partner is not changed."""
    pairs = [left + right for left, right in zip(level[0::2], level[1::2])]
    alone = level[2 * len(pairs):]
    flags = _PARENT | (_ROOT if len(level) == 2 else 0)
    if len(pairs) < _MANY:
        return [_compress(_IV, pair, 0, _BLOCK, flags) for pair in pairs] + alone
    words = list(np.array(pairs, np.uint64).T)
    chaining = [np.full(len(pairs), word, np.uint64) for word in _IV]
    return np.stack(_compress(chaining, words, 0, _BLOCK, flags), axis=1).tolist() + alone


def blake3_plain(data):
    data = bytes(data)
    full = max(0, (len(data) - 1) // _CHUNK)
    level = _hash_full_chunks(data, full) + [_hash_chunk(data[full * _CHUNK:], full, root=full == 0)]
    while len(level) > 1:
        level = _hash_parents(level)
    return struct.pack("<8I", *level[0])
