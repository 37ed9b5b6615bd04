"""A taskset with an env of its own that fails on entering or on leaving."""

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

__all__ = ["MoodyEnv", "MoodyTaskset"]


class MoodyConfig(vf.SingleAgentEnvConfig):
    fails: Literal["start", "stop", "never"] = "never"
    difficulty: int = 1


class MoodyEnv(vf.SingleAgentEnv, vf.Env[MoodyConfig]):
    config: MoodyConfig

    async def start(self) -> None:
        if self.config.fails == "start":
            raise RuntimeError("no such database")

    async def stop(self) -> None:
        if self.config.fails == "stop":
            raise RuntimeError("the database is gone")


class MoodyTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "right")


class MoodyTaskset(vf.Taskset[MoodyTask, vf.TasksetConfig]):
    def load(self) -> Iterator[MoodyTask]:
        for number in range(8):
            data = vf.TaskData(prompt=f"question {number}", system_prompt="Answer.")
            yield MoodyTask(data, self.config.task)
