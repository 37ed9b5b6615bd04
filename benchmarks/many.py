"""Many runs in one process, because importing takes seconds: `many.py gepa|vf-gepa`.

A line of standard input is a JSON object: `argv`, and `folder`, the run's directory. For each, one
line goes out, with the run's `prompt` and how many `rollouts` it made. `vf-gepa` is the host's, in
a process where nothing of ours is mounted.
"""

import contextlib
import importlib
import json
import sys
from pathlib import Path


def run_all(command: str) -> None:
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
        folder = Path(asked["folder"])
        rollouts = sum(1 for _ in (folder / "traces.jsonl").open("rb"))
        prompt = (folder / "best_system_prompt.txt").read_bytes().decode()
        out.write(json.dumps({"prompt": prompt, "rollouts": rollouts}) + "\n")
        out.flush()


if __name__ == "__main__":
    run_all(sys.argv[1])
