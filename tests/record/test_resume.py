"""A run that was cut short goes on as if nothing had happened, and mixes with no other."""

import json
import os
import shutil
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support import (
    SAME,
    Endpoint,
    Reply,
    Request,
    Run,
    copy,
    fenced,
    good_student,
    resume,
    resumed,
    run,
    scripted,
    steady,
    student_requests,
)
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.record.journal import drop_torn_line

STEADY = ["board-v1", "--local", "-m", "student", "--num-train", "6", "--num-val", "6"]
STEADY += ["--proposals-per-iteration", "4", "--accepted-per-iteration", "None"]
STEADY += [
    "--num-test",
    "0",
    "--phase",
    "optimize",
    "--taskset.size",
    "12",
    "--max-total-rollouts",
    "60",
]


def test_a_larger_budget_goes_on_where_the_record_ends(tmp_path: Path) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        before = len(endpoint.requests)
        again = resumed(endpoint, first, "--max-total-rollouts", "20")
        new = endpoint.requests[before:]
    assert again.status == 0
    assert len([request for request in new if not request.to_teacher]) == 8
    # Nothing before the first new iteration: its parent's minibatch of 2, then the teacher.
    assert [request.to_teacher for request in new[:3]] == [False, False, True]
    assert again.charged == 20
    result = again.result
    assert (result["rollouts"]["charged"], result["rollouts"]["replayed"]) == (20, 12)
    assert result["rollouts"]["budget"] == 20
    with scripted() as endpoint:
        whole = run(endpoint, tmp_path, "--max-total-rollouts", "20")
    for name in SAME:
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    for key in ("tokens", "proposals", "val_means", "parents", "finish_reason"):
        assert result[key] == whole.result[key]


def test_a_finished_run_says_so_and_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        before = {name: (first.folder / name).read_bytes() for name in SAME}
        sent = len(endpoint.requests)
        capsys.readouterr()
        for budget in ("12", "5"):
            again = resumed(endpoint, first, "--max-total-rollouts", budget, "--allow-small-budget")
            out, err = capsys.readouterr()
            assert again.status == 0
            assert "already finished: raise --max-total-rollouts above 12" in err
            assert out == "Answer. GOOD v1"
        assert len(endpoint.requests) == sent
    assert {name: (first.folder / name).read_bytes() for name in SAME} == before
    assert first.result["rollouts"]["charged"] == 12


def test_resume_without_a_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        flags = ["--run.name", "absent", "--resume", "--max-total-rollouts", "12"]
        assert run(endpoint, tmp_path, *flags).status == 2
        assert "absent holds no run" in capsys.readouterr().err.splitlines()[-1]
        assert run(endpoint, tmp_path, *flags, "--clean").status == 2
        assert endpoint.requests == []
    assert list(tmp_path.iterdir()) == []


