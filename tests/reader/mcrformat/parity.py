"""Mends a container by its parity (parity.md). This module follows the formulas of the page, so it is slow."""

import struct

from .checksums import crc32c
from .errors import ReaderError, Unsupported, check

MAGIC = b"\x89MCP\r\n\x1a\n"
HEADER = 128
BASIS = (0x0001, 0xACCA, 0x3C0E, 0x163E, 0xC582, 0xED2E, 0x914C, 0x4012,
         0x6C98, 0x10D8, 0x6A72, 0xB900, 0xFDB8, 0xFB34, 0xFF38, 0x991E)


class Field:
    """Section 3: products and quotients of numbers of 16 bits."""

    def __init__(self):
        number_of = [0] * 65536
        for number in range(65536):
            polynomial = 0
            for bit, element in enumerate(BASIS):
                polynomial ^= element if number >> bit & 1 else 0
            number_of[polynomial] = number
        self.powers, self.logs, power = [], [0] * 65536, 1
        for exponent in range(65535):
            self.powers.append(number_of[power])
            self.logs[number_of[power]] = exponent
            power <<= 1
            power ^= 0x1002D if power >> 16 else 0

    def times(self, x, y):
        return self.powers[(self.logs[x] + self.logs[y]) % 65535] if x and y else 0

    def divide(self, x, y):
        return self.powers[(self.logs[x] - self.logs[y]) % 65535] if x else 0

    def factor(self, parity, row, i):
        """Section 4: L(row, i)."""
        wide = 1 << (parity - 1).bit_length()
        c, j = divmod(row, wide)
        value = 1
        for t in range(wide):
            if t != j:
                value = self.divide(self.times(value, i ^ (wide * (c + 1) + t)), j ^ t)
        return value


class Header:
    """Section 2.1."""

    def __init__(self, record):
        check(len(record) == HEADER and record[:8] == MAGIC, "no header of parity")
        version, flags, self.percent, self.bytes = struct.unpack_from("<HHIQ", record, 8)
        check(crc32c(record[:124]) == int.from_bytes(record[124:], "little"), "the header of the parity is damaged")
        if version != 1 or flags & 0xFF:
            raise Unsupported(f"parity of version {version} with flags {flags:#x}")
        self.index_digest = record[24:56]
        self.block, self.data, self.parity = struct.unpack_from("<III", record, 56)
        self.stripes, = struct.unpack_from("<Q", record, 72)
        blocks = max(-(-self.bytes // max(self.block, 1)), 1)
        check(64 <= self.block <= 2**20 and self.block % 64 == 0 and 1 <= self.data <= 4096
              and 1 <= self.parity <= 4096 and (self.data + self.parity) * self.block <= 2**26
              and self.bytes < 2**51 and 1 <= self.stripes <= blocks
              and self.data == -(-blocks // self.stripes), "the header of the parity breaks a rule")


def numbers(block):
    """Section 3: the numbers of a block."""
    parts = (block[at:at + 64] for at in range(0, len(block), 64))
    return [low | high << 8 for part in parts for low, high in zip(part[:32], part[32:])]


def block_of(values):
    """The inverse of `numbers`."""
    parts = (values[at:at + 32] for at in range(0, len(values), 32))
    return b"".join(bytes(n & 255 for n in part) + bytes(n >> 8 for n in part) for part in parts)


def solve(field, rows, right):
    """Solves a square system of equations. `right`: for each equation, a list of numbers."""
    for at in range(len(rows)):
        pivot = next(n for n in range(at, len(rows)) if rows[n][at])
        rows[at], rows[pivot], right[at], right[pivot] = rows[pivot], rows[at], right[pivot], right[at]
        first = rows[at][at]
        rows[at] = [field.divide(value, first) for value in rows[at]]
        right[at] = [field.divide(value, first) for value in right[at]]
        for n in range(len(rows)):
            if n != at and rows[n][at]:
                by = rows[n][at]
                rows[n] = [a ^ field.times(by, b) for a, b in zip(rows[n], rows[at])]
                right[n] = [a ^ field.times(by, b) for a, b in zip(right[n], right[at])]
    return right


def mend(container, parity):
    """Section 5: returns the whole container. `container` and `parity` are the bytes of the two files."""
    try:
        header = Header(parity[:HEADER])
    except ReaderError:  # the second header may be intact
        header = Header(parity[-HEADER:])
    size, field = header.block, Field()
    table = 4 * (header.data + header.parity + 1)
    mended = bytearray(container[:header.bytes].ljust(header.stripes * header.data * size, b"\0"))
    for stripe in range(header.stripes):
        at = HEADER + stripe * (table + header.parity * size)
        record = parity[at:at + table + header.parity * size]
        crcs = struct.unpack_from(f"<{table // 4}I", record)
        if crc32c(record[:table - 4]) != crcs[-1]:
            continue
        place = [(row * header.stripes + stripe) * size for row in range(header.data)]
        lost = [row for row in range(header.data) if crc32c(mended[place[row]:place[row] + size]) != crcs[row]]
        blocks = [record[table + i * size:table + (i + 1) * size] for i in range(header.parity)]
        whole = [i for i in range(header.parity) if crc32c(blocks[i]) == crcs[header.data + i]]
        check(len(whole) >= len(lost), f"stripe {stripe} has lost more rows than it has parity blocks")
        right = []
        for i in whole[:len(lost)]:
            values = numbers(blocks[i])
            for row in set(range(header.data)).difference(lost):
                by = field.factor(header.parity, row, i)
                known = numbers(mended[place[row]:place[row] + size])
                values = [a ^ field.times(by, b) for a, b in zip(values, known)]
            right.append(values)
        rows = [[field.factor(header.parity, row, i) for row in lost] for i in whole[:len(lost)]]
        for row, values in zip(lost, solve(field, rows, right)):
            mended[place[row]:place[row] + size] = block_of(values)
    return bytes(mended[:header.bytes])
