"""The host's env server, with its episodes mended before they are sent.

A reply, a reward's note or a tool's result can hold what neither msgpack nor a line of the record
takes (`record/mending.py`). In the run itself that is mended as it is written; out of a worker it
would not even come.
"""

from typing import Any

from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.record.mending import HalfPairs, mend_notes, mend_texts
from verifiers.v1.serve import EnvServer


class MendedEnv:
    """An env whose episodes come mended; all else is the env's own."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._half_pairs = HalfPairs()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def run_slot(self, *args: Any, **kwargs: Any) -> Episode:
        """The env's `run_slot`. Its traces are sent as they grow; what can't be sent meanwhile goes
        out with the end of the episode, when it is mended."""
        episode = await self._env.run_slot(*args, **kwargs)
        in_notes, in_texts = mend_notes(episode), mend_texts(episode)
        if in_notes or in_texts:
            self._half_pairs.found(episode)
        return episode


class MendedServer(EnvServer):
    """Serves a `MendedEnv`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.env: Any = MendedEnv(self.env)
