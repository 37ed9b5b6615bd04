"""The student's requests on their way out of the host's interception.

The host's client joins a route to whatever the base URL is, also behind its query, and knows the
limit of a reply by one name. `Relay` is that client with both put right. It is made only for
endpoints that need it.
"""

from collections.abc import Iterable
from typing import Any

import httpx

from verifiers.v1.clients import Client, EvalClient, resolve_client
from verifiers.v1.clients.client import RelayReply
from verifiers.v1.configs.client import BaseClientConfig, TrainClientConfig
from verifiers.v1.dialects import ChatDialect, Dialect
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.settings.sampling import LIMIT
from verifiers.v1.interception import server
from verifiers.v1.types import Response
from verifiers.v1.utils.addresses import split_query

_limited: set[str] = set()
"""Base URLs where the limit of a reply is named `LIMIT`."""


class Relay(EvalClient):
    """Relays to `config`'s endpoint: its query behind the path, the limit under `LIMIT` if
    `named`."""

    def __init__(self, config: BaseClientConfig, named: bool) -> None:
        super().__init__(config)
        self.base_url, query = split_query(config.base_url)
        self.client.params = httpx.QueryParams(query)
        self._named = named

    async def get_response(
        self, dialect: Dialect, body: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Response:
        return await super().get_response(dialect, self._renamed(dialect, body), *args, **kwargs)

    async def relay(
        self, dialect: Dialect, body: dict[str, Any], *args: Any, **kwargs: Any
    ) -> RelayReply:
        return await super().relay(dialect, self._renamed(dialect, body), *args, **kwargs)

    def _renamed(self, dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
        """The other dialects have names of their own, which the host has put in."""
        if not self._named or not isinstance(dialect, ChatDialect) or "max_tokens" not in body:
            return body
        return {LIMIT if key == "max_tokens" else key: value for key, value in body.items()}


def student_urls(config: GEPAConfig) -> tuple[list[str], bool]:
    """The arguments of `use_relay` for a run."""
    urls = [client.base_url for client in config.endpoints]
    return urls, config.sampling.max_completion_tokens is not None


def use_relay(urls: Iterable[str], named: bool) -> None:
    """From now on, interception servers of this process reach those of `urls` that need it by a
    `Relay`: all of them if the limit of a reply is `named` otherwise than the host has it."""
    for url in urls:
        (_limited.add if named else _limited.discard)(url)
        if named or split_query(url)[1]:
            server.resolve_client = _resolve  # type: ignore[attr-defined]


def _resolve(config: BaseClientConfig) -> Client:
    url = config.base_url
    if isinstance(config, TrainClientConfig) or not (url in _limited or split_query(url)[1]):
        return resolve_client(config)
    return Relay(config, url in _limited)
