"""The taskset `support-intent-v1`: its data, its rewards and feedback, its default seat."""

import json
from collections import Counter
from pathlib import Path

import pytest

import verifiers.v1 as vf
from support_intent_v1.house import LABELS, judge
from support_intent_v1.taskset import MESSAGES, SEED_PROMPT, Row, read_rows
from verifiers.v1.utils.loaders import load_environment, resolve_env_config
from verifiers_gepa.endpoint import Endpoint

ROWS = read_rows(MESSAGES)


def test_every_message_is_there_once() -> None:
    assert len(ROWS) == 240
    assert len({row.text.casefold().strip() for row in ROWS}) == 240
    assert len({row.id for row in ROWS}) == 240
    assert Counter(row.rule for row in ROWS) == {None: 120, "cause": 60, "last": 60}
    assert all(row.other != row.label for row in ROWS)
    assert all((row.rule is None) == (row.other is None) for row in ROWS)


def test_any_40_messages_hold_every_label_and_tie_break() -> None:
    for start in range(len(ROWS) - 39):
        window = ROWS[start : start + 40]
        assert {row.label for row in window} == set(LABELS)
        assert {row.rule for row in window} == {None, "cause", "last"}


@pytest.mark.parametrize(
    ("reply", "rewards"),
    [
        ("intent: delivery", (0.25, 0.25, 0.5)),
        ("  intent: delivery\n", (0.25, 0.25, 0.5)),
        ("intent: refund", (0.25, 0.25, 0)),
        ("intent: billing", (0.25, 0.25, 0)),
        ("intent: late parcel", (0.25, 0, 0)),
        ("intent: delivery or refund", (0.25, 0, 0)),
        ("Intent: Delivery", (0, 0.25, 0.5)),
        ("intent: delivery.", (0, 0.25, 0.5)),
        ("intent:delivery", (0, 0.25, 0.5)),
        ("intent: delivery\nThe parcel is late.", (0, 0.25, 0.5)),
        ("**Intent:** DELIVERY (a delivery problem)", (0, 0.25, 0.5)),
        ("This is a delivery problem and a refund request.", (0, 0, 0)),
        ("The parcel is late.", (0, 0, 0)),
        ("redelivery", (0, 0, 0)),
        ("", (0, 0, 0)),
        (None, (0, 0, 0)),
        (" \n\t", (0, 0, 0)),
        ("\ud83d \x00 \u2028 🙂", (0, 0, 0)),
        ("intent: " + "a " * 100_000, (0.25, 0, 0)),
    ],
)
def test_each_part_is_earned_by_itself(
    reply: str | None, rewards: tuple[float, float, float]
) -> None:
    verdict = judge(reply, "delivery", "cause", "refund")
    assert verdict.rewards == dict(zip(("form", "label_set", "label"), rewards, strict=True))


@pytest.mark.parametrize(
    ("reply", "broken"),
    [
        ("intent: delivery", ["Every house rule was kept."]),
        ("It is delivery.", ["Form rule broken. House rule: the whole answer is one line, "]),
        ("", ["Form rule broken. ", "Label set rule broken. "]),
        (
            "intent: parcel",
            [
                "Label set rule broken. House rule: the label is one of refund, cancel, delivery, "
                "billing, account, defect, howto, presale. The answer named none of them; this "
                "message is `delivery` "
            ],
        ),
        (
            "refund and billing",
            ["Form rule broken. ", "Label set rule broken. "],
        ),
        (
            "intent: refund",
            [
                "Cause rule broken. House rule: if a message names a problem and also asks for a "
                "refund or a cancellation, the label is the one of the problem. The answer was "
                "`refund`, and by this rule the message is `delivery`."
            ],
        ),
        ("intent: billing", ["Wrong label. The answer was `billing` (charges, "]),
    ],
)
def test_feedback_names_the_broken_rules_and_says_what_they_are(
    reply: str, broken: list[str]
) -> None:
    lines = judge(reply, "delivery", "cause", "refund").feedback.split("\n")
    assert [line[: len(start)] for line, start in zip(lines, broken, strict=True)] == broken


