"""What an episode holds that no line of JSON can: mended before it is written.

Half of a surrogate pair in a reply or a tool's result, an array or an object that a reward notes:
that is no fault of the disk, and says nothing about the score. `utils/plain.py` says what becomes
of each. Live and recorded episodes read the same, since both are mended.
"""

import logging
import math
from functools import cache
from typing import Any

from pydantic import BaseModel

from verifiers.v1.episode import Episode
from verifiers.v1.trace import Trace
from verifiers.v1.utils.plain import Plain

logger = logging.getLogger(__name__)


def mend_notes(episode: Episode) -> bool:
    """Make plain, in place, what a taskset has noted on the traces, which can be anything. Whether
    there was half of a surrogate pair in it."""
    plain = Plain()
    for trace in episode.traces:
        info = plain.value(trace.info)
        trace.info = info if isinstance(info, dict) else {"info": info}
        _mend_scores(trace, plain)
    return plain.replaced


def mend_texts(episode: Episode) -> bool:
    """Mend, in place, every text of the episode. Whether there was half of a surrogate pair in one:
    rarely, so it is looked for only where the episode can't be written."""
    plain = Plain()
    _mended(episode, plain)
    return plain.replaced


def _mend_scores(trace: Trace, plain: Plain) -> None:
    names = {*trace.metrics, *trace.rewards}
    if any(plain.text(name) != name for name in names):
        trace.rewards = {plain.text(name): reward for name, reward in trace.rewards.items()}
        trace.metrics = {plain.text(name): value for name, value in trace.metrics.items()}
    for name, value in trace.metrics.items():
        if type(value) is not float:
            trace.metrics[name] = _number(value)


def _number(value: Any) -> float | None:
    """A metric that a taskset has set itself, None where it is no number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _mended(value: Any, plain: Plain) -> Any:
    if isinstance(value, str):
        return plain.text(value)
    if isinstance(value, list):
        return [_mended(item, plain) for item in value]
    if isinstance(value, dict):
        return {_mended(key, plain): _mended(item, plain) for key, item in value.items()}
    if isinstance(value, BaseModel):
        live = _live_fields(type(value))
        for fields in (vars(value), value.model_extra or {}):
            for name, item in fields.items():
                if name not in live:
                    fields[name] = _mended(item, plain)
    return value


@cache
def _live_fields(kind: type[BaseModel]) -> frozenset[str]:
    """The fields that are never written, and can hold what is in use."""
    return frozenset(name for name, field in kind.model_fields.items() if field.exclude)


class HalfPairs:
    """Says which tasks brought half of a surrogate pair, each once."""

    def __init__(self) -> None:
        self._said: set[int | None] = set()

    def found(self, episode: Episode) -> None:
        idx = episode.task.data.idx
        if idx not in self._said:
            self._said.add(idx)
            logger.warning(
                "task %s: its rollout holds half of a surrogate pair, which is no text: recorded "
                "as U+FFFD",
                idx,
            )
