"""The two ways in which reading a store can fail."""


class ReaderError(Exception):
    """A part of the store cannot be read. The text names the part and the reason."""


class Damaged(ReaderError):
    """The bytes break a rule of docs/format, or a checksum or digest does not agree."""


class Unsupported(ReaderError):
    """The bytes may be right, but this reader does not support them (container.md, 10)."""


def check(condition, message):
    """Raise `Damaged` with the message unless the condition holds."""
    if not condition:
        raise Damaged(message)


class where:
    """`with where("segment 3"):` puts the given place in front of the text of every error raised inside."""

    def __init__(self, place):
        self.place = place

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, ReaderError):
            raise type(error)(f"{self.place}: {error}") from error
        return False
