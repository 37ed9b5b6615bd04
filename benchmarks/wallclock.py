"""How long a whole search takes where models take their time: ours at 1, 4 and 8 proposals per
iteration, and vf-gepa.

    python benchmarks/wallclock.py --budget 500

The student takes a second per reply, the teacher five; both are those of `mixed.py`. Val means are
those of the search, read for both commands from their `traces.jsonl`. All runs go on at the same
time: ours mostly wait, and what they lose to `vf-gepa`, which keeps both cores busy starting a
process per rollout, counts against ours.
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

from benchmarks.common import Measured, print_table, run_gepa, run_vf_gepa, served

TRAIN = 50

HOST = "vf-gepa with null"


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


def compare(
    budget: int, val: int, proposals: Sequence[int], latency: float, teacher_latency: float
) -> None:
    """Print the table."""
    sizes = ["--num-train", str(TRAIN), "--num-val", str(val), "--max-total-rollouts", str(budget)]
    ours = ["--num-test", "0", "--phase", "optimize", "--no-preflight"]
    with (
        served(latency, teacher_latency, models="mixed") as endpoint,
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor() as pool,
    ):
        # Each run has a student of its own name, or their draws would depend on each other.
        started = {
            f"gepa, {n} proposals at a time": pool.submit(
                run_gepa,
                endpoint,
                Path(name),
                *[*sizes, *ours, "--proposals-per-iteration", str(n)],
                model=f"student 0 of {n}",
            )
            for n in proposals
        }
        started[HOST] = pool.submit(
            run_vf_gepa,
            endpoint,
            Path(name),
            *[*sizes, "--reflection-columns", "feedback"],
            model="student 0 of the host",
        )
        runs = {name: run.result() for name, run in started.items()}
        means = {name: val_mean(run) for name, run in runs.items()}
    rows = [
        [
            name,
            f"{run.wall:.0f}",
            f"{runs[HOST].wall / run.wall:.1f}",
            f"{run.rollouts}",
            f"{run.cpu:.0f}",
            f"{means[name]:.3f}",
        ]
        for name, run in runs.items()
    ]
    columns = ["", "seconds", "times as fast", "rollouts", "CPU s", "final val mean"]
    title = f"A search of {budget} rollouts, student {latency:g} s, teacher {teacher_latency:g} s"
    print_table(title, columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--val", type=int, default=50, help="val tasks")
    parser.add_argument("--proposals", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--latency", type=float, default=1.0, help="the student's, in seconds")
    parser.add_argument("--teacher-latency", type=float, default=5.0)
    options = parser.parse_args()
    compare(**vars(options))
