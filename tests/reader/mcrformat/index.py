"""The index of a container: files, variables, extents, segments and pieces (container.md, 7)."""

from .codecs import MAX_WIDTH, SINCE, read_chain
from .entropy import ByteReader
from .errors import Unsupported, check, where

COLUMN_NAMES = (
    "head", "references", "types", "filters", "chains", "classes", "class_names", "file_paths", "file_names", "ranks",
    "sizes", "modes", "times", "file_kinds", "counts", "file_digests", "flags", "variable_classes", "kinds", "paths",
    "names", "shapes", "lengths", "offsets", "extents", "filtered", "digests", "elsewhere", "stored_lengths",
    "segment_classes", "segment_kinds", "layouts", "segment_chains", "dependencies", "pieces")

U64 = 2**64 - 1
MAX_REFERENCES, MAX_VARIABLES, MAX_EXTENTS, MAX_PIECES = 16, 2**23, 2**25, 2**24
MAX_FILTERED = 64 * 2**20
MAX_SEGMENT = 2**30
MAX_STORED = 2**30 + 2**26
MAX_NAME = 65536
MAX_PATH, MAX_COMPONENT, MAX_LINK = 4096, 255, 4096
MAX_RANKS = 2**24
DIGEST_FROM = 4096          # Section 7.6: a variable with this number of raw bytes or more must have a digest

REGULAR, DIRECTORY, SYMBOLIC_LINK, POINTER = 0, 1, 2, 3


class Reference:
    """A reference: an older container that this container needs."""

    def __init__(self, checkpoint, group, index_digest):
        self.checkpoint = checkpoint
        self.group = group
        self.index_digest = index_digest


class File:
    """A file of the application. `hard_link` is 0, or for a hard link the number of places back to its file."""

    def __init__(self, path, rank, size, mode, modified_ns, kind, digest):
        self.path = path
        self.rank = rank
        self.size = size
        self.mode = mode
        self.modified_ns = modified_ns
        self.kind = min(kind, POINTER)
        self.hard_link = max(0, kind - POINTER)
        if self.hard_link:
            self.kind = REGULAR
        self.digest = digest
        self.variables = []


class Variable:
    """The raw bytes of one variable, and their places in the file and in the segments.

    extents     a list of (offset in the file, stored bytes, raw bytes); None for the gaps between the other extents
    filters     the filters that each extent goes through, or None
    elsewhere   (k, file, variable) of 7.8, or None
    pieces      a list of (segment, number of the piece in the segment)
    """

    def __init__(self, name, raw_bytes, flags):
        self.name = name
        self.raw_bytes = raw_bytes
        self.flags = flags
        self.extents = None
        self.filters = None
        self.elsewhere = None
        self.digest = None
        self.pieces = []

    def has(self, bit):
        return bool(self.flags >> bit & 1)


class Piece:
    """A run of the raw bytes of a variable."""

    def __init__(self, variable, offset, length):
        self.variable = variable
        self.offset = offset
        self.length = length


class Segment:
    """The entry of a segment in the index. `base` is (reference, segment, digest of its raw bytes) or None."""

    def __init__(self, stored_len, block_bytes, chain, base, unknown_dependency):
        self.stored_len = stored_len
        self.block_bytes = block_bytes
        self.chain = chain
        self.base = base
        self.unknown_dependency = unknown_dependency
        self.has_dependency = base is not None or unknown_dependency is not None
        self.pieces = []
        self.raw_len = 0


