"""How good the prompt is that a search finds with its rollouts: ours, vf-gepa, best of N samples.

    python benchmarks/quality.py --seeds 10 --budgets 150 300 600

The student is noisy and the teacher of mixed quality (see `mixed.py`). A setting's figure is the
mean, over the seeds, of what the prompt with the best val mean after so many rollouts is truly
worth on messages that no search saw, with its standard error. The search alone is compared: no
phase after it helps ours. One search per seed, to the largest budget, gives the figures of all.
`vf-gepa` runs on our harness here, because its own makes two rollouts a second.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.common import CORES, Served, environment, print_table, served
from benchmarks.mixed import SEED_PROMPT, chance, messages, propose, reply, score, true_score

TRAIN, VAL, MINIBATCH = 30, 20, 3


def _flags(proposals: int, kept: int | None = None) -> list[str]:
    flags = ["--proposals-per-iteration", str(proposals)]
    return [*flags, "--accepted-per-iteration", str(kept)]


OURS = {
    "1 proposal": _flags(1),
    **{f"{n} proposals": _flags(n) for n in (2, 4, 8)},
    **{f"{n} proposals, best kept": _flags(n, 1) for n in (2, 3, 4, 8)},
    **{f"{n} proposals, 2 kept": _flags(n, 2) for n in (4, 8)},
    "4 of one parent": [*_flags(4, 1), "--parents-per-iteration", "1"],
}
"""The flags of a setting."""

SHOWN = ("1 proposal", *(f"{n} proposals, best kept" for n in (2, 4)), "8 proposals, 2 kept")
"""Those that run unless others are named."""

HOST = "vf-gepa"
SAMPLES = "best of N samples"

Found = list[tuple[int, float, str]]
"""Of one search, the prompts that it ran on val: after how many rollouts, val mean, text."""


def search_all(
    settings: Sequence[str],
    seeds: int,
    budget: int,
    endpoint: Served,
    jobs: int,
    train: int = TRAIN,
    val: int = VAL,
    nice: int = 0,
) -> dict[str, list[Found]]:
    """The searches of each setting, one per seed, spread over `jobs` processes."""
    found: dict[str, list[Found]] = {name: [] for name in settings}
    sizes = ["--num-train", str(train), "--num-val", str(val), "--max-total-rollouts", str(budget)]
    for command, names in (("gepa", OURS), ("vf-gepa", (HOST,))):
        asked = [(name, seed) for seed in range(seeds) for name in settings if name in names]
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
            orders = [
                {
                    "argv": [*arguments(name, seed, endpoint, f"{folder}/{name}"), *sizes],
                    "folder": f"{folder}/{name}/{seed}",
                }
                for name, seed in asked
            ]
            shares = [orders[job::jobs] for job in range(jobs)]
            runs = pool.map(partial(search_each, command, train, val, nice), shares)
            for job, searches in enumerate(runs):
                for (name, _), search in zip(asked[job::jobs], searches, strict=True):
                    found[name].append(search)
    return found


def search_each(
    command: str, train: int, val: int, nice: int, orders: Sequence[Any]
) -> list[Found]:
    """These runs, one after the other in a process of their own (see `many.py`)."""
    if not orders:
        return []
    lowered = ["nice", "-n", str(nice)] if nice else []
    with tempfile.TemporaryFile() as log:
        done = subprocess.run(
            [*lowered, sys.executable, HERE / "many.py", command, str(train), str(val)],
            input="\n".join(map(json.dumps, orders)).encode(),
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
            check=False,
        )
        if done.returncode:
            log.seek(0)
            raise RuntimeError(f"{command} failed:\n{log.read().decode()[-4000:]}")
    return [[(*one,) for one in json.loads(line)] for line in done.stdout.splitlines()]


def arguments(setting: str, seed: int, endpoint: Served, folder: str) -> list[str]:
    """The command's arguments for one run, but for its sizes."""
    # The student's draws depend on its model's name and on how often that was asked before.
    name = f"{seed} {setting}"
    argv = ["support-intent-v1", "-m", name, "--reflection-model", name, "-c", "128"]
    argv += ["--client.base-url", endpoint.url]
    argv += ["--reflection-client.base-url", endpoint.teacher_url]
    argv += ["--seed", str(seed), "--reflection-minibatch-size", str(MINIBATCH)]
    argv += ["-o", folder, "--run.name", str(seed)]
    if setting == HOST:
        seat = ["--env.agent.harness.id", "direct-chat", "--env.agent.runtime.type", "subprocess"]
        return [*argv, *seat, "--reflection-columns", "feedback"]
    return [*argv, "--num-test", "0", "--phase", "optimize", "--no-preflight", *OURS[setting]]


