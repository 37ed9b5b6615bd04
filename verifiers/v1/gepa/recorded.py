"""A run directory, read back step by step to lay it beside another one.

Nothing is written, repaired or locked: the run may be one that was killed, or one that is still
going. `traces.jsonl` is read line by line, and only what each episode counted as is kept.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from verifiers.v1.gepa.dataset import NAMES
from verifiers.v1.gepa.files import (
    CANDIDATES_FILE,
    CONFIG_FILE,
    IDENTITY_FILE,
    PROMPT_FILE,
    PROPOSALS_FILE,
    REFLECTIONS_FILE,
    RESULT_FILE,
    SPLITS_FILE,
    TRACES_FILE,
)
from verifiers.v1.gepa.identity import flat
from verifiers.v1.utils.texts import read_text

Pass = tuple[str, str, str]
"""Phase, part of the split, and digest of the prompt of some rollouts."""


@dataclass(frozen=True)
class Proposal:
    """One reply of the teacher and what became of it. What the record does not hold is None."""

    request: str
    """Digest of what the teacher was asked."""
    reply: str | None
    iteration: int | None = None
    """Counted from 1."""
    position: int | None = None
    """Among the proposals of its iteration, counted from 1."""
    parent: int | None = None
    """Index of the candidate that it was made from."""
    minibatch: list[int] | None = None
    """Indices of the train tasks that it was made from."""
    before: list[float] | None = None
    """The parent's scores on them."""
    text: str | None = None
    """The proposed prompt."""
    after: list[float | None] | None = None
    """Its scores on them."""
    decision: str | None = None
    candidate: int | None = None
    """Its index, if it was accepted."""


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory holds, as far as its run has come."""

    path: Path
    config: dict[str, Any]
    """The resolved config, its keys joined with dots."""
    result: dict[str, Any]
    """`result.json`, empty where there is none yet."""
    prompt: str | None
    """The deployed prompt."""
    seed_prompt: str | None
    candidates: list[str]
    tasks: dict[str, dict[str, int]]
    """Content hash -> index of the tasks of train, val and test, in order."""
    scores: dict[Pass, dict[tuple[str, int], float | None]]
    """Score by content hash of the task and occurrence, of what was measured in each pass."""
    proposals: list[Proposal]


def read_run(path: Path) -> RecordedRun:
    """Read a run directory. Raises `ValueError` where it is none, and for a line that is broken;
    `OSError` where it can't be read."""
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(f"{path} is not a run directory: it has no {CONFIG_FILE}")
    splits = _json(path / SPLITS_FILE) or {}
    candidates = [one["system_prompt"] for one in _json(path / CANDIDATES_FILE) or []]
    prompt = path / PROMPT_FILE
    return RecordedRun(
        path=path,
        config=dict(flat(_json(path / CONFIG_FILE))),
        result=_json(path / RESULT_FILE) or {},
        prompt=read_text(prompt) if prompt.exists() else None,
        seed_prompt=(_json(path / IDENTITY_FILE) or {}).get("seed_prompt"),
        candidates=candidates,
        tasks={name: {t["hash"]: t["idx"] for t in splits.get(name, [])} for name in NAMES},
        scores=_scores(path / TRACES_FILE),
        proposals=list(_proposals(path)),
    )


def _scores(path: Path) -> dict[Pass, dict[tuple[str, int], float | None]]:
    scores: defaultdict[Pass, dict[tuple[str, int], float | None]] = defaultdict(dict)
    for row in _lines(path):
        stamp = row["gepa"]
        if stamp["verdict"] == "measured":
            key = (stamp["phase"], stamp["split"], stamp["candidate"])
            scores[key][stamp["task"], stamp.get("occurrence", 0)] = stamp.get("score")
    return dict(scores)


def _proposals(path: Path) -> Iterator[Proposal]:
    """One per reply of the teacher. Both files have one line for each, in the same order;
    `proposals.jsonl` may end earlier, as a proposal stands there when it is decided."""
    decided = _lines(path / PROPOSALS_FILE)
    position: Counter[int] = Counter()
    for exchange in _lines(path / REFLECTIONS_FILE):
        if exchange["verdict"] == "failed":  # there the run stopped; a resumed one asked again
            continue
        asked = {"request": exchange["key"], "reply": exchange["reply"]}
        row = next(decided, None)
        if row is None:
            yield Proposal(**asked)
            continue
        position[row["iteration"]] += 1
        yield Proposal(
            **asked,
            iteration=row["iteration"],
            position=position[row["iteration"]],
            parent=row["parents"][0],
            minibatch=row["minibatch"],
            before=row["scores_before"],
            text=row["text"],
            after=row["scores_after"],
            decision=row["decision"],
            candidate=row["candidate"],
        )


def _json(path: Path) -> Any:
    """The file's content, None where there is none."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is broken: {error}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every line; a last one without an end is being written, or was cut off by a kill."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield from_json(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is broken: {error}") from error
