"""A provider's refusal, read: its status, its codes, its words, and how long it asks to wait.

Providers answer with JSON of many shapes, gateways wrap one answer in another, and what reaches us
is text: the host's (`upstream 429: {...}`), the OpenAI SDK's (`Error code: 429 - {'error': ...}`),
or an SDK's text inside a reward's error. All of it is read the same way.
"""

import ast
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STATUS = re.compile(r"\b(?:Error code:|upstream|HTTP) (\d{3})\b")
"""How the SDK, the host and our own transport say the status in an error's text."""

CODE_KEYS = frozenset({"code", "type", "error_type", "status", "reason", "quotaid", "__type"})
"""Keys whose text is a code of the provider's, in lower case."""

WAIT_KEYS = frozenset({"retrydelay", "retry_after", "retry-after", "retryafter"})
"""Keys whose value is how long to wait."""

RESET_KEY = "x-ratelimit-reset"
"""When to ask again: seconds or milliseconds since 1970."""

_UNIT = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
WAIT = re.compile(
    r"\b(?:(?:re)?try|retry[-_ ]?after|wait|resets?|available)\b(?: again)?(?: in| after|:)? ?"
    rf"(?P<span>\d[\d.]* ?{_UNIT}(?:,? ?\d[\d.]* ?{_UNIT})*)",
    re.IGNORECASE,
)
PART = re.compile(r"(\d[\d.]*) ?([a-z]+)", re.IGNORECASE)
SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

LONGEST = 50_000
"""Characters of an answer that are read: the rest is an error page, or an echo of the request."""

DEEPEST = 3
"""Answers that gateways may have put into one another."""


@dataclass(frozen=True)
class Refusal:
    """What a provider said."""

    status: int | None
    codes: frozenset[str]
    """Its codes and types, in lower case."""
    words: str
    """All of its text, on one line."""
    parameter: str
    """The parameter that it names, empty where it names none."""
    wait: float | None
    """Seconds that it asks to wait, None where it does not say."""


def read_refusal(status: int | None, text: str) -> Refusal:
    """What a refusal says; `status` where it is known beside its text."""
    text = text[:LONGEST]
    if status is None and (found := STATUS.search(text)):
        status = int(found[1])
    leaves = list(_leaves(_objects(text)))
    codes = {str(value).lower() for key, value in leaves if key in CODE_KEYS and value}
    named = (value for key, value in leaves if key == "param" and isinstance(value, str))
    # Beside the text as it came, its strings as they are meant: quotes in them are escaped.
    words = " ".join([text, *(v for _, v in leaves if isinstance(v, str))]).split()
    said = " ".join(words)
    return Refusal(status, frozenset(codes), said, next(named, ""), _wait(leaves, said))


def _objects(text: str, depth: int = 0) -> list[Any]:
    """The JSON objects (or their Python form) that stand in a text, and those in their texts."""
    start = min((at for at in map(text.find, "{[") if at >= 0), default=-1)
    if start < 0 or depth == DEEPEST:
        return []
    body = text[start:]
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(body)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(body[: max(body.rfind("}"), body.rfind("]")) + 1])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    inner = [value for _, value in _leaves([found]) if isinstance(value, str)]
    return [found, *(deeper for value in inner for deeper in _objects(value, depth + 1))]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no container, with the key that it stands under, in lower case."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, str(name).lower())
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value


def _wait(leaves: list[tuple[str, Any]], words: str) -> float | None:
    waits = [
        span for key, value in leaves if key in WAIT_KEYS and (span := _span(value)) is not None
    ]
    for key, value in leaves:
        if key == RESET_KEY and (at := _number(value)) is not None:
            seconds = at / 1000 if at > 1e11 else at
            waits.append(max(0.0, seconds - time.time()) if seconds > 1e9 else seconds)
    if found := WAIT.search(words):
        waits.append(_span(found["span"]) or 0.0)
    return max((seconds for seconds in waits if seconds >= 0), default=None)


def _number(value: Any) -> float | None:
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _span(value: Any) -> float | None:
    """Seconds of `34.07s`, `7m12s`, `2 hours`, or of a plain number."""
    if (number := _number(value)) is not None:
        return number
    parts = PART.findall(str(value))
    return sum(float(count.rstrip(".")) * _unit(unit) for count, unit in parts) if parts else None


def _unit(name: str) -> float:
    name = name.lower()
    if name.startswith(("ms", "milli")):
        return SECONDS["ms"]
    return SECONDS.get(name[0], 1.0)
