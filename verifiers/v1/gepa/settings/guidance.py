"""The user's guidance for the teacher: a text, or `@` and the file that holds it."""

import os
from pathlib import Path

from verifiers.v1.utils.texts import is_text, read_text


def guidance_text(value: str | None) -> str | None:
    """The text itself, so that a saved config needs no other file. Raises `ValueError`."""
    if value is None:
        return None
    text = value.strip()
    if text.startswith("@"):
        name = text[1:].strip()
        text = _read(name)
        if text.startswith("@"):
            raise ValueError(
                f"the text of {name} begins with @, which would name another file: put a word in "
                "front of it"
            )
    if not is_text(text):
        raise ValueError("it holds a lone surrogate, which has no UTF-8 form")
    if not text:
        raise ValueError("it holds no text: leave it out")
    return text


def _read(name: str) -> str:
    if not name:
        raise ValueError("@ must be followed by the path of a file that holds the text")
    try:
        # In an ASCII locale too, a name is what was typed.
        return read_text(Path(os.fsdecode(name.encode("utf-8")))).strip()
    except OSError as error:
        raise ValueError(
            f"{name} can't be read ({error.strerror}): behind @ stands the path of a file; a text "
            "that begins with @ needs a word in front of it"
        ) from error
