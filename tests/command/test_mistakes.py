"""What the commands say about settings that can't be: one line, with what to write instead."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.support import BASE, run, scripted
from verifiers.v1.cli import gepa, gepa_aggregate, gepa_compare, gepa_report

COMMANDS = {
    "gepa": gepa.main,
    "gepa-aggregate": gepa_aggregate.main,
    "gepa-compare": gepa_compare.main,
    "gepa-report": gepa_report.main,
}

LISTS_ALL = "is no option: `gepa <taskset-id> -h` lists them all"

LINES = {
    # suggestions: of names
    "gepa board-v1 --max-rollouts 9": "is no option: did you mean --max-total-rollouts?",
    "gepa board-v1 --minibatch-size 9": "is no option: did you mean --reflection-minibatch-size?",
    "gepa board-v1 --train 9": "is no option: did you mean --num-train?",
    "gepa board-v1 --concurrency 9": "is no option: did you mean --max-concurrent?",
    "gepa board-v1 --max-turns 9": "is no option: did you mean --agent.max-turns?",
    "gepa board-v1 --temperature 1": "is no option: did you mean --sampling.temperature?",
    "gepa board-v1 --agnet.max-turns 9": "is no option: did you mean --agent.max-turns?",
    "gepa board-v1 --reflection.model x": "is no option: did you mean --reflection-model?",
    "gepa board-v1 --jsn": "is no option: did you mean --json?",
    "gepa board-v1 --json-": "is no option: did you mean --json?",
    # of choices
    "gepa board-v1 --epsilon-greedy": "did you mean --candidate-selection epsilon_greedy?",
    "gepa board-v1 --epsilon-greedy 0.1": "did you mean --candidate-selection epsilon_greedy?",
    "gepa board-v1 --epsilon": "did you mean --candidate-selection epsilon_greedy?",
    "gepa board-v1 --pareto": "did you mean --candidate-selection pareto?",
    "gepa board-v1 --optimize": "did you mean --phase optimize?",
    # and none
    "gepa board-v1 --epsilon 0.1": f"gepa: --epsilon (in a file: epsilon) {LISTS_ALL}",
    "gepa board-v1 --top-k 3": f"gepa: --top-k (in a file: top_k) {LISTS_ALL}",
    "gepa board-v1 --judge x": f"gepa: --judge (in a file: judge) {LISTS_ALL}",
    "gepa board-v1 --reflection-max-tokens 3": "did you mean --reflection-sampling.max-tokens?",
    "gepa board-v1 --num 3": "did you mean --num-train or --num-val or --num-test?",
    "gepa board-v1 --budget 3": f"gepa: --budget (in a file: budget) {LISTS_ALL}",
    "gepa board-v1 --teacher x": f"gepa: --teacher (in a file: teacher) {LISTS_ALL}",
    # switches
    "gepa board-v1 --rich maybe": "--rich maybe: --rich is a switch and takes no value: write "
    "--rich or --no-rich",
    "gepa board-v1 --select.shuffle maybe": "takes no value: write --select.shuffle or "
    "--no-select.shuffle",
    "gepa board-v1 -s maybe --dry-run": "gepa: -s maybe: -s is a switch",
    "gepa-compare a b --json maybe": "gepa-compare: --json maybe: --json is a switch",
    "gepa-compare --json a b": "what the command is for comes before the first flag",
    "gepa --dry-run board-v1": "what the command is for comes before the first flag",
    # going on with a run
    "gepa board-v1 --local --resume": "gepa: --resume needs the run: name it with --run.name, or "
    "resume with gepa @ <run>/configs/resolved/gepa.json --resume",
    "gepa board-v1 --local --resume --run.name x --no-save-results": "gepa: --resume needs the "
    "record of the run: drop --no-save-results",
    "gepa board-v1 --local --resume --run.name x --clean": "gepa: --resume goes on with what "
    "--clean deletes: drop one of them",
    # where it is kept
    **{
        f"gepa board-v1 --local --run.name {name}": "gepa: --run.name: a run's name is that of a "
        f"directory below --output-dir; name another place with --output-dir (got '{name}')"
        for name in (".", "..", "../x", "a/../../x", "a/..", "/abs")
    },
    "gepa board-v1 --local --run.name=": "--output-dir (got '')",
    # limits
    "gepa board-v1 --local --timeout.episode 0": "--timeout.episode: Input should be greater",
    "gepa board-v1 --local --timeout.episode -1": "(got '-1')",
    "gepa board-v1 --local --timeout.finalize 0": "--timeout.finalize: Input should be greater",
    "gepa board-v1 --local --agent.max-turns 0": "gepa: --agent.max-turns 0 allows nothing: give",
    "gepa board-v1 --local --agent.max-total-tokens -1": "total-tokens -1 allows nothing",
    # addresses
    **{
        f"gepa board-v1 --local --{option} {url}": f"gepa: --{option} must be an address like"
        for option in ("client.base-url", "reflection-client.base-url", "task-endpoints")
        for url in ("''", "notaurl", "localhost:8000/v1", "http://", "http://[", "http://a:b/v1")
    },
    # what is no sampling
    "gepa board-v1 --local --sampling.messages []": "gepa: --sampling.messages is no sampling of "
    "this run: the conversation is the task's, and the prompt to start from is --initial-prompt",
    "gepa board-v1 --local --sampling.model x": "choose it with --model",
    "gepa board-v1 --local --sampling.stream true": "--sampling.stream is no sampling of this run",
    "gepa board-v1 --local --client.base-url 'http://a /v1'": "must be an address like",
    "gepa board-v1 --local --sampling.n 3": "several rollouts are --rollouts-per-task",
    "gepa board-v1 --local --sampling.n true": "several rollouts are --rollouts-per-task",
    "gepa board-v1 --local --sampling.extra-body '{\"n\":3}'": "--sampling.n is no sampling",
    "gepa board-v1 --local --agent.sampling.model x": "choose it with --agent.model",
    "gepa board-v1 --local --reflection-sampling.messages []": "--reflection-sampling.messages is "
    "no sampling of this run: the teacher's request is the run's",
    "gepa board-v1 --local --reflection-sampling.model x": "choose it with --reflection-model",
    "gepa board-v1 --local --reflection-sampling.n 3": "are --proposals-per-iteration",
    # the small commands
    "gepa-compare a b --json-": "is no option: did you mean --json?",
    "gepa-compare a b --bogus": "gepa-compare: --bogus (in a file: bogus) is no option: "
    "`gepa-compare -h` lists them all",
    "gepa-compare --json": "gepa-compare: --runs is missing",
    "gepa-aggregate a --bootstrap 3": "gepa-aggregate: --bootstrap: Input should be greater than "
    "or equal to 100 (got '3')",
    "gepa-aggregate a --family x": "gepa-aggregate: --family: Input should be 'task', 'method' or",
    "gepa-report a --outputt x": "gepa-report: --outputt (in a file: outputt) is no option: did "
    "you mean --output?",
}


@pytest.mark.parametrize("command", LINES)
def test_a_mistake_is_one_line_that_says_what_to_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *args = shlex.split(command)
    assert COMMANDS[name](args) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(f"{name}: ")
    assert LINES[command] in line
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_what_is_harmless_is_let_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--sampling.n", "1", "--sampling.stream", "false", "--sampling.top-k", "20"]
    flags += ["--run.name", "a/b", "--dry-run"]
    seat = ["--agent.max-turns", "1", "--timeout.episode", "None"]
    assert gepa.main([*BASE, "-o", str(tmp_path), *flags, *seat]) == 0
    assert (tmp_path / "a/b/configs/resolved/gepa.json").exists()


FILES = {
    "proposals-per-iteration = 4": "gepa: --proposals-per-iteration (in a file: "
    "proposals-per-iteration) is no option: did you mean proposals_per_iteration?",
    "[agent]\nmax-turns = 4": "(in a file: agent.max-turns) is no option: did you mean "
    "agent.max_turns?",
    "[reflection-sampling]\ntemperature = 1": "did you mean reflection_sampling.temperature?",
    "[search]\nbudget = 4": f"gepa: --search.budget (in a file: search.budget) {LISTS_ALL}",
    "[search]\nbudget = 4\nseed = 1": f"gepa: --search (in a file: search) {LISTS_ALL}",
    "proposals_per_iteration = true": "gepa: --proposals-per-iteration: must be a number, not true "
    "or false (got True)",
    "seed = true": "gepa: --seed: must be a number, not true or false",
    "num_train = false": "gepa: --num-train: must be a number, not true or false",
    "max_cost = true": "gepa: --max-cost: must be a number, not true or false",
    "[timeout]\nepisode = true": "gepa: --timeout.episode: must be a number, not true or false",
    "epsilon_greedy = true": "did you mean --candidate-selection epsilon_greedy?",
}


@pytest.mark.parametrize("text", FILES)
def test_a_wrong_key_of_a_file_is_one_line_that_says_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text, "utf-8")
    assert gepa.main(["board-v1", "@", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert FILES[text] in line


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_flags_as_they_are_written(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert COMMANDS[name](["-h"]) == 0
    flags = [word for word in capsys.readouterr().out.split() if word.startswith("--")]
    assert flags
    assert [flag for flag in flags if flag.endswith("-")] == []
    assert ("--json" in flags) == (name in ("gepa", "gepa-compare"))


def test_help_says_what_a_price_a_perfect_score_and_a_merge_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gepa.main(["-h"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for role, words in (
        ("", "student"),
        ("reflection-", "teacher"),
        ("judge-", "taskset's judges"),
    ):
        for kind in ("in", "out"):
            said = f"US dollars per million {kind}put tokens of the {words}"
            assert f"--{role}price-{kind} FLOAT|None {said}" in out
    assert "end a proposal's minibatch after its first half where it can't win" in out
    assert "Always refused: a candidate has one text here" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_stdout_is_no_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert COMMANDS[name](["-h"]) == 0


def test_a_run_whose_stdout_is_closed_has_the_status_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    prompt = (done.folder / "best_system_prompt.txt").read_text("utf-8")
    assert prompt == "Answer. GOOD v1"


@pytest.mark.parametrize(
    ("best", "warned"), [("-1", True), ("0.5", True), ("1", False), ("0.9999999999999999", False)]
)
def test_a_score_above_the_perfect_one_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], best: str, warned: bool
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", f"--perfect-score={best}")
    highest = "0" if best == "-1" else "1"
    line = f"a task scored {highest}, more than --perfect-score {best}: "
    assert done.status == 0
    assert any(text.startswith(line) for text in done.result["warnings"]) == warned
    assert (f"WARNING {line}" in capsys.readouterr().err) == warned
