"""Runs that would look fine and have measured nothing, keys that would end up in files, and other
traps that people fall into."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import verifiers.v1 as vf
from tests.support import (
    BASE,
    Reply,
    Request,
    Run,
    command_env,
    good_student,
    resumed,
    run,
    scripted,
)
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.dataset import content_hash
from verifiers.v1.gepa.prepare.checks import ConfigError
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.runner import run_gepa
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type
from verifiers_gepa import GEPAConfig

BUDGET = ["--max-total-rollouts", "12"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


# Nothing measured


def test_a_rollout_without_a_model_call_is_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, base=["over-v1", *BASE[1:], *BUDGET])
        assert endpoint.requests == []
    assert done.status == 2
    assert "no model call was made" in last_line(capsys)
    assert done.charged == 0


REFUSALS = {
    "a window that never fits": "This model's maximum context length is 10 tokens.",
    "a filter that refuses everything": "refused by the content_filter",
}


@pytest.mark.parametrize("message", REFUSALS.values(), ids=REFUSALS)
def test_a_seed_pass_without_one_answer_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    with scripted(lambda _: Reply.error(400, message)) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert done.status == 2
    line = last_line(capsys)
    assert "the model answered none of the 4 rollouts of the seed prompt" in line
    assert message in line


def test_a_refused_parameter_is_no_refused_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = Reply.error(400, "Unsupported parameter: 'safety_identifier'")
    with scripted(lambda _: denied) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert done.status == 2
    assert "safety_identifier" in last_line(capsys)
    assert done.charged == 0


def test_a_taskset_that_ends_the_process_is_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "--taskset.task.broken", "exit")
    assert done.status == 2
    assert "SystemExit" in last_line(capsys)
    assert done.result["status"] == "failed"


def test_what_a_taskset_notes_is_stored_as_far_as_it_can_be(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "--taskset.task.broken", "surrogate")
    assert done.status == 0
    info = done.lines("traces.jsonl")[0]["traces"][0]["info"]
    assert info["feedback"] == "half a pair: \ufffd"


def test_what_a_taskset_prints_is_no_prompt(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with scripted() as endpoint:
        run(endpoint, tmp_path, *BUDGET, "--taskset.task.broken", "print")
    out, err = capfdbinary.readouterr()
    assert out == b"Answer. GOOD v1"
    assert b"scored" in err


# Keys


KEY = "sk-a-long-secret-key"


def files_of(folder: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_a_key_that_an_error_page_repeats_stays_out_of_files_and_log(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    def refuse(request: Request) -> Reply:
        return Reply.error(401, f"Incorrect API key: {request.headers['Authorization']}")

    student, teacher = (refuse, None) if role == "student" else (good_student, refuse)
    with scripted(student, teacher) as endpoint:
        keys = ["--client.api-key-var", "MY_KEY", "--reflection-client.api-key-var", "MY_KEY"]
        done = run(endpoint, tmp_path, *BUDGET, *keys)
        assert any(KEY in request.headers["Authorization"] for request in endpoint.requests)
    out, err = capsys.readouterr()
    assert done.status == 2
    assert "Incorrect API key: Bearer [secret]" in err.splitlines()[-1]
    assert KEY not in out + err + files_of(tmp_path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--task-endpoints", "http://a/v1", "http://user:pw@b/v1"],
            "--task-endpoints holds a key",
        ),
        (["--client.base-url", "http://sk-token@host/v1"], "--client.base-url holds a key"),
        (["--client.base-url", "http://host/v1?api_key=1"], "--client.base-url holds a key"),
        (["--sampling.extra_headers", '{"Authorization": "x"}'], "--sampling.extra_headers"),
        (["--client.api-key-var", "BAD_KEY"], "the key in BAD_KEY"),
    ],
)
def test_a_key_where_it_would_be_written_down_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.setenv("BAD_KEY", f"{KEY}\n")
    assert main([*BASE, *BUDGET, "-o", str(tmp_path), *flags]) == 2
    line = last_line(capsys)
    assert words in line
    assert KEY not in line
    assert list(tmp_path.iterdir()) == []


# A run and its directory


def test_a_copy_is_gone_on_with_and_not_the_original(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        copy = tmp_path / "elsewhere/copy"
        shutil.copytree(done.folder, copy)
        before = (done.folder / "traces.jsonl").read_bytes()
        saved = str(copy / "configs/resolved/gepa.json")
        assert main(["@", saved, "--resume", "--max-total-rollouts", "16"]) == 0
    assert Run(0, copy).charged == 16
    assert (done.folder / "traces.jsonl").read_bytes() == before


def test_a_journal_that_lost_rollouts_is_not_paid_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        sent = len(endpoint.requests)
        for name in ("traces.jsonl", "reflections.jsonl"):
            (done.folder / name).unlink()
        assert resumed(endpoint, done, *BUDGET).status == 2
        assert len(endpoint.requests) == sent
    assert "holds 0 of the 12 rollouts that result.json counted" in last_line(capsys)


def test_a_resume_that_fails_says_so_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    whole = done.result
    assert whole["status"] == "finished"
    lines = done.lines("reflections.jsonl")
    lines[0]["key"] = "another"
    (done.folder / "reflections.jsonl").write_text(json.dumps(lines[0]) + "\n")
    capsys.readouterr()
    with scripted() as endpoint:
        again = resumed(endpoint, done, "--max-total-rollouts", "16", "--json")
    assert again.status == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == again.result
    assert "failed (12 of 12 rollouts)" in err.splitlines()[-1]
    for key in ("rollouts", "tokens", "cost", "val_means"):
        assert again.result[key] == whole[key]
    assert "report" in again.result["artifacts"]
    assert (again.result["status"], again.result["partial"]) == ("failed", True)
    assert again.result["best_val_mean"] == 1.0
    assert not again.result["valid_for_aggregation"]


def test_a_dry_run_leaves_a_run_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        saved = (done.folder / "configs/resolved/gepa.json").read_bytes()
        assert resumed(endpoint, done, *BUDGET, "--dry-run").status == 0
        assert resumed(endpoint, done, *BUDGET, "--dry-run", "-m", "other").status == 2
        assert "  model: " in capsys.readouterr().err
    assert (done.folder / "configs/resolved/gepa.json").read_bytes() == saved


def test_a_broken_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        (done.folder / "result.json").write_text("")
        assert resumed(endpoint, done, "--max-total-rollouts", "16").status == 2
    assert "result.json is broken" in last_line(capsys)


# Python


def config(folder: Path, **settings: object) -> GEPAConfig:
    return GEPAConfig(
        taskset={"id": "board-v1"},
        local=True,
        max_total_rollouts=500,
        output_dir=folder,
        **settings,
    )


def test_a_dry_run_from_python_spends_nothing(tmp_path: Path) -> None:
    made = config(tmp_path, dry_run=True)
    with pytest.raises(ConfigError, match="dry_run is set"):
        run_gepa(load_env(made), made)
    assert list(tmp_path.iterdir()) == []


def test_an_env_of_another_config_is_refused(tmp_path: Path) -> None:
    made = config(tmp_path)
    for other in (
        config(tmp_path, agent={"max_turns": 3}),
        GEPAConfig(taskset={"id": "echo-v1"}, local=True),
    ):
        with pytest.raises(ConfigError, match="built from another config"):
            run_gepa(vf.load_environment(other), made)


def test_the_agents_own_model_and_endpoint_are_the_students(tmp_path: Path) -> None:
    with scripted() as nowhere, scripted() as endpoint:
        own = ["--agent.model", "teacher", "--agent.client.type", "eval"]
        own += ["--agent.client.base-url", endpoint.url]
        done = run(nowhere, tmp_path, *BUDGET, *own)
        assert {request.body["model"] for request in endpoint.requests} == {"teacher"}
        assert [request for request in nowhere.requests if not request.to_teacher] == []
    assert done.result["cell"]["model"] == "teacher"
    assert [one["url"] for one in done.result["endpoints"]] == [endpoint.url]


def test_a_tasks_hash_is_the_same_in_every_process() -> None:
    """A set has no order of its own: string hashes differ between processes."""
    code = (
        "import verifiers_gepa, tests.support\n"
        "from verifiers.v1.gepa.dataset import content_hash\n"
        "from verifiers.v1.utils.loaders import load_taskset, taskset_config_type\n"
        "kind = taskset_config_type('board-v1')\n"
        "print(content_hash(next(iter(load_taskset(kind(id='board-v1'))))))\n"
    )
    with scripted() as nowhere:
        env = command_env(nowhere, PYTHONHASHSEED="7")
    there = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    kind = taskset_config_type("board-v1")
    here = content_hash(next(iter(load_taskset(kind(id="board-v1")))))
    assert there.stdout.strip() == here


# Settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-m", " "], "--model: a model id can't be blank"),
        (["--max-minutes", "inf"], "--max-minutes"),
        (["--perfect-score", "nan"], "--perfect-score"),
        (["--sampling.temperature", "nan"], "sampling holds a number that is not finite"),
        (["--env.num_val", "2", "--num-val", "3"], "num-val is set twice"),
        (["--env.agent.max_turns", "2", "--agent.max-turns", "3"], "agent.max-turns is set twice"),
    ],
)
def test_settings_that_mean_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main([*BASE[:2], "-o", str(tmp_path), *flags]) == 2
    assert words in last_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('model = "a"\nm = "b"\n', "model is set twice"),
        ('model = "a"\n[env]\nm = "b"\n', "model is set twice"),
        ('taskset = "board-v1"\n', "taskset must be a block"),
    ],
)
def test_files_that_mean_two_things_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert main(["board-v1", "@", str(file), "-o", str(tmp_path / "out")]) == 2
    line = last_line(capsys)
    assert words in line
    assert "run.toml" in line


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b'\xef\xbb\xbf[taskset]\nid = "board-v1"\n')
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, base=["@", str(file), *BASE[1:]])
    assert done.status == 0
