"""The two formats that other projects define: zstd frames and files of pcodec."""

import numpy as np

from .errors import Damaged, Unsupported, check

try:
    import zstandard
except ImportError:
    zstandard = None
try:
    from pcodec import standalone as pcodec_file
except ImportError:
    pcodec_file = None

_HOW_TO_INSTALL = "is not installed: python3 -m pip install -r requirements.txt"

# The largest window of zstd is 2^31 bytes. zstd allocates memory only for the real contents of a frame.
MAX_WINDOW = 2**31


def zstd_frame(data, room, max_window=MAX_WINDOW):
    """Decode one frame (RFC 8878) to at most `room` bytes. No bytes may follow the frame."""
    if zstandard is None:
        raise Unsupported(f"the package zstandard {_HOW_TO_INSTALL}")
    try:
        size = zstandard.frame_content_size(data)
        check(size <= room, f"a zstd frame of {size} bytes, where at most {room} bytes are allowed")
        stream = zstandard.ZstdDecompressor(max_window_size=max_window).decompressobj(write_size=1 << 17)
        parts = []
        length = 0
        # The input is given in small parts, so that a frame without a content size cannot grow far beyond `room`.
        for at in range(0, len(data), 1 << 12):
            parts.append(stream.decompress(data[at:at + (1 << 12)]))
            length += len(parts[-1])
            check(length <= room, f"a zstd frame of more than {room} bytes")
            if stream.eof:
                check(not stream.unused_data and at + (1 << 12) >= len(data), "there are bytes after a zstd frame")
                return b"".join(parts)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd: {error}") from None
    raise Damaged("a zstd frame ends too early")


def pco_numbers(data, count, dtype):
    """Decode a standalone file of pcodec that contains exactly `count` numbers of the type."""
    if pcodec_file is None:
        raise Unsupported(f"the package pcodec {_HOW_TO_INSTALL}")
    numbers = np.empty(count, dtype)
    try:
        progress = pcodec_file.simple_decompress_into(data, numbers)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Damaged(f"pcodec: {error}") from None
    check(progress.n_processed == count and progress.finished, f"a pcodec file does not contain {count} numbers")
    return numbers
