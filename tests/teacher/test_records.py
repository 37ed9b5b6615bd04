"""What the teacher reads about a rollout."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.gepa.teacher.records import (
    build_record,
    hidden_texts,
    render_records,
    without,
)
from verifiers.v1.trace import AgentInfo, Error, ModelCall, TraceTask, WireTrace
from verifiers.v1.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    Messages,
    Response,
    SystemMessage,
    TextContentPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from verifiers.v1.utils.texts import shares, shorten

PNG = "data:image/png;base64," + "iVBORw0KGgo" * 40


class Sum(vf.TaskData):
    answer: int = 4
    scan: bytes = b"\x00\x01\x02"


def trace(
    *turns: tuple[Messages, AssistantMessage], prompt: str | Messages | None = "2 + 2?"
) -> vf.Trace:
    """A trace of these turns: each the whole conversation so far and the model's reply."""
    data = Sum(prompt=prompt, system_prompt="Add.")
    made: vf.Trace = vf.Trace(
        task=TraceTask(type="Task", data=data), agent=AgentInfo(config=vf.AgentConfig())
    )
    for messages, reply in turns:
        response = Response(id="r", created=0, model="m", message=reply, finish_reason="stop")
        graph.prepare_turn(made, messages, None).commit(response)
        made.calls.append(ModelCall(node=len(made.nodes) - 1, finish_reason="stop"))
    made.stop("agent_completed")
    return made


def asked(text: str = "2 + 2?") -> Messages:
    return [SystemMessage(content="Add."), UserMessage(content=text)]


def record(made: vf.Trace, *columns: str) -> dict[str, Any]:
    return build_record(as_recorded(made), 0.5, columns)


def as_recorded(made: vf.Trace) -> WireTrace:
    """The trace as a reader of `traces.jsonl` sees it."""
    return WireTrace.model_validate_json(made.model_dump_json(exclude_none=True))


def test_a_plain_reply() -> None:
    made = trace((asked(), AssistantMessage(content="4")))
    made.record_reward("right", 1.0, 0.5)
    assert record(made) == {
        "Task input": "2 + 2?",
        "Conversation": ["[assistant]\n4"],
        "Score": 0.5,
    }


def test_every_reward_and_metric_has_its_own_value() -> None:
    made = trace((asked(), AssistantMessage(content="4")))
    made.record_reward("right", 1.0, 0.5)
    made.record_reward("short", 0.2)
    made.record_metric("words", 1)
    assert record(made)["Score in parts"] == {"right": 0.5, "short": 0.2, "words": 1.0}


def test_feedback_is_shown_without_being_asked_for() -> None:
    made = trace((asked(), AssistantMessage(content="5")))
    made.info["feedback"] = {"expected": 4, "rule": "carry"}
    assert record(made)["Feedback"] == {"expected": 4, "rule": "carry"}


def test_tool_calls_and_results_are_part_of_the_conversation() -> None:
    call = ToolCall(id="c1", name="calc_add", arguments='{"a": 2, "b": 2}')
    first = AssistantMessage(content="Let me see.", tool_calls=[call])
    result = ToolMessage(tool_call_id="c1", name="calc_add", content="4")
    made = trace((asked(), first), ([*asked(), first, result], AssistantMessage(content="It's 4.")))
    assert record(made)["Conversation"] == [
        '[assistant]\nLet me see.\n[calls calc_add({"a": 2, "b": 2})]',
        "[tool calc_add]\n4",
        "[assistant]\nIt's 4.",
    ]


def test_an_empty_reply_and_none_are_told_apart() -> None:
    assert record(trace((asked(), AssistantMessage(content=""))))["Conversation"] == [
        "[assistant]\n(empty)"
    ]
    assert record(trace())["Conversation"] == ["(no reply)"]


def test_a_prompt_of_messages_with_an_image() -> None:
    image = ImageUrlContentPart(image_url=ImageUrlSource(url=PNG))
    prompt: Messages = [UserMessage(content=[TextContentPart(text="What is it?"), image])]
    made = trace(
        ([SystemMessage(content="Add."), *prompt], AssistantMessage(content="A cat")), prompt=prompt
    )
    made.info["feedback"] = f"the picture {PNG} shows a dog"
    shown = record(made)
    assert shown["Task input"] == "[user]\nWhat is it?\n[image]"
    assert shown["Conversation"] == ["[assistant]\nA cat"]
    assert shown["Feedback"] == f"the picture [binary data, {len(PNG)} characters] shows a dog"