def sample(seed: int, budget: int) -> Found:
    """As many proposals for the seed prompt as the budget pays for, each from a minibatch of its
    own and with a val pass."""
    train, val = list(messages())[:TRAIN], list(messages())[TRAIN : TRAIN + VAL]

    def rollout(prompt: str, message: str, number: int) -> tuple[float, str]:
        return score(message, reply(prompt, message, f"{seed} {number}"))

    def val_mean(prompt: str) -> float:
        return fmean(rollout(prompt, message, 0)[0] for message in val)

    found = [(VAL, val_mean(SEED_PROMPT), SEED_PROMPT)]
    for number in range(1, (budget - VAL) // (MINIBATCH + VAL) + 1):
        batch = sorted(train, key=lambda message: chance(seed, number, message))[:MINIBATCH]
        feedback = "\n".join(rollout(SEED_PROMPT, message, number)[1] for message in batch)
        request = f"<current_prompt>\n{SEED_PROMPT}\n</current_prompt>\n{feedback}"
        prompt = propose(request, f"{seed} {number}").split("```")[1].strip("\n")
        found.append((VAL + number * (MINIBATCH + VAL), val_mean(prompt), prompt))
    return found


def best(found: Found, budget: int) -> str:
    """The prompt with the best val mean after that many rollouts, the first of equals."""
    return max((one for one in found if one[0] <= budget), key=lambda one: one[1])[2]


def figure(runs: Sequence[Found], budget: int, seen: int = TRAIN + VAL) -> str:
    """Mean true score and its standard error; the searches saw the first `seen` messages."""
    worth = [true_score(best(found, budget), seen) for found in runs]
    error = stdev(worth) / math.sqrt(len(worth)) if len(worth) > 1 else math.nan
    return f"{fmean(worth):.3f} ± {error:.3f}"


def compare(settings: Sequence[str], seeds: int, budgets: Sequence[int], jobs: int) -> None:
    """Print the table."""
    with CORES, served(models="mixed") as endpoint:
        found = search_all(settings, seeds, max(budgets), endpoint, jobs)
    found[SAMPLES] = [sample(seed, max(budgets)) for seed in range(seeds)]
    rows = [
        [
            name,
            *(figure(runs, budget) for budget in budgets),
            f"{fmean(len(run) - 1 for run in runs):.1f}",
        ]
        for name, runs in found.items()
    ]
    seed = f"{true_score(SEED_PROMPT, TRAIN + VAL):.3f}"
    rows.append(["the seed prompt", *(seed for _ in budgets), "0"])
    columns = ["", *(f"{budget} rollouts" for budget in budgets), "run on val"]
    print_table(f"True score of the prompt found, mean of {seeds} seeds", columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budgets", type=int, nargs="+", default=[150, 300, 600])
    parser.add_argument("--settings", nargs="+", default=[*SHOWN, HOST], choices=[*OURS, HOST])
    parser.add_argument("--jobs", type=int, default=2, help="searches at a time")
    options = parser.parse_args()
    compare(options.settings, options.seeds, options.budgets, options.jobs)
