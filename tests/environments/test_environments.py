"""The plain tasksets: what they load, what they pay for a reply, and what they say about it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode

IDS = ["echo-v1", "reverse-text-v1", "gsm8k-v1"]


def load(taskset_id: str, **options: Any) -> vf.Taskset:
    return vf.load_taskset(vf.taskset_config_type(taskset_id)(id=taskset_id, **options))


def find(taskset_id: str, prompt: str) -> vf.Task:
    return next(task for task in load(taskset_id) if prompt in task.data.prompt)


def trace_of(task: vf.Task, *replies: str | None) -> vf.Trace:
    nodes = [
        MessageNode(message=vf.AssistantMessage(content=reply), sampled=True) for reply in replies
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
    )


async def score(task: vf.Task, *replies: str | None) -> tuple[float, str]:
    """The reward and the feedback for a rollout with these replies."""
    trace = trace_of(task, *replies)
    await task.score(trace)
    assert len(trace.rewards) == 1
    return trace.reward, trace.info["feedback"]


@pytest.mark.parametrize(
    ("taskset_id", "size"), [("echo-v1", 60), ("reverse-text-v1", 124), ("gsm8k-v1", 66)]
)
def test_bundled_rows_are_the_files_rows_and_distinct(taskset_id: str, size: int) -> None:
    tasks = list(load(taskset_id))
    module = vf.import_taskset(taskset_id)
    assert module.__file__
    lines = Path(module.__file__).with_name("data.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(tasks) == size
    assert [task.data.id for task in tasks] == [row["id"] for row in rows]
    for task, row in zip(tasks, rows, strict=True):
        assert task.data.prompt.endswith(row.get("prompt") or row["question"])
    assert len({task.data.prompt for task in tasks}) == size
    assert len({task.data.id for task in tasks}) == size
    assert [task.data.idx for task in tasks] == list(range(size))


@pytest.mark.parametrize(
    ("taskset_id", "system_prompt"),
    [
        ("echo-v1", "Repeat the user's message exactly."),
        ("reverse-text-v1", "Reverse the text that the user sends, character by character."),
        ("gsm8k-v1", None),
    ],
)
def test_all_tasks_have_the_same_system_prompt(taskset_id: str, system_prompt: str | None) -> None:
    assert {task.data.system_prompt for task in load(taskset_id)} == {system_prompt}


@pytest.mark.parametrize(
    ("reply", "reward", "feedback"),
    [
        ("Good morning.", 1.0, "Correct: the reply is the message, and nothing else."),
        (" Good morning.\n", 1.0, "Correct: the reply is the message, and nothing else."),
        ("Good morning", 0.0, "Wrong: the reply is not the message."),
        ("good morning.", 0.0, "Wrong: the reply is not the message."),
        ('You said: "Good morning."', 0.0, "Wrong: the reply contains the message, but adds"),
        ("", 0.0, "Wrong: the reply is empty."),
        (None, 0.0, "Wrong: the reply is empty."),
    ],
)
async def test_echo_pays_for_exact_repetition_only(
    reply: str | None, reward: float, feedback: str
) -> None:
    got, why = await score(find("echo-v1", "Good morning."), reply)
    assert got == reward
    assert why.startswith(feedback)


async def test_every_echo_and_reverse_task_can_be_solved() -> None:
    for task in load("echo-v1"):
        assert (await score(task, task.data.prompt))[0] == 1.0
    for task in load("reverse-text-v1"):
        assert (await score(task, task.data.prompt[::-1]))[0] == 1.0
        assert (await score(task, task.data.prompt))[0] < 1.0


@pytest.mark.parametrize(
    ("reply", "reward", "feedback"),
    [
        ("enots", 1.0, "Correct: the reply is the reversed text, and nothing else."),
        # difflib's ratio: 2 * matching / (length of both).
        ("enot", 2 * 4 / 9, "Similarity 0.89: the reply is not the reversed text."),
        ("It is enots", 2 * 5 / 16, "Similarity 0.62: the reply contains the reversed text, but"),
        ("12345", 0.0, "Similarity 0.00: the reply is not the reversed text."),
        ("enots" * 11, 0.0, "Similarity 0.00: the reply contains the reversed text, but"),
        ("", 0.0, "Wrong: the reply is empty."),
        (None, 0.0, "Wrong: the reply is empty."),
    ],
)
async def test_reverse_text_pays_for_similarity(
    reply: str | None, reward: float, feedback: str
) -> None:
    got, why = await score(find("reverse-text-v1", "stone"), reply)
    assert got == pytest.approx(reward)
    assert why.startswith(feedback)
    assert reward == 1.0 or why.endswith("It should be exactly: enots")


@pytest.mark.parametrize(
    ("reply", "boxed"),
    [
        ("6 times 14 is 84, and 5 more: \\boxed{89}", None),
        ("\\boxed{89.0}", None),
        ("\\boxed{89\\text{ rolls}}", None),
        ("\\boxed{\\frac{178}{2}}", None),
        ("First \\boxed{84}, no: \\boxed{89}", None),
        ("<think>\\boxed{1}</think>\\boxed{89}", None),
        ("\\boxed{84}", "84"),
        ("\\boxed{-89}", "-89"),
        ("\\boxed{eighty-nine}", "eighty-nine"),
        # Evaluating these would keep the process busy for ever.
        ("\\boxed{9^{9^{9^{9}}}}", "9^{9^{9^{9}}}"),
        ("\\boxed{\\binom{999999999}{444444444}}", "\\binom{999999999}{444444444}"),
        (f"\\boxed{{{'8' * 5000}}}", "8" * 5000),
        ("The answer is 89.", ""),
        ("\\boxed{89", ""),
        ("<think>\\boxed{89}", ""),
        ("", ""),
        (None, ""),
    ],
)
async def test_gsm8k_pays_for_the_boxed_number(reply: str | None, boxed: str | None) -> None:
    task = find("gsm8k-v1", "A bakery packs rolls")
    if boxed is None:
        expected = (1.0, "Correct.")
    elif boxed:
        expected = (0.0, f"Wrong: the reply's answer is {boxed}. The answer is 89.")
    else:
        expected = (0.0, "Wrong: the reply has no answer in \\boxed{}. The answer is 89.")
    assert await score(task, reply) == expected


async def test_gsm8k_scores_the_same_outside_the_main_thread() -> None:
    task = find("gsm8k-v1", "A bakery packs rolls")

    def in_thread(reply: str) -> tuple[float, str]:
        return asyncio.run(score(task, reply))

    assert await asyncio.to_thread(in_thread, "\\boxed{89}") == (1.0, "Correct.")
    assert (await asyncio.to_thread(in_thread, "\\boxed{88}"))[0] == 0.0


def test_gsm8k_answers_are_whole_numbers_and_the_instructions_come_first() -> None:
    for task in load("gsm8k-v1"):
        assert task.data.answer.isdecimal()
        assert task.data.prompt.startswith("Work the problem out step by step.")
        assert "\\boxed{}" in task.data.prompt


@pytest.mark.parametrize("taskset_id", IDS)
async def test_a_rollout_without_a_reply_scores_zero(taskset_id: str) -> None:
    reward, feedback = await score(next(iter(load(taskset_id))))
    assert reward == 0.0
    assert feedback.startswith("Wrong: the reply ")


HUB_CALLS = {
    "echo-v1": (("PrimeIntellect/Reverse-Text-RL",), {"split": "train"}),
    "reverse-text-v1": (("PrimeIntellect/Reverse-Text-RL",), {"split": "train"}),
    "gsm8k-v1": (("openai/gsm8k", "main"), {"split": "train"}),
}


@pytest.mark.parametrize("taskset_id", IDS)
def test_the_hub_option_asks_for_the_right_data_set(
    taskset_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def hub(*args: str, **kwargs: str) -> list[dict[str, str]]:
        calls.append((args, kwargs))
        question = {"question": "How many?", "answer": "10 * 123.4 = <<10*123.4=1234>>\n#### 1,234"}
        return [question if taskset_id == "gsm8k-v1" else {"prompt": "abc"}]

    monkeypatch.setattr(datasets, "load_dataset", hub)
    (task,) = load(taskset_id, source="hub")
    assert calls == [HUB_CALLS[taskset_id]]
    assert task.data.id is None
    if taskset_id == "gsm8k-v1":
        assert task.data.prompt.endswith("\n\nHow many?")
        assert task.data.answer == "1234"
    else:
        assert task.data.prompt == "abc"


@pytest.mark.parametrize("taskset_id", IDS)
def test_the_hub_option_fails_at_once_without_a_network(taskset_id: str) -> None:
    (name, *_), _ = HUB_CALLS[taskset_id]
    with pytest.raises(ConnectionError, match=name):
        list(load(taskset_id, source="hub"))
