"""Validation and test: the number that picks a prompt is not the number that reports it."""

import json
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.support import (
    FULL,
    Reply,
    Request,
    Run,
    command_env,
    fenced,
    good_student,
    mostly_good,
    placed,
    resumed,
    run,
    scripted,
    student_requests,
    turns,
)
from verifiers.v1.cli.eval.main import main as vf_eval

VAL = {f"question {number}" for number in range(4, 10)}
TEST = {f"question {number}" for number in range(10, 18)}


def test_the_full_protocol(tmp_path: Path) -> None:
    with scripted(mostly_good) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
    result = done.result
    assert done.status == 0
    assert (result["status"], result["finish_reason"]) == ("finished", "budget")
    assert done.charged == result["rollouts"]["charged"] == 20
    # Validated afresh: the seed prompt and the one candidate on 6 tasks; both on 8 test tasks.
    assert result["rollouts"]["uncharged"] == {"validate": 12, "test": 16}
    assert result["rollouts"]["attempted"] == 48
    assert result["validated_means"] == {"0": pytest.approx(1 / 6), "1": pytest.approx(5 / 6)}
    assert (result["deployed_candidate"], result["fallback_reason"]) == (1, None)
    assert (result["baseline_mean"], result["deployed_mean"]) == (0.25, 0.75)
    assert result["delta_pp"] == 50.0
    assert [(task["baseline"], task["deployed"]) for task in result["test"]] == (
        [(1.0, 0.0)] * 2 + [(0.0, 1.0)] * 6
    )
    low, high = result["ci95"]
    assert low <= 50 <= high
    assert result["improved"] == (low > 0)
    assert (result["valid_for_aggregation"], result["invalid_reasons"]) == (True, [])
    assert result["cell"]["taskset"] == "board-v1"
    assert done.prompt == b"Answer. GOOD v1"
    # Test tasks get no request before the test phase.
    users = [request.user for request in endpoint.requests if not request.to_teacher]
    assert not TEST & set(users[:-16])
    assert set(users[-16:]) == TEST


def test_no_candidate_keeps_the_seed_prompt_and_asks_nothing_more(tmp_path: Path) -> None:
    with scripted(teacher=lambda _: "no idea") as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
    result = done.result
    assert (result["deployed_candidate"], result["fallback_reason"]) == (0, "no_candidate")
    assert result["rollouts"]["uncharged"] == {}
    assert result["delta_pp"] == 0.0
    assert (result["ci95"], result["improved"]) == (None, False)
    assert result["statistics_reason"] == (
        "the seed prompt is deployed: there is nothing to compare"
    )
    assert result["valid_for_aggregation"]
    assert done.prompt == b"Answer."


def test_a_prompt_that_was_lucky_in_the_search_is_not_deployed(tmp_path: Path) -> None:
    """GOOD is right on val the first time only."""
    seen: set[tuple[str, str]] = set()

    def student(request: Request) -> str:
        again = (request.system, request.user) in seen
        seen.add((request.system, request.user))
        lucky = "GOOD" in request.system and not (request.user in VAL and again)
        return "right" if lucky else "wrong"

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
    result = done.result
    assert result["best_val_mean"] == 1.0
    assert result["validated_means"] == {"0": 0.0, "1": 0.0}
    assert (result["deployed_candidate"], result["fallback_reason"]) == (0, "no_improvement")
    assert result["rollouts"]["uncharged"] == {"validate": 12}
    assert done.prompt == b"Answer."


def test_a_teacher_that_overfits_val_is_found_out_on_test(tmp_path: Path) -> None:
    def student(request: Request) -> str:
        easy = request.user in {"question 12", "question 13"}
        return "right" if easy or ("GOOD" in request.system and request.user not in TEST) else "no"

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
    result = done.result
    assert result["best_val_mean"] == 1.0
    assert (result["baseline_mean"], result["deployed_mean"]) == (0.25, 0.25)
    assert (result["delta_pp"], result["improved"]) == (0.0, False)


