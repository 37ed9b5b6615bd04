"""What the sections of a report show, worked out from what the run directory holds.

Everything is bounded: a run can have hundreds of proposals of 100 kB and traces of a megabyte, and
the page that shows them must still open. What was left out is counted, and shown as such.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.gepa.report.data import RunData
from verifiers.v1.utils.statistics import DIGITS, mean
from verifiers.v1.utils.textdiff import Diff, Line, diff

PAGE_CHARS = 4_000_000
"""Characters of prompts and diffs on the page."""
PROMPT_CHARS = 200_000
"""Characters of one prompt."""
DIFF_LINES = 1_000
LINE_CHARS = 4_000
"""Characters of a line of a diff."""
FRONTIER_COLUMNS = 12
FRONTIER_ROWS = 300


@dataclass(frozen=True)
class Shown:
    """A text, as much of it as is shown."""

    text: str
    left_out: int = 0
    """Characters that are not."""
    tail: str = ""
    """What follows those."""


@dataclass(frozen=True)
class Change:
    """A diff, as much of it as is shown."""

    lines: list[tuple[str, list[tuple[str, bool]], int]]
    """Kind, segments, and for `skipped` the number of lines, of each line."""
    inserted: int
    deleted: int
    aligned: bool
    left_out: int = 0
    """Lines that are not shown."""
    cut: int = 0
    """Characters that are not shown of lines that are."""


@dataclass(frozen=True)
class Candidate:
    """A candidate in the tree."""

    index: int
    name: str
    parents: list[int]
    branches: list[bool]
    """For each step from the root down to it, whether that one has siblings further below."""
    val_mean: float | None
    validated: float | None
    chars: int
    best_on: int
    """On how many val tasks no candidate was better."""
    is_deployed: bool


@dataclass(frozen=True)
class Frontier:
    """Val scores of the search: a row per task, a column per candidate."""

    columns: list[int]
    rows: list[tuple[str, list[tuple[float | None, bool, int]]]]
    """Name of the task; score, whether it is the best, and its place between the lowest and highest
    score of the table in percent, by column."""
    columns_left_out: int
    rows_left_out: int


@dataclass(frozen=True)
class Attempt:
    """A proposal in the table."""

    proposal: Proposal
    before: float | None
    """Mean over the minibatch, of the parent."""
    after: float | None
    change: Change | None


class Views:
    """The sections' contents. What takes characters is given out in the order of the page, so that
    the later of too many go without."""

    def __init__(self, data: RunData) -> None:
        self.data = data
        self._chars_left = PAGE_CHARS

    def name(self, index: int) -> str:
        return f"prompt {index}" if index else "seed prompt"

    @cached_property
    def val_scores(self) -> dict[str, dict[str, float]]:
        """The search's mean score by candidate's digest and task, train tasks left out."""
        scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for rollout in self.data.rollouts:
            if rollout.phase == "optimize" and rollout.split == "val" and rollout.score is not None:
                scores[rollout.candidate][rollout.task].append(rollout.score)
        return {
            candidate: {task: round(mean(values), DIGITS) for task, values in tasks.items()}
            for candidate, tasks in scores.items()
        }

    @cached_property
    def val_means(self) -> list[float | None]:
        """The search's val mean of each candidate, None where it is not known."""
        known = list(self.data.result.val_means) if self.data.result else []
        means: list[float | None] = [*known]
        for digest in self.data.digests[len(known) :]:
            scores = self.val_scores.get(digest)
            means.append(mean([*scores.values()]) if scores else None)
        return means[: len(self.data.candidates)]

    @cached_property
    def deployed(self) -> int:
        """The deployed candidate; while that is not decided, the best of the search."""
        result = self.data.result
        if result and result.deployed_candidate is not None:
            return result.deployed_candidate
        means = [-1e308 if mean is None else mean for mean in self.val_means]
        return max(range(len(means)), key=means.__getitem__, default=0)

    @property
    def is_decided(self) -> bool:
        return self.data.result is not None and self.data.result.deployed_candidate is not None

    @cached_property
    def best_on(self) -> dict[int, int]:
        """On how many val tasks each candidate is the best, or one of those."""
        best: Counter[int] = Counter()
        for task in self._val_tasks:
            scores = self._scores_on(task)
            top = max(scores.values(), default=None)
            best.update(index for index, score in scores.items() if score == top)
        return best

    @cached_property
    def _val_tasks(self) -> list[str]:
        measured = {task for scores in self.val_scores.values() for task in scores}
        return [task for task in self.data.tasks if task in measured]

    def _scores_on(self, task: str) -> dict[int, float]:
        scores = enumerate(self.val_scores.get(digest, {}) for digest in self.data.digests)
        return {index: mine[task] for index, mine in scores if task in mine}

    def parents(self, index: int) -> list[int]:
        """Of a candidate; empty where they are not on record."""
        listed = self.data.result.parents if self.data.result else []
        if index < len(listed):
            value = listed[index]
            found = value if isinstance(value, list) else [value]
        else:
            proposals = self.data.proposals or []
            found = next((p.parents for p in proposals if p.candidate == index), [])
        return [p for p in found if isinstance(p, int) and 0 <= p < index]

    def tree(self) -> list[Candidate]:
        """Every candidate, each below its (first) parent."""
        children: dict[int | None, list[int]] = defaultdict(list)
        for index in range(len(self.data.candidates)):
            children[next(iter(self.parents(index)), None)].append(index)
        found = []
        waiting: list[tuple[int, list[bool]]] = [(root, []) for root in reversed(children[None])]
        while waiting:
            index, branches = waiting.pop()
            found.append(self._candidate(index, branches))
            last_first = [*reversed(children[index])]
            waiting += [(one, [*branches, one != last_first[0]]) for one in last_first]
        return found

    def _candidate(self, index: int, branches: list[bool]) -> Candidate:
        result = self.data.result
        return Candidate(
            index=index,
            name=self.name(index),
            parents=self.parents(index),
            branches=branches,
            val_mean=self.val_means[index],
            validated=result.validated_means.get(index) if result else None,
            chars=len(self.data.candidates[index]),
            best_on=self.best_on.get(index, 0),
            is_deployed=index == self.deployed,
        )

    def change(self, old: str, new: str) -> Change:
        """The diff of two prompts, as much of it as there is room for."""
        found: Diff = diff(old, new)
        lines: list[tuple[str, list[tuple[str, bool]], int]] = []
        cut = 0
        for line in found.lines[:DIFF_LINES]:
            if self._chars_left <= 0:
                break
            segments, missing = _cut_line(line, min(LINE_CHARS, self._chars_left))
            cut += missing
            self._chars_left -= sum(len(text) for text, _ in segments)
            lines.append((line.kind, segments, line.skipped))
        left_out = len(found.lines) - len(lines)
        return Change(lines, found.inserted, found.deleted, found.aligned, left_out, cut)

    def text(self, text: str) -> Shown:
        """A prompt, as much of it as there is room for."""
        size = max(min(PROMPT_CHARS, self._chars_left), 0)
        self._chars_left -= min(size, len(text))
        return cut(text, size)

    def frontier(self) -> Frontier | None:
        """None where no val score is on record."""
        on_it = sorted(
            self.best_on,
            key=lambda index: (index != self.deployed, -self.best_on[index], index),
        )
        if not on_it:
            return None
        columns = sorted({0, *on_it[:FRONTIER_COLUMNS]})
        rows = [(task, self._scores_on(task)) for task in self._val_tasks]
        every = [score for _, scores in rows for score in scores.values()]
        low, high = min(every), max(every)
        shown = []
        for task, scores in rows[:FRONTIER_ROWS]:
            top = max(scores.values())
            cells = []
            for index in columns:
                score = scores.get(index)
                place = 0 if score is None else _percent(score, low, high)
                cells.append((score, score == top, place))
            shown.append((self.task_name(task), cells))
        return Frontier(
            columns, shown, len(on_it) - len(set(columns) & set(on_it)), len(rows) - len(shown)
        )

    def task_name(self, task: str) -> str:
        """Position in the taskset and id of a task, of its content hash."""
        known = self.data.tasks.get(task)
        if known is None:
            return task[:12]
        return f"{known.idx}" if known.id is None else f"{known.idx} · {known.id}"

    def attempts(self) -> list[Attempt]:
        """Every proposal, with the diff against its parent."""
        return [self._attempt(proposal) for proposal in self.data.proposals or []]

    def _attempt(self, proposal: Proposal) -> Attempt:
        change = None
        known = [index for index in proposal.parents if 0 <= index < len(self.data.candidates)]
        if proposal.text is not None and known:
            change = self.change(self.data.candidates[known[0]], proposal.text)
        return Attempt(
            proposal, _mean(proposal.scores_before), _mean(proposal.scores_after), change
        )


