"""What a prompt must be, what one is warned of, and what the teacher is told of both."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

import verifiers.v1 as vf
from tests.support import (
    Endpoint,
    Reply,
    Request,
    fenced,
    good_student,
    run,
    scripted,
    student_requests,
    teacher_requests,
)
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.teacher.attempts import LAST, TEXT_CHARS, Attempts
from verifiers.v1.gepa.teacher.quality import Flag, Quality


def proposing(texts: Iterable[str]) -> Endpoint:
    """A teacher that proposes these texts one after the other, and then good ones."""
    more = (f"Answer. GOOD {number}" for number in itertools.count())
    proposals = itertools.chain(texts, more)
    return scripted(teacher=lambda _: fenced(next(proposals)))


def test_no_text_is_paid_for_twice(tmp_path: Path) -> None:
    texts = [
        "Answer. \n",  # the seed prompt
        "Bad.",  # rejected
        "Bad.\t\n",
        "Answer. GOOD",  # accepted
        "Answer. GOOD  ",
        "Bad.",
    ]
    with proposing(texts) as endpoint:
        # 4 for the seed; 2 (parent) for each of six replies, 2 + 2 + 4 for the children.
        done = run(endpoint, tmp_path, "--max-total-rollouts", "26")
        counts = done.result["proposals"]
        assert (counts["tried"], counts["duplicate"]) == (6, 4)
        assert done.charged == 24
        assert {r.system for r in student_requests(endpoint)} == {"Answer.", "Bad.", "Answer. GOOD"}
        again = ["--run.name", done.folder.name, "--resume", "--max-total-rollouts", "36"]
    # A resume knows the texts of its record.
    with proposing(["Bad. ", "Answer. GOOD\n"]) as endpoint:
        assert run(endpoint, tmp_path, *again).status == 0
        systems = {r.system for r in student_requests(endpoint)}
    assert done.result["proposals"]["duplicate"] == 6
    assert "Bad. " not in systems
    assert "Answer. GOOD\n" not in systems


def test_a_proposal_that_is_too_long_or_lacks_a_protected_text_costs_nothing(
    tmp_path: Path,
) -> None:
    texts = ["GOOD, all in all, but with far too many words", "GOOD, without it", "Answer. GOOD"]
    flags = ["--max-prompt-chars", "20", "--protect", "Answer.", "--max-total-rollouts", "16"]
    with proposing(texts) as endpoint:
        done = run(endpoint, tmp_path, *flags)
        asked = teacher_requests(endpoint)[0].user
    long, lacking, good = done.lines("reflections.jsonl")
    assert long["reason"] == (
        "the proposed text can't be used: longer than --max-prompt-chars 20 (45 characters)"
    )
    assert lacking["reason"] == (
        "the proposed text can't be used: it lacks a text of --protect: 'Answer.'"
    )
    assert good["verdict"] == "proposal"
    assert done.charged == 16  # 4 for the seed, 2 + 2 for the parent, then a whole proposal
    assert {r.system for r in student_requests(endpoint)} == {"Answer.", "Answer. GOOD"}
    assert "at most 20 characters" in asked
    assert "<keep>\nAnswer.\n</keep>" in asked
    assert done.result["candidate_chars"] == [7, 12]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-prompt-chars", "6"], "longer than --max-prompt-chars 6 (7 characters)"),
        (["--protect", "Answer.", "Be kind."], "it lacks a text of --protect: 'Be kind.'"),
        (["--protect", " "], "--protect holds a blank text"),
    ],
)
def test_the_seed_prompt_must_meet_what_proposals_must(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    with scripted() as endpoint:
        assert run(endpoint, tmp_path, *flags).status == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert endpoint.requests == []


def test_a_prompt_that_quotes_or_lost_a_placeholder_is_flagged_and_not_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = "Answer for {customer}."
    proposal = "GOOD.  Where the QUESTION  is question 0 of the train set, so it was 0, say right."
    with proposing([proposal]) as endpoint:
        intro = ["--taskset.suffix", " of the train set, so it was {number}"]
        flags = [*intro, "--initial-prompt", seed, "--max-total-rollouts", "12"]
        done = run(endpoint, tmp_path, *flags)
    assert done.candidates == [seed, proposal]
    gone, quote = done.result["prompt_flags"]
    assert gone == {"candidate": 1, "flag": "placeholder", "task": None, "text": "{customer}"}
    assert quote == {
        "candidate": 1,
        "flag": "quote",
        "task": 0,
        "text": "question 0 of the train set, so it was 0",
    }
    lost, quotes = done.result["warnings"][-2:]
    assert lost.startswith("the prompt lacks placeholders that were there before: {customer}")
    assert quotes.startswith("the prompt quotes train tasks (0), for example 'question 0")
    assert "the proposed prompt lacks placeholders" in capsys.readouterr().err


class Fact(vf.TaskData):
    answer: str = ""


def flags_of(prompt: str, tasks: list[tuple[str, str]], seed: str = "Answer.") -> list[Flag]:
    train = [
        vf.Task(Fact(idx=idx, prompt=text, answer=answer), vf.TaskConfig())
        for idx, (text, answer) in enumerate(tasks)
    ]
    config = GEPAConfig(model="student")
    return Quality(config, seed, train).flags(prompt, seed)


LETTER = "My parcel came on Tuesday with both corners crushed, what now?"
OTHER = "Where do I find the invoice of my last order, please?"


def test_what_counts_as_a_quote() -> None:
    tasks = [(LETTER, "replace it at our cost"), (OTHER, "not_an_answer_but_a_label")]
    # 40 characters of an input in a row, whatever the case and the blanks.
    assert [f["task"] for f in flags_of(f"Like: MY  parcel\n{LETTER[10:41]}", tasks)] == [0]
    assert flags_of(f"Like: {LETTER[:39]}", tasks) == []
    assert [f["task"] for f in flags_of(f"Say {LETTER} or {OTHER}", tasks)] == [0, 1]
    # A whole short answer of a few words, but no label, and nothing that is shared or seeded.
    assert [f["text"] for f in flags_of("Say: Replace it at our cost.", tasks)] == [
        "replace it at our cost"
    ]
    assert flags_of("Say: not_an_answer_but_a_label", tasks) == []
    assert flags_of(f"Like: {LETTER}", tasks, seed=f"Answer {LETTER}") == []
    assert flags_of(f"Like: {LETTER}", [(LETTER, ""), (f"Again: {LETTER}", "")]) == []


def test_flags_are_few_and_cheap_however_long_all_is() -> None:
    tasks = [(f"{idx} {LETTER} {idx} " * 300, f"the answer is {idx}") for idx in range(100)]
    prompt = "\n".join(text[:1_000] for text, _ in tasks)
    assert len(prompt) == 100_099
    assert len(flags_of(prompt, tasks)) == 5
    assert flags_of("x" * 100_000, tasks) == []


def test_attempts_are_few_and_short_and_of_one_parent() -> None:
    attempts = Attempts()
    assert attempts.render("parent") == ""
    for number in range(5):
        attempts.rejected("parent", f"text {number}", f"reason {number}")
    attempts.rejected("other", "another text", "worse")
    shown = attempts.render("parent")
    assert "text 1" not in shown
    assert shown.startswith("## Attempt 1: reason 2\n\ntext 2\n\n## Attempt 2: reason 3")
    assert attempts.render("other") == "## Attempt 1: worse\n\nanother text"
    parent = "a" * 50_000 + "old" + "b" * 50_000
    for _ in range(5):
        attempts.rejected(parent, parent.replace("old", "new"), "worse")
    shown = attempts.render(parent)
    assert "[... the first 50000 characters are those of the current prompt ...]\nnew\n" in shown
    for number in range(5):
        attempts.rejected(parent, str(number) * 100_000, "worse")
    assert len(attempts.render(parent)) < LAST * (TEXT_CHARS + 300)


def test_the_teacher_is_told_what_was_tried_and_a_resume_tells_the_same(tmp_path: Path) -> None:
    texts = [f"Bad {number}." for number in range(5)]
    with proposing(texts) as endpoint:
        whole = run(endpoint, tmp_path, "--max-total-rollouts", "24")
        told = [request.user for request in teacher_requests(endpoint)]
    blocks = [user.partition("<tried>\n")[2].partition("\n</tried>")[0] for user in told]
    worse = "its minibatch sum is 0, its parent's 0"
    assert blocks[0] == ""
    assert blocks[1] == f"## Attempt 1: {worse}\n\nBad 0."
    assert blocks[4] == "\n\n".join(
        f"## Attempt {number}: {worse}\n\nBad {number}." for number in range(1, 4)
    )
    with proposing(texts) as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "16")
        again = ["--run.name", first.folder.name, "--resume", "--max-total-rollouts", "24"]
        assert run(endpoint, tmp_path, *again).status == 0
        assert [request.user for request in teacher_requests(endpoint)] == told
    assert first.candidates == whole.candidates == ["Answer."]


TURNS = 3


def test_a_request_is_bounded_whatever_the_size_of_prompt_and_traces(tmp_path: Path) -> None:
    seed = "Answer. " + "é" * 100_000

    def student(request: Request) -> Reply | str:
        if "GOOD" in request.system or int(request.user.split()[-1]) >= 4:  # a val task
            return good_student(request)
        said = sum(message["role"] == "assistant" for message in request.body["messages"])
        if said == TURNS - 1:
            return good_student(request)
        text = f"turn {said} begins {'x ' * 300_000} turn {said} ends"
        return Reply(text, tool_calls=[("look", {})])

    with scripted(student, lambda _: fenced(f"{seed} GOOD")) as endpoint:
        done = run(endpoint, tmp_path, "--initial-prompt", seed, "--max-total-rollouts", "12")
        (asked,) = [request.user for request in teacher_requests(endpoint)]
    assert done.candidates == [seed, f"{seed} GOOD"]
    lines = [len(line) for line in (done.folder / "traces.jsonl").read_bytes().splitlines()]
    assert sum(size > 1_000_000 for size in lines) == 2
    # The limit is 100,000: the prompt goes beyond it, the examples have a quarter.
    assert 120_000 < len(asked) < 100_000 + 25_000 + 2_500
    assert f"<current_prompt>\n{seed}\n</current_prompt>" in asked
    assert asked.count("### Feedback\nexpected the word 'right'\n") == 2
    assert asked.count("turn 0 begins") == asked.count(f"turn {TURNS - 2} ends") == 2
