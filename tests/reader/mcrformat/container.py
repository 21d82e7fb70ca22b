"""One container: its frame, its segments and the raw bytes of its variables (container.md, 2 to 8 and 9)."""

import os

from .checksums import blake3, crc32c
from .codecs import decode_chain, read_chain
from .entropy import ByteReader
from .errors import Damaged, Unsupported, check, where
from .index import MAX_STORED, Column, Index
from .packed import zstd_frame

FILE_HEADER, SEGMENT_HEADER, TRAILER = 32, 72, 48
FILE_MAGIC = bytes.fromhex("894D43520D0A1A0A")
SEGMENT_MAGIC = bytes.fromhex("894D530A")
TRAILER_MAGIC = bytes.fromhex("894D4352656E640A")
MAX_INDEX = 2**30
MAX_INDEX_WINDOW = 2**27


class _Place:
    """The place of a segment, its stored bytes and chain, and the kept pieces (None: all pieces are kept)."""

    def __init__(self, at, stored_len, chain, kept=None):
        self.at = at
        self.stored_len = stored_len
        self.chain = chain
        self.kept = kept


class Container:
    """An open container. `find` returns the container of a reference, see `Containers` in restore.py."""

    def __init__(self, path, find):
        self.path = path
        self.find = find
        try:
            self.file = open(path, "rb")
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        try:
            with where(path):
                self.length = os.fstat(self.file.fileno()).st_size
                self._read_header()
                self._read_trailer()
                self._read_index()
                self._place_segments()
        except BaseException:
            self.close()
            raise

    def close(self):
        self.file.close()

    def read(self, at, count):
        self.file.seek(at)
        data = self.file.read(count)
        check(len(data) == count, f"{count} bytes at byte {at} are not all in the file")
        return data

    def _read_header(self):
        """Section 4: reads the file header."""
        check(self.length >= FILE_HEADER + TRAILER, f"{self.length} bytes are too few for a container")
        header = self.header = self.read(0, FILE_HEADER)
        check(header[:8] == FILE_MAGIC, "the file is not a container, or was copied as text")
        check(crc32c(header[:28]) == _u32(header, 28), "the CRC of the file header does not agree")
        version, flags = _u16(header, 8), _u16(header, 10)
        if version != 1:
            raise Unsupported(f"version {version} of the format is unknown")
        if flags & 0xFE:
            raise Unsupported(f"flags {flags:#x} of the file header are unknown")
        self.repacked = bool(flags & 1)

    def _read_trailer(self):
        """Section 6: reads the trailer."""
        trailer = self.trailer = self.read(self.length - TRAILER, TRAILER)
        check(trailer[40:] == TRAILER_MAGIC, "the end of the file is missing: there is no trailer")
        check(crc32c(trailer[:36]) == _u32(trailer, 36), "the CRC of the trailer does not agree")
        self.index_offset, self.index_stored, self.index_raw = (_u64(trailer, at) for at in (0, 8, 16))
        self.segment_count = _u32(trailer, 24)
        self.index_crc = _u32(trailer, 28)
        if _u32(trailer, 32) & 0xFFFF:
            raise Unsupported("flags of the trailer are unknown")
        check(self.index_offset >= FILE_HEADER
              and self.index_offset + self.index_stored + TRAILER == self.length
              and self.index_raw <= MAX_INDEX, "the position of the index in the trailer is wrong")

    def _read_index(self):
        """Section 7: reads the index."""
        stored = self.read(self.index_offset, self.index_stored)
        check(crc32c(stored) == self.index_crc, "the CRC of the index does not agree")
        self.index_digest = blake3(stored)
        self.stored_index = stored
        with where("index"):
            data = zstd_frame(stored, self.index_raw, MAX_INDEX_WINDOW)
            check(len(data) == self.index_raw, f"the index has {len(data)} bytes instead of {self.index_raw}")
            self.index = Index(data)

    def _place_segments(self):
        """The places of the segments: 7.2, end; for a repacked container, 9."""
        segments = self.index.segments
        if self.repacked:
            self.places, end = self._read_table()
        else:
            check(len(segments) == self.segment_count, "the trailer has another number of segments than the index")
            self.places = {}
            end = FILE_HEADER
            for number, segment in enumerate(segments):
                self.places[number] = _Place(end, segment.stored_len, segment.chain)
                end += SEGMENT_HEADER + segment.stored_len
            check(end == self.index_offset, "the segments do not end where the index begins")

    def _read_table(self):
        """Section 9: the table of a repacked container."""
        check(self.index_offset >= FILE_HEADER + 12, "the container is too short for a table")
        ending = self.read(self.index_offset - 12, 12)
        table_len = _u64(ending, 0)
        begin = self.index_offset - 12 - table_len
        check(begin >= FILE_HEADER, "the table is longer than the container")
        data = self.read(begin, table_len)
        check(crc32c(data) == _u32(ending, 8), "the CRC of the table does not agree")
        table = Column(data, "the table")
        places = {}
        at = FILE_HEADER
        following = 0
        count = table.number()
        check(count == self.segment_count, "the trailer has another number of segments than the table")
        for _ in range(count):
            number = following + table.number()
            following = number + 1
            check(number < len(self.index.segments), f"the table has a segment {number}, which does not exist")
            place = _table_entry(table, at, len(self.index.segments[number].pieces))
            places[number] = place
            at += SEGMENT_HEADER + place.stored_len
        table.finish()
        check(at == begin, "the segments do not end where the table begins")
        return places, at

    # Digests

    def frame_digest(self):
        """manifest.md, 2.5: file header, all segment headers, index, trailer."""
        headers = [self.read(place.at, SEGMENT_HEADER) for _, place in sorted(self.places.items())]
        return blake3(b"".join([self.header] + headers + [self.stored_index, self.trailer]))

    # Segments

    def segment_bytes(self, number):
        """Section 8, step 2: the raw bytes of a segment."""
        with where(f"{self.path}: segment {number}"):
            check(number < len(self.index.segments), "there is no such segment")
            segment = self.index.segments[number]
            check(number in self.places, "it was left out when the container was repacked")
            if segment.unknown_dependency is not None:
                raise Unsupported(f"a dependency of kind {segment.unknown_dependency} is unknown")
            place = self.places[number]
            stored = self._stored_bytes(segment, place)
            base = self._base_bytes(segment) if segment.base else None
            return decode_chain(place.chain, stored, segment.raw_len, base)

    def _stored_bytes(self, segment, place):
        """Section 5: the header of a segment, compared with the index, and the stored bytes after the header."""
        header = self.read(place.at, SEGMENT_HEADER)
        check(header[:4] == SEGMENT_MAGIC, f"there is no segment header at byte {place.at}")
        check(crc32c(header[:68]) == _u32(header, 68), f"the CRC of the header at byte {place.at} does not agree")
        if header[4]:
            raise Unsupported(f"flags {header[4]:#x} of the header are unknown")
        steps = header[28]
        chain = [(_u16(header, at), _u32(header, at + 2)) for at in range(29, 29 + 6 * min(steps, 6), 6)]
        check((_u64(header, 8), _u64(header, 16), steps, chain)
              == (segment.raw_len, place.stored_len, len(place.chain), place.chain),
              "the header does not agree with the index")
        stored = self.read(place.at + SEGMENT_HEADER, place.stored_len)
        check(crc32c(stored) == _u32(header, 24),
              f"the CRC of the stored bytes at byte {place.at + SEGMENT_HEADER} does not agree")
        return stored

    def _base_bytes(self, segment):
        """Section 7.11: the raw bytes of the base."""
        reference, number, digest = segment.base
        older = self.reference(reference)
        check(number < len(older.index.segments), f"the base, segment {number} of {older.path}, does not exist")
        check(not older.index.segments[number].has_dependency, "the base also has a dependency")
        base = older.segment_bytes(number)
        check(blake3(base) == digest, f"the base, segment {number} of {older.path}, has another digest")
        return base

    def reference(self, number):
        """Section 7.8: the container of a reference."""
        return self.find(self.index.references[number])

    # Variables

    def variable_bytes(self, wanted):
        """Section 8, step 2: a dictionary of raw bytes, for each wanted variable with pieces in this container."""
        buffers = {variable: bytearray(variable.raw_bytes) for variable in wanted}
        numbers = sorted({segment for variable in wanted for segment, _ in variable.pieces})
        for number in numbers:
            self._check_kept(number, buffers)
            self._split(number, buffers)
        for variable, data in buffers.items():
            check(variable.digest is None or blake3(data) == variable.digest,
                  f"{self.path}: variable {variable.name.decode()!r}: the digest does not agree")
        return buffers

    def _check_kept(self, number, buffers):
        """Section 9: fails if a needed piece is not kept."""
        place = self.places.get(number)
        if place is None or place.kept is None:
            return          # reading the segment finds out that the segment is missing
        for i, piece in enumerate(self.index.segments[number].pieces):
            check(piece.variable not in buffers or i in place.kept,
                  f"{self.path}: segment {number}: piece {i} was left out when the container was repacked")

    def _split(self, number, buffers):
        """Section 7.10: splits a segment, and copies each piece to its place in the variable."""
        segment = self.index.segments[number]
        data = memoryview(self.segment_bytes(number))
        block = segment.block_bytes
        at = 0
        taken = 0
        pieces = segment.pieces
        while pieces:
            behind = []
            for piece in pieces:
                length = piece.length - taken if block == 0 else min(block, piece.length - taken)
                if piece.variable in buffers:
                    begin = piece.offset + taken
                    buffers[piece.variable][begin:begin + length] = data[at:at + length]
                at += length
                if taken + length < piece.length:
                    behind.append(piece)
            taken += block
            pieces = behind


def _table_entry(table, at, piece_count):
    """Section 9: the entry of one segment in the table."""
    stored_len = table.number()
    check(stored_len <= MAX_STORED, f"{stored_len} stored bytes")
    record = ByteReader(table.text(), "a chain of the table")
    chain = read_chain(record)
    record.finish()
    kept = set()
    after = 0
    for _ in range(table.count(piece_count)):
        piece = after + table.number()
        after = piece + 1
        check(piece < piece_count, f"the table has a piece {piece}, which does not exist")
        kept.add(piece)
    return _Place(at, stored_len, chain, kept or None)


def _u16(data, at):
    return int.from_bytes(data[at:at + 2], "little")


def _u32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def _u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")
