"""Reverse a text: graded between 0 and 1, so that a prompt that helps a little shows.

The whole reply is compared, which makes saying anything besides the reversed text cost something.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

BUNDLED = Path(__file__).with_name("data.jsonl")
HUB = "PrimeIntellect/Reverse-Text-RL"
SYSTEM_PROMPT = "Reverse the text that the user sends, character by character."

MAX_LENGTH_RATIO = 10
"""A reply this many times as long as the text scores 0 unread: the comparison is quadratic, and
such a reply could not score above 0.2 anyway."""


class ReverseTextData(vf.TaskData):
    """One text, in `prompt`."""

    prompt: str


class ReverseTextTask(vf.Task[ReverseTextData]):
    """Scored by how similar the reply is to the reversed text."""

    @vf.reward
    async def similarity(self, trace: vf.Trace) -> float:
        """The similarity of the last reply to the reversed text, in 0..1, blanks around them
        aside; the feedback says how they differ."""
        expected, reply = self.data.prompt[::-1].strip(), trace.last_reply
        score = ratio(expected, reply)
        trace.info["feedback"] = explain(expected, reply, score)
        return score


class ReverseTextConfig(vf.TasksetConfig):
    source: Literal["bundled", "hub"] = "bundled"
    """Where the texts come from: the 124 that ship with the package, or
    `PrimeIntellect/Reverse-Text-RL` on the Hugging Face hub."""


class ReverseTextTaskset(vf.Taskset[ReverseTextTask, ReverseTextConfig]):
    def load(self) -> Iterator[ReverseTextTask]:
        """Raises ConnectionError if the hub is asked for and can't be reached."""
        # Here, because reading the options of the taskset must not cost the import.
        from datasets import load_dataset

        if self.config.source == "hub":
            rows = load_dataset(HUB, split="train")
        else:
            rows = load_dataset("json", data_files=str(BUNDLED), split="train")
        for row in rows:
            data = ReverseTextData(
                id=row.get("id"), prompt=row["prompt"], system_prompt=SYSTEM_PROMPT
            )
            yield ReverseTextTask(data, self.config.task)


def ratio(expected: str, reply: str) -> float:
    """`difflib`'s ratio: twice the number of matching characters over the length of both texts."""
    if len(reply) > MAX_LENGTH_RATIO * len(expected):
        return 0.0
    return SequenceMatcher(None, expected, reply, autojunk=False).ratio()


def explain(expected: str, reply: str, score: float) -> str:
    """What was right or wrong with a reply, for whoever improves the prompt."""
    if reply == expected:
        return "Correct: the reply is the reversed text, and nothing else."
    wanted = f"It should be exactly: {expected}"
    if not reply:
        return f"Wrong: the reply is empty. {wanted}"
    if expected in reply:
        return (
            f"Similarity {score:.2f}: the reply contains the reversed text, but adds text "
            f"around it. {wanted}"
        )
    return f"Similarity {score:.2f}: the reply is not the reversed text. {wanted}"
