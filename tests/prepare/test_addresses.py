"""Base URLs as people paste them: what is meant, what is refused, what is sent."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support import (
    BASE,
    Endpoint,
    Reply,
    Request,
    good_student,
    good_teacher,
    run,
    scripted,
    student_requests,
    teacher_requests,
)
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.utils.addresses import base_of
from verifiers_gepa import GEPAConfig

BUDGET = ["--max-total-rollouts", "12"]

MEANT = {
    "http://h:1/v1": "http://h:1/v1",
    " http://h:1/v1\n": "http://h:1/v1",
    "http://h:1/v1/": "http://h:1/v1/",
    "http://h:1/v1/chat/completions": "http://h:1/v1",
    "http://h:1/v1/chat/completions/": "http://h:1/v1",
    "http://h:1/chat/completions": "http://h:1",
    "https://h/v1/completions": "https://h/v1",
    "https://h/v1/responses": "https://h/v1",
    "https://h/v1/messages": "https://h/v1",
    "https://h/gateway/responses": "https://h/gateway/responses",
    "https://a/openai/deployments/d/chat/completions?api-version=2024-10-21": "https://a/openai/"
    "deployments/d?api-version=2024-10-21",
    "http://h/v1?": "http://h/v1",
}


@pytest.mark.parametrize("address", MEANT)
def test_the_base_url_that_is_meant(address: str) -> None:
    assert base_of(address) == MEANT[address]
    assert base_of(MEANT[address]) == MEANT[address]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_every_base_url_of_a_config_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "http://h/v1/chat/completions"
    judges = f'[{{"id": "reference", "base_url": "{whole}"}}]'
    flags = ["--client.base-url", whole, "--reflection-client.base-url", f" {whole} "]
    flags += ["--agent.client.type", "eval", "--agent.client.base-url", whole]
    flags += ["--taskset.task.judges", judges, "--task-endpoints", whole, "http://b/v1"]
    config, _ = parse_config(["board-v1", *flags])
    agent = config.agent  # type: ignore[attr-defined]
    clients = [config.client, config.reflection_client, agent.client, *config.taskset.task.judges]
    assert [client.base_url for client in clients if client] == ["http://h/v1"] * 4
    assert config.task_endpoints == ["http://h/v1", "http://b/v1"]
    assert config.cut_addresses == {whole: "http://h/v1"}

    monkeypatch.setenv("VLLM_BASE_URL", f" {whole}")
    monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", f"{whole} ")
    config, _ = parse_config(["board-v1"])
    assert config.endpoints[0].base_url == config.teacher[1].base_url == "http://h/v1"
    monkeypatch.setenv("TASK_ENDPOINTS", f"{whole}, http://b/v1/chat/completions")
    config = GEPAConfig(taskset={"id": "board-v1"})
    assert [one.base_url for one in config.endpoints] == ["http://h/v1", "http://b/v1"]


def test_a_run_on_pasted_addresses_says_what_it_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        flags = ["--client.base-url", f" {endpoint.url}/chat/completions"]
        flags += ["--reflection-client.base-url", f"{endpoint.teacher_url}/chat/completions"]
        done = run(endpoint, tmp_path, *BUDGET, *flags)
    assert done.status == 0
    assert done.json("configs/resolved/gepa.json")["client"]["base_url"] == endpoint.url
    err = capsys.readouterr().err
    assert f"the base URL of {endpoint.url}/chat/completions is {endpoint.url}\n" in err
    assert f"the base URL of {endpoint.teacher_url}/chat/completions is " in err


def versioned() -> Endpoint:
    """An endpoint that answers only requests with an `api-version`, and lists no models."""
    teach = good_teacher()

    def respond(request: Request) -> Reply | str:
        if request.query != "api-version=2024-10-21":
            return Reply.error(404, "Resource not found")
        return teach(request) if request.to_teacher else good_student(request)

    return Endpoint(respond, models=())


@pytest.mark.parametrize("route", ["", "/chat/completions"])
@pytest.mark.parametrize("more", [[], ["--workers", "1"], ["own"]], ids=["", "workers", "agent"])
def test_a_query_stands_behind_the_path_of_each_request(
    tmp_path: Path, route: str, more: list[str]
) -> None:
    query = "?api-version=2024-10-21"
    with versioned() as endpoint:
        flags = ["--client.base-url", f"{endpoint.url}{route}{query}"]
        if more == ["own"]:
            own = f"--agent.client.base-url={endpoint.url}{route}{query}"
            more = ["--agent.client.type", "eval", own]
        flags += ["--reflection-client.base-url", f"{endpoint.teacher_url}{route}{query}"]
        done = run(endpoint, tmp_path, *BUDGET, *flags, *more)
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    assert [text for text in done.result["warnings"] if text.startswith("vf-eval can't evaluate")]
    assert len(student_requests(endpoint)) == 12
    # One more to the teacher than it makes proposals: the question whether it is there.
    assert len(teacher_requests(endpoint)) == 2
    assert {request.query for request in endpoint.requests} == {query[1:]}
    assert Counter(request.path.rpartition("/v1")[2] for request in endpoint.requests) == {
        "/chat/completions": 14
    }


JUDGE = '[{"id": "reference", "base_url": "http://h/v1?api-version=1"}]'
REFUSED = {
    "no scheme": (
        ["--client.base-url", "gpu1:8000/v1"],
        "--client.base-url must be an address like http://gpu1:8000/v1, with its scheme and host",
    ),
    "no scheme, another host": (
        ["--reflection-client.base-url", "api.openai.com/v1/chat/completions"],
        "must be an address like https://api.openai.com/v1, with its scheme",
    ),
    "a fragment": (
        ["--client.base-url", "http://h/v1#top"],
        "must be an address like http://local",
    ),
    "a blank within": (
        ["--client.base-url", "http://h /v1"],
        "must be an address like http://local",
    ),
    "a judge's query": (
        ["--taskset.task.judges", JUDGE],
        "--taskset.task.judges.base-url has a query, which the host's client can't send",
    ),
    "a key in the query": (
        ["--client.base-url", "http://h/v1/chat/completions?api-key=1"],
        "--client.base-url holds a key or password",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_sent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    flags, words = REFUSED[case]
    assert main([*BASE, *BUDGET, "-o", str(tmp_path), *flags]) == 2
    assert words in last_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_judge_that_is_asked_at_its_base_url_may_have_a_query(tmp_path: Path) -> None:
    judge = '[{"id": "decision", "base_url": "http://h/evaluations?api-version=1"}]'
    flags = ["--taskset.task.judges", judge, "-o", str(tmp_path), "--dry-run"]
    assert main([*BASE, *BUDGET, *flags]) == 0


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_preflight_says_what_it_asked_where_nothing_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str
) -> None:
    with scripted() as endpoint:
        host = endpoint.url.removesuffix("/v1")
        client = "client" if role == "student" else "reflection-client"
        done = run(endpoint, tmp_path, *BUDGET, f"--{client}.base-url", host)
        assert [request for request in endpoint.requests if request.query] == []
        assert len(endpoint.requests) <= 1
    assert done.status == 2
    line = last_line(capsys)
    assert f"preflight: the {role} 'student' does not answer: 404" in line
    assert f"nothing is served at {host}/chat/completions, and most servers have" in line
    assert f"under /v1: try {host}/v1 (" in line


def test_preflight_says_so_of_a_model_only_about_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(lambda _: Reply.error(404, "The model `nobody` does not exist")) as endpoint:
        assert run(endpoint, tmp_path, *BUDGET, "-m", "nobody").status == 2
    line = last_line(capsys)
    assert "does not exist" in line
    assert "nothing is served" not in line
