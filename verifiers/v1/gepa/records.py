"""What the teacher reads about one rollout.

A record holds the task's input, the whole conversation in readable form, what every reward and
metric was, the taskset's feedback, and how the rollout ended: what a person would want in order to
say what the prompt lacks. It holds nothing that names the run or the machine (ids, paths, keys),
and it is bounded: long parts lose their middle, images and other binary data become a placeholder.
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
from verifiers.v1.gepa.privacy import MARK, SECRET_NAME, SHORTEST
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
from verifiers.v1.utils.texts import shorten

Record = dict[str, Any]

EXAMPLES_CHARS = 60_000
"""Size of all records of one teacher request, in characters (about 15,000 tokens of English)."""

RECORD_CHARS = 20_000
"""Size of one record, in characters, where few share the request."""

SHARES = {"Task input": 0.25, "Conversation": 0.45, "Feedback": 0.2}
"""How a record's size is divided; everything else shares the rest."""

ORDINARY_STOP = "agent_completed"

DATA_URL = re.compile(r"data:[\w.+/-]*;base64,[A-Za-z0-9+/=]+")
BASE64 = re.compile(r"[A-Za-z0-9+/]{512,}={0,2}")


def build_record(trace: WireTrace, score: float, columns: Sequence[str]) -> Record:
    """The record of one trace, not yet cut to size, without the ids that name the rollout."""
    return _cleaned(trace_record(trace, score, columns), {trace.id: "[id]", **_workdir(trace)})


def trace_record(trace: WireTrace, score: float, columns: Sequence[str] = ()) -> Record:
    """What there is to read about one trace, by title, as it is."""
    record: Record = {
        "Task input": _input(trace.task.data.prompt),
        "Conversation": _conversation(trace),
        "Score": score,
    }
    if len(parts := _parts(trace)) > 1:
        record["Score in parts"] = parts
    if feedback := trace.info.get("feedback"):
        record["Feedback"] = feedback
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


def episode_records(episode: WireEpisode, score: float, columns: Sequence[str]) -> list[Record]:
    """One record per trace of the episode."""
    return [build_record(trace, score, columns) for trace in episode.traces]


def has_field(data: BaseModel, name: str) -> bool:
    """Whether `name` is a field of the task's data (and not, say, a method)."""
    return name in type(data).model_fields or name in (data.model_extra or {})


def without(records: Sequence[Record], hide: Mapping[str, str]) -> list[Record]:
    """`records` with every text that must not leave the machine replaced by what `hide` maps it
    to."""
    return [_cleaned(record, hide) for record in records]


def render_records(records: Sequence[Record]) -> str:
    """All records of a request as text, each cut to its share of `EXAMPLES_CHARS`."""
    size = min(RECORD_CHARS, EXAMPLES_CHARS // max(len(records), 1))
    return "\n\n".join(
        f"## Example {number}\n\n{_render(record, size)}"
        for number, record in enumerate(records, 1)
    )


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


def _render(record: Record, size: int) -> str:
    rest = [key for key in record if key not in SHARES]
    other = int(size * (1 - sum(SHARES.values())) / max(len(rest), 1))
    texts = []
    for key, value in record.items():
        limit = int(size * SHARES[key]) if key in SHARES else other
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        texts.append(f"### {key}\n{shorten(text, limit)}")
    return "\n\n".join(texts)


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


def _conversation(trace: WireTrace) -> str:
    """The messages after the system prompt and the task's input."""
    messages = [message for message in trace.messages if message.role != "system"]
    prompt = trace.task.data.prompt
    if isinstance(prompt, str) and messages and isinstance(messages[0], UserMessage):
        if messages[0].content == prompt:
            messages = messages[1:]
    elif isinstance(prompt, list):
        opening = [message for message in prompt if message.role != "system"]
        if messages[: len(opening)] == opening:
            messages = messages[len(opening) :]
    text = "\n\n".join(_message(message) for message in messages) or "(no reply)"
    if trace.num_branches > 1:
        text = f"(the last of {trace.num_branches} branches)\n\n{text}"
    return text


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
    text = text.encode("utf-8", "replace").decode("utf-8")
    if "\0" in text:
        return f"[binary data, {len(text)} characters]"
    text = DATA_URL.sub(lambda match: f"[binary data, {len(match[0])} characters]", text)
    text = BASE64.sub(lambda match: f"[binary data, {len(match[0])} characters]", text)
    for private in sorted(hide, key=len, reverse=True):
        text = text.replace(private, hide[private])
    return text
