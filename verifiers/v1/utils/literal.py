"""Text that somebody else wrote, in HTML, shown as the characters that it consists of.

Escaping keeps markup from working. It does not show what a reader can't see: a control character,
a mark that turns the direction of the text around, a lone surrogate, which is not even UTF-8. Each
of those becomes its code point in angle quotes.
"""

import re
import unicodedata
from typing import Any

from markupsafe import Markup, escape

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})
"""Unicode categories: control, format, surrogate, line and paragraph separators, private, none."""

KEPT = frozenset("\n\t\u200c\u200d")
"""Line feeds and tabs lay the text out; the joiners belong to emoji and to the scripts of Asia."""

SUSPECT = re.compile(r"([^\n\t\x20-\x7e])\1*")
"""One character, as often as it stands there in a row."""


def literal(value: Any) -> Any:
    """`value` as markup that shows it; markup stays as it is. For the content of elements only: in
    an attribute it would be markup too."""
    if isinstance(value, Markup):
        return value
    return Markup(SUSPECT.sub(_name, str(escape(str(value)))))


def _name(match: re.Match[str]) -> str:
    char, times = match[1], len(match[0])
    if char in KEPT or unicodedata.category(char) not in UNSEEN:
        return match[0]
    name = f"\u2039U+{ord(char):04X}\u203a"
    return f"<samp>{name}</samp>" * times if times < 4 else f"<samp>{name} x {times}</samp>"
