"""Prints the licences of the libraries from which the command is built, each text once. packages.sh runs this script.

    cargo tree --prefix none --format '{p}' ... | licences.py TARGET

Standard input has lines like "zstd-sys v2.0.16+zstd.1.5.7". The texts are the files of the crates whose names begin
with LICENSE, LICENCE, COPYING, NOTICE or COPYRIGHT, including the files of C libraries within the crates.
"""

import json
import os
import re
import subprocess
import sys

NAME = re.compile(r"(licen[sc]e|copying|notice|copyright)", re.IGNORECASE)
SOURCE = (".c", ".h", ".rs", ".py", ".sh", ".cmake", ".pl", ".yml", ".html")
DEPTH_MAX = 3  # deep enough for ext/hdf5/COPYING of hdf5-metno-src

built_in = {tuple(line.split()[:2]) for line in sys.stdin if line.strip()}
metadata = json.loads(subprocess.check_output(
    ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", sys.argv[1]]))


def texts(crate):
    """The licence files of a crate, in the order of their paths."""
    for folder, folders, files in os.walk(crate):
        depth = os.path.relpath(folder, crate).count(os.sep) + (folder != crate)
        folders[:] = sorted(folders) if depth < DEPTH_MAX - 1 else []
        for file in sorted(files):
            if NAME.match(file) and not file.endswith(SOURCE):
                with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as text:
                    yield text.read().strip()


users = {}  # the libraries of each text
without = []
for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"])):
    if package["source"] is None or (package["name"], "v" + package["version"]) not in built_in:
        continue
    library = f"{package['name']} {package['version']}, {package['license'] or 'see the text'}"
    found = list(dict.fromkeys(texts(os.path.dirname(package["manifest_path"]))))
    for text in found:
        users.setdefault(text, []).append(library)
    if not found:
        without.append(library)

print("The command mcr is built from these libraries, and from the standard library of Rust (MIT OR Apache-2.0).")
if without:
    print("\nThese libraries come without a text of their licence:\n")
    print("\n".join(without))
for text, libraries in users.items():
    print("\n" + "=" * 100)
    print("\n".join(libraries))
    print("-" * 100 + "\n" + text)
