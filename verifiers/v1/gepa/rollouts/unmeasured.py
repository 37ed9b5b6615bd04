"""Tasks that can't be measured while others can.

A missing score must never decide anything, and no prompt is ranked on fewer tasks than another.

- In the seed prompt's val pass such a task is dropped from the split, with a warning.
- In a minibatch it counts the same for parent and child: the child gets the parent's score where
  its own is missing; where the parent's is missing, neither is asked and both get 0.
- In a later val pass the task is retired: every candidate, old and new, gets the seed prompt's
  score on it, and it is not run again.

A minibatch of which nothing could be measured brings no proposal. More of them than
`max_dropped_fraction` of a val pass, or `MAX_LOST_MINIBATCHES` whole minibatches in a row, is not
the tasks' fault but the provider's, and stops the run. What was decided goes into the journal, so
that a resumed run decides the same.
"""

import logging
from collections.abc import Sequence
from typing import Any

from gepa.core.state import GEPAState

from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.journal import Journal, Phase, prompt_digest
from verifiers.v1.gepa.rollouts.frontier import Frontier
from verifiers.v1.gepa.rollouts.measurements import Measurement, mean_score

logger = logging.getLogger(__name__)

MAX_LOST_MINIBATCHES = 3
"""Batches in a row of which no rollout could be measured; one holds the minibatches of all
proposals of an iteration."""


