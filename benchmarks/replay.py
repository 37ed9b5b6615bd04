"""How fast a resume reads its record: a run of N rollouts, then the same from its record.

    python benchmarks/replay.py 10000

Both are measured side by side in one process, against an endpoint on loopback that answers at
once, so the live time is all this project's and the host's own.
"""

import argparse
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/tasksets")]

import verifiers_gepa  # noqa: F401 - before anything of verifiers

# isort: split

from tests.support import fenced, scripted
from verifiers.v1.cli.gepa import main
from verifiers_gepa.endpoint import Request


def student(request: Request) -> str:
    """Right half of the time, depending on prompt and question."""
    return "right" if zlib.crc32((request.system + request.user).encode()) % 2 else "wrong"


def teacher(request: Request) -> str:
    """A new prompt per request."""
    return fenced(f"Answer. {zlib.crc32(request.user.encode())}")


def timed(argv: list[str]) -> float:
    """Seconds that the command takes."""
    started = time.perf_counter()
    assert main(argv) == 0
    return time.perf_counter() - started


def compare(rollouts: int) -> None:
    """Print the seconds of both and their ratio."""
    with tempfile.TemporaryDirectory() as folder, scripted(student, teacher) as endpoint:
        argv = ["board-v1", "--local", "-m", "student", "--taskset.size", "100"]
        argv += ["--num-train", "50", "--num-val", "50", "--num-test", "0"]
        argv += ["--max-total-rollouts", str(rollouts), "-o", folder, "--run.name", "run"]
        argv += ["--client.base-url", endpoint.url]
        argv += ["--reflection-client.base-url", endpoint.teacher_url]
        live = timed(argv)
        sent = len(endpoint.requests)
        replay = timed([*argv, "--resume"])
        assert len(endpoint.requests) == sent
        size = (Path(folder) / "run/traces.jsonl").stat().st_size / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stderr.write(
        f"{rollouts} rollouts: live {live:.1f} s, from the record ({size:.0f} MB) {replay:.1f} s, "
        f"{live / replay:.0f} times as fast; {memory:.0f} MB of memory at most\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts", type=int, nargs="?", default=10_000)
    compare(parser.parse_args().rollouts)
