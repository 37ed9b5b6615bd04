"""What ends a run in order: preflight, stop conditions, a full disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import (
    TEN,
    Reply,
    Request,
    Run,
    good_student,
    resumed,
    run,
    scripted,
    steady,
    student_requests,
)

# Preflight


def test_preflight_finds_a_wrong_key_and_a_wrong_model_before_anything_is_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        wrong = ["-m", "studnet", "--max-total-rollouts", "12"]

        def refuse(request: Request) -> Reply:
            return Reply.error(404, "no such model")

        endpoint._respond = refuse
        done = run(endpoint, tmp_path, *wrong)
        last = capsys.readouterr().err.splitlines()[-1]
        assert done.status == 2
        assert "'studnet' does not answer: 404" in last
        assert done.charged == 0
        assert done.result["status"] == "failed"
        skipped = run(endpoint, tmp_path, *wrong, "--no-preflight")
        assert skipped.status == 2
        assert "task 4 could not be measured: 404" in capsys.readouterr().err.splitlines()[-1]


def test_a_dead_endpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted() as endpoint:
        pass
    done = run(endpoint, tmp_path, "--max-total-rollouts", "12", "--max-attempts", "1")
    assert done.status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "preflight: the " in last
    assert endpoint.url.removesuffix("/v1") in last


def test_a_prompt_that_does_not_arrive_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seat = ["--agent.harness.id", "deaf-v1", "--agent.runtime.type", "subprocess"]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", *seat)
        assert len(student_requests(endpoint)) == 1
    assert done.status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "'deaf-v1' did not hand the system prompt on" in last


# Stop conditions


STOPS = {
    "max_reflections": ["--max-reflections", "2"],
    "max_tokens": ["--max-tokens", "60"],
    "max_minutes": ["--max-minutes", "0.0001"],
    "patience": ["--patience", "2"],
    "perfect": ["--perfect-score", "1"],
}


@pytest.mark.parametrize("reason", STOPS)
def test_every_stop_condition_has_its_own_name(tmp_path: Path, reason: str) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "100", *STOPS[reason])
    assert done.status == 0
    assert done.result["finish_reason"] == reason
    # Seed 4, an accepted proposal 8, rejected ones 4 each.
    charged = {"max_reflections": 16, "max_minutes": 4, "patience": 20, "perfect": 12}
    if reason in charged:
        assert done.charged == charged[reason]


def test_a_file_stops_the_run(tmp_path: Path) -> None:
    def student(request: Request) -> str:
        if "GOOD" in request.system:
            (tmp_path / "run0/gepa.stop").touch()
        return good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "100")
    assert done.status == 0
    assert done.result["finish_reason"] == "stop_file"
    assert done.charged == 12


# The disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_a_resume_goes_on(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [*TEN[:4], "--num-train", "6", "--num-val", "6", "--num-test", "0"]
    base += ["--taskset.size", "12", "--max-total-rollouts", "60", "--phase", "optimize"]
    big = tmp_path / "big"
    big.mkdir()
    with steady() as endpoint:
        whole = run(endpoint, big, base=base)
        used = sum(path.stat().st_size for path in whole.folder.rglob("*") if path.is_file())
        # Leave room for about half of what the run writes.
        (small_disk / "ballast").write_bytes(b"x" * (2 * 2**20 - used // 2 - 65536))
        full = run(endpoint, small_disk, "--run.name", "run", base=base)
        err = capsys.readouterr().err
        assert full.status == 2
        assert "No space left on device" in err.splitlines()[-1]
        (small_disk / "ballast").unlink()
        done = Run(full.status, small_disk / "run")
        again = resumed(endpoint, done, base=base)
    assert again.status == 0
    for name in ("candidates.json", "run_log.json", "best_system_prompt.txt"):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()
