"""Restores the files of a checkpoint (container.md, 8)."""

import os
import zlib

from . import filters
from .checksums import blake3
from .container import Container
from .errors import ReaderError, check, where
from .index import DIRECTORY, SYMBOLIC_LINK, show
from .manifest import container_path

# The restored bits of a mode. A restored file belongs to the restoring user. The set-user-ID and set-group-ID bits
# are not restored, because the file must not run as this user for other users.
FILE_MODE = 0o1777
DIRECTORY_MODE = 0o3777


class Containers:
    """The open containers of one group: its own container and its references. Each container is opened only once."""

    def __init__(self, store, job):
        self.store = store
        self.job = job
        self.opened = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        for container in self.opened.values():
            container.close()

    def open(self, path):
        if path not in self.opened:
            self.opened[path] = Container(path, self.reference)
        return self.opened[path]

    def reference(self, reference):
        """Section 7.8: the container of a reference, which must have the index digest of the reference."""
        path = container_path(self.store, self.job, reference.checkpoint, reference.group)
        container = self.open(path)
        check(container.index_digest == reference.index_digest,
              f"{path}: the index digest differs from the digest in the reference")
        return container


def restore_checkpoint(store, job, checkpoint, out_dir):
    """Restore all files of a complete checkpoint below a new or empty directory. Return the number of files.

    Only the raw bytes of one group are in memory at the same time.
    """
    prepare_directory(out_dir)
    writer = Writer(out_dir)
    for manifest in checkpoint.manifests:
        with Containers(store, job) as containers:
            restore_group(manifest, containers, writer)
    writer.finish()
    return writer.count


def restore_group(manifest, containers, writer):
    """Section 8: restores the files of one group."""
    container = containers.open(manifest.container_path)
    with where(manifest.container_path):
        check_manifest(manifest, container)
    contents = all_variable_bytes(container)
    for file in container.index.files:
        with where(f"{manifest.container_path}: file {show(file.path)}"):
            writer.add(file, container, contents)


def prepare_directory(out_dir):
    os.makedirs(out_dir, exist_ok=True)
    if os.listdir(out_dir):
        raise ReaderError(f"{out_dir} is not empty")


def check_manifest(manifest, container):
    """manifest.md, 2.2, 2.4 and 2.5: checks that the manifest describes this container."""
    check(container.length == manifest.container_bytes, "the length differs from the length in the manifest")
    check(container.index_digest == manifest.index_digest, "the index digest differs from the digest in the manifest")
    check(container.frame_digest() == manifest.digest,
          "the digest of the frame differs from the digest in the manifest")
    references = [(r.checkpoint, r.group, r.index_digest) for r in container.index.references]
    check(references == manifest.references, "the references differ from the references in the manifest")
    files = container.index.files
    check(len(files) == len(manifest.files), "the manifest has another number of files")
    for file, entry in zip(files, manifest.files):
        facts = file.path, file.rank, file.size, file.kind, file.hard_link, file.modified_ns, file.digest
        check(facts == entry.facts(), f"the properties of file {show(file.path)} differ from the manifest")
    for reference in container.index.references:
        container.find(reference)


def all_variable_bytes(container):
    """Section 8, step 2: a dictionary of raw bytes, for each variable. Some bytes are in older containers."""
    variables = [variable for file in container.index.files for variable in file.variables]
    contents = container.variable_bytes([v for v in variables if v.elsewhere is None])
    contents.update(_bytes_of_references(container, variables))
    for variable in variables:
        if variable.elsewhere is not None and variable.elsewhere[0] == 0:
            other = container.index.variable(*variable.elsewhere[1:])
            contents[variable] = contents[other]
            check(variable.digest is None or variable.digest == other.digest
                  or blake3(contents[variable]) == variable.digest,
                  f"{container.path}: variable {show(variable.name)}: the digest does not agree")
    return contents


def _bytes_of_references(container, variables):
    """Section 7.8, k >= 1: the raw bytes of the variables that are in older containers."""
    contents = {}
    for number in range(len(container.index.references)):
        mine = [v for v in variables if v.elsewhere is not None and v.elsewhere[0] == number + 1]
        if not mine:
            continue
        older = container.reference(number)
        with where(f"{container.path}: reference to {older.path}"):
            theirs = [_variable_there(older, variable) for variable in mine]
        found = older.variable_bytes(set(theirs))
        contents.update((variable, found[other]) for variable, other in zip(mine, theirs))
    return contents


