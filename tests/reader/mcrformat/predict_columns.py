"""Decoding the columns of a stream of numbers (predict.md, 5, 6.2, 8 and 10.4)."""

import numpy as np

from .elements import divide, floor
from .errors import check
from .predict_header import LORENZO, volume

LITERAL, EXACT, DERIVED, NEAR = range(4)


class Space:
    """The working order: the order, the value and the kind of coding of the element at each place.

    `orders`, `values` and so on are arrays of numpy. `order` and `value` are views of the same memory, which are
    faster for single numbers. Integers have no values.
    """

    def __init__(self, elements, working, exact, near):
        self.elements = elements
        self.orders = np.zeros(working, np.int64)
        self.values = np.zeros(0 if elements.integers else working, np.float64)
        self.order = memoryview(self.orders)
        self.value = memoryview(self.values)
        self.exact = exact
        self.near = near
        self.kinds = np.where(exact.source >= 0, EXACT, np.where(near.source >= 0, NEAR, LITERAL)).astype(np.uint8)

    def mark_derived(self, column, cells):
        """Section 5.1: marks the derived cells. An exact copy stays an exact copy."""
        places = column.begin + np.fromiter(cells, np.int64, len(cells))
        self.kinds[places[self.kinds[places] != EXACT]] = DERIVED

    def counts(self, column):
        """The numbers of literals, near elements and derived cells of a column."""
        kinds = np.bincount(self.kinds[column.begin:column.begin + column.size], minlength=4)
        return int(kinds[LITERAL]), int(kinds[NEAR]), int(kinds[DERIVED])

    def set_values(self, column):
        """Computes the values of a column with all orders known (10.1)."""
        if self.elements.integers:
            return
        span = slice(column.begin, column.begin + column.size)
        values = self.elements.values(self.orders[span])
        self.values[span] = unwrap(values, column, column.about()) if column.period else values


def unwrap(values, column, about):
    """Section 4.3: unwraps the values of a periodic column."""
    with np.errstate(all="ignore"):
        values = values + column.period * np.floor((about - values) / column.period + 0.5)
    values[~np.isfinite(values)] = 0.0
    return values


def wrap(predictions, column):
    """Section 4.3: wraps a prediction."""
    period = column.period
    with np.errstate(all="ignore"):
        inside = (predictions > 0) & (predictions < period)
        return np.where(inside, predictions, predictions - period * np.floor(predictions / period))


class _Row:
    """A row of an array: its elements (i, j, *). Places are places of the working order."""

    def __init__(self, number, extents, array_begin, i, j):
        self.array = number
        self.z, self.y, self.x = extents
        self.i, self.j = i, j
        self.array_begin = array_begin
        self.begin = array_begin + (i * self.y + j) * self.x

    def first_behind(self):
        """Section 8.2, own(n): the place that predicts element 0 of the row, if own(0) is outside of the row."""
        if self.j > 0:
            return self.begin - self.x
        if self.i > 0:
            return self.begin - self.x * self.y
        return self.begin - 1


