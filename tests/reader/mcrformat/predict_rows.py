"""The order of the rows of a table (predict.md, 9)."""

import numpy as np

from .errors import check

MAX_LEVELS = 20
SHIFT = 6755399441055744.0          # 3 * 2^51
_AXES = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


class RowOrder:
    """Section 9: the description of the slots of a table."""

    def __init__(self, header, table, columns):
        way = header.varint()
        check(way <= 1, f"the way {way} of ordering rows is unknown")
        self.curve = None
        self.runs = 0
        if way == 1:
            self.position = [self._column(header.varint(), table, columns) for _ in range(3)]
            self.curve = Curve(header, table.places)
            self.runs = header.varint()
            check(self.runs <= table.rows, "there are more runs than rows")
        self.code_lengths = (header.varint(), header.varint())

    def _column(self, number, table, columns):
        check(number < len(columns), f"there is no column {number}")
        check(columns[number].size == table.places, "a column of positions has another size than its table")
        return columns[number]

    def counts(self, table):
        """Return the counts of numbers of codes A and B."""
        return (self.runs, self.runs) if self.curve else (table.rows, 0)

    def slots(self, table, position_values, code_a, code_b):
        """The slot of each row. `position_values(column)` gives values that are not unwrapped."""
        if not self.curve:
            return slots_by_steps(table, code_a)
        holes = np.zeros(table.places, bool)
        holes[table.holes] = True
        places = np.flatnonzero(~holes)
        keys = self.curve.keys([position_values(column) for column in self.position])[places]
        listed = places[np.argsort(keys, kind="stable")]
        return slots_by_runs(listed, code_a.tolist(), code_b.tolist(), table.rows)


def slots_by_steps(table, code_a):
    """Section 9.1: the slots of a table without a curve."""
    slots = np.cumsum(code_a + 1) - 1
    check(len(slots) == 0 or (slots.min() >= 0 and slots.max() < table.places), "a slot is not a place of the table")
    return slots


def slots_by_runs(listed, jumps, lengths, rows):
    """Section 9.2, end: `taken` has one byte for each place of the list. `find` returns the next byte that is 0."""
    taken = bytearray(len(listed))
    slots = []
    following = 0
    for jump, length in zip(jumps, lengths):
        free = taken.find(0, following)
        following = (len(taken) if free < 0 else free) + jump
        check(0 <= following < len(taken) and not taken[following],
              "a jump leads to a row that is already taken, or to no row")
        check(0 <= length < rows - len(slots), "a run has more rows than are left")
        for _ in range(length + 1):
            following = taken.find(0, following)
            check(following >= 0, "a run continues after the last row")
            taken[following] = 1
            slots.append(following)
            following += 1
    check(len(slots) == rows == len(listed), "not all rows are taken")
    return listed[slots]


class Curve:
    """Section 9.2: a curve through a cube, which gives each position a key."""

    def __init__(self, header, places):
        self.begin = [header.double() for _ in range(3)]
        edge = header.double()
        self.levels = header.byte()
        self.first = list(header.take(8))
        self.turn = list(header.take(8))
        levels = self.levels
        check(levels % 2 == 0 and levels <= MAX_LEVELS and 3 * levels + places.bit_length() <= 64,
              f"the number of levels, {levels}, is not possible")
        check(sorted(self.first) == list(range(8)) and max(self.turn) < 48, "the curve is unknown")
        with np.errstate(all="ignore"):
            self.scale = np.float64(2.0 ** (levels + 10)) / np.float64(edge)
        check(np.all(np.isfinite(self.begin)) and np.isfinite(self.scale)
              and self.scale >= np.finfo(np.float64).tiny, "the cube is not allowed")

    def keys(self, position):
        """The key of each position; the levels are the bits of the cells, the highest first."""
        cells = [self._cells(values, begin) for values, begin in zip(position, self.begin)]
        index_of, next_turn = self._steps()
        turns = np.zeros(len(cells[0]), np.int64)
        keys = np.zeros(len(cells[0]), np.uint64)
        for level in range(self.levels - 1, -1, -1):
            octants = sum(((cell >> level) & 1) << (2 - axis) for axis, cell in enumerate(cells))
            j = index_of[turns, octants]
            keys = keys * np.uint64(8) + j.astype(np.uint64)
            turns = next_turn[turns, j]
        return keys

    def _cells(self, values, begin):
        """Bits 10 to 9 + L of the bits of a double."""
        with np.errstate(all="ignore"):
            numbers = (values - begin) * self.scale + SHIFT
        return (numbers.view(np.int64) >> 10) & ((1 << self.levels) - 1)

    def _steps(self):
        """Two tables: the index j for a turn and an octant, and the next turn for a turn and an index."""
        maps = [tuple(turned(t, octant) for octant in range(8)) for t in range(48)]
        number_of = {mapping: t for t, mapping in enumerate(maps)}
        index_of = np.zeros((48, 8), np.int64)
        next_turn = np.zeros((48, 8), np.int64)
        for t in range(48):
            for j in range(8):
                index_of[t, maps[t][self.first[j]]] = j
                next_turn[t, j] = number_of[tuple(maps[t][maps[self.turn[j]][x]] for x in range(8))]
        return index_of, next_turn


def turned(turn, octant):
    """Section 9.2: the octant to which a turn maps an octant."""
    axes = _AXES[turn >> 3]
    mapped = sum((octant >> (2 - axes[a]) & 1) << (2 - a) for a in range(3))
    return mapped ^ (turn & 7)
