"""What only a process of its own shows: signals, and a locale that is not UTF-8."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    BASE,
    Endpoint,
    Reply,
    Request,
    Run,
    command_env,
    fenced,
    good_student,
    good_teacher,
    scripted,
    student_requests,
)

SECONDS = 120
"""Longer than any of these processes takes on a slow machine."""


@contextmanager
def process(
    endpoint: Endpoint, folder: Path, *flags: str, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A `gepa` process with a home directory of its own below `folder`."""
    home = folder / "home"
    home.mkdir()
    command = [sys.executable, "-m", "verifiers_gepa", *BASE, "--max-total-rollouts", "20"]
    with subprocess.Popen(
        [*command, "-o", str(folder), "--run.name", "run", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_env(endpoint, HOME=str(home), **env),
        cwd=folder,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def hold(answer: Callable[[Request], Any], held: Callable[[Request], bool]) -> Callable[..., Any]:
    """`answer`, but requests for which `held` is true hang till the caller gives up."""
    never = threading.Event()
    return lambda request: Reply(until=never) if held(request) else answer(request)


def seed_pass() -> tuple[Endpoint, int]:
    """Hangs in the seed's val pass: 4 requests."""
    return scripted(hold(good_student, lambda request: True)), 4


def child_pass() -> tuple[Endpoint, int]:
    """Hangs in the second child's val pass: 4 + (2 + 1 + 2 + 4), then 2 + 1 + 2 + 4 requests.

    The student is right on train tasks with GOOD, on val tasks only with GOOD v1, so that the first
    child is not perfect and the second one beats it on the minibatch.
    """

    def student(request: Request) -> str:
        if "v2" in request.system:
            return "right"
        return "right" if "GOOD" in request.system and request.user == "question 4" else "wrong"

    def on_val(request: Request) -> bool:
        return "v2" in request.system and request.user in {f"question {n}" for n in range(4, 8)}

    def first_train_right(request: Request) -> str:
        train = request.user in {"question 0", "question 1", "question 2", "question 3"}
        if train and "v1" in request.system:
            # Half right: better than the seed prompt's nothing, worse than v2's everything.
            return "right" if request.user in {"question 0", "question 2"} else "wrong"
        return student(request)

    return scripted(hold(first_train_right, on_val)), 22


def teacher_call() -> tuple[Endpoint, int]:
    """Hangs in the first teacher call: 4 + 2 + 1 requests."""
    return scripted(teacher=hold(good_teacher(), lambda request: True)), 7


CASES = {
    "the seed's val pass": (seed_pass, signal.SIGINT, 1),
    "the seed's val pass, twice": (seed_pass, signal.SIGINT, 2),
    "a teacher call": (teacher_call, signal.SIGTERM, 1),
}


@pytest.mark.parametrize(("where", "signum", "times"), CASES.values(), ids=CASES)
def test_a_signal_ends_the_run_in_order(
    tmp_path: Path, where: Callable[[], tuple[Endpoint, int]], signum: int, times: int
) -> None:
    made, requests = where()
    with made as endpoint, process(endpoint, tmp_path) as child:
        endpoint.wait_for(requests, SECONDS)
        for _ in range(times):
            child.send_signal(signum)
        out, err = child.communicate(timeout=SECONDS)
        assert len(endpoint.requests) == requests
    assert child.returncode == 128 + signum
    assert out == b""
    lines = err.decode().splitlines()
    assert "interrupted: finishing up, please wait (what was measured is kept)" in lines
    assert f"stopped by {signal.Signals(signum).name}" in lines[-1]
    done = Run(child.returncode, tmp_path / "run")
    result = done.result
    assert (result["status"], result["partial"]) == ("interrupted", True)
    assert result["finish_reason"] == signal.Signals(signum).name
    assert done.prompt == b"Answer."
    assert done.charged == result["rollouts"]["charged"] == (0 if requests == 4 else 6)
    left = [path for path in (tmp_path / "home").rglob("*") if "subprocess" in path.parts]
    assert [path for path in left if path.name != "subprocess"] == []


def test_a_signal_after_an_acceptance_leaves_the_better_prompt(tmp_path: Path) -> None:
    made, requests = child_pass()
    with made as endpoint, process(endpoint, tmp_path, "--taskset.size", "8") as child:
        endpoint.wait_for(requests, SECONDS)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=SECONDS)
    done = Run(child.returncode, tmp_path / "run")
    assert done.status == 143
    assert done.prompt == b"Answer. GOOD v1"
    assert done.candidates == ["Answer.", "Answer. GOOD v1"]
    result = done.result
    assert (result["seed_val_mean"], result["best_val_mean"]) == (0.0, 0.25)
    assert result["rollouts"]["charged"] == done.charged == 16


def test_an_ascii_locale_changes_no_byte(tmp_path: Path) -> None:
    text = "Sei höflich \U0001f600.\r\n\t{question} %s $VAR"
    better = f"{text}\nGOOD é"
    with scripted(teacher=lambda _: fenced(better)) as endpoint:
        flags = ["--initial-prompt", text, "--max-total-rollouts", "12"]
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        with process(endpoint, tmp_path, *flags, **ascii_only) as child:
            out, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 0, err.decode()
    assert out == better.encode()
    done = Run(0, tmp_path / "run")
    assert done.prompt == better.encode()
    assert done.candidates == [text, better]
    assert {request.system for request in student_requests(endpoint)} == {text, better}
    assert done.json("configs/resolved/gepa.json")["initial_prompt"] == text


def test_a_prompt_file_in_an_ascii_locale(tmp_path: Path) -> None:
    text = "Sei höflich.\r\nGOOD"
    file = tmp_path / "prompt.txt"
    file.write_bytes(text.encode())
    with scripted() as endpoint:
        flags = ["--taskset.system-prompt", str(file), "--max-total-rollouts", "12"]
        with process(endpoint, tmp_path, *flags, LC_ALL="C", PYTHONUTF8="0") as child:
            out, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 0, err.decode()
    assert out == text.encode()
    assert student_requests(endpoint)[0].system == text
