"""A taskset whose rollouts are over before the first model call."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["OverTaskset"]


class OverTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def at_once(self, trace: vf.Trace) -> bool:
        return True

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class OverTaskset(vf.Taskset[OverTask, vf.TasksetConfig]):
    def load(self) -> Iterator[OverTask]:
        for number in range(8):
            data = vf.TaskData(prompt=f"question {number}", system_prompt="Answer.")
            yield OverTask(data, self.config.task)
