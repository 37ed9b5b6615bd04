"""One command in this process, timed after its imports: `timed.py REPORT gepa|vf-gepa ARGS...`.

`vf-gepa` is the host's, in a process where nothing of ours is mounted. REPORT gets a JSON object:
`status`, `wall` and `cpu` in seconds, `memory` in MB. CPU is that of the process and of all that it
started and waited for; what importing took is in neither.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def cpu() -> float:
    """CPU seconds so far, children included; those that still run only where there is a /proc."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(live_children())


def live_children() -> Iterator[float]:
    """CPU seconds of each child that still runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                yield (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command: str, argv: list[str]) -> dict[str, float]:
    """Run it; what it took."""
    if command == "gepa":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import verifiers_gepa  # noqa: F401
    main = importlib.import_module("verifiers.v1.cli.gepa").main
    assert ("verifiers_gepa" in sys.modules) == (command == "gepa")
    wall, spent = time.perf_counter(), cpu()
    try:
        status = main(argv) or 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 2
    wall, spent = time.perf_counter() - wall, cpu() - spent
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"status": status, "wall": wall, "cpu": spent, "memory": memory}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(run(sys.argv[2], sys.argv[3:])), "utf-8")
