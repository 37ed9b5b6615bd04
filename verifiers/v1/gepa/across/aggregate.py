"""Several runs as one table: what holds over seeds, and what was luck of one.

Runs of one cell (same taskset, model, harness, sampling, split and settings) differ in their seed
alone. Every valid run of a cell counts, the ones that found nothing as a difference of 0: no best
seed is picked.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, ValidationError, field_validator

from verifiers.v1.gepa.record.files import RESULT_FILE
from verifiers.v1.utils.statistics import (
    DIGITS,
    FEWEST_TASKS,
    hierarchical_interval,
    holm,
    mean,
    permutation_p,
)

Family = Literal["task", "method", "none"]
"""Which cells are corrected together for many comparisons: those of one taskset, those of one model
and harness, or none."""

NAMED = ("taskset", "model", "harness")
"""What a person tells cells apart by."""


class TestTask(BaseModel, strict=True):
    """A test task of a `result.json`."""

    hash: str
    baseline: FiniteFloat
    deployed: FiniteFloat


class Result(BaseModel, strict=True):
    """What is read of a `result.json`."""

    cell: dict[str, str]
    seed: int
    valid_for_aggregation: bool
    invalid_reasons: list[str]
    baseline_mean: FiniteFloat | None
    deployed_mean: FiniteFloat | None
    deployed_candidate: int | None
    num_test: int
    test: list[TestTask]

    @field_validator("cell")
    @classmethod
    def _named(cls, cell: dict[str, str]) -> dict[str, str]:
        if missing := [key for key in NAMED if key not in cell]:
            raise ValueError(f"no {missing[0]}")
        return cell


@dataclass(frozen=True)
class SeedRun:
    """One `result.json`."""

    path: str
    cell: dict[str, str]
    seed: int
    valid: bool
    reasons: list[str]
    """Why it is not valid."""
    baseline_mean: float | None
    deployed_mean: float | None
    differences: dict[str, float]
    """Deployed minus baseline by the test task's hash."""
    kept: int = 0
    """Where the seed prompt stayed, and so every difference is 0: the number of test tasks."""

    @property
    def delta(self) -> float | None:
        if self.kept:
            return 0.0
        return mean([*self.differences.values()]) if self.differences else None


@dataclass
class Cell:
    """All runs of one cell; scores in the taskset's own unit, differences in 1/100 of it."""

    cell: dict[str, str]
    runs: list[SeedRun]
    missing: list[int]
    """Seeds that were asked for and are not there."""
    invalid: list[SeedRun]
    baseline_mean: float | None = None
    deployed_mean: float | None = None
    delta_pp: float | None = None
    ci95: tuple[float, float] | None = None
    p_value: float | None = None
    p_holm: float | None = None
    incomplete: list[str] = field(default_factory=list)
    """Why the cell is incomplete."""


def find_results(paths: Iterable[Path]) -> tuple[list[SeedRun], list[str]]:
    """Every `result.json` at or below `paths`, and what was skipped, with the reason. Raises
    `ValueError` for a path that does not exist."""
    runs, skipped, seen = [], [], set()
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        files = sorted(path.rglob(RESULT_FILE)) if path.is_dir() else [path]
        if not files:
            skipped.append(f"{path}: no {RESULT_FILE} below it")
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                runs.append(_read(file))
            except (OSError, ValueError) as error:
                skipped.append(f"{file}: no result of a run ({_reason(error)})")
    return runs, skipped


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return str(error)


def _read(file: Path) -> SeedRun:
    result = Result.model_validate_json(file.read_bytes())
    return SeedRun(
        path=str(file),
        cell=result.cell,
        seed=result.seed,
        valid=result.valid_for_aggregation,
        reasons=result.invalid_reasons,
        baseline_mean=result.baseline_mean,
        deployed_mean=result.deployed_mean,
        differences={task.hash: task.deployed - task.baseline for task in result.test},
        kept=result.num_test if result.deployed_candidate == 0 and not result.test else 0,
    )


def aggregate(
    runs: Sequence[SeedRun],
    seeds: Sequence[int] = (),
    bootstrap: int = 10_000,
    family: Family = "none",
    include_nonconformant: bool = False,
) -> list[Cell]:
    """One `Cell` per cell, in the order of their names. Raises `ValueError` where a cell has one
    seed twice."""
    groups: dict[tuple[tuple[str, str], ...], list[SeedRun]] = defaultdict(list)
    for run in runs:
        groups[tuple(sorted(run.cell.items()))].append(run)
    cells = [
        _cell(groups[key], seeds, bootstrap, include_nonconformant)
        for key in sorted(groups, key=_order)
    ]
    _adjust(cells, family)
    return cells