@dataclass(frozen=True)
class Curve:
    """Points of the plot of scores; x is the number of rollouts charged."""

    val: list[tuple[int, float, int]] = field(default_factory=list)
    """x, val mean, candidate."""
    before: list[tuple[int, float]] = field(default_factory=list)
    """x and mean over the minibatch, of the parents."""
    after: list[tuple[int, float]] = field(default_factory=list)
    """The same of the proposals."""
    budget: int | None = None


def curve_of(views: Views) -> Curve:
    """The points of the plot, as far as they are on record."""
    data = views.data
    ends: dict[str, int] = {}
    charged = 0
    for rollout in data.rollouts:
        charged += rollout.charged
        if rollout.charged and rollout.split == "val":
            ends[rollout.candidate] = charged
    decided = {p.candidate: p.charged for p in data.proposals or []}
    val = []
    for index, (digest, value) in enumerate(zip(data.digests, views.val_means, strict=True)):
        x = decided.get(index, ends.get(digest))
        if x is not None and value is not None:
            val.append((x, value, index))
    made = data.proposals or []
    before = [(p.charged, y) for p in made if (y := _mean(p.scores_before)) is not None]
    after = [(p.charged, y) for p in made if (y := _mean(p.scores_after)) is not None]
    budget = data.result.rollouts.get("budget") if data.result else None
    return Curve(sorted(val), before, after, budget if isinstance(budget, int) else None)


def _mean(scores: Iterable[float | None] | None) -> float | None:
    """None where there are none, or not all are known."""
    if scores is None:
        return None
    values = [*scores]
    known = [score for score in values if score is not None]
    return mean(known) if known and len(known) == len(values) else None


def _percent(score: float, low: float, high: float) -> int:
    return round(100 * (score - low) / (high - low)) if high > low else 50


def cut(text: str, size: int) -> Shown:
    """`text` with its middle left out where it is longer than `size`: both ends say most."""
    if len(text) <= size:
        return Shown(text)
    tail = size // 3
    return Shown(text[: size - tail], len(text) - size, text[len(text) - tail :])


def _cut_line(line: Line, size: int) -> tuple[list[tuple[str, bool]], int]:
    """The segments of a line up to `size` characters, and how many are left out."""
    segments, left, missing = [], size, 0
    for text, changed in line.segments:
        if left > 0:
            segments.append((text[:left], changed))
        missing += max(len(text) - left, 0)
        left = max(left - len(text), 0)
    return segments, missing
