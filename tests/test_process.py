"""What only a process of its own shows: signals, kills, and a locale that is not UTF-8."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Forks
from tests.support import (
    BASE,
    ROOT,
    Endpoint,
    Reply,
    Request,
    Run,
    command_env,
    fenced,
    good_student,
    good_teacher,
    placed,
    run,
    scripted,
    steady,
    student_requests,
)

pytestmark = pytest.mark.xdist_group("processes")  # they share one parent process

SECONDS = 120
"""Longer than any of these processes takes on a slow machine."""

TRAIN = {f"question {number}" for number in range(4)}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forks")
    with scripted() as nowhere, Forks(folder, command_env(nowhere)) as started:
        yield started


def hold(answer: Callable[[Request], Any], held: Callable[[Request], bool]) -> Callable[..., Any]:
    """`answer`, but requests for which `held` is true hang till the caller gives up."""
    never = threading.Event()
    return lambda request: Reply(until=never) if held(request) else answer(request)


def seed_pass() -> Endpoint:
    """Hangs in the seed's val pass, at the second of its rollouts."""
    return scripted(hold(good_student, lambda request: request.user != "question 4"))


def child_pass() -> Endpoint:
    """Hangs in the second child's val pass. The first child is right on some train tasks and one
    val task, the second on all, so that the second one beats it on its minibatch."""

    def student(request: Request) -> str:
        some = {"question 0", "question 2", "question 4"}
        good = "v2" in request.system or ("v1" in request.system and request.user in some)
        return "right" if good else "wrong"

    def held(request: Request) -> bool:
        return "v2" in request.system and request.user not in TRAIN

    return scripted(hold(student, held))


def teacher_call() -> Endpoint:
    """Hangs in the first teacher call."""
    return scripted(teacher=hold(good_teacher(), lambda request: True))


MOMENTS = {
    # Where it hangs, requests till then, charged rollouts, candidates.
    "the seed's val pass": (seed_pass, 4, 1, 1),
    "a child's val pass after one acceptance": (child_pass, 22, 16, 2),
    "a teacher call": (teacher_call, 7, 6, 1),
}


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGINT", "SIGINT"]])
@pytest.mark.parametrize(
    ("where", "requests", "charged", "candidates"), MOMENTS.values(), ids=MOMENTS
)
def test_a_signal_ends_the_run_in_order(
    tmp_path: Path,
    forks: Forks,
    where: Callable[[], Endpoint],
    requests: int,
    charged: int,
    candidates: int,
    signals: list[str],
) -> None:
    signum = signal.Signals[signals[0]]
    with where() as endpoint:
        base = [*BASE, "--max-total-rollouts", "40", *placed(endpoint, tmp_path, "run")]
        child = forks.start(*base)
        endpoint.wait_for(requests, SECONDS)
        for name in signals:
            child.kill(signal.Signals[name])
        status = child.wait()
        assert len(endpoint.requests) == requests
    assert status == 128 + signum
    assert child.out.read_bytes() == b""
    lines = child.err.read_text().splitlines()
    assert "interrupted: finishing up, please wait (what was measured is kept)" in lines
    assert f"stopped by {signum.name}" in lines[-1]
    assert any(line.endswith("configs/resolved/gepa.json --resume") for line in lines)

    done = Run(status, tmp_path / "run")
    result = done.result
    assert (result["status"], result["partial"]) == ("interrupted", True)
    assert result["finish_reason"] == signum.name
    assert result["rollouts"]["charged"] == done.charged == charged
    assert done.prompt == [b"Answer.", b"Answer. GOOD v1"][candidates - 1]
    assert len(result["val_means"]) == (0 if charged < 4 else candidates)
    left = [path for path in forks.home.rglob("*") if path.parent.name == "subprocess"]
    assert left == []

    with scripted() as endpoint:
        again = [
            *BASE,
            "--max-total-rollouts",
            "40",
            *placed(endpoint, tmp_path, "run"),
            "--resume",
        ]
        assert forks.start(*again).wait() == 0
        assert len(student_requests(endpoint)) == Run(0, done.folder).charged - charged


