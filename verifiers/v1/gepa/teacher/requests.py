"""What the teacher is sent about a minibatch, in a bounded number of characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.teacher.attempts import Attempts
from verifiers.v1.gepa.teacher.records import Record, render_records, without
from verifiers.v1.gepa.teacher.template import TEMPLATE, rules, tried

LEAST_SHARE = 4
"""The examples get at least one part in so many of a request's size, however long the prompt is."""


def rules_of(config: GEPAConfig) -> str:
    """What the user says to the teacher in every request."""
    return rules(config.max_prompt_chars, config.protect, config.reflection_guidance)


def chars_besides_examples(config: GEPAConfig, prompt: str) -> int:
    """Characters of a request about `prompt`, of which nothing was tried yet, but for the
    examples."""
    return len(TEMPLATE) + len(rules_of(config)) + len(prompt)


@dataclass(frozen=True)
class Request:
    """What the teacher is asked about one minibatch."""

    parent: str
    """The prompt to improve."""
    prompt: str
    """The text sent, empty where there is nothing to show."""
    key: str
    """Digest of the same text before anything private was taken out: its name in the record."""


class Requests:
    """Writes the requests of a run. `render` fills the template with its named parts; `hide` maps
    texts that must not leave the machine to what stands in their place."""

    def __init__(
        self, config: GEPAConfig, hide: Mapping[str, str], render: Callable[..., str]
    ) -> None:
        self.attempts = Attempts()
        """Filled by the search's selection strategy."""
        self._chars = config.max_reflection_chars
        self._rules = rules_of(config)
        self._hide = hide
        self._render = render

    def request(self, parent: str, records: Sequence[Record]) -> Request:
        """The request about `parent` and what it did."""
        if not records:  # nothing of the minibatch could be measured
            return Request(parent, "", "")
        # What is hidden depends on this machine and its environment; the key must not.
        raw = self._text(parent, records)
        prompt = self._text(parent, without(records, self._hide))
        return Request(parent, prompt, prompt_digest(raw))

    def _text(self, parent: str, records: Sequence[Record]) -> str:
        parts = {
            "current_prompt": parent,
            "tried": tried(self.attempts.render(parent)),
            "rules": self._rules,
        }
        rest = len(TEMPLATE) + sum(map(len, parts.values()))
        room = max(self._chars - rest, self._chars // LEAST_SHARE)
        return self._render(**parts, examples=render_records(records, room))
