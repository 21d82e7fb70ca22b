#!/usr/bin/env python3
"""Tests of the reader.

    MCR=target/release/mcr python3 tests/reader/test_reader.py tests/data/checkpoints [tests/data/v1]

The first folder contains checkpoints as SET/DUMP/... The second folder contains the golden files (by default `v1`
next to the first folder). The program in MCR makes stores, and the restored files are compared with the
originals. Without MCR, these tests are skipped, and a line is printed. Exit code 0: no test failed.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import mcr_reader
from mcrformat import checksums, codecs, entropy, filters, manifest, parity
from mcrformat.elements import Elements
from mcrformat.errors import ReaderError
from mcrformat.restore import restore_checkpoint

PROFILES = ("raw", "gzip", "zstd-9", "shuffle-zstd", "fpc-16", "fpzip", "paper", "fast", "balanced", "max")
SCHEMES = ("agnostic", "agnostic-block", "aware-block")

CHECKPOINTS = GOLDEN = ""
MCR = os.environ.get("MCR")


# Helpers


def mcr(*arguments):
    """Run the program that makes stores."""
    done = subprocess.run([MCR, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise AssertionError(f"mcr {' '.join(arguments)} failed:\n{done.stdout.decode(errors='replace')}")


def restore_all(store, job, out):
    """Restore all checkpoints of a job, each below a folder with the checkpoint's name. Return the names."""
    found, _ = manifest.checkpoints(store, job)
    names = [checkpoint.name for checkpoint in found if checkpoint.exists()]
    for checkpoint in found:
        if checkpoint.exists():
            restore_checkpoint(store, job, checkpoint, os.path.join(out, checkpoint.name))
    return names


def facts(path, directories=True):
    """The compared properties of each file below a folder: kind, mode, time, hard link, and bytes or text."""
    links = {}
    result = {}
    for folder, names, files in os.walk(os.fsencode(path)):
        for name in sorted(names + files):
            full = os.path.join(folder, name)
            status = os.lstat(full)
            relative = os.path.relpath(full, os.fsencode(path))
            if stat.S_ISLNK(status.st_mode):
                result[relative] = ("link", os.readlink(full))
            elif stat.S_ISDIR(status.st_mode):
                if directories:
                    result[relative] = ("directory", stat.S_IMODE(status.st_mode))
            else:
                with open(full, "rb") as file:
                    first = links.setdefault(status.st_ino, relative)
                    result[relative] = ("file", stat.S_IMODE(status.st_mode), status.st_mtime_ns, first, file.read())
    return result


def difference(expected, found):
    """A short text that describes the first difference, or an empty text."""
    for path in sorted(set(expected) | set(found)):
        if expected.get(path) != found.get(path):
            return f"{path!r}: {str(expected.get(path))[:80]} expected, {str(found.get(path))[:80]} found"
    return ""


def timed(text, begin):
    print(f"  {text}: {time.monotonic() - begin:.1f} s", flush=True)