def test_columns_come_from_the_info_else_from_the_task() -> None:
    made = trace((asked(), AssistantMessage(content="4")))
    made.info["steps"] = [1, {"raw": b"\x00xyz"}]
    made.info["answer"] = "from the info"
    shown = record(made, "steps", "answer", "scan", "absent", "model_dump")
    assert shown["steps"] == [1, {"raw": "[binary data, 4 characters]"}]
    assert shown["answer"] == "from the info"
    assert shown["scan"] == "[binary data, 3 characters]"
    assert "absent" not in shown
    assert "model_dump" not in shown


def test_how_it_ended_where_that_was_not_ordinary() -> None:
    made = trace((asked(), AssistantMessage(content="4 and")))
    made.stop("max_turns", override=True)
    made.calls[-1].error = Error(type="ProviderError", message="too long", status_code=400)
    shown = record(made)
    assert shown["Ended by"] == "max_turns"
    assert shown["Truncated"] == "the reply was cut off at a limit"
    assert shown["Error"] == "ProviderError: too long"


def test_nothing_of_the_run_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-12345678")
    made = trace()
    home = Path.home()
    made.info["feedback"] = {f"{home}/z": f"see {tmp_path}/x, {home}/y, {made.id} and sk-12345678"}
    (shown,) = without([record(made)], hidden_texts([tmp_path]))
    assert shown["Feedback"] == {"[home]/z": "see [path]/x, [home]/y, [id] and [secret]"}


def test_long_parts_lose_their_middle_and_say_so() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijkl", 6) == "abcd\n[... 6 characters left out ...]\nkl"


LONG: dict[str, Any] = {
    "Task input": "i" * 100_000,
    "Conversation": [f"[assistant]\n{'c' * 16_000}"] * 64,
    "Score": 0.5,
    "Feedback": "f" * 5_000,
    "notes": ["n" * 1000] * 100,
}
"""A record of more than 1 MB."""


@pytest.mark.parametrize("count", [1, 3, 20])
def test_records_are_bounded_however_long_they_are(count: int) -> None:
    text = render_records([LONG] * count, 80_000)
    assert 70_000 < len(text) <= 80_000
    for letter in "icfn":
        assert text.count(letter * 30) >= count
    assert text.count("characters left out") >= 3 * count


def test_feedback_stays_whole_and_every_long_message_loses_as_much() -> None:
    short = {"Task input": "2 + 2?", "Conversation": ["[assistant]\n4"], "Score": 1.0}
    text = render_records([LONG, short], 60_000)
    assert LONG["Feedback"] in text
    assert text.endswith(
        "### Task input\n2 + 2?\n\n### Conversation\n[assistant]\n4\n\n### Score\n1.0"
    )
    turns = text.partition("### Conversation\n")[2].partition("\n\n### Score")[0]
    cuts = [part for part in turns.split("[assistant]\n") if part]
    assert len(cuts) == 64
    assert len({part.strip() for part in cuts}) == 1  # the same beginning, mark and end
    assert cuts[0].startswith("ccc")
    assert cuts[0].strip().endswith("ccc")


def test_of_very_many_messages_the_first_and_the_last_stay() -> None:
    many = {"Conversation": [f"[assistant]\nturn {n}" for n in range(10_000)]}
    text = render_records([many], 20_000)
    assert 19_000 < len(text) <= 20_000
    assert "turn 0\n\n[assistant]\nturn 1\n" in text
    assert text.endswith("turn 9998\n\n[assistant]\nturn 9999")
    assert "characters left out" in text


def test_what_is_short_stays_whole_and_the_rest_shares_alike() -> None:
    assert shares([], 10) == []
    assert shares([3, 100, 5, 100], 28) == [3, 10, 5, 10]
    assert shares([3, 4], 7) == [3, 4]
    assert shares([5, 5], -1) == [0, 0]


def test_records_are_rendered_in_order() -> None:
    assert render_records([{"Task input": "a", "Score": 1.0}, {"Task input": "b"}], 1000) == (
        "## Example 1\n\n### Task input\na\n\n### Score\n1.0\n\n## Example 2\n\n### Task input\nb"
    )


def test_rendering_takes_no_more_memory_than_what_is_shown() -> None:
    tracemalloc.start()
    try:
        render_records([LONG] * 20, 80_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000  # the records have 25 MB
