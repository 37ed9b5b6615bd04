"""A taskset of questions each of which has a code of its own for an answer."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["CodedTaskset"]


class CodedData(vf.TaskData):
    gold: str


class CodedTask(vf.Task[CodedData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.gold)


class CodedTaskset(vf.Taskset[CodedTask, vf.TasksetConfig]):
    def load(self) -> Iterator[CodedTask]:
        for number in range(8):
            data = CodedData(
                prompt=f"question {number}", system_prompt="Answer.", gold=f"Q{number:03}"
            )
            yield CodedTask(data, self.config.task)
