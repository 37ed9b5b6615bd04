"""Which tasks a run trains on, selects on and reports on, and the prompt that it starts from.

The split is taken from the selected tasks in order: train, then val, then test. It does not depend
on the seed, so runs with several seeds compare on the same tasks. No task is in two of the three,
not even as a copy under another index: a copy of a train task in val would reward a prompt for
having seen the answer. A task whose data can't be sent or stored is in none of them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.task import Task
from verifiers.v1.taskset import Taskset
from verifiers.v1.utils.plain import ADDRESS, Plain, numbers, steady_repr
from verifiers.v1.utils.texts import shorten

NAMES = ("train", "val", "test")
SHARES = (2, 1, 1)
"""How a taskset that is smaller than the defaults is divided: 50 / 25 / 25 %."""

NAMED = 10
"""Tasks that a note about tasks left out names."""

LINE_DEPTH = 8
"""How deep at most a task's data lies in a line of the record, which readers give up on at 200."""

READ_AHEAD = 10
"""An infinite taskset is read to at most this many times what the split needs: one that repeats
itself would otherwise never yield enough distinct tasks."""


class SplitError(ValueError):
    """The tasks can't be split as asked, or give no prompt to start from."""


@dataclass(frozen=True)
class Split:
    """The tasks of a run by part, and what there is to say about how they were chosen."""

    train: list[Task]
    val: list[Task]
    test: list[Task]
    duplicates: dict[int, int] = field(default_factory=dict)
    """Tasks left out because an earlier one has the same content: their index -> its index."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Tasks left out because their data can't be sent or stored: their index -> why."""
    notes: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[Task]:
        return [*self.train, *self.val, *self.test]

    def record(self, val_left: list[Task] | None = None) -> dict[str, Any]:
        """The split as `splits.json` holds it: index, id and content hash of every task, and, once
        it is known which of val could be measured, the indices of those that were dropped."""
        parts = {
            name: [
                {"idx": task.data.idx, "id": task.data.id, "hash": content_hash(task)}
                for task in getattr(self, name)
            ]
            for name in NAMES
        }
        duplicates = [{"idx": idx, "same_as": first} for idx, first in self.duplicates.items()]
        unfit = [{"idx": idx, "reason": reason} for idx, reason in self.unfit.items()]
        left = {task.data.idx for task in (self.val if val_left is None else val_left)}
        dropped = [task.data.idx for task in self.val if task.data.idx not in left]
        left_out = {"unfit": unfit} if unfit else {}
        return {**parts, "duplicates": duplicates, **left_out, "dropped": dropped}


