"""A directory in which runs share the rollouts of the phases that are not charged.

Several seeds of one cell evaluate the same seed prompt on the same tasks; once is enough. An entry
is named by the digest of all that gives the score its meaning: task, prompt, model, sampling, agent
and which repeat it is. A failure is never stored.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.failures import Fault
from verifiers.v1.utils.texts import write_text

LOCK_FILE = ".lock"


class EvaluationCache:
    """Scores by content, below `folder`."""

    def __init__(self, folder: Path, config: GEPAConfig) -> None:
        self.folder = folder
        agents = {
            name: agent.model_dump(mode="json", exclude={"client", "retries", "timeout"})
            for name, agent in agent_config_fields(config).items()
        }
        harnesses = config.agent_harnesses()
        self._cell = {
            "env": config.env_id,
            "model": config.model,
            "sampling": config.sampling.model_dump(mode="json", exclude_none=True),
            "agents": agents,
            "harnesses": {name: h.model_dump(mode="json") for name, h in harnesses.items()},
            "task": config.taskset.task.model_dump(mode="json"),
        }

    def get(self, phase: str, candidate: str, task: str, repeat: int) -> float | None:
        """The stored score, None where there is none (or the entry is broken)."""
        try:
            entry = json.loads(self._path(phase, candidate, task, repeat).read_bytes())
            return float(entry["score"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
        key: dict[str, Any] = {**self._cell, "phase": phase, "candidate": candidate}
        name = json.dumps({**key, "task_hash": task, "repeat": repeat}, sort_keys=True)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.json"
