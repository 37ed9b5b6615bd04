"""The taskset that shows GEPA at work, from the seed prompt to the evidence, and `vf-eval`'s word
on it."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Run, run
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers_gepa import scripted
from verifiers_gepa.endpoint import Endpoint

pytestmark = pytest.mark.xdist_group("showcase")

SHOW = ["support-intent-v1", "-m", "student", "--num-train", "40", "--num-val", "40"]
SHOW += ["--max-total-rollouts", "400"]
QUIET = ["--no-push", "--no-rich", "-n", "130"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, Run]]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Endpoint(scripted.scripted()) as endpoint:
        yield endpoint, run(endpoint, tmp_path_factory.mktemp("runs"), base=SHOW)
    for number, handler in handlers.items():
        signal.signal(number, handler)  # vf-eval leaves its own


def test_the_prompt_gets_better_and_the_evidence_says_so(shown: tuple[Endpoint, Run]) -> None:
    _, done = shown
    result = done.result
    assert done.status == 0
    assert result["val_means"][0] + 0.3 <= result["best_val_mean"]
    assert done.prompt.decode() in done.candidates
    assert done.charged == result["rollouts"]["charged"] <= 400
    assert result["improved"]
    assert 0 < result["ci95"][0] < result["delta_pp"] < result["ci95"][1]
    assert result["valid_for_aggregation"]


def test_one_rollout_at_a_time_finds_the_same(shown: tuple[Endpoint, Run]) -> None:
    endpoint, done = shown
    again = run(endpoint, done.folder.parent, "-c", "1", base=SHOW)
    for name in ("candidates.json", "splits.json"):
        assert (again.folder / name).read_bytes() == (done.folder / name).read_bytes()
    assert again.result["test"] == done.result["test"]


def test_vf_eval_agrees_task_by_task(shown: tuple[Endpoint, Run]) -> None:
    endpoint, done = shown
    command = done.result["commands"]["vf_eval"].split()
    printed = evaluated(done, "printed", *command[1:])
    flags = ["--env.agent.harness.id", "direct-chat", "--env.agent.runtime.type", "subprocess"]
    flags += ["--env.taskset.system-prompt", str(done.folder / "best_system_prompt.txt")]
    where = ["--client.base-url", endpoint.url, "-o", str(done.folder.parent)]
    by_hand = evaluated(done, "by-hand", *SHOW[:3], *flags, *where)
    val = {
        episode["task"]["data"]["idx"]: score(episode)
        for episode in done.lines("traces.jsonl")
        if episode["gepa"]["phase"] == "optimize"
        and episode["gepa"]["split"] == "val"
        and episode["task"]["data"]["system_prompt"] == done.prompt.decode()
    }
    test = {task["idx"]: task["deployed"] for task in done.result["test"]}
    assert (len(val), len(test)) == (40, 50)
    assert printed == test
    assert {**val, **test}.items() <= by_hand.items()


def evaluated(done: Run, name: str, *argv: str) -> dict[int, float]:
    """The score of each task in an evaluation by the host."""
    vf_eval([*argv, *QUIET, "--run.name", name])
    lines = (done.folder.parent / name / "traces.jsonl").read_bytes().splitlines()
    return {e["task"]["data"]["idx"]: score(e) for e in map(json.loads, lines)}


def score(episode: dict[str, Any]) -> float:
    rewards = episode["traces"][0]["rewards"].values()
    return sum(reward["score"] * reward["weight"] for reward in rewards)
