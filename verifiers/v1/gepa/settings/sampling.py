"""Sampling parameters that go out under the names that they were given.

The host has one name for the limit of a reply, `max_tokens`, and renames `max_completion_tokens` to
it. Some models refuse the one, some servers don't know the other, so the name is the user's.
"""

from typing import Any, Self

from pydantic import model_validator

from verifiers.v1.types import SamplingConfig

LIMIT = "max_completion_tokens"


class NamedSampling(SamplingConfig):
    """The host's sampling, with the limit under either name."""

    max_tokens: int | None = None
    """Tokens of a reply, sent as `max_tokens`."""
    max_completion_tokens: int | None = None
    """The same, sent as `max_completion_tokens`: for models that refuse `max_tokens`."""

    @model_validator(mode="before")
    @classmethod
    def normalize(cls, data: Any) -> Any:
        """What is in `extra_body` belongs to the others, which win. Takes the place of the host's
        validator of this name, which renames the limit."""
        if not isinstance(data, dict):
            return data
        flat = {**(data.get("extra_body") or {}), **data}
        flat.pop("extra_body", None)
        return flat

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError(
                "max_tokens and max_completion_tokens are two names of one limit: name the one "
                "that the model takes, and set the other one to None where a file names it"
            )
        return self

    def unnamed(self) -> SamplingConfig:
        """The same for the host, which knows the limit as `max_tokens`."""
        return SamplingConfig.model_validate(self.model_dump(exclude_none=True))
