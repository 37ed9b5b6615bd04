"""The taskset of the GEPA tests: `size` questions whose only right answer is "right".

Its options make the taskset awkward in the ways that the tests need.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

import verifiers.v1 as vf

__all__ = ["BoardTaskset"]


class BoardData(vf.TaskData):
    gold: str = "right"
    tags: set[str] = Field(default_factory=set)


class BoardTaskConfig(vf.TaskConfig):
    low: float = 0.0
    high: float = 1.0
    """What a wrong and a right answer are worth."""
    broken: Literal["", "nan", "inf", "none", "raise", "judge", "exit", "surrogate", "print"] = ""
    """What the reward does instead of scoring, ..."""
    broken_on: list[str] = Field(default_factory=list)
    """... on these questions (none: on all)."""
    judge_url: str = ""


class BoardTask(vf.Task[BoardData, vf.State, BoardTaskConfig]):
    config: BoardTaskConfig

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        trace.info["feedback"] = f"expected the word {self.data.gold!r}"
        broken_on = self.config.broken_on
        if self.config.broken and (not broken_on or self.data.prompt in broken_on):
            return await self._break(trace)
        right = trace.last_reply == self.data.gold
        return self.config.high if right else self.config.low

    async def _break(self, trace: vf.Trace) -> Any:
        if self.config.broken == "exit":
            raise SystemExit(5)
        if self.config.broken == "surrogate":
            trace.info["feedback"] = "half a pair: \ud83d"
            return 1.0
        if self.config.broken == "print":
            print("scored")
            return float(trace.last_reply == self.data.gold)
        if self.config.broken == "judge":
            judge: vf.Judge = vf.Judge(
                vf.JudgeConfig(base_url=self.config.judge_url, model="judge")
            )
            return float((await judge.complete("right?", trace=trace)).text)
        if self.config.broken == "raise":
            raise KeyError("no such key")
        return {"nan": float("nan"), "inf": float("inf"), "none": None}[self.config.broken]

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class BoardConfig(vf.TasksetConfig):
    task: BoardTaskConfig = BoardTaskConfig()
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
    suffix: str = ""
    """What every question ends with; `{number}` is its number."""


class BoardTaskset(vf.Taskset[BoardTask, BoardConfig]):  # type: ignore[type-var]
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
        text = f"question {number}{self.config.suffix.replace('{number}', str(number))}"
        prompt = [vf.UserMessage(content=text)] if self.config.messages else text
        tags = {"easy", "short", f"n{number}", "text"}
        data = BoardData(prompt=prompt, system_prompt=system[self.config.system], tags=tags)
        return BoardTask(data, self.config.task)