def test_feedback_of_the_last_rule_and_of_several_labels() -> None:
    assert judge("intent: delivery", "howto", "last", "delivery").feedback == (
        "Last rule broken. House rule: if a message raises two separate matters, the label is the "
        "one of the matter raised last. The answer was `delivery`, and by this rule the message is "
        "`howto`."
    )
    assert "The answer named several of them" in judge("refund, billing", "howto").feedback


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_own_messages(tmp_path: Path) -> None:
    path = write(
        tmp_path / "own [1]*.jsonl",
        {"text": "2024-01-01", "label": "howto"},
        {"text": "Où est mon colis ?", "label": "delivery", "rule": "last", "other": "refund"},
    )
    env = load_environment(
        resolve_env_config({"taskset": {"id": "support-intent-v1", "path": str(path)}})
    )
    data = [task.data.model_dump(exclude_defaults=True) for task in env.taskset]
    assert data == [
        {"idx": 0, "prompt": "2024-01-01", "system_prompt": SEED_PROMPT, "label": "howto"},
        {
            "idx": 1,
            "prompt": "Où est mon colis ?",
            "system_prompt": SEED_PROMPT,
            "label": "delivery",
            "rule": "last",
            "other": "refund",
        },
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": "howto"}, {"text": "b", "label": "x"}], "row 2, label: Input"),
        ([{"label": "howto"}], "row 1, text: Field required"),
        ([{"text": "a", "label": "howto", "more": 1}], "row 1, more: Extra inputs"),
        (["text"], "row 1: Input should be an object"),
        ([], "holds no row with the fields id, text"),
    ],
)
def test_own_messages_that_are_none(tmp_path: Path, rows: list[object], message: str) -> None:
    path = write(tmp_path / "own.jsonl", *rows)
    with pytest.raises(ValueError, match=message) as caught:
        read_rows(path)
    assert str(caught.value).startswith(str(path))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_rows(tmp_path / "nowhere.jsonl")


def test_the_default_seat_gives_way_to_flags() -> None:
    def seat(**agent: dict[str, str]) -> tuple[str, str]:
        config = resolve_env_config({"taskset": {"id": "support-intent-v1"}, "agent": agent})
        assert isinstance(config, vf.SingleAgentEnvConfig)
        assert config.agent.harness is not None
        return config.agent.harness.id, config.agent.runtime.type

    assert seat() == ("direct-chat", "subprocess")
    assert seat(harness={"id": "null"}) == ("null", "subprocess")
    assert seat(runtime={"type": "docker"}) == ("direct-chat", "docker")


async def test_an_episode_is_scored_and_explained(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Be brief.")
    row: Row = next(row for row in ROWS if row.rule == "cause")
    with Endpoint(lambda request: f"intent: {row.other}") as endpoint:
        env = load_environment(
            resolve_env_config(
                {"taskset": {"id": "support-intent-v1", "system_prompt": str(prompt)}}
            )
        )
        client = vf.EvalClientConfig(base_url=endpoint.url)
        context = vf.ModelContext(model="student", client=client, sampling=vf.SamplingConfig())
        task = next(iter(env.taskset.include(ids=[str(row.id)])))
        async with env.serving():
            episode = await env.run_episode(task, context)
    assert episode.ok
    (trace,) = episode.traces
    assert {name: reward and reward.value for name, reward in trace.rewards.items()} == {
        "form": 0.25,
        "label_set": 0.25,
        "label": 0.0,
    }
    assert trace.metrics["reply_words"] == 2.0
    assert trace.info["feedback"].startswith("Cause rule broken. ")
    (request,) = endpoint.requests
    assert (request.system, request.user) == ("Be brief.", row.text)
