"""Codecs `predict` and `since` (predict.md). This module reads the streams (2), known elements (10) and codes (12),
and puts the raw bytes together (11)."""

import numpy as np

from .elements import Elements
from .entropy import ByteReader
from .errors import check
from .packed import pco_numbers, zstd_frame
from .predict_columns import ColumnDecoder, Space
from .predict_header import (JOINED, LANES, POINTS, Layout, PredictorReader, check_chunks, read_families, read_runs,
                             read_step_runs, volume)
from .predict_rows import RowOrder
from .shuffles import unbitshuffle

INTEGERS, BYTES, BIG_ENDIAN = 0x200, 0x400, 0x100


def decode(data, parameter, raw_len):
    """Codec `predict`."""
    if parameter & BYTES:
        return _stream_of_bytes(data, raw_len)
    elements = Elements(parameter & 0xFF, bool(parameter & BIG_ENDIAN), bool(parameter & INTEGERS))
    return _stream_of_numbers(ByteReader(data, "the payload"), elements, raw_len)


def decode_since(data, parameter, raw_len, base):
    """Codec `since` (10)."""
    elements = Elements(parameter & 0xFF, bool(parameter & BIG_ENDIAN), bool(parameter & INTEGERS))
    return _stream_of_numbers(ByteReader(data, "the payload"), elements, raw_len, elements.from_bytes(base))


# 2. Streams


def _stream_of_bytes(data, raw_len):
    """Section 2.3: decodes a stream of bytes."""
    reader = ByteReader(data, "the payload")
    width, lanes, count = reader.varint(), reader.varint(), reader.varint()
    check(width in (4, 8) and lanes >= 1, f"records of {lanes} lanes of {width} bytes are not possible")
    check(count <= reader.left(), f"the number of regions, {count}, is not possible")
    regions = []
    records_len = 0
    for _ in range(count):
        before, rows = reader.varint(), reader.varint()
        regions.append((before, width * lanes * rows))
        records_len += width * lanes * rows
    check(records_len <= raw_len, "there are more records than bytes")
    packed = reader.take(reader.varint())
    others = ByteReader(zstd_frame(packed, raw_len - records_len), "the other bytes")
    numbers = _stream_of_numbers(reader, Elements(width, False, False), records_len)
    records = ByteReader(numbers, "the records")
    parts = []
    for before, length in regions:
        parts.append(others.take(before))
        parts.append(records.take(length))
    parts.append(others.rest())
    records.finish()
    return b"".join(parts)


def _stream_of_numbers(reader, elements, raw_len, older=None):
    """Sections 2.2 and 11: decodes a stream of numbers. `older` has the orders of the older elements, for `since`."""
    count, tail = divmod(raw_len, elements.width)
    header = _open_header(reader, raw_len, older is not None)
    stream = _Stream(header, elements, count, older)
    header.finish()
    stream.decode_columns(reader)
    stream.find_slots(reader)
    result = elements.to_bytes(stream.raw_orders()) + reader.take(tail)
    reader.finish()
    return result


def _open_header(reader, raw_len, since):
    packed_len, header_len = reader.varint(), reader.varint()
    check(header_len <= (12 * raw_len + 16384) * (2 if since else 1),
          f"the length of the header, {header_len} bytes, is not possible")
    data = zstd_frame(reader.take(packed_len), header_len)
    check(len(data) == header_len, f"the header has {len(data)} bytes instead of {header_len}")
    return ByteReader(data, "the header")


