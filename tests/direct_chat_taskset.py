"""The taskset and tool server of `tests/environments/test_direct_chat.py`.

A module of its own because the host starts the tool server as `python -m <module>`.
"""

from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["KitTaskset"]


class KitToolset(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "kit"

    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @vf.tool
    async def repeat(self, text: str, times: int) -> str:
        """Say a text several times."""
        return text * times

    @vf.tool
    async def touch(self, path: str) -> str:
        """Create a file."""
        Path(path).touch()
        return "created"


class KitTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def answered(self, trace: vf.Trace) -> float:
        return 1.0 if trace.last_reply.startswith("done") else 0.25


class GatedTask(KitTask):
    """Has hooks on requests, so the host hands the harness a gate for its tool calls."""

    @vf.intercept
    async def deny_touch(self, request: vf.Request) -> vf.Request | None:
        last = request.messages[-1]
        if not (isinstance(last, vf.ToolMessage) and last.name == "kit_touch"):
            return None
        denied = last.model_copy(update={"content": "not allowed"})
        return request.model_copy(update={"messages": [*request.messages[:-1], denied]})

    @vf.stop
    async def no_repeating(self, request: vf.Request) -> bool:
        last = request.messages[-1]
        return isinstance(last, vf.ToolMessage) and last.name == "kit_repeat"


class KitTasksetConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class KitTaskset(vf.Taskset[KitTask, KitTasksetConfig]):
    def load(self) -> Iterator[KitTask]:
        yield KitTask(vf.TaskData(prompt="plain"), self.config.task)

    @classmethod
    def toolsets(cls, config: KitTasksetConfig) -> list[vf.Toolset]:
        return [KitToolset(config.tools)]


if __name__ == "__main__":
    KitToolset.run()
