"""A taskset that a process can't import, other than the one named in `FRAIL_PARENT`.

There importing it kills the process for as long as the folder `FRAIL_KILLS` holds a file (each
import takes one away), and then raises where `FRAIL_RAISES` is set.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["FrailTaskset"]

if os.environ.get("FRAIL_PARENT", str(os.getpid())) != str(os.getpid()):
    for file in Path(os.environ.get("FRAIL_KILLS", os.devnull)).glob("*"):
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if "FRAIL_RAISES" in os.environ:
        raise ImportError("no such library here")


class FrailTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "right")


class FrailTaskset(vf.Taskset[FrailTask, vf.TasksetConfig]):
    def load(self) -> Iterator[FrailTask]:
        for number in range(8):
            data = vf.TaskData(prompt=f"question {number}", system_prompt="Answer.")
            yield FrailTask(data, self.config.task)
