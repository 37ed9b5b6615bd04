"""The chat format as `direct-chat` speaks it with the interception: OpenAI's, read leniently.

An answer is validated inside the interception, before any harness sees it: `EvalClient` calls
`Dialect.validate_response`, which the host documents as the place to normalize what providers do
differently. So `direct-chat` has a dialect of its own, under a route of its own: the answers of
other harnesses stay as the host reads them.

The host means dialects to be registered in `DIALECTS`, which its server reads by name when it
starts. Both names are a tuple, so registering puts a longer one in their place.
"""

from openai.types.chat import ChatCompletion

import verifiers.v1.dialects as registry
from direct_chat.answers import Json, Unusable, mend
from direct_chat.finish import Finish, finish_of
from verifiers.v1.dialects import ChatDialect, Dialect
from verifiers.v1.errors import model_error
from verifiers.v1.interception import server

ROUTE = "/direct-chat/chat/completions"
"""Where the harness posts, below the interception's /v1."""

SPELLED: dict[Finish, str] = {"whole": "stop", "cut": "length", "filtered": "content_filter"}
"""OpenAI's word for each meaning that a measured answer can have."""


class DirectChatDialect(ChatDialect):
    routes = (f"/v1{ROUTE}",)

    def validate_response(self, raw: Json) -> ChatCompletion:
        """`raw` as the host's model of it, mended in place, so that the harness gets it mended
        too. Raises `ProviderError` with the status that the failure should have come with."""
        try:
            for choice in mend(raw)["choices"]:
                choice["finish_reason"] = spelled(choice)
        except Unusable as error:
            raise model_error(str(error), status_code=error.status) from error
        return super().validate_response(raw)


def spelled(choice: Json) -> str:
    """The choice's reason to finish in OpenAI's words. Raises `Unusable` for one that nobody knows,
    and for none at all where nothing was answered: it can't be told from a failure."""
    reason, message = choice.get("finish_reason"), choice["message"]
    answered = message.get("content") or message.get("tool_calls")
    meaning = finish_of(reason, tools=True)
    if not reason and answered:
        meaning = "whole"
    if meaning not in SPELLED:
        given = f"{reason!r} is none that is known" if reason else "is missing, and nothing came"
        raise Unusable(f"choices[{choice['index']}].finish_reason {given}")
    return "tool_calls" if meaning == "whole" and message.get("tool_calls") else SPELLED[meaning]


def register() -> None:
    """Let the interception servers that start from now on speak it."""
    served: tuple[Dialect, ...] = server.DIALECTS  # type: ignore[attr-defined]
    if not any(isinstance(dialect, DirectChatDialect) for dialect in served):
        served = (*served, DirectChatDialect())
        registry.DIALECTS = server.DIALECTS = served  # type: ignore[attr-defined]
