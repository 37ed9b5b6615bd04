"""Several runs as one table: what holds over seeds, and what was luck of one.

Runs of one cell (same taskset, model, harness, sampling and split) differ in their seed alone.
Every valid run of a cell counts, the ones that found nothing as a difference of 0: no best seed is
picked.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verifiers.v1.gepa.files import RESULT_FILE
from verifiers.v1.gepa.statistics import hierarchical_interval, holm, permutation_p

Family = Literal["task", "method", "none"]
"""Which cells are corrected together for many comparisons: those of one taskset, those of one model
and harness, or none."""


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
    differences: list[float]
    """Deployed minus baseline per test task; zeros where the seed prompt stayed."""

    @property
    def delta(self) -> float | None:
        return float(np.mean(self.differences)) if self.differences else None


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
    """Every `result.json` at or below `paths`, and what was skipped, with the reason."""
    runs, skipped = [], []
    for path in paths:
        files = sorted(path.rglob(RESULT_FILE)) if path.is_dir() else [path]
        if not files:
            skipped.append(f"{path}: no {RESULT_FILE} below it")
        for file in files:
            try:
                runs.append(_read(file))
            except (OSError, ValueError, KeyError, TypeError) as error:
                skipped.append(f"{file}: no result of a run ({error!r})")
    return runs, skipped


def _read(file: Path) -> SeedRun:
    result = json.loads(file.read_bytes())
    differences = [task["deployed"] - task["baseline"] for task in result["test"]]
    if not differences and result["deployed_candidate"] == 0:
        differences = [0.0] * result["num_test"]
    return SeedRun(
        path=str(file),
        cell={key: str(value) for key, value in result["cell"].items()},
        seed=result["seed"],
        valid=result["valid_for_aggregation"],
        reasons=result["invalid_reasons"],
        baseline_mean=result["baseline_mean"],
        deployed_mean=result["deployed_mean"],
        differences=differences,
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
    groups: dict[tuple[str, ...], list[SeedRun]] = defaultdict(list)
    for run in runs:
        groups[tuple(run.cell.values())].append(run)
    cells = [_cell(groups[key], seeds, bootstrap, include_nonconformant) for key in sorted(groups)]
    _adjust(cells, family)
    return cells


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
    usable = [run for run in runs if (run.valid or include_nonconformant) and run.differences]
    invalid = [run for run in runs if run not in usable]
    cell = Cell(
        cell=runs[0].cell,
        runs=usable,
        missing=[seed for seed in seeds if seed not in {run.seed for run in runs}],
        invalid=invalid,
    )
    cell.incomplete = [f"seed {seed} is missing" for seed in cell.missing]
    cell.incomplete += [f"seed {run.seed}: {'; '.join(run.reasons)}" for run in invalid]
    if not usable:
        return cell
    differences = [run.differences for run in usable]
    cell.baseline_mean = _mean([run.baseline_mean for run in usable])
    cell.deployed_mean = _mean([run.deployed_mean for run in usable])
    cell.delta_pp = 100 * float(np.mean([run.delta for run in usable]))
    interval = hierarchical_interval(differences, bootstrap)
    cell.ci95 = (100 * interval[0], 100 * interval[1]) if interval else None
    cell.p_value = _p_value(differences)
    return cell


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _p_value(differences: Sequence[Sequence[float]]) -> float | None:
    """Of the sign-flip test on the tasks' differences, averaged over seeds first: the seeds share
    their tasks, so they are not independent evidence about them."""
    shortest = min(map(len, differences))
    if any(len(one) != shortest for one in differences):
        return None
    return permutation_p(np.mean(differences, axis=0)) if shortest else None


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
    "taskset",
    "model",
    "harness",
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
                *(cell.cell[key] for key in ("taskset", "model", "harness")),
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
            rows.append(["", "", "", str(run.seed), "", *means, "", "", "", "", reason])
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def summary(cells: Sequence[Cell], skipped: Sequence[str]) -> dict[str, Any]:
    """Everything as one JSON object."""
    return {"cells": [asdict(cell) for cell in cells], "skipped": list(skipped)}
