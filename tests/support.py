"""What the tests of a run share: the command in process, a scripted student and teacher, and
readers of what a run wrote."""

import itertools
import json
import os
import shutil
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from verifiers.v1.cli.gepa import main
from verifiers_gepa.endpoint import Endpoint, Reply, Request

ROOT = Path(__file__).parents[1]
TASKSETS = ROOT / "tests/tasksets"
if str(TASKSETS) not in sys.path:
    sys.path.insert(0, str(TASKSETS))

BASE = ["board-v1", "--local", "-m", "student", "--num-train", "4", "--num-val", "4"]
BASE += ["--num-test", "0", "--reflection-minibatch-size", "2"]
BASE += ["--proposals-per-iteration", "1", "--phase", "optimize"]
"""4 train and 4 val tasks, minibatches of 2: the seed's val pass is 4 rollouts, a proposal 4, its
val pass 4. The search alone, one proposal after the other."""

TEN = ["board-v1", "--local", "-m", "student", "--num-train", "4", "--num-val", "10"]
TEN += [
    "--proposals-per-iteration",
    "1",
    "--num-test",
    "0",
    "--phase",
    "optimize",
    "--taskset.size",
    "14",
    "--reflection-minibatch-size",
    "2",
]

FULL = ["board-v1", "--local", "-m", "student", "--num-train", "4", "--num-val", "6"]
FULL += ["--num-test", "8", "--taskset.size", "18", "--reflection-minibatch-size", "2"]
FULL += ["--proposals-per-iteration", "1", "--max-total-rollouts", "20"]
"""Train 0-3, val 4-9, test 10-17; the seed's val pass is 6, an accepted proposal 4 + 6, so 16 are
spent on the first and 4 on one that is rejected."""

LARGE = [*BASE[:4], "--num-train", "12", "--num-val", "6", "--num-test", "0"]
LARGE += ["--taskset.size", "24", "--reflection-minibatch-size", "2", "--phase", "optimize"]
"""12 train and 6 val tasks, minibatches of 2."""

FOUR = ["--proposals-per-iteration", "4", "--accepted-per-iteration", "None"]

SAME = ("candidates.json", "run_log.json", "best_system_prompt.txt", "splits.json")
"""Files that a resumed run must end with, byte for byte like one that was not cut short."""

SCHEMA = json.loads((ROOT / "docs/result.schema.json").read_bytes())
"""What every result.json must look like."""


def fenced(text: str) -> str:
    return f"Here it is.\n````\n{text}\n````"


def good_student(request: Request) -> str:
    """Right if and only if the system prompt holds GOOD."""
    return "right" if "GOOD" in request.system else "wrong"


def mostly_good(request: Request) -> str:
    """Like `good_student`, but the seed prompt is right on some tasks and GOOD wrong on one."""
    if request.user in {"question 4", "question 10", "question 11"}:
        return "right" if "GOOD" not in request.system else "wrong"
    return good_student(request)


def good_teacher() -> Callable[[Request], str]:
    """A teacher whose k-th reply proposes `Answer. GOOD v<k>`."""
    numbers = itertools.count(1)
    return lambda _: fenced(f"Answer. GOOD v{next(numbers)}")


def steady_student(request: Request) -> str:
    """Right on more questions the more points the prompt makes."""
    points = request.system.count("*")
    return "right" if zlib.crc32(request.user.encode()) % 5 < points else "wrong"


def steady_teacher(request: Request) -> str:
    """A proposal, better or worse, that depends on everything the teacher was shown."""
    prompt = request.user.partition("<current_prompt>\n")[2].partition("\n</current_prompt>")[0]
    digest = zlib.crc32(request.user.encode())
    return fenced(f"{prompt} *{digest}" if digest % 4 else f"{prompt.replace('*', '')} {digest}")


def scripted(
    student: Callable[[Request], Any] = good_student,
    teacher: Callable[[Request], Any] | None = None,
) -> Endpoint:
    """An endpoint with these two behind it."""
    teach = teacher or good_teacher()
    return Endpoint(lambda request: teach(request) if request.to_teacher else student(request))


def steady() -> Endpoint:
    """An endpoint whose every reply depends on its request alone."""
    return scripted(steady_student, steady_teacher)


@dataclass(frozen=True)
class Run:
    """A command that has ended: its exit status and its directory."""

    status: int
    folder: Path

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_bytes())

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return (
            [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        )

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.json("result.json")
        jsonschema.validate(result, SCHEMA)
        return result

    @property
    def prompt(self) -> bytes:
        return (self.folder / "best_system_prompt.txt").read_bytes()

    @property
    def candidates(self) -> list[str]:
        return [candidate["system_prompt"] for candidate in self.json("candidates.json")]

    @property
    def charged(self) -> int:
        """Charged lines of the journal."""
        return sum(line["gepa"]["charged"] for line in self.lines("traces.jsonl"))


def run(endpoint: Endpoint, folder: Path, *args: str, base: list[str] | None = None) -> Run:
    """`gepa` in this process against `endpoint`, its directory below `folder`."""
    name = f"run{len(list(folder.iterdir()))}"
    status = main([*(BASE if base is None else base), *placed(endpoint, folder, name), *args])
    return Run(status, folder / name)


def resume(endpoint: Endpoint, done: Run, *args: str, base: list[str] | None = None) -> Run:
    """The same command again on the directory of `done`, with `--resume`."""
    name = ["--run.name", done.folder.name, "--resume"]
    return run(endpoint, done.folder.parent, *name, *args, base=base)


def resumed(endpoint: Endpoint, done: Run, *args: str, base: list[str] | None = None) -> Run:
    return Run(resume(endpoint, done, *args, base=base).status, done.folder)


def copy(done: Run, name: str) -> Run:
    folder = done.folder.with_name(name)
    shutil.copytree(done.folder, folder)
    return Run(0, folder)


def placed(endpoint: Endpoint, folder: Path, name: str) -> list[str]:
    """The flags of a run named `name` below `folder`, against `endpoint`."""
    where = ["--client.base-url", endpoint.url, "-o", str(folder), "--run.name", name]
    return [*where, "--reflection-client.base-url", endpoint.teacher_url]


def turns() -> Callable[[Request], int]:
    """Counts how often a request's prompt and question came, this time included."""
    seen: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()

    def turn(request: Request) -> int:
        with lock:
            seen[request.system, request.user] += 1
            return seen[request.system, request.user]

    return turn


def student_requests(endpoint: Endpoint) -> list[Request]:
    return [request for request in endpoint.requests if not request.to_teacher]


def teacher_requests(endpoint: Endpoint) -> list[Request]:
    return [request for request in endpoint.requests if request.to_teacher]


def command_env(endpoint: Endpoint, **extra: str) -> dict[str, str]:
    """The environment of a `gepa` process of its own against `endpoint`."""
    paths = [str(ROOT), str(TASKSETS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TASK_ENDPOINTS": endpoint.url,
        "REFLECTION_MODEL_BASE_URL": endpoint.teacher_url,
        **extra,
    }


__all__ = [
    "BASE",
    "FOUR",
    "FULL",
    "LARGE",
    "ROOT",
    "SAME",
    "TEN",
    "Endpoint",
    "Reply",
    "Request",
    "Run",
    "command_env",
    "copy",
    "fenced",
    "good_student",
    "good_teacher",
    "mostly_good",
    "resume",
    "resumed",
    "run",
    "scripted",
    "steady",
    "steady_student",
    "steady_teacher",
    "student_requests",
    "teacher_requests",
]