def content_hash(task: Task) -> str:
    """SHA-256 of what the task is: its data without its position (which differs between copies)
    and without its system prompt (which the candidate replaces)."""
    data = task.data.model_dump(exclude_none=True, exclude={"idx", "system_prompt"})
    return hashlib.sha256(_canonical(data).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """JSON that is the same in every process: a set has no order of its own."""
    if isinstance(value, Mapping):
        items = sorted((json.dumps(str(key)), _canonical(item)) for key, item in value.items())
        return "{" + ",".join(f"{key}:{item}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, set | frozenset):
        return "[" + ",".join(sorted(map(_canonical, value))) + "]"
    if isinstance(value, bytes):
        return json.dumps(value.hex())
    return json.dumps(to_jsonable_python(value, fallback=steady_repr))


def storable(task: Task, own_prompt: bool) -> Task | str:
    """The task as it can be sent and stored, with Python's numbers in place of numpy's, or why it
    can't. Its own system prompt counts only where the run starts from that."""
    fields = {**vars(task.data), **(task.data.model_extra or {})}
    for name, value in fields.items():
        plain = Plain()
        plain.value(value)
        if plain.replaced and (own_prompt or name != "system_prompt"):
            return f"its {name!r} holds half of a surrogate pair, which is no text"
    try:
        try:
            data = task.data.model_dump(mode="json", exclude_none=True)
        except PydanticSerializationError:
            task = task.with_data(**{name: numbers(value) for name, value in fields.items()})
            data = task.data.model_dump(mode="json", exclude_none=True)
        data.pop("system_prompt", None)
        from_json("[" * LINE_DEPTH + json.dumps(data) + "]" * LINE_DEPTH)
    except (ValueError, TypeError, RecursionError) as error:
        return f"its data has no JSON form: {ADDRESS.sub('', shorten(str(error), 200))}"
    return task


def minibatch_size(config: GEPAConfig, split: Split) -> int:
    """Tasks in a minibatch: no more than there are to train on."""
    return min(config.reflection_minibatch_size, len(split.train))


def proposal_cost(config: GEPAConfig, split: Split) -> int:
    """Rollouts of a proposal that is rejected: its parent and itself on one minibatch."""
    return 2 * minibatch_size(config, split) * config.rollouts_per_task


def least_cost(config: GEPAConfig, split: Split) -> int:
    """Rollouts of the cheapest proposal: where rollouts are reused, its parent may cost nothing."""
    cost = proposal_cost(config, split)
    return cost if config.reuse_rollouts is None else cost // 2


def split_tasks(taskset: Taskset, config: GEPAConfig) -> Split:
    """Select and split the taskset's tasks, reading no further than the split needs. Raises
    `SplitError` with the numbers where there are too few."""
    sizes = {name: getattr(config, f"num_{name}") for name in NAMES}
    need = sum(sizes.values())
    view = taskset.select(config.select)
    limit = None if view.bounded else need * READ_AHEAD
    tasks, duplicates, left_out = _distinct(view, need, limit, config.initial_prompt is None)
    notes = _unfit_notes(left_out)
    if duplicates:
        notes.append(
            f"{len(duplicates)} tasks repeat another one's content and were left out "
            "(listed in splits.json)"
        )
    if len(tasks) < need:
        explicit = {name for name in NAMES if f"num_{name}" in config.model_fields_set}
        shrunk = _shrink(sizes, explicit, len(tasks))
        if shrunk is None:
            raise SplitError(_too_few(sizes, explicit, len(tasks), duplicates, left_out))
        sizes = shrunk
        numbers = ", ".join(f"{sizes[name]} {name}" for name in NAMES)
        notes.append(f"the selection holds {len(tasks)} distinct tasks: split into {numbers}")
    minibatch = config.reflection_minibatch_size
    if minibatch > sizes["train"]:
        notes.append(
            f"--reflection-minibatch-size {minibatch} is more than the {sizes['train']} train "
            "tasks: a minibatch is all of them"
        )
    val_start = sizes["train"]
    test_start = val_start + sizes["val"]
    return Split(
        train=tasks[:val_start],
        val=tasks[val_start:test_start],
        test=tasks[test_start : test_start + sizes["test"]],
        duplicates=duplicates,
        unfit=left_out,
        notes=notes,
    )


def _distinct(
    stream: Iterable[Task], need: int, limit: int | None, own_prompts: bool
) -> tuple[list[Task], dict[int, int], dict[int, str]]:
    """The first `need` tasks of `stream` with distinct content, and what was left out among them:
    copies, index -> index of the first, and unfit ones, index -> why."""
    first: dict[str, Task] = {}
    duplicates: dict[int, int] = {}
    left_out: dict[int, str] = {}
    for given in islice(stream, limit):
        task = storable(given, own_prompts)
        if isinstance(task, str):
            left_out[task_idx(given)] = task
            continue
        original = first.setdefault(content_hash(task), task)
        if original is not task:
            duplicates[task_idx(task)] = task_idx(original)
        elif len(first) == need:
            break
    return list(first.values()), duplicates, left_out


def _unfit_notes(left_out: dict[int, str]) -> list[str]:
    """A line for each reason, with the tasks that it holds for."""
    tasks: dict[str, list[str]] = {}
    for idx, reason in left_out.items():
        tasks.setdefault(reason, []).append(str(idx))
    return [
        f"left out (listed in splits.json): task {', '.join(of[:NAMED])}"
        f"{f' and {len(of) - NAMED} more' if len(of) > NAMED else ''}: {reason}"
        for reason, of in tasks.items()
    ]


def task_idx(task: Task) -> int:
    """The task's position in its taskset, by which it is named in a run."""
    assert task.data.idx is not None  # iterating a taskset sets it
    return task.data.idx


def _shrink(asked: dict[str, int], explicit: set[str], tasks: int) -> dict[str, int] | None:
    """Sizes that `tasks` tasks can fill: the explicit ones as they are, the others sharing what is
    left by `SHARES`, never above their defaults. None where that leaves train or val empty."""
    left = tasks - sum(asked[name] for name in explicit)
    open_parts = [name for name in NAMES if name not in explicit]
    if left < 0 or not open_parts:
        return None
    sizes = dict(asked)
    shares = dict(zip(NAMES, SHARES, strict=True))
    for position, name in enumerate(open_parts):
        rest = open_parts[position:]
        share = left * shares[name] / sum(shares[other] for other in rest)
        sizes[name] = min(asked[name], max(round(share), int(name != "test")), left)
        left -= sizes[name]
    return sizes if sizes["train"] and sizes["val"] else None


def _too_few(
    asked: dict[str, int],
    explicit: set[str],
    tasks: int,
    duplicates: dict[int, int],
    left_out: dict[int, str],
) -> str:
    numbers = " + ".join(f"{asked[name]} {name}" for name in NAMES if name in explicit)
    wanted = numbers or "at least 1 train + 1 val"
    out = [f"{len(duplicates)} copies"] if duplicates else []
    if left_out:
        idx, reason = next(iter(left_out.items()))
        out.append(f"{len(left_out)} that can't be stored, the first: task {idx}: {reason}")
    missing = f" (after leaving out {' and '.join(out)})" if out else ""
    return (
        f"the selection has {tasks} tasks{missing}, which can't fill {wanted}: lower --num-train, "
        "--num-val or --num-test, or select more tasks"
    )


def seed_prompt(tasks: list[Task], config: GEPAConfig) -> str:
    """The prompt that the search starts from: `initial_prompt`, else the one system prompt that
    all tasks share. Raises `SplitError` where there is none or more than one."""
    if config.initial_prompt is not None:
        return config.initial_prompt
    prompts = {task.data.system_prompt for task in tasks}
    if len(prompts) > 1:
        counted = len(prompts - {None})
        kinds = f"{counted} different system prompts" + (" and none" if None in prompts else "")
        raise SplitError(
            f"the selected tasks carry {kinds}, so there is no single prompt to optimize: give one "
            "with --initial-prompt TEXT or --taskset.system-prompt FILE"
        )
    prompt = prompts.pop()
    if prompt is None:
        raise SplitError(
            "the tasks carry no system prompt to start from: give one with --initial-prompt TEXT "
            "or --taskset.system-prompt FILE"
        )
    return prompt
