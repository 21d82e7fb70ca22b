#!/usr/bin/env python3
"""Restores one checkpoint of a store of mcrEngine, or lists the checkpoints of a store.

    python3 mcr_reader.py STORE JOB CHECKPOINT OUT_DIR
    python3 mcr_reader.py --list STORE [JOB]

This reader was written only from the pages of docs/format, and shares no code with mcrEngine. Every byte is verified
by the digests of the store. Exit code 0: success; 1: failure, and the last line says what is damaged and where.
"""

import argparse
import os
import sys

from mcrformat import manifest
from mcrformat.errors import ReaderError
from mcrformat.restore import restore_checkpoint


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], usage=(
        "mcr_reader.py STORE JOB CHECKPOINT OUT_DIR\n       mcr_reader.py --list STORE [JOB]"))
    parser.add_argument("--list", action="store_true", help="list the checkpoints")
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("job", metavar="JOB", nargs="?")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?")
    parser.add_argument("out_dir", metavar="OUT_DIR", nargs="?")
    parsed = parser.parse_args(argv)
    if parsed.list and parsed.checkpoint or not parsed.list and parsed.out_dir is None:
        parser.error("the number of arguments is wrong")
    return parsed


def list_checkpoints(store, job):
    """manifest.md, 3: prints all checkpoints, the oldest first, and marks the newest."""
    for name in [job] if job else manifest.jobs(store):
        found, newest = manifest.checkpoints(store, name)
        for checkpoint in found:
            notes = [checkpoint.why] if checkpoint.why else []
            if checkpoint is newest:
                notes.append("the newest")
            if checkpoint.bad is not None:
                notes.append(f"marked as bad: {checkpoint.bad}")
            if checkpoint.damaged is not None:
                notes.append(f"marked as damaged: {checkpoint.damaged}")
            if checkpoint.exists():
                notes += sorted({f"doubtful: {m.doubt}" for m in checkpoint.manifests if m.doubt})
            print("\t".join([name, checkpoint.name, checkpoint.state, "; ".join(notes)]).rstrip())


def restore(store, job, checkpoint, out_dir):
    if not (manifest.valid_name(job) and os.path.isdir(os.path.join(store, job))):
        raise ReaderError(f"{store} has no job {job!r}")
    if not (manifest.valid_name(checkpoint) and os.path.isdir(os.path.join(store, job, checkpoint))):
        raise ReaderError(f"job {job} has no checkpoint {checkpoint!r}")
    found = manifest.read_checkpoint(store, job, checkpoint, manifest.read_records(store, job))
    if not found.exists():
        raise ReaderError(f"checkpoint {checkpoint} is {found.state}: {found.why}")
    count = restore_checkpoint(store, job, found, out_dir)
    print(f"{count} files of checkpoint {checkpoint} are in {out_dir}")


def main(argv):
    parsed = arguments(argv)
    try:
        if parsed.list:
            list_checkpoints(parsed.store, parsed.job)
        else:
            restore(parsed.store, parsed.job, parsed.checkpoint, parsed.out_dir)
    except (ReaderError, OSError) as error:
        print(f"mcr_reader: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("mcr_reader: there is not enough memory for the raw bytes of one group", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