class Unmeasured:
    """The run's decisions about its unmeasured tasks. `state` is gepa's, once there is one."""

    def __init__(self, limit: float, journal: Journal) -> None:
        self.limit = limit
        self.state: GEPAState[str, int] | None = None
        self.frontier: Frontier | None = None
        """Keeps the objective scores where the frontier is made of them."""
        self.warnings: list[str] = []
        self.dropped: list[int] = []
        """Indices of the val tasks that the seed prompt's val pass dropped."""
        self._lost_in_row = 0
        self._journal = journal
        self._seed_scores: dict[int, float] = {}
        self._retired: dict[int, float] = {}
        self._parents: dict[tuple[str, tuple[int, ...]], list[float | None]] = {}
        """Parent and minibatch -> its scores on it, None where it has none."""

    def check_share(self, missing: int, total: int, cause: str, split: str = "val") -> None:
        """Raise `Fault` where so many of a pass are missing that it isn't the tasks' fault."""
        if missing > self.limit * total:
            raise Fault(
                f"{missing} of {total} {split} tasks could not be measured, more than "
                f"--max-dropped-fraction {self.limit:g} allows: {cause}"
            )

    def drop(self, task_hash: str, idx: int, cause: str) -> None:
        """Record that the seed prompt's val pass dropped a task."""
        self._journal.decision({"decision": "dropped", "task": task_hash, "cause": cause})
        self.note_drop(idx, cause)

    def note_drop(self, idx: int, cause: str) -> None:
        """A dropped task, known from now or from the record."""
        self.dropped.append(idx)
        self.warn(f"val task {idx} was dropped, it could not be measured: {cause}")

    def start(self, scores: dict[int, float]) -> None:
        """The seed prompt's scores on the val tasks that are left."""
        self._seed_scores = scores

    @property
    def val_tasks(self) -> list[int]:
        """Indices of the val tasks that are still run."""
        return [idx for idx in self._seed_scores if idx not in self._retired]

    @property
    def compares(self) -> bool:
        """Whether this iteration's parents are measured, so that what runs on a minibatch now is
        compared with them."""
        return bool(self._parents)

    def parent_scores(self, parent: str, batch: Sequence[int]) -> list[float | None]:
        """A parent's scores on its minibatch, None where it has none."""
        return self._parents[parent, tuple(batch)]

    def wanted(self, split: str, parent: str | None, batch: Sequence[int], position: int) -> bool:
        """Whether the task at `position` of `batch` is to be run."""
        if split == "val":
            return batch[position] not in self._retired
        return parent is None or self.parent_scores(parent, batch)[position] is not None

    def check(
        self,
        split: str,
        measured: Sequence[tuple[Sequence[int], Sequence[Sequence[Measurement]]]],
        whole: bool = True,
    ) -> None:
        """Raise `Fault` where so much of what gepa asked for at once (per candidate its tasks and
        their rollouts) is missing that it isn't the tasks' fault; nothing of it is given up then,
        but for what a first half lacked before its second went out. Where it is not the `whole` of
        it, the rest may still tell that a minibatch was no outage."""
        lost, any_score, cause = set(self._retired), False, ""
        for batch, tasks in measured:
            for idx, rollouts in zip(batch, tasks, strict=True):
                known = mean_score(rollouts) is not None or any(m.episode_id for m in rollouts)
                any_score = any_score or known
                if rollouts and not known:
                    cause = cause or rollouts[0].cause
                    lost.add(idx)
        if split == "val" and cause:
            self.check_share(len(lost), len(self._seed_scores), cause)
        elif split == "train" and whole:
            self._check_outage(any_score, cause)

    def decide(
        self,
        split: str,
        prompt: str,
        parent: str | None,
        batch: Sequence[int],
        hashes: Sequence[str],
        measured: Sequence[Sequence[Measurement]],
    ) -> None:
        """Decide about every missing measurement of one candidate on `batch`, where it is compared
        with `parent`; `measured` holds the rollouts of each task, none where it was not run. All
        candidates of a batch are decided before any of their `scores` is read."""
        own = [mean_score(rollouts) for rollouts in measured]
        missing = [i for i, rollouts in enumerate(measured) if rollouts and own[i] is None]
        cause = measured[missing[0]][0].cause if missing else ""
        for position, rollouts in enumerate(measured):
            self.give_up("optimize", prompt, hashes[position], rollouts)
        for position in missing:
            if split == "train":
                self.warn(f"train task {batch[position]} decided nothing: {cause}")
            elif batch[position] not in self._retired:  # another candidate may have lost it too
                self._retire(batch[position], cause)
        if split == "train" and parent is None:
            self._parents[prompt, tuple(batch)] = own

    def _check_outage(self, any_score: bool, cause: str) -> None:
        if any_score:
            self._lost_in_row = 0
        elif cause:
            self._lost_in_row += 1
            if self._lost_in_row == MAX_LOST_MINIBATCHES:
                raise Fault(
                    f"nothing could be measured of {MAX_LOST_MINIBATCHES} minibatches in a row: "
                    f"{cause}"
                )

    def scores(
        self,
        split: str,
        parent: str | None,
        batch: Sequence[int],
        measured: Sequence[Sequence[Measurement]],
    ) -> list[float]:
        """One score per task of `batch`, in order, once everything missing was decided."""
        own = [mean_score(rollouts) for rollouts in measured]
        if split == "val":
            pairs = zip(batch, own, strict=True)
            return [self._retired.get(idx, mine or 0.0) for idx, mine in pairs]
        if parent is None:
            return [score or 0.0 for score in own]
        return [
            (before or 0.0) if before is None or mine is None else mine
            for before, mine in zip(self.parent_scores(parent, batch), own, strict=True)
        ]

    def forget_minibatches(self) -> None:
        """A new iteration starts: its minibatches are measured anew."""
        self._parents.clear()

    def give_up(
        self, phase: Phase, prompt: str, task_hash: str, rollouts: Sequence[Measurement]
    ) -> None:
        """Record that the run goes on without the missing ones of these rollouts."""
        for measurement in rollouts:
            if measurement.score is None and not measurement.episode_id and measurement.live:
                self._journal.decision(
                    {
                        "decision": "given up",
                        "phase": phase,
                        "candidate": prompt_digest(prompt),
                        "task": task_hash,
                        "occurrence": measurement.occurrence,
                        "cause": measurement.cause,
                    }
                )

    def _retire(self, idx: int, cause: str) -> None:
        score = self._retired[idx] = self._seed_scores[idx]
        self.warn(f"val task {idx} no longer counts, it could not be measured: {cause}")
        state: Any = self.state
        position = list(self._seed_scores).index(idx)  # gepa names val tasks by their position
        for scores in state.prog_candidate_val_subscores:
            scores[position] = score
        state.pareto_front_valset[position] = score
        everyone = set(range(len(state.program_candidates)))
        state.program_at_pareto_front_valset[position] = everyone
        if self.frontier is not None:
            self.frontier.retire(state, idx, position)

    def warn(self, warning: str) -> None:
        logger.warning("%s", warning)
        self.warnings.append(warning)
