"""Questions with a tool on offer; any answer is right."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["TooledTaskset"]


class Books(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "books"

    @vf.tool
    async def look(self, word: str) -> str:
        """Look a word up."""
        return word


class TooledTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def answered(self, trace: vf.Trace) -> float:
        return float(bool(trace.last_reply))


class TooledConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class TooledTaskset(vf.Taskset[TooledTask, TooledConfig]):
    def load(self) -> Iterator[TooledTask]:
        for number in range(8):
            data = vf.TaskData(prompt=f"question {number}", system_prompt="Answer.")
            yield TooledTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: TooledConfig) -> list[vf.Toolset]:
        return [Books(config.tools)]
