"""Every benchmark, one after the other, each with its tables.

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
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/benchmarks.md"

SCRIPTS = ("throughput", "steps", "quality", "wallclock", "startup")


def filled(page: str, name: str, tables: str) -> str:
    """The page with these tables between the marks of a script. Raises ValueError without marks."""
    marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.compile(f"(?<={re.escape(marks[0])}).*?(?={re.escape(marks[1])})", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE} has no marks for {name}")
    # The blank rows around a table are one line each, with or without spaces.
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(map(str.rstrip, tables.strip().splitlines())))
    return pattern.sub(lambda _: f"\n{text}\n\n", page)


def main(names: Sequence[str], write: bool) -> int:
    """Exit status: 1 where a script fails; the others are run all the same."""
    failed = False
    for name in names:
        started = time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py")]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        tables = done.stdout.decode()
        print(tables, flush=True)
        took = time.perf_counter() - started
        print(f"{name}: {took:.0f} s, status {done.returncode}", file=sys.stderr, flush=True)
        failed = failed or done.returncode != 0
        if write and not done.returncode:
            page = filled(PAGE.read_text("utf-8"), name, tables)
            PAGE.write_text(page, "utf-8", newline="\n")
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of " + ", ".join(SCRIPTS))
    parser.add_argument("--write", action="store_true", help="write them into docs/benchmarks.md")
    options = parser.parse_args()
    sys.exit(main(options.names or SCRIPTS, options.write))
