"""Two texts side by side as a line diff with the words that changed, in bounded time.

difflib is quadratic, or worse where lines repeat. What two texts have in common at both ends is
taken off first, which is most of it for two versions of a prompt. Where the rest is still too large
to be aligned, it counts as replaced as a whole, and the diff says so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal

CONTEXT = 3
"""Unchanged lines that are shown around a change."""

MOST_PAIRS = 1_000_000
"""Pairs of lines, or of words of one changed passage, that are compared at most."""

MOST_WORD_PAIRS = 4_000_000
"""Pairs of words that are compared in one diff."""

WORD = re.compile(r"\w+|\s+|[^\w\s]")

Kind = Literal["same", "deleted", "inserted", "skipped"]
Segments = list[tuple[str, bool]]
"""Text, and whether it is a changed word of a line that is there on both sides."""


@dataclass(frozen=True)
class Line:
    """One line of a diff."""

    kind: Kind
    segments: Segments
    skipped: int = 0
    """How many unchanged lines it stands for."""


@dataclass
class Diff:
    """What `diff` found."""

    lines: list[Line] = field(default_factory=list)
    inserted: int = 0
    """Number of lines."""
    deleted: int = 0
    aligned: bool = True
    """False where a passage was too large to be aligned and is shown as replaced as a whole."""


def diff(old: str, new: str) -> Diff:
    """The lines of `old` and `new`, with few unchanged ones around each change. Equal texts have
    no lines. Lines end at line feeds only, so that every other character is part of one."""
    found = Diff()
    if old == new:
        return found
    before, after = old.split("\n"), new.split("\n")
    lines: list[Line] = []
    pairs_left = MOST_WORD_PAIRS
    for tag, a, b in _blocks(before, after, found):
        if tag == "equal":
            lines += [Line("same", [(line, False)]) for line in a]
            continue
        found.deleted += len(a)
        found.inserted += len(b)
        words_a, words_b = (WORD.findall("\n".join(side)) for side in (a, b))
        pairs = len(words_a) * len(words_b)
        if a and b and pairs <= min(MOST_PAIRS, pairs_left):
            pairs_left -= pairs
            marked_a, marked_b = _mark(words_a, words_b)
        else:
            marked_a, marked_b = ([[(line, False)] for line in side] for side in (a, b))
        lines += [Line("deleted", segments) for segments in marked_a]
        lines += [Line("inserted", segments) for segments in marked_b]
    found.lines = list(_with_context(lines))
    return found


def _blocks(
    before: Sequence[str], after: Sequence[str], found: Diff
) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """The runs of equal and changed lines."""
    head, tail = _common_ends(before, after)
    a, b = before[head : len(before) - tail], after[head : len(after) - tail]
    if head:
        yield "equal", before[:head], before[:head]
    if len(a) * len(b) > MOST_PAIRS:
        found.aligned = False
        yield "replace", a, b
    else:
        for tag, i, j, k, m in SequenceMatcher(None, a, b).get_opcodes():
            yield tag, a[i:j], b[k:m]
    if tail:
        yield "equal", before[len(before) - tail :], after[len(after) - tail :]


def _common_ends(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """How many items are the same at the start, and at the end after those."""
    most = min(len(a), len(b))
    head = next((i for i in range(most) if a[i] != b[i]), most)
    most -= head
    tail = next((i for i in range(most) if a[-1 - i] != b[-1 - i]), most)
    return head, tail


def _mark(a: list[str], b: list[str]) -> tuple[list[Segments], list[Segments]]:
    """The lines of both sides of a changed passage, with the words that are on one side only."""
    marked: tuple[Segments, Segments] = ([], [])
    for tag, i, j, k, m in SequenceMatcher(None, a, b).get_opcodes():
        for side, words in zip(marked, (a[i:j], b[k:m]), strict=True):
            side += [(word, tag != "equal") for word in words]
    if not any(not changed and word.strip() for word, changed in marked[0]):
        marked = ([(word, False) for word in a], [(word, False) for word in b])
    return _to_lines(marked[0]), _to_lines(marked[1])


def _to_lines(words: Segments) -> list[Segments]:
    """Words as lines again, those alike beside each other joined."""
    lines: list[Segments] = [[]]
    for text, changed in words:
        first, *others = text.split("\n")
        lines[-1].append((first, changed))
        lines += [[(other, changed)] for other in others]
    return [
        [
            ("".join(text for text, _ in run), changed)
            for changed, run in groupby(filter(_has_text, line), key=lambda segment: segment[1])
        ]
        for line in lines
    ]


def _has_text(segment: tuple[str, bool]) -> bool:
    return bool(segment[0])


def _with_context(lines: Sequence[Line]) -> Iterator[Line]:
    """`lines` with long runs of unchanged ones cut down to what is next to a change."""
    position = 0
    for same, group in groupby(lines, key=lambda line: line.kind == "same"):
        run = list(group)
        before = 0 if position == 0 else CONTEXT
        position += len(run)
        after = 0 if position == len(lines) else CONTEXT
        left_out = len(run) - before - after
        if not same or left_out < 2:
            yield from run
            continue
        yield from run[:before]
        yield Line("skipped", [], left_out)
        yield from run[len(run) - after :]
