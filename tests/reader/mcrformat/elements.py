"""Elements of `predict` and `since`: bytes, orders and values (predict.md, 2.1; floating-point.md, 2 to 4).

Each element is represented by its order, an int64. `Elements` has each conversion twice: for arrays of numpy, and for
one number of Python. Sums of orders must wrap around. Arithmetic on int64 arrays of numpy wraps around.
"""

import math

import numpy as np


class Elements:
    def __init__(self, width, big_endian, integers):
        self.width = width
        self.integers = integers
        self.dtype = np.dtype((">" if big_endian else "<") + f"i{width}")
        self.half = 1 << (8 * width - 1)
        self.low = self.half - 1                 # all bits except the sign
        # Two views of the same bytes: writing a float into the first view and reading the second view gives the bits
        # of the float.
        scratch = memoryview(bytearray(8))
        self.as_float = scratch.cast("d" if width == 8 else "f")
        self.as_bits = scratch.cast("q" if width == 8 else "i")

    # Arrays

    def from_bytes(self, data):
        """The orders of all whole elements of some bytes."""
        return self.from_bits(np.frombuffer(data, self.dtype, len(data) // self.width).astype(np.int64))

    def from_bits(self, bits):
        """The orders of elements with these bits, as signed numbers of 64 bits."""
        bits = self.cut(bits)
        return bits if self.integers else flip_negative(bits, self.low)

    def to_bits(self, orders):
        """The bits, as signed numbers of 64 bits."""
        return orders if self.integers else flip_negative(orders, self.low)

    def to_bytes(self, orders):
        return self.to_bits(orders).astype(self.dtype).tobytes()

    def cut(self, numbers):
        """element(o): the low w bytes, as signed numbers."""
        return numbers if self.width == 8 else numbers.astype(np.int32).astype(np.int64)

    def values(self, orders):
        """The values as doubles. The value of an infinite element or of a NaN is +0.0."""
        bits = flip_negative(orders, self.low)
        floats = bits.view(np.float64) if self.width == 8 else bits.astype(np.int32).view(np.float32)
        with np.errstate(all="ignore"):
            floats = floats.astype(np.float64)
        floats[~np.isfinite(floats)] = 0.0
        return floats

    def nearest(self, doubles):
        """nearest(value) of floating-point.md, 4."""
        with np.errstate(all="ignore"):
            if self.width == 8:
                bits = doubles.view(np.int64)
            else:
                bits = doubles.astype(np.float32).view(np.int32).astype(np.int64)
        orders = flip_negative(bits, self.low)
        orders[np.isnan(doubles)] = 0
        return orders

    def turned(self, orders):
        """Section 5.1: inverts the sign bit. For a float, all bits of its order are inverted."""
        return orders ^ -self.half if self.integers else ~orders

    # Single numbers

    def cut_one(self, number):
        return ((number + self.half) & (2 * self.half - 1)) - self.half

    def value_of(self, order):
        self.as_bits[0] = order if order >= 0 else order ^ self.low
        value = self.as_float[0]
        return value if value - value == 0.0 else 0.0

    def nearest_one(self, x):
        if x != x:
            return 0
        self.as_float[0] = x
        bits = self.as_bits[0]
        return bits if bits >= 0 else bits ^ self.low

    def turned_one(self, order):
        return order ^ -self.half if self.integers else ~order


def flip_negative(numbers, low):
    """order and unorder of floating-point.md, 3: in negative numbers all bits but the sign are inverted."""
    return np.where(numbers < 0, numbers ^ low, numbers)


def floor(x):
    """The floor of a double, as a double. -0.0, infinities and NaN are not changed."""
    return x if x == 0.0 or x - x != 0.0 else float(math.floor(x))


def divide(a, b):
    """a / b as in IEEE 754, also for a division by zero, where Python would raise an exception."""
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))
