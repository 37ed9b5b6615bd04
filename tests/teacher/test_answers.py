"""Short gold answers of train tasks in a prompt: which are copied, and which are none."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

import verifiers.v1 as vf
from support_intent_v1.house import FORM_RULE, LABELS, TIE_BREAKS
from tests.support import BASE, Request, fenced, run, scripted
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import split_tasks
from verifiers.v1.gepa.teacher.quality import Quality, describe
from verifiers.v1.judges.reference import ReferenceJudgeConfig
from verifiers_gepa.scripted import RULES

SEED = "Answer."


class Fact(vf.TaskData):
    answer: Any = None


def tasks_of(pairs: Sequence[tuple[str, Any]], start: int = 0) -> list[vf.Task]:
    return [
        vf.Task(Fact(idx=idx, prompt=text, answer=answer), vf.TaskConfig())
        for idx, (text, answer) in enumerate(pairs, start)
    ]


def copied(
    prompt: str, train: Sequence[vf.Task], others: Sequence[vf.Task] = (), parent: str = SEED
) -> list[tuple[int | None, str]]:
    quality = Quality(GEPAConfig(model="student"), SEED, train, others)
    flags = quality.flags(prompt, parent)
    return [(flag["task"], flag["text"]) for flag in flags if flag["flag"] == "answer"]


QUESTIONS = [
    "Which shelf holds the brass kettle?",
    "Where did the night porter leave the violin?",
    "Who signed for the crate of lemons?",
    "What is stamped on the cellar door?",
    "How many tiles does the bath need?",
    "Which platform has the sleeping car?",
]
CODES = ["A17", "KX-204", "Ada Brook", "N.4471", "1386", "zebra"]
SHELVES = tasks_of(list(zip(QUESTIONS, CODES, strict=True)))


def test_several_rare_answers_that_come_in_at_once_are_copied() -> None:
    prompt = "Be brief. Typical replies are A17, 'KX-204', Ada Brook or 1386."
    assert copied(prompt, SHELVES) == [(0, "A17"), (1, "KX-204"), (2, "Ada Brook"), (4, "1386")]
    flags = Quality(GEPAConfig(model="student"), SEED, SHELVES).flags(prompt, SEED)
    assert describe(flags) == ["holds answers of train tasks (0, 1, 2, 4), for example 'A17'"]


NONE_COPIED = {
    "two are too few": "Typical replies are A17 and 1386, or a zebra.",
    "parts of longer words": "A170, BA17, A17-b, 1386.5, 1,386, 13867, N.44712, zebras, x.A17",
    "another case": "a17, kx-204, ada brook, n.4471, ZEBRA",
    "none of them": "Say where it is: shelf, door, platform.",
}


@pytest.mark.parametrize("case", NONE_COPIED)
def test_what_is_no_copy(case: str) -> None:
    assert copied(NONE_COPIED[case], SHELVES) == []


def test_what_the_parent_or_the_seed_prompt_held_is_not_new() -> None:
    parent = "Replies look like A17 or 1386."
    assert copied(f"{parent} Or N.4471.", SHELVES, parent=parent) == []
    quality = Quality(GEPAConfig(model="student"), parent, SHELVES)
    assert quality.flags(f"{parent} Or N.4471.", "Another.") == []
    assert copied("A17, 1386, N.4471", SHELVES, parent="Replies look like 1386.") == []
    assert len(copied("A17, 1386, N.4471", SHELVES, parent="Be kind.")) == 3


def test_one_code_beside_words_of_its_own_question_is_copied() -> None:
    beside = "Be brief.\nThe brass kettle is on a shelf: A17.\nBe kind."
    assert copied(beside, SHELVES) == [(0, "A17")]
    assert copied("Brass kettle and shelf.\nCodes look like A17.", SHELVES) == []
    assert copied("The night porter's violin and the brass kettle: A17.", SHELVES) == []
    # A plain word is no code, and words that were there before say nothing.
    assert copied("The platform of the sleeping car: zebra.", SHELVES) == []
    assert copied(beside, SHELVES, parent="A kettle of brass on a shelf.") == []


def test_what_many_tasks_answer_or_others_say_is_no_ones_own() -> None:
    shared = [
        (f"{text} {number}", ["A17", "KX-9", "1386"]) for number, text in enumerate(QUESTIONS)
    ]
    prompt = "A17, KX-9, 1386"
    assert copied(prompt, tasks_of(shared)) == []
    own = tasks_of([("One?", "A17"), ("Two?", "KX-9"), ("Three?", "1386"), ("Four?", "B2C")])
    assert len(copied(prompt, own)) == 3
    assert copied(prompt, [*own, *tasks_of([("Is 1386 less than 2000?", "yes")], 4)]) == []
    # Three train tasks with one answer are too many; so is one of val or test.
    assert copied(prompt, [*own, *tasks_of([("Five?", "A17"), ("Six?", "A17")], 4)]) == []
    assert copied(prompt, own, tasks_of([("Seven?", "KX-9")], 7)) == []


def test_codes_beside_an_answer_of_many_are_still_codes() -> None:
    most = [(f"Question {number}?", "unknown") for number in range(20)]
    train = tasks_of([*most, ("One?", "A17"), ("Two?", "KX-9"), ("Three?", "1386")])
    assert copied("unknown, A17, KX-9, 1386", train) == [(20, "A17"), (21, "KX-9"), (22, "1386")]


@pytest.mark.parametrize("answers", [["1", "2", "10"], ["yes", "no", "yes"], ["B", "C", "D"]])
def test_small_numbers_and_short_words_are_none(answers: list[str]) -> None:
    train = tasks_of([(text, answer) for text, answer in zip(QUESTIONS, answers, strict=False)])
    assert copied("1. Think. 2. Say yes or no; B, C and D are choices. 10 words.", train) == []


def test_common_words_are_told_from_copies_by_answers_that_no_teacher_has_seen() -> None:
    words = ["north", "answer", "large", "short", "clear", "first"]
    words += ["river", "green", "under", "light", "stone", "bread"]
    train = tasks_of([(f"{n}. Another word for it?", word) for n, word in enumerate(words[:6])])
    others = tasks_of([(f"{n}. Another word for it?", word) for n, word in enumerate(words[6:])], 6)
    chance = "First give a short, clear, large answer: short, large and clear, by light, in green."
    assert copied(chance, train, others) == []
    listed = "Words: north, large, short, clear, first."
    assert len(copied(listed, train, others)) == 5


class Size(Enum):
    SMALL = "S-100"
    LARGE = "L-900"
    OTHER = "X-000"


class Labelled(vf.TaskData):
    gold_label: Literal["AB1", "CD2", "EF3"] | None = None
    expected: list[Literal["GH4", "IJ5", "KL6"]] = Field(default_factory=list)
    target: Size | None = None
    customer: str = ""
    info: dict[str, Any] = Field(default_factory=dict)


def test_which_fields_hold_answers() -> None:
    def train(**fields: list[Any]) -> list[vf.Task]:
        return [
            vf.Task(Labelled(idx=n, **{k: v[n] for k, v in fields.items()}), vf.TaskConfig())
            for n in range(3)
        ]

    prompt = "AB1 CD2 EF3 GH4 IJ5 KL6 S-100 L-900 X-000 11.5 1207 900"
    typed = train(
        gold_label=["AB1", "CD2", "EF3"],
        expected=[["GH4"], ["IJ5"], ["KL6"]],
        target=[*Size],
    )
    assert copied(prompt, typed) == []
    assert copied(prompt, train(customer=["AB1", "CD2", "EF3"])) == []
    inner = [{"gold": {"values": ["AB1"]}}, {"gold": {"values": ["CD2"]}}, {"gold": ["EF3"]}]
    assert len(copied(prompt, train(info=inner))) == 3
    assert len(copied(prompt, train(info=[{"answer": n} for n in (11.5, 1207, 900.0)]))) == 3
    judges = [ReferenceJudgeConfig(id="reference", answer_field="customer", model="m")]
    judged = [
        vf.Task(Labelled(idx=n, customer=code), vf.TaskConfig(judges=judges))
        for n, code in enumerate(["AB1", "CD2", "EF3"])
    ]
    assert len(copied(prompt, judged)) == 3


GOOD = "\n".join(
    [
        "Classify the customer's message by intent.",
        *(rule.sentence for rule in RULES),
        FORM_RULE,
        *(f"- {label}: {what}" for label, what in LABELS.items()),
        *TIE_BREAKS.values(),
        "Examples: 1) a late parcel is `delivery`; 2) a charge of 39.90 is `billing`.",
    ]
)


@pytest.mark.parametrize("sizes", [(4, 3, 2), (8, 1, 0), (12, 6, 6), (40, 20, 20)])
@pytest.mark.parametrize("typed", [True, False])
def test_a_good_prompt_of_support_intent_names_its_labels(
    sizes: tuple[int, int, int], typed: bool
) -> None:
    train, val, test = sizes
    config = GEPAConfig(
        model="student",
        taskset={"id": "support-intent-v1"},
        num_train=train,
        num_val=val,
        num_test=test,
    )
    split = split_tasks(vf.load_environment(config).taskset, config)
    tasks, others = split.train, [*split.val, *split.test]
    if not typed:  # as a taskset has it that reads its labels from a file and knows no type
        tasks, others = (
            [
                vf.Task(Fact(idx=t.data.idx, prompt=t.data.prompt, answer=t.data.label), t.config)
                for t in part
            ]
            for part in (tasks, others)
        )
    assert copied(GOOD, tasks, others) == []
    assert all(word in GOOD for word in LABELS)


def test_a_run_flags_who_brought_them_in_and_warns_of_what_is_deployed(tmp_path: Path) -> None:
    lists = "GOOD. The answers are Q000, Q001 and Q002."
    replies = iter([lists, f"{lists} BETTER."])

    def student(request: Request) -> str:
        number = int(request.user.split()[-1])
        knows = "BETTER" in request.system or ("GOOD" in request.system and number in (0, 1, 4))
        return f"Q{number:03}" if knows else "no idea"

    with scripted(student, lambda _: fenced(next(replies))) as endpoint:
        flags = ["--reflection-minibatch-size", "4", "--max-total-rollouts", "28"]
        done = run(endpoint, tmp_path, *flags, base=["coded-v1", *BASE[1:]])
    assert done.candidates == [SEED, lists, f"{lists} BETTER."]
    assert done.result["parents"] == [None, 0, 1]
    assert done.result["prompt_flags"] == [
        {"candidate": 1, "flag": "answer", "task": n, "text": f"Q{n:03}"} for n in range(3)
    ]
    assert (done.folder / "best_system_prompt.txt").read_text("utf-8") == f"{lists} BETTER."
    assert (
        "the prompt holds answers of train tasks (0, 1, 2), for example 'Q000': look at it before "
        "you deploy it"
    ) in done.result["warnings"]
