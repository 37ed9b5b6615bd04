"""What the teacher reads about one rollout.

A record holds the task's input, the whole conversation in readable form, what every reward and
metric was, the taskset's feedback, and how the rollout ended: what a person would want in order to
say what the prompt lacks. It holds nothing that names the run or the machine (ids, paths, keys),
and it is bounded: what is long loses its middle, the longest first, message by message of the
conversation; images and other binary data become a placeholder.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from verifiers.v1.episode import WireEpisode
from verifiers.v1.gepa.faults.privacy import MARK, SECRET_NAME, SHORTEST
from verifiers.v1.trace import WireTrace
from verifiers.v1.types import (
    AssistantMessage,
    Message,
    MessageContent,
    Messages,
    TextContentPart,
    ToolMessage,
    UserMessage,
)
from verifiers.v1.utils.texts import as_text, cut, shares, shorten

Record = dict[str, Any]

FEEDBACK, CONVERSATION = "Feedback", "Conversation"

LEAST_MESSAGE = 200
"""Characters. Where so many messages share a conversation's size that each would get less, it loses
the messages of its middle instead."""

ORDINARY_STOP = "agent_completed"

DATA_URL = re.compile(r"data:[\w.+/-]*;base64,[A-Za-z0-9+/=]+")
BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{512,}={0,2}")


def build_record(trace: WireTrace, score: float, columns: Sequence[str]) -> Record:
    """The record of one trace, not yet cut to size, without the ids that name the rollout."""
    return _cleaned(trace_record(trace, score, columns), {trace.id: "[id]", **_workdir(trace)})


def trace_record(trace: WireTrace, score: float, columns: Sequence[str] = ()) -> Record:
    """What there is to read about one trace, by title, as it is."""
    record: Record = {
        "Task input": _input(trace.task.data.prompt),
        CONVERSATION: _conversation(trace),
        "Score": score,
    }
    if len(parts := _parts(trace)) > 1:
        record["Score in parts"] = parts
    if feedback := trace.info.get("feedback"):
        record[FEEDBACK] = feedback
    if trace.stop_condition not in (None, ORDINARY_STOP):
        record["Ended by"] = trace.stop_condition
    if trace.is_truncated:
        record["Truncated"] = "the reply was cut off at a limit"
    if error := (trace.calls[-1].error if trace.calls else None):
        record["Error"] = f"{error.type}: {shorten(error.message, 500)}"
    for column in columns:
        if column in trace.info:
            record[column] = trace.info[column]
        elif has_field(trace.task.data, column):
            record[column] = to_jsonable_python(getattr(trace.task.data, column))
    return record


class Reader:
    """Makes the records of a run; `columns` are the extra fields to show the teacher."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.unseen = set(columns)
        """Columns that no trace and no task had so far."""
        self._columns = columns

    def read(self, episode: WireEpisode, score: float) -> list[Record]:
        """One record per trace of the episode."""
        records = [build_record(trace, score, self._columns) for trace in episode.traces]
        self.unseen.difference_update(*records)
        return records


def has_field(data: BaseModel, name: str) -> bool:
    """Whether `name` is a field of the task's data (and not, say, a method)."""
    return name in type(data).model_fields or name in (data.model_extra or {})


def without(records: Sequence[Record], hide: Mapping[str, str]) -> list[Record]:
    """`records` with every text that must not leave the machine replaced by what `hide` maps it
    to."""
    return [_cleaned(record, hide) for record in records]


def render_records(records: Sequence[Record], room: int) -> str:
    """All records of a request as text, in at most `room` characters. Short ones are whole, the
    others share what is left."""
    parts = [_parts_of(record) for record in records]
    heads = [f"## Example {number}\n\n" for number in range(1, len(records) + 1)]
    lengths = [sum(map(_length, one.values())) for one in parts]
    sizes = shares(lengths, room - sum(len(head) + 2 for head in heads))
    texts = [_render(one, size) for one, size in zip(parts, sizes, strict=True)]
    return cut("\n\n".join(map("".join, zip(heads, texts, strict=True))), room)


def hidden_texts(paths: Iterable[Path]) -> dict[str, str]:
    """Texts that no request to the teacher may hold: the given paths, the home directory, and the
    value of every environment variable that is named like a secret."""
    hide = {
        value: MARK
        for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST
    }
    for path in paths:
        hide[str(path.resolve())] = "[path]"
    home = str(Path.home())
    if home != "/":
        hide[home] = "[home]"
    return hide


