"""Varints, zigzag numbers, raw bits and the range coder (entropy.md)."""

import struct

from .errors import Damaged, check

MAX_VARINT = 2**32 - 1
SLOTS = 16384


class ByteReader:
    """Reads bytes in order, and never bytes after the end."""

    def __init__(self, data, name):
        self.data = bytes(data)
        self.at = 0
        self.name = name

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        check(count <= self.left(), f"{self.name} ends too early, at byte {len(self.data)}")
        self.at += count
        return self.data[self.at - count:self.at]

    def rest(self):
        return self.take(self.left())

    def byte(self):
        check(self.at < len(self.data), f"{self.name} ends too early, at byte {len(self.data)}")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        """entropy.md, 1: reads a varint."""
        data, at = self.data, self.at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                raise Damaged(f"{self.name}: the varint at byte {self.at} is incomplete or too long")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        check(value <= MAX_VARINT, f"{self.name}: the varint at byte {self.at} is above 2^32 - 1")
        self.at = at
        return value

    def double(self):
        return struct.unpack("<d", self.take(8))[0]

    def finish(self):
        check(self.at == len(self.data), f"{self.name} has {self.left()} bytes too many")


def zigzag(number):
    """entropy.md, 2: the signed number of a zigzag number."""
    return number >> 1 if number & 1 == 0 else -((number + 1) >> 1)


class BitReader:
    """entropy.md, 3: a string of bits, the lowest first."""

    def __init__(self, data):
        self.buffer = 0
        self.buffered = 0
        self.data = bytes(data)
        self.at = 0

    def field(self, count):
        while self.buffered < count:
            chunk = self.data[self.at:self.at + 8]
            check(chunk, "the raw bits end too early")
            self.buffer |= int.from_bytes(chunk, "little") << self.buffered
            self.buffered += 8 * len(chunk)
            self.at += len(chunk)
        value = self.buffer & ((1 << count) - 1)
        self.buffer >>= count
        self.buffered -= count
        return value

    def finish(self):
        unused = 8 * (len(self.data) - self.at) + self.buffered
        check(unused < 8 and self.buffer == 0, "the raw bits have another length than their fields")


class Model:
    """entropy.md, 4.1: the frequencies of symbols. `symbol_of[slot]` is the symbol of a slot."""

    def __init__(self, alphabet):
        self.alphabet = alphabet
        self.counts = [0] * alphabet
        self.seen = 0
        self.period = self.left = 32
        self.set_frequencies()

    def set_frequencies(self):
        spread = SLOTS - self.alphabet
        counts, seen = self.counts, self.seen
        frequencies = [1 + (count * spread // seen if count else 0) for count in counts]
        most = counts.index(max(counts))
        frequencies[most] += SLOTS - sum(frequencies)
        self.frequencies = frequencies
        self.starts = []
        self.symbol_of = []
        start = 0
        for symbol, frequency in enumerate(frequencies):
            self.starts.append(start)
            self.symbol_of.extend([symbol] * frequency)
            start += frequency

    def learn(self, symbol):
        self.counts[symbol] += 1
        self.seen += 1
        self.left -= 1
        if self.left == 0:
            self.set_frequencies()
            self.period = self.left = min(2 * self.period, 1024)
            if self.seen > SLOTS:
                self.counts = [count // 2 for count in self.counts]
                self.seen = sum(self.counts)


def decode_symbols(data, count, model):
    """entropy.md, 4.2: decodes `count` symbols."""
    check(len(data) >= 16 and len(data) % 4 == 0, "the length of a block of symbols is wrong")
    states = list(struct.unpack_from("<QQ", data))
    words = struct.unpack_from(f"<{(len(data) - 16) // 4}I", data, 16)
    next_word = 0
    symbols = []
    for i in range(count):
        k = i & 1
        state = states[k]
        slot = state & (SLOTS - 1)
        symbol = model.symbol_of[slot]
        state = model.frequencies[symbol] * (state >> 14) + slot - model.starts[symbol]
        if state < 1 << 31:
            check(next_word < len(words), "a block of symbols ends too early")
            state = (state << 32) + words[next_word]
            next_word += 1
        states[k] = state
        symbols.append(symbol)
        model.learn(symbol)
    check(states == [1 << 31, 1 << 31] and next_word == len(words), "the end of a block of symbols is wrong")
    return symbols
