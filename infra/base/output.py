"""Standard output and error of a command that must not end because nobody reads them.

After a closed terminal, a pipe whose reader has gone or a full disk behind a redirection, further output is lost. If a
terminal or a locale cannot show a character, it gets a simpler one.
"""

import codecs
import io
import os
import sys
from typing import Any, TextIO

PLAIN = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "._-=+*#@", strict=True)),
        **dict(zip("●·–━…×", "*|-=~x", strict=True)),
        **{"α": "alpha", "≥": ">=", "≤": "<="},
    }
)
"""Replacements for our characters that an encoding may lack."""
SIMPLER = "freshet.simpler"


class LossyFile(io.FileIO):
    """A file whose writes never fail: what cannot be written is lost."""

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            return size
        return size if written is None else written  # None: a pipe that does not block, and is full


def keep_output_harmless() -> None:
    """From now on neither sys.stdout nor sys.stderr raises an error, whatever happens to their targets."""
    codecs.register_error(SIMPLER, simpler)
    sys.stdout, sys.stderr = harmless(sys.stdout, 1), harmless(sys.stderr, 2)


def harmless(stream: TextIO | None, file: int) -> TextIO:
    """The same stream, without errors; one that was closed before the start accepts everything and shows nothing."""
    raw = LossyFile(os.devnull, "wb") if stream is None else LossyFile(file, "wb", closefd=False)
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=SIMPLER, line_buffering=True)


def simpler(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler for encoders: simple characters that every encoding has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return "".join(character if character.isascii() else "?" for character in text), error.end
