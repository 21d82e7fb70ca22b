"""The header of a stream of numbers: layout, tables, runs, nested grids, predictors (predict.md, 3 to 7, 9, 10)."""

import numpy as np

from .entropy import ByteReader, zigzag
from .errors import check

MAX_GROUPS = MAX_COLUMNS = 16384
MAX_LANES = 4096
MAX_TABLES = 64
MAX_SETS, MAX_TERMS = 16, 32
MAX_STEP = 2**24

PLAIN, JOINED, POINTS, LANES = "plain", "joined", "points", "lanes"

# Kinds of sets (7). Sets 5 to 8 are Lorenzo sets of 0 to 3 dimensions with a known column.
ORDERS, LORENZO, WEIGHTS = "orders", "lorenzo", "weights"


class Group:
    """Section 3: a list of arrays. `columns` are set by `Layout`."""

    def __init__(self, kind, axis, lanes, together, chunk, arrays):
        self.kind = kind
        self.axis = axis
        self.lanes = lanes
        self.together = together
        self.chunk = chunk
        self.arrays = arrays
        self.elements = sum(volume(extents) for extents in arrays)
        self.table = None
        self.columns = []
        self.rest_columns = []          # columns of rows without a slot; only for a member of a table

    def is_line(self):
        return all(z == 1 and y == 1 for z, y, _ in self.arrays)


class Column:
    """Section 3: a column, whose elements are coded in sequence. `begin` is its first place in the working order."""

    def __init__(self, arrays, known):
        self.arrays = arrays
        self.known = known
        self.size = sum(volume(extents) for extents in arrays)
        self.begin = 0
        self.place = 0                  # position in the order of coding
        self.period = None              # 4.3
        self.offset = self.axis = None

    def about(self):
        """Section 4.3: for each element of a periodic column, the number `about`."""
        extents = self.arrays[0]
        index = np.indices(extents)[self.axis].ravel().astype(np.float64)
        return self.offset + self.period / np.float64(extents[self.axis]) * index


class Table:
    """Section 4: groups whose rows have numbers."""

    def __init__(self, key, first, extents, rests):
        self.key = key
        self.first = first
        self.extents = extents
        self.places = volume(extents)
        self.numbered = [x - rest for (_, _, x), rest in zip(key.arrays, rests)]
        self.rests = rests
        self.rows = sum(self.numbered)
        self.holes = []
        self.members = []
        self.older = None


class OlderRows:
    """Section 10.3: the older rows that predict the rows of a table."""

    def __init__(self, first_known, keys, members):
        self.first_known = first_known
        self.keys = keys                # (from, rows)
        self.members = members          # (group, the start for each key)


class Set:
    """Section 7: a set, which predicts literals."""

    def __init__(self, kind, dimensions=0, known=None, terms=()):
        self.kind = kind
        self.dimensions = dimensions
        self.known = known
        self.terms = terms


class Term:
    """Section 8.1: a term, whose fields are columns, steps or numbers."""

    def __init__(self, kind, columns=(), steps=None, number=0):
        self.kind = kind
        self.columns = columns
        self.steps = steps
        self.number = number
        self.weight = 0.0


class Predictor:
    """Section 7: a predictor. `weights` is the column of weights of derived cells. `unit_sets`: the sets of units."""

    def __init__(self):
        self.derived = False
        self.weights = None
        self.sets = []
        self.unit = 1
        self.unit_sets = None
        self.code_lengths = ()


class Sources:
    """Section 5: for each place of the working order its source, or -1, and whether it is turned."""

    def __init__(self, total):
        self.source = np.full(total, -1, np.int64)
        self.turned = np.zeros(total, bool)

    def set(self, at, sources, turned):
        self.source[at:at + len(sources)] = sources
        self.turned[at:at + len(sources)] = turned


def volume(extents):
    z, y, x = extents
    return z * y * x