def _parts_of(record: Record) -> dict[str, list[str]]:
    """Each part of a record as texts that follow one another: its heading, and one text, or one per
    message of the conversation."""
    parts = {}
    for key, value in record.items():
        if key == CONVERSATION:
            texts = value
        else:
            texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
        parts[key] = [f"### {key}", *texts]
    return parts


def _length(texts: Sequence[str]) -> int:
    return sum(len(text) + 2 for text in texts)


def _render(parts: Mapping[str, Sequence[str]], size: int) -> str:
    """A record in at most about `size` characters. The feedback, which says what to learn, goes
    first: it gets up to half of that."""
    lengths = {key: _length(texts) for key, texts in parts.items()}
    sizes = dict(zip(lengths, shares(list(lengths.values()), size), strict=True))
    if FEEDBACK in lengths:
        own = sizes[FEEDBACK] = min(lengths[FEEDBACK], max(sizes[FEEDBACK], size // 2))
        rest = {key: length for key, length in lengths.items() if key != FEEDBACK}
        sizes |= zip(rest, shares(list(rest.values()), size - own), strict=True)
    return "\n\n".join(_fit(texts, sizes[key]) for key, texts in parts.items())


def _fit(texts: Sequence[str], size: int) -> str:
    """A heading and its texts in at most about `size` characters."""
    heading, *messages = texts
    room = size - len(heading) - 3
    lengths = [len(message) for message in messages]
    sizes = shares(lengths, room - 2 * (len(messages) - 1))
    if lengths != sizes and max(sizes) < LEAST_MESSAGE:
        return f"{heading}\n{cut(_joined(messages), room)}"
    return f"{heading}\n{_joined(list(map(cut, messages, sizes)))}"


def _joined(messages: Sequence[str]) -> str:
    return "\n\n".join(messages)


def _parts(trace: WireTrace) -> dict[str, float | None]:
    """Each reward's weighted value and each metric's value, by name."""
    rewards = {
        name: None if reward is None else reward.value for name, reward in trace.rewards.items()
    }
    return {**rewards, **trace.metrics}


def _input(prompt: str | Messages | None) -> str:
    if prompt is None:
        return "(the user opens the conversation)"
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(_message(message) for message in prompt)


def _conversation(trace: WireTrace) -> list[str]:
    """The messages after the system prompt and the task's input, one text each."""
    messages = [message for message in trace.messages if message.role != "system"]
    prompt = trace.task.data.prompt
    if isinstance(prompt, str) and messages and isinstance(messages[0], UserMessage):
        if messages[0].content == prompt:
            messages = messages[1:]
    elif isinstance(prompt, list):
        opening = [message for message in prompt if message.role != "system"]
        if messages[: len(opening)] == opening:
            messages = messages[len(opening) :]
    texts = [_message(message) for message in messages] or ["(no reply)"]
    if trace.num_branches > 1:
        texts.insert(0, f"(the last of {trace.num_branches} branches)")
    return texts


def _message(message: Message) -> str:
    lines = [f"[{message.role}]"]
    if isinstance(message, ToolMessage) and message.name:
        lines = [f"[{message.role} {message.name}]"]
    if isinstance(message, AssistantMessage):
        lines.append(message.content or ("" if message.tool_calls else "(empty)"))
        lines += [f"[calls {call.name}({call.arguments})]" for call in message.tool_calls or []]
    else:
        lines.append(_content(message.content))
    return "\n".join(line for line in lines if line)


def _content(content: MessageContent) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part.text if isinstance(part, TextContentPart) else "[image]" for part in content
    )


def _workdir(trace: WireTrace) -> dict[str, str]:
    runtime = trace.agent.runtime
    workdir = getattr(runtime, "id", None) if runtime is not None else None
    return {workdir: "[workdir]"} if workdir else {}


def _cleaned(value: Any, hide: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _clean(value, hide)
    if isinstance(value, dict):
        return {_clean(str(key), hide): _cleaned(item, hide) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, hide) for item in value]
    return value


def _clean(text: str, hide: Mapping[str, str]) -> str:
    text = as_text(text)
    if "\0" in text:
        return f"[binary data, {len(text)} characters]"
    text = DATA_URL.sub(lambda match: f"[binary data, {len(match[0])} characters]", text)
    text = BASE64.sub(lambda match: f"[binary data, {len(match[0])} characters]", text)
    for private in sorted(hide, key=len, reverse=True):
        text = text.replace(private, hide[private])
    return text
