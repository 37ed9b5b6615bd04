"""Find the parts of a config by their type, at whatever depth."""

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

Part = TypeVar("Part")


def parts_of(
    value: Any, kind: type[Part] | tuple[type[Part], ...], name: str = ""
) -> Iterator[tuple[str, Part]]:
    """Every part of `value` (a model, list or mapping) that is of that `kind`, with the
    dotted name of the field that holds it; the entries of a list have the list's."""
    if isinstance(value, kind):
        yield name, value
    if isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from parts_of(getattr(value, field), kind, f"{name}.{field}" if name else field)
    elif isinstance(value, list):
        for item in value:
            yield from parts_of(item, kind, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts_of(item, kind, f"{name}.{key}")
