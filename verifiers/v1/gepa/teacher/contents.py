"""What a task says: the texts of its data, those that only tell where and how it runs left out."""

from collections.abc import Iterator
from typing import Any

from verifiers.v1.task import Task, TaskData

NO_CONTENT = frozenset(TaskData.model_fields) - {"prompt"}
"""Fields of a task that say where and how it runs."""

TASK_CHARS, ALL_CHARS = 20_000, 2_000_000
"""How much of a task, and of all tasks together, is looked at."""


def most_chars(tasks: int) -> int:
    """How much of each of so many tasks is looked at."""
    return min(TASK_CHARS, ALL_CHARS // max(tasks, 1))


def content(task: Task) -> dict[str, Any]:
    """The fields of a task that say what it is about."""
    return task.data.model_dump(exclude=set(NO_CONTENT))


def leaves(value: Any) -> Iterator[str]:
    """Every text in a task's data that is no encoded file."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value if isinstance(value, list | tuple) else sorted(value, key=repr):
            yield from leaves(item)