class _Stream:
    """Section 11: reads a header, then the columns, then the order of rows."""

    def __init__(self, header, elements, count, older):
        self.elements = elements
        since = older is not None
        known_groups, known = _read_known(header, older, count) if since else (0, np.zeros(0, np.int64))
        self.layout = layout = Layout(header, count, known_groups, len(known), since, elements.integers)
        self.slots = {}
        working = layout.working
        exact = read_runs(header, working, len(known), near=False)
        near = read_runs(header, working, len(known), near=True)
        if layout.flags & 8:
            read_step_runs(header, exact, len(known), near=False)
            read_step_runs(header, near, len(known), near=True)
        self.derived = read_families(header, layout.columns)
        check(not (elements.integers and self.derived), "integers have nested grids")
        reader = PredictorReader(header, layout.columns, since, elements.integers)
        self.predictors = {column.place: reader.read(column, column.place in self.derived)
                           for column in layout.columns if not column.known}
        self.row_orders = [RowOrder(header, table, layout.columns) for table in layout.tables]
        self.space = Space(elements, working, exact, near)
        for place, predictor in self.predictors.items():
            if predictor.derived:
                self.space.mark_derived(layout.columns[place], self.derived[place])
        self._place_known(known, older)

    def _place_known(self, known, older):
        """Sections 10.1 and 10.3: sets the known elements and their values."""
        at = 0
        for group in self.layout.known_groups:
            self.space.orders[raw_places(group)] = known[at:at + group.elements]
            at += group.elements
        for table in self.layout.tables:
            if table.older:
                _place_older_rows(table, self.layout, self.space, older)
        for column in self.layout.columns:
            if column.known:
                self.space.set_values(column)

    def decode_columns(self, reader):
        for column in self.layout.columns:
            if column.known:
                continue
            predictor = self.predictors[column.place]
            literals, near, derived = self.space.counts(column)
            lengths = predictor.code_lengths
            plain_doubles = not predictor.sets and not self.elements.integers and self.elements.width == 8
            codes = (_code(reader.take(lengths[0]), literals, plain_doubles),
                     _optional_code(reader.take(lengths[1]), near),
                     _optional_code(reader.take(lengths[2]), derived))
            cells = self.derived.get(column.place)
            ColumnDecoder(self.space, column, predictor, cells, *codes).decode()

    def find_slots(self, reader):
        """Section 9: the slots of all tables."""
        for table, row_order in zip(self.layout.tables, self.row_orders):
            codes = [_optional_code(reader.take(length), count)
                     for length, count in zip(row_order.code_lengths, row_order.counts(table))]
            slots = row_order.slots(table, self._plain_values, *codes)
            check(len(np.unique(slots)) == table.rows, "two rows are at the same place")
            self.slots[table] = slots

    def _plain_values(self, column):
        """Section 9: the values of a column, which are not unwrapped."""
        return self.elements.values(self.space.orders[column.begin:column.begin + column.size])

    def raw_orders(self):
        """Sections 3.2 and 4.2: the elements of the segment in the order of the raw bytes."""
        parts = [np.zeros(0, np.int64)]
        for group in self.layout.groups[len(self.layout.known_groups):]:
            if group.table is None:
                parts.append(self.space.orders[raw_places(group)])
            elif group is group.table.key:
                parts.append(self._key_orders(group))
            else:
                parts.append(self.space.orders[self._member_places(group)])
        return np.concatenate(parts)

    def _key_orders(self, group):
        """Section 4.2: the numbers of the rows. In each array, the rows without a number come last."""
        table = group.table
        bits = (self.slots[table].astype(np.uint64) + np.uint64(table.first)).view(np.int64)
        numbers = self.elements.from_bits(bits)
        rest = np.zeros(0, np.int64)
        if group.rest_columns:
            column = group.rest_columns[0]
            rest = self.space.orders[column.begin:column.begin + column.size]
        parts = []
        row = behind = 0
        for numbered, count in zip(table.numbered, table.rests):
            parts += [numbers[row:row + numbered], rest[behind:behind + count]]
            row += numbered
            behind += count
        return np.concatenate(parts)

    def _member_places(self, group):
        """Section 4.2: the place in the working order of each element of a member."""
        table, lanes = group.table, group.lanes
        begins = np.array([column.begin for column in group.columns])
        rest_begins = np.array([column.begin for column in group.rest_columns] or [0] * lanes)
        parts = []
        row = behind = 0
        for extents, numbered in zip(group.arrays, table.numbered):
            count = volume(extents) // lanes - numbered
            slots = self.slots[table][row:row + numbered]
            parts.append((slots[:, None] + begins).ravel())
            parts.append((np.arange(behind, behind + count)[:, None] + rest_begins).ravel())
            row += numbered
            behind += count
        return np.concatenate(parts)


# 3.2. Places of the elements of a group


