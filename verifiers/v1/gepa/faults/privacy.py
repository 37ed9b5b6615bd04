"""Keys stay out of files and logs, also where a provider repeats one in its error page."""

import re
from collections.abc import Mapping

from verifiers.v1.configs.client import resolve_api_key, resolve_headers
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.trace import Error
from verifiers.v1.utils.addresses import clients_of

SHORTEST = 8
"""Characters. A shorter key (`EMPTY`, `none`) is a common word, and no secret."""

MARK = "[secret]"

SECRET_NAME = re.compile(
    r"auth(?!or\b|or_|ors)|key|token|secret|cookie|passw|credential", re.IGNORECASE
)
"""What a header, query parameter or environment variable is called whose value is a secret."""


def keys_of(config: GEPAConfig) -> dict[str, str]:
    """The keys and secret headers that this run sends -> what stands in their place."""
    secrets: set[str] = set()
    clients = [client for _, client in clients_of(config)]
    for client in [*config.endpoints, *clients]:
        secrets.add(resolve_api_key(client))
        headers = resolve_headers(client)
        secrets.update(headers[name] for name in client.headers_from_env if name in headers)
    return {secret: MARK for secret in secrets if len(secret) >= SHORTEST}


def scrub(text: str, keys: Mapping[str, str]) -> str:
    """`text` without the keys."""
    for key, mark in keys.items():
        text = text.replace(key, mark)
    return text


def scrub_errors(episode: Episode, keys: Mapping[str, str]) -> None:
    """Take the keys out of every error of an episode, in place."""
    errors: list[Error] = list(episode.errors)
    for trace in episode.traces:
        errors += trace.errors
        errors += [call.error for call in trace.calls if call.error is not None]
    for error in errors:
        error.message = scrub(error.message, keys)
        error.traceback = scrub(error.traceback, keys) if error.traceback else None
