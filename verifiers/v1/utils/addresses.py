"""Base URLs of OpenAI-compatible endpoints, as people paste them.

A base URL is what stands in front of `/chat/completions`. Documentation, dashboards and error
messages show the whole address, and some servers (Azure) want a query behind it in every request.
"""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from verifiers.v1.configs.client import BaseClientConfig

ROUTE = re.compile(r"(/chat/completions|(?<=/v\d)/(completions|responses|messages))/*$")
"""What clients put behind a base URL by themselves. The short ones are also names that a gateway
may give its base, so there they count behind a version alone."""


def base_of(address: str) -> str:
    """The base URL that is meant by `address`, with the query that it has."""
    path, query = split_query(address.strip())
    return ROUTE.sub("", path) + (f"?{query}" if query else "")


def split_query(address: str) -> tuple[str, str]:
    """An address in front of its `?`, and what follows that, empty where there is none."""
    path, _, query = address.partition("?")
    return path, query


def clients_of(value: Any, name: str = "") -> Iterator[tuple[str, BaseClientConfig]]:
    """Every endpoint that a config names, at whatever depth (the student's, the teacher's, an
    agent's own, those of judges), with its name; the entries of a list have the list's."""
    if isinstance(value, BaseClientConfig):
        yield name, value
    if isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from clients_of(getattr(value, field), f"{name}.{field}" if name else field)
    elif isinstance(value, list):
        for item in value:
            yield from clients_of(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from clients_of(item, f"{name}.{key}")