class Column(ByteReader):
    """A column of the index (3.2)."""

    def number(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            check(shift < 70, f"{self.name}: a number has more than 10 bytes")
        check(value <= U64, f"{self.name}: a number has more than 64 bits")
        check(byte or shift == 0, f"{self.name}: a number has more bytes than needed")
        return value

    def diff(self, x):
        n = self.number()
        return (x - (n >> 1) - 1 if n & 1 else x + (n >> 1)) & U64

    def text(self):
        return self.take(self.number())

    def index(self, table):
        """An entry of a table."""
        number = self.number()
        check(number < len(table), f"{self.name}: there is no entry {number} in a table of {len(table)}")
        return table[number]

    def count(self, limit, each=1):
        """Reads a count of items. Each item has at least `each` bytes in this column."""
        count = self.number()
        check(count <= limit and count * each <= self.left(), f"{self.name}: the count {count} is too large")
        return count


def _front(column, names, before):
    shared, own = column.number(), column.number()
    check(shared <= len(before), f"{column.name}: a name has more bytes in common than the name before has")
    return before[:shared] + names.take(own)


class Index:
    """`files`, `segments` and `references` of a container. `order` is the piece order (7.9)."""

    def __init__(self, data):
        self.columns = _split_columns(data)
        self._read_tables()
        self._read_files()
        self._check_elsewhere()
        self._read_segments()
        for column in self.columns.values():
            column.finish()
        del self.columns

    def _read_tables(self):
        """Section 7.2: the tables that files, variables and segments point into."""
        c = self.columns
        scheme = c["head"].number()
        c["head"].number()      # the number of bytes of a block is only information
        if scheme > 3:
            raise Unsupported(f"scheme {scheme} is unknown")
        counts = [c["head"].number() for _ in range(8)]
        references, types, filters, chains, classes, self.file_count, self.variable_count, self.segment_count = counts
        check(references <= MAX_REFERENCES, f"the number of references, {references}, is too large")
        check(self.variable_count <= MAX_VARIABLES, f"the number of variables, {self.variable_count}, is too large")
        check(self.variable_count <= c["flags"].left(), "there are more variables than flags")
        check(self.file_count <= c["file_kinds"].left(), "there are more files than kinds of files")
        check(self.segment_count <= c["stored_lengths"].left(), "there are more segments than lengths")
        self.references = [self._reference() for _ in range(references)]
        self.types = _table(types, c["types"], _element_type)
        self.filter_sets = _table(filters, c["filters"], _filter_set)
        self.chains = _table(chains, c["chains"], read_chain)
        key = b""
        self.classes = []
        check(classes <= c["classes"].left(), "there are more classes than keys")
        for _ in range(classes):
            key = _front(c["classes"], c["class_names"], key)
            check(len(key) <= MAX_NAME and _is_utf8(key), "a key of a class is too long, or not UTF-8")
            role = _role(c["classes"])
            self.classes.append((role, c["classes"].index(self.types), []))

    def _reference(self):
        column = self.columns["references"]
        checkpoint, group = column.text(), column.number()
        column.take(32)         # the digest of the frame at the time of the reference is not compared (7.8)
        check(_is_utf8(checkpoint), "the name of the checkpoint of a reference is not UTF-8")
        return Reference(checkpoint.decode(), group, column.take(32))

    # Files and variables

    def _read_files(self):
        """Section 7.2: reads the files."""
        c = self.columns
        self.files = []
        self.extent_count = 0
        path = b""
        rank = size = mode = time = 0
        self.class_value = 0
        for number in range(self.file_count):
            path = _front(c["file_paths"], c["file_names"], path)
            rank = c["ranks"].diff(rank)
            size = c["sizes"].diff(size)
            mode = c["modes"].diff(mode)
            time = c["times"].diff(time)
            kind = c["file_kinds"].number()
            digest = c["file_digests"].take(32)
            signed_time = time - 2**64 if time >= 2**63 else time
            file = File(path, rank, size, mode, signed_time, kind, digest)
            with where(f"file {number} ({show(path)})"):
                check_path(path)
                check(rank < MAX_RANKS, f"rank {rank}")
                check(mode <= 0o7777, f"mode {mode:o}")
                self._check_kind(file)
                self.files.append(file)
                self._read_variables(file, c["counts"].count(MAX_VARIABLES, each=0))
        total = sum(len(file.variables) for file in self.files)
        check(total == self.variable_count, f"{total} variables instead of {self.variable_count}")

    def _check_kind(self, file):
        """Section 7.5: checks the rules for the kinds of files."""
        if file.kind == DIRECTORY:
            check(file.size == 0, "a directory has bytes")
        if file.kind == SYMBOLIC_LINK:
            check(1 <= file.size <= MAX_LINK, f"a symbolic link has {file.size} bytes")
        if file.hard_link:
            check(file.hard_link <= len(self.files), "a hard link leads to a file before the first file")
            target = self.files[len(self.files) - file.hard_link]
            check(target.kind == REGULAR and not target.hard_link, "a hard link does not lead to a regular file")
            check((target.rank, target.size, target.digest) == (file.rank, file.size, file.digest),
                  "a hard link differs from its file")

    def _read_variables(self, file, count):
        """Section 7.2: reads the variables of a file."""
        c = self.columns
        name = b""
        end = 0
        shape = None
        for number in range(count):
            flags = c["flags"].byte()
            members, element_type = self._class_and_type(flags)
            name = _front(c["paths"], c["names"], name)
            check(len(name) <= MAX_NAME and _is_utf8(name), "the name of a variable is too long, or not UTF-8")
            shape = self._shape(shape)
            raw_bytes = _product(element_type, shape) if flags & 2 else c["lengths"].number()
            variable = Variable(name, raw_bytes, flags)
            file.variables.append(variable)
            with where(f"variable {show(name)}"):
                check(not (flags & 0x10 and flags & 0x20), "the variable has two digests")
                check(not (flags & 0x04 and flags & 0x48), "the variable of the gaps has an extent or filters")
                if variable.has(6):
                    variable.filters = c["filtered"].index(self.filter_sets)
                end = self._extents(variable, end)
                if variable.has(7):
                    variable.elsewhere = (c["elsewhere"].number(), c["elsewhere"].diff(len(self.files) - 1),
                                          c["elsewhere"].diff(number))
                if variable.has(4):
                    variable.digest = c["digests"].take(32)
                elif variable.has(5):
                    variable.digest = file.digest
            if members is not None:
                members.append(variable)
        _find_gaps(file)
        _check_cover(file)

    def _class_and_type(self, flags):
        """Reads the class and the type of a variable. Returns the members of the class, or None, and the type."""
        c = self.columns
        value = self.class_value = c["variable_classes"].diff((self.class_value + 1) & U64)
        check(value <= len(self.classes), f"there is no class {value - 1}")
        members = None
        if value:
            _role_of_class, element_type, members = self.classes[value - 1]
        if flags & 1:
            check(members is not None, "a variable without a class refers to the type of its class")
        else:
            _role(c["kinds"])
            element_type = c["kinds"].index(self.types)
        return members, element_type

    def _shape(self, before):
        column = self.columns["shapes"]
        n = column.number()
        if n == 0:
            check(before is not None, "the first variable of a file has no shape")
            return before
        check(n - 1 <= 32, f"a shape has {n - 1} dimensions")
        return [column.number() for _ in range(n - 1)]

    def _extents(self, variable, end):
        """Section 7.7: reads the extents of a variable. Returns the new state `end`."""
        offsets, lengths = self.columns["offsets"], self.columns["extents"]
        if variable.has(2):
            return end
        if variable.has(3):
            variable.extents = [(offsets.diff(end), variable.raw_bytes, variable.raw_bytes)]
        else:
            variable.extents = []
            raw = stored = 0
            at = end
            for _ in range(lengths.count(MAX_EXTENTS)):
                offset = offsets.diff(at)
                raw = lengths.diff(raw)
                stored = lengths.diff(stored) if variable.has(6) else raw
                at = (offset + stored) & U64
                variable.extents.append((offset, stored, raw))
        self.extent_count += len(variable.extents)
        check(self.extent_count <= MAX_EXTENTS, "a variable has too many extents")
        if variable.has(6):
            check(all(stored <= MAX_FILTERED and raw <= MAX_FILTERED for _, stored, raw in variable.extents),
                  "an extent with filters has more than 64 MiB")
        if not variable.extents:
            return end
        offset, stored, _ = variable.extents[-1]
        return (offset + stored) & U64

    def _check_elsewhere(self):
        """Sections 7.6 and 7.8: finds the bytes of a variable, and checks that a long variable has a digest."""
        for file in self.files:
            for variable in file.variables:
                with where(f"{show(file.path)}: variable {show(variable.name)}"):
                    self._check_same(variable)
                    long = variable.raw_bytes >= DIGEST_FROM
                    check(long == (variable.digest is not None), "a digest is missing, or must be missing")

    def _check_same(self, variable):
        if variable.elsewhere is None:
            return
        k, file, number = variable.elsewhere
        check(k <= len(self.references), f"there is no reference {k - 1}")
        if k == 0:
            other = self.variable(file, number)
            check(other.elsewhere is None or other.elsewhere[0] != 0,
                  "a variable refers to a variable that refers to a third variable")
            check(other.raw_bytes == variable.raw_bytes, "a variable refers to a variable with another length")
            if variable.digest is None:
                variable.digest = other.digest

    def variable(self, file, number):
        check(file < len(self.files) and number < len(self.files[file].variables),
              f"file {file} has no variable {number}")
        return self.files[file].variables[number]

    # Segments and pieces

    def _read_segments(self):
        """Section 7.2: reads the segments."""
        c = self.columns
        self.order = self._piece_order()
        self.left = [variable.raw_bytes for variable in self.order]
        self.next_place = 0
        self.piece_count = 0
        self.segments = []
        for number in range(self.segment_count):
            with where(f"segment {number} of the index"):
                stored_len = c["stored_lengths"].number()
                check(stored_len <= MAX_STORED, f"{stored_len} stored bytes")
                class_number = c["segment_classes"].number()
                check(class_number <= len(self.classes), f"there is no class {class_number - 1}")
                if class_number == 0:
                    _role(c["segment_kinds"])
                    c["segment_kinds"].index(self.types)
                block_bytes = c["layouts"].number()
                check(block_bytes < 2**32, f"the length of a block, {block_bytes} bytes, is not possible")
                chain = c["segment_chains"].index(self.chains)
                segment = Segment(stored_len, block_bytes, chain, *self._dependencies(chain))
                self._piece_list(segment, number)
                self.segments.append(segment)
        check(not any(self.left), "some bytes of a variable are in no piece")
        del self.left

    def _piece_order(self):
        """Section 7.9: the members of class 0, then of class 1 and so on, then the variables without a class."""
        in_classes = [variable for _, _, members in self.classes for variable in members]
        seen = set(map(id, in_classes))
        others = [variable for file in self.files for variable in file.variables if id(variable) not in seen]
        return [variable for variable in in_classes + others if variable.raw_bytes and variable.elsewhere is None]

    def _piece_list(self, segment, segment_number):
        """Section 7.9: reads the pieces of a segment."""
        column = self.columns["pieces"]
        kind = column.number()
        check(kind in (0, 1, 2, 4, 6), f"kind {kind} of a list of pieces is not possible")
        places = []
        for _ in range(column.count(MAX_PIECES, each=2)):
            first = column.diff(self.next_place)
            count = column.number() + 1
            check(first + count <= len(self.order), "a piece belongs to a variable that does not exist")
            self.piece_count += count
            check(self.piece_count <= MAX_PIECES, "there are too many pieces")
            places.extend(range(first, first + count))
            self.next_place = first + count
        cap = column.number() if kind & 2 else None
        last = column.number() if kind & 4 else None
        for number, i in enumerate(places):
            left = self.left[i]
            if kind == 1:
                length = column.number()
            elif last is not None and number == len(places) - 1:
                length = last
            else:
                length = left if cap is None else min(left, cap)
            check(1 <= length <= left, "a piece has no bytes, or more bytes than its variable has left")
            variable = self.order[i]
            segment.pieces.append(Piece(variable, variable.raw_bytes - left, length))
            variable.pieces.append((segment_number, number))
            self.left[i] = left - length
            segment.raw_len += length
        check(1 <= segment.raw_len <= MAX_SEGMENT, f"{segment.raw_len} raw bytes")

    def _dependencies(self, chain):
        """Section 7.11: returns the base or None, and the kind of an unknown dependency or None."""
        column = self.columns["dependencies"]
        base = unknown = None
        count = column.count(MAX_REFERENCES, each=2)
        for _ in range(count):
            kind, which = column.number(), column.text()
            if kind != 2:
                unknown = kind
                continue
            check(base is None, "a segment has two bases")
            inner = Column(which, "a dependency")
            base = (inner.number(), inner.number(), inner.take(32))
            inner.finish()
            check(base[0] < len(self.references), f"there is no reference {base[0]}")
        is_since = chain[0][0] == SINCE
        check(is_since == (base is not None), "a segment has only one of a base and the codec since")
        check(not is_since or count == 1, "a segment with the codec since has a second dependency")
        return base, unknown


def _split_columns(data):
    """Section 7: returns the first 35 columns of the index by name."""
    head = Column(data, "the index")
    count = head.count(len(data))
    check(count >= len(COLUMN_NAMES), f"the index has only {count} columns")
    lengths = [head.number() for _ in range(count)]
    check(sum(lengths) == head.left(), "the columns and the index have different lengths")
    return {name: Column(head.take(length), f"column {name}") for name, length in zip(COLUMN_NAMES, lengths)}


def _table(count, column, read):
    check(count <= column.left(), f"{column.name}: there are more entries than bytes")
    return [read(column) for _ in range(count)]


def _role(column):
    role = column.number()
    if role > 3:
        raise Unsupported(f"role {role} is unknown")
    return role


def _element_type(column, member=False):
    """Section 7.3: reads an element type. Returns its width, because a reader needs only the width."""
    kind = column.byte()
    if kind == 0:
        return 1
    if kind == 1:
        width, signed, order = column.take(3)
        check(width in (1, 2, 4, 8) and signed <= 1 and order <= 1, "an integer type does not exist")
        return width
    if kind == 2:
        width, order = column.take(2)
        check(width in (2, 4, 8) and order <= 1, "an IEEE 754 type does not exist")
        return width
    if kind == 3:
        width = column.number()
        check(1 <= width <= MAX_WIDTH, f"a type has the width {width}")
        return width
    if kind != 4:
        raise Unsupported(f"element type {kind} is unknown")
    check(not member, "a compound type contains a compound type")
    return _compound(column)


def _compound(column):
    width, members = column.number(), column.number()
    check(1 <= width <= MAX_WIDTH and members <= 1024, "a compound type is too large")
    end = 0
    for _ in range(members):
        offset, count = column.number(), column.number()
        check(count >= 1 and offset >= end, "members of a compound type overlap")
        end = offset + count * _element_type(column, member=True)
        check(end <= width, "a member of a compound type is longer than the type")
    return width


def _filter_set(column):
    """Section 7.4: reads a set of filters. Returns a list of (filter, width or level)."""
    count = column.number()
    check(1 <= count <= 8, f"a set has {count} filters")
    filters = []
    for _ in range(count):
        kind = column.byte()
        value = 0
        if kind == 1:
            value = column.number()
            check(1 <= value <= MAX_WIDTH, f"the filter shuffle has the width {value}")
        elif kind == 2:
            value = column.byte()
            check(value <= 9, f"the filter deflate has the level {value}")
        elif kind != 3:
            raise Unsupported(f"filter {kind} is unknown")
        filters.append((kind, value))
    return filters


def _product(width, shape):
    product = width
    for dimension in shape:
        product *= dimension
        check(product <= U64, "a shape has more than 2^64 - 1 bytes")
    return product


def _find_gaps(file):
    """Section 7.7: sets the extents of the variable that has the gaps between the other extents."""
    owners = [variable for variable in file.variables if variable.has(2)]
    check(len(owners) <= 1, "two variables have the gaps")
    if not owners:
        return
    taken = sorted((offset, stored) for variable in file.variables if variable.extents
                   for offset, stored, _ in variable.extents if stored)
    gaps = []
    at = 0
    for offset, stored in taken + [(file.size, 0)]:
        check(offset >= at, f"extents overlap at byte {offset}, or this byte is after the end of the file")
        if offset > at:
            gaps.append((at, offset - at, offset - at))
        at = offset + stored
    owners[0].extents = gaps


def _check_cover(file):
    """Section 7.7: checks that extents cover each byte of the file exactly once, and the lengths of variables."""
    at = 0
    for offset, stored in sorted((offset, stored) for variable in file.variables
                                 for offset, stored, _ in variable.extents if stored):
        check(offset == at, f"the extents leave a gap or overlap at byte {min(at, offset)}")
        at += stored
    check(at == file.size, "the extents end before or after the end of the file")
    for variable in file.variables:
        check(sum(raw for _, _, raw in variable.extents) == variable.raw_bytes,
              f"the extents of variable {show(variable.name)} have another number of raw bytes than the variable")


def check_path(path):
    """Section 10: checks the path of a file."""
    check(0 < len(path) <= MAX_PATH, f"a path has {len(path)} bytes")
    check(b"\0" not in path, "a path contains a NUL byte")
    for component in path.split(b"/"):
        check(component not in (b"", b".", b".."), "a path is absolute, or has a component that is not allowed")
        check(len(component) <= MAX_COMPONENT, f"a path has a component of {len(component)} bytes")


def show(name):
    """The bytes of a name as text for a message."""
    return repr(name.decode("utf-8", "backslashreplace"))


def _is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