CHANGES = {
    "model": (["-m", "other"], "model: "),
    "sampling": (["--sampling.temperature", "0.5"], "sampling.temperature: null in the record"),
    "seed": (["--seed", "1"], "seed: 0 in the record, 1 now"),
    "prompt": (["--initial-prompt", "Other."], 'seed_prompt: "Answer." in the record, "Other."'),
    "split": (["--num-val", "3"], "split.val: 1 of 4 entries, the first at position 3"),
    "teacher": (["--reflection-model", "teacher"], "teacher.model: "),
    "minibatch": (["--reflection-minibatch-size", "1"], "reflection_minibatch_size: 2 in the"),
    "harness": (["--agent.harness.id", "null"], "agent.harness.id: "),
    "taskset option": (["--taskset.copies", "1"], "taskset.copies: 0 in the record, 1 now"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Endpoint, Run]:
    """A finished run and its endpoint, which every change must leave alone."""
    with scripted() as endpoint:
        done = run(endpoint, tmp_path_factory.mktemp("finished"), "--max-total-rollouts", "12")
    return endpoint, done


@pytest.mark.parametrize(("flags", "line"), CHANGES.values(), ids=CHANGES)
def test_another_run_is_refused_with_the_difference(
    finished: tuple[Endpoint, Run],
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    line: str,
) -> None:
    endpoint, done = finished
    sent = len(endpoint.requests)
    traces = (done.folder / "traces.jsonl").read_bytes()
    where = ["--max-total-rollouts", "20", "--agent.runtime.type", "subprocess"]
    status = resume(endpoint, done, *where, *flags).status
    err = capsys.readouterr().err
    assert status == 2
    assert line in err
    assert len(endpoint.requests) == sent
    assert (done.folder / "traces.jsonl").read_bytes() == traces


def test_an_edited_task_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board = sys.modules["board_v1"]
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        original = board.BoardTaskset._task

        def edited(self: Any, number: int) -> Any:
            task = original(self, number)
            return task.with_data(prompt="edited") if number == 5 else task

        monkeypatch.setattr(board.BoardTaskset, "_task", edited)
        assert resume(endpoint, first, "--max-total-rollouts", "20").status == 2
    assert "split.val: 1 of 4 entries, the first at position 1" in capsys.readouterr().err


def test_budget_concurrency_endpoint_and_key_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    monkeypatch.setenv("OTHER_KEY", "sk-other-key")
    with scripted(teacher=lambda _: fenced("Answer. GOOD too")) as moved:
        flags = ["-c", "1", "--client.api-key-var", "OTHER_KEY", "--max-total-rollouts", "16"]
        again = resumed(moved, first, *flags, "--verbose", "--patience", "50")
        assert again.status == 0
        assert {request.headers["Authorization"] for request in student_requests(moved)} == {
            "Bearer sk-other-key"
        }
    assert again.charged == 16


def test_the_saved_config_resumes_the_run(tmp_path: Path) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        saved = str(first.folder / "configs/resolved/gepa.json")
        assert main(["@", saved, "--resume", "--max-total-rollouts", "16"]) == 0
    assert first.charged == 16


# The record


def test_a_torn_last_line_is_dropped_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with steady() as endpoint:
        whole = run(endpoint, tmp_path, base=STEADY)
        torn = copy(whole, "torn")
        path = torn.folder / "traces.jsonl"
        path.write_bytes(path.read_bytes()[:-100])
        (torn.folder / "result.json").unlink()
        sent = len(endpoint.requests)
        capsys.readouterr()
        again = resumed(endpoint, torn, base=STEADY)
        assert len(endpoint.requests) == sent + 1
    err = capsys.readouterr().err
    assert err.count("dropped a last line that was only half written") == 1
    assert again.status == 0
    for name in SAME:
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize("name", ["traces.jsonl", "reflections.jsonl"])
def test_a_corrupt_line_elsewhere_is_an_error_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "20")
        lines = (first.folder / name).read_bytes().splitlines(keepends=True)
        lines[1] = lines[1][:50] + b"\n"
        (first.folder / name).write_bytes(b"".join(lines))
        sent = len(endpoint.requests)
        assert resume(endpoint, first, "--max-total-rollouts", "24").status == 2
        assert len(endpoint.requests) == sent
    assert f"{name}, line 2 is broken" in capsys.readouterr().err.splitlines()[-1]


def test_a_record_that_parts_from_the_run_is_an_error_that_names_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with steady() as endpoint:
        first = run(endpoint, tmp_path, base=STEADY)
        path = first.folder / "reflections.jsonl"
        exchanges = first.lines("reflections.jsonl")
        exchanges[0]["key"] += "!"
        path.write_text("".join(json.dumps(line) + "\n" for line in exchanges))
        sent = len(endpoint.requests)
        assert resume(endpoint, first, "--max-total-rollouts", "70", base=STEADY).status == 2
        assert len(endpoint.requests) == sent
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the run has parted from its record at teacher call 1" in last


def test_a_killed_run_whose_resume_fails_before_it_has_caught_up_has_a_result(
    tmp_path: Path,
) -> None:
    with steady() as endpoint:
        first = run(endpoint, tmp_path, base=STEADY)
        exchanges = first.lines("reflections.jsonl")
        exchanges[0]["key"] += "!"
        text = "".join(json.dumps(line) + "\n" for line in exchanges)
        (first.folder / "reflections.jsonl").write_text(text)
        for name in ("result.json", "best_system_prompt.txt", "configs/eval.json"):
            (first.folder / name).unlink()  # as a kill leaves it
        candidates = (first.folder / "candidates.json").read_bytes()
        again = resumed(endpoint, first, "--max-total-rollouts", "70", base=STEADY)
    assert again.status == 2
    result = again.result
    assert (result["status"], result["partial"]) == ("failed", True)
    assert "the run has parted from its record at teacher call 1" in result["message"]
    assert again.prompt == b"Answer."  # the seed prompt: no reply was read
    assert (again.folder / "candidates.json").read_bytes() == candidates


