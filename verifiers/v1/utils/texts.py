"""Text that must survive unchanged: byte-exact files, shortening that says so.

`Path.read_text` translates line ends and both it and `write_text` follow the locale; a prompt is
data, so it is read and written here as UTF-8 bytes, the same on every machine.
"""

import codecs
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def read_text(path: Path) -> str:
    """The file's text as UTF-8, line ends untouched, without the mark that some editors put in
    front of it.

    Raises `ValueError` naming the file where it is not UTF-8, `OSError` where it can't be read.
    """
    return decode(path.read_bytes(), str(path))


def decode(data: bytes, name: str) -> str:
    """`read_text` of what the file `name` holds."""
    if other := _other_encoding(data):
        raise ValueError(f"{name} is {other}: save it as UTF-8")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error}") from error


def is_marked(path: Path) -> bool:
    """Whether a UTF-8 file starts with a byte order mark."""
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def _other_encoding(data: bytes) -> str | None:
    """What some editors save instead: by its mark, else by every second byte of plain English being
    zero."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    unmarked = len(data) > 1 and (not any(data[::2]) or not any(data[1::2]))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or unmarked:
        return "UTF-16"
    return None


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, line ends untouched, so that a reader sees the old file or the new
    one, never a half. Raises `UnicodeEncodeError` for a lone surrogate, `OSError` from the disk."""
    data = text.encode("utf-8")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def open_streams() -> None:
    """Where stdout or stderr was closed before Python started (`>&-`) it is `None`: have the null
    device there, so that what is printed goes nowhere, and no file of ours gets its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - like the real one
            setattr(sys, name, stream)


def print_text(text: str, errors: str = "strict") -> None:
    """Write `text` to stdout as UTF-8, line ends untouched; `errors` is what becomes of what has no
    UTF-8 form. Nothing happens where nobody reads stdout any more."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", errors))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_text(value: str) -> bool:
    """Whether `value` can be stored and sent: a lone surrogate has no UTF-8 form."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: str) -> str:
    """`value` with U+FFFD in place of every lone surrogate; two halves that make a pair become
    it."""
    if is_text(value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def visible(text: str) -> str:
    """`text` with everything that is not printed as itself (control characters, marks that turn the
    direction of the text around) as its escape, except line feeds and tabs."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


MARK = "\n[... {left_out} characters left out ...]\n"


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """How much of `room` each of these lengths gets: the short ones all they need, the long ones
    the same, as much as there is."""
    left, cap = room, 0
    for position, length in enumerate(sorted(lengths)):
        cap = max(left, 0) // (len(lengths) - position)
        if length > cap:
            return [min(one, cap) for one in lengths]
        left -= length
    return list(lengths)


def cut(text: str, limit: int) -> str:
    """`shorten`, but in at most `limit` characters with its mark (or just the mark)."""
    mark = len(MARK.format(left_out=len(text)))
    return text if len(text) <= limit else shorten(text, max(0, limit - mark))


def shorten(text: str, limit: int) -> str:
    """`text` in at most about `limit` characters: the middle goes, head and tail stay, and a mark
    says how much was left out (the mark itself comes on top of the limit)."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    left_out = len(text) - head - tail
    return f"{text[:head]}{MARK.format(left_out=left_out)}{text[len(text) - tail :]}"