def test_no_test_tasks_no_headline(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--num-test", "0", base=FULL)
    result = done.result
    assert result["statistics_reason"] == "there are no test tasks (num_test is 0)"
    assert (result["delta_pp"], result["improved"]) == (None, False)
    assert not result["valid_for_aggregation"]
    assert result["deployed_candidate"] == 1


def test_repeats_are_averaged(tmp_path: Path) -> None:
    turns: dict[tuple[str, str], int] = {}
    lock = threading.Lock()

    def student(request: Request) -> str:
        with lock:
            key = (request.system, request.user)
            turns[key] = turns.get(key, 0) + 1
            return "right" if "GOOD" in request.system or turns[key] % 2 else "wrong"

    repeats = ["--rollouts-per-task", "2", "--validation-rollouts", "2", "--test-rollouts", "4"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *repeats, "--max-total-rollouts", "32", base=FULL)
    result = done.result
    assert result["seed_val_mean"] == 0.5
    assert result["val_means"] == [0.5, 1.0]
    assert result["rollouts"]["charged"] == 32
    assert result["rollouts"]["uncharged"] == {"validate": 24, "test": 64}
    assert (result["baseline_mean"], result["deployed_mean"]) == (0.5, 1.0)
    assert result["statistics_reason"].startswith("the difference is the same on every task")


def coin(seed: int) -> Callable[[Request], str]:
    """A student that is right half of the time, whatever it is asked."""
    turn = turns()

    def student(request: Request) -> str:
        key = (request.system, request.user)
        heads = zlib.crc32(repr((seed, key, turn(request))).encode()) & 1
        return "right" if heads else "wrong"

    return student


def test_a_coin_is_never_called_a_gain(tmp_path: Path) -> None:
    """Right with probability 0.5 whatever the prompt: over 20 seeds, chance alone may look like a
    gain in at most 2."""
    base = ["board-v1", "--local", "-m", "student", "--num-train", "20", "--num-val", "20"]
    base += ["--num-test", "40", "--taskset.size", "80", "--max-total-rollouts", "76"]
    results = []
    for seed in range(20):
        with scripted(coin(seed)) as endpoint:
            results.append(run(endpoint, tmp_path, "--seed", str(seed), base=base).result)
    for result in results:
        above = bool(result["ci95"] and result["ci95"][0] > 0)
        assert result["improved"] == (above and result["p_value"] <= 0.05)
    assert sum(result["improved"] for result in results) <= 2
    # They were tried: some of them deployed what looked better.
    assert sum(result["deployed_candidate"] != 0 for result in results) >= 5


# One phase at a time, and interrupted


def test_phases_one_by_one_ask_nothing_twice(tmp_path: Path) -> None:
    with scripted(mostly_good) as endpoint:
        whole = run(endpoint, tmp_path, base=FULL)
        total = len(endpoint.requests)
    with scripted(mostly_good) as endpoint:
        step = run(endpoint, tmp_path, "--phase", "optimize", base=FULL)
        assert step.result["invalid_reasons"] == ["the validate phase was not run"]
        assert step.result["deployed_candidate"] is None
        step = resumed(endpoint, step, "--phase", "validate", base=FULL)
        assert step.result["invalid_reasons"] == ["the test phase was not run"]
        assert step.result["deployed_candidate"] == 1
        step = resumed(endpoint, step, "--phase", "test", base=FULL)
        assert len(endpoint.requests) == total
        again = resumed(endpoint, step, base=FULL)
        assert len(endpoint.requests) == total
    for key in ("test", "validated_means", "delta_pp", "ci95", "p_value", "tokens", "val_means"):
        assert step.result[key] == again.result[key] == whole.result[key]


def test_a_phase_whose_predecessor_is_not_complete_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--phase", "optimize", base=FULL)
        sent = len(endpoint.requests)
        skipping = resumed(endpoint, done, "--phase", "test", base=FULL)
        assert skipping.status == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "the validate phase of" in line
        assert "is not complete; go on with --phase validate or --phase all" in line
        assert skipping.result["status"] == "finished"
        assert len(endpoint.requests) == sent


@pytest.mark.parametrize("phase", ["validate", "test"])
def test_killed_in_a_phase_it_goes_on_there(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, phase: str
) -> None:
    at = {"validate": 20 + 2 + 5, "test": 20 + 2 + 12 + 5}[phase]
    with scripted(mostly_good) as endpoint:
        whole = run(endpoint, tmp_path, base=FULL)
        total = len(endpoint.requests)
    with (
        scripted(mostly_good) as endpoint,
        Forks(tmp_path_factory.mktemp("forks"), command_env(endpoint)) as forks,
    ):
        flags = [*placed(endpoint, tmp_path, "killed"), "-c", "2"]
        forks.start(*FULL, *flags).kill_at(endpoint, at)
        assert forks.start(*FULL, *flags, "--resume").wait() == 0
        assert total <= len(endpoint.requests) <= total + 2
    killed = Run(0, tmp_path / "killed")
    for key in ("test", "validated_means", "delta_pp", "ci95", "p_value", "val_means"):
        assert killed.result[key] == whole.result[key]


def test_a_task_lost_in_the_test_counts_for_neither_prompt(tmp_path: Path) -> None:
    def student(request: Request) -> Reply | str:
        if request.user == "question 12" and "GOOD" in request.system:
            return Reply.error(500, "broken", headers={"Retry-After": "0"})
        return mostly_good(request)

    flags = ["--max-attempts", "1", "--max-dropped-fraction", "0.2"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *flags, base=FULL)
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, *flags, base=FULL)
        assert len(endpoint.requests) == sent
    for result in (done.result, again.result):
        assert result["lost"] == {"test": [12]}
        assert [task["idx"] for task in result["test"]] == [10, 11, 13, 14, 15, 16, 17]
        assert (result["baseline_mean"], result["deployed_mean"]) == (
            pytest.approx(2 / 7),
            pytest.approx(5 / 7),
        )
        assert result["invalid_reasons"] == ["1 of 8 tasks of test could not be measured"]


