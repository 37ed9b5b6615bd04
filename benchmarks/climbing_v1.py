"""The taskset of `climbing.py`: a reply is worth the number that it is."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["ClimbingTaskset"]


class ClimbingTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def number(self, trace: vf.Trace) -> float:
        return float(trace.last_reply)


class ClimbingConfig(vf.TasksetConfig):
    train: int = 50
    """Questions that come first and are told apart by the models."""
    val: int = 50


class ClimbingTaskset(vf.Taskset[ClimbingTask, ClimbingConfig]):
    def load(self) -> Iterator[ClimbingTask]:
        names = ["train"] * self.config.train + ["val"] * self.config.val
        for number, name in enumerate(names):
            data = vf.TaskData(prompt=f"{name} {number}", system_prompt="Answer.")
            yield ClimbingTask(data, self.config.task)
