"""The limit of a reply goes out under the name that it was given."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support import BASE, run, scripted, student_requests, teacher_requests
from verifiers.v1.cli.gepa import main
from verifiers.v1.types import SamplingConfig
from verifiers_gepa import GEPAConfig

BUDGET = ["--max-total-rollouts", "12"]

NULL = ["--agent.harness.id", "null", "--agent.runtime.type", "subprocess"]

SEATS = {"direct-chat": [], "null": NULL, "workers": ["--workers", "1"]}

NAMES = ("max_tokens", "max_completion_tokens")


LIMITS = [(name, "direct-chat") for name in NAMES] + [(NAMES[1], "null"), (NAMES[1], "workers")]
"""The host's own name goes through the host's own client, whichever the seat."""


@pytest.mark.parametrize(("name", "seat"), LIMITS)
def test_the_students_limit(tmp_path: Path, seat: str, name: str) -> None:
    with scripted() as endpoint:
        flags = [f"--sampling.{name.replace('_', '-')}", "50", "--sampling.top-k", "5"]
        done = run(endpoint, tmp_path, *BUDGET, "--no-preflight", *flags, *SEATS[seat])
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    requests = student_requests(endpoint)
    assert len(requests) == 12
    for request in requests:
        assert {key: request.body[key] for key in NAMES if key in request.body} == {name: 50}
        assert request.body["top_k"] == 5
    assert not {*NAMES} & {*teacher_requests(endpoint)[0].body}
    assert done.json("identity.json")[f"sampling.{name}"] == 50
    # The host's eval has one name for it.
    assert done.json("configs/eval.json")["sampling"]["max_tokens"] == 50
    warned = [text for text in done.result["warnings"] if "vf-eval sends the limit" in text]
    assert len(warned) == (name == "max_completion_tokens")


def test_one_run_after_another_in_a_process_has_a_name_of_its_own(tmp_path: Path) -> None:
    with scripted() as endpoint:
        for name in (*NAMES, NAMES[0]):
            del endpoint.requests[:]
            flags = [f"--sampling.{name}", "50", "--no-preflight"]
            assert run(endpoint, tmp_path, *BUDGET, *flags).status == 0
            assert {*NAMES} & {*student_requests(endpoint)[0].body} == {name}


@pytest.mark.parametrize("name", NAMES)
def test_the_teachers_limit(tmp_path: Path, name: str) -> None:
    with scripted() as endpoint:
        flag = f"--reflection-sampling.{name.replace('_', '-')}"
        done = run(endpoint, tmp_path, *BUDGET, "--no-preflight", flag, "500")
    assert done.status == 0
    (request,) = teacher_requests(endpoint)
    assert {key: request.body[key] for key in NAMES if key in request.body} == {name: 500}
    assert not {*NAMES} & {*student_requests(endpoint)[0].body}


def test_the_name_is_kept_in_the_saved_config(tmp_path: Path) -> None:
    with scripted() as endpoint:
        flag = ["--sampling.max-completion-tokens", "50", "--dry-run"]
        dry = run(endpoint, tmp_path, *BUDGET, *flag)
        saved = dry.folder / "configs/resolved/gepa.json"
        assert json.loads(saved.read_bytes())["sampling"]["max_completion_tokens"] == 50
        assert main(["@", str(saved), "--no-preflight"]) == 0
    assert student_requests(endpoint)[0].body["max_completion_tokens"] == 50


@pytest.mark.parametrize("block", ["sampling", "reflection-sampling"])
def test_both_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], block: str
) -> None:
    flags = [f"--{block}.max-tokens", "5", f"--{block}.max-completion-tokens", "5"]
    assert main([*BASE, *BUDGET, "-o", str(tmp_path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gepa: --{block}: max_tokens and max_completion_tokens are two names")


def test_both_names_from_python() -> None:
    with pytest.raises(ValidationError, match="two names of one limit"):
        GEPAConfig(sampling={"max_tokens": 5, "extra_body": {"max_completion_tokens": 5}})
    config = GEPAConfig(sampling={"max_tokens": None, "max_completion_tokens": 5})
    assert config.sampling.unnamed().max_tokens == 5
    # The host's own class has no two names.
    config = GEPAConfig(sampling=SamplingConfig(max_completion_tokens=5, top_k=3))
    assert config.sampling.model_dump(exclude_none=True) == {"max_tokens": 5, "top_k": 3}