# Output


def test_json_is_the_only_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with scripted(mostly_good) as endpoint:
        done = run(endpoint, tmp_path, "--json", base=FULL)
        out = capfdbinary.readouterr().out
        (line,) = out.splitlines()
        assert json.loads(line) == done.result
        denied = run(endpoint, tmp_path, "--json", "-m", "nobody", "--no-preflight", base=FULL)
        assert denied.status == 0  # the endpoint takes any name
    with scripted(teacher=lambda _: Reply.error(401, "no")) as endpoint:
        failed = run(endpoint, tmp_path, "--json", base=FULL)
        (line,) = capfdbinary.readouterr().out.splitlines()[-1:]
        assert json.loads(line)["status"] == "failed"
    assert failed.status == 2


def test_the_printed_eval_gives_the_same_scores(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with scripted(mostly_good) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
        command = done.result["commands"]["vf_eval"].split()
        assert command[0] == "vf-eval"
        quiet = ["--no-rich", "--run.name", "check"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("elsewhere"))
            vf_eval([*command[1:], *quiet])
    lines = (tmp_path / "check/traces.jsonl").read_bytes().splitlines()
    traces = [json.loads(line)["traces"][0] for line in lines]
    scores = {t["task"]["data"]["idx"]: t["rewards"]["right"]["score"] for t in traces}
    assert scores == {task["idx"]: task["deployed"] for task in done.result["test"]}


# The cache and the replicas


def test_seeds_share_the_seed_prompts_evaluation(tmp_path: Path) -> None:
    cache = ["--evaluation-cache", str(tmp_path / "cache")]
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted(mostly_good, lambda _: fenced("Answer. GOOD")) as endpoint:
        first = run(endpoint, runs, *cache, base=FULL)
        second = run(endpoint, runs, *cache, "--seed", "1", base=FULL)
    assert first.result["rollouts"]["reused"] == 0
    # The same two prompts were validated and tested: nothing is left to run.
    assert second.result["rollouts"]["reused"] == 28
    assert second.result["rollouts"]["uncharged"] == {}
    for key in ("test", "validated_means", "delta_pp", "ci95"):
        assert second.result[key] == first.result[key]


def test_another_model_or_sampling_shares_nothing_and_a_failure_is_not_stored(
    tmp_path: Path,
) -> None:
    cache = ["--evaluation-cache", str(tmp_path / "cache")]
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted(mostly_good) as endpoint:
        run(endpoint, runs, *cache, base=FULL)
        for flags in (["-m", "teacher"], ["--sampling.temperature", "1"]):
            other = run(endpoint, runs, *cache, *flags, base=FULL)
            assert other.result["rollouts"]["reused"] == 0
    entries = list((tmp_path / "cache").rglob("*.json"))
    assert len(entries) == 3 * 28
    assert all("score" in json.loads(entry.read_bytes()) for entry in entries)


def test_one_of_two_replicas_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections from the child's val pass on."""
    with scripted(mostly_good) as endpoint:
        whole = run(endpoint, tmp_path, base=FULL)
    dead = threading.Event()

    def dying(request: Request) -> Reply | str:
        if "GOOD" in request.system and request.user in VAL:
            dead.set()
        return Reply(drop=True) if dead.is_set() else mostly_good(request)

    with scripted(mostly_good) as alive, scripted(dying) as other:
        monkeypatch.setenv("TASK_ENDPOINTS", f"{alive.url},{other.url}")
        monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", alive.teacher_url)
        from verifiers.v1.cli.gepa import main

        assert main([*FULL, "-o", str(tmp_path), "--run.name", "two"]) == 0
        two = Run(0, tmp_path / "two")
        assert student_requests(other)
        for key in ("val_means", "validated_means", "test", "delta_pp"):
            assert two.result[key] == whole.result[key]
        healthy, lost = two.result["endpoints"]
        assert (healthy["url"], healthy["failed"]) == (alive.url, 0)
        assert lost["url"] == other.url
        assert lost["failed"] == two.result["rollouts"]["failed"] > 0


def test_warnings_about_a_search_that_cannot_tell(tmp_path: Path) -> None:
    with scripted(good_student) as endpoint:
        flags = ["--reflection-minibatch-size", "1"]
        done = run(endpoint, tmp_path, *flags, base=FULL)
    texts = " | ".join(done.result["warnings"])
    assert "the seed prompt scores 0 on every val task" in texts
    assert "a minibatch of 1" in texts