class Layout:
    """Sections 3 and 4: groups, tables, and the columns in both orders."""

    def __init__(self, header, elements, known_groups, known, since, integers):
        self.known = known
        self.total = known + elements
        self.since = since
        self.groups = self._read_groups(header)
        check(known_groups <= len(self.groups), "there are more known groups than groups")
        self.known_groups = self.groups[:known_groups]
        check(sum(group.elements for group in self.known_groups) == known,
              "the known groups and the known elements have different numbers of elements")
        self.flags = header.varint()
        check(self.flags < 16, f"the flags {self.flags} are unknown")
        check(not self.flags & 4 or (since and self.flags & 2),
              "there are older rows without the codec since or without a table")
        self.tables = []
        if self.flags & 2:
            check(not integers, "integers have a table")
            count = header.varint()
            check(count <= MAX_TABLES, f"the number of tables, {count}, is not possible")
            for _ in range(count):
                self.tables.append(self._read_table(header))
        self._make_columns()
        self._order_columns(header)

    # 3.1. Groups

    def _read_groups(self, header):
        count = header.varint()
        check(count <= MAX_GROUPS, f"the number of groups, {count}, is not possible")
        groups = []
        left = self.total
        for _ in range(count):
            kind, axis, lanes, together = self._read_kind(header)
            first = header.varint()
            chunk = (first, header.varint(), header.varint()) if first else None
            arrays = self._read_arrays(header, left, groups)
            left -= sum(volume(extents) for extents in arrays)
            check(left >= 0, "the arrays have more elements than the stream")
            group = Group(kind, axis, lanes, together, chunk, arrays)
            _check_group(group)
            groups.append(group)
        check(left == 0, "the arrays have fewer elements than the stream")
        return groups

    def _read_kind(self, header):
        kind = header.varint()
        if kind == 0:
            return PLAIN, 0, 1, 1
        if kind <= 3:
            return JOINED, kind - 1, 1, 1
        lanes, together = kind - 3, 1
        if kind == 4:
            lanes = header.varint()
            if lanes == 0:
                lanes, together = header.varint(), header.varint()
        check(2 <= lanes <= MAX_LANES, f"the number of lanes or components, {lanes}, is not possible")
        return (POINTS if kind == 4 else LANES), 0, lanes, together

    def _read_arrays(self, header, left, groups):
        runs = header.varint()
        if runs == 0:
            check(groups, "the first group has no arrays")
            return groups[-1].arrays
        arrays = []
        for _ in range(runs):
            count = header.varint()
            extents = (header.varint(), header.varint(), header.varint())
            check(count >= 1 and min(extents) >= 1, "an array has no elements")
            left -= count * volume(extents)
            check(left >= 0, "the arrays have more elements than the stream")
            arrays.extend([extents] * count)
        return arrays

    # 4.1. Tables

    def _free_group(self, header):
        number = header.varint()
        check(number < len(self.groups), f"there is no group {number}")
        group = self.groups[number]
        check(number >= len(self.known_groups), "a known group is in a table")
        check(group.table is None, "a group is in two tables")
        return group

    def _read_table(self, header):
        key = self._free_group(header)
        check(key.kind == PLAIN and key.is_line(), "the key of a table does not consist of plain lines")
        first = header.varint()
        first += header.varint() << 32
        extents = (header.varint(), header.varint(), header.varint())
        rests = [header.varint() for _ in key.arrays]
        check(all(rest <= x for rest, (_, _, x) in zip(rests, key.arrays)),
              "there are more rows without a number than rows")
        table = Table(key, first, extents, rests)
        check(1 <= table.places <= table.rows + table.rows // 32 + 8, f"a table has {table.places} places")
        check(table.places >= table.rows, "a table has more rows than places")
        key.table = table
        following = 0
        for _ in range(table.places - table.rows):
            hole = following + header.varint()
            check(hole < table.places, "a hole is after the last place")
            table.holes.append(hole)
            following = hole + 1
        for _ in range(header.varint()):
            self._add_member(table, self._free_group(header))
        self._read_periods(header, table)
        if self.flags & 4:
            table.older = self._read_older_rows(header, table)
        return table

    def _add_member(self, table, group):
        check(group.kind == LANES or group.kind == PLAIN and group.is_line(),
              "a member of a table consists neither of lines nor of lanes")
        check(len(group.arrays) == len(table.key.arrays), "a member has another number of arrays than the key")
        for extents, numbered in zip(group.arrays, table.numbered):
            check(volume(extents) >= numbered * group.lanes, "a member has fewer rows than the key")
        group.table = table
        table.members.append(group)

    def _read_periods(self, header, table):
        """Sections 4.1 and 4.3: reads which columns with places are periodic."""
        tiny = np.finfo(np.float64).tiny
        for member in sorted(table.members, key=self.groups.index):
            member.periods = []
            for _ in range(member.lanes):
                axis = header.varint()
                check(axis <= 3, f"a column is periodic along axis {axis - 1}, which does not exist")
                if axis == 0:
                    member.periods.append(None)
                    continue
                period, offset = header.double(), header.double()
                check(np.isfinite(period) and period >= tiny and np.isfinite(offset),
                      "the period of a column is not allowed")
                member.periods.append((axis - 1, period, offset))

    def _read_older_rows(self, header, table):
        """Section 10.3: reads the older rows of a table. Returns None if there are none."""
        if header.varint() == 0:
            return None
        first_known = header.varint()
        keys = [(header.varint(), header.varint()) for _ in range(header.varint())]
        members = []
        before = -1
        for _ in range(header.varint()):
            number = header.varint()
            check(before < number < len(self.groups) and self.groups[number] in table.members,
                  "older rows belong to a group that is not a member, or are out of order")
            before = number
            members.append((self.groups[number], [header.varint() for _ in keys]))
        lanes = sum(group.lanes for group, _ in members)
        check(first_known + lanes <= len(self.known_groups), "older rows belong to groups that are not known")
        for group in self.known_groups[first_known:first_known + lanes]:
            check(group.kind == PLAIN and group.chunk is None and group.arrays == [table.extents],
                  "the layout of a known group for older rows is different")
        return OlderRows(first_known, keys, members)

    # 3.2 and 4.2: columns in the own order

    def _make_columns(self):
        self.own_order = []
        for number, group in enumerate(self.groups):
            known = number < len(self.known_groups)
            if group.table is None:
                group.columns = self._new_columns(_column_arrays(group), group.lanes, known)
            elif group is group.table.key:
                rest = [(1, 1, rest) for rest in group.table.rests if rest]
                group.rest_columns = self._new_columns(rest, 1, known) if rest else []
            else:
                self._make_member_columns(group)
        check(len(self.own_order) <= MAX_COLUMNS, f"the number of columns, {len(self.own_order)}, is not possible")
        for table in self.tables:
            if table.older:
                self._copy_periods(table.older)

    def _new_columns(self, arrays, count, known):
        columns = [Column(arrays, known) for _ in range(count)]
        self.own_order += columns
        check(len(self.own_order) <= MAX_COLUMNS, "there are too many columns")
        return columns

    def _make_member_columns(self, group):
        """Section 4.2: columns with places, then columns of the rest."""
        group.columns = self._new_columns([group.table.extents], group.lanes, False)
        for column, periodic in zip(group.columns, group.periods):
            if periodic:
                column.axis, column.period, column.offset = periodic
        rest = [volume(extents) // group.lanes - numbered
                for extents, numbered in zip(group.arrays, group.table.numbered)]
        lines = [(1, 1, rows) for rows in rest if rows]
        if lines:
            group.rest_columns = self._new_columns(lines, group.lanes, False)

    def _copy_periods(self, older):
        """Section 10.3, end: a known column gets the period of the same lane of its member."""
        number = older.first_known
        for group, _ in older.members:
            for column in group.columns:
                known = self.groups[number].columns[0]
                known.axis, known.period, known.offset = column.axis, column.period, column.offset
                number += 1

    def _order_columns(self, header):
        """Section 3.1, end: the order of coding, and the places of the columns in the working order."""
        self.columns = self.own_order
        if self.flags & 1:
            numbers = [header.varint() for _ in self.own_order]
            check(sorted(numbers) == list(range(len(numbers))), "the order of coding is not a permutation")
            self.columns = [self.own_order[number] for number in numbers]
        known = sum(column.known for column in self.columns)
        check(all(column.known for column in self.columns[:known]), "a known column is not coded first")
        begin = 0
        for place, column in enumerate(self.columns):
            column.begin, column.place = begin, place
            begin += column.size
        self.working = begin


def _check_group(group):
    """Section 3.2: checks the rules for the kinds of groups."""
    arrays, lanes = set(group.arrays), group.lanes
    if group.kind == JOINED:
        check(len(arrays) == 1, "joined arrays have different extents")
    if group.kind == LANES:
        check(all(volume(extents) % lanes == 0 for extents in arrays), "the number of lanes does not divide an array")
    if group.kind == POINTS:
        check(group.chunk is None, "a group of points has chunks")
        check(all(x % lanes == 0 for _, _, x in arrays), "the number of components does not divide an array")
        check(group.together == 0 or all(volume(extents) // lanes % group.together == 0 for extents in arrays),
              "the number of components together does not divide an array")


def check_chunks(group):
    """Section 3.2: checks that each extent of an array is a multiple of the extent of the chunk."""
    check(min(group.chunk) >= 1 and all(extent % chunk == 0 for extents in set(group.arrays)
                                        for extent, chunk in zip(extents, group.chunk)),
          "chunks do not divide their array")


def _column_arrays(group):
    """Section 3.2: the arrays of each column."""
    if group.kind == JOINED:
        extents = list(group.arrays[0])
        extents[group.axis] *= len(group.arrays)
        return [tuple(extents)]
    if group.kind == POINTS:
        return [(z, y, x // group.lanes) for z, y, x in group.arrays]
    if group.kind == LANES:
        return [(1, 1, volume(extents) // group.lanes) for extents in group.arrays]
    return group.arrays


# 5. Copies


def read_runs(header, working, known, near):
    """Section 5.2: reads the exact or near runs."""
    result = Sources(working)
    count = header.varint()
    skips, lengths, sources = (ByteReader(header.take(header.varint()), f"the {name} of runs")
                               for name in ("skips", "lengths", "sources"))
    at = known
    expected = known if near else 0
    for _ in range(count):
        skip = skips.varint()
        at += skip
        expected += skip
        q = lengths.varint()
        length = (q >> 2) + 4
        source = expected + zigzag(sources.varint())
        step = -1 if q & 2 else 1
        expected = source + step * length
        _set_run(result, at, source, step, length, bool(q & 1), 0)
        at += length
    for numbers in (skips, lengths, sources):
        numbers.finish()
    return result


def read_step_runs(header, result, known, near):
    """Section 5.3: reads runs with steps, which replace the runs of section 5.2 for their places."""
    count = header.varint()
    skips, lengths, sources, steps = (ByteReader(header.take(header.varint()), f"the {name} of runs with steps")
                                      for name in ("skips", "lengths", "sources", "steps"))
    at = known
    expected = 0
    for _ in range(count):
        skip = skips.varint()
        at += skip
        expected += skip
        q = lengths.varint()
        length = (q >> 1) + 3
        source = expected + zigzag(sources.varint())
        step = zigzag(steps.varint())
        check(-MAX_STEP <= step <= MAX_STEP, f"a step has the invalid length {step}")
        expected = source + length * step
        _set_run(result, at, source, step, length, bool(q & 1), known if near else 0)
        at += length
    for numbers in (skips, lengths, sources, steps):
        numbers.finish()


def _set_run(result, at, source, step, length, turned, least):
    """Section 5: the sources of a run; each is before its place."""
    check(at + length <= len(result.source), "a run continues after the last place")
    last = source + step * (length - 1)
    check(min(source, last) >= least and source < at and last < at + length - 1,
          "the source of a run is not before its place")
    result.set(at, source + step * np.arange(length), turned)


# 6. Nested grids


class DerivedCell:
    """Section 6.2: a cell that follows from a block of a fine grid. Cells are numbers of elements in the column."""

    def __init__(self, block, coarse, last):
        self.block = block              # the cells of the block, without the last cell if the last cell is derived
        self.coarse = coarse
        self.last = last                # the last cell of the block is derived, and not the coarse cell


def read_families(header, columns):
    """Section 6.1: for each column of a family (by place) a dictionary from element to `DerivedCell`."""
    derived = {}
    for _ in range(header.varint()):
        first = _column(header.varint(), columns)
        check(first.place not in derived, "the first column of a family has derived cells already")
        cells = {}
        fine_before = -1
        for _ in range(header.varint()):
            fine, coarse = header.varint(), header.varint()
            corner = (header.varint(), header.varint(), header.varint())
            check(fine_before < fine, "the links of a family are out of order")
            fine_before = fine
            _add_link(cells, first.arrays, fine, coarse, corner)
        for column in columns[first.place:]:
            if column.arrays is first.arrays or column.arrays == first.arrays:
                derived[column.place] = cells
    return derived


def _column(number, columns):
    check(number < len(columns), f"there is no column {number}")
    return columns[number]


def _add_link(cells, arrays, fine, coarse, corner):
    """Section 6.2: the derived cells of one fine array."""
    check(fine < len(arrays) and coarse < len(arrays) and fine != coarse, "a link refers to arrays that do not exist")
    extents = arrays[fine]
    check(all(extent == 1 or extent % 2 == 0 for extent in extents) and sum(extent > 1 for extent in extents) >= 2,
          "a fine grid does not consist of blocks")
    factors = [2 if extent > 1 else 1 for extent in extents]
    blocks = [extent // factor for extent, factor in zip(extents, factors)]
    cz, cy, cx = arrays[coarse]
    check(all(c + n <= extent for c, n, extent in zip(corner, blocks, arrays[coarse])),
          "a fine grid is larger than its coarse grid")
    fine_begin = sum(volume(extents) for extents in arrays[:fine])
    coarse_begin = sum(volume(extents) for extents in arrays[:coarse])
    _, fy, fx = extents
    steps = [(a * fy + b) * fx + c for a in range(factors[0]) for b in range(factors[1]) for c in range(factors[2])]
    last = coarse < fine
    for a in range(blocks[0]):
        for b in range(blocks[1]):
            fine_row = fine_begin + (a * factors[0] * fy + b * factors[1]) * fx
            coarse_row = coarse_begin + ((corner[0] + a) * cy + corner[1] + b) * cx + corner[2]
            for c in range(blocks[2]):
                block = [fine_row + c * factors[2] + step for step in steps]
                if last:
                    cells[block[-1]] = DerivedCell(block[:-1], coarse_row + c, True)
                else:
                    cells[coarse_row + c] = DerivedCell(block, coarse_row + c, False)


# 7. Predictors


class PredictorReader:
    """Section 7: reads the predictors of the columns."""

    def __init__(self, header, columns, since, integers):
        self.header = header
        self.columns = columns
        self.since = since
        self.integers = integers

    def read(self, column, has_family):
        header = self.header
        predictor = Predictor()
        derived = header.varint()
        if derived:
            check(has_family and not self.integers, "a column without a family has derived cells")
            predictor.derived = True
            if derived > 1:
                predictor.weights = self._before(column, derived - 1)
        count = header.varint()
        check(count <= MAX_SETS, f"the number of sets, {count}, is not possible")
        predictor.sets = [self._set(column) for _ in range(count)]
        if count > 1:
            predictor.unit = header.varint()
            check(predictor.unit >= 1, "a unit has 0 elements")
            predictor.unit_sets = header.take(header.varint())
            check(max(predictor.unit_sets, default=0) < count, "a unit refers to a set that does not exist")
        predictor.code_lengths = (header.varint(), header.varint(), header.varint())
        return predictor

    def _before(self, column, k, known=False):
        """Return column "k before", which must have the same list of arrays."""
        check(1 <= k <= column.place, f"there is no column {k} before column {column.place}")
        other = self.columns[column.place - k]
        check(other.arrays is column.arrays or other.arrays == column.arrays, "a column has other arrays")
        check(other.known or not known, "a column must be known, and is not")
        return other

    def _set(self, column):
        q = self.header.varint()
        if 1 <= q <= 3:
            return Set(LORENZO, q)
        if q == 4:
            check(not self.integers, "integers have weights")
            count = self.header.varint()
            check(count <= MAX_TERMS, f"the number of terms, {count}, is not possible")
            terms = [self._term(column) for _ in range(count)]
            for term in terms:
                term.weight = self.header.double()
            return Set(WEIGHTS, terms=terms)
        check(5 <= q <= 8 and self.since, f"the kind {q} of a set is unknown")
        return Set(LORENZO, q - 5, known=self._before(column, self.header.varint(), known=True))

    def _term(self, column):
        """Section 8.1: reads a term."""
        header = self.header
        kind = header.varint()
        if kind == 0:
            return Term(0)
        if kind == 1:
            k = header.varint()
            steps = self._steps(own=k == 0)
            return Term(1, (self._before(column, k) if k else column,), steps)
        if kind in (2, 3):
            return Term(kind, tuple(self._before(column, header.varint()) for _ in range(kind)))
        if kind == 4:
            number = header.varint()
            check(number in (1, 2), f"a term refers to the array {number} before, which does not exist")
            return Term(4, number=number)
        if kind == 5:
            other = self._before(column, header.varint())
            power = header.varint()
            check(power in (0, 2, 3, 4, 8, 9, 10), f"the power {power} is not possible")
            return Term(5, (other,), number=power)
        if kind == 6:
            axis = header.varint()
            check(axis <= 2, f"a term has the axis {axis}, which does not exist")
            return Term(6, number=axis)
        check(kind == 7 and self.since, f"the kind {kind} of a term is unknown")
        other = self._before(column, header.varint(), known=True)
        return Term(7, (other,), self._steps(own=True))

    def _steps(self, own):
        steps = tuple(self.header.varint() - 7 for _ in range(3))
        check(all(-7 <= step <= 7 for step in steps), "a step is too long")
        if own:
            first = next((step for step in steps if step), 0)
            check(first < 0, "a step does not lead back")
        return steps
