"""The taskset of the GEPA tests: `size` questions whose only right answer is "right".

Its options make the taskset awkward in the ways that the tests need.
"""

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

__all__ = ["BoardTaskset"]


class BoardData(vf.TaskData):
    gold: str = "right"
    blob: bytes = b""


class BoardTask(vf.Task[BoardData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        trace.info["feedback"] = f"expected the word {self.data.gold!r}"
        return float(trace.last_reply == self.data.gold)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class BoardConfig(vf.TasksetConfig):
    size: int = 8
    """Questions."""
    copies: int = 0
    """How many of the first questions come a second time, after the others."""
    system: Literal["same", "none", "different"] = "same"
    """The system prompts of the tasks."""
    endless: bool = False
    """Yield `size` questions over and over."""
    messages: bool = False
    """Prompts as lists of messages."""


class BoardTaskset(vf.Taskset[BoardTask, BoardConfig]):
    def __init__(self, config: BoardConfig) -> None:
        super().__init__(config)
        self.INFINITE = config.endless

    def load(self) -> Iterator[BoardTask]:
        numbers = [*range(self.config.size), *range(self.config.copies)]
        while True:
            for number in numbers:
                yield self._task(number)
            if not self.config.endless:
                return

    def _task(self, number: int) -> BoardTask:
        system = {"same": "Answer.", "none": None, "different": f"Answer {number}."}
        text = f"question {number}"
        prompt = [vf.UserMessage(content=text)] if self.config.messages else text
        data = BoardData(prompt=prompt, system_prompt=system[self.config.system])
        return BoardTask(data, self.config.task)
