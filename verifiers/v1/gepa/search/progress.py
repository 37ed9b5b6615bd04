"""What a run shows and keeps while it goes.

gepa reports its steps to a callback object. This one logs a line per step and keeps gepa's state,
so that a run that is cut short still knows its candidates, and writes gepa's own files
(`candidates.json`, `run_log.json`, `candidate_tree.html`) itself: given a run directory, gepa would
also write a pickle there, load it from there, and write HTML in the locale's encoding.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gepa.core.callbacks import (
    CandidateAcceptedEvent,
    CandidateRejectedEvent,
    ValsetEvaluatedEvent,
)
from gepa.core.state import GEPAState
from gepa.visualization import candidate_tree_html

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.files import CANDIDATES_FILE, COMPONENT, RUN_LOG_FILE, TREE_FILE
from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.utils.texts import write_text

logger = logging.getLogger(__name__)


class GEPALog:
    """gepa's own log lines, which repeat whole prompts: for `--verbose`."""

    def log(self, message: str) -> None:
        logger.debug("gepa: %s", message)


class Progress:
    """gepa's callback object for one run."""

    def __init__(self, adapter: GEPAAdapter, run_dir: Path | None) -> None:
        self.state: GEPAState[str, int] | None = None
        self.seed_val_mean: float | None = None
        self.since_better = 0
        """Proposals since the best val mean last rose."""
        self._adapter = adapter
        self._history = adapter.history
        self._history.listeners.append(self._decided)
        self._run_dir = run_dir

    def start_iteration(self, state: GEPAState[str, int]) -> None:
        """Called before every iteration, and before the one that is not begun any more."""
        self.state = self._adapter.unmeasured.state = self._history.state = state
        self._adapter.unmeasured.forget_minibatches()
        self._history.flush()

    @property
    def best_val_mean(self) -> float | None:
        """The best val mean of the search so far."""
        return max(self.state.program_full_scores_val_set) if self.state else None

    def on_valset_evaluated(self, event: ValsetEvaluatedEvent) -> None:
        mean, index = event["average_score"], event["candidate_idx"]
        if index == 0:
            self.seed_val_mean = mean
            self._log("seed prompt: val mean %.4f over %d tasks", mean, event["total_valset_size"])
            return
        self._history.accepted(event["candidate"][COMPONENT], index, mean)
        # gepa calls the first of equals the best, so a best prompt raised the mean.
        self.since_better = 0 if event["is_best_program"] else self.since_better + 1
        best = ", the best so far" if event["is_best_program"] else ""
        self._log("prompt %d: val mean %.4f%s", index, mean, best)

    def on_candidate_accepted(self, event: CandidateAcceptedEvent) -> None:
        if self._adapter.rollouts.replay.used_up:  # what stands there knows no less
            self._write(CANDIDATES_FILE, lambda state: _json(state.program_candidates))

    def on_candidate_rejected(self, event: CandidateRejectedEvent) -> None:
        self.since_better += 1

    def _decided(self, proposal: Proposal) -> None:
        if proposal.decision == "rejected":
            self._log("proposal rejected: %s", proposal.reason)
        elif proposal.decision == "unvalidated":
            self._log("proposal not validated: %s", proposal.reason)

    def write_files(self) -> None:
        """Write all of gepa's files, at the end: the log and the tree grow with the run, and a step
        must not pay for those before it. Raises `Fault` where the disk refuses."""
        self._write(CANDIDATES_FILE, lambda state: _json(state.program_candidates))
        self._write(RUN_LOG_FILE, lambda state: _json(state.full_program_trace))
        self._write(TREE_FILE, candidate_tree_html)

    def _write(self, name: str, text: Callable[[GEPAState[str, int]], str]) -> None:
        if self._run_dir is None or self.state is None:
            return
        try:
            write_text(self._run_dir / name, text(self.state))
        except OSError as error:
            raise Fault(f"the run directory could not be written: {error}") from error

    def _log(self, message: str, *values: object) -> None:
        budget = self._adapter.rollouts.budget
        spent = f"[{budget.charged}/{budget.total} rollouts] "
        logger.info(spent + message, *values)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=lambda other: sorted(other))
