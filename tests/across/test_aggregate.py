"""Several runs as one table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from tests.support import FULL, Reply, mostly_good, run, scripted
from verifiers.v1.cli.gepa_aggregate import main
from verifiers.v1.gepa.across.aggregate import COLUMNS, aggregate, find_results
from verifiers.v1.utils.statistics import hierarchical_interval, permutation_p


def result(folder: Path, seed: int, differences: list[float], **changes: Any) -> Path:
    """A run directory with a `result.json` of these differences on test."""
    cell = {"taskset": "t", "env": "t", "model": "m", "harness": "h", "sampling": "s", "split": "x"}
    scores = [
        {"idx": i, "hash": f"task {i}", "baseline": 0.25, "deployed": 0.25 + d}
        for i, d in enumerate(differences)
    ]
    made = {
        "cell": {**cell, **changes.pop("cell", {})},
        "seed": seed,
        "valid_for_aggregation": True,
        "invalid_reasons": [],
        "baseline_mean": 0.25,
        "deployed_mean": 0.25 + float(np.mean(differences)) if differences else None,
        "deployed_candidate": 1,
        "num_test": len(differences),
        "test": scores,
        **changes,
    }
    name = "-".join([*made["cell"].values(), str(seed)])
    path = folder / name
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps(made))
    return path


def differences(seed: int, mean: float = 0.2) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(mean, 0.3, 20)]


def rows_of(out: str) -> list[dict[str, str]]:
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert tuple(header) == COLUMNS
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_cell_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [differences(seed) for seed in range(3)]
    for seed, one in enumerate(runs):
        result(tmp_path, seed, one)
    out = tmp_path / "summary.json"
    assert main([str(tmp_path), "--seeds", "0,1,2", "--out", str(out)]) == 0
    cell, *seeds = rows_of(capsys.readouterr().out)
    assert (cell["taskset"], cell["seeds"], cell["missing"], cell["note"]) == ("t", "0,1,2", "", "")
    expected = 100 * np.mean([np.mean(one) for one in runs])
    assert float(cell["delta_pp"]) == pytest.approx(expected, rel=1e-3)
    assert [row["seeds"] for row in seeds] == ["0", "1", "2"]
    assert float(seeds[1]["delta_pp"]) == pytest.approx(100 * np.mean(runs[1]), rel=1e-3)
    (saved,) = json.loads(out.read_bytes())["cells"]
    interval = hierarchical_interval(np.array(runs))
    assert interval is not None
    assert saved["ci95"] == pytest.approx([100 * interval[0], 100 * interval[1]])
    assert saved["p_value"] == pytest.approx(permutation_p(np.mean(runs, axis=0)))


def test_a_missing_and_an_invalid_seed_make_a_cell_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result(tmp_path, 0, differences(0))
    odd = {"valid_for_aggregation": False, "invalid_reasons": ["a small budget"]}
    result(tmp_path, 1, differences(1, 5.0), **odd)
    assert main([str(tmp_path), "--seeds", "0", "1", "2"]) == 1
    cell, zero, one = rows_of(capsys.readouterr().out)
    assert (cell["seeds"], cell["missing"]) == ("0", "1,2")
    assert cell["note"] == "incomplete: seed 2 is missing; seed 1: a small budget"
    # The invalid run is listed, and counts for nothing.
    assert float(cell["delta_pp"]) == float(zero["delta_pp"])
    assert (one["seeds"], one["note"]) == ("1", "a small budget")

    assert main([str(tmp_path), "--seeds", "0", "1", "--include-nonconformant"]) == 0
    cell, *_ = rows_of(capsys.readouterr().out)
    assert cell["seeds"] == "0,1"


def test_a_run_that_kept_the_seed_prompt_counts_as_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result(tmp_path, 0, [0.5] * 10 + [0.1] * 10)
    kept = {"deployed_candidate": 0, "baseline_mean": None, "num_test": 20}
    result(tmp_path, 1, [], **kept)
    assert main([str(tmp_path)]) == 0
    cell, _, seed = rows_of(capsys.readouterr().out)
    assert float(cell["delta_pp"]) == pytest.approx(15)
    assert float(seed["delta_pp"]) == 0


def test_cells_are_kept_apart_and_adjusted_by_family(tmp_path: Path) -> None:
    names = [("t1", "m1"), ("t1", "m2"), ("t1", "m3"), ("t2", "m1")]
    for number, (taskset, model) in enumerate(names):
        cell = {"taskset": taskset, "model": model}
        result(tmp_path, 0, differences(number, 0.1 * number), cell=cell)
    runs, _ = find_results([tmp_path])
    plain = aggregate(runs)
    assert [(c.cell["taskset"], c.cell["model"]) for c in plain] == names
    assert [c.p_holm for c in plain] == [None] * 4
    by_task = aggregate(runs, family="task")
    p_values = [c.p_value for c in by_task]
    assert [c.p_holm for c in by_task[:3]] == pytest.approx(
        list(multipletests(p_values[:3], method="holm")[1])
    )
    assert by_task[3].p_holm == p_values[3]
    by_method = aggregate(runs, family="method")
    assert [by_method[i].p_holm for i in (0, 3)] == pytest.approx(
        list(multipletests([p_values[0], p_values[3]], method="holm")[1])
    )


def test_what_is_no_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result(tmp_path, 0, differences(0))
    for name, text in (("broken", "{"), ("other", "[]"), ("old", '{"seed": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main([str(tmp_path), str(empty)]) == 1
    out, err = capsys.readouterr()
    assert len(rows_of(out)) == 2
    for name in ("broken", "other", "old"):
        assert f"skipped {tmp_path / name}/result.json" in err
    assert f"skipped {empty}: no result.json below it" in err


ODD: dict[str, dict[str, Any]] = {
    "cell without a model": {"cell": {"taskset": "t", "harness": "h"}},
    "a cell of another kind": {"cell": ["t"]},
    "a seed in quotes": {"seed": "1"},
    "validity in quotes": {"valid_for_aggregation": "false"},
    "a mean in quotes": {"baseline_mean": "0.2"},
    "NaN": {"test": [{"idx": 1, "hash": "h", "baseline": float("nan"), "deployed": 1.0}]},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_a_result_that_cannot_be_right_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    result(tmp_path, 0, differences(0))
    path = result(tmp_path, 1, differences(1)) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    assert main([str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert len(rows_of(out)) == 2
    assert f"skipped {path}: no result of a run ({next(iter(changes))}" in err


def test_runs_are_paired_by_task_and_not_by_position(tmp_path: Path) -> None:
    """Each lost another task."""
    whole = differences(0)
    result(tmp_path, 0, whole)
    result(tmp_path, 1, whole)
    for seed, lost in enumerate((0, 19)):
        path = next(tmp_path.glob(f"*-{seed}")) / "result.json"
        saved = json.loads(path.read_bytes())
        del saved["test"][lost]
        path.write_text(json.dumps(saved))
    runs, _ = find_results([tmp_path])
    (cell,) = aggregate(runs)
    assert cell.p_value == pytest.approx(permutation_p(whole[1:19]))
    assert cell.delta_pp == pytest.approx(100 * np.mean(whole[1:19]))


def test_a_few_tasks_give_no_p_value(tmp_path: Path) -> None:
    result(tmp_path, 0, [0.1, 0.2, 0.3])
    (cell,) = aggregate(find_results([tmp_path])[0])
    assert (cell.ci95, cell.p_value) == (None, None)
    assert cell.delta_pp == pytest.approx(20)


def test_a_directory_that_is_named_twice_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = result(tmp_path, 0, differences(0))
    assert main([str(tmp_path), str(path), "--seeds", "0,0"]) == 0
    assert len(rows_of(capsys.readouterr().out)) == 2
    assert main([str(tmp_path), str(tmp_path / "gone")]) == 2
    assert f"{tmp_path / 'gone'} does not exist" in capsys.readouterr().err


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: gepa-aggregate PATH...")
    assert main([str(tmp_path)]) == 2
    assert "no result.json was found" in capsys.readouterr().err
    result(tmp_path / "a", 0, differences(0))
    result(tmp_path / "b", 0, differences(1))
    assert main([str(tmp_path)]) == 2
    assert "seed 0 of one cell has two results" in capsys.readouterr().err
    assert main([str(tmp_path), "--famly", "task"]) == 2
    assert "--family" in capsys.readouterr().err
    assert main(["-h"]) == 0
    assert "--include-nonconformant" in capsys.readouterr().out


def test_three_seeds_of_which_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        broken = seed == 1
        teacher = (lambda _: Reply.error(401, "no key")) if broken else None
        with scripted(mostly_good, teacher) as endpoint:
            done = run(endpoint, tmp_path, "--seed", str(seed), base=FULL)
        assert done.status == (2 if broken else 0)
    capsys.readouterr()
    assert main([str(tmp_path), "--seeds", "0,1,2"]) == 1
    cell, *seeds = rows_of(capsys.readouterr().out)
    assert (cell["seeds"], cell["missing"]) == ("0,2", "1")
    assert cell["note"] == "incomplete: seed 1: the run did not finish (fault)"
    assert [row["seeds"] for row in seeds] == ["0", "1", "2"]
    assert float(cell["delta_pp"]) == 50
