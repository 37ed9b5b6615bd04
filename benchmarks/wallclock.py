"""How long a whole search takes where models take their time, and what it finds: ours at several
numbers of proposals per iteration, and vf-gepa with the host's own harness.

    python benchmarks/wallclock.py --budget 500

The student takes a second per reply, the teacher five; both are those of `mixed.py`. Val means are
those of the search, read for both commands from their `traces.jsonl`. As a single search says
little about what one finds on average, the searches are repeated with further seeds by models that
answer at once, and `vf-gepa`'s with `direct-chat`: neither changes what is found.

The timed runs go on at the same time, `vf-gepa` at a lower priority. Ours mostly wait, so they take
little from it (their CPU seconds are in the table); it keeps all cores busy starting a process per
rollout.
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
from benchmarks.common import Measured, print_table, run_gepa, run_vf_gepa, served

TRAIN = 50

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
    settings: Sequence[str], budget: int, val: int, latency: float, teacher_latency: float
) -> dict[str, tuple[Measured, float]]:
    """One run of each setting and of `vf-gepa`: what it took, and its val mean."""
    sizes = ["--num-train", str(TRAIN), "--num-val", str(val), "--max-total-rollouts", str(budget)]
    ours = ["--num-test", "0", "--phase", "optimize", "--no-preflight"]
    with (
        served(latency, teacher_latency, models="mixed") as endpoint,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor() as pool,
    ):
        # Each run has a student of its own name, or their draws would depend on each other.
        started = {
            name: pool.submit(
                run_gepa,
                endpoint,
                Path(folder),
                *[*sizes, *ours, *quality.OURS[name]],
                model=f"0 {name}",
            )
            for name in settings
        }
        started[HOST] = pool.submit(
            run_vf_gepa,
            endpoint,
            Path(folder),
            *[*sizes, "--reflection-columns", "feedback"],
            model=f"0 {quality.HOST}",
        )
        runs = {name: run.result() for name, run in started.items()}
        return {name: (run, val_mean(run)) for name, run in runs.items()}


def true_scores(settings: Sequence[str], budget: int, val: int, seeds: int) -> dict[str, str]:
    """What the prompts are truly worth that the same searches find, on average."""
    names = [*settings, quality.HOST]
    with served(models="mixed") as endpoint, ThreadPoolExecutor(2) as pool:
        runs = pool.map(
            lambda name: quality.search(name, seeds, budget, endpoint, TRAIN, val), names
        )
        shown = [quality.figure(found, budget, TRAIN + val) for found in runs]
    return dict(zip([*settings, HOST], shown, strict=True))


def compare(
    settings: Sequence[str],
    budget: int,
    val: int,
    seeds: int,
    latency: float,
    teacher_latency: float,
) -> None:
    """Print the table."""
    runs = timed(settings, budget, val, latency, teacher_latency)
    worth = true_scores(settings, budget, val, seeds)
    rows = [
        [
            name,
            f"{run.wall:.0f}",
            f"{runs[HOST][0].wall / run.wall:.1f}",
            f"{run.rollouts}",
            f"{run.cpu:.0f}",
            f"{mean:.3f}",
            worth[name],
        ]
        for name, (run, mean) in runs.items()
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
