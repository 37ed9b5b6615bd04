"""The command: its messages, statuses and files around a run."""

import json
from pathlib import Path

import pytest

from tests.support import BASE, fenced, run, scripted, student_requests
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.cli.gepa import main


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a refused command printed."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_help_lists_the_options_of_the_taskset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board-v1", "-h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: gepa <taskset-id> -m MODEL")
    for flag in ("--taskset.size", "--agent.max-turns", "--max-total-rollouts", "-c, --max-conc"):
        assert flag in out


def test_help_without_a_taskset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    out = capsys.readouterr().out
    assert "--agent.harness" in out
    assert "--taskset.size" not in out


def test_nothing_named_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err[:12]) == ("", "usage: gepa ")


MISTAKES = {
    "a misspelt flag": (["--num-vall", "3"], "--num-vall", "did you mean --num-val?"),
    "a misspelt nested flag": (["--taskset.sice", "3"], "--taskset.sice", "--taskset.size?"),
    "an eval's flag": (["--env.agent.max-turn", "3"], "--agent.max-turn", "--agent.max-turns?"),
    "no number": (["--num-val", "many"], "--num-val", "valid integer"),
    "out of range": (["--num-val", "0"], "--num-val", "greater than or equal to 1"),
    "an unknown harness": (["--agent.harness.id", "nope"], "'nope' not found", "null"),
    "a stray word": (["oops"], "oops", "Unrecognized"),
    "too few tasks": (["--taskset.size", "3", "--num-train", "8"], "3 tasks", "8 train"),
    "a number of a typed block": (
        ["--interception.multiplex", "0"],
        "gepa: --interception.multiplex: ",
        "greater than or equal to 1",
    ),
    "an option of another type": (
        ["--interception.type", "server", "--interception.multiplex", "8"],
        "gepa: --interception.multiplex (in a file: interception.multiplex) is no option",
        "with --interception.type server",
    ),
    "a misspelt option of a typed block": (
        ["--agent.runtime.type", "docker", "--agent.runtime.imagee", "x"],
        "--agent.runtime.imagee",
        "did you mean --agent.runtime.image?",
    ),
    "a later phase of a run to be": (["--phase", "test"], "--phase test goes on with", "--resume"),
    "a skill that is none": (["--agent.runtime.type", "moon"], "--agent.runtime", "moon"),
}