def _variable_there(older, variable):
    """Section 7.8: the variable of the older container. Checks the rules for this variable."""
    other = older.index.variable(*variable.elsewhere[1:])
    with where(f"variable {show(variable.name)}"):
        check(other.elsewhere is None, "its bytes are not in the older container either")
        check(other.raw_bytes == variable.raw_bytes and other.digest == variable.digest,
              "the variable of the older container has another length or digest")
        check(not any(older.index.segments[segment].has_dependency for segment, _ in other.pieces),
              "the variable of the older container is in a segment with a dependency")
    return other


def file_bytes(file, contents):
    """Section 8, steps 3 and 4: returns the bytes of a file."""
    result = bytearray(file.size)
    for variable in file.variables:
        raw = contents[variable]
        at = 0
        for offset, stored, length in variable.extents:
            data = bytes(raw[at:at + length])
            at += length
            if variable.filters is not None:
                data = filters.put_on(variable.filters, data)
                check(len(data) == stored, f"variable {show(variable.name)}: a chunk has {len(data)} bytes after its "
                      f"filters instead of {stored} (Python's zlib is {zlib.ZLIB_RUNTIME_VERSION}, and must be a "
                      "classic zlib 1.x)")
            result[offset:offset + stored] = data
    check(blake3(result) == file.digest, "the digest of the file does not agree")
    return result


class Writer:
    """Writes files below a directory: regular files at once, then symbolic links, then modes of directories.

    The writer follows and replaces only entries that the writer created. Each path is created once. All parent
    directories are real directories, because symbolic links are created last (README.md, 5).
    """

    def __init__(self, out_dir):
        self.out_dir = os.fsencode(out_dir)
        self.files = {}
        self.directories = {}
        self.links = []
        self.count = 0

    def add(self, file, container, contents):
        path = os.path.join(self.out_dir, file.path)
        self._make_parents(file.path)
        self.count += 1
        if file.kind == DIRECTORY:
            self._make_directory(file.path)
            self.directories[file.path] = file
            file_bytes(file, contents)
            return
        check(file.path not in self.files, "two files have this path")
        self.files[file.path] = file
        data = file_bytes(file, contents)
        if file.kind == SYMBOLIC_LINK:
            check(b"\0" not in data, "a symbolic link with a NUL byte")
            self.links.append((file, bytes(data)))
        elif file.hard_link:
            files = container.index.files
            target = next(i for i, other in enumerate(files) if other is file) - file.hard_link
            os.link(os.path.join(self.out_dir, files[target].path), path)
        else:
            _write_file(path, data, file)

    def _make_parents(self, path):
        components = path.split(b"/")
        for end in range(1, len(components)):
            self._make_directory(b"/".join(components[:end]))

    def _make_directory(self, path):
        check(path not in self.files, f"the path {show(path)} is a file and a directory")
        if path not in self.directories:
            os.mkdir(os.path.join(self.out_dir, path))
            self.directories[path] = None

    def finish(self):
        """Section 7.5: creates symbolic links last; then sets the modes of directories, the deepest first."""
        for file, text in self.links:
            check(file.path not in self.directories, f"the path {show(file.path)} is a link and a directory")
            path = os.path.join(self.out_dir, file.path)
            os.symlink(text, path)
            os.utime(path, ns=(file.modified_ns, file.modified_ns), follow_symlinks=False)
        for path, file in sorted(self.directories.items(), reverse=True):
            if file is not None:
                os.chmod(os.path.join(self.out_dir, path), file.mode & DIRECTORY_MODE)


def _write_file(path, data, file):
    """Section 8, step 4: writes a file, which gets its final name after its bytes are verified and written."""
    temporary = path + b".mcr-part" if len(os.path.basename(path)) < 240 else os.path.join(
        os.path.dirname(path), b".mcr-part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as output:
            output.write(data)
        os.chmod(temporary, file.mode & FILE_MODE)
        os.utime(temporary, ns=(file.modified_ns, file.modified_ns))
        os.rename(temporary, path)
    except OSError as error:
        raise ReaderError(f"the file cannot be written: {error.strerror}") from None