class ColumnDecoder:
    """Decodes one column, row after row."""

    def __init__(self, space, column, predictor, cells, literal, near, derived):
        self.space = space
        self.elements = space.elements
        self.column = column
        self.predictor = predictor
        self.cells = cells
        self.literal = literal                  # the numbers of the three codes
        self.literal_at = 0
        self.near = near
        self.near_at = 0
        self.derived = iter(derived.tolist())
        self.about = column.about() if column.period else None
        self.about_one = memoryview(self.about) if column.period else None
        self.powers = {}
        self.clipped = {}
        self._find_like()

    def _find_like(self):
        """Section 3.3: for each array, its beginning, and the last array before with the same extents, or None."""
        self.like = []
        self.array_begins = []
        last = {}
        begin = self.column.begin
        for number, extents in enumerate(self.column.arrays):
            self.like.append(last.get(extents))
            last[extents] = number
            self.array_begins.append(begin)
            begin += volume(extents)

    # Rows

    def decode(self):
        sets = self.predictor.sets
        if not sets:
            begin, size = self.column.begin, self.column.size
            self._decode_independent(begin, size, self._take(begin, size))
            return
        unit_of = self._units()
        for number, extents in enumerate(self.column.arrays):
            z, y, _ = extents
            for i in range(z):
                for j in range(y):
                    row = _Row(number, extents, self.array_begins[number], i, j)
                    self._decode_row(row, sets[next(unit_of)])

    def _units(self):
        """Section 7: the number of the set of each row."""
        unit, unit_sets = self.predictor.unit, self.predictor.unit_sets
        index = filled = 0
        for z, y, x in self.column.arrays:
            for row in range(z * y):
                if unit_sets is None:
                    yield 0
                    continue
                check(index < len(unit_sets), "there are fewer units of rows than needed")
                yield unit_sets[index]
                filled += x
                if filled >= unit or (row == z * y - 1 and filled >= 48):
                    index += 1
                    filled = 0

    def _take(self, begin, count):
        """The next numbers of the literal code: one for each literal of these places."""
        literals = int(np.count_nonzero(self.space.kinds[begin:begin + count] == LITERAL))
        self.literal_at += literals
        return self.literal[self.literal_at - literals:self.literal_at]

    def _decode_row(self, row, chosen):
        numbers = self._take(row.begin, row.x)
        if len(numbers) == 0:
            self._decode_others(row.begin, row.x)
        elif chosen.kind == LORENZO:
            self._decode_lorenzo(row, chosen, numbers)
        else:
            sums, noted = self._sums(row, chosen.terms)
            if noted:
                self._decode_weights(row, sums, noted, numbers)
            else:
                literals = self.space.kinds[row.begin:row.begin + row.x] == LITERAL
                about_orders = self._nearest(sums[literals])
                self._decode_independent(row.begin, row.x, about_orders + numbers)

    def _nearest(self, predictions):
        """Section 8: nearest(prediction). In a periodic column, the prediction is wrapped before."""
        return self.elements.nearest(wrap(predictions, self.column) if self.column.period else predictions)

    def _decode_independent(self, begin, count, literal_orders):
        """Sets places with independent literals: all literals at once, then the other places in order."""
        kinds = self.space.kinds[begin:begin + count]
        if len(literal_orders) == count:
            places = slice(begin, begin + count)
        else:
            places = begin + np.flatnonzero(kinds == LITERAL)
        self._set(places, self.elements.cut(literal_orders))
        if len(literal_orders) < count:
            self._decode_others(begin, count)

    def _set(self, places, orders):
        self.space.orders[places] = orders
        if self.elements.integers:
            return
        values = self.elements.values(orders)
        if self.column.period:
            local = (slice(places.start - self.column.begin, places.stop - self.column.begin)
                     if isinstance(places, slice) else places - self.column.begin)
            values = unwrap(values, self.column, self.about[local])
        self.space.values[places] = values

    # Elements that are not literals

    def _decode_others(self, begin, count):
        """Section 5.1: copies, derived cells and near elements of some places, in order."""
        kinds = self.space.kinds[begin:begin + count]
        others = begin + np.flatnonzero(kinds != LITERAL)
        kinds = kinds[kinds != LITERAL]
        if not np.any(kinds == DERIVED):
            exact, near = others[kinds == EXACT], others[kinds == NEAR]
            if np.all(self.space.exact.source[exact] < begin) and np.all(self.space.near.source[near] < begin):
                # All sources are decoded already, so these places can be set in any order.
                self._set(exact, self._copies(self.space.exact, exact))
                self._set(near, self.elements.cut(self._copies(self.space.near, near) + self._take_near(len(near))))
                return
        for place, kind in zip(others.tolist(), kinds.tolist()):
            self._set_one(place, self._other(place, kind))

    def _copies(self, sources, places):
        """The orders of the sources of some places. If the source of a place is turned, its order is turned."""
        orders = self.space.orders[sources.source[places]]
        return np.where(sources.turned[places], self.elements.turned(orders), orders)

    def _take_near(self, count):
        self.near_at += count
        return self.near[self.near_at - count:self.near_at]

    def _other(self, place, kind):
        """The order of an element that is not a literal."""
        space, elements = self.space, self.elements
        if kind == DERIVED:
            return elements.cut_one(elements.nearest_one(self._derived_value(place)) + next(self.derived))
        sources = space.exact if kind == EXACT else space.near
        order = space.order[sources.source[place]]
        if sources.turned[place]:
            order = elements.turned_one(order)
        return order if kind == EXACT else elements.cut_one(order + int(self._take_near(1)[0]))

    def _set_one(self, place, order):
        self.space.order[place] = order
        if not self.elements.integers:
            value = self.elements.value_of(order)
            self.space.value[place] = self._unwrap_one(value, place) if self.column.period else value

    def _unwrap_one(self, value, place):
        """Section 4.3: unwraps the value at a place."""
        period = self.column.period
        value += period * floor((self.about_one[place - self.column.begin] - value) / period + 0.5)
        return value if value - value == 0.0 else 0.0

    def _wrap_one(self, y):
        """Section 4.3: wraps a prediction."""
        period = self.column.period
        return y if 0 < y < period else y - period * floor(y / period)

    def _derived_value(self, place):
        """Section 6.2: the value of a derived cell."""
        value = self.space.value
        begin = self.column.begin
        cell = self.cells[place - begin]
        weights = self.predictor.weights
        s = w = 0.0
        for i in cell.block:
            if weights is None:
                s = s + value[begin + i]
                w = w + 1.0
            else:
                weight = value[weights.begin + i]
                s = s + weight * value[begin + i]
                w = w + weight
        if not cell.last:
            return divide(s, w)
        u = 1.0 if weights is None else value[weights.begin + place - begin]
        x = value[begin + cell.coarse] * (w + u) - s
        return x if weights is None else divide(x, u)

    # Integer Lorenzo

    def _decode_lorenzo(self, row, chosen, numbers):
        """Section 8, and 10.4 for the sets of codec `since`.

        `behind[n]` is the sum of the terms in Lorenzo(q) of element n that have no step along x. These terms are in
        earlier rows. Therefore Lorenzo(q) of element n is behind[n] - behind[n - 1] + order[n - 1].
        """
        count = row.x
        extra = np.zeros(count, np.int64)
        shift = 0
        if chosen.known is not None:
            # With a known column: its element at the same place minus the Lorenzo prediction of the known column.
            shift = chosen.known.begin - self.column.begin
            extra = self._lorenzo_rest(row, chosen.dimensions, shift)
        if chosen.dimensions == 0:
            self._decode_independent(row.begin, count, extra[self._literals(row)] + numbers)
            return
        behind = self._behind(row, chosen.dimensions, 0)
        if len(numbers) == count:
            # The value order - behind is a running sum of the differences.
            self._set(slice(row.begin, row.begin + count),
                      self.elements.cut(behind + np.cumsum(numbers + extra)))
            return
        step = behind - np.concatenate([np.zeros(1, np.int64), behind[:-1]]) + extra
        self._decode_one_by_one(row, step.tolist(), numbers.tolist())

    def _literals(self, row):
        return self.space.kinds[row.begin:row.begin + row.x] == LITERAL

    def _lorenzo_rest(self, row, dimensions, shift):
        """Section 10.4: order of the known element minus Lorenzo(q) of the known column."""
        begin = row.begin + shift
        orders = self.space.orders[begin:begin + row.x]
        if dimensions == 0:
            return orders
        rest = orders - self._behind(row, dimensions, shift)
        rest[1:] = rest[1:] - rest[:-1].copy()
        return rest

    def _behind(self, row, dimensions, shift):
        orders, begin, x = self.space.orders, row.begin + shift, row.x
        result = np.zeros(x, np.int64)
        plane = x * row.y
        if dimensions >= 2 and row.j > 0:
            result = result + orders[begin - x:begin]
        if dimensions == 3 and row.i > 0:
            result = result + orders[begin - plane:begin - plane + x]
            if row.j > 0:
                result = result - orders[begin - plane - x:begin - plane]
        return result

    def _decode_one_by_one(self, row, steps, numbers):
        elements, order = self.elements, self.space.order
        kinds = self.space.kinds[row.begin:row.begin + row.x].tolist()
        number = iter(numbers)
        before = 0
        for n, kind in enumerate(kinds):
            place = row.begin + n
            if kind == LITERAL:
                self._set_one(place, elements.cut_one(before + steps[n] + next(number)))
            else:
                self._set_one(place, self._other(place, kind))
            before = order[place]

    # Weights

    def _decode_weights(self, row, sums, noted, numbers):
        """Section 8.2: decodes the literals of a row with terms from the row itself: (weight, steps back)."""
        value, elements, column = self.space.value, self.elements, self.column
        kinds = self.space.kinds[row.begin:row.begin + row.x].tolist()
        sums = sums.tolist()
        number = iter(numbers.tolist())
        first = row.first_behind()
        first_value = value[first] if first >= column.begin else 0.0
        for n, kind in enumerate(kinds):
            place = row.begin + n
            if kind != LITERAL:
                self._set_one(place, self._other(place, kind))
                continue
            s = sums[n]
            for weight, back in noted:
                if n >= back:
                    s += weight * value[place - back]
                elif n > 0:
                    s += weight * value[place - 1]
                else:
                    s += weight * first_value
            if column.period:
                s = self._wrap_one(s)
            self._set_one(place, elements.cut_one(elements.nearest_one(s) + next(number)))

    def _sums(self, row, terms):
        """Section 8.2: sum[n] of the terms that need no element of this row, and the list of the remaining terms."""
        sums = np.zeros(row.x)
        noted = []
        with np.errstate(all="ignore"):
            for term in terms:
                if term.kind in (1, 7):
                    sums = self._add_steps(sums, noted, row, term)
                else:
                    values = self._term_values(row, term)
                    if values is not None:
                        sums = sums + term.weight * values
        return sums, noted

    def _add_steps(self, sums, noted, row, term):
        """The values of terms 1 (section 8.2) and of terms 7 (section 10.4)."""
        a, b, c = term.steps
        values = self.space.values
        other = term.columns[0]
        shift = other.begin - self.column.begin
        i, j = min(max(row.i + a, 0), row.z - 1), min(max(row.j + b, 0), row.y - 1)
        own = term.kind == 7 or other is self.column
        if not own or (i, j) < (row.i, row.j):
            begin = row.array_begin + (i * row.y + j) * row.x
            index = begin + self._clip(row.x, c)
            if term.kind == 7:
                return sums + term.weight * (values[index] - values[index + shift])
            return sums + term.weight * values[index + shift]
        back = -c if a == 0 and b == 0 else 1
        noted.append((term.weight, back))
        if term.kind == 7:
            sums = sums - term.weight * self._known_own(row, back, shift)
        return sums

    def _clip(self, x, c):
        """n + c, clamped to 0 .. x - 1."""
        if (x, c) not in self.clipped:
            self.clipped[x, c] = np.clip(np.arange(x) + c, 0, x - 1)
        return self.clipped[x, c]

    def _known_own(self, row, back, shift):
        """Section 10.4: the values of the known column at the places of own(n)."""
        n = np.arange(row.x)
        places = row.begin + np.where(n >= back, n - back, n - 1)
        places[0] = row.first_behind()
        values = self.space.values[places + shift]
        if places[0] < self.column.begin:
            values[0] = 0.0
        return values

    def _term_values(self, row, term):
        """Section 8.1: the values of a term that is not 1 or 7 for a row; None if there is no such term."""
        values = self.space.values

        def of(column):
            begin = row.begin - self.column.begin + column.begin
            return values[begin:begin + row.x]

        if term.kind == 0:
            return 1.0
        if term.kind == 2:
            return of(term.columns[0]) * of(term.columns[1])
        if term.kind == 3:
            result = of(term.columns[0]) * of(term.columns[1]) / of(term.columns[2])
            return np.where(np.isfinite(result), result, 0.0)
        if term.kind == 4:
            like = self.like[row.array]
            if term.number == 2 and like is not None:
                like = self.like[like]
            if like is None:
                return None
            begin = row.begin - row.array_begin + self.array_begins[like]
            return values[begin:begin + row.x]
        if term.kind == 5:
            begin = row.begin - self.column.begin
            return self._powers(term.columns[0], term.number)[begin:begin + row.x]
        if term.number == 2:
            return np.arange(row.x, dtype=np.float64)
        return float((row.i, row.j)[term.number])

    def _powers(self, column, power):
        """Section 8.3: the powers of a whole column."""
        key = column.place, power
        if key not in self.powers:
            self.powers[key] = powers(self.space.values[column.begin:column.begin + column.size], power)
        return self.powers[key]


def powers(values, power):
    """Section 8.3: the powers of some values."""
    positive = values > 0
    x = np.where(positive, values, 1.0)
    if power == 0:
        result = 1.0 / x
    elif power in (3, 9):
        result = np.sqrt(x)
        result = 1.0 / result if power == 3 else result
    else:
        r = cube_root(x)
        result = r if power in (4, 8) else r * r
        result = 1.0 / result if power in (2, 4) else result
    return np.where(positive & np.isfinite(result), result, 0.0)


def cube_root(x):
    r = (x.view(np.int64) // 3 + 0x2A9F789300000000).view(np.float64)
    for _ in range(3):
        cube = r * r * r
        r = r * (cube + 2.0 * x) / (2.0 * cube + x)
    return r
