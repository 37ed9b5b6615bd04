"""How long a whole search takes where models take their time, and what it finds: ours at several
numbers of proposals per iteration, and vf-gepa with the host's own harness.

    python benchmarks/wallclock.py --budget 500

The student takes a second per reply, the teacher five; both are those of `mixed.py`. Val means are
those of the search, read for both commands from their `traces.jsonl`. As a single search says
little about what one finds on average, several seeds are searched with models that
answer at once, and `vf-gepa`'s with `direct-chat`: neither changes what is found.

Ours are timed all at once, as they mostly wait (their CPU seconds are in the table); meanwhile the
further searches run, at the lowest priority, and those of `quality.py` where both are run at once.
`vf-gepa`, which keeps all cores busy starting a process per rollout, runs after them, alone.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import quality
from benchmarks.common import CORES, Measured, Served, print_table, run_gepa, run_vf_gepa, served

TRAIN = 50

JOBS = 2
"""Searches at a time of those that are not timed."""

LOWEST = 19
"""Their niceness."""

HOST = "vf-gepa, null harness"


def val_mean(run: Measured) -> float:
    """The search's val mean of the prompt that it found best."""
    prompt = (run.folder / "best_system_prompt.txt").read_bytes().decode()
    scores: list[float] = []
    with (run.folder / "traces.jsonl").open("rb") as lines:
        for line in lines:
            for trace in json.loads(line)["traces"]:
                task = trace["task"]["data"]
                if task["system_prompt"] == prompt and task["idx"] >= TRAIN:
                    rewards = trace["rewards"].values()
                    scores.append(sum(one["score"] * one["weight"] for one in rewards))
    return fmean(scores)


def timed(
    settings: Sequence[str], sizes: Sequence[str], endpoint: Served, folder: Path
) -> dict[str, Measured]:
    """One run of each setting, all at once."""
    ours = ["--num-test", "0", "--phase", "optimize", "--no-preflight"]
    with ThreadPoolExecutor(len(settings)) as pool:
        # Each run has a student of its own name, or their draws would depend on each other.
        runs = pool.map(
            lambda name: run_gepa(
                endpoint, folder, *[*sizes, *ours, *quality.OURS[name]], model=f"0 {name}"
            ),
            settings,
        )
        return dict(zip(settings, runs, strict=True))


def true_scores(settings: Sequence[str], budget: int, val: int, seeds: int) -> list[str]:
    """What the prompts are truly worth that such searches find, on average."""
    with served(models="mixed") as endpoint:
        found = quality.search_all(settings, seeds, budget, endpoint, JOBS, TRAIN, val, nice=LOWEST)
    return [quality.figure(found[name], budget, TRAIN + val) for name in settings]


def compare(
    settings: Sequence[str],
    budget: int,
    val: int,
    seeds: int,
    latency: float,
    teacher_latency: float,
) -> None:
    """Print the table."""
    sizes = ["--num-train", str(TRAIN), "--num-val", str(val), "--max-total-rollouts", str(budget)]
    with (
        served(latency, teacher_latency, models="mixed") as endpoint,
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor(1) as pool,
    ):
        folder = Path(name)
        scores = pool.submit(true_scores, [*settings, quality.HOST], budget, val, seeds)
        runs = timed(settings, sizes, endpoint, folder)
        worth = dict(zip([*settings, HOST], scores.result(), strict=True))
        host = [*sizes, "--reflection-columns", "feedback"]
        with CORES:
            runs[HOST] = run_vf_gepa(endpoint, folder, *host, model=f"0 {quality.HOST}")
        means = {name: val_mean(run) for name, run in runs.items()}
    rows = [
        [
            name,
            f"{run.wall:.0f}",
            f"{runs[HOST].wall / run.wall:.1f}",
            f"{run.rollouts}",
            f"{run.cpu:.0f}",
            f"{means[name]:.3f}",
            worth[name],
        ]
        for name, run in runs.items()
    ]
    columns = ["", "seconds", "times as fast", "rollouts", "CPU s", "final val mean"]
    columns.append(f"true score, {seeds} seeds")
    title = f"A search of {budget} rollouts, student {latency:g} s, teacher {teacher_latency:g} s"
    print_table(title, columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--val", type=int, default=50, help="val tasks")
    parser.add_argument("--settings", nargs="+", default=quality.SHOWN, choices=list(quality.OURS))
    parser.add_argument("--seeds", type=int, default=8, help="searches that are averaged")
    parser.add_argument("--latency", type=float, default=1.0, help="the student's, in seconds")
    parser.add_argument("--teacher-latency", type=float, default=5.0)
    options = parser.parse_args()
    compare(**vars(options))
