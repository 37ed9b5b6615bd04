"""A harness that claims to hand the system prompt on, and doesn't."""

from typing import Any

from direct_chat import DirectChatHarness

__all__ = ["DeafHarness"]


class DeafHarness(DirectChatHarness):
    def resolve_prompt(self, task: Any) -> Any:
        return super().resolve_prompt(task.model_copy(update={"system_prompt": None}))