class TestWithFolder(unittest.TestCase):
    """A test with a temporary folder."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mcr-reader-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)


# Examples of the pages


class CheckValues(unittest.TestCase):
    def test_checksums(self):
        """README.md, 3: the packages and the plain functions give the same hashes."""
        hashes = {
            b"": "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
            b"abc": "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
            b"123456789": "b7d65b48420d1033cb2595293263b6f72eabee20d55e699d0df1973b3c9deed1"}
        for data, expected in hashes.items():
            self.assertEqual(checksums.blake3(data).hex(), expected)
            self.assertEqual(checksums.blake3_plain(data).hex(), expected)
        self.assertEqual(checksums.crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(checksums.crc32c_plain(b"123456789"), 0xE3069283)
        for length in (1023, 1024, 1025, 3 * 1024, 5 * 1024 + 1, 100_000):
            data = bytes(i * 7 & 255 for i in range(length))
            self.assertEqual(checksums.blake3(data), checksums.blake3_plain(data))
        self.assertEqual(filters.fletcher32(bytes([1, 2, 3, 4])), 0x05080406)
        self.assertEqual(filters.fletcher32(b"123456789"), 0x09DF09D5)

    def test_numbers(self):
        """README.md, 3; entropy.md, 1 to 3; floating-point.md, 5."""
        self.assertEqual(entropy.ByteReader(b"\xac\x02", "test").varint(), 300)
        self.assertEqual([entropy.zigzag(n) for n in range(5)], [0, -1, 1, -2, 2])
        bits = entropy.BitReader(b"\x4d")
        self.assertEqual((bits.field(3), bits.field(4)), (5, 9))
        self.assertEqual(Elements(8, False, False).nearest_one(-1.0), -4607182418800017409)
        self.assertEqual(Elements(4, False, False).nearest_one(-0.0), -1)
        self.assertEqual(Elements(4, False, False).nearest(np.array([-0.0]))[0], -1)

    def test_range_coder(self):
        """entropy.md, 4.3: the example of a block of symbols."""
        block = bytes.fromhex("0142200002200000fd3fff0f00000008")
        self.assertEqual(entropy.decode_symbols(block, 4, entropy.Model(5)), [0, 2, 2, 1])

    def test_names(self):
        """manifest.md, 3 and 2.4: the order of names, and escaped paths."""
        self.assertEqual(sorted(["a10", "a9", "a9~2"], key=manifest.name_key), ["a9", "a9~2", "a10"])
        self.assertEqual(manifest.unescape_path(r"a\\b\xff"), b"a\\b\xff")


# Golden files


class Golden(TestWithFolder):
    def test_codecs(self):
        """codecs.md, 15: every test vector is decoded to its raw bytes."""
        folder = os.path.join(GOLDEN, "codec")
        names = sorted(os.listdir(folder))
        self.assertTrue(names)
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                reader = entropy.ByteReader(file.read(), name)
            chain = codecs.read_chain(reader)
            raw = reader.take(int.from_bytes(reader.take(4), "little"))
            base = make_base(name, raw) if name.startswith("since") else None
            with self.subTest(name):
                self.assertEqual(codecs.decode_chain(chain, reader.rest(), len(raw), base), raw)

    def test_stores(self):
        """All checkpoints of the golden stores can be restored. The reader compares all digests."""
        for name in ("store", "since"):
            with self.subTest(name):
                self.assertEqual(restore_all(os.path.join(GOLDEN, name), "wave", self.path(name)),
                                 ["DD0001", "DD0002"])

    def test_parity(self):
        """parity.md: a container with holes and without an end is mended, also if the first header is damaged."""
        field = parity.Field()
        self.assertEqual((field.times(0x1234, 0x5678), field.times(2, 2)), (0x35C9, 3))
        with open(os.path.join(GOLDEN, "store", "wave", "DD0001", "group-0000.mcr"), "rb") as file:
            whole = file.read()
        with open(os.path.join(GOLDEN, "parity", "group-0000.mcr.parity"), "rb") as file:
            data = file.read()
        header = parity.Header(data[:128])
        self.assertEqual((header.percent, header.bytes), (50, len(whole)))
        hole = bytes(4096)
        moved = whole[:4000] + hole + whole[8096:]
        for damaged in (whole, whole[:5000], hole + whole[4096:], moved, hole + whole[4096:9000]):
            self.assertEqual(parity.mend(damaged, b"?" + data[1:]), whole)
        with self.assertRaises(ReaderError):
            parity.mend(whole[:500], data)

    def test_files(self):
        """hexdump.md, 4.3: kinds and modes of the files."""
        restore_all(os.path.join(GOLDEN, "store"), "wave", self.path("out"))
        found = facts(self.path("out", "DD0002"))
        for number, size in ((0, 22554), (1, 22557)):
            _, mode, _, _, data = found[b"DD0002/data.cpu000%d" % number]
            self.assertEqual((mode, len(data)), (0o640, size))
        self.assertEqual(found[b"DD0002/data.cpu0000.too"], found[b"DD0002/data.cpu0000"])
        self.assertEqual(found[b"DD0002/data.cpu0000"][2], 1_700_000_000_123_456_789)
        self.assertEqual(found[b"DD0002/empty"], ("directory", 0o2750))
        self.assertEqual(found[b"latest"], ("link", b"DD0002"))
        self.assertEqual(found[b"checkpoints.txt"][1:2] + found[b"checkpoints.txt"][4:], (0o644, b"DD0002\n"))

    def test_damage(self):
        """The reader finds a damaged byte and a missing end in each file of a checkpoint, and names the file."""
        store = self.path("store")
        for name in ("store", "since"):
            shutil.copytree(os.path.join(GOLDEN, name), store)
            folder = os.path.join(store, "wave", "DD0002")
            for file in sorted(os.listdir(folder)):
                path = os.path.join(folder, file)
                with open(path, "rb") as opened:
                    whole = opened.read()
                for at in range(0, len(whole), 173):
                    with self.subTest(file=path, at=at):
                        self.check_damage(store, path, whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1:], file)
                for length in (0, 31, len(whole) // 2, len(whole) - 1):
                    with self.subTest(file=path, length=length):
                        self.check_damage(store, path, whole[:length], file)
                with open(path, "wb") as opened:
                    opened.write(whole)
            shutil.rmtree(store)

    def check_damage(self, store, path, data, file):
        with open(path, "wb") as opened:
            opened.write(data)
        out = tempfile.mkdtemp(dir=self.folder)
        with self.assertRaises(ReaderError) as caught:
            mcr_reader.restore(store, "wave", "DD0002", out)
        self.assertIn(file, str(caught.exception))
        shutil.rmtree(out)


def make_base(name, raw):
    """codecs.md, 15: the base of the files `since-*`."""
    if name == "since-slow.bin":
        whole = len(raw) // 8 * 8
        i = np.arange(whole // 8)
        older = np.frombuffer(raw, "<f8", whole // 8) - ((i // 256) ** 2 + i // 16 % 16) / 2.0**24
        return (older.tobytes() + raw[whole:])[:-3]
    base = bytearray(raw)
    for at in range(0, len(base), 24):
        base[at] ^= 3
    return bytes(base[:-3])


# Stores that mcr makes


@unittest.skipUnless(MCR, "MCR does not contain the path of the program that makes stores")
class Stores(TestWithFolder):
    def save_and_compare(self, source, *options):
        """Save a folder of checkpoints, restore all of them with the reader, and compare."""
        store, out = tempfile.mkdtemp(dir=self.folder), tempfile.mkdtemp(dir=self.folder)
        mcr("save", source, "--store", store, "--job", "j", *options)
        self.compare(store, out, source)
        return store

    def compare(self, store, out, source):
        names = restore_all(store, "j", out)
        found = {}
        for name in names:
            found.update(facts(os.path.join(out, name), directories=False))
        self.assertEqual(difference(facts(source, directories=False), found), "")

    def each_set(self):
        for name in sorted(os.listdir(CHECKPOINTS)):
            if os.path.isdir(os.path.join(CHECKPOINTS, name)):
                yield name, os.path.join(CHECKPOINTS, name)

    def test_profiles(self):
        for profile in PROFILES:
            for name, source in self.each_set():
                begin = time.monotonic()
                with self.subTest(profile=profile, set=name):
                    self.save_and_compare(source, "--profile", profile)
                    timed(f"profile {profile}, {name}", begin)

    def test_schemes(self):
        for scheme in SCHEMES:
            for name, source in self.each_set():
                with self.subTest(scheme=scheme, set=name):
                    self.save_and_compare(source, "--scheme", scheme, "--block-bytes", "1000", "--group-size", "5")

    def test_parity(self):
        """A container that mcr wrote is mended by its parity. Checkpoints with parity are restored like others."""
        source = self.path("source")
        make_numbers(source, 1, 0)
        store = self.save_and_compare(source, "--parity-percent", "20", "--profile", "raw")
        name, = (name for name in os.listdir(os.path.join(store, "j")) if not name.startswith("."))
        path = os.path.join(store, "j", name, "group-0000.mcr")
        with open(path, "rb") as file, open(path + ".parity", "rb") as other:
            whole, data = file.read(), other.read()
        header = parity.Header(data[:128])
        self.assertEqual((header.data, header.parity, header.stripes), (18, 4, 1))
        lost = bytearray(whole[:-3000])
        lost[5000:11000] = bytes(6000)
        self.assertEqual(parity.mend(bytes(lost), data), whole)

    def test_kinds_of_files(self):
        """Links, directories, modes, names that are not UTF-8, files without bytes, several groups."""
        source = self.path("source")
        for step in (1, 2):
            for rank in range(4):
                make_rank(source, step, rank)
        with open(os.path.join(source, "latest"), "w", encoding="utf-8") as file:
            file.write("DD0002\n")
        store = self.save_and_compare(source, "--group-size", "2")
        out = self.path("out")
        restore_all(store, "j", out)
        for step in (1, 2):
            name = f"DD000{step}"
            found = facts(os.path.join(out, name, name))
            expected = facts(os.path.join(source, name))
            self.assertEqual(difference(expected, found), "")

    def test_pruned(self):
        """A checkpoint that refers to repacked containers can be restored."""
        source = self.path("source")
        for step in range(1, 4):
            for rank in range(4):
                make_numbers(source, step, rank)
        store = self.save_and_compare(source, "--profile", "fast")
        mcr("prune", "--store", store, "--job", "j", "--keep", "1")
        out = self.path("out")
        self.assertEqual(restore_all(store, "j", out), ["DD0003"])
        found = facts(os.path.join(out, "DD0003", "DD0003"))
        self.assertEqual(difference(facts(os.path.join(source, "DD0003")), found), "")

    def test_incarnations(self):
        """manifest.md, 3: a restart from an older checkpoint sets the newer checkpoint aside."""
        source = self.path("source")
        for step in (1, 2):
            for rank in range(2):
                make_numbers(source, step, rank)
        store = self.save_and_compare(source)
        self.assertEqual(self.states(store), (["complete", "complete"], "DD0002"))
        mcr("restart", "--store", store, "--job", "j", "--to", self.path("out"), "--checkpoint", "DD0001")
        self.assertEqual(self.states(store), (["complete", "set aside"], "DD0001"))
        os.remove(os.path.join(store, "j", "DD0001", "group-0000.manifest"))
        self.assertEqual(self.states(store), (["not complete", "set aside"], "DD0002"))

    def states(self, store):
        found, newest = manifest.checkpoints(store, "j")
        found.sort(key=lambda checkpoint: checkpoint.name)
        return [checkpoint.state for checkpoint in found], newest.name

    def test_command(self):
        """Run the command as a user does."""
        name, source = next(self.each_set())
        store = self.save_and_compare(source)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mcr_reader.py")
        listed = subprocess.run([sys.executable, script, "--list", store], stdout=subprocess.PIPE, check=True)
        lines = [line.split("\t") for line in listed.stdout.decode().splitlines()]
        self.assertTrue(lines and all(line[0] == "j" and line[2] == "complete" for line in lines), name)
        out = self.path("out")
        subprocess.run([sys.executable, script, store, "j", lines[0][1], out], stdout=subprocess.PIPE, check=True)
        self.assertTrue(facts(out))
        again = subprocess.run([sys.executable, script, store, "j", lines[0][1], out], stderr=subprocess.PIPE,
                               check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn(b"is not empty", again.stderr)


def make_rank(source, step, rank):
    """Make files of one rank, of all kinds and with different modes."""
    folder = os.path.join(source, f"DD000{step}")
    os.makedirs(os.path.join(folder, f"empty{rank}", "below"), exist_ok=True)
    data = os.path.join(folder, f"data.rank{rank}")
    with open(data, "wb") as file:
        file.write(np.sin(np.arange(3000.0) * (rank + step)).tobytes() + b"odd")
    os.chmod(data, (0o644, 0o600, 0o444, 0o751)[rank])
    os.link(data, os.path.join(folder, f"hard.rank{rank}"))
    os.symlink(f"data.rank{rank}", os.path.join(folder, f"soft.rank{rank}"))
    open(os.path.join(folder, f"zero.rank{rank}"), "wb").close()
    with open(os.fsencode(folder) + b"/not\xffutf8\\.rank%d" % rank, "wb") as file:
        file.write(b"%d" % rank * 20)
    os.chmod(os.path.join(folder, f"empty{rank}"), 0o1770)


def make_numbers(source, step, rank):
    """Make a file whose first half never changes."""
    folder = os.path.join(source, f"DD000{step}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"same.rank{rank}"), "wb") as file:
        file.write(np.cos(np.arange(9000.0) + rank).tobytes())
    with open(os.path.join(folder, f"data.rank{rank}"), "wb") as file:
        file.write(np.cos(np.arange(9000.0) * step + rank).tobytes())


def main(argv):
    global CHECKPOINTS, GOLDEN
    if not 2 <= len(argv) <= 3 or not os.path.isdir(argv[1]):
        print(__doc__, file=sys.stderr)
        return 2
    CHECKPOINTS = os.path.abspath(argv[1])
    GOLDEN = os.path.abspath(argv[2]) if len(argv) == 3 else os.path.join(os.path.dirname(CHECKPOINTS), "v1")
    if not MCR:
        print("SKIPPED: all tests that make stores. The environment variable MCR does not contain the path of mcr.")
    result = unittest.main(argv=argv[:1], verbosity=2, exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
