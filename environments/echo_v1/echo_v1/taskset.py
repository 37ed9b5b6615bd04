"""Repeat the message exactly: the smallest taskset, for trying an installation.

Many messages ask for something, so a model that answers them instead of repeating them fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

BUNDLED = Path(__file__).with_name("data.jsonl")
HUB = "PrimeIntellect/Reverse-Text-RL"
SYSTEM_PROMPT = "Repeat the user's message exactly."


class EchoData(vf.TaskData):
    """One message, in `prompt`."""

    prompt: str


class EchoTask(vf.Task[EchoData]):
    """Scored 1 for an exact repetition and 0 for anything else."""

    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        """1.0 if the last reply is the message, blanks around it aside; the feedback says why."""
        message, reply = self.data.prompt.strip(), trace.last_reply
        trace.info["feedback"] = explain(message, reply)
        return float(reply == message)


class EchoConfig(vf.TasksetConfig):
    source: Literal["bundled", "hub"] = "bundled"
    """Where the messages come from: the 60 that ship with the package, or the texts of
    `PrimeIntellect/Reverse-Text-RL` on the Hugging Face hub."""


class EchoTaskset(vf.Taskset[EchoTask, EchoConfig]):
    def load(self) -> Iterator[EchoTask]:
        """Raises ConnectionError if the hub is asked for and can't be reached."""
        # Here, because reading the options of the taskset must not cost the import.
        from datasets import load_dataset

        if self.config.source == "hub":
            rows = load_dataset(HUB, split="train")
        else:
            rows = load_dataset("json", data_files=str(BUNDLED), split="train")
        for row in rows:
            data = EchoData(id=row.get("id"), prompt=row["prompt"], system_prompt=SYSTEM_PROMPT)
            yield EchoTask(data, self.config.task)


def explain(message: str, reply: str) -> str:
    """What was right or wrong with a reply, for whoever improves the prompt."""
    if reply == message:
        return "Correct: the reply is the message, and nothing else."
    if not reply:
        return "Wrong: the reply is empty. It should be the message itself."
    if message in reply:
        return "Wrong: the reply contains the message, but adds text around it."
    return "Wrong: the reply is not the message. It should be the message itself, unchanged."