@pytest.mark.parametrize(("flags", "names", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_clear_line_and_nothing_is_sent(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    names: str,
    hint: str,
) -> None:
    with scripted() as endpoint:
        where = ["--client.base-url", endpoint.url, "-o", str(tmp_path)]
        assert main(["board-v1", "--local", *where, *flags]) == 2
        assert endpoint.requests == []
    line = error_of(capsys)
    assert line.startswith("gepa: ")
    assert names in line
    assert hint in line
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_taskset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-taskset-v1"]) == 2
    assert "taskset 'no-such-taskset-v1' not found" in error_of(capsys)


def test_a_taskset_whose_own_import_fails_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "needy_v1.py").write_text("import a_library_that_is_absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["needy-v1"]) == 2
    assert "imports 'a_library_that_is_absent', which is not installed" in error_of(capsys)


def test_an_unknown_key_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('num_vall = 3\n[taskset]\nid = "board-v1"\n')
    assert main(["@", str(file)]) == 2
    line = error_of(capsys)
    assert "num_vall" in line
    assert "did you mean --num-val?" in line


def test_no_taskset_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "m"\n')
    assert main(["@", str(file)]) == 2
    assert "no taskset" in error_of(capsys)


def test_a_multi_agent_env_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pair-v1"]) == 2
    err = capsys.readouterr().err
    assert "'pair-v1' runs PairEnv, a multi-agent env (agents: asker, solver)" in err


@pytest.mark.parametrize("kind", ["prime", "e2b", "modal"])
def test_a_remote_runtime_without_an_account_stops_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert main(["board-v1", "--agent.runtime.type", kind, "-o", str(tmp_path)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"runs in a {kind} sandbox and no {kind} account is set up" in line
    assert "--local" in line
    assert "--agent.runtime.type" in line


AGENTS_OWN = ["--agent.client.type", "eval", "--agent.client.base-url", "http://agent/v1"]
HEADER = '{"Authorization": "Bearer sk-1"}'
SECRETS = {
    "client": ["--client.headers", HEADER],
    "client beside an agent's own": [*AGENTS_OWN, "--client.headers", HEADER],
    "agent.client": [*AGENTS_OWN, "--agent.client.headers.Authorization", "sk-1"],
    "reflection-client": ["--reflection-client.headers", HEADER],
    "taskset.task.judges": [
        "--taskset.task.judges",
        f'[{{"id": "reference"}}, {{"id": "reference", "name": "b", "headers": {HEADER}}}]',
    ],
}


@pytest.mark.parametrize("where", SECRETS)
def test_a_key_among_the_headers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """Also among those of a client that the run has no use for: they are saved all the same."""
    assert main([*BASE, *SECRETS[where], "-o", str(tmp_path)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"--{where.split()[0]}.headers holds 'Authorization'" in line
    assert f"--{where.split()[0]}.headers-from-env" in line
    assert "sk-1" not in line


def test_a_key_in_the_url_of_a_replica_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ["--task-endpoints", "http://one/v1", "http://me:sk-1@two/v1", *AGENTS_OWN]
    assert main([*BASE, *urls, "-o", str(tmp_path)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--task-endpoints holds a key or password" in line
    assert "sk-1" not in line


def test_stdout_carries_the_prompt_and_nothing_else(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = "é\r\n GOOD \U0001f600"
    with scripted(teacher=lambda _: fenced(text)) as endpoint:
        assert run(endpoint, tmp_path, "--max-total-rollouts", "12").status == 0
    assert capfdbinary.readouterr().out == text.encode()


def test_a_used_run_directory_is_refused_unless_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ["--run.name", "mine", "--max-total-rollouts", "12"]
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, *name)
        folder = tmp_path / "mine"
        before = (folder / "result.json").read_bytes()
        sent = len(endpoint.requests)
        assert run(endpoint, tmp_path, *name).status == 2
        assert "already holds a run" in capsys.readouterr().err.splitlines()[-1]
        assert (folder / "result.json").read_bytes() == before
        assert len(endpoint.requests) == sent
        assert run(endpoint, tmp_path, *name, "--dry-run").status == 2
        (folder / "thesis.txt").write_text("years of work")
        assert run(endpoint, tmp_path, *name, "--clean").status == 2
        assert "thesis.txt" in capsys.readouterr().err.splitlines()[-1]
        (folder / "thesis.txt").unlink()
        (folder / "gepa_state.bin").write_bytes(b"over")
        assert run(endpoint, tmp_path, *name, "--clean").status == 0
    assert first.status == 0
    assert not (folder / "gepa_state.bin").exists()


def test_clean_deletes_nothing_outside_the_output_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outer = tmp_path / "outer"
    (tmp_path / "inner").mkdir()
    outer.mkdir()
    for name in ("traces.jsonl", "thesis.txt"):
        (outer / name).write_text("{}\n")
        for run_dir in ("../outer", str(outer), "."):
            where = ["-o", str(tmp_path / "inner"), "--run.dir", run_dir, "--clean"]
            assert main([*BASE, "--max-total-rollouts", "12", *where]) == 2
            assert "--clean deletes only" in capsys.readouterr().err
        assert (outer / name).exists()
        (outer / name).unlink()


def test_a_dry_run_writes_the_config_and_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        dry = run(endpoint, tmp_path, "--max-total-rollouts", "12", "--dry-run")
        assert dry.status == 0
        assert endpoint.requests == []
        assert [path.name for path in dry.folder.iterdir()] == ["configs"]
        assert "a budget of 12 rollouts" in capsys.readouterr().err
        saved = dry.folder / "configs/resolved/gepa.json"
        assert main(["@", str(saved)]) == 0
        assert len(student_requests(endpoint)) == 12
    assert (dry.folder / "result.json").exists()


def test_a_dry_run_finds_what_a_run_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-o", str(tmp_path), "--dry-run"]
    assert main([*BASE, "--taskset.system", "none", *where]) == 2
    assert "--initial-prompt" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_folding_harness_is_warned_about_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seat = ["--agent.harness.id", "folding-v1", "--agent.runtime.type", "subprocess"]

    def student(request: object) -> str:
        return "right" if "GOOD" in str(request) else "wrong"

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", *seat)
    (warning,) = [text for text in done.result["warnings"] if "system prompt" in text]
    assert "'folding-v1' of agent 'agent' takes no system prompt" in warning
    assert "WARNING" in next(
        line for line in capsys.readouterr().err.splitlines() if warning in line
    )
    assert student_requests(endpoint)[0].user == "Answer.\n\nquestion 4"


def test_a_folding_harness_cannot_run_prompts_that_are_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seat = ["--agent.harness.id", "folding-v1", "--agent.runtime.type", "subprocess"]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *seat, "--taskset.messages")
        assert endpoint.requests == []
    assert done.status == 2
    assert "choose another harness" in capsys.readouterr().err.splitlines()[-1]


def test_prompts_that_are_messages_are_optimized_like_others(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", "--taskset.messages")
    assert done.result["best_val_mean"] == 1.0
    assert student_requests(endpoint)[0].body["messages"][0] == {
        "role": "system",
        "content": "Answer.",
    }


def test_the_config_of_an_eval_runs_and_its_eval_reproduces_the_scores(tmp_path: Path) -> None:
    """What vf-eval saved goes in, and what comes out goes back into vf-eval."""
    seat = ["--env.agent.harness.id", "direct-chat", "--env.agent.runtime.type", "subprocess"]
    with scripted() as endpoint:
        common = ["-m", "student", "--client.base-url", endpoint.url, "-o", str(tmp_path)]
        quiet = ["--no-push", "--no-rich"]
        vf_eval(["board-v1", *seat, *common, *quiet, "-n", "8", "--run.name", "eval"])
        saved = tmp_path / "eval/configs/resolved/eval.json"
        sizes = ["--num-train", "4", "--num-val", "4", "--num-test", "0", "--phase", "optimize"]
        flags = ["--reflection-client.base-url", endpoint.teacher_url, "--run.name", "gepa"]
        budget = ["--max-total-rollouts", "12", "--reflection-minibatch-size", "2"]
        assert main(["@", str(saved), *sizes, *flags, *budget]) == 0
        result = json.loads((tmp_path / "gepa/result.json").read_bytes())
        assert result["best_val_mean"] == 1.0

        prompt = str(tmp_path / "gepa/best_system_prompt.txt")
        again = ["--env.taskset.system-prompt", prompt, "--run.name", "check"]
        val = ["--select.include.idx", "4:8"]
        vf_eval(["board-v1", *seat, *common, *quiet, *again, *val])
    lines = (tmp_path / "check/traces.jsonl").read_bytes().splitlines()
    rewards = [json.loads(line)["traces"][0]["rewards"]["right"]["score"] for line in lines]
    assert rewards == [1.0] * 4
