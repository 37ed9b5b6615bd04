"""The scripted student and teacher, measured by the taskset's own rewards and feedback."""

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from support_intent_v1.house import judge
from support_intent_v1.taskset import MESSAGES, SEED_PROMPT, Row, read_rows
from verifiers_gepa.endpoint import Endpoint
from verifiers_gepa.scripted import HARMLESS, HARMS, RULES, scripted, student, teacher

ROWS = read_rows(MESSAGES)
SENTENCE = {rule.name: rule.sentence for rule in RULES}
ALL_RULES = "\n".join([SEED_PROMPT, *SENTENCE.values()])
CAUSE = next(row for row in ROWS if row.label == "delivery" and row.other == "refund")
LAST = next(row for row in ROWS if row.rule == "last" and row.label == "howto")


@pytest.mark.parametrize(
    ("rules", "cause", "last"),
    [
        ([], "I think this is about: money returned.", "I think this is about: termination."),
        (["form"], "intent: money returned", "intent: termination"),
        (["labels"], "I think this is about: refund.", "I think this is about: cancel."),
        (["cause"], "I think this is about: delivery.", "I think this is about: termination."),
        (["last"], "I think this is about: money returned.", "I think this is about: usage."),
        (["form", "labels"], "intent: refund", "intent: cancel"),
        (["form", "labels", "cause"], "intent: delivery", "intent: cancel"),
        (["form", "labels", "last"], "intent: refund", "intent: howto"),
        (["form", "labels", "cause", "last"], "intent: delivery", "intent: howto"),
    ],
)
def test_the_student_obeys_what_its_prompt_states(rules: list[str], cause: str, last: str) -> None:
    prompt = " ".join([SEED_PROMPT, *(SENTENCE[name] for name in rules)])
    assert (CAUSE.label, CAUSE.other) == ("delivery", "refund")
    assert student(prompt, CAUSE.text) == cause
    assert (LAST.label, LAST.other) == ("howto", "cancel")
    assert student(prompt, LAST.text) == last


def mean(prompt: str, seed: int = 0, noise: float = 0.0) -> float:
    def reward(row: Row) -> float:
        reply = student(prompt, row.text, seed, noise)
        return sum(judge(reply, row.label, row.rule, row.other).rewards.values())

    return sum(map(reward, ROWS)) / len(ROWS)


def test_every_rule_that_the_feedback_names_pays() -> None:
    """Whatever else the prompt states: form and labels always, the tie-breaks with the labels."""
    names = [rule.name for rule in RULES]
    means = {
        stated: mean("\n".join(SENTENCE[name] for name in stated))
        for size in range(len(names) + 1)
        for stated in itertools.combinations(names, size)
    }
    assert means[()] == pytest.approx(0.1125)
    assert means[tuple(names)] == 1.0
    for stated, value in means.items():
        for name in set(names) - set(stated):
            if name in ("form", "labels") or "labels" in stated:
                more = tuple(n for n in names if n in {*stated, name})
                assert means[more] >= value + 0.1, (stated, name)


@pytest.mark.parametrize("sentence", HARMS)
def test_a_harmful_sentence_spoils_about_half_of_the_answers(sentence: str) -> None:
    assert 0.8 < mean(f"{ALL_RULES}\n{sentence}") < 0.95
    assert mean(f"{ALL_RULES}\n{HARMLESS[0]}") == 1.0


def test_noise_depends_on_the_seed_and_the_texts_alone() -> None:
    def replies(seed: int, noise: float) -> dict[str, str]:
        return {row.text: student(ALL_RULES, row.text, seed, noise) for row in ROWS}

    noisy = replies(1, 0.1)
    assert noisy == replies(1, 0.1)
    assert noisy != replies(2, 0.1)
    assert replies(1, 0.0) == replies(2, 0.0)
    assert mean(ALL_RULES, 1, 1.0) == mean(SEED_PROMPT)
    assert 0.75 < mean(ALL_RULES, 1, 0.1) < 0.95


async def test_equal_requests_get_equal_replies_in_any_order_and_at_once() -> None:
    texts = [row.text for row in ROWS[:40]]

    async def replies(order: list[str]) -> dict[str, Any]:
        async def post(text: str) -> tuple[str, Any]:
            messages = [
                {"role": "system", "content": ALL_RULES},
                {"role": "user", "content": text},
            ]
            url = f"{endpoint.url}/chat/completions"
            return text, (await caller.post(url, json={"messages": messages})).json()

        with Endpoint(scripted(seed=3, noise=0.2)) as endpoint:
            async with httpx.AsyncClient() as caller:
                return dict(await asyncio.gather(*map(post, order)))

    assert await replies(texts) == await replies(texts[::-1])


