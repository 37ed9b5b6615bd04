"""What was tried in a prompt's place and was not better: the teacher is told, or it would propose
the same again.

Kept per parent, the last few, shortened, so that neither a request nor the memory of a run grows
with the number of proposals. All goes by the order of the search, so a resume tells the same. The
scores are those of a minibatch; nothing of val is in it.
"""

from collections import defaultdict, deque

from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.utils.texts import shorten

LAST = 3
"""Rejected proposals of a parent that the teacher is shown."""

TEXT_CHARS = 2_000
"""How much of each, in characters."""


class Attempts:
    """The rejected proposals of each parent."""

    def __init__(self) -> None:
        self._of: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=LAST))

    def rejected(self, parent: str, text: str, reason: str) -> None:
        """`text` was proposed in the place of `parent` and was no better on the minibatch; `reason`
        says so, with their scores there."""
        self._of[prompt_digest(parent)].append(f"{reason}\n\n{changed(parent, text)}")

    def render(self, parent: str) -> str:
        """What the teacher reads about them, in about `LAST` times `TEXT_CHARS` characters; empty
        where there are none."""
        return "\n\n".join(
            f"## Attempt {number}: {attempt}"
            for number, attempt in enumerate(self._of.get(prompt_digest(parent), ()), 1)
        )


def changed(parent: str, text: str) -> str:
    """`text` in at most about `TEXT_CHARS` characters: a long one without what it starts and ends
    with like its parent."""
    if len(text) <= TEXT_CHARS:
        return text
    start = _common(parent, text)
    longest = min(len(parent), len(text)) - start
    end = min(longest, _common(parent[::-1], text[::-1]))
    middle = shorten(text[start : len(text) - end], TEXT_CHARS)
    return (
        f"[... the first {start} characters are those of the current prompt ...]\n{middle}\n"
        f"[... so are the last {end} ...]"
    )


def _common(one: str, other: str) -> int:
    """How many characters they start with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