def raw_places(group):
    """The place in the working order of each element, in raw order, of a group that is in no table."""
    if group.kind == JOINED:
        return _joined_places(group)
    parts = []
    begin = 0                               # first place of the array in its column
    column_begins = np.array([column.begin for column in group.columns])
    for extents in group.arrays:
        size = volume(extents)
        i = np.arange(size)
        if group.kind == POINTS:
            together = group.together or size // group.lanes
            component = i // together % group.lanes
            index = i // (together * group.lanes) * together + i % together
            parts.append(column_begins[component] + begin + index)
        elif group.kind == LANES:
            parts.append(column_begins[i % group.lanes] + begin + i // group.lanes)
        else:
            parts.append(column_begins[0] + begin + _in_chunks(i.reshape(extents), group))
        begin += size // len(group.columns)
    return np.concatenate(parts)


def _joined_places(group):
    """Section 3.2: the places of a joined group. Its arrays have equal extents and lie side by side along an axis."""
    column = group.columns[0]
    joined = np.arange(column.size).reshape(column.arrays[0]) + column.begin
    return np.concatenate([_in_chunks(part, group) for part in np.split(joined, len(group.arrays), group.axis)])


def _in_chunks(places, group):
    """The elements of an array in the order of the raw bytes: chunk after chunk, if there are chunks."""
    if group.chunk is None:
        return places.ravel()
    check_chunks(group)
    (z, y, x), (cz, cy, cx) = places.shape, group.chunk
    return places.reshape(z // cz, cz, y // cy, cy, x // cx, cx).transpose(0, 2, 4, 1, 3, 5).ravel()


# 10. Known elements


def _read_known(header, older, most):
    """Section 10.1: the number of known groups, and the known elements."""
    groups = header.varint()
    parts = [np.zeros(0, np.int64)]
    total = 0
    for _ in range(header.varint()):
        begin, count = header.varint(), header.varint()
        total += count
        check(count >= 1 and total <= most, "there are more known elements than elements in the segment")
        if begin == 0:
            parts.append(np.zeros(count, np.int64))
        else:
            check(begin - 1 + count <= len(older), "known elements are after the end of the base")
            parts.append(older[begin - 1:begin - 1 + count])
    return groups, np.concatenate(parts)


def _place_older_rows(table, layout, space, older):
    """Section 10.3: the known columns whose elements are the older rows with the same numbers."""
    rows = table.older
    bits = space.elements.to_bits(older)
    if space.elements.width == 4:
        bits = bits & 0xFFFFFFFF
    found_key = np.full(table.places, -1)
    found_row = np.zeros(table.places, np.int64)
    for number, (begin, count) in enumerate(rows.keys):
        check(begin + count <= len(older), "older rows are after the end of the base")
        places = bits[begin:begin + count].view(np.uint64) - np.uint64(table.first)
        row = np.flatnonzero(places < np.uint64(table.places))
        place = places[row].astype(np.int64)
        # The first row of a place counts, so the rows are set from the last to the first.
        free = found_key[place] < 0
        row, place = row[free][::-1], place[free][::-1]
        found_row[place] = row
        found_key[place] = number
    found = np.flatnonzero(found_key >= 0)
    # For each place: the last place with a row, up to this place; -1 if there is no such place.
    source = np.full(table.places, -1)
    source[found] = found
    source = np.maximum.accumulate(source)
    group_number = rows.first_known
    for group, starts in rows.members:
        for lane in range(group.lanes):
            column = layout.groups[group_number].columns[0]
            group_number += 1
            index = np.array(starts or [0])[found_key[found]] + found_row[found] * group.lanes + lane
            check(len(index) == 0 or index.max() < len(older), "older rows are after the end of the base")
            orders = np.zeros(table.places, np.int64)
            orders[found] = older[index]
            span = slice(column.begin, column.begin + column.size)
            space.orders[span] = np.where(source >= 0, orders[np.maximum(source, 0)], 0)


# 12. Codes


def _optional_code(data, count):
    """Check that a code without numbers has no bytes."""
    if count == 0:
        check(not data, "a code without numbers has bytes")
        return np.zeros(0, np.int64)
    return _code(data, count, False)


def _code(data, count, doubles_allowed):
    """Section 12: decodes the numbers of a code."""
    check(data, "a code has no first byte")
    kind, packed = data[0], data[1:]
    if kind == 0:
        check(not packed, "a code of zeros has more than one byte")
        return np.zeros(count, np.int64)
    if kind in (1, 2, 3):
        return pco_numbers(packed, count, np.dtype(f"<i{16 >> kind}")).astype(np.int64)
    if kind == 4:
        check(doubles_allowed, "a code of doubles is not allowed here")
        return Elements(8, False, False).from_bits(pco_numbers(packed, count, np.dtype("<f8")).view(np.int64))
    check(kind in (5, 6), f"the kind {kind} of a code is unknown")
    raw = zstd_frame(packed, 8 * count)
    check(len(raw) == 8 * count, "the length of a code does not fit its numbers")
    if kind == 5:
        return np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(8, count).T).view("<i8").ravel()
    numbers = np.frombuffer(unbitshuffle(raw, 8), "<u8")
    return ((numbers >> np.uint64(1)) ^ (np.uint64(0) - (numbers & np.uint64(1)))).view(np.int64)