@pytest.mark.parametrize(
    ("prompt", "message", "answer"),
    [
        ("Reverse the text.", "abc", "cba"),
        ("Repeat the message.", "a b\n", "a b\n"),
        ("", "", ""),
        (ALL_RULES, "My invoice shows a charge that I don't know", "intent: billing"),
        (ALL_RULES, "?", "intent: refund"),
    ],
)
def test_the_student_with_messages_it_does_not_know(prompt: str, message: str, answer: str) -> None:
    assert student(prompt, message) == answer


def reflection(prompt: str, *feedback: str) -> str:
    records = "\n".join(f"Feedback: {line}" for line in feedback)
    return (
        f"Write a better prompt than the one between <current_prompt> and </current_prompt>.\n"
        f"<current_prompt>\n{prompt}\n</current_prompt>\n{records}\nUse ```` as the fence."
    )


def proposal(request: str, seed: int = 0) -> str:
    reasoning, fenced = teacher(request, seed).split("\n\n````\n", 1)
    assert reasoning
    assert fenced.endswith("\n````")
    return fenced.removesuffix("\n````")


REPLIES = {
    "form": (CAUSE, "delivery"),
    "labels": (CAUSE, "intent: parcel"),
    "cause": (CAUSE, "intent: refund"),
    "last": (LAST, "intent: cancel"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_the_teacher_adds_the_rule_that_the_feedback_names_or_harm(name: str) -> None:
    row, reply = REPLIES[name]
    feedback = judge(reply, row.label, row.rule, row.other).feedback
    request = reflection(SEED_PROMPT, feedback)
    added = [proposal(request, seed).removeprefix(f"{SEED_PROMPT}\n") for seed in range(200)]
    harmful = [sentence for sentence in added if sentence in HARMS]
    assert set(harmful) == set(HARMS)
    assert 25 <= len(harmful) <= 55
    assert set(added) - set(HARMS) == {SENTENCE[name]}


def test_the_teacher_picks_among_several_broken_rules() -> None:
    request = reflection(SEED_PROMPT, *(rule.marker for rule in RULES))
    added = {proposal(request, seed).removeprefix(f"{SEED_PROMPT}\n") for seed in range(200)}
    assert added == {*SENTENCE.values(), *HARMS}
    assert proposal(request, 5) == proposal(request, 5)


def test_the_teacher_adds_nothing_twice() -> None:
    markers = [rule.marker for rule in RULES]
    prompt = SEED_PROMPT
    for _ in range(len(RULES) + len(HARMS) + len(HARMLESS)):
        grown = proposal(reflection(prompt, *markers))
        assert grown.startswith(f"{prompt}\n")
        prompt = grown
    assert sorted(prompt.split("\n")) == sorted(
        [SEED_PROMPT, *SENTENCE.values(), *HARMS, *HARMLESS]
    )
    assert proposal(reflection(prompt, *markers)) == prompt


def test_a_rule_that_no_feedback_names_is_not_added() -> None:
    prompt = " Ünï\r\n\t{curr_param} <current_prompt> 🙂\n"
    added = {
        proposal(reflection(prompt, "Every house rule was kept."), seed).removeprefix(f"{prompt}\n")
        for seed in range(100)
    }
    assert added > set(HARMS)
    assert added < {*HARMS, *HARMLESS}


def test_a_request_without_a_prompt_gets_no_proposal() -> None:
    assert "````" not in teacher("Improve this.")


def test_the_path_tells_the_teacher_from_the_student() -> None:
    with Endpoint(scripted()) as endpoint:
        for url in (endpoint.url, endpoint.teacher_url):
            message = {"role": "user", "content": reflection("Repeat.", "Form rule broken")}
            body = {"messages": [{"role": "system", "content": "Repeat."}, message]}
            reply = httpx.post(f"{url}/chat/completions", json=body).json()
            text = reply["choices"][0]["message"]["content"]
            assert text.endswith("\n````") is (url == endpoint.teacher_url)
    assert [request.to_teacher for request in endpoint.requests] == [False, True]
