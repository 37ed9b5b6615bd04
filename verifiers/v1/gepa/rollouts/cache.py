"""A directory in which runs share the rollouts of the phases that are not charged.

Several seeds of one cell evaluate the same seed prompt on the same tasks; once is enough. An entry
is named by the digest of all that gives the score its meaning: task, prompt, env, agents, model,
sampling, code, and which repeat it is. A failure is never stored.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.utils.texts import write_text

LOCK_FILE = ".lock"


class EvaluationCache:
    """Scores by content, below `folder`; `cell` is what else gives a score its meaning."""

    def __init__(self, folder: Path, cell: Mapping[str, Any]) -> None:
        self.folder = folder
        self._cell = cell

    def get(self, phase: str, candidate: str, task: str, repeat: int) -> float | None:
        """The stored score, None where there is none (or the entry is broken)."""
        try:
            entry = json.loads(self._path(phase, candidate, task, repeat).read_bytes())
            score = entry["score"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        return float(score) if is_number and math.isfinite(score) else None

    def put(self, phase: str, candidate: str, task: str, repeat: int, score: float) -> None:
        """Store a measured score. Raises `Fault` where it can't be written."""
        path = self._path(phase, candidate, task, repeat)
        entry = {"phase": phase, "candidate": candidate, "task": task, "repeat": repeat}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / LOCK_FILE):
                write_text(path, json.dumps({**entry, "score": score}) + "\n")
        except OSError as error:
            raise Fault(f"the evaluation cache can't be written: {error}") from error

    def _path(self, phase: str, candidate: str, task: str, repeat: int) -> Path:
        rollout = {"phase": phase, "candidate": candidate, "task": task, "repeat": repeat}
        name = json.dumps({"cell": self._cell, **rollout}, sort_keys=True)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.json"
