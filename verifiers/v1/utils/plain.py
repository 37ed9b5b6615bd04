"""Any Python value as plain JSON that every reader takes, the same in every process.

What code notes on the fly is not always JSON: an array, a set, an object of its own, NaN, half of a
surrogate pair. It is kept as what it says: numbers as numbers, texts as text, and what has no JSON
form as its `repr`, without the addresses that differ from process to process.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from verifiers.v1.utils.texts import as_text, is_text, shorten

REPR_CHARS = 500
"""How much of a `repr` is kept, in characters."""

MOST_NUMBERS = 1_000
"""A larger array is kept as its `repr`, which leaves out its middle."""

DEEPEST = 64
"""How deep lists and objects may lie in each other. Readers of JSON give up at some 200."""

LARGEST_BITS = 63
"""A larger integer is kept as text: many readers, and msgpack, know 64 bits."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+| id='\d+'")


class Plain:
    """Makes values plain. `replaced` is whether any text held half of a surrogate pair, which is
    U+FFFD now."""

    def __init__(self) -> None:
        self.replaced = False
        self._open: set[int] = set()
        """The containers that lie around the value at hand."""

    def text(self, text: str) -> str:
        if is_text(text):
            return str(text)
        self.replaced = True
        return as_text(text)

    def value(self, value: Any) -> Any:
        """`value` as JSON; never raises an `Exception`."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and not isinstance(value, Enum):
            return self.text(value)
        if isinstance(value, int) and not isinstance(value, Enum):
            return int(value) if value.bit_length() <= LARGEST_BITS else self._repr(value)
        if isinstance(value, float) and not isinstance(value, Enum):
            return float(value) if math.isfinite(value) else self._repr(float(value))
        if isinstance(value, bytes | bytearray):
            return f"[binary data, {len(value)} bytes]"
        if id(value) in self._open:
            return "[contains itself]"
        if len(self._open) == DEEPEST:
            return "[nested too deep]"
        self._open.add(id(value))
        try:
            return self._made_of(value)
        except Exception:  # noqa: BLE001 - whatever an object's own code raises
            return self._repr(value)
        finally:
            self._open.discard(id(value))

    def _made_of(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted((self.value(item) for item in value), key=json.dumps)
        if isinstance(value, BaseModel):
            return self.value(value.model_dump())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {field.name: self.value(getattr(value, field.name)) for field in fields}
        if is_array(value):
            few = math.prod(value.shape) <= MOST_NUMBERS
            return self.value(numbers(value)) if few else self._repr(value)
        if isinstance(value, Iterator):  # asking it for its items may never end
            return self._repr(value)
        return self.value(to_jsonable_python(value))

    def _key(self, key: Any) -> str:
        made = self.value(key)
        return made if isinstance(made, str) else json.dumps(made)

    def _repr(self, value: Any) -> str:
        return self.text(steady_repr(value))


def is_array(value: Any) -> bool:
    """Whether `value` is a number or an array of numpy, or of a library that keeps to its form."""
    return isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "tolist")


def numbers(value: Any) -> Any:
    """`value` with Python's own numbers and lists in place of arrays and their numbers, also inside
    lists and objects."""
    if isinstance(value, dict):
        return {numbers(key): numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(numbers, value))
    if not is_array(value):
        return value
    made = value.tolist()
    return float(made) if is_array(made) else made  # numpy's long double is its own


def steady_repr(value: Any) -> str:
    """The `repr`, shortened, without addresses; the name of the type where it raises."""
    try:
        return shorten(ADDRESS.sub("", repr(value)), REPR_CHARS)
    except Exception:  # noqa: BLE001 - whatever an object's own code raises
        return f"<{type(value).__name__}>"
