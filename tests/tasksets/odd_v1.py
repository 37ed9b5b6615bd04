"""A taskset whose rows and notes hold what is no JSON: eight questions, answered by "right"."""

import datetime
import enum
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import verifiers.v1 as vf

__all__ = ["OddTaskset"]

HALF = "half \ud83d"


class Thing:
    """Its `repr` holds its address."""


class Sulk:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    thing: Any


def circle() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def nest(depth: int = 5_000) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


NOTES: dict[str, Callable[[], Any]] = {
    "half": lambda: {HALF: [HALF, "\ud83d\ude00"]},
    "float32": lambda: np.float32(0.5),
    "int64": lambda: np.int64(3),
    "bool": lambda: np.bool_(True),
    "scalar array": lambda: np.array(2.5),
    "array": lambda: np.arange(4).reshape(2, 2),
    "long double": lambda: np.longdouble(1.5),
    "large array": lambda: np.zeros(5_000),
    "nan": lambda: [float("nan"), float("inf"), np.float32("nan")],
    "set": lambda: {"b", "a", "c"},
    "dataclass": lambda: Point(1.0, Thing()),
    "path": lambda: Path("a/b"),
    "date": lambda: datetime.date(2020, 1, 2),
    "exception": lambda: KeyError("k"),
    "object": Thing,
    "no repr": Sulk,
    "enum": lambda: Color.RED,
    "bytes": lambda: b"\xff",
    "keys": lambda: {1: "a", None: "b", (1, 2): "c"},
    "huge": lambda: 2**70,
    "endless": lambda: itertools.count(),
    "circle": circle,
    "nest": nest,
}

ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "": dict,
    "prompt": lambda: {"prompt": HALF},
    "messages": lambda: {"prompt": [vf.UserMessage(content=HALF)]},
    "system prompt": lambda: {"system_prompt": HALF},
    "gold": lambda: {"gold": HALF},
    "key": lambda: {"extra": {HALF: 1}},
    "object": lambda: {"extra": Thing()},
    "circle": lambda: {"extra": circle()},
    "deep": lambda: {"extra": nest(195)},
    "numpy": lambda: {"extra": {"a": np.float32(0.5), "b": [np.int64(3)], "c": np.arange(2)}},
}


class OddData(vf.TaskData):
    gold: Any = "right"
    extra: Any = None


class OddTaskConfig(vf.TaskConfig):
    notes: bool = False
    """The reward notes all of `NOTES`."""


class OddTask(vf.Task[OddData, vf.State, OddTaskConfig]):
    config: OddTaskConfig

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if trace.last_reply == "half":
            # As the host reads it out of a stream: there it takes what it refuses in a whole reply.
            trace.nodes[-1].message.content = HALF
            trace.root_reply = HALF

    @vf.reward
    async def right(self, trace: vf.Trace) -> Any:
        if trace.last_reply == "raise":
            raise ValueError(HALF)
        if self.config.notes:
            trace.info["feedback"] = {name: make() for name, make in NOTES.items()}
            metrics: dict[str, Any] = trace.metrics
            metrics |= {"own": np.float32(0.5), "thing": Thing()}
        return np.float32(0.7 if trace.last_reply == self.data.gold else 0.2)

    @vf.metric
    async def words(self, trace: vf.Trace) -> dict[str, float]:
        return {HALF if self.config.notes else "words": 1.0}


class OddConfig(vf.TasksetConfig):
    task: OddTaskConfig = OddTaskConfig()
    row: str = ""
    """What question 2 holds, of `ROWS`."""
    all: bool = False
    """Every question does."""


class OddTaskset(vf.Taskset[OddTask, OddConfig]):  # type: ignore[type-var]
    def load(self) -> Iterator[OddTask]:
        for number in range(9):
            odd = ROWS[self.config.row]() if number == 2 or self.config.all else {}
            row = {"prompt": f"question {number}", "system_prompt": "Answer.", **odd}
            yield OddTask(OddData(**row), self.config.task)
