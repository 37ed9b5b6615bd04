"""Every proposal of the search and what became of it: `proposals.jsonl`.

The file is worked out from the run and not part of its record: a resume works it out again, and
replaces it once it has caught up with its record. One line per reply of the teacher, in the order
in which they were asked for; each is written when it and all before it are decided.
"""

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gepa.core.state import GEPAState
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, SkipValidation

from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.files import PROPOSALS_FILE
from verifiers.v1.gepa.record.replay import Replay
from verifiers.v1.gepa.spend.budget import Budget

UNPAID = "the budget did not pay for its val pass"

CUT_SHORT = "the search ended before it was compared or validated"

Text = SkipValidation[str]
"""Text as it stands in the file, also a lone surrogate, which pydantic refuses."""

Decision = Literal["accepted", "rejected", "unvalidated", "no proposal"]


@dataclass(frozen=True)
class Minibatch:
    """What the teacher was shown of a parent."""

    tasks: list[int]
    """Indices of the train tasks."""
    scores: list[float | None]
    """The parent's scores on them; None for a task that could not be measured."""
    rollouts: int
    """Charged for it."""


class Proposal(BaseModel):
    """A line of `proposals.jsonl`; what a reader can do without has a default."""

    model_config = ConfigDict(extra="allow")

    number: int
    iteration: int
    """Counted from 1."""
    parents: list[int] = Field(default_factory=list)
    """Indices of the candidates that it was made from."""
    text: Text | None = None
    """None where the reply held no proposal."""
    candidate: int | None = None
    """Its index, if it was accepted."""
    decision: Text
    """A `Decision`, empty while there is none; such a line is never written."""
    reason: Text = ""
    minibatch: list[int] = Field(default_factory=list)
    """Indices of the train tasks that it was made from and compared on."""
    scores_before: list[FiniteFloat | None] | None = None
    """Its parent's scores on them; None for a task that could not be measured."""
    scores_after: list[FiniteFloat | None] | None = None
    """Its own; None also for a task that was not run, as its parent has no score there or the
    proposal could not win any more."""
    val_mean: FiniteFloat | None = None
    rollouts: int = 0
    """Charged for it: its parent's minibatch, its own, its val pass."""
    teacher_tokens: dict[str, int] | None = None
    chars: int | None = None
    parent_chars: int | None = None
    charged: int
    """Rollouts charged in all when it was decided."""


class History:
    """The proposals so far; written below `run_dir`, where there is one."""

    def __init__(
        self, seed_prompt: str, budget: Budget, replay: Replay, run_dir: Path | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Decided proposals, by decision."""
        self.unpaid: list[str] = []
        """Prompts that won their minibatch when the budget no longer paid for their val pass."""
        self.listeners: list[Callable[[Proposal], None]] = []
        """Called with every proposal as it is decided."""
        self.state: GEPAState[str, int] | None = None
        """gepa's, once there is one."""
        self._budget = budget
        self._replay = replay
        self._path = run_dir / PROPOSALS_FILE if run_dir is not None else None
        self._begun = False
        self._waiting: deque[Proposal] = deque()
        """What is not written yet."""
        self._index = {seed_prompt: 0}
        """Candidate -> its index."""
        self._open: dict[str, Proposal] = {}
        """Undecided proposals, by their text."""

    def replied(
        self,
        parent: str,
        minibatch: Minibatch,
        text: str | None,
        reason: str,
        tokens: dict[str, int] | None,
    ) -> None:
        """A reply of the teacher about `parent`; `text` is its proposal, or None for the
        `reason`."""
        assert self.state is not None  # the search has begun
        proposal = Proposal(
            number=self.counts.total() + len(self._open),
            iteration=self.state.i + 1,
            parents=[self._index[parent]],
            text=text,
            decision="",
            minibatch=minibatch.tasks,
            scores_before=minibatch.scores,
            rollouts=minibatch.rollouts,
            teacher_tokens=tokens,
            chars=None if text is None else len(text),
            parent_chars=len(parent),
            charged=0,
        )
        self._waiting.append(proposal)
        if text is None:
            self._decide(proposal, "no proposal", reason)
        else:
            self._open[text] = proposal

    def parent_of(self, text: str) -> str:
        """The prompt that an undecided proposal was made from."""
        index = self._open[text].parents[0]
        return next(parent for parent, known in self._index.items() if known == index)

    def measured(self, text: str, scores: list[float | None], rollouts: int, above: bool) -> None:
        """A proposal was run on its minibatch, which charged so many rollouts; `above` is whether
        its sum there is above its parent's."""
        proposal = self._open[text]
        proposal.scores_after = scores
        proposal.rollouts += rollouts
        proposal.reason = f"its minibatch sum is {'above' if above else 'equal to'} its parent's"

    def validated(self, text: str, rollouts: int) -> None:
        """A val pass of a proposal, or a part of one, charged so many rollouts."""
        self._open[text].rollouts += rollouts

    def rejected(self, text: str, reason: str) -> None:
        """A proposal gets no (or no whole) val pass."""
        self._decide(self._open.pop(text), "rejected", reason)

    def accepted(self, text: str, index: int, val_mean: float) -> None:
        """A proposal got a val pass, which makes it a candidate."""
        self._index[text] = index
        proposal = self._open.pop(text)
        proposal.candidate, proposal.val_mean = index, val_mean
        self._decide(proposal, "accepted", proposal.reason)

    def unvalidated(self, text: str) -> None:
        """A proposal won its minibatch, and the budget does not pay for its val pass."""
        self.unpaid.append(text)
        self._decide(self._open.pop(text), "unvalidated", UNPAID)

    def close(self) -> None:
        """The run has ended: what is still open is decided, where the search is over. Raises
        `Fault` where the disk refuses."""
        if self._replay.used_up:
            for text, proposal in [*self._open.items()]:
                del self._open[text]
                reason = UNPAID if text in self.unpaid else CUT_SHORT
                self._decide(proposal, "unvalidated", reason)
        self.flush()

    def _decide(self, proposal: Proposal, decision: Decision, reason: str) -> None:
        proposal.decision, proposal.reason = decision, reason
        proposal.charged = self._budget.charged
        self.counts[decision] += 1
        for listener in self.listeners:
            listener(proposal)

    def flush(self) -> None:
        """Write what is decided, once a resumed run has caught up with its record. Raises `Fault`
        where the disk refuses."""
        if self._path is not None and not self._replay.used_up:
            return
        lines = []
        while self._waiting and self._waiting[0].decision:
            lines.append(json.dumps(self._waiting.popleft().model_dump(), allow_nan=False) + "\n")
        if self._path is None or (self._begun and not lines):
            return
        try:
            with self._path.open("a" if self._begun else "w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
        except OSError as error:
            raise Fault(f"{self._path} could not be written: {error}") from error
        self._begun = True
