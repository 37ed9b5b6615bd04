"""A taskset with an env of its own in which two agents play."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["PairEnv", "PairTaskset"]


class PairConfig(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.asker.run(task)
        await agents.solver.run(task)


class PairTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield vf.Task(vf.TaskData(prompt="hello"))