def test_a_pickle_in_the_run_directory_is_never_read(tmp_path: Path) -> None:
    bomb = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        (first.folder / "gepa_state.bin").write_bytes(bomb)
        assert resumed(endpoint, first, "--max-total-rollouts", "16").status == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", b""),
        (b"a\nb\n", b"a\nb\n"),
        (b"a\nb", b"a\n"),
        (b"torn", b""),
        (b"a\n" + b"x" * 200_000, b"a\n"),
    ],
)
def test_what_is_left_of_a_file_after_its_torn_line(
    tmp_path: Path, data: bytes, kept: bytes
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert drop_torn_line(path) == (data != kept)
    assert path.read_bytes() == kept


# One writer


def test_a_second_process_is_refused_and_told_who_holds_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        owner = {"pid": 4711, "host": "elsewhere"}
        with FileLock(first.folder / ".lock"):
            (first.folder / ".lock.json").write_text(json.dumps(owner))
            sent = len(endpoint.requests)
            for flags in (["--resume"], ["--clean"]):
                where = ["--run.name", first.folder.name, "--max-total-rollouts", "20"]
                assert run(endpoint, tmp_path, *where, *flags).status == 2
                last = capsys.readouterr().err.splitlines()[-1]
                assert "is in use by process 4711 on elsewhere" in last
            assert len(endpoint.requests) == sent
        # Its process gone, what it left behind holds nothing any more.
        assert resumed(endpoint, first, "--max-total-rollouts", "16").status == 0
    assert first.charged == 16
    assert not (first.folder / ".lock.json").exists()


def test_the_lock_names_its_holder_while_it_runs(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def student(request: Request) -> str:
        seen.append(json.loads((tmp_path / "run0/.lock.json").read_bytes()))
        return good_student(request)

    with scripted(student) as endpoint:
        run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert seen[0] == {"pid": os.getpid(), "host": socket.gethostname()}


# Replay


def test_replaying_many_rollouts_takes_no_request(tmp_path: Path) -> None:
    base = [*STEADY[:4], "--num-train", "20", "--num-val", "50", "--num-test", "0"]
    base += ["--taskset.size", "70", "--max-total-rollouts", "1000", "--phase", "optimize"]
    with steady() as endpoint:
        whole = run(endpoint, tmp_path, base=base)
        (whole.folder / "result.json").unlink()
        sent = len(endpoint.requests)
        again = resumed(endpoint, whole, base=base)
        assert len(endpoint.requests) == sent
    assert again.result["rollouts"]["replayed"] == whole.charged
    assert again.result["rollouts"]["charged"] == whole.charged


def test_the_teachers_key_mended_the_run_goes_on(tmp_path: Path) -> None:
    with scripted(teacher=lambda _: Reply.error(401, "bad key")) as endpoint:
        failed = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert failed.status == 2
    assert failed.charged == 6
    with scripted() as endpoint:
        again = resumed(endpoint, failed, "--max-total-rollouts", "12")
        assert len(student_requests(endpoint)) == 6
    assert again.status == 0
    assert again.prompt == b"Answer. GOOD v1"


OLD = Path(__file__).with_name("run_0_1_0")
"""A run of 24 rollouts that an earlier version of this package has left, against `steady`."""


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    old = Run(0, tmp_path / "old")
    shutil.copytree(OLD, old.folder)
    identity = old.json("identity.json")
    for package in ("verifiers", "gepa"):  # another of these is another run, and refused
        identity[f"version.{package}"] = version(package)
    (old.folder / "identity.json").write_text(json.dumps(identity), "utf-8")
    recorded = old.lines("traces.jsonl")
    flags = ["--proposals-per-iteration", "2", "--max-total-rollouts", "40"]
    with steady() as endpoint:
        again = resumed(endpoint, old, *flags)
        sent = len(student_requests(endpoint))
        whole = run(endpoint, tmp_path, *flags)
    assert again.status == 0
    assert sent == 16
    assert again.result["rollouts"]["replayed"] == 24
    assert again.lines("traces.jsonl")[:24] == recorded
    for name in SAME:
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()
