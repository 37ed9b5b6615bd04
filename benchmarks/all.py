"""Every benchmark, each with its tables.

    python benchmarks/all.py --write

Names of scripts run those alone. `--write` puts the tables into `docs/benchmarks.md`, between the
marks of each script. How long each took goes to standard error.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/benchmarks.md"

LOWEST = 19
"""Niceness."""

GROUPS = (("throughput",), ("steps",), ("wallclock", "quality"), ("startup",))
"""What runs at once: the first one, and the others at the lowest priority, as it mostly waits."""

SCRIPTS = [name for group in GROUPS for name in group]


def filled(page: str, name: str, tables: str) -> str:
    """The page with these tables between the marks of a script. Raises ValueError without marks."""
    marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.compile(f"(?<={re.escape(marks[0])}).*?(?={re.escape(marks[1])})", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE} has no marks for {name}")
    # The blank rows around a table are one line each, with or without spaces.
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(map(str.rstrip, tables.strip().splitlines())))
    return pattern.sub(lambda _: f"\n{text}\n\n", page)


def run(name: str, nice: int) -> tuple[int, str]:
    """Exit status and tables of a script."""
    started = time.perf_counter()
    lowered = ["nice", "-n", str(nice)] if nice else []
    command = [*lowered, sys.executable, str(HERE / f"{name}.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    took = time.perf_counter() - started
    print(f"{name}: {took:.0f} s, status {done.returncode}", file=sys.stderr, flush=True)
    return done.returncode, done.stdout.decode()


def main(names: Sequence[str], write: bool) -> int:
    """Exit status: 1 where a script fails; the others are run all the same."""
    failed = False
    for group in GROUPS:
        chosen = [name for name in group if name in names]
        priorities = [0, *[LOWEST] * len(chosen)]
        with ThreadPoolExecutor() as pool:
            done = list(pool.map(run, chosen, priorities))
        for name, (status, tables) in zip(chosen, done, strict=True):
            print(tables, flush=True)
            failed = failed or status != 0
            if write and not status:
                page = filled(PAGE.read_text("utf-8"), name, tables)
                PAGE.write_text(page, "utf-8", newline="\n")
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of " + ", ".join(SCRIPTS))
    parser.add_argument("--write", action="store_true", help="write them into docs/benchmarks.md")
    options = parser.parse_args()
    if unknown := {*options.names} - {*SCRIPTS}:
        parser.error(f"no benchmark: {', '.join(sorted(unknown))}")
    sys.exit(main(options.names or SCRIPTS, options.write))