def test_killed_at_twenty_random_moments_it_ends_like_a_run_that_was_not(
    tmp_path: Path, forks: Forks
) -> None:
    base = ["board-v1", "--local", "-m", "student", "--num-train", "6", "--num-val", "6"]
    base += ["--num-test", "0", "--taskset.size", "12", "--max-total-rollouts", "60", "-c", "3"]
    base += ["--phase", "optimize"]
    with steady() as endpoint:
        whole = run(endpoint, tmp_path, base=base)
        total = len(endpoint.requests)
    rng = random.Random(0)
    kills = 20
    with steady() as endpoint:
        more: list[str] = []
        for _ in range(kills):
            child = forks.start(*base, *placed(endpoint, tmp_path, "killed"), *more)
            # Each of these processes gets a few requests further, then dies in one.
            child.kill_at(endpoint, len(endpoint.requests) + rng.randint(1, 7), SECONDS)
            if (tmp_path / "killed/identity.json").exists():
                more = ["--resume"]
        assert forks.start(*base, *placed(endpoint, tmp_path, "killed"), *more).wait() == 0
        sent = len(endpoint.requests)
    killed = Run(0, tmp_path / "killed")
    for name in ("candidates.json", "run_log.json", "best_system_prompt.txt"):
        assert (killed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    for key in ("val_means", "parents", "proposals", "finish_reason"):
        assert killed.result[key] == whole.result[key]
    assert killed.charged == whole.charged == 60
    assert total <= sent <= total + 3 * kills


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def ascii_command(endpoint: Endpoint, folder: Path, *more: str) -> tuple[bytes, bytes]:
    """Standard output and error of a `gepa` process in an ASCII locale."""
    where = ["-o", str(folder), "--run.name", "run", "--max-total-rollouts", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "verifiers_gepa", *BASE, *where, *more],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=command_env(endpoint, **ASCII),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr


def test_an_ascii_locale_changes_no_byte(tmp_path: Path) -> None:
    text = "Sei höflich \U0001f600.\r\n\t{question} %s $VAR"
    better = f"{text}\nGOOD é"
    with scripted(teacher=lambda _: fenced(better)) as endpoint:
        out, _ = ascii_command(endpoint, tmp_path, "--initial-prompt", text)
    assert out == better.encode()
    done = Run(0, tmp_path / "run")
    assert done.prompt == better.encode()
    assert done.candidates == [text, better]
    assert {request.system for request in student_requests(endpoint)} == {text, better}
    assert done.json("configs/resolved/gepa.json")["initial_prompt"] == text


def test_the_other_commands_in_an_ascii_locale_and_a_closed_pipe(tmp_path: Path) -> None:
    folder = tmp_path / "läufe"
    folder.mkdir()
    with scripted() as endpoint:
        done = run(endpoint, folder, "--max-total-rollouts", "12")
        env = command_env(endpoint, **ASCII)
    calls = {
        "report": [str(done.folder)],
        "compare": [str(done.folder), str(done.folder)],
        "aggregate": [str(done.folder)],
    }
    code = "import sys; from verifiers_gepa import __main__ as m; sys.exit(getattr(m, {!r})())"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        ran = {
            (name, piped): subprocess.run(
                [sys.executable, "-c", code.format(name), *args],
                stdout=closed if piped else subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                timeout=SECONDS,
                check=False,
            )
            for name, args in calls.items()
            for piped in (False, True)
        }
    assert ran["report", False].stdout == f"{done.folder}/report.html\n".encode()
    assert ran["compare", False].stdout.endswith(b"equal: the same search, step by step\n")
    statuses = {name: one.returncode for name, one in ran.items()}
    assert statuses == {(name, piped): int(name == "aggregate") for name, piped in ran}
    assert {one.stderr for one in ran.values()} == {b""}


@pytest.mark.parametrize("command", ["main", "aggregate", "compare", "report"])
def test_a_ctrl_c_during_the_imports_ends_a_command_without_a_traceback(command: str) -> None:
    code = f"""
import signal, sys
from verifiers_gepa import __main__

class Interrupting:
    @staticmethod
    def find_spec(name, path, target=None):
        if name.startswith("verifiers.v1"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
sys.exit(__main__.{command}())
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, cwd=ROOT, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_prompt_file_in_an_ascii_locale(tmp_path: Path) -> None:
    text = "Sei höflich.\r\nGOOD"
    file = tmp_path / "prompt.txt"
    file.write_bytes(text.encode())
    with scripted() as endpoint:
        out, _ = ascii_command(endpoint, tmp_path, "--taskset.system-prompt", str(file))
    assert out == text.encode()
    assert student_requests(endpoint)[0].system == text
