"""Many runs in one process, because importing takes seconds: `many.py gepa|vf-gepa TRAIN VAL`.

A line of standard input is a JSON object: `argv`, and `folder`, the run's directory. For each, one
line goes out: the prompts that the search ran on all val tasks, in order, each with how many
rollouts the search had made by then, its val mean and its text. The first TRAIN tasks are those of
train, VAL is the number of the others. `vf-gepa` is the host's, in a process where nothing of ours
is mounted.
"""

import contextlib
import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean


def validated(folder: Path, train: int, val: int) -> list[tuple[int, float, str]]:
    """Rollouts until then, val mean and text of each prompt, read from the run's `traces.jsonl`."""
    scores: defaultdict[str, list[float]] = defaultdict(list)
    found = []
    with (folder / "traces.jsonl").open("rb") as lines:
        for number, line in enumerate(lines, 1):
            (trace,) = json.loads(line)["traces"]
            task, rewards = trace["task"]["data"], trace["rewards"].values()
            if task["idx"] < train:
                continue
            mine = scores[task["system_prompt"]]
            mine.append(sum(one["score"] * one["weight"] for one in rewards))
            if len(mine) == val:
                found.append((number, fmean(mine), task["system_prompt"]))
    return found


def run_all(command: str, train: int, val: int) -> None:
    """Run what standard input names. Raises RuntimeError for a run that fails."""
    if command == "gepa":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import verifiers_gepa  # noqa: F401
    main = importlib.import_module("verifiers.v1.cli.gepa").main
    assert ("verifiers_gepa" in sys.modules) == (command == "gepa")
    out = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            if main(asked["argv"]):
                raise RuntimeError(f"failed: {asked['argv']}")
        out.write(json.dumps(validated(Path(asked["folder"]), train, val)) + "\n")
        out.flush()


if __name__ == "__main__":
    run_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
