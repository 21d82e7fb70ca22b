"""Manifests, records of incarnations and marks: which checkpoints a job has (manifest.md)."""

import json
import os
import re

from .checksums import blake3
from .errors import Damaged, ReaderError, Unsupported, check, where
from .index import DIRECTORY, MAX_RANKS, POINTER, REGULAR, SYMBOLIC_LINK

MAX_MANIFEST = 256 * 2**20
MAX_RECORD = 2**20
LAST_LINE = 72
_DIGEST = re.compile(r"[0-9a-f]{64}")


def valid_name(name):
    """Section 1: whether this is a valid name of a job or a checkpoint."""
    try:
        data = name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return 1 <= len(data) <= 200 and not name.startswith(".") and "/" not in name and not re.search(
        "[\x00-\x1f\x7f-\x9f]", name)


def number_name(number):
    """Section 1: the number of a group or an incarnation as text."""
    return f"{number:04d}"


def read_signed_text(path, first_line, limit):
    """Section 2.1: returns the JSON object of a manifest or of a record."""
    with where(path):
        try:
            with open(path, "rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise Damaged(error.strerror) from None
        check(len(data) <= limit, f"the file has more than {limit} bytes")
        body, last = data[:-LAST_LINE], data[-LAST_LINE:]
        check(body.endswith(b"\n") and last == b"blake3 " + blake3(body).hex().encode() + b"\n",
              "the file is truncated or changed: the last line is not the digest of the other lines")
        line, _, text = body.partition(b"\n")
        if line != first_line:
            raise Unsupported(f"the first line is {line!r} instead of {first_line!r}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"the text is not JSON: {error}") from None
        check(isinstance(value, dict), "the text is not a JSON object")
        return value


def _get(keys, key, kind, default=None):
    """Returns a value of the given type. `default` is the value if the key is missing."""
    value = keys.get(key, default) if default is not None else keys.get(key)
    check(isinstance(value, kind) and not (kind is int and isinstance(value, bool)),
          f"key {key!r} is missing or wrong")
    return value


def _natural(keys, key):
    value = _get(keys, key, int)
    check(0 <= value < 2**64, f"key {key!r} has the invalid value {value}")
    return value


def _digest(keys, key):
    text = _get(keys, key, str)
    check(_DIGEST.fullmatch(text) is not None, f"the value of key {key!r} is not a digest")
    return bytes.fromhex(text)


class FileEntry:
    """Section 2.4: the entry of a file in a manifest."""

    def __init__(self, keys):
        self.path = unescape_path(_get(keys, "path", str))
        self.rank = _natural(keys, "rank")
        self.size = _natural(keys, "bytes")
        self.kind, self.hard_link = _file_kind(keys.get("kind"))
        self.modified_ns = _get(keys, "modified_ns", int)
        self.digest = _digest(keys, "digest")

    def facts(self):
        return self.path, self.rank, self.size, self.kind, self.hard_link, self.modified_ns, self.digest


def _file_kind(kind):
    """Section 2.4: returns the kind, and for a hard link the number of places back to its file."""
    if kind is None:
        return REGULAR, 0
    if isinstance(kind, dict):
        places = _natural(kind, "hard-link")
        check(places >= 1, "a hard link leads to itself")
        return REGULAR, places
    kinds = {"directory": DIRECTORY, "symbolic-link": SYMBOLIC_LINK, "pointer": POINTER}
    if kind not in kinds:
        raise Unsupported(f"the kind {kind!r} of a file is unknown")
    return kinds[kind], 0


def unescape_path(text):
    r"""Section 2.4: `\xNN` is a byte that is not part of valid UTF-8, and `\\` a backslash."""
    parts = re.split(r"(\\x[0-9a-fA-F]{2}|\\\\)", text)
    path = b""
    for i, part in enumerate(parts):
        if i % 2 == 0:
            check("\\" not in part, f"a path has a backslash that is not part of an escape: {text!r}")
            path += part.encode()
        else:
            path += b"\\" if part == "\\\\" else bytes([int(part[2:], 16)])
    return path


class Manifest:
    """Section 2.2: reads the manifest of one group. Raises `ReaderError` if the manifest is invalid."""

    def __init__(self, store, job, checkpoint, group):
        folder = os.path.join(store, job, checkpoint)
        name = "group-" + number_name(group)
        path = os.path.join(folder, name + ".manifest")
        keys = read_signed_text(path, b"mcr-manifest 1", MAX_MANIFEST)
        with where(path):
            found = _get(keys, "job", str), _get(keys, "checkpoint", str), _get(keys, "group", int)
            check(found == (job, checkpoint, group), f"the manifest belongs to {found}, but is in another directory")
            self._read_ranks(keys, group)
            self.written_unix_ms = _get(keys, "written_unix_ms", int)
            doubt = _get(keys, "doubt", dict, default={})
            self.doubt = _get(doubt, "why", str) if doubt else ""
            container = _get(keys, "container", dict)
            check(_get(container, "name", str) == name + ".mcr", "the manifest names another container")
            self.container_path = os.path.join(folder, name + ".mcr")
            self.container_bytes = _natural(container, "bytes")
            self.digest = _digest(container, "digest")
            self.index_digest = _digest(container, "index_digest")
            self.references = []
            for reference in _get(keys, "references", list):
                check(isinstance(reference, dict), "a reference is not an object")
                entry = (_get(reference, "checkpoint", str), _natural(reference, "group"))
                check(valid_name(entry[0]), "a reference contains an invalid name of a checkpoint")
                self.references.append(entry + (_digest(reference, "index_digest"),))
            self.files = []
            for entry in _get(keys, "files", list):
                check(isinstance(entry, dict), "a file is not an object")
                self.files.append(FileEntry(entry))
            for file in self.files:
                check(self.first_rank <= file.rank < self.first_rank + self.rank_count,
                      f"file {file.path!r} belongs to rank {file.rank}, which is not in this group")

    def _read_ranks(self, keys, group):
        self.incarnation = _natural(keys, "incarnation")
        self.ranks, self.group_size, self.groups = (_natural(keys, key) for key in ("ranks", "group_size", "groups"))
        self.first_rank, self.rank_count = _natural(keys, "first_rank"), _natural(keys, "rank_count")
        check(1 <= self.ranks <= MAX_RANKS and self.group_size >= 1,
              f"{self.ranks} ranks in groups of {self.group_size} are not possible")
        check(self.groups == -(-self.ranks // self.group_size) and group < self.groups,
              f"{self.groups} groups are wrong for {self.ranks} ranks in groups of {self.group_size}")
        expected = group * self.group_size, min(self.group_size, self.ranks - group * self.group_size)
        check((self.first_rank, self.rank_count) == expected, f"the group has {self.rank_count} ranks from "
              f"{self.first_rank} on, instead of {expected[1]} from {expected[0]} on")

    def common(self):
        """Section 3: the values in which the manifests of one checkpoint must agree."""
        return self.incarnation, self.ranks, self.groups, self.group_size


class Record:
    """Section 5: reads the record of an incarnation."""

    def __init__(self, path, job, number):
        keys = read_signed_text(path, b"mcr-incarnation 1", MAX_RECORD)
        with where(path):
            check((_get(keys, "job", str), _get(keys, "number", int)) == (job, number),
                  "the record is in another directory")
            self.number = number
            self.is_restart = _get(keys, "is_restart", bool)
            self.whole = _get(keys, "whole", list)
            self.unfinished = None
            if "unfinished" in keys:
                self.unfinished = _get(keys, "unfinished", list)
            self.comes_from = keys.get("from")
            place = keys.get("from_place")
            check((self.comes_from is None) == (place is None), "only one of from and from_place is given")
            self.from_place = None
            if place is not None:
                check(isinstance(place, dict), "from_place is not an object")
                self.from_place = (_natural(place, "incarnation"), _get(place, "written_unix_ms", int))

    def was_unfinished(self, checkpoint):
        """Section 5: whether a group of a newer checkpoint was not committed when the record was made."""
        if self.unfinished is None:
            return checkpoint not in self.whole
        return checkpoint in self.unfinished


class Checkpoint:
    """Section 3: a checkpoint and its state: "complete", "set aside", "dead" or "not complete"."""

    def __init__(self, name, state, why="", manifests=(), bad=None, damaged=None):
        self.name = name
        self.state = state
        self.why = why
        self.manifests = manifests
        self.bad = bad                  # the texts of the two marks (4), or None
        self.damaged = damaged
        self.place = None
        if manifests:
            self.place = (manifests[0].incarnation, max(manifest.written_unix_ms for manifest in manifests))

    def exists(self):
        return self.state in ("complete", "set aside")

    def sort_key(self):
        return self.place or (-1, 0), name_key(self.name)


def name_key(name):
    """Section 3: the key for sorting names. A run of digits is compared as a number, and other bytes as bytes."""
    tokens = re.findall(rb"[0-9]+|[^0-9]", name.encode())
    return [(ord("0"), int(token)) if token.isdigit() else (token[0], 0) for token in tokens]


def jobs(store):
    """Section 1: the jobs of a store."""
    return _directories(store)


def _directories(folder):
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise Damaged(f"{folder}: {error.strerror}") from None
    return [name for name in entries if valid_name(name) and os.path.isdir(os.path.join(folder, name))]


def checkpoints(store, job):
    """Section 3: all checkpoints of a job, the oldest first, and the newest checkpoint or None."""
    records = read_records(store, job)
    found = [read_checkpoint(store, job, name, records) for name in _directories(os.path.join(store, job))]
    found.sort(key=Checkpoint.sort_key)
    good = [checkpoint for checkpoint in found if checkpoint.exists() and checkpoint.bad is None]
    preferred = [checkpoint for checkpoint in good if checkpoint.state == "complete"] or good
    return found, preferred[-1] if preferred else None


def read_records(store, job):
    """Section 5: the records of a job, by number."""
    folder = os.path.join(store, job, ".incarnations")
    if not os.path.isdir(folder):
        folder = os.path.join(store, f".{job}.incarnations")
    if not os.path.isdir(folder):
        return {}
    records = {}
    for name in os.listdir(folder):
        if re.fullmatch("[0-9]{4,18}", name) and number_name(int(name)) == name and int(name) > 0:
            records[int(name)] = Record(os.path.join(folder, name), job, int(name))
    return records


def read_checkpoint(store, job, name, records):
    """Section 3: the state of one checkpoint."""
    folder = os.path.join(store, job, name)
    try:
        manifests = _read_manifests(store, job, name)
    except ReaderError as error:
        return Checkpoint(name, "not complete", str(error))
    bad, damaged = _mark(folder, "bad"), _mark(folder, "damaged")
    spoiled = _mark(folder, "spoiled")
    if spoiled is not None:
        return Checkpoint(name, "not complete", f"spoiled: {spoiled}", manifests, bad, damaged)
    checkpoint = Checkpoint(name, "complete", "", manifests, bad, damaged)
    later = min((number for number in records if number > manifests[0].incarnation), default=None)
    if later is not None and records[later].was_unfinished(name):
        place = records[later].from_place
        if place is None or checkpoint.place > place:
            checkpoint.state = "dead"
            checkpoint.why = f"incarnation {later} continues from an older checkpoint"
            return checkpoint
    record = records.get(max(records, default=None))
    while record is not None and record.number > checkpoint.place[0] and record.from_place is not None:
        if checkpoint.place > record.from_place:
            checkpoint.state = "set aside"
            break
        before = record.from_place[0]
        record = records.get(before) if before < record.number else None
    return checkpoint


def _read_manifests(store, job, name):
    """Sections 2 and 3: the manifests of all groups. Raises `ReaderError` unless they form a complete checkpoint."""
    folder = os.path.join(store, job, name)
    names = map(re.compile(r"group-([0-9]{4,8})\.manifest").fullmatch, os.listdir(folder))
    numbers = sorted(int(name[1]) for name in names if name and number_name(int(name[1])) == name[1])
    check(numbers, "there is no manifest")
    first = Manifest(store, job, name, numbers[0])
    groups = [number for number in numbers if number < first.groups]
    check(len(groups) == first.groups, f"only {len(groups)} of {first.groups} groups have a manifest")
    manifests = [first] + [Manifest(store, job, name, group) for group in groups[1:]]
    check(all(manifest.common() == first.common() for manifest in manifests), "the manifests do not agree")
    for manifest in manifests:
        _check_containers(store, job, manifest)
    return manifests


def _check_containers(store, job, manifest):
    """Section 3: checks that the containers that a manifest names exist."""
    paths = [manifest.container_path] + [container_path(store, job, checkpoint, group)
                                         for checkpoint, group, _ in manifest.references]
    for path in paths:
        check(os.path.isfile(path), f"{path} does not exist")
    length = os.path.getsize(manifest.container_path)
    check(length == manifest.container_bytes,
          f"{manifest.container_path} has {length} bytes instead of {manifest.container_bytes}")


def container_path(store, job, checkpoint, group):
    """container.md, 7.8: the path of the container of a reference."""
    check(valid_name(checkpoint), f"a reference contains {checkpoint!r}, which is not a valid name of a checkpoint")
    return os.path.join(store, job, checkpoint, f"group-{number_name(group)}.mcr")


def _mark(folder, name):
    """Section 4: the text of a mark, or None if there is no mark."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"(not readable: {error.strerror})"
