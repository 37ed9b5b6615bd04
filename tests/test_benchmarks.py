"""The benchmarks, each at a tiny size: what they print is of the right kind, and what they take for
granted holds. How fast anything is is not asserted."""

import math
import re
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import all as every
from benchmarks import mixed, quality, steps, wallclock
from support_intent_v1.taskset import SEED_PROMPT
from verifiers_gepa.scripted import HARMS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/benchmarks.md").read_text("utf-8")


def table(printed: str) -> dict[str, list[str]]:
    """The rows of the last table printed, by their first cell; the header's is empty."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    start = max(number for number, line in enumerate(lines) if re.match(r"\|-", line)) - 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    return {row[0]: row[1:] for row in rows}


def test_the_page_names_every_benchmark() -> None:
    for name in every.SCRIPTS:
        assert (ROOT / f"benchmarks/{name}.py").is_file()
        assert f"python benchmarks/{name}.py" in PAGE


def test_the_true_score_is_what_fresh_rollouts_come_to() -> None:
    assert mixed.SEED_PROMPT == SEED_PROMPT
    harm = next(iter(HARMS))
    wordings = [mixed.WORDINGS["form"][1], mixed.WORDINGS["labels"][2], mixed.WORDINGS["last"][0]]
    prompt = "\n".join([SEED_PROMPT, *wordings, harm])
    messages = list(mixed.messages())[50:]
    sampled = [
        mixed.score(message, mixed.reply(prompt, message, f"0 {draw}"))[0]
        for message in messages
        for draw in range(20)
    ]
    assert math.isclose(mixed.true_score(prompt, 50), fmean(sampled), abs_tol=0.01)
    assert mixed.true_score(SEED_PROMPT) < mixed.true_score(prompt) < 1


def test_quality_scores_what_each_search_found(capfd: pytest.CaptureFixture[str]) -> None:
    budgets = [46, 60]
    quality.compare(["1 proposal", quality.HOST], seeds=1, budgets=budgets, jobs=2)
    rows = table(capfd.readouterr().out)
    seed = rows["the seed prompt"]
    assert seed[:2] == [f"{mixed.true_score(SEED_PROMPT, quality.TRAIN + quality.VAL):.3f}"] * 2
    assert rows.keys() >= {"1 proposal", quality.HOST, quality.SAMPLES}
    assert int(float(rows[quality.SAMPLES][2])) == 1
    for name in ("1 proposal", quality.HOST):
        assert all(0 < float(cell.split()[0]) < 1 for cell in rows[name][:2])
        assert float(rows[name][2]) > 0
    found = [(20, 0.1, "seed"), (46, 0.5, "first"), (60, 0.5, "equal"), (61, 0.9, "too late")]
    assert [quality.best(found, budget) for budget in (20, 46, 60)] == ["seed", "first", "first"]


def test_every_step_of_the_benchmark_of_steps_does_the_same_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VF_RUN_ID", "benchmark")
    steps.compare(rollouts=110, vals=[10])
    out = capfd.readouterr().out
    assert "10 val tasks" in table(out).popitem()[0]
    (row,) = re.findall(r"^\| 10, 20 .*$", out, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # The seed prompt's val pass, then a prompt accepted in each of five steps of 20 rollouts.
    assert cells[1:3] == ["110", "6"]
    assert cells[4] == cells[6] == "1.00"
    assert 50 < float(cells[7]) < 4000


def test_wallclock_compares_the_same_search(capfd: pytest.CaptureFixture[str]) -> None:
    wallclock.compare(["1 proposal"], budget=8, val=1, seeds=2, latency=0, teacher_latency=0)
    rows = table(capfd.readouterr().out)
    assert rows[wallclock.HOST][1] == "1.0"
    ours = rows["1 proposal"]
    assert int(ours[2]) <= 8 <= int(rows[wallclock.HOST][2])
    for row in (ours, rows[wallclock.HOST]):
        assert 0 <= float(row[4]) <= 1
        assert 0 < float(row[5].split()[0]) < 1
        assert float(row[0]) >= 0 < float(row[3])


def test_tables_are_written_into_the_page() -> None:
    for name in every.SCRIPTS:
        written = every.filled(PAGE, name, "| a table |\n")
        assert f"<!-- {name} -->\n\n| a table |\n\n<!-- end of {name} -->" in written
        assert every.filled(written, name, "| a table |") == written
    with pytest.raises(ValueError, match="no marks for another"):
        every.filled(PAGE, "another", "")