def _order(key: tuple[tuple[str, str], ...]) -> list[str]:
    cell = dict(key)
    return [*(cell[name] for name in NAMED), *(value for _, value in key)]


def _cell(
    runs: list[SeedRun], seeds: Sequence[int], bootstrap: int, include_nonconformant: bool
) -> Cell:
    runs = sorted(runs, key=lambda run: run.seed)
    for one, other in pairwise(runs):
        if one.seed == other.seed:
            raise ValueError(
                f"seed {one.seed} of one cell has two results: {one.path} and {other.path}; "
                "leave one out"
            )
    usable = [run for run in runs if (run.valid or include_nonconformant) and run.delta is not None]
    invalid = [run for run in runs if run not in usable]
    cell = Cell(
        cell=runs[0].cell,
        runs=usable,
        missing=[seed for seed in dict.fromkeys(seeds) if seed not in {run.seed for run in runs}],
        invalid=invalid,
    )
    cell.incomplete = [f"seed {seed} is missing" for seed in cell.missing]
    cell.incomplete += [f"seed {run.seed}: {'; '.join(run.reasons)}" for run in invalid]
    if not usable:
        return cell
    differences = _matrix(usable)
    if not differences.size:
        cell.incomplete.append("its runs have no test task in common")
        return cell
    cell.baseline_mean = _mean([run.baseline_mean for run in usable])
    cell.deployed_mean = _mean([run.deployed_mean for run in usable])
    cell.delta_pp = 100 * float(np.mean(differences))
    interval = hierarchical_interval(differences, bootstrap)
    cell.ci95 = (100 * interval[0], 100 * interval[1]) if interval else None
    if differences.shape[1] >= FEWEST_TASKS:
        # Averaged over runs first: they share their tasks, so that many of them are no more
        # evidence about tasks than one.
        cell.p_value = permutation_p(np.round(differences.mean(axis=0), DIGITS))
    return cell


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _matrix(runs: Sequence[SeedRun]) -> np.ndarray:
    """The differences (runs x tasks) on the test tasks that all runs have scores of."""
    compared = [run for run in runs if not run.kept]
    if not compared:
        return np.zeros((len(runs), min(run.kept for run in runs)))
    shared = [
        task for task in compared[0].differences if all(task in run.differences for run in compared)
    ]
    return np.array([[run.differences.get(task, 0.0) for task in shared] for run in runs])


def _adjust(cells: Sequence[Cell], family: Family) -> None:
    """Holm's adjustment of the p-values within each family."""
    keys = {"task": ("taskset",), "method": ("model", "harness"), "none": ()}[family]
    if not keys:
        return
    families: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.p_value is not None:
            families[tuple(cell.cell[key] for key in keys)].append(cell)
    for members in families.values():
        adjusted = holm([cell.p_value or 0.0 for cell in members])
        for cell, value in zip(members, adjusted, strict=True):
            cell.p_holm = value


COLUMNS = (
    *NAMED,
    "cell",
    "seeds",
    "missing",
    "baseline",
    "deployed",
    "delta_pp",
    "ci_low",
    "ci_high",
    "p",
    "p_holm",
    "note",
)


def table_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """The table as text: one row per cell, below it one per seed."""
    rows = []
    for cell in cells:
        low, high = cell.ci95 or (None, None)
        lost = [*cell.missing, *(run.seed for run in cell.invalid)]
        note = f"incomplete: {'; '.join(cell.incomplete)}" if cell.incomplete else ""
        rows.append(
            [
                *(cell.cell[key] for key in NAMED),
                _digest(cell.cell),
                ",".join(str(run.seed) for run in cell.runs),
                ",".join(map(str, sorted(lost))),
                *map(_number, (cell.baseline_mean, cell.deployed_mean, cell.delta_pp, low, high)),
                *map(_number, (cell.p_value, cell.p_holm)),
                note,
            ]
        )
        for run in sorted([*cell.runs, *cell.invalid], key=lambda run: run.seed):
            delta = None if run.delta is None else 100 * run.delta
            means = map(_number, (run.baseline_mean, run.deployed_mean, delta))
            reason = "" if run in cell.runs else "; ".join(run.reasons)
            rows.append(["", "", "", "", str(run.seed), "", *means, "", "", "", "", reason])
    return rows


def _digest(cell: dict[str, str]) -> str:
    """A short name for everything that the cell stands for."""
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:8]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def summary(cells: Sequence[Cell], skipped: Sequence[str]) -> dict[str, Any]:
    """Everything as one JSON object."""
    return {"cells": [asdict(cell) for cell in cells], "skipped": list(skipped)}
