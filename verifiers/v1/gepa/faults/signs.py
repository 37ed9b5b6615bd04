"""What providers say when they refuse: the table `signs.toml`, and how it is read.

Each row is one provider's way to say one thing, with an answer of that form and where the form is
documented or reported. A code decides before words do, an earlier row before a later one. What no
row knows is decided by its HTTP status (`failures.judge_refusal`).
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verifiers.v1.gepa.faults.refusals import Refusal

Meaning = Literal[
    "too long",
    "filtered",
    "throttled",
    "throttled for long",
    "no money",
    "bad parameter",
    "bad key",
    "no model",
]

MEANINGS: dict[Meaning, str] = {
    "too long": "The request is too long for the model. It counts as this prompt's doing.",
    "filtered": "A content filter refused the request. It counts as this prompt's doing.",
    "throttled": "Too many requests: waited out.",
    "throttled for long": "A limit that waiting can't lift soon. It stops the run.",
    "no money": "Quota or credit is used up. It stops the run.",
    "bad parameter": "A parameter that the model does not take. It stops the run, unless the "
    "endpoint answers other requests.",
    "bad key": "The key is wrong. It stops the run.",
    "no model": "There is no such model. It stops the run.",
}
"""What each meaning says, and what follows."""


@dataclass(frozen=True)
class Sign:
    """A row of the table. It fits a refusal whose status is among `statuses` (any, where there are
    none), that has the code, and whose text matches the words."""

    meaning: Meaning
    provider: str
    example: str
    """An answer of this form."""
    source: str
    """Where the form is documented or reported."""
    statuses: tuple[int, ...] = ()
    code: str = ""
    """A code or type, in lower case."""
    words: str = ""
    """A regular expression, matched anywhere, without regard to case."""

    def fits(self, refusal: Refusal) -> bool:
        """Whether the refusal is one of these."""
        return (
            (not self.statuses or refusal.status in self.statuses)
            and (not self.code or self.code in refusal.codes)
            and (not self.words or re.search(self.words, refusal.words, re.IGNORECASE) is not None)
        )


def _read() -> list[Sign]:
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["sign"]
    return [Sign(**{**row, "statuses": tuple(row.get("statuses", ()))}) for row in rows]


SIGNS = _read()
_BY_CODE = [sign for sign in SIGNS if sign.code]
_BY_WORDS = [sign for sign in SIGNS if not sign.code]


ASKED = re.compile(r"limit:? (\d+).{0,40}requested:? ~?(\d+)", re.IGNORECASE)
"""What is allowed and what was asked for, as OpenAI and Groq say it of tokens per minute."""


def meaning_of(refusal: Refusal) -> Meaning | None:
    """What a refusal says, None where no row knows. A request that is larger than a limit will be
    refused however long one waits, although it is told to."""
    asked = ASKED.search(refusal.words) if refusal.status == 429 else None
    if asked is not None and int(asked[2]) > int(asked[1]):
        return "too long"
    fitting = (sign.meaning for sign in [*_BY_CODE, *_BY_WORDS] if sign.fits(refusal))
    return next(fitting, None)
