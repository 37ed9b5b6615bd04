"""Seconds until `gepa -h` and a dry run have ended, against `import verifiers.v1` alone.

    python benchmarks/startup.py

The import is the floor: every command of verifiers pays for it. All are run in turn, several times,
and the medians shown; a first time compiles bytecode that is not there yet.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, environment, print_table

GEPA = ["-m", "verifiers_gepa"]
FLOOR = "python -c 'import verifiers.v1'"


def commands(folder: str) -> dict[str, list[str]]:
    """What is timed, by how it is shown."""
    line = ["support-intent-v1", "--dry-run", "-m", "student", "-o", folder]
    return {
        FLOOR: ["-c", "import verifiers.v1"],
        "gepa --version": [*GEPA, "--version"],
        "gepa -h": [*GEPA, "-h"],
        "gepa support-intent-v1 --dry-run": [*GEPA, *line],
        "vf-gepa -h": ["-c", "from verifiers.v1.cli.gepa import main; main(['-h'])"],
    }


def seconds(words: list[str]) -> float:
    """Wall-clock of `python words`."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    return time.perf_counter() - started


def main(repeats: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        lines = commands(folder)
        taken: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(repeats):
            for name, words in lines.items():
                taken[name].append(seconds(words))
    floor = median(taken[FLOOR])
    rows = [
        (name, f"{median(times):.2f}", f"{median(times) - floor:+.2f}")
        for name, times in taken.items()
    ]
    print_table("Start-up", ("", "seconds", "to the import"), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    main(parser.parse_args().repeats)
