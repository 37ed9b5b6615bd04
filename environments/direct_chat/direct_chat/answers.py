"""Answers that are nearly right, put right before anything reads them.

Many servers speak OpenAI's format nearly: a count that is null, a call without an id, arguments as
an object. The models of OpenAI's SDK refuse such an answer whole. What it says without a doubt is
mended here; what would have to be guessed is refused with the field's name. An answer of status 200
that says that the server failed is refused as that failure.
"""

import hashlib
from typing import Any

from pydantic_core import to_json

from direct_chat.finish import finish_of

Json = dict[str, Any]

PASSING_STATUS = frozenset({408, 409, 429})
"""Statuses below 500 of a failure that may pass."""

ID_LENGTH = 9
"""Letters and digits of an id that is made up: as many as Mistral takes, which is the strictest."""


class Unusable(Exception):
    """An answer that is none. `status` is the one that it should have come with, 502 if the server
    did not say. `broken` is whether the server began to answer and broke off."""

    def __init__(self, message: str, status: int = 502, broken: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.broken = broken


def mend(answer: object) -> Json:
    """`answer`, a chat completion as it came, with what can be mended mended in place. Raises
    `Unusable`. The reason to finish stays what it is; one that means a failure is refused."""
    if not isinstance(answer, dict):
        raise Unusable(f"the answer is no chat completion but {_kind(answer)}")
    choices = answer.get("choices")
    failure = answer.get("error")
    if failure and not choices:
        raise Unusable(*_failure(failure))
    if failure:
        raise _broken("error", failure)
    if not isinstance(choices, list) or not choices:
        raise Unusable(f"choices is {'empty' if choices == [] else _kind(choices)}")
    for number, choice in enumerate(choices):
        _mend_choice(answer, choice, number)
    for name, value in (("id", ""), ("created", 0), ("model", ""), ("object", "chat.completion")):
        if answer.get(name) is None:
            answer[name] = value
    answer["usage"] = counted(answer.get("usage"))
    return answer


def counted(usage: object) -> Json | None:
    """A report of tokens with both its counts; None if it leaves one open, as if none had come."""
    if not isinstance(usage, dict):
        return None
    prompt, completion, total = (
        _count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total")
    )
    if total is not None and (prompt is None) != (completion is None):
        rest = total - (prompt or completion or 0)
        prompt, completion = (rest, completion) if prompt is None else (prompt, rest)
    if prompt is None or completion is None or min(prompt, completion) < 0:
        return None
    kept = {name: value for name, value in usage.items() if value is not None}
    for name, details in usage.items():
        if name.endswith("_details") and details is not None:
            known = details.items() if isinstance(details, dict) else ()
            kept[name] = {key: value for key, value in known if _count(value) is not None}
    if not isinstance(kept.get("cost", 0), int | float):
        del kept["cost"]
    if total is None:
        total = prompt + completion
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return {**kept, **counts}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)


def _mend_choice(answer: Json, choice: object, number: int) -> None:
    where = f"choices[{number}]"
    if not isinstance(choice, dict):
        raise Unusable(f"{where} is {_kind(choice)}")
    reason = choice.get("finish_reason")
    failed = finish_of(reason) == "broken"
    if choice.get("error") or failed:
        field = f"{where}.finish_reason {reason!r}" if failed else f"{where}.error"
        raise _broken(field, choice.get("error"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable(f"{where}.message is {_kind(message)}")
    if choice.get("index") is None:
        choice["index"] = number
    if message.get("role") is None:
        message["role"] = "assistant"
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(map(_text, content))
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
    elif isinstance(calls, list):
        for position, call in enumerate(calls):
            name = f"{where}.message.tool_calls[{position}]"
            _mend_call(call, name, f"{answer.get('id')} {answer.get('created')} {name}")
    else:
        raise Unusable(f"{where}.message.tool_calls is {_kind(calls)}")


def _text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _mend_call(call: object, where: str, origin: str) -> None:
    """Mend one call of a tool; an id that is made up depends on the `origin` and the call."""
    if not isinstance(call, dict):
        raise Unusable(f"{where} is {_kind(call)}")
    if not call.get("type"):
        call["type"] = "custom" if call.get("custom") else "function"
    if call["type"] == "function":
        function = call.get("function")
        if not isinstance(function, dict):
            raise Unusable(f"{where}.function is {_kind(function)}")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise Unusable(f"{where}.function.name is {'empty' if name == '' else _kind(name)}")
        arguments = function.get("arguments")
        if arguments is None or arguments == "":
            function["arguments"] = "{}"
        elif not isinstance(arguments, str):
            function["arguments"] = to_json(arguments).decode()
    known = call.get("id")
    if isinstance(known, int):
        call["id"] = str(known)
    elif not known:
        seed = f"{origin} {to_json({**call, 'id': None}).decode()}"
        call["id"] = hashlib.sha256(seed.encode()).hexdigest()[:ID_LENGTH]


def _broken(field: str, error: object) -> Unusable:
    """An answer that its server broke off. It may pass, whatever code the server gave it."""
    message, status = _failure(error)
    lasting = status < 500 and status not in PASSING_STATUS
    words = f"the server broke off its answer: {field}: {message}"
    return Unusable(words, 502 if lasting else status, broken=True)


def _failure(error: object) -> tuple[str, int]:
    """The text and the status of an error object; 502 where it names no HTTP status."""
    if not isinstance(error, dict):
        return str(error or "no message"), 502
    message = error.get("message") or to_json(error, fallback=str).decode()
    codes = (str(error.get(name)) for name in ("code", "status", "status_code"))
    statuses = [int(code) for code in codes if code.isdecimal() and 400 <= int(code) < 600]
    return str(message), statuses[0] if statuses else 502


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    if value is None:
        return "missing"
    return names.get(type(value), "a number")
