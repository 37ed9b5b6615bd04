"""Episodes in worker processes: the same run, also where one of them is killed."""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    BASE,
    Request,
    Run,
    placed,
    run,
    scripted,
    steady,
    steady_student,
    steady_teacher,
)
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.gepa.dataset import split_tasks
from verifiers.v1.gepa.prepare.checks import ConfigError, check_workers
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.rollouts import workers as module
from verifiers.v1.gepa.runner import GEPAError, run_gepa

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers in /proc")

FLAGS = ["--max-total-rollouts", "40"]

FRAIL = ["frail-v1", *BASE[1:]]


def workers() -> list[int]:
    """The process ids of this process's workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid() and b"rollouts/worker.py" in line:
            found.append(int(folder.name))
    return sorted(found)


def measured(done: Run) -> Counter[tuple[Any, ...]]:
    """What each measured line of the journal says about its rollout."""
    lines = [line for line in done.lines("traces.jsonl") if line["gepa"]["verdict"] == "measured"]
    return Counter(
        (
            *(line["gepa"][name] for name in ("phase", "candidate", "task", "score", "charged")),
            line["traces"][0]["info"]["feedback"],
            tuple(node["message"]["content"] for node in line["traces"][0]["nodes"]),
        )
        for line in lines
    )


def transient(done: Run) -> list[dict[str, Any]]:
    """The episodes that failed for a reason that may pass."""
    return [line for line in done.lines("traces.jsonl") if line["gepa"]["verdict"] == "transient"]


def same(one: Run, other: Run) -> None:
    assert one.status == other.status == 0
    assert one.prompt == other.prompt
    assert one.candidates == other.candidates
    for key in ("val_means", "parents", "tokens", "finish_reason"):
        assert one.result[key] == other.result[key], key
    assert one.result["rollouts"]["charged"] == other.result["rollouts"]["charged"]
    assert measured(one) == measured(other)


def test_two_workers_give_the_same_run_which_can_be_gone_on_with_without_them(
    tmp_path: Path,
) -> None:
    with steady() as endpoint:
        alone = run(endpoint, tmp_path, *FLAGS)
        spread = run(endpoint, tmp_path, *FLAGS, "--workers", "2")
        same(alone, spread)
        assert len(alone.candidates) > 1
        assert spread.result["rollouts"]["failed"] == 0
        assert not workers()
        longer = ["--max-total-rollouts", "60"]
        again = [*longer, "--run.name", spread.folder.name, "--resume"]
        assert run(endpoint, tmp_path, *again).status == 0
    assert spread.result["rollouts"]["charged"] > 40
    assert spread.result["rollouts"]["replayed"] > 0


def test_a_worker_that_is_killed_costs_an_attempt_and_decides_nothing(tmp_path: Path) -> None:
    killed = threading.Event()

    def student(request: Request) -> str:
        if not killed.is_set():
            killed.set()
            os.kill(workers()[0], signal.SIGKILL)
        return steady_student(request)

    with steady() as endpoint:
        alone = run(endpoint, tmp_path, *FLAGS)
    with scripted(student, steady_teacher) as endpoint:
        spread = run(endpoint, tmp_path, *FLAGS, "--workers", "2", "-c", "4")
    same(alone, spread)
    failed = transient(spread)
    assert failed
    causes = {line["gepa"]["cause"] for line in failed}
    assert causes == {"WorkerError: a worker process ended (killed by SIGKILL)"}
    assert spread.result["rollouts"]["failed"] == len(failed)


def test_a_worker_that_hangs_costs_an_attempt_once_the_time_of_an_episode_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 5.0)
    stopped = threading.Event()

    def student(request: Request) -> str:
        if not stopped.is_set():
            stopped.set()
            os.kill(workers()[0], signal.SIGSTOP)
        return steady_student(request)

    timeout = ["--timeout.episode", "10"]
    with steady() as endpoint:
        alone = run(endpoint, tmp_path, *FLAGS)
    with scripted(student, steady_teacher) as endpoint:
        spread = run(endpoint, tmp_path, *FLAGS, "--workers", "2", "-c", "4", *timeout)
    same(alone, spread)
    failed = transient(spread)
    killed = "WorkerError: a worker process ended (killed: no sign of life for 5 seconds)"
    assert killed in {line["gepa"]["cause"] for line in failed}
    assert spread.result["rollouts"]["failed"] == len(failed)


def test_a_worker_that_cannot_start_is_a_failed_run_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRAIL_PARENT", str(os.getpid()))
    monkeypatch.setenv("FRAIL_RAISES", "1")
    why = "a worker process could not start (exit status 1: ImportError: no such library here)"
    with steady() as endpoint:
        done = run(endpoint, tmp_path, *FLAGS, base=FRAIL)
        again = ["--run.name", done.folder.name, "--resume", "--max-total-rollouts", "60"]
        resumed = run(endpoint, tmp_path, *again, "--workers", "2", base=FRAIL)
        seen = capfd.readouterr().err
        flags = [*FRAIL, *placed(endpoint, tmp_path, "python"), *FLAGS, "--workers", "1"]
        config, _ = parse_config(flags)
        with pytest.raises(GEPAError, match="a worker process could not start") as caught:
            run_gepa(load_env(config), config)
    assert resumed.status == 2
    assert seen.splitlines()[-1].endswith(f"failed (40 of 40 rollouts): {why}")
    assert "teardown" not in seen
    assert "Fatal Python error" not in seen
    assert 'raise ImportError("no such library here")' in seen
    for folder in (done.folder, tmp_path / "python"):
        result = Run(2, folder).result
        assert (result["status"], result["message"]) == ("failed", why)
    assert caught.value.outcome.rollouts["charged"] == 0
    assert not workers()


def test_a_worker_that_does_not_get_to_serve_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.1)  # no process imports that fast
    with steady() as endpoint:
        done = run(endpoint, tmp_path, *FLAGS, "--workers", "1")
    assert done.status == 2
    status = "killed: it did not serve within 0.1 seconds"
    assert done.result["message"] == f"a worker process could not start ({status})"
    assert not workers()


@pytest.mark.parametrize(
    ("kills", "status", "words"),
    [
        (2, 0, "ended as it started (killed by SIGKILL): starting another"),
        (3, 2, "failed (0 of 12 rollouts): a worker process could not start (killed by SIGKILL)"),
    ],
    ids=["twice", "for ever"],
)
def test_a_worker_that_is_killed_as_it_starts_is_started_again_a_few_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kills: int,
    status: int,
    words: str,
) -> None:
    left = tmp_path / "kills"
    left.mkdir()
    for number in range(kills):
        (left / str(number)).touch()
    monkeypatch.setenv("FRAIL_PARENT", str(os.getpid()))
    monkeypatch.setenv("FRAIL_KILLS", str(left))
    flags = ["--max-total-rollouts", "12", "--workers", "1"]
    with steady() as endpoint:
        done = run(endpoint, tmp_path, *flags, base=FRAIL)
    assert done.status == status
    assert not list(left.iterdir())
    assert words in capfd.readouterr().err
    assert done.result["rollouts"]["failed"] == 0  # no rollout had begun
    assert not workers()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workers", "8", "-c", "4"], "--workers 8 is more than --max-concurrent 4"),
        (["--workers", "2", "--interception.type", "server"], "use --interception.type elastic"),
        (["--workers", "0"], "--workers"),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    with steady() as endpoint:
        refused = run(endpoint, tmp_path, *FLAGS, *flags)
    assert refused.status == 2
    assert words in capfd.readouterr().err
    assert not endpoint.requests


def test_a_task_that_is_more_than_its_data_is_refused(tmp_path: Path) -> None:
    config, _ = parse_config([*BASE, "--workers", "2", "-o", str(tmp_path)])
    env = load_env(config)
    split = split_tasks(env.taskset, config)
    check_workers(env, config, split)
    vars(split.val[0])["opened"] = object()
    with pytest.raises(ConfigError, match="a worker gets a task's data alone"):
        check_workers(env, config, split)
