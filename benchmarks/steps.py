"""What a step of the search costs after 1,000, 5,000 and 20,000 rollouts, in time and memory, and
how fast a resume reads such a record.

    python benchmarks/steps.py --rollouts 20000

Every step does the same work (see `climbing.py`): two minibatches of 5 and a val pass. The endpoint
is a process of its own and answers at once, so the time is this project's, gepa's and the host's.

The beginning is run once more at the end, and its figures are those of both: a machine whose speed
drifts would otherwise look like a search that gets slower, or faster.
"""

import argparse
import contextlib
import logging
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import verifiers_gepa  # noqa: F401 - before anything of verifiers

# isort: split

from benchmarks.common import print_table, served
from verifiers.v1.cli.gepa import main

MINIBATCH = 5
WINDOW = 15
"""Steps before and after a point whose median is its figure."""


@dataclass(frozen=True)
class Step:
    """A step that has ended: rollouts so far, the time and this process's CPU time in seconds,
    memory in use in MB."""

    rollouts: int
    at: float
    cpu: float
    memory: float


class Steps(logging.Handler):
    """Notes each step of the run in this process, at its log line about an accepted prompt."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.steps: list[Step] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(r"\[(\d+)/\d+ rollouts\] (seed )?prompt", record.getMessage())
        if found:
            times = time.perf_counter(), time.process_time()
            self.steps.append(Step(int(found[1]), *times, resident()))


def resident() -> float:
    """MB of memory that this process has in use."""
    status = Path("/proc/self/status").read_text("ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@dataclass(frozen=True)
class Search:
    """A search and its resume, which replays all of it; times in seconds."""

    steps: Sequence[Step]
    again: Sequence[Step]
    """The first of another one that ran after it."""
    live: float
    replay: float
    megabytes: float
    """The size of its record."""


def run(rollouts: int, val: int, point: int) -> Search:
    """A search with that budget and that many val tasks, and another one that ends after the steps
    around `point`."""
    with served(models="climbing") as endpoint, tempfile.TemporaryDirectory() as folder:
        argv = ["climbing-v1", "--local", "-m", "student", "-c", "128", "-o", folder]
        argv += ["--taskset.val", str(val), "--num-train", "50", "--num-val", str(val)]
        argv += ["--num-test", "0", "--reflection-minibatch-size", str(MINIBATCH)]
        argv += ["--phase", "optimize", "--no-rich"]
        argv += ["--proposals-per-iteration", "1"]
        argv += ["--client.base-url", endpoint.url]
        argv += ["--reflection-client.base-url", endpoint.teacher_url]
        whole = [*argv, "--run.name", "run", "--max-total-rollouts", str(rollouts)]
        live, steps = _timed(whole)
        record = Path(folder, "run/traces.jsonl").stat().st_size
        replay, _ = _timed([*whole, "--resume"])
        few = min(rollouts, point + (WINDOW + 2) * (2 * MINIBATCH + val))
        _, again = _timed([*argv, "--run.name", "again", "--max-total-rollouts", str(few)])
        return Search(steps, again, live, replay, record / 1e6)


def _timed(argv: list[str]) -> tuple[float, list[Step]]:
    """How long the command took, and its steps."""
    steps, logger = Steps(), logging.getLogger("verifiers.v1.gepa.search.progress")
    logger.addHandler(steps)
    started = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        if main(argv):
            raise RuntimeError(f"failed: {argv}")
    took = time.perf_counter() - started
    logger.removeHandler(steps)
    return took, steps.steps


def around(steps: Sequence[Step], point: int) -> tuple[float, float, float, int]:
    """Median seconds and CPU seconds of the steps around `point` rollouts, the memory in use and
    the number of candidates there."""
    middle = min(range(len(steps)), key=lambda number: abs(steps[number].rollouts - point))
    first = max(1, min(middle - WINDOW, len(steps) - 1 - 2 * WINDOW))
    window = range(first, min(first + 2 * WINDOW, len(steps) - 1) + 1)
    seconds = median(steps[number].at - steps[number - 1].at for number in window)
    cpu = median(steps[number].cpu - steps[number - 1].cpu for number in window)
    return seconds, cpu, steps[middle].memory, middle + 1


def compare(rollouts: int, vals: Sequence[int]) -> None:
    """Print both tables."""
    points = [point for point in (1_000, 5_000, 20_000) if point <= rollouts] or [rollouts]
    rows, replays = [], []
    for val in vals:
        search = run(rollouts, val, points[0])
        steps = search.steps
        replays.append(
            [
                f"{rollouts:,} rollouts, {val} val tasks, {search.megabytes:.0f} MB",
                f"{search.live:.1f}",
                f"{search.replay:.1f}",
                f"{search.live / search.replay:.0f}",
            ]
        )
        twice = [around(search.again, points[0])[:2], around(steps, points[0])[:2]]
        first, first_cpu = map(fmean, zip(*twice, strict=True))
        for point in points:
            seconds, cpu, memory, candidates = around(steps, point)
            if point == points[0]:
                seconds, cpu = first, first_cpu
            figures = [f"{point:,}", f"{candidates}", f"{seconds:.3f}", f"{seconds / first:.2f}"]
            figures += [f"{cpu:.3f}", f"{cpu / first_cpu:.2f}", f"{memory:.0f}"]
            rows.append([f"{val}, {2 * MINIBATCH + val}", *figures])
    columns = ["val tasks, rollouts a step", "after", "prompts", "s", "ratio", "CPU s", "ratio"]
    columns.append("MB")
    print_table("A step of the search", columns, rows)
    columns = ["record", "made in s", "replayed in s", "times as fast"]
    print_table("Replay of a record", columns, replays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--val", type=int, nargs="+", default=[50], help="val tasks")
    options = parser.parse_args()
    compare(options.rollouts, options.val)
